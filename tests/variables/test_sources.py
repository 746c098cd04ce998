"""Names, specs and values of variables, each held against TensorFlow's own or NumPy's account of them."""

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
    track_tf1_style_variables,
    variables_of,
)
from detrand.variables.comparison import compare_variables
from detrand.variables.sources import name_of, named_variables

v1 = tf.compat.v1


def spec(*shape, dtype="float32", trainable=True):
    return VariableSpec(shape, dtype, trainable)


def shim(base, **kwargs):
    """Returns a layer or module with TF1 code inside that creates net/w, of shape (2,)."""

    class Shim(base):
        @track_tf1_style_variables
        def call(self, inputs, training=None):
            with v1.variable_scope("net"):
                return inputs * v1.get_variable("w", [2])

    return Shim(**kwargs)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        with v1.variable_scope("net"):
            v1.get_variable("w", [3, 2])
            v1.get_variable("ref", [2], tf.float64, use_resource=False)
        v1.get_variable("step", [], tf.int64, trainable=False, initializer=v1.zeros_initializer())
        v1.get_variable("local", [2], collections=[v1.GraphKeys.LOCAL_VARIABLES])
        v1.get_variable("parts", [4, 3], partitioner=v1.fixed_size_partitioner(2))
        v1.Variable(v1.placeholder_with_default(tf.ones([3]), [None]), validate_shape=False, name="loose")
    return graph


GRAPH_SPECS = {
    "net/w": spec(3, 2),
    "net/ref": spec(2, dtype="float64"),
    "step": spec(dtype="int64", trainable=False),
    "parts": spec(4, 3),
    "loose": spec(None),
}


class TestVariablesOf:
    def test_graph(self, graph):
        assert list(variables_of(graph).items()) == list(GRAPH_SPECS.items())

    @pytest.mark.parametrize("version", [v1.train.SaverDef.V1, v1.train.SaverDef.V2], ids=["V1", "V2"])
    def test_a_checkpoint_has_the_names_that_the_graph_has(self, graph, version, tmp_path):
        """The checkpoint is the referee: the graph's Saver names what it writes."""
        with graph.as_default(), v1.Session() as session:
            session.run(v1.global_variables_initializer())
            path = v1.train.Saver(write_version=version).save(session, str(tmp_path / "model.ckpt"), global_step=7)
        saved = variables_of(path)
        assert saved["parts"] == VariableSpec((4, 3), "float32", None)
        assert saved["loose"].shape == (3,)
        expected = {name: VariableSpec(s.shape, s.dtype, None) for name, s in GRAPH_SPECS.items()}
        assert saved == expected | {"loose": saved["loose"]}
        assert variables_of(tmp_path) == saved

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

    def test_tf_keras_layer(self):
        layer = tf_keras.layers.Dense(3, name="dense")
        layer(np.ones((1, 2), np.float32))
        assert variables_of(layer) == {"dense/kernel": spec(2, 3), "dense/bias": spec(3)}

    def test_mixed_precision_variables_have_the_dtype_that_is_stored(self):
        layers = [module.layers.Dense(3, name="dense", dtype="mixed_float16") for module in (keras, tf_keras)]
        for layer in layers:
            layer(np.ones((1, 2), np.float32))
        assert variables_of(layers[0]) == variables_of(layers[1]) == {"dense/kernel": spec(2, 3), "dense/bias": spec(3)}

    def test_module_with_layers_of_both_keras(self):
        module = tf.Module()
        module.own = tf.Variable([1.0], name="own")
        module.layers = [module_.layers.Dense(1, name=name) for module_, name in ((keras, "three"), (tf_keras, "two"))]
        for layer in module.layers:
            layer(np.ones((1, 2), np.float32))
        names = {"own", "three/kernel", "three/bias", "two/kernel", "two/bias"}
        assert variables_of(module).keys() == names

    def test_list_of_variables_layers_and_modules(self):
        variable, module = tf.Variable([1.0, 2.0], name="a"), tf.Module()
        module.variable = variable
        module.other = keras.Variable(np.int32(3), name="b", trainable=False)
        expected = {"a": spec(2), "b": spec(dtype="int32", trainable=False)}
        assert variables_of([module, variable]) == variables_of((variable, module.other)) == expected

    def test_dict_of_variables_and_specs(self):
        source = {"x": tf.Variable(1.0, name="other"), "y": spec(None, 3)}
        assert variables_of(source) == {"x": spec(), "y": spec(None, 3)}
        assert variables_of(variables_of(source)) == variables_of(source)

    def test_a_mirrored_variable_is_one(self):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            assert variables_of([tf.Variable([1.0], name="m")]) == {"m": spec(1)}

    def test_unknown_rank(self):
        assert variables_of([tf.Variable(1.0, shape=tf.TensorShape(None), name="a")])["a"].shape is None


class TestTF1Names:
    @pytest.mark.parametrize("framework", [keras, tf_keras], ids=["keras3", "tf_keras"])
    def test_in_a_layer_of_a_model_of_a_module(self, framework):
        model = framework.Sequential([shim(framework.layers.Layer), framework.layers.Dense(1, name="dense")])
        model(np.ones((1, 2), np.float32))
        module = tf.Module()
        module.models, module.own = [model], tf.Variable(1.0, name="own")
        dense = [name_of(variable) for variable in model.layers[1].weights]
        assert variables_of(model).keys() == {"net/w", *dense}
        assert variables_of([module]).keys() == variables_of(module).keys() == {"net/w", *dense, "own"}
        assert variables_of(module)["net/w"] == spec(2)

    def test_in_a_module_of_a_module(self):
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

    def test_are_no_match_for_one_variable(self):
        with pytest.raises(VariableMismatchError, match=r"1 in TF1, 2 in the port; 1 only in the port\n.*\n  w_1:"):
            assert_variables_match({"w": spec(1)}, [tf.Variable([1.0], name="w"), tf.Variable([2.0], name="w")])


class TestAssertVariablesMatch:
    def test_a_graph_and_its_port(self, graph):
        port = {
            "net/w": tf.Variable(tf.zeros([3, 2])),
            "net/ref": tf.Variable(tf.zeros([2], tf.float64)),
            "step": tf.Variable(0, dtype=tf.int64, trainable=False),
            "parts": tf.Variable(tf.zeros([4, 3])),
            "loose": tf.Variable(tf.ones([3]), shape=[None]),
        }
        assert_variables_match(graph, port)
        assert compare_variables(graph, port).ok
        assert str(compare_variables(graph, port)) == "the variables match: 5 in TF1, 5 in the port"

    def test_the_whole_difference(self):
        tf1 = {
            "same": spec(1),
            "shape": spec(2, 3),
            "dtype": spec(1),
            "flag": spec(1),
            "net/kernel": spec(7, 8),
            "gone": spec(9),
        }
        port = {
            "same": spec(1),
            "shape": spec(3, 2),
            "dtype": spec(1, dtype="float16"),
            "flag": spec(1, trainable=False),
            "model/net/kernel": spec(7, 8),
            "new": spec(4),
        }
        with pytest.raises(VariableMismatchError) as caught:
            assert_variables_match(tf1, port)
        assert str(caught.value).splitlines() == [
            "the variables differ: 6 in TF1, 6 in the port; 2 only in TF1, 2 only in the port, 1 with a different "
            "shape, 1 with a different dtype, 1 with a different trainable flag",
            "only in TF1 (2):",
            "  net/kernel: float32 (7, 8), trainable",
            "  gone: float32 (9,), trainable",
            "only in the port (2):",
            "  model/net/kernel: float32 (7, 8), trainable",
            "  new: float32 (4,), trainable",
            "shape differs (1):",
            "  shape: (2, 3) in TF1, (3, 2) in the port",
            "dtype differs (1):",
            "  dtype: float32 in TF1, float16 in the port",
            "trainable differs (1):",
            "  flag: True in TF1, False in the port",
            "If only the names differ, pass name_map={",
            "  'net/kernel': 'model/net/kernel',",
            "}",
        ]
        assert isinstance(caught.value, AssertionError)

    @pytest.mark.parametrize(
        ("tf1", "port", "name_map"),
        [
            (["a/w", "b/w"], ["model/a/w", "model/b/w"], "lambda name: 'model/' + name"),
            (["net/a/w", "net/b/w"], ["a/w", "b/w"], "lambda name: name.removeprefix('net/')"),
            (["a/w", "b/w"], ["model/a/w", "other/b/w"], "{"),
            (["a/w", "b/w"], ["a/w", "model/b/w"], "{"),
            (["a/w"], ["model/a/w"], "{"),
        ],
        ids=["before all names", "left out", "two of them", "before one name", "one variable"],
    )
    def test_likely_name_map_of_names_with_a_prefix(self, tf1, port, name_map):
        specs = [{name: spec(3 + number) for number, name in enumerate(names)} for names in (tf1, port)]
        proposed = (
            compare_variables(*specs).likely_name_map()[0].removeprefix("If only the names differ, pass name_map=")
        )
        assert proposed == name_map
        if name_map != "{":
            assert_variables_match(*specs, name_map=eval(proposed))

    def test_likely_renames_of_numbered_layers(self):
        tf1 = {"rnn/cell_0/b": spec(4), "rnn/cell_1/b": spec(4), "softmax_w": spec(2, 3), "softmax_b": spec(3)}
        port = {"net/lstm/bias": spec(4), "net/lstm_1/bias": spec(4), "dense/bias": spec(3), "dense/kernel": spec(2, 3)}
        assert compare_variables(tf1, port).likely_renames() == {
            "rnn/cell_0/b": "net/lstm/bias",
            "rnn/cell_1/b": "net/lstm_1/bias",
            "softmax_w": "dense/kernel",
            "softmax_b": "dense/bias",
        }

    def test_likely_renames_of_many_variables_of_one_shape(self):
        tf1 = {f"block{n}/conv{n % 7}/w": spec(3, 3) for n in range(150)}
        port = {f"model/{name}": s for name, s in reversed(tf1.items())}
        assert compare_variables(tf1, port).likely_renames() == {name: f"model/{name}" for name in tf1}

    @pytest.mark.parametrize(
        ("tf1", "port"),
        [
            (spec(2), spec(None)),
            (spec(2), VariableSpec(None, "float32", True)),
            (spec(2), spec(2, 1)),
            (spec(2), spec(2, dtype="float64")),
            (spec(2), spec(2, trainable=False)),
        ],
    )
    def test_each_single_difference_fails(self, tf1, port):
        for a, b in ((tf1, port), (port, tf1)):
            with pytest.raises(VariableMismatchError, match=r"1 with a different"):
                assert_variables_match({"w": a}, {"w": b})

    def test_a_checkpoint_does_not_say_what_is_trainable(self):
        for flag in (True, False):
            assert_variables_match({"w": spec(2, trainable=None)}, {"w": spec(2, trainable=flag)})

    @pytest.mark.parametrize(
        ("tf1", "port", "message"),
        [
            ({}, {}, "0 in TF1, 0 in the port; there is nothing to compare. A layer has no variables before"),
            ({"w": spec(1)}, {}, "1 only in TF1. A layer has no variables before it is built or called"),
            ({}, {"w": spec(1)}, "1 only in the port. A layer has no variables before it is built or called"),
        ],
    )
    def test_an_empty_side_fails(self, tf1, port, message):
        with pytest.raises(VariableMismatchError, match=message):
            assert_variables_match(tf1, port)

    def test_names_through_a_dict_or_a_function(self):
        tf1, port = {"a": spec(1), "b": spec(2), "c": spec(3)}, {"x": spec(1), "a": spec(2), "c": spec(3)}
        assert_variables_match(tf1, port, {"a": "x", "b": "a"})
        assert_variables_match(tf1, {f"net/{name}": s for name, s in tf1.items()}, lambda name: f"net/{name}")

    def test_a_mapped_name_is_shown_beside_the_variables_own_name(self):
        with pytest.raises(VariableMismatchError, match=r"only in TF1 \(1\):\n  a \(name_map: x\): "):
            assert_variables_match({"a": spec(1)}, {"y": spec(2)}, {"a": "x"})
        with pytest.raises(VariableMismatchError, match=r"  a \(name_map: x\): \(1,\) in TF1, \(2,\) in the port"):
            assert_variables_match({"a": spec(1)}, {"x": spec(2)}, {"a": "x"})

    @pytest.mark.parametrize(
        ("name_map", "message"),
        [
            ({"kernal": "x"}, r"entry for 'kernal', but TF1 has no .*\. Did you mean 'kernel'\?"),
            ({"zzz": "x"}, r"entry for 'zzz', but TF1 has no .*\. Remove the entry"),
            ({"kernel": "bias"}, "'kernel' and 'bias' would both be 'bias' in the port"),
            (lambda name: "x", "'kernel' and 'bias' would both be 'x'"),
            (lambda name: None, "maps 'kernel' to None of type NoneType. Map it to"),
            (lambda name: {}[name], r"name_map raised KeyError\('.*'\) for '.*'\. It is called with each TF1 name"),
            (
                [("kernel", "x")],
                r"must be a dict .* or a function .* of type list was given\. Pass, for example, name_map=\{",
            ),
        ],
    )
    def test_bad_name_map(self, name_map, message):
        tf1 = {"kernel": spec(1), "bias": spec(2)}
        with pytest.raises(ArgumentError, match=message):
            assert_variables_match(tf1, tf1, name_map)


class TestResetVariables:
    def test_a_finalized_graph_gets_no_op(self, graph):
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

    def test_a_graph_need_not_be_initialized(self):
        with tf.Graph().as_default() as graph, v1.Session() as session:
            variable = v1.get_variable("w", [2])
            reset_variables(graph, 0.5)
            assert session.run(variable).tolist() == [0.5, 0.5]

    @pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
    def test_each_dtype_gets_the_same_on_both_sides(self, eager):
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
    def test_a_model_keeps_its_seed_generators(self, framework):
        model = framework.Sequential([framework.layers.Dense(2), framework.layers.Dropout(0.5)])
        model(np.ones((1, 2), np.float32))
        seeds = [v for v in model.variables if "seed_generator_state" in v.name]
        before = [v.numpy() for v in seeds]
        assert bool(seeds) == (framework is keras)
        reset_variables(model, 0.25)
        reset_variables(list(model.variables), 0.25)
        assert all((weight.numpy() == 0.25).all() for weight in model.weights)
        np.testing.assert_array_equal([v.numpy() for v in seeds], before)

    def test_a_dict_and_a_shape_that_is_not_static(self):
        variable = tf.Variable([1.0, 2.0, 3.0], shape=[None])
        reset_variables({"any": variable}, 2)
        assert variable.numpy().tolist() == [2.0, 2.0, 2.0]

    def test_a_keras3_variable_in_a_layer_of_a_graph(self):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            layer = keras.layers.Dense(2)
            layer(tf.ones((1, 2)))
            reset_variables(layer, 0.5)
            assert all((array == 0.5).all() for array in session.run([w.value for w in layer.weights]))

    def test_mirrored_variables(self):
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            variable = tf.Variable([1.0])
        reset_variables([variable], 0.5)
        assert variable.numpy().tolist() == [0.5]

    def test_bad_arguments(self, graph):
        variable = tf.Variable(1.0)
        int8 = tf.Variable(1, dtype=tf.int8, name="small")
        with pytest.raises(ArgumentError, match=r"value must be a real number, but '1' of type str .*Pass a number"):
            reset_variables([variable], "1")
        with pytest.raises(
            ArgumentError, match=r"value=300 does not fit variable 'small' of dtype int8\. .* -128 to 127"
        ):
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


class TestBadSources:
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (5, r"tf1 must be a tf.Graph, .* but 5 of type int was given"),
            (None, r"tf1 must be a tf.Graph"),
            ({1: 2}, r"tf1 must be a tf.Graph, .* but {1: 2} of type dict"),
            ([tf.zeros(2)], r"tf1\[0\] must be a variable, layer, .* of type EagerTensor"),
            ({"w": np.zeros(2)}, r"tf1\['w'\] must be a variable or a VariableSpec, .* of type ndarray"),
            (tf.Variable(1.0), r"was given\. Pass a list, \[variable\]"),
            (iter([]), r"was given\. Pass list\(...\) of it"),
            (v1.Session(graph=tf.Graph()), r"was given\. Pass its graph, session.graph"),
            (
                "/no/such/model.ckpt",
                r"tf1='/no/such/model.ckpt' cannot be read as a checkpoint: the directory '/no/such' does not exist",
            ),
        ],
        ids=["int", "None", "dict", "tensor", "array", "variable", "iterator", "session", "missing-checkpoint"],
    )
    def test_message(self, source, message):
        with pytest.raises(ArgumentError, match=message):
            assert_variables_match(source, {})

    def test_object_based_checkpoint(self, tmp_path):
        path = tf.train.Checkpoint(w=tf.Variable(1.0)).write(str(tmp_path / "objects"))
        with pytest.raises(ArgumentError, match=r"is an object-based checkpoint.*Restore it into the layer"):
            variables_of(path)

    def test_a_long_value_is_cut(self):
        with pytest.raises(ArgumentError, match=r"but b'x{75}\.\.\. of type bytes"):
            variables_of(b"x" * 1000)
