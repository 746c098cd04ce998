"""The process that runs some of the programs: `python -m tests.random_programs.worker SEED FIRST END`.

It prints one JSON object a line: before each program and after it, so that the program is known that ends the process.
"""

import faulthandler
import json
import os
import resource
import sys
import warnings

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # read when TensorFlow is imported

import psutil
import tensorflow as tf

from tests.random_programs.blocks import SIZE, block_of, shrunk
from tests.random_programs.checking import DISAGREEMENT, Result, check
from tests.random_programs.grammar import Program, signature
from tests.random_programs.rendering import script

SECONDS_FOR_A_PROGRAM = 300
SECONDS_TO_SHRINK = 40


def work(seed: int, first: int, end: int) -> None:
    """Run programs, and shrink those for which a way disagrees with the session."""
    warnings.simplefilter("ignore")
    tf.get_logger().setLevel("ERROR")
    for k in range(first, end):
        say(start=k)
        faulthandler.dump_traceback_later(SECONDS_FOR_A_PROGRAM, exit=True)
        program = block_of(seed, k // SIZE)[k % SIZE]
        results = check(program)
        faulthandler.cancel_dump_traceback_later()
        disagreements = [result for result in results if result.kind == DISAGREEMENT]
        for in_graph in (False, True):  # what is wrong in one function is wrong in the others, too
            for result in [result for result in disagreements if (result.way != "eager") == in_graph][:1]:
                report(k, program, result)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        say(done=k, results=results, rss=psutil.Process().memory_info().rss >> 20, peak=peak)


def report(k: int, program: Program, result: Result) -> None:
    """Shrink a program as long as it disagrees in the same way, and print it."""

    def disagreements(candidate: Program) -> list[Result]:
        return [
            found
            for found in check(candidate, only=result.way)
            if (found.kind, found.way, found.category) == (DISAGREEMENT, result.way, result.category)
        ]

    smallest = shrunk(program, lambda candidate: bool(disagreements(candidate)), SECONDS_TO_SHRINK)
    found = [*disagreements(smallest), result][0]
    say(
        disagreement=k,
        way=found.way,
        category=found.category,
        detail=found.detail,
        signature=signature(smallest),
        script=script(smallest, found.way),
    )


def say(**values: object) -> None:
    """Print values as one line of JSON."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    work(*map(int, sys.argv[1:]))
