"""Names of PyTorch: the functions that draw, and what ``torch.compile`` does with modules and functions."""

from __future__ import annotations

from typing import Any

from detrand._patching.patches import Target

DROPOUT = Target("torch.nn.functional", "dropout", ("input", "p", "training", "inplace"))
COMPILER = "torch._dynamo"  # which takes seconds to import, and which ``torch.compile`` imports


def is_compiled(module: Any) -> bool:
    """Return whether a module is what ``torch.compile`` returns."""
    return "_orig_mod" in getattr(module, "_modules", ())
