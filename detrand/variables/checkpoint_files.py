"""The files of a name-based checkpoint: the specs in them, and the reason why a path cannot be read as a checkpoint."""

from __future__ import annotations

import contextlib
import difflib
import os
import re

from detrand.errors import CheckpointError
from detrand.packages import tf
from detrand.variables.spec import VariableSpec


def checkpoint_specs(argument: str, path: str) -> dict[str, VariableSpec]:
    """Return the specs of a name-based checkpoint (a prefix, or a directory's latest checkpoint), sorted by name."""
    try:
        reader = tf.train.load_checkpoint(checkpoint_prefix(path))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        reason = "" if shapes else "it is empty"  # TensorFlow reads some other files as empty checkpoints
    except (ValueError, tf.errors.OpError) as error:
        reason = str(error)
    if reason:
        with contextlib.suppress(tf.errors.OpError):  # for example, TensorFlow does not support the file system
            reason = _why_none(path) or reason
        raise CheckpointError(f"{argument}={path!r} cannot be read as a checkpoint: {reason}")
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
        raise CheckpointError(
            f"{argument}={path!r} is an object-based checkpoint, which stores attribute paths instead of variable "
            "names. Restore it into the layer or module that it was saved from, and pass that object"
        )
    return {name: VariableSpec(tuple(shapes[name]), dtypes[name].name, None) for name in sorted(shapes)}


def checkpoint_prefix(path: str) -> str:
    """Return the prefix of the latest checkpoint in a directory; any other path as it is."""
    return (os.path.isdir(path) and tf.train.latest_checkpoint(path)) or path


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
    return f"{folder or '.'!r} has no checkpoint of that name{_advice(close)}"


def _why_none_in(folder: str) -> str:
    if tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
        inside = os.path.join(folder, "variables", "variables")
        return f"it is a SavedModel. Pass the checkpoint inside it, {inside!r}"
    there = _prefixes_in(folder)
    advice = _advice(there[:3])
    state = tf.train.get_checkpoint_state(folder)
    if state and state.model_checkpoint_path:
        latest = state.model_checkpoint_path
        if tf.io.gfile.exists(f"{latest}.index") or tf.io.gfile.glob(latest):
            return _why_none(latest)
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
    if base.endswith(".npz"):
        variables = f"[tf.Variable(value, name=name) for name, value in np.load({path!r}).items()]"
        return (
            "it is an archive of NumPy arrays, not a checkpoint, which a Saver writes. If the arrays have TF1's names, "
            f"write a checkpoint: detrand.save_tf1_checkpoint({variables}, 'model.ckpt')"
        )
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


def _advice(paths: list[str]) -> str:
    return f". Pass {' or '.join(map(repr, paths))}" if paths else ""
