"""Private names of TensorFlow: targets of patches, eager execution, seeds, and small questions about tensors."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api
from tensorflow.python.eager import context, execute, record
from tensorflow.python.framework import config, dtypes, ops
from tensorflow.python.ops import (
    gen_image_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
    stateful_random_ops,
)
from tensorflow.python.util import tf_decorator, tf_stack

from detrand._patching.patches import Target
from detrand.changes import Changes, attribute_set

COMPAT_V1 = (  # every module that code may know as tf.compat.v1
    "tensorflow.compat.v1",
    "tensorflow._api.v2.compat.v1",
    "tensorflow._api.v2.compat.v1.compat.v1",
    "tensorflow._api.v2.compat.v2.compat.v1",
)
GET_SEED = tuple(
    Target(module, "get_seed", ("op_seed",))
    for module in ("tensorflow.python.framework.random_seed", *COMPAT_V1, "tensorflow._api.v2.compat.v1.random")
)
SET_GLOBAL_SEED = Target("tensorflow.python.eager.context", "Context._set_global_seed", ("self", "seed"))
WHILE_LOOPS = tuple(
    Target(module, "while_loop", ("cond", "body", "loop_vars"))
    for module in ("tensorflow.python.ops.while_loop", *COMPAT_V1)
)
EAGER_COND = Target("tensorflow.python.ops.cond", "_eager_cond_implementation", ("pred", "true_fn", "false_fn"))
SMART_CONDS = tuple(
    Target(module, "smart_cond", ("pred", "true_fn", "false_fn"))
    for module in (
        "tensorflow.python.framework.smart_cond",
        "tensorflow._api.v2.__internal__.smart_cond",
        "tensorflow._api.v2.compat.v2.__internal__.smart_cond",
    )
)
SWITCH_CASE_BRANCHES = Target(
    "tensorflow.python.ops.control_flow_switch_case",
    "_indexed_case_verify_and_canonicalize_args",
    ("branch_fns", "default", "branch_index"),
)
DATASET_FUNCTION = Target(
    "tensorflow.python.data.ops.structured_function", "StructuredFunctionWrapper.__init__", ("self", "func")
)
V2_INITIALIZER_DRAWS = tuple(
    Target("tensorflow.python.ops.init_ops_v2", f"_RandomGenerator.{name}", ("self", "shape", *bounds, "dtype"))
    for name, bounds in {
        "random_normal": ("mean", "stddev"),
        "random_uniform": ("minval", "maxval"),
        "truncated_normal": ("mean", "stddev"),
    }.items()
)


is_recording = execute.must_record_gradient  # whether a gradient tape or a forward accumulator is open


def record_gradient(op_type: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: list[Any]) -> None:
    """Record for the open gradient tapes that an op has computed ``outputs`` from ``inputs``, eagerly."""
    if is_recording():
        execute.record_gradient(op_type, inputs, attributes, outputs)


no_recording = record.stop_recording  # a scope whose ops no gradient tape records
# The ops whose inputs decide what they draw, as they are, whatever replaces them.
STATELESS_KERNELS = SimpleNamespace(
    **{**vars(gen_image_ops), **vars(gen_stateless_random_ops), **vars(gen_stateless_random_ops_v2)}
)
# The ops of tf.random.Generator, which move on the counter in a variable.
STATEFUL_KERNELS = SimpleNamespace(**vars(gen_stateful_random_ops))


def state_variable(values: np.ndarray) -> Any:
    """Return the handle of a new variable, which lasts as long as the handle, without any of `tf.Variable`'s scopes."""
    value = tf.constant(values)
    handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=value.shape, shared_name=context.anonymous_name())
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle


def eager_tensor(values: np.ndarray) -> Any:
    """Return a tensor on the CPU, which may share an array's memory, in a fifth of the time of ``tf.constant``."""
    return ops.EagerTensor(values, None)


def keep_global_seed(changes: Changes) -> None:
    """Restore TensorFlow's global seed and generators when the changes are undone.

    Where eager execution is off, this includes the seed of the default graph.
    """
    changes.restore("TensorFlow's global seed", _saved_global_seed, lambda restore: restore())


def _saved_global_seed() -> Callable[[], None]:
    """Return what restores the global seed and generators as they are now."""
    eager = context.context()
    seed, rng = eager._seed, getattr(eager, "_rng", None)
    rng_state = rng.getstate() if rng is not None else None
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    graph_seed = graph.seed if graph is not None else None
    generator = stateful_random_ops.global_generator
    generator_state = None if generator is None or graph is not None else generator.state.read_value()

    def restore() -> None:
        eager._seed, eager._rng = seed, rng
        if rng is not None:
            rng.setstate(rng_state)
        if graph is not None:
            graph.seed = graph_seed
        stateful_random_ops.global_generator = generator
        if generator_state is not None:
            generator.state.assign(generator_state)

    return restore


def set_global_seed(eager: Any, seed: Any) -> None:
    """Set TensorFlow's global seed, and keep the kernels that count their runs; TensorFlow drops them."""
    eager._seed = seed
    eager._rng = random.Random(int(seed) if isinstance(seed, (np.ndarray, np.integer)) else seed)


def executing_eagerly() -> bool:
    """Return whether ops execute at once, as fast as TensorFlow's generated functions find out."""
    return (context._context or context.context())._thread_local_data.is_eager


def ops_are_deterministic() -> bool:
    """Return whether ``tf.config.experimental.enable_op_determinism`` has been called."""
    return config.is_op_determinism_enabled()


_DTYPE_NAMES = dtypes._TYPE_TO_STRING


def static_shape_and_dtype(outputs: Any) -> tuple[tuple[int | None, ...] | None, str]:
    """Return the shape of an op's first output, with ``None`` for what is unknown, and the name of its dtype.

    Reading TensorFlow's own fields takes a fraction of the time of ``.shape`` and ``.dtype.name``.
    """
    tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    try:
        dtype = _DTYPE_NAMES[tensor._datatype_enum()]
    except AttributeError:  # a symbolic tensor
        dimensions, is_unknown = tensor._shape
        return None if is_unknown else tuple(dimensions), tensor._dtype.name
    return tensor._shape_tuple(), dtype


def decorated(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Any:
    """Return a wrapper that has the signature of its function for TensorFlow and tf_keras, too."""
    decorated_function: Any = tf_decorator.make_decorator(function, wrapper)
    if function.__name__ == "build":
        # Keras 3 would copy the signature to the bound method, which has no `self`; `__wrapped__` has it as well.
        vars(decorated_function).pop("__signature__", None)
    return decorated_function


def function_as_is(function: Callable[..., Any]) -> Any:
    """Return a ``tf.function`` that is not converted, and that may be made often without a warning."""
    made = tf.function(function, autograph=False)
    made._omit_frequent_tracing_warning = True
    return made


def converted_by_autograph(function: Callable[..., Any]) -> Any:
    """Return a function that AutoGraph converts when it is called, as it converts what a ``tf.function`` calls."""
    return api.tf_convert(function, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))


def autograph_origin(filename: str, line: int) -> tuple[str, int, str]:
    """Return the user's file and line, and what is on it, for a line of the source that AutoGraph has rewritten."""
    origin = autograph_lines().get((filename, line))
    if origin is None:
        return filename, line, ""
    maps = (mapper._source_map for mapper in reversed(_line_mappers()) if isinstance(mapper, api.StackTraceMapper))
    texts = (lines[filename, line].source_code_line for lines in maps if (filename, line) in lines)
    return origin[0], origin[1], next(texts, "")


def autograph_lines() -> Any:
    """Return where the lines of the source come from that AutoGraph has rewritten for the function being traced."""
    return _line_mappers()[-1].get_effective_source_map()


def _line_mappers() -> Any:
    return tf_stack._source_mapper_stacks[threading.get_ident()]


class KnowingAutographLines(tf_stack.StackTraceMapper):
    """A scope in which a thread knows the `autograph_lines` of another one."""

    def __init__(self, lines: Any):
        super().__init__()
        self._lines = lines

    def get_effective_source_map(self) -> Any:
        """Return the lines."""
        return self._lines

    def update(self) -> None:
        """Leave the stacks of TensorFlow's ops as they are."""


_bases = itertools.count(100_000, 100_000)  # as in TensorFlow's tests of strategies


def collectives_of_its_own() -> contextlib.AbstractContextManager[None]:
    """Return a scope in which a ``MirroredStrategy`` numbers its sums by keys that no other strategy has.

    All strategies start at the same key, and in one process two sums with the same key must have the same shape.
    """
    return attribute_set(tf.distribute.MirroredStrategy, "_collective_key_base", next(_bases))
