"""The variables of a torch.nn.Module: names, flags, values, and the forms of kernels, against computations of TF1."""

import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import ArgumentError, VariableSpec, conv_to_torch, dense_to_torch
from detrand.variables.comparison import compare_variables
from detrand.variables.forms import rearranged_form

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
v1 = tf.compat.v1


def drawn(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def module_of(**modules):
    return nn.ModuleDict(modules)


def loaded(module, name_map, **arrays):
    """Load TF1's variables into a module, through a checkpoint."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name, array in arrays.items():
            v1.get_variable(name.replace("__", "/"), initializer=array)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, name_map.pop("path"))
    detrand.load_tf1_checkpoint(module, path, name_map or None)
    return module


def channels_first(images):
    return torch.from_numpy(np.moveaxis(images, -1, 1).copy())


def channels_last(outputs):
    return np.moveaxis(outputs.detach().numpy(), 1, -1)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.ckpt")


def test_names_and_flags_are_those_of_the_state_dict():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    module[0].bias.requires_grad_(False)
    assert {name: (spec.shape, spec.trainable) for name, spec in detrand.variables_of(module).items()} == {
        "0.weight": ((8, 3, 3, 3), True),
        "0.bias": ((8,), False),
        "1.weight": ((8,), True),
        "1.bias": ((8,), True),
        "1.running_mean": ((8,), False),
        "1.running_var": ((8,), False),
    }


def test_a_buffer_that_is_not_saved_is_no_variable():
    module = nn.Linear(2, 3, bias=False)
    module.register_buffer("mask", torch.ones(3), persistent=False)
    assert list(detrand.variables_of(module)) == ["weight"]


def test_a_tensor_of_two_modules_is_one_variable():
    module = module_of(encoder=nn.Embedding(5, 3), decoder=nn.Linear(3, 5, bias=False))
    module["decoder"].weight = module["encoder"].weight
    assert list(detrand.variables_of(module)) == ["encoder.weight"]


def test_a_tensor_that_takes_the_place_of_another_is_the_same_variable():
    module = nn.BatchNorm1d(2)
    (before,) = (each for name, each in detrand.variables.sources.named_variables(module).items() if "mean" in name)
    module.running_mean = torch.ones(2)
    np.testing.assert_array_equal(before.numpy(), [1, 1])


def test_reset_gives_every_variable_the_value():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    detrand.reset_variables(module, 0.5)
    assert all((tensor == 0.5).all() for name, tensor in module.state_dict().items() if "num_batches" not in name)
    assert module[0].weight.requires_grad


@pytest.mark.parametrize(
    ("layer", "kernel", "compute"),
    [
        pytest.param(
            lambda: nn.Conv2d(3, 4, (3, 2), bias=False),
            (3, 2, 3, 4),
            lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "VALID"),
            id="convolution",
        ),
        pytest.param(
            lambda: nn.Conv2d(3, 6, 3, groups=3, bias=False),
            (3, 3, 3, 2),
            lambda x, kernel: tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "VALID"),
            id="depthwise",
        ),
        pytest.param(
            lambda: nn.ConvTranspose2d(3, 4, (3, 2), stride=2, bias=False),
            (3, 2, 4, 3),
            lambda x, kernel: tf.nn.conv2d_transpose(x, kernel, (2, 13, 12, 4), 2, "VALID"),
            id="transposed",
        ),
    ],
)
def test_a_kernel_is_loaded_in_the_form_of_pytorch(layer, kernel, compute, path):
    x, kernel = drawn(2, 6, 6, 3), drawn(*kernel)
    module = loaded(module_of(layer=layer()), {"path": path, "layer/kernel": "layer.weight"}, layer__kernel=kernel)
    outputs = channels_last(module["layer"](channels_first(x)))
    np.testing.assert_allclose(outputs, compute(x, kernel), rtol=1e-5, atol=1e-5)


def test_a_square_kernel_of_a_dense_layer_is_transposed(path):
    x, kernel = drawn(2, 4), drawn(4, 4, 1)[..., 0]
    name_map = {"path": path, "dense/kernel": "dense.weight"}
    module = loaded(module_of(dense=nn.Linear(4, 4, bias=False)), name_map, dense__kernel=kernel)
    outputs = module["dense"](torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(outputs, x @ kernel, rtol=1e-5, atol=1e-6)


def test_a_dense_layer_after_a_flattened_image_has_an_entry(path):
    images, kernel = drawn(2, 3, 2, 5), drawn(30, 4)
    entry = dense_to_torch("dense.weight", flattened=(3, 2, 5))
    module = loaded(
        module_of(dense=nn.Linear(30, 4, bias=False)), {"path": path, "dense/kernel": entry}, dense__kernel=kernel
    )
    outputs = module["dense"](channels_first(images).flatten(1)).detach().numpy()
    np.testing.assert_allclose(outputs, images.reshape(2, 30) @ kernel, rtol=1e-5, atol=1e-5)


def test_entries_are_for_parameters_that_no_layer_has():
    kernel, module = drawn(3, 2, 4, 5), nn.Module()
    module.kernel = nn.Parameter(torch.zeros(5, 4, 3, 2))
    form = rearranged_form(conv_to_torch("kernel"), (("conv/kernel", kernel.shape),))
    found = form.to_port({"conv/kernel": kernel}, values=True)["kernel"]
    np.testing.assert_array_equal(found, kernel.transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(form.to_tf1({"kernel": found}, values=True)["conv/kernel"], kernel)
    tf1 = {"conv/kernel": VariableSpec(kernel.shape, "float32", True)}
    assert compare_variables(tf1, module, {"conv/kernel": conv_to_torch("kernel")}).ok
    assert not compare_variables(tf1, module, {"conv/kernel": "kernel"}).ok


def test_the_entry_of_a_depthwise_kernel_is_the_form_of_the_layer():
    kernel, layer = drawn(3, 2, 4, 2), nn.Conv2d(4, 8, (3, 2), groups=4, bias=False)
    of_entry = rearranged_form(conv_to_torch("weight", depthwise=True), (("kernel", kernel.shape),))
    comparison = compare_variables({"kernel": VariableSpec(kernel.shape, "float32", True)}, layer, {"kernel": "weight"})
    assert comparison.ok, comparison
    (variable,) = detrand.variables.sources.named_variables(layer).values()
    variable.assign(of_entry.to_port({"kernel": kernel}, values=True)["weight"])
    np.testing.assert_array_equal(variable.numpy_in_tf1(), kernel)


def test_a_dense_entry_without_an_image_transposes():
    form = rearranged_form(dense_to_torch("w"), (("kernel", (3, 2)),))
    np.testing.assert_array_equal(
        form.to_port({"kernel": np.arange(6).reshape(3, 2)}, values=True)["w"], np.arange(6).reshape(3, 2).T
    )


@pytest.mark.parametrize("flattened", [(5,), (3, 0), "77", 7])
def test_a_flattened_shape_that_is_none_is_refused(flattened):
    with pytest.raises(ArgumentError, match=r"flattened must be the shape of an image in TF1, its channels last"):
        dense_to_torch("fc.weight", flattened)


def test_names_are_proposed_by_roles_and_shapes_in_tf1():
    tf1 = {
        "stem/weights": VariableSpec((3, 3, 3, 8), "float32", True),
        "stem/BatchNorm/beta": VariableSpec((8,), "float32", True),
        "stem/BatchNorm/moving_mean": VariableSpec((8,), "float32", False),
        "stem/BatchNorm/moving_variance": VariableSpec((8,), "float32", False),
        "logits/weights": VariableSpec((8, 8), "float32", True),
    }
    module = module_of(conv=nn.Conv2d(3, 8, 3, bias=False), bn=nn.BatchNorm2d(8), fc=nn.Linear(8, 8, bias=False))
    module["bn"].register_parameter("weight", None)
    found = detrand.suggest_name_map(tf1, module)
    assert found.name_map == {
        "stem/weights": "conv.weight",
        "stem/BatchNorm/beta": "bn.bias",
        "stem/BatchNorm/moving_mean": "bn.running_mean",
        "stem/BatchNorm/moving_variance": "bn.running_var",
        "logits/weights": "fc.weight",
    }
    assert not found.unsure
    assert compare_variables(tf1, module, found.name_map).ok


def test_a_checkpoint_is_saved_in_the_form_of_tf1(path):
    module = module_of(conv=nn.Conv2d(2, 4, 3), fc=nn.Linear(5, 5))
    saved = tf.train.load_checkpoint(detrand.save_tf1_checkpoint(module, path, {"dense/kernel": "fc.weight"}))
    weights = {name: tensor.detach().numpy() for name, tensor in module.named_parameters()}
    np.testing.assert_array_equal(saved.get_tensor("conv.weight"), weights["conv.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(saved.get_tensor("dense/kernel"), weights["fc.weight"].T)
    np.testing.assert_array_equal(saved.get_tensor("fc.bias"), weights["fc.bias"])
