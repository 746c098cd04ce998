"""The trace of a program: the ops that its outputs depend on, and what they computed.

`trace_tf1` runs the TF1 program once more, in float64, and fetches all of its tensors. `PortGraph` does so with a port.
A golden file keeps TF1's traces, with some elements of each large tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.function_traces import FUNCTION_CALL
from detrand._patching.patches import Patches
from detrand.arguments import shorten
from detrand.checkpoints.upstream import all_upstream, input_ops, name_of, op_of
from detrand.packages import tf
from detrand.seeding.callsite import site_of_op
from detrand.validation.diagnosis.loops import unrolled
from detrand.validation.frameworks.traces import (
    CONVOLUTIONS,
    DILATED,
    DIVISOR,
    GATHERS,
    IN_FUNCTION,
    MOST_ELEMENTS,
    OF_ALL,
    OF_SHAPES,
    OF_TENSORFLOW,
    ORDER_OF_CHANNELS,
    POOLINGS,
    Trace,
    TracedOp,
    text_of_constant,
)
from detrand.validation.noise.variants import Rerun, Snapshot, as_written, in_float64
from detrand.validation.programs.tf1 import TF1Program, config_as_written

# Ops whose outputs are given, or carry no information.
_GIVEN = ("Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "NoOp")
_SOURCES = {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2"}
_COPIES = {"Identity", "Cast"}
_INPUTS = {"Placeholder", "PlaceholderWithDefault"}
_COPIES_OF_INPUTS = {"Cast", "StopGradient", "Reshape", "ExpandDims", "Squeeze"}
_MOST_FOLDED = 16  # ops from constants to what an op takes
_AXES = {"axis", "dim", "dimension", "reduction_indices", "concat_dim", "split_dim"}
_OF_AXES = {"ExpandDims", "Squeeze"}
# Attributes that do not change what an op computes.
_IGNORED_ATTRIBUTES = {"_output_shapes", "_class", "container", "shared_name", "seed", "seed2", "grad_a", "grad_b"}


def traced_op(op: tf.Operation, line: str | None = None, functions: Sequence[Any] | None = None) -> TracedOp:
    """Return what is kept of an op of a graph; the graphs of the functions that it calls may be given."""
    from detrand._patching.graphs import function_graphs

    inputs = tuple(map(name_of, op.inputs))
    watched = any(map(_is_watched, op.outputs))
    if functions is None:
        functions = function_graphs(op, conditions=True) if watched else ()
    body = tuple(
        replace(inner, name=f"{graph.name}{IN_FUNCTION}{inner.name}")
        for graph in functions
        for inner in map(traced_op, graph.get_operations())
    )
    # A session feeds what initializes a variable, and cannot feed a constant whose value has been read.
    constants = _constants(op) if watched and op.type != "Assign" else {}
    attributes = _attributes(op, constants) if watched else {}
    kept = {n: a for n, a in constants.items() if a.size <= MOST_ELEMENTS and a.dtype.kind in "biuf"}
    broadcast = _broadcast(op) if watched else ()
    arguments = tuple(each.name for each in op.op_def.input_arg) if constants else ()
    line = line or str(site_of_op(op))
    return TracedOp(op.name, op.type, line, inputs, attributes, body, kept, broadcast, arguments)


_ELEMENTWISE = {
    *("Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan", "SquaredDifference", "Pow", "Minimum", "Maximum"),
    *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr"),
}


def _broadcast(op: tf.Operation) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of two tensors, equal but for axes of 1, that an op combines to a larger one than both."""
    tensors = [*op.inputs, *op.outputs]
    if op.type not in _ELEMENTWISE or not all(each.shape.is_fully_defined() for each in tensors):
        return ()
    *shapes, whole = (tuple(each.shape.as_list()) for each in tensors)
    squeezed = {tuple(size for size in shape if size > 1) for shape in shapes}
    return tuple(shapes) if len(squeezed) == 1 and math.prod(whole) > max(map(math.prod, shapes)) else ()


def _attributes(op: tf.Operation, constants: Mapping[str, np.ndarray]) -> dict[str, str]:
    ignored = {attr.name for attr in op.op_def.attr if "func" in attr.type} | _IGNORED_ATTRIBUTES | _not_felt(op)
    names = [attr.name for attr in op.op_def.attr if attr.name not in ignored]
    found = {f"attribute {name}": _attribute(op, name) for name in names}
    if op.type in ("DepthToSpace", "SpaceToDepth"):
        found[f"attribute {ORDER_OF_CHANNELS}"] = OF_TENSORFLOW
    if op.type == "Mean":
        found[f"attribute {DIVISOR}"] = OF_ALL
    return found | {name: text_of_constant(array) for name, array in constants.items()}


def _not_felt(op: tf.Operation) -> set[str]:
    """Return the attributes that make no difference to an op: a window of 1 reaches no padding."""
    if op.type in CONVOLUTIONS:
        window = op.inputs[1].shape.as_list()[:-2] if op.inputs[1].shape.rank is not None else [None]
    elif op.type in POOLINGS:
        window = op.get_attr("ksize")
    else:
        is_inference = op.type.startswith("FusedBatchNorm") and not op.get_attr("is_training")
        return {"exponential_avg_factor"} if is_inference else set()
    is_padded = op.get_attr("padding") == b"EXPLICIT"
    return set() if is_padded or any(size != 1 for size in window) else {"padding", "explicit_paddings", "dilations"}


def _constants(op: tf.Operation) -> dict[str, np.ndarray]:
    """Return the constant inputs of an op, with axes that are counted from the first one."""
    found = {}
    for number, value in enumerate(map(_static_value, op.inputs)):
        if value is None:
            continue
        array = np.asarray(value)
        names = [arg.name for arg in op.op_def.input_arg]
        name = names[number] if len(names) == len(op.inputs) else names[-1] if number == len(op.inputs) - 1 else ""
        if name in _AXES and array.dtype.kind == "i":
            tensors = (
                op.outputs if op.type == "ExpandDims" else [each for each in op.inputs if each is not op.inputs[number]]
            )
            rank = tensors[0].shape.rank
            array = (
                array if rank is None else np.sort(np.where(array < 0, array + rank, array), None).reshape(array.shape)
            )
        found[f"input {number}"] = array
    return found


def _static_value(tensor: tf.Tensor) -> Any:
    """Return what a tensor holds in every run, or the one number that fills a large one; None if data decide."""
    from detrand._patching.graphs import function_graphs

    value = tf.get_static_value(tensor)
    if value is None and tensor.op.type == "Fill":
        value = tf.get_static_value(tensor.op.inputs[1])
    size = tensor.shape.num_elements()
    if value is not None or size is None or size > MOST_ELEMENTS or not tensor.dtype.is_numpy_compatible:
        return value
    definition, waiting, done = tf.compat.v1.GraphDef(), [tensor], set[str]()
    while waiting:
        op = (each := waiting.pop()).op
        if op.name in done:
            continue
        done.add(op.name)
        known = tf.get_static_value(each) if len(op.outputs) == 1 else None
        node = definition.node.add()
        if known is not None:  # such as the shape of an input
            node.name, node.op = op.name, "Const"
            node.attr["dtype"].type = each.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(known, each.dtype))
            continue
        if op.type in _GIVEN or op.op_def.is_stateful or function_graphs(op) or len(done) > _MOST_FOLDED:
            return None
        node.CopyFrom(op.node_def)
        node.input[:] = [name for name in op.node_def.input if not name.startswith("^")]
        node.device = ""
        for name in [each for each in node.attr if each.startswith("_")]:  # of its graph, such as the ops beside it
            del node.attr[name]
        waiting += op.inputs
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config_as_written()) as session:
        return session.run(tf.import_graph_def(definition, return_elements=[tensor.name], name="")[0])


def _attribute(op: tf.Operation, name: str) -> str:
    value: Any = op.get_attr(name)
    if isinstance(value, bytes):
        return shorten(value.decode(errors="replace"), 60)  # a serialized message is no text
    return f"{value:.7g}" if isinstance(value, float) else shorten(str(value), 60)


def reads_of(operations: Iterable[tf.Operation], variables: Collection[str]) -> dict[str, str]:
    """Return the variables that ops read before any update, by the names of the ops."""
    found: dict[str, str] = {}
    updated: set[str] = set()
    for op in operations:
        sources = [each.name for each in input_ops(op)]
        if op.type == "ReadVariableOp" and sources[0] in variables and sources[0] not in updated:
            found[op.name] = sources[0]
        elif op.type in _COPIES and len(sources) == 1 and sources[0] in found and op.outputs[0].dtype == tf.float32:
            found[op.name] = found[sources[0]]
        elif op.type.startswith(("Assign", "Resource", "Scatter")) and op.type not in GATHERS:
            updated.update(sources)
    return found


def gathers_of(operations: Iterable[tf.Operation], variables: Collection[str]) -> dict[str, str]:
    """Return the variables that ops read some rows of, by the names of the ops."""
    gathers = {op.name: op.inputs[0].op.name for op in operations if op.type in GATHERS}
    return {name: variable for name, variable in gathers.items() if variable in variables}


def trace_tf1(program: TF1Program) -> Trace:
    """Return the trace of a TF1 program, which computes in float64 what it computes in narrower dtypes."""
    program.set_variables(program.config)
    snapshot = Snapshot.of(program.session)
    outputs = {path: origin.name for path, origin in program.origins().items()}
    graph = program.session.graph
    operations = graph.get_operations()
    lines: Mapping[str, str] = lines_of(operations)
    inputs = {placeholder.op.name: array for placeholder, array in program.built.feeds.items()}
    straight = unrolled(graph, lambda definition, names: counted(snapshot, definition, names, inputs), lines_of)
    if straight is not None:
        graph, operations, lines = straight.graph, straight.operations, straight.lines
        snapshot = snapshot._replace(graph=graph)
    needed = all_upstream([graph.get_operation_by_name(op_of(name)) for name in outputs.values()], input_ops)
    operations = [op for op in operations if op in needed]  # and not those that initialize variables
    read = reads_of(operations, snapshot.variables)
    watched = {
        name: each
        for name, each in watched_in(operations).items()
        if graph.is_fetchable(each) and each.op.type not in ("Enter", "RefEnter")  # these enter an older loop
    }
    tensors = {name: tensor.name for name, tensor in watched.items() if name not in read}
    with Rerun(snapshot, in_float64(snapshot)) as rerun:
        arrays = rerun.fetch(tensors, inputs if straight is None else {**inputs, **straight.drawn})
    arrays |= {name: snapshot.variables[variable] for name, variable in read.items() if name in watched}
    functions = {} if straight is None else straight.functions
    ops = {op.name: traced_op(op, lines[op.name], functions.get(op.name)) for op in operations}
    return Trace.of(ops, outputs, arrays, inputs, read | gathers_of(operations, snapshot.variables))


def dilations_in(ops: Mapping[str, TracedOp]) -> Iterator[tuple[TracedOp, TracedOp, TracedOp]]:
    """Yield each convolution or pooling that TensorFlow dilates, between the ops before and after it that do so."""
    for end in ops.values():
        window = _before(ops, end) if end.type == "BatchToSpaceND" else None
        start = _before(ops, window) if window is not None and window.type in CONVOLUTIONS | POOLINGS else None
        if window is None or start is None or start.type != "SpaceToBatchND":
            continue
        if all({"input 1", "input 2"} <= op.constants.keys() for op in (start, end)):
            yield start, window, end


def with_dilations(ops: Mapping[str, TracedOp]) -> dict[str, TracedOp]:
    """Return ops in which a dilated convolution or pooling is one op, with the name and the output of the op after it.

    If the ops around it pad, its padding is ``"SAME"``: ``tf.nn`` pads there for nothing else.
    """
    found = dict(ops)
    for start, window, end in dilations_in(ops):
        rates, is_padded = start.constants["input 1"], (start.constants["input 2"] - end.constants["input 2"]).any()
        in_space = [*([1] * (2 - rates.size)), *rates.tolist()]  # one axis is the second one of two
        dilated = {
            "attribute dilations": str([1, *in_space, 1]),
            "attribute padding": "SAME" if is_padded else window.attributes["attribute padding"],
            DILATED: "",
        }
        inputs, attributes = (start.inputs[0], *window.inputs[1:]), {**window.attributes, **dilated}
        found[end.name] = replace(window, name=end.name, line=end.line, inputs=inputs, attributes=attributes)
    return found


def _before(ops: Mapping[str, TracedOp], op: TracedOp) -> TracedOp | None:
    """Return the op that computes the first input of an op, before any that only add or remove axes of 1."""
    before = ops.get(op_of(op.inputs[0]))
    while before is not None and before.type in _OF_AXES:
        before = ops.get(op_of(before.inputs[0]))
    return before


def lines_of(operations: Iterable[tf.Operation]) -> dict[str, str]:
    """Return the lines of the user's code that added ops, by name."""
    return {op.name: str(site_of_op(op)) for op in operations}


class Imported(NamedTuple):
    """A graph that has been changed in its serialized form."""

    definition: tf.compat.v1.GraphDef

    def as_graph_def(self) -> tf.compat.v1.GraphDef:
        """Return its serialized form."""
        return self.definition


def counted(
    snapshot: Snapshot, definition: tf.compat.v1.GraphDef, names: Iterable[str], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what tensors of a changed graph hold in a program's own dtypes, by name."""
    changed = snapshot._replace(graph=Imported(definition))
    with Rerun(changed, as_written(changed)) as rerun:
        return rerun.fetch({name: f"{name}:0" for name in names}, inputs)


def watched_in(operations: Iterable[tf.Operation]) -> dict[str, tf.Tensor]:
    """Return the tensors of ops that hold numbers of the model, by name."""
    found: dict[str, tf.Tensor] = {}
    data: set[str] = set()  # ops that are computed from inputs, variables or random numbers, and not from their shapes
    of_inputs: set[str] = set()  # those that are computed from inputs
    copies: set[str] = set()  # inputs and their copies
    for op in operations:
        sources = [each.name for each in input_ops(op)]
        is_input = op.type in _INPUTS and op.outputs[0].dtype != tf.resource
        if is_input or (op.type in _COPIES_OF_INPUTS and sources[0] in copies):
            copies.add(op.name)
        if op.type in _SOURCES or "Random" in op.type or not data.isdisjoint(sources):
            data.add(op.name)
        if is_input or not of_inputs.isdisjoint(sources):
            of_inputs.add(op.name)
        if op.type in OF_SHAPES:
            data.discard(op.name)
            of_inputs.discard(op.name)
        watched = [] if op.name in copies else [each for each in op.outputs if _is_watched(each, op.name in data)]
        # Other numbers are hyperparameters, which one program may compute where the other one has a constant.
        watched = [each for each in watched if each.shape.rank != 0 or op.name in of_inputs]
        found.update((name_of(tensor), tensor) for tensor in watched)
    return found


def _is_watched(tensor: tf.Tensor, is_data: bool = True) -> bool:
    """Return whether a tensor holds numbers of the model, and not shapes and the like."""
    if tensor.op.type in _GIVEN:
        return False
    is_of_data = tensor.dtype.is_integer or tensor.dtype == tf.string
    return tensor.dtype.is_floating or tensor.dtype.is_bool or (is_data and is_of_data)


@contextlib.contextmanager
def functions_inlined() -> Iterator[None]:
    """Make each ``tf.function`` that a function calls a part of its graph, whose ops can be watched."""
    with Patches() as patches:
        patches.replace(FUNCTION_CALL, _inlined)
        yield


def _inlined(original: Callable[..., Any]) -> Callable[..., Any]:
    from detrand._patching.graphs import builds_a_function
    from detrand._patching.tensorflow import converted_by_autograph

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if builds_a_function():
            return converted_by_autograph(self.python_function)(*args, **kwargs)
        return original(self, *args, **kwargs)

    return call
