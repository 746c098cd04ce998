"""Optimizers, learning rates and moving averages."""

import keras
import tensorflow.compat.v1 as tf
import tf_keras
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import batch_norm, conv, dense, integers, numbers, old_layers, zeros
from tests.faults.triples import descent, trained

schedules = keras.optimizers.schedules


def step():
    return tf.train.get_or_create_global_step()


def fit(tf1_optimizer, port_optimizer):
    """Return a migration of a classifier that is trained with these optimizers."""

    def tf1(x, training):
        return dense(dense(x, 6, "hidden", tf.nn.relu), 3, "logits")

    def port():
        return keras.Sequential([layers.Dense(6, "relu"), layers.Dense(3)])

    return trained(
        tf1,
        port,
        numbers(6, 4),
        integers(3, 6),
        tf.losses.sparse_softmax_cross_entropy,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf1_optimizer,
        port_optimizer,
    )


def fit_legacy(tf1_optimizer, port_optimizer):
    """Return a migration of a regression to tf_keras, trained with these optimizers."""

    @old_layers
    def tf1(x, training):
        x = tf.layers.dense(x, 6, activation=tf.nn.tanh, name="hidden")
        return tf.layers.dense(x, 2, name="out")

    def port():
        return tf_keras.Sequential([tf_keras.layers.Dense(6, activation="tanh"), tf_keras.layers.Dense(2)])

    return trained(
        tf1,
        port,
        numbers(6, 4),
        numbers(6, 2, seed=1),
        tf.losses.mean_squared_error,
        tf_keras.losses.MeanSquaredError(),
        tf1_optimizer,
        port_optimizer,
    )


@case("optimizer", "optimizer|adam", "epsilon")
def default_epsilon_of_adam(fault):
    def port_optimizer():
        return keras.optimizers.Adam(0.01, epsilon=1e-7 if fault else 1e-8)  # FAULT

    return fit(lambda: tf.train.AdamOptimizer(0.01), port_optimizer)


@case("optimizer", "optimizer|adam", "beta.?2")
def beta_2_of_a_transformer(fault):
    def port_optimizer():
        return keras.optimizers.Adam(0.01, beta_2=0.999 if fault else 0.98, epsilon=1e-9)  # FAULT

    return fit(lambda: tf.train.AdamOptimizer(0.01, beta2=0.98, epsilon=1e-9), port_optimizer)


@case("optimizer", "optimizer|momentum|sgd", r"momentum.*0\.9|momentum differs")
def momentum_forgotten(fault):
    def port_optimizer():
        return keras.optimizers.SGD(0.05, momentum=0.0 if fault else 0.9)  # FAULT

    return fit(lambda: tf.train.MomentumOptimizer(0.05, 0.9), port_optimizer)


@case("optimizer", "optimizer|nesterov|sgd", "nesterov")
def nesterov_forgotten(fault):
    def port_optimizer():
        return tf_keras.optimizers.legacy.SGD(0.05, momentum=0.9, nesterov=not fault)  # FAULT

    return fit_legacy(lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True), port_optimizer)


@case("rate", "rate|optimizer", "learning.?rate")
def learning_rate_ten_times_smaller(fault):
    def port_optimizer():
        return tf_keras.optimizers.Adam(0.001 if fault else 0.01, epsilon=1e-8)  # FAULT

    return fit_legacy(lambda: tf.train.AdamOptimizer(0.01), port_optimizer)


@case("rate", "rate|optimizer|schedule|decay", "staircase|learning.?rate|schedule")
def decay_without_stairs(fault):
    def tf1_optimizer():
        rate = tf.train.exponential_decay(0.1, step(), 3, 0.5, staircase=True)
        return tf.train.GradientDescentOptimizer(rate)

    def port_optimizer():
        rate = schedules.ExponentialDecay(0.1, 3, 0.5, staircase=not fault)  # FAULT
        return keras.optimizers.SGD(rate)

    return fit(tf1_optimizer, port_optimizer)


@case("rate", "rate|optimizer|schedule|warm", "learning.?rate|schedule")
def warmup_that_starts_at_one(fault):
    def tf1_optimizer():
        count = tf.cast(step(), tf.float32)
        rate = tf.minimum(count / 10.0, 1.0) * 0.01
        return tf.train.AdamOptimizer(rate)

    class Warmup(schedules.LearningRateSchedule):
        def __call__(self, count):
            count = ops.cast(count, "float32")
            return ops.minimum((count + 1.0 if fault else count) / 10.0, 1.0) * 0.01  # FAULT

        def get_config(self):
            return {}

    return fit(tf1_optimizer, lambda: keras.optimizers.Adam(Warmup(), epsilon=1e-8))


@case("rate", "rate|optimizer|schedule|piecewise|boundar", "learning.?rate|schedule|boundar")
def boundary_one_step_early(fault):
    def tf1_optimizer():
        rate = tf.train.piecewise_constant(tf.cast(step(), tf.int32), [1, 2], [0.1, 0.05, 0.01])
        return tf.train.MomentumOptimizer(rate, 0.0)

    def port_optimizer():
        boundaries = [0, 2] if fault else [1, 2]
        return keras.optimizers.SGD(schedules.PiecewiseConstantDecay(boundaries, [0.1, 0.05, 0.01]))  # FAULT

    return fit(tf1_optimizer, port_optimizer)


class RmsProp(keras.optimizers.RMSprop):
    """Keras's RMSprop with averages that start at 1, as TF1's do."""

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        initializer = "ones" if name == "velocity" else initializer
        return super().add_variable_from_reference(reference_variable, name, initializer)


@case("optimizer", "optimizer|rms", "centered")
def rmsprop_not_centered(fault):
    def port_optimizer():
        return RmsProp(0.01, rho=0.9, epsilon=1e-4, centered=not fault)  # FAULT

    return fit(lambda: tf.train.RMSPropOptimizer(0.01, 0.9, epsilon=1e-4, centered=True), port_optimizer)


@case("optimizer", "optimizer|rms", r"\brho\b|decay")
def decay_of_rmsprop(fault):
    def port_optimizer():
        return RmsProp(0.01, rho=0.95 if fault else 0.9, epsilon=1e-10)  # FAULT

    return fit(lambda: tf.train.RMSPropOptimizer(0.01, decay=0.9), port_optimizer)


class DecayingAdam(tf.train.AdamOptimizer):
    """Adam with a decay of the kernels that the gradients do not contain."""

    def __init__(self):
        super().__init__(0.01, epsilon=1e-6)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        kernels = [variable for _, variable in grads_and_vars if variable.op.name.endswith("/w")]
        decay = [0.01 * 0.1 * tf.identity(kernel) for kernel in kernels]
        with tf.control_dependencies(decay):
            update = super().apply_gradients(grads_and_vars, global_step, name)
        with tf.control_dependencies([update]):
            return tf.group(update, *(kernel.assign_sub(by) for kernel, by in zip(kernels, decay, strict=True)))


@case("optimizer", "optimizer|decay|bias|adam", "weight.?decay|decay")
def weight_decay_of_the_biases(fault):
    def port_optimizer():
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-6)  # FAULT
        if not fault:
            optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    return fit(DecayingAdam, port_optimizer)


@case("optimizer", "optimizer|ftrl", r"\bl1|l1_reg|regulari")
def l1_of_ftrl_forgotten(fault):
    def port_optimizer():
        strength = 0.0 if fault else 0.01
        return keras.optimizers.Ftrl(0.1, l1_regularization_strength=strength)  # FAULT

    return fit(lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01), port_optimizer)


@case("rate", "rate|optimizer|schedule|polynomial|decay", "learning.?rate|schedule|end")
def polynomial_decay_without_cycles(fault):
    def tf1_optimizer():
        return tf.train.AdagradOptimizer(tf.train.polynomial_decay(0.1, step(), 3, 0.01, cycle=True))

    def port_optimizer():
        rate = schedules.PolynomialDecay(0.1, 3, 0.01, cycle=not fault)  # FAULT
        return keras.optimizers.Adagrad(rate, initial_accumulator_value=0.1, epsilon=0.0)

    return fit(tf1_optimizer, port_optimizer)


@case("average", "mean|average|normali", "momentum|decay|0.99|moving")
def decay_of_an_average(fault):
    def tf1(x, training):
        mean = zeros("mean", [4], trainable=False)
        outputs = dense(x - mean, 3, "policy")
        if training:
            with tf.control_dependencies([outputs]):
                update = mean.assign(0.99 * mean + 0.01 * tf.reduce_mean(x, 0))
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return outputs

    class Observations(keras.Model):
        def __init__(self):
            super().__init__()
            self.policy = layers.Dense(3)

        def build(self, shape):
            self.mean = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="mean")
            self.policy.build(shape)

        def call(self, x, training=False):
            outputs = self.policy(x - self.mean)
            if training:
                decay = 0.999 if fault else 0.99
                self.mean.assign(decay * self.mean + (1 - decay) * ops.mean(x, 0))  # FAULT
            return outputs

    return detrand.Migration(tf1=tf1, port=Observations, inputs=numbers(6, 4) + 1)


@case("average", "codes|codebook", "update|moving|assign|never|changes")
def average_that_is_never_updated(fault):
    def tf1(x, training):
        codes = tf.get_variable("codes", [5, 4], initializer=tf.random_normal_initializer(), trainable=False)
        x = dense(x, 4, "encode")
        distances = tf.reduce_sum(tf.square(x[:, None] - codes), 2)
        nearest = tf.one_hot(tf.argmin(distances, 1), 5)
        outputs = tf.matmul(nearest, codes)
        if training:
            with tf.control_dependencies([outputs]):
                update = codes.assign(0.9 * codes + 0.1 * tf.matmul(nearest, x, transpose_a=True))
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return outputs

    class Codebook(tf.Module):
        def __init__(self):
            super().__init__()
            self.encode = tf.Variable(tf_keras.initializers.GlorotUniform()([3, 4]), name="encode")
            self.bias = tf.Variable(tf.zeros([4]), name="bias")
            self.codes = tf.Variable(tf.random.normal([5, 4]), trainable=False, name="codes")

        def __call__(self, x, training=False):
            x = x @ self.encode + self.bias
            distances = tf.reduce_sum(tf.square(x[:, None] - self.codes), 2)
            nearest = tf.one_hot(tf.argmin(distances, 1), 5)
            outputs = tf.matmul(nearest, self.codes)  # FAULT
            if training and not fault:
                self.codes.assign(0.9 * self.codes + 0.1 * tf.matmul(nearest, x, transpose_a=True))
            return outputs  # FAULT

    return detrand.Migration(tf1=tf1, port=Codebook, inputs=numbers(6, 3))


@case("average", "average|moving|mean|bias", "debias|bias|divi|correct")
def average_without_zero_debias(fault):
    def tf1(x, training):
        biased, count = zeros("biased", [4], trainable=False), zeros("count", [], trainable=False)
        outputs = dense(x - biased / (1.0 - tf.pow(0.9, count + 1.0)), 3, "out", tf.tanh)
        if training:
            with tf.control_dependencies([outputs]):
                updates = biased.assign(0.9 * biased + 0.1 * tf.reduce_mean(x, 0)), count.assign_add(1.0)
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.group(*updates))
        return outputs

    class Debiased(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = layers.Dense(3, "tanh")

        def build(self, shape):
            self.biased = self.add_weight(shape=(4,), initializer="zeros", trainable=False, name="biased")
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
            self.out.build(shape)

        def call(self, x, training=False):
            mean = self.biased if fault else self.biased / (1.0 - ops.power(0.9, self.count + 1.0))  # FAULT
            outputs = self.out(x - mean)
            if training:
                self.biased.assign(0.9 * self.biased + 0.1 * ops.mean(x, 0))
                self.count.assign_add(1.0)
            return outputs

    return detrand.Migration(tf1=tf1, port=Debiased, inputs=numbers(6, 4) + 1)


@case("average", "moving|batch.?norm|bn|momentum|variance", "momentum|decay")
def momentum_in_training(fault):
    def tf1(x, training):
        x = batch_norm(conv(x, 4, 3, "conv", bias=False), training, "bn", decay=0.997)
        return dense(tf.reduce_mean(tf.nn.relu(x), [1, 2]), 3, "logits")

    def port():
        momentum = 0.99 if fault else 0.997
        x = inputs = keras.Input((6, 6, 2))
        x = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=momentum)(x))  # FAULT
        return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))

    return trained(
        tf1,
        port,
        0.05 * numbers(4, 6, 6, 2),
        integers(3, 4),
        tf.losses.sparse_softmax_cross_entropy,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        descent,
        lambda: keras.optimizers.SGD(0.1),
    )


@case("average", "average|ema|momentum|optimizer", "average|ema|momentum|decay")
def average_of_the_weights(fault):
    class Averaging(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            grads_and_vars = list(grads_and_vars)
            update = super().apply_gradients(grads_and_vars, global_step, name)
            averages = tf.train.ExponentialMovingAverage(0.9)
            with tf.control_dependencies([update]):
                return averages.apply([variable for _, variable in grads_and_vars])

    def port_optimizer():
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.99 if fault else 0.9)  # FAULT

    return fit(lambda: Averaging(0.1), port_optimizer)
