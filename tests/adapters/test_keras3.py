"""Keras 3 on the TensorFlow backend draws what a TF1 session draws; test_keras3_backends.py has the other backends."""

import ast
import inspect
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import DeterministicRandomTestTool
from detrand._patching import keras3_random
from detrand._patching.patches import Target
from detrand.adapters.keras3 import draws_of
from detrand.errors import ScopeError
from tests.adapters.test_tensorflow import assert_same, eager_run, function_runs, records_of, session_runs
from tests.support.keras3_cases import CASES
from tests.support.keras3_cases import layers as layers_that_draw

v1 = tf.compat.v1
parametrize_modes = pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


def test_every_function_of_keras_random_is_governed():
    public = {name for name, value in vars(keras.random).items() if callable(value) and not isinstance(value, type)}
    assert set(keras3_random.draws("tensorflow")) == public


# --- Functions, initializers and layers that draw as a few ops of TensorFlow 1

parametrize_cases = pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{kind}-{case.name}") for kind, make in CASES.items() for case in make()]
)


@pytest.mark.slow_except("eager-*", "function-*-num_random_ops")
@parametrize_modes
@parametrize_cases
@pytest.mark.parametrize("run", [eager_run, function_runs], ids=["eager", "function"])
def test_keras_draws_what_the_session_draws(run, case, mode):
    desired, reference = session_runs(lambda: [*case.tf1(), tf.random.uniform([2])], mode)
    program = case.program(seed=7)
    actual, tool = run(lambda: [*program(), tf.random.uniform([2])], mode)
    for a, b in zip(actual[0], desired[0], strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=case.rtol, atol=case.rtol)
    # In TensorFlow 1, a binomial draws a seed and calls a stateless op with it.
    assert [(op.op_type, op.op_seed) for op in tool.random_ops] == [
        (op.op_type, op.op_seed) for op in reference.random_ops if op.op_seed is not None
    ]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_dropout_of_nothing_or_all_takes_no_seed(rate):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        np.testing.assert_array_equal(keras.random.dropout(X, rate), X * (1 - rate))
    assert not tool.random_ops


# --- The state of Keras


@pytest.mark.parametrize("name", sorted(keras3_random.draws("tensorflow")))
def test_a_seed_generator_is_left_as_it_is(name):
    arguments = {
        "beta": ((3,), 1.0, 2.0),
        "binomial": ((3,), 10.0, 0.5),
        "categorical": ([[0.1, 0.9]], 3),
        "dropout": (X, 0.5),
        "gamma": ((3,), 2.0),
        "randint": ((3,), 0, 9),
        "shuffle": (X,),
    }
    generator = keras.random.SeedGenerator(5)
    state = generator.state.numpy()
    draw = getattr(keras.random, name)
    with DeterministicRandomTestTool().scope():
        draw(*arguments.get(name, ((3,),)), seed=generator)
    np.testing.assert_array_equal(generator.state, state)
    draw(*arguments.get(name, ((3,),)), seed=generator)
    assert not np.array_equal(generator.state, state)


def test_a_generators_seeds_come_from_the_scope():
    """A generator whose seeds are used by functions of other packages."""
    generators = [keras.random.SeedGenerator(seed) for seed in (1, 2)]
    seeds = []
    for generator in generators:
        state = generator.state.numpy()
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            seeds.append([generator.next().numpy(), generator.next().numpy()])
        np.testing.assert_array_equal(generator.state.numpy(), state)
        assert records_of(tool) == [("RandomUniformInt", 0, "compute"), ("RandomUniformInt", 1, "compute")]
    assert_same([seeds[0]], [seeds[1]])
    assert not np.array_equal(*seeds[0])
    assert seeds[0][0].dtype == generators[0].next().numpy().dtype


@pytest.mark.parametrize("name", sorted(keras3_random.draws("openvino")))
def test_a_backend_without_numbers_refuses(name):
    with pytest.raises(
        ScopeError, match=rf"keras.random.{name} was called .* cannot draw for Keras's openvino backend\. Use"
    ):
        getattr(draws_of("openvino"), name)((3,))


TARGETS = [value for value in vars(keras3_random).values() if isinstance(value, Target)]


@pytest.mark.parametrize(
    "target",
    [
        *(target for target in TARGETS if "torch" not in str(target)),
        *keras3_random.INITIALIZE_VARIABLE,
        *keras3_random.draws("tensorflow").values(),
        keras3_random.image_seed("tensorflow"),
    ],
    ids=str,
)
def test_targets_are_in_the_installed_keras(target):
    assert callable(target.checked())


def test_a_layers_generator_continues_unchanged():
    layers = [keras.layers.Dropout(0.5, seed=5) for _ in range(2)]
    with DeterministicRandomTestTool().scope():
        layers[0](X, training=True)
    np.testing.assert_array_equal(layers[0](X, training=True), layers[1](X, training=True))


def test_keras_seeds_outside_a_scope_count_again():
    with DeterministicRandomTestTool().scope():
        pass
    np.testing.assert_array_equal(keras.random.uniform((3,), seed=5), keras.random.uniform((3,), seed=5))


# --- Layers and models


def tf1_network():
    glorot = v1.glorot_uniform_initializer()
    hidden = tf.matmul(tf.ones([2, 5]), v1.get_variable("a", [5, 4], initializer=glorot))
    hidden = tf.nn.dropout(hidden, 0.5)
    outputs = tf.matmul(hidden, v1.get_variable("b", [4, 3], initializer=glorot))
    return [outputs, tf.random.uniform([2])]


class Network:
    """`tf1_network` in Keras 3 or tf_keras: its layers are built on the first call."""

    def __init__(self, kit):
        self.first, self.dropout = kit.layers.Dense(4, use_bias=False), kit.layers.Dropout(0.5)
        self.last = kit.layers.Dense(3, use_bias=False)

    def __call__(self):
        hidden = self.dropout(self.first(tf.ones([2, 5])), training=True)
        return [self.last(hidden), tf.random.uniform([2])]


@parametrize_modes
@pytest.mark.parametrize("run", [eager_run, function_runs], ids=["eager", "function"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_layers_that_are_built_on_the_first_call(kit, run, mode):
    desired, reference = session_runs(tf1_network, mode)
    actual, tool = run(Network(kit), mode)
    assert_same(actual, desired)
    assert records_of(tool) == records_of(reference)
    assert [phase for _, _, phase in records_of(tool)] == ["init", "compute", "init", "compute"]


@parametrize_modes
def test_later_calls_of_a_function_are_later_runs(mode):
    desired = session_runs(tf1_network, mode, runs=3)[0]
    assert_same(function_runs(Network(keras), mode, runs=3)[0], desired)


def functional_model():
    inputs = keras.Input((5,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4, use_bias=False)(inputs), training=True)
    return keras.Model(inputs, keras.layers.Dense(3, use_bias=False)(hidden))


def test_a_symbolic_call_takes_no_op_seeds():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        model = functional_model()
        assert records_of(tool) == [("RandomUniform", 0, "init"), ("RandomUniform", 1, "init")]
        model(tf.ones([2, 5]))
        assert records_of(tool)[2:] == [("RandomUniform", 2, "compute")]


class Noise(keras.layers.Layer):
    """A layer whose output shape Keras finds by calling it."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, x):
        return tf.nn.dropout(x, 0.5) + self.scale * keras.random.uniform(tf.shape(x))


def test_a_layer_of_the_users_own_takes_no_op_seeds_either():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        inputs = keras.Input((5,))
        model = keras.Model(inputs, Noise()(inputs))
        assert records_of(tool) == [("RandomStandardNormal", 0, "init")]
        model(tf.ones([2, 5]))
        assert records_of(tool)[1:] == [("RandomUniform", 1, "compute"), ("RandomUniform", 2, "compute")]


def test_a_functional_model_equals_the_session_in_constant_mode():
    desired = session_runs(tf1_network, "constant")[0]
    tool = DeterministicRandomTestTool()
    with tool.scope():
        outputs = functional_model()(tf.ones([2, 5]))
    np.testing.assert_array_equal(outputs, desired[0][0])


def test_a_functional_model_equals_a_session_that_initializes_first():
    def program():
        glorot = v1.glorot_uniform_initializer()
        a, b = (v1.get_variable(n, s, initializer=glorot) for n, s in (("a", [5, 4]), ("b", [4, 3])))
        return [tf.matmul(tf.nn.dropout(tf.matmul(tf.ones([2, 5]), a), 0.5), b)]

    desired = session_runs(program, "num_random_ops")[0]
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        outputs = functional_model()(tf.ones([2, 5]))
    np.testing.assert_array_equal(outputs, desired[0][0])


@pytest.mark.parametrize("run_eagerly", [True, False], ids=["eager", "function"])
def test_fit_draws_the_same_on_every_run(run_eagerly):
    x = np.random.RandomState(0).rand(16, 5).astype(np.float32)

    def losses():
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=run_eagerly)
            history = model.fit(x, x.sum(1), epochs=2, batch_size=8, verbose=0)
        return history.history["loss"], tool.random_ops

    first, second = losses(), losses()
    assert first == second
    assert {op.op_type for op in first[1]} == {"RandomUniform", "RandomShuffle"}


# --- Every layer that draws, and everything else in Keras that draws


LAYERS = layers_that_draw()


def called(layer, inputs, arguments):
    return [tensor.numpy() for tensor in tf.nest.flatten(layer(inputs, *arguments, training=True))]


@pytest.mark.slow_except("Dropout", "GRU", "GaussianNoise", "RandomFlip", "MultiHeadAttention")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_draws_by_the_tools_seed_only(name):
    make, inputs, arguments = LAYERS[name]
    results, records = [], []
    for layer_seed, seed in ((1, 0), (2, 0), (1, 3)):
        layer = built(make(layer_seed), inputs, arguments)
        states = [state.numpy() for state in seed_states(layer)]
        tool = DeterministicRandomTestTool(seed, "num_random_ops")
        with tool.scope():
            results.append(called(layer, inputs, arguments))
        records.append(records_of(tool))
        assert records[-1], "nothing was recorded"
        assert all(op_type for op_type, _, _ in records[-1])
        assert_same([[state.numpy() for state in seed_states(layer)]], [states])
    assert_same([results[0]], [results[1]])
    assert records[0] == records[1]
    assert not all(map(np.array_equal, results[0], results[2])), "the tool's seed makes no difference"


def built(layer, inputs, arguments):
    """Build a layer with the same weights each time."""
    layer(inputs, *arguments)
    for weight in layer.trainable_variables:
        weight.assign(np.linspace(-1, 1, weight.numpy().size).reshape(weight.shape))
    return layer


def seed_states(layer):
    """Return the variables of the seed generators of a layer and of those in it."""
    states = [variable for variable in layer.variables if variable.name == "seed_generator_state"]
    assert states
    return states


@pytest.mark.slow_except("Dropout", "GRU", "GaussianNoise", "RandomFlip", "MultiHeadAttention")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_draws_the_same_in_a_function(name):
    make, inputs, arguments = LAYERS[name]
    inputs = tf.nest.map_structure(tf.constant, inputs)

    def program():
        layer = built(make(None), inputs, arguments)
        return lambda: layer(inputs, *arguments, training=True)

    desired, reference = eager_run(program(), "num_random_ops")
    actual, tool = function_runs(program(), "num_random_ops")
    for a, b in zip(actual[0], desired[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3)  # a graph optimizer regroups arithmetic
    assert records_of(tool) == records_of(reference)


@pytest.mark.slow_except("RandomFlip")
@pytest.mark.parametrize("name", ["RandomFlip", "RandomElasticTransform", "AugMix"])
def test_a_layer_in_a_data_pipeline_draws_the_same_again(name):
    make, inputs, _ = LAYERS[name]
    results = []
    for _ in range(2):
        layer = make(None)
        with DeterministicRandomTestTool(5, "num_random_ops").scope():
            data = tf.data.Dataset.from_tensors(inputs).repeat(2).map(lambda x: layer(x, training=True))  # noqa: B023
            results.append([batch.numpy() for batch in data])
    assert_same([results[0]], [results[1]])
    first, second = results[0]
    assert not np.array_equal(first, second)


WITHOUT_SEED = {
    "TFSMLayer": "runs a SavedModel, whose ops were built elsewhere",
    "TorchModuleWrapper": "runs a PyTorch module, which draws from PyTorch's generators",
    "JaxLayer": "runs a JAX function, with keys that come from the scope (tests/adapters/test_keras3_backends.py)",
    "FlaxLayer": "runs a Flax module, with keys that come from the scope",
}


def test_every_layer_that_draws_is_in_the_table():
    public = {name: value for name, value in vars(keras.layers).items() if isinstance(value, type)}
    drawing = {name for name, layer in public.items() if takes_seed(layer)}
    assert drawing | {"TFSMLayer", "TorchModuleWrapper"} == set(LAYERS) | set(public) & set(WITHOUT_SEED)


def takes_seed(kind):
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    return any("seed" in inspect.signature(constructor).parameters for constructor in constructors)


def test_every_initializer_that_draws_is_in_the_table():
    public = {value for value in vars(keras.initializers).values() if isinstance(value, type)}
    drawing = {kind.__name__.removesuffix("Initializer") for kind in public if takes_seed(kind)}
    assert {case.name.split("_")[0] for case in CASES["initializer"]()} == drawing


@pytest.mark.parametrize("name", ["Constant", "Identity", "Ones", "Zeros"])
def test_an_initializer_that_draws_nothing_takes_no_op_seed(name):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        getattr(keras.initializers, name)()((4, 4))
    assert not tool.random_ops


# Files in which Keras draws without its random functions, or shuffles data.
DRAWN_OTHERWISE = {
    "backend/tensorflow/image.py": "elastic_transform, by a seed: governed",
    "backend/jax/image.py": "elastic_transform, by a seed: governed",
    "backend/torch/image.py": "elastic_transform, by PyTorch's generator: governed",
    "layers/preprocessing/image_preprocessing/aug_mix.py": "the choice of layers: governed",
    "quantizers/gptq_core.py": "the samples that a quantizer is calibrated on: NumPy's random numbers",
    "random/seed_generator.py": "the seed of a generator that is given none: no numbers come from it in a scope",
    "trainers/data_adapters/array_data_adapter.py": "the order of arrays in fit: governed",
    "trainers/data_adapters/py_dataset_adapter.py": "the order of a PyDataset's batches in fit: Python's",
}
RANDOM_CALL = re.compile(
    r"^(np\.random|numpy\.random|random|py_random|python_random|rng|tf\.random|jax\.random|torch\.random)\."
    r"|^torch\.(rand|normal|bernoulli|multinomial|poisson|manual_seed)"
    r"|\.(stateless_(random_)?(uniform|normal|truncated_normal|gamma|binomial|categorical|shuffle|dropout)|random_)$"
)


def test_keras_draws_by_no_other_means():
    root = pathlib.Path(keras.src.__file__).parent
    ignored = re.compile(
        r"_test\.py$|/random\.py$|/(numpy|openvino)/|^(testing|legacy|datasets|utils|applications|ops|export)/"
        r"|/random_initializers\.py$"  # by keras.random
    )
    found = set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if not ignored.search(name):
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            if any(RANDOM_CALL.search(ast.unparse(call.func)) for call in calls):
                found.add(name)
    assert found <= set(DRAWN_OTHERWISE), found - set(DRAWN_OTHERWISE)
