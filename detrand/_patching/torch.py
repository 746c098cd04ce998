"""Names of PyTorch: the functions that draw, counts of changes, and what its compilers make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from detrand._patching.patches import Target

DROPOUT = Target("torch.nn.functional", "dropout", ("input", "p", "training", "inplace"))
ATTENTION = Target("torch.nn.functional", "scaled_dot_product_attention", ())  # a function in C, without a signature
COMPILER = "torch._dynamo"  # which takes seconds to import, and which ``torch.compile`` imports


def version_of(tensor: Any) -> int:
    """Return how often a tensor was changed in place; 0 in ``torch.inference_mode``, which does not count that."""
    return 0 if tensor.is_inference() else int(tensor._version)


def is_compiled(module: Any) -> bool:
    """Return whether a module is what ``torch.compile`` returns."""
    return "_orig_mod" in getattr(module, "_modules", ())


def source_of(function: Any) -> Callable[..., Any]:
    """Return the function in Python that ``torch.jit`` has compiled."""
    return cast("Callable[..., Any]", function._torchdynamo_inline)
