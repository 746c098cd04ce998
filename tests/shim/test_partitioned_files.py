"""Names, copies, saved models and checkpoints of partitioned variables."""

import copy

import keras
import numpy as np
import pytest
import tensorflow
import tf_keras

from detrand import (
    VariableSpec,
    assert_variables_match,
    load_tf1_checkpoint,
    reset_variables,
    save_tf1_checkpoint,
    track_tf1_style_variables,
    variables_of,
)
from tests.support.partitioned_networks import BATCH, network, tf_keras_network
from tests.support.tf1_referee import (
    TF1_WARNINGS,
    X,
    module_of,
    store_variables,
    tf1_graphs_as_they_are,  # noqa: F401
)

tf = tensorflow.compat.v1
pytestmark = TF1_WARNINGS
TOKENS = np.array([[1, 5, 3], [9, 0, 7]], np.int32)
in_parts, in_parts_of_bytes = tf.fixed_size_partitioner, tf.variable_axis_size_partitioner


class Partitioned(keras.layers.Layer):
    @track_tf1_style_variables
    def call(self, inputs):
        return network(inputs)


WHOLE = {
    "net/table": VariableSpec((10, 4), "float32", True),
    "net/kernel": VariableSpec((4, 5), "float32", True),
    "net/bias": VariableSpec((5,), "float32", True),
}
PARTS = [f"net/{name}/part_{i}" for name, parts in (("table", 3), ("kernel", 2), ("bias", 3)) for i in range(parts)]


def keras_3():
    layer = Partitioned()
    layer(BATCH)
    return layer


def in_tf_keras():
    layer = tf_keras_network()
    layer(BATCH)
    return layer


def module():
    owner = module_of(network)
    owner.run(BATCH, training=True)
    return owner


def module_with_wholes():
    owner = module_of(whole_network)
    owner.run(BATCH, training=True)
    return owner


OWNERS = {"keras_3": keras_3, "tf_keras": in_tf_keras, "module": module}


@pytest.mark.parametrize("kind", OWNERS)
def test_variables_are_whole_and_their_parts_have_the_names_of_tf1(kind):
    owner = OWNERS[kind]()
    assert variables_of(owner) == WHOLE and list(store_variables(owner)) == PARTS
    assert variables_of(owner.variables) == WHOLE
    if kind == "keras_3":
        assert [weight.path for weight in owner.weights] == [f"{owner.name}/{name}" for name in PARTS]
    else:
        assert {variable.name for variable in owner.variables} == {f"{name}:0" for name in PARTS}
    with tensorflow.Graph().as_default() as graph:
        network(tensorflow.constant(BATCH))
    assert_variables_match(graph, owner)
    reset_variables(owner, 0.5)
    assert all((variable.numpy() == 0.5).all() for variable in owner.variables)


@pytest.mark.parametrize("kind", ["tf_keras", "module"])
def test_a_copy_has_parts_of_its_own(kind):
    owner = OWNERS[kind]()
    before = whole_values(owner)
    duplicate = copy.deepcopy(owner)
    assert variables_of(duplicate) == WHOLE
    reset_variables(duplicate, 0.5)
    for name, value in whole_values(owner).items():
        np.testing.assert_array_equal(value, before[name])


def keras_3_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, Partitioned()(inputs))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, of any layer
def test_a_keras_3_model_is_saved_loaded_and_exported(tmp_path):
    model = keras_3_model()
    expected = model(BATCH)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Partitioned": Partitioned})
    np.testing.assert_array_equal(loaded(BATCH), expected)
    assert variables_of(loaded) == WHOLE and len(loaded.weights) == len(PARTS)
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras_3_model()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(BATCH), expected)
    model.export(tmp_path / "exported", verbose=False)
    exported = tensorflow.saved_model.load(tmp_path / "exported")
    np.testing.assert_array_equal(exported.serve(BATCH), expected)


@pytest.mark.parametrize("file", ["model.weights.h5", "checkpoint"])
def test_weights_of_a_tf_keras_model_are_saved_and_loaded(file, tmp_path):
    def model():
        inputs = tf_keras.Input((3,))
        return tf_keras.Model(inputs, tf_keras_network()(inputs))

    saved, loaded = model(), model()
    saved.save_weights(tmp_path / file)
    loaded.load_weights(tmp_path / file)
    np.testing.assert_array_equal(loaded(BATCH), saved(BATCH))


@pytest.mark.parametrize("kind", OWNERS)
def test_an_object_based_checkpoint_has_every_part(kind, tmp_path):
    saved, loaded = OWNERS[kind](), OWNERS[kind]()
    path = tensorflow.train.Checkpoint(owner=saved).save(str(tmp_path / "checkpoint"))
    tensorflow.train.Checkpoint(owner=loaded).restore(path).assert_existing_objects_matched()
    expected = whole_values(saved)
    for name, value in whole_values(loaded).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_tf_keras_saved_model_is_loaded_with_its_parts(tmp_path):
    class Network(tf_keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, inputs):
            return network(inputs)

    inputs = tf_keras.Input((3,))
    model = tf_keras.Model(inputs, Network()(inputs))
    model.save(tmp_path, save_format="tf")
    loaded = tf_keras.models.load_model(tmp_path, custom_objects={"Network": Network})
    np.testing.assert_array_equal(loaded(BATCH), model(BATCH))
    assert variables_of(loaded) == WHOLE and len(loaded.weights) == len(PARTS) and len(loaded.losses) == 5


@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras_3", "tf_keras"])
def test_the_scope_around_a_layer_partitions_its_variables(kit):
    class Inner(kit.layers.Layer):
        @track_tf1_style_variables
        def call(self, x):
            return tf.matmul(x, tf.get_variable("w", [3, 4]))

    class Outer(kit.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        @track_tf1_style_variables
        def call(self, x):
            with tf.variable_scope("outer", partitioner=in_parts(3)):
                return self.inner(x)

    layer = Outer()
    np.testing.assert_array_equal(layer(X), layer(X))
    assert variables_of(layer) == {"outer/w": VariableSpec((3, 4), "float32", True)}
    assert list(store_variables(layer.inner)) == [f"outer/w/part_{i}" for i in range(3)]


# --- TF1 checkpoints ----------------------------------------------------------------------------------------


def whole_network(x, training=True):
    """Return the variables of the network in one part each."""
    with tf.variable_scope("net"):
        return [tf.get_variable(name.removeprefix("net/"), spec.shape) for name, spec in WHOLE.items()]


def whole_values(owner):
    values = {}
    for name, part in store_variables(owner).items():
        values.setdefault(name.split("/part_")[0], []).append(part.numpy())
    return {
        name: np.concatenate(parts, 1 if name == "net/kernel" and len(parts) > 1 else 0)
        for name, parts in values.items()
    }


@pytest.mark.parametrize("in_session", [network, whole_network], ids=["parts_in_session", "whole_in_session"])
@pytest.mark.parametrize("kind", OWNERS)
def test_a_savers_checkpoint_is_loaded(kind, in_session, tmp_path):
    path = str(tmp_path / "model.ckpt")
    with tensorflow.Graph().as_default(), tf.Session() as session:
        in_session(tensorflow.constant(BATCH))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, path)
    expected = {name: tensorflow.train.load_variable(path, name) for name in WHOLE}
    owner = OWNERS[kind]()
    assert sorted(load_tf1_checkpoint(owner, path).loaded) == sorted(WHOLE)
    found = whole_values(owner)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("in_session", [network, whole_network], ids=["parts_in_session", "whole_in_session"])
@pytest.mark.parametrize("make", [*OWNERS.values(), module_with_wholes], ids=[*OWNERS, "module_with_wholes"])
def test_a_saver_restores_what_is_saved(make, in_session, tmp_path):
    owner = make()
    path = save_tf1_checkpoint(owner, str(tmp_path / "model.ckpt"))
    expected = whole_values(owner)
    with tensorflow.Graph().as_default(), tf.Session() as session:
        in_session(tensorflow.constant(BATCH))
        tf.train.Saver().restore(session, path)
        found = {v.op.name: session.run(v) for v in tf.global_variables()}
    if in_session is network:
        found = {
            name: np.concatenate([found[part] for part in PARTS if part.startswith(name)], 1 if "kernel" in name else 0)
            for name in WHOLE
        }
    assert sorted(found) == sorted(expected) == sorted(WHOLE)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
