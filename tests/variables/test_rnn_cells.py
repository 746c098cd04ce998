import numpy as np
import pytest

from detrand import ArgumentError, VariableSpec, gru_cell_to_keras, lstm_cell_to_keras, lstm_cell_to_torch
from detrand.variables.rnn_cells import recurrent_cells, recurrent_cells_in_all_orders


def specs(**shapes):
    return {name: VariableSpec(shape, "float32", True) for name, shape in shapes.items()}


def lstm(scope, inputs=3, units=2):
    return specs(**{f"{scope}/kernel": (inputs + units, 4 * units), f"{scope}/bias": (4 * units,)})


def layer(prefix, inputs=3, units=2, gates=4, bias=()):
    width = gates * units
    shapes = {"kernel": (inputs, width), "recurrent_kernel": (units, width), "bias": (*bias, width)}
    return specs(**{f"{prefix}/{name}": shape for name, shape in shapes.items()})


def gru(scope, inputs=3, units=2):
    rows = inputs + units
    shapes = {"gates/kernel": (rows, 2 * units), "gates/bias": (2 * units,)}
    shapes |= {"candidate/kernel": (rows, units), "candidate/bias": (units,)}
    return specs(**{f"{scope}/{name}": shape for name, shape in shapes.items()})


OF_TORCH = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def of_torch(prefix, suffixes=("_l0",), inputs=3, units=2, gates=4, names=OF_TORCH):
    width = gates * units
    shapes = {"weight_ih": (width, inputs), "weight_hh": (width, units), "bias_ih": (width,), "bias_hh": (width,)}
    return specs(**{f"{prefix}{name}{suffix}": shapes[name] for suffix in suffixes for name in names})


def code(found):
    return [entry.code for entry in found.values()]


@pytest.mark.parametrize(
    ("tf1", "port", "expected"),
    [
        (lstm("a/lstm_cell"), layer("x"), ["lstm_cell_to_keras('a/lstm_cell', 'x')"]),
        (lstm("a/lstm_cell"), layer("x", inputs=4), []),
        (lstm("a/lstm_cell"), layer("x", units=3), []),
        (gru("a"), layer("x", gates=3), ["gru_cell_to_keras('a', 'x')"]),
        (gru("a"), layer("x", gates=3, bias=(2,)), ["gru_cell_to_keras('a', 'x')"]),
        (gru("a"), layer("x"), []),
        # the dense layer is as large as the cell
        (lstm("logits") | lstm("rnn/cell"), layer("x"), ["lstm_cell_to_keras('rnn/cell', 'x')"]),
        # in the order of creation, unless the names say something else
        (
            lstm("cell_0/lstm") | lstm("cell_1/lstm") | gru("gru"),
            layer("one") | layer("two") | layer("three", gates=3),
            [
                "lstm_cell_to_keras('cell_0/lstm', 'one')",
                "lstm_cell_to_keras('cell_1/lstm', 'two')",
                "gru_cell_to_keras('gru', 'three')",
            ],
        ),
        (
            lstm("encoder/rnn/lstm_cell") | lstm("decoder/rnn/lstm_cell"),
            layer("port/decoder/lstm_cell") | layer("port/encoder/lstm_cell"),
            [
                "lstm_cell_to_keras('encoder/rnn/lstm_cell', 'port/encoder/lstm_cell')",
                "lstm_cell_to_keras('decoder/rnn/lstm_cell', 'port/decoder/lstm_cell')",
            ],
        ),
        (
            gru("rnn/fw/gru_cell") | gru("rnn/bw/gru_cell"),
            layer("bi/backward_gru/gru_cell", gates=3) | layer("bi/forward_gru/gru_cell", gates=3),
            [
                "gru_cell_to_keras('rnn/fw/gru_cell', 'bi/forward_gru/gru_cell')",
                "gru_cell_to_keras('rnn/bw/gru_cell', 'bi/backward_gru/gru_cell')",
            ],
        ),
        (lstm("rnn/cell"), of_torch("x."), ["lstm_cell_to_torch('rnn/cell', 'x')"]),
        (lstm("rnn/cell"), of_torch(""), ["lstm_cell_to_torch('rnn/cell', '')"]),
        (lstm("rnn/cell"), of_torch("a.cell.", [""]), ["lstm_cell_to_torch('rnn/cell', 'a.cell', layer=None)"]),
        (lstm("rnn/cell"), of_torch("x.", gates=3), []),
        (lstm("rnn/cell"), of_torch("x.", names=("weight_ih", "weight_hh")), []),
        (gru("rnn/cell"), of_torch("x.", gates=3), []),
        (
            lstm("rnn/fw/cell") | lstm("rnn/bw/cell"),
            of_torch("x.", ["_l0", "_l0_reverse"]),
            [
                "lstm_cell_to_torch('rnn/fw/cell', 'x')",
                "lstm_cell_to_torch('rnn/bw/cell', 'x', reverse=True)",
            ],
        ),
        (
            lstm("rnn/cell_0/cell", inputs=2) | lstm("rnn/cell_1/cell", inputs=2),
            of_torch("x.", ["_l0", "_l1"], inputs=2),
            [
                "lstm_cell_to_torch('rnn/cell_0/cell', 'x')",
                "lstm_cell_to_torch('rnn/cell_1/cell', 'x', layer=1)",
            ],
        ),
        (specs(**{"kernel": (5, 8), "bias": (8,), "x/kernel": (8,), "x/bias": (8,)}), layer("x"), []),
    ],
)
def test_cells_are_found_by_their_sizes(tf1, port, expected):
    assert code(recurrent_cells(tf1, port)) == expected


def test_layers_of_one_size_are_tried_in_all_orders():
    tf1, port = lstm("a") | lstm("b") | gru("c"), layer("x") | layer("y") | layer("z", gates=3)
    first, second = recurrent_cells_in_all_orders(tf1, port)
    assert [each.port_names[0] for each in first.values()] == ["x/kernel", "y/kernel", "z/kernel"]
    assert [each.port_names[0] for each in second.values()] == ["y/kernel", "x/kernel", "z/kernel"]


def test_a_forget_bias_that_is_known_is_used():
    found = recurrent_cells(lstm("a/lstm_cell"), layer("x"), {"a/lstm_cell/bias": 0.5})
    assert code(found) == ["lstm_cell_to_keras('a/lstm_cell', 'x', forget_bias=0.5)"]
    ((entry),) = found.values()
    kernel, recurrent_kernel, bias = entry.function(np.arange(40.0).reshape(5, 8), np.arange(8.0))
    np.testing.assert_array_equal(bias, [0, 1, 4.5, 5.5, 2, 3, 6, 7])
    np.testing.assert_array_equal(kernel[0], [0, 1, 4, 5, 2, 3, 6, 7])
    np.testing.assert_array_equal(recurrent_kernel[-1], 32 + kernel[0])


def test_the_second_bias_of_pytorch_is_0():
    ((entry),) = lstm_cell_to_torch("a", "x", forget_bias=0.5, layer=1, reverse=True).values()
    assert entry.port_names == tuple(f"x.{name}_l1_reverse" for name in OF_TORCH)
    of_inputs, recurrent, bias, second = entry.function(np.arange(40.0).reshape(5, 8), np.arange(8.0))
    np.testing.assert_array_equal(of_inputs[:, 0], [0, 1, 4, 5, 2, 3, 6, 7])
    np.testing.assert_array_equal(recurrent[:, -1], 32 + of_inputs[:, 0])
    np.testing.assert_array_equal(bias, [0, 1, 4.5, 5.5, 2, 3, 6, 7])
    np.testing.assert_array_equal(second, np.zeros(8))


@pytest.mark.parametrize("function", [lstm_cell_to_keras, gru_cell_to_keras, lstm_cell_to_torch])
def test_prefixes_are_checked(function):
    with pytest.raises(ArgumentError, match="tf1_prefix"):
        function(3, "x")
    with pytest.raises(ArgumentError, match="port_prefix"):
        function("x", None)
