"""The files of a name-based checkpoint: its specs and values, and the reason why a path cannot be read as one.

`specs_in_checkpoint` returns name -> `VariableSpec`, and `read_values` reads variables, or slices of them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from detrand.errors import CheckpointError
from detrand.variables.sources import checkpoint_prefix, checkpoint_specs
from detrand.variables.spec import VariableSpec


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


def specs_in_checkpoint(argument: str, path: str) -> dict[str, VariableSpec]:
    """Return the specs of a name-based checkpoint's variables, sorted by name.

    Args:
      argument: name of the caller's argument, for errors.
      path: the checkpoint's prefix, or a directory (its latest checkpoint is read).

    Raises:
      CheckpointError: if the checkpoint is object-based or cannot be read; the message says what the path is instead.
    """
    try:
        reason = _why_none(path)
    except tf.errors.OpError:  # for example, TensorFlow does not support the file system
        reason = ""
    if reason:
        raise CheckpointError(f"{argument}={path!r} cannot be read as a checkpoint: {reason}")
    return checkpoint_specs(argument, path)


def check_checkpoint(argument: str, path: str) -> None:
    """Read every variable of a checkpoint once, one after the other.

    Raises:
      CheckpointError: if that fails.
    """
    for name, spec in specs_in_checkpoint(argument, path).items():
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


def _why_none(path: str) -> str:
    """Return why there is no checkpoint at a path and what to pass instead; "" if there may be one."""
    if tf.io.gfile.isdir(path):
        return _why_none_in(path)
    if tf.io.gfile.exists(path):
        return _why_no_v1_file(path)
    folder, base = os.path.split(path)
    if tf.io.gfile.exists(f"{path}.index"):
        damaged = f"its file {base + '.index'!r} is damaged. Copy the checkpoint again, with all of its files"
        return "" if _is_table(f"{path}.index") else damaged
    if tf.io.gfile.glob(path):  # V1 in several files: model.ckpt-?????-of-00002
        return ""
    if not tf.io.gfile.isdir(folder or "."):
        return f"the directory {folder!r} does not exist"
    if tf.io.gfile.glob(f"{path}.data-*"):
        return f"its file {base + '.index'!r} is missing. Copy the checkpoint again, with all of its files"
    parts = tf.io.gfile.glob(f"{path}-?????-of-?????")
    if parts:
        return f"it consists of several files. Pass {path + '-?????' + parts[0][-9:]!r}"
    there = _prefixes_in(folder)
    close = difflib.get_close_matches(path, there, n=3, cutoff=0) or there[:3]
    return f"{folder or '.'!r} has no checkpoint of that name" + (f". Pass {_either(close)}" if close else "")


def _why_none_in(folder: str) -> str:
    if tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
        inside = os.path.join(folder, "variables", "variables")
        return f"it is a SavedModel. Pass the checkpoint inside it, {inside!r}"
    there = _prefixes_in(folder)
    advice = f". Pass {_either(there[:3])}" if there else ""
    state = tf.train.get_checkpoint_state(folder)
    if state and state.model_checkpoint_path:
        latest = state.model_checkpoint_path
        if tf.io.gfile.exists(f"{latest}.index") or tf.io.gfile.glob(latest):
            return ""
        return f"the directory's 'checkpoint' file names {latest!r}, which does not exist{advice}"
    if there:
        return f"it is a directory without a 'checkpoint' file, which would name the latest checkpoint{advice}"
    what = "a directory without a checkpoint" if tf.io.gfile.listdir(folder) else "an empty directory"
    return f"it is {what}. Pass the prefix, such as 'dir/model.ckpt-100', or a directory with a 'checkpoint' file"


_KINDS = {b"\x89HDF\r\n\x1a\n": "an HDF5 file", b"PK": "a zip archive"}


def _why_no_v1_file(path: str) -> str:
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path)
    if prefix != path:
        return f"it is one of a checkpoint's files. Pass the prefix, {prefix!r}"
    folder, base = os.path.split(path)
    if base == "checkpoint":
        return f"it is the file that names a directory's latest checkpoint. Pass the directory, {folder or '.'!r}"
    if base == "saved_model.pb":
        return _why_none_in(folder)
    if _is_table(path):
        return ""
    with tf.io.gfile.GFile(path, "rb") as file:
        start = file.read(8)
    for magic, kind in _KINDS.items():
        if start.startswith(magic):
            return f"it is {kind}, in which Keras saves models and weights. Use Keras's load_model or load_weights"
    return "it is not a file that a Saver writes, or it is truncated"


def _is_table(path: str) -> bool:
    """Return whether a file is a LevelDB table, the format of V1 files and of the index of V2."""
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(max(0, file.size() - 8))
        return file.read() == bytes.fromhex("57fb808b247547db")


def _prefixes_in(folder: str) -> list[str]:
    return [path.removesuffix(".index") for path in sorted(tf.io.gfile.glob(os.path.join(folder, "*.index")))]


def _either(paths: list[str]) -> str:
    return " or ".join(map(repr, paths))
