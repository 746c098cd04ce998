"""The checks that sound ports pass on each backend of Keras 3: ``python -m tests.backends`` prints the table.

The text is reStructuredText. ``> docs/backends_table.txt`` writes the part that ``docs/keras_backends.rst`` includes.
The ports are those of ``tests/sound_migrations`` that call nothing of TensorFlow. A process has one backend.
"""

import sys
from collections import Counter

import keras

from detrand import enable_v1_layers, validate
from detrand.validation.checks.registry import CHECKS
from tests.sound_migrations import MIGRATIONS
from tests.support.keras3_process import Program, run_on
from tests.validation.programs.test_other_backends import DRAWS_IN_A_LOOP, SOUND

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
PASSED, FAILED, REFUSED, NOTHING = "passed", "failed", "refused", "nothing to compare"


def verdicts_of(name: str) -> dict[str, str]:
    """Return the verdict of each check on a sound migration, on the backend of the process."""
    if keras.backend.backend() == "torch":
        import torch

        # oneDNN computes a wrong gradient of a convolution of size 1 with strides in some runs.
        torch.backends.mkldnn.enabled = False
    with enable_v1_layers():
        report = validate(MIGRATIONS[name])
    return {check.name: (PASSED if check.compared else NOTHING) if check.ok else FAILED for check in report.checks}


def text_of(counts: dict[str, dict[str, Counter[str]]]) -> str:
    """Return the table of the verdicts on each check and backend."""
    rows = [["check", *BACKENDS.values()]]
    rows += [[f"``{check}``", *(_cell(counts[backend][check]) for backend in BACKENDS)] for check in CHECKS]
    lines = [".. list-table::", "    :header-rows: 1", ""]
    for row in rows:
        lines += [f"    {'*' if number == 0 else ' '} - {cell}" for number, cell in enumerate(row)]
    return "\n".join([*lines, ""])


def _cell(verdicts: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items(), key=lambda each: -each[1]))


def main() -> None:
    """Print the table; the exit status is 1 if a check fails, or a backend cannot run a port."""
    counts = {backend: {check: Counter() for check in CHECKS} for backend in BACKENDS}
    is_sound = True
    for backend in BACKENDS:
        programs = [Program(__spec__.name, "verdicts_of", (name,), mode=None) for name in SOUND]
        for name, outcome in zip(SOUND, run_on(backend, programs), strict=True):
            if outcome.error:
                print(f"{name} on {backend}: {outcome.error.splitlines()[-1]}", file=sys.stderr)
            for check, verdict in outcome.values or [(check, REFUSED) for check in CHECKS]:
                counts[backend][check][verdict] += 1
                is_sound &= verdict in (PASSED, NOTHING) or (verdict == REFUSED and name in DRAWS_IN_A_LOOP)
                if verdict == FAILED:
                    print(f"{name} on {backend}: {check} failed", file=sys.stderr)
    print(text_of(counts), end="")
    sys.exit(not is_sound)


if __name__ == "__main__":
    main()
