import re

import numpy as np
import pytest
import tensorflow as tf

from detrand import Rearranged, VariableSpec, assert_variables_match, gru_cell_to_keras, lstm_cell_to_keras
from detrand.errors import ArgumentError, VariableMismatchError
from detrand.variables.forms import is_reshaped, rearranged_form
from detrand.variables.sources import joined_variables
from detrand.variables.tf1_view import TF1View

RNG = np.random.default_rng(0)
SHAPES = {"w": (5, 4), "b": (4,), "v": (2, 3, 2)}
ARRAYS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}

FUNCTIONS = {
    "split": (lambda w: (w[:3], w[3:]), ("w",)),
    "transposed": (np.transpose, ("w",)),
    "reversed": (lambda w: w[::-1], ("w",)),
    "flat": (np.ravel, ("v",)),
    "joined": (lambda w, b: np.concatenate([w, b[None]]), ("w", "b")),
    "with a bias of its own": (lambda w, b: (w, np.concatenate([b + 1, np.full(2, 0.5, np.float32)])), ("w", "b")),
    "crossed": (lambda w, b, v: (np.stack([w[0], b]), v.T, w[1:]), ("w", "b", "v")),
    "a constant only": (lambda w: (w, np.full(3, 7.0)), ("w",)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_form_converts_values_and_gradients_in_both_directions(name):
    function, tf1_names = FUNCTIONS[name]
    arrays = {each: ARRAYS[each] for each in tf1_names}
    results, zeros = function(*arrays.values()), function(*map(np.zeros_like, arrays.values()))
    results, zeros = (each if isinstance(each, tuple) else (each,) for each in (results, zeros))
    port_names = [f"port_{number}" for number in range(len(results))]
    form = rearranged_form(Rearranged(port_names, function), tuple((each, SHAPES[each]) for each in tf1_names))

    for in_framework in (np.asarray, tf.constant):
        given = {each: in_framework(array) for each, array in arrays.items()}
        of_port = form.to_port(given, values=True)
        gradients = form.to_port(given, values=False)
        for port_name, array, constant in zip(port_names, results, zeros, strict=True):
            np.testing.assert_array_equal(of_port[port_name], array)
            np.testing.assert_allclose(gradients[port_name], array - constant, atol=1e-6)
    assert of_port.keys() == form.port.keys() == set(port_names)

    of_port = {each: np.asarray(array) for each, array in form.to_port(arrays, values=False).items()}
    for each, array in form.to_tf1(of_port, values=False).items():
        np.testing.assert_array_equal(array, arrays[each])
    of_port = form.to_port(arrays, values=True)
    for each, array in form.to_tf1(of_port, values=True).items():
        np.testing.assert_allclose(array, arrays[each], atol=1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda w: (w, w[0]),
            r"the function of name_map\['w'\] uses 2 times the element \(0, 0\) of w, which has shape",
        ),
        (lambda w: (w[:3], w[4]), r"does not use the element \(3, 0\) of w"),
        (lambda w: (w[:3], 2 * w[3:]), r"computes more than a rearrangement"),
        (lambda w: (w[:3], -w[3:]), r"computes more than a rearrangement"),
        (lambda w: (w[:3], np.abs(w[3:])), r"computes more than a rearrangement"),
        (lambda w: (w[:3], np.sort(w[3:], axis=0)), r"computes more than a rearrangement"),
        (lambda w: (w[:3], w[3:] - w[3:].mean()), r"computes more than a rearrangement"),
        (lambda w: (w[:3], w[3:] + 0.25 * (w[0, 0] > 0)), r"computes more than a rearrangement"),
        (lambda w: w, r"returned 1 array, but names 2 variables of the port: a, b. Return an array for each"),
        (lambda w: (w[:3], w[3:], w), r"returned 3 arrays, but names 2 variables"),
        (
            lambda w: (w[:3], w[3:].reshape(7)),
            r"raised ValueError\(cannot reshape .* for arrays of the shapes \(5, 4\)",
        ),
    ],
)
def test_a_function_that_is_no_rearrangement_is_refused(function, message):
    tf1 = {"w": VariableSpec((5, 4), "float32", True)}
    with pytest.raises(ArgumentError, match=message):
        assert_variables_match(tf1, {}, {"w": Rearranged(["a", "b"], function)})


@pytest.mark.parametrize(
    ("name_map", "message"),
    [
        ({("w", "b"): Rearranged("x", np.ravel), "b": "y"}, "name_map has 2 entries for 'b'"),
        ({("w", "bias"): Rearranged("x", np.ravel)}, "no variable of that name"),
        ({"w": Rearranged(["x"], np.transpose), "b": "x"}, "'w' and 'b' would both be 'x' in the port"),
        ({("w", "b"): "x"}, "Rearranged"),
    ],
)
def test_a_name_map_with_a_faulty_entry_is_refused(name_map, message):
    tf1 = {name: VariableSpec(SHAPES[name], "float32", True) for name in ("w", "b")}
    with pytest.raises(ArgumentError, match=message):
        assert_variables_match(tf1, tf1, name_map)


@pytest.mark.parametrize("shape", [None, (None, 4)])
def test_a_variable_of_unknown_shape_cannot_be_rearranged(shape):
    tf1 = {"w": VariableSpec(shape, "float32", True)}
    with pytest.raises(ArgumentError, match=re.escape(f"a Rearranged for 'w', whose shape {shape} is not known")):
        assert_variables_match(tf1, tf1, {"w": Rearranged("w", np.transpose)})


@pytest.mark.parametrize(("names", "function"), [([], np.ravel), (["a", 1], np.ravel), (7, np.ravel), ("a", None)])
def test_arguments_of_rearranged_are_checked(names, function):
    with pytest.raises(ArgumentError):
        Rearranged(names, function)


def test_a_rearranged_variable_of_a_different_shape_is_named():
    tf1 = {"cell/kernel": VariableSpec((5, 8), "float32", True), "cell/bias": VariableSpec((8,), "float32", True)}
    port = {
        "lstm/kernel": VariableSpec((3, 8), "float32", True),
        "lstm/recurrent_kernel": VariableSpec((3, 8), "float32", True),
        "lstm/bias": VariableSpec((8,), "float32", True),
    }
    with pytest.raises(VariableMismatchError) as caught:
        assert_variables_match(tf1, port, lstm_cell_to_keras("cell", "lstm"))
    assert str(caught.value).splitlines() == [
        "the variables differ: 2 in TF1, 3 in the port; 1 with a different shape",
        "shape differs (1):",
        "  cell/kernel, rearranged (name_map: lstm/recurrent_kernel): (2, 8) in TF1, (3, 8) in the port",
    ]
    with pytest.raises(
        VariableMismatchError, match=r"the port has no 'lstms/kernel'. Did you mean 'lstm/kernel'"
    ) as caught:
        assert_variables_match(tf1, port, lstm_cell_to_keras("cell", "lstms"))
    assert "pass name_map" not in str(caught.value)
    del port["lstm/bias"]
    with pytest.raises(VariableMismatchError, match=r"only in TF1 \(2\):\n  cell/kernel \(name_map: lstm/kernel, "):
        assert_variables_match(tf1, port, lstm_cell_to_keras("cell", "lstm"))


def test_a_gru_that_resets_after_is_named():
    shapes = {"gates/kernel": (5, 4), "gates/bias": (4,), "candidate/kernel": (5, 2), "candidate/bias": (2,)}
    tf1 = {f"cell/{name}": VariableSpec(shape, "float32", True) for name, shape in shapes.items()}
    shapes = {"kernel": (3, 6), "recurrent_kernel": (2, 6), "bias": (2, 6)}
    port = {f"gru/{name}": VariableSpec(shape, "float32", True) for name, shape in shapes.items()}
    with pytest.raises(VariableMismatchError, match=r"has reset_after=True.*Make it with reset_after=False"):
        assert_variables_match(tf1, port, gru_cell_to_keras("cell", "gru"))
    port["gru/bias"] = VariableSpec((6,), "float32", True)
    assert_variables_match(tf1, port, gru_cell_to_keras("cell", "gru"))


@pytest.mark.parametrize(
    ("shape", "other"),
    [
        ((1, 1, 20, 10), (20, 10)),
        ((7, 7, 5, 4), (245, 4)),
        ((3, 3, 5, 2), (3, 3, 10, 1)),
        ((), (1,)),
        ((4, 6), (2, 2, 6)),
    ],
)
def test_equal_elements_in_another_shape_match(shape, other):
    assert is_reshaped(shape, other) and is_reshaped(other, shape)
    tf1, port = {"w": VariableSpec(shape, "float32", True)}, {"w": VariableSpec(other, "float32", True)}
    assert_variables_match(tf1, port)


@pytest.mark.parametrize(("shape", "other"), [((3, 2), (2, 3)), ((2, 6), (4, 3)), ((4,), (2, 3)), ((4, 6), (6, 2, 2))])
def test_elements_in_another_order_do_not_match(shape, other):
    assert not is_reshaped(shape, other) and not is_reshaped(other, shape)


def test_a_transposed_variable_is_named_with_its_remedy():
    tf1, port = {"a": VariableSpec((3, 2), "float32", True)}, {"b": VariableSpec((2, 3), "float32", True)}
    with pytest.raises(VariableMismatchError) as caught:
        assert_variables_match(tf1, port, {"a": "b"})
    name_map = str(caught.value).partition("pass name_map=")[2]
    assert name_map == "{'a': Rearranged(['b'], np.transpose)}"
    assert_variables_match(tf1, port, eval(name_map))


def test_a_view_keeps_what_it_is_not_given():
    """Elements of one TF1 variable are assigned, and those of another one in the same part stay as they are."""
    part = tf.Variable(np.arange(24.0, dtype=np.float32).reshape(6, 4), name="whole")
    name_map = {("w", "b"): Rearranged("whole", lambda w, b: np.concatenate([w, b[None] + 1]))}
    view = TF1View(joined_variables("port", [part]), name_map, SHAPES)
    view.assign({"b": ARRAYS["b"]})
    np.testing.assert_array_equal(part.numpy()[:5], np.arange(20.0).reshape(5, 4))
    np.testing.assert_array_equal(part.numpy()[5], ARRAYS["b"] + 1)
    np.testing.assert_allclose(view.values()["b"], ARRAYS["b"], atol=1e-6)


def test_a_partitioned_variable_may_be_rearranged():
    """The port's counterpart has parts, and each part gets its slice of what the function returns."""
    with tf.compat.v1.variable_scope("", partitioner=tf.compat.v1.fixed_size_partitioner(2)):
        whole = tf.compat.v1.get_variable("whole", (4, 5), use_resource=True)
    parts = list(whole)
    view = TF1View(joined_variables("port", parts), {"w": Rearranged("whole", np.transpose)}, {"w": (5, 4)})
    view.assign({"w": ARRAYS["w"]})
    np.testing.assert_array_equal(np.concatenate([part.numpy() for part in parts]), ARRAYS["w"].T)
    np.testing.assert_array_equal(view.values()["w"], ARRAYS["w"])
