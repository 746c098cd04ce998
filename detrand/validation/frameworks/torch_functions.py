"""Functions of PyTorch as ops of TensorFlow: what each computes, in steps that a TF1 program computes, too.

`STEPS` has a function for each function of PyTorch that a TF1 program computes in several ops, or in one op with
attributes. The function gets a `Step`, which it calls for each op with the type of the op, a function that computes it,
and operands. It raises a `NoStepsError` for arguments that its steps do not cover. If it raises an error, or its result
is not that of PyTorch, the function is traced as one op (see `TorchTrace`). `TYPES` has the types of ops for functions
that are one op without attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from detrand.validation.frameworks.traces import (
    DIVISOR,
    OF_ALL,
    OF_TENSORFLOW,
    ORDER_OF_CHANNELS,
    NoStepsError,
)
from detrand.validation.frameworks.windows import (
    as_attribute,
    dilated,
    of_axes,
    padding_of,
    padding_text,
    same,
    several,
)

F = torch.nn.functional

# The layouts of tensors, which a trace shows as TF1 has them.
CHANNELS = "channels first"
KERNEL = "kernel of a convolution"
DEPTHWISE = "kernel of a depthwise convolution"
_IMAGES = {0: CHANNELS, -1: CHANNELS}

Attributes = Mapping[str, str]


class Axes(NamedTuple):
    """Axes of the first operand."""

    axes: tuple[int, ...]


class Step(Protocol):
    """Computes one op of the trace."""

    def __call__(
        self,
        op_type: str,
        function: Callable[..., Any],
        *operands: Any,
        attributes: Attributes | None = None,
        layouts: Mapping[int, str] | None = None,
    ) -> Any:
        """Return what a function computes from operands: tensors, numbers and `Axes`.

        A function of an op with attributes gets them, as texts, before the operands. The layouts are those of some
        operands, by position, and of the result, as -1.
        """


_UNARY = {
    **{"relu": "Relu", "relu6": "Relu6", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log"},
    **{"sqrt": "Sqrt", "rsqrt": "Rsqrt", "square": "Square", "abs": "Abs", "neg": "Neg", "floor": "Floor"},
    **{"ceil": "Ceil", "round": "Round", "sign": "Sign", "erf": "Erf", "softplus": "Softplus", "elu": "Elu"},
    **{"softsign": "Softsign", "selu": "Selu", "log1p": "Log1p", "reciprocal": "Reciprocal", "sin": "Sin"},
    **{"cos": "Cos", "isnan": "IsNan", "logical_not": "LogicalNot", "invert": "LogicalNot"},
}
_BINARY = {
    **{"add": "AddV2", "sub": "Sub", "subtract": "Sub", "mul": "Mul", "multiply": "Mul", "div": "RealDiv"},
    **{"truediv": "RealDiv", "true_divide": "RealDiv", "divide": "RealDiv", "pow": "Pow", "maximum": "Maximum"},
    **{"minimum": "Minimum", "eq": "Equal", "ne": "NotEqual", "lt": "Less", "le": "LessEqual", "gt": "Greater"},
    **{"ge": "GreaterEqual", "logical_and": "LogicalAnd", "logical_or": "LogicalOr", "and": "LogicalAnd"},
    **{"or": "LogicalOr", "floor_divide": "FloorDiv", "floordiv": "FloorDiv"},
}
_REFLECTED = {"rsub": "sub", "rtruediv": "div", "rdiv": "div", "rpow": "pow", "radd": "add", "rmul": "mul"}
TYPES = {
    **_UNARY,
    **_BINARY,
    **{"matmul": "MatMul", "mm": "MatMul", "bmm": "BatchMatMulV2", "einsum": "Einsum", "xlogy": "Xlogy"},
    **dict.fromkeys(("permute", "transpose", "t", "T", "mT", "movedim", "moveaxis", "swapaxes"), "Transpose"),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"), "Reshape"),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), "BroadcastTo"),
    **dict.fromkeys(("getitem", "narrow", "select"), "StridedSlice"),
    **dict.fromkeys(("chunk", "split", "tensor_split"), "Split"),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "type", "type_as", "long", "int", "bool"), "Cast"),
    **dict.fromkeys(("contiguous", "clone", "dropout", "alias"), "Identity"),
    **dict.fromkeys(("cat", "concat", "concatenate"), "ConcatV2"),
    **{"stack": "Pack", "unbind": "Unpack", "detach": "StopGradient", "data": "StopGradient", "pad": "PadV2"},
    **{"flip": "ReverseV2", "roll": "Roll", "repeat": "Tile", "tile": "Tile", "gather": "GatherV2"},
    **{"index_select": "GatherV2", "one_hot": "OneHot", "argmax": "ArgMax", "argmin": "ArgMin", "cumsum": "Cumsum"},
    "setitem": "TensorScatterUpdate",
}
# Functions that draw random numbers.
DRAWS = {"rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "bernoulli", "normal", "multinomial"}


def _binary(op_type: str, function: Callable[..., Any], *, is_reflected: bool = False) -> Callable[..., Any]:
    def steps(step: Step, input: Any, other: Any) -> Any:
        return step(op_type, function, *((other, input) if is_reflected else (input, other)))

    return steps


def _broadcast_tensors(step: Step, *tensors: Any) -> Any:
    """Broadcast tensors to one shape, as ``torch.distributions`` does with the parameters of a distribution."""
    shape = torch.broadcast_shapes(*(each.shape for each in tensors))
    return tuple(
        each if each.shape == shape else step("BroadcastTo", lambda x: x.expand(shape), each) for each in tensors
    )


def _copy(step: Step, input: Any, src: Any, non_blocking: bool = False) -> Any:
    """Return what is copied: the tensor that takes it may be empty, with any numbers."""
    return step("Identity", lambda x: x.expand(input.shape), src)


def _mean(step: Step, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return step("Mean", lambda x, axes: torch.mean(x, axes, keepdim), input, _axes(input, dim))


def _sum(step: Step, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return step("Sum", lambda x, axes: torch.sum(x, axes, keepdim), input, _axes(input, dim))


def _variance(
    step: Step, input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    variance, _ = _variance_and_mean(step, input, dim, unbiased, keepdim, correction=correction)
    return variance


def _variance_and_mean(
    step: Step, input: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    correction, axes = unbiased if correction is None else correction, _axes(input, dim)
    mean = step("Mean", lambda x, axes: torch.mean(x, axes, keepdim=True), input, axes)
    squares = step("SquaredDifference", lambda x, y: (x - y) ** 2, input, mean)

    def averaged(of: Attributes, x: Any, axes: Sequence[int]) -> Any:
        count = math.prod(x.shape[axis] for axis in axes)
        return torch.sum(x, axes, keepdim) / (count - float(of[DIVISOR].removeprefix(OF_ALL).removeprefix(" - ") or 0))

    attributes = {DIVISOR: f"{OF_ALL} - {correction:g}" if correction else OF_ALL}
    variance = step("Mean", averaged, squares, axes, attributes=attributes)
    return variance, mean if keepdim else step("Reshape", lambda x: x.reshape(variance.shape), mean)


def _deviation(step: Step, *args: Any, **kwargs: Any) -> Any:
    return step("Sqrt", torch.sqrt, _variance(step, *args, **kwargs))


def _amax(step: Step, input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return step("Max", lambda x, axes: torch.amax(x, axes, keepdim), input, _axes(input, dim or None))


def _amin(step: Step, input: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return step("Min", lambda x, axes: torch.amin(x, axes, keepdim), input, _axes(input, dim or None))


def _extreme(op_type: str, of_all: Callable[..., Any], of_two: Callable[..., Any]) -> Callable[..., Any]:
    def steps(step: Step, input: Any, other: Any = None) -> Any:
        if isinstance(other, int):
            raise NoStepsError  # an axis, along which the positions are found, too
        return of_all(step, input) if other is None else step(op_type, of_two, input, other)

    return steps


def _norm(step: Step, input: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if ord not in (1, 2):
        raise NoStepsError
    if ord == 1:
        return _sum(step, step("Abs", torch.abs, input), dim, keepdim)
    return step("Sqrt", torch.sqrt, _sum(step, step("Square", torch.square, input), dim, keepdim))


def _norm_of_tensor(
    step: Step, input: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    return _norm(step, input, 2 if p in (None, "fro") else p, dim, keepdim)


def _where(step: Step, condition: Any, input: Any, other: Any) -> Any:
    return step("SelectV2", torch.where, condition, input, other)


def _getitem(step: Step, input: Any, index: Any) -> Any:
    if isinstance(index, torch.Tensor) and index.dtype != torch.bool:
        return step("GatherV2", lambda rows, positions: rows[positions.long()], input, index)
    parts = index if isinstance(index, tuple) else (index,)
    if not all(each is None or each is Ellipsis or isinstance(each, (int, slice)) for each in parts):
        raise NoStepsError
    return step("StridedSlice", lambda x: x[index], input)


def _as_other(op_type: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the steps of a function that takes only the shape of its second tensor."""
    return lambda step, input, other: step(op_type, lambda x: function(x, other.shape), input)


def _concatenated(step: Step, tensors: Sequence[Any], dim: int = 0) -> Any:
    return step("ConcatV2", lambda *x: torch.cat(x[:-1], x[-1][0]), *tensors, _axes(tensors[0], dim))


def _log_sigmoid(step: Step, input: Any) -> Any:
    return step("Neg", torch.neg, step("Softplus", F.softplus, step("Neg", torch.neg, input)))


def _axes(input: Any, dim: Any) -> Axes:
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return Axes(tuple(sorted(each % input.dim() for each in dims)))


def _softmax(step: Step, input: Any, dim: int = -1, _stacklevel: int = 3) -> Any:
    return _along_last_axis(step, "Softmax", lambda x: torch.softmax(x, -1), input, dim)


def _log_softmax(step: Step, input: Any, dim: int = -1, _stacklevel: int = 3) -> Any:
    return _along_last_axis(step, "LogSoftmax", lambda x: torch.log_softmax(x, -1), input, dim)


def _along_last_axis(step: Step, op_type: str, function: Callable[..., Any], input: Any, dim: int) -> Any:
    """Compute an op of the last axis along any axis, which TF1 transposes before it and after it."""
    if dim % input.dim() == input.dim() - 1:
        return step(op_type, function, input)

    order = list(range(input.dim()))
    order[dim], order[-1] = order[-1], order[dim]
    axes = Axes(tuple(order))

    def transposed(x: Any, axes: Sequence[int]) -> Any:
        return x.permute(*axes)

    return step("Transpose", transposed, step(op_type, function, step("Transpose", transposed, input, axes)), axes)


def _leaky_relu(step: Step, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    attributes = {"alpha": f"{negative_slope:.7g}"}
    return step("LeakyRelu", lambda of, x: F.leaky_relu(x, float(of["alpha"])), input, attributes=attributes)


def _silu(step: Step, input: Any, inplace: bool = False) -> Any:
    return step("Mul", torch.mul, input, step("Sigmoid", torch.sigmoid, input))


def _softplus(step: Step, input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    if beta == 1:
        return step("Softplus", F.softplus, input)
    return step("RealDiv", torch.div, step("Softplus", F.softplus, step("Mul", torch.mul, input, beta)), beta)


def _hard_sigmoid(step: Step, input: Any, inplace: bool = False) -> Any:
    return _clamp(step, step("AddV2", torch.add, step("Mul", torch.mul, input, 1 / 6), 0.5), 0.0, 1.0)


def _clamp(step: Step, input: Any, min: Any = None, max: Any = None) -> Any:
    found = input if max is None else step("Minimum", _minimum, input, max)  # first, as tf.clip_by_value does
    return found if min is None else step("Maximum", _maximum, found, min)


def _clamp_max(step: Step, input: Any, max: Any) -> Any:
    return _clamp(step, input, None, max)


def _hardtanh(step: Step, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    if (min_val, max_val) == (0, 6):
        return step("Relu6", F.relu6, input)
    return _clamp(step, input, min_val, max_val)


def _maximum(input: Any, other: Any) -> Any:
    return torch.maximum(input, torch.as_tensor(other, dtype=input.dtype))


def _minimum(input: Any, other: Any) -> Any:
    return torch.minimum(input, torch.as_tensor(other, dtype=input.dtype))


def _gelu(step: Step, input: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        cube = step("Mul", torch.mul, step("Pow", torch.pow, input, 3.0), 0.044715)
        inner = step("Mul", torch.mul, step("AddV2", torch.add, input, cube), math.sqrt(2 / math.pi))
        bent = step("Tanh", torch.tanh, inner)
    else:
        bent = step("Erf", torch.erf, step("RealDiv", torch.div, input, math.sqrt(2.0)))
    share = step("Mul", torch.mul, step("AddV2", torch.add, bent, 1.0), 0.5)
    return step("Mul", torch.mul, input, share)


def _masked_fill(step: Step, input: Any, mask: Any, value: Any) -> Any:
    return step("SelectV2", lambda m, v, x: torch.where(m, torch.as_tensor(v, dtype=x.dtype), x), mask, value, input)


def _linear(step: Step, input: Any, weight: Any, bias: Any = None) -> Any:
    product = step("MatMul", torch.matmul, input, step("Identity", torch.t, weight))
    return product if bias is None else step("BiasAdd", torch.add, product, bias)


def _addmm(step: Step, input: Any, mat1: Any, mat2: Any) -> Any:
    return step("BiasAdd", torch.add, step("MatMul", torch.matmul, mat1, mat2), input)


def _embedding(step: Step, input: Any, weight: Any, *rest: Any, **_: Any) -> Any:
    return step("GatherV2", lambda rows, positions: F.embedding(positions, rows), weight, input)


def _normalize(step: Step, input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    if p != 2:
        raise NoStepsError
    squares = step("Square", torch.square, input)
    total = step("Sum", lambda x, axes: torch.sum(x, axes, keepdim=True), squares, _axes(input, dim))
    return step("Mul", torch.mul, input, step("Rsqrt", torch.rsqrt, step("Maximum", _maximum, total, eps**2)))


def _layer_norm(
    step: Step, input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    axes = Axes(tuple(range(input.dim() - len(normalized_shape), input.dim())))

    def mean_of(x: Any) -> Any:
        return step("Mean", lambda x, axes: torch.mean(x, axes, keepdim=True), x, axes)

    mean = mean_of(input)
    variance = mean_of(step("SquaredDifference", lambda x, y: (x - y) ** 2, input, mean))
    factor = step("Rsqrt", torch.rsqrt, step("AddV2", torch.add, variance, eps))
    factor = factor if weight is None else step("Mul", torch.mul, factor, weight)
    shift = step("Mul", torch.mul, mean, factor)
    shift = step("Neg", torch.neg, shift) if bias is None else step("Sub", torch.sub, bias, shift)
    return step("AddV2", torch.add, step("Mul", torch.mul, input, factor), shift)


def _group_norm(
    step: Step, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    def of_groups(x: Any) -> Any:
        """Return the mean of each channel's group, so that the channels stay where they are."""
        means = x.reshape(len(x), num_groups, -1).mean(-1).repeat_interleave(x.shape[1] // num_groups, 1)
        return means.reshape(*x.shape[:2], *[1] * (x.dim() - 2))

    return _standardized(step, input, lambda x: step("Mean", of_groups, x, layouts=_IMAGES), weight, bias, eps)


def _instance_norm(
    step: Step,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if running_mean is not None or not use_input_stats:
        raise NoStepsError

    def mean_of(x: Any) -> Any:
        axes = Axes(tuple(range(2, x.dim())))
        return step("Mean", lambda x, axes: torch.mean(x, axes, keepdim=True), x, axes, layouts=_IMAGES)

    return _standardized(step, input, mean_of, weight, bias, eps)


def _standardized(step: Step, x: Any, mean_of: Callable[[Any], Any], weight: Any, bias: Any, epsilon: float) -> Any:
    """Subtract the mean, divide by the standard deviation, and scale and shift each channel."""
    mean = mean_of(x)
    variance = mean_of(step("SquaredDifference", lambda x, y: (x - y) ** 2, x, mean))
    deviation = step("Sqrt", torch.sqrt, step("AddV2", torch.add, variance, epsilon))
    found = step("RealDiv", torch.div, step("Sub", torch.sub, x, mean), deviation)
    if weight is not None:
        found = step("Mul", lambda x, by: x * by.reshape(-1, *[1] * (x.dim() - 2)), found, weight)
    return found if bias is None else step("AddV2", _to_channels, found, bias)


def _batch_norm(
    step: Step,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    channels = input.shape[1]

    def normalized(of: Attributes, x: Any, *rest: Any) -> Any:
        scale, offset, mean, variance = rest if len(rest) == 4 else (*rest, None, None)
        return F.batch_norm(
            x, mean, variance, scale, offset, training=of["is_training"] == "True", eps=float(of["epsilon"])
        )

    is_training = training or running_mean is None
    scale = input.new_ones(channels) if weight is None else weight
    offset = input.new_zeros(channels) if bias is None else bias
    statistics = () if is_training else (running_mean, running_var)
    layouts = _IMAGES
    attributes = {"epsilon": f"{eps:.7g}", "is_training": str(is_training)}
    return step(
        "FusedBatchNormV3", normalized, input, scale, offset, *statistics, attributes=attributes, layouts=layouts
    )


def _local_response_norm(
    step: Step, input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """Divide by a power of a sum: TF1 multiplies the sum over a window by alpha, and PyTorch the mean."""
    if size % 2 == 0 or input.dim() != 4:
        raise NoStepsError

    def normalized(of: Attributes, x: Any) -> Any:
        window = 2 * int(of["depth_radius"]) + 1
        return F.local_response_norm(x, window, float(of["alpha"]) * window, float(of["beta"]), float(of["bias"]))

    numbers = {"alpha": alpha / size, "beta": beta, "bias": k}
    attributes = {"depth_radius": str(size // 2), **{name: f"{number:.7g}" for name, number in numbers.items()}}
    return step("LRN", normalized, input, attributes=attributes, layouts=_IMAGES)


# Convolutions, pooling and resizing.


def _padding_text(
    padding: Any, sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int], *, counts: bool = False
) -> str:
    """Return what PyTorch's padding is called in TensorFlow, or else how much it is."""
    if isinstance(padding, str):
        return padding.upper()
    ends = [(each, each) for each in several(padding, len(sizes))]
    return padding_text(ends, sizes, windows, strides, counts=counts)


def _padded(x: Any, padding: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    return F.pad(x, [each for pair in reversed(padding) for each in pair], value=value)


def _convolution(count: int) -> Callable[..., Any]:
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[count - 1]

    def steps(
        step: Step,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        def convolved(of: Attributes, x: Any, kernel: Any) -> Any:
            strides, dilations = (of_axes(of[name], count) for name in ("strides", "dilations"))
            windows = dilated(kernel.shape[2:], dilations)
            padding = padding_of(of["padding"], x.shape[2:], windows, strides)
            return function(_padded(x, padding), kernel, None, strides, 0, dilations, groups)

        is_depthwise = groups == input.shape[1] > 1
        windows = dilated(weight.shape[2:], several(dilation, count))
        attributes = {
            "strides": as_attribute(stride, count),
            "padding": _padding_text(padding, input.shape[2:], windows, several(stride, count)),
            "dilations": as_attribute(dilation, count),
        }
        op_type = "DepthwiseConv2dNative" if is_depthwise else "Conv3D" if count == 3 else "Conv2D"
        layouts = {0: CHANNELS, 1: DEPTHWISE if is_depthwise else KERNEL, -1: CHANNELS}
        found = step(op_type, convolved, input, weight, attributes=attributes, layouts=layouts)
        return found if bias is None else step("BiasAdd", _to_channels, found, bias)

    return steps


def _to_channels(x: Any, bias: Any) -> Any:
    return x + bias.reshape(-1, *[1] * (x.dim() - 2))


def _pixel_shuffle(step: Step, input: Any, upscale_factor: int) -> Any:
    def shuffled(of: Attributes, x: Any) -> Any:
        block = int(of["block_size"])
        if of[ORDER_OF_CHANNELS] == OF_TENSORFLOW:
            x = x.unflatten(1, (block**2, -1)).transpose(1, 2).flatten(1, 2)
        return F.pixel_shuffle(x, block)

    return step("DepthToSpace", shuffled, input, attributes=_of_block(upscale_factor), layouts=_IMAGES)


def _pixel_unshuffle(step: Step, input: Any, downscale_factor: int) -> Any:
    def unshuffled(of: Attributes, x: Any) -> Any:
        block = int(of["block_size"])
        x = F.pixel_unshuffle(x, block)
        if of[ORDER_OF_CHANNELS] == OF_TENSORFLOW:
            x = x.unflatten(1, (-1, block**2)).transpose(1, 2).flatten(1, 2)
        return x

    return step("SpaceToDepth", unshuffled, input, attributes=_of_block(downscale_factor), layouts=_IMAGES)


def _of_block(size: int) -> Attributes:
    return {"block_size": str(size), ORDER_OF_CHANNELS: "channel, row, column"}


def _transposed(count: int) -> Callable[..., Any]:
    function = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[count - 1]

    def steps(
        step: Step,
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        strides, amounts = several(stride, count), several(padding, count)
        extra, windows = several(output_padding, count), dilated(weight.shape[2:], several(dilation, count))
        sizes = [
            (n - 1) * s + w - 2 * p + e
            for n, s, w, p, e in zip(input.shape[2:], strides, windows, amounts, extra, strict=True)
        ]

        def convolved(of: Attributes, kernel: Any, x: Any) -> Any:
            strides = of_axes(of["strides"], count)
            whole = function(x, kernel, None, strides, 0, 0, groups, dilation)
            if of["padding"] == "SAME":
                cropped = same(sizes, windows, strides)
            elif of["padding"] == "VALID":
                cropped = [(0, 0)] * count
            else:
                cropped = [(int(each), -1) for each in re.findall(r"\d+", of["padding"])][:count]
            whole = F.pad(whole, [each for n in reversed(range(count)) for each in (0, sizes[n])])
            for axis, (start, _) in enumerate(cropped):
                whole = whole.narrow(axis + 2, start, sizes[axis])
            return whole

        ends = [(p, p - e) for p, e in zip(amounts, extra, strict=True)]
        if ends == same(sizes, windows, strides):
            text = "SAME"
        elif not any(amounts):
            text = "VALID"
        else:
            text = f"({', '.join(map(str, amounts))}) at both ends"
        attributes = {"strides": as_attribute(stride, count), "padding": text}
        op_type = "Conv3DBackpropInputV2" if count == 3 else "Conv2DBackpropInput"
        layouts = {0: KERNEL, 1: CHANNELS, -1: CHANNELS}
        found = step(op_type, convolved, weight, input, attributes=attributes, layouts=layouts)
        return found if bias is None else step("BiasAdd", _to_channels, found, bias)

    return steps


def _max_pool(count: int) -> Callable[..., Any]:
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[count - 1]

    def steps(
        step: Step,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        def pooled(of: Attributes, x: Any) -> Any:
            size, strides = (of_axes(of[name], count) for name in ("ksize", "strides"))
            padding = padding_of(of["padding"], x.shape[2:], size, strides)
            return function(_padded(x, padding, -math.inf), size, strides)

        return step(
            "MaxPool3D" if count == 3 else "MaxPool",
            pooled,
            input,
            attributes=_pooling(input, count, kernel_size, stride, padding),
            layouts=_IMAGES,
        )

    return steps


def _average_pool(count: int) -> Callable[..., Any]:
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[count - 1]

    def steps(
        step: Step,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,  # which `nn.AvgPool2d` passes
    ) -> Any:
        def pooled(of: Attributes, x: Any) -> Any:
            size, strides = (of_axes(of[name], count) for name in ("ksize", "strides"))
            padding = padding_of(of["padding"], x.shape[2:], size, strides)
            means = function(_padded(x, padding), size, strides)
            if "that count" in of["padding"]:
                return means
            return means / function(_padded(torch.ones_like(x), padding), size, strides)

        attributes = _pooling(input, count, kernel_size, stride, padding, counts=count_include_pad)
        op_type, layouts = "AvgPool3D" if count == 3 else "AvgPool", _IMAGES
        return step(op_type, pooled, input, attributes=attributes, layouts=layouts)

    return steps


def _pooling(
    input: Any, count: int, kernel_size: Any, stride: Any, padding: Any, *, counts: bool = False
) -> dict[str, str]:
    size = several(kernel_size, count)
    strides = several(stride, count) if stride else size
    text = _padding_text(padding, input.shape[2:], size, strides, counts=counts)
    return {"ksize": as_attribute(size, count), "strides": as_attribute(strides, count), "padding": text}


def _global_average_pool(step: Step, input: Any, output_size: Any) -> Any:
    axes = tuple(range(2, input.dim()))
    if several(output_size, len(axes)) != [1] * len(axes):
        raise NoStepsError
    layouts = _IMAGES
    return step("Mean", lambda x, axes: torch.mean(x, axes, keepdim=True), input, Axes(axes), layouts=layouts)


def _interpolate(
    step: Step,
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    types = {"nearest": "ResizeNearestNeighbor", "bilinear": "ResizeBilinear", "nearest-exact": "ResizeNearestNeighbor"}
    count = input.dim() - 2
    sizes = several(size, count) if size is not None else []
    if size is None:
        factors = [scale_factor] * count if isinstance(scale_factor, (int, float)) else scale_factor
        sizes = [int(n * factor) for n, factor in zip(input.shape[2:], factors, strict=True)]
    is_half = mode == "nearest-exact" or (mode == "bilinear" and not align_corners)
    attributes = {"align_corners": str(bool(align_corners)), "half_pixel_centers": str(is_half)}

    def resized(of: Attributes, x: Any) -> Any:
        flags = {name: text == "True" for name, text in of.items()}
        is_bilinear = mode == "bilinear"
        x = x.float() if is_bilinear else x
        for axis, length in reversed(list(enumerate(sizes, 2))):
            x = _resized(x, axis, length, is_bilinear=is_bilinear, **flags)
        return x.double()

    return step(types[mode], resized, input, attributes=attributes, layouts=_IMAGES)


def _resized(x: Any, axis: int, size: int, *, is_bilinear: bool, align_corners: bool, half_pixel_centers: bool) -> Any:
    """Return an array in another size along an axis, as TensorFlow computes it with these attributes.

    It computes means in float32, also those of numbers in float64.
    """
    before = x.shape[axis]
    positions = torch.arange(size, dtype=torch.float32)
    scale = np.float32(before - 1) / np.float32(size - 1) if align_corners and size > 1 else np.float32(before / size)
    if not is_bilinear:
        positions = (positions + 0.5) * scale if half_pixel_centers else positions * scale
        nearest = (positions + 0.5 if align_corners else positions).floor().long().clamp(0, before - 1)
        return x.index_select(axis, nearest)
    positions = (positions + 0.5) * scale - 0.5 if half_pixel_centers else positions * scale
    lower = positions.floor()
    share = (positions - lower).reshape(-1, *[1] * (x.dim() - axis - 1))
    left, right = (x.index_select(axis, each.long().clamp(0, before - 1)) for each in (lower, lower + 1))
    return left + (right - left) * share


# Attention.


def _attention(
    step: Step,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p or enable_gqa:
        raise NoStepsError
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    transposed = step("Transpose", lambda x: x.transpose(-1, -2), key)
    scores = step("BatchMatMulV2", torch.matmul, query, transposed)
    scores = step("Mul", torch.mul, scores, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = step("SelectV2", torch.where, attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = step("AddV2", torch.add, scores, attn_mask)
    shares = step("Softmax", lambda x: torch.softmax(x, -1), scores)
    return step("BatchMatMulV2", torch.matmul, shares, value)


def _multi_head_attention(
    step: Step,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **rest: Any,
) -> Any:
    """Compute self-attention or cross-attention of one width on inputs of the shape (time, batch, features).

    ``is_causal`` says of ``attn_mask`` that it is causal.
    """
    others = [bias_k, bias_v, add_zero_attn or None, use_separate_proj_weight or None, *rest.values()]
    has_masks_to_add = all(mask is None or mask.is_floating_point() for mask in (attn_mask, key_padding_mask))
    if query.dim() != 3 or not has_masks_to_add or any(each is not None for each in others):
        raise NoStepsError
    time, batch, width = query.shape

    def heads_of(x: Any, number: int) -> Any:
        part = slice(number * width, (number + 1) * width)
        weight = step("Identity", lambda w: w[part].t(), in_proj_weight)
        projected = step("MatMul", torch.matmul, x, weight)
        if in_proj_bias is not None:
            projected = step("BiasAdd", torch.add, projected, step("Identity", lambda b: b[part], in_proj_bias))
        in_batches = step("Transpose", lambda x: x.transpose(0, 1), projected)
        split = step("Reshape", lambda x: x.reshape(batch, -1, num_heads, width // num_heads), in_batches)
        return step("Transpose", lambda x: x.transpose(1, 2), split)

    queries, keys, values = (heads_of(x, number) for number, x in enumerate((query, key, value)))
    transposed = step("Transpose", lambda x: x.transpose(-1, -2), keys)
    scores = step("BatchMatMulV2", torch.matmul, queries, transposed)
    scores = step("Mul", torch.mul, scores, 1 / math.sqrt(width // num_heads))
    if attn_mask is not None:
        mask = attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(batch, num_heads, time, -1)
        scores = step("AddV2", torch.add, scores, mask)
    if key_padding_mask is not None:
        scores = step("AddV2", lambda x, mask: x + mask[:, None, None], scores, key_padding_mask)
    shares = step("Softmax", lambda x: torch.softmax(x, -1), scores)
    if training and dropout_p:  # of the heads in the batch if the shares are returned
        if need_weights:
            shares = step("Reshape", lambda x: x.flatten(0, 1), shares)
        shares = torch.nn.functional.dropout(shares, dropout_p)
        if need_weights:
            shares = step("Reshape", lambda x: x.unflatten(0, (batch, num_heads)), shares)
    context = step("BatchMatMulV2", torch.matmul, shares, values)
    joined = step("Transpose", lambda x: x.permute(2, 0, 1, 3), context)
    joined = step("Reshape", lambda x: x.reshape(time, batch, width), joined)
    outputs = _linear(step, joined, out_proj_weight, out_proj_bias)
    if not need_weights:
        return outputs, None
    return outputs, step("Mean", lambda x, axes: x.mean(axes), shares, Axes((1,))) if average_attn_weights else shares


# Recurrent layers.


def _recurrent(cell: Callable[..., Any], states: int) -> Callable[..., Any]:
    def steps(
        step: Step,
        input: Any,
        hx: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if (dropout and train) or not isinstance(has_biases, bool):  # packed sequences have other arguments
            raise NoStepsError
        of_cell, directions = 4 if has_biases else 2, 2 if bidirectional else 1
        given = hx if states > 1 else (hx,)
        last: list[list[Any]] = [[] for _ in range(states)]
        found = step("Transpose", lambda x: x.transpose(0, 1), input) if batch_first else input
        for layer in range(num_layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                weights = params[number * of_cell : (number + 1) * of_cell]
                state = [step("StridedSlice", lambda x, n=number: x[n], each) for each in given]
                of_times = {}
                times = range(len(found))
                for time in reversed(times) if direction else times:
                    at_time = step("StridedSlice", lambda x, t=time: x[t], found)
                    state = cell(step, at_time, state, *weights)
                    of_times[time] = state[0]
                outputs.append(step("Pack", lambda *each: torch.stack(each), *(of_times[time] for time in times)))
                for each, value in zip(last, state, strict=True):
                    each.append(value)
            found = outputs[0] if directions == 1 else step("ConcatV2", lambda *x: torch.cat(x, -1), *outputs)
        found = step("Transpose", lambda x: x.transpose(0, 1), found) if batch_first else found
        return found, *(step("Pack", lambda *x: torch.stack(x), *each) for each in last)

    return steps


def _lstm_cell(
    step: Step, x: Any, state: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> list[Any]:
    hidden, memory = state
    # TF1 has one kernel and one bias.
    kernel = step("Identity", lambda one, other: torch.cat([one, other], 1).t(), w_ih, w_hh)
    whole = step("ConcatV2", lambda one, other: torch.cat([one, other], 1), x, hidden)
    whole = step("MatMul", torch.matmul, whole, kernel)
    if b_ih is not None:
        whole = step("BiasAdd", torch.add, whole, step("Identity", torch.add, b_ih, b_hh))
    entering, kept, new, leaving = step("Split", lambda y: y.chunk(4, -1), whole)
    kept = step("Mul", torch.mul, memory, step("Sigmoid", torch.sigmoid, kept))
    new = step("Mul", torch.mul, step("Sigmoid", torch.sigmoid, entering), step("Tanh", torch.tanh, new))
    memory = step("AddV2", torch.add, kept, new)
    hidden = step("Mul", torch.mul, step("Tanh", torch.tanh, memory), step("Sigmoid", torch.sigmoid, leaving))
    return [hidden, memory]


def _gru_cell(
    step: Step, x: Any, state: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> list[Any]:
    (hidden,) = state
    of_input = step("Split", lambda y: y.chunk(3, -1), _linear(step, x, w_ih, b_ih))
    of_state = step("Split", lambda y: y.chunk(3, -1), _linear(step, hidden, w_hh, b_hh))
    reset, update = (
        step("Sigmoid", torch.sigmoid, step("AddV2", torch.add, of_input[n], of_state[n])) for n in range(2)
    )
    new = step("AddV2", torch.add, of_input[2], step("Mul", torch.mul, reset, of_state[2]))
    new = step("Tanh", torch.tanh, new)
    kept = step("Mul", torch.mul, update, hidden)
    rest = step("Sub", lambda one, z: one - z, 1.0, update)
    return [step("AddV2", torch.add, kept, step("Mul", torch.mul, rest, new))]


_FUNCTIONS: dict[str, Any] = {name: getattr(torch, name, None) for name in _BINARY}
_FUNCTIONS |= {"truediv": torch.div, "and": torch.logical_and, "or": torch.logical_or}
_FUNCTIONS |= {"floordiv": torch.floor_divide, "maximum": _maximum, "minimum": _minimum}
STEPS: Mapping[str, Callable[..., Any]] = {
    **{name: _binary(op_type, _FUNCTIONS[name]) for name, op_type in _BINARY.items() if _FUNCTIONS[name]},
    **{
        name: _binary(_BINARY[other], _FUNCTIONS[other], is_reflected=True)
        for name, other in _REFLECTED.items()
        if _FUNCTIONS[other]
    },
    **{"mean": _mean, "sum": _sum, "amax": _amax, "softmax": _softmax, "log_softmax": _log_softmax},
    **{"var": _variance, "var_mean": _variance_and_mean, "std": _deviation},
    **{"softplus": _softplus, "hardsigmoid": _hard_sigmoid},
    **{"broadcast_tensors": _broadcast_tensors, "copy": _copy},
    **{"leaky_relu": _leaky_relu, "silu": _silu, "clamp": _clamp, "clip": _clamp, "hardtanh": _hardtanh},
    **{"getitem": _getitem, "where": _where, "clamp_min": _clamp, "clamp_max": _clamp_max, "amin": _amin},
    **{"max": _extreme("Maximum", _amax, _maximum), "min": _extreme("Minimum", _amin, _minimum)},
    **{"norm": _norm_of_tensor, "linalg_vector_norm": _norm, "logsigmoid": _log_sigmoid, "log_sigmoid": _log_sigmoid},
    **{"gelu": _gelu, "masked_fill": _masked_fill, "linear": _linear, "addmm": _addmm, "embedding": _embedding},
    **{"normalize": _normalize, "layer_norm": _layer_norm, "batch_norm": _batch_norm, "interpolate": _interpolate},
    **{"group_norm": _group_norm, "instance_norm": _instance_norm, "local_response_norm": _local_response_norm},
    **dict.fromkeys(("cat", "concat", "concatenate"), _concatenated),
    **dict.fromkeys(("view_as", "reshape_as"), _as_other("Reshape", torch.reshape)),
    "expand_as": _as_other("BroadcastTo", torch.broadcast_to),
    **{"pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle},
    **{f"conv{count}d": _convolution(count) for count in (1, 2, 3)},
    **{f"conv_transpose{count}d": _transposed(count) for count in (1, 2, 3)},
    **{f"max_pool{count}d": _max_pool(count) for count in (1, 2, 3)},
    **{f"avg_pool{count}d": _average_pool(count) for count in (1, 2, 3)},
    **{f"adaptive_avg_pool{count}d": _global_average_pool for count in (1, 2, 3)},
    **{"scaled_dot_product_attention": _attention, "multi_head_attention_forward": _multi_head_attention},
    **{"lstm": _recurrent(_lstm_cell, 2), "gru": _recurrent(_gru_cell, 1)},
}
