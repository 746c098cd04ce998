"""The lines that make layers and optimizers."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, TrainStep, validate
from detrand.validation.programs.layer_sites import LayerSites

v1 = tf.compat.v1


def line_here(offset=0):
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno + offset}"


def subclass_of(base):
    class Own(base):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)

    class Further(Own):
        def __init__(self, *arguments):
            super().__init__(*arguments)

    return Further


@pytest.mark.parametrize(
    ("base", "arguments"),
    [
        (keras.optimizers.SGD, (0.1,)),
        (tf_keras.optimizers.SGD, (0.1,)),
        (v1.train.GradientDescentOptimizer, (0.1,)),
        (v1.train.ExponentialMovingAverage, (0.9,)),
        (keras.layers.Dense, (3,)),
        (tf_keras.layers.Dense, (3,)),
    ],
)
def test_the_line_is_that_of_the_call_and_not_of_a_constructor(base, arguments):
    sites, kind = LayerSites(), subclass_of(base)
    with sites.watched():
        made, line = kind(*arguments), line_here()
    assert sites.line_of(made).endswith(line)
    assert sites.made(base) == [made]


def test_a_port_that_the_validation_makes_has_the_line_of_its_class():
    """The line that starts the validation is no line of the port."""

    def tf1(inputs, training):
        return inputs * v1.get_variable("factor", [3])

    train = TrainStep(
        labels=np.ones((2, 3), np.float32),
        tf1_loss=v1.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_train_op=lambda loss: v1.train.GradientDescentOptimizer(0.1).minimize(loss),
        port_optimizer=lambda: keras.optimizers.SGD(0.1),
        steps=2,
    )

    class Stopped(keras.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), name="factor")

        def call(self, inputs, training=False):
            return inputs * tf.stop_gradient(self.factor)

    call = inspect.getsourcelines(Stopped.call)[1]
    migration = Migration(tf1=tf1, port=Stopped, inputs=np.ones((2, 3), np.float32), train=train)
    places = [finding.port.line for finding in validate(migration).findings if finding.port]
    assert places and all(place.endswith(f"test_layer_sites.py:{call}") for place in places), places
