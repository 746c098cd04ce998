"""A sample of the interrupts of ``python -m tests.interrupts``."""

import pytest

from tests.interrupts.injection import ERRORS, positions, what_is_left
from tests.interrupts.programs import PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_an_interrupt_leaves_nothing_behind(program):
    for number, position in enumerate(positions(program, 20)):
        error = ERRORS[number % len(ERRORS)]
        assert not what_is_left(program, position, error), (position, error)
