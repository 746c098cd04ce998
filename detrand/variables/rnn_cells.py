"""Name maps for the recurrent cells of TF1, whose weights Keras has in another form.

`lstm_cell_to_keras` and `gru_cell_to_keras` return entries for a ``name_map``. `rnn_cells` proposes them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from detrand.arguments import wrong_type
from detrand.variables.forms import Rearranged

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
      forget_bias: the ``forget_bias`` of the TF1 cell. Keras's peer of it is ``unit_forget_bias``, which is 1 or 0.

    Returns:
      The entries, to be merged into a dict. Keras has nothing for the peepholes and the projection of an ``LSTMCell``.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """
    code = f"lstm_cell_to_keras({tf1_prefix!r}, {port_prefix!r}{f', {forget_bias!r}' if forget_bias != 1.0 else ''})"
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
