"""Interrupts a program at a line of detrand's own code, and looks at what is left."""

import faulthandler
import functools
import gc
import random
import sys
import threading

import numpy as np

from detrand import DeterministicRandomTestTool
from tests.support.interrupts import called_at, interrupted_at, lines_run, process_state
from tests.support.tool_runs import draws, in_session, three_draws


class InjectedError(Exception):
    """An error of the code that runs in a scope."""


ERRORS = (InjectedError, KeyboardInterrupt, SystemExit)


def positions(program, threads=sys, count=None):
    """Return when a program runs each line of detrand for the first and for the last time, or a sample of that.

    Args:
      program: the program.
      threads: which threads count: `sys`, the calling one; `threading`, those that the program starts.
      count: the size of the sample.
    """
    program()  # what is imported and traced once is not run again
    _draws_of_session()  # nor what is imported where the numbers are compared
    of_lines = {}
    for position, line in enumerate(lines_run(program, threads)):
        of_lines.setdefault(line, [position, position])[1] = position
    found = sorted({position for pair in of_lines.values() for position in pair})
    return found if count is None else random.Random(count).sample(found, min(count, len(found)))


def what_is_left(program, position, error, threads=sys):
    """Interrupt a program, and return what it leaves behind in the process; empty if that is nothing."""
    desired = _draws_of_session()
    before, running = process_state(), threading.enumerate()
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)  # a deadlock would last for ever
    try:
        interrupted_at(position, program, error, threads)
    except AssertionError as failure:
        return str(failure) or repr(failure)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if any(thread not in running for thread in threading.enumerate()):
        return "a thread"
    left = _changed(before)
    if left:
        gc.collect()  # frames of the interrupted program may refer to each other
        left = _changed(before)
    if left:
        return ", ".join(left)
    found = []
    thread = threading.Thread(target=lambda: found.append(_draws()), daemon=True)
    thread.start()
    thread.join(60)
    if thread.is_alive():
        return "a lock"
    found.append(_draws())
    return "" if all(np.array_equal(actual, desired) for actual in found) else "other numbers"


def what_a_collection_leaves(program, position):
    """Enter a scope that nothing refers to, and let the garbage collector end it at a line of a program.

    Returns:
      What it leaves behind in the process; empty if that is nothing.
    """
    before = process_state()
    gc.disable()
    try:
        _lose_scope()
        called_at(position, program, gc.collect)
    finally:
        gc.enable()
        gc.collect()
    left = _changed(before)
    return ", ".join(left) if left else "" if np.array_equal(_draws(), _draws_of_session()) else "other numbers"


def _lose_scope():
    scope = DeterministicRandomTestTool().scope()
    scope.__enter__()
    cycle = [scope]
    cycle.append(cycle)


def _changed(before):
    after = process_state()
    return [name for name in before if after[name] != before[name]]


def _draws():
    return np.concatenate([np.ravel(value) for value in draws(DeterministicRandomTestTool(mode="num_random_ops"))])


@functools.cache
def _draws_of_session():
    values = draws(DeterministicRandomTestTool(mode="num_random_ops"), three_draws, in_session)
    return np.concatenate([np.ravel(value) for value in values])
