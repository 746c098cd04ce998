"""The state of the process, which a call of a decorated method leaves as it was."""

import contextlib
import sys

import pytest
import tensorflow
import tf_slim as slim
from tensorflow.python.eager import context

from detrand import (
    variables_of,
)
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    WAYS,
    X,
    layer_of,
    module_of,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS


def patched_attributes():
    """Return every attribute that a program replaces, from all attributes of TensorFlow and Keras while one runs."""
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


@pytest.fixture(scope="module")
def v1_layers_in_use():
    """Prepare TensorFlow by a first v1 layer, which imports modules, and a first function, which reads collections."""
    tf.layers.dense(tensorflow.constant(X), 2)
    tensorflow.function(lambda: 0)()


@pytest.mark.slow
@pytest.mark.usefixtures("v1_layers_in_use")
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
