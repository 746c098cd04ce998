"""The variables of TF1 code in a method: creation, reuse, refusals, losses, tracking and mixed precision."""

import copy
import inspect

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras
from tensorflow.python.ops import variable_scope

from detrand import ArgumentError, track_tf1_style_variables, variables_of
from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    MODES,
    TF1_WARNINGS,
    WAYS,
    X,
    assert_same,
    layer_of,
    module_of,
    run_in_method,
    run_in_session,
    store_variables,
    tf1_graphs_as_they_are,  # noqa: F401
    tf_keras_layer_of,
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS
MAKERS = {"keras_3": layer_of, "tf_keras": tf_keras_layer_of, "module": module_of}


# --- tf.Variable --------------------------------------------------------------------------------------------

CONSTRUCTED = {}


def constructs(program):
    CONSTRUCTED[program.__name__] = lambda x, training: program(x)
    return program


@constructs
def layers_of_2016(x):
    def weight(shape):
        return tf.Variable(tf.truncated_normal(shape, stddev=0.1))

    for size in (4, 3):
        with tf.name_scope("layer"):
            x = tf.matmul(x, weight([x.shape[-1], size])) + tf.Variable(tf.constant(0.1, shape=[size]), name="bias")
    return x


@constructs
def names_that_meet(x):
    first = tf.Variable([1.0, 2.0, 3.0], name="w")
    with tf.variable_scope("scope"):
        second = tf.get_variable("w", [3])
        third = tf.Variable([1.0, 1.0, 1.0], name="w")
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        fourth = tf.get_variable("w", [3])
    return x * first * second * third * fourth


@constructs
def flags_and_collections(x):
    step = tf.Variable(0, trainable=False, name="global_step")
    average = tensorflow.Variable(lambda: tf.random_uniform([3]), trainable=False, name="average")
    local = tf.Variable(tf.ones([3]), collections=[tf.GraphKeys.LOCAL_VARIABLES, "mine"], name="local")
    assert tf.get_collection("mine") == [local] and local not in tf.global_variables()
    assert step in tf.global_variables() and step not in tf.trainable_variables()
    return x * average + local, tf.cast(step, tf.float32)


@constructs
def a_creator_scope_inside(x):
    names = []

    def creator(next_creator, **kwargs):
        names.append(kwargs["name"])
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator), tf.name_scope("scope"):
        weight = tf.Variable(tf.random_normal([3]), name="w")
    return x * weight, len(names)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONSTRUCTED)
def test_variables_that_are_constructed_are_those_of_the_session(name, mode, way):
    model = TF1Model(CONSTRUCTED[name], (X,))
    _, found = run_in_method(model, mode, way)
    assert_same(found, run_in_session(model, mode))


def test_metrics_of_tf1_count_on_from_call_to_call():
    def program(x, training):
        mean, update = tf.metrics.mean(x)
        with tf.control_dependencies([update]):
            return tf.identity(mean)

    module = module_of(program)
    run = tensorflow.function(lambda x: module.run(x, training=True))  # TensorFlow refuses them eagerly
    run(X), run(X + 3)
    assert list(store_variables(module)) == ["mean/total", "mean/count"] and variables_of(module) == {}
    assert [float(v) for v in module.variables] == [pytest.approx(18.0), 12.0]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_constructed_variable_is_one_of_the_objects(make):
    owner = make(CONSTRUCTED["layers_of_2016"])
    call = getattr(owner, "run", owner)
    first = call(X, training=True)
    assert len(owner.trainable_variables) == 4
    np.testing.assert_array_equal(call(X, training=True), first)


def test_a_constructed_variable_that_changes_its_shape_is_refused():
    def program(size, training):
        return tf.Variable(tf.zeros([size]), name="w")

    module = module_of(program)
    module.run(3, training=True)
    with pytest.raises(
        ArgumentError,
        match=r"tf\.Variable w has shape \(3,\) from an earlier call, but its initial value in this call "
        r"has shape \(4,\).*created at .*test_variable_store\.py:\d+.* asked for at .*test_variable_store\.py:\d+",
    ):
        module.run(4, training=True)
    module.run(3, training=True)


@pytest.mark.parametrize("way", WAYS)
def test_variables_that_keras_layers_make_are_theirs(way):
    class Inner(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        @track_tf1_style_variables
        def call(self, x):
            return self.dense(x) * tf.get_variable("w", [3])

    layer = Inner()
    WAYS[way](layer)(X)
    assert list(store_variables(layer)) == ["w"] and len(layer.weights) == 3


# --- get_variable of the store ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_store_takes_the_arguments_of_get_variable_by_position(way):
    def program(x, training):
        store = variable_scope._get_default_variable_store()
        weights = store.get_variable("by_shape", [3])
        scale = store.get_variable("by_all", (), tensorflow.float64, tf.ones_initializer())
        return x * weights * tf.cast(scale, x.dtype)

    model = TF1Model(program, (X,))
    expected = run_in_session(model, "constant")
    _, found = run_in_method(model, "constant", way)
    assert_same(found, expected)


# --- What is refused, with the lines ------------------------------------------------------------------------


def line_of(function, text):
    """Return the line number of the first line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("way", WAYS)
def test_a_refusal_names_the_lines_of_the_user(way):
    def program(x, training):
        with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
            tf.get_variable("w", [3])  # created
            return tf.get_variable("w", [4])  # requested

    module = module_of(program)
    with pytest.raises(ArgumentError) as refusal:
        WAYS[way](lambda: module.run(X, training=True))()
    message = str(refusal.value)
    assert "Trying to share variable a/w, but specified shape (4,) and found shape (3,)." in message
    assert f"test_variable_store.py:{line_of(program, '# created')}. It was asked for at" in message
    assert f"test_variable_store.py:{line_of(program, '# requested')}." in message


def test_a_missing_variable_that_is_reused_names_the_line():
    def program(x, training):
        with tf.variable_scope("a", reuse=True):
            return tf.get_variable("w", [3])  # requested

    module = module_of(program)
    with pytest.raises(ArgumentError, match=rf"Variable a/w does not exist.*:{line_of(program, '# requested')}\."):
        module.run(X, training=True)
    assert variables_of(module) == {}


PARTITIONERS = {None: None, **{parts: tf.fixed_size_partitioner(parts) for parts in (2, 3)}}


@pytest.mark.parametrize(
    "first, second, message",
    [
        (2, None, "No partitioner was provided, but a partitioned version of the variable was found: w/part_0"),
        (None, 2, "A partitioner was provided, but an unpartitioned version of the variable was found: w"),
        (2, 3, r"Trying to reuse partitioned variable w, but specified partitions \[3\] and found partitions \[2\]"),
    ],
)
def test_a_variable_of_an_earlier_call_keeps_its_partitions(first, second, message):
    def program(parts, training):
        return tensorflow.convert_to_tensor(tf.get_variable("w", [6], partitioner=PARTITIONERS[parts]))

    module = module_of(program)
    module.run(first, training=True)
    with pytest.raises(ArgumentError, match=message):
        module.run(second, training=True)
    module.run(first, training=True)
    assert list(variables_of(module)) == ["w"]


# --- Losses and constraints ---------------------------------------------------------------------------------


def test_weights_that_are_not_trainable_have_their_losses_too():
    def program(x, training):
        with tf.variable_scope("scope", regularizer=tf.nn.l2_loss):
            frozen = tf.get_variable("frozen", [3], trainable=False)
            return x * frozen * tf.get_variable("w", [3])

    model = TF1Model(program, (X,))
    layer, found = run_in_method(model, "num_random_ops", "eager")
    assert_same(found, run_in_session(model, "num_random_ops"))
    store_variables(layer)["scope/frozen"].assign([1.0, 1.0, 2.0])
    assert 3.0 in [float(loss) for loss in layer.losses]
    parent = keras.Sequential([layer])
    assert len(parent.losses) == 2


def test_a_regularizer_that_gives_none_adds_nothing():
    def program(x, training):
        tf.get_variable("a", [3], regularizer=tf.nn.l2_loss)
        tf.get_variable("b", [3], regularizer=tf.no_regularizer)
        return len(tf.losses.get_regularization_losses()), tf.losses.get_regularization_loss()

    model = TF1Model(program, (X,))
    for make in MAKERS.values():
        _, found = run_in_method(model, "constant", "eager", make)
        assert_same(found, run_in_session(model, "constant"), keeps_losses=make is not module_of)


@pytest.mark.filterwarnings("ignore:The initializer GlorotUniform is unseeded and being called multiple times")
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_a_partitioned_layer_has_a_loss_for_each_part(kit):
    def program(x, training):
        with tf.variable_scope("a", partitioner=tf.fixed_size_partitioner(2)):
            return tf.layers.dense(x, 4, kernel_regularizer=tf.nn.l2_loss)

    model = TF1Model(program, (X,))
    make = layer_of if kit is keras else tf_keras_layer_of
    _, found = run_in_method(model, "num_random_ops", "eager", make)
    assert len(found.losses) == 2
    assert_same(found, run_in_session(model, "num_random_ops"))


def clipped(weight):
    return tf.clip_by_value(weight, 0.0, 0.5)


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_training_applies_the_constraints(kit):
    class Constrained(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            return x * tf.get_variable("w", [3], initializer=tf.ones_initializer(), constraint=clipped)

    model = kit.Sequential([kit.layers.Input((3,)), Constrained()])
    model.compile(kit.optimizers.SGD(1e-4), "mse")
    model.fit(X, X, verbose=0)
    np.testing.assert_array_equal(model.weights[0].numpy(), [0.5, 0.5, 0.5])


# --- Tracking -----------------------------------------------------------------------------------------------


def test_local_variables_are_tracked_and_no_part_of_the_model():
    def program(x, training):
        return x * tf.get_local_variable("l", [3], initializer=tf.ones_initializer()) * tf.get_variable("w", [3])

    layer = layer_of(program)
    layer(X, training=True)
    assert list(variables_of(layer)) == ["w"] and len(layer.weights) == 2


TWO_METHODS = {"keras_3": keras.layers.Layer, "tf_keras": tf_keras.layers.Layer, "module": tensorflow.Module}


@pytest.mark.parametrize("base", TWO_METHODS.values(), ids=TWO_METHODS)
def test_a_tensorflow_checkpoint_goes_by_name(base, tmp_path):
    class TwoMethods(base):
        @track_tf1_style_variables
        def a(self):
            return tf.get_variable("a", [3])

        @track_tf1_style_variables
        def b(self):
            return tf.get_variable("scope/b", [3])

    saved = TwoMethods()
    saved.a().assign([1.0, 1.0, 1.0])
    saved.b().assign([2.0, 2.0, 2.0])
    path = tensorflow.train.Checkpoint(model=saved).save(str(tmp_path / "checkpoint"))

    loaded = TwoMethods()
    loaded.b(), loaded.a()  # in the other order
    tensorflow.train.Checkpoint(model=loaded).restore(path).assert_consumed()
    np.testing.assert_array_equal([loaded.a(), loaded.b()], [[1.0] * 3, [2.0] * 3])

    later = TwoMethods()
    status = tensorflow.train.Checkpoint(model=later).restore(path)  # before there are variables
    np.testing.assert_array_equal([later.a(), later.b()], [[1.0] * 3, [2.0] * 3])
    status.assert_consumed()


@pytest.mark.parametrize("base", TWO_METHODS.values(), ids=TWO_METHODS)
def test_a_variable_is_no_attribute_of_its_name(base, tmp_path):
    class Both(base):
        def __init__(self):
            super().__init__()
            self.w = tensorflow.Variable([7.0, 7.0, 7.0])

        @track_tf1_style_variables
        def call(self, x):
            return x * tf.get_variable("w", [3], initializer=tf.zeros_initializer())

    both = Both()
    assert not np.any(both.call(X))
    path = tensorflow.train.Checkpoint(model=both).save(str(tmp_path / "checkpoint"))
    assert len([name for name, _ in tensorflow.train.list_variables(path) if "VARIABLE_VALUE" in name]) == 3
    np.testing.assert_array_equal(both.w, [7.0, 7.0, 7.0])


class InAnyOrder(keras.layers.Layer):
    """Create TF1 variables and another variable in an unusual order."""

    def __init__(self, order):
        super().__init__(name="in_any_order")
        self.order = order

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(3,), initializer="ones")
        self.built = True

    @track_tf1_style_variables
    def call(self, x):
        for name in self.order:
            x = x * tf.get_variable(name, [3], trainable=name != "s/frozen")
        return x * self.scale


def in_a_model(order):
    model = keras.Sequential([keras.layers.Input((3,)), InAnyOrder(order)])
    return model, {variable.path.split("/", 1)[1]: variable for variable in model.weights}


def test_keras_weights_are_loaded_by_name(tmp_path):
    saved, variables = in_a_model(["a", "s/frozen", "s/b"])
    for number, variable in enumerate(variables.values()):
        variable.assign([number] * 3)
    saved.save_weights(tmp_path / "saved.weights.h5")
    loaded, others = in_a_model(["s/b", "a", "s/frozen"])
    loaded.load_weights(tmp_path / "saved.weights.h5")
    assert {name: other.numpy()[0] for name, other in others.items()} == {
        name: variable.numpy()[0] for name, variable in variables.items()
    }
    shorter, _ = in_a_model(["a", "s/c"])
    with pytest.raises(ValueError, match=r"'in_any_order'.*missing \['s:c'\], left over \['s:b', 's:frozen'\]"):
        shorter.load_weights(tmp_path / "saved.weights.h5")


def test_a_class_that_says_how_it_is_saved_is_saved_so(tmp_path):
    class Saves(InAnyOrder):
        def save_own_variables(self, store):
            store["mine"] = np.zeros(3)

    model = keras.Sequential([keras.layers.Input((3,)), Saves(["a"])])
    store = {}
    model.layers[0].save_own_variables(store)
    assert list(store) == ["mine"]


def test_a_keras_3_layer_is_saved_as_a_saved_model(tmp_path):
    layer = layer_of(lambda x, training: tf.matmul(x, tf.get_variable("w", [3, 2])))
    expected = layer(X)
    function = tensorflow.function(layer).get_concrete_function(tensorflow.TensorSpec([None, 3]))
    tensorflow.saved_model.save(layer, str(tmp_path), signatures=function)
    loaded = tensorflow.saved_model.load(str(tmp_path)).signatures["serving_default"](tensorflow.constant(X))
    np.testing.assert_array_equal(next(iter(loaded.values())), expected)


def test_a_tf_keras_saved_model_is_loaded_into_the_layer_that_made_it(tmp_path):
    class Projection(tf_keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            return tf.matmul(x, tf.get_variable("w", [3, 4]))

    inputs = tf_keras.Input((3,))
    model = tf_keras.Model(inputs, Projection()(inputs))
    expected = model(X)
    model.save(str(tmp_path / "model"))
    loaded = tf_keras.models.load_model(str(tmp_path / "model"), custom_objects={"Projection": Projection})
    np.testing.assert_array_equal(loaded(X), expected)
    assert len(loaded.weights) == 1


@pytest.mark.parametrize("make", [tf_keras_layer_of, module_of], ids=["tf_keras", "module"])
def test_a_deep_copy_has_parts_of_its_own(make):
    def program(x, training):
        with tf.variable_scope("a", partitioner=tf.fixed_size_partitioner(2)):
            return tensorflow.convert_to_tensor(tf.get_variable("w", [4]))

    owner = make(program)
    before = owner.run(X, training=True)
    duplicate = copy.deepcopy(owner)
    assert variables_of(duplicate) == variables_of(owner)
    for part in duplicate.variables:
        part.assign(part * 0)
    np.testing.assert_array_equal(owner.run(X, training=True), before)


# --- Mixed precision ----------------------------------------------------------------------------------------


def convnet(x, training):
    x = tf.layers.conv2d(x, 2, 2, kernel_regularizer=tf.nn.l2_loss, name="conv")
    x = tf.layers.batch_normalization(x, training=training, name="norm")
    x = tf.layers.dense(tf.layers.flatten(x), 3, kernel_regularizer=tf.nn.l2_loss)
    with tf.variable_scope("out", regularizer=tf.nn.l2_loss):
        weights = tf.get_variable("weights", (3, 2))
        bias = tf.get_variable("bias", initializer=tf.zeros(2))
    count = tf.get_variable("count", (), tf.int32, tf.zeros_initializer(), trainable=False)
    return tf.matmul(x, weights) + bias + tf.cast(count, x.dtype)


@pytest.mark.slow_except("eager-keras_3-mixed_bfloat16")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
@pytest.mark.parametrize("way", WAYS)
def test_mixed_precision_computes_in_one_dtype_and_keeps_weights_in_another(kit, policy, way):
    class Convnet(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return convnet(x, training)

    images = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 4, 4, 1)
    layer = Convnet(dtype=policy)
    output = WAYS[way](lambda: layer(images, training=True))()
    assert output.dtype.name == policy.removeprefix("mixed_")
    dtypes = {name: variable.dtype.name for name, variable in store_variables(layer).items()}
    assert dtypes.pop("count") == "int32" and len(dtypes) == 10 and set(dtypes.values()) == {"float32"}
    assert len(layer.losses) == 4

    model = kit.Sequential([kit.layers.Input((4, 4, 1)), Convnet(dtype=policy)])
    model.compile("sgd", "mse")
    before = [weight.numpy() for weight in model.trainable_weights]
    model.fit(images, np.ones((4, 2), np.float32), verbose=0)
    assert all(np.any(w.numpy() != b) for w, b in zip(model.trainable_weights, before, strict=True))


def test_a_weight_in_mixed_precision_is_its_variable_rounded():
    class Weight(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            return tf.get_variable("w", [3]), tf.get_variable("exact", [3], tf.float32)

    layer = Weight(dtype="mixed_float16")
    weight, exact = layer(X)
    np.testing.assert_array_equal(weight, store_variables(layer)["w"].numpy().astype(np.float16))
    np.testing.assert_array_equal(exact, store_variables(layer)["exact"])


def test_parts_in_mixed_precision_are_read_in_float32():
    class Table(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            table = tf.get_variable("table", [3, 2], partitioner=tf.fixed_size_partitioner(2))
            assert table.dtype == tf.float32
            return tf.matmul(x, tf.cast(table, x.dtype))

    layer = Table(dtype="mixed_float16")
    output = layer(np.eye(3, dtype=np.float32))
    table = np.concatenate([part.numpy() for part in store_variables(layer).values()])
    np.testing.assert_array_equal(output, table.astype(np.float16))
