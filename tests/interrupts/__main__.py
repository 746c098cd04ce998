"""Interrupts programs at the lines of detrand's own code, and prints what is left behind.

    python -m tests.interrupts [--only PROGRAM ...]

Each program is interrupted where it runs a line for the first and for the last time, by an exception, a
KeyboardInterrupt and a SystemExit. Programs in threads are interrupted in the threads that they start. It exits with 1
if anything is left behind.
"""

import argparse
import collections
import sys
import threading

from tests.interrupts.injection import ERRORS, positions, what_is_left
from tests.interrupts.programs import IN_THREADS, PROGRAMS


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="PROGRAM")
    total, failed = 0, 0
    for name in parser.parse_args().only:
        program, threads = PROGRAMS[name], threading if name in IN_THREADS else sys
        where = [(position, error) for position in positions(program, threads) for error in ERRORS]
        left = collections.defaultdict(list)
        for position, error in where:
            left[what_is_left(program, position, error, threads)].append(f"{position} {error.__name__}")
        left.pop("", None)
        total, failed = total + len(where), failed + sum(map(len, left.values()))
        print(f"{name:36}{len(where):6} interrupts", flush=True)
        for what, those in left.items():
            print(f"    left {what}: {len(those)}, such as at {', '.join(those[:5])}", flush=True)
    print(f"{total} interrupts, {failed} of which left something behind")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
