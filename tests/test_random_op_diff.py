"""`diff_random_ops`: the text is a contract, and the op that it names is the one that shifted the others."""

import dataclasses
import re
import subprocess
import sys

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

from detrand import ArgumentError, DeterministicRandomTestTool, RandomOp, diff_random_ops
from detrand.random_op_diff import align


def uniform(*shape, phase="compute"):
    return "RandomUniform", shape, "float32", phase


def normal(*shape, phase="init"):
    return "RandomStandardNormal", shape, "float32", phase


def program(file, *ops, first_seed=0, constant=False):
    """Record of ops, of which the i-th is in line 10 + i of a file."""
    return [
        RandomOp(index, 0 if constant else first_seed + index, 0, *op, caller=f"{file}:{10 + index}")
        for index, op in enumerate(ops)
    ]


def diff(tf1, port, **options):
    return diff_random_ops(
        program("tf1.py", *tf1, **options), program("port.py", *port, **options), tf1_name="TF1", port_name="port"
    )


LAYERS = [normal(7, 5), uniform(None, 5), normal(5, 3), uniform(None, 3), normal(3)]


# --- the text -------------------------------------------------------------------------------------------------------


def test_an_op_too_many_is_named_and_the_others_are_shown_as_shifted():
    assert diff(LAYERS, [normal(7, 5), *LAYERS[2:]]) == (
        "TF1 has a random op that port lacks: RandomUniform (None, 5) float32 (compute, op seed 1, run 0) at "
        "tf1.py:11; the op seeds of the 3 ops after it are 1 lower in port\n"
        "\n"
        "--- TF1: 5 random ops\n"
        "+++ port: 4 random ops\n"
        "  op seed 0: RandomStandardNormal (7, 5) float32, init, at tf1.py:10 | port.py:10\n"
        "- op seed 1: RandomUniform (None, 5) float32, compute, at tf1.py:11\n"
        "  op seed 2 -> 1: RandomStandardNormal (5, 3) float32, init, at tf1.py:12 | port.py:11\n"
        "  op seed 3 -> 2: RandomUniform (None, 3) float32, compute, at tf1.py:13 | port.py:12\n"
        "  op seed 4 -> 3: RandomStandardNormal (3,) float32, init, at tf1.py:14 | port.py:13"
    )


def test_ops_in_a_different_order_are_called_that():
    port = [op for op in LAYERS if op[3] == "init"] + [uniform(2, 5), uniform(2, 3)]
    assert diff(LAYERS, port) == (
        "the same random ops in a different order: TF1 has RandomUniform (None, 5) float32 (compute, op seed 1, run 0) "
        "at tf1.py:11 first, port has RandomStandardNormal (5, 3) float32 (init, op seed 1, run 0) at port.py:11 "
        "first; port initializes all variables before it computes, as a Keras functional model does; TF1 does not\n"
        "\n"
        "--- TF1: 5 random ops\n"
        "+++ port: 5 random ops\n"
        "  op seed 0: RandomStandardNormal (7, 5) float32, init, at tf1.py:10 | port.py:10\n"
        "- op seed 1: RandomUniform (None, 5) float32, compute, at tf1.py:11\n"
        "  op seed 2 -> 1: RandomStandardNormal (5, 3) float32, init, at tf1.py:12 | port.py:11\n"
        "- op seed 3: RandomUniform (None, 3) float32, compute, at tf1.py:13\n"
        "  op seed 4 -> 2: RandomStandardNormal (3,) float32, init, at tf1.py:14 | port.py:12\n"
        "+ op seed 3: RandomUniform (2, 5) float32, compute, at port.py:13\n"
        "+ op seed 4: RandomUniform (2, 3) float32, compute, at port.py:14"
    )


def test_long_rows_of_ops_are_one_line():
    many = [uniform(size) for size in range(100)]
    assert diff(many, [*many[:50], normal(7), *many[50:]]) == (
        "port has a random op that TF1 lacks: RandomStandardNormal (7,) float32 (init, op seed 50, run 0) at "
        "port.py:60; the op seeds of the 50 ops after it are 1 higher in port\n"
        "\n"
        "--- TF1: 100 random ops\n"
        "+++ port: 101 random ops\n"
        "  ... 47 more ops\n"
        "  op seed 47: RandomUniform (47,) float32, compute, at tf1.py:57 | port.py:57\n"
        "  op seed 48: RandomUniform (48,) float32, compute, at tf1.py:58 | port.py:58\n"
        "  op seed 49: RandomUniform (49,) float32, compute, at tf1.py:59 | port.py:59\n"
        "+ op seed 50: RandomStandardNormal (7,) float32, init, at port.py:60\n"
        "  op seed 50 -> 51: RandomUniform (50,) float32, compute, at tf1.py:60 | port.py:61\n"
        "  op seed 51 -> 52: RandomUniform (51,) float32, compute, at tf1.py:61 | port.py:62\n"
        "  op seed 52 -> 53: RandomUniform (52,) float32, compute, at tf1.py:62 | port.py:63\n"
        "  op seed 53 -> 54: RandomUniform (53,) float32, compute, at tf1.py:63 | port.py:64\n"
        "  ... 46 more ops, op seeds 1 higher"
    )


def test_long_rows_of_ops_of_one_program_are_cut():
    text = diff([uniform(3)] * 2, [uniform(3)] * 2 + [normal(4)] * 5000)
    assert text.splitlines()[0] == (
        "port has 5,000 random ops that TF1 lacks, the first of them RandomStandardNormal (4,) float32 (init, op seed "
        "2, run 0) at port.py:12; the programs have no ops in common after it"
    )
    assert text.splitlines()[-1] == "+ ... 4,992 more ops"


def test_a_text_has_an_end_where_everything_differs():
    tf1, port = [[op for i in range(999) for op in (uniform(5), make(i, 1))] for make in (uniform, normal)]
    lines = diff(tf1, port).splitlines()
    assert len(lines) == 65
    assert lines[-1] == "... and so on: 1,998 ops in only one program"


@pytest.mark.parametrize(
    ("tf1", "port", "headline"),
    [
        pytest.param(
            [uniform(3), normal(4)],
            [uniform(3), uniform(4), normal(2)],
            "TF1 has RandomStandardNormal (4,) float32 (init, op seed 1, run 0) at tf1.py:11 where port has "
            "RandomUniform (4,) float32 (compute, op seed 1, run 0) at port.py:11; the programs have no ops in common "
            "after it",
            id="replaced",
        ),
        pytest.param(
            [uniform(3), normal(4)],
            [normal(3), normal(4)],
            "TF1 has RandomUniform (3,) float32 (compute, op seed 0, run 0) at tf1.py:10 where port has "
            "RandomStandardNormal (3,) float32 (init, op seed 0, run 0) at port.py:10; the op seeds after it are equal",
            id="replaced, no shift",
        ),
        pytest.param(
            [("", None, "", "compute"), normal(4)],
            [normal(4)],
            "TF1 has a random op that port lacks: an op seed that nothing is drawn from (compute, op seed 0, run 0) "
            "at tf1.py:10; the op seed of the op after it is 1 lower in port",
            id="a seed without an op",
        ),
        pytest.param(
            [("ShuffleDataset", None, "", "compute"), normal(4)],
            [normal(4)],
            "TF1 has a random op that port lacks: ShuffleDataset (compute, op seed 0, run 0) at tf1.py:10; the op seed "
            "of the op after it is 1 lower in port",
            id="an op that draws later",
        ),
        pytest.param(
            [uniform(3), uniform(4)],
            [uniform(4), uniform(3)],
            "the same random ops in a different order: TF1 has RandomUniform (3,) float32 (compute, op seed 0, run 0) "
            "at tf1.py:10 first, port has RandomUniform (4,) float32 (compute, op seed 0, run 0) at port.py:10 first",
            id="swapped",
        ),
        pytest.param(
            [("RandomUniform", None, "float32", "compute")],
            [],
            "TF1 has a random op that port lacks: RandomUniform of unknown shape float32 (compute, op seed 0, run 0) "
            "at tf1.py:10; the programs have no ops in common after it",
            id="unknown shape",
        ),
    ],
)
def test_the_first_line_says_what_differs_first(tf1, port, headline):
    assert diff(tf1, port).splitlines()[0] == headline


def test_op_seeds_that_differ_from_an_op_of_both_programs_on():
    tf1, port = program("tf1.py", *LAYERS), program("port.py", *LAYERS, first_seed=7)
    assert diff_random_ops(tf1, port).splitlines()[0] == (
        "the op seeds diverge at an op of both programs: RandomStandardNormal (7, 5) float32 has op seed 0 in TF1 "
        "(at tf1.py:10) and op seed 7 in port (at port.py:10)"
    )


# --- what is no difference ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [pytest.param((None, 5), id="a dimension"), pytest.param(None, id="the rank"), pytest.param((4, 5), id="nothing")],
)
def test_a_shape_that_a_graph_does_not_know_equals_any(shape):
    known, unknown = [uniform(4, 5)], [("RandomUniform", shape, "float32", "compute")]
    assert diff(known, unknown) == diff(unknown, known) == ""


def test_unknown_shapes_are_aligned_after_a_difference():
    text = diff(LAYERS, [uniform(9, 9), normal(5, 3), uniform(2, 3), normal(3)])
    assert re.findall(r"^([-+]) op seed (\d)", text, re.MULTILINE) == [("-", "0"), ("-", "1"), ("+", "0")]


def test_dimensions_that_a_graph_knows_must_be_equal():
    assert diff([uniform(None, 5)], [uniform(4, 6)])
    assert diff([uniform(None, 5)], [uniform(4, 5, 1)])
    assert diff([uniform(5)], [("RandomUniform", (5,), "float64", "compute")])


def test_the_phase_is_no_difference():
    # tf.Variable(tf.random.normal(...)) draws before the variable is made, an initializer while it is.
    assert diff([normal(3, phase="compute")], [normal(3)]) == ""


def test_a_later_run_is_the_same_op_again():
    tf1 = program("tf1.py", *LAYERS)
    runs = [dataclasses.replace(tf1[1], index=5 + run, run=1 + run) for run in range(2)]
    assert diff_random_ops(tf1, tf1 + runs) == ""
    assert "\n+++ port: 4 random ops, run up to 3 times\n" in diff_random_ops(tf1, tf1[:-1] + runs)


def test_the_order_does_not_matter_in_constant_mode():
    assert diff(LAYERS, LAYERS[::-1], constant=True) == ""
    assert diff(LAYERS, [LAYERS[3], LAYERS[0], LAYERS[2], LAYERS[4]], constant=True) == (
        "TF1 has a random op that port lacks: RandomUniform (None, 5) float32 (compute, op seed 0, run 0) at "
        "tf1.py:11; in constant mode this changes no other op\n"
        "\n"
        "--- TF1: 5 random ops\n"
        "+++ port: 4 random ops\n"
        "  op seed 0: RandomStandardNormal (7, 5) float32, init, at tf1.py:10 | port.py:11\n"
        "- op seed 0: RandomUniform (None, 5) float32, compute, at tf1.py:11\n"
        "  op seed 0: RandomStandardNormal (5, 3) float32, init, at tf1.py:12 | port.py:12\n"
        "  op seed 0: RandomUniform (None, 3) float32, compute, at tf1.py:13 | port.py:10\n"
        "  op seed 0: RandomStandardNormal (3,) float32, init, at tf1.py:14 | port.py:13"
    )


def test_an_unknown_shape_does_not_take_a_known_match_in_constant_mode():
    assert diff([uniform(None), uniform(3)], [uniform(3), uniform(4)], constant=True) == ""


def test_programs_in_two_modes_cannot_be_compared():
    text = diff_random_ops(program("a.py", *LAYERS), program("b.py", *LAYERS, constant=True))
    assert text == (
        "TF1 ran in mode 'num_random_ops' and port in mode 'constant'. Run both in the same mode to compare them."
    )


# --- what no scope controls ------------------------------------------------------------------------------------------

NOISE = ("np.random.normal", (3,), "float64", "compute")
CHOICE = ("random.choice", None, "", "init")


def with_sources(file, *sources):
    """A program's records, the last of which no scope controls."""
    ops = program(file, *LAYERS[:1], *sources)
    return ops[:1] + [dataclasses.replace(op, op_seed=None) for op in ops[1:]]


def test_a_source_of_one_program_is_a_difference_and_each_line_of_code_is_listed_once():
    tf1 = with_sources("tf1.py", NOISE, CHOICE)
    tf1 += tf1[1:]
    assert diff_random_ops(tf1, with_sources("port.py", NOISE), tf1_name="TF1", port_name="port") == (
        "random numbers that no scope controls:\n"
        "  TF1: np.random.normal (3,) float64, at tf1.py:11\n"
        "  port: np.random.normal (3,) float64, at port.py:11\n"
        "  TF1: initial values, by random.choice, first at tf1.py:12"
    )


def test_a_source_of_both_programs_is_no_difference_and_shifts_nothing():
    assert diff_random_ops(with_sources("tf1.py", NOISE), with_sources("port.py", NOISE, NOISE)) == ""
    text = diff_random_ops(with_sources("tf1.py", NOISE), with_sources("port.py", NOISE)[1:])
    assert text.startswith("TF1 has a random op that port lacks: RandomStandardNormal (7, 5) float32 ")
    assert text.endswith(
        "\n\nrandom numbers that no scope controls:\n"
        "  TF1: np.random.normal (3,) float64, at tf1.py:11\n"
        "  port: np.random.normal (3,) float64, at port.py:11"
    )


def test_a_long_list_of_sources_is_cut():
    assert diff_random_ops(with_sources("tf1.py", *[NOISE] * 12), []).endswith("\n  ... and 2 more lines")


# --- every sequence -------------------------------------------------------------------------------------------------

kinds = st.one_of(
    st.builds(uniform, st.integers(1, 3)),
    st.builds(normal, st.integers(1, 2), phase=st.sampled_from(["init", "compute"])),
)
some_ops = st.lists(kinds, max_size=12)


@given(some_ops, st.booleans())
def test_equal_ops_do_not_differ(ops, constant):
    assert diff(ops, ops, constant=constant) == ""


@given(some_ops, st.data())
def test_an_inserted_op_is_named(ops, data):
    position = data.draw(st.integers(0, len(ops)))
    text = diff(ops, [*ops[:position], uniform(9, 9), *ops[position:]])
    assert text.startswith("port has a random op that TF1 lacks: RandomUniform (9, 9) float32 ")
    assert f"at port.py:{10 + position};" in text
    assert len(re.findall(r"^[-+] op seed", text, re.MULTILINE)) == 1


@given(some_ops, some_ops)
def test_no_two_programs_have_more_ops_in_common_in_order(ops_a, ops_b):
    pairs = align(program("a.py", *ops_a), program("b.py", *ops_b))
    assert pairs == sorted(pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert all(ops_a[i][:3] == ops_b[j][:3] for i, j in pairs)
    assert len(pairs) == longest_common_subsequence([op[:3] for op in ops_a], [op[:3] for op in ops_b])


def longest_common_subsequence(a, b):
    """The textbook's table."""
    lengths = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, j in np.ndindex(len(a), len(b)):
        together = lengths[i, j] + 1 if a[i] == b[j] else 0
        lengths[i + 1, j + 1] = max(together, lengths[i, j + 1], lengths[i + 1, j])
    return lengths[-1, -1]


@given(some_ops, st.data())
def test_a_different_order_is_called_that(ops, data):
    shuffled = data.draw(st.permutations(ops))
    text = diff(ops, shuffled)
    if [op[:3] for op in shuffled] == [op[:3] for op in ops]:
        assert text == ""
    else:
        assert text.startswith("the same random ops in a different order: ")


def test_programs_of_more_ops_than_are_aligned_at_once_are_paired(monkeypatch):
    monkeypatch.setattr("detrand.random_op_diff._WINDOW", 32)
    ops = [uniform(size * size % 23) for size in range(200)]
    changed = [*ops[:30], *[normal(9)] * 24, *ops[30:100], *ops[103:]]
    pairs = align(program("a.py", *ops), program("b.py", *changed))
    assert len(pairs) == len(ops) - 3


# --- programs -------------------------------------------------------------------------------------------------------


def record(build, mode="num_random_ops"):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        build()
    return tool


def session(build):
    def run():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            outputs = build(tf.compat.v1.placeholder(tf.float32, (None, 5)))
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(outputs, {"Placeholder:0": np.ones((2, 5))})

    return run


def tf1_model(inputs, first_rate=0.5, order=("a", "b")):
    shapes = {"a": (5, 4), "b": (4, 3)}
    kernels = {
        name: tf.compat.v1.get_variable(name, shapes[name], initializer=tf.compat.v1.glorot_uniform_initializer())
        for name in order
    }
    hidden = inputs @ kernels["a"]
    if first_rate:
        hidden = tf.nn.dropout(hidden, first_rate)
    return tf.nn.dropout(hidden @ kernels["b"], 0.5)


def layers():
    return [keras.layers.Dense(4, use_bias=False), keras.layers.Dropout(0.5), keras.layers.Dense(3, use_bias=False)]


TF1 = record(session(tf1_model))


def test_a_port_that_draws_what_the_session_draws():
    def run():
        model = keras.Sequential([keras.Input((5,)), *layers(), keras.layers.Dropout(0.5)])
        model(tf.ones((2, 5)), training=True)

    assert diff_random_ops(TF1, record(run)) == ""


def test_a_dropout_that_the_port_lacks_is_named():
    text = diff_random_ops(TF1, record(session(lambda inputs: tf1_model(inputs, first_rate=None))))
    assert re.match(
        r"TF1 has a random op that port lacks: RandomUniform \(None, 4\) float32 \(compute, op seed 2, run 0\) at "
        r".*test_random_op_diff\.py:\d+; the op seed of the op after it is 1 lower in port\n",
        text,
    )


def test_a_dataset_is_the_same_op_in_a_session_and_eagerly():
    def shuffled(inputs):
        return tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(8).shuffle(8)).get_next()

    def shuffle():
        tf.data.Dataset.range(8).shuffle(8)

    tf1 = [op for op in record(session(shuffled)).random_ops if op.op_type]  # the iterator takes an op seed as well
    assert diff_random_ops(tf1, record(shuffle)) == ""
    text = diff_random_ops(tf1, [])
    assert text.startswith("TF1 has a random op that port lacks: ShuffleDataset (compute, op seed 0, run 0) at ")


def test_initializers_in_a_different_order_are_named():
    text = diff_random_ops(TF1, record(session(lambda inputs: tf1_model(inputs, order=("b", "a")))).random_ops)
    assert re.match(
        r"the same random ops in a different order: TF1 has RandomUniform \(5, 4\) float32 \(init, op seed 0, run 0\) "
        r"at \S+:\d+ first, port has RandomUniform \(4, 3\) float32 \(init, op seed 0, run 0\) at \S+:\d+ first\n",
        text,
    )


def test_a_direct_call_mixes_what_a_functional_model_does_in_two_phases():
    def direct():
        outputs = tf.ones((2, 5))
        for layer in layers():
            outputs = layer(outputs, training=True)

    def functional():
        keras.Sequential([keras.Input((5,)), *layers()])(tf.ones((2, 5)), training=True)

    text = diff_random_ops(record(direct), record(functional), tf1_name="direct", port_name="functional")
    assert "functional initializes all variables before it computes" in text.splitlines()[0]


def test_steps_of_the_port_are_runs_of_the_session():
    def steps():
        for _ in range(3):
            with port.step():
                tf.nn.dropout(tf.ones((2, 5)), 0.5)

    port = DeterministicRandomTestTool(mode="num_random_ops")
    with port.scope():
        steps()
    assert len(port.random_ops) == 3
    assert diff_random_ops(record(session(lambda inputs: tf.nn.dropout(inputs, 0.5))), port) == ""


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((TF1, 3), r"port must be a DeterministicRandomTestTool or .* but 3 of type int", id="a number"),
        pytest.param((["dropout"], TF1), r"tf1 must be .* but 'dropout' of type str", id="no record"),
    ],
)
def test_arguments_without_random_ops_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        diff_random_ops(*arguments)


@pytest.mark.parametrize("name", ["", 3, None])
def test_tf1_name_is_a_str(name):
    with pytest.raises(ArgumentError, match=rf"port_name must be a non-empty str, but {name!r} was given"):
        diff_random_ops(TF1, TF1, port_name=name)


def test_the_diff_imports_no_framework():
    code = "import sys, detrand; detrand.diff_random_ops([], []); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
