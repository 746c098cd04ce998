"""`Framework`: what a port needs of the framework on which it runs. Each framework has a subclass."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from detrand._patching.flax import OptaxOptimizer
from detrand._patching.keras import is_instance_of_loaded, takes_inputs_in_a_list
from detrand.errors import ComparisonError
from detrand.seeding.callsite import is_framework
from detrand.validation.frameworks.traces import TracedPort
from detrand.validation.results import OwnForm
from detrand.variables.tf1_view import TF1View
from detrand.variables.torch_modules import is_torch_module

_DTYPES = {float: np.float32, int: np.int32}  # of Python's numbers, as TensorFlow has them

# Calls a function of a loss that is computed, and returns the loss and other values.
Compute = Callable[[], tuple[Any, Any]]


class Framework:
    """The framework of a port.

    Attributes:
      no_graph: why a port has no graph of TensorFlow, in which its hyperparameters are found; empty if it has one.
      remedy: how to find out which op differs if that is not known.
      why_no_strategy: why a strategy has no replicas on it; empty if it has.
      why_no_policy: why no dtype policy governs it; empty if one does.
      draws_initial_values: whether initial values that a layer draws are the tool's numbers.
      adds_losses: whether models have regularization losses, which their calls add.
      passes_training: whether a model is called with ``training=``.
      stop_gradient: what stops gradients there.
      own_forms: how to do in the framework what TF1 does, with ``{tf1}`` for TF1's value, where that is not as in
        Keras.
    """

    no_graph = remedy = why_no_strategy = why_no_policy = ""
    draws_initial_values = adds_losses = passes_training = True
    stop_gradient = "tf.stop_gradient"
    own_forms: Mapping[OwnForm, str] = {}

    def check(self, model: Any) -> None:
        """Raise a `ValueError` that says what to do about a model that cannot be run and trained."""

    def function(self, model: Any, inputs: int) -> Callable[..., Any]:
        """Return a model as a function ``f(*inputs, training=...)`` of a number of inputs."""
        if inputs > 1 and takes_inputs_in_a_list(model):
            return lambda *given, training: model(list(given), training=training)
        called: Callable[..., Any] = model
        return called

    def why_not_called(self, model: Any, inputs: int) -> str:
        """Return why the signature of a model does not fit its call with a number of inputs; empty if it fits."""
        is_layer = keras_of(model) is not None
        called = model.call if is_layer else model.forward if is_torch_module(model) else model
        given = [None] * (1 if inputs > 1 and takes_inputs_in_a_list(model) else inputs)
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):  # a builtin without a signature
            return ""
        # Keras leaves training out where the call of a layer does not take it.
        has_training = "training" in signature.parameters
        passes_training = self.passes_training and (has_training or not is_layer)
        if _fits(signature, given, {"training": False} if passes_training else {}):
            return ""
        function = inspect.unwrap(called)
        function = function if inspect.isroutine(function) else inspect.unwrap(type(function).__call__)
        code = getattr(function, "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code and not is_framework(code.co_filename) else ""
        remedy = (
            "Add a parameter training=False to it"
            if not has_training and _fits(signature, given, {})
            else "Both programs take the same inputs: leave out those that only one of them takes, such as labels, "
            "which TrainStep(labels=...) takes, or return a layer from port that takes them all"
        )
        if is_layer and inputs > 1 and _fits(signature, [None], {}):
            remedy += ". If its only argument is to be a list of them, name it inputs"
        return f"it takes {signature}{where}. {remedy}"

    def parameters(self, model: Any) -> dict[str, Any]:
        """Return the parameters that a model has now, if no scope observes their creation."""
        return {}

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor."""
        raise NotImplementedError

    def as_written(self) -> contextlib.AbstractContextManager[None]:
        """Return a scope in which a training runs as it is written, as `tf1_session` runs graphs."""
        return contextlib.nullcontext()

    def dense(self, value: Any) -> Any:
        """Return a number, or a gradient that may be in slices, in the form in which steps hold their values."""
        return np.asarray(value, _DTYPES.get(type(value)))

    def zeros(self, variable: Any) -> Any:
        """Return zeros like a variable, in the form in which steps hold their values."""
        return np.zeros_like(variable.numpy())

    def keeps_losses(self, model: Any) -> bool:
        """Return whether a model is of a kind that has regularization losses."""
        return self.adds_losses and hasattr(model, "losses")

    def losses(self, model: Any) -> list[Any]:
        """Return the regularization losses that the last call of a model added."""
        return list(getattr(model, "losses", ())) if self.adds_losses else []

    def loss_and_gradients(
        self, compute: Compute, trained: Callable[[], Sequence[Any]], model: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Call a function that returns a scalar and other values; return these values and the gradients of the scalar.

        The gradients are those of the trained variables, which the call may create; None where the scalar does not
        depend on one.
        """
        raise NotImplementedError

    def weights(self, layer: Any) -> Sequence[Any]:
        """Return the weights of a layer."""
        weights: Sequence[Any] = getattr(layer, "weights", ())
        return weights

    def sample_variances(self) -> contextlib.AbstractContextManager[list[tuple[np.ndarray, int]]]:
        """Return a context manager that yields the sample variances that batch normalizations compute in the block.

        They are in a list, each with the number n of elements of a channel; the variance is divided by n - 1.
        """
        return contextlib.nullcontext([])

    def dropout_rates(self) -> contextlib.AbstractContextManager[set[float] | None]:
        """Return a context manager that yields the set to which dropouts in it add their rates; None if layers know."""
        return contextlib.nullcontext()

    def hyperparameter(self, layer: Any, name: str) -> Any:
        """Return an attribute of a layer by its name in Keras: ``epsilon``, ``momentum`` or ``rate``; None without."""
        return getattr(layer, name, None)

    def own_form(self, form: OwnForm, tf1: str) -> str:
        """Return how to do in the framework what TF1 does, given TF1's value; empty if that is as in Keras."""
        return self.own_forms.get(form, "").format(tf1=tf1)

    def traced(
        self,
        model: Any,
        compute: Callable[[Callable[..., Any]], Any],
        view: TF1View,
        line_of: Callable[[Any], str],
    ) -> TracedPort | None:
        """Return a model as a port whose ops can be watched; None for TensorFlow, which has a graph.

        Args:
          model: the model, called before.
          compute: gives the model its variables, and calls a function with the model as a function, its inputs and a
            function that returns how many random ops have run; returns what that returns.
          view: the view of the model's variables.
          line_of: returns the line that made a layer.
        """
        return None

    def check_optimizer(self, optimizer: Any) -> None:
        """Raise a `ComparisonError` unless an optimizer can update variables of the framework."""
        if not hasattr(optimizer, "apply_gradients"):
            package, module = (
                ("optax", "flax.nnx.Module")
                if isinstance(optimizer, OptaxOptimizer)
                else ("PyTorch", "torch.nn.Module")
            )
            raise ComparisonError(
                f"port_optimizer returned {type(optimizer).__name__} of {package}, but the port is no {module}. "
                "Return an optimizer of Keras 3, tf_keras or tf.compat.v1.train"
            )

    def update(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]], **arguments: Any) -> None:
        """Update variables with an optimizer, given pairs of a gradient and a variable."""
        optimizer.apply_gradients(pairs, **arguments)


def module_of(model: Any) -> Any:
    """Return the module that a port is, or a method of which it is."""
    return getattr(model, "__self__", model)


def keras_of(model: Any) -> Any:
    """Return the package of Keras of which a model is a layer; None if it is none."""
    for package, name in (("keras", "Layer"), ("tf_keras", "layers.Layer")):
        if is_instance_of_loaded(model, package, name):
            return sys.modules[package]
    return None


def _fits(signature: inspect.Signature, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a function with a signature can be called with arguments."""
    try:
        signature.bind(*given, **named)
    except TypeError:
        return False
    return True
