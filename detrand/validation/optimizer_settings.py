"""What an optimizer is set to, TF1's or the port's, in names that both understand."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from detrand import _patching
from detrand.validation.settings import Settings

OPTIMIZER = "optimizer"

# What TF1's optimizers call otherwise than Keras's.
_NAMES = {
    "lr": "learning_rate",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "use_nesterov": "nesterov",
    "weight_decay_rate": "weight_decay",
}
# What optimizers do without an argument that says so.
_UNSAID: dict[str, dict[str, Any]] = {
    "GradientDescentOptimizer": {"kind": "SGD", "momentum": 0.0, "nesterov": False},
    "MomentumOptimizer": {"kind": "SGD"},
    "AdagradOptimizer": {"epsilon": 0.0},  # ResourceApplyAdagrad divides by the root of the accumulator alone
    "RMSPropOptimizer": {"kind": "RMSprop", "initial rms": 1.0},  # RMSPropOptimizer._create_slots
    "RMSprop": {"initial rms": 0.0},  # Optimizer.add_variable_from_reference's default
}
# What Keras's can do beside, and TF1's do not.
_IN_KERAS_ALONE = ("weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "amsgrad", "use_ema")
_OF_NO_MEANING = {
    "name",
    "use_locking",
    "use_own_namescope_for_non_slot_vars",
    "jit_compile",
    "is_legacy_optimizer",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
}


def settings_of_optimizer(optimizer: Any) -> Settings:
    """Returns what an optimizer of ``tf.compat.v1.train``, Keras 3 or tf_keras is set to.

    >>> import tensorflow as tf
    >>> settings_of_optimizer(tf.compat.v1.train.AdagradOptimizer(0.1))["optimizer", "initial_accumulator_value"]
    0.1

    A learning rate that follows a schedule is left out: what it comes to is compared in each step.
    """
    is_of_tf1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    found = _given_to_tf1(optimizer) if is_of_tf1 else optimizer.get_config()
    found = {name: None if name in _IN_KERAS_ALONE and not value else value for name, value in found.items()}
    of_class = type(optimizer)
    if of_class.__module__.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
        unsaid = {"kind": of_class.__name__.removesuffix("Optimizer"), **_UNSAID.get(of_class.__name__, {})}
        found = {**dict.fromkeys(_IN_KERAS_ALONE), **found, **unsaid}
    # Of a class of the user's, nobody knows what else it does.
    numbers = {name: _number(value) for name, value in found.items() if name not in _OF_NO_MEANING}
    return {(OPTIMIZER, name): value for name, value in numbers.items() if value is not ...}


def _given_to_tf1(optimizer: Any) -> dict[str, Any]:
    given = _patching.settings_of_tf1_optimizer(optimizer)
    if isinstance(optimizer, tf.compat.v1.train.RMSPropOptimizer):
        given["rho"] = given.pop("decay")
    return {_NAMES.get(name, name): value for name, value in given.items()}


def _number(value: Any) -> Any:
    """Returns a setting as it is shown; Ellipsis for one that is no number, as a schedule."""
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        value = tf.get_static_value(value)
        return ... if value is None else float(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return ...
