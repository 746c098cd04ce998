"""The arguments of ``get_variable`` in a decorated method, for both decorators."""

import numpy as np
import pytest
import tensorflow

from tests.support.shim_kits import every_kit, every_layer, halved
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    X,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


def one_variable(kit, **options):
    made = []
    owner = kit.owner(lambda self, x, training: made.append(tf.get_variable("w", **options)))
    with tf.device("/cpu:0"):
        owner(X) if kit.base is tensorflow.Module else owner.call(X)
    return owner, made[0]


@pytest.mark.parametrize(
    ("options", "attribute", "expected"),
    [
        ({"trainable": False}, "trainable", False),
        ({"dtype": tf.float16}, "dtype", tf.float16),
        ({"constraint": halved}, "constraint", halved),
        ({"synchronization": tensorflow.VariableSynchronization.ON_READ}, "trainable", False),
        (
            {"synchronization": tensorflow.VariableSynchronization.ON_WRITE},
            "synchronization",
            tensorflow.VariableSynchronization.ON_WRITE,
        ),
        ({"aggregation": tf.VariableAggregation.MEAN}, "aggregation", tf.VariableAggregation.MEAN),
        ({"use_resource": False}, "trainable", True),
        ({"caching_device": "/cpu:0"}, "device", "/job:localhost/replica:0/task:0/device:CPU:0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@every_kit
def test_a_variable_has_the_properties_that_are_asked_for(kit, options, attribute, expected):
    owner, variable = one_variable(kit, shape=[3], **options)
    assert getattr(variable, attribute) == expected
    assert len(owner.trainable_variables) == variable.trainable
    assert isinstance(variable, tensorflow.Variable)


@every_layer
def test_constraints_hold_after_each_update(kit):
    layer = kit.owner(lambda self, x, training: x * tf.get_variable("w", [3], constraint=clipped))
    model = kit.keras.Sequential([layer])
    model.compile(kit.keras.optimizers.SGD(1e-4), "mse")
    model(X)
    layer.weights[0].assign([1.0, 2.0, 0.25])
    model.fit(X, X, verbose=0)
    np.testing.assert_allclose(layer.weights[0].numpy(), [0.5, 0.5, 0.25], atol=1e-3)


def clipped(value):
    return tf.clip_by_value(value, 0.0, 0.5)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"initializer": 4, "dtype": tf.int32}, 4),
        ({"initializer": np.array([1, 2, 3]), "dtype": tf.int64}, [1, 2, 3]),
        ({"initializer": lambda: [2]}, [2]),
        ({"initializer": lambda x=True: [2]}, [2]),
        ({"shape": [2], "initializer": tf.zeros_initializer}, [0, 0]),
        ({"shape": [2], "dtype": tf.int16}, [0, 0]),
        ({"shape": [2], "dtype": tf.bool}, [False, False]),
        ({"shape": [2], "dtype": tf.string}, [b"", b""]),
        ({"initializer": lambda: tf.ones([2]), "validate_shape": False}, [1, 1]),
    ],
    ids=["number", "array", "no_arguments", "optional_arguments", "class", "int", "bool", "string", "any_shape"],
)
@every_kit
def test_a_variable_starts_from_what_is_given_or_from_the_default_of_its_type(kit, options, value):
    _, variable = one_variable(kit, **options)
    np.testing.assert_array_equal(variable.numpy(), value)


REFUSED = {
    "no_initializer": ({"shape": [2], "dtype": tf.complex64}, "An initializer for variable w of .*complex64"),
    "shape_and_value": ({"shape": [1], "initializer": tf.constant(0.1)}, "If initializer is a constant, do not spec"),
    "two_types": ({"initializer": tf.constant(1), "dtype": tf.float64}, "don't match|conversion requested dtype"),
    "no_getter": ({"shape": [2], "custom_getter": 3}, "custom_getter which is not callable: 3"),
    "no_synchronization": ({"shape": [2], "synchronization": "x"}, "Invalid variable synchronization mode: x"),
    "no_aggregation": ({"shape": [2], "aggregation": "x"}, "Invalid variable aggregation mode: x"),
    "dict": ({"initializer": {}}, "unsupported type"),
}


@pytest.mark.parametrize("name", REFUSED)
@every_kit
def test_what_is_no_variable_is_refused(kit, name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        one_variable(kit, **options)


@every_kit
def test_getters_and_creators_get_what_was_asked_for(kit):
    asked = {
        "synchronization": tensorflow.VariableSynchronization.ON_WRITE,
        "aggregation": tf.VariableAggregation.MEAN,
        "trainable": True,
    }
    seen = []

    def getter(getter, name, *args, **kwargs):
        seen.append({key: kwargs[key] for key in asked})
        return getter(name, *args, **kwargs)

    def creator(next_creator, **kwargs):
        seen.append({key: kwargs[key] for key in asked})
        return next_creator(**kwargs)

    with tensorflow.variable_creator_scope(creator):
        one_variable(kit, shape=[2], custom_getter=getter, **asked)
    assert seen == [asked, asked]
