"""Forms: the ways in which elements of TF1 variables lie in the port's variables.

`Rearranged` is an entry of a name map for variables that the port has in a different form. A `Form` knows where each
element is, and converts arrays in both directions. `ModuleVariable` is a variable of a module of PyTorch or Flax, which
knows the form of a layer's kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detrand.arguments import check_callable, plural, wrong_type
from detrand.errors import ArgumentError
from detrand.packages import tf
from detrand.variables.spec import FromTF1

_Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Rearranged:
    """Variables of the port that hold the elements of TF1 variables in a different form; a value of a ``name_map``.

    The key of the ``name_map`` is the name of a TF1 variable, or a tuple of names:

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from detrand import Rearranged, assert_variables_match
    >>> tf1 = {"logits/weights": tf.Variable(tf.ones((5, 3)))}
    >>> port = [tf.Variable(tf.ones((3, 5)), name="head/kernel")]
    >>> name_map = {"logits/weights": Rearranged(["head/kernel"], np.transpose)}
    >>> assert_variables_match(tf1, port, name_map)

    Args:
      port_names: the names of the port's variables, a list; or the name of one.
      function: called with a NumPy array for each TF1 variable of the key; returns an array for each of the port's
        variables. It may slice, transpose, reshape and concatenate the arrays, and add constants. It uses each element
        once. Elements of the result that come from no TF1 variable are constants. detrand finds out where each element
        goes, and so converts values in both directions, and also gradients and slots, to which no constant is added.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """

    port_names: Sequence[str]
    function: Callable[..., Any] = field(repr=False)
    tf1_names: tuple[str, ...] = field(default=(), repr=False, kw_only=True)  # the key, if the map is a function
    code: str = field(default="", repr=False, kw_only=True)  # returns the entry, if it is ready-made

    def __post_init__(self) -> None:
        names = (self.port_names,) if isinstance(self.port_names, str) else self.port_names
        if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
            raise wrong_type("port_names", names, "a list of names of the port's variables")
        check_callable("function", self.function, "a function from TF1's arrays to the port's, such as np.transpose")
        object.__setattr__(self, "port_names", tuple(names))


@dataclass(frozen=True, eq=False)
class Form:
    """The place of each element of some TF1 variables in variables of the port.

    Attributes:
      tf1: the shapes of the TF1 variables, by name.
      port: the shapes of the port's variables, by name.
      sources: for each variable of the port, the position of its elements among the elements of all TF1 variables, one
        variable after the other; the position after the last for a constant. None if both have the same elements in
        the same order.
      constants: what is added to the elements of each variable of the port.
    """

    tf1: Mapping[str, Any]  # the rank or a dimension of a variable in the same order may be unknown
    port: Mapping[str, Any]
    sources: tuple[np.ndarray, ...] | None = None
    constants: tuple[np.ndarray, ...] = ()

    @functools.cached_property
    def tf1_names(self) -> dict[str, list[str]]:
        """The TF1 variables that have elements in each variable of the port."""
        if self.sources is None:
            return {name: list(self.tf1) for name in self.port}
        names, ends = [*self.tf1], np.cumsum([math.prod(shape) for shape in self.tf1.values()])
        numbers = [np.unique(np.searchsorted(ends, source, side="right")) for source in self.sources]
        found = [[names[number] for number in of_one if number < len(names)] for of_one in numbers]
        return dict(zip(self.port, found, strict=True))

    def to_port(self, arrays: Mapping[str, Any], *, values: bool) -> dict[str, Any]:
        """Return the port's arrays or tensors from TF1's, with zeros for missing ones; values get the constants."""
        some = next(iter(arrays.values()))
        in_numpy = isinstance(some, (np.ndarray, np.generic))
        reshape: Any = np.reshape if in_numpy else tf.reshape
        if self.sources is None:
            has_same_shape = [*self.tf1.values()] == [*self.port.values()]  # which may be unknown
            return {name: some if has_same_shape else reshape(some, shape) for name, shape in self.port.items()}
        flat = [
            reshape(arrays[name] if name in arrays else np.zeros(shape, _numpy_dtype(some)), (-1,))
            for name, shape in [*self.tf1.items(), ("", (1,))]
        ]
        elements = np.concatenate(flat) if in_numpy else tf.concat(flat, 0)
        found = [np.take(elements, source) if in_numpy else tf.gather(elements, source) for source in self.sources]
        if values:
            found = [
                array + constant.astype(_numpy_dtype(some))
                for array, constant in zip(found, self.constants, strict=True)
            ]
        return dict(zip(self.port, found, strict=True))

    def to_tf1(self, arrays: Mapping[str, np.ndarray], *, values: bool) -> dict[str, np.ndarray]:
        """Return TF1's arrays from the port's, without those that have elements in missing ones."""
        if self.sources is None:
            has_same_shape = [*self.tf1.values()] == [*self.port.values()]
            ((name, shape),), (array,) = self.tf1.items(), arrays.values()
            return {name: array if has_same_shape else array.reshape(shape)}
        sizes = [math.prod(shape) for shape in self.tf1.values()]
        elements = np.zeros(sum(sizes) + 1, next(iter(arrays.values())).dtype)
        for name, source, constant in zip(self.port, self.sources, self.constants, strict=True):
            if name in arrays:
                elements[source] = arrays[name] - constant.astype(elements.dtype) if values else arrays[name]
        missing = {name for other in self.port.keys() - arrays.keys() for name in self.tf1_names[other]}
        found = zip(self.tf1.items(), np.split(elements[:-1], np.cumsum(sizes[:-1])), strict=True)
        return {name: array.reshape(shape) for (name, shape), array in found if name not in missing}


def _numpy_dtype(array: Any) -> Any:
    return getattr(array.dtype, "as_numpy_dtype", array.dtype)


@functools.lru_cache(maxsize=256)  # the variables of a port are read many times
def rearranged_form(rearranged: Rearranged, tf1: tuple[tuple[str, Any], ...]) -> Form:
    """Return the form that a function describes, for TF1 variables with some names and shapes.

    The function is called with numbers of elements in place of elements, which shows where each element goes.

    Raises:
      ArgumentError: if the function does more than to rearrange elements and to add constants.
    """
    for name, shape in tf1:
        if shape is None or None in shape:
            raise ArgumentError(f"name_map has a Rearranged for {name!r}, whose shape {shape} is not known")
    described = f"the function of name_map[{(tf1[0][0] if len(tf1) == 1 else tuple(name for name, _ in tf1))!r}]"
    ends = np.cumsum([math.prod(shape) for _, shape in tf1])
    size = int(ends[-1])

    def called(elements: np.ndarray) -> list[np.ndarray]:
        pieces = np.split(elements, ends[:-1])
        try:
            found = rearranged.function(*(piece.reshape(shape) for piece, (_, shape) in zip(pieces, tf1, strict=True)))
            arrays = [np.asarray(each, np.float64) for each in (found if isinstance(found, (list, tuple)) else [found])]
        except Exception as error:
            raise ArgumentError(
                f"{described} raised {type(error).__name__}({error}) for arrays of the shapes "
                f"{', '.join(str(shape) for _, shape in tf1)}. It is called with a NumPy array for each TF1 variable"
            ) from error
        if len(arrays) != len(rearranged.port_names):
            raise ArgumentError(
                f"{described} returned {plural(len(arrays), 'array')}, but names "
                f"{plural(len(rearranged.port_names), 'variable')} of the port: {', '.join(rearranged.port_names)}. "
                "Return an array for each of them"
            )
        return arrays

    constants = called(np.zeros(size))
    numbers = np.arange(1.0, size + 1)
    found = [np.rint(array - constant) for array, constant in zip(called(numbers), constants, strict=True)]
    flat = np.concatenate([array.reshape(-1) for array in found])
    for elements in (numbers, -np.roll(numbers, 1) - 0.25):
        expected = np.append(elements, 0.0)  # a constant is at position -1
        fits = bool(((flat >= 0) & (flat <= size)).all()) and all(
            array.shape == constant.shape == number.shape
            and np.allclose(array - constant, expected[number.astype(np.int64) - 1], rtol=1e-9, atol=1e-6)
            for array, constant, number in zip(called(elements), constants, found, strict=True)
        )
        if not fits:
            raise ArgumentError(
                f"{described} computes more than a rearrangement. It may slice, transpose, reshape and concatenate its "
                "arrays and add constants to them, the same for all elements' values"
            )
    uses = np.bincount(flat.astype(np.int64), minlength=size + 1)[1:]
    for position in np.flatnonzero(uses != 1)[:1]:
        number = int(np.searchsorted(ends, position, side="right"))
        name, shape = tf1[number]
        index = tuple(map(int, np.unravel_index(position - ends[number] + math.prod(shape), shape)))
        times = "does not use" if uses[position] == 0 else f"uses {uses[position]} times"
        raise ArgumentError(
            f"{described} {times} the element {index} of {name}, which has shape {shape}. It must use each element "
            "once, so that values can be converted in both directions"
        )
    dtype = np.int32 if size < np.iinfo(np.int32).max else np.int64
    sources = tuple(np.where(number > 0, number - 1, size).astype(dtype) for number in found)
    ports = {name: constant.shape for name, constant in zip(rearranged.port_names, constants, strict=True)}
    return Form(dict(tf1), ports, sources, tuple(constants))


class ModuleVariable:
    """A variable of a module that is not TensorFlow's. Subclasses read and assign it.

    Attributes:
      name: its name in its module.
      tf1_shape: the shape that TF1 has a kernel of a layer in; None for what both programs have in one form.
      from_tf1: how a kernel of TF1 is rearranged; None without.
    """

    aggregation = None
    name: str
    shape: _Sizes
    tf1_shape: _Sizes | None
    from_tf1: FromTF1 | None

    def numpy(self) -> np.ndarray:
        """Return a copy of its value."""
        raise NotImplementedError

    def numpy_in_tf1(self) -> np.ndarray:
        """Return a copy of its value in the form that TF1 has it in."""
        if self.tf1_shape is None or self.from_tf1 is None:
            return self.numpy()
        entry = kernel_entry(self.name, self.tf1_shape, self.shape, self.from_tf1)
        return rearranged_form(entry, (("", self.tf1_shape),)).to_tf1({self.name: self.numpy()}, values=True)[""]


@functools.lru_cache(maxsize=4096)  # the same entry each time, so that its form is known
def kernel_entry(port_name: str, tf1_shape: _Sizes, port_shape: _Sizes, from_tf1: FromTF1) -> Rearranged:
    """Return the entry of a ``name_map`` for a kernel of a layer, given its shapes in TF1 and in the port."""
    return Rearranged([port_name], lambda kernel: from_tf1(kernel.reshape(tf1_shape), port_shape))


def has_same_elements(shape: Any, other: Any) -> bool:
    """Return whether two shapes are equal, or differ only as `is_reshaped` accepts."""
    return bool(shape == other or is_reshaped(shape, other))


def is_reshaped(shape: Any, other: Any) -> bool:
    """Return whether two shapes differ only in axes of 1, or in adjacent axes that one of them has merged.

    >>> is_reshaped((1, 1, 2048, 1000), (2048, 1000)), is_reshaped((7, 7, 512, 4096), (25088, 4096))
    (True, True)
    >>> is_reshaped((3, 2), (2, 3))
    False
    """
    if shape is None or other is None or None in shape or None in other:
        return False
    fine, coarse = sorted(([size for size in each if size != 1] for each in (shape, other)), key=len, reverse=True)
    for size in coarse:
        merged = 1
        while merged < size and fine:
            merged *= fine.pop(0)
        if merged != size:
            return False
    return not fine
