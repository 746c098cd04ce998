"""Migrations whose port is on two replicas, for `tests.test_strategy`."""

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from detrand import Migration, MigrationError, validate
from detrand.report import json
from tests import replica_programs  # gives the process two devices

v1 = tf.compat.v1
INPUTS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
KITS = {"keras": keras, "tf_keras": tf_keras}


def strategy():
    return tf.distribute.MirroredStrategy([f"CPU:{device}" for device in range(replica_programs.REPLICAS)])


def tf1(inputs, training, rate=0.5):
    def dense(x, units, name):
        kernel = v1.get_variable(f"{name}/kernel", (x.shape[-1], units))
        return tf.matmul(x, kernel) + v1.get_variable(f"{name}/bias", (units,), initializer=v1.zeros_initializer())

    hidden = tf.nn.tanh(dense(inputs, 4, "hidden"))
    if training and rate:
        hidden = tf.nn.dropout(hidden, rate=rate)
    return {"hidden": hidden, "logits": dense(hidden, 3, "logits")}


def port(kit, rate=0.5, activation="tanh"):
    inputs = kit.Input((5,))
    hidden = kit.layers.Dense(4, activation, name="hidden")(inputs)
    hidden = kit.layers.Dropout(rate)(hidden)
    return kit.Model(inputs, {"hidden": hidden, "logits": kit.layers.Dense(3, name="logits")(hidden)})


def checks(kit="keras", inputs=INPUTS, on=strategy, rate=0.5, **changes):
    """Returns what each check found, ``passed: summary`` or the like, and the verdict; or the error."""
    migration = Migration(
        tf1=lambda inputs, training: tf1(inputs, training, rate),
        tf2=lambda: port(KITS[kit], rate, **changes),
        inputs=inputs,
        strategy=on,
    )
    try:
        report = validate(migration)
    except MigrationError as error:
        return {"error": str(error)}
    marks = {(True, True): "passed", (True, False): "not compared"}
    found = {
        check.name: f"{marks.get((check.ok, check.compared), 'FAILED')}: {check.summary}" for check in report.checks
    }
    return {**found, "verdict": str(report).splitlines()[0].strip(), "json": json.render([report])}


def checks_on_a_strategy(kit):
    return checks(kit, on=strategy())


def checks_without_dropout(kit):
    return checks(kit, rate=0.0)


def checks_of_another_activation():
    return checks(rate=0.0, activation="sigmoid")


def checks_of_an_odd_batch():
    return checks(inputs=INPUTS[:5])


def checks_on_no_strategy():
    return checks(on=lambda: 3)
