"""Tests that random programs draw in all ways what they draw in a TF1 session."""

import logging

import pytest
import tensorflow as tf

from tests.random_programs.blocks import SIZE, block_of, shrunk
from tests.random_programs.checking import DISAGREEMENT, check
from tests.random_programs.grammar import MODES, Conditional, Draw, Loop, Program
from tests.random_programs.rendering import script

# What TF1 code calls is deprecated, in TensorFlow and in Keras.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("no_notes_about_retracing")]


@pytest.fixture
def no_notes_about_retracing():
    """Keep TensorFlow from logging that functions are traced again, as they are in each program."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def assert_agrees(k):
    """Check program K of the command."""
    program = block_of(0, k // SIZE)[k % SIZE]
    for result in check(program):
        assert result.kind != DISAGREEMENT, f"{result.way}: {result.detail}\n\n{script(program, result.way)}"


@pytest.mark.parametrize("k", range(10))
def test_a_random_program_draws_in_all_ways_what_the_session_draws(k):
    assert_agrees(k)


@pytest.mark.slow
@pytest.mark.parametrize("k", range(10, 110))
def test_many_random_programs_draw_in_all_ways_what_the_session_draws(k):
    assert_agrees(k)


def test_programs_are_the_same_in_every_run():
    first = block_of(3, 5)
    block_of.cache_clear()
    assert block_of(3, 5) == first
    assert block_of(4, 5) != first


def test_a_program_is_shrunk_to_the_statement_that_fails():
    def draw(name, seed=False):
        return Draw(name, "float32", (2,), seed)

    def draws_gamma(program):
        return "tf.random.gamma" in script(program, "eager")

    uniform = draw("tf.random.uniform")
    branches = ((uniform, draw("tf.random.gamma", seed=True)), (uniform,))
    program = Program((uniform, Loop("scan", 3, (Conditional("cond", "x > 0.6", branches, True),))), MODES[1], 3, True)
    smallest = shrunk(program, draws_gamma, seconds=10)
    assert smallest == Program((draw("tf.random.gamma"),), MODES[1], 1, True)
