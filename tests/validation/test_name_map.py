"""Ports whose variables have other names than TF1's, without a name map and with a wrong one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, track_tf1_style_variables, validate

v1 = tf.compat.v1
INPUTS = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
IMAGES = np.random.default_rng(4).normal(size=(2, 8, 8, 3)).astype(np.float32)


def checks_of(report):
    return {check.name: check for check in report.checks}


def weight(name, *shape):
    return v1.get_variable(name, shape)


def dense(x, scope, units):
    with v1.variable_scope(scope):
        return tf.matmul(x, weight("W", x.shape[-1], units)) + weight("c", units)


def two_layers_of_one_shape(x, training):
    return dense(tf.tanh(dense(tf.tanh(dense(x, "b_first", 6)), "a_second", 6)), "c_third", 6)


class Reversed(keras.Model):
    """The layers are created in the opposite order of their use, under names that say nothing."""

    def __init__(self):
        super().__init__(name="model")
        self.last, self.middle, self.first = keras.layers.Dense(6), keras.layers.Dense(6), keras.layers.Dense(6)
        for layer in (self.last, self.middle, self.first):
            layer.build((None, 6))

    def call(self, x, training=False):
        return self.last(tf.tanh(self.middle(tf.tanh(self.first(x)))))


@pytest.mark.slow
def test_the_data_flow_pairs_what_is_created_in_another_order():
    report = validate(Migration(tf1=two_layers_of_one_shape, port=Reversed, inputs=INPUTS))
    found = checks_of(report)["variables-match"]
    assert found.ok, found.details
    assert "names of 6 variables differ, but the outputs with distinct weights agree" in found.summary
    for tf1, port in (("b_first/W", "dense_2/kernel"), ("a_second/W", "dense_1/kernel"), ("c_third/c", "dense/bias")):
        assert f"'{tf1}': '{port}'" in found.details
    assert checks_of(report)["constant-weights"].ok


def test_a_prefix_of_the_port_needs_no_name_map():
    def tf1(x, training):
        return dense(x, "one", 5)

    class One(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="one")

        def build(self, shape):
            self.w = self.add_weight(shape=(6, 5), name="W", initializer="glorot_uniform")
            self.c = self.add_weight(shape=(5,), name="c", initializer="glorot_uniform")

        def call(self, x):
            return tf.matmul(x, self.w) + self.c

    def port():
        inner = One()

        class Port(keras.Model):
            def __init__(self):
                super().__init__(name="port")
                self.inner = inner

            def call(self, x, training=False):
                return self.inner(x)

        return Port()

    report = validate(Migration(tf1=tf1, port=port, inputs=INPUTS))
    assert report.ok, report
    assert checks_of(report)["variables-match"].details == ""


def branches(x, training):
    """Two branches of equal shapes that are concatenated, as in Inception, and two heads of equal shapes."""
    with v1.variable_scope("left"):
        left = tf.nn.relu(tf.nn.conv2d(x, weight("w", 3, 3, 3, 4), 1, "SAME"))
    with v1.variable_scope("right"):
        right = tf.tanh(tf.nn.conv2d(x, weight("w", 3, 3, 3, 4), 1, "SAME"))
    both = tf.reduce_mean(tf.concat([left, right], -1), [1, 2])
    return {"value": dense(both, "value", 5), "policy": dense(both, "policy", 5)}


class Branches(keras.Model):
    def __init__(self, swapped=False):
        super().__init__()
        self.heads = [keras.layers.Dense(5, bias_initializer="glorot_uniform") for _ in range(2)]
        self.convolutions = [keras.layers.Conv2D(4, 3, padding="same", use_bias=False) for _ in range(2)]

    def call(self, x, training=False):
        a, b = self.convolutions
        both = tf.reduce_mean(tf.concat([tf.nn.relu(b(x)), tf.tanh(a(x))], -1), [1, 2])
        policy, value = self.heads
        return {"policy": policy(both), "value": value(both)}


@pytest.mark.slow
def test_branches_and_heads_of_equal_shapes_are_paired_by_what_they_lead_to():
    found = checks_of(validate(Migration(tf1=branches, port=Branches, inputs=IMAGES)))["variables-match"]
    assert found.ok, found.details
    for tf1, port in (("left/w", "conv2d_1/kernel"), ("right/w", "conv2d/kernel"), ("policy/W", "dense/kernel")):
        assert f"'{tf1}': '" in found.details and port in found.details.split(f"'{tf1}': ")[1].splitlines()[0]


@pytest.mark.slow
def test_a_partial_name_map_is_completed():
    name_map = {"left/w": "branches/conv2d_1/kernel"}
    found = checks_of(validate(Migration(tf1=branches, port=Branches, inputs=IMAGES, name_map=name_map)))
    assert found["variables-match"].ok, found["variables-match"].details


SWAPPED = {
    "b_first/W": "dense/kernel",
    "b_first/c": "dense/bias",
    "a_second/W": "dense_1/kernel",
    "a_second/c": "dense_1/bias",
    "c_third/W": "dense_2/kernel",
    "c_third/c": "dense_2/bias",
}


@pytest.mark.slow
def test_a_wrong_name_map_is_named_as_the_fault():
    found = checks_of(
        validate(
            Migration(
                tf1=two_layers_of_one_shape,
                port=Reversed,
                inputs=INPUTS,
                name_map=SWAPPED,
            )
        )
    )["variables-match"]
    assert not found.ok
    assert found.summary.startswith("swapped: b_first/W is dense_2/kernel in the port, not dense/kernel")
    assert "'b_first/W': 'dense_2/kernel',  # not 'dense/kernel'" in found.details
    assert "a_second" not in found.details


@pytest.mark.slow_except("True")
@pytest.mark.parametrize("outputs_agree", [True, False])
def test_names_in_a_name_map_that_the_port_does_not_have_are_a_fault_of_their_own(outputs_agree):
    class Port(Reversed):
        def call(self, x, training=False):
            return super().call(x) * (1.0 if outputs_agree else 2.0)

    right = {"b_first/W": "dense_2/kernel", "b_first/c": "dense_2/bias", "a_second/W": "dense_1/kernel"}
    wrong = {"a_second/c": "dense_9/bias", "c_third/W": "dense_9/kernel"}
    name_map = right | wrong
    report = validate(Migration(tf1=two_layers_of_one_shape, port=Port, inputs=INPUTS, name_map=name_map))
    found = checks_of(report)["variables-match"]
    assert not found.ok
    first = "name_map names the port variable 'dense_9/bias' for 'a_second/c', which does not exist; nearest: '"
    assert found.summary.startswith(first) and "; 1 more entry; " in found.summary
    assert found.details.startswith(first + "dense_1/bias'\nname_map names the port variable 'dense_9/kernel'")
    assert "'c_third/W': 'dense/kernel'" in found.details
    assert checks_of(report)["random-inference"].ok == outputs_agree
    finding = report.findings[0]
    assert finding.title == "name_map names variables that the port does not have: dense_9/bias, dense_9/kernel"
    assert finding.remedy.startswith("write the port's own names in name_map, such as 'a_second/c': 'dense_1/bias', ")


@pytest.mark.slow
def test_a_function_that_names_variables_that_the_port_does_not_have_is_a_fault():
    def renamed(name):
        return name.replace("left", "links")

    class Port(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return branches(x, training)

    found = checks_of(validate(Migration(tf1=branches, port=Port, inputs=IMAGES, name_map=renamed)))["variables-match"]
    assert not found.ok
    assert found.details.startswith("name_map names the port variable 'links/w' for 'left/w', which does not exist; ")
    assert "nearest: 'left/w'" in found.details.splitlines()[0]


@pytest.mark.slow
def test_a_fault_of_the_port_leaves_the_pairs_that_the_flow_shows():
    class Faulty(Reversed):
        def call(self, x, training=False):
            return self.last(tf.tanh(self.middle(tf.nn.relu(self.first(x)))))

    found = checks_of(validate(Migration(tf1=two_layers_of_one_shape, port=Faulty, inputs=INPUTS)))
    assert found["variables-match"].ok, found["variables-match"].details
    assert "only one pairing fits how both programs use them" in found["variables-match"].summary
    assert not found["constant-weights"].ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_tf1", "of_port"),
    [(tf.nn.relu, tf.identity), (lambda x: 0.5 * x, lambda x: 0.4 * x)],
    ids=["an activation left out", "a factor"],
)
def test_pairs_with_which_one_fault_explains_the_outputs_are_right(of_tf1, of_port):
    def gated(x, training):
        x = of_tf1(x)
        return tf.tanh(tf.matmul(x, weight("p", 6, 5))) * tf.matmul(x, weight("q", 6, 5))

    class Gated(keras.Model):
        def __init__(self):
            super().__init__()
            self.both = [keras.layers.Dense(5, use_bias=False) for _ in range(2)]

        def call(self, x, training=False):
            x = of_port(x)  # the fault
            return tf.tanh(self.both[0](x)) * self.both[1](x)

    report = validate(Migration(tf1=gated, port=Gated, inputs=INPUTS))
    assert len(report.findings) == 1
    found = checks_of(report)["variables-match"]
    assert found.ok
    assert "the outputs agree once what random-inference finds is corrected" in found.summary
    assert not any("variables-match failed" in check.summary for check in report.checks)


@pytest.mark.slow
def test_pairs_that_nothing_shows_fail_with_the_map_to_correct():
    def sum_of_two(x, training):
        return tf.matmul(x, weight("p", 6, 5)) + tf.matmul(x, weight("q", 6, 5))

    class Sum(keras.Model):
        def __init__(self):
            super().__init__()
            self.both = [keras.layers.Dense(5, use_bias=False) for _ in range(2)]

        def call(self, x, training=False):
            return self.both[0](x) - self.both[1](x)  # the fault: a difference

    report = validate(Migration(tf1=sum_of_two, port=Sum, inputs=INPUTS))
    assert "first: constant-weights" in report.summary  # where the fault shows
    found = checks_of(report)["variables-match"]
    assert not found.ok
    assert found.summary == "names of 2 variables differ, and the outputs do not show which variable is which"
    assert "# order only" in found.details


@pytest.mark.slow_except("in training only")
@pytest.mark.parametrize("training_only", [True, False], ids=["in training only", "always"])
def test_names_of_variables_that_only_training_creates_are_compared(training_only):
    def tf1(x, training):
        outputs = dense(x, "main", 4)
        return (outputs, dense(x, "aux", 3)) if training or not training_only else (outputs, outputs)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.main, self.side = keras.layers.Dense(4), keras.layers.Dense(7)
            self.side.build((None, 6))

        def call(self, x, training=False):
            outputs = self.main(x)
            return (outputs, self.side(x)) if training or not training_only else (outputs, outputs)

    found = checks_of(validate(Migration(tf1=tf1, port=Port, inputs=INPUTS)))["variables-match"]
    assert not found.ok
    assert "aux/W" in found.details
