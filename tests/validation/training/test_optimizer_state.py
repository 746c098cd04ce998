"""Slots of optimizers are compared after each step, which shows faults that have not reached the weights yet."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, Tolerance, TrainStep, validate
from detrand.report import json as json_report
from detrand.validation.checks.registry import run_check
from detrand.validation.runner import Runner

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = RNG.normal(size=(6, 2)).astype(np.float32)
INITIAL = RNG.normal(size=(4, 2)).astype(np.float32)


def linear(inputs, training, parts=1):
    partitioner = v1.fixed_size_partitioner(parts) if parts > 1 else None
    kernel = v1.get_variable("dense/kernel", (4, 2), partitioner=partitioner)
    return tf.matmul(inputs, tf.convert_to_tensor(kernel))


def migration(tf1_optimizer, port_optimizer, kit=keras, tf1=linear, **changes):
    train = {
        "labels": LABELS,
        "tf1_loss": v1.losses.mean_squared_error,
        "port_loss": kit.losses.MeanSquaredError(),
        "tf1_optimizer": tf1_optimizer,
        "port_optimizer": port_optimizer,
        "steps": 3,
    }
    return Migration(
        tf1=tf1,
        port=lambda: kit.layers.Dense(2, use_bias=False, name="dense"),
        inputs=INPUTS,
        train=TrainStep(**{**train, **changes}),
    )


def check(*arguments, **changes):
    return run_check("training-steps", Runner(migration(*arguments, **changes)))


def compared(found, step=2):
    """Return the paths of the slots that were compared in a step."""
    return {
        leaf.path
        for comparison in found.trainings.values()
        for leaf in (comparison.steps[step]["slots"].leaves if "slots" in comparison.steps[step] else ())
    }


RMSPROP = {"momentum": 0.5, "epsilon": 1e-3, "centered": True}
FTRL = {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.01}
OPTIMIZERS = {
    # TF1's, its arguments, Keras's, its arguments, the slots
    "SGD": (v1.train.GradientDescentOptimizer, {}, "SGD", {}, set()),
    "Momentum": (v1.train.MomentumOptimizer, {"momentum": 0.9}, "SGD", {"momentum": 0.9}, {"momentum"}),
    "Nesterov": (
        v1.train.MomentumOptimizer,
        {"momentum": 0.9, "use_nesterov": True},
        "SGD",
        {"momentum": 0.9, "nesterov": True},
        {"momentum"},
    ),
    "Adam": (v1.train.AdamOptimizer, {}, "Adam", {"epsilon": 1e-8}, {"m", "v"}),
    "Adagrad": (
        v1.train.AdagradOptimizer,
        {"initial_accumulator_value": 0.1},
        "Adagrad",
        {"initial_accumulator_value": 0.1, "epsilon": 1e-10},
        {"accumulator"},
    ),
    "Adadelta": (
        v1.train.AdadeltaOptimizer,
        {"rho": 0.9, "epsilon": 1e-6},
        "Adadelta",
        {"rho": 0.9, "epsilon": 1e-6},
        {"accum", "accum_update"},
    ),
    "Ftrl": (v1.train.FtrlOptimizer, FTRL, "Ftrl", FTRL, {"accum", "linear"}),
}
KITS = {"keras3": (keras, ""), "tf_keras": (tf_keras, ""), "tf_keras, older": (tf_keras, "legacy.")}


def made(kit, name, *arguments, **keywords):
    owner = kit.optimizers
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner(*arguments, **keywords)


@pytest.mark.slow_except("Adagrad-tf_keras, older")
@pytest.mark.parametrize("kit", KITS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_of_sound_ports_agree(name, kit):
    tf1, tf1_arguments, keras_name, arguments, kinds = OPTIMIZERS[name]
    kit, prefix = KITS[kit]
    found = check(
        lambda: tf1(0.01, **tf1_arguments), lambda: made(kit, prefix + keras_name, 0.01, **arguments), kit=kit
    )
    assert found.ok, found.details
    assert compared(found) == {f"slots[{kind!r}]['dense/kernel']" for kind in kinds}


@pytest.mark.slow_except("Ftrl")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_of_the_same_optimizer_agree(name):
    tf1, arguments, _, _, kinds = OPTIMIZERS[name]
    found = check(*[lambda: tf1(0.01, **arguments)] * 2)
    assert found.ok, found.details
    assert len(compared(found)) == len(kinds)


@pytest.mark.slow
def test_slots_of_partitioned_variables_agree():
    found = check(
        lambda: v1.train.AdamOptimizer(0.01),
        lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
        tf1=lambda inputs, training: linear(inputs, training, parts=2),
    )
    # the initial values are drawn for each part, so only later steps, which begin with TF1's weights, say something
    leaves = found.trainings["eagerly"].steps[2]["slots"].leaves
    assert [leaf.path for leaf in leaves] == ["slots['m']['dense/kernel']", "slots['v']['dense/kernel']"]
    assert all(leaf.ok and leaf.desired.shape == (4, 2) for leaf in leaves)


def warmed_up(optimizer, **arguments):
    """TF1's optimizer with a rate of 0 in the first step."""

    def make():
        return optimizer(0.01 * tf.cast(v1.train.get_or_create_global_step(), tf.float32), **arguments)

    return make


class FromZero(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 * tf.cast(step, tf.float32)

    def get_config(self):
        return {}


FAULTS = {
    # In the first step Adam's update is that of the gradient's sign, whatever the betas are.
    "beta2": (
        lambda: v1.train.AdamOptimizer(0.01),
        lambda: keras.optimizers.Adam(0.01, beta_2=0.99, epsilon=1e-8),
        "slots['v']['dense/kernel']",
        "beta 2 differs in the optimizer: 0.999 (TF1), 0.99 (port)",
    ),
    "RMSProp's average starts elsewhere": (
        warmed_up(v1.train.RMSPropOptimizer),
        lambda: keras.optimizers.RMSprop(FromZero(), epsilon=1e-10),
        "slots['rms']['dense/kernel']",
        "initial rms differs in the optimizer: 1 (TF1), 0 (port)",
    ),
    "an accumulator that starts elsewhere": (
        warmed_up(v1.train.AdagradOptimizer, initial_accumulator_value=0.1),
        lambda: keras.optimizers.Adagrad(FromZero(), initial_accumulator_value=0.2, epsilon=1e-10),
        "slots['accumulator']['dense/kernel']",
        "initial accumulator value differs in the optimizer: 0.1 (TF1), 0.2 (port)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_has_not_reached_the_weights(fault):
    tf1, port, path, cause = FAULTS[fault]
    report = validate(migration(tf1, port, steps=1), checks=["training-steps"])
    assert not report.ok, str(report)
    found = report.checks[-1]
    for way in ("eagerly", "in a tf.function"):
        comparison = found.trainings[way]
        assert comparison.steps[0]["weights"].ok
        assert comparison.first_divergence.leaf.path == path
    assert cause in found.causes[:2]
    assert '"name": "slots"' in json_report.render([report])


@pytest.mark.slow
def test_momentum_is_compared_while_the_rate_stays_the_same():
    """Keras sums gradients times the rate of their step, TF1 gradients: they agree only while it is constant."""
    boundaries, rates = [1], [0.1, 0.01]

    def tf1():
        step = v1.train.get_or_create_global_step()
        return v1.train.MomentumOptimizer(v1.train.piecewise_constant(step, boundaries, rates), 0.9)

    def port():
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
        return keras.optimizers.SGD(schedule, momentum=0.9)

    found = check(tf1, port)
    assert [compared(found, step) for step in range(3)] == [{"slots['momentum']['dense/kernel']"}] * 2 + [set()]
    again = check(tf1, tf1)
    assert again.ok
    assert compared(again, 2) == {"slots['momentum']['dense/kernel']"}


@pytest.mark.slow
def test_slots_of_a_users_own_update_are_not_compared():
    class Halved(keras.optimizers.Adam):
        """Adam with a second moment of half the size."""

        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)
            velocity = self._velocities[self._get_variable_index(variable)]
            velocity.assign(velocity / 2)

    found = check(lambda: v1.train.AdamOptimizer(0.01), lambda: Halved(0.01, epsilon=1e-8), steps=1)
    assert all(found.trainings.values()), found.details
    assert compared(found, 0) == set()


@pytest.mark.slow
def test_a_users_tolerance_for_slots_counts():
    tf1, port, _, _ = FAULTS["beta2"]
    loose, strict = (
        check(tf1, port, steps=1, tolerances=[Tolerance(rtol=0.0, atol=atol, of="slots")]) for atol in (1.0, 1e-9)
    )
    assert all(loose.trainings.values())
    assert not any(strict.trainings.values())
