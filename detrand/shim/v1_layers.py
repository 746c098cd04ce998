"""`enable_v1_layers`: ``tf.compat.v1.layers``, RNN cells and the names that tf_slim needs, on the default install.

TensorFlow looks these names up in Keras. Keras 3 does not have them; tf_keras does, but partly in modules that have
been renamed. Other names that tf_slim uses have moved within TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from detrand._patching.keras import KERAS_LAZY_LOADER, MOVED_NAMES, TF_KERAS_LEGACY_LAYERS, tf_keras_module_with
from detrand._patching.patches import Patches, Shared
from detrand.changes import Changes
from detrand.packages import needed_by


def enable_v1_layers() -> contextlib.ExitStack:
    """Make ``tf.compat.v1.layers``, ``tf.compat.v1.nn.rnn_cell`` and tf_slim's layers work with Keras 3 installed.

    Call it once, before the TF1 code uses them; calling it again does no harm. It takes effect at once and stays in
    effect, or ends with a block:

    >>> import tensorflow as tf
    >>> from detrand import enable_v1_layers
    >>> with enable_v1_layers():
    ...     with tf.Graph().as_default():
    ...         print(tf.compat.v1.layers.dense(tf.ones((2, 3)), 4).shape)
    (2, 4)

    Returns:
      A context manager that undoes this call, once, when the block is left.

    Raises:
      PatchError: if this TensorFlow or tf_keras is not as expected.
    """
    with needed_by("detrand.enable_v1_layers"):
        importlib.import_module("tensorflow")
    changes, enabled = Changes(), contextlib.ExitStack()
    enabled.callback(changes.undo)
    enabled.callback(_kept.pop, id(changes), None)  # is called first: nothing else then keeps what an interrupt leaves
    _shared.install(changes)
    _kept[id(changes)] = changes; return enabled  # noqa: E702  # fmt: skip


def _install(patches: Patches) -> None:
    patches.replace(KERAS_LAZY_LOADER, _from_tf_keras)
    for missing, present in TF_KERAS_LEGACY_LAYERS.items():
        module = importlib.import_module(present)
        if missing not in sys.modules:
            patches.on_undo(functools.partial(sys.modules.pop, missing, None))
            sys.modules[missing] = module
    for (old_home, old_name), (new_home, new_name) in MOVED_NAMES.items():
        module = importlib.import_module(old_home)
        if not hasattr(module, old_name):
            patches.set(module, old_name, getattr(importlib.import_module(new_home), new_name))


def _from_tf_keras(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(self: ModuleType, item: str) -> Any:
        module = tf_keras_module_with(self, item)
        return original(self, item) if module is None else getattr(importlib.import_module(module), item)

    return get


_shared = Shared(_install)
# What stays in effect if nobody keeps what `enable_v1_layers` returns.
_kept: dict[int, Changes] = {}
