"""Each source of randomness: controlled as a TF1 session shows, or recorded with its line."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from detrand.validation.programs.tf1 import config_as_written
from tests.adapters import randomness
from tests.adapters.randomness import BY_CHANCE, CONTROLLED, RECORDED, UNSEEN, Port
from tests.support import keras3_process

v1 = tf.compat.v1


def marks(row):
    packages = {"torch": "torch", "jax": "jax", "nnx": "flax"}
    missing = [
        package
        for name, package in packages.items()
        if f"``{name}." in row.source and not keras3_process.is_installed(package)
    ]
    return [pytest.mark.skip(reason=f"{name} is not installed") for name in missing]


def programs(*kinds):
    return [
        pytest.param(program, id=f"{number}: {name}", marks=marks(row))
        for number, row in enumerate(randomness.TABLE)
        for name, program in row.programs.items()
        if row.kind in kinds
    ]


def in_session(program, mode):
    """What a session gets from the tensor, or the elements of the dataset, that a program returns."""
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default():
        made = program()
        iterator = None if tf.is_tensor(made) else v1.data.make_initializable_iterator(made)
        drawn = made if iterator is None else iterator.get_next()
        with v1.Session(config=config_as_written()) as session:
            session.run(v1.global_variables_initializer())
            if iterator is None:
                return session.run(drawn)
            session.run(iterator.initializer)
            elements = []
            while True:
                try:
                    elements.append(session.run(drawn))
                except tf.errors.OutOfRangeError:
                    return np.stack(elements)


@pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
@pytest.mark.parametrize("program", programs(CONTROLLED))
def test_what_a_scope_controls_draws_what_a_session_draws(program, mode):
    port, tf1 = program if isinstance(program, Port) else (program, program)
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope():
        drawn = port()
        drawn = np.stack(list(drawn.as_numpy_iterator())) if isinstance(drawn, tf.data.Dataset) else np.asarray(drawn)
    np.testing.assert_array_equal(drawn, in_session(tf1, mode))
    assert tool.random_ops
    assert [op for op in tool.random_ops if op.op_seed is None] == []


@pytest.mark.parametrize("program", programs(RECORDED, BY_CHANCE))
def test_what_no_scope_controls_is_recorded_with_its_line(program):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        program.draw()
    records = [op for op in tool.random_ops if op.op_seed is None]
    assert set(program.op_types) <= {op.op_type for op in records}
    assert {op.caller for op in records} == {line_of(program)}


def line_of(program):
    if program.within is None:
        return f"{randomness.__file__}:{max(line for *_, line in program.draw.__code__.co_lines() if line)}"
    lines, first = inspect.getsourcelines(program.within)
    (offset,) = [offset for offset, line in enumerate(lines) if line.endswith("# draws\n")]
    return f"{randomness.__file__}:{first + offset}"


@pytest.mark.parametrize("program", programs(UNSEEN))
def test_what_is_not_seen_is_not_recorded(program):
    tool = DeterministicRandomTestTool()
    with tool.scope():
        program()
    assert tool.random_ops == ()


def test_the_documentation_shows_what_is_tested():
    # `python -m tests.adapters.randomness` prints this text.
    page = Path(__file__).parents[2] / "docs" / "randomness_table.txt"
    assert page.read_text() == randomness.text_of(randomness.TABLE)
