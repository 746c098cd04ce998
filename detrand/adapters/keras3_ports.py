"""What a port of Keras 3 needs of JAX or PyTorch where it runs on one of them: tensors, arrays, gradients, updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras


def tensor_of(array: Any) -> Any:
    """Return an array as a tensor of the backend."""
    return keras.ops.convert_to_tensor(array)


def array_of(leaf: Any) -> Any:
    """Return a tensor or variable of the backend as an array; anything else as it is."""
    is_tensor = isinstance(leaf, keras.Variable) or keras.ops.is_tensor(leaf)
    return keras.ops.convert_to_numpy(leaf) if is_tensor else leaf


def loss_and_gradients(
    compute: Callable[[], tuple[Any, Any]], trained: Sequence[Any], variables: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Call a function that returns a scalar and other values; return these values and the gradients of the scalar.

    The gradients are those of the trained variables, which are among the variables that the function may change; None
    where the scalar does not depend on one, or zeros on JAX.
    """
    return _BACKENDS[keras.backend.backend()](compute, trained, variables)


def apply_gradients(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Update variables with an optimizer of Keras 3."""
    if keras.backend.backend() == "torch":
        import torch

        with torch.no_grad():
            optimizer.apply_gradients(pairs)
    else:
        optimizer.apply_gradients(pairs)


def _on_torch(
    compute: Callable[[], tuple[Any, Any]], trained: Sequence[Any], variables: Sequence[Any]
) -> tuple[Any, list[Any]]:
    import torch

    loss, others = compute()
    tensors = [variable.value for variable in trained]
    if not tensors or not loss.requires_grad:
        return others, [None] * len(tensors)
    return others, list(torch.autograd.grad(loss, tensors, allow_unused=True))


def _on_jax(
    compute: Callable[[], tuple[Any, Any]], trained: Sequence[Any], variables: Sequence[Any]
) -> tuple[Any, list[Any]]:
    import jax

    states = [variable for variable in variables if all(variable is not each for each in trained)]

    def of_values(values: Sequence[Any]) -> tuple[Any, Any]:
        mapping = list(zip(trained, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            loss, others = compute()
        return loss, (others, [scope.get_current_value(state) for state in states])

    values = [variable.value for variable in trained]
    (_, (others, changed)), gradients = jax.value_and_grad(of_values, has_aux=True)(values)
    for state, value in zip(states, changed, strict=True):
        if value is not None:
            state.assign(value)
    return others, gradients


_BACKENDS = {"jax": _on_jax, "torch": _on_torch}
