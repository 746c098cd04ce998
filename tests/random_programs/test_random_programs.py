"""Tests that random programs draw the same in all ways as in a TF1 session."""

import logging

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, seed, settings

from tests.random_programs.checking import DISAGREEMENT, check
from tests.random_programs.grammar import Program, programs
from tests.random_programs.rendering import script

pytestmark = pytest.mark.filterwarnings("ignore")  # what TF1 code calls is deprecated, in TensorFlow and in Keras


@pytest.fixture(autouse=True)
def no_warnings_about_retracing():
    """Keep TensorFlow from logging that functions are traced again, as they are in each program."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def assert_agrees(program: Program) -> None:
    for result in check(program):
        assert result.kind != DISAGREEMENT, f"{result.way}: {result.detail}\n{script(program, result.way)}"


def _settings(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, database=None, derandomize=True,
                    suppress_health_check=list(HealthCheck))  # fmt: skip


@_settings(20)
@given(programs())
def test_random_programs_draw_in_all_ways_what_the_session_draws(program):
    assert_agrees(program)


@pytest.mark.slow
@seed(1)
@_settings(100)
@given(programs())
def test_many_random_programs_draw_in_all_ways_what_the_session_draws(program):
    assert_agrees(program)
