"""`variables_of`: the names and specs of variables, compared with TensorFlow's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import (
    ArgumentError,
    VariableMismatchError,
    VariableSpec,
    assert_variables_match,
    reset_variables,
    save_tf1_checkpoint,
    track_tf1_style_variables,
    variables_of,
)
from detrand.variables.sources import name_of, named_variables
from tests.support.variable_specs import spec

v1 = tf.compat.v1


def shim(base, **kwargs):
    """Return a layer or module with TF1 code inside that creates net/w, of shape (2,)."""

    class Shim(base):
        @track_tf1_style_variables
        def call(self, inputs, training=None):
            with v1.variable_scope("net"):
                return inputs * v1.get_variable("w", [2])

    return Shim(**kwargs)


GRAPH_SPECS = {
    "net/w": spec(3, 2),
    "net/ref": spec(2, dtype="float64"),
    "step": spec(dtype="int64", trainable=False),
    "parts": spec(4, 3),
    "loose": spec(None),
}


class TestVariablesOf:
    def test_the_variables_of_a_graph_are_listed(self, graph):
        assert list(variables_of(graph).items()) == list(GRAPH_SPECS.items())

    @pytest.mark.parametrize("version", [v1.train.SaverDef.V1, v1.train.SaverDef.V2], ids=["V1", "V2"])
    def test_a_checkpoint_has_the_names_that_the_graph_has(self, graph, version, tmp_path):
        """The names must be those that the graph's Saver writes."""
        with graph.as_default(), v1.Session() as session:
            session.run(v1.global_variables_initializer())
            path = v1.train.Saver(write_version=version).save(session, str(tmp_path / "model.ckpt"), global_step=7)
        saved = variables_of(path)
        assert saved["parts"] == VariableSpec((4, 3), "float32", None)
        assert saved["loose"].shape == (3,)
        expected = {name: VariableSpec(s.shape, s.dtype, None) for name, s in GRAPH_SPECS.items()}
        assert saved == expected | {"loose": saved["loose"]}
        assert variables_of(tmp_path) == saved

    @pytest.mark.slow
    def test_keras3_layer_has_its_weights_by_path(self):
        model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(3, name="dense"),
                keras.layers.BatchNormalization(name="bn"),
                keras.layers.Dropout(0.5),
            ],
            name="net",
        )
        model.compile("adam", "mse", metrics=["mae"])
        model.train_on_batch(np.ones((2, 2)), np.ones((2, 3)))
        found = variables_of(model)
        assert list(found) == [weight.path for weight in model.weights]
        assert [name.rsplit("/", 1)[-1] for name in found][:3] == ["kernel", "bias", "gamma"]
        assert found[model.layers[0].kernel.path] == spec(2, 3)
        assert found[model.layers[1].moving_mean.path] == spec(3, trainable=False)
        assert variables_of(model.variables[: len(model.weights) + 2]).keys() == found.keys()  # seed state left out

    def test_the_variables_of_a_tf_keras_layer_are_listed(self):
        layer = tf_keras.layers.Dense(3, name="dense")
        layer(np.ones((1, 2), np.float32))
        assert variables_of(layer) == {"dense/kernel": spec(2, 3), "dense/bias": spec(3)}

    def test_the_variables_of_a_frozen_tf_keras_layer_are_not_trainable(self):
        model = tf_keras.Sequential([tf_keras.layers.Dense(2, name="trained"), tf_keras.layers.Dense(1, name="frozen")])
        model(np.ones((1, 3), np.float32))
        model.layers[1].trainable = False
        module = tf.Module()
        module.model = model
        for source, trained in (
            (model, model.trainable_variables),
            ([model], model.trainable_variables),
            (module, module.trainable_variables),
        ):
            trainable = {name for name, each in variables_of(source).items() if each.trainable}
            assert trainable == {variable.name.removesuffix(":0") for variable in trained}
        assert len(model.trainable_variables) < len(module.trainable_variables)

    def test_mixed_precision_variables_have_the_dtype_that_is_stored(self):
        layers = [module.layers.Dense(3, name="dense", dtype="mixed_float16") for module in (keras, tf_keras)]
        for layer in layers:
            layer(np.ones((1, 2), np.float32))
        assert variables_of(layers[0]) == variables_of(layers[1]) == {"dense/kernel": spec(2, 3), "dense/bias": spec(3)}

    def test_a_module_may_have_layers_of_both_keras(self):
        module = tf.Module()
        module.own = tf.Variable([1.0], name="own")
        module.layers = [module_.layers.Dense(1, name=name) for module_, name in ((keras, "three"), (tf_keras, "two"))]
        for layer in module.layers:
            layer(np.ones((1, 2), np.float32))
        names = {"own", "three/kernel", "three/bias", "two/kernel", "two/bias"}
        assert variables_of(module).keys() == names

    def test_a_list_may_hold_variables_layers_and_modules(self):
        variable, module = tf.Variable([1.0, 2.0], name="a"), tf.Module()
        module.variable = variable
        module.other = keras.Variable(np.int32(3), name="b", trainable=False)
        expected = {"a": spec(2), "b": spec(dtype="int32", trainable=False)}
        assert variables_of([module, variable]) == variables_of((variable, module.other)) == expected

    def test_a_dict_may_hold_variables_and_specs(self):
        source = {"x": tf.Variable(1.0, name="other"), "y": spec(None, 3)}
        assert variables_of(source) == {"x": spec(), "y": spec(None, 3)}
        assert variables_of(variables_of(source)) == variables_of(source)

    def test_a_mirrored_variable_counts_once(self):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            assert variables_of([tf.Variable([1.0], name="m")]) == {"m": spec(1)}

    def test_a_variable_of_unknown_rank_has_no_shape(self):
        assert variables_of([tf.Variable(1.0, shape=tf.TensorShape(None), name="a")])["a"].shape is None


class TestTF1Names:
    @pytest.mark.parametrize("framework", [keras, tf_keras], ids=["keras3", "tf_keras"])
    def test_variables_of_a_layer_in_a_model_in_a_module_keep_their_tf1_names(self, framework):
        model = framework.Sequential([shim(framework.layers.Layer), framework.layers.Dense(1, name="dense")])
        model(np.ones((1, 2), np.float32))
        module = tf.Module()
        module.models, module.own = [model], tf.Variable(1.0, name="own")
        dense = [name_of(variable) for variable in model.layers[1].weights]
        assert variables_of(model).keys() == {"net/w", *dense}
        assert variables_of([module]).keys() == variables_of(module).keys() == {"net/w", *dense, "own"}
        assert variables_of(module)["net/w"] == spec(2)

    def test_variables_in_nested_modules_keep_their_tf1_names(self):
        outer, middle = tf.Module(), tf.Module()
        outer.middle, middle.shim, middle.plain = middle, shim(tf.Module), tf.Variable(2.0, name="plain")
        middle.shim.call(tf.ones(2))
        named = named_variables(outer)
        assert named.keys() == {"net/w", "plain"}
        assert named["plain"] is middle.plain
        assert named["net/w"].shape == (2,)

    def test_a_graph_and_the_same_code_in_a_layer_match(self):
        layer = shim(keras.layers.Layer)
        layer(np.ones((1, 2), np.float32))
        with tf.Graph().as_default() as graph, v1.variable_scope("net"):
            v1.get_variable("w", [2])
        assert_variables_match(graph, layer)
        reset_variables(layer, 0.5)
        np.testing.assert_array_equal(layer(np.ones((1, 2), np.float32)), [[0.5, 0.5]])


class TestDuplicateNames:
    def test_are_numbered_as_a_tf1_graph_numbers_them(self):
        with tf.Graph().as_default() as graph:
            for shape in ([1], [2], [3]):
                v1.Variable(tf.ones(shape))
        port = [tf.Variable(tf.ones(shape)) for shape in ([1], [2], [3])]
        assert variables_of(port) == variables_of(graph)
        assert_variables_match(graph, port)

    def test_a_number_that_is_taken_is_passed_over(self):
        named = [tf.Variable(tf.ones([n]), name=name) for n, name in enumerate(["w", "w", "w_1", "w"])]
        assert {name: s.shape for name, s in variables_of(named).items()} == {
            "w": (0,),
            "w_2": (1,),
            "w_1": (2,),
            "w_3": (3,),
        }

    def test_partitioned_variables_of_one_name_are_numbered(self, tmp_path):
        class Parts(tf.Module):
            @track_tf1_style_variables
            def __call__(self, inputs):
                return inputs * v1.get_variable("w", [4], partitioner=v1.fixed_size_partitioner(2))

        modules = [Parts(), Parts()]
        for module in modules:
            module(tf.ones(4))
        assert variables_of(modules) == {"w": spec(4), "w_1": spec(4)}
        path = save_tf1_checkpoint(modules, tmp_path / "model.ckpt")
        np.testing.assert_array_equal(tf.train.load_variable(path, "w_1"), modules[1](tf.ones(4)))

    def test_two_variables_of_a_name_do_not_match_one(self):
        with pytest.raises(VariableMismatchError, match=r"1 in TF1, 2 in the port; 1 only in the port\n.*\n  w_1:"):
            assert_variables_match({"w": spec(1)}, [tf.Variable([1.0], name="w"), tf.Variable([2.0], name="w")])


class TestBadSources:
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (5, r"tf1 must be a tf.Graph, .* but 5 of type int was given"),
            (None, r"tf1 must be a tf.Graph"),
            ({1: 2}, r"tf1 must be a tf.Graph, .* but {1: 2} of type dict"),
            ([tf.zeros(2)], r"tf1\[0\] must be a variable, layer, .* of type EagerTensor"),
            ({"w": np.zeros(2)}, r"tf1\['w'\] must be a variable or a VariableSpec, .* of type ndarray"),
            (tf.Variable(1.0), r"was given; pass a list, \[variable\]"),
            (iter([]), r"was given; pass list\(...\) of it"),
            (v1.Session(graph=tf.Graph()), r"was given; pass its graph, session.graph"),
            (
                "/no/such/model.ckpt",
                r"tf1='/no/such/model.ckpt' cannot be read as a checkpoint: the directory '/no/such' does not exist",
            ),
        ],
        ids=["int", "None", "dict", "tensor", "array", "variable", "iterator", "session", "missing-checkpoint"],
    )
    def test_a_bad_source_is_named(self, source, message):
        with pytest.raises(ArgumentError, match=message):
            assert_variables_match(source, {})

    def test_an_object_based_checkpoint_is_refused(self, tmp_path):
        path = tf.train.Checkpoint(w=tf.Variable(1.0)).write(str(tmp_path / "objects"))
        with pytest.raises(ArgumentError, match=r"is an object-based checkpoint.*Restore it into the layer"):
            variables_of(path)

    def test_a_long_value_is_cut(self):
        with pytest.raises(ArgumentError, match=r"but b'x{75}\.\.\. of type bytes"):
            variables_of(b"x" * 1000)
