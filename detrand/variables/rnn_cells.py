"""Name maps for the recurrent cells of TF1, whose weights Keras, PyTorch and Flax have in another form.

`lstm_cell_to_keras`, `gru_cell_to_keras`, `lstm_cell_to_torch` and `lstm_cell_to_flax` return entries for a
``name_map``, and `recurrent_cells` proposes them.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from detrand.arguments import wrong_type
from detrand.variables.forms import Rearranged
from detrand.variables.pairing import likeness
from detrand.variables.spec import VariableSpec

CellMap = dict[tuple[str, ...], Rearranged]
_Sizes = tuple[int, ...]  # of the kernel and the recurrent kernel

_OF_KERAS = ("kernel", "recurrent_kernel", "bias")
_OF_FLAX = ("dense_i.kernel", "dense_h.kernel", "dense_h.bias")  # of an OptimizedLSTMCell
_GATES_OF_FLAX = (  # of an LSTMCell, in Keras's order
    *("ii.kernel", "if_.kernel", "ig.kernel", "io.kernel"),
    *("hi.kernel", "hf.kernel", "hg.kernel", "ho.kernel"),
    *("hi.bias", "hf.bias", "hg.bias", "ho.bias"),
)
_OF_TORCH = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_IN_TORCH = re.compile(r"(?:(?P<module>.+)\.)?weight_ih(?P<suffix>(?:_l(?P<layer>\d+)(?P<reverse>_reverse)?)?)")
_OF_LSTM = ("kernel", "bias")
_OF_GRU = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")


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
    return _entries(tf1_prefix, _OF_LSTM, port_prefix, partial(_lstm, forget_bias=forget_bias), code)


def lstm_cell_to_torch(
    tf1_prefix: str, port_prefix: str, forget_bias: float = 1.0, layer: int | None = 0, *, reverse: bool = False
) -> CellMap:
    """Return the entries of a ``name_map`` for a ``BasicLSTMCell`` or ``LSTMCell`` of TF1 and an LSTM of PyTorch.

    PyTorch has two biases, of which TF1's is the first. The second one must be 0 and must not be trained, as TF1 has
    none: ``lstm.bias_hh_l0.requires_grad_(False)``.

    >>> from detrand import lstm_cell_to_torch
    >>> list(lstm_cell_to_torch("rnn/basic_lstm_cell", "lstm").values())[0].port_names
    ('lstm.weight_ih_l0', 'lstm.weight_hh_l0', 'lstm.bias_ih_l0', 'lstm.bias_hh_l0')

    Args:
      tf1_prefix: the scope of TF1's ``kernel`` and ``bias``.
      port_prefix: the name of the ``torch.nn.LSTM`` or ``LSTMCell`` in its module.
      forget_bias: the ``forget_bias`` of the TF1 cell.
      layer: the number of the cell among the layers of the ``torch.nn.LSTM``; None for a ``torch.nn.LSTMCell``.
      reverse: whether it is the cell of a bidirectional ``torch.nn.LSTM`` that begins at the end.

    Returns:
      The entries, to be merged into a dict.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """
    suffix = "" if layer is None else f"_l{layer}" + "_reverse" * reverse
    given = {"forget_bias": (forget_bias, 1.0), "layer": (layer, 0), "reverse": (reverse, False)}
    others = "".join(f", {name}={value!r}" for name, (value, default) in given.items() if value != default)
    code = f"lstm_cell_to_torch({tf1_prefix!r}, {port_prefix!r}{others})"

    def rearranged(kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
        *kernels, bias = _lstm(kernel, bias, forget_bias)
        return *(each.T for each in kernels), bias, np.zeros(bias.shape)

    names = [".".join(filter(None, (port_prefix, f"{name}{suffix}"))) for name in _OF_TORCH]
    return _entries(tf1_prefix, _OF_LSTM, port_prefix, rearranged, code, names)


def lstm_cell_to_flax(
    tf1_prefix: str, port_prefix: str, forget_bias: float = 1.0, *, optimized: bool = False
) -> CellMap:
    """Return the entries of a ``name_map`` for a ``BasicLSTMCell`` or ``LSTMCell`` of TF1 and an LSTM cell of Flax.

    ``nnx.LSTMCell`` has a kernel for each gate, and ``nnx.OptimizedLSTMCell`` one for all of them. Both have the forget
    bias in the bias.

    >>> from detrand import lstm_cell_to_flax
    >>> list(lstm_cell_to_flax("rnn/basic_lstm_cell", "rnn.cell", optimized=True).values())[0].port_names
    ('rnn.cell.dense_i.kernel', 'rnn.cell.dense_h.kernel', 'rnn.cell.dense_h.bias')

    Args:
      tf1_prefix: the scope of TF1's ``kernel`` and ``bias``.
      port_prefix: the name of the cell in its module.
      forget_bias: the ``forget_bias`` of the TF1 cell.
      optimized: whether the cell is an ``nnx.OptimizedLSTMCell``.

    Returns:
      The entries, to be merged into a dict.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """
    names = [f"{port_prefix}.{name}" for name in (_OF_FLAX if optimized else _GATES_OF_FLAX)]
    bias = "" if forget_bias == 1.0 else f", forget_bias={forget_bias!r}"
    code = f"lstm_cell_to_flax({tf1_prefix!r}, {port_prefix!r}{bias}{', optimized=True' if optimized else ''})"

    def rearranged(kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
        arrays = _lstm(kernel, bias, forget_bias)
        return arrays if optimized else tuple(gate for each in arrays for gate in np.split(each, 4, axis=-1))

    return _entries(tf1_prefix, _OF_LSTM, port_prefix, rearranged, code, names)


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
    return _entries(tf1_prefix, _OF_GRU, port_prefix, _gru, f"gru_cell_to_keras({tf1_prefix!r}, {port_prefix!r})")


def _entries(
    tf1_prefix: str,
    names: tuple[str, ...],
    port_prefix: str,
    function: Any,
    code: str,
    port_names: Sequence[str] = (),
) -> CellMap:
    for argument, prefix in (("tf1_prefix", tf1_prefix), ("port_prefix", port_prefix)):
        if not isinstance(prefix, str):
            raise wrong_type(argument, prefix, "the scope of a cell's variables", "'rnn/basic_lstm_cell'")
    port_names = port_names or [f"{port_prefix}/{name}" for name in _OF_KERAS]
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
    """Return the entries for the LSTM and GRU cells of TF1 that have a layer of their sizes in a port.

    Of several layers of equal sizes, a cell gets the one with the most similar name, or else the first one. The forget
    bias is known for some cells, by the names of their biases; for others, it is TF1's default.
    """
    return next(recurrent_cells_in_all_orders(tf1, port, forget_biases))


def recurrent_cells_in_all_orders(
    tf1: Mapping[str, VariableSpec], port: Mapping[str, VariableSpec], forget_biases: Mapping[str, float] | None = None
) -> Iterator[CellMap]:
    """Yield what `recurrent_cells` returns, and then the entries with the layers of equal sizes in other orders."""
    layers: dict[_Sizes, dict[str, Callable[..., CellMap]]] = defaultdict(dict)
    of_gates = _GATES_OF_FLAX[0], _GATES_OF_FLAX[4]
    of_optimized = partial(lstm_cell_to_flax, optimized=True)
    for names, to_port in ((_OF_KERAS, lstm_cell_to_keras), (_OF_FLAX, of_optimized)):
        for prefix, (kernel, recurrent, _) in _scopes(port, names).items():
            layers[kernel + recurrent][prefix] = partial(to_port, port_prefix=prefix)
    for prefix, (kernel, recurrent) in _scopes(port, of_gates).items():
        of_all_gates = kernel[0], 4 * kernel[1], recurrent[0], 4 * recurrent[1]
        layers[of_all_gates][prefix] = partial(lstm_cell_to_flax, port_prefix=prefix)
    for prefix, sizes, entries in _lstms_of_torch(port):
        layers[sizes][prefix] = entries
    dense = _scopes(tf1, _OF_LSTM)  # a dense layer has variables of the same names
    cells: list[tuple[str, _Sizes]] = []
    for scope in sorted(dense, key=lambda scope: not re.search("lstm|cell|rnn", scope.lower())):
        (rows, width), _ = dense[scope]
        cells.append((scope, (rows - width // 4, width, width // 4, width)))
    for scope, (_, _, (rows, units), _) in _scopes(tf1, _OF_GRU).items():
        cells.append((scope, (rows - units, 3 * units, units, 3 * units)))
    chosen: dict[_Sizes, dict[str, str]] = defaultdict(dict)
    for scope, sizes in cells:
        if left := [prefix for prefix in layers[sizes] if prefix not in chosen[sizes].values()]:
            chosen[sizes][scope] = max(left, key=partial(likeness, scope))
    for prefixes in itertools.product(*(itertools.permutations(of_scopes.values()) for of_scopes in chosen.values())):
        found: CellMap = {}
        for (sizes, of_scopes), in_order in zip(chosen.items(), prefixes, strict=True):
            for scope, prefix in zip(of_scopes, in_order, strict=True):
                if f"{scope}/{_OF_GRU[0]}" in tf1:
                    found |= gru_cell_to_keras(scope, prefix)
                else:
                    forget_bias = (forget_biases or {}).get(f"{scope}/bias", 1.0)
                    found |= layers[sizes][prefix](scope, forget_bias=forget_bias)
        yield found


def _lstms_of_torch(port: Mapping[str, VariableSpec]) -> Iterator[tuple[str, _Sizes, Callable[..., CellMap]]]:
    """Yield the LSTM cells of PyTorch: the start and end of their names, their sizes, and what returns the entries."""
    for name in port:
        found = _IN_TORCH.fullmatch(name)
        if found is None:
            continue
        module, layer, suffix = found["module"] or "", found["layer"], found["suffix"]
        before = name.removesuffix(f"weight_ih{suffix}")
        specs = [port.get(f"{before}{each}{suffix}") for each in _OF_TORCH]
        shapes: list[Any] = [spec.shape for spec in specs if spec is not None]
        if len(shapes) < len(_OF_TORCH) or shapes[0][0] != 4 * shapes[1][1]:
            continue  # without biases, with a projection, or a GRU
        (width, inputs), (_, units) = shapes[:2]
        number = None if layer is None else int(layer)
        entries = partial(lstm_cell_to_torch, port_prefix=module, layer=number, reverse=bool(found["reverse"]))
        yield f"{before}{suffix}", (inputs, width, units, width), entries


def _scopes(specs: Mapping[str, VariableSpec], names: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the shapes of the variables with some names, for each scope that has all of them, kernels as matrices."""
    found = {}
    separator = "." if "." in names[0] else "/"
    for name in specs:
        scope = name.removesuffix(f"{separator}{names[0]}")
        members = [specs.get(f"{scope}{separator}{each}") for each in names] if scope != name else [None]
        shapes = [member.shape for member in members if member is not None and member.shape is not None]
        ranks = [len(shape) == 2 for shape, each in zip(shapes, names, strict=False) if each.endswith("kernel")]
        if len(shapes) == len(names) and all(ranks):
            found[scope] = shapes
    return found
