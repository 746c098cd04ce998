"""Shapes and dtypes, compared with TensorFlow's own types of these."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from detrand.variables.spec import dtype_name, is_compatible, shape_tuple

SHAPES = [None, (), (3,), (None,), (3, 2), (None, 2), [3, None], 3, tf.TensorShape(None), tf.TensorShape([3, None])]


@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_a_shape_is_that_of_tensorflow(shape):
    expected = tf.TensorShape(shape)
    assert shape_tuple(shape) == (None if expected.rank is None else tuple(expected.as_list()))


@pytest.mark.parametrize(("shape", "other"), [*itertools.combinations_with_replacement(SHAPES, 2)], ids=repr)
def test_shapes_are_compatible_as_in_tensorflow(shape, other):
    assert is_compatible(shape, other) == tf.TensorShape(shape).is_compatible_with(tf.TensorShape(other))


DTYPES = [tf.float32, tf.bfloat16, tf.string, tf.bool, np.float64, np.dtype("int8"), ml_dtypes.bfloat16, "float16"]


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_the_name_of_a_dtype_is_that_of_tensorflow(dtype):
    assert dtype_name(dtype) == tf.as_dtype(dtype).name
