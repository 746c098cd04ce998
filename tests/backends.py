"""The checks that sound ports pass on each framework: ``python -m tests.backends`` prints the table.

The text is reStructuredText. ``> docs/backends_table.txt`` writes the part that ``docs/keras_backends.rst`` includes.
The ports of Keras 3 are those of ``tests/sound_migrations`` that call nothing of TensorFlow, the same on each backend.
A process has one backend.
"""

import sys
from collections import Counter

from detrand import enable_v1_layers, validate
from detrand.validation.checks.registry import CHECKS
from tests.sound_migrations import MIGRATIONS
from tests.support.keras3_process import Program, run_on
from tests.validation.programs.test_other_backends import SOUND

BACKEND_OF = {
    "Keras 3 on TensorFlow": "tensorflow",
    "Keras 3 on JAX": "jax",
    "Keras 3 on PyTorch": "torch",
    "``torch.nn.Module``": "tensorflow",
    "``nnx.Module``": "tensorflow",
}
DRAWS_IN_A_LOOP = ("sequence_classifier",)  # which is refused on JAX
PASSED, ACCEPTED, FAILED, REFUSED, NOTHING = "passed", "accepted", "failed", "refused", "nothing to compare"


def migrations(framework: str) -> dict:
    """Return what makes the sound migrations to a framework, by name."""
    if framework.startswith("Keras"):
        return {name: lambda name=name: MIGRATIONS[name] for name in SOUND}
    if "torch" in framework:
        from tests.validation.frameworks import test_torch as modules
    else:
        from tests.validation.frameworks import test_flax as modules
    return modules.SOUND


def verdicts_of(framework: str, name: str) -> dict[str, str]:
    """Return the verdict of each check on a sound migration, in the process of its backend."""
    if BACKEND_OF[framework] == "torch":
        import torch

        # oneDNN computes a wrong gradient of a convolution of size 1 with strides in some runs.
        torch.backends.mkldnn.enabled = False
    with enable_v1_layers():
        report = validate(migrations(framework)[name]())
    is_refused = BACKEND_OF[framework] == "jax" and name in DRAWS_IN_A_LOOP
    if is_refused and any(check.raised is not None for check in report.checks):
        return dict.fromkeys(CHECKS, REFUSED)
    verdicts = {True: PASSED, False: NOTHING}
    return {
        check.name: ACCEPTED if check.accepted else verdicts[check.compared] if check.ok else FAILED
        for check in report.checks
    }


def text_of(counts: dict[str, dict[str, Counter[str]]]) -> str:
    """Return the table of the verdicts of each check on each framework."""
    checked = [check for check in CHECKS if any(counts[framework][check][PASSED] for framework in counts)]
    rows = [["check", *counts]]
    rows += [[f"``{check}``", *(_cell(counts[framework][check]) for framework in counts)] for check in checked]
    lines = [".. list-table::", "    :header-rows: 1", ""]
    for row in rows:
        lines += [f"    {'*' if number == 0 else ' '} - {cell}" for number, cell in enumerate(row)]
    return "\n".join([*lines, ""])


def _cell(verdicts: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items(), key=lambda each: -each[1]))


def main() -> None:
    """Print the table; the exit status is 1 if a check fails."""
    counts = {framework: {check: Counter() for check in CHECKS} for framework in BACKEND_OF}
    for framework, backend in BACKEND_OF.items():
        names = [*migrations(framework)]
        programs = [Program("tests.backends", "verdicts_of", (framework, name), mode=None) for name in names]
        for name, outcome in zip(names, run_on(backend, programs), strict=True):
            verdicts = dict.fromkeys(CHECKS, FAILED) if outcome.error else dict(outcome.values)
            for check, verdict in verdicts.items():
                counts[framework][check][verdict] += 1
                if verdict in (FAILED, REFUSED):
                    print(f"{name} to {framework}: {check} {verdict} {outcome.error or ''}", file=sys.stderr)
    print(text_of(counts), end="")
    sys.exit(any(each[FAILED] for checks in counts.values() for each in checks.values()))


if __name__ == "__main__":
    main()
