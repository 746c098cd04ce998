"""`VariableSpec`, the description of a variable without its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
