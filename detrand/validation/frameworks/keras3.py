"""`KerasBackend`: the framework of a port of Keras 3 that runs on JAX or PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from detrand.packages import is_loaded, keras
from detrand.validation.frameworks.framework import Compute, Framework, module_of
from detrand.validation.frameworks.torch import gradients_of
from detrand.validation.frameworks.traces import TracedPort
from detrand.variables.sources import parts_of
from detrand.variables.tf1_view import TF1View


class KerasBackend(Framework):
    """A backend of Keras 3 that is not TensorFlow."""

    remedy = "run the migration with KERAS_BACKEND=tensorflow: its report names the op and the line"

    def __init__(self, backend: str):
        self._gradients = {"jax": _on_jax, "torch": _on_torch}[backend]
        self._is_torch = backend == "torch"
        self.no_graph = (
            f"Keras runs on {backend}, where only layers show hyperparameters; KERAS_BACKEND=tensorflow shows those of "
            "ops, too"
        )
        self.why_no_strategy = (
            f"runs on the {backend} backend of Keras, and a strategy has replicas on TensorFlow only; leave out "
            "strategy"
        )

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor of the backend."""
        return keras.ops.convert_to_tensor(array)

    def loss_and_gradients(
        self, compute: Compute, trained: Callable[[], Sequence[Any]], model: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Return the values and the gradients; on JAX, the gradients of unused variables are zeros."""
        return self._gradients(compute, trained(), model.variables)

    def traced(
        self,
        model: Any,
        compute: Callable[[Callable[..., Any]], Any],
        view: TF1View,
        line_of: Callable[[Any], str],
    ) -> TracedPort | None:
        """Return a model as a port whose ops can be watched."""
        module = module_of(model)
        if not self._is_torch:
            from detrand.validation.frameworks.jax_trace import JaxTrace

            layers = [(getattr(each, "path", None) or each.name, each) for each in parts_of(module)]
            of_view = {part.path: part for part in view.parts}
            of_view |= {f"{part.path}_{n}": part for n, part in enumerate(view.parts) if of_view[part.path] is not part}
            return JaxTrace(layers, compute, view, line_of, of_view, _value_of, partial(_called_with, of_view))
        from detrand.validation.frameworks.torch_trace import TorchTrace

        paths = {id(each): getattr(each, "path", None) or each.name for each in parts_of(module)}
        variables = {part.path: (part, part.value) for part in view.parts}
        return TorchTrace(module, compute, view, line_of, paths, variables)

    def update(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]], **arguments: Any) -> None:
        """Update variables with an optimizer of Keras 3."""
        if self._is_torch:
            import torch

            with torch.no_grad():
                optimizer.apply_gradients(pairs)
        else:
            optimizer.apply_gradients(pairs)


def array_of(leaf: Any) -> Any:
    """Return a tensor or variable of the backend as an array; anything else as it is."""
    is_tensor = is_loaded("keras") and (isinstance(leaf, keras.Variable) or keras.ops.is_tensor(leaf))
    return keras.ops.convert_to_numpy(leaf) if is_tensor else leaf


def _value_of(variable: Any) -> Any:
    return variable.value


def _called_with(
    variables: Mapping[str, Any], model: Callable[..., Any], batch: Sequence[Any], values: Mapping[str, Any]
) -> Any:
    """Call a model with values in place of its variables' own."""
    mapping = [(variables[path], value) for path, value in values.items()]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True):
        return model(*batch)


def _on_torch(compute: Compute, trained: Sequence[Any], variables: Sequence[Any]) -> tuple[Any, list[Any]]:
    loss, others = compute()
    return others, gradients_of(loss, [variable.value for variable in trained])


def _on_jax(compute: Compute, trained: Sequence[Any], variables: Sequence[Any]) -> tuple[Any, list[Any]]:
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
