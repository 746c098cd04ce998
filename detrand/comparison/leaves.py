"""The parts of a nested structure (`open_value`) and the numbers of its leaves (`read_leaf`), for any framework.

No framework is imported: the framework of a value is recognized by the module of its class.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from detrand.arguments import shorten
from detrand.errors import ArgumentError, MissingPackageError
from detrand.packages import needed_by

Kind = Literal["bool", "int", "float", "complex", "str", "bytes"]
_PYTHON: dict[Kind, Any] = {"bool": bool, "int": int, "float": float, "complex": complex, "str": str, "bytes": bytes}
OUTPUT = "output"  # the path of a structure that is itself a leaf
MISSING = object()  # its kind is "missing"

# A composite tensor is opened as a record of these fields. The values that a Session returns for it
# (RaggedTensorValue, and the namedtuples SparseTensorValue and IndexedSlicesValue) have the same fields.
_COMPONENTS = {
    "SparseTensor": ("indices", "values", "dense_shape"),
    "IndexedSlices": ("values", "indices", "dense_shape"),
    "RaggedTensor": ("flat_values", "nested_row_splits"),
    "RaggedTensorValue": ("flat_values", "nested_row_splits"),
}


def open_value(value: Any) -> tuple[str, dict[Any, Any] | None]:
    """Return the kind of a value and its parts by key; the parts are None for ``"leaf"``, ``"None"`` and ``"missing"``.

    The other kinds are ``"mapping"``, ``"record"`` (a named tuple, a dataclass, a composite tensor) and ``"sequence"``.

    >>> open_value({"loss": 0.5})
    ('mapping', {'loss': 0.5})
    >>> open_value(0.5)
    ('leaf', None)
    """
    if value is None or value is MISSING:
        return ("None" if value is None else "missing"), None
    cls: Any = value.__class__  # the type() of TensorFlow's container proxies is not their __class__
    if issubclass(cls, Mapping):
        return "mapping", dict(value)
    fields = _fields_of(cls)
    if fields is not None:
        return "record", {name: getattr(value, name) for name in fields}
    if issubclass(cls, (list, tuple)):
        return "sequence", dict(enumerate(value))
    return "leaf", None


@functools.lru_cache(maxsize=1024)  # a recorder opens every value of every step
def _fields_of(cls: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a class of records; None for any other class."""
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", None)
    if _framework_of(cls) == "tensorflow":
        return _COMPONENTS.get(cls.__name__)
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


def _framework_of(cls: Any) -> str | None:
    """Return the framework that defines a class or one of its bases."""
    packages = {base.__module__.partition(".")[0] for base in cls.__mro__}
    # With the TensorFlow backend, a Keras 3 variable also derives from TensorFlow's classes, so Keras comes first.
    return next((name for name in ("keras", "torch", "tensorflow") if name in packages), None)


def skeleton(value: Any) -> str:
    """Return the structure of a value as text, with the dtype and shape of each leaf.

    >>> skeleton({"loss": 0.5, "logits": [np.zeros((2, 3))]})
    "{'loss': float, 'logits': [float64 (2, 3)]}"
    """
    kind, children = open_value(value)
    if kind == "leaf":
        dtype = getattr(value, "dtype", type(value).__name__)
        return f"{getattr(dtype, 'name', dtype)} {getattr(value, 'shape', '')}".rstrip()
    if children is None:
        return kind
    parts = {key: skeleton(child) for key, child in children.items()}
    if kind == "mapping":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in parts.items()) + "}"
    if kind == "record":
        return f"{type(value).__name__}({', '.join(f'{key}={part}' for key, part in parts.items())})"
    items = ", ".join(parts.values())
    return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(parts) == 1 else ''})"


class Leaf(NamedTuple):
    """The numbers of a leaf.

    Attributes:
      array: the numbers, or strings as objects.
      kind: the kind of numbers.
      dtype: name of the leaf's dtype.
      weak: whether the leaf is a Python value, which has no dtype.
    """

    array: np.ndarray
    kind: Kind
    dtype: str
    weak: bool = False

    def value_at(self, index: tuple[int, ...]) -> Any:
        """Return one element as a plain Python value."""
        return _PYTHON[self.kind](self.array[index])


def read_leaf(value: Any, where: str) -> Leaf:
    """Return the numbers of a leaf, which errors call `where`.

    >>> read_leaf(np.float32(0.5), "actual").dtype
    'float32'
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return _read_array(value, where)
    for kind, cls in _PYTHON.items():
        if isinstance(value, cls):
            if kind == "int" and not -(2**63) <= value < 2**64:
                raise ArgumentError(
                    f"{where} is {value}, an int of more than 64 bits, which no tensor holds. Pass a str"
                )
            return Leaf(np.array(value, object if cls in (str, bytes) else None), kind, kind, weak=True)
    try:
        array, cause = _to_numpy(value), None
    except MissingPackageError:
        raise
    except Exception as error:  # frameworks raise various errors for a value without numbers
        array, cause = None, error
    if array is not None:
        return read_leaf(array, where)
    cls = type(value)
    # PyTorch and eager TensorFlow have dtypes that NumPy does not have.
    is_concrete = _framework_of(cls) == "torch" or cls.__name__ == "EagerTensor"
    if hasattr(value, "shape") and hasattr(value, "dtype") and not is_concrete:
        raise ArgumentError(
            f"{where} is a symbolic tensor, a {cls.__name__} without numbers. Evaluate it with Session.run, or call "
            "the function or model on numbers, and compare the result"
        ) from cause
    why = f" ({shorten(str(cause), 100)})" if cause else ""
    raise ArgumentError(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, which has no numbers to compare{why}. Accepted are "
        "tensors, variables, arrays, Python numbers, strings and None, in any nesting of dicts, lists, tuples, "
        "namedtuples and dataclasses"
    ) from cause


def _to_numpy(value: Any) -> Any:
    """Return a value of a framework as an array or bytes; None if it has none. A symbolic tensor raises or has none."""
    framework = _framework_of(type(value))
    if framework == "keras" and hasattr(value, "value"):
        return _to_numpy(value.value)
    if framework == "tensorflow":
        return value.numpy()  # for a bfloat16 scalar, __array__ returns no array
    if framework != "torch":
        return np.asarray(value) if hasattr(value, "__array__") else None
    tensor = value.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("bfloat", "float8")):  # PyTorch cannot convert these dtypes to NumPy
        with needed_by(f"A tensor of {name}"):
            import ml_dtypes  # a dependency of TensorFlow and JAX

        torch = sys.modules["torch"]
        bits = torch.int16 if name == "bfloat16" else torch.uint8
        return tensor.view(bits).numpy().view(getattr(ml_dtypes, name))
    return tensor.resolve_conj().resolve_neg().numpy()


def _read_array(value: Any, where: str) -> Leaf:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{where} is a masked array. Replace the masked elements with .filled(...)")
    array = np.asarray(value)
    dtype = array.dtype
    if dtype.kind in "biufc":
        kinds: dict[str, Kind] = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}
        return Leaf(array, kinds[dtype.kind], dtype.name)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name.startswith(("bfloat", "float")):
        return Leaf(array, "float", dtype.name)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name.startswith(("int", "uint")):
        return Leaf(array.astype(np.int64), "int", dtype.name)
    if dtype.kind in "OSUT":  # strings of any width; TensorFlow's strings are bytes objects
        array = array.astype(object)
        types = {type(item) for item in array.flat} or {str if dtype.kind in "UT" else bytes}
        text_kinds: tuple[Kind, ...] = ("str", "bytes")
        for kind in text_kinds:
            if all(issubclass(item, _PYTHON[kind]) for item in types):
                return Leaf(array, kind, kind)
        found = ", ".join(sorted(item.__name__ for item in types))
        raise ArgumentError(
            f"{where} is an array of Python objects ({found}). Pass a list of them, or an array with a numeric dtype"
        )
    raise ArgumentError(f"{where} has dtype {dtype}. Accepted are bool, integer, floating-point, complex and string")
