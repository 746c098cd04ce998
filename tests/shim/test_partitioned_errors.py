"""Partitioned variables that TF1 refuses are refused in its words."""

import pytest
import tensorflow

from detrand import variables_of
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    module_of,
    store_variables,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS
in_parts, in_parts_of_bytes = tf.fixed_size_partitioner, tf.variable_axis_size_partitioner


ERRORS = {}


def fails(program):
    ERRORS[program.__name__] = lambda x, training: program(x)
    return program


def again(*args, **kwargs):
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.get_variable(*args, **kwargs)


@fails
def parts_of_a_whole_one(x):
    tf.get_variable("w", [6])
    tf.get_variable("w", [6], partitioner=in_parts(2))


@fails
def the_whole_of_parts(x):
    tf.get_variable("w", [6], partitioner=in_parts(2))
    tf.get_variable("w", [6])


@fails
def made_twice(x):
    for _ in range(2):
        tf.get_variable("w", [6], partitioner=in_parts(2))


@fails
def missing_and_reused(x):
    again("w", [6], partitioner=in_parts(2))


@fails
def reused_in_another_shape(x):
    tf.get_variable("w", [6], partitioner=in_parts(2))
    again("w", [7], partitioner=in_parts(2))


@fails
def reused_in_another_type(x):
    tf.get_variable("w", [6], partitioner=in_parts(2))
    again("w", [6], tf.float64, partitioner=in_parts(2))


@fails
def reused_along_another_axis(x):
    tf.get_variable("w", [4, 4], partitioner=in_parts(2))
    again("w", [4, 4], partitioner=in_parts(2, axis=1))


@fails
def parts_along_two_axes(x):
    tf.get_variable("w", [4, 4], partitioner=lambda shape, dtype: [2, 2])


@fails
def a_partitioner_of_another_rank(x):
    tf.get_variable("w", [4, 4], partitioner=lambda shape, dtype: [2])


@fails
def no_parts(x):
    tf.get_variable("w", [4], partitioner=lambda shape, dtype: [0])


@fails
def a_partitioner_that_cannot_be_called(x):
    tf.get_variable("w", [4], partitioner=2)


@fails
def a_value_without_a_shape(x):
    tf.get_variable("w", initializer=[1.0, 2.0], partitioner=in_parts(2))


@fails
def an_initializer_without_a_shape(x):
    tf.get_variable("w", initializer=lambda: tf.random_uniform([4]), partitioner=in_parts(2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ERRORS)
def test_what_tf1_refuses_is_refused_in_its_words(name, way):
    with pytest.raises(ValueError) as in_graph, tensorflow.Graph().as_default():
        ERRORS[name](tensorflow.constant(X), training=True)
    module = module_of(ERRORS[name])
    with pytest.raises(ValueError) as in_method:
        WAYS[way](lambda: module.run(tensorflow.constant(X), training=True))()
    assert str(in_graph.value) in str(in_method.value).replace("\n    ", "\n")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            (4, 2),
            (4, None),
            "No partitioner was provided, but a partitioned version of the variable was found: w/part_0",
        ),
        ((4, None), (4, 2), "A partitioner was provided, but an unpartitioned version of the variable was found: w"),
        ((7, 3), (7, 2), r"specified partitions \[2\] and found partitions \[3\]"),
        ((4, 2), (2, 1), r"specified partitions \[1\] and found partitions \[2\]"),
        (
            (4, 2),
            (6, 3),
            r"Trying to reuse partitioned variable w, but specified partitions \[3\] and found partitions \[2\]",
        ),
    ],
    ids=["whole", "parts", "number", "smaller", "larger"],
)
def test_a_variable_stays_in_its_parts(first, second, message):
    def program(given, training):
        size, parts = given
        return tf.get_variable("w", [size], partitioner=in_parts(parts) if parts else None)

    module = module_of(program)
    module.run(first, training=True)
    names = list(store_variables(module))
    with pytest.raises(ValueError, match=message):
        module.run(second, training=True)
    module.run(first, training=True)
    assert list(store_variables(module)) == names and list(variables_of(module)) == ["w"]
