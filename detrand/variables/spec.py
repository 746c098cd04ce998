"""`VariableSpec`: what a variable is, without its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VariableSpec:
    """What a variable is, without its value.

    >>> str(VariableSpec(shape=(3, 2), dtype="float32", trainable=True))
    'float32 (3, 2), trainable'

    Attributes:
      shape: its static shape, ``None`` for each unknown dimension, or ``None`` if not even the rank is known.
      dtype: name of its dtype, such as ``"float32"``.
      trainable: whether it is trainable; ``None`` from a checkpoint, which does not say.
    """

    shape: tuple[int | None, ...] | None
    dtype: str
    trainable: bool | None

    def __str__(self) -> str:
        shape = "of unknown shape" if self.shape is None else str(self.shape)
        return f"{self.dtype} {shape}{_TRAINABLE[self.trainable]}"


_TRAINABLE = {True: ", trainable", False: ", not trainable", None: ""}
