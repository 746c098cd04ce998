"""Numbered programs: program K of a seed is the same in every run; and how a program is shrunk."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.random_programs.grammar import Block, Conditional, Draw, If, Loop, Program, blocks_of, programs, signature

SIZE = 20  # programs that hypothesis makes in one go


@functools.lru_cache(maxsize=1)
def block_of(seed_of_all: int, number: int) -> list[Program]:
    """Return the programs of a block: programs `SIZE * number` and up."""
    made: list[list[Program]] = []

    @seed(f"{seed_of_all} {number}")
    @settings(
        max_examples=8,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(st.lists(programs(), min_size=SIZE, max_size=SIZE))
    def make(block: list[Program]) -> None:
        made.append(block)

    make()
    # Hypothesis begins with the simplest programs, and goes on with variants of others.
    return max(made, key=lambda block: len(set(map(signature, block))))


def shrunk(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """Return the smallest program found, from one that fails, within some seconds.

    Hypothesis runs hundreds of programs to find out what it may leave out; this leaves out one statement at a time.
    """
    end = time.monotonic() + seconds
    candidates = _smaller(program)
    while time.monotonic() < end and (candidate := next(candidates, None)):
        if fails(candidate):
            program, candidates = candidate, _smaller(candidate)
    return program


def _smaller(program: Program) -> Iterator[Program]:
    if program.runs > 1:
        yield dataclasses.replace(program, runs=program.runs - 1)
    for body in _smaller_blocks(program.body):
        yield dataclasses.replace(program, body=body)


def _smaller_blocks(block: Block) -> Iterator[Block]:
    for i, statement in enumerate(block):
        before, after = block[:i], block[i + 1 :]
        yield before + after
        if inner := blocks_of(statement):
            yield before + sum(inner, ()) + after
        for smaller in _smaller_statements(statement):
            yield (*before, smaller, *after)


def _smaller_statements(statement: Any) -> Iterator[Any]:
    simplest = Draw("tf.random.uniform", "float32", (2,), False)
    match statement:
        case Draw():
            plain = dataclasses.replace(statement, dtype=statement.spelling.dtypes[0], shape=(2,), seed=False)
            yield from (smaller for smaller in (simplest, plain) if statement not in (simplest, smaller))
        case Conditional(branches=branches) | If(branches=branches):
            for i, branch in enumerate(branches):
                for smaller in _smaller_blocks(branch):
                    yield dataclasses.replace(statement, branches=(*branches[:i], smaller, *branches[i + 1 :]))
        case Loop(iterations=2 | 3):
            yield dataclasses.replace(statement, iterations=statement.iterations - 1)
    if hasattr(statement, "body"):
        for smaller in _smaller_blocks(statement.body):
            yield dataclasses.replace(statement, body=smaller)
