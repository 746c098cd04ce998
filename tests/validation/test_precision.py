"""Ports under a dtype policy: sound ports pass, faults are found, and the policy of the process is restored."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    Migration,
    MigrationError,
    Tolerance,
    TrainStep,
    validate,
)
from detrand.comparison.closeness import Closeness
from detrand.random_tool import stream_of
from detrand.validation.golden import record_golden
from detrand.validation.precision import PolicyTolerance
from tests.support.causes import without_lines
from tests.support.reports import failed

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2])
MIXED = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
PURE = ("float16", "bfloat16", "float64")


def dense(inputs, units, name):
    kernel = v1.get_variable(f"{name}/kernel", (inputs.shape[-1], units))
    return tf.matmul(inputs, kernel) + v1.get_variable(f"{name}/bias", (units,), initializer=v1.zeros_initializer())


def tf1(inputs, training):
    hidden = tf.nn.tanh(dense(inputs, 8, "hidden"))
    if training:
        hidden = tf.nn.dropout(hidden, rate=0.5)
    return dense(hidden, 3, "logits")


def port(kit, rate=0.5, activation="tanh"):
    def make():
        inputs = kit.Input((5,))
        hidden = kit.layers.Dropout(rate)(kit.layers.Dense(8, activation, name="hidden")(inputs))
        return kit.Model(inputs, kit.layers.Dense(3, name="logits")(hidden))

    return make


def training(kit, optimizer, **arguments):
    return TrainStep(
        labels=LABELS,
        tf1_loss=v1.losses.sparse_softmax_cross_entropy,
        port_loss=kit.losses.SparseCategoricalCrossentropy(from_logits=True),
        tf1_optimizer=lambda: v1.train.MomentumOptimizer(0.5, 0.9),
        port_optimizer=optimizer,
        steps=3,
        **arguments,
    )


def migration(kit=keras, policy="mixed_bfloat16", **changes):
    return Migration(**{"tf1": tf1, "port": port(kit), "inputs": INPUTS, "dtype_policy": policy, **changes})


def policies():
    return keras.config.dtype_policy().name, tf_keras.mixed_precision.global_policy().name


@pytest.fixture(autouse=True)
def the_policy_is_restored():
    before = policies()
    yield
    assert policies() == before == ("float32", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("policy", MIXED)
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_sound_ports_pass(kit, policy):
    scaled = kit.optimizers.LossScaleOptimizer if kit is keras else kit.mixed_precision.LossScaleOptimizer
    train = training(kit, lambda: scaled(kit.optimizers.SGD(0.5, momentum=0.9)))
    report = validate(migration(kit, policy, train=train))
    assert report.ok, str(report)
    assert report.tolerance.endswith(f"8 epsilons of {MIXED[policy]}")
    found = {check.name: check for check in report.checks}
    (leaf,) = found["random-training"].comparisons["outputs"].leaves
    assert leaf.actual.dtype == MIXED[policy]
    assert leaf.greatest_absolute.amount > 1e-5  # float32 would be closer
    assert f"port in {policy}" in found["random-inference"].summary
    assert "gradients" in found["training-steps"].trainings["eagerly"].steps[0]
    summary = found["training-steps"].summary
    assert "optimizers agree" not in summary and "optimizers not probed" not in summary  # which is not tried


@pytest.mark.slow
@pytest.mark.parametrize("policy", PURE)
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_sound_ports_with_variables_of_the_dtype_pass(kit, policy):
    def regularized_port():
        inputs = kit.Input((5,))
        of = {"kernel_regularizer": kit.regularizers.L2(0.01)}
        hidden = kit.layers.Dropout(0.5)(kit.layers.Dense(8, "tanh", name="hidden", **of)(inputs))
        return kit.Model(inputs, kit.layers.Dense(3, name="logits", **of)(hidden))

    def regularized(inputs, training):
        with v1.variable_scope("", regularizer=lambda weights: 0.01 * tf.reduce_sum(weights**2)):
            outputs = tf1(inputs, training)
        losses = v1.get_collection_ref(v1.GraphKeys.REGULARIZATION_LOSSES)
        losses[:] = losses[::2]  # of the kernels
        return outputs

    train = training(kit, lambda: kit.optimizers.SGD(0.5, momentum=0.9))
    report = validate(migration(kit, policy, tf1=regularized, port=regularized_port, train=train))
    assert report.ok, str(report)
    found = {check.name: check for check in report.checks}
    assert found["variables-match"].summary.endswith(f"(float32 in TF1 is {policy} in the port)")
    (leaf,) = found["random-training"].comparisons["outputs"].leaves
    assert leaf.actual.dtype == policy
    # With a port in float64, only TF1 rounds, in float32.
    assert report.tolerance.endswith(f"8 epsilons of {'float32' if policy == 'float64' else policy}")


@pytest.mark.slow
def test_a_loss_that_is_not_scaled_back_fails():
    class Forgets(keras.optimizers.SGD):
        def scale_loss(self, loss):
            return loss * 2.0

    forgetting = migration(train=training(keras, lambda: Forgets(0.5, momentum=0.9)))
    report = validate(forgetting, checks=["training-steps"])
    assert failed(report) == {"training-steps"}
    assert ", weights[" in report.checks[-1].summary


@tf.custom_gradient
def with_greater_gradient(x):
    return tf.identity(x), lambda upstream: 1.5 * upstream


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*MIXED, "float16", "bfloat16"])
def test_gradients_may_differ_by_their_noise_under_rounding(policy):
    """A relu's gradient jumps where rounding changes a sign. The steps are so small that weights do not show it."""

    def relu_tf1(inputs, training):
        return dense(tf.nn.relu(dense(inputs, 8, "hidden")), 3, "logits")

    def relu_port(change=lambda x: x):
        inputs = keras.Input((5,))
        hidden = keras.layers.Lambda(change)(keras.layers.Dense(8, "relu", name="hidden")(inputs))
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))

    train = dataclasses.replace(
        training(keras, lambda: keras.optimizers.SGD(0.001)),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.001),
    )
    sound = migration(policy=policy, tf1=relu_tf1, port=relu_port, train=train)
    report = validate(sound, checks=["training-steps"])
    assert report.ok, str(report)
    assert {"gradients", "weights"} <= report.checks[-1].trainings["in a tf.function"].steps[0].keys()
    faulty = dataclasses.replace(sound, port=lambda: relu_port(with_greater_gradient))
    report = validate(faulty, checks=["training-steps"])
    assert failed(report) == {"training-steps"}
    assert "first: step 0, gradients['hidden/" in report.checks[-1].summary


@pytest.mark.slow
@pytest.mark.parametrize("beta_2", [0.999, 0.9991], ids=["sound", "faulty"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_updates_of_a_port_in_float64_are_held_to_the_rounding_of_tf1(kit, beta_2):
    """A bias that starts at 0 is nothing but its updates, which Adam of TF1 and of Keras rounds by up to 1e-5."""
    train = dataclasses.replace(
        training(kit, lambda: kit.optimizers.Adam(0.01, beta_2=beta_2, epsilon=1e-8)),
        tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01),
    )
    report = validate(migration(kit, "float64", train=train), checks=["training-steps"])
    assert failed(report) == (set() if beta_2 == 0.999 else {"training-steps"}), str(report)
    assert "raised" not in report.checks[-1].summary


@pytest.mark.slow_except("mixed_float16")
@pytest.mark.parametrize("policy", [*MIXED, *PURE])
def test_the_first_divergence_is_reported(policy):
    report = validate(migration(policy=policy, port=port(keras, rate=0.3)), checks=["random-training"])
    found = {check.name: check for check in report.checks}["random-training"]
    assert "TF1 computes       dropout/Mul (Mul) at" in found.details
    assert "input 1 differs: 2.0 (TF1), 1.42857" in found.details
    assert without_lines(found.causes[0]) == "dropout rate differs: 0.5 (TF1), 0.3 (port)"
    assert not any("dtype" in cause for cause in found.causes)


@pytest.mark.slow
def test_a_golden_file_of_no_policy_has_no_rounding_to_compare_with(tmp_path):
    train = training(keras, lambda: keras.optimizers.SGD(0.5, momentum=0.9))
    given = migration(port=port(keras, rate=0.3), train=train, policy=None)
    record_golden([given], tmp_path / "golden.npz")
    report = validate(dataclasses.replace(given, dtype_policy="mixed_bfloat16"), golden=tmp_path / "golden.npz")
    found = {check.name: check for check in report.checks}
    assert without_lines(found["random-training"].causes[0]) == "dropout rate differs: 0.5 (TF1), 0.3 (port)"
    assert "the golden file was recorded without the dtype policy" in found["training-steps"].summary


@pytest.mark.slow
def test_gradients_are_compared_where_a_tolerance_is_given():
    tolerances = [Tolerance(rtol=0.0, atol=0.05, of="gradients")]
    train = training(keras, lambda: keras.optimizers.SGD(0.5, momentum=0.9), tolerances=tolerances)
    (found,) = validate(migration(train=train), checks=["training-steps"]).checks
    assert found.ok, found.details
    assert "gradients are not" not in found.summary
    leaves = found.trainings["eagerly"].steps[0]["gradients"].leaves
    assert {leaf.atol for leaf in leaves} == {0.05}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"rate": 0.4}, {"random-training", "constant-mode"}),
        ({"activation": "sigmoid"}, {"constant-weights", "random-inference", "random-training", "constant-mode"}),
    ],
    ids=["rate", "activation"],
)
@pytest.mark.parametrize("policy", [*MIXED, *PURE])
def test_faults_are_found(policy, changes, failing):
    report = validate(migration(policy=policy, port=port(keras, **changes)))
    assert failed(report) == failing


@pytest.mark.slow
def test_a_tolerance_of_the_user_takes_precedence():
    report = validate(migration(tolerances=[Tolerance(rtol=1e-6, atol=1e-5)]))
    assert failed(report) == {"constant-weights", "random-inference", "random-training", "constant-mode"}
    assert report.tolerance == "rtol=1e-06, atol=1e-05"
    assert validate(migration(tolerances=[Tolerance(rtol=1e-6, atol=0.1)])).ok


def test_the_tolerance_is_eight_epsilons_of_the_greatest_element():
    outputs = {"a*": np.float32([0.5, -4.0]), "ab": np.float32([1.0, 0.0]), "c": np.arange(3)}
    closeness_of = PolicyTolerance("mixed_float16").closeness(outputs)
    assert closeness_of("['a*']") == Closeness(2**-7, 2**-5, equal_nan=False)
    assert closeness_of("['ab']") == Closeness(2**-7, 2**-7, equal_nan=False)
    assert closeness_of("['c']") == Closeness(0.0, 0.0, equal_nan=False)


@pytest.mark.parametrize("dtype", PURE)
@pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
def test_layers_draw_what_float32_draws(dtype, mode):
    """Masks, noise and initial weights are those of a session in float32."""
    shape = (64,)
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default(), v1.Session() as session:
        mask, normal, uniform = session.run(
            [tf.nn.dropout(tf.ones(shape), rate=0.5), tf.random.normal(shape), tf.random.uniform(shape)]
        )
    tool = DeterministicRandomTestTool(mode=mode)
    stream_of(tool).keras_draws_float32 = True
    with tool.scope():
        drawn = [
            keras.layers.Dropout(0.5, dtype=dtype)(tf.ones(shape, dtype), training=True),
            keras.random.normal(shape, dtype=dtype),
            keras.random.uniform(shape, dtype=dtype),
        ]
    for actual, desired in zip(drawn, (mask, normal, uniform), strict=True):
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, tf.cast(desired, dtype))
    assert {op.dtype for op in tool.random_ops} == {"float32"}


def test_the_policy_is_restored_after_an_exception():
    def broken():
        assert policies() == ("mixed_bfloat16", "mixed_bfloat16")
        raise OverflowError("too much")

    with pytest.raises(MigrationError, match="too much"):
        validate(migration(port=broken))


@pytest.mark.parametrize("policy", ["float32", "mixed", 16])
def test_unknown_policies_are_refused(policy):
    with pytest.raises(ArgumentError, match=r"must be one of 'mixed_float16', .*, 'float64', but .* was given. Leave"):
        migration(policy=policy)


def test_a_checkpoint_cannot_be_combined_with_variables_of_a_different_dtype():
    with pytest.raises(
        ArgumentError, match="cannot be combined with dtype_policy='float16': the checkpoint holds float32"
    ):
        migration(policy="float16", checkpoint="model.ckpt")
