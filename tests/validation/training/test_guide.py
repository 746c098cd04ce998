"""The official guide "debug the migrated training pipeline", in our own words: it passes, over 12 steps.

With TensorFlow's own tool it does not: the initializers of tf_keras and Keras 3 draw from stateless ops, which
that tool does not see.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import DeterministicRandomTestTool, assert_allclose, enable_v1_layers

STEPS = 12
UNITS = (2, 2, 3)
LEARNING_RATE = {"first": 1e-3, "last": 0.0, "steps": 1000, "power": 1.0}
FEATURES = np.ones((2, 3), np.float32)
LABELS = np.eye(2, 3, dtype=np.float32)


def train_in_session():
    """The TF1 program: what each step computes before it updates the weights."""
    inputs = tf.compat.v1.placeholder(tf.float32, (None, FEATURES.shape[1]))
    labels = tf.compat.v1.placeholder(tf.float32, (None, UNITS[-1]))
    outputs = [inputs]
    for units in UNITS:
        outputs.append(tf.compat.v1.layers.dense(outputs[-1], units))
    loss = tf.compat.v1.losses.softmax_cross_entropy(labels, outputs[-1])
    step = tf.compat.v1.train.get_or_create_global_step()
    rate = tf.compat.v1.train.polynomial_decay(
        LEARNING_RATE["first"], step, LEARNING_RATE["steps"], LEARNING_RATE["last"], LEARNING_RATE["power"]
    )
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(rate)
    gradients = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients(gradients, step)
    fetches = {
        "learning rate": rate,
        "loss": loss,
        "layer outputs": outputs[1:],
        "gradients": [gradient for gradient, _ in gradients],
    }
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        feeds = {inputs: FEATURES, labels: LABELS}
        steps = []
        for _ in range(STEPS):
            steps.append(session.run(fetches, feeds))
            session.run(train, feeds)
        return steps


def train_port(kit, compiled):
    """The port, in Keras 3 or tf_keras: the same, step by step."""
    layers = [kit.layers.Dense(units) for units in UNITS]
    schedule = kit.optimizers.schedules.PolynomialDecay(
        LEARNING_RATE["first"], LEARNING_RATE["steps"], LEARNING_RATE["last"], LEARNING_RATE["power"]
    )
    optimizer = kit.optimizers.SGD(schedule)
    cross_entropy = kit.losses.CategoricalCrossentropy(from_logits=True)

    def weights():
        return [weight for layer in layers for weight in layer.trainable_weights]

    def forward():
        with tf.GradientTape() as tape:
            outputs = [tf.constant(FEATURES)]
            for layer in layers:
                outputs.append(layer(outputs[-1]))
            loss = cross_entropy(LABELS, outputs[-1])
        variables = [weight if isinstance(weight, tf.Variable) else weight.value for weight in weights()]
        return {"loss": loss, "layer outputs": outputs[1:], "gradients": tape.gradient(loss, variables)}

    run = tf.function(forward) if compiled else forward
    steps = []
    for step in range(STEPS):
        computed = run()
        steps.append({"learning rate": schedule(step), **computed})
        optimizer.apply_gradients(zip(computed["gradients"], weights(), strict=True))
    return steps


@pytest.mark.slow_except("*-eager", "constant-tf_keras-function")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
@pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
def test_port_trains_as_the_session_does(mode, kit, compiled):
    with enable_v1_layers(), DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default():
        reference = train_in_session()
    with DeterministicRandomTestTool(mode=mode).scope():
        port = train_port(kit, compiled)
    assert_allclose(port, reference)
    np.testing.assert_array_equal(port[0]["layer outputs"][0], reference[0]["layer outputs"][0])


def test_the_compared_numbers_change_from_step_to_step():
    """The numbers that are compared do change from step to step."""
    with enable_v1_layers(), DeterministicRandomTestTool().scope(), tf.Graph().as_default():
        reference = train_in_session()
    losses = [float(step["loss"]) for step in reference]
    assert sorted(set(losses), reverse=True) == losses
