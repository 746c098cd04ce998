"""Functions of PyTorch in steps: they compute what PyTorch computes, also where tensors change in place."""

import warnings
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from tests.faults.tf1 import numbers

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

from detrand.validation.frameworks.torch_trace import TorchTrace  # noqa: E402 - it imports PyTorch
from detrand.validation.frameworks.traces import Substitution  # noqa: E402
from detrand.variables.sources import joined_variables  # noqa: E402
from detrand.variables.tf1_view import TF1View  # noqa: E402
from detrand.variables.torch_modules import torch_variables  # noqa: E402


def traced(module, *inputs):
    """Return the trace of a module on some arrays."""
    batch = [torch.tensor(each) for each in inputs]

    def compute(run):
        return run(module, batch, lambda: 0)

    paths = {id(each): path.replace(".", "/") for path, each in module.named_modules()}
    variables = {path.replace(".", "/"): (each, each.tensor) for path, each in torch_variables(module).items()}
    view = TF1View(joined_variables("port", module))
    return TorchTrace(module, compute, view, lambda layer: "", paths, variables)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


IMAGES, ROWS = numbers(2, 3, 8, 8), numbers(4, 6)
KERNEL = torch.tensor(numbers(4, 3, 3, 3))
HEADS = numbers(2, 2, 5, 4)


def attention(x):
    return functional.scaled_dot_product_attention(x, x * 2, x + 1)


def inverted(x):
    order = x.argsort(0)
    return x + torch.empty_like(order).scatter_(0, order, torch.arange(4)[:, None].expand(4, 6))


def source(x):
    return torch.tanh(x * 2)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    compiled = torch.jit.script(source)


STANDARDIZED = ["Mean", "SquaredDifference", "Mean", "AddV2", "Sqrt", "Sub", "RealDiv"]
FUNCTIONS = {
    "add": (lambda x: x + 1, ROWS, ["AddV2"]),
    "reflected": (lambda x: 2 - 1 / x, ROWS, ["RealDiv", "Sub"]),
    "power": (lambda x: x**2, ROWS, ["Pow"]),
    "mean": (lambda x: x.mean(1), ROWS, ["Mean"]),
    "variance": (lambda x: x.var(1), ROWS, ["Mean", "SquaredDifference", "Mean"]),
    "variance of all": (lambda x: x.var(unbiased=False), ROWS, ["Mean", "SquaredDifference", "Mean"]),
    "variance of half a sample": (
        lambda x: torch.var(x, 0, correction=2, keepdim=True),
        ROWS,
        ["Mean", "SquaredDifference", "Mean"],
    ),
    "deviation": (lambda x: x.std((0, 1), True, True), ROWS, ["Mean", "SquaredDifference", "Mean", "Sqrt"]),
    "moments": (
        lambda x: torch.add(*torch.var_mean(x, 1)),
        ROWS,
        ["Mean", "SquaredDifference", "Mean", "Reshape", "AddV2"],
    ),
    "softplus": (functional.softplus, ROWS, ["Softplus"]),
    "steep softplus": (lambda x: functional.softplus(x, 3.0), ROWS, ["Mul", "Softplus", "RealDiv"]),
    "hard sigmoid": (functional.hardsigmoid, ROWS, ["Mul", "AddV2", "Minimum", "Maximum"]),
    "inverse permutation": (inverted, ROWS, ["argsort", "scatter", "AddV2"]),
    "copy": (lambda x: torch.full_like(x, np.nan).copy_(x * 2) + 1, ROWS, ["Mul", "Identity", "AddV2"]),
    "broadcast": (lambda x: torch.broadcast_tensors(x, x[0])[1], ROWS, ["StridedSlice", "BroadcastTo"]),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), ROWS, ["Minimum", "Maximum"]),
    "softmax": (lambda x: torch.softmax(x, 0), ROWS, ["Transpose", "Softmax", "Transpose"]),
    "leaky ReLU": (lambda x: functional.leaky_relu(x, 0.3), ROWS, ["LeakyRelu"]),
    "GELU": (functional.gelu, ROWS, ["RealDiv", "Erf", "AddV2", "Mul", "Mul"]),
    "swish": (functional.silu, ROWS, ["Sigmoid", "Mul"]),
    "padding of a stride": (
        lambda x: functional.conv2d(x, KERNEL, None, 2, 1),
        IMAGES,
        ["Conv2D"],
    ),
    "dilation": (lambda x: functional.conv2d(x, KERNEL, None, 1, "same", 2), IMAGES, ["Conv2D"]),
    "transposed": (
        lambda x: functional.conv_transpose2d(x, KERNEL.transpose(0, 1), None, 2, 1, 1),
        IMAGES,
        ["Conv2DBackpropInput"],
    ),
    "max pooling": (lambda x: functional.max_pool2d(x, 3, 2, 1), IMAGES, ["MaxPool"]),
    "average pooling": (lambda x: functional.avg_pool2d(x, 3, 2, 1), IMAGES, ["AvgPool"]),
    "uncounted padding": (
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        IMAGES,
        ["AvgPool"],
    ),
    "global pooling": (lambda x: functional.adaptive_avg_pool2d(x, 1), IMAGES, ["Mean"]),
    "bilinear": (
        lambda x: functional.interpolate(x, (13, 5), mode="bilinear"),
        IMAGES,
        ["ResizeBilinear"],
    ),
    "corners": (
        lambda x: functional.interpolate(x, (13, 5), mode="bilinear", align_corners=True),
        IMAGES,
        ["ResizeBilinear"],
    ),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2), IMAGES, ["ResizeNearestNeighbor"]),
    "attention": (attention, HEADS, ["Mul", "AddV2", "Transpose", "BatchMatMulV2", "Mul", "Softmax", "BatchMatMulV2"]),
    "causal attention": (
        lambda x: functional.scaled_dot_product_attention(x, x, x + 1, is_causal=True, enable_gqa=False),
        HEADS,
        ["AddV2", "Transpose", "BatchMatMulV2", "Mul", "SelectV2", "Softmax", "BatchMatMulV2"],
    ),
    "attention to nothing": (  # PyTorch returns 0, and a softmax of -inf is NaN
        lambda x: functional.scaled_dot_product_attention(x, x, x + 1, torch.zeros(5, 5, dtype=torch.bool)) + x,
        HEADS,
        ["AddV2", "scaled_dot_product_attention", "AddV2"],
    ),
    "attention of shared heads": (
        lambda x: functional.scaled_dot_product_attention(x, x[:, :1], x[:, 1:], enable_gqa=True),
        HEADS,
        ["StridedSlice", "StridedSlice", "scaled_dot_product_attention"],
    ),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), numbers(2, 12, 4, 4), ["DepthToSpace"]),
    "pixel unshuffle": (lambda x: functional.pixel_unshuffle(x, 2), IMAGES, ["SpaceToDepth"]),
    "local response norm": (lambda x: functional.local_response_norm(x, 3, 0.5, 0.6, 2.0), IMAGES, ["LRN"]),
    "even local response norm": (lambda x: functional.local_response_norm(x, 2), IMAGES, ["local_response_norm"]),
    "normalize": (functional.normalize, ROWS, ["Square", "Sum", "Maximum", "Rsqrt", "Mul"]),
    "instance norm": (functional.instance_norm, IMAGES, STANDARDIZED),
    "group norm": (lambda x: functional.group_norm(x, 3), numbers(2, 6, 4, 4), STANDARDIZED),
    "normalize by another norm": (lambda x: functional.normalize(x, 1.0), ROWS, ["normalize"]),
    "not": (lambda x: torch.where(~(x > 0), x, -x), ROWS, ["Greater", "LogicalNot", "Neg", "SelectV2"]),
    "compiled by torch.jit": (compiled, ROWS, ["Mul", "Tanh"]),
    "opaque": (
        lambda x: torch.linalg.inv(x @ x.T + torch.eye(4)),
        ROWS,
        ["Transpose", "MatMul", "AddV2", "linalg_inv"],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_steps_compute_what_pytorch_computes(name):
    function, inputs, types = FUNCTIONS[name]
    port = traced(Calls(function), inputs)
    trace = port.run()
    found = [op.type for op in trace.ops.values() if op.type not in ("Placeholder", "Const")]
    assert found == types
    ((path, output),) = trace.outputs.items()
    np.testing.assert_allclose(trace.values[output].array, port.outputs_as_written()[path], 1e-4, 1e-5)


def test_an_empty_tensor_has_the_same_numbers_in_each_run(request):
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)  # PyTorch then fills it with NaN
    trace = traced(Calls(lambda x: x + torch.empty_like(x)), ROWS).run()
    (output,) = trace.outputs.values()
    assert np.isfinite(trace.values[output].array).all()


LAYERS = {
    "linear": (partial(nn.Linear, 6, 3), ROWS),
    "layer norm": (partial(nn.LayerNorm, 6), ROWS),
    "batch norm": (partial(nn.BatchNorm2d, 3), IMAGES),
    "group norm": (partial(nn.GroupNorm, 3, 6), numbers(2, 6, 4, 4)),
    "group norm of rows": (partial(nn.GroupNorm, 3, 6), ROWS),
    "instance norm": (partial(nn.InstanceNorm2d, 3, affine=True), IMAGES),
    "instance norm of sequences": (partial(nn.InstanceNorm1d, 5), numbers(2, 5, 4)),
    "LSTM": (partial(nn.LSTM, 4, 3, 2, batch_first=True, bidirectional=True), numbers(2, 5, 4)),
    "GRU": (partial(nn.GRU, 4, 3, batch_first=True), numbers(2, 5, 4)),
    "attention": (lambda: Calls(nn.MultiheadAttention(4, 2, batch_first=True)), numbers(2, 5, 4)),
    "depthwise": (partial(nn.Conv2d, 3, 6, 3, groups=3), IMAGES),
    "encoder": (partial(nn.TransformerEncoderLayer, 4, 2, 8, 0.0, batch_first=True), numbers(2, 5, 4)),
}


class Attends(nn.Module):
    def __init__(self, need_weights, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True, **options)
        self.need_weights = need_weights

    def forward(self, x, y):
        earlier = torch.tril(torch.ones(x.shape[1], y.shape[1], dtype=torch.bool))
        return self.attention(x, y, y, attn_mask=~earlier, need_weights=self.need_weights)[0]


ATTENTION = {"plain": {}, "of two widths": {"kdim": 6, "vdim": 6}, "with biases": {"add_bias_kv": True}}
ATTENTION["with a zero"] = {"add_zero_attn": True}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_that_drops_shares_is_traced_alike_in_each_run(name, need_weights):
    options = ATTENTION[name]
    with DeterministicRandomTestTool().scope():
        module = Attends(need_weights, **options).train()
        port = traced(module, numbers(2, 5, 4), numbers(2, 5, options.get("kdim", 4)))
        runs = port.run(), port.run(Substitution())
        ((path, output),) = runs[0].outputs.items()
        expected = port.outputs_as_written()[path]
    for trace in runs:
        assert "SelectV2" in {op.type for op in trace.ops.values()}  # of the mask
        np.testing.assert_allclose(trace.values[output].array, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_traced_in_steps(name, training):
    make, inputs = LAYERS[name]
    layer = make().train(training)
    module = Calls(lambda x: layer.function(x, x, x)[0]) if name == "attention" else layer
    port = traced(module, inputs)
    assert not port.whole
    expected = port.outputs_as_written()
    trace = port.run()
    for path, output in trace.outputs.items():
        np.testing.assert_allclose(trace.values[output].array, expected[path], 1e-4, 1e-5)


class InPlace(nn.Module):
    def forward(self, x):
        hidden = torch.zeros(4, 6)
        hidden[:, :3] = x[:, :3] * 3
        hidden += 1
        view = hidden.view(-1)
        view.mul_(2)
        functional.relu(hidden, inplace=True)
        return hidden.add(x)


def test_what_changes_in_place_has_the_values_of_its_time():
    port = traced(InPlace(), ROWS)
    trace = port.run()
    (output,) = trace.outputs.values()
    wide = torch.tensor(ROWS, dtype=torch.float64)
    np.testing.assert_allclose(trace.values[output].array, InPlace()(wide).numpy(), 1e-6)
    (three,) = (op for op in trace.ops.values() if op.attributes.get("input 1") == "3.0")
    np.testing.assert_allclose(trace.values[three.name].array, wide[:, :3].numpy() * 3, 1e-6)
    (relu,) = (op for op in trace.ops.values() if op.type == "Relu")
    taken = trace.values[relu.inputs[0]].array  # which a view has changed
    np.testing.assert_array_equal(trace.values[relu.name].array, np.maximum(taken, 0))
    assert (taken < 0).any()


def test_a_value_that_is_substituted_reaches_what_follows_also_in_place():
    port = traced(InPlace(), ROWS)
    (three,) = (op for op in port.ops.values() if op.attributes.get("input 1") == "3.0")
    trace = port.run(Substitution({(three.name, 1): np.float64(-5.0)}))
    (output,) = trace.outputs.values()
    wide = torch.tensor(ROWS, dtype=torch.float64)
    hidden = torch.cat([wide[:, :3] * -5, torch.zeros(4, 3)], 1)
    expected = torch.relu((hidden + 1) * 2) + wide
    np.testing.assert_allclose(trace.values[output].array, expected.numpy(), 1e-6)


def test_an_operand_of_an_op_in_place_is_substituted():
    port = traced(InPlace(), ROWS)
    (one,) = (op for op in port.ops.values() if op.attributes.get("input 1") == "1.0")
    trace = port.run(Substitution({(one.name, 1): np.float64(-7.0)}))
    (output,) = trace.outputs.values()
    wide = torch.tensor(ROWS, dtype=torch.float64)
    hidden = torch.cat([wide[:, :3] * 3, torch.zeros(4, 3)], 1)
    np.testing.assert_allclose(trace.values[output].array, (torch.relu((hidden - 7) * 2) + wide).numpy(), 1e-6)


def test_a_padding_that_is_substituted_is_that_of_tensorflow():
    port = traced(Calls(lambda x: functional.conv2d(x, KERNEL, None, 2, 1)), IMAGES)
    (conv,) = (op for op in port.ops.values() if op.type == "Conv2D")
    assert conv.attributes["attribute padding"] == "(1, 1) at both ends"
    trace = port.run(Substitution(attributes={conv.name: {"padding": "SAME"}}))
    kernel = KERNEL.numpy().transpose(2, 3, 1, 0)
    expected = tf.nn.conv2d(IMAGES.transpose(0, 2, 3, 1), kernel, 2, "SAME").numpy().transpose(0, 3, 1, 2)
    np.testing.assert_allclose(trace.values[conv.name].array, expected, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("align_corners", "half_pixel_centers"),
    [(False, False), (True, False), (False, True)],  # TensorFlow refuses both
)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_a_resize_that_is_substituted_is_that_of_tensorflow(mode, align_corners, half_pixel_centers):
    port = traced(Calls(lambda x: functional.interpolate(x, (13, 5), mode=mode)), IMAGES)
    (resize,) = (op for op in port.ops.values() if op.type.startswith("Resize"))
    flags = {"align_corners": align_corners, "half_pixel_centers": half_pixel_centers}
    trace = port.run(Substitution(attributes={resize.name: {name: str(flag) for name, flag in flags.items()}}))
    function = {"bilinear": tf.raw_ops.ResizeBilinear, "nearest": tf.raw_ops.ResizeNearestNeighbor}[mode]
    expected = function(images=IMAGES.transpose(0, 2, 3, 1), size=(13, 5), **flags).numpy()
    np.testing.assert_allclose(trace.values[resize.name].array, expected.transpose(0, 3, 1, 2), 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda x: functional.pixel_shuffle(x, 2), numbers(2, 12, 4, 4), lambda x: tf.nn.depth_to_space(x, 2)),
        (lambda x: functional.pixel_unshuffle(x, 2), IMAGES, lambda x: tf.nn.space_to_depth(x, 2)),
    ],
    ids=["shuffle", "unshuffle"],
)
def test_an_order_of_channels_that_is_substituted_is_that_of_tensorflow(function, inputs, expected):
    port = traced(Calls(function), inputs)
    (op,) = (op for op in port.ops.values() if "attribute order of channels" in op.attributes)
    trace = port.run(Substitution(attributes={op.name: {"order of channels": "row, column, channel"}}))
    of_tensorflow = expected(inputs.transpose(0, 2, 3, 1)).numpy()
    np.testing.assert_array_equal(trace.values[op.name].array, of_tensorflow.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    "given", [{"depth_radius": 2}, {"alpha": 0.25}, {"beta": 0.6}, {"bias": 3.0}], ids=lambda given: next(iter(given))
)
def test_a_number_of_a_response_normalization_that_is_substituted_is_that_of_tensorflow(given):
    port = traced(Calls(lambda x: functional.local_response_norm(x, 3, 0.9, 0.5, 2.0)), IMAGES)
    (op,) = (op for op in port.ops.values() if op.type == "LRN")
    trace = port.run(Substitution(attributes={op.name: {name: str(value) for name, value in given.items()}}))
    arguments = {"depth_radius": 1, "alpha": 0.3, "beta": 0.5, "bias": 2.0, **given}
    expected = tf.nn.local_response_normalization(IMAGES.transpose(0, 2, 3, 1), **arguments).numpy()
    np.testing.assert_allclose(trace.values[op.name].array, expected.transpose(0, 3, 1, 2), 1e-5, 1e-6)


def test_a_resize_to_nearest_pixels_keeps_float64():
    port = traced(Calls(lambda x: functional.interpolate(x / 3, scale_factor=2)), IMAGES)
    values = port.run().values
    assert np.isin(values["interpolate"].elements, values["div"].elements).all()


def test_a_cast_to_half_precision_is_no_op():
    port = traced(Calls(lambda x: x.half().bfloat16().float() + 1), ROWS)
    assert [op.type for op in port.ops.values()] == ["Placeholder", "Const", "AddV2"]
    assert port.computes_narrowly


def test_a_change_by_way_of_a_view_has_its_line():
    port = traced(InPlace(), ROWS)
    lines = [op.line for op in port.ops.values() if op.name.endswith("/changed")]
    assert lines
    assert all("test_torch_functions.py" in line for line in lines)


def test_images_and_kernels_are_shown_as_tf1_has_them():
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    trace = traced(layer, IMAGES).run()
    assert trace.values["0/conv2d"].shape == (2, 6, 6, 4)
    assert trace.values["1/relu"].shape == (2, 6, 6, 4)
    assert trace.values["0/weight"].shape == (3, 3, 3, 4)
    assert trace.values["2/flatten"].shape == (2, 144)


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    before = [each.clone() for each in module.state_dict().values()]
    dropout = functional.dropout
    traced(module.eval(), ROWS)
    assert all(torch.equal(*pair) for pair in zip(before, module.state_dict().values(), strict=True))
    assert {each.dtype for each in module.parameters()} == {torch.float32}
    assert functional.dropout is dropout


class Raises(nn.Module):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise ValueError("in float64")
        return x * 2


def test_a_module_that_raises_leaves_nothing_behind():
    dropout = functional.dropout
    with pytest.raises(ValueError, match="in float64"):
        traced(Raises(), ROWS)
    assert functional.dropout is dropout


class InInferenceMode(nn.Module):
    def forward(self, x):
        with torch.inference_mode():
            return torch.linalg.inv(x @ x.T + torch.eye(4)) + 1


def test_a_module_in_inference_mode_is_traced():
    port = traced(InInferenceMode(), ROWS)
    ((path, output),) = port.outputs.items()
    np.testing.assert_allclose(port.run().values[output].array, port.outputs_as_written()[path], 1e-3, 1e-4)


def test_one_of_two_equal_inputs_of_a_function_is_substituted():
    def function(x):
        twice = x * 2
        return torch.hypot(twice, twice)

    port = traced(Calls(function), ROWS)
    (name,) = (op.name for op in port.ops.values() if op.type == "hypot")
    given = np.full(ROWS.shape, 3.0)
    found = port.run(Substitution({(name, 0): given})).values[name].array
    np.testing.assert_allclose(found, np.hypot(3.0, ROWS.astype(np.float64) * 2), 1e-6)
