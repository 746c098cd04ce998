"""Faults of optimizers and schedules that five steps of an ordinary training do not show."""

import dataclasses
import linecache

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, TrainStep, validate
from detrand.validation.checks import optimizers
from detrand.validation.golden import record_golden
from detrand.validation.training import probe
from detrand.validation.training.steps import CLIPPING, FACTOR
from detrand.validation.training.tf1 import train_in_session

v1 = tf.compat.v1
schedules = keras.optimizers.schedules


def dense(inputs, training):
    return tf.matmul(inputs, v1.get_variable("dense/kernel", (3, 2)))


def migration(tf1_optimizer, port_optimizer, train_op=None, **of_layer):
    return Migration(
        tf1=dense,
        port=lambda: keras.layers.Dense(2, use_bias=False, name="dense", **of_layer),
        inputs=np.random.default_rng(0).normal(size=(4, 3)).astype("f4"),
        train=TrainStep(
            labels=np.zeros((4, 2), np.float32),
            tf1_loss=v1.losses.mean_squared_error,
            port_loss=keras.losses.MeanSquaredError(),
            tf1_optimizer=tf1_optimizer,
            tf1_train_op=train_op,
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "title", "place"),
    [
        (
            staircase([30000, 60000], [0.1, 0.01, 0.001]),
            lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay([30000, 59999], [0.1, 0.01, 0.001])),
            "argument boundaries of the learning-rate schedule differs: [30000, 60000] (TF1), [30000, 59999] (port)",
            "step 60000, learning_rate",
        ),
        (
            staircase([30000], [0.1, 0.01]),
            lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay([30000, 70000], [0.1, 0.01, 0.0])),
            "argument values of the learning-rate schedule differs: [0.1, 0.01, 0.01] (TF1), [0.1, 0.01, 0.0] (port)",
            "step 81000, learning_rate",
        ),
        (
            cosine,
            lambda: keras.optimizers.SGD(schedules.CosineDecay(0.1, 3000, alpha=0.001), momentum=0.9),
            "argument alpha of the learning-rate schedule differs: 0.0 (TF1), 0.001 (port)",
            "step 590, learning_rate",
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


WITH_APPLIED = "with the gradients that TF1 applies, the updates agree"
WITH_VALUE = "with TF1's value in the port's optimizer, the updates agree"
RATE_DIFFERS = "argument boundaries of the learning-rate schedule differs: [7] (TF1), [9] (port)"
CLIPPING_DIFFERS = "clipping of gradients differs: global norm 50 (TF1), none (port)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "boundary", "expected", "source"),
    [
        (1e9, 9, {RATE_DIFFERS: WITH_VALUE}, "rate = "),
        (50.0, 9, {RATE_DIFFERS: WITH_VALUE, CLIPPING_DIFFERS: WITH_APPLIED}, "rate = "),
        (50.0, 7, {CLIPPING_DIFFERS: "with this, the updates of both programs agree"}, "return "),
    ],
    ids=["only the rate", "the rate and clipping", "only clipping"],
)
def test_the_rate_comes_before_clipping_and_both_are_confirmed(limit, boundary, expected, source):
    def tf1_optimizer():
        rate = v1.train.piecewise_constant(v1.train.get_or_create_global_step(), [7], [0.1, 0.01])
        return clipping(v1.train.GradientDescentOptimizer, lambda g: tf.clip_by_norm(g, limit))(rate)

    def port_optimizer():
        rate = schedules.PiecewiseConstantDecay([boundary], [0.1, 0.01])
        return keras.optimizers.SGD(rate)

    finding, *others = checked(tf1_optimizer, port_optimizer).findings
    assert {each.title: each.confirmed for each in (finding, *others)} == expected
    assert finding.tf1.source.startswith(source) and finding.port.source.startswith(source)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer"),
    [
        (of_model, lambda: keras.optimizers.SGD(0.1)),
        (lambda: v1.train.GradientDescentOptimizer(0.1), lambda: OfModel(0.1)),
    ],
    ids=["of TF1", "of the port"],
)
def test_an_optimizer_that_only_fits_a_large_model_is_not_probed(tf1_optimizer, port_optimizer, monkeypatch):
    agreeing = checked(tf1_optimizer, port_optimizer)
    assert agreeing.ok and "the optimizers agree" in agreeing.summary
    monkeypatch.setattr(probe, "_LARGEST", 5)
    check = checked(tf1_optimizer, port_optimizer)
    assert check.ok
    assert "optimizers not probed: KeyError: (1, 4)" in check.summary


@pytest.mark.slow
def test_a_golden_file_has_no_probe_of_an_optimizer_that_only_fits_a_large_model(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_LARGEST", 5)
    record_golden([migration(of_model, lambda: keras.optimizers.SGD(0.1))], tmp_path / "golden.npz")
    check = checked(of_model, lambda: keras.optimizers.SGD(0.1), golden=tmp_path / "golden.npz")
    assert check.ok
    assert "optimizers not probed: the golden file has no probe of TF1's" in check.summary


@pytest.mark.slow
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


class DecayingInTF1(v1.train.GradientDescentOptimizer):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        decayed = [(gradient + 0.1 * variable, variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(decayed, global_step, name)


@pytest.mark.slow
def test_optimizers_of_both_programs_may_decay_weights_in_their_own_code():
    class Decaying(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient + 0.1 * variable, variable, learning_rate)

    check = checked(lambda: DecayingInTF1(0.1), lambda: Decaying(0.1))
    assert not check.findings
    assert "the optimizers agree" in check.summary


@pytest.mark.slow
def test_an_optimizer_may_look_for_variables_in_the_model():
    made = []

    class Port(tf.Module):
        def __init__(self):
            super().__init__(name="dense")
            made.append(self)
            with self.name_scope:
                self.kernel = tf.Variable(tf.zeros((3, 2)), name="kernel")

        def __call__(self, inputs, training):
            return inputs @ self.kernel

    class Decaying(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            decay = 0.1 if variable is made[-1].kernel else 0.0
            super().update_step(gradient + decay * variable, variable, learning_rate)

    sound = dataclasses.replace(migration(lambda: DecayingInTF1(0.1), lambda: Decaying(0.1)), port=Port)
    (check,) = validate(sound, checks=["training-steps"]).checks
    assert not check.findings
    assert "the port's optimizer updates variables of the model differently" in check.summary


@pytest.mark.slow
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


def adam(**arguments):
    return lambda: keras.optimizers.Adam(0.01, epsilon=1e-8, **arguments)


class Clipped(keras.constraints.Constraint):
    """Keras 3.12 takes no function."""

    def __call__(self, w):
        return keras.ops.clip(w, -0.005, 0.005)


def training_op(change=lambda gradients: gradients, loss_of=lambda loss: loss):
    """Return a training op that changes the gradients for Adam, as scripts did."""

    def train_op(loss):
        step = v1.train.get_or_create_global_step()
        optimizer = v1.train.AdamOptimizer(v1.train.exponential_decay(0.01, step, 5000, 0.9, staircase=True))
        gradients, variables = zip(*optimizer.compute_gradients(loss_of(loss)), strict=True)
        return optimizer.apply_gradients(zip(change(gradients), variables, strict=True), step)

    return train_op


def decayed_adam(**arguments):
    rate = schedules.ExponentialDecay(0.01, 5000, 0.9, staircase=True)
    return lambda: keras.optimizers.Adam(rate, epsilon=1e-8, **arguments)


def by_global_norm(limit):
    return lambda gradients: tf.clip_by_global_norm(gradients, limit)[0]


def trained(train_op, port_optimizer, **of_layer):
    return validate(migration(None, port_optimizer, train_op, **of_layer), checks=["training-steps"]).checks[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "of_port", "title"),
    [
        (by_global_norm(50.0), {}, "clipping of gradients differs: global norm 50 (TF1), none (port)"),
        (by_global_norm(1e-4), {}, "clipping of gradients differs: global norm 0.0001 (TF1), none (port)"),
        (
            by_global_norm(50.0),
            {"global_clipnorm": 60.0},
            "clipping of gradients differs: global norm 50 (TF1), global norm 60 (port)",
        ),
        (
            lambda gradients: gradients,
            {"clipvalue": 20.0},
            "clipping of gradients differs: none (TF1), each element 20 (port)",
        ),
        (
            lambda gradients: [tf.clip_by_value(each, -20.0, 20.0) for each in gradients],
            {},
            "clipping of gradients differs: each element 20 (TF1), none (port)",
        ),
    ],
    ids=["far", "active", "other", "in the port", "elements"],
)
def test_clipping_by_a_training_op_is_named(change, of_port, title):
    (finding,) = trained(training_op(change), decayed_adam(**of_port)).findings
    assert (finding.title, finding.confirmed) == (title, WITH_APPLIED)


def logging_norms(loss):
    """Return what a script logs beside the update, and clip after that."""
    optimizer = v1.train.AdamOptimizer(0.01)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    logged = tf.reduce_max([tf.reduce_max(tf.clip_by_value(each, 0.0, 1.0)) for each in gradients])
    clipped, _ = tf.clip_by_global_norm(gradients, 50.0)
    return [optimizer.apply_gradients(zip(clipped, variables, strict=True)), logged]


def clipping_in_a_branch(loss):
    """Clip gradients, and apply them in a branch, as a script does that skips steps without finite gradients."""
    optimizer = v1.train.AdamOptimizer(0.01)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = tf.clip_by_global_norm(gradients, 1e-4)
    pairs = list(zip(clipped, variables, strict=True))
    return tf.cond(tf.math.is_finite(norm), lambda: optimizer.apply_gradients(pairs), tf.no_op)


def clipping_before_a_sum(loss):
    """Clip gradients, and apply the sum of those of all steps, which variables hold."""
    optimizer = v1.train.AdamOptimizer(0.01)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1e-4)
    sums = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in variables]
    with tf.control_dependencies([v1.assign_add(*pair) for pair in zip(sums, clipped, strict=True)]):
        return optimizer.apply_gradients(
            [(total.read_value(), each) for total, each in zip(sums, variables, strict=True)]
        )


@pytest.mark.parametrize("train_op", [logging_norms, clipping_in_a_branch, clipping_before_a_sum])
def test_the_line_of_clipping_is_that_of_the_applied_gradients(train_op):
    clipping_migration = migration(None, adam(), train_op)
    training = train_in_session(clipping_migration, clipping_migration.training_batches(), "num_random_ops")
    for what in (CLIPPING, FACTOR):
        filename, _, line = training.lines[what].rpartition(":")
        assert "tf.clip_by_global_norm(" in linecache.getline(filename, int(line))


def clipping_weights(loss):
    """Clip the weights after each step, as a Wasserstein GAN does."""
    with tf.control_dependencies([training_op()(loss)]):
        return tf.group(*[each.assign(tf.clip_by_value(each, -0.005, 0.005)) for each in v1.trainable_variables()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train_op", "of_port", "of_layer"),
    [
        (training_op(by_global_norm(50.0)), {"global_clipnorm": 50.0}, {}),
        (
            training_op(lambda gradients: [tf.clip_by_norm(each, 50.0) for each in gradients]),
            {"clipnorm": 50.0},
            {},
        ),
        (training_op(loss_of=lambda loss: v1.losses.get_total_loss()), {}, {}),
        (clipping_weights, {}, {"kernel_constraint": Clipped()}),
    ],
    ids=["global norm", "norm", "total loss", "weights"],
)
def test_a_sound_training_op_agrees_in_the_probe(train_op, of_port, of_layer):
    check = trained(train_op, decayed_adam(**of_port), **of_layer)
    assert check.ok and "the optimizers agree" in check.summary


@pytest.mark.slow
def test_constraints_of_both_programs_are_in_the_probe():
    def constrained(inputs, training):
        with v1.variable_scope("", constraint=lambda kernel: tf.clip_by_value(kernel, -0.005, 0.005)):
            return dense(inputs, training)

    sound = migration(None, decayed_adam(), training_op(), kernel_constraint=Clipped())
    (check,) = validate(dataclasses.replace(sound, tf1=constrained), checks=["training-steps"]).checks
    assert check.ok and "the optimizers agree" in check.summary


def of_rate_of_model(loss):
    rate = 0.01 if len(v1.trainable_variables("dense")) == len(v1.get_collection("of model")) else 0.02
    return v1.train.AdamOptimizer(rate).minimize(loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train_op", "port_optimizer", "reason"),
    [
        (
            training_op(loss_of=lambda loss: 2.0 * loss),
            None,
            "updates not probed: tf1_train_op takes gradients of a tensor that it computes from the loss; the learning "
            "rates agree until step",
        ),
        (
            of_rate_of_model,
            adam(),
            "optimizers not probed: MigrationError: TF1's learning rate is 0.01 with the model, 0.02 without it",
        ),
    ],
    ids=["of another tensor", "rate"],
)
def test_the_updates_of_a_training_op_that_depends_on_the_model_are_not_probed(train_op, port_optimizer, reason):
    def counted(inputs, training):
        v1.add_to_collection("of model", inputs)
        return dense(inputs, training)

    twice = type("Twice", (keras.optimizers.Adam,), {"update_step": _twice})
    rate = schedules.ExponentialDecay(0.01, 5000, 0.9, staircase=True)
    given = migration(None, port_optimizer or (lambda: twice(rate, epsilon=1e-8)), train_op)
    (check,) = validate(dataclasses.replace(given, tf1=counted), checks=["training-steps"]).checks
    assert check.ok and reason in check.summary, check.summary


@pytest.mark.slow
@pytest.mark.parametrize("boundary", [30, 40])
def test_rates_of_a_training_op_with_a_loss_of_its_own_are_compared_at_far_steps(boundary):
    def train_op(loss):
        step = v1.train.get_or_create_global_step()
        rate = v1.train.piecewise_constant(step, [30], [0.1, 0.01])
        return v1.train.GradientDescentOptimizer(rate).minimize(loss + tf.zeros(()), global_step=step)

    def port_optimizer():
        return keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([boundary], [0.1, 0.01]))

    (check,) = validate(migration(None, port_optimizer, train_op), checks=["training-steps"]).checks
    titles = [finding.title for finding in check.findings]
    assert titles == ([] if boundary == 30 else [RATE_DIFFERS.replace("[7]", "[30]").replace("[9]", "[40]")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "of_port", "title", "source"),
    [
        (
            by_global_norm(1e-4),
            {},
            "TF1 clips gradients, and no argument of the port's optimizer does",
            "tf.clip_by_global_norm(",
        ),
        (
            lambda gradients: gradients,
            {"global_clipnorm": 1e-4},
            "the port's optimizer clips gradients (global_clipnorm), and TF1 has no op that does",
            "v1.train.AdamOptimizer(",
        ),
        (
            lambda gradients: [tf.sign(each) for each in gradients],
            {},
            "TF1 changes gradients before it applies them",
            "tf.sign(each)",
        ),
    ],
    ids=["clipping", "clipping in the port", "sign"],
)
def test_lines_show_what_changes_gradients_where_neither_the_updates_nor_a_probe_do(change, of_port, title, source):
    (finding,) = trained(training_op(change, lambda loss: 2.0 * loss), decayed_adam(**of_port)).findings
    assert (finding.title, finding.confirmed) == (title, "")
    assert source in finding.tf1.source


def adam_of_assignments(loss):
    """Train as optimizers do that models brought with them: Adam, with no correction of its moments."""
    variables, updates = v1.trainable_variables(), []
    for gradient, variable in zip(v1.gradients(loss, variables), variables, strict=True):
        moments = [v1.Variable(tf.zeros(variable.shape), trainable=False) for _ in range(2)]
        first, second = 0.9 * moments[0] + 0.1 * gradient, 0.999 * moments[1] + 0.001 * tf.square(gradient)
        update = 0.01 * first / (tf.sqrt(second) + 1e-6)
        updates += [variable.assign_sub(update), moments[0].assign(first), moments[1].assign(second)]
    return tf.group(*updates)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beta", "title"),
    [
        (0.9, "Keras's Adam corrects the bias of its moments, TF1's optimizer uses them as they are"),
        (0.8, "the optimizer or one of its hyperparameters differs"),
    ],
)
def test_an_optimizer_of_assignments_is_not_said_to_change_gradients(beta, title):
    check = trained(adam_of_assignments, lambda: keras.optimizers.Adam(0.01, beta_1=beta, epsilon=1e-6))
    (finding,) = check.findings
    assert finding.title.startswith(title), finding
    assert check.causes == (finding.title,)


def _twice(self, gradient, variable, learning_rate):
    keras.optimizers.Adam.update_step(self, 2.0 * gradient, variable, learning_rate)


def momentum(kind, rate, **arguments):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay
    boundaries, rates = rate
    if kind is v1.train.MomentumOptimizer:
        step = v1.train.get_or_create_global_step
        return lambda: kind(v1.train.piecewise_constant(step(), boundaries, rates), 0.9, **arguments)
    return lambda: kind(schedule(boundaries, rates), momentum=0.9, **arguments)


class AsInTF1(keras.optimizers.SGD):
    """Multiplies the sum of gradients by the rate, as TF1's momentum does."""

    def update_step(self, gradient, variable, learning_rate):
        velocity = self.momentums[self._get_variable_index(variable)]
        velocity.assign(self.momentum * velocity + gradient)
        variable.assign(variable - learning_rate * velocity)


FAR, NEAR = ([2000, 3000], [0.1, 0.05, 0.01]), ([1], [0.1, 0.05])


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [{}, {"nesterov": True}], ids=["plain", "nesterov"])
@pytest.mark.parametrize(("rate", "place"), [(FAR, "step 3001, updates"), (NEAR, "step 2, weights['dense/kernel']")])
def test_momentum_that_holds_the_rates_of_earlier_steps_is_found(rate, place, nesterov):
    of_tf1 = {f"use_{name}": value for name, value in nesterov.items()}
    optimizers = momentum(v1.train.MomentumOptimizer, rate, **of_tf1), momentum(keras.optimizers.SGD, rate, **nesterov)
    (finding,) = checked(*optimizers).findings
    assert finding.title.startswith("TF1 multiplies its momentum by the learning rate of each step")
    assert finding.confirmed and finding.tf1.op == place
    assert "return tf.compat.v1.train.MomentumOptimizer" in finding.remedy


@pytest.mark.slow
def test_updates_that_differ_after_the_rate_changes_are_found_without_a_cause():
    class FasterWhenLow(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            rate = keras.ops.where(learning_rate < 0.05, 2 * learning_rate, learning_rate)
            super().update_step(gradient, variable, rate)

    (finding,) = checked(
        staircase([30000], [0.1, 0.01]), lambda: FasterWhenLow(schedules.PiecewiseConstantDecay([30000], [0.1, 0.01]))
    ).findings
    assert finding.title == "updates differ after the learning rate changes from 0.1 to 0.01"
    assert not finding.confirmed


def test_optimizers_that_keep_no_rates_agree_without_them(monkeypatch):
    compared = optimizers._Compared({}, (), training=object())
    monkeypatch.setattr(optimizers, "_compared", lambda *given: compared)
    check = checked(lambda: v1.train.GradientDescentOptimizer(0.1), lambda: keras.optimizers.SGD(0.1))
    assert "; the optimizers agree for gradients from 1e-10 to 1000; the losses" in check.summary


@pytest.mark.slow
def test_an_optimizer_whose_line_is_not_known_has_none(monkeypatch):
    monkeypatch.setattr(optimizers, "lines_of_optimizer", lambda make: {})
    rate = schedules.PiecewiseConstantDecay([1000], [0.1, 0.01])
    (finding,) = checked(lambda: v1.train.GradientDescentOptimizer(0.1), lambda: keras.optimizers.SGD(rate)).findings
    assert finding.title.startswith("learning rate changes only in the port until")
    assert finding.port.line == "" and finding.tf1.line


@pytest.mark.slow
def test_a_rate_that_a_function_returns_is_not_replaced():
    def called():
        rate = v1.train.piecewise_constant(v1.train.get_or_create_global_step(), *FAR)
        return v1.train.GradientDescentOptimizer(lambda: tf.identity(rate))

    check = checked(called, lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay(*FAR)))
    assert check.ok and "the optimizers agree" in check.summary


@pytest.mark.slow
@pytest.mark.parametrize(("height", "ok"), [(0.09, True), (0.0901, False)])
def test_a_rate_in_cycles_may_differ_by_the_rounding_of_the_step(height, ok):
    def cycles(step):
        step = tf.cast(step, tf.float32)
        return 0.01 + 0.09 * (1 - tf.abs(step / 3 - 2 * tf.floor(1 + step / 6) + 1))

    class Cycles(schedules.LearningRateSchedule):
        def __call__(self, step):
            in_cycle = keras.ops.mod(keras.ops.cast(step, "float32"), 6.0)
            return 0.01 + height * (1 - keras.ops.abs(in_cycle / 3 - 1))

        def get_config(self):
            return {}

    assert checked(scheduled(cycles), lambda: keras.optimizers.SGD(Cycles())).ok == ok


@pytest.mark.slow
@pytest.mark.parametrize("kind", [v1.train.MomentumOptimizer, AsInTF1])
@pytest.mark.parametrize("rate", [FAR, NEAR])
def test_momentum_that_is_multiplied_by_the_rate_agrees(kind, rate):
    check = checked(momentum(v1.train.MomentumOptimizer, rate), momentum(kind, rate))
    assert check.ok and "the optimizers agree" in check.summary


@pytest.mark.slow
def test_slots_that_begin_with_other_numbers_are_confirmed():
    """Epsilons differ, too, by less than makes a difference."""
    check = checked(lambda: v1.train.RMSPropOptimizer(0.01), lambda: keras.optimizers.RMSprop(0.01))
    (finding,) = check.findings
    assert finding.title == "initial rms differs in the optimizer: 1 (TF1), 0 (port)" and finding.confirmed


CLIPS = "clips weights after each update, to at least -0.005 and at most 0.005"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train_op", "of_layer", "title", "remedy"),
    [
        (clipping_weights, {}, f"only TF1 {CLIPS}", "clip the weights in the port with a constraint of its layers"),
        (
            training_op(),
            {"kernel_constraint": Clipped()},
            f"only the port {CLIPS}",
            "remove this from the port",
        ),
        (
            training_op(lambda gradients: [10.0 * each for each in gradients]),
            {},
            "factor of the gradients differs: 10 (TF1), 1 (port)",
            "use 10 in the port",
        ),
    ],
    ids=["weights", "weights of the port", "factor"],
)
def test_what_one_program_does_around_the_update_is_named(train_op, of_layer, title, remedy):
    (finding,) = trained(train_op, decayed_adam(), **of_layer).findings
    assert finding.title == title and finding.confirmed
    assert finding.remedy.startswith(remedy)


def exponential():
    return v1.train.GradientDescentOptimizer(
        v1.train.exponential_decay(0.1, v1.train.get_or_create_global_step(), 2, 0.25, staircase=True)
    )


def in_own_code():
    step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
    return v1.train.GradientDescentOptimizer(0.1 / (1.0 + step))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "title", "source"),
    [
        (
            exponential,
            lambda: keras.optimizers.SGD(0.1),
            "learning rate changes only in TF1 (tf.train.exponential_decay) until step 4; in step 2: "
            "0.025 (TF1), 0.1 (port)",
            "v1.train.exponential_decay(",
        ),
        (
            staircase([30000], [0.1, 0.01]),
            lambda: keras.optimizers.SGD(0.1),
            "learning rate changes only in TF1 (tf.train.piecewise_constant) until step 10,000,000; in step 30001: "
            "0.01 (TF1), 0.1 (port)",
            "v1.train.piecewise_constant(",
        ),
        (
            in_own_code,
            lambda: keras.optimizers.SGD(0.1),
            "learning rate changes only in TF1 until step 4; in step 1: 0.05 (TF1), 0.1 (port)",
            "0.1 / (1.0 + step)",
        ),
        (
            lambda: v1.train.GradientDescentOptimizer(0.1),
            lambda: keras.optimizers.SGD(schedules.ExponentialDecay(0.1, 2, 0.25, staircase=True)),
            "learning rate changes only in the port until step 4; in step 2: 0.1 (TF1), 0.025 (port)",
            "GradientDescentOptimizer(0.1)",
        ),
    ],
    ids=["near", "far", "own code", "port"],
)
def test_a_learning_rate_that_changes_in_one_program_is_named(tf1_optimizer, port_optimizer, title, source):
    (finding,) = checked(tf1_optimizer, port_optimizer).findings
    assert finding.title == title and finding.confirmed
    assert source in finding.tf1.source
    assert "schedule" in finding.remedy or "a number" in finding.remedy


def test_many_variables_are_probed_by_the_first_and_the_last_of_each_kind():
    ranks = {f"{scope}/{name}": rank for scope in range(20) for name, rank in (("kernel", 2), ("bias", 1))}
    assert probe._chosen(ranks) == list(ranks)
    assert probe._chosen({**ranks, "20/kernel": 4, "20/scale": 1}) == [
        *("0/kernel", "0/bias", "19/kernel", "19/bias", "20/kernel", "20/scale")
    ]


def scheduled(make, kind=v1.train.GradientDescentOptimizer, *arguments):
    return lambda: kind(make(v1.train.get_or_create_global_step()), *arguments)


def sgd(rate, **arguments):
    return lambda: keras.optimizers.SGD(rate(), **arguments)


DECAY_STEPS = "argument decay_steps of the learning-rate schedule differs: 10000000 (TF1), 11000000 (port)"


def decaying(step):
    return v1.train.exponential_decay(0.1, step, 10**7, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "differing"),
    [
        (scheduled(decaying), sgd(lambda: schedules.ExponentialDecay(0.1, 11 * 10**6, 0.5)), DECAY_STEPS),
        (
            scheduled(decaying, v1.train.MomentumOptimizer, 0.9),
            sgd(lambda: schedules.ExponentialDecay(0.1, 11 * 10**6, 0.5), momentum=0.9),
            DECAY_STEPS,
        ),
        (
            scheduled(lambda step: v1.train.polynomial_decay(0.1, step, 100_000, 1e-4)),
            sgd(lambda: schedules.PolynomialDecay(0.1, 100_000, 1e-5)),
            "argument end_learning_rate of the learning-rate schedule differs: 0.0001 (TF1), 1e-05 (port)",
        ),
        (
            scheduled(lambda step: v1.train.inverse_time_decay(0.1, step, 10**9, 0.5)),
            sgd(lambda: schedules.InverseTimeDecay(0.1, 10**9, 0.4)),
            "argument decay_rate of the learning-rate schedule differs: 0.5 (TF1), 0.4 (port)",
        ),
    ],
    ids=["exponential", "momentum", "polynomial", "inverse time"],
)
def test_smooth_schedules_are_compared_at_many_steps(tf1_optimizer, port_optimizer, differing):
    (finding,) = checked(tf1_optimizer, port_optimizer).findings
    assert finding.title == differing
    assert finding.confirmed == "where the learning rates are equal, the updates agree"


def hidden(step):
    """Return a rate whose boundaries are no constants of TF1's graph."""
    rates = tf.constant([0.1, 0.01], tf.float32)
    is_late = v1.py_func(lambda number: np.int32(number > 37_000), [step], tf.int32, stateful=False)
    return tf.gather(rates, is_late)


@pytest.mark.slow
def test_a_boundary_that_no_constant_shows_is_found():
    def of_port(boundary):
        return sgd(lambda: schedules.PiecewiseConstantDecay([boundary], [0.1, 0.01]))

    assert checked(scheduled(hidden), of_port(37_000)).ok
    (finding,) = checked(scheduled(hidden), of_port(45_000)).findings
    assert finding.title.startswith("learning rate differs in step ")


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "ok"), [(10**7, True), (11 * 10**6, False)])
def test_a_counter_of_steps_of_the_users_own_is_set(steps, ok):
    def train_op(loss):
        step = v1.get_variable("steps", (), tf.int64, initializer=v1.zeros_initializer(), trainable=False)
        return v1.train.GradientDescentOptimizer(decaying(step)).minimize(loss, step)

    check = trained(train_op, sgd(lambda: schedules.ExponentialDecay(0.1, steps, 0.5)))
    assert check.ok == ok, check.summary
    assert ("until step 10,000,000" in check.summary) == ok


@pytest.mark.slow
def test_a_rate_that_more_than_a_counter_changes_is_not_compared():
    def train_op(loss):
        step = v1.get_variable("steps", (), tf.int64, initializer=v1.zeros_initializer(), trainable=False)
        with tf.control_dependencies([v1.train.GradientDescentOptimizer(decaying(step)).minimize(loss)]):
            return v1.assign_add(step, 2)

    check = trained(train_op, sgd(lambda: schedules.ExponentialDecay(0.1, 10**7 // 2, 0.5)))
    assert check.ok, check.summary
    assert "learning rates until" not in check.summary


@pytest.mark.slow
@pytest.mark.parametrize(("decay", "ok"), [(0.01, True), (0.02, False)])
def test_the_decay_of_a_legacy_optimizer_changes_its_rate(decay, ok):
    def of_tf1(step):
        return v1.train.inverse_time_decay(0.1, step, 1, 0.01)

    assert checked(scheduled(of_tf1), lambda: tf_keras.optimizers.legacy.SGD(0.1, decay=decay)).ok == ok


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float64", "mixed_bfloat16"])
def test_learning_rates_of_a_port_with_a_dtype_policy_are_compared(policy):
    for steps, ok in ((10**7, True), (11 * 10**6, False)):
        made = migration(scheduled(decaying), sgd(lambda steps=steps: schedules.ExponentialDecay(0.1, steps, 0.5)))
        (check,) = validate(dataclasses.replace(made, dtype_policy=policy), checks=["training-steps"]).checks
        assert check.ok == ok
        if ok:
            assert "the learning rates agree until step 10,000,000" in check.summary
        else:
            assert not check.findings[0].confirmed


@pytest.mark.slow
def test_rates_that_a_function_of_the_port_computes_are_confirmed():
    class Halved(schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * keras.ops.power(0.5, keras.ops.cast(step, "float32"))

    tf1_optimizer = scheduled(lambda step: v1.train.exponential_decay(0.1, step, 1, 0.25))
    (finding,) = checked(tf1_optimizer, sgd(Halved)).findings
    assert finding.title == "number in the learning-rate schedule differs: 0.25 (TF1), 0.5 (port)"
    assert finding.confirmed == WITH_VALUE


@pytest.mark.slow
def test_rates_that_change_slowly_are_not_called_late():
    def of_tf1(step):
        return v1.train.inverse_time_decay(0.1, step, 1, 1e-6)

    made = migration(scheduled(of_tf1), sgd(lambda: schedules.InverseTimeDecay(0.1, 1, 2e-6)))
    made = dataclasses.replace(made, train=dataclasses.replace(made.train, steps=3))
    (finding,) = validate(made, checks=["training-steps"]).findings
    assert finding.title == "argument decay_rate of the learning-rate schedule differs: 1e-06 (TF1), 2e-06 (port)"


@pytest.mark.slow
def test_updates_of_later_steps_that_hold_earlier_rates_are_no_finding_of_their_own():
    """RMSprop keeps a momentum of updates, which the rates of earlier steps have scaled."""

    def tf1_optimizer():
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.045, step, 2, 0.94, staircase=True)
        return v1.train.RMSPropOptimizer(rate, decay=0.9, momentum=0.9, epsilon=1.0)

    class OwnRMSprop(keras.optimizers.RMSprop):
        def build(self, variables):
            super().build(variables)
            for velocity in self._velocities:
                velocity.assign(keras.ops.ones(velocity.shape))

    def port():
        return OwnRMSprop(schedules.ExponentialDecay(0.045, 2, 0.94), rho=0.9, momentum=0.9, epsilon=1.0)

    findings = checked(tf1_optimizer, port).findings
    assert [each.title for each in findings] == [
        "argument staircase of the learning-rate schedule differs: True (TF1), False (port)"
    ]
    assert findings[0].confirmed == "with TF1's value in the port's optimizer, the updates agree"
