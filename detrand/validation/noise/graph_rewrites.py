"""Rewrites of a ``GraphDef`` that change how it rounds: reductions in a different order, float64, half precision.

Each rewrite changes, in place, the nodes of the graph and of every function in its library, so what is in a
``tf.while_loop`` or a ``tf.cond`` is rewritten too. `widen_to_float64` and `round_to` return the new names of tensors
that something else now computes. `Body` edits the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from detrand._patching.random_ops import EXPLICIT_OPS, RANDOM_OPS
from detrand.packages import tf
from detrand.validation.frameworks.traces import FUSED_NORMALIZATIONS

Node = Any  # a NodeDef
Reference = str  # an output, in the form that the inputs of a node have
Order = Literal["reversed", "one term at a time"]
ORDERS: tuple[Order, ...] = get_args(Order)

_FLOAT32, _FLOAT64, _BFLOAT16, _FLOAT16 = 1, 2, 14, 19  # of `DataType`, as graphs are stored
_NARROW = frozenset((_FLOAT16, _BFLOAT16, _FLOAT32))
_FLOATS = _NARROW | {_FLOAT64}
_NO_NUMBER = "flow"  # the argument by which ops on a TensorArray wait for each other


# --- Reductions in a different order ---------------------------------------------------------------------------------


def reorder_reductions(graph_def: Any, order: Order) -> int:
    """Make the reductions of a graph add the same terms in a different order, and return how many do.

    TensorFlow's reductions add pairs of sums, and are far more precise than a port that adds one term after another.
    """
    count = 0
    for body in bodies_of(graph_def):
        constants = {node.name: node.attr["value"].tensor for node in body.original_nodes() if node.op == "Const"}
        for node in body.original_nodes():
            if node.op not in _REDUCTIONS or node.attr["T"].type not in _FLOATS:
                continue
            constant = constants.get(node_of(node.input[1]))
            axes = None if constant is None else tf.make_ndarray(constant).reshape(-1)
            if axes is not None and not axes.size:  # losses reduce scalars, over no axes
                continue
            if order == "reversed":
                _reverse(body, node)
                count += 1
            elif node.op in _SUMS and axes is not None:
                _add_one_by_one(body, node, axes)
                count += 1
    return count


_SUMS = ("Sum", "Mean")
_REDUCTIONS = (*_SUMS, "EuclideanNorm", "Prod")


def _reverse(body: Body, node: Node) -> None:
    of_axes = tf.as_dtype(node.attr["Tidx"].type or tf.int32.as_datatype_enum)
    flat = body.constant(node, np.array([-1], np.int32))
    axes = body.add("Reshape", node, [node.input[1], flat], T=of_axes, Tshape=tf.int32)
    dtype = tf.as_dtype(node.attr["T"].type)
    node.input[0] = body.add("ReverseV2", node, [node.input[0], axes], Tidx=of_axes, T=dtype)


def _add_one_by_one(body: Body, node: Node, axes: np.ndarray) -> None:
    dtype = tf.as_dtype(node.attr["T"].type)
    terms = node.input[0]
    for axis in axes.tolist():
        # The sums of all terms from each one on; the first is the sum of all.
        at_axis = body.constant(node, np.int32(axis))
        sums = body.add("Cumsum", node, [terms, at_axis], Tidx=tf.int32, reverse=True, T=dtype)
        first = [sums, body.constant(node, np.array([0], np.int32)), at_axis]
        terms = body.add("GatherV2", node, first, Tparams=dtype, Tindices=tf.int32, Taxis=tf.int32)
    if node.op == "Mean":
        count = _terms_of_each(body, node, node.input[0], terms, dtype)
        divisor = body.add("Cast", node, [count], SrcT=tf.float64, DstT=dtype)
        terms = body.add("RealDiv", node, [terms, divisor], T=dtype)
    node.input[0] = terms  # one term is left along each axis


def _terms_of_each(body: Body, node: Node, tensor: Reference, reduced: Reference, dtype: tf.DType) -> Reference:
    """Add the number of elements that a tensor has for each element of a reduced one, in float64."""
    sizes = [body.add("Size", node, [counted], T=dtype, out_type=tf.int32) for counted in (tensor, reduced)]
    counts = [body.add("Cast", node, [size], SrcT=tf.int32, DstT=tf.float64) for size in sizes]
    return body.add("RealDiv", node, counts, T=tf.float64)


# --- Float64 ---------------------------------------------------------------------------------------------------------

_RESPONSE_NORMALIZATION = "LRN"
# What these ops make of a number depends on its dtype.
_OF_DTYPE = frozenset(("Bitcast", "DecodeRaw", "PyFunc", "PyFuncStateless", "EagerPyFunc"))


def widen_to_float64(graph_def: Any) -> tuple[dict[Reference, Reference], Counter[str]]:
    """Make a graph compute in float64 all that it computes in a narrower dtype, except random numbers.

    Return the new names of tensors, by the old ones; and how many ops of each type still round to a narrower dtype.
    """
    kept: Counter[str] = Counter()
    bodies = bodies_of(graph_def)  # before the signatures of functions change
    for body in bodies:
        kept.update(node.op for node in body.original_nodes() if not _widen(body, node))
        body.finish()
    for function in graph_def.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = _wide(argument.type)
    return bodies[0].rerouted, kept


def _wide(dtype: int) -> int:
    return _FLOAT64 if dtype in _NARROW else dtype


def _widen(body: Body, node: Node) -> bool:
    """Make a node compute in float64; return False for one that still rounds to a narrower dtype and does not draw."""
    from detrand._patching.graphs import has_float64_kernel, op_def

    if op_def(node.op) is None:  # the call of a function by its name: what is in the function computes in float64
        return True
    replaced = node.op in FUSED_NORMALIZATIONS and _replace_batch_normalization(body, node)
    if node.op == _RESPONSE_NORMALIZATION:
        _replace_response_normalization(body, node)
        return True
    definition = op_def(node.op)
    narrow = frozenset(
        attribute.name
        for attribute in definition.attr
        if attribute.type == "type" and node.attr[attribute.name].type in _NARROW
    )
    lacks_kernel = bool(narrow) and not has_float64_kernel(node.op, narrow)
    if not (_draws(node) or lacks_kernel or node.op in _OF_DTYPE):
        _widen_attributes(node)

    rounds = False
    for number, argument in enumerate(arguments_of(node, definition.input_arg)):
        if argument.dtype in _NARROW:
            given = [node.input[number]]
            node.input[number] = body.add("Cast", node, given, SrcT=tf.float64, DstT=tf.as_dtype(argument.dtype))
            rounds |= not argument.name.startswith(_NO_NUMBER)
    for number, argument in enumerate(arguments_of(node, definition.output_arg)):
        if argument.dtype in _NARROW and not (replaced and number < 3):
            computed = body.output(node, number)
            cast = body.add("Cast", node, [computed], SrcT=tf.as_dtype(argument.dtype), DstT=tf.float64)
            body.replace_output(computed, cast)
            rounds |= not argument.name.startswith(_NO_NUMBER)
    return _draws(node) or replaced or not rounds


def _widen_attributes(node: Node) -> None:
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "type":
            value.type = _wide(value.type)
        elif kind == "list":
            value.list.type[:] = [_wide(dtype) for dtype in value.list.type]
        elif kind == "tensor" and value.tensor.dtype in _NARROW:
            value.tensor.CopyFrom(tf.make_tensor_proto(tf.make_ndarray(value.tensor).astype(np.float64)))


def _replace_batch_normalization(body: Body, node: Node) -> bool:
    """Compute a fused batch normalization by other ops in float64, except for the outputs that only its gradient takes.

    Return False for channels that come first.
    """
    layout, training = node.attr["data_format"].s.decode(), node.attr["is_training"].b
    rate = node.attr["exponential_avg_factor"].f if "exponential_avg_factor" in node.attr else 1.0
    if not layout.endswith("C"):
        return False
    inputs, scale, offset, mean, variance = node.input[:5]
    averages = mean, variance

    def compute(op_type: str, *operands: Reference) -> Reference:
        return body.add(op_type, node, operands, T=tf.float64)

    def mean_of(tensor: Reference) -> Reference:
        axes = body.constant(node, np.arange(len(layout) - 1, dtype=np.int32))
        return body.add("Mean", node, [tensor, axes], T=tf.float64, Tidx=tf.int32)

    if training:
        mean = mean_of(inputs)
        variance = mean_of(compute("SquaredDifference", inputs, mean))
    epsilon = body.constant(node, np.float64(node.attr["epsilon"].f))
    factor = compute("Mul", scale, compute("Rsqrt", compute("AddV2", variance, epsilon)))
    normalized = compute("AddV2", compute("Mul", compute("Sub", inputs, mean), factor), offset)
    if training:  # the op returns the unbiased estimate of the variance
        count = _terms_of_each(body, node, inputs, mean, tf.float64)
        degrees = compute("Sub", count, body.constant(node, np.float64(1)))
        variance = compute("Mul", variance, compute("RealDiv", count, degrees))
    if training and rate != 1:  # the op also updates moving averages
        old, new = (body.constant(node, np.float64(share)) for share in (1 - rate, rate))
        mean, variance = (
            compute("AddV2", compute("Mul", average, old), compute("Mul", of_batch, new))
            for average, of_batch in zip(averages, (mean, variance), strict=True)
        )
    for number, computed in enumerate((normalized, mean, variance)):
        body.replace_output(body.output(node, number), compute("Identity", computed))
    return True


def _replace_response_normalization(body: Body, node: Node) -> None:
    """Compute a local response normalization by other ops in float64, for which it has no kernel."""
    inputs, dtype = node.input[0], tf.as_dtype(node.attr["T"].type)

    def compute(op_type: str, *operands: Reference, **attributes: Any) -> Reference:
        return body.add(op_type, node, operands, **{"T": tf.float64, **attributes})

    def number(name: str) -> Reference:
        return body.constant(node, np.float64(node.attr[name].f))

    shape, axis = compute("Shape", inputs, out_type=tf.int32), body.constant(node, np.int32(0))
    last, radius = body.constant(node, np.array([3, 3], np.int32)), np.int32(node.attr["depth_radius"].i)
    gathers = dict.fromkeys(("Tparams", "Tindices", "Taxis"), tf.int32)
    square = body.add("GatherV2", node, [shape, last, axis], **gathers)
    ones = compute("Fill", square, body.constant(node, np.float64(1)), index_type=tf.int32)
    near = compute("MatrixBandPart", ones, *[body.constant(node, radius)] * 2, Tindex=tf.int32)
    sums = compute("BatchMatMulV2", compute("Square", inputs), near)
    divisors = compute("Pow", compute("AddV2", compute("Mul", sums, number("alpha")), number("bias")), number("beta"))
    body.replace_output(body.output(node), compute("RealDiv", inputs, divisors))
    node.input[0] = body.add("Cast", node, [inputs], SrcT=tf.float64, DstT=dtype)  # computes, and nothing takes it


# --- Half precision --------------------------------------------------------------------------------------------------

# Variables themselves, and the frames of a loop.
_NOT_ROUNDED = frozenset(
    ("VariableV2", "Variable", "TemporaryVariable", "Enter", "Exit", "Merge", "Switch", "NextIteration")
)


def round_to(graph_def: Any, dtype: tf.DType) -> dict[Reference, Reference]:
    """Make a graph round to a dtype what each op computes in float32, and return the new names of tensors by the old.

    Each op still computes in float32, as kernels of half precision do where they sum, and as layers do under a Keras
    dtype policy. Inputs are rounded too, and variables where they are read. What is computed only from random numbers
    is not: a dropout compares them with its rate, and a different mask is no rounding.
    """
    bodies = bodies_of(graph_def)
    for body in bodies:
        drawn: set[str] = set()
        for node in body.original_nodes():
            if _is_drawn(node, drawn):
                drawn.add(node.name)
            elif node.op not in _NOT_ROUNDED:
                _round(body, node, dtype)
        body.finish()
    return bodies[0].rerouted


def _is_drawn(node: Node, drawn: set[str]) -> bool:
    """Return whether a node draws, is a constant, or takes only the outputs of such nodes."""
    if node.op == "Const" or _draws(node):
        return True
    sources = [node_of(reference) for reference in node.input if not reference.startswith("^")]
    return bool(sources) and drawn.issuperset(sources)


def _draws(node: Node) -> bool:
    return node.op in RANDOM_OPS or node.op in EXPLICIT_OPS or "Random" in node.op


def _round(body: Body, node: Node, dtype: tf.DType) -> None:
    for number, output in enumerate(arguments_of(node, body.definition(node).output_arg)):
        if output.dtype == _FLOAT32 and not output.name.startswith(_NO_NUMBER):
            computed = body.output(node, number)
            rounded = body.add("Cast", node, [computed], SrcT=tf.float32, DstT=dtype)
            widened = body.add("Cast", node, [rounded], SrcT=dtype, DstT=tf.float32)
            body.replace_output(computed, widened, by_way_of=rounded)


# --- Constants -------------------------------------------------------------------------------------------------------


def move_constants(graph_def: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the scalars that were rounded, such as 0.997: a port may round ``1 - 0.997`` later than TF1 does."""
    for body in bodies_of(graph_def):
        for node in body.original_nodes():
            if node.op != "Const" or node.attr["dtype"].type not in _FLOATS:
                continue
            value = tf.make_ndarray(node.attr["value"].tensor)
            if value.ndim == 0 and np.isfinite(value) and Decimal(str(value)) != Decimal(float(value)):
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(change(value)))


# --- Editing ---------------------------------------------------------------------------------------------------------


def bodies_of(graph_def: Any) -> list[Body]:
    """Return the nodes of a ``GraphDef``, first, and of each of its functions, to be changed in place."""
    signatures = {function.signature.name: function.signature for function in graph_def.library.function}
    functions = [Body(function.node_def, signatures, function.ret) for function in graph_def.library.function]
    return [Body(graph_def.node, signatures), *functions]


class Body:
    """The nodes of a graph, or of a function in its library.

    A graph calls the second output of a node ``x`` ``x:1``; a function uses the name in the op's definition, such as
    ``x:batch_mean:0``. A function also has what it returns, by name.
    """

    def __init__(self, nodes: Any, signatures: dict[str, Any], returned: Any = None):
        self._nodes, self._signatures, self._returned = nodes, signatures, returned
        self._names = {node.name for node in nodes}
        self._kept: set[tuple[str, Reference]] = set()
        self.rerouted: dict[Reference, Reference] = {}  # after `finish`, the output that replaces each replaced one

    def original_nodes(self) -> list[Node]:
        """Return the present nodes; the list does not grow with the nodes that are added."""
        return list(self._nodes)

    def definition(self, node: Node) -> Any:
        """Return the ``OpDef`` of a node; the signature of the function that it calls by name."""
        from detrand._patching.graphs import op_def

        return op_def(node.op) or self._signatures[node.op]

    def output(self, node: Node, number: int = 0) -> Reference:
        """Return the name of an output of a node."""
        if self._returned is None:
            return f"{node.name}:{number}" if number else node.name
        argument = arguments_of(node, self.definition(node).output_arg)[number]
        return f"{node.name}:{argument.name}:{argument.position}"

    def add(self, op_type: str, beside: Node, inputs: Sequence[Reference], **attributes: Any) -> Reference:
        """Add a node that is named after another one; attributes are dtypes, bools, or arrays for tensors."""
        node = self._nodes.add()
        node.name, node.op, node.device = f"{beside.name}/detrand_{len(self._names)}", op_type, beside.device
        self._names.add(node.name)
        node.input.extend(inputs)
        for name, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[name].type = value.as_datatype_enum
            elif isinstance(value, bool):
                node.attr[name].b = value
            else:
                node.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value))
        return self.output(node)

    def constant(self, beside: Node, value: np.ndarray) -> Reference:
        """Add a constant that a node takes."""
        # In a TF1 while loop, a constant belongs to an iteration if it waits for something of that iteration.
        waits_for = [f"^{node_of(beside.input[0])}"] if self._returned is None and beside.input else []
        return self.add("Const", beside, waits_for, value=value, dtype=tf.as_dtype(value.dtype))

    def replace_output(self, replaced: Reference, replacement: Reference, by_way_of: Reference | None = None) -> None:
        """Make all nodes take another output instead of one, once the body is finished.

        The node that computes the replacement from the output, by default directly, still takes the output itself.
        """
        self._kept.add((node_of(by_way_of or replacement), replaced))
        self.rerouted[replaced] = replacement

    def finish(self) -> None:
        """Reroute the replaced outputs. Call it once, at the end."""
        for node in self._nodes:
            for position, reference in enumerate(node.input):
                if (node.name, reference) not in self._kept:
                    node.input[position] = self.rerouted.get(reference, reference)
        if self._returned is not None:
            # A copy: a map of protobuf skips entries when it is written to while it is iterated.
            for name, reference in dict(self._returned).items():
                self._returned[name] = self.rerouted.get(reference, reference)


def node_of(reference: Reference) -> str:
    """Return the name of the node that an output belongs to."""
    return reference.partition(":")[0]


class Argument(NamedTuple):
    """An input or output of a node: its argument in the op's definition, its position in that, its dtype's enum."""

    name: str
    position: int
    dtype: int


def arguments_of(node: Node, definitions: Any) -> list[Argument]:
    """Return the inputs or outputs of a node, from the ``input_arg`` or ``output_arg`` of its definition."""
    found = []
    for definition in definitions:
        if definition.type_list_attr:
            dtypes = list(node.attr[definition.type_list_attr].list.type)
        else:
            dtype = node.attr[definition.type_attr].type if definition.type_attr else definition.type
            dtypes = [dtype] * (node.attr[definition.number_attr].i if definition.number_attr else 1)
        found += [Argument(definition.name, position, dtype) for position, dtype in enumerate(dtypes)]
    return found
