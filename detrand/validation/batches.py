"""The batches of a migration: the inputs of a call, and the labels of a training step, as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from detrand.arguments import plural, wrong_type
from detrand.comparison.structures import flatten, map_leaves
from detrand.errors import ArgumentError, MigrationError

Input = np.ndarray | dict[str, Any]  # an array, or a dict of inputs


def as_batch(inputs: Any) -> tuple[Input, ...]:
    """Return the inputs of one call as arrays."""
    if inputs is None or isinstance(inputs, (str, bytes)):
        remedy = "the items of a tuple or list are passed to tf1 and to the port one by one"
        raise wrong_type("inputs", inputs, "an array, a dict of arrays, or a tuple or list of these", remedy)
    _check_gives_no_batches("inputs", inputs)
    given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    batch = tuple(_as_input(f"input {position}", one) for position, one in enumerate(given))
    if not flatten(batch):
        raise ArgumentError(f"inputs must hold at least one array, but {inputs!r} was given")
    return batch


def describe_batch(batch: Iterable[Input]) -> str:
    """Return the dtypes and shapes of inputs as text."""
    return ", ".join(map(_describe, batch))


def _describe(given: Input) -> str:
    if isinstance(given, dict):
        return "{" + ", ".join(f"{key!r}: {_describe(value)}" for key, value in given.items()) + "}"
    return f"{'text' if given.dtype == object else given.dtype.name} {given.shape}"


def _as_input(where: str, given: Any) -> Input:
    if isinstance(given, Mapping):
        for key in given:
            if not isinstance(key, str):
                raise ArgumentError(
                    f"{where} has the key {key!r} of type {type(key).__name__}, but Keras accepts only text as keys "
                    "of a dict; rename it"
                )
        return {key: _as_input(f"{where}[{key!r}]", value) for key, value in given.items()}
    try:
        array = _as_array(given)
    except ValueError as error:
        raise ArgumentError(
            f"{where} is not an array: {error}; pad its rows to one length, or pass an array for each input"
        ) from error
    if _is_no_text(array) or array.dtype.kind in "Mm" or array.dtype.names is not None:
        raise ArgumentError(
            f"{where} is not an array of numbers or strings, but of dtype {array.dtype}; pass "
            "np.array(..., dtype=np.float32), for example"
        )
    return array


_as_bytes = np.frompyfunc(lambda item: item.encode() if isinstance(item, str) else bytes(item), 1, 1)


def _as_array(given: Any) -> np.ndarray:
    """Return an array; text becomes bytes in an object array, because a dtype with a width drops NULs.

    A session returns text as it was fed, and a port returns bytes, so both are fed bytes.
    """
    array = np.asarray(given)
    if array.dtype.kind in "SUTO":
        objects = np.asarray(given, object)
        if all(isinstance(item, (str, bytes)) for item in objects.flat):
            return np.asarray(_as_bytes(objects), object)
    return array


def _is_no_text(array: np.ndarray) -> bool:
    return array.dtype == object and not all(isinstance(item, bytes) for item in array.flat)


def as_labels(labels: Any) -> Any:
    """Return the labels of one step as arrays that have an axis."""

    def as_array(label: Any, where: str) -> np.ndarray:
        array = _as_array(label)
        if _is_no_text(array) or not array.shape:
            raise wrong_type(where, label, "an array with the batch as its first axis", "pass np.array([...])")
        return array

    _check_gives_no_batches("labels", labels)
    labels = map_leaves(labels, as_array, "labels")
    if labels is None:
        raise ArgumentError("labels must be arrays, but None was given; if the loss needs no labels, pass the inputs")
    return labels


def _check_gives_no_batches(name: str, given: Any) -> None:
    """Raise an `ArgumentError` for a dataset or an iterator, where a batch or a function is expected."""
    is_dataset = hasattr(given, "as_numpy_iterator")
    if is_dataset or hasattr(given, "__next__"):
        again = "dataset.as_numpy_iterator()" if is_dataset else "make_batches()"
        accepted = "arrays, or a function that returns an iterable of batches on each call"
        raise wrong_type(name, given, accepted, f"pass a function: {name}=lambda: {again}")


def batches_of(name: str, given: Any, as_one: Callable[[Any], Any], count: int) -> list[Any]:
    """Return the batch that the user gave for an argument, or the first batches that a function returns."""
    if not callable(given):
        return [as_one(given)]
    try:
        batches = given()
        if not isinstance(batches, Iterable):
            raise TypeError(f"it returned {type(batches).__name__}, not an iterable of batches")
        found = [as_one(batch) for batch in itertools.islice(batches, count)]
    except Exception as error:
        raise MigrationError(f"{name}() returned no batch: {type(error).__name__}: {error}") from error
    if not found:
        raise MigrationError(f"{name}() returned no batch: the iterable was empty")
    return found


def training_batches(inputs: Any, labels: Any, steps: int) -> list[tuple[tuple[Input, ...], Any]]:
    """Return the inputs and labels of each training step; if there are fewer batches than steps, they start over."""
    of_inputs = batches_of("inputs", inputs, as_batch, steps)
    of_labels = batches_of("labels", labels, as_labels, steps)
    if callable(inputs) and callable(labels) and len(of_inputs) != len(of_labels):
        raise MigrationError(
            f"inputs() returned {plural(len(of_inputs), 'batch', 'batches')} and labels() returned {len(of_labels)}, "
            f"for {plural(steps, 'step')}; both must return equally many, or one for each step"
        )
    paired = zip(itertools.cycle(of_inputs), itertools.cycle(of_labels), strict=False)
    batches = list(itertools.islice(paired, steps))
    for number, batch in enumerate(batches):
        _check_sizes(number, *batch)
        shapes, first = _shapes(batch), _shapes(batches[0])
        if shapes != first:
            raise MigrationError(
                f"batch {number} has the shapes {shapes}, but batch 0 has {first}; all batches of a migration must "
                "have the same shapes: leave out a last batch that is smaller"
            )
    return batches


def _check_sizes(number: int, inputs: tuple[Input, ...], labels: Any) -> None:
    """Check that labels have as many examples as an input; both may be flattened, but not to different sizes."""
    shapes = [array.shape for array in flatten(inputs)]
    sizes = {shape[0] for shape in shapes if shape}

    def check(label: np.ndarray, where: str) -> None:
        if sizes and label.shape[0] not in sizes:
            raise ArgumentError(
                f"{where} of batch {number} has the shape {label.shape}, but the inputs have {shapes}; the first axis "
                "of both must have the same length"
            )

    map_leaves(labels, check, "labels")


def _shapes(batch: Any) -> str:
    return ", ".join(str(array.shape) for array in flatten(batch) if array is not None)
