"""Primitives and functions of JAX as ops of TensorFlow: what each computes, in steps that a TF1 program computes, too.

`STEPS` has a function for each primitive of JAX, and each function of ``jax.nn`` and ``jax.numpy``, that a TF1 program
computes differently than in one op without attributes. The function gets a `Step` and the equation. It calls the step
for each op, with the type of the op, a function of NumPy arrays that computes it, and operands; and it raises a
`NoStepsError` for operands that its steps do not cover. If it raises an error, or its result is not that of JAX, the
equation is one op. `fused` finds equations that are one op of TensorFlow together. `TYPES` has the types of ops for
primitives that are one op.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from detrand.checkpoints.upstream import all_upstream
from detrand.comparison.metrics import log_softmax, softmax
from detrand.validation.frameworks.jax_programs import (
    COPIES,
    ELEMENTWISE,
    NUMPY,
    Equation,
    Operand,
    channels_last,
    convolved,
    in_windows,
)
from detrand.validation.frameworks.traces import NoStepsError
from detrand.validation.frameworks.windows import (
    as_attribute,
    dilated,
    of_axes,
    padding_of,
    padding_text,
    same,
    text_of_ends,
)

Attributes = Mapping[str, str]


class Axes(NamedTuple):
    """Axes of the first operand."""

    axes: tuple[int, ...]


class Step(Protocol):
    """Computes one op of the trace. Steps may also return operands of the equation, which are no ops then."""

    def __call__(
        self, op_type: str, function: Callable[..., Any], *operands: Any, attributes: Attributes | None = None
    ) -> Any:
        """Return what a function computes from operands: those of equations, numbers, arrays and `Axes`.

        A function of an op with attributes gets them, as texts, before the operands. The result is a list of operands
        if the function returns a list.
        """


Steps = Callable[[Step, Equation], Any]

TYPES = {
    **{"neg": "Neg", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round", "is_finite": "IsFinite"},
    **{"exp": "Exp", "log": "Log", "expm1": "Expm1", "log1p": "Log1p", "tanh": "Tanh", "logistic": "Sigmoid"},
    **{"sin": "Sin", "cos": "Cos", "tan": "Tan", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin", "acos": "Acos"},
    **{"atan": "Atan", "atan2": "Atan2", "sqrt": "Sqrt", "rsqrt": "Rsqrt", "square": "Square", "abs": "Abs"},
    **{"erf": "Erf", "erfc": "Erfc", "lgamma": "Lgamma", "digamma": "Digamma", "erf_inv": "Erfinv"},
    **{"add": "AddV2", "add_any": "AddV2", "sub": "Sub", "mul": "Mul", "div": "RealDiv", "rem": "FloorMod"},
    **{"max": "Maximum", "min": "Minimum", "pow": "Pow", "eq": "Equal", "ne": "NotEqual", "lt": "Less"},
    **{"le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual", "and": "LogicalAnd", "or": "LogicalOr"},
    **{"not": "LogicalNot", "iota": "Range", "gather": "GatherV2", "dynamic_slice": "StridedSlice"},
    **{"slice": "StridedSlice", "stack": "Pack", "unstack": "Unpack", "tile": "Tile", "sort": "Sort"},
    **{
        "stop_gradient": "StopGradient",
        "top_k": "TopKV2",
        "scatter": "TensorScatterUpdate",
        "dynamic_update_slice": "TensorScatterUpdate",
    },
    **{"scatter-add": "TensorScatterAdd", "scatter_add": "TensorScatterAdd", "select_n": "SelectV2"},
    **{"dot_general": "Einsum", "conv_general_dilated": "Conv2D"},
    **{"random_bits": "RandomBits", "threefry2x32": "RandomBits", "random_wrap": "RandomKey", "while": "While"},
    **{"random_seed": "RandomKey", "random_unwrap": "RandomKey", "random_fold_in": "RandomKey", "scan": "While"},
    **{"take": "GatherV2", "_take": "GatherV2", "_one_hot": "OneHot"},
}


# Elementwise ops, and ops that move numbers.


def _before_broadcast(operand: Operand) -> Operand:
    """Return what an operand is a broadcast of, as NumPy broadcasts."""
    while operand.equation is not None and operand.equation.name == "broadcast_in_dim":
        source, params = operand.equation.inputs[0], operand.equation.params
        rank = len(params["shape"])
        if tuple(params["broadcast_dimensions"]) != tuple(range(rank - source.value.ndim, rank)):
            break
        operand = source
    return operand


def _elementwise(op_type: str) -> Steps:
    def steps(step: Step, equation: Equation) -> Any:
        return step(op_type, _single(equation), *_broadcast(equation))

    return steps


def _broadcast(equation: Equation) -> list[Operand]:
    """Return the operands of an elementwise op, as TF1 has them, before they are broadcast."""
    found = [_before_broadcast(each) for each in equation.inputs]
    shape = np.broadcast_shapes(*(each.value.shape for each in found))
    return found if shape == equation.outputs[0].value.shape else equation.inputs


def _single(equation: Equation) -> Callable[..., Any]:
    return lambda *arrays: equation.compute(*arrays)[0]


def _integer_power(step: Step, equation: Equation) -> Any:
    return step("Pow", np.power, equation.inputs[0], float(equation.params["y"]))


def _select(step: Step, equation: Equation) -> Any:
    if len(equation.inputs) != 3:
        raise NoStepsError
    which, no, yes = _broadcast(equation)
    if (number := _number(which)) is not None:
        return yes if number else no
    return step("SelectV2", lambda c, x, y: np.where(c.astype(bool), x, y), which, yes, no)


def _clamp(step: Step, equation: Equation) -> Any:
    lower, x, upper = _broadcast(equation)
    return step("Minimum", np.minimum, step("Maximum", np.maximum, x, lower), upper)


def _cast(step: Step, equation: Equation) -> Any:
    source = equation.inputs[0]
    if source.value.dtype == equation.outputs[0].value.dtype:
        return source
    return step("Cast", _single(equation), source)


def _copy(step: Step, equation: Equation) -> Any:
    return list(equation.inputs)


def _reshaped(step: Step, equation: Equation) -> Any:
    (source,), (result,) = equation.inputs[:1], equation.outputs
    op_type = "BroadcastTo" if source.value.size != result.value.size else "Reshape"
    return step(op_type, _single(equation), source)


def _transpose(step: Step, equation: Equation) -> Any:
    order = np.asarray(equation.params["permutation"], np.int32)
    return step("Transpose", lambda x, axes: x.transpose([int(each) for each in axes]), equation.inputs[0], order)


def _concat(step: Step, equation: Equation) -> Any:
    axis = np.int32(equation.params["dimension"])
    return step("ConcatV2", lambda *x: np.concatenate(x[:-1], int(x[-1])), *equation.inputs, axis)


def _split(step: Step, equation: Equation) -> Any:
    sizes, axis = equation.params["sizes"], np.int32(equation.params["axis"])
    return step("Split", lambda axis, x: NUMPY["split"](x, sizes=sizes, axis=int(axis)), axis, equation.inputs[0])


def _pad(step: Step, equation: Equation) -> Any:
    source, value = equation.inputs
    config = equation.params["padding_config"]
    if any(interior or start < 0 or end < 0 for start, end, interior in config):
        raise NoStepsError
    amounts = np.asarray([each[:2] for each in config], np.int32)

    def padded(x: np.ndarray, amounts: np.ndarray, value: Any = 0) -> np.ndarray:
        return np.pad(x, amounts, constant_values=value)

    return step("PadV2", padded, source, amounts, value) if value.value else step("Pad", padded, source, amounts)


def _reverse(step: Step, equation: Equation) -> Any:
    return step("ReverseV2", np.flip, equation.inputs[0], Axes(tuple(equation.params["dimensions"])))


# The type and the function of each.
_REDUCTIONS: Mapping[str, tuple[str, Any]] = {
    **{"reduce_sum": ("Sum", np.sum), "reduce_max": ("Max", np.max), "reduce_min": ("Min", np.min)},
    **{"reduce_prod": ("Prod", np.prod), "reduce_and": ("All", np.all), "reduce_or": ("Any", np.any)},
}


def _reduction(step: Step, equation: Equation, *, keeps: bool = False) -> Any:
    (op_type, function), axes = _REDUCTIONS[equation.name], Axes(tuple(equation.params["axes"]))
    return step(op_type, lambda x, axes: function(x, axis=axes, keepdims=keeps), equation.inputs[0], axes)


def _greatest(op_type: str, function: Any) -> Steps:
    def steps(step: Step, equation: Equation) -> Any:
        axis, dtype = np.int32(equation.params["axes"][0]), equation.outputs[0].value.dtype
        return step(op_type, lambda x, axis: function(x, int(axis)).astype(dtype), equation.inputs[0], axis)

    return steps


def _cumulated(op_type: str) -> Steps:
    def steps(step: Step, equation: Equation) -> Any:
        attributes = {"exclusive": "False", "reverse": str(equation.params["reverse"])}

        def cumulated(of: Attributes, x: np.ndarray, axis: Any) -> np.ndarray:
            function, axis = (np.cumsum if op_type == "Cumsum" else np.cumprod), int(axis)
            return np.flip(function(np.flip(x, axis), axis), axis) if of["reverse"] == "True" else function(x, axis)

        return step(op_type, cumulated, equation.inputs[0], np.int32(equation.params["axis"]), attributes=attributes)

    return steps


def _product(step: Step, equation: Equation) -> Any:
    _, (batch, _) = equation.params["dimension_numbers"]
    return step("BatchMatMulV2" if batch else "MatMul", _single(equation), *equation.inputs)


# Convolutions, pooling and resizing.


def _convolution(step: Step, equation: Equation) -> Any:
    x, kernel = equation.inputs
    params, count = equation.params, x.value.ndim - 2
    if params["batch_group_count"] > 1 or not channels_last(params["dimension_numbers"], x.value.ndim):
        raise NoStepsError
    if any(each > 1 for each in params["lhs_dilation"]):
        return _transposed(step, equation, kernel, is_flipped=False)
    groups = params["feature_group_count"]

    def computed(of: Attributes, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        strides, dilations = (of_axes(of[name], count) for name in ("strides", "dilations"))
        windows = dilated(kernel.shape[:count], dilations)
        padding = padding_of(of["padding"], x.shape[1:-1], windows, strides)
        return convolved(x, kernel, strides, padding, dilations, groups=groups)

    strides, dilations = params["window_strides"], params["rhs_dilation"]
    windows = dilated(kernel.value.shape[:count], dilations)
    attributes = {
        "strides": as_attribute(strides, count),
        "padding": padding_text(params["padding"], x.value.shape[1:-1], windows, strides),
        "dilations": as_attribute(dilations, count),
    }
    is_depthwise = groups == x.value.shape[-1] > 1
    op_type = "DepthwiseConv2dNative" if is_depthwise else "Conv3D" if count == 3 else "Conv2D"
    return step(op_type, computed, x, kernel, attributes=attributes)


def _transposed(step: Step, equation: Equation, kernel: Operand, *, is_flipped: bool) -> Any:
    """Compute a transposed convolution, whose kernel TF1 has with its last axes exchanged and unless it is flipped."""
    x, (result,), params = equation.inputs[0], equation.outputs, equation.params
    count = x.value.ndim - 2
    if params["feature_group_count"] > 1 or any(each > 1 for each in params["window_strides"]):
        raise NoStepsError
    strides, dilations, sizes = params["lhs_dilation"], params["rhs_dilation"], result.value.shape[1:-1]
    windows = dilated(equation.inputs[1].value.shape[:count], dilations)
    wholes = [(n - 1) * s + w for n, s, w in zip(x.value.shape[1:-1], strides, windows, strict=True)]
    starts = [w - 1 - start for w, (start, _) in zip(windows, params["padding"], strict=True)]
    ends = [(start, whole - start - n) for start, whole, n in zip(starts, wholes, sizes, strict=True)]
    if any(start < 0 for start in starts):
        raise NoStepsError

    def usual(padding: str, x: np.ndarray, strides: Sequence[int]) -> list[int]:
        more = [0 if padding == "SAME" else max(w - s, 0) for w, s in zip(windows, strides, strict=True)]
        return [n * s + each for n, s, each in zip(x.shape[1:-1], strides, more, strict=True)]

    def computed(of: Attributes, kernel: np.ndarray, x: np.ndarray) -> np.ndarray:
        strides, axes = of_axes(of["strides"], count), tuple(range(count))
        weights = np.flip(kernel, axes).swapaxes(-1, -2) if is_flipped else kernel
        around = [(w - 1, w - 1) for w in windows]
        whole = convolved(x, weights, [1] * count, around, dilations, zeros=strides)
        is_usual = of["padding"] in ("SAME", "VALID") and list(sizes) == usual(text, x, strides)
        shape = usual(of["padding"], x, strides) if is_usual else sizes  # a layer's padding decides its size, too
        whole = np.pad(whole, [(0, 0), *((0, n) for n in shape), (0, 0)])
        cropped = padding_of(of["padding"], shape, windows, strides)
        part = (slice(None), *(slice(start, start + n) for (start, _), n in zip(cropped, shape, strict=True)))
        return whole[part]

    if [(start, max(end, 0)) for start, end in ends] == same(sizes, windows, strides):
        text = "SAME"
    else:
        text = "VALID" if all(start == 0 >= end for start, end in ends) else text_of_ends(ends)
    attributes = {"strides": as_attribute(strides, count), "padding": text}
    op_type = "Conv3DBackpropInputV2" if count == 3 else "Conv2DBackpropInput"
    return step(op_type, computed, kernel, x, attributes=attributes)


def _pooling(params: Mapping[str, Any], shape: Sequence[int], *, counts: bool = False) -> dict[str, str]:
    """Return the attributes of a pooling of images whose channels are last."""
    sizes, strides, padding = (params[name] for name in ("window_dimensions", "window_strides", "padding"))
    names = ("base_dilation", "window_dilation")
    is_dilated = any(each > 1 for name in names for each in params.get(name, ()))
    if is_dilated or len(sizes) < 3 or [sizes[0], sizes[-1], strides[0], strides[-1]] != [1, 1, 1, 1]:
        raise NoStepsError
    count = len(sizes) - 2
    text = padding_text(padding[1:-1], shape[1:-1], sizes[1:-1], strides[1:-1], counts=counts)
    attributes = {"ksize": sizes[1:-1], "strides": strides[1:-1]}
    return {**{name: as_attribute(each, count) for name, each in attributes.items()}, "padding": text}


def _in_windows(function: Any, initial: float, of: Attributes, x: np.ndarray) -> np.ndarray:
    count = x.ndim - 2
    sizes, strides = (of_axes(of[name], count) for name in ("ksize", "strides"))
    padding = [(0, 0), *padding_of(of["padding"], x.shape[1:-1], sizes, strides), (0, 0)]
    return in_windows(function, initial, x, [1, *sizes, 1], [1, *strides, 1], padding)


def _max_pool(step: Step, equation: Equation) -> Any:
    (x,) = equation.inputs

    def pooled(of: Attributes, x: np.ndarray) -> np.ndarray:
        return _in_windows(np.max, -math.inf, of, x)

    op_type = "MaxPool3D" if x.value.ndim == 5 else "MaxPool"
    return step(op_type, pooled, x, attributes=_pooling(equation.params, x.value.shape))


def _resize(step: Step, equation: Equation) -> Any:
    (x,), (result,) = equation.inputs, equation.outputs
    sizes = result.value.shape[1:-1]
    if x.value.ndim != 4 or (x.value.shape[0], x.value.shape[-1]) != (result.value.shape[0], result.value.shape[-1]):
        raise NoStepsError
    is_bilinear = any(each.name == "dot_general" for each in equation.leaves)

    def resized(of: Attributes, x: np.ndarray) -> np.ndarray:
        for axis, size in enumerate(sizes, 1):
            x = _resized(x, axis, size, of, is_bilinear=is_bilinear)
        return x

    op_type = "ResizeBilinear" if is_bilinear else "ResizeNearestNeighbor"
    return step(op_type, resized, x, attributes={"align_corners": "False", "half_pixel_centers": "True"})


def _resized(x: np.ndarray, axis: int, size: int, of: Attributes, *, is_bilinear: bool) -> np.ndarray:
    """Return an array in another size along an axis, as TensorFlow computes it with these attributes, in float32."""
    before, corners, half = x.shape[axis], of["align_corners"] == "True", of["half_pixel_centers"] == "True"
    positions = np.arange(size, dtype=np.float32)
    scale = np.float32(before - 1) / np.float32(size - 1) if corners and size > 1 else np.float32(before / size)
    if not is_bilinear:
        positions = (positions + np.float32(0.5)) * scale if half else positions * scale
        nearest = np.floor(positions + np.float32(0.5) if corners else positions).astype(int)
        return x.take(np.clip(nearest, 0, before - 1), axis)
    positions = (positions + np.float32(0.5)) * scale - np.float32(0.5) if half else positions * scale
    lower = np.floor(positions)
    share = (positions - lower).reshape(-1, *[1] * (x.ndim - axis - 1))
    left, right = (x.take(np.clip(each.astype(int), 0, before - 1), axis) for each in (lower, lower + 1))
    return left + (right - left) * share


# Functions of ``jax.nn``.


def _activation(op_type: str, function: Callable[[np.ndarray], np.ndarray]) -> Steps:
    return lambda step, equation: step(op_type, function, equation.inputs[0])


def _elu(step: Step, equation: Equation) -> Any:
    x, *alphas = equation.inputs
    if any(not each.is_constant or each.value != 1 for each in alphas):
        raise NoStepsError
    return step("Elu", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), x)


def _leaky_relu(step: Step, equation: Equation) -> Any:
    x, slope = equation.inputs
    if not slope.is_constant or slope.value.size > 1:
        raise NoStepsError
    attributes = {"alpha": f"{np.float32(slope.value):.7g}"}
    return step("LeakyRelu", lambda of, x: np.where(x >= 0, x, x * float(of["alpha"])), x, attributes=attributes)


def _silu(step: Step, equation: Equation) -> Any:
    (x,) = equation.inputs
    return step("Mul", np.multiply, x, step("Sigmoid", ELEMENTWISE["logistic"], x))


_SELU = 1.0507009873554805, 1.6732632423543772  # scale, alpha


def _selu(x: np.ndarray) -> np.ndarray:
    return _SELU[0] * np.where(x > 0, x, _SELU[1] * np.expm1(np.minimum(x, 0)))


def _along_axis(step: Step, op_type: str, function: Callable[[np.ndarray], np.ndarray], x: Operand, axis: int) -> Any:
    """Compute an op of the last axis along any axis, which TF1 transposes before it and after it."""
    if axis == x.value.ndim - 1:
        return step(op_type, function, x)
    order = np.arange(x.value.ndim, dtype=np.int32)
    order[[axis, -1]] = order[[-1, axis]]

    def transposed(x: np.ndarray, axes: np.ndarray) -> np.ndarray:
        return x.transpose([int(each) for each in axes])

    return step("Transpose", transposed, step(op_type, function, step("Transpose", transposed, x, order)), order)


def _of_greatest(op_type: str, function: Callable[[np.ndarray], np.ndarray]) -> Steps:
    """Return the steps of a function that takes the greatest numbers along its axis first."""

    def steps(step: Step, equation: Equation) -> Any:
        (axis,), x = next(
            (each.params["axes"], each.inputs[0]) for each in equation.leaves if each.name == "reduce_max"
        )
        return _along_axis(step, op_type, function, x, axis)

    return steps


# Equations that are one op together.


class Fused(NamedTuple):
    """Equations that are one op of TensorFlow together with one that comes after them, and the steps of all."""

    before: tuple[Equation, ...]
    steps: Steps


def fused(equations: Iterable[Equation], outputs: Sequence[Operand]) -> dict[Equation, Fused]:
    """Return the equations that are one op with some before them, which only such groups use."""
    leaves = [leaf for each in equations for leaf in each.leaves]
    users: dict[int, list[Equation | None]] = defaultdict(list, {id(each): [None] for each in outputs})
    needed = all_upstream(
        [each.equation for each in outputs if each.equation is not None],
        lambda leaf: [each.equation for each in leaf.inputs if each.equation is not None],
    )
    for leaf in leaves:
        for operand in leaf.inputs if leaf in needed else ():
            users[id(operand)].append(leaf)
    found = {leaf: group for leaf in leaves for group in _groups_of(leaf)}
    while True:
        inside: dict[Equation, set[Equation | None]] = defaultdict(set)  # the groups in which an equation is
        for leaf, group in found.items():
            for before in group.before:
                inside[before].update([*group.before, leaf])
        kept = {
            leaf: group
            for leaf, group in found.items()
            if all(inside[each].issuperset(users[id(operand)]) for each in group.before for operand in each.outputs)
        }
        if len(kept) == len(found):
            return found
        found = kept


def _groups_of(leaf: Equation) -> list[Fused]:
    return [group for rule in _FUSED.get(leaf.name, ()) if (group := rule(leaf)) is not None][:1]


_RESHAPES = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "copy"}
_MOVES = {*_RESHAPES, "transpose"}


def _through(operand: Operand, name: str) -> tuple[Equation, ...]:
    """Return the equation of a name that computes an operand, and after it those that only reshape; or nothing."""
    found: list[Equation] = []
    while operand.equation is not None and operand.equation.name in _RESHAPES:
        if operand.equation.inputs[0].value.size != operand.value.size:
            return ()
        found.insert(0, operand.equation)
        operand = operand.equation.inputs[0]
    return (operand.equation, *found) if operand.equation is not None and operand.equation.name == name else ()


def _number(operand: Operand) -> float | None:
    """Return the number that an operand is everywhere, if it is a constant."""
    value = operand.value
    is_number = operand.is_constant and value.size and value.dtype.kind in "fiub" and (value == value.flat[0]).all()
    return float(value.flat[0]) if is_number else None


def _keeping_axes(equation: Equation) -> Fused | None:
    """Find a reduction whose axes are kept, with one element each."""
    found = equation.inputs[0].equation
    if found is None or found.name not in _REDUCTIONS:
        return None
    axes, shape = found.params["axes"], found.inputs[0].value.shape
    if equation.outputs[0].value.shape != tuple(1 if axis in axes else size for axis, size in enumerate(shape)):
        return None

    def steps(step: Step, equation: Equation, reduction: Equation = found) -> Any:
        return _reduction(step, reduction, keeps=True)

    return Fused((found,), steps)


def _mean(equation: Equation) -> Fused | None:
    """Find a sum that is divided by the number of its elements."""
    found = _through(equation.inputs[0], "reduce_sum")
    number = _number(equation.inputs[1]) if found else None
    if not found or not number:
        return None
    (x,), axes = found[0].inputs, tuple(found[0].params["axes"])
    divisor = 1 / number if equation.name == "mul" else number
    if not math.isclose(divisor, math.prod(x.value.shape[axis] for axis in axes), rel_tol=1e-6):
        return None
    keeps = equation.outputs[0].value.ndim == x.value.ndim

    def steps(step: Step, equation: Equation) -> Any:
        return step("Mean", lambda x, axes: np.mean(x, axis=axes, keepdims=keeps), x, Axes(axes))

    return Fused(found, steps)


def _squared_difference(equation: Equation) -> Fused | None:
    """Find the square of a difference to a mean, of which a variance is made."""
    source = equation.inputs[0].equation
    if equation.name == "integer_pow" and equation.params["y"] != 2:
        return None
    if source is None or source.name != "sub" or not any(_is_mean(each) for each in source.inputs):
        return None

    def steps(step: Step, equation: Equation) -> Any:
        return step("SquaredDifference", lambda x, y: (x - y) ** 2, *_broadcast(source))

    return Fused((source,), steps)


def _is_mean(operand: Operand) -> bool:
    found = _through(operand, "div")
    return bool(found) and _mean(found[0]) is not None


def _softmax_of(equation: Equation) -> Fused | None:
    """Find exponentials, of numbers less the greatest one, that are divided by their sum."""
    exp, total = equation.inputs[0].equation, _through(equation.inputs[1], "reduce_sum")
    if exp is None or exp.name != "exp" or not total or total[0].inputs[0] is not equation.inputs[0]:
        return None
    difference = exp.inputs[0].equation
    if difference is None or difference.name != "sub":
        return None
    x, shift = difference.inputs
    found: list[Equation] = []
    while shift.equation is not None and shift.equation.name in {*_MOVES, "stop_gradient", "max"}:
        found.insert(0, shift.equation)
        shift = next((each for each in shift.equation.inputs if not each.is_constant), shift.equation.inputs[0])
    greatest, axes = shift.equation, tuple(total[0].params["axes"])
    if greatest is None or greatest.name != "reduce_max" or len(axes) != 1:
        return None
    taken = x  # jax.vmap may have moved its axes after the greatest number was taken
    while taken is not greatest.inputs[0]:
        if taken.equation is None or taken.equation.name not in _MOVES:
            return None
        taken = taken.equation.inputs[0]

    def steps(step: Step, equation: Equation) -> Any:
        return _along_axis(step, "Softmax", softmax, x, axes[0])

    return Fused((greatest, *found, difference, exp, *total), steps)


def _average_pool(equation: Equation) -> Fused | None:
    """Find a sum of windows that is divided by the number of their elements."""
    found, divisor = _through(equation.inputs[0], "reduce_window_sum"), equation.inputs[1]
    if len(found) != 1 or not divisor.is_constant:
        return None
    (x,), params = found[0].inputs, found[0].params

    def pooled(of: Attributes, x: np.ndarray) -> np.ndarray:
        sums = _in_windows(np.sum, 0.0, of, x)
        if "that count" in of["padding"]:
            return sums / math.prod(of_axes(of["ksize"], x.ndim - 2))
        return sums / _in_windows(np.sum, 0.0, of, np.ones_like(x))

    def steps(step: Step, equation: Equation) -> Any:
        counts = _number(divisor) == math.prod(params["window_dimensions"])
        op_type = "AvgPool3D" if x.value.ndim == 5 else "AvgPool"
        return step(op_type, pooled, x, attributes=_pooling(params, x.value.shape, counts=counts))

    return Fused(found, steps)


def _transposed_kernel(equation: Equation) -> Fused | None:
    """Find a convolution with a kernel that is flipped and has its last axes exchanged, which is a transposed one."""
    transpose, rank = equation.inputs[1].equation, equation.inputs[1].value.ndim
    if transpose is None or transpose.name != "transpose":
        return None
    kernel, flips = transpose.inputs[0], list[Equation]()
    while kernel.equation is not None and kernel.equation.name == "rev":
        flips.insert(0, kernel.equation)
        kernel = kernel.equation.inputs[0]
    is_exchanged = tuple(transpose.params["permutation"]) == (*range(rank - 2), rank - 1, rank - 2)
    if not is_exchanged or sorted(axis for each in flips for axis in each.params["dimensions"]) != [*range(rank - 2)]:
        return None
    if not channels_last(equation.params["dimension_numbers"], rank):
        return None

    def steps(step: Step, equation: Equation) -> Any:
        return _transposed(step, equation, kernel, is_flipped=True)

    return Fused((*flips, transpose), steps)


_MOST_OF_CROSS_ENTROPY, _EXACT = 48, 1e-9  # equations; relative tolerance, so that an epsilon is not taken for rounding


def _cross_entropy(equation: Equation) -> Fused | None:
    """Find cross-entropies of classes, in whatever way they are computed from logits and integers."""
    (result,) = equation.outputs
    losses = result.value
    if losses.dtype.kind != "f" or not losses.ndim:
        return None
    upstream, _ = _equations_before(equation, ())
    before = [*reversed(upstream), equation]
    operands = [operand for each in before for operand in each.inputs if isinstance(operand.value, np.ndarray)]
    operands.sort(key=lambda each: each.equation is not None)  # those that are given first
    given = [each for each in operands if not each.is_constant]
    classes = [each for each in given if each.value.dtype.kind in "iu" and each.value.size == losses.size]
    logits = [each for each in given if each.value.dtype.kind == "f" and each.value.shape[:-1] == losses.shape]
    for x, labels in itertools.product(logits, classes):
        before, is_closed = _equations_before(equation, (x, labels))
        if is_closed and _are_cross_entropies(losses, x.value, labels.value):

            def steps(step: Step, equation: Equation, given: tuple[Operand, Operand] = (x, labels)) -> Any:
                return step("SparseSoftmaxCrossEntropyWithLogits", _of_classes, *given)

            return Fused(tuple(reversed(before)), steps)
    return None


def _are_cross_entropies(losses: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> bool:
    if labels.min() < 0 or labels.max() >= logits.shape[-1]:
        return False
    return np.allclose(_of_classes(logits, labels), losses, rtol=_EXACT, atol=0)


def _of_classes(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    taken = np.take_along_axis(log_softmax(logits), labels.astype(int).reshape(*logits.shape[:-1], 1), -1)
    return -taken[..., 0]


def _equations_before(equation: Equation, given: Sequence[Operand]) -> tuple[list[Equation], bool]:
    """Return the equations that one depends on, the nearest ones first, and whether they need only what is given."""
    found, is_closed, waiting = dict[Equation, None](), True, [*equation.inputs]
    while waiting and len(found) < _MOST_OF_CROSS_ENTROPY:
        operand = waiting.pop(0)
        if operand.is_constant or any(operand is each for each in given):
            continue
        if operand.equation is None:
            is_closed = False
        elif operand.equation not in found:
            found[operand.equation] = None
            waiting += operand.equation.inputs
    return [*found], is_closed and not waiting


_FUSED: Mapping[str, Sequence[Callable[[Equation], Fused | None]]] = {
    **dict.fromkeys(("broadcast_in_dim", "reshape", "expand_dims"), (_keeping_axes,)),
    "div": (_mean, _average_pool, _softmax_of),
    "mul": (_mean,),
    "sub": (_cross_entropy,),
    "neg": (_cross_entropy,),
    "square": (_squared_difference,),
    "integer_pow": (_squared_difference,),
    "conv_general_dilated": (_transposed_kernel,),
}
STEPS: Mapping[str, Steps] = {
    **{name: _elementwise(TYPES[name]) for name in (*ELEMENTWISE, "erf", "erfc", "lgamma") if name in TYPES},
    **{"integer_pow": _integer_power, "select_n": _select, "clamp": _clamp, "convert_element_type": _cast},
    **dict.fromkeys(COPIES, _copy),
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze", "expand_dims"), _reshaped),
    **{"transpose": _transpose, "concatenate": _concat, "split": _split, "pad": _pad, "rev": _reverse},
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **{"argmax": _greatest("ArgMax", np.argmax), "argmin": _greatest("ArgMin", np.argmin)},
    **{"cumsum": _cumulated("Cumsum"), "cumprod": _cumulated("Cumprod"), "dot_general": _product},
    **{"conv_general_dilated": _convolution, "reduce_window_max": _max_pool},
}
FUNCTIONS: Mapping[str, Steps] = {
    "relu": _activation("Relu", lambda x: np.maximum(x, 0)),
    "relu6": _activation("Relu6", lambda x: np.clip(x, 0, 6)),
    "softplus": _activation("Softplus", lambda x: np.logaddexp(x, 0)),
    "soft_sign": _activation("Softsign", lambda x: x / (np.abs(x) + 1)),
    "selu": _activation("Selu", _selu),
    "elu": _elu,
    "leaky_relu": _leaky_relu,
    "silu": _silu,
    **dict.fromkeys(("softmax", "_softmax"), _of_greatest("Softmax", softmax)),
    "log_softmax": _of_greatest("LogSoftmax", log_softmax),
    "_resize": _resize,
    **{
        name: (lambda step, equation: step(TYPES[equation.name], _single(equation), *equation.inputs))
        for name in ("take", "_take", "_one_hot")
    },
}
