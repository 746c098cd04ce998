"""Interrupts programs at the lines of detrand's own code, and prints what is left behind.

    python -m tests.interrupts [--only PROGRAM ...]

Each program is interrupted where it runs a line for the first and for the last time, by an exception, a
KeyboardInterrupt and a SystemExit, and the garbage collector ends a scope there that nothing refers to. Programs in
threads are interrupted in the threads that they start, without the garbage collector. It exits with 1 if anything is
left behind.
"""

import argparse
import collections
import gc
import sys
import threading
import warnings

from tests.interrupts.injection import ERRORS, positions, what_a_collection_leaves, what_is_left
from tests.interrupts.programs import IN_THREADS, PROGRAMS


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="PROGRAM")
    warnings.simplefilter("ignore", RuntimeWarning)  # of scopes that are never left
    gc.freeze()  # or each collection looks at all of TensorFlow
    total, failed = 0, 0
    for name in parser.parse_args().only:
        program, threads = PROGRAMS[name], threading if name in IN_THREADS else sys
        left, count = collections.defaultdict(list), 0
        for position in positions(program, threads):
            for error in ERRORS:
                left[what_is_left(program, position, error, threads)].append(f"{position} {error.__name__}")
            if threads is sys:
                left[what_a_collection_leaves(program, position)].append(f"{position} garbage collector")
            count += len(ERRORS) + (threads is sys)
        left.pop("", None)
        total, failed = total + count, failed + sum(map(len, left.values()))
        print(f"{name:36}{count:6} interrupts", flush=True)
        for what, those in left.items():
            print(f"    left {what}: {len(those)}, such as at {', '.join(those[:5])}", flush=True)
    print(f"{total} interrupts, {failed} of which left something behind")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
