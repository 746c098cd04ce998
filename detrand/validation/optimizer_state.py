"""What optimizers keep of each variable, such as Adam's moments, in either program as TF1 has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detrand import _patching
from detrand.variables.whole_variables import WholeVariable

# Name of the slot in TF1 -> TF1 name of the variable -> the slot of each of its parts.
Slots = dict[str, dict[str, list[Any]]]


def slots_of(optimizer: Any, variables: Mapping[str, WholeVariable]) -> Slots:
    """Returns the slots of a program's variables; one that is not trained has none, nor does an unknown optimizer.

    Args:
      optimizer: what has updated the variables.
      variables: by their TF1 names.
    """
    found: Slots = {}
    for name, variable in variables.items():
        of_parts = [_patching.slots_of_optimizer(optimizer, part) for part in variable.parts]
        for kind in of_parts[0]:
            if all(kind in slots for slots in of_parts):
                found.setdefault(kind, {})[name] = [slots[kind] for slots in of_parts]
    return found


def as_in_tf1(slots: Slots, rates: Sequence[Any]) -> Slots:
    """Returns the values of a port's slots in the form of TF1's.

    The momentum of Keras's SGD has each gradient multiplied by the learning rate of its own step. While that is always
    the same one, dividing gives TF1's sum of gradients; afterwards nothing does, and it is left out.

    >>> slots = {_patching.SCALED_MOMENTUM: {"w": [np.array([-0.5])]}}
    >>> as_in_tf1(slots, rates=[0.1, 0.1])
    {'momentum': {'w': [array([5.])]}}
    >>> as_in_tf1(slots, rates=[0.1, 0.05])
    {}

    Args:
      slots: arrays.
      rates: the learning rate of each step so far; None where it is not known.
    """
    found = {kind: of_variables for kind, of_variables in slots.items() if kind != _patching.SCALED_MOMENTUM}
    known = {None if rate is None else float(np.asarray(rate)) for rate in rates}
    (rate,) = known if len(known) == 1 else (None,)
    if rate and _patching.SCALED_MOMENTUM in slots:
        scaled = slots[_patching.SCALED_MOMENTUM]
        found["momentum"] = {name: [array / -rate for array in of_parts] for name, of_parts in scaled.items()}
    return found
