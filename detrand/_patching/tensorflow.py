"""What detrand uses of TensorFlow without a public name: the targets of its patches, and small questions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import session
from tensorflow.python.eager import context, execute, lift_to_graph, record
from tensorflow.python.framework import dtypes, func_graph, ops, tensor
from tensorflow.python.ops import gen_stateless_random_ops_v2, resource_variable_ops, stateful_random_ops
from tensorflow.python.trackable import base
from tensorflow.python.util import tf_decorator, tf_stack

from detrand._patching.patches import Target

THREAD_START = Target("threading", "Thread.start", ("self",))

_COMPAT_V1 = (  # what tf.compat.v1 is, by every name that code finds it under
    "tensorflow.compat.v1",
    "tensorflow._api.v2.compat.v1",
    "tensorflow._api.v2.compat.v1.compat.v1",
    "tensorflow._api.v2.compat.v2.compat.v1",
)
GET_SEED = tuple(
    Target(module, "get_seed", ("op_seed",))
    for module in ("tensorflow.python.framework.random_seed", *_COMPAT_V1, "tensorflow._api.v2.compat.v1.random")
)
WHILE_LOOPS = tuple(
    Target(module, "while_loop", ("cond", "body", "loop_vars"))
    for module in ("tensorflow.python.ops.while_loop", *_COMPAT_V1)
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
CREATE_VARIABLE = Target("tensorflow.python.ops.variables", "VariableMetaclass.__call__", ("cls",))
UnreadVariable = resource_variable_ops._UnreadVariable  # what an assignment returns: a variable that is there already
V2_INITIALIZER_DRAWS = tuple(
    Target("tensorflow.python.ops.init_ops_v2", f"_RandomGenerator.{name}", ("self", "shape", *bounds, "dtype"))
    for name, bounds in {
        "random_normal": ("mean", "stddev"),
        "random_uniform": ("minval", "maxval"),
        "truncated_normal": ("mean", "stddev"),
    }.items()
)


def record_gradient(op_type: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: list[Any]) -> None:
    """Tells the open gradient tapes that an op has computed ``outputs`` from ``inputs``, eagerly."""
    if execute.must_record_gradient():
        execute.record_gradient(op_type, inputs, attributes, outputs)


def no_recording() -> contextlib.AbstractContextManager[None]:
    """Returns a scope whose ops no gradient tape records."""
    return record.stop_recording()


_stateless_kernels = SimpleNamespace(**vars(gen_stateless_random_ops_v2))  # as they are, whatever replaces them


def stateless_kernels() -> SimpleNamespace:
    """Returns the ops that draw from an explicit key and counter."""
    return _stateless_kernels


def stateless_float_kernel(op_type: str, generated: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that executes a stateless float op eagerly, in 3/4 of the time of its generated function.

    Args:
      op_type: TensorFlow's name of the op.
      generated: the generated function, which converts whatever arguments the fast path refuses, or raises.
    """
    execute_at_once = pywrap_tfe.TFE_Py_FastPathExecute

    def kernel(shape: Any, key: Any, counter: Any, algorithm: Any, dtype: Any, name: str | None) -> Any:
        try:
            return execute_at_once(context._context, op_type, name, shape, key, counter, algorithm, "dtype", dtype)
        except Exception:
            return generated(shape, key, counter, algorithm, dtype, name)

    return kernel


_UINT64 = dtypes.uint64.as_datatype_enum


def eager_uint64(*values: int) -> Any:
    """Return an eager uint64 vector on the CPU, in a fifth of the time that ``tf.constant`` takes."""
    return ops.EagerTensor(np.array(values, np.uint64), None, _UINT64)


@contextlib.contextmanager
def global_seed_restored() -> Iterator[None]:
    """Puts TensorFlow's global seed and generators back, whatever the block does to them.

    The graph-level seed counts as global where eager execution is off: the default graph is the process's.
    """
    eager = context.context()
    seed, rng = eager._seed, getattr(eager, "_rng", None)
    rng_state = rng.getstate() if rng is not None else None
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    graph_seed = graph.seed if graph is not None else None
    generator = stateful_random_ops.global_generator
    generator_state = None if generator is None or graph is not None else generator.state.read_value()
    try:
        yield
    finally:
        eager._seed, eager._rng = seed, rng
        if rng is not None:
            rng.setstate(rng_state)
        if graph is not None:
            graph.seed = graph_seed
        stateful_random_ops.global_generator = generator
        if generator_state is not None:
            generator.state.assign(generator_state)


def scoped_variable_name(name: str | None) -> str:
    """Returns the name that a variable would get if it were created now; the name stays free."""
    name = name or "Variable"
    if name.endswith("/"):
        return name[:-1]
    with ops.init_scope():  # where variables are created
        if not context.executing_eagerly():
            return ops.get_default_graph().unique_name(name, mark_as_used=False)
        return f"{context.context().scope_name}{name}"


@contextlib.contextmanager
def scratch_function_graph() -> Iterator[None]:
    """Builds the ops of the block in a graph that is thrown away, and may use tensors from outside."""
    with func_graph.FuncGraph("scratch").as_default():
        yield


def is_traced_by_function() -> bool:
    """Returns whether the default graph is built by a ``tf.function``, and not by Keras to learn shapes."""
    return any("polymorphic_function" in creator.__module__ for creator in _variable_creators())


def _variable_creators() -> list[Callable[..., Any]]:
    graph = ops.get_default_graph()
    return [creator for _, creator in graph._variable_creator_stack]


def value_of(tensor: Any) -> Any:
    """Computes a tensor of a graph that is never run: its ops are copied to one that is.

    Raises:
      ValueError: if it depends on what is only a placeholder.
    """
    with ops.Graph().as_default() as graph:
        copies = lift_to_graph.lift_to_graph([tensor], graph)
        with session.Session(graph=graph) as run:
            return run.run(copies[tensor])


_OF_TF1 = "tf1_style_variables/"  # no attribute of the object can have such a name


def track_by_name(owner: Any, name: str, variable: Any) -> None:
    """Makes a variable part of an object's ``tf.train.Checkpoint``, and restores it if one waits for it."""
    key = _OF_TF1 + name
    known = vars(owner).get("_self_unconditional_dependency_names")
    is_plain = type(owner)._track_trackable is base.Trackable._track_trackable and not hasattr(
        owner, "_manual_tracking"
    )
    if known and key not in known and is_plain and not owner._deferred_dependencies:
        # What _track_trackable does with any name after the first; but it sets attributes of the owner on the way,
        # which takes a Keras 3 layer long.
        known[key] = variable
        owner._self_unconditional_checkpoint_dependencies.append(base.TrackableReference(key, variable))
        return
    owner._track_trackable(variable, name=key, overwrite=True)
    owner._handle_deferred_dependencies(name=key, trackable=variable)


def tracked_by_name(owner: Any, name: str) -> Any:
    """Returns the variable that `track_by_name` or a SavedModel's loader has made part of an object, if one has."""
    if not hasattr(owner, "_self_unconditional_checkpoint_dependencies"):
        return None  # it tracks nothing yet
    return owner._lookup_dependency(_OF_TF1 + name)


def save_slice(variable: Any) -> tuple[str, tuple[int, ...]] | None:
    """Returns the name and shape of the partitioned variable that a variable is a part of, if it is one."""
    info = getattr(variable, "_save_slice_info", None)
    return info and (info.full_name, tuple(info.full_shape))


def copy_save_slice(variable: Any, duplicate: Any) -> None:
    """Makes a copy of a part of a partitioned variable a part as well, which TensorFlow's copies are not."""
    info = getattr(variable, "_save_slice_info", None)
    if info:
        duplicate._set_save_slice_info(info)


def slice_spec(variable: Any) -> str:
    """Returns which part of a partitioned variable a variable is, as TensorFlow's ops for checkpoints have it."""
    info = getattr(variable, "_save_slice_info", None)
    return info.spec if info else ""


def learning_rate_of_tf1(optimizer: Any) -> Any:
    """Returns the learning rate of a ``tf.compat.v1.train.Optimizer``, a number or a tensor; None if it keeps none."""
    for name in ("_lr", "_learning_rate", "learning_rate"):
        rate = getattr(optimizer, name, None)
        if rate is not None:
            return rate() if callable(rate) else rate
    return None


def hyperparameters_of_tf1_optimizer(optimizer: Any) -> dict[str, Any]:
    """Returns what a ``tf.compat.v1.train.Optimizer`` was given: numbers and tensors, by their names."""
    attributes = {name.removeprefix("_"): value for name, value in vars(optimizer).items()}
    return {name: value for name, value in attributes.items() if isinstance(value, (int, float, tensor.Tensor))}


def executing_eagerly() -> bool:
    """Returns what ``tf.executing_eagerly()`` does, as fast as TensorFlow's generated functions ask for it."""
    return (context._context or context.context())._thread_local_data.is_eager


def builds_a_function() -> bool:
    """Returns whether the default graph is that of a function, which is executed at a call, and not by a session."""
    return isinstance(ops.get_default_graph(), func_graph.FuncGraph)


_DTYPE_NAMES = dtypes._TYPE_TO_STRING


def static_shape_and_dtype(tensor: Any) -> tuple[tuple[int | None, ...] | None, str]:
    """Returns a tensor's shape, ``None`` for what is unknown, and the name of its dtype.

    They are read where TensorFlow keeps them, at a fraction of what ``.shape`` and ``.dtype.name`` cost.
    """
    try:
        dtype = _DTYPE_NAMES[tensor._datatype_enum()]
    except AttributeError:  # a symbolic tensor
        dimensions, is_unknown = tensor._shape
        return None if is_unknown else tuple(dimensions), tensor._dtype.name
    return tensor._shape_tuple(), dtype


def decorated(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Any:
    """Returns a wrapper that TensorFlow and tf_keras, too, take to have the signature of what it wraps."""
    decorated_function: Any = tf_decorator.make_decorator(function, wrapper)
    if function.__name__ == "build":
        # Keras 3 copies it to the bound method, which has no `self`; `__wrapped__` says the same without it.
        vars(decorated_function).pop("__signature__", None)
    return decorated_function


def autograph_origin(filename: str, line: int) -> tuple[str, int]:
    """Returns the user's file and line of a line of AutoGraph's rewritten source."""
    mapper = tf_stack._source_mapper_stacks[threading.get_ident()][-1]
    origin = mapper.get_effective_source_map().get((filename, line))
    return (origin[0], origin[1]) if origin else (filename, line)
