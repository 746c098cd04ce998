"""Names of PyTorch: the functions that draw, counts of changes, what its compilers make, and its schedules."""

from __future__ import annotations

import collections
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from detrand._patching.keras import is_instance_of_loaded
from detrand._patching.patches import Target

DROPOUT = Target("torch.nn.functional", "dropout", ("input", "p", "training", "inplace"))
ATTENTION = Target("torch.nn.functional", "scaled_dot_product_attention", ())  # a function in C, without a signature
COMPILER = "torch._dynamo"  # which takes seconds to import, and which ``torch.compile`` imports


def version_of(tensor: Any) -> int:
    """Return how often a tensor was changed in place; 0 in ``torch.inference_mode``, which does not count that."""
    return 0 if tensor.is_inference() else int(tensor._version)


def is_compiled(module: Any) -> bool:
    """Return whether a module is what ``torch.compile`` returns."""
    return "_orig_mod" in getattr(module, "_modules", ())


def source_of(function: Any) -> Callable[..., Any]:
    """Return the function in Python that ``torch.jit`` has compiled."""
    return cast("Callable[..., Any]", function._torchdynamo_inline)


def schedule_of(optimizer: Any) -> Any:
    """Return the schedule that hooks after an optimizer's steps use; None if they use none, or several."""
    hooks = filter(inspect.isfunction, optimizer._optimizer_step_post_hooks.values())
    used = [each for hook in hooks for names in inspect.getclosurevars(hook)[:2] for each in names.values()]
    schedules = {id(each): each for each in used if is_schedule(each)}
    return schedules.popitem()[1] if len(schedules) == 1 else None


def is_schedule(candidate: Any) -> bool:
    """Return whether an object is a schedule of ``torch.optim.lr_scheduler``, without importing it."""
    return is_instance_of_loaded(candidate, "torch", "optim.lr_scheduler.LRScheduler")


def arguments_of_schedule(schedule: Any) -> dict[str, Any]:
    """Return the arguments of a schedule of ``torch.optim.lr_scheduler``; none if it does not keep all of them."""
    found = {}
    for name in inspect.signature(type(schedule)).parameters:
        if name in ("optimizer", "last_epoch", "verbose"):
            continue
        kept = [each for each in (name, f"_{name}", f"{name}s") if hasattr(schedule, each)]
        if not kept:
            return {}
        value = getattr(schedule, kept[0])
        found[name] = sorted(value.elements()) if isinstance(value, collections.Counter) else value
    return found


class ChangedSchedule:
    """A schedule like a given one with other arguments, as a function of the step; it steps after each update."""

    def __init__(self, schedule: Any, arguments: Mapping[str, Any]) -> None:
        self._schedule, self._arguments = schedule, arguments
        self._optimizer: Any = None
        self._made: Any = None
        self._rates: list[float] = []

    def __call__(self, step: int) -> float:
        if self._made is None:
            torch: Any = sys.modules["torch"]
            rate = self._schedule.optimizer.param_groups[0]["initial_lr"]
            self._optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], rate)
            self._made = self.made_for(self._optimizer)
        while len(self._rates) <= step:
            self._rates.append(float(self._optimizer.param_groups[0]["lr"]))
            self._optimizer.step()
            self._made.step()
        return self._rates[step]

    def made_for(self, optimizer: Any) -> Any:
        """Return this schedule of an optimizer."""
        arguments = {name: _made_for(value, optimizer) for name, value in self._arguments.items()}
        return type(self._schedule)(optimizer=optimizer, **arguments)


def _made_for(value: Any, optimizer: Any) -> Any:
    """Return an argument of a schedule of an optimizer, in which other schedules are this optimizer's, too."""
    if is_schedule(value):
        value = ChangedSchedule(value, arguments_of_schedule(value))
    if isinstance(value, ChangedSchedule):
        return value.made_for(optimizer)
    return [_made_for(each, optimizer) for each in value] if isinstance(value, list) else value
