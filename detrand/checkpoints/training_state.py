"""The variables of a checkpoint that only training needs: slots, moving averages, hyperparameters, step counters.

A TF1 program saves the state of its optimizers together with its model. `optimizer_slots` recognizes this state by its
names, which combine the variables' names and the optimizers' names in a few ways.
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
# Keras's optimizers keep all state in a scope with their name: Adam/iter, Adam/m/w, training/Adam/w/m.
_KERAS_OPTIMIZER = re.compile(
    r"(SGD|RMSprop|Adagrad|Adadelta|Adam|AdamW|Adamax|Adafactor|Nadam|Ftrl|Lion|TFOptimizer)(_\d+)?"
)
_NUMBERS = re.compile(
    r"(.*/)?(global_step|beta[12]_power|iteration|learning_rate|current_loss_scale|loss_scale|good_steps)(_\d+)?"
)
# Before TensorFlow 1.14, the slots of Keras's optimizers had no names.
_UNNAMED = re.compile(r"training/(.*/)?Variable(_\d+)?")


def optimizer_slots(specs: Mapping[str, VariableSpec]) -> list[str]:
    """Return the names of the variables that only training needs: slots, averages, step counters."""
    scopes = _keras_scopes(specs)
    return [name for name, spec in specs.items() if _is_slot(name, spec, specs) or _is_keras(name, spec, specs, scopes)]


def _is_slot(name: str, spec: VariableSpec, specs: Mapping[str, VariableSpec]) -> bool:
    base, _, slot = name.rpartition("/")
    if name.endswith(AVERAGE):  # also the average of a tensor that is not saved itself, such as a loss
        return True
    if spec.shape == () and (_NUMBERS.fullmatch(name) or (slot == "local_step" and f"{base}/biased" in specs)):
        return True
    if base in specs:
        # An optimizer may have any name, but only a slot has both a variable's name as its scope and its shape.
        return bool(_SLOT.fullmatch(slot)) or _same_kind(spec, specs[base])
    # The slot of an optimizer in a scope: scope/w/Adam; of a partitioned w, whose name TensorFlow cuts at the wrong
    # character: w/pe/part_0/Adam.
    return bool(_SLOT.fullmatch(slot)) and any(_same_kind(spec, specs[other]) for other in _names_in(base, specs))


def _is_keras(name: str, spec: VariableSpec, specs: Mapping[str, VariableSpec], scopes: dict[str, bool]) -> bool:
    if _UNNAMED.fullmatch(name) and not all(scopes.values()):
        return True
    inside = [name.removeprefix(f"{scope}/") for scope in scopes if name.startswith(f"{scope}/")]
    return bool(inside) and (spec.shape == () or any(any(_names_in(rest, specs)) for rest in inside))


def _keras_scopes(specs: Mapping[str, VariableSpec]) -> dict[str, bool]:
    """Return the scopes of Keras's optimizers, and whether each gives its slots names.

    A scope has the name of the optimizer's class, or the user's name for the optimizer. In the second case, a step
    counter and a hyperparameter in the scope identify it.
    """
    scopes = {}
    for name in specs:
        words = name.split("/")
        for end, word in enumerate(words[:-1], 1):
            if _KERAS_OPTIMIZER.fullmatch(word):
                scope = "/".join(words[:end])
                # The step counter is called iter since slots have names.
                scopes[scope] = f"{scope}/iterations" not in specs
        scope = "/".join(words[:-1])
        if words[-1] == "iter" and (f"{scope}/decay" in specs or f"{scope}/learning_rate" in specs):
            scopes[scope] = True
    return scopes


def _names_in(name: str, specs: Mapping[str, VariableSpec]) -> Iterator[str]:
    """Yield the variables whose whole name is part of a longer name."""
    words = name.split("/")
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            run = "/".join(words[start:end])
            if run in specs and run != name:
                yield run


def _same_kind(spec: VariableSpec, other: VariableSpec) -> bool:
    return (spec.shape, spec.dtype) == (other.shape, other.dtype)
