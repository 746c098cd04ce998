"""Faults of optimizers and schedules that five steps of an ordinary training do not show."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, validate
from detrand.validation.golden import record_golden

v1 = tf.compat.v1
schedules = keras.optimizers.schedules


def dense(inputs, training):
    return tf.matmul(inputs, v1.get_variable("dense/kernel", (3, 2)))


def migration(tf1_optimizer, port_optimizer):
    return Migration(
        tf1=dense,
        port=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
        inputs=np.random.default_rng(0).normal(size=(4, 3)).astype("f4"),
        train=TrainStep(
            labels=np.zeros((4, 2), np.float32),
            tf1_loss=v1.losses.mean_squared_error,
            port_loss=keras.losses.MeanSquaredError(),
            tf1_optimizer=tf1_optimizer,
            port_optimizer=port_optimizer,
        ),
    )


def checked(tf1_optimizer, port_optimizer, **kwargs):
    return validate(migration(tf1_optimizer, port_optimizer), checks=["training-steps"], **kwargs).checks[0]


def clipping(kind, change):
    """Return a class of TF1 optimizers that change gradients before they apply them."""

    class Clipping(kind):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            changed = [(change(gradient), variable) for gradient, variable in grads_and_vars]
            return super().apply_gradients(changed, global_step, name)

    return Clipping


def staircase(boundaries, rates):
    return lambda: v1.train.GradientDescentOptimizer(
        v1.train.piecewise_constant(v1.train.get_or_create_global_step(), boundaries, rates)
    )


def warmed_up():
    step = tf.cast(v1.train.get_or_create_global_step(), tf.float32) + 1.0
    return v1.train.GradientDescentOptimizer(0.1 * tf.minimum(tf.math.rsqrt(step), step * 4000.0**-1.5))


class WarmedUp(schedules.LearningRateSchedule):
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        step = keras.ops.cast(step, "float32") + 1.0
        return 0.1 * keras.ops.minimum(keras.ops.rsqrt(step), step * self.steps**-1.5)


def cosine():
    return v1.train.MomentumOptimizer(v1.train.cosine_decay(0.1, v1.train.get_or_create_global_step(), 3000), 0.9)


@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "title", "place"),
    [
        (
            staircase([30000, 60000], [0.1, 0.01, 0.001]),
            lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay([30000, 59999], [0.1, 0.01, 0.001])),
            "learning rate differs in step 60000: 0.01 (TF1), 0.001 (port)",
            "step 60000, learning_rate",
        ),
        (
            staircase([30000], [0.1, 0.01]),
            lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay([30000, 70000], [0.1, 0.01, 0.0])),
            "learning rate differs in step 89999: 0.01 (TF1), 0 (port)",
            "step 89999, learning_rate",
        ),
        (
            cosine,
            lambda: keras.optimizers.SGD(schedules.CosineDecay(0.1, 3000, alpha=0.001), momentum=0.9),
            "learning rate differs in step 1000: 0.075 (TF1), 0.075025 (port)",
            "step 1000, learning_rate",
        ),
        (
            lambda: clipping(v1.train.GradientDescentOptimizer, lambda g: tf.clip_by_norm(g, 50.0))(0.1),
            lambda: keras.optimizers.SGD(0.1, clipnorm=60.0),
            "clipping of gradients differs: global norm 50 (TF1), global norm 60 (port)",
            "step 12, updates",
        ),
        (
            lambda: v1.train.AdamOptimizer(0.01),
            lambda: keras.optimizers.Adam(0.01, clipvalue=20.0, epsilon=1e-8),
            "clipvalue differs in the optimizer: none (TF1), 20 (port)",
            "step 12, updates",
        ),
        (
            lambda: v1.train.AdamOptimizer(0.01, epsilon=1e-10),
            lambda: keras.optimizers.Adam(0.01, epsilon=3e-10),
            "epsilon differs in the optimizer: 1e-10 (TF1), 3e-10 (port)",
            "step 1, updates",
        ),
    ],
    ids=["boundary", "surplus boundary", "floor", "norm", "elements", "epsilon"],
)
def test_what_a_short_training_does_not_show_is_found(tf1_optimizer, port_optimizer, title, place):
    check = checked(tf1_optimizer, port_optimizer)
    assert [finding.title for finding in check.findings] == [title]
    (finding,) = check.findings
    assert finding.confirmed
    assert (finding.tf1.op, finding.port.op) == (place, place)
    assert all("test_probe.py:" in place.line for place in (finding.tf1, finding.port))


WITH_VALUE = "with TF1's value in the port's optimizer, the updates agree"
RATE_DIFFERS = "learning rate differs in step 8: 0.01 (TF1), 0.1 (port)"
CLIPPING_DIFFERS = "clipping of gradients differs: global norm 50 (TF1), none (port)"


@pytest.mark.parametrize(
    ("limit", "boundary", "title", "confirmed", "source"),
    [
        (1e9, 9, RATE_DIFFERS, WITH_VALUE, "rate = "),
        (50.0, 9, RATE_DIFFERS, "", "rate = "),
        (50.0, 7, CLIPPING_DIFFERS, "with this, the updates of both programs agree", "return "),
    ],
    ids=["only the rate", "the rate and clipping", "only clipping"],
)
def test_the_rate_comes_before_clipping_and_is_confirmed_if_nothing_else_differs(
    limit, boundary, title, confirmed, source
):
    def tf1_optimizer():
        rate = v1.train.piecewise_constant(v1.train.get_or_create_global_step(), [7], [0.1, 0.01])
        return clipping(v1.train.GradientDescentOptimizer, lambda g: tf.clip_by_norm(g, limit))(rate)

    def port_optimizer():
        rate = schedules.PiecewiseConstantDecay([boundary], [0.1, 0.01])
        return keras.optimizers.SGD(rate)

    (finding,) = checked(tf1_optimizer, port_optimizer).findings
    assert (finding.title, finding.confirmed) == (title, confirmed)
    assert finding.tf1.source.startswith(source) and finding.port.source.startswith(source)


@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer"),
    [
        (
            staircase([30000, 60000], [0.1, 0.01, 0.001]),
            lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay([30000, 60000], [0.1, 0.01, 0.001])),
        ),
        (warmed_up, lambda: keras.optimizers.SGD(WarmedUp(4000.0))),
        (cosine, lambda: keras.optimizers.SGD(schedules.CosineDecay(0.1, 3000), momentum=0.9)),
        (
            lambda: clipping(v1.train.GradientDescentOptimizer, lambda g: tf.clip_by_norm(g, 50.0))(0.1),
            lambda: keras.optimizers.SGD(0.1, clipnorm=50.0),
        ),
        (
            lambda: v1.train.AdagradOptimizer(0.1),
            lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.1, epsilon=0.0),
        ),
        (
            lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.9, centered=True),
            lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.9, centered=True),
        ),
        (lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),) * 2,
        (staircase([30000], [0.1, 0.01]),) * 2,
    ],
    ids=["boundaries", "warm-up", "cosine", "clipping", "adagrad", "rmsprop", "ftrl", "one schedule for both"],
)
def test_a_sound_optimizer_agrees_in_the_probe(tf1_optimizer, port_optimizer):
    check = checked(tf1_optimizer, port_optimizer)
    assert not check.findings
    agree = "the optimizers agree for gradients from 1e-10 to 1000, and their learning rates until step 10,000,000"
    assert agree in check.summary


def of_model():
    class OfModel(v1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            masks = {(3, 2): tf.ones((3, 2))}
            masked = [(gradient * masks[tuple(variable.shape)], variable) for gradient, variable in grads_and_vars]
            return super().apply_gradients(masked, global_step, name)

    return OfModel(0.1)


class OfModel(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * {(3, 2): 1.0}[tuple(variable.shape)], variable, learning_rate)


@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer"),
    [
        (of_model, lambda: keras.optimizers.SGD(0.1)),
        (lambda: v1.train.GradientDescentOptimizer(0.1), lambda: OfModel(0.1)),
    ],
    ids=["of TF1", "of the port"],
)
def test_an_optimizer_that_only_fits_the_model_is_not_probed(tf1_optimizer, port_optimizer):
    check = checked(tf1_optimizer, port_optimizer)
    assert check.ok
    assert "optimizers not probed: KeyError: (1, 4)" in check.summary


def test_a_golden_file_has_no_probe_of_an_optimizer_that_only_fits_the_model(tmp_path):
    record_golden([migration(of_model, lambda: keras.optimizers.SGD(0.1))], tmp_path / "golden.npz")
    check = checked(of_model, lambda: keras.optimizers.SGD(0.1), golden=tmp_path / "golden.npz")
    assert check.ok
    assert "optimizers not probed: the golden file has no probe of TF1's" in check.summary


def test_an_optimizer_may_treat_variables_by_their_names():
    class Decaying(v1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            decayed = [
                (gradient if variable.op.name.endswith("bias") else gradient + 0.1 * variable, variable)
                for gradient, variable in grads_and_vars
            ]
            return super().apply_gradients(decayed, global_step, name)

    def excluding(names):
        optimizer = keras.optimizers.SGD(0.1, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=names)
        return optimizer

    def biased(inputs, training):
        return dense(inputs, training) + v1.get_variable("dense/bias", (2,), initializer=v1.zeros_initializer())

    sound = migration(lambda: Decaying(0.1), lambda: excluding(["bias"]))
    sound = dataclasses.replace(sound, tf1=biased, port=lambda: keras.layers.Dense(2, name="dense"))
    (check,) = validate(sound, checks=["training-steps"]).checks
    assert not check.findings
    assert "the optimizers agree" in check.summary


def test_a_golden_file_holds_the_probe(tmp_path):
    tf1_optimizer = staircase([30000], [0.1, 0.01])
    record_golden([migration(tf1_optimizer, lambda: keras.optimizers.SGD(0.1))], tmp_path / "golden.npz")
    for boundary, ok in ((30000, True), (20000, False)):
        schedule = schedules.PiecewiseConstantDecay([boundary], [0.1, 0.01])
        check = checked(
            lambda: pytest.fail("TF1 is not run"),
            lambda schedule=schedule: keras.optimizers.SGD(schedule),
            golden=tmp_path / "golden.npz",
        )
        assert check.ok == ok
