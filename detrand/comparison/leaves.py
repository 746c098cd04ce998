"""The parts of a nested structure, and the numbers of its leaves, for values of any framework.

    open_value(value) -> the kind of the value, and its parts by key; a leaf has no parts
    read_leaf(value)  -> `Leaf`: the numbers as a NumPy array, and their kind

No framework is imported: the framework of a value is recognized by the module of its class. A leaf without numbers (a
symbolic tensor, an arbitrary object) raises an `ArgumentError`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from detrand.arguments import shorten
from detrand.errors import ArgumentError

Kind = Literal["bool", "int", "float", "complex", "str", "bytes"]
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
    """Return the kind of a value and its parts by key; the parts are None for a leaf, None and `MISSING`.

    The kind is ``"mapping"``, ``"record"`` (a named tuple, a dataclass, a composite tensor), ``"sequence"``,
    ``"leaf"``, ``"None"`` or ``"missing"``.

    >>> open_value({"loss": 0.5})
    ('mapping', {'loss': 0.5})
    >>> open_value(0.5)
    ('leaf', None)
    """
    if value is None or value is MISSING:
        return ("None" if value is None else "missing"), None
    cls: Any = value.__class__  # the type() of TensorFlow's container proxies is not their __class__
    kind, fields = _opened_as(cls)
    if kind == "leaf":
        return kind, None
    if kind == "record":
        return kind, {name: getattr(value, name) for name in fields}
    return kind, dict(value) if kind == "mapping" else dict(enumerate(value))


@functools.lru_cache(maxsize=1024)  # a recorder opens every value of every step
def _opened_as(cls: Any) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a class's values, and the names of a record's fields."""
    if issubclass(cls, Mapping):
        return "mapping", ()
    fields = None
    if issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
    elif _framework_of_class(cls) == "tensorflow":
        fields = _COMPONENTS.get(cls.__name__)
    elif dataclasses.is_dataclass(cls):
        fields = tuple(field.name for field in dataclasses.fields(cls))
    if fields is not None:
        return "record", tuple(fields)
    return ("sequence" if issubclass(cls, (list, tuple)) else "leaf"), ()


@functools.lru_cache(maxsize=1024)
def _framework_of_class(cls: Any) -> str | None:
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
    if children is None:
        if kind != "leaf":
            return kind
        dtype = getattr(value, "dtype", type(value).__name__)
        return f"{getattr(dtype, 'name', dtype)} {getattr(value, 'shape', '')}".rstrip()
    if kind == "mapping":
        return "{" + ", ".join(f"{key!r}: {skeleton(child)}" for key, child in children.items()) + "}"
    if kind == "record":
        return f"{type(value).__name__}({', '.join(f'{key}={skeleton(child)}' for key, child in children.items())})"
    items = ", ".join(skeleton(child) for child in children.values())
    return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(children) == 1 else ''})"


class Leaf(NamedTuple):
    """The numbers of a leaf.

    Attributes:
      array: the numbers, or strings as objects.
      kind: the kind of numbers.
      dtype: name of the leaf's dtype.
      weak: whether the leaf is a Python number, which has no dtype.
    """

    array: np.ndarray
    kind: Kind
    dtype: str
    weak: bool

    def value_at(self, index: tuple[int, ...]) -> Any:
        """Return one element as a plain Python value."""
        return {"bool": bool, "int": int, "float": float, "complex": complex, "str": str, "bytes": bytes}[self.kind](
            self.array[index]
        )


def read_leaf(value: Any, where: str) -> Leaf:
    """Return the numbers of a leaf, which errors call `where`.

    >>> read_leaf(np.float32(0.5), "actual").dtype
    'float32'

    Raises:
      ArgumentError: if the leaf has no numbers, or numbers of an unknown kind.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return _read_array(value, where)
    if isinstance(value, (str, bytes)):
        return _read_array(np.array(value, object), where)
    if isinstance(value, (bool, int, float, complex)):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ArgumentError(f"{where} is {value}, an int of more than 64 bits, which no tensor holds. Pass a str")
        kind: Any = next(cls.__name__ for cls in (bool, int, float, complex) if isinstance(value, cls))
        return Leaf(np.array(value), kind, kind, weak=True)

    cls: Any = type(value)
    framework = _framework_of_class(cls)
    try:
        if framework == "torch":
            return read_leaf(_torch_to_numpy(value), where)
        if framework == "keras" and hasattr(value, "value"):
            return read_leaf(value.value, where)
        if framework == "tensorflow":
            # numpy() of a variable copies the value twice: an op copies what it reads, and numpy() copies that.
            read = value.value() if cls.__name__ == "ResourceVariable" else value
            return read_leaf(read.numpy(), where)
        if hasattr(value, "__array__"):
            return _read_array(np.asarray(value), where)
        cause = None
    except ArgumentError:
        raise
    except Exception as error:  # frameworks raise various errors for a value without numbers
        cause = error
    has_numbers = framework == "torch" or type(value).__name__ == "EagerTensor"  # of a dtype that NumPy does not have
    if hasattr(value, "shape") and hasattr(value, "dtype") and not has_numbers:
        raise ArgumentError(
            f"{where} is a symbolic tensor, a {type(value).__name__} without numbers. Evaluate it with Session.run, or "
            "call the function or model on numbers, and compare the result"
        ) from cause
    why = f" ({shorten(str(cause), 100)})" if cause else ""
    raise ArgumentError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which has no numbers to compare{why}. "
        "Accepted are tensors, variables, arrays, Python numbers, strings and None, in any nesting of dicts, lists, "
        "tuples, namedtuples and dataclasses"
    ) from cause


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name.startswith(("bfloat", "float8")):  # PyTorch cannot convert these dtypes to NumPy
        import ml_dtypes  # a dependency of TensorFlow and JAX

        torch = sys.modules["torch"]
        bits = torch.int16 if name == "bfloat16" else torch.uint8
        return tensor.view(bits).numpy().view(getattr(ml_dtypes, name))
    return tensor.resolve_conj().resolve_neg().numpy()


@functools.lru_cache(maxsize=64)  # NumPy computes the name in each call
def _name_of(dtype: Any) -> str:
    return dtype.name


def _read_array(value: Any, where: str) -> Leaf:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{where} is a masked array. Replace the masked elements with .filled(...)")
    array = np.asarray(value)
    dtype = array.dtype
    if dtype.kind in "biufc":
        kinds: dict[str, Kind] = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}
        return Leaf(array, kinds[dtype.kind], _name_of(dtype), weak=False)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name.startswith(("bfloat", "float")):
        return Leaf(array, "float", dtype.name, weak=False)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name.startswith(("int", "uint")):
        return Leaf(array.astype(np.int64), "int", dtype.name, weak=False)
    if dtype.kind in "OSUT":  # strings of any width; TensorFlow's strings are bytes objects
        array = array.astype(object)
        types = {type(item) for item in array.flat} or {str if dtype.kind in "UT" else bytes}
        text_kinds: tuple[tuple[Kind, type], ...] = (("str", str), ("bytes", bytes))
        for kind, cls in text_kinds:
            if all(issubclass(item, cls) for item in types):
                return Leaf(array, kind, kind, weak=False)
        found = ", ".join(sorted(item.__name__ for item in types))
        raise ArgumentError(
            f"{where} is an array of Python objects ({found}). Pass a list of them, or an array with a numeric dtype"
        )
    raise ArgumentError(f"{where} has dtype {dtype}. Accepted are bool, integer, floating-point, complex and string")
