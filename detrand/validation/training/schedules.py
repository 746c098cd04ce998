"""The value in a port's schedule that differs from TF1's: the one with which the schedule computes TF1's rates."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any, NamedTuple

from detrand._patching.optimizers import arguments_of_schedule, schedule_with
from detrand._patching.torch import is_schedule as is_schedule_of_torch
from detrand.errors import passing_over
from detrand.seeding.callsite import is_framework
from detrand.validation.programs.port import as_array

_SAME_RATE = 1e-6  # relative


class Changed(NamedTuple):
    """A value with a different one in its place.

    Attributes:
      what: what has the value, in words; empty if it has no name of its own.
      tf1: the different value, which may be TF1's.
      port: the port's value.
      result: what the value is in, such as a schedule, with the different value.
    """

    what: str
    tf1: Any
    port: Any
    result: Any


def changed_to_tf1(
    schedule: Any, tf1: Mapping[int, float], port: Mapping[int, float], numbers: Sequence[float]
) -> Changed | None:
    """Return the value with whose change a schedule computes TF1's rates, which are given by step; None for none.

    The different value is the other flag, one of the numbers from which TF1 computes its rates, the ratio of two of
    these, or the step after one of these: Keras and TF1 change the rate after a boundary, PyTorch and optax at it.
    """
    if is_schedule_of_torch(schedule) and not _computes(schedule_with(schedule, arguments_of_schedule(schedule)), port):
        return None  # it does not step once after each update
    ratios = [float(f"{first / second:.6g}") for first, second in itertools.permutations(numbers, 2) if second]
    for given in (numbers, [*ratios, *(number + 1 for number in numbers if number == int(number))]):
        for changed in _changed_schedules(schedule, "the learning-rate schedule", given):
            if _computes(changed.result, tf1):
                return changed
    return None


def _computes(schedule: Callable[[int], Any], rates: Mapping[int, float]) -> bool:
    """Return whether a schedule computes given rates, by step."""
    with passing_over():  # it may not compute with a value
        computed = ((float(as_array(schedule(step))), rate) for step, rate in rates.items())
        return all(math.isclose(each, rate, rel_tol=_SAME_RATE) for each, rate in computed)
    return False


def _changed_schedules(schedule: Any, of: str, numbers: Sequence[float]) -> Iterator[Changed]:
    """Yield a schedule, called ``of``, with one of the numbers in place of each value in it."""
    arguments = dict[str, Any]()
    with passing_over():  # a schedule of the user's may not show them
        arguments = arguments_of_schedule(schedule)
    for name, value in arguments.items():
        for each in _changed_values(value, of, numbers):
            with passing_over():  # it may refuse the value
                result = schedule_with(schedule, {**arguments, name: each.result})
                yield each._replace(what=each.what or f"argument {name} of {of}", result=result)
    function = schedule if inspect.isfunction(schedule) else type(schedule).__call__ if callable(schedule) else None
    if not _is_of_user(function):
        return
    for each in _changed_functions(function, of, numbers):
        yield each if function is schedule else each._replace(result=functools.partial(each.result, schedule))
    for name, value in getattr(schedule, "__dict__", {}).items():
        for each in _changed_values(value, of, numbers):
            result = copy.copy(schedule)
            vars(result)[name] = each.result
            yield each._replace(what=each.what or f"{name} of {of}", result=result)


def _changed_functions(function: Any, of: str, numbers: Sequence[float]) -> Iterator[Changed]:
    """Yield a function of the user's with one of the numbers in place of each number that it uses.

    These are the numbers in its code, in its defaults, and in the variables that it takes from the functions around it.
    """
    code, variables = function.__code__, dict[str, Any]()
    with passing_over():  # a variable may have no value yet
        variables = {
            name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        }
    if len(variables) < len(code.co_freevars):
        return
    parameters = inspect.signature(function).parameters.values()
    variables |= {each.name: each.default for each in parameters if each.default is not each.empty}

    def changed(constants: Sequence[Any], variables: Mapping[str, Any]) -> Any:
        cells = tuple(CellType(variables[name]) for name in code.co_freevars)
        made = FunctionType(code.replace(co_consts=tuple(constants)), function.__globals__, closure=cells)
        made.__defaults__ = tuple(
            variables[each.name] for each in parameters if each.kind is not each.KEYWORD_ONLY and each.name in variables
        )
        made.__kwdefaults__ = {name: variables[name] for name in function.__kwdefaults__ or ()}
        return made

    for position, value in enumerate(code.co_consts):
        for each in () if isinstance(value, bool) else _changed_values(value, of, numbers):
            constants = [*code.co_consts[:position], each.result, *code.co_consts[position + 1 :]]
            yield each._replace(what=f"number in {of}", result=changed(constants, variables))
    for name, value in variables.items():
        for each in () if _is_of_user(value) else _changed_values(value, of, numbers):
            result = changed(code.co_consts, {**variables, name: each.result})
            yield each._replace(what=each.what or f"{name} in {of}", result=result)


def _is_of_user(function: Any) -> bool:
    return inspect.isfunction(function) and not is_framework(function.__code__.co_filename)


def _changed_values(value: Any, of: str, numbers: Sequence[float]) -> Iterator[Changed]:
    """Yield what could stand for a value of a schedule, called ``of``: one of the numbers, or the other flag.

    In a sequence, a dictionary or another schedule, one value is changed.
    """
    if isinstance(value, bool):
        yield Changed("", not value, value, not value)
    elif isinstance(value, (int, float)):
        for number in numbers:
            if number != value and type(value)(number) == number:
                yield Changed("", type(value)(number), value, type(value)(number))
    elif isinstance(value, (list, tuple)):
        for position, part in enumerate(value):
            for each in _changed_values(part, of, numbers):
                whole = [*value[:position], each.result, *value[position + 1 :]]
                yield each._replace(result=whole) if each.what else Changed("", whole, value, whole)
    elif isinstance(value, dict):
        for each in _changed_values([[*pair] for pair in value.items()], of, numbers):
            pairs = dict(each.result)
            yield each._replace(result=pairs) if each.what else Changed("", pairs, value, pairs)
    elif callable(value) or is_schedule_of_torch(value):
        kind = getattr(value, "__qualname__", type(value).__name__).partition(".")[0]
        yield from _changed_schedules(value, of if _is_of_user(value) else f"{kind} in {of}", numbers)
