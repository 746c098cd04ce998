"""tf_keras draws what a TF1 session draws; the conformance table has its initializers and layers."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras.src import backend

from detrand import DeterministicRandomTestTool
from tests.adapters.test_keras3 import Network, tf1_network
from tests.adapters.test_tensorflow import assert_same, records_of, run_script, session_runs

parametrize_modes = pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


def test_layers_in_a_graph_take_seeds_as_they_are_built():
    desired, reference = session_runs(tf1_network, "num_random_ops")

    def program():
        with tf.compat.v1.variable_scope("keras"):
            return Network(tf_keras)()

    actual, tool = session_runs(program, "num_random_ops")
    assert_same(actual, desired)
    assert [op[:2] for op in records_of(tool)] == [op[:2] for op in records_of(reference)]


def test_a_symbolic_call_takes_no_op_seeds():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        inputs = tf_keras.Input((5,))
        hidden = tf_keras.layers.Dropout(0.5)(tf_keras.layers.Dense(4, use_bias=False)(inputs), training=True)
        model = tf_keras.Model(inputs, tf_keras.layers.Dense(3, use_bias=False)(hidden))
        assert records_of(tool) == [("RandomUniform", 0, "init"), ("RandomUniform", 1, "init")]
        model(tf.ones([2, 5]))
        assert records_of(tool)[2:] == [("RandomUniform", 2, "compute")]


@pytest.mark.parametrize("rng_type", ["stateless", "legacy_stateful", "stateful"])
@pytest.mark.parametrize(
    ("name", "arguments", "tf1"),
    [
        ("random_normal", ([3],), lambda: tf.random.normal([3])),
        ("random_uniform", ([3],), lambda: tf.random.uniform([3])),
        ("truncated_normal", ([3],), lambda: tf.random.truncated_normal([3])),
        ("dropout", (X, 0.5), lambda: tf.nn.dropout(X, 0.5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_random_generator_draws_the_sessions_numbers(name, arguments, tf1, rng_type):
    generators = [backend.RandomGenerator(5, rng_type=rng_type) for _ in range(2)]
    desired = session_runs(lambda: [tf1()], "constant")[0][0][0]
    with DeterministicRandomTestTool().scope():
        np.testing.assert_array_equal(getattr(generators[0], name)(*arguments), desired)
    if rng_type == "legacy_stateful":
        return  # its numbers come from TensorFlow's global seed, not from its own state
    # The state of the generator does not change: it continues as an unused generator does.
    after, fresh = (getattr(generator, name)(*arguments) for generator in generators)
    np.testing.assert_array_equal(after, fresh)


@parametrize_modes
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("RandomFlip", ()), ("RandomContrast", (0.3,)), ("RandomRotation", (0.3,)), ("RandomZoom", (0.3,))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_seed_of_a_preprocessing_layer_has_no_effect(name, arguments, mode):
    images = (np.random.RandomState(1).rand(2, 8, 8, 3) * 255).astype(np.float32)
    results = []
    for seed in (1, 2):  # the user's seed has no effect
        layer = getattr(tf_keras.layers, name)(*arguments, seed=seed)
        with DeterministicRandomTestTool(0, mode).scope():
            results.append(layer(images, training=True).numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.slow
def test_imported_for_the_first_time_inside_the_scope():
    printed = run_script("""
import sys
import tensorflow as tf
from detrand import DeterministicRandomTestTool
tool = DeterministicRandomTestTool()
before = list(sys.meta_path)
assert "tf_keras" not in sys.modules
with tool.scope():
    import tf_keras
    print(*(tf_keras.initializers.RandomUniform(0, 1, seed=7)([3, 1]).numpy() * 3).ravel())
draw, same = (tf_keras.initializers.RandomUniform(0, 1, seed=7) for _ in range(2))
print(sys.meta_path == before, bool(tf.reduce_all(draw([3]) == same([3]))))
print(len(tool.random_ops))
with tool.scope():
    draw([3])
print(len(tool.random_ops))
""")
    assert printed == ["2.5063772", "2.7488918", "1.4839486", "True", "True", "1", "2"]
