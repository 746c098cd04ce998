"""A sample of the interrupts of ``python -m tests.interrupts``."""

import gc
import sys
import threading

import pytest

from tests.interrupts.injection import ERRORS, positions, what_is_left
from tests.interrupts.programs import IN_THREADS, PROGRAMS


# An interrupt at the first or the last line of __enter__ leaves the scope to the garbage collector, which warns of it.
@pytest.mark.filterwarnings("ignore:tool.* was (entered but never left|called but never entered):RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupt_leaves_nothing_behind(name):
    program, threads = PROGRAMS[name], threading if name in IN_THREADS else sys
    for number, position in enumerate(positions(program, threads, 10)):
        error = ERRORS[number % len(ERRORS)]
        assert not what_is_left(program, position, error, threads), (position, error)
    gc.collect()  # ends the scopes that are left to it while their warnings are ignored
