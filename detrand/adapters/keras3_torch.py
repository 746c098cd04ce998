"""A stream's numbers into Keras 3 on PyTorch.

PyTorch executes each op when it is called, so does this adapter. ``torch.compile`` leaves the compiled program to call
a random function, as it does for Keras's own seeds; what would record one draw as a constant is refused.
"""

from __future__ import annotations

from typing import Any

import torch

from detrand._patching import keras3_random
from detrand.adapters.keras3_arrays import ArrayDraws
from detrand.errors import ScopeError


class TorchDraws(ArrayDraws):
    """The random functions of the PyTorch backend."""

    def is_known(self, value: Any) -> bool:
        """Returns whether no gradient is asked of a value."""
        return not (isinstance(value, torch.Tensor) and value.requires_grad)

    def check(self) -> None:
        """Raises `ScopeError` where PyTorch would use one draw for many lanes or executions."""
        if keras3_random.in_torch_vmap():
            what, instead = "torch.vmap", "draw outside it, and pass the numbers in; or use a Python loop"
        elif torch.jit.is_tracing():
            what, instead = "torch.jit.trace", "trace it outside the scope"
        elif torch.compiler.is_exporting() or keras3_random.in_torch_proxies():
            what, instead = "torch.export", "export it outside the scope"
        else:
            return
        raise ScopeError(
            f"{what} of a random op in the scope of a DeterministicRandomTestTool: it would draw once, and the same "
            f"numbers would be used in every lane or execution. Remedy: {instead}."
        )
