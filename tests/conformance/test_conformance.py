"""Every cell of the table, in both modes, against what a real TF1 session draws."""

import functools
import inspect

import numpy as np
import pytest
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from detrand import _patching
from tests.conformance import __main__ as printed
from tests.conformance import table

SEED = 42
CELLS = [
    pytest.param(row, way, mode, id=f"{row.name}-{way}-{mode}".replace(" ", "_"))
    for row in table.TABLE
    for way in table.WAYS
    for mode in table.MODES
    if not isinstance(row.cell(way), str)
    # XLA compiles for seconds. `python -m tests.conformance` has its cells in both modes.
    if way != table.XLA or mode == "num_random_ops"
]
ROWS = [pytest.param(row, id=row.name.replace(" ", "_")) for row in table.TABLE]

# Ops that have attributes seed and seed2, and that a scope does not govern: why it need not.
NOT_GOVERNED = {
    "ComputeAccidentalHits": "draws nothing; asks get_seed, so it is counted",
    "CudnnRNN": "runs on a GPU alone; TF1's contrib.cudnn_rnn, which made it, is gone",
    "CudnnRNNV2": "as CudnnRNN",
    "CudnnRNNV3": "as CudnnRNN",
    "CudnnRNNBackprop": "as CudnnRNN",
    "CudnnRNNBackpropV2": "as CudnnRNN",
    "CudnnRNNBackpropV3": "as CudnnRNN",
    "CudnnRNNParamsSize": "as CudnnRNN, and draws nothing",
    "CudnnRNNCanonicalToParams": "as CudnnRNN, and draws nothing",
    "CudnnRNNCanonicalToParamsV2": "as CudnnRNN, and draws nothing",
    "CudnnRNNParamsToCanonical": "as CudnnRNN, and draws nothing",
    "CudnnRNNParamsToCanonicalV2": "as CudnnRNN, and draws nothing",
    "RandomShuffleQueue": "makes a queue, whose dequeue ops draw in an order of their own threads",
    "RandomShuffleQueueV2": "as RandomShuffleQueue",
    "SnapshotDataset": "a dataset: asks get_seed for the order of its files",
}
# Ops that TensorFlow still registers, but lets no new graph have.
REMOVED_BY_TENSORFLOW = {"RandomPoisson", "RandomCrop"}


@functools.cache
def reference(row, mode):
    return table.drawn_in_session(row, SEED, mode)


@pytest.mark.parametrize(("row", "way", "mode"), CELLS)
def test_draws_what_the_session_draws(row, way, mode):
    actual, desired = table.drawn(row, way, SEED, mode), reference(row, mode)
    assert len(actual.runs) == (1 if way in (table.EAGER, table.NUMPY) else table.RUNS)
    for numbers, expected_numbers in zip(actual.runs, desired.runs, strict=False):
        for number, expected in zip(numbers, expected_numbers, strict=True):
            assert number.dtype == expected.dtype
            assert number.shape == expected.shape
            if row.bound(way) and number.dtype.kind == "f":
                np.testing.assert_allclose(number, expected, rtol=0, atol=row.bound(way))
            else:
                np.testing.assert_array_equal(number, expected)


@pytest.mark.parametrize("row", ROWS)
def test_records_what_was_drawn(row):
    draws = [*row.op_types, table.FILLER_OP, *row.op_types]
    for drawn in (reference(row, "num_random_ops"), table.drawn(row, table.EAGER, SEED, "num_random_ops")):
        controlled = [op for op in drawn.random_ops if op.op_seed is not None]
        assert [op.op_type for op in controlled] == draws
        assert [op.op_seed for op in controlled] == list(range(len(draws)))
    in_steps = table.drawn(row, table.STEP, SEED, "num_random_ops").random_ops
    assert [(op.op_type, op.op_seed, op.run) for op in in_steps if op.op_seed is not None] == [
        (op_type, op_seed, run) for run in range(table.RUNS) for op_seed, op_type in enumerate(draws)
    ]


@pytest.mark.parametrize("row", ROWS)
def test_the_runs_differ(row):
    # Run again, a dataset's op makes the dataset anew, and a seeded fractional pooling keeps its regions.
    first, second = (run[: len(run) // 2] for run in reference(row, "num_random_ops").runs[:2])
    same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert same == (row.name == "tf.data shuffle" or row.name.startswith("fractional"))


@pytest.mark.parametrize("row", ROWS)
def test_the_modes_differ(row):
    # In constant mode the second round repeats the first; with op seeds counted it does not.
    for mode, repeats in (("constant", True), ("num_random_ops", False)):
        values = reference(row, mode).runs[0]
        first, second = values[: len(values) // 2], values[len(values) // 2 + 1 :]
        same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert same == repeats


def registered_random_ops():
    ops = op_def_pb2.OpList()
    ops.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {op.name for op in ops.op if {"seed", "seed2"} <= {attribute.name for attribute in op.attr}}


def test_every_random_op_that_tensorflow_registers_is_governed():
    assert registered_random_ops() - set(_patching.RANDOM_OPS) == set(NOT_GOVERNED)
    assert set(_patching.RANDOM_OPS) <= registered_random_ops()


def test_every_governed_op_is_in_the_table():
    tested = {op_type for row in table.TABLE for op_type in row.op_types if op_type}
    assert tested == set(_patching.RANDOM_OPS) - REMOVED_BY_TENSORFLOW


def test_every_keras_initializer_is_in_the_table():
    import keras

    initializers = {
        name
        for name, value in vars(keras.initializers).items()
        if isinstance(value, type) and name[0].isupper() and "seed" in inspect.signature(value).parameters
    }
    assert initializers - {"OrthogonalInitializer"} == {name for name, _, _ in table._INITIALIZERS.values()}


def test_the_table_prints_one_line_for_each_row():
    rows = table.TABLE[:2] + tuple(row for row in table.TABLE if row.name == "multinomial")
    text = printed.text_of(rows)
    first, _, multinomial = (next(line for line in text.splitlines() if line.startswith(row.name)) for row in rows)
    assert first.split()[2:] == ["exact"] * len(table.WAYS)
    assert multinomial.split()[1:] == ["exact", "exact", "exact", "exact", "-[1]", "-[1]", "-[1]", "-[2]"]
    assert f"[1] {table.NO_KERAS_TWIN}" in text
    assert f"[2] {table.NOT_IN_PHILOX}" in text


def test_the_table_says_where_numbers_differ(monkeypatch):
    row = next(row for row in table.TABLE if row.name == "multinomial")
    wrong = row._replace(tf2=lambda: [table.tf.random.uniform([2, 9])])
    assert "differs" in printed.text_of((wrong,))
