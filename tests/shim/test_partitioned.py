"""Partitioned variables in a layer have the parts and values of a session, whatever TF1 code does with them."""

import functools

import numpy as np
import pytest
import tensorflow
import tf_keras
import tf_slim as slim

from tests.support.tf1_models import TF1Model
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    X,
    assert_same,
    module_of,
    run_in_method,
    run_in_session,
    tf1_graphs_as_they_are,  # noqa: F401
    tf_keras_layer_of,
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS
TOKENS = np.array([[1, 5, 3], [9, 0, 7]], np.int32)
in_parts, in_parts_of_bytes = tf.fixed_size_partitioner, tf.variable_axis_size_partitioner

PROGRAMS = {}


def partitions(program):
    """Register a program of one input; the names and numbers that it returns are compared, too."""
    PROGRAMS[program.__name__] = lambda x, training: program(x)
    return program


def described(*partitioned):
    return [([part.name for part in v], len(list(v)), str(v.shape), list(v)) for v in partitioned]


@partitions
def a_number_of_parts_along_any_axis(x):
    rows = tf.get_variable("rows", [10, 4], partitioner=in_parts(3))
    columns = tf.get_variable("columns", [4, 10], partitioner=in_parts(4, axis=1))
    deep = tf.get_variable("deep", [2, 3, 5], partitioner=in_parts(2, axis=2))
    single_rows = tf.get_variable("single_rows", [7], partitioner=in_parts(7))
    one_part = tf.get_variable("one_part", [5], partitioner=in_parts(1))
    scalar = tf.get_variable("scalar", [], partitioner=in_parts(2))
    return described(rows, columns, deep, single_rows, one_part), scalar, scalar.name


@partitions
def parts_of_a_number_of_bytes(x):
    rows = tf.get_variable("rows", [10, 4], partitioner=in_parts_of_bytes(32))
    columns = tf.get_variable("columns", [4, 10], partitioner=in_parts_of_bytes(48, axis=1, max_shards=3))
    double = tf.get_variable("double", [6], tf.float64, partitioner=in_parts_of_bytes(8))
    return described(rows, columns, double)


@partitions
def no_more_and_no_smaller_parts(x):
    rows = tf.get_variable("rows", [10, 4], partitioner=tf.min_max_variable_partitioner(4, min_slice_size=40))
    columns = tf.get_variable("columns", [4, 10], partitioner=tf.min_max_variable_partitioner(3, 1, min_slice_size=16))
    return described(rows, columns)


@partitions
def a_partitioner_of_ones_own(x):
    def halves_of_large_ones(shape, dtype):
        asked.append((str(shape), dtype.name))
        return [2 if size > 3 else 1 for size in shape.as_list()]

    asked = []
    with tf.variable_scope("a", partitioner=halves_of_large_ones):
        large, small = tf.get_variable("large", [5, 2]), tf.get_variable("small", [3], tf.float64)
    return described(large, small), str(asked[:2])


@partitions
def partitioners_of_scopes(x):
    with tf.variable_scope("a", partitioner=in_parts(2)) as scope:
        own = tf.get_variable("own", [6])
        argument = tf.get_variable("argument", [6], partitioner=in_parts(6))
        with tf.variable_scope("b", partitioner=in_parts(3)):
            inner = tf.get_variable("inner", [6])
        with tf.variable_scope("c"):
            inherited = tf.get_variable("inherited", [6])
        scope.set_partitioner(None)
        whole = tf.get_variable("whole", [6])
    with tf.variable_scope(scope):
        again = tf.get_variable("again", [6])
    return described(own, argument, inner, inherited), whole, again


@partitions
def initializers_that_know_their_part(x):
    class Offsets:
        def __call__(self, shape, dtype=None, partition_info=None):
            drawn = tf.random_uniform(shape, dtype=dtype)
            return drawn + sum(partition_info.var_offset) + sum(partition_info.full_shape)

    def filled(shape, dtype=tf.float32, partition_info=None):
        offset = partition_info.single_offset(shape)
        return tf.fill(shape, tf.cast(offset + partition_info.single_slice_dim(shape), dtype))

    def scaled(shape, dtype=None, partition_info=None, scale=1.0):
        return tf.random_uniform(shape, partition_info.var_offset[0], scale, dtype)

    return described(
        tf.get_variable("of_class", [7, 3], initializer=Offsets(), partitioner=in_parts(3)),
        tf.get_variable("columns", [3, 7], initializer=filled, partitioner=in_parts(3, axis=1)),
        tf.get_variable("partial", [7], initializer=functools.partial(scaled, scale=9.0), partitioner=in_parts(2)),
        tf.get_variable("unaware", [7], initializer=lambda shape, dtype: tf.ones(shape), partitioner=in_parts(2)),
    )


@partitions
def initializers(x):
    def partitioned(initializer, dtype=tf.float32):
        return tf.get_variable(f"v{next(number)}", [7, 4], dtype, initializer, partitioner=in_parts(3))

    number = iter(range(99))
    return described(
        partitioned(None),
        partitioned(tf.glorot_normal_initializer()),
        partitioned(tf.glorot_uniform_initializer),
        partitioned(tf.random_normal_initializer(stddev=2.0)),
        partitioned(tf.random_uniform_initializer(-1, 1, seed=3)),
        partitioned(tf.truncated_normal_initializer()),
        partitioned(tf.variance_scaling_initializer(distribution="uniform")),
        partitioned(tf.orthogonal_initializer()),
        partitioned(tf.zeros_initializer()),
        partitioned(tf.ones_initializer),
        partitioned(tf.constant_initializer(3.0)),
        partitioned(tensorflow.initializers.GlorotUniform()),
        partitioned(tf_keras.initializers.RandomNormal(seed=2)),
        partitioned(tf_keras.initializers.Identity()),
        partitioned(None, tf.float16),
        partitioned(None, tf.int32),
        partitioned(None, tf.bool),
    )


@partitions
def initial_values(x):
    product = tf.matmul(x, tf.ones([3, 2]))
    return described(
        tf.get_variable("drawn", initializer=tf.random_uniform([7, 4]), partitioner=in_parts(3)),
        tf.get_variable("constant", initializer=tf.constant(np.arange(7.0)), partitioner=in_parts(2)),
        tf.get_variable("computed", initializer=product, partitioner=in_parts(2, axis=1)),
    )


@partitions
def reused(x):
    with tf.variable_scope("a", partitioner=in_parts(3)):
        w = tf.get_variable("w", [7, 2])
    with tf.variable_scope("a", reuse=True):
        assert tf.get_variable("w", [7, 2]) is w and tf.get_variable("w") is w
        assert tf.get_variable("w", [7, 2], partitioner=in_parts(3)) is w
        part = tf.get_variable("w/part_1")
        assert part is next(iter(w._get_variable_list()[1:]))
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE, partitioner=in_parts(3)):
        assert tf.get_variable("w", [7, 2]) is w
        new = tf.get_variable("new", [7, 2])
        assert tf.get_variable("new", [7, 2]) is new
    return described(w, new), part


@partitions
def used_as_a_tensor(x):
    w = tf.get_variable("w", [10, 4], partitioner=in_parts(3))
    columns = tf.get_variable("columns", [4, 10], partitioner=in_parts(2, axis=1))
    facts = [len(w), w.name, str(w.get_shape()), w.dtype.base_dtype.name, str(w._get_partitions())]
    results = [
        tf.convert_to_tensor(w),
        tf.convert_to_tensor(columns, dtype=tf.float32),
        w.as_tensor() * 2.0,
        tf.matmul(tf.ones([2, 10]), w),
        tf.matmul(w, columns),
        tf.nn.bias_add(w, tf.get_variable("bias", [4], partitioner=in_parts(2))),
        tf.gather(w, [1, 2]),
        tf.reduce_sum(w),
        tf.transpose(columns),
        tf.slice(w, [3, 0], [4, 2]),
        tf.reshape(w, [-1]),
        tf.concat([*columns], 1),
        tf.shape(w),
    ]
    return results, [*w], facts


@partitions
def looked_up(x):
    table = tf.get_variable("table", [10, 4], partitioner=in_parts(3))
    columns = tf.get_variable("columns", [10, 4], partitioner=in_parts(2, axis=1))
    lookups = [
        tf.nn.embedding_lookup(params, TOKENS, partition_strategy=strategy, max_norm=max_norm)
        for params in (table, [*table])
        for strategy in ("mod", "div")
        for max_norm in (None, 0.5)
    ]
    return lookups, tf.nn.embedding_lookup(tf.convert_to_tensor(columns), TOKENS)


@partitions
def looked_up_sparsely(x):
    table = tf.get_variable("table", [10, 4], partitioner=in_parts(3))
    positions = [[0, 0], [0, 1], [1, 0]]
    ids = tf.SparseTensor(positions, np.array([1, 9, 4], np.int64), [2, 2])
    weights = tf.SparseTensor(positions, [1.0, 2.0, 0.5], [2, 2])
    lookups = [
        tf.nn.embedding_lookup_sparse(table, ids, given, partition_strategy=strategy, combiner=combiner)
        for given in (None, weights)
        for strategy in ("mod", "div")
        for combiner in ("sum", "mean", "sqrtn")
    ]
    return lookups, tf.nn.safe_embedding_lookup_sparse(table, ids, weights, partition_strategy="mod")


@partitions
def sampled_losses(x):
    weights = tf.get_variable("weights", [10, 3], partitioner=in_parts(3))
    biases = tf.get_variable("biases", [10], partitioner=in_parts(3))
    labels = tf.constant([[1], [9]], tf.int64)
    return [
        loss(weights, biases, labels, x, num_sampled=4, num_classes=10, partition_strategy=strategy)
        for loss in (tf.nn.nce_loss, tf.nn.sampled_softmax_loss)
        for strategy in ("mod", "div")
    ]


@partitions
def regularized_part_by_part(x):
    with tf.variable_scope("a", regularizer=slim.l2_regularizer(0.5), partitioner=in_parts(3)):
        w = tf.get_variable("w", [7, 2])
        own = tf.get_variable("own", [7, 2], regularizer=slim.l1_regularizer(0.1))
    losses = tf.losses.get_regularization_losses()
    return described(w, own), losses, tf.losses.get_regularization_loss()


@partitions
def not_trainable_and_in_collections(x):
    frozen = tf.get_variable("frozen", [7, 2], trainable=False, partitioner=in_parts(2))
    listed = tf.get_variable(
        "listed", [6], collections=["mine", tf.GraphKeys.GLOBAL_VARIABLES], partitioner=in_parts(2)
    )
    names = [[v.name for v in tf.get_collection(key)] for key in ("mine", "variables", "trainable_variables")]
    return described(frozen, listed), names


def clipped(value):
    return tf.clip_by_norm(value, 1.0)


@partitions
def properties_of_scopes(x):
    def getter(getter, name, *args, **kwargs):
        asked.append((name, kwargs["partitioner"] is not None))
        return getter(name, *args, **kwargs)

    asked = []
    with tf.variable_scope(
        "a",
        partitioner=in_parts(2),
        caching_device="/cpu:0",
        dtype=tf.float64,
        constraint=clipped,
        initializer=tf.random_normal_initializer(),
        custom_getter=getter,
    ):
        w = tf.get_variable("w", [5])
    return described(w), [part.constraint is clipped for part in w], str(asked)


@partitions
def in_templates(x):
    template = tf.make_template("t", lambda x: tf.matmul(x, tf.get_variable("w", [3, 4], partitioner=in_parts(2))))
    with tf.variable_scope("scope", partitioner=in_parts(3)):
        inner = tf.make_template("inner", lambda x: tf.matmul(x, tf.get_variable("w", [3, 4])))
        result = inner(x) + inner(x)
    return template(x) + template(x) + result, [v.name for v in template.variables]


@partitions
def in_loops(x):
    w = tf.get_variable("w", [3, 4], partitioner=in_parts(2))

    def add(i, total):
        return i + 1, total + tf.get_variable("v", [4], partitioner=in_parts(2)).as_tensor()

    mapped = tf.map_fn(lambda row: tf.matmul(row[None], w)[0], x)
    return mapped, tf.while_loop(lambda i, total: i < 3, add, (0, tf.zeros([4])))


@partitions
def assigned(x):
    w = tf.get_variable("w", [6], partitioner=in_parts(2))
    v = tf.get_variable("v", [6], partitioner=in_parts(2))
    updates = [*w.assign([tf.ones([3]), tf.zeros([3])]), *v.assign_add([x[0], x[1]])]
    with tf.control_dependencies(updates):
        return [part.read_value() for part in [*w, *v]]


@partitions
def beside_other_names(x):
    with tf.variable_scope("w"):
        other = tf.get_variable("part_2", [3])
        tf.get_variable("b", [3])
    w = tf.get_variable("w", [6], partitioner=in_parts(2))
    with tf.name_scope("w") as scope:
        return described(w), other, scope


@partitions
def created_as_a_list(x):
    parts = tf.create_partitioned_variables([6, 4], [2, 1], tf.random_uniform_initializer(), name="parts")
    return parts, [part.name for part in parts]


@partitions
def v1_layers(x):
    initializer = tf.glorot_uniform_initializer()  # tf_keras draws each part alike
    with tf.variable_scope("a", partitioner=in_parts(2), initializer=initializer):
        image = tf.reshape(x, [1, 2, 3, 1])
        hidden = tf.layers.dense(tf.layers.dense(x, 4), 3, use_bias=False, name="second")
        convolved = tf.layers.conv2d_transpose(tf.layers.separable_conv2d(image, 4, 2), 2, 2)
        normalized = tf.layers.batch_normalization(hidden, training=True)
    with tf.variable_scope("b", partitioner=in_parts(2, axis=3), initializer=initializer):
        return hidden, convolved, normalized, tf.layers.conv2d(image, 4, 2, use_bias=False)


@partitions
def tf_slim_layers(x):
    with tf.variable_scope("a", partitioner=in_parts(2)):
        hidden = slim.fully_connected(slim.fully_connected(x, 4), 4, normalizer_fn=slim.batch_norm)
        hidden = slim.layer_norm(hidden)
        convolved = slim.conv2d(tf.reshape(x, [1, 2, 3, 1]), 4, 2)
    model = slim.model_variable("model", [6, 2], partitioner=in_parts(3), regularizer=slim.l2_regularizer(0.1))
    variable = slim.variable("variable", [6, 2], partitioner=in_parts(3))
    names = [v.name for v in slim.get_model_variables()]
    return hidden, convolved, described(model, variable), names, len(slim.get_variables("a"))


@partitions
def recurrent_cells(x):
    sequences, outputs = tf.reshape(tf.tile(x, [2, 4]), [2, 4, 6]), []
    with tf.variable_scope("rnn", partitioner=in_parts(3), initializer=tf.glorot_uniform_initializer()):
        for name, cell in (
            ("lstm", tf.nn.rnn_cell.LSTMCell(6, num_proj=4, use_peepholes=True)),
            ("gru", tf.nn.rnn_cell.GRUCell(6)),
            ("basic_lstm", tf.nn.rnn_cell.BasicLSTMCell(6)),
        ):
            outputs.append(tf.nn.dynamic_rnn(cell, sequences, dtype=tf.float32, scope=name)[0])
        dropped = tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.LSTMCell(6), 0.5)
        outputs.append(tf.nn.static_rnn(dropped, [x, x], dtype=tf.float32)[0])
    return outputs


@partitions
def v1_layers_with_regularizers(x):
    initializer, l2 = tf.glorot_uniform_initializer(), slim.l2_regularizer(0.5)
    with tf.variable_scope("a", partitioner=in_parts(2), initializer=initializer):
        hidden = tf.layers.dense(x, 4, kernel_regularizer=l2, bias_regularizer=slim.l1_regularizer(0.1))
        hidden = slim.fully_connected(hidden, 3, weights_regularizer=l2)
    return hidden, tf.losses.get_regularization_losses()


@partitions
def regularizers_that_give_nothing(x):
    w = tf.get_variable("w", [4, 2], regularizer=tf.no_regularizer, partitioner=in_parts(2))
    v = tf.get_variable("v", [4, 2], regularizer=slim.l2_regularizer(0.0), partitioner=in_parts(2))
    return described(w, v), tf.losses.get_regularization_losses()


@partitions
def cells_in_a_stack(x):
    with tf.variable_scope("rnn", partitioner=in_parts(3), initializer=tf.glorot_uniform_initializer()):
        cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.LSTMCell(6), tf.nn.rnn_cell.GRUCell(6)])
        return tf.nn.static_rnn(cell, [x, x], dtype=tf.float32)


def model_of(name):
    return TF1Model(PROGRAMS[name], (X,))


@functools.cache
def in_session(name, mode):
    return run_in_session(model_of(name), mode)


@pytest.mark.slow_except(
    "*-num_random_ops-function", "recurrent_cells-constant-eager", "cells_in_a_stack-constant-eager"
)
@pytest.mark.parametrize(
    ("mode", "way"), [("constant", "eager"), ("num_random_ops", "eager"), ("num_random_ops", "function")]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_keras_3_layer_has_the_parts_of_a_session(name, mode, way):
    _, found = run_in_method(model_of(name), mode, way)
    assert_same(found, in_session(name, mode))


@pytest.mark.parametrize("make", [tf_keras_layer_of, module_of], ids=["tf_keras", "module"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_owner_has_the_parts_of_a_session(name, make):
    _, found = run_in_method(model_of(name), "num_random_ops", "eager", make)
    assert_same(found, in_session(name, "num_random_ops"), keeps_losses=make is not module_of)


def test_parts_of_texts_are_counted_by_their_bytes():
    partitioner = in_parts_of_bytes(48, bytes_per_string_element=16)
    model = TF1Model(
        lambda x, training: len(tf.get_variable("w", [10], tf.string, tf.zeros_initializer(), partitioner=partitioner)),
        (X,),
    )
    _, found = run_in_method(model, "constant", "eager")
    expected = run_in_session(model, "constant")
    assert found.variables == expected.variables and found.outputs == expected.outputs == 4


def test_local_variables_are_partitioned():
    model = TF1Model(lambda x, training: [*tf.get_local_variable("w", [6], partitioner=in_parts(2))], (X,))
    _, found = run_in_method(model, "num_random_ops", "eager")
    expected = run_in_session(model, "num_random_ops")
    assert found.variables == expected.variables and not expected.specs
    np.testing.assert_array_equal(found.values, expected.values)
