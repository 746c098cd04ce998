"""Every cell of the conformance table, compared in both modes with what a TF1 session draws."""

import functools
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from detrand._patching.random_ops import RANDOM_OPS
from tests.conformance import __main__ as printed
from tests.conformance import table, ways
from tests.support import keras3_process

v1 = tf.compat.v1
SEED = 42


def marks(way):
    backend = ways.BACKENDS.get(way)
    missing = backend is not None and not keras3_process.is_installed(backend)
    return [pytest.mark.skip(reason=f"{backend} is not installed")] if missing else []


CELLS = [
    pytest.param(row, way, mode, id=f"{row.name}-{way}-{mode}".replace(" ", "_"), marks=marks(way))
    for row in table.TABLE
    for way in ways.WAYS
    for mode in ways.MODES
    if not isinstance(row.cell(way), str)
    # XLA compiles for seconds. `python -m tests.conformance` has its cells in both modes.
    if way != ways.XLA or mode == "num_random_ops"
]
ROWS = [pytest.param(row, id=row.name.replace(" ", "_")) for row in table.TABLE]

# Ops with attributes seed and seed2 that a scope does not govern, with the reason.
NOT_GOVERNED = {
    "ComputeAccidentalHits": "draws nothing; asks get_seed, so it is counted",
    "CudnnRNN": "runs only on a GPU; TF1's contrib.cudnn_rnn, which created it, is gone",
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
    "RandomShuffleQueue": "creates a queue whose dequeue ops draw in the order of their own threads",
    "RandomShuffleQueueV2": "as RandomShuffleQueue",
    "SnapshotDataset": "a dataset: asks get_seed for the order of its files",
}
# Ops that TensorFlow still registers, but no longer accepts in new graphs.
REMOVED_BY_TENSORFLOW = {"RandomPoisson", "RandomCrop"}


@functools.cache
def reference(row, mode):
    return ways.drawn_in_session(row, SEED, mode)


@pytest.mark.slow_except(
    "*-eager-*",
    "*-eager,_step_k-num_random_ops",
    "*-tf.function,_call_k-num_random_ops",
    "*-Keras_3,_step_k-num_random_ops",
    "*-Keras_3_in_tf.function,_call_k-constant",
    "*-tf_keras,_step_k-num_random_ops",
    "*-NumPy,_run_k-num_random_ops",
    "normal_float32-XLA,*",
)
@pytest.mark.parametrize(("row", "way", "mode"), CELLS)
def test_draws_what_the_session_draws(row, way, mode):
    actual, desired = ways.drawn(row, way, SEED, mode), reference(row, mode)
    assert len(actual.runs) == (1 if way == ways.EAGER else ways.RUNS)
    for numbers, expected_numbers in zip(actual.runs, desired.runs, strict=False):
        for number, expected in zip(numbers, expected_numbers, strict=True):
            assert number.dtype == expected.dtype
            assert number.shape == expected.shape
            if row.bound(way) and number.dtype.kind == "f":
                np.testing.assert_allclose(number, expected, rtol=0, atol=row.bound(way).limit)
            else:
                np.testing.assert_array_equal(number, expected)


@pytest.mark.parametrize("row", ROWS)
def test_every_draw_has_a_record(row):
    draws = [*row.op_types, ways.FILLER_OP, *row.op_types]
    for drawn in (reference(row, "num_random_ops"), ways.drawn(row, ways.EAGER, SEED, "num_random_ops")):
        controlled = [op for op in drawn.random_ops if op.op_seed is not None]
        assert [op.op_type for op in controlled] == draws
        assert [op.op_seed for op in controlled] == list(range(len(draws)))
    in_steps = ways.drawn(row, ways.STEP, SEED, "num_random_ops").random_ops
    assert [(op.op_type, op.op_seed, op.run) for op in in_steps if op.op_seed is not None] == [
        (op_type, op_seed, run) for run in range(ways.RUNS) for op_seed, op_type in enumerate(draws)
    ]


@pytest.mark.parametrize("row", ROWS)
def test_the_runs_differ(row):
    # A second run creates a dataset again from its start, and a seeded fractional pooling keeps its regions.
    first, second = (run[: len(run) // 2] for run in reference(row, "num_random_ops").runs[:2])
    same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert same == (row.name == "tf.data shuffle" or row.name.startswith("fractional"))


@pytest.mark.parametrize("row", ROWS)
def test_the_modes_differ(row):
    # In constant mode the second round of draws repeats the first; in num_random_ops mode it does not.
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
    assert registered_random_ops() - set(RANDOM_OPS) == set(NOT_GOVERNED)
    assert set(RANDOM_OPS) <= registered_random_ops()


def test_every_governed_op_is_in_the_table():
    tested = {op_type for row in table.TABLE for op_type in row.op_types if op_type}
    assert tested - {"ShuffleDataset"} == set(RANDOM_OPS) - REMOVED_BY_TENSORFLOW


def test_every_keras_initializer_is_in_the_table():
    import keras

    initializers = {
        name
        for name, value in vars(keras.initializers).items()
        if isinstance(value, type) and name[0].isupper() and "seed" in inspect.signature(value).parameters
    }
    assert initializers - {"OrthogonalInitializer"} == {
        initializer.name for initializer in table._INITIALIZERS.values()
    }


def row_of(name):
    return next(row for row in table.TABLE if row.name == name)


def test_the_printed_table_has_reasons_in_footnotes():
    rows = (row_of("uniform float16"), row_of("normal float32"), row_of("multinomial"))
    header, second, _, *lines = printed.text_of(rows, printed.claimed).splitlines()[1:]
    assert header.split()[:6] == ["random", "ops", "eager", "eager", "tf.function", "XLA"]
    assert second.split()[:6] == ["step", "k", "call", "k", "call", "k"]
    assert lines[0].split()[2:] == ["exact"] * len(ways.WAYS)
    assert lines[1].split()[2:] == [*["exact"] * 3, "2e-6", "(1)", *["exact"] * 6]
    assert lines[2].split()[1:] == [*["exact"] * 4, *["--", "(2)"] * 5, "--", "(3)"]
    assert lines[-3:] == [
        f"({number}) {reason}"
        for number, reason in ((1, ways.BY_XLA.reason), (2, ways.NO_KERAS_TWIN), (3, ways.NOT_IN_PHILOX))
    ]


def test_the_documentation_shows_what_is_tested():
    # `python -m tests.conformance` prints this text if every comparison holds.
    page = Path(__file__).parents[2] / "docs" / "conformance_table.txt"
    assert page.read_text() == printed.text_of(table.TABLE, printed.claimed)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        pytest.param(lambda: [tf.random.uniform([2, 9])], "differs by inf", id="shape"),
        pytest.param(lambda: [tf.random.categorical(np.zeros([2, 3], "float32"), 9)], r"differs by [12]", id="numbers"),
        pytest.param(lambda: [v1.multinomial(table._LOGITS, 9)], "exact", id="nothing"),
    ],
)
def test_a_measured_cell_shows_the_difference(program, text):
    assert re.fullmatch(text, printed.measured(row_of("multinomial")._replace(port=program), ways.STEP)[0])


def test_nan_is_a_difference():
    nan = row_of("uniform float32")._replace(
        numpy=lambda seeds: [np.full(s, np.nan, "float32") for s in ((3, 5), (7,))]
    )
    assert printed.measured(nan, ways.NUMPY)[0] == "differs by nan"


def test_a_backend_that_is_not_installed_has_a_note(monkeypatch):
    monkeypatch.setattr(keras3_process, "is_installed", lambda backend: False)
    text, reason = printed.measured(row_of("uniform float32"), ways.KERAS3_JAX)
    assert (text, reason) == ("--", "jax is not installed where this table was made")
