"""Which names in a checkpoint belong to its training alone; knows no framework and no values.

A TF1 program saves with its model whatever its optimizers keep: slots beside each variable, hyperparameters, moving
averages, step counters. Their names are made of the variables' and of the optimizers' own, in one of a few orders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from detrand.variables.spec import VariableSpec

AVERAGE = "/ExponentialMovingAverage"

# The optimizers of tf.compat.v1.train and tf.contrib, and BERT's: w/Momentum, w/Adam_1.
_SLOT = re.compile(
    r"(Momentum|Adam|RMSProp|Adagrad|AdagradDA|ProximalAdagrad|Adadelta|Ftrl|AdaMax|Adafactor|adam_m|adam_v|biased)"
    r"(_\d+)?"
)
# Those of Keras: all that they keep is in a scope of their own, as Adam/iter, Adam/m/w, training/Adam/w/m.
_KERAS_OPTIMIZER = re.compile(
    r"(SGD|RMSprop|Adagrad|Adadelta|Adam|AdamW|Adamax|Adafactor|Nadam|Ftrl|Lion|TFOptimizer)(_\d+)?"
)
_NUMBERS = re.compile(
    r"(.*/)?(global_step|beta[12]_power|iteration|learning_rate|current_loss_scale|loss_scale|good_steps)(_\d+)?"
)
# Before TensorFlow 1.14 their slots had no names.
_UNNAMED = re.compile(r"training/(.*/)?Variable(_\d+)?")


def optimizer_slots(specs: Mapping[str, VariableSpec]) -> list[str]:
    """Returns the names of what is in a checkpoint for its training alone: slots, averages, step counters."""
    scopes = _keras_scopes(specs)
    return [name for name, spec in specs.items() if _is_slot(name, spec, specs) or _is_keras(name, spec, specs, scopes)]


def _is_slot(name: str, spec: VariableSpec, specs: Mapping[str, VariableSpec]) -> bool:
    base, _, slot = name.rpartition("/")
    if name.endswith(AVERAGE):  # also of a tensor, such as a loss, which is not saved itself
        return True
    if spec.shape == () and (_NUMBERS.fullmatch(name) or (slot == "local_step" and f"{base}/biased" in specs)):
        return True
    if base in specs:
        # Optimizers may have any name; whatever else is named as if inside a variable has another shape.
        return bool(_SLOT.fullmatch(slot)) or _same_kind(spec, specs[base])
    # An optimizer in a scope: scope/w/Adam; of a partitioned w, of whose slot TensorFlow cuts the name at the wrong
    # place, w/pe/part_0/Adam.
    return bool(_SLOT.fullmatch(slot)) and any(_same_kind(spec, specs[other]) for other in _names_in(base, specs))


def _is_keras(name: str, spec: VariableSpec, specs: Mapping[str, VariableSpec], scopes: dict[str, bool]) -> bool:
    if _UNNAMED.fullmatch(name) and not all(scopes.values()):
        return True
    inside = [name.removeprefix(f"{scope}/") for scope in scopes if name.startswith(f"{scope}/")]
    return bool(inside) and (spec.shape == () or any(any(_names_in(rest, specs)) for rest in inside))


def _keras_scopes(specs: Mapping[str, VariableSpec]) -> dict[str, bool]:
    """Returns the scopes of Keras's optimizers, and whether each gives its slots names.

    A scope is called after the optimizer's class, or as the user has called the optimizer; then the step counter and
    a hyperparameter in it tell.
    """
    scopes = {}
    for name in specs:
        words = name.split("/")
        for end, word in enumerate(words[:-1], 1):
            if _KERAS_OPTIMIZER.fullmatch(word):
                scope = "/".join(words[:end])
                scopes[scope] = f"{scope}/iterations" not in specs  # called iter since they have names
        scope = "/".join(words[:-1])
        if words[-1] == "iter" and (f"{scope}/decay" in specs or f"{scope}/learning_rate" in specs):
            scopes[scope] = True
    return scopes


def _names_in(name: str, specs: Mapping[str, VariableSpec]) -> Iterator[str]:
    """Yields the variables whose whole name is part of a longer name."""
    words = name.split("/")
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            run = "/".join(words[start:end])
            if run in specs and run != name:
                yield run


def _same_kind(spec: VariableSpec, other: VariableSpec) -> bool:
    return (spec.shape, spec.dtype) == (other.shape, other.dtype)
