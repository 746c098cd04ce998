"""What the shim must show: a TF1 program in a method gives what the same program gives in a graph and a session."""

import contextlib
import copy
import functools
import gc
import sys
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras
import tf_slim as slim
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    VariableScopeLayer,
    get_or_create_layer,
    track_tf1_style_variables,
    variables_of,
)
from tests.support.tf1_models import MODELS, TF1Model
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


@functools.cache
def model_in_session(name, mode):
    return run_in_session(MODELS[name], mode)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_a_tf1_model_in_a_keras_3_layer_computes_what_its_session_does(name, mode, way):
    _, found = run_in_method(MODELS[name], mode, way)
    assert_same(found, model_in_session(name, mode))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["named_convnet", "unnamed_convnet", "highway_network", "shared_templates"])
def test_a_tf1_model_in_a_tf_keras_layer_computes_what_its_session_does(name, way):
    _, found = run_in_method(MODELS[name], "num_random_ops", way, tf_keras_layer_of)
    assert_same(found, model_in_session(name, "num_random_ops"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["static_lstm_with_dropout", "word2vec", "averaged_weights", "partitioned_embedding"])
def test_a_tf1_model_in_a_module_computes_what_its_session_does(name, way):
    _, found = run_in_method(MODELS[name], "num_random_ops", way, module_of)
    assert_same(found, model_in_session(name, "num_random_ops"), keeps_losses=False)


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
@pytest.mark.parametrize("name", MODELS)
def test_a_tf1_model_called_on_symbolic_inputs_first_has_its_sessions_variables(name, kit):
    program = MODELS[name].program

    class ProgramLayer(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs, training=True):
            return [leaf for leaf in tensorflow.nest.flatten(program(*inputs, training=training)) if leaf is not None]

    layer = ProgramLayer()
    arrays = MODELS[name].inputs
    with DeterministicRandomTestTool().scope():
        inputs = [kit.Input(batch_shape=array.shape, dtype=array.dtype.name) for array in arrays]
        model = kit.Model(inputs, layer(inputs))
    expected = model_in_session(name, "constant")
    values = store_variables(layer)
    assert list(values) == [name for name, *_ in expected.variables]
    assert len(model.weights) == len(values) and len(model.losses) == len(expected.losses)
    for (tf1_name, _, _, trainable), value in zip(expected.variables, expected.values, strict=True):
        if trainable:  # the others are updated by what the session runs
            np.testing.assert_array_equal(values[tf1_name], value, err_msg=tf1_name)
    with DeterministicRandomTestTool().scope():
        outputs = model([tensorflow.constant(array) for array in arrays], training=True)
    outputs, expected_outputs = tensorflow.nest.flatten(outputs), tensorflow.nest.flatten(expected.outputs)
    for output, expected_output in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_array_equal(output, expected_output)


# --- Scopes and reuse ---------------------------------------------------------------------------------------

SCOPES = {}


def scopes(program):
    """Registers a program of one input; the names that it returns are compared, too."""
    SCOPES[program.__name__] = lambda x, training: program(x)
    return program


@scopes
def nested_and_entered_again(x):
    with tf.variable_scope("a") as a:
        first = tf.get_variable("w", [3])
        with tf.variable_scope("b") as b:
            second = tf.get_variable("w", [3])
    with tf.variable_scope(a) as again:
        third = tf.get_variable("v", [3])
    with tf.variable_scope("a/b"), tf.variable_scope(a, auxiliary_name_scope=False):
        fourth = tf.get_variable("u", [3])
    with tf.variable_scope(b), tf.name_scope("n") as name:
        fifth = tf.get_variable("u", [3])
    names = [scope.original_name_scope for scope in (a, b, again)]
    return first + second + third + fourth + fifth, names, name, tf.get_variable_scope().name


@scopes
def default_names_are_made_unique(x):
    names = []
    for _ in range(2):
        with tf.variable_scope(None, "block", [x]) as scope:
            names += [scope.name, scope.original_name_scope, tf.get_variable("w", [2]).name]
            with tf.variable_scope(None, "inner") as inner, tf.variable_scope(None, "inner") as innermost:
                names += [inner.name, innermost.name, innermost.original_name_scope]
    with tf.variable_scope("given", "block", [x]) as scope, tf.name_scope(None, "op", [x]) as op:
        names += [scope.name, op]
    with tf.variable_scope("given"), tf.variable_scope(None, "block") as scope:
        names += [scope.name, scope.original_name_scope]
    return x, names


@scopes
def name_scopes_as_libraries_open_them(x):
    with ops.name_scope("library", "default", [x]) as first, ops.name_scope(None, "inner") as second:
        return x, [first, second, tf.get_default_graph().get_name_scope()]


@scopes
def reused_in_every_way(x):
    with tf.variable_scope("a"):
        w = tf.get_variable("w", [3])
    with tf.variable_scope("a", reuse=True):
        same = [tf.get_variable("w"), tf.get_variable("w", [3])]
        with tf.variable_scope("nested"):
            assert tf.get_variable_scope().reuse is True
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
        same += [tf.get_variable("w", [3])]
        other = tf.get_variable("other", [3])
        assert tf.get_variable("other", [3]) is other
    with tf.variable_scope("a"):
        tf.get_variable_scope().reuse_variables()
        same += [tf.get_variable("w", [3])]
    root = tf.get_variable("root", [3])
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        assert tf.get_variable("root", [3]) is root
        same += [tf.get_variable("a/w", [3])]
    assert all(variable is w for variable in same)
    return x * w + other + root


def unit_norm(value):
    return tf.clip_by_norm(value, 1.0)


@scopes
def properties_of_scopes(x):
    with tf.variable_scope(
        "outer",
        initializer=tf.random_normal_initializer(stddev=2.0),
        regularizer=slim.l2_regularizer(0.5),
        constraint=unit_norm,
        caching_device="/cpu:0",
        use_resource=True,
        dtype=tf.float64,
    ) as outer:
        inherited = tf.get_variable("inherited", [3])
        assert inherited.constraint is unit_norm and inherited.dtype.base_dtype is tf.float64
        with tf.variable_scope("inner", initializer=tf.ones_initializer(), dtype=tf.float32):
            own = tf.get_variable("own", [3], regularizer=slim.l1_regularizer(0.1))
            outer.set_regularizer(tf.no_regularizer)
            free = tf.get_variable("free", [3])
            with tf.variable_scope("frozen", regularizer=tf.no_regularizer):
                frozen = tf.get_variable("w", [3], trainable=False)
    with tf.variable_scope("old", use_resource=False):
        old = tf.get_variable("old", [3], regularizer=slim.l2_regularizer(0.0))
    return tf.cast(inherited, tf.float32) + own + free + frozen + old


@scopes
def custom_getters_around_each_other(x):
    calls = []

    def getter(label):
        def get(getter, name, *args, **kwargs):
            calls.append((label, name, kwargs["reuse"] is None))
            return getter(name, *args, **kwargs) * 2.0

        return get

    with tf.variable_scope("a", custom_getter=getter("outer")), tf.variable_scope("b", custom_getter=getter("inner")):
        w = tf.get_variable("w", [3], custom_getter=getter("own"))
    return w, str(calls)


@scopes
def initialized_from_values(x):
    return [
        tf.get_variable("drawn", initializer=tf.random_normal([3])),
        tf.get_variable("computed", initializer=tf.constant([1.0, 2.0]) * 2.0),
        tf.get_variable("array", initializer=np.arange(3.0)),
        tf.get_variable("list", initializer=[1, 2, 3]),
        tf.get_variable("number", initializer=0.5, dtype=tf.float32),
        tf.get_variable("callable", initializer=lambda: tf.random_uniform([2])),
        tf.get_variable("text", initializer="spam"),
    ]


@scopes
def initializers_of_every_signature(x):
    class WithPartition:
        def __call__(self, shape, dtype=None, partition_info=None):
            assert partition_info is None
            return tf.random_uniform(shape, dtype=dtype)

    def function(shape, dtype):
        return tf.random_normal(shape, dtype=dtype)

    return [
        tf.get_variable("of_class", [3], initializer=tf.glorot_normal_initializer),
        tf.get_variable("with_partition", [3], initializer=WithPartition()),
        tf.get_variable("function", [3], initializer=function),
        tf.get_variable("partial", [3], initializer=functools.partial(function, dtype=tf.float32)),
        tf.get_variable("v2", [3, 2], initializer=tensorflow.initializers.GlorotUniform()),
        tf.get_variable("keras", [3, 2], initializer=tf_keras.initializers.HeNormal()),
        tf.get_variable("shape", tensorflow.TensorShape([2, tf.Dimension(2)])),
        tf.get_variable("scalar", []),
    ]


@scopes
def default_initializers_of_other_types(x):
    return [
        tf.get_variable("integer", [2], tf.int32),
        tf.get_variable("unsigned", [2], tf.uint8),
        tf.get_variable("truth", [2], tf.bool),
        tf.get_variable("half", [2], tf.float16),
        tf.get_variable("double", [2], np.float64),
        tf.get_variable("complex", [2], tf.complex64, initializer=tf.ones_initializer()),
    ]


@scopes
def creators_inside(x):
    def doubled(next_creator, **kwargs):
        made = kwargs["initial_value"]
        kwargs["initial_value"] = lambda: 2.0 * made()
        return next_creator(**kwargs)

    def frozen(next_creator, **kwargs):
        assert kwargs["name"] in ("a/w", "a/v"), kwargs["name"]
        return next_creator(**{**kwargs, "trainable": False})

    with tf.variable_scope("a"):
        with tf.variable_creator_scope(doubled), tf.variable_creator_scope(frozen):
            w = tf.get_variable("w", [3])
        with tensorflow.variable_creator_scope(doubled):
            return w + tf.get_variable("v", [3]), len(tf.trainable_variables())


@scopes
def unnamed_layers(x):
    shared = tf.layers.Dense(3, name="shared")
    x = shared(shared(x))
    for _ in range(2):
        x = tf.layers.dense(x, 3)
    with tf.variable_scope("scope"):
        x = tf.layers.dense(tf.layers.dense(x, 3), 3, name="named")
    x = tf.layers.dense(x, 3, name="named")
    names = [v.name for v in tf.trainable_variables()]
    return tf.layers.dense(x, 3, name="named", reuse=True), names, tf.layers.Dense(3).name


@scopes
def names_that_ops_have_taken(x):
    with tf.variable_scope("block"):
        w = tf.get_variable("w", [3])
    with tf.name_scope("other"):
        pass
    clash = [tf.get_variable("block", [3]), tf.get_variable("Other", [3])]
    with tf.variable_scope("block", reuse=True):
        assert tf.get_variable("w") is w
    with tf.variable_scope("", reuse=True):
        assert tf.get_variable("block") is clash[0]
    with tf.name_scope("block") as scope:
        return w + clash[0] + clash[1], scope


@scopes
def collections_of_a_graph(x):
    keys = tf.GraphKeys
    assert not tf.get_collection(keys.GLOBAL_VARIABLES) and not tf.get_collection("mine")
    with tf.variable_scope("a"):
        w = tf.get_variable("w", [3])
        local = tf.get_local_variable("local", [3], initializer=tf.ones_initializer())
        listed = tf.get_variable("listed", [3], collections=["mine", keys.GLOBAL_VARIABLES], trainable=False)
    tf.add_to_collection("mine", x)
    tf.add_to_collections(["mine", "yours"], w)
    tf.get_collection_ref("yours").append(listed)
    assert [w in tf.get_collection("mine"), x in tf.get_collection("yours")] == [True, False]
    assert tf.get_collection("yours").index(listed) == 1
    assert len(tf.get_collection(keys.TRAINABLE_VARIABLES, scope="b")) == 0
    keys_in_use = sorted(str(key) for key in tf.get_default_graph().get_all_collection_keys() if str(key)[0] != "(")
    names = {str(key): [getattr(item, "name", "") for item in tf.get_collection(key)] for key in keys_in_use[:4]}
    assert [v is w for v in tf.trainable_variables()] == [True]
    assert [v is local for v in tf.local_variables()] == [True]
    return tf.add_n(tf.get_collection("yours")) + local, len(names)


@scopes
def losses_of_a_graph(x):
    prediction = tf.layers.dense(x, 1, kernel_regularizer=slim.l1_regularizer(0.1))
    with tf.variable_scope("a", regularizer=slim.l2_regularizer(0.5)):
        prediction = tf.layers.dense(prediction, 1)
    tf.losses.mean_squared_error(tf.ones([2, 1]), prediction)
    tf.losses.add_loss(tf.reduce_sum(x))
    assert len(tf.get_collection_ref(tf.GraphKeys.REGULARIZATION_LOSSES)) == 3
    return [*tf.losses.get_regularization_losses(), *tf.losses.get_losses(), tf.losses.get_losses("a")]


@scopes
def updates_of_a_graph(x):
    step = tf.train.get_or_create_global_step()
    assert tf.train.get_global_step() is step
    mean = tf.get_variable("mean", [3], trainable=False, initializer=tf.zeros_initializer())
    update = tf.assign(mean, 0.5 * mean + 0.5 * tf.reduce_mean(x, 0))
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    with tf.control_dependencies([*tf.get_collection(tf.GraphKeys.UPDATE_OPS), tf.assign_add(step, 1)]):
        return tf.identity(x), len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))


@scopes
def partitioned(x):
    with tf.variable_scope("p", partitioner=tf.variable_axis_size_partitioner(32)) as scope:
        table = tf.get_variable("table", [10, 2], regularizer=slim.l2_regularizer(0.5))
        scope.set_partitioner(None)
    with tf.variable_scope("p", reuse=True):
        assert tf.get_variable("table", [10, 2]) is table
    scalar = tf.get_variable("scalar", [], partitioner=tf.fixed_size_partitioner(2))
    return tf.convert_to_tensor(table) + scalar, len(list(table)), [part.name for part in table]


@scopes
def templates_in_templates(x):
    def inner(x):
        return x * tf.get_variable("w", [3])

    def outer(x):
        template = tf.make_template("inner", inner)
        with tf.variable_scope("in_outer"):
            return template(template(x)) + tf.get_variable("b", [3])

    template = tf.make_template("outer", outer, unique_name_="once")
    with tf.variable_scope("around"):
        first = template(x)
    return first + template(x), template.variable_scope.name, [v.name for v in template.variables]


@scopes
def graphs_of_their_own(x):
    graph = tf.get_default_graph()
    w = tf.get_variable("w", [3])
    with tensorflow.Graph().as_default(), tf.Session() as session:
        elsewhere = tf.get_variable("w", [3], initializer=tf.ones_initializer())
        session.run(tf.global_variables_initializer())
        value = session.run(elsewhere)
    with graph.as_default(), tf.variable_scope("s"):
        return w + value + tf.get_variable("w", [3]), graph.get_name_scope()


@scopes
def inside_control_flow(x):
    def step(state, element):
        with tf.variable_scope("step", reuse=tf.AUTO_REUSE):
            return state * tf.get_variable("decay", [3]) + element

    def scale(row):
        with tf.variable_scope(None, "scale") as scope:
            scopes.append(scope.original_name_scope)
            tf.add_to_collection("rows", row)
            return tf.layers.dense(row[None] * tf.get_variable("w", [3]), 2)[0]

    scopes = []
    mapped = tf.map_fn(scale, x)
    dense = tf.layers.dense(mapped, 1)
    assert len(tf.get_collection("rows")) == 1
    count = tf.while_loop(
        lambda i: i < 3, lambda i: i + tf.get_variable("one", [], initializer=tf.ones_initializer()), [0.0]
    )
    return (
        tf.scan(step, x),
        mapped,
        dense,
        count,
        len(set(scopes)),
        [v.name for v in tf.trainable_variables()],
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCOPES)
def test_scopes_mean_what_they_mean_in_a_graph(name, mode, way):
    model = TF1Model(SCOPES[name], (X,))
    _, found = run_in_method(model, mode, way)
    assert_same(found, run_in_session(model, mode))


ERRORS = {}


def fails(program):
    ERRORS[program.__name__] = lambda x, training: program(x)
    return program


@fails
def a_variable_made_twice(x):
    with tf.variable_scope("a"):
        tf.get_variable("w", [3])
    with tf.variable_scope("a"):
        tf.get_variable("w", [3])


@fails
def a_missing_variable_reused(x):
    with tf.variable_scope("a", reuse=True):
        tf.get_variable("w", [3])


@fails
def a_variable_reused_with_another_shape(x):
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
        tf.get_variable("w", [3])
        tf.get_variable("w", [4])


@fails
def a_variable_reused_with_another_type(x):
    tf.get_variable("w", [3])
    with tf.variable_scope("", reuse=True):
        tf.get_variable("w", [3], tf.float64)


@fails
def a_variable_without_a_shape(x):
    tf.get_variable("w")


@fails
def a_value_and_a_shape(x):
    tf.get_variable("w", [3], initializer=tf.zeros([3]))


@fails
def a_default_name_reused(x):
    with tf.variable_scope(None, "default", reuse=True):
        pass


@fails
def an_initializer_of_no_known_signature(x):
    tf.get_variable("w", initializer=tf.zeros)


@fails
def a_layer_made_twice(x):
    tf.layers.dense(x, 3, name="d")
    tf.layers.dense(x, 4, name="d")


@fails
def partitions_of_another_number(x):
    for shards in (2, 3):
        tf.get_variable_scope().reuse_variables() if shards == 3 else None
        tf.get_variable("w", [6], partitioner=tf.fixed_size_partitioner(shards))


@fails
def a_template_that_makes_more_variables(x):
    names = iter("abc")
    template = tf.make_template("t", lambda: tf.get_variable(next(names), [3]))
    template()
    template()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ERRORS)
def test_what_tf1_refuses_is_refused_in_its_words(name, way):
    with pytest.raises(ValueError) as in_graph, tensorflow.Graph().as_default():
        ERRORS[name](tensorflow.constant(X), training=True)
    message = str(in_graph.value).split(" Originally defined")[0].split("\n\noriginally defined")[0]
    with pytest.raises(ValueError) as in_method:
        run_in_method(TF1Model(ERRORS[name], (X,)), "constant", way, module_of)
    assert message in str(in_method.value).replace("\n    ", "\n")


@pytest.mark.parametrize("initializer", [None, np.zeros(4, np.float32)], ids=["shape", "value"])
def test_a_variable_of_an_earlier_call_keeps_its_shape(initializer):
    def program(size, training):
        if size == 4 and initializer is not None:
            return tf.get_variable("w", initializer=initializer)
        return tf.get_variable("w", [size])

    module = module_of(program)
    module.run(3, training=True)
    with pytest.raises(ValueError, match=r"share variable w, but specified shape \(4,\) and found shape \(3,\)"):
        module.run(4, training=True)
    module.run(3, training=True)


def test_a_later_call_can_reuse_the_variables_of_an_earlier_one():
    def program(x, training):
        with tf.variable_scope("a", reuse=not training):
            return tf.get_variable("w", [3])

    module = module_of(program)
    first = module.run(X, training=True)
    assert module.run(X, training=False) is first


# --- Keras 3 ------------------------------------------------------------------------------------------------


class Normalized(keras.layers.Layer):
    """A weight, unnamed batch normalization and dropout, in TF1 style."""

    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.seen = []

    @track_tf1_style_variables
    def call(self, inputs, training=None):
        self.seen.append(training)
        with tf.variable_scope("weights", regularizer=slim.l2_regularizer(0.5)):
            w = tf.get_variable("w", [inputs.shape[-1], self.units])
        outputs = tf.layers.batch_normalization(tf.matmul(inputs, w), training=training, momentum=0.5)
        return tf.layers.dropout(outputs, 0.5, training=training)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


NORMALIZED = ["weights/w"] + [f"batch_normalization/{v}" for v in ("gamma", "beta", "moving_mean", "moving_variance")]
FEATURES, TARGETS = np.random.RandomState(0).rand(8, 2).astype(np.float32), np.ones((8, 1), np.float32)


def test_a_keras_3_layer_tracks_the_variables():
    layer = Normalized()
    assert layer.weights == []
    for _ in range(3):
        layer(X)
        assert list(variables_of(layer)) == NORMALIZED
        assert [weight.path for weight in layer.trainable_weights] == [
            f"{layer.name}/{name}" for name in NORMALIZED[:3]
        ]
        assert [weight.name for weight in layer.non_trainable_weights] == ["moving_mean", "moving_variance"]
        (loss,) = layer.losses
    np.testing.assert_allclose(loss, 0.25 * np.sum(layer.weights[0].numpy() ** 2), rtol=1e-6)
    layer.trainable = False
    assert layer.trainable_weights == [] and len(layer.non_trainable_weights) == 5


def test_a_weight_that_scope_and_layer_regularize_has_both_losses():
    def program(x, training):
        with tf.variable_scope("a", regularizer=slim.l2_regularizer(0.5)):
            return tf.layers.dense(x, 2, use_bias=False, kernel_regularizer=slim.l1_regularizer(0.1))

    model = TF1Model(program, (X,))
    expected = run_in_session(model, "constant")
    assert len(expected.losses) == 2
    for make in (layer_of, tf_keras_layer_of):
        _, found = run_in_method(model, "constant", "eager", make)
        np.testing.assert_allclose(sum(found.losses), sum(expected.losses), rtol=1e-6)


@pytest.mark.parametrize("default", [None, False])
def test_keras_passes_training_as_it_does_to_every_layer(default):
    def layer_with(decorator):
        class Layer(keras.layers.Layer):
            @decorator
            def call(self, inputs, training=default):
                seen.append(training)
                return inputs

        return Layer()

    def uses(layer):
        model = keras.Sequential([keras.Input((2,)), layer])
        model(FEATURES)
        model(FEATURES, training=True)
        layer(FEATURES, training=False)
        model.compile(loss="mse")
        model.predict(FEATURES, verbose=0)

    seen = []
    uses(layer_with(lambda method: method))
    expected = seen
    assert True in expected and False in expected
    seen = []
    uses(layer_with(track_tf1_style_variables))
    assert seen == expected


def functional():
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.Dense(1)(Normalized()(inputs)))


def sequential():
    return keras.Sequential([Normalized(), keras.layers.Dense(1)])


class Subclassed(keras.Model):
    """A decorated method of a model, around a decorated layer."""

    def __init__(self):
        super().__init__()
        self.inner = Normalized()
        self.dense = keras.layers.Dense(1)

    @track_tf1_style_variables
    def call(self, inputs, training=None):
        with tf.variable_scope("outer"):
            scale = tf.get_variable("scale", [], initializer=tf.ones_initializer())
            return self.dense(self.inner(inputs, training=training)) * scale


@pytest.mark.parametrize("make", [functional, sequential, Subclassed])
@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
def test_built_in_training_moves_every_weight(make, eagerly):
    model = make()
    model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=eagerly)
    model.predict(FEATURES, verbose=0)
    before = [weight.numpy() for weight in model.weights]
    assert len(before) == (8 if make is Subclassed else 7)
    history = model.fit(FEATURES, TARGETS, epochs=2, batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert len(model.weights) == len(before) and len(model.losses) == 1
    for weight, value in zip(model.weights, before, strict=True):
        assert np.any(weight.numpy() != value), weight.path


def test_training_in_keras_is_training_in_a_session():
    """Two steps of gradient descent with moving averages and a regularization loss."""

    def program(x, training):
        with tf.variable_scope("net", regularizer=slim.l2_regularizer(0.1)):
            hidden = tf.layers.batch_normalization(tf.layers.dense(x, 3, use_bias=False), training=training)
            return tf.layers.dense(tf.layers.dropout(hidden, 0.5, training=training), 1)

    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with DeterministicRandomTestTool().scope(), tensorflow.Graph().as_default(), tf.Session(config=config) as session:
        prediction = program(tensorflow.constant(FEATURES), training=True)
        loss = tf.reduce_mean((prediction - TARGETS) ** 2) + tf.losses.get_regularization_loss()
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        session.run(train)
        expected = dict(
            zip((v.op.name for v in tf.global_variables()), session.run(tf.global_variables()), strict=True)
        )

    model = keras.Sequential([layer_of(program)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with DeterministicRandomTestTool().scope():
        model.fit(FEATURES, TARGETS, batch_size=8, shuffle=False, verbose=0)
    found = store_variables(model.layers[0])
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, of any layer
def test_a_model_is_saved_loaded_and_exported(tmp_path):
    model = functional()
    model.compile("sgd", "mse")
    model.fit(FEATURES, TARGETS, verbose=0)
    expected = model(FEATURES).numpy()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Normalized": Normalized})
    np.testing.assert_array_equal(loaded(FEATURES), expected)
    assert list(variables_of(loaded))[:5] == NORMALIZED
    model.save_weights(tmp_path / "model.weights.h5")
    other = functional()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(FEATURES), expected)
    model.export(tmp_path / "exported", verbose=False)
    exported = tensorflow.saved_model.load(tmp_path / "exported")
    served = exported.serve(FEATURES)
    np.testing.assert_allclose(served.numpy(), expected, rtol=1e-6)


def test_a_clone_has_variables_of_its_own():
    model = functional()
    clone = keras.models.clone_model(model)
    assert list(variables_of(clone))[:5] == NORMALIZED
    for weight, cloned in zip(model.weights, clone.weights, strict=True):
        assert weight.value is not cloned.value


@pytest.mark.parametrize("kit", [tf_keras.layers.Layer, tensorflow.Module], ids=["tf_keras", "module"])
def test_a_deep_copy_has_variables_of_its_own(kit):
    class Owner(kit):
        more = False

        @track_tf1_style_variables
        def __call__(self, x):
            if self.more:
                tf.get_variable("more", [3])
            return tf.layers.dense(x, 2, kernel_regularizer=slim.l2_regularizer(0.5))

    owner = Owner()
    expected = owner(X).numpy()
    duplicate = copy.deepcopy(owner)
    np.testing.assert_array_equal(duplicate(X), expected)
    for variable in duplicate.variables:
        variable.assign(tensorflow.zeros_like(variable))
    assert not duplicate(X).numpy().any()
    np.testing.assert_array_equal(owner(X), expected)
    assert len(owner.variables) == len(duplicate.variables) == 2
    assert list(variables_of(duplicate)) == list(variables_of(owner)) == ["dense/kernel", "dense/bias"]
    if kit is tf_keras.layers.Layer:
        assert not np.any(duplicate.losses) and np.any(owner.losses)
        assert len(duplicate.losses) == len(owner.losses) == 1
    duplicate.more = True
    duplicate(X)
    assert len(duplicate.variables) == 3 and len(owner.variables) == 2


def test_a_layer_is_freed_with_its_variables():
    layer = Normalized()
    layer(X)
    freed = weakref.ref(layer), weakref.ref(store_variables(layer)["weights/w"])
    del layer
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


# --- tf_keras and tf.Module ---------------------------------------------------------------------------------


def test_a_tf_keras_model_trains():
    class Model(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.kept = tf.layers.Dense(3, kernel_regularizer=slim.l2_regularizer(0.5), name="kept")

        @track_tf1_style_variables
        def call(self, inputs):  # no `training`: tf_keras sees the signature
            return tf.layers.dense(self.kept(inputs), 1, kernel_regularizer=slim.l2_regularizer(0.5))

    model = Model()
    model.compile("sgd", "mse")
    model.predict(FEATURES, verbose=0)
    before = [weight.numpy() for weight in model.weights]
    model.fit(FEATURES, TARGETS, epochs=2, verbose=0)
    assert list(variables_of(model)) == ["kept/kernel", "kept/bias", "dense/kernel", "dense/bias"]
    assert len(model.trainable_weights) == 4 and len(model.losses) == 2
    for weight, value in zip(model.weights, before, strict=True):
        assert np.any(weight.numpy() != value), weight.name


def test_a_module_tracks_the_variables():
    module = module_of(lambda x, training: tf.layers.batch_normalization(x, training=training))
    module.run(X, training=True)
    assert list(variables_of(module)) == NORMALIZED[1:]
    assert [variable.trainable for variable in module.variables] == [True, True, False, False]
    assert len(module.trainable_variables) == 2
    checkpoint = tensorflow.train.Checkpoint(module=module)
    assert len(checkpoint.module.variables) == 4


@pytest.mark.parametrize("given", [object(), 3], ids=["object", "number"])
def test_a_method_of_something_that_tracks_nothing_is_refused(given):
    @track_tf1_style_variables
    def method(self):
        raise AssertionError("it must not run")

    kind = type(given).__name__
    with pytest.raises(
        ArgumentError,
        match=rf"method is decorated with track_tf1_style_variables and was called on .* of type {kind}, which cannot "
        rf"track variables; make {kind} a keras.layers.Layer, a tf_keras.layers.Layer or a tf.Module",
    ):
        method(given)


def test_what_is_no_method_is_refused():
    with pytest.raises(ArgumentError, match=r"decorates a method, but 'scope' of type str was given; write @track_tf1"):
        track_tf1_style_variables("scope")


# --- Several methods, objects and threads -------------------------------------------------------------------


def test_methods_of_one_object_share_its_variables():
    class Autoencoder(tensorflow.Module):
        @track_tf1_style_variables
        def encode(self, x):
            return tf.layers.dense(x, 2, name="encoder"), len(tf.global_variables())

        @track_tf1_style_variables
        def decode(self, code):
            with tf.variable_scope("decoder"):
                return tf.layers.dense(code, 3)

        @track_tf1_style_variables
        def run(self, x):
            code, _ = self.encode(x)
            assert len(tf.global_variables()) == 2  # one program, as one graph
            return self.decode(code), self.encode.__name__

    module = Autoencoder()
    code, count = module.encode(X)
    first = module.decode(code)
    assert count == 2 and len(module.variables) == 4
    np.testing.assert_array_equal(module.run(X)[0], first)
    assert list(variables_of(module)) == [
        "encoder/kernel",
        "encoder/bias",
        "decoder/dense/kernel",
        "decoder/dense/bias",
    ]
    assert module.run(X)[1] == "encode"


def test_methods_that_call_each_other_are_one_program():
    class Network(tensorflow.Module):
        @track_tf1_style_variables
        def block(self, x):
            return tf.layers.dense(x, 3)

        @track_tf1_style_variables
        def run(self, x):
            return self.block(self.block(x))

    network = Network()
    np.testing.assert_array_equal(network.run(X), network.run(X))
    assert list(variables_of(network)) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


def test_a_layer_that_is_called_in_a_scope_takes_its_name_for_good():
    class Inner(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            tf.add_to_collection("calls", self)
            return x * tf.get_variable("w", [3], regularizer=slim.l2_regularizer(0.5))

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        @track_tf1_style_variables
        def call(self, x):
            with tf.variable_scope("first"):
                x = self.inner(x)
            with tf.variable_scope("second"):
                x = self.inner(x) + tf.get_variable("w", [3])
            assert tf.get_collection("calls") == [self.inner]  # each call starts with empty collections
            assert len(tf.global_variables()) == 2 and len(tf.losses.get_regularization_losses()) == 1
            return x

    for way in WAYS.values():
        layer = Outer()
        run = way(layer)
        for _ in range(2):
            run(X)
            assert list(variables_of(layer)) == ["second/w", "first/w"]
            assert list(variables_of(layer.inner)) == ["first/w"]
            assert len(layer.weights) == 2 and len(layer.losses) == 1


def test_templates_cells_and_layers_can_be_kept():
    class Owner(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.template = tf.make_template("template", self.scale)
            self.cell = tf.nn.rnn_cell.GRUCell(3)
            self.dense = tf.layers.Dense(3)
            self.later = None

        def scale(self, x):
            return x * tf.get_variable("w", [3])

        @track_tf1_style_variables
        def call(self, x):
            if self.later is None:
                self.later = tf.make_template("later", self.scale)
            x = self.template(self.later(self.template(x)))
            (x, _), _ = tf.nn.static_rnn(self.cell, [x, x], dtype=tf.float32)
            return self.dense(self.dense(x))

    for way in WAYS.values():
        layer = Owner()
        run = way(layer)
        first = run(X)
        np.testing.assert_array_equal(run(X), first)
        assert list(variables_of(layer))[:2] == ["template/w", "later/w"]
        assert len(layer.weights) == len(variables_of(layer)) == 8


def test_calls_in_one_function_number_their_layers_each_from_the_start():
    module = module_of(lambda x, training: (tf.layers.dense(x, 2), tf.layers.Dense(2).name))
    names = []

    @tensorflow.function
    def run(x):
        names.append(tf.layers.Dense(2).name)
        for _ in range(2):
            names.append(module.run(x, training=True)[1])
        names.append(tf.layers.Dense(2).name)
        return x

    run(X)
    assert names[:4] == ["dense_1", "dense_2", "dense_2", "dense_2"]
    assert list(variables_of(module)) == ["dense/kernel", "dense/bias"]


@pytest.mark.parametrize("way", WAYS)
def test_a_creator_scope_around_the_call_sees_the_variables(way):
    created = []

    def creator(next_creator, **kwargs):
        created.append(kwargs["name"])
        made = kwargs["initial_value"]
        return next_creator(**{**kwargs, "initial_value": lambda: 0.0 * made(), "trainable": False})

    layer = Normalized()
    run = WAYS[way](layer)
    for _ in range(2):
        with tensorflow.variable_creator_scope(creator):
            run(X)
    assert list(dict.fromkeys(created)) == NORMALIZED
    assert not any(weight.numpy().any() for weight in layer.weights)
    assert layer.trainable_weights == []


@pytest.mark.parametrize("way", WAYS)
def test_a_variable_with_a_caching_device_is_read_anew_in_each_call(way):
    def program(x, training):
        with tf.variable_scope("a", caching_device="/cpu:0"):
            w = tf.get_variable("w", [3], initializer=tf.zeros_initializer())
        with tf.variable_scope("b", caching_device=lambda op: op.device):
            return w + tf.get_variable("w", [3], initializer=tf.zeros_initializer())

    module = module_of(program)
    run = WAYS[way](lambda: module.run(X, training=True))
    assert not run().numpy().any()
    for variable in module.variables:
        variable.assign([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(run(), [2.0, 4.0, 6.0])


def test_layers_can_be_called_in_several_threads():
    layers, shared = [Normalized(name=f"layer_{i}") for i in range(6)], Normalized()
    barrier, failures = threading.Barrier(6), []

    def run(layer):
        try:
            barrier.wait()
            for _ in range(5):
                layer(X, training=True)
                shared(X, training=True)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(layer,)) for layer in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for layer in [*layers, shared]:
        assert list(variables_of(layer)) == NORMALIZED
        assert len(layer.weights) == 5 and len(layer.losses) == 1


# --- Layers that TF1 code makes -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_inner_models_are_kept_and_tracked(kit, way):
    made = []

    def inner():
        made.append(kit.Sequential([kit.layers.Dense(2, kernel_regularizer="l2"), kit.layers.Dense(3)]))
        return made[-1]

    class Outer(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            with tf.variable_scope("scope"):
                model = get_or_create_layer("inner", inner)
            return model(x) * tf.get_variable("w", [3])

    layer = Outer()
    run = WAYS[way](layer)
    first = run(X)
    np.testing.assert_array_equal(run(X), first)
    assert len(made) == 1 and len(layer.weights) == 5 and len(layer.losses) == 1
    duplicate = copy.deepcopy(layer) if kit is tf_keras else layer
    np.testing.assert_array_equal(duplicate(X), first)

    model = kit.Sequential([kit.layers.Input((3,)), Outer()])
    model.compile("sgd", "mse")
    before = [weight.numpy() for weight in model.weights]
    model.fit(X, X, verbose=0)
    assert len(model.weights) == len(before) == 5
    assert all(np.any(weight.numpy() != value) for weight, value in zip(model.weights, before, strict=True))


def test_an_inner_layer_in_a_graph_is_made_there():
    with tensorflow.Graph().as_default():
        assert get_or_create_layer("inner", lambda: tf_keras.layers.Dense(2))(X).shape == (2, 2)


def test_an_inner_layer_that_nothing_keeps_is_refused():
    with pytest.raises(
        ArgumentError, match=r"get_or_create_layer\('inner', ...\) was called outside of a method decorated"
    ):
        get_or_create_layer("inner", lambda: keras.layers.Dense(2))
    layer = layer_of(lambda x, training: get_or_create_layer("inner", lambda: tf_keras.layers.Dense(2))(x))
    with pytest.raises(ArgumentError, match=r"of type Dense, which ProgramLayer cannot track; make a keras Layer"):
        layer(X)


def test_a_variable_scope_layer_runs_its_forward_pass():
    seen = []

    class Scaled(VariableScopeLayer):
        def forward_pass(self, inputs, training=None):
            seen.append(training)
            return inputs * tf.get_variable("factor", [3], regularizer=slim.l2_regularizer(0.5))

    class Shifted(Scaled):
        def forward_pass(self, inputs, training=None):
            return super().forward_pass(inputs, training) + tf.get_variable("shift", [3])

    for layer, names in ((Scaled(), ["factor"]), (Shifted(), ["factor", "shift"])):
        model = keras.Sequential([keras.Input((3,)), layer])
        assert model(X, training=True).shape == (2, 3) and seen[-1] is True
        assert list(variables_of(model)) == names and len(layer.losses) == 1
    with pytest.raises(NotImplementedError, match="VariableScopeLayer without a forward_pass; define"):
        VariableScopeLayer()(X)


# --- The process is left as it was --------------------------------------------------------------------------


def patched_attributes():
    """Every attribute that a program replaces, by looking at all of TensorFlow and Keras while one runs."""
    everything = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(("tensorflow.python.", "keras.src.", "tf_keras.src.", "tensorflow._api.v2.compat.v1")):
            owners = [module, *(item for item in vars(module).values() if isinstance(item, type))]
            for owner in owners:
                for attribute, value in list(vars(owner).items()):
                    everything[owner, attribute] = id(value)
    return everything


def process_state():
    graph = tf.get_default_graph()
    return (
        graph,
        {key: list(graph.get_collection_ref(key)) for key in graph.get_all_collection_keys()},
        len(graph.get_operations()),
        dict(graph._names_in_use),
        tensorflow.executing_eagerly(),
        context.context().scope_name,
    )


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_leaves_the_process_as_it_was(way, fails):
    class FailureError(Exception):
        pass

    inside = {}

    def program(x, training):
        with tf.variable_scope("a"), tf.name_scope("n"):
            tf.add_to_collection("mine", x)
            tf.layers.dense(x, 2)
            inside.update(patched_attributes())
            if fails:
                raise FailureError
        return x

    module = module_of(program)
    with tensorflow.name_scope("around"):
        attributes, state = patched_attributes(), process_state()
        with pytest.raises(FailureError) if fails else contextlib.nullcontext():
            WAYS[way](lambda: module.run(tensorflow.constant(X), training=True))()
        assert process_state() == state
        after = patched_attributes()
    assert {key for key in attributes if inside[key] != attributes[key]}, "nothing is patched"
    assert {key for key in attributes if after[key] != attributes[key]} == set()


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_has_failed_can_be_made_again(way):
    def program(x, training):
        outputs = tf.layers.dense(x, 2, kernel_regularizer=slim.l2_regularizer(0.5))
        if not training:
            raise KeyError("x")
        return outputs

    layer = layer_of(program)
    with pytest.raises(KeyError):
        WAYS[way](lambda: layer(X, training=False))()
    assert WAYS[way](lambda: layer(X, training=True))().shape == (2, 2)
    assert list(variables_of(layer)) == ["dense/kernel", "dense/bias"]
    assert len(layer.weights) == 2 and len(layer.losses) == 1


def test_nothing_is_left_of_a_program_in_a_function_graph():
    module = module_of(lambda x, training: tf.layers.dense(x, 2))
    graphs = []

    @tensorflow.function
    def run(x):
        graph = tf.get_default_graph()
        tf.add_to_collection("before", x)
        with tensorflow.name_scope("around"):
            module.run(x, training=True)
            assert tf.get_collection("before")[0] is x
            assert not tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
            name = tensorflow.identity(x, name="after").name
        graphs.append((graph, name, graph._create_op_internal.__func__))
        return x

    run(X)
    for graph, name, create_op in graphs:
        assert name == "around/after:0"
        assert create_op is type(graph)._create_op_internal
