"""Errors raised at a line of detrand's own code, and the state of the process that must be as before afterwards."""

import functools
import random
import sys
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops, random_seed
from tensorflow.python.ops import stateful_random_ops

import detrand
from detrand._patching.patches import Shared
from detrand.seeding import cursors
from tests._patching.test_patches import all_targets

_FOLDER = str(Path(detrand.__file__).parent)


def lines_run(function):
    """Call a function, and return the lines of detrand that it runs, as often as it runs them."""
    lines = []
    _call_traced(function, lambda frame: lines.append((frame.f_code.co_filename, frame.f_lineno)))
    return lines


def interrupted_at(number, function, error):
    """Raise an error at a line of detrand that a function runs, counted from 0; return whether it ran so many."""
    left = number

    def raise_there(frame):
        nonlocal left
        left -= 1
        if left == -1:
            raise error

    # What is interrupted while it is made or ends warns of that; Python reports errors in finalizers.
    with warnings.catch_warnings(), mock.patch.object(sys, "unraisablehook"):
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            _call_traced(function, raise_there)
        except BaseException:  # or the error that it leads to
            if left >= 0:
                raise
    return left < 0


def _call_traced(function, visit):
    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(_FOLDER):
            return None
        if event == "line":
            visit(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)


def process_state():
    """Everything of the process that a scope could leave changed."""
    eager = context.context()
    generator = stateful_random_ops.global_generator
    rng = getattr(eager, "_rng", None)
    graph = tf.compat.v1.get_default_graph()
    return {
        "seed": eager._seed,
        "rng": rng and (rng, rng.getstate()),
        "generator": generator and (generator, generator.state.numpy().tolist()),
        "graph": (graph, graph.seed, ops._default_graph_stack.stack[:]),
        "eager scope": eager.scope_name,
        "patched": [(name, vars(owner).get(attribute)) for name, owner, attribute in _targets()],
        "users": [len(shared._users) for shared in _shared()],
        "get_seed": random_seed.get_seed,
        "meta_path": list(sys.meta_path),
        "path": list(sys.path),
        "cursor": cursors.current(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
    }


@functools.cache
def _targets():
    return [(str(target), target.owner(), target.attribute) for target in all_targets()]


@functools.cache
def _shared():
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("detrand.")]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Shared)]
