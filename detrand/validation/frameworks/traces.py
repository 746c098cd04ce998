"""`TracedPort`, a port whose ops can be watched and given other values, and `Trace`, what its ops computed.

`PortGraph` (`detrand.validation.diagnosis`) is a port of TensorFlow; `TorchTrace`, one of PyTorch, and `JaxTrace`, one
of JAX, are each a `RecordedPort`. The trace of TF1 is of the same kind, so the diagnosis compares two traces and does
not ask which frameworks they are of.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from detrand.arguments import shorten
from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.seeding.callsite import UNKNOWN
from detrand.variables.tf1_view import TF1View

IN_FUNCTION = "//"  # between the name of a function and the name of an op in it
CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}
POOLINGS = {"MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"}
FUSED_NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")  # which read no element of a tensor
DILATED = "dilated by other ops"  # among the attributes of an op that TensorFlow dilates so
# What a mean divides the sum of n elements by, as an attribute.
DIVISOR, OF_ALL = "divisor", "n"
# The order in which ops that move elements between channels and space have those of a block, as an attribute.
ORDER_OF_CHANNELS, OF_TENSORFLOW = "order of channels", "row, column, channel"
ORDER_OF_OPERANDS, EXCHANGED_BRANCHES = "attribute order of operands", "attribute exchanged branches"
AXIS_OF_SOFTMAX, COMPARISON = "attribute axis of softmax", "attribute comparison"
GATHERS = ("ResourceGather", "ResourceGatherNd")
_READS = {"ReadVariableOp", "VariableV2"}
_COPIES = {"Identity", "Cast"}
# Ops whose results agree where their inputs do not.
_OF_FEW_VALUES = {"ArgMax", "ArgMin", "Equal", "NotEqual", "InTopKV2", "Sign", "Round", "Rint", "Floor", "Ceil"}
# A file keeps all elements of a tensor of at most this size, and so many elements of a larger one.
MOST_ELEMENTS, _SAMPLED = 16384, 1024
_MOST_ABOVE = 1000.0  # times the median: a mean that is greater is that of a few elements
_RESIDUE = 1e-13  # what rounding leaves of 0 in float64, as a part of the greatest number
_ORDINARY = 1e4  # what is greater may be a mask's -1e9, which leaves nothing

Edge = tuple[str, int]  # the name of an op, and the position of one of its inputs


class TracedPort(Protocol):
    """A port whose ops can be watched, and given other values than their own.

    Attributes:
      ops: its ops by name, in the order in which they run.
      outputs: the names of the tensors that are outputs, by the outputs' paths.
      computes_narrowly: whether it computes in half precision without a dtype policy.
    """

    ops: Mapping[str, TracedOp]
    outputs: Mapping[str, str]
    computes_narrowly: bool

    def run(self, substituted: Substitution = ...) -> Trace:
        """Run the port in float64 with what is substituted, and return its trace.

        Raises:
          ValueError, TypeError: if the port cannot be run with these values.
        """

    def outputs_as_written(self) -> dict[str, np.ndarray]:
        """Return the outputs that the port computes in its own dtypes, by path."""

    def edges_of(self, tensor: str) -> list[Edge]:
        """Return the inputs of ops that a tensor is."""

    def paths_of(self, tensor: str) -> list[str]:
        """Return the paths of the outputs that a tensor is."""
        return [path for path, name in self.outputs.items() if name == tensor]

    def dtype(self, tensor: str) -> np.dtype:
        """Return the dtype of a tensor."""

    def fitted(self, array: np.ndarray, tensor: str) -> np.ndarray:
        """Return an array in the dtype of a tensor, and in its shape if that has as many elements."""

    def constant(self, tensor: str) -> np.ndarray | None:
        """Return the array that a tensor is, if it is a constant."""

    def array(self, tensor: str) -> np.ndarray | None:
        """Return what a tensor holds where nothing is substituted, as far as that is known without a run."""
        return self.constant(tensor)

    def layers_of(self, scope: str) -> set[str]:
        """Return the port's own scopes of the variables that are in a scope in TF1."""

    def line_of_update(self, variable: str) -> str:
        """Return the line that updates a variable, given by its TF1 name, or else the last line that uses it."""

    def calls_of(self, op: str) -> Sequence[Any]:
        """Return the frames of the program that added an op, the outermost first, as ``traceback`` has them."""

    def with_batch_first(self) -> Iterator[tuple[Sequence[str], TracedPort]]:
        """Yield names of layers, and the port in which these take the batch from the first axis, not the second."""
        return iter(())


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
      arguments: the names of its inputs in TF1, if one is constant; the last name is that of all that follow.
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
    arguments: tuple[str, ...] = field(default=(), repr=False, compare=False)

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

    def atol(self, other: Value, rtol: float) -> float:
        """Return the absolute tolerance of elements that are small beside the others of both values.

        Two that are equal are of one scale; a mask of 0 and -1e9 is of another one than the scores that it is for.
        """
        return 0.1 * rtol * min(self._scale, other._scale)

    @functools.cached_property
    def _scale(self) -> float:
        """The mean of the absolute values; less, if some are so large that they hide the others, as a mask's -1e9."""
        count = self.elements.size
        few = np.abs(self.elements[sample(count, min(count, _SAMPLED))].astype(np.float64)) if count else self.elements
        few = few[few > _RESIDUE * min(few.max(initial=0), _ORDINARY)]
        usual = float(np.median(few)) if few.size else 0.0
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
        if self.size <= MOST_ELEMENTS or not self.is_whole:
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


def text_of_constant(array: np.ndarray) -> str:
    """Return a constant input of an op as text."""
    text = re.sub(r"\[ +", "[", str(array.reshape(-1)[0] if array.size == 1 else array))
    return shorten(" ".join(text.split()), 60)


def varies(array: np.ndarray) -> bool:
    """Return whether the elements of an array are not all equal."""
    return array.size > 1 and bool((array != array.reshape(-1)[0]).any())


def is_informative(array: np.ndarray) -> bool:
    """Return whether the elements of an array are not all equal, or it is one number of many digits."""
    if array.size != 1 or array.dtype.kind != "f":
        return varies(array)
    number = float(array.reshape(-1)[0])
    return bool(np.isfinite(number)) and abs(number - float(f"{number:.4g}")) > 1e-9 * abs(number)


@dataclass(frozen=True)
class Substitution:
    """What a run of the port has in place of its own numbers.

    Attributes:
      edges: values that single inputs of ops get.
      attributes: name of an op -> name of an attribute -> its value, as text.
      outputs: values of outputs, by path.
      right: tensors of the port that are right, and only taken at the wrong place: they keep their values, although
        no op may take them any more.
    """

    edges: Mapping[Edge, np.ndarray] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    right: frozenset[str] = frozenset()

    def and_also(self, other: Substitution) -> Substitution:
        """Return both substitutions in one."""
        attributes = {op: {**self.attributes.get(op, {}), **of_op} for op, of_op in other.attributes.items()}
        return Substitution(
            {**self.edges, **other.edges},
            {**self.attributes, **attributes},
            {**self.outputs, **other.outputs},
            self.right | other.right,
        )


NOTHING = Substitution()

INPUT, READ, CONSTANT = "Placeholder", "ReadVariableOp", "Const"  # types of ops
COPIES = {"Identity", "Cast", "StopGradient"}


class NoStepsError(Exception):
    """A function has no steps for its arguments, and is traced as one op."""


class RecordedPort(TracedPort):
    """A port whose ops were recorded in a call of it.

    Attributes:
      outputs: the names of the tensors that are outputs, by the outputs' paths.
      view: the view of its variables.
      parts: its variables by name, each a part of the view.
      arrays: what tensors hold where nothing is substituted, by name.
      constants: the names of the tensors that are constants.
    """

    def __init__(self, view: TF1View, variables: Mapping[str, Any]):
        """Record nothing yet."""
        self.view, self.parts = view, variables
        self.ops: dict[str, TracedOp] = {}
        self.outputs: dict[str, str] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.constants: set[str] = set()
        self._edges_of: dict[str, list[Edge]] = {}
        self._watched_names: set[str] = set()
        self._inputs: tuple[str, ...] = ()

    def complete(self, ops: Mapping[str, TracedOp]) -> None:
        """Note the ops, once the arrays are known."""
        self.ops = dict(ops)
        self._watched_names = _watched(self.ops, self.arrays)
        for op in self.ops.values():
            for position, name in enumerate(op.inputs):
                self._edges_of.setdefault(name, []).append((op.name, position))
        self._inputs = tuple(name for name, op in self.ops.items() if op.type == INPUT)

    def trace_of(self, arrays: Mapping[str, np.ndarray], substituted: Substitution) -> Trace:
        """Return the trace of what was computed with what is substituted."""
        arrays = dict(arrays)
        for (op, position), value in substituted.edges.items():
            tensor = self.ops[op].inputs[position]
            if tensor not in substituted.right and all(each in substituted.edges for each in self._edges_of[tensor]):
                arrays[tensor] = value
        arrays |= {self.outputs[path]: value for path, value in substituted.outputs.items()}
        watched = {name: array for name, array in arrays.items() if name in self._watched_names}
        values = values_of(watched, self.outputs.values())
        trace = Trace(self.ops, self.outputs, values, self._inputs, self.reads())
        return trace.of_outputs(self.outputs)

    def edges_of(self, tensor: str) -> list[Edge]:
        """Return the inputs of ops that a tensor is."""
        return self._edges_of.get(tensor, [])

    def dtype(self, tensor: str) -> np.dtype:
        """Return the dtype of a tensor."""
        dtype = self.arrays[tensor].dtype
        return np.dtype(np.float64) if dtype.kind == "f" else dtype

    def fitted(self, array: np.ndarray, tensor: str) -> np.ndarray:
        """Return an array in the dtype of a tensor, and in its shape if that has as many elements."""
        like = self.arrays[tensor]
        return array.reshape(like.shape if like.size == array.size else array.shape).astype(self.dtype(tensor))

    def constant(self, tensor: str) -> np.ndarray | None:
        """Return the array that a tensor is, if it is a constant."""
        return self.arrays[tensor] if tensor in self.constants else None

    def array(self, tensor: str) -> np.ndarray | None:
        """Return what a tensor holds where nothing is substituted."""
        return self.arrays.get(tensor)

    def layers_of(self, scope: str) -> set[str]:
        """Return the port's own scopes of the variables that are in a scope in TF1."""
        names = [own for name, own in self.view.own_names.items() if name.startswith(f"{scope}/")]
        return {name.replace(".", "/").rpartition("/")[0] for own in names for name in own} - {""}

    def line_of_update(self, variable: str) -> str:
        """Return the line that updates a variable, given by its TF1 name, or else the last line that uses it."""
        names = {name for name, of_tf1 in self.reads().items() if of_tf1 == variable}
        lines = [op.line for op in self.ops.values() if not names.isdisjoint(op.inputs) and op.line != str(UNKNOWN)]
        return lines[-1] if lines else ""

    def reads(self) -> dict[str, str]:
        """Return the TF1 names of the variables that have the form of TF1's, by the names of the ops that read them."""
        names = self.view.names_of_whole_parts()
        of_part = {id(self.view.parts[position]): name for position, name in names.items()}
        return {path: of_part[id(part)] for path, part in self.parts.items() if id(part) in of_part}


def constants_of(
    arrays: Mapping[int, np.ndarray], attributes: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the constants and the attributes of a `TracedOp`, given its constant inputs by position."""
    constants = {
        f"input {position}": array.astype(np.float32) if array.dtype.kind == "f" else array
        for position, array in arrays.items()
        if isinstance(array, np.ndarray) and array.size <= MOST_ELEMENTS and array.dtype.kind in "biuf"
    }
    texts = {f"attribute {name}": text for name, text in attributes.items()}
    return constants, texts | {name: text_of_constant(array) for name, array in constants.items()}


def _watched(ops: Mapping[str, TracedOp], arrays: Mapping[str, np.ndarray]) -> set[str]:
    """Return the names of the tensors that hold numbers of the model; see `watched_in` of `trace`."""
    data, of_inputs, copies, found = set[str](), set[str](), set[str](), set[str]()
    for op in ops.values():
        sources = op.sources
        if op.type == INPUT or (op.type in COPIES | {"Reshape"} and sources and sources[0] in copies):
            copies.add(op.name)
        if op.type in (INPUT, READ) or "Random" in op.type or not data.isdisjoint(sources):
            data.add(op.name)
        if op.type == INPUT or not of_inputs.isdisjoint(sources):
            of_inputs.add(op.name)
    for name, array in arrays.items():
        op = ops[op_of(name)]
        kind = array.dtype.kind if isinstance(array, np.ndarray) else ""  # a key of jax.random is no array of NumPy's
        is_number = kind in ("f", "b") or (kind in ("i", "u") and op.name in data)
        if op.name not in copies and op.type != CONSTANT and is_number and (array.ndim or op.name in of_inputs):
            found.add(name)
    return found
