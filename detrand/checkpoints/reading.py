"""The values in a checkpoint: `read_values` reads variables, or slices of them, and joins separately stored parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from detrand.errors import CheckpointError
from detrand.variables.checkpoint_files import checkpoint_prefix, checkpoint_specs


@dataclass(frozen=True)
class Stored:
    """A variable as a checkpoint stores it.

    Attributes:
      names: its name in the checkpoint; the names of its parts if these are stored as separate variables.
      dtype: name of its dtype.
      axis: the axis along which the separate parts are joined; None for a variable that is stored as one.
    """

    names: tuple[str, ...]
    dtype: str
    axis: int | None = None


def check_checkpoint(argument: str, path: str) -> None:
    """Read every variable of a checkpoint once, one after the other.

    Raises:
      CheckpointError: if that fails.
    """
    for name, spec in checkpoint_specs(argument, path).items():
        read_values(path, [(Stored((name,), spec.dtype), "")])


def read_values(path: str, wanted: Sequence[tuple[Stored, str]]) -> list[tf.Tensor]:
    """Read values from a checkpoint, V1 or V2, eagerly.

    Args:
      path: the checkpoint's prefix, or a directory (its latest checkpoint is read).
      wanted: variables, each with the slice to read in the notation of TensorFlow's checkpoint ops: ``""`` for all
        of it, or its shape and an offset and a length for each axis (``"7 2 4,3:0,2"``).

    Raises:
      CheckpointError: if a value cannot be read.
    """
    requests = [
        (name, slice_spec if stored.axis is None else "", tf.as_dtype(stored.dtype))
        for stored, slice_spec in wanted
        for name in stored.names
    ]
    prefix = checkpoint_prefix(path)
    try:
        values = iter(_restored(prefix, requests))
    except tf.errors.OpError as error:
        name, reason = _first_damaged(prefix, requests) or ("", _reason(error))
        first = f"; first damaged variable: {name!r}" if name else ""
        raise CheckpointError(
            f"the checkpoint {path!r} is damaged: its values cannot be read ({reason}{first}). No variable was "
            "changed. Copy the checkpoint again, with all of its files"
        ) from error
    return [
        next(values)
        if stored.axis is None
        else _cut(tf.concat([next(values) for _ in stored.names], stored.axis), slice_spec)
        for stored, slice_spec in wanted
    ]


def _restored(prefix: str, requests: Sequence[tuple[str, str, tf.DType]]) -> list[tf.Tensor]:
    names, slices, dtypes = map(list, zip(*requests, strict=True))
    return tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, dtypes=dtypes)


def _first_damaged(prefix: str, requests: Sequence[tuple[str, str, tf.DType]]) -> tuple[str, str] | None:
    for request in requests:
        try:
            _restored(prefix, [request])
        except tf.errors.OpError as error:
            return request[0], _reason(error)
    return None


def _reason(error: tf.errors.OpError) -> str:
    return re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", error.message)


def _cut(value: tf.Tensor, slice_spec: str) -> tf.Tensor:
    if not slice_spec:
        return value
    bounds = [tuple(map(int, axis.split(","))) for axis in slice_spec.rsplit(" ", maxsplit=1)[-1].split(":")]
    return value[tuple(slice(start, start + length) for start, length in bounds)]
