"""Errors raised at a line of detrand's own code, and the state of the process that must be as before afterwards."""

import contextlib
import functools
import itertools
import logging
import random
import sys
import threading
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


def lines_run(function, threads=sys):
    """Call a function, and return the lines of detrand that it runs, as often as it runs them.

    Args:
      function: the function.
      threads: which threads count: `sys`, the calling one; `threading`, those that the function starts.
    """
    lines = []
    _call_traced(function, lambda frame: lines.append((frame.f_code.co_filename, frame.f_lineno)), threads)
    return lines


def called_at(number, function, callback):
    """Call a function, and a callback at a line of detrand that it runs, counted from 0; return whether it ran so many.

    This is how the garbage collector calls finalizers.
    """
    numbers, is_called = itertools.count(), False

    def call_there(frame):
        nonlocal is_called
        if next(numbers) == number:
            is_called = True
            callback()

    _call_traced(function, call_there, sys)
    return is_called


def interrupted_at(number, function, error, threads=sys):
    """Raise an error at a line of detrand that a function runs, counted from 0; return whether it ran so many.

    A failed assertion of the function is raised.
    """
    numbers, is_interrupted = itertools.count(), False

    def raise_there(frame):
        nonlocal is_interrupted
        if next(numbers) == number:
            is_interrupted = True
            raise error

    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        # What is interrupted while it is made or ends warns; Python reports errors in finalizers, threads and tasks.
        warnings.simplefilter("ignore", RuntimeWarning)
        for owner, name in (
            (sys, "unraisablehook"),
            (threading, "excepthook"),
            (logging.getLogger("asyncio"), "error"),
        ):
            stack.enter_context(mock.patch.object(owner, name))
        try:
            _call_traced(function, raise_there, threads)
        except AssertionError:
            raise
        except BaseException:  # or the error that it leads to
            if not is_interrupted:
                raise
    return is_interrupted


def _call_traced(function, visit, threads):
    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(_FOLDER):
            return None
        if event == "line":
            visit(frame)
        return trace

    before = threads.gettrace()
    threads.settrace(trace)
    try:
        function()
    finally:
        threads.settrace(before)


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
