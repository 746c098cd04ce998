"""Name maps for the recurrent cells of TF1, whose weights Keras has in another form.

`lstm_cell_to_keras` and `gru_cell_to_keras` return entries for a ``name_map``, and `recurrent_cells` proposes them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from detrand.arguments import wrong_type
from detrand.variables.forms import Rearranged
from detrand.variables.spec import VariableSpec

CellMap = dict[tuple[str, ...], Rearranged]


def lstm_cell_to_keras(tf1_prefix: str, port_prefix: str, forget_bias: float = 1.0) -> CellMap:
    """Return the entries of a ``name_map`` for a ``BasicLSTMCell`` or ``LSTMCell`` of TF1 and a Keras ``LSTM``.

    TF1's kernel is Keras's kernel and recurrent kernel together, with the gates i, j, f, o instead of i, f, c, o. TF1
    adds the forget bias when it computes; Keras has it in the bias.

    >>> import keras
    >>> import tensorflow as tf
    >>> from detrand import assert_variables_match, lstm_cell_to_keras
    >>> tf1 = {"rnn/basic_lstm_cell/kernel": tf.Variable(tf.ones((3 + 2, 4 * 2)))}
    >>> tf1["rnn/basic_lstm_cell/bias"] = tf.Variable(tf.zeros(4 * 2))
    >>> layer = keras.layers.LSTM(2, name="lstm")
    >>> layer.build((1, 7, 3))
    >>> name_map = {**lstm_cell_to_keras("rnn/basic_lstm_cell", "lstm/lstm_cell")}
    >>> assert_variables_match(tf1, layer, name_map)

    Args:
      tf1_prefix: the scope of TF1's ``kernel`` and ``bias``.
      port_prefix: the path of Keras's ``kernel``, ``recurrent_kernel`` and ``bias``.
      forget_bias: the ``forget_bias`` of the TF1 cell. Keras's counterpart is the initial bias: 1 with
        ``unit_forget_bias``, and 0 without.

    Returns:
      The entries, to be merged into a dict. Keras has nothing for the peepholes and the projection of an ``LSTMCell``.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """
    bias = "" if forget_bias == 1.0 else f", forget_bias={forget_bias!r}"
    code = f"lstm_cell_to_keras({tf1_prefix!r}, {port_prefix!r}{bias})"
    return _entries(tf1_prefix, ("kernel", "bias"), port_prefix, partial(_lstm, forget_bias=forget_bias), code)


def gru_cell_to_keras(tf1_prefix: str, port_prefix: str) -> CellMap:
    """Return the entries of a ``name_map`` for a ``GRUCell`` of TF1 and a Keras ``GRU(reset_after=False)``.

    TF1 has the gates r and u, and the candidate, in two kernels; Keras has z (which is u), r and h in one kernel and
    one recurrent kernel. With ``reset_after=True``, Keras's default, a GRU computes different numbers than TF1.

    >>> from detrand import gru_cell_to_keras
    >>> list(gru_cell_to_keras("rnn/gru_cell", "gru/gru_cell"))  # doctest: +NORMALIZE_WHITESPACE
    [('rnn/gru_cell/gates/kernel', 'rnn/gru_cell/gates/bias',
      'rnn/gru_cell/candidate/kernel', 'rnn/gru_cell/candidate/bias')]

    Args:
      tf1_prefix: the scope of TF1's ``gates`` and ``candidate``.
      port_prefix: the path of Keras's ``kernel``, ``recurrent_kernel`` and ``bias``.

    Returns:
      The entries, to be merged into a dict.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """
    names = "gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias"
    return _entries(tf1_prefix, names, port_prefix, _gru, f"gru_cell_to_keras({tf1_prefix!r}, {port_prefix!r})")


def _entries(tf1_prefix: str, names: tuple[str, ...], port_prefix: str, function: Any, code: str) -> CellMap:
    for argument, prefix in (("tf1_prefix", tf1_prefix), ("port_prefix", port_prefix)):
        if not isinstance(prefix, str):
            raise wrong_type(argument, prefix, "the scope of a cell's variables", "'rnn/basic_lstm_cell'")
    port_names = [f"{port_prefix}/{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    return {tuple(f"{tf1_prefix}/{name}" for name in names): Rearranged(port_names, function, code=code)}


def _lstm(kernel: np.ndarray, bias: np.ndarray, forget_bias: float) -> tuple[np.ndarray, ...]:
    units = bias.shape[0] // 4
    (i, j, f, o), (bi, bj, bf, bo) = np.split(kernel, 4, axis=-1), np.split(bias, 4)
    kernel = np.concatenate([i, f, j, o], axis=-1)
    return kernel[:-units], kernel[-units:], np.concatenate([bi, bf + forget_bias, bj, bo])


def _gru(
    gates: np.ndarray, gates_bias: np.ndarray, candidate: np.ndarray, candidate_bias: np.ndarray
) -> tuple[np.ndarray, ...]:
    units = candidate.shape[-1]
    kernel = np.concatenate([gates[:, units:], gates[:, :units], candidate], axis=-1)
    bias = np.concatenate([gates_bias[units:], gates_bias[:units], candidate_bias])
    return kernel[:-units], kernel[-units:], bias


def recurrent_cells(
    tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec], forget_biases: Mapping[str, float] | None = None
) -> CellMap:
    """Return the entries for the LSTM and GRU cells of TF1 that have a Keras layer of their sizes in the port.

    Of several cells of equal sizes, the first in TF1 is the first in the port. The forget bias is known for some cells,
    by the names of their biases; for others, it is TF1's default.
    """
    layers: dict[Any, list[str]] = defaultdict(list)
    for name, (inputs, width) in _matrices(port, "kernel"):
        prefix = name.removesuffix("/kernel")
        recurrent, bias = (port.get(f"{prefix}/{each}") for each in ("recurrent_kernel", "bias"))
        if (
            recurrent is not None
            and recurrent.shape is not None
            and bias is not None
            and recurrent.shape[1:] == (width,)
        ):
            layers[inputs, recurrent.shape[0], width].append(prefix)
    found: CellMap = {}
    kernels = sorted(_matrices(tf1, "kernel"), key=lambda each: not re.search("lstm|cell|rnn", each[0].lower()))
    for name, (rows, width) in kernels:
        scope = name.removesuffix("/kernel")
        units = width // 4
        fitting = layers[rows - units, units, 4 * units]
        bias = tf1.get(f"{scope}/bias")
        if fitting and bias is not None and bias.shape == (width,):
            forget_bias = (forget_biases or {}).get(f"{scope}/bias", 1.0)
            found |= lstm_cell_to_keras(scope, fitting.pop(0), forget_bias)
    for name, (rows, width) in _matrices(tf1, "candidate/kernel"):
        scope = name.removesuffix("/candidate/kernel")
        fitting = layers[rows - width, width, 3 * width]
        entry = gru_cell_to_keras(scope, fitting[0]) if fitting else {}
        if entry and all(each in tf1 for key in entry for each in key):
            found |= entry
            del fitting[0]
    return found


def _matrices(specs: Mapping[str, VariableSpec], name: str) -> list[tuple[str, Any]]:
    """Return the variables with a name in any scope that are matrices, and their shapes."""
    found = [(each, spec.shape) for each, spec in specs.items() if each.endswith(f"/{name}")]
    return [(each, shape) for each, shape in found if shape and len(shape) == 2 and None not in shape]
