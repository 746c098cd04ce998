"""Moving averages are held to what each step adds to them."""

import keras
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import batch_norm, dense, numbers


class Port(keras.Model):
    """Batch normalization whose moving variance gets ``share`` of the variance of each batch."""

    def __init__(self, momentum, share):
        super().__init__()
        self.a, self.b = keras.layers.Dense(4), keras.layers.Dense(2)
        self.gamma = self.add_weight(shape=(4,), initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=(4,), initializer="zeros", name="beta")
        self.mean = self.add_weight(shape=(4,), initializer="zeros", name="mean", trainable=False)
        self.var = self.add_weight(shape=(4,), initializer="ones", name="var", trainable=False)
        self.momentum, self.share = momentum, share

    def call(self, x, training=False):
        x = self.a(x)
        mean, variance = keras.ops.moments(x, 0) if training else (self.mean.value, self.var.value)
        if training:
            self.mean.assign(self.mean * self.momentum + mean * (1 - self.momentum))
            self.var.assign(self.var * self.momentum + self.share * variance * (1 - self.momentum))
        return self.b(tf.nn.batch_normalization(x, mean, variance, self.beta.value, self.gamma.value, 1e-3))


def validated(size, decay, momentum, share=1.0):
    def tf1(x, training):
        return dense(batch_norm(dense(x, 4, "a"), training, "bn", decay=decay), 2, "b")

    train = detrand.TrainStep(
        labels=numbers(8, 2, seed=1),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.01),
        port_optimizer=lambda: keras.optimizers.SGD(0.01),
        steps=3,
    )
    names = {f"bn/{name}": f"port/{other}" for name, other in (("scale", "gamma"), ("offset", "beta"))}
    names |= {f"bn/{name}": f"port/{name}" for name in ("mean", "var")}
    names |= {"a/w": "port/dense/kernel", "a/b": "port/dense/bias"}
    names |= {"b/w": "port/dense_1/kernel", "b/b": "port/dense_1/bias"}
    migration = detrand.Migration(
        tf1=tf1, port=lambda: Port(momentum, share), inputs=size * numbers(8, 3), name_map=names, train=train
    )
    return detrand.validate(migration, checks=["training-steps"]).checks[0]


@pytest.mark.slow_except("0.99")
@pytest.mark.parametrize("decay", [0.9, 0.99, 0.999])
def test_the_same_momentum_passes(decay):
    assert validated(1e-3, decay, decay).ok


def test_another_momentum_fails():
    check = validated(1e-3, 0.999, 0.99)
    assert not check.ok
    assert "momentum differs: 0.999 (TF1), 0.99 (port)" in check.causes


def test_a_variance_that_is_slightly_too_small_fails():
    check = validated(1.0, 0.999, 0.999, share=0.9975)
    assert not check.ok
    assert "moving_average_updates" in check.summary
