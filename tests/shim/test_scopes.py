"""Scopes, reuse, collections and names of TF1 code in a decorated method: they mean what they mean in a graph."""

import functools

import numpy as np
import pytest
import tensorflow
import tf_keras
import tf_slim as slim
from tensorflow.python.framework import ops

from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    MODES,
    TF1_WARNINGS,
    WAYS,
    X,
    assert_same,
    module_of,
    run_in_method,
    run_in_session,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


SCOPES = {}


def scopes(program):
    """Register a program of one input; the names that it returns are compared, too."""
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
    others = tf.get_collection("mine")
    others.remove(w)
    assert [id(each) for each in others] == [id(listed), id(x)]
    with pytest.raises(ValueError):
        others.index(w)
    assert w in tf.get_collection("mine")
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


@scopes
def a_loop_with_the_first_variable(x):
    def add(i, total):
        return i + 1, total + tf.get_variable("offset", [3])

    _, total = tf.while_loop(lambda i, _: i < 4, add, [0, tf.zeros([3])])
    return total, [v.name for v in tf.trainable_variables()]


@pytest.mark.slow_except("*-constant-eager", "*-num_random_ops-function")
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
