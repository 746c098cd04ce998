"""The trace of a program: the ops that its outputs depend on, and what they computed.

`trace_tf1` runs the TF1 program once more, in float64, and fetches all of its tensors. `PortGraph` does so with a port.
A golden file keeps TF1's traces, with some elements of each large tensor.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand._patching.function_traces import FUNCTION_CALL
from detrand._patching.graphs import builds_a_function, function_graphs
from detrand._patching.patches import Patches
from detrand._patching.tensorflow import converted_by_autograph
from detrand.arguments import shorten
from detrand.seeding.callsite import UNKNOWN, site_of_op
from detrand.validation.diagnosis.loops import unrolled
from detrand.validation.noise.variants import Rerun, Snapshot, as_written, in_float64
from detrand.validation.programs.tf1 import TF1Program
from detrand.validation.programs.upstream import all_upstream, input_ops, name_of, op_of

# Ops whose outputs are given, or carry no information.
_GIVEN = ("Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "NoOp")
_SOURCES = {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2"}
_READS = {"ReadVariableOp", "VariableV2"}
_COPIES = {"Identity", "Cast"}
_INPUTS = {"Placeholder", "PlaceholderWithDefault"}
_COPIES_OF_INPUTS = {"Cast", "StopGradient", "Reshape", "ExpandDims", "Squeeze"}
_SHAPES = {"Shape", "ShapeN", "Size", "Rank"}
IN_FUNCTION = "//"  # between the name of a function and the name of an op in it
_AXES = {"axis", "dim", "dimension", "reduction_indices", "concat_dim", "split_dim"}
CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}
POOLINGS = {"MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"}
# Ops whose results agree where their inputs do not.
_OF_FEW_VALUES = {"ArgMax", "ArgMin", "Equal", "NotEqual", "InTopKV2", "Sign", "Round", "Rint", "Floor", "Ceil"}
# Attributes that do not change what an op computes.
GATHERS = ("ResourceGather", "ResourceGatherNd")
_IGNORED_ATTRIBUTES = {"_output_shapes", "_class", "container", "shared_name", "seed", "seed2", "grad_a", "grad_b"}
# A file keeps all elements of a tensor of at most this size, and so many elements of a larger one.
_MOST_ELEMENTS, _SAMPLED = 16384, 1024
_MOST_ABOVE = 1000.0  # times the median: a mean that is greater is that of a few elements


@dataclass(frozen=True)
class Trace:
    """The ops that outputs of a program depend on, and what they computed.

    A tensor has the name of its op, with the number of the output if it is not the first: ``split``, ``split:1``.

    Attributes:
      ops: the ops by name, in the order in which they were added to the graph.
      outputs: the names of the tensors that are outputs, by the outputs' paths.
      inputs: the names of the ops that stand for the inputs of the migration, in order.
      values: what the tensors hold that another op or an output uses, where that is informative, by name.
      reads: the TF1 names of the variables that ops read, or gather rows of, by the names of the ops.
      not_computed: the names of the ops that could not compute, as what they get has shapes that do not fit.
    """

    ops: dict[str, TracedOp]
    outputs: Mapping[str, str]
    values: Mapping[str, Value]
    inputs: tuple[str, ...] = ()
    reads: Mapping[str, str] = field(default_factory=dict)
    not_computed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        ops: Mapping[str, TracedOp],
        outputs: Mapping[str, str],
        arrays: Mapping[str, np.ndarray],
        inputs: Iterable[str] = (),
        reads: Mapping[str, str] | None = None,
    ) -> Trace:
        """Return the trace of a graph, given its ops, the names of its outputs, and what tensors hold, by name."""
        values = values_of(arrays, outputs.values())
        outputs = {path: name for path, name in outputs.items() if op_of(name) in ops}
        return cls(dict(ops), outputs, values, tuple(inputs), reads or {}).of_outputs(outputs)

    def of_outputs(self, paths: Collection[str]) -> Trace:
        """Return the part that computes some outputs; the whole trace, if it has none of these."""
        outputs = {path: name for path, name in self.outputs.items() if path in paths} or self.outputs
        needed = all_upstream(map(op_of, outputs.values()), lambda name: self.ops[name].sources)
        ops = {name: op for name, op in self.ops.items() if name in needed}
        used = set(outputs.values()).union(*(op.inputs for op in ops.values()))
        values = {name: value for name, value in self.values.items() if name in used}
        reads = {name: variable for name, variable in self.reads.items() if name in ops}
        return replace(self, ops=ops, outputs=outputs, values=values, reads=reads)

    def without_counterpart(self, matched: Collection[str]) -> list[TracedOp]:
        """Return the ops with a tensor that has no counterpart, as ``matched`` ones do, in order."""
        values_of = self._values_by_op()
        reads: set[str] = set()  # both programs have the same variables, and may read them at other places
        found = []
        for op in self.ops.values():
            if op.type in _READS or (op.type in _COPIES and op.sources and reads.issuperset(op.sources)):
                reads.add(op.name)
            elif op.name in self.not_computed or any(name not in matched for name in values_of[op.name]):
                found.append(op)
        return found

    def diverged(self, matched: Collection[str]) -> list[TracedOp]:
        """Return the ops without a counterpart from which no tensor with a counterpart is computed, in order.

        A tensor of few values, as that of ``tf.argmax``, does not count: it agrees where its input does not.
        """
        values_of, leads_to_matched = self._values_by_op(), set[str]()
        for op in reversed(self.ops.values()):
            is_matched = op.name in leads_to_matched or any(name in matched for name in values_of[op.name])
            if is_matched and op.type not in _OF_FEW_VALUES:
                leads_to_matched.update(op.sources)
        return [op for op in self.without_counterpart(matched) if op.name not in leads_to_matched]

    def _values_by_op(self) -> dict[str, list[str]]:
        found = defaultdict(list)
        for name in self.values:
            found[op_of(name)].append(name)
        return found

    def inputs_of(self, region: Iterable[TracedOp]) -> frozenset[int]:
        """Return the positions of the inputs that ops are computed from."""
        needed = all_upstream([op.name for op in region], lambda name: self.ops[name].sources)
        return frozenset(position for position, name in enumerate(self.inputs) if name in needed)

    def values_of(self, op: TracedOp | None) -> list[str]:
        """Return the names of an op's tensors with informative values, the first output first."""
        return [] if op is None else [name for name in self.values if op_of(name) == op.name]

    def sources(self, op: TracedOp | None) -> list[TracedOp]:
        """Return the nearest ops with informative values that an op is computed from."""
        known = {op_of(name) for name in self.values}
        return [source for source in self.sources_and_between(op) if source.name in known]

    def sources_and_between(self, op: TracedOp | None) -> list[TracedOp]:
        """Return these ops, and the ops without informative values on the way from them to the op."""
        known = {op_of(name) for name in self.values}
        inputs = () if op is None else op.sources
        found = all_upstream(inputs, lambda name: () if name in known else self.ops[name].sources)
        return [source for name, source in self.ops.items() if name in found]

    def sampled(self) -> Trace:
        """Return the trace with some elements of each large tensor."""
        return replace(self, values={name: value.sampled() for name, value in self.values.items()})


@dataclass(frozen=True)
class TracedOp:
    """An op of a graph.

    Attributes:
      name: its name.
      type: its type.
      line: ``file:line`` of the user's code that added it.
      inputs: the names of the tensors that it takes, in order.
      attributes: its attributes (``"attribute padding"``) and constant inputs (``"input 1"``), as text.
      body: the ops of the functions that it calls, such as the body of a loop. Their names begin with the function's.
      constants: its constant inputs (``"input 1"``) that are small. Axes are counted from the first one.
      broadcast: the shapes of two tensors, equal but for axes of 1, that it combines to a larger one than both.
    """

    name: str
    type: str
    line: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, str] = field(repr=False)
    body: tuple[TracedOp, ...] = field(default=(), repr=False)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    broadcast: tuple[tuple[int, ...], ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, op: tf.Operation, line: str | None = None, functions: Sequence[Any] | None = None) -> TracedOp:
        """Return what is kept of an op of a graph; the graphs of the functions that it calls may be given."""
        inputs = tuple(map(name_of, op.inputs))
        watched = any(map(_is_watched, op.outputs))
        if functions is None:
            functions = function_graphs(op, conditions=True) if watched else ()
        body = tuple(
            replace(inner, name=f"{graph.name}{IN_FUNCTION}{inner.name}")
            for graph in functions
            for inner in map(cls.of, graph.get_operations())
        )
        constants = _constants(op) if watched else {}
        attributes = _attributes(op, constants) if watched else {}
        kept = {n: a for n, a in constants.items() if a.size <= _MOST_ELEMENTS and a.dtype.kind in "biuf"}
        broadcast = _broadcast(op) if watched else ()
        return cls(op.name, op.type, line or str(site_of_op(op)), inputs, attributes, body, kept, broadcast)

    @property
    def with_body(self) -> tuple[TracedOp, ...]:
        """The op, and the ops of the functions that it calls, however deep."""
        return (self, *(each for inner in self.body for each in inner.with_body))

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the ops that its inputs come from, each once."""
        return tuple(dict.fromkeys(map(op_of, self.inputs)))

    def __str__(self) -> str:
        return f"{self.name} ({self.type})" + ("" if self.line == str(UNKNOWN) else f" at {self.line}")


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
    texts = {
        name: re.sub(r"\[ +", "[", str(array.reshape(-1)[0] if array.size == 1 else array))
        for name, array in constants.items()
    }
    return found | {name: shorten(" ".join(text.split()), 60) for name, text in texts.items()}


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
    for number, value in enumerate(map(tf.get_static_value, op.inputs)):
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


def _attribute(op: tf.Operation, name: str) -> str:
    value: Any = op.get_attr(name)
    if isinstance(value, bytes):
        return shorten(value.decode(errors="replace"), 60)  # a serialized message is no text
    return f"{value:.7g}" if isinstance(value, float) else shorten(str(value), 60)


@dataclass(frozen=True)
class Value:
    """An array that an op computed, or a sample of its elements.

    Attributes:
      shape: the shape of the whole array.
      elements: the elements that are known, flat.
      weight: the sum of the absolute values of all elements; 0 if one is not finite. Arrays that are close have close
        weights.
    """

    shape: tuple[int, ...]
    elements: np.ndarray
    weight: float

    @classmethod
    def of(cls, array: np.ndarray) -> Value:
        """Return a value with all elements of an array."""
        sizes = np.abs(array) if array.dtype.kind == "f" else np.abs(array.astype(np.float64))
        weight = float(sizes.sum(dtype=np.float64))  # in buffers: weights may need much memory
        return cls(array.shape, array.reshape(-1), weight if np.isfinite(weight) else 0.0)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return math.prod(self.shape)

    def atol(self, rtol: float) -> float:
        """Return the absolute tolerance of elements that are small beside the others."""
        return 0.01 * rtol * self._scale

    @functools.cached_property
    def _scale(self) -> float:
        """The mean of the absolute values; less, if some are so large that they hide the others, as a mask's -1e9."""
        count = self.elements.size
        few = np.abs(self.elements[sample(count, min(count, _SAMPLED))].astype(np.float64)) if count else self.elements
        usual = float(np.median(few[few > 0])) if few.any() else 0.0
        return min(self.weight / max(self.size, 1), _MOST_ABOVE * usual)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the array."""
        return self.elements.dtype

    @property
    def is_whole(self) -> bool:
        """Whether all elements are known."""
        return self.elements.size == self.size

    @property
    def array(self) -> np.ndarray | None:
        """The array, or None if only a sample is known."""
        return self.elements.reshape(self.shape) if self.is_whole else None

    def sampled(self) -> Value:
        """Return the same value, with a sample of its elements if it is large."""
        if self.size <= _MOST_ELEMENTS or not self.is_whole:
            return self
        return replace(self, elements=self.elements[sample(self.size, _SAMPLED)])

    def paired_with(self, other: Value) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements that are known of both values, which have the same size."""
        if self.is_whole == other.is_whole and self.elements.size == other.elements.size:
            return self.elements, other.elements
        if self.is_whole:
            return self.elements[sample(self.size, other.elements.size)], other.elements
        return self.elements, other.elements[sample(self.size, self.elements.size)]


def sample(size: int, count: int) -> np.ndarray:
    """Return different indices into a flat array, in steps that are not those of its rows and channels."""
    step = int(size * 0.618)
    while math.gcd(step, size) > 1:
        step += 1
    return np.arange(count, dtype=np.int64) * step % size


CHECKSUM = np.dtype(np.uint32)  # of a string; no op of a model computes this dtype


def values_of(arrays: Mapping[str, np.ndarray], outputs: Iterable[str]) -> dict[str, Value]:
    """Return the values of the outputs, and of all arrays that two programs do not have in common by chance."""
    always = set(outputs)
    arrays = {name: _checksums(array) if array.dtype.kind == "O" else array for name, array in arrays.items()}
    values = {name: Value.of(array) for name, array in arrays.items() if name in always or is_informative(array)}
    # Weights may be large, and nothing is substituted for them.
    return {name: value.sampled() if value.dtype == np.float32 else value for name, value in values.items()}


def _checksums(texts: np.ndarray) -> np.ndarray:
    """Return a number for each string of an array, by which strings can be compared."""
    return np.array([zlib.crc32(text) for text in texts.reshape(-1)], CHECKSUM).reshape(texts.shape)


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


def varies(array: np.ndarray) -> bool:
    """Return whether the elements of an array are not all equal."""
    return array.size > 1 and bool((array != array.reshape(-1)[0]).any())


def is_informative(array: np.ndarray) -> bool:
    """Return whether the elements of an array are not all equal, or it is one number of many digits."""
    if array.size != 1 or array.dtype.kind != "f":
        return varies(array)
    number = float(array.reshape(-1)[0])
    return bool(np.isfinite(number)) and abs(number - float(f"{number:.4g}")) > 1e-9 * abs(number)


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
    ops = {op.name: TracedOp.of(op, lines[op.name], functions.get(op.name)) for op in operations}
    return Trace.of(ops, outputs, arrays, inputs, read | gathers_of(operations, snapshot.variables))


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
        if op.type in _SHAPES:
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
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if builds_a_function():
            return converted_by_autograph(self.python_function)(*args, **kwargs)
        return original(self, *args, **kwargs)

    return call
