"""The check of one program: it runs in each way that the documentation makes a promise for."""

from __future__ import annotations

import multiprocessing
from typing import NamedTuple

from detrand.errors import DetrandError
from tests.random_programs import ways
from tests.random_programs.grammar import WAYS, Program, announced, not_promised, tolerance
from tests.random_programs.rendering import source

AGREED, REFUSED, DISAGREEMENT = "agreed", "refused", "disagreement"
NOT_PROMISED = "not promised"
NOT_IN_TENSORFLOW = "TensorFlow itself refuses"


class Result(NamedTuple):
    """The result of a program in one way: which refusal, promise or error; for a disagreement, what differs."""

    way: str
    kind: str
    detail: str = ""

    @property
    def category(self) -> str:
        """The first word of the detail: the error's name, or what differs."""
        return self.detail.split(" ")[0]


def check(program: Program, only: str = "") -> list[Result]:
    """Run a program in all ways, or in one way only, and compare each with the session."""
    with ways.loaded(source(program)) as names:
        make_tf1, make_port = names["make_tf1"], names["make_port"]
        expected = ways.run(make_tf1, "session", program.runs, program.mode)
        if expected.error:
            return [_judge_error(make_tf1, program, "session", expected)]
        return [_result(make_port, program, way, expected) for way in WAYS if only in ("", way)]


def _result(make_port: ways.Make, program: Program, way: str, expected: ways.Outcome) -> Result:
    if reason := not_promised(program, way):
        return Result(way, NOT_PROMISED, reason)
    found = ways.run(make_port, way, program.runs, program.mode)
    if found.error:
        return _judge_error(make_port, program, way, found)
    differs = ways.difference(found, expected, tolerance(program, way))
    return Result(way, DISAGREEMENT if differs else AGREED, differs)


def _error_in_a_process_of_its_own(program: Program, make: str, way: str) -> str:
    """Return the name of the error that a program raises without detrand in a new process; empty if it raises none."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_error_without_detrand, (source(program), make, way, program.runs))


def _error_without_detrand(text: str, make: str, way: str, runs: int) -> str:
    with ways.loaded(text) as names:
        return ways.run_without_detrand(names[make], way, runs).error_name


def _judge_error(make: ways.Make, program: Program, way: str, found: ways.Outcome) -> Result:
    reason = announced(program, way).get(found.error_name)
    if isinstance(found.error, DetrandError) and reason:
        return Result(way, REFUSED, f"{found.error_name}: {reason}")
    without = ways.run_without_detrand(make, way, program.runs)
    if without.error_name == found.error_name:
        return Result(way, NOT_IN_TENSORFLOW, str(found))
    # An error while a gradient is compiled breaks the process for what runs after it.
    if _error_in_a_process_of_its_own(program, make.__name__, way) == found.error_name:
        return Result(way, NOT_IN_TENSORFLOW, str(found))
    if way == "eager":  # without detrand, chance picks the branches that run; a function is traced with all of them
        without = ways.run_without_detrand(make, "function", program.runs)
        if without.error_name == found.error_name and str(found.error).splitlines()[-1] in str(without.error):
            return Result(way, NOT_IN_TENSORFLOW, str(found))
    return Result(way, DISAGREEMENT, str(found))
