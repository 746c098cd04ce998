"""`tf1_train_op`: the training op of the user, with what it does beside gradient descent, and what it leaves out."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_slim

from detrand import ArgumentError, DeterministicRandomTestTool, MigrationError, TrainStep, enable_v1_layers, validate
from detrand.validation.golden import record_golden
from detrand.validation.reference import Reference
from tests.support.step_runs import AS_WRITTEN
from tests.support.trained_classifier import INPUTS, LABELS, STEPS, cross_entropy, migration, model, shim, tf1_loss

v1 = tf.compat.v1
AVERAGE = "/ExponentialMovingAverage"


def descent(rate=0.1):
    return v1.train.GradientDescentOptimizer(rate)


def counted(loss, optimizer=None, **arguments):
    return (optimizer or descent()).minimize(loss, v1.train.get_or_create_global_step(), **arguments)


def updating(loss):
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        return counted(loss)


def forgetting_updates(loss):
    return counted(loss)


def clipping(loss):
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        variables = v1.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(v1.gradients(loss, variables), 0.1)
        return descent().apply_gradients(zip(gradients, variables, strict=True))


def training_the_last_layer(loss):
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        return counted(loss, var_list=v1.trainable_variables("logits"))


def averaging(decay=0.9, counting=False, **arguments):
    def train_op(loss):
        train = updating(loss)
        with tf.control_dependencies([train]):
            count = v1.train.get_global_step().read_value() if counting else None
            averages = v1.train.ExponentialMovingAverage(decay, count, **arguments)
            return averages.apply(v1.trainable_variables())

    return train_op


def averaging_before(loss):
    """Average the weights that a step begins with, as a script does that lacks a control dependency."""
    averages = v1.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
    with tf.control_dependencies([averages]):
        return updating(loss)


def with_two_optimizers(loss):
    slow = counted(loss, descent(0.01), var_list=v1.trainable_variables("logits"))
    fast = descent(0.1).minimize(loss, var_list=v1.trainable_variables("hidden"))
    return tf.group(slow, fast, *v1.get_collection(v1.GraphKeys.UPDATE_OPS))


def accumulating(loss):
    """Apply the mean of the gradients of two steps in every second step, as scripts for small GPUs did."""
    variables = v1.trainable_variables()
    optimizer, count = descent(), v1.train.get_or_create_global_step()
    sums = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in variables]
    gradients = v1.gradients(loss, variables)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        added = [v1.assign_add(total, each) for total, each in zip(sums, gradients, strict=True)]

    def apply():
        pairs = [(total / 2, variable) for total, variable in zip(sums, variables, strict=True)]
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.group(*[v1.assign(total, tf.zeros_like(total)) for total in sums])

    with tf.control_dependencies(added):
        number = v1.assign_add(count, 1)
    with tf.control_dependencies([number]):
        return tf.cond(tf.equal(number % 2, 0), apply, tf.no_op)


def as_slim(loss):
    """Return the value of the loss, after the update, as ``slim.learning.create_train_op`` does."""
    train = updating(loss)
    with tf.control_dependencies([train]):
        return tf.identity(loss, "train_op")


def clipping_by_slim(loss):
    with enable_v1_layers():
        clip = tf_slim.training.clip_gradient_norms_fn(0.5)
        return tf_slim.training.create_train_op(loss, descent(), transform_grads_fn=clip)


def decaying(loss):
    train = updating(loss)
    with tf.control_dependencies([train]):
        kernels = [each for each in v1.trainable_variables() if "kernel" in each.op.name]
        return tf.group(*[v1.assign_sub(kernel, 0.05 * kernel) for kernel in kernels])


def in_list(loss):
    return [counted(loss), v1.get_collection(v1.GraphKeys.UPDATE_OPS)]


def sgd(rate=0.1, **arguments):
    return lambda: keras.optimizers.SGD(rate, **arguments)


class Warm(keras.optimizers.SGD):
    """Averages as TF1 does with ``num_updates``."""

    @property
    def ema_momentum(self):
        count = keras.ops.cast(self.iterations + 1, "float32")
        return keras.ops.minimum(0.9, (1 + count) / (10 + count))

    @ema_momentum.setter
    def ema_momentum(self, value):
        pass


class AveragingBefore(keras.optimizers.SGD):
    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._update_model_variables_moving_average(trainable_variables)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _update_model_variables_moving_average(self, trainable_variables):
        pass


class Debiased(keras.optimizers.SGD):
    """Divides averages by 1 - 0.9**n in step n, as Adam does with its moments."""

    def _update_model_variables_moving_average(self, trainable_variables):
        super()._update_model_variables_moving_average(trainable_variables)
        for average in self._model_variables_moving_average:
            average.assign(average / (1 - keras.ops.power(0.9, keras.ops.cast(self.iterations + 1, "float32"))))


class SlowLastLayer(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * (0.1 if variable.shape[-1] == 3 else 1.0))


def referee(train_op):
    """Return all variables after each step of a TF1 loop written by hand."""
    with (
        DeterministicRandomTestTool(mode="num_random_ops").scope(),
        tf.Graph().as_default(),
        v1.Session(config=AS_WRITTEN) as session,
    ):
        inputs, labels = v1.placeholder(tf.float32, INPUTS.shape), v1.placeholder(tf.int64, LABELS.shape)
        tf1_loss(labels, model(inputs, training=True))
        run = train_op(v1.losses.get_total_loss())
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        session.run(v1.global_variables_initializer())
        found = []
        for _ in range(STEPS):
            session.run(run, {inputs: INPUTS, labels: LABELS})
            found.append(session.run(variables))
        return found


def trained_by(train_op, **changes):
    return migration(
        **{"tf1_optimizer": None, "tf1_train_op": train_op, "port_optimizer": sgd(), "metrics": {}, **changes}
    )


TRAIN_OPS = [updating, forgetting_updates, clipping, training_the_last_layer, averaging(), averaging(counting=True)]
TRAIN_OPS += [
    averaging(zero_debias=True),
    with_two_optimizers,
    accumulating,
    as_slim,
    clipping_by_slim,
    decaying,
    in_list,
]


@pytest.mark.parametrize("train_op", TRAIN_OPS, ids=lambda train_op: train_op.__name__)
def test_tf1_is_trained_as_in_a_session(train_op):
    training = Reference(trained_by(train_op)).training("num_random_ops")
    for number, (step, expected) in enumerate(zip(training.steps, referee(train_op), strict=True)):
        assert number > 0 or {"hidden/kernel", "bn/mean"} <= training.variables_after(0).keys()
        for name, array in training.variables_after(number).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
        averages = {name.removesuffix(AVERAGE): expected[name] for name in expected if name.endswith(AVERAGE)}
        assert step.get("weight_averages", {}).keys() == averages.keys()
        for name, average in averages.items():
            np.testing.assert_array_equal(step["weight_averages"][name], average, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train_op", "sound", "faulty", "cause", "remedy"),
    [
        (
            forgetting_updates,
            {"port": shim(updates=False)},
            {"port": shim()},
            "TF1 does not update its moving averages: bn/mean never changes",
            "run tf.GraphKeys.UPDATE_OPS with TF1's training op, or leave these updates out in the port",
        ),
        (
            updating,
            {"port": shim()},
            {"port": shim(updates=False)},
            "the port never updates bn/mean, bn/variance, which each step of TF1 updates",
            "update these variables in the port: call its layer in training mode, or assign to them",
        ),
        (
            clipping,
            {"port_optimizer": sgd(global_clipnorm=0.1)},
            {"port_optimizer": sgd()},
            "clipping of gradients differs: global norm 0.1 (TF1), none (port)",
            "pass global_clipnorm=0.1 to the port's optimizer",
        ),
        (
            training_the_last_layer,
            {"var_list": ["logits/*"]},
            {},
            "only the port trains hidden/kernel, hidden/bias",
            "freeze hidden/kernel, hidden/bias in the port, or pass TrainStep(var_list=...)",
        ),
        (
            updating,
            {},
            {"var_list": ["logits/*"]},
            "only TF1 trains hidden/kernel, hidden/bias",
            "train hidden/kernel, hidden/bias in the port, as TF1's training op does",
        ),
        (
            averaging(),
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9)},
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.99)},
            "decay of the moving averages of weights differs: 0.9 (TF1), 0.99 (port)",
            "use 0.9 in the port",
        ),
        (
            averaging(0.9999),
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9999)},
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9998)},
            "decay of the moving averages of weights differs: 0.9999 (TF1), 0.9998 (port)",
            "use 0.9999 in the port",
        ),
        (
            averaging(),
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9)},
            {"port_optimizer": sgd()},
            "only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage, decay 0.9)",
            "pass use_ema=True, ema_momentum=0.9 to the port's optimizer",
        ),
        (
            averaging(counting=True),
            {"port_optimizer": lambda: Warm(0.1, use_ema=True)},
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9)},
            "decay of the moving averages of weights in step 1 differs: 0.25 = min(decay, (1 + n) / (10 + n)) for "
            "num_updates n (TF1), 0.9 (port)",
            "use a subclass of the port's optimizer whose property ema_momentum returns min(decay, (1 + n) / (10 + "
            "n)), where n is iterations + 1",
        ),
        (
            averaging(counting=True),
            {"port_optimizer": lambda: Warm(0.1, use_ema=True)},
            {"port_optimizer": sgd()},
            "only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage, decay min(decay, (1 + "
            "n) / (10 + n)) for num_updates n)",
            "pass use_ema=True to the port's optimizer, in a subclass whose property ema_momentum returns min(decay, "
            "(1 + n) / (10 + n)), where n is iterations + 1",
        ),
        (
            averaging_before,
            {"port_optimizer": lambda: AveragingBefore(0.1, use_ema=True, ema_momentum=0.9)},
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9)},
            "TF1 averages the weights before the update, the port after it",
            "average after the update in TF1 (tf.control_dependencies), or before it in the port: Keras's use_ema "
            "averages after the update",
        ),
        (
            averaging(),
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9)},
            {"port_optimizer": lambda: AveragingBefore(0.1, use_ema=True, ema_momentum=0.9)},
            "TF1 averages the weights after the update, the port before it",
            "",
        ),
        (
            averaging_before,
            {"port_optimizer": lambda: AveragingBefore(0.1, use_ema=True, ema_momentum=0.9)},
            {"port_optimizer": sgd()},
            "only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage, decay 0.9), of the "
            "weights before the update",
            "average the weights before the update in the port, too: Keras's use_ema averages them after it",
        ),
        (
            averaging(zero_debias=True),
            {"port_optimizer": sgd(use_ema=True, ema_momentum=0.9)},
            {"port_optimizer": lambda: Debiased(0.1, use_ema=True, ema_momentum=0.9)},
            "moving averages of weights are computed differently: in the port, not as decay * average",
            "",
        ),
        (
            with_two_optimizers,
            {"port_optimizer": lambda: SlowLastLayer(0.1)},
            {"port_optimizer": sgd()},
            "the port's updates of logits/kernel, logits/bias are 10 times TF1's",
            "",
        ),
        (
            accumulating,
            {"port_optimizer": sgd(gradient_accumulation_steps=2)},
            {"port_optimizer": sgd()},
            "number of steps over which gradients are accumulated differs: 2 (TF1), 1 (port)",
            "pass gradient_accumulation_steps=2 to the port's optimizer",
        ),
        (
            accumulating,
            {"port_optimizer": sgd(gradient_accumulation_steps=2)},
            {"port_optimizer": sgd(gradient_accumulation_steps=3)},
            "number of steps over which gradients are accumulated differs: 2 (TF1), 3 (port)",
            "pass gradient_accumulation_steps=2 to the port's optimizer",
        ),
        (
            as_slim,
            {},
            {"port_optimizer": sgd(gradient_accumulation_steps=2)},
            "number of steps over which gradients are accumulated differs: 1 (TF1), 2 (port)",
            "remove this from the port",
        ),
        (
            clipping_by_slim,
            {"port_optimizer": sgd(clipnorm=0.5)},
            {"port_optimizer": sgd(global_clipnorm=0.5)},
            "clipping of gradients differs: norm of each 0.5 (TF1), global norm 0.5 (port)",
            "pass clipnorm=0.5 to the port's optimizer in place of global_clipnorm",
        ),
        (
            as_slim,
            {},
            {"port_optimizer": sgd(0.11)},
            "learning rate differs in step 0: 0.1 (TF1), 0.11 (port)",
            "use 0.1 in the port",
        ),
    ],
)
@pytest.mark.parametrize("is_faulty", [False, True], ids=["sound", "faulty"])
def test_what_the_port_lacks_is_found(train_op, sound, faulty, cause, remedy, is_faulty):
    migration = trained_by(train_op, **(faulty if is_faulty else sound))
    report = validate(migration, checks=["random-training", "training-steps"])
    assert report.ok is not is_faulty, str(report)
    if is_faulty:
        remedies = {finding.remedy for finding in report.findings if finding.title.startswith(cause)}
        assert remedies == {remedy}, str(report)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tf1_train_op": updating, "tf1_optimizer": descent},
            "takes tf1_optimizer or tf1_train_op, but both were given",
        ),
        ({}, "takes tf1_optimizer or tf1_train_op, but neither was given"),
        (
            {"tf1_train_op": 3},
            r"tf1_train_op must be a function tf1_train_op\(loss\) that .*, but 3 of type int was given",
        ),
        (
            {"tf1_train_op": lambda loss, step: None},
            r"cannot be called with one argument \(missing a required argument: 'step'\). Wrap it, as in lambda loss:",
        ),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    arguments = {"labels": LABELS, "tf1_loss": tf1_loss, "port_loss": cross_entropy(), "port_optimizer": sgd()}
    with pytest.raises(ArgumentError, match=message):
        TrainStep(**arguments, **changes)


def of_another_graph(loss):
    with tf.Graph().as_default():
        return tf.no_op("elsewhere")


@pytest.mark.parametrize(
    ("train_op", "message"),
    [
        (lambda loss: None, "returned None of type NoneType .*. Return the op that a session runs in each step"),
        (lambda loss: [], r"returned \[\] of type list"),
        (lambda loss: "train", "returned 'train' of type str"),
        (lambda loss: loss, "returned the loss itself .*trainable variables: hidden/kernel, hidden/bias, .*minimize"),
        (lambda loss: 2 * loss, r"returned <tf.Tensor .*>, which updates no trainable variable"),
        (lambda loss: tf.no_op(), "returned <tf.Operation .*>, which updates no trainable variable"),
        (lambda loss: v1.train.get_global_step().assign_add(1), "returned .*, which updates no trainable variable"),
        (
            of_another_graph,
            "returned 'elsewhere', which is not of the graph of the loss, but was made at .*_train_op.py",
        ),
    ],
)
def test_what_is_no_train_op_is_refused(train_op, message):
    with pytest.raises(MigrationError, match=f"tf1_train_op of model {message}") as raised:
        validate(trained_by(train_op))
    assert f"test_train_op.py:{train_op.__code__.co_firstlineno})" in str(raised.value)


def test_gradients_of_no_variable_are_those_of_all_that_is_updated():
    def by_hand(loss):
        """Take the gradient with respect to values that are read, which are no variables."""
        kernel = next(each for each in v1.trainable_variables() if each.op.name == "logits/bias")
        return kernel.assign_sub(0.1 * v1.gradients(loss, kernel)[0])

    (step, *_) = Reference(trained_by(by_hand)).training("num_random_ops").steps
    assert step["gradients"].keys() == {"logits/bias"}


def test_a_network_that_follows_another_one_is_not_trained():
    """A training op may assign to trainable variables that it takes no gradient of."""

    def following(loss):
        train = counted(loss, var_list=v1.trainable_variables("logits"))
        with tf.control_dependencies([train]):
            (follower,) = (each for each in v1.trainable_variables() if each.op.name == "hidden/bias")
            return follower.assign(0.5 * follower + 1.0)

    steps = Reference(trained_by(following)).training("num_random_ops").steps
    assert steps[0]["gradients"].keys() == {"logits/kernel", "logits/bias"}
    np.testing.assert_array_equal(steps[0]["moving_averages"]["hidden/bias"], np.ones(5, np.float32))


@pytest.mark.slow
def test_the_noise_of_training_is_that_of_the_train_op():
    def train_op(loss):
        return counted(loss, v1.train.AdamOptimizer(0.01))

    given = trained_by(train_op, port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8))
    given = dataclasses.replace(given, port=shim(updates=False))
    report = validate(given)
    assert report.ok, str(report)
    noise = Reference(given).training_noise("num_random_ops")
    assert not noise.remarks and all(0 < of_step["loss"].floor < 1e-5 for of_step in noise.steps)
    faulty = trained_by(train_op, port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-5))
    report = validate(dataclasses.replace(faulty, port=shim(updates=False)))
    assert not report.ok


@pytest.mark.slow
def test_the_audit_does_not_say_what_the_train_op_does_by_itself():
    clipped, averaged = (
        validate(trained_by(train_op, port_optimizer=optimizer), checks=["training-steps"])
        for train_op, optimizer in (
            (clipping, sgd(global_clipnorm=0.1)),
            (averaging(), sgd(use_ema=True, ema_momentum=0.9)),
        )
    )
    assert clipped.ok and averaged.ok
    assert "the optimizers agree" in clipped.checks[-1].summary
    assert "none differs" in str(clipped.audit) and "none differs" in str(averaged.audit)


@pytest.mark.slow
def test_a_golden_file_holds_what_the_train_op_did(tmp_path):
    recorded = trained_by(averaging(), port_optimizer=sgd(use_ema=True, ema_momentum=0.99))
    record_golden([recorded], tmp_path / "golden.npz")

    def never(loss):
        raise AssertionError

    train = dataclasses.replace(recorded.train, tf1_train_op=never)
    without_tf1 = dataclasses.replace(recorded, train=train)
    (finding,) = validate(without_tf1, golden=tmp_path / "golden.npz", checks=["training-steps"]).findings
    assert finding.title == "decay of the moving averages of weights differs: 0.9 (TF1), 0.99 (port)"
    assert "ExponentialMovingAverage(decay, count" in finding.tf1.source


@pytest.mark.slow
def test_the_moving_averages_of_weights_have_noise():
    def changed(momentum):
        averaged = trained_by(averaging(), port_optimizer=sgd(use_ema=True, ema_momentum=momentum))
        noise = Reference(averaged).training_noise("num_random_ops")
        assert any(path.startswith("weight_averages") for path in noise.steps[-1])
        return validate(averaged, checks=["training-steps"])

    assert changed(0.9).ok
    (finding,) = changed(0.99).findings
    assert finding.title == "decay of the moving averages of weights differs: 0.9 (TF1), 0.99 (port)"
