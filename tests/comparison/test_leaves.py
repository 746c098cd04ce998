"""The values of each framework that `detrand.comparison.leaves` reads, and those that it refuses."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import ArgumentError, compare
from detrand.comparison.leaves import read_leaf
from tests.support.comparing import Output, f32, only_leaf

v1 = tf.compat.v1


def ragged(values, dtype=tf.float32):
    return tf.ragged.constant(values, dtype)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(tf.constant, id="eager_tensor"),
        pytest.param(tf.Variable, id="tf_variable"),
        pytest.param(lambda x: v1.Variable(x, use_resource=True), id="v1_variable"),
        pytest.param(keras.Variable, id="keras3_variable"),
        pytest.param(
            lambda x: tf_keras.layers.Layer().add_weight(
                name="w", shape=x.shape, initializer=tf_keras.initializers.Constant(x)
            ),
            id="tf_keras_variable",
        ),
    ],
)
def test_framework_values_compare_as_their_numbers(value):
    numbers = f32(1, 2, 3)
    desired = list(numbers) if isinstance(value(numbers), list) else numbers
    assert compare(value(numbers), desired).ok
    assert compare(desired, value(numbers)).ok
    assert compare(value(numbers + 1), desired).first_divergence.reason == "values"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "int8", "bool", "complex64"])
def test_tensors_keep_their_dtype(dtype):
    tensor = tf.cast(tf.constant([0.0, 1.0]), dtype)
    for part in (tensor, tensor[0]):
        assert only_leaf(part, part.numpy()).actual.dtype == dtype
    assert compare(tensor, tf.cast(tensor, tf.float64)).first_divergence.reason == "dtype"


def test_a_structure_wrapped_by_tensorflow_opens_as_the_structure_inside():
    module = tf.Module()
    module.state = [1, {"b": 2}, (3,)]
    assert type(module.state).__name__ == "ListWrapper"
    assert compare(module.state, [1, {"b": 2}, (3,)]).ok


@pytest.mark.parametrize(
    ("make", "other", "path"),
    [
        pytest.param(lambda: ragged([[1], [2, 3]]), ragged([[1], [2, 4]]), ".flat_values", id="ragged_values"),
        pytest.param(
            lambda: ragged([[1], [2, 3]]), ragged([[1, 2], [3]]), ".nested_row_splits[0]", id="ragged_row_splits"
        ),
        pytest.param(
            lambda: ragged([[[1]], [[2], [3]]]),
            ragged([[[1], [2]], [[3]]]),
            ".nested_row_splits[0]",
            id="ragged_in_two_dimensions",
        ),
        pytest.param(
            lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            tf.SparseTensor([[0, 1]], [1.0], [2, 2]),
            ".indices",
            id="sparse_indices",
        ),
        pytest.param(
            lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            tf.SparseTensor([[0, 0]], [2.0], [2, 2]),
            ".values",
            id="sparse_values",
        ),
        pytest.param(
            lambda: tf.SparseTensor([[0, 0]], [1.0], [2, 2]),
            tf.SparseTensor([[0, 0]], [1.0], [2, 3]),
            ".dense_shape",
            id="sparse_dense_shape",
        ),
        pytest.param(
            lambda: tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0])),
            tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1])),
            ".indices",
            id="indexed_slices",
        ),
    ],
)
def test_composite_tensors_compare_by_component(make, other, path):
    with tf.Graph().as_default():
        from_session = v1.Session().run(make())
    assert compare(make(), from_session).ok
    assert compare(from_session, make()).ok
    assert compare(make(), other).first_divergence.path == path


def test_a_sparse_tensor_differs_from_its_dense_tensor():
    dense = f32(1, 0)
    assert compare(tf.sparse.from_dense(dense), dense).first_divergence.reason == "structure"


def graph_values():
    with tf.Graph().as_default():
        yield pytest.param(v1.placeholder(tf.float32, [2]), "actual", id="placeholder")
        yield pytest.param(v1.placeholder(tf.float32), "actual", id="placeholder_of_unknown_rank")
        yield pytest.param(v1.get_variable("a", [2]), "actual", id="graph_variable")
        yield pytest.param(v1.get_variable("b", [2], use_resource=False), "actual", id="reference_variable")
        yield pytest.param(v1.sparse_placeholder(tf.float32), "actual.indices", id="sparse_placeholder")
        yield pytest.param(v1.ragged.placeholder(tf.float32, 1), "actual.flat_values", id="ragged_placeholder")
    yield pytest.param(keras.Input((2,)), "actual", id="keras3_input")
    yield pytest.param(tf_keras.Input((2,)), "actual", id="tf_keras_input")


@pytest.mark.parametrize(("value", "where"), list(graph_values()))
def test_the_error_for_a_symbolic_tensor_asks_for_session_run(value, where):
    with pytest.raises(ArgumentError, match=rf"^{where} is a symbolic tensor, .*Evaluate it with Session.run"):
        compare(value, value)


def test_a_tensor_inside_a_tf_function_is_symbolic():
    @tf.function
    def function(x):
        with pytest.raises(ArgumentError, match="actual is a symbolic tensor"):
            compare(x, 1.0)
        return x

    function(tf.ones(2))


def test_an_operation_has_no_numbers():
    with tf.Graph().as_default(), pytest.raises(ArgumentError, match=r"Operation, which has no numbers"):
        compare(v1.no_op(), 1.0)


class TorchStandIn:
    """A stand-in for `torch.Tensor`, which refuses what PyTorch refuses, in PyTorch's order of calls."""

    int16, uint8 = np.int16, np.uint8  # the attributes of the stand-in for the module `torch`

    def __init__(self, array, requires_grad=True, device="cuda", conj=True):
        self.array, self.requires_grad, self.device, self.conj = np.asarray(array), requires_grad, device, conj
        self.dtype = f"torch.{self.array.dtype.name}"
        self.shape = self.array.shape

    def _with(self, **changes):
        state = {"requires_grad": self.requires_grad, "device": self.device, "conj": self.conj}
        return type(self)(changes.pop("array", self.array), **(state | changes))

    def detach(self):
        return self._with(requires_grad=False)

    def cpu(self):
        return self._with(device="cpu")

    def resolve_conj(self):
        return self._with(conj=False)

    def resolve_neg(self):
        return self

    def view(self, dtype):
        return self._with(array=self.array.view(dtype), conj=False)

    def numpy(self):
        if self.requires_grad or self.device != "cpu" or self.conj or "float8" in self.dtype or "bf" in self.dtype:
            raise TypeError("can't convert it to numpy")
        return self.array


TorchStandIn.__module__ = "torch"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "complex64"])
def test_torch_stand_in_is_detached_moved_and_read(monkeypatch, dtype):
    monkeypatch.setitem(sys.modules, "torch", TorchStandIn)
    array = np.array([1, 2]).astype(dtype)
    leaf = only_leaf(TorchStandIn(array), array)
    assert (leaf.ok, leaf.actual.dtype) == (True, dtype)
    assert compare(TorchStandIn(array), array[::-1]).first_divergence.reason == "values"
    assert only_leaf(TorchStandIn(array[1]), array[1]).ok


def test_torch_stand_in_that_cannot_be_read_is_an_error_with_the_cause(monkeypatch):
    monkeypatch.setattr(TorchStandIn, "resolve_neg", lambda self: self._with(conj=True))
    with pytest.raises(ArgumentError, match=r"actual is a torch.TorchStandIn, .* \(can't convert it to numpy\)"):
        compare(TorchStandIn(f32(1)), f32(1))


def test_keras_variable_on_a_torch_stand_in_is_read_through_its_value(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", TorchStandIn)
    array = np.array([1, 2]).astype("bfloat16")
    variable = type("Variable", (), {"__module__": "keras.src.backend.torch.core", "value": TorchStandIn(array)})()
    assert only_leaf(variable, array).ok


class JaxStandIn:
    """A stand-in for `jax.Array`; a traced one refuses, as JAX's tracers do."""

    def __init__(self, array, traced=False):
        self.array, self.traced = array, traced
        self.shape, self.dtype = array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        if self.traced:
            raise TypeError("The numpy.ndarray conversion method __array__() was called on traced array")
        return self.array


JaxStandIn.__module__ = "jaxlib._jax"


@pytest.mark.parametrize(("dtype", "kind"), [("U3", "str"), ("S3", "bytes"), (object, "bytes")], ids=str)
def test_an_empty_array_of_strings_has_the_kind_of_its_dtype(dtype, kind):
    assert read_leaf(np.empty(0, dtype), "actual").kind == kind


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_an_array_of_jax_is_read(dtype):
    array = np.array([1, 2]).astype(dtype)
    leaf = only_leaf(JaxStandIn(array), array)
    assert (leaf.ok, leaf.actual.dtype) == (True, dtype)
    assert compare(JaxStandIn(array), array[::-1]).first_divergence.reason == "values"


def test_jax_stand_in_that_is_traced_is_symbolic():
    with pytest.raises(ArgumentError, match="desired is a symbolic tensor"):
        compare(f32(1), JaxStandIn(f32(1), traced=True))


# --- values without numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(object(), "builtins.object, which has no numbers", id="object"),
        pytest.param({1, 2}, "builtins.set, which has no numbers", id="set"),
        pytest.param((i for i in [1]), "builtins.generator, which has no numbers", id="generator"),
        pytest.param(Output, "builtins.type, which has no numbers", id="dataclass_itself"),
        pytest.param(keras.layers.Dense(2), "Dense, which has no numbers", id="keras_layer"),
        pytest.param(tf.Module(), "Module, which has no numbers", id="tf_module"),
        pytest.param(tf.TensorShape([1]), "TensorShape, which has no numbers", id="tensor_shape"),
        pytest.param(tf.Variable(1.0).handle, "EagerTensor, which has no numbers.*resource", id="resource_handle"),
        pytest.param(np.array([1, "a"], object), r"array of Python objects \(int, str\)", id="object_array"),
        pytest.param(np.array(["2020"], "M8[s]"), "dtype datetime64", id="datetime"),
        pytest.param(np.ma.array([1.0], mask=[True]), "masked array.*filled", id="masked"),
        pytest.param(2**64, "more than 64 bits", id="huge_int"),
        pytest.param(-(2**63) - 1, "more than 64 bits", id="huge_negative_int"),
    ],
)
def test_a_leaf_without_numbers_is_an_error_that_names_it(value, message):
    with pytest.raises(ArgumentError, match=rf"actual\['k'\]\[0\] .*{message}"):
        compare({"k": [value]}, {"k": [1.0]})
    with pytest.raises(ArgumentError, match=rf"^desired (?=(is|has) ).*{message}"):
        compare(1.0, value)
