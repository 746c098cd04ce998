"""`assert_variables_match`: the variables of two programs, name maps, and the pairing of names."""

import pytest
import tensorflow as tf

from detrand import ArgumentError, VariableMismatchError, VariableSpec, assert_variables_match
from detrand.variables.comparison import compare_variables
from tests.support.variable_specs import spec


def test_a_graph_and_its_port_match(graph):
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


def test_the_message_lists_every_difference():
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
        "  If the port's variable is transposed, pass name_map={'shape': Rearranged(['shape'], np.transpose)}",
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
    ("tf1", "port"),
    [
        (["a/w", "b/w"], ["port/one/a/w", "port/one/b/w"]),
        (["net/a/w", "net/b/w"], ["a/w", "b/w"]),
        (["net/a/w", "net/b/w"], ["port/net/a/w", "port/net/b/w"]),
        (["a/w"], ["model/a/w"]),
    ],
    ids=["port", "TF1", "before a common scope", "one variable"],
)
def test_a_prefix_of_one_program_needs_no_name_map(tf1, port):
    specs = [{name: spec(3 + number) for number, name in enumerate(names)} for names in (tf1, port)]
    assert_variables_match(*specs)
    assert {pair.tf1_name: pair.port_name for pair in compare_variables(*specs).pairs} == dict(
        zip(tf1, port, strict=True)
    )


@pytest.mark.parametrize(
    "port", [["model/a/w", "other/b/w"], ["a/w", "model/b/w"]], ids=["two prefixes", "before one name"]
)
def test_scopes_before_some_names_are_proposed_as_a_name_map(port):
    specs = [{name: spec(3 + number) for number, name in enumerate(names)} for names in (["a/w", "b/w"], port)]
    renames = compare_variables(*specs).likely_renames()
    assert renames == {a: b for a, b in zip(["a/w", "b/w"], port, strict=True) if a != b}
    assert_variables_match(*specs, name_map=renames)


def test_a_variable_that_is_missing_is_named_in_spite_of_a_prefix():
    tf1, port = {"a/w": spec(3), "b/w": spec(4)}, {"port/a/w": spec(3), "port/b/v": spec(5)}
    with pytest.raises(VariableMismatchError, match=r"1 only in TF1, 1 only in the port"):
        assert_variables_match(tf1, port)


def test_numbered_layers_are_paired_by_their_numbers():
    tf1 = {"rnn/cell_0/b": spec(4), "rnn/cell_1/b": spec(4), "softmax_w": spec(2, 3), "softmax_b": spec(3)}
    port = {"net/lstm/bias": spec(4), "net/lstm_1/bias": spec(4), "dense/bias": spec(3), "dense/kernel": spec(2, 3)}
    assert compare_variables(tf1, port).likely_renames() == {
        "rnn/cell_0/b": "net/lstm/bias",
        "rnn/cell_1/b": "net/lstm_1/bias",
        "softmax_w": "dense/kernel",
        "softmax_b": "dense/bias",
    }


def test_many_variables_of_one_shape_are_paired_by_their_names():
    tf1 = {f"block{n}/conv{n % 7}/w": spec(3, 3) for n in range(150)}
    port = {f"model/{name}": s for name, s in reversed(tf1.items())}
    assert {pair.tf1_name: pair.port_name for pair in compare_variables(tf1, port).pairs} == {
        name: f"model/{name}" for name in tf1
    }


@pytest.mark.parametrize(
    ("tf1", "port"),
    [
        (spec(2), spec(None)),
        (spec(2), VariableSpec(None, "float32", True)),
        (spec(2), spec(2, 2)),
        (spec(2), spec(2, dtype="float64")),
        (spec(2), spec(2, trainable=False)),
    ],
    ids=["dimension", "unknown_rank", "size", "dtype", "trainable"],
)
def test_each_single_difference_fails(tf1, port):
    for a, b in ((tf1, port), (port, tf1)):
        with pytest.raises(VariableMismatchError, match=r"1 with a different"):
            assert_variables_match({"w": a}, {"w": b})


def test_a_checkpoint_does_not_say_what_is_trainable():
    for flag in (True, False):
        assert_variables_match({"w": spec(2, trainable=None)}, {"w": spec(2, trainable=flag)})


@pytest.mark.parametrize(
    ("tf1", "port", "message"),
    [
        ({}, {}, "0 in TF1, 0 in the port; there is nothing to compare. A layer has no variables before"),
        ({"w": spec(1)}, {}, "1 only in TF1. A layer has no variables before it is built or called"),
        ({}, {"w": spec(1)}, "1 only in the port. A layer has no variables before it is built or called"),
    ],
    ids=["neither", "no_port_variables", "no_tf1_variables"],
)
def test_a_program_without_variables_does_not_match(tf1, port, message):
    with pytest.raises(VariableMismatchError, match=message):
        assert_variables_match(tf1, port)


def test_a_name_map_is_a_dict_or_a_function():
    tf1, port = {"a": spec(1), "b": spec(2), "c": spec(3)}, {"x": spec(1), "a": spec(2), "c": spec(3)}
    assert_variables_match(tf1, port, {"a": "x", "b": "a"})
    assert_variables_match(tf1, {f"net/{name}": s for name, s in tf1.items()}, lambda name: f"net/{name}")


def test_a_mapped_name_is_shown_beside_the_variables_own_name():
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
    ids=["misspelt", "unknown", "taken", "all_alike", "none", "raising", "list"],
)
def test_a_bad_name_map_is_an_error(name_map, message):
    tf1 = {"kernel": spec(1), "bias": spec(2)}
    with pytest.raises(ArgumentError, match=message):
        assert_variables_match(tf1, tf1, name_map)
