"""A sample of the interrupts of ``python -m tests.interrupts``."""

import functools
import gc
import itertools
import sys
import threading
import types

import pytest

from detrand._patching.patches import Shared, Target
from detrand.changes import Changes
from tests.interrupts.injection import ERRORS, positions, what_is_left
from tests.interrupts.programs import IN_THREADS, PROGRAMS
from tests.support.interrupts import called_at


# An interrupt at the first or the last line of __enter__ leaves the scope to the garbage collector, which warns of it.
@pytest.mark.filterwarnings("ignore:tool.* was (entered but never left|called but never entered):RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_interrupt_leaves_nothing_behind(name):
    program, threads = PROGRAMS[name], threading if name in IN_THREADS else sys
    for number, position in enumerate(positions(program, threads, 10)):
        error = ERRORS[number % len(ERRORS)]
        assert not what_is_left(program, position, error, threads), (position, error)
    gc.collect()  # ends the scopes that are left to it while their warnings are ignored


def test_a_set_of_patches_that_the_garbage_collector_undoes_while_a_different_set_changes(monkeypatch):
    module = types.ModuleType("patched_module")
    module.double = original = lambda x: 2 * x
    monkeypatch.setitem(sys.modules, module.__name__, module)
    target = Target(module.__name__, "double", ("x",))
    lost_set, other_set = (
        Shared(lambda patches, n=number: patches.replace(target, lambda below: lambda x: below(x) + n))
        for number in (1, 10)
    )

    def change():
        with other_set.installed():
            assert module.double(3) in (16, 17)

    change()
    for line in itertools.count():
        lost = Changes()
        lost_set.install(lost)
        is_undone = called_at(line, change, functools.partial(lost.undo, is_late=True))
        lost.undo(is_late=True)
        assert module.double is original, line
        if not is_undone:
            break
