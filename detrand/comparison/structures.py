"""Nested structures of numbers from any framework, as NumPy arrays and in files.

A file is a ``.npz`` archive, which NumPy also reads. It has one member for each different array, and
``structure.json``, which holds the nesting, strings and Python numbers. NumPy's format has no dtype of ml_dtypes, such
as bfloat16: these arrays are stored as unsigned integers of their bits, and the JSON holds their dtype.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from detrand.comparison.leaves import open_value, read_leaf
from detrand.errors import ArgumentError, MissingPackageError, RecordingError
from detrand.files import written_whole
from detrand.packages import needed_by

VERSION = 1
_INDEX = "structure.json"


def map_leaves(value: Any, function: Callable[[Any, str], Any], where: str) -> Any:
    """Return a structure with the result of a function of each leaf and its name in errors; None stays None.

    Dicts, lists and tuples keep their types. Named tuples, dataclasses and composite tensors become named tuples.
    """
    kind, children = open_value(value)
    if children is None:
        return None if value is None else function(value, where)
    parts = {
        key: map_leaves(child, function, f"{where}.{key}" if kind == "record" else f"{where}[{key!r}]")
        for key, child in children.items()
    }
    if kind == "mapping":
        return parts
    if kind == "record":
        return _named_tuple(type(value).__name__, parts, where)
    return list(parts.values()) if isinstance(value, list) else tuple(parts.values())


def flatten(value: Any) -> list[Any]:
    """Return the leaves of nested dicts, lists and tuples, as ``tf.nest`` does: those of a dict by its sorted keys.

    >>> flatten({"b": (2, 3), "a": None})
    [None, 2, 3]
    """
    parts = _parts_of(value)
    return [value] if parts is None else [leaf for part in parts for leaf in flatten(part)]


def packed_as(value: Any, leaves: Iterable[Any]) -> Any:
    """Return leaves in the order of `flatten`, in the structure of a value; a mapping of any class becomes a dict."""
    return _packed(value, iter(leaves))


def map_structure(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Return the results of a function of each leaf, None included, in the structure that the values share."""
    return packed_as(value, [function(*leaves) for leaves in zip(*map(flatten, (value, *others)), strict=True)])


def _parts_of(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):
        return [value[key] for key in sorted(value)]
    return list(value) if isinstance(value, (list, tuple)) else None


def _packed(value: Any, leaves: Iterator[Any]) -> Any:
    parts = _parts_of(value)
    if parts is None:
        return next(leaves)
    made = [_packed(part, leaves) for part in parts]
    if isinstance(value, Mapping):
        by_key = dict(zip(sorted(value), made, strict=True))
        return {key: by_key[key] for key in value}
    kind: Any = value.__class__  # the type() of TensorFlow's container proxies is not their __class__
    return kind(*made) if hasattr(kind, "_fields") else kind(made)


def in_numpy(value: Any, where: str) -> Any:
    """Return a structure with a NumPy copy of each leaf; Python numbers and strings stay as they are."""
    return map_leaves(value, _leaf_in_numpy, where)


def _leaf_in_numpy(value: Any, where: str) -> Any:
    leaf = read_leaf(value, where)
    if leaf.weak:
        return leaf.value_at(())
    # A leaf of a narrow integer dtype is read as int64, and strings are read as objects.
    dtype = leaf.array.dtype if leaf.kind in ("str", "bytes") else np.dtype(leaf.dtype)
    return np.array(leaf.array, dtype)[()]


def save_structure(path: str | os.PathLike[str], kind: str, value: Any) -> None:
    """Save a structure that `in_numpy` returned; an existing file is replaced once the new one is complete.

    Raises:
      ArgumentError: for the key of a dict that is not a string, a Python number or None.
      RecordingError: if the file cannot be written.
    """
    path = os.fsdecode(path)
    try:
        with written_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
            content = _Writer(archive).encoded(value)
            index = {"format": "detrand", "version": VERSION, "kind": kind, "content": content}
            archive.writestr(zipfile.ZipInfo(_INDEX), json.dumps(index))
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}; give a different file") from error


def load_structure(path: str | os.PathLike[str], kind: str) -> Any:
    """Load a structure that `save_structure` saved.

    Raises:
      RecordingError: if the file is missing, damaged, or of a different kind or version.
      MissingPackageError: if it has numbers of a dtype of ml_dtypes, which is not installed.
    """
    path = os.fsdecode(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive.infolist())
            index = json.loads(archive.read(_INDEX))
            _check_index(path, kind, index)
            return _decoded(index["content"], archive)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}; give a different file") from error
    except zipfile.BadZipFile as error:
        raise RecordingError(f"{path} is not a recording of detrand, or is damaged: {error}") from error
    except (RecordingError, MissingPackageError):
        raise
    except Exception as error:  # what is read decides what is raised, MemoryError and RecursionError included
        raise RecordingError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _check_members(path: str, members: list[zipfile.ZipInfo]) -> None:
    """Raise a `RecordingError` unless the members may be those of a recording, which compresses nothing."""
    names = [member.filename for member in members]
    if _INDEX not in names:
        raise RecordingError(f"{path} is not a recording of detrand: the archive has no {_INDEX}")
    for name, count in collections.Counter(names).items():
        if count > 1 or not re.fullmatch(rf"\d+\.npy|{re.escape(_INDEX)}", name):
            raise RecordingError(f"{path} is not a recording of detrand: the archive has an unexpected member {name!r}")
    size = sum(member.file_size for member in members)
    if size > os.path.getsize(path):
        raise RecordingError(f"{path} is not a recording of detrand: it unpacks to {size} bytes, more than its size")


def _check_index(path: str, kind: str, index: Any) -> None:
    if not isinstance(index, dict) or index.get("format") != "detrand":
        raise RecordingError(f"{path} is not a recording of detrand: its {_INDEX} does not name the format")
    if index.get("version") != VERSION:
        raise RecordingError(
            f"{path} has version {index.get('version')!r} of the format, but this detrand reads version {VERSION}. "
            "Record it again, or use the version of detrand that recorded it"
        )
    if index.get("kind") != kind:
        raise RecordingError(f"{path} holds {index.get('kind')}, not {kind}. Pass a file that holds {kind}")


class _Writer:
    """The JSON form of a structure, whose different arrays it writes into an archive."""

    def __init__(self, archive: zipfile.ZipFile):
        self._archive = archive
        self._positions: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def encoded(self, value: Any) -> Any:
        """Return the JSON form of a structure."""
        if value is None:
            return None
        kind, children = open_value(value)
        if children is None:
            return self._encoded_leaf(value)
        if kind == "mapping":
            return {"dict": [[_checked_key(key), self.encoded(child)] for key, child in children.items()]}
        if kind == "record":
            fields = [[name, self.encoded(child)] for name, child in children.items()]
            return {"record": type(value).__name__, "fields": fields}
        return {type(value).__name__: [self.encoded(child) for child in children.values()]}

    def _encoded_leaf(self, value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            if array.dtype == object:
                return {"text": [self.encoded(item) for item in array.flat], "shape": array.shape}
            stored = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")
            return {"array": self._position(stored), "dtype": array.dtype.name}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        return {"bytes": value.decode("latin-1")} if isinstance(value, bytes) else {"python": value}

    def _position(self, array: np.ndarray) -> int:
        """Return the number of an array's member; equal arrays share one: recordings of several runs have many."""
        content = hashlib.sha256(array.tobytes()).digest()
        new = len(self._positions)
        position = self._positions.setdefault((array.dtype.str, array.shape, content), new)
        if position == new:
            # A ZipInfo has a constant date, so equal structures give equal files.
            with self._archive.open(zipfile.ZipInfo(f"{position}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
        return position


def _checked_key(key: Any) -> Any:
    if key is not None and not isinstance(key, (str, int, float)):
        raise ArgumentError(
            f"a dict with the key {key!r} of type {type(key).__name__} cannot be saved. Use strings or numbers as keys"
        )
    return key


def _decoded(node: Any, archive: zipfile.ZipFile) -> Any:
    if node is None:
        return None
    if "dict" in node:
        return {key: _decoded(child, archive) for key, child in node["dict"]}
    if "record" in node:
        return _named_tuple(node["record"], {name: _decoded(child, archive) for name, child in node["fields"]}, "")
    for cls in (list, tuple):
        if cls.__name__ in node:
            return cls(_decoded(child, archive) for child in node[cls.__name__])
    if "python" in node:
        return node["python"]
    if "complex" in node:
        return complex(*node["complex"])
    if "bytes" in node:
        return node["bytes"].encode("latin-1")
    if "text" in node:
        text = np.empty(len(node["text"]), object)
        text[:] = [_decoded(item, archive) for item in node["text"]]
        return text.reshape(node["shape"])[()]
    stored = np.lib.format.read_array(io.BytesIO(archive.read(f"{node['array']}.npy")), allow_pickle=False)
    if stored.dtype.name != node["dtype"]:
        with needed_by(f"A recording with {node['dtype']}"):
            import ml_dtypes  # a dependency of TensorFlow and JAX

        stored = stored.view(getattr(ml_dtypes, node["dtype"]))
    return stored[()]


_record = functools.lru_cache(collections.namedtuple)  # a golden file has thousands of few classes


def _named_tuple(name: str, parts: dict[str, Any], where: str) -> Any:
    try:
        return _record(name, tuple(parts))(**parts)
    except ValueError as error:
        raise ArgumentError(
            f"{where} cannot be converted to a named tuple ({error}). Rename the field, or use a dict"
        ) from error
