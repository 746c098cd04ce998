"""The pairing of variables by names, shapes and order: real networks of tf_slim and keras.applications."""

import keras
import pytest
import tensorflow as tf
import tf_slim as slim
from tf_slim.nets import inception_v3, resnet_v1, resnet_v2, vgg

import detrand
from detrand import suggest_name_map, variables_of
from detrand.variables.pairing import pair_in_order
from detrand.variables.spec import VariableSpec

ROLES = {"weights": "kernel", "biases": "bias"}
NORMALIZATION = ("gamma", "beta", "moving_mean", "moving_variance")


def tf1_variables(network, scope, size):
    with detrand.enable_v1_layers(), tf.Graph().as_default() as graph, slim.arg_scope(scope):
        network(tf.compat.v1.placeholder(tf.float32, (1, size, size, 3)), 1000, is_training=False)
        return variables_of(graph)


def resnet_name(tf1_name):
    """Return the name in keras.applications' ResNet, by the rule with which it names its layers."""
    parts = tf1_name.split("/")
    weight = ROLES.get(parts[-1], parts[-1])
    kind = "bn" if weight in NORMALIZATION else "conv"
    if parts[1].startswith("block"):
        block, unit, layer = int(parts[1][5:]) + 1, parts[2].removeprefix("unit_"), parts[4]
        if layer == "preact":
            return f"conv{block}_block{unit}_preact_bn/{weight}"
        number = 0 if layer == "shortcut" else layer.removeprefix("conv")
        return f"conv{block}_block{unit}_{number}_{kind}/{weight}"
    return {"conv1": f"conv1_{kind}", "postnorm": "post_bn", "logits": "predictions"}[parts[1]] + f"/{weight}"


def vgg_name(tf1_name):
    """Return the name in keras.applications' VGG16."""
    layer, weight = tf1_name.split("/")[-2:]
    if layer.startswith("conv"):
        block, number = layer.removeprefix("conv").split("_")
        return f"block{block}_conv{number}/{ROLES[weight]}"
    return {"fc6": "fc1", "fc7": "fc2", "fc8": "predictions"}[layer] + f"/{ROLES[weight]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "scope", "port", "size", "rule"),
    [
        (resnet_v1.resnet_v1_50, resnet_v1.resnet_arg_scope, keras.applications.ResNet50, 64, resnet_name),
        (resnet_v2.resnet_v2_50, resnet_v2.resnet_arg_scope, keras.applications.ResNet50V2, 64, resnet_name),
        (vgg.vgg_16, vgg.vgg_arg_scope, keras.applications.VGG16, 224, vgg_name),
    ],
    ids=["ResNet50", "ResNet50V2", "VGG16"],
)
def test_every_variable_of_tf_slim_is_paired_with_keras_applications(network, scope, port, size, rule):
    tf1 = tf1_variables(network, scope(), size)
    proposal = suggest_name_map(tf1, port(weights=None))
    assert {name: proposal.name_map.get(name) for name in tf1} == {name: rule(name) for name in tf1}
    assert not proposal.unsure.keys() & tf1.keys()


@pytest.mark.slow
def test_inception_is_paired_in_the_order_in_which_keras_counts_its_layers():
    keras.backend.clear_session()  # Keras counts the layers of the whole process
    tf1 = tf1_variables(inception_v3.inception_v3, inception_v3.inception_v3_arg_scope(), 299)
    port = variables_of(keras.applications.InceptionV3(weights=None))
    proposal = suggest_name_map(tf1, port)
    of_trunk = [name for name in tf1 if name.startswith("InceptionV3/Conv2d") and name.endswith("weights")]
    numbered = ["conv2d/kernel", *(f"conv2d_{number}/kernel" for number in range(1, len(of_trunk)))]
    assert [proposal.name_map[name] for name in of_trunk] == numbered


def test_a_name_without_a_role_is_paired_with_what_is_left_of_a_role():
    vector = VariableSpec((6,), "float32", True)
    tf1 = dict.fromkeys(("in/bias", "highway/b", "highway/b_T"), vector)
    port = dict.fromkeys(("first.bias", "plain.bias", "gate.bias"), vector)
    assert pair_in_order(tf1, port, by_words=False).names == dict(zip(tf1, port, strict=True))
