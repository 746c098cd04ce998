"""`forward_pass`: the placeholders and optimizers of TF1 models, in a session, in eager code and in a function."""

import threading

import keras
import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf

from detrand import (
    ArgumentError,
    Migration,
    TF1CodeError,
    forward_pass,
    track_tf1_style_variables,
    validate,
    variables_of,
)

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


class Classifier:
    """A model that makes its own placeholders and its training op, as models of 2017 do."""

    def __init__(self, units):
        with tf.name_scope("inputs"):
            self.x = tf.placeholder(tf.float32, [None, 3], name="x")
            self.labels = tf.placeholder(tf.float32, [None, units], "labels")
        self.keep_prob = tf.placeholder_with_default(1.0, [], name="keep_prob")
        kernel = tf.get_variable("kernel", [3, units])
        self.logits = tf.matmul(tf.nn.dropout(self.x, self.keep_prob), kernel)
        self.loss = tf.reduce_mean((self.logits - self.labels) ** 2)
        self.train = tf.train.AdamOptimizer(0.1).minimize(self.loss, tf.train.get_or_create_global_step())


def tf1(x, training):
    with forward_pass({"inputs/x": x, "inputs/labels": np.zeros((4, 2)), "keep_prob": 0.5 if training else 1}):
        model = Classifier(2)
    return model.logits, model.loss


class Port(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, x, training=False):
        return tf1(x, training)


class PortInFunction(keras.layers.Layer):
    @tensorflow.function
    @track_tf1_style_variables
    def call(self, x, training=False):
        return tf1(x, training)


@pytest.mark.parametrize("port", [Port, PortInFunction])
def test_a_model_with_placeholders_and_an_optimizer_passes_every_check(port):
    report = validate(Migration(tf1=tf1, port=port, inputs=X))
    assert report.ok, [check.summary for check in report.checks if not check.ok]


@pytest.mark.parametrize("port", [Port, PortInFunction])
def test_a_call_trains_nothing_and_makes_no_slots(port):
    layer = port()
    layer(X)
    before = layer.get_weights()
    layer(X, training=True)
    assert list(variables_of(layer)) == ["kernel", "global_step"]
    for value, weight in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, value)


def test_a_session_computes_what_it_computes_with_a_feed_dict():
    def run(make):
        with tf.Graph().as_default(), tf.Session() as session:
            outputs, feeds = make()
            (kernel,) = tf.trainable_variables()
            session.run(kernel.initializer, {kernel.initializer.inputs[1]: np.ones((3, 2))})
            return session.run(outputs, feeds)

    def fed_by_session():
        model = Classifier(2)
        return [model.logits, model.loss], {model.x: X, model.labels: np.zeros((4, 2)), model.keep_prob: 1}

    for scoped, fed in zip(run(lambda: (tf1(tf.constant(X), False), {})), run(fed_by_session), strict=True):
        np.testing.assert_array_equal(scoped, fed)


def test_placeholders_are_named_as_in_a_graph():
    def names():
        with tf.name_scope("net"):
            for _ in range(2):
                yield tf.placeholder(tf.float32)
        yield tf.placeholder(tf.float32, name="x")
        yield tf.placeholder(tf.float32, name="x")

    with tf.Graph().as_default():
        expected = [tensor.op.name for tensor in names()]
    assert expected == ["net/Placeholder", "net/Placeholder_1", "x", "x_1"]
    with forward_pass({name: number for number, name in enumerate(expected)}):
        assert [float(tensor) for tensor in names()] == [0, 1, 2, 3]
    with tf.Graph().as_default(), tf.name_scope("outer"), forward_pass(dict.fromkeys(expected, 0.0)):
        assert [tensor.op.name for tensor in names()] == [f"outer/{name}" for name in expected]


def test_a_feed_is_cast_as_a_session_casts_it():
    fed = np.array([0.5, 2.9, -1.5])
    with tf.Graph().as_default(), tf.Session() as session:
        placeholder = tf.placeholder(tf.int32, [3])
        expected = session.run(placeholder + 0, {placeholder: fed})
    for feed in (fed, tensorflow.constant(fed)):
        with forward_pass({"Placeholder": feed}):
            np.testing.assert_array_equal(tf.placeholder(tf.int32, [3]), expected)


def test_a_dtype_may_be_text():
    with forward_pass({"Placeholder": 1}):
        assert tf.placeholder("float", []).dtype == tf.float32


def test_a_placeholder_with_a_default_needs_no_feed():
    for feeds, expected in (({}, 3), ({"rate": 4}, 4)):
        with forward_pass(feeds):
            assert float(tf.placeholder_with_default(3.0, [], name="rate")) == expected


def test_a_thread_makes_placeholders_of_its_own():
    def make():
        with tf.Graph().as_default():
            kinds.extend([tf.placeholder(tf.float32).op.type, tf.placeholder_with_default(3.0, []).op.type])

    kinds = []
    with forward_pass({}):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    assert kinds == ["Placeholder", "PlaceholderWithDefault"]


def test_scopes_nest_and_end():
    with forward_pass({"x": 1.0}):
        with forward_pass({"x": 2.0}):
            assert float(tf.placeholder(tf.float32, name="x")) == 2
        assert float(tf.placeholder(tf.float32, name="x")) == 1
    with tf.Graph().as_default():
        assert tf.placeholder(tf.float32, name="x").op.type == "Placeholder"
        loss = tf.get_variable("w", []) ** 2
        assert tf.train.AdamOptimizer().minimize(loss) is not None
        assert len(tf.global_variables()) == 5


def test_a_placeholder_without_a_feed_is_an_error_that_names_it_and_its_line():
    with (
        pytest.raises(
            ArgumentError, match=r"placeholder 'y' \(int32, shape \(2, None\)\) at .*test_forward_pass.py:\d+"
        ),
        forward_pass({"x": 1}),
    ):
        tf.placeholder(tf.int32, [2, None], name="y")


def test_a_feed_of_another_shape_or_type_is_an_error():
    with pytest.raises(ArgumentError, match=r"is fed a tensor of shape \(3,\)"), forward_pass({"x": np.ones(3)}):
        tf.placeholder(tf.float32, [2], name="x")
    with pytest.raises(ArgumentError, match="is fed 'text', which cannot be cast"), forward_pass({"x": "text"}):
        tf.placeholder(tf.float32, name="x")


def test_a_feed_for_no_placeholder_is_an_error():
    with (
        pytest.raises(ArgumentError, match="feeds 'z', but the code in the scope made 'x'"),
        forward_pass({"x": 1, "z": 2}),
    ):
        tf.placeholder(tf.float32, name="x")
    with pytest.raises(ZeroDivisionError), forward_pass({"z": 2}):
        raise ZeroDivisionError


def test_feeds_must_be_a_dict():
    with pytest.raises(ArgumentError, match="feeds must be a dict"):
        forward_pass([1])


def test_gradients_of_a_model_need_a_function():
    def gradients(x):
        kernel = tf.get_variable("kernel", [3, 2])
        loss = tf.reduce_sum(tf.matmul(x, kernel) ** 2)
        with forward_pass({}):
            clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, [kernel]), 1.0)
            tf.train.AdamOptimizer().apply_gradients(zip(clipped, [kernel], strict=True))
        return loss

    class Eager(tensorflow.Module):
        call = track_tf1_style_variables(lambda self, x: gradients(x))

    class InFunction(tensorflow.Module):
        call = tensorflow.function(track_tf1_style_variables(lambda self, x: gradients(x)))

    with pytest.raises(TF1CodeError, match="write @tf"):
        Eager().call(X)
    module = InFunction()
    assert float(module.call(X)) == float(module.call(X))
    assert list(variables_of(module)) == ["kernel"]
