"""TensorFlow's random ops in a stream: in graphs, in ``tf.function`` and eagerly.

Every stateful random op gets its seeds from ``get_seed``, where a stream plants ``(seed, op_seed)``. Nothing else
changes in a graph or a ``tf.function``, whose kernels count their runs. `detrand.adapters.xla` computes the numbers
where XLA compiles the function, and `detrand.adapters.eager` computes them eagerly, from an explicit counter.
`detrand.adapters.control_flow` finds out which executions are the same op node of the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from detrand._patching.graphs import builds_a_function
from detrand._patching.patches import Patches, Target, parameters_of
from detrand._patching.random_ops import ACCIDENTAL_HITS, RANDOM_OPS, RAW_OP_MODULES
from detrand._patching.tensorflow import GET_SEED, V2_INITIALIZER_DRAWS, executing_eagerly, static_shape_and_dtype
from detrand.adapters import control_flow, eager, uncontrolled, xla
from detrand.errors import ScopeError
from detrand.seeding import cursors
from detrand.seeding.cursors import Cursor, governed


def install(patches: Patches) -> None:
    """Install the dispatchers."""
    for target in GET_SEED:
        patches.replace(target, _get_seed)
    for op_type, target in RANDOM_OPS.items():
        _install_op(patches, op_type, target)
    patches.replace(ACCIDENTAL_HITS, _compute_accidental_hits)
    for target in V2_INITIALIZER_DRAWS:
        patches.replace(target, _draw_unseeded)
    control_flow.install(patches)
    xla.install(patches)
    uncontrolled.install(patches)


@governed
def _get_seed(cursor: Cursor, original: Any, op_seed: Any) -> Any:
    return cursor.next_seeds(_executes)


def _executes() -> bool:
    """Return whether an op of the calling thread is executed at once.

    Raises:
      ScopeError: if it would be added to a session's graph, in a step.
    """
    if executing_eagerly():
        return True
    cursor = cursors.current()
    if cursor is not None and cursor.in_step and not builds_a_function():
        raise ScopeError(
            "a random op was about to be added to a tf.Graph inside tool.step(). A step is for code that is executed "
            "at once, and a session counts the runs of its graph: build and run the graph in the tool's scope, outside "
            "all steps"
        )
    return False


def _install_op(patches: Patches, op_type: str, target: Target) -> None:
    original = target.checked()
    op = governed(_random_op(op_type, original))(original)

    def raw_op(cursor: Cursor, original: Any, **kwargs: Any) -> Any:
        try:
            kwargs.update({name: _as_attribute(kwargs[name]) for name in ("seed", "seed2") if name in kwargs})
        except (TypeError, ValueError, OverflowError):
            return original(**kwargs)  # which raises
        seeds = _seeds_in([], (), kwargs)
        is_own = any(seeds) and seeds != cursor.last_seeds
        outputs = op(**kwargs)
        if is_own and op_type not in _BYPASSING_GET_SEED:
            uncontrolled.record(op_type, outputs, depth=4)
        return outputs

    patches.replace(target, lambda original: op)
    for raw_ops in RAW_OP_MODULES:
        # Functions of tf.raw_ops are copies, and take only arguments by name.
        patches.replace(Target(raw_ops, op_type, ()), governed(raw_op))


def _random_op(op_type: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the dispatch of a random op, for `governed`."""
    parameters = list(parameters_of(original))
    bypasses_get_seed = op_type in _BYPASSING_GET_SEED
    stateless = eager.STATELESS.get(op_type)
    draw_eagerly = stateless or functools.partial(eager.draw_without_twin, op_type, original)

    def draw(cursor: Cursor, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if bypasses_get_seed or (not kwargs.get("seed") and not kwargs.get("seed2")):
            kwargs.update(zip(parameters, args, strict=False))
            kwargs.update(_seeds(cursor, kwargs.get("seed"), kwargs.get("seed2"), bypasses_get_seed))
            args = ()
            if "deterministic" in parameters:
                kwargs["deterministic"] = True  # the fractional poolings refuse seeds without it
        node = None if cursor.is_plain else cursor.node_of(_seeds_in(parameters, args, kwargs), _executes)
        if executing_eagerly():
            outputs = draw_eagerly(node, *args, **kwargs)
        else:
            outputs = xla.added_to_graph(cursor, op_type, original, *args, **kwargs)
        shape, dtype = static_shape_and_dtype(outputs[0] if isinstance(outputs, tuple) else outputs)
        cursor.describe_last(op_type, shape, dtype)
        if node is not None and stateless:
            eager.advance(node, op_type, shape)
        return outputs

    return draw


# tf.compat.v1's functions of these ops pass the user's seeds to the kernel; TensorFlow 2's functions ask get_seed.
_BYPASSING_GET_SEED = (
    "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2",
    "FractionalMaxPool",
    "FractionalAvgPool",
)


def _seeds(cursor: Cursor, seed: int | None, op_seed: int | None, may_be_the_users: bool) -> dict[str, int]:
    unseeded = not seed and not op_seed  # "nondeterministic" to the kernel: the op asked for no seed
    if unseeded or (may_be_the_users and (seed, op_seed) != cursor.last_seeds):
        seed, op_seed = cursor.next_seeds(_executes)
    return {"seed": seed or 0, "seed2": op_seed or 0}


def _seeds_in(parameters: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
    return arguments.get("seed") or 0, arguments.get("seed2") or 0


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
def _draw_unseeded(cursor: Cursor, original: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a TensorFlow 2 initializer draw as its TensorFlow 1 twin does: by a stateful op, whatever its seed."""
    return original(type(generator)(), *args, **kwargs)
