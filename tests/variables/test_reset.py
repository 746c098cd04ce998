"""`reset_variables` in graphs, layers and lists, compared with TensorFlow's and NumPy's results."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import ArgumentError, reset_variables
from tests.support.variable_specs import spec

v1 = tf.compat.v1


def test_a_finalized_graph_gets_no_op(graph):
    """The referee is the guide's own line, ``assign(tf.ones_like(var) * 0.001)``, in a second session."""
    with graph.as_default():
        floats = [v for v in v1.global_variables() if v.dtype.is_floating]
        guide = tf.group([v.assign(tf.ones_like(v) * 0.001) for v in floats])
        initialize = v1.global_variables_initializer()
    graph.finalize()
    with v1.Session(graph=graph) as session, v1.Session(graph=graph) as other:
        for each in (session, other):
            each.run(initialize)
        other.run(guide)
        reset_variables(graph, session=session)
        expected, got = other.run(floats), session.run(floats)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
        reset_variables(graph, 3, session=other)
        assert other.run(graph.get_tensor_by_name("step/Read/ReadVariableOp:0")) == 3


def test_a_graph_need_not_be_initialized():
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variable = v1.get_variable("w", [2])
        reset_variables(graph, 0.5)
        assert session.run(variable).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
def test_each_dtype_gets_the_same_value_in_a_graph_and_eagerly(eager):
    values = {
        tf.float16: 0.001,
        tf.bfloat16: 0.001,
        tf.float64: 0.001,
        tf.complex64: 0.001,
        tf.int32: 0,
        tf.uint8: 0,
        tf.bool: False,
        tf.string: b"",
    }
    initial = {dtype: b"x" if dtype == tf.string else 1 for dtype in values}

    def create():
        return [tf.Variable(tf.fill([2], tf.cast(v, d) if d != tf.string else v)) for d, v in initial.items()]

    if eager:
        variables = create()
        reset_variables(variables)
        got = [variable.numpy() for variable in variables]
    else:
        with tf.Graph().as_default() as graph, v1.Session() as session:
            variables = create()
            reset_variables(graph)
            got = session.run(variables)
    for array, (dtype, value) in zip(got, values.items(), strict=True):
        assert array.dtype == dtype.as_numpy_dtype
        assert array.tolist() == [np.asarray(value, dtype.as_numpy_dtype).item()] * 2


@pytest.mark.parametrize("framework", [keras, tf_keras], ids=["keras3", "tf_keras"])
def test_a_model_keeps_its_seed_generators(framework):
    model = framework.Sequential([framework.layers.Dense(2), framework.layers.Dropout(0.5)])
    model(np.ones((1, 2), np.float32))
    seeds = [v for v in model.variables if "seed_generator_state" in v.name]
    before = [v.numpy() for v in seeds]
    assert bool(seeds) == (framework is keras)
    reset_variables(model, 0.25)
    reset_variables(list(model.variables), 0.25)
    assert all((weight.numpy() == 0.25).all() for weight in model.weights)
    np.testing.assert_array_equal([v.numpy() for v in seeds], before)


def test_a_variable_without_a_static_shape_in_a_dict_is_reset():
    variable = tf.Variable([1.0, 2.0, 3.0], shape=[None])
    reset_variables({"any": variable}, 2)
    assert variable.numpy().tolist() == [2.0, 2.0, 2.0]


def test_a_keras3_layer_in_a_graph_is_reset():
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        layer = keras.layers.Dense(2)
        layer(tf.ones((1, 2)))
        reset_variables(layer, 0.5)
        assert all((array == 0.5).all() for array in session.run([w.value for w in layer.weights]))


def test_mirrored_variables_are_reset():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = tf.Variable([1.0])
    reset_variables([variable], 0.5)
    assert variable.numpy().tolist() == [0.5]


def test_a_bad_argument_is_an_error(graph):
    variable = tf.Variable(1.0)
    int8 = tf.Variable(1, dtype=tf.int8, name="small")
    with pytest.raises(ArgumentError, match=r"value must be a real number, but '1' of type str .*pass a number"):
        reset_variables([variable], "1")
    with pytest.raises(ArgumentError, match=r"value=300 does not fit variable 'small' of dtype int8\. .* -128 to 127"):
        reset_variables([int8], 300)
    with pytest.raises(ArgumentError, match="value=nan does not fit"):
        reset_variables([int8], float("nan"))
    for nothing in (tf.Graph(), keras.layers.Dense(1), []):
        with pytest.raises(ArgumentError, match=r"there is nothing to reset: .* Call it once"):
            reset_variables(nothing)
    with pytest.raises(ArgumentError, match=r"'net/w' is in a tf.Graph, and no session was given. Pass session="):
        reset_variables(graph)
    with v1.Session(graph=tf.Graph()) as session:
        with pytest.raises(ArgumentError, match=r"'net/w' is not in the graph of .*Pass the session"):
            reset_variables(graph, session=session)
        with pytest.raises(ArgumentError, match=r"are in no graph. Remove the argument"):
            reset_variables([variable], session=session)
    with v1.Session(graph=graph), pytest.raises(ArgumentError, match=r"'loose' has no static shape .* initializer"):
        reset_variables(graph)
    with pytest.raises(ArgumentError, match=r"holds the VariableSpec 'w'\. Pass the graph, layer"):
        reset_variables({"w": spec(1)})
    with pytest.raises(ArgumentError, match=r"checkpoint path '/no/path' was given\. Pass the graph"):
        reset_variables("/no/path")
    assert variable.numpy() == 1.0
