"""`Flax`: the framework of a port that is a ``flax.nnx.Module``.

Its methods import JAX and Flax, which a process with such a port has imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from detrand._patching.flax import OptaxOptimizer, in_current_trace
from detrand._patching.keras import is_instance_of_loaded
from detrand.errors import ComparisonError
from detrand.validation.frameworks.framework import Compute, Framework, module_of
from detrand.validation.frameworks.traces import TracedPort
from detrand.validation.results import OwnForm
from detrand.variables.flax_modules import (
    FlaxVariable,
    Path,
    flax_variables,
    own_flax_variables,
    paths_of_modules,
    paths_of_variables,
)
from detrand.variables.tf1_view import TF1View

_OWN_FORMS = {
    OwnForm.FLATTEN: (
        "flatten the image with its channels last, or rearrange the kernel after it: Rearranged(name, function)"
    ),
    OwnForm.FROM_LOGITS: (
        "in the port, call optax.softmax_cross_entropy or optax.sigmoid_binary_cross_entropy, which read logits"
    ),
    OwnForm.FROM_PROBABILITIES: "compute the loss from the logarithms of the outputs: losses of optax read logits",
    OwnForm.EXCHANGE: "exchange labels and outputs in the port; losses of optax take (predictions, targets)",
    OwnForm.SMOOTH_LABELS: "smooth the labels in the port: optax.smooth_labels(labels, {tf1})",
    OwnForm.EPSILON_OF_ADAM: (
        "write optax.inject_hyperparams(optax.adam)(rate, eps=lambda step: epsilon / jnp.sqrt(1 - b2 ** (step + 1)))"
    ),
    OwnForm.BIAS_OF_ADAM: (
        "after optax.scale_by_adam, chain optax.scale_by_schedule(lambda step: (1 - b1 ** (step + 1)) / "
        "jnp.sqrt(1 - b2 ** (step + 1))), and divide its epsilon by that root with optax.inject_hyperparams"
    ),
    OwnForm.INITIAL_RMS: "pass initial_scale=1.0 to optax.rmsprop",
    OwnForm.SCHEDULE: "pass a schedule of optax to the port's optimizer that computes what {tf1} does in TF1",
    **{
        form: f"clip them before the update, with optax.chain({call}, optimizer)"
        for form, call in (
            (OwnForm.CLIP_GLOBAL_NORM, "optax.clip_by_global_norm({tf1})"),
            (
                OwnForm.CLIP_EACH_NORM,
                "optax.stateless(lambda gradients, _: jax.tree.map("
                "lambda each: each / jnp.maximum(jnp.linalg.norm(each.ravel()) / {tf1}, 1), gradients))",
            ),
            (OwnForm.CLIP_ELEMENTS, "optax.clip({tf1})"),
        )
    },
}


class Flax(Framework):
    """Flax, on the CPU.

    It is that of one module, whose parameters an optimizer gets by their paths.
    """

    no_graph = "the port is a flax.nnx.Module, of which only layers show hyperparameters"
    remedy = "return more tensors from both programs: the first one that differs shows the layer"
    why_no_strategy = "is a flax.nnx.Module, and a strategy has replicas on TensorFlow only; leave out strategy"
    why_no_policy = (
        "is a flax.nnx.Module, which no dtype policy of Keras governs; leave out dtype_policy, and return a module in "
        "float32"
    )
    draws_initial_values = adds_losses = passes_training = False
    stop_gradient = "jax.lax.stop_gradient"
    own_forms = _OWN_FORMS

    def __init__(self, model: Any):
        self._module = module_of(model)

    def check(self, model: Any) -> None:
        """Raise a `ValueError` for a module without values, of ``flax.linen``, or not on the CPU."""
        import jax
        from flax import nnx

        if is_linen_module(self._module):
            raise ValueError(
                f"returned {type(self._module).__name__}, a flax.linen.Module, which has no variables of its own. "
                "Write it as a flax.nnx.Module"
            )
        for path, node in nnx.iter_graph(self._module):
            name, value = ".".join(map(str, path)), node.get_raw_value() if isinstance(node, nnx.Variable) else None
            if isinstance(value, jax.ShapeDtypeStruct):
                raise ValueError(
                    f"returned a module whose {name} has a shape and no value, as nnx.eval_shape makes it. Return a "
                    "module that is made without nnx.eval_shape"
                )
            if isinstance(value, jax.Array) and any(device.platform != "cpu" for device in value.devices()):
                raise ValueError(
                    f"returned a module whose {name} is on the device {next(iter(value.devices()))}. TF1 and the port "
                    "are compared on the CPU: set JAX_PLATFORMS=cpu, or make the module in "
                    "jax.default_device(jax.devices('cpu')[0])"
                )

    def function(self, model: Any, inputs: int) -> Callable[..., Any]:
        """Return a function that puts the module into training or inference mode and calls it."""
        module = self._module

        def called(*given: Any, training: bool) -> Any:
            if training:
                module.train()
            else:
                module.eval()
            return model(*given)

        return called

    def parameters(self, model: Any) -> dict[str, Any]:
        """Return the variables of the module by name."""
        return dict(flax_variables(self._module))

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor."""
        import jax

        return jax.device_put(np.asarray(array), jax.devices("cpu")[0])

    def loss_and_gradients(
        self, compute: Compute, trained: Callable[[], Sequence[Any]], model: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Return the values and the gradients, which are zeros for unused variables."""
        import jax
        from flax import nnx

        nodes = self._nodes()
        variables = [each.variable for each in trained()]
        states = [node for node in nodes if isinstance(node, nnx.Variable) and all(node is not v for v in variables)]

        def of_values(values: Sequence[Any]) -> tuple[Any, Any]:
            with in_current_trace(nodes):
                for variable, value in zip(variables, values, strict=True):
                    variable.set_raw_value(value)
                loss, others = compute()
                return loss, (others, [state.get_raw_value() for state in states])

        values = [variable.get_raw_value() for variable in variables]
        (_, (others, changed)), gradients = jax.value_and_grad(of_values, has_aux=True)(values)
        for state, value in zip(states, changed, strict=True):
            state.set_raw_value(value)
        return others, gradients

    def _nodes(self) -> list[Any]:
        """Return the modules and variables in the module, which belong to a trace of JAX."""
        from flax import nnx

        nodes = (node for _, node in nnx.iter_graph(self._module) if isinstance(node, (nnx.Variable, nnx.Pytree)))
        return list({id(node): node for node in nodes}.values())

    def weights(self, layer: Any) -> Sequence[Any]:
        """Return the variables of a module, without those of the modules in it."""
        return own_flax_variables(layer)

    def traced(
        self,
        model: Any,
        compute: Callable[[Callable[..., Any]], Any],
        view: TF1View,
        line_of: Callable[[Any], str],
    ) -> TracedPort | None:
        """Return the module as a port whose ops can be watched."""
        from detrand.validation.frameworks.jax_trace import JaxTrace

        nodes = self._nodes()
        layers = [(_joined(path), module) for path, module in paths_of_modules(self._module).items()]
        variables = {_joined(path): variable for path, variable in paths_of_variables(self._module).items()}

        def called_with(function: Callable[..., Any], batch: Sequence[Any], values: Mapping[str, Any]) -> Any:
            with in_current_trace(nodes):
                for name, value in values.items():
                    variables[name].variable.set_raw_value(value)
                return function(*batch)

        return JaxTrace(layers, compute, view, line_of, variables, _value_of, called_with)

    def check_optimizer(self, optimizer: Any) -> None:
        """Raise a `ComparisonError` unless it is an optimizer of optax."""
        if not isinstance(optimizer, OptaxOptimizer):
            raise ComparisonError(
                f"port_optimizer returned {type(optimizer).__name__}, which cannot update a flax.nnx.Module. Write "
                "port_optimizer=lambda: optax.adam(0.001), for example"
            )

    def update(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]], **arguments: Any) -> None:
        """Update variables with an optimizer of optax."""
        gradients = {id(variable): gradient for gradient, variable in pairs}
        paths = paths_of_variables(self._module)
        optimizer.update({path: (each, gradients[id(each)]) for path, each in paths.items() if id(each) in gradients})


def _joined(path: Path) -> str:
    return "/".join(map(str, path))


def _value_of(variable: FlaxVariable) -> Any:
    return variable.variable.get_value()


def is_linen_module(model: Any) -> bool:
    """Return whether something is a ``flax.linen.Module``, without importing Flax."""
    return is_instance_of_loaded(model, "flax.linen", "Module")


def is_jax_array(leaf: Any) -> bool:
    """Return whether a leaf is an array of JAX, without importing it."""
    return is_instance_of_loaded(leaf, "jax", "Array")


def probed_module(shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Return a module with parameters of zeros by name, each of which has a gradient; see the probe of optimizers."""
    from flax import nnx
    from jax import numpy as jnp

    class Probed(nnx.Module):
        def __call__(self, gradients: Any, step: Any) -> Any:
            return sum(gradients.sum() * parameter[...].sum() for parameter in jax_parameters(self))

    def jax_parameters(module: Any) -> list[Any]:
        return [each.variable for each in flax_variables(module).values()]

    module = Probed()
    for name, shape in shapes.items():
        *scopes, last = name.split(".")
        owner = module
        for scope in scopes:
            if not hasattr(owner, scope):
                setattr(owner, scope, Probed())
            owner = getattr(owner, scope)
        setattr(owner, last, nnx.Param(jnp.zeros(shape)))
    return module
