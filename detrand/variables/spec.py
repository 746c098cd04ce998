"""`VariableSpec`, the description of a variable without its value, and questions about shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Called with a kernel of TF1 and its shape in the port; returns it in the form of the port.
FromTF1 = Callable[..., Any]


@dataclass(frozen=True)
class VariableSpec:
    """The shape, dtype and trainable flag of a variable.

    >>> str(VariableSpec(shape=(3, 2), dtype="float32", trainable=True))
    'float32 (3, 2), trainable'

    Attributes:
      shape: its static shape, with ``None`` for each unknown dimension; ``None`` if the rank is unknown.
      dtype: name of its dtype, such as ``"float32"``.
      trainable: whether it is trainable; ``None`` for a variable in a checkpoint, which does not say.
      tf1_shape: the shape in which TF1 has a kernel of PyTorch or Flax; ``None`` for what both have in one form.
      from_tf1: how such a kernel is rearranged.
    """

    shape: tuple[int | None, ...] | None
    dtype: str
    trainable: bool | None
    tf1_shape: tuple[int, ...] | None = field(default=None, repr=False, compare=False)
    from_tf1: FromTF1 | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        shape = "of unknown shape" if self.shape is None else str(self.shape)
        trainable = {True: ", trainable", False: ", not trainable", None: ""}[self.trainable]
        return f"{self.dtype} {shape}{trainable}"


def shape_tuple(shape: Any) -> tuple[int | None, ...] | None:
    """Return a shape of any type as a tuple; None if its rank is unknown."""
    if getattr(shape, "rank", shape) is None:  # of TensorFlow's type, or no shape
        return None
    if isinstance(shape, int):
        return (shape,)
    sizes = (getattr(size, "value", size) for size in shape)  # one of TensorFlow's v1 dimensions is no number
    return tuple(None if size is None else int(size) for size in sizes)


def is_compatible(shape: Any, other: Any) -> bool:
    """Return whether two shapes are equal as far as they are known."""
    sizes, others = shape_tuple(shape), shape_tuple(other)
    if sizes is None or others is None:
        return True
    return len(sizes) == len(others) and all(a == b or None in (a, b) for a, b in zip(sizes, others, strict=True))


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of TensorFlow or NumPy, or of one that is given by its name."""
    return str(getattr(getattr(dtype, "base_dtype", None), "name", None) or np.dtype(dtype).name)
