"""The private state of TF1 graphs, variable scopes and variable stores: targets of patches, and questions.

TF1 code keeps its bookkeeping on the default graph: the names that are taken, and the collections. Two private
collections hold the variable store, where ``get_variable`` looks for variables, and the counts of variable scopes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import attr_value_pb2, types_pb2, variable_pb2
from tensorflow.core.protobuf import control_flow_pb2, meta_graph_pb2, saved_model_pb2
from tensorflow.python.client import session
from tensorflow.python.eager import context, lift_to_graph
from tensorflow.python.framework import func_graph, kernels, op_def_registry, ops
from tensorflow.python.ops import control_flow_util, template
from tensorflow.python.ops import variable_scope as vs
from tensorflow.python.ops.losses import util as losses_util

from detrand._patching.keras import LEGACY_KERAS_BACKENDS, LayerNames
from detrand._patching.patches import Target, stand_in
from detrand._patching.tensorflow import COMPAT_V1
from detrand.changes import Changes, attribute_set

TEMPLATE_CALLS = tuple(
    Target("tensorflow.python.ops.template", f"{name}.__call__", ("self",)) for name in ("Template", "EagerTemplate")
)
# A template that was made eagerly keeps its variables in a store of its own while it is called.
TEMPLATE_STORE = Target("tensorflow.python.ops.variable_scope", "EagerVariableStore.as_default", ("self",))
STORE_CREATES_VARIABLE = Target("tensorflow.python.ops.variable_scope", "_variable_v1", ())
GET_COLLECTION = Target("tensorflow.python.framework.ops", "Graph.get_collection", ("self", "name"))
NAME_SCOPE = Target(
    "tensorflow.python.framework.ops", "name_scope", ("name", "default_name", "values", "skip_on_eager")
)
ENTER_NAME_SCOPE = Target("tensorflow.python.framework.ops", "name_scope_v2.__enter__", ("self",))
_SET_ATTRIBUTE = Target("tensorflow.python.framework.ops", "Operation._set_attr", ("self", "attr_name", "attr_value"))
_UPDATE_INPUT = Target("tensorflow.python.framework.ops", "Operation._update_input", ("self", "index", "tensor"))

LOSS_FUNCTIONS = ("tensorflow/python/ops/losses", "tf_slim/losses")  # the folders with ``tf.losses``'s functions

# Each hash of a variable in a graph asks it, and Keras hashes all variables whenever a layer of TF1 code creates one.
EAGER_OUTSIDE_FUNCTIONS = Target("tensorflow.python.framework.ops", "executing_eagerly_outside_functions", ())

# Gradients of the TensorArrays of TensorFlow 1 ask it, too.
CONTROL_FLOW_V2 = Target("tensorflow.python.ops.control_flow_util", "EnableControlFlowV2", ("graph",))

PLACEHOLDERS = tuple(
    Target(module, name, parameters)
    for module in ("tensorflow.python.ops.array_ops", *COMPAT_V1)
    for name, parameters in (
        ("placeholder", ("dtype", "shape", "name")),
        ("placeholder_with_default", ("input", "shape", "name")),
    )
)
OPTIMIZER_UPDATES = (
    Target("tensorflow.python.training.optimizer", "Optimizer.minimize", ("self", "loss")),
    Target("tensorflow.python.training.optimizer", "Optimizer.apply_gradients", ("self", "grads_and_vars")),
)

# Replaced in the graphs and stores of the shim only, not in TensorFlow's classes.
_STORE = "tensorflow.python.ops.variable_scope"
_OVERRIDDEN = (
    Target(_STORE, "_VariableStore.get_variable", ("self", "name", "shape", "dtype", "initializer", "regularizer")),
    Target(_STORE, "_VariableStore._get_single_variable", ("self", "name", "shape", "dtype", "initializer")),
    Target(_STORE, "_VariableStore._get_partitioned_variable", ("self", "name", "partitioner", "shape", "dtype")),
    Target(
        "tensorflow.python.framework.func_graph",
        "FuncGraph._create_op_internal",
        ("self", "op_type", "inputs", "dtypes", "input_types", "name"),
    ),
)


@functools.cache
def check_overridden() -> None:
    """Check, once, the methods that subclasses and single graphs override, and raise a `PatchError` if one differs."""
    for target in _OVERRIDDEN:
        target.checked()


KEEP_BOOKKEEPING = (vs, template, losses_util)  # these modules ask `context` whether to keep a graph's bookkeeping


def answering_at_once(original: Callable[[], bool]) -> Callable[[], bool]:
    """Return the replacement for `EAGER_OUTSIDE_FUNCTIONS`, which does not enter contexts to find out."""

    def executing_eagerly_outside_functions() -> bool:
        builds_session_graph = not (ops.get_default_graph().building_function or context.executing_eagerly())
        return not builds_session_graph and original()

    return executing_eagerly_outside_functions


def context_with_mode(executing_eagerly: Callable[[], bool]) -> Any:
    """Return what stands for TensorFlow's module `context` in modules that are to see a different mode."""
    return stand_in(context, executing_eagerly=executing_eagerly)


# --- Variable scopes and stores -----------------------------------------------------------------------------


class VariableStore(vs._VariableStore):
    """TensorFlow's variable store, with public names for what a subclass overrides."""

    @property
    def asked_for(self) -> dict[str, tf.Variable]:
        """The variables that ``get_variable`` has returned, by name."""
        return self._vars

    # What TensorFlow does, for `super()`.
    get_single_variable = vs._VariableStore._get_single_variable
    get_partitioned_variable = vs._VariableStore._get_partitioned_variable

    def _get_single_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_single_variable(*args, **kwargs)

    def _get_partitioned_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_partitioned_variable(*args, **kwargs)


def variable_store() -> Any:
    """Return the variable store of the default graph, where ``get_variable`` looks for variables."""
    return vs._get_default_variable_store()


def start_in(graph: Any, store: Any, scope: Any) -> None:
    """Give the default graph a variable store, and a copy of a variable scope if it is not None."""
    graph._collections[vs._VARSTORE_KEY] = [store]
    if scope is not None:
        vs.get_variable_scope_store().current_scope = copy.copy(scope)


def without_reuse(scope: Any) -> Any:
    """Return a copy of a variable scope in which variables are created."""
    scope = copy.copy(scope)
    scope._reuse = False
    return scope


def partitions_of(variable: Any) -> list[int]:
    """Return the number of parts of a partitioned variable along each axis."""
    return variable._get_partitions()


def forget_first_call(called_template: Any) -> None:
    """Make the next call of a template its first one, which creates variables."""
    called_template._first_call, called_template._variables_created = True, False
    called_template._variable_scope_context_manager = None


# --- Names and collections ----------------------------------------------------------------------------------


def take_name(name: str, name_scope: str, taken: dict[str, int]) -> str:
    """Return the name that ``Graph.unique_name`` returns, given how often each name is taken; it is taken then."""
    unique = name = f"{name_scope}/{name}" if name_scope else name
    number = taken.get(name.lower(), 0)
    taken[name.lower()] = number + 1
    while number and unique.lower() in taken:
        unique = f"{name}_{number}"
        number += 1
    taken.setdefault(unique.lower(), 1)
    return unique


def take_variable_name(graph: Any, name: str, name_scope: str) -> str:
    """Return the name that TF1 gives a variable in a graph, with a number if the graph has the name."""
    return name[:-1] if name.endswith("/") else take_name(name, name_scope, graph._names_in_use)


def names_stay_free(graph: Any) -> contextlib.AbstractContextManager[None]:
    """Return a scope in which the names that ops and scopes get are not taken from a graph."""
    return attribute_set(graph, "_names_in_use", {})


def name_counts(graph: Any) -> list[tuple[Any, str]]:
    """Return which attributes of which objects count the default graph's ops, variable scopes and unnamed v1 layers."""
    layers = [(LayerNames(graph, keras_backend), "counters") for keras_backend in LEGACY_KERAS_BACKENDS]
    return [(graph, "_names_in_use"), (vs.get_variable_scope_store(), "variable_scopes_count"), *layers]


def public_collections(graph: Any) -> dict[Any, list[Any]]:
    """Return the collections of a graph without those that hold the variable store and the variable scopes."""
    private = {vs._VARSTORE_KEY, vs._VARSCOPESTORE_KEY}
    return {key: members for key, members in graph._collections.items() if key not in private}


def bookkeeping(graph: Any, store: Any) -> list[tuple[Any, str]]:
    """Return where TF1 code keeps its bookkeeping: objects, each with the name of an attribute that is a dict."""
    return [*name_counts(graph), (graph, "_collections"), (store, "_vars"), (store, "_partitioned_vars")]


def eager_name_scope() -> str:
    """Return the name scope of eager execution, with a slash at its end if it is not the root."""
    return context.context().scope_name or ""


def rename_scope(scope: Any, name: str) -> None:
    """Give a ``tf.name_scope`` a different name, until it is given another one."""
    scope._name = name


def empty_default_graph(name_scope: str, creator: Callable[..., Any]) -> contextlib.AbstractContextManager[tf.Graph]:
    """Return a scope in which the default graph looks empty to TF1 code, and that yields this graph.

    In it, a name scope is open (``"scope/"``, or ``""`` for the root), and ``creator`` creates the variables.
    """
    empty = _empty_eager_graph if context.executing_eagerly() else _emptied_function_graph
    return empty(name_scope, creator)


class EagerGraph(tf.Graph):
    """A graph that keeps the bookkeeping of TF1 code whose ops execute at once; no op is ever added to it."""

    def as_default(self) -> contextlib.AbstractContextManager[Any]:
        """Make this the default graph, in eager mode."""
        # TF1 code makes a graph the default in order to add to it, and variable_scope does so as well.
        if ops.get_default_graph() is self and context.executing_eagerly():
            return contextlib.nullcontext(self)
        return self._as_default_eagerly()

    @contextlib.contextmanager
    def _as_default_eagerly(self) -> Iterator[Any]:
        with super().as_default(), context.eager_mode():
            yield self

    def get_name_scope(self) -> str:
        """Return the eager name scope."""
        return eager_name_scope().rstrip("/")

    def get_collection(self, name: Any, scope: Any = None) -> Any:
        """Return the members of a collection."""
        if name is vs._VARSCOPESTORE_KEY or name is vs._VARSTORE_KEY:  # asked for all the time, by TensorFlow only
            return self._collections.get(name, ())
        return super().get_collection(name, scope)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Add a value to collections."""
        for name in {names} if isinstance(names, str) else set(names):
            self._collections.setdefault(name, []).append(value)


_free = threading.local()  # graphs in use by no call: making a graph takes longer than cleaning one


@contextlib.contextmanager
def _empty_eager_graph(name_scope: str, creator: Callable[..., Any]) -> Iterator[EagerGraph]:
    outer: Any = ops.get_default_graph()
    free: list[Any] = vars(_free).setdefault("graphs", [])
    graph = free.pop() if free else EagerGraph()
    default_graphs = ops._default_graph_stack.stack

    def leave() -> None:
        default_graphs[:] = [each for each in default_graphs if each is not graph]
        graph._collections = {}
        graph._variable_creator_stack = graph._distribution_strategy_stack = []
        if graph not in free:
            free.append(graph)

    with Changes() as changes:
        changes.on_undo(leave)
        graph._collections = {}
        # The priority is that of tf.variable_creator_scope.
        graph._variable_creator_stack = [*outer._variable_creator_stack, (100, creator)]
        graph._distribution_strategy_stack = list(outer._distribution_strategy_stack)
        # `as_default` of TensorFlow would build a graph: ops would not execute at once.
        default_graphs.append(graph)
        changes.set(context.context(), "scope_name", name_scope)
        yield graph


@contextlib.contextmanager
def _emptied_function_graph(name_scope: str, creator: Callable[..., Any]) -> Iterator[Any]:
    """Make the function graph that is being built look empty in the block."""
    graph: Any = ops.get_default_graph()
    taken = graph._names_in_use
    surrounding_scope = "" if name_scope else graph._name_stack  # a nested emulated graph is in its scopes already
    create_op = graph._create_op_internal

    def create_named_op(
        op_type: str, inputs: Any, dtypes: Any = None, input_types: Any = None, name: Any = "", *args: Any, **attrs: Any
    ) -> Any:
        # TF1 code reads names (tf_slim makes the keys of its end points of them). An op is therefore named twice: the
        # emulated graph's name decides what comes after it; with the surrounding scope in front, and a number if need
        # be, it is unique in the function graph.
        name = name or op_type
        name = name[:-1] if name[-1] == "/" else graph.unique_name(name)
        name = take_name(name, surrounding_scope, taken)
        return create_op(op_type, inputs, dtypes, input_types, name + "/", *args, **attrs)

    def put_back() -> None:
        if not hasattr(create_op, "__self__"):  # the function of an outer emulated graph, not the method of the class
            graph._create_op_internal = create_op
        elif graph._create_op_internal is create_named_op:
            del graph._create_op_internal

    with Changes() as changes:
        changes.on_undo(put_back)
        graph._create_op_internal = create_named_op
        changes.set(graph, "_collections", {})
        changes.set(graph, "_name_stack", name_scope.rstrip("/"))
        with graph._variable_creator_scope(creator):
            yield graph


# --- Other graphs and functions -----------------------------------------------------------------------------


def scratch_function_graph() -> contextlib.AbstractContextManager[Any]:
    """Return a scope whose ops are built in a temporary graph; they may use tensors from outside."""
    return func_graph.FuncGraph("scratch").as_default()


def is_traced_by_function() -> bool:
    """Return whether a ``tf.function`` builds the default graph, and not Keras, to infer shapes."""
    graph: Any = ops.get_default_graph()
    return any("polymorphic_function" in creator.__module__ for _, creator in graph._variable_creator_stack)


def value_of(tensor: Any) -> Any:
    """Compute a tensor of a graph that is never run, in another graph; a placeholder in it raises a ``ValueError``."""
    with ops.Graph().as_default() as graph:
        copies = lift_to_graph.lift_to_graph([tensor], graph)
        with session.Session(graph=graph) as run:
            return run.run(copies[tensor])


def builds_a_function() -> bool:
    """Return whether the default graph belongs to a function, and not to a session."""
    return isinstance(ops.get_default_graph(), func_graph.FuncGraph)


def loops_are_functions() -> bool:
    """Return whether a loop in the default graph is a function with a graph of its own."""
    return not context.executing_eagerly() and control_flow_util.EnableControlFlowV2(ops.get_default_graph())


def op_def(op_type: str) -> Any:
    """Return the ``OpDef`` of an op type; None if there is none, as for the call of a function by its name."""
    return op_def_registry.get(op_type)


def function_graphs(op: Any, *, conditions: bool = False) -> list[Any]:
    """Return the graphs of the functions that an op calls; for a loop, that of its body and perhaps its condition."""
    kinds = {attr.name: attr.type for attr in op.op_def.attr if attr.type in ("func", "list(func)")}
    names = ["body"] if "body" in kinds and not conditions else list(kinds)
    called = tf.nest.flatten([op.get_attr(name) for name in names])
    functions = [op.graph._get_function(each.name) for each in called]
    return [function.graph for function in functions if getattr(function, "graph", None) is not None]


def replace_input(op: Any, index: int, tensor: Any) -> None:
    """Make an op of a graph that no session has run take a different tensor."""
    _UPDATE_INPUT.checked()
    op._update_input(index, tensor)


def in_functions_only(original: Callable[..., bool]) -> Callable[..., bool]:
    """Return what says that the graph of a session has the loops and conditionals of TensorFlow 1."""
    return lambda graph: graph.building_function and original(graph)


def set_integer(op: Any, attribute: str, value: int) -> None:
    """Change an attribute of an op of a graph; sessions that have run the graph cannot run it any more."""
    _SET_ATTRIBUTE.checked()
    op._set_attr(attribute, attr_value_pb2.AttrValue(i=value))


def add_control_input(op: Any, earlier: Any) -> None:
    """Make an op of a graph that no session has run wait for another op."""
    op._add_control_input(earlier)  # a function in C++, whose parameters cannot be checked


@functools.cache
def has_float64_kernel(op_type: str, type_attributes: frozenset[str]) -> bool:
    """Return whether an op type has a CPU kernel that takes float64 for each of some dtype attributes."""
    for attribute in op_def(op_type).attr:
        allowed = attribute.allowed_values.list.type
        if attribute.name in type_attributes and allowed and types_pb2.DT_DOUBLE not in allowed:
            return False
    registered = kernels.get_registered_kernels_for_op(op_type).kernel
    return not registered or any(
        all(
            types_pb2.DT_DOUBLE in constraint.allowed_values.list.type
            for constraint in kernel.constraint
            if constraint.name in type_attributes
        )
        for kernel in registered
        if kernel.device_type in ("CPU", "DEFAULT")
    )


def parse_message(kind: Any, content: bytes) -> Any:
    """Return a message of protobuf, in binary form or as text.

    Raises:
      ValueError: if the content is neither.
    """
    try:
        return kind.FromString(content)
    except Exception:  # of protobuf, whose classes depend on its version
        try:
            return text_format.Parse(content.decode(), kind())
        except UnicodeDecodeError:
            raise ValueError("it has a different format, or is truncated") from None
        except text_format.ParseError as error:
            raise ValueError(f"it is text, with the error {str(error).rstrip('.')}") from None


def meta_graphs_of_saved_model(folder: Path) -> list[Any]:
    """Return the graphs of a SavedModel, each a ``MetaGraphDef``; none if the folder holds no SavedModel."""
    file = folder / "saved_model.pb"
    return list(parse_message(saved_model_pb2.SavedModel, file.read_bytes()).meta_graphs) if file.exists() else []


def assets_of(meta_graph: Any) -> dict[str, str]:
    """Return the names of the files in a SavedModel, by the tensors that are their paths."""
    collection = meta_graph.collection_def.get("saved_model_assets")
    members = () if collection is None else collection.any_list.value
    files = [*meta_graph.asset_file_def, *(meta_graph_pb2.AssetFileDef.FromString(each.value) for each in members)]
    return {each.tensor_info.name: each.filename for each in files}


def forget_colocation(node: Any) -> None:
    """Make the definition of an op name no other op whose device it shares."""
    node.attr.pop("_class", None)


def condition_of_context(context: bytes) -> tuple[str, bool]:
    """Return the condition (a tensor) of a serialized conditional of a TF1 graph, and whether loops are in it."""
    message = control_flow_pb2.CondContextDef.FromString(context)
    nested, has_loops = [message], False
    for each in nested:
        has_loops |= any(inner.HasField("while_ctxt") for inner in each.nested_contexts)
        nested += [inner.cond_ctxt for inner in each.nested_contexts if inner.HasField("cond_ctxt")]
    return message.pred_name, has_loops


def tensors_of_context(context: bytes, is_loop: bool) -> tuple[str, ...]:
    """Return the names of the tensors that a serialized conditional or loop refers to, its own first."""
    message = (control_flow_pb2.WhileContextDef if is_loop else control_flow_pb2.CondContextDef).FromString(context)
    values = message.values_def
    found = [message.pivot_name, *values.values, *values.external_values.values()]
    found += (*message.loop_exit_names, *message.loop_enter_names) if is_loop else ()
    for each in message.nested_contexts:
        of_loop = each.HasField("while_ctxt")
        found += tensors_of_context((each.while_ctxt if of_loop else each.cond_ctxt).SerializeToString(), of_loop)
    return tuple(found)


def tensors_of_variable(variable: bytes) -> tuple[str, ...]:
    """Return the names of the tensor of a serialized variable, and of those that initialize and read it."""
    message = variable_pb2.VariableDef.FromString(variable)
    others = message.initializer_name, message.snapshot_name, message.initial_value_name
    return message.variable_name, *filter(None, others)
