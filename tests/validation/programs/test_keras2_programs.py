"""TF1 programs that are models of Keras 2, in a session."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, MigrationError, TrainStep, save_tf1_checkpoint, validate

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(4, 6, 6, 2)).astype(np.float32)


def make_model(package, rate=0.5):
    return package.Sequential(
        [
            package.Input(INPUTS.shape[1:]),
            package.layers.Conv2D(4, 3, kernel_regularizer=package.regularizers.L2(0.01), name="conv"),
            package.layers.BatchNormalization(name="norm"),
            package.layers.ReLU(),
            package.layers.Flatten(),
            package.layers.Dropout(rate),
            package.layers.Dense(3, name="logits"),
        ]
    )


def tf1(inputs, training):
    model = make_model(tf_keras)
    of_placeholders = list(model.updates)
    outputs = model(inputs, training=training)
    for update in model.updates[len(of_placeholders) :]:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    for loss in model.losses:
        v1.add_to_collection(v1.GraphKeys.REGULARIZATION_LOSSES, loss)
    return outputs


TRAIN = TrainStep(
    labels=np.zeros((4, 3), np.float32),
    tf1_loss=v1.losses.mean_squared_error,
    port_loss=keras.losses.MeanSquaredError(),
    tf1_optimizer=lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    port_optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    steps=2,
)


@pytest.fixture
def checkpoint(tmp_path):
    model = make_model(tf_keras)
    for variable in model.variables:
        variable.assign(np.random.default_rng(1).uniform(0.1, 1, variable.shape))
    save_tf1_checkpoint(model, str(tmp_path / "model.ckpt"))
    return str(tmp_path / "model.ckpt")


@pytest.mark.slow
def test_a_port_of_a_model_of_keras_2_passes_all_checks(checkpoint):
    migration = Migration(tf1=tf1, port=lambda: make_model(keras), inputs=INPUTS, train=TRAIN, checkpoint=checkpoint)
    report = validate(migration)
    assert report.ok, str(report)
    assert len(report.checks) == 10


@pytest.mark.slow
def test_a_fault_of_such_a_port_is_found():
    migration = Migration(tf1=tf1, port=lambda: make_model(keras, rate=0.25), inputs=INPUTS)
    report = validate(migration, checks=["constant-weights", "random-training"])
    assert [check.name for check in report.checks if not check.ok] == ["random-training"]
    assert "rate" in report.findings[0].title


def test_a_model_that_exists_already_is_refused():
    model = make_model(tf_keras)
    migration = Migration(tf1=lambda inputs, training: model(inputs), port=lambda: make_model(keras), inputs=INPUTS)
    with pytest.raises(MigrationError, match="cannot be run"):
        validate(migration, checks=["random-inference"])
