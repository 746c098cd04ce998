"""Programs of JAX in steps: they compute what JAX computes, and what TensorFlow computes with other attributes."""

import numpy as np
import pytest
import tensorflow as tf

from tests.faults.tf1 import numbers

jax = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn

from detrand.validation.frameworks.jax_functions import STEPS  # noqa: E402 - it imports JAX
from detrand.validation.frameworks.jax_programs import NUMPY  # noqa: E402
from detrand.validation.frameworks.jax_trace import JaxTrace  # noqa: E402
from detrand.validation.frameworks.traces import Substitution  # noqa: E402
from detrand.variables.sources import joined_variables  # noqa: E402
from detrand.variables.tf1_view import TF1View  # noqa: E402


def traced(function, *inputs, layers=()):
    """Return the trace of a function on some arrays."""

    def compute(run):
        return run(function, [jnp.asarray(each) for each in inputs], lambda: 0)

    def call(model, batch, values):
        return model(*batch)

    view = TF1View(joined_variables("port", tf.Module()))
    return JaxTrace(layers, compute, view, lambda layer: "", {}, lambda variable: None, call)


def types_of(port):
    """Return the types of the ops that compute the outputs, in order."""
    return [op.type for op in port.run().ops.values() if op.type not in ("Placeholder", "Const")]


def output_of(port, substituted=None):
    """Return what the only output of a port is."""
    trace = port.run(substituted or Substitution())
    (name,) = trace.outputs.values()
    return trace.values[name].array


IMAGES, ROWS, POSITIVE = numbers(2, 8, 7, 3), numbers(4, 6), np.abs(numbers(4, 6)) + 0.1
SEQUENCES, TALL = numbers(2, 9, 3), numbers(2, 4, 5, 6, 3)
KERNEL, KERNEL_1D, KERNEL_3D = numbers(3, 3, 3, 4), numbers(3, 3, 4), numbers(2, 3, 2, 3, 4)
DEPTHWISE = numbers(3, 3, 1, 6)
IDS = np.array([[1, 0, 3], [2, 2, 1]])
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(x, kernel=KERNEL, strides=(1, 1), padding="SAME", numbers=NHWC, **rest):
    kernel = jnp.asarray(kernel, x.dtype)
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers, **rest)


def transposed(x, strides=(2, 2), padding="SAME", **rest):
    kernel = jnp.asarray(KERNEL.swapaxes(2, 3), x.dtype)
    return lax.conv_transpose(x, kernel, strides, padding, dimension_numbers=NHWC, **rest)


def pool(x, initial, function, sizes, strides, padding):
    return lax.reduce_window(x, initial, function, sizes, strides, padding)


def mean_pool(x, padding):
    sums = pool(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), padding)
    return sums / pool(jnp.ones_like(x), 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), padding)


def loop(x):
    def body(carry, row):
        carry = jnp.tanh(carry + row)
        return carry, carry * 2

    last, rows = lax.scan(body, jnp.zeros(x.shape[1]), x, reverse=True)
    return rows + last


def while_loop(x):
    return lax.while_loop(lambda state: state[1] < 3, lambda state: (jnp.sin(state[0]), state[1] + 1), (x, 0))[0]


def shared_sum(x):
    total = x.sum(1)
    column = total[:, None]
    return (column / 6 + column * 2)[:, 0] + total / 6


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -0.5, 0.5)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, gradient: (gradient,))
SQUARES = ["Mean", "SquaredDifference", "Mean"]
FUNCTIONS = {
    "arithmetic": (lambda x: (x + 1) * 2 - 1 / x, ROWS, ["AddV2", "Mul", "RealDiv", "Sub"]),
    "bias": (lambda x: x @ jnp.ones((6, 3)) + jnp.arange(3.0), ROWS, ["MatMul", "AddV2"]),
    "powers": (lambda x: x**2 + x**-1 + POSITIVE**x, ROWS, ["Pow", "Pow", "AddV2", "Pow", "AddV2"]),
    "mean": (lambda x: x.mean(1), ROWS, ["Mean"]),
    "mean of two axes": (lambda x: jnp.mean(x, (1, 2), keepdims=True), IMAGES, ["Mean"]),
    "sum by a share": (lambda x: x.sum(1) * (1 / 6), ROWS, ["Mean"]),
    "sum by another number": (lambda x: x.sum(1) / 5, ROWS, ["Sum", "RealDiv"]),
    "variance": (lambda x: jnp.var(x, (0, 1, 2)), IMAGES, SQUARES),
    "moments": (  # whose mean is there once
        lambda x: jnp.mean(x, 1, keepdims=True) + jnp.var(x, 1, keepdims=True),
        ROWS,
        [*SQUARES, "AddV2"],
    ),
    "two means of a sum": (lambda x: x.mean(1) + x.mean(1, keepdims=True), ROWS, ["Mean", "Mean", "AddV2"]),
    "a sum that is no mean": (shared_sum, ROWS, None),
    "clip": (lambda x: jnp.clip(x, -0.5, 0.5), ROWS, ["Maximum", "Minimum"]),
    "clamp": (lambda x: lax.clamp(-0.5, x, 0.5), ROWS, ["Maximum", "Minimum"]),
    "relu": (nn.relu, ROWS, ["Relu"]),
    "relu6": (lambda x: nn.relu6(x * 9), ROWS, ["Mul", "Relu6"]),
    "own relu": (lambda x: jnp.maximum(x, 0), ROWS, ["Maximum"]),
    "leaky relu": (lambda x: nn.leaky_relu(x, 0.3), ROWS, ["LeakyRelu"]),
    "elu": (nn.elu, ROWS, ["Elu"]),
    "selu": (nn.selu, ROWS, ["Selu"]),
    "softplus": (nn.softplus, ROWS, ["Softplus"]),
    "softsign": (nn.soft_sign, ROWS, ["Softsign"]),
    "swish": (nn.silu, ROWS, ["Sigmoid", "Mul"]),
    "GELU": (lambda x: nn.gelu(x, approximate=False), ROWS, ["Mul", "Neg", "Mul", "Erfc", "Mul"]),
    "softmax": (nn.softmax, ROWS, ["Softmax"]),
    "softmax of the first axis": (lambda x: nn.softmax(x, 0), ROWS, ["Transpose", "Softmax", "Transpose"]),
    "log softmax": (nn.log_softmax, ROWS, ["LogSoftmax"]),
    "convolution": (conv, IMAGES, ["Conv2D"]),
    "strides": (lambda x: conv(x, strides=(2, 3)), IMAGES, ["Conv2D"]),
    "padding of its own": (lambda x: conv(x, padding=((1, 1), (0, 2))), IMAGES, ["Conv2D"]),
    "dilation": (lambda x: conv(x, rhs_dilation=(2, 2)), IMAGES, ["Conv2D"]),
    "convolution of sequences": (
        lambda x: conv(x, KERNEL_1D, (2,), "SAME", ("NWC", "WIO", "NWC")),
        SEQUENCES,
        ["Conv2D"],
    ),
    "convolution of volumes": (
        lambda x: conv(x, KERNEL_3D, (1, 2, 1), "VALID", ("NDHWC", "DHWIO", "NDHWC")),
        TALL,
        ["Conv3D"],
    ),
    "depthwise": (lambda x: conv(x, DEPTHWISE, feature_group_count=3), IMAGES, ["DepthwiseConv2dNative"]),
    "groups": (
        lambda x: conv(jnp.concatenate([x, x], -1), numbers(3, 3, 3, 4), feature_group_count=2),
        IMAGES,
        ["ConcatV2", "Conv2D"],
    ),
    "channels first": (
        lambda x: conv(x, KERNEL, numbers=("NCHW", "HWIO", "NCHW")),
        IMAGES.transpose(0, 3, 1, 2),
        ["Conv2D"],
    ),
    "transposed": (lambda x: transposed(x, transpose_kernel=True), IMAGES, ["Conv2DBackpropInput"]),
    "transposed without padding": (
        lambda x: transposed(x, padding="VALID", transpose_kernel=True),
        IMAGES,
        ["Conv2DBackpropInput"],
    ),
    "transposed as it is": (
        lambda x: lax.conv_transpose(x, jnp.asarray(KERNEL, x.dtype), (2, 2), "SAME", dimension_numbers=NHWC),
        IMAGES,
        ["Conv2DBackpropInput"],
    ),
    "max pooling": (lambda x: pool(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME"), IMAGES, ["MaxPool"]),
    "mean pooling": (lambda x: mean_pool(x, "SAME"), IMAGES, ["AvgPool"]),
    "counted padding": (
        lambda x: pool(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9,
        IMAGES,
        ["AvgPool"],
    ),
    "bilinear": (
        lambda x: jax.image.resize(x, (2, 13, 5, 3), "bilinear", antialias=False),
        IMAGES,
        ["ResizeBilinear"],
    ),
    "nearest": (lambda x: jax.image.resize(x, (2, 13, 5, 3), "nearest"), IMAGES, ["ResizeNearestNeighbor"]),
    "heads": (
        lambda x: jnp.einsum("abc,adc->abd", x, x),
        SEQUENCES,
        ["BatchMatMulV2"],
    ),
    "moves": (
        lambda x: jnp.split(jnp.flip(x.transpose(1, 0), 0), 2, 1)[1].reshape(-1),
        ROWS,
        ["Transpose", "ReverseV2", "Split", "Reshape"],
    ),
    "pads": (
        lambda x: jnp.pad(jnp.pad(x, 1), 1, constant_values=-1.0),
        ROWS,
        ["Pad", "PadV2"],
    ),
    "where": (lambda x: jnp.where(x > 0, x, -1.0), ROWS, ["Greater", "SelectV2"]),
    "take": (lambda ids: jnp.take(jnp.asarray(ROWS), ids, axis=0), IDS, ["GatherV2"]),
    "reductions": (
        lambda x: x.max(1) + x.min(1) + x.prod(1) + (x > 0).all(1) + (x > 0).any(1),
        ROWS,
        None,
    ),
    "greatest": (lambda x: jnp.argmax(x, 1) - jnp.argmin(x, 1), ROWS, ["ArgMax", "ArgMin", "Sub"]),
    "cumulated": (
        lambda x: lax.cumsum(x, 1, reverse=True) + jnp.cumsum(x, 0),
        ROWS,
        None,
    ),
    "integers": (lambda ids: (ids // 2, ids % 2, -ids / 2)[0] * 3, IDS, None),
    "rounded": (lambda x: jnp.round(x * 3) + jnp.sign(x) * jnp.floor(x * 3), ROWS, None),
    "scan": (loop, ROWS, None),
    "while": (while_loop, ROWS, None),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), ROWS, None),
    "custom gradient": (clipped, ROWS, ["Maximum", "Minimum"]),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(x) * 2), ROWS, ["Sin", "Mul"]),
    "jit": (jax.jit(lambda x: jnp.sin(x) * 2), ROWS, ["Sin", "Mul"]),
    "vmap": (jax.vmap(lambda row: jnp.dot(row, row)), ROWS, None),
    "unknown": (lambda x: jnp.linalg.inv(x @ x.T + jnp.eye(4)), ROWS, None),
    "complex": (lambda x: jnp.abs(jnp.fft.rfft(x)), ROWS, None),
    "update": (lambda x: x.at[1:3].set(0.0).at[0].add(2.0), ROWS, None),
    "dynamic slice": (lambda x: lax.dynamic_slice(x, (3, 2), (2, 3)), ROWS, None),
    "key": (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), ROWS, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ops_compute_what_jax_computes(name):
    function, inputs, types = FUNCTIONS[name]
    port = traced(function, inputs)
    assert types is None or types_of(port) == types
    ((_, expected),) = port.outputs_as_written().items()
    np.testing.assert_allclose(output_of(port), expected, 1e-4, 1e-5)


EXACT = [name for name, (_, inputs, _) in FUNCTIONS.items() if name not in ("bilinear", "key", "complex")]


@pytest.mark.parametrize("name", EXACT)
def test_ops_are_computed_in_float64(name):
    function, inputs, _ = FUNCTIONS[name]
    port = traced(function, inputs)
    with jax.enable_x64(True):
        wide = function(jnp.asarray(inputs, np.float64 if inputs.dtype.kind == "f" else np.int32))
    np.testing.assert_allclose(output_of(port), wide, 1e-6, 1e-7)


def op_of_type(port, op_type):
    """Return the only op of a type."""
    (op,) = (each for each in port.ops.values() if each.type == op_type)
    return op


def with_attributes(port, op_type, **attributes):
    """Return what a port computes with other attributes of its only op of a type."""
    return output_of(port, Substitution(attributes={op_of_type(port, op_type).name: attributes}))


def close(found, expected):
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_windows_that_are_substituted_are_those_of_tensorflow():
    port = traced(lambda x: conv(x, strides=(2, 2), padding=((1, 1), (1, 1))), IMAGES)
    op = op_of_type(port, "Conv2D")
    assert op.attributes["attribute padding"] == "(1, 1) at both ends"
    assert op.attributes["attribute strides"] == "[1, 2, 2, 1]"
    close(with_attributes(port, "Conv2D", padding="SAME"), tf.nn.conv2d(IMAGES, KERNEL, 2, "SAME"))
    close(with_attributes(port, "Conv2D", padding="VALID"), tf.nn.conv2d(IMAGES, KERNEL, 2, "VALID"))
    strides = with_attributes(port, "Conv2D", padding="SAME", strides="[1, 1, 3, 1]")
    close(strides, tf.nn.conv2d(IMAGES, KERNEL, (1, 3), "SAME"))
    dilated = with_attributes(port, "Conv2D", padding="SAME", strides="[1, 1, 1, 1]", dilations="[1, 2, 2, 1]")
    close(dilated, tf.nn.conv2d(IMAGES, KERNEL, 1, "SAME", dilations=2))


def test_a_depthwise_convolution_is_that_of_tensorflow():
    port = traced(lambda x: conv(x, DEPTHWISE, feature_group_count=3, padding="VALID"), IMAGES)
    kernel = DEPTHWISE.reshape(3, 3, 3, 2)
    found = with_attributes(port, "DepthwiseConv2dNative", padding="SAME", strides="[1, 2, 2, 1]")
    close(found, tf.nn.depthwise_conv2d(IMAGES, kernel, [1, 2, 2, 1], "SAME"))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_a_transposed_convolution_is_that_of_tensorflow(padding):
    kernel = KERNEL.swapaxes(2, 3)
    whole = tf.nn.conv2d_transpose(IMAGES, kernel, (2, 17, 15, 4), 2, "VALID").numpy()
    port = traced(lambda x: transposed(x, padding=padding, transpose_kernel=True), IMAGES)
    assert op_of_type(port, "Conv2DBackpropInput").attributes["attribute padding"] == padding
    sizes = {"SAME": (2, 16, 14, 4), "VALID": whole.shape}[padding]
    close(output_of(port), tf.nn.conv2d_transpose(IMAGES, kernel, sizes, 2, padding))
    for other, shape in (("SAME", (2, 16, 14, 4)), ("VALID", whole.shape)):  # as a layer's padding decides
        found = with_attributes(port, "Conv2DBackpropInput", padding=other)
        close(found, tf.nn.conv2d_transpose(IMAGES, kernel, shape, 2, other))
    other = traced(lambda x: transposed(x, padding=((2, 0), (2, 0)), transpose_kernel=True), IMAGES)
    text = op_of_type(other, "Conv2DBackpropInput").attributes["attribute padding"]
    assert text == "((0, 2), (0, 2)) at the ends"
    close(output_of(other), whole[:, :-2, :-2])
    found = with_attributes(other, "Conv2DBackpropInput", padding="SAME")
    close(found, tf.nn.conv2d_transpose(IMAGES, kernel, (2, 15, 13, 4), 2, "SAME"))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_pooling_that_is_substituted_is_that_of_tensorflow(padding):
    given = {"padding": padding, "ksize": "[1, 2, 3, 1]", "strides": "[1, 1, 2, 1]"}
    port = traced(lambda x: pool(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID"), IMAGES)
    close(with_attributes(port, "MaxPool", **given), tf.nn.max_pool2d(IMAGES, (2, 3), (1, 2), padding))
    port = traced(lambda x: mean_pool(x, "SAME"), IMAGES)
    assert op_of_type(port, "AvgPool").attributes["attribute padding"] == "SAME"
    close(with_attributes(port, "AvgPool", **given), tf.nn.avg_pool2d(IMAGES, (2, 3), (1, 2), padding))


@pytest.mark.parametrize(
    ("align_corners", "half_pixel_centers"),
    [(False, False), (True, False), (False, True)],  # TensorFlow refuses both
)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_a_resize_that_is_substituted_is_that_of_tensorflow(mode, align_corners, half_pixel_centers):
    port = traced(lambda x: jax.image.resize(x, (2, 13, 5, 3), mode, antialias=False), IMAGES)
    op_type = {"bilinear": "ResizeBilinear", "nearest": "ResizeNearestNeighbor"}[mode]
    flags = {"align_corners": align_corners, "half_pixel_centers": half_pixel_centers}
    found = with_attributes(port, op_type, **{name: str(flag) for name, flag in flags.items()})
    close(found, getattr(tf.raw_ops, op_type)(images=IMAGES, size=(13, 5), **flags))


def test_numbers_axes_and_slopes_are_substituted():
    port = traced(lambda x: nn.leaky_relu(x * 3.0, 0.3).mean(1), ROWS)
    mul, mean = op_of_type(port, "Mul"), op_of_type(port, "Mean")
    assert (mul.attributes["input 1"], mean.attributes["input 1"]) == ("3.0", "1")
    given = Substitution(
        {(mul.name, 1): np.float64(2.0), (mean.name, 1): np.array([0])},
        {op_of_type(port, "LeakyRelu").name: {"alpha": "0.1"}},
    )
    close(output_of(port, given), tf.reduce_mean(tf.nn.leaky_relu(ROWS * 2, 0.1), 0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.sin(x)[2:],
        lambda x: jnp.split(jnp.sin(x), 2)[0],
        lambda x: lax.dynamic_slice(jnp.sin(x), (0, 1), (4, 2)),
        lambda x: jnp.sin(x).reshape(-1),
    ],
    ids=["slice", "split", "dynamic slice", "reshape"],
)
def test_a_substitute_of_a_shape_that_does_not_fit_is_refused(function):
    port = traced(function, ROWS)
    sine = op_of_type(port, "Sin").name
    (edge,) = {edge for edge in port.edges_of(sine) if edge[0] != sine}
    with pytest.raises(ValueError, match=f"{edge[0]} cannot compute: "):
        port.run(Substitution({edge: np.zeros((3, 6))}))


def test_a_substitute_that_is_cropped_already_is_not_cropped_again():
    port = traced(lambda x: jnp.sin(x)[1:], ROWS)
    edge = next(iter(port.edges_of(op_of_type(port, "Sin").name)))
    close(output_of(port, Substitution({edge: ROWS[:3].astype(np.float64)})), ROWS[:3])


def test_a_loop_has_an_op_for_each_iteration():
    port = traced(loop, ROWS)
    names = [name for name, op in port.ops.items() if op.type == "Tanh"]
    assert names == [f"scan/iteration_{number}/tanh" for number in range(4)]


class Layer:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return jnp.where(x > 0, x * self.factor, 0.0)


def test_ops_have_the_names_of_their_layers_and_the_lines_that_call_functions():
    first, second = Layer(2.0), Layer(3.0)
    call = Layer.__call__

    def function(x):
        return second(jax.jit(first)(x))

    port = traced(function, ROWS, layers=[("first", first), ("second", second)])
    found = {name: op for name, op in port.ops.items() if op.type == "SelectV2"}
    assert list(found) == ["first/select_n", "second/select_n"]
    line = call.__code__.co_firstlineno + 1
    assert all(op.line.endswith(f"test_jax_functions.py:{line}") for op in found.values())
    assert Layer.__call__ is call


def test_a_function_that_looks_at_numbers_cannot_be_traced():
    def function(x):
        return x if x.sum() > 0 else -x

    message = "JAX cannot trace the port: it raises TracerBoolConversionError at .*test_jax_functions.py:"
    with pytest.raises(TypeError, match=message):
        traced(function, ROWS)


def test_numbers_in_half_precision_are_noted():
    port = traced(lambda x: x.astype(jnp.bfloat16) * 3, ROWS)
    assert port.computes_narrowly
    np.testing.assert_allclose(output_of(port), ROWS.astype(np.float64) * 3)
    assert not traced(lambda x: x * 3, ROWS).computes_narrowly


def test_every_primitive_with_steps_runs_in_numpy_or_jax():
    in_jax = {"erf", "erfc", "lgamma", "expand_dims"}
    assert set(STEPS) - in_jax <= set(NUMPY)
