"""Causes of a report, for tests that pin them."""

import re


def without_lines(cause):
    """Return a cause without the places of the two ops: ``(TF1, model.py:18)`` becomes ``(TF1)``."""
    return re.sub(r"\((TF1|port), [^()\s]+\)", r"(\1)", cause)
