"""Gradients in slices: the rows of embedding tables."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import track_tf1_style_variables
from tests.support.trained_classifier import check, faulty_metric, first_divergence, mean_logit

v1 = tf.compat.v1


@pytest.mark.slow
def test_a_repeated_step_updates_as_few_rows():
    """TF1's momentum moves the rows alone that a step looks up; so it does when it is given TF1's gradients."""

    def embedded(ids, training):
        return tf.reduce_sum(tf.nn.embedding_lookup(v1.get_variable("table", (5, 3)), ids), 1)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return embedded(ids, training)

    optimizer = functools.partial(v1.train.MomentumOptimizer, 0.1, 0.9)
    found = check(
        tf1=embedded,
        port=Port,
        inputs=lambda: [np.array([[0, 2], [2, 2], [3, 0]] * 2), np.array([[1, 4], [1, 1], [4, 4]] * 2)],
        tf1_optimizer=optimizer,
        port_optimizer=optimizer,
        metrics={"mean": (mean_logit, faulty_metric)},
    )
    assert first_divergence(found) == (0, "metrics['mean']")
    assert all(step["weights"].ok for step in found.trainings["eagerly"].steps.values()), found.details


AGAIN = np.array([[0, 2], [2, 2], [3, 0]] * 2)  # rows of a table, some of them looked up again
ONCE = np.arange(12).reshape(6, 2)


class DenseAdam(keras.optimizers.Adam):
    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


def looked_up(ids, port_optimizer, tf1_optimizer=lambda: v1.train.AdamOptimizer(0.01)):
    def embedded(ids, training):
        return tf.reduce_mean(tf.nn.embedding_lookup(v1.get_variable("table", (12, 3)), ids), 1)

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return embedded(ids, training)

    return check(tf1=embedded, port=Port, inputs=ids, tf1_optimizer=tf1_optimizer, port_optimizer=port_optimizer)


@pytest.mark.slow
def test_a_penalty_of_the_rows_looked_up_in_place_of_all_rows_is_no_fault_of_the_optimizer():
    def embedded(ids, training):
        table = v1.get_variable("table", (12, 3), regularizer=lambda table: 0.1 * tf.reduce_sum(table**2))
        return tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)

    class Port(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(name="table", shape=(12, 3))

        def call(self, ids):
            rows = keras.ops.take(self.table, ids, axis=0)
            self.add_loss(0.1 * keras.ops.sum(rows**2))
            return keras.ops.mean(rows, 1)

    momentum = functools.partial(v1.train.MomentumOptimizer, 0.1, 0.9)
    found = check(
        tf1=embedded,
        port=Port,
        inputs=AGAIN,
        tf1_optimizer=momentum,
        port_optimizer=functools.partial(keras.optimizers.SGD, 0.1, 0.9),
    )
    (finding,) = found.findings
    assert finding.kind == "regularizers", found.details
    for steps in (training.steps for training in found.trainings.values()):
        assert all(compared["updates"] for compared in steps.values() if "updates" in compared)


@pytest.mark.slow
def test_slices_that_keras_squares_one_by_one_are_a_cause():
    found = looked_up(AGAIN, lambda: keras.optimizers.Adam(0.01, epsilon=1e-8))
    assert not found.ok
    assert found.causes[0].startswith("gradients of table come in slices: TF1's optimizers add up the slices of a row")
    assert found.findings[0].remedy.startswith("pass tf.convert_to_tensor(gradient) to Keras's Adam;")
    for way in ("eagerly", "in a tf.function"):
        step = found.trainings[way].steps[0]
        assert {name for name, compared in step.items() if not compared} == {"weights", "slots"}


@pytest.mark.slow
@pytest.mark.parametrize("ids", [AGAIN, ONCE], ids=["again", "once"])
def test_an_argument_of_the_optimizer_that_changes_no_other_variable_is_not_the_cause(ids):
    def network(ids, training):
        rows = tf.reduce_mean(tf.nn.embedding_lookup(v1.get_variable("table", (12, 3)), ids), 1)
        return rows @ v1.get_variable("kernel", (3, 3))

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return network(ids, training)

    found = check(
        tf1=network,
        port=Port,
        inputs=ids,
        tf1_optimizer=lambda: v1.train.AdagradOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.Adagrad(0.1, epsilon=1e-7),
    )
    assert found.ok is (ids is ONCE), found.details
    if not found.ok:
        first, second = found.causes[:2]
        assert first.startswith("gradients of table come in slices: TF1's optimizers add up the slices of a row")
        assert second == "epsilon differs in the optimizer: 0 (TF1), 1e-07 (port)"


@pytest.mark.slow
def test_examples_without_weight_have_no_slices_that_keras_squares():
    weights = np.array([1, 0, 1], np.float32)

    def tf1_loss(labels, outputs):
        return tf.reduce_mean(weights[:, np.newaxis] * (outputs - labels) ** 2)

    (finding,) = check(
        tf1=lambda ids, training: tf.gather(v1.get_variable("table", (12, 3)), ids),
        port=LookedUpOnce,
        inputs=np.array([0, 0, 1]),
        labels=np.ones([3, 3], np.float32),
        tf1_loss=tf1_loss,
        port_loss=lambda labels, outputs: 0.8 * tf1_loss(labels, outputs),
        tf1_optimizer=lambda: v1.train.AdagradOptimizer(0.1),
        port_optimizer=lambda: keras.optimizers.Adagrad(0.1, epsilon=0.0),
        metrics={},
    ).findings
    assert finding.title.startswith("loss: only the port multiplies by 0.8"), finding.title


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ids", "optimizer"),
    [
        (ONCE, lambda: keras.optimizers.Adam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: DenseAdam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: tf_keras.optimizers.Adam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: tf_keras.optimizers.legacy.Adam(0.01, epsilon=1e-8)),
        (AGAIN, lambda: v1.train.AdamOptimizer(0.01)),
    ],
    ids=["keras_each_row_once", "keras_dense_gradients", "tf_keras", "tf_keras_legacy", "tf1"],
)
def test_slices_of_a_row_are_added_up(ids, optimizer):
    found = looked_up(ids, optimizer)
    assert found.ok, found.details


class LookedUp(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, ids, training=False):
        return tf.gather(v1.get_variable("table", (12, 3)), ids[:, 0])


class LookedUpOnce(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, ids, training=False):
        return tf.gather(v1.get_variable("table", (12, 3)), ids)


@pytest.mark.slow
def test_slices_that_keras_adds_up_agree():
    """A guided port has as many slices as before, whose sum is TF1's gradient."""
    found = check(
        tf1=lambda ids, training: tf.gather(v1.get_variable("table", (12, 3)), ids[:, 0]),
        port=LookedUp,
        inputs=AGAIN,
        metrics={"mean": (mean_logit, faulty_metric)},
        tf1_optimizer=functools.partial(v1.train.GradientDescentOptimizer, 0.1),
        port_optimizer=functools.partial(keras.optimizers.SGD, 0.1),
    )
    assert first_divergence(found) == (0, "metrics['mean']")
    assert all(step["weights"].ok for step in found.trainings["eagerly"].steps.values()), found.details


class GloballyClipped(v1.train.AdamOptimizer):
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars, strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
        return super().apply_gradients(zip(gradients, variables, strict=True), global_step, name)


def looked_up_and_multiplied(ids, training):
    rows = tf.gather(v1.get_variable("table", (12, 3)), ids[:, 0])
    return tf.matmul(rows, v1.get_variable("kernel", (3, 3)))


class LookedUpAndMultiplied(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, ids, training=False):
        return looked_up_and_multiplied(ids, training)


@pytest.mark.slow
def test_clipping_of_slices_that_an_optimizer_applies_without_a_kernel_is_named():
    """TF1's Adam updates rows by several ops."""

    (finding,) = check(
        tf1=looked_up_and_multiplied,
        port=LookedUpAndMultiplied,
        inputs=ONCE,
        tf1_optimizer=lambda: GloballyClipped(0.01),
        port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8, clipnorm=0.05),
    ).findings
    assert finding.title == "clipping of gradients differs: global norm 0.05 (TF1), norm of each 0.05 (port)"
    assert finding.confirmed == "with the gradients that TF1 applies, the updates agree"


class DenseSGD(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(grad) for grad in grads], trainable_variables)


def clipped(tf1_optimizer, densify, loss):
    variables = v1.trainable_variables()
    gradients = [tf.convert_to_tensor(each) if densify else each for each in tf.gradients(loss, variables)]
    gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
    return tf1_optimizer(0.01).apply_gradients(zip(gradients, variables, strict=True))


OF_SLICES = "TF1 clips gradients by the norm of their slices, before it adds up the slices of a row"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tf1_optimizer", "port_optimizer", "densify", "titles"),
    [
        (v1.train.AdamOptimizer, lambda: DenseAdam(0.01, epsilon=1e-8, global_clipnorm=0.05), False, [OF_SLICES]),
        (v1.train.GradientDescentOptimizer, lambda: DenseSGD(0.01, global_clipnorm=0.05), False, [OF_SLICES]),
        (v1.train.AdamOptimizer, lambda: DenseAdam(0.01, epsilon=1e-8, global_clipnorm=0.05), True, []),
        (v1.train.GradientDescentOptimizer, lambda: DenseSGD(0.01, global_clipnorm=0.05), True, []),
        (v1.train.AdamOptimizer, lambda: tf_keras.optimizers.Adam(0.01, epsilon=1e-8, global_clipnorm=0.05), False, []),
    ],
    ids=["Adam", "gradient descent", "Adam and sums in TF1", "gradient descent and sums in TF1", "slices"],
)
def test_a_norm_of_slices_is_a_cause_where_the_port_clips_by_that_of_sums(
    tf1_optimizer, port_optimizer, densify, titles
):
    found = check(
        tf1=looked_up_and_multiplied,
        port=LookedUpAndMultiplied,
        inputs=AGAIN,
        tf1_optimizer=None,
        tf1_train_op=functools.partial(clipped, tf1_optimizer, densify),
        port_optimizer=port_optimizer,
    )
    assert [finding.title for finding in found.findings] == titles, found.details


@pytest.mark.slow
def test_slices_of_another_dtype_are_clipped_as_well():
    def tf1(ids, training):
        rows = tf.gather(v1.get_variable("table", (12, 3), tf.float64), ids[:, 0])
        return tf.matmul(tf.cast(rows, tf.float32), v1.get_variable("kernel", (3, 3)))

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, ids, training=False):
            return tf1(ids, training)

    def train_op(loss):
        variables = v1.trainable_variables()
        gradients = [tf.clip_by_norm(each, 10.0) for each in tf.gradients(loss, variables)]
        return v1.train.GradientDescentOptimizer(0.01).apply_gradients(zip(gradients, variables, strict=True))

    found = check(
        tf1=tf1,
        port=Port,
        inputs=AGAIN,
        tf1_optimizer=None,
        tf1_train_op=train_op,
        port_optimizer=lambda: v1.train.GradientDescentOptimizer(0.01),
    )
    assert "all 4 steps identical" in found.summary, found.details  # the probe clips larger gradients


@pytest.mark.slow
def test_a_port_that_does_not_clip_is_not_said_to_clip_by_sums():
    (finding,) = check(
        tf1=looked_up_and_multiplied,
        port=LookedUpAndMultiplied,
        inputs=AGAIN,
        tf1_optimizer=None,
        tf1_train_op=functools.partial(clipped, v1.train.GradientDescentOptimizer, False),
        port_optimizer=lambda: DenseSGD(0.01),
    ).findings
    assert finding.title != OF_SLICES and "clip" in finding.title, finding.title


SOME_ROWS = np.array([[0, 2], [2, 1], [3, 0]] * 2)  # of the table, the same ones in each step
ROWS_STAY = "only the port updates rows of table that have no gradient"


class OneHot(keras.layers.Layer):
    """Multiplies by the whole table, so that its gradient is dense."""

    def build(self, shape):
        self.table = self.add_weight(name="table", shape=(12, 3))

    def call(self, ids, training=False):
        return keras.ops.mean(keras.ops.matmul(keras.ops.one_hot(ids, 12), self.table), 1)


class LookedUpTwice(OneHot):
    def call(self, ids, training=False):
        return keras.ops.mean(keras.ops.take(self.table, ids, axis=0), 1)


def tf1_momentum():
    return v1.train.MomentumOptimizer(0.1, 0.9)


def keras_momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def averaged_rows(port, tf1_optimizer, port_optimizer, ids=SOME_ROWS, rows=lambda ids: ids):
    def embedded(ids, training):
        return tf.reduce_mean(tf.nn.embedding_lookup(v1.get_variable("table", (12, 3)), rows(ids)), 1)

    return check(tf1=embedded, port=port, inputs=ids, tf1_optimizer=tf1_optimizer, port_optimizer=port_optimizer)


@pytest.mark.slow_except("other rows-one hot with TF1's optimizer")
@pytest.mark.parametrize(
    ("port", "port_optimizer"),
    [(LookedUpTwice, keras_momentum), (OneHot, keras_momentum), (OneHot, tf1_momentum)],
    ids=["slices", "one hot", "one hot with TF1's optimizer"],
)
@pytest.mark.parametrize("ids", [SOME_ROWS, lambda: [SOME_ROWS, SOME_ROWS + 1]], ids=["same rows", "other rows"])
def test_rows_that_only_tf1_leaves_as_they_are_are_named(port, port_optimizer, ids):
    found = averaged_rows(port, tf1_momentum, port_optimizer, ids)
    (finding,) = found.findings
    assert (finding.title, finding.confirmed) == (ROWS_STAY, "the updates of all other rows agree")
    assert finding.remedy.startswith("return the optimizer of tf.compat.v1.train in the port, and read the rows")


class PositionsInKeras(OneHot):
    def call(self, ids, training=False):
        return keras.ops.mean(keras.ops.reshape(self.table, (6, 2, 3)), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("port", "optimizers", "rows"),
    [
        (LookedUpTwice, (tf1_momentum, tf1_momentum), lambda ids: ids),
        (LookedUpTwice, (v1.train.GradientDescentOptimizer, keras.optimizers.SGD), lambda ids: ids),
        (PositionsInKeras, (tf1_momentum, keras_momentum), lambda ids: np.arange(12).reshape(6, 2)),
        (PositionsInKeras, (tf1_momentum, keras_momentum), lambda ids: tf.reshape(tf.range(tf.size(ids)), ids.shape)),
    ],
    ids=["TF1's optimizer", "no momentum", "constant rows", "rows of a shape"],
)
def test_rows_are_probed_only_where_inputs_choose_them(port, optimizers, rows):
    tf1_optimizer, port_optimizer = (
        (lambda each=each: each(0.1)) if isinstance(each, type) else each for each in optimizers
    )
    found = averaged_rows(port, tf1_optimizer, port_optimizer, rows=rows)
    assert found.ok and "the optimizers agree" in found.summary, found.details


@pytest.mark.slow
def test_a_table_whose_every_row_is_looked_up_in_each_step_is_probed_as_a_whole():
    found = averaged_rows(OneHot, tf1_momentum, keras_momentum, np.arange(12).reshape(6, 2))
    assert found.ok and "the optimizers agree" in found.summary, found.details


class Halved(v1.train.GradientDescentOptimizer):
    """Gradient descent with half of the gradients."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        halved = [(0.5 * tf.convert_to_tensor(gradient), variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(halved, global_step, name)


@pytest.mark.slow
def test_slices_are_no_cause_where_optimizers_keep_no_slots():
    found = looked_up(AGAIN, lambda: keras.optimizers.SGD(0.1), lambda: Halved(0.1))
    assert found.causes == ("factor of the gradients differs: 0.5 (TF1), 1 (port)",)
