"""Numbered programs: program K of a seed is the same in every run, and hypothesis shrinks it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.random_programs.grammar import Program, programs, signature

SIZE = 50  # programs that hypothesis makes in one go


@functools.lru_cache(maxsize=1)
def block_of(seed_of_all: int, number: int) -> list[Program]:
    """Return the programs of a block: programs `SIZE * number` and up."""
    made: dict[str, Program] = {}  # hypothesis also makes programs that are variants of others
    _run(lambda program: made.setdefault(signature(program), program), seed_of_all, number, (Phase.generate,))
    return list(itertools.islice(itertools.cycle(made.values()), SIZE))


def shrunk(
    seed_of_all: int, number: int, program: Program, fails: Callable[[Program], bool], seconds: float
) -> Program:
    """Return the smallest program that hypothesis finds, from a failing program of a block, within some seconds."""
    smallest, is_found, end = program, False, time.monotonic() + seconds

    def test(candidate: Program) -> None:
        nonlocal smallest, is_found
        is_found = is_found or candidate == program
        if is_found and time.monotonic() < end and fails(candidate):
            smallest = candidate
            raise AssertionError

    with contextlib.suppress(Exception):  # the failure, or that it no longer fails when the time is over
        _run(test, seed_of_all, number, (Phase.generate, Phase.shrink))
    return smallest


def _run(test: Callable[[Program], object], seed_of_all: int, number: int, phases: tuple[Phase, ...]) -> None:
    configured = settings(
        max_examples=4 * SIZE,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    seed(f"{seed_of_all} {number}")(configured(given(programs())(test)))()
