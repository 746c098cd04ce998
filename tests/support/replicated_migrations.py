"""Migrations whose port is on two replicas, for `tests.validation.programs.test_replicas`."""

import dataclasses
import tempfile

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from detrand import (
    DeterministicRandomTestTool,
    Migration,
    MigrationError,
    Rearranged,
    TrainStep,
    enable_v1_layers,
    track_tf1_style_variables,
    validate,
)
from detrand.report import json
from detrand.validation.golden import record_golden
from detrand.validation.training.tf1 import train_in_session
from tests.support import replica_programs  # gives the process two devices

v1 = tf.compat.v1
OF_REGULARIZATION = v1.GraphKeys.REGULARIZATION_LOSSES
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(6, 5)).astype(np.float32)
IMAGES = RNG.normal(size=(6, 4, 4, 3)).astype(np.float32)
TOKENS = np.array([[0, 1], [1, 2], [3, 3], [4, 1], [0, 4], [2, 2]])
LABELS = np.array([0, 2, 1, 1, 0, 2])
KITS = {"keras": keras, "tf_keras": tf_keras}


def called_once(layer, inputs):
    layer(inputs)
    return layer


# Newer releases of Keras divide the loss of an activity regularizer by the size of the batch.
REGULARIZED = keras.layers.Activation("linear", activity_regularizer=keras.regularizers.L2(1))
DIVIDES_ACTIVITY_LOSSES = float(called_once(REGULARIZED, np.ones((2, 1))).losses[0]) == 1


def strategy():
    return tf.distribute.MirroredStrategy([f"CPU:{device}" for device in range(replica_programs.REPLICAS)])


def dense(x, units, name, each_call_regularizes=False):
    def l2(weights):
        return 0.01 * tf.reduce_sum(weights**2)

    kernel = v1.get_variable(f"{name}/kernel", (x.shape[-1], units), regularizer=None if each_call_regularizes else l2)
    if each_call_regularizes:
        v1.losses.add_loss(l2(kernel), OF_REGULARIZATION)
    return tf.matmul(x, kernel) + v1.get_variable(f"{name}/bias", (units,), initializer=v1.zeros_initializer())


def tf1_dense(inputs, training, rate=0.5, activity=0.0, each_call_regularizes=True):
    hidden = tf.nn.tanh(dense(inputs, 4, "hidden"))
    if activity:
        count = inputs.shape[0] if DIVIDES_ACTIVITY_LOSSES else 1
        v1.losses.add_loss(activity * tf.reduce_sum(hidden**2) / count, OF_REGULARIZATION)
    if training and rate:
        hidden = tf.nn.dropout(hidden, rate=rate)
    return {"hidden": hidden, "logits": dense(hidden, 3, "logits", each_call_regularizes)}


def port_dense(kit, rate=0.5, activation="tanh", activity=None):
    inputs = kit.Input((5,))
    of = {"kernel_regularizer": kit.regularizers.L2(0.01)}
    regularizer = activity and kit.regularizers.L2(activity)
    hidden = kit.layers.Dense(4, activation, name="hidden", activity_regularizer=regularizer, **of)(inputs)
    hidden = kit.layers.Dropout(rate)(hidden)
    return kit.Model(inputs, {"hidden": hidden, "logits": kit.layers.Dense(3, name="logits", **of)(hidden)})


def tf1_convolutional(inputs, training, rate=0.5, fused=False):
    with enable_v1_layers():
        x = v1.layers.conv2d(inputs, 4, 3, use_bias=False, name="conv")
        # The moving average of a fused batch norm takes the unbiased variance, as in tf_keras; in Keras 3 it does not.
        x = v1.layers.batch_normalization(x, training=training, momentum=0.9, name="bn", fused=fused)
        x = v1.layers.dropout(tf.nn.relu(x), rate, training=training)
        return {"logits": v1.layers.dense(tf.reduce_mean(x, [1, 2]), 3, name="logits")}


def port_convolutional(kit, rate=0.5, momentum=0.9, synchronized=False):
    inputs = kit.Input((4, 4, 3))
    x = kit.layers.Conv2D(4, 3, use_bias=False, name="conv")(inputs)
    x = kit.layers.BatchNormalization(momentum=momentum, name="bn", synchronized=synchronized)(x)
    x = kit.layers.Dropout(rate)(kit.layers.Activation("relu")(x))
    x = kit.layers.Dense(3, name="logits")(kit.layers.GlobalAveragePooling2D()(x))
    return kit.Model(inputs, {"logits": x})


def tf1_embedding(inputs, training):
    table = v1.get_variable("table", (6, 5))
    inputs = tf.reduce_mean(tf.nn.embedding_lookup(table, inputs), 1)
    return tf1_dense(inputs, training, each_call_regularizes=False)  # a port that calls it adds no such loss


class Embedding(keras.layers.Layer):
    """A port that calls the TF1 code, and therefore has a sparse gradient."""

    @track_tf1_style_variables
    def call(self, inputs, training=False):
        return tf1_embedding(inputs, training)


def tf1_loss(labels, outputs):
    return v1.losses.sparse_softmax_cross_entropy(labels, outputs["logits"])


def mean_of_part(labels, outputs):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["logits"]))


def mean_of_batch(labels, outputs):
    """Return the loss as in TensorFlow's guide to training on replicas."""
    return tf.nn.compute_average_loss(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["logits"]))


def loss_of_keras(labels, outputs):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, outputs["logits"])


def keras_twice(labels, outputs):
    return loss_of_keras(labels, outputs) / replica_programs.REPLICAS


def sum_of_part(labels, outputs):
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["logits"]))


class DoesNotAggregate(tf_keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, name=None):
        return super().apply_gradients(grads_and_vars, name, skip_gradients_aggregation=True)


OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "tf_keras": lambda: tf_keras.optimizers.SGD(0.1, momentum=0.9),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "tf1": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "aggregates nothing": lambda: DoesNotAggregate(0.1, momentum=0.9),
}


def migration(tf1=tf1_dense, port=lambda: port_dense(keras), inputs=INPUTS, on=strategy, loss=None, optimizer="keras"):
    """Return a migration; with a loss, its port is trained."""
    train = TrainStep(
        labels=LABELS,
        tf1_loss=tf1_loss,
        port_loss=loss or mean_of_batch,
        tf1_optimizer=OPTIMIZERS["tf1"],
        port_optimizer=OPTIMIZERS[optimizer],
        metrics={"mean": lambda labels, outputs: tf.reduce_mean(outputs["logits"])},
        steps=2,
    )
    return Migration(tf1=tf1, port=port, inputs=inputs, strategy=on, train=train if loss else None)


def found_by(migration, golden=None):
    """Return what each check found, ``passed: summary`` or the like, with the details of a failure; or the error."""
    try:
        report = validate(migration, golden=golden)
    except MigrationError as error:
        return {"error": str(error)}
    marks = {(True, True): "passed", (True, False): "not compared"}
    found = {
        check.name: f"{marks.get((check.ok, check.compared), 'FAILED')}: {check.summary}\n{check.details}".strip()
        for check in report.checks
    }
    return {**found, "verdict": str(report).splitlines()[0].strip(), "json": json.render([report])}


def dense_network(kit="keras", rate=0.5, of_port=None, inputs=INPUTS, on=strategy, **training):
    """Return what the checks found for two dense layers with a dropout between them."""
    return found_by(
        migration(
            lambda inputs, training: tf1_dense(inputs, training, rate),
            lambda: port_dense(KITS[kit], **{"rate": rate, **(of_port or {})}),
            inputs=inputs,
            on=on,
            **training,
        )
    )


def convolutional_network(kit="keras", rate=0.5, of_port=None, **training):
    """Return what the checks found for a convolution with a batch normalization and a dropout."""
    return found_by(
        migration(
            lambda inputs, training: tf1_convolutional(inputs, training, rate, fused=kit == "tf_keras"),
            lambda: port_convolutional(KITS[kit], **{"rate": rate, **(of_port or {})}),
            inputs=IMAGES,
            **training,
        )
    )


def on_a_strategy(kit):
    return dense_network(kit, on=strategy())


def trained(network, kit):
    return globals()[network](kit, loss=mean_of_batch, optimizer=kit)


def trained_by(optimizer):
    return dense_network("tf_keras", loss=mean_of_batch, optimizer=optimizer)


def with_loss(name):
    return dense_network(loss=globals()[name])


def with_other_port(network, changes):
    return globals()[network](of_port=dict(changes), loss=mean_of_batch)


def with_sparse_gradient():
    """The port drifts, so its training is repeated guided by TF1."""
    found = migration(tf1_embedding, lambda: called_once(Embedding(), TOKENS), TOKENS, loss=mean_of_batch)
    train = dataclasses.replace(
        found.train,
        tf1_optimizer=lambda: v1.train.AdamOptimizer(0.1),
        port_optimizer=lambda: tf_keras.optimizers.Adam(0.1, epsilon=1e-8),
        steps=9,
    )
    return found_by(dataclasses.replace(found, train=train))


class DenseAdam(keras.optimizers.Adam):
    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)


def with_rows_of_both_replicas(optimizer):
    """Each replica looks up each row of its tokens once."""
    tokens = np.array([[0], [1], [2]] * 2)
    found = migration(tf1_embedding, lambda: called_once(Embedding(), tokens), tokens, loss=mean_of_batch)
    train = dataclasses.replace(
        found.train,
        tf1_optimizer=lambda: v1.train.AdamOptimizer(0.1),
        port_optimizer=lambda: globals().get(optimizer, keras.optimizers.Adam)(0.1, epsilon=1e-8),
    )
    return found_by(dataclasses.replace(found, train=train))


def with_lazy_port(kit):
    def make():
        return KITS[kit].Sequential([KITS[kit].layers.Dense(3)])

    return found_by(migration(lambda x, training: {"logits": dense(x, 3, "dense")}, make, loss=mean_of_batch))


def with_synchronized_moments(rate):
    return convolutional_network(rate=rate, of_port={"synchronized": True}, loss=mean_of_batch)


def with_activity_regularizer():
    """The mean of the activations' losses counts, and the loss of the weights counts once."""
    return found_by(
        migration(
            lambda inputs, training: tf1_dense(inputs, training, activity=0.1),
            lambda: port_dense(keras, activity=0.1),
            loss=mean_of_batch,
        )
    )


def with_a_loss_of_its_training():
    """Each tower computes a loss of its training, as the model_fn of an Estimator does; the port leaves it out."""

    def tf1(inputs, training):
        outputs = tf1_dense(inputs, training)
        v1.losses.huber_loss(inputs[:, :3], outputs["logits"])
        return outputs

    return found_by(migration(tf1, lambda: port_dense(keras), loss=mean_of_batch))


def with_features():
    """Each replica gets a part of each array in a dict, from which tf1 takes what it uses."""

    def port():
        network = port_dense(keras, activity=0.1)
        return keras.Model({"x": {"y": network.inputs[0]}}, network.output)

    return found_by(
        migration(
            lambda features, training: tf1_dense(features["x"].pop("y"), training, activity=0.1),
            port,
            {"x": {"y": INPUTS}},
            loss=mean_of_batch,
        )
    )


def towers_by_hand_and_built():
    """What two towers have computed and averaged after three steps: written by hand, and built of a migration."""
    batches = [((IMAGES,), LABELS)] * 3
    return [*_by_hand(batches), *_built(batches)]


def _by_hand(batches):
    tool = DeterministicRandomTestTool(42, "num_random_ops")
    with tool.scope(), tf.Graph().as_default(), v1.Session(config=replica_programs.AS_WRITTEN) as session:
        logits, losses = [], []
        for tower in range(2):
            part = slice(3 * tower, 3 * tower + 3)
            with v1.variable_scope(v1.get_variable_scope(), reuse=tower > 0):
                logits.append(tf1_convolutional(IMAGES[part], True)["logits"])
            losses.append(v1.losses.sparse_softmax_cross_entropy(LABELS[part], logits[-1]))
        of_first_tower = v1.get_collection(v1.GraphKeys.UPDATE_OPS)[:2]
        optimizer = OPTIMIZERS["tf1"]()
        pairs = optimizer.compute_gradients(tf.add_n(losses) / 2)
        with tf.control_dependencies([*of_first_tower, *logits, *(gradient for gradient, _ in pairs)]):
            update = optimizer.apply_gradients(pairs)
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        session.run(v1.global_variables_initializer())
        for _ in batches:
            computed, _ = session.run([logits, update])
        after = session.run([variables["bn/moving_mean"], variables["bn/moving_variance"], variables["conv/kernel"]])
        return [np.concatenate(computed), *after]


def _built(batches):
    training = train_in_session(
        migration(tf1_convolutional, inputs=IMAGES, loss=mean_of_batch), batches, "num_random_ops"
    )
    last = training.steps[-1]
    averages = last["moving_averages"]
    return [
        last["outputs"]["logits"],
        averages["bn/moving_mean"],
        averages["bn/moving_variance"],
        last["weights"]["conv/kernel"],
    ]


def with_variables_made_anew(rate):
    """TF1 code whose `tf.Variable` cannot be shared with another tower."""

    def tf1(inputs, training):
        outputs = tf1_dense(inputs, training, rate)
        scale = tf.Variable(1.0, name="scale")
        return {name: output * scale for name, output in outputs.items()}

    found = migration(tf1, lambda: Scaled(port_dense(keras, rate)), loss=mean_of_batch)
    return found_by(dataclasses.replace(found, name_map={"scale": "scaled/scale"}))


class Scaled(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.built = True

    def call(self, inputs, training=False):
        outputs = self.model(inputs, training=training)
        return {name: output * self.scale for name, output in outputs.items()}


def with_rearranged_variables():
    def tf1(inputs, training):
        whole = v1.get_variable("whole", (6, 3), initializer=v1.constant_initializer(0.1))
        return {"logits": tf.matmul(inputs, whole[:5]) + whole[5]}

    def port():
        constant, inputs = keras.initializers.Constant(0.1), keras.Input((5,))
        head = keras.layers.Dense(3, kernel_initializer=constant, bias_initializer=constant, name="head")
        return keras.Model(inputs, {"logits": head(inputs)})

    name_map = {"whole": Rearranged(["head/kernel", "head/bias"], lambda whole: (whole[:5], whole[5]))}
    return found_by(dataclasses.replace(migration(tf1, port, loss=mean_of_batch), name_map=name_map))


def from_golden_file():
    given = migration(loss=mean_of_batch)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/golden.npz"
        record_golden([given], path)
        return found_by(given, golden=path)


def of_an_odd_batch():
    return dense_network(inputs=INPUTS[:5])


def on_no_strategy():
    return dense_network(on=lambda: 3)
