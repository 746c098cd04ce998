"""Which cases of a test are slow: deselected by `python -m pytest`, run with ``-m slow``."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def marks(is_slow: bool) -> list[Any]:
    """Return the marks of a case."""
    return [pytest.mark.slow] if is_slow else []


def all_but(fast: Collection[str], cases: Mapping[str, Any] | Collection[str]) -> list[Any]:
    """Return the cases of a test for `parametrize`, by name; those that are not in `fast` are slow.

    Each case is the value of its name in a mapping, a tuple of several arguments or one argument, or the name.
    """
    unknown = set(fast) - set(cases)
    assert not unknown, f"no such cases: {sorted(unknown)}"
    values = cases if isinstance(cases, Mapping) else dict(zip(cases, cases, strict=True))
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), id=name, marks=marks(name not in fast))
        for name, value in values.items()
    ]
