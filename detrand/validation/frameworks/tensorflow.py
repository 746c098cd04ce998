"""`TensorFlow`: the framework of a port that is a layer of Keras on TensorFlow, a ``tf.Module`` or a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from detrand._patching.keras import underlying_variable
from detrand.changes import Changes
from detrand.packages import is_loaded, needed_by, tf
from detrand.validation.frameworks.framework import Compute, Framework


class TensorFlow(Framework):
    """TensorFlow, on the devices that it finds."""

    def check(self, model: Any) -> None:
        """Raise a `MissingPackageError` if TensorFlow is not installed."""
        with needed_by(f"A port that is a {type(model).__name__}, and no module of PyTorch or Flax,"):
            import tensorflow  # noqa: F401

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor."""
        return tf.constant(array)

    def dense(self, value: Any) -> Any:
        """Return a tensor."""
        return tf.convert_to_tensor(value)

    def zeros(self, variable: Any) -> Any:
        """Return zeros like a variable."""
        return tf.zeros(variable.shape, variable.dtype)

    def as_written(self) -> contextlib.AbstractContextManager[None]:
        """Return a scope in which functions are not optimized."""
        return functions_as_written()

    def loss_and_gradients(
        self, compute: Compute, trained: Callable[[], Sequence[Any]], model: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Return the values and the gradients."""
        with tf.GradientTape() as tape:
            scalar, others = compute()
        return others, tape.gradient(scalar, [underlying_variable(variable) for variable in trained()])


def is_tensor(leaf: Any) -> bool:
    """Return whether a leaf is a tensor or a variable of TensorFlow, without importing it."""
    return is_loaded("tensorflow") and bool(tf.is_tensor(leaf))


@contextlib.contextmanager
def own_global_step() -> Iterator[None]:
    """Hide the global step of eager code in the block, so that a TF1 optimizer creates one that counts from 0."""
    if not is_loaded("tensorflow"):
        yield
        return
    steps = tf.compat.v1.get_default_graph().get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_STEP)
    with Changes() as changes:
        changes.restore("the global step", lambda: steps[:], partial(steps.__setitem__, slice(None)))
        steps.clear()
        yield


@contextlib.contextmanager
def functions_as_written() -> Iterator[None]:
    """Run functions that are called in the block as they were written, as `tf1_session` runs graphs."""
    options = tf.config.optimizer
    name = "disable_meta_optimizer"
    with Changes() as changes:
        changes.restore(
            "the meta optimizer",
            lambda: options.get_experimental_options()[name],
            lambda before: options.set_experimental_options({name: before}),
        )
        options.set_experimental_options({name: True})
        yield
