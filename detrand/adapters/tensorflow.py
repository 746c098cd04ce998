"""TensorFlow's random ops in a stream: in graphs, in ``tf.function`` and eagerly.

Every stateful random op gets its seeds from ``get_seed``, where a stream plants ``(seed, op_seed)``. Nothing else
changes in a graph or a ``tf.function``, whose kernels count their runs. `detrand.adapters.xla` computes the numbers
where XLA compiles the function, and `detrand.adapters.eager` computes them eagerly, from an explicit counter.
`detrand.adapters.control_flow` finds out which executions are the same op node of the program.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from detrand._patching.graphs import builds_a_function
from detrand._patching.patches import Make, Patches, Replacements, Target, parameters_of
from detrand._patching.random_ops import (
    ACCIDENTAL_HITS,
    DATASET,
    RANDOM_OPS,
    RAW_OP_MODULES,
    SHUFFLING_QUEUE,
    op_type_of_seeded,
)
from detrand._patching.tensorflow import (
    GET_SEED,
    SET_GLOBAL_SEED,
    V2_INITIALIZER_DRAWS,
    executing_eagerly,
    set_global_seed,
    static_shape_and_dtype,
)
from detrand.adapters import control_flow, counter_draws, eager, uncontrolled, xla
from detrand.arguments import as_int
from detrand.errors import ScopeError
from detrand.seeding import cursors
from detrand.seeding.cursors import Cursor, governed


def install(patches: Patches) -> None:
    """Install the dispatchers."""
    patches.replace_all(_dispatchers())
    control_flow.install(patches)
    xla.install(patches)
    uncontrolled.install_in_tensorflow(patches)


# As `governed` makes it, with one call less: every draw asks.
def _get_seed(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_seed(op_seed: Any) -> Any:
        cursor = cursors.current()
        if cursor is None:
            return original(op_seed)
        if op_seed is None:
            return cursor.next_seeds(_executes)
        given = as_int(op_seed)
        return cursor.next_seeds(_executes, None if given is None else (given, 0))

    return get_seed


@governed
def _set_global_seed(cursor: Cursor, original: Any, eager: Any, seed: Any) -> None:
    """Keep the runs of a ``tf.function`` if a program sets a seed in each step: a session keeps them."""
    set_global_seed(eager, seed)


def _executes() -> bool | None:
    """Return whether an op of the calling thread is executed at once; None if it is added to a session's graph.

    Raises:
      ScopeError: if it would be added to a session's graph, in a step.
    """
    if executing_eagerly():
        return True
    if builds_a_function():
        return False
    cursor = cursors.current()
    if cursor is not None and cursor.in_step:
        raise ScopeError(
            "a random op was about to be added to a tf.Graph inside tool.step(). A step is for code that is executed "
            "at once, and a session counts the runs of its graph: build and run the graph in the tool's scope, outside "
            "all steps"
        )
    return None


# tf.compat.v1's functions of these ops pass the user's seeds to the kernel; TensorFlow 2's functions ask get_seed.
_BYPASSING_GET_SEED = (
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "FractionalMaxPool",
    "FractionalAvgPool",
)


@functools.cache
def _dispatchers() -> Replacements:
    makers: dict[Target, Make] = {
        **dict.fromkeys(GET_SEED, _get_seed),
        SET_GLOBAL_SEED: _set_global_seed,
        ACCIDENTAL_HITS: _compute_accidental_hits,
        DATASET: _make_dataset,
        SHUFFLING_QUEUE: _make_shuffling_queue,
        **dict.fromkeys(V2_INITIALIZER_DRAWS, _draw_unseeded),
    }
    for op_type, target in RANDOM_OPS.items():
        makers[target] = random_op = _random_op(op_type, parameters_of(target.checked()))
        for raw_ops in RAW_OP_MODULES:
            makers[Target(raw_ops, op_type, ())] = _raw_op(op_type, random_op)
    return Replacements(makers)


# As `governed` makes it, with one call less, too.
def _random_op(op_type: str, parameters: Mapping[str, inspect.Parameter]) -> Make:
    """Return what makes the dispatcher of a random op."""
    bypasses_get_seed = op_type in _BYPASSING_GET_SEED
    names, required = list(parameters), sum(each.default is each.empty for each in parameters.values())
    by_position = range(1, required + 1)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        op = uncontrolled.recording_ungoverned(op_type, original)

        def random_op(*args: Any, **arguments: Any) -> Any:
            cursor = cursors.current()
            if cursor is None:
                return op(*args, **arguments)
            # As TensorFlow's functions call the op: what it requires by position, the rest, with the seeds, by name.
            if len(args) not in by_position:
                arguments.update(zip(names, args, strict=False))
                args = (arguments.pop(names[0]),)
            seeds = arguments.pop("seed", 0) or 0, arguments.pop("seed2", 0) or 0
            # Seeds of 0 are "nondeterministic" to the kernel: the op has asked for none.
            if seeds == (0, 0) or (bypasses_get_seed and seeds != cursor.last_seeds):
                seeds = cursor.next_seeds(_executes)
            if bypasses_get_seed and "deterministic" in names:
                arguments["deterministic"] = True  # the fractional poolings refuse seeds without it
            node = cursor.node_of(seeds, _executes)
            if executing_eagerly():
                outputs = eager.draw(op_type, op, node, seeds, args, arguments)
            else:
                arguments.update(zip(names, args, strict=False))  # functions of tf.raw_ops take no others
                outputs = xla.added_to_graph(cursor, op_type, op, seeds, arguments)
            shape, dtype = static_shape_and_dtype(outputs)
            if node is not None:  # before an error of `describe_last`, as the kernel has moved on, too
                node.counter += counter_draws.reserved(op_type, shape)
            cursor.describe_last(op_type, shape, dtype)
            return outputs

        return random_op

    return make


def _raw_op(op_type: str, make_random_op: Make) -> Make:
    """Return what makes the dispatcher of a function of ``tf.raw_ops``: it takes arguments by name, and any seeds."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        random_op = make_random_op(original)

        @governed
        def raw_op(cursor: Cursor, original: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
            try:
                _signature(original).bind(*args, **arguments)
                seeds = _as_attribute(arguments.get("seed")), _as_attribute(arguments.get("seed2"))
            except (TypeError, ValueError, OverflowError):
                return original(*args, **arguments)  # which raises
            arguments["seed"], arguments["seed2"] = seeds
            is_own = any(seeds) and seeds != cursor.last_seeds
            outputs = random_op(**arguments)
            if is_own and op_type not in _BYPASSING_GET_SEED:
                uncontrolled.record(op_type, outputs, depth=4)
            return outputs

        return raw_op(uncontrolled.recording_ungoverned(op_type, original))

    return make


_signature = functools.lru_cache(inspect.signature)


def _as_attribute(seed: Any) -> int:
    """Return the int64 that TensorFlow makes of a seed, which may be an integer of NumPy or a float.

    Raises:
      TypeError, ValueError, OverflowError: if TensorFlow makes none.
    """
    if type(seed) is not int:
        if isinstance(seed, str):  # int() would take its digits
            raise TypeError
        seed = 0 if seed is None else int(seed)
    if not -(2**63) <= seed < 2**63:
        raise OverflowError
    return seed


@governed
def _compute_accidental_hits(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the seeds from an op that has them but draws nothing: each seed would leave a kernel behind."""
    if executing_eagerly():
        kwargs.update(seed=0, seed2=0)
    return original(*args, **kwargs)


@governed
def _make_dataset(cursor: Cursor, original: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
    """Describe a dataset that has taken an op seed: its op draws when the dataset is iterated over."""
    original(dataset, *args, **kwargs)
    if op_type := op_type_of_seeded(dataset):
        cursor.describe_last(op_type, None, "")


@governed
def _make_shuffling_queue(cursor: Cursor, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Describe a queue that has taken an op seed: it draws when elements are taken from it."""
    queue = original(*args, **kwargs)
    cursor.describe_last("RandomShuffleQueueV2", None, "")
    return queue


@governed
def _draw_unseeded(cursor: Cursor, original: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a TensorFlow 2 initializer draw as its TensorFlow 1 twin does: by a stateful op, whatever its seed."""
    return original(type(generator)(), *args, **kwargs)
