"""The rule that private names of TensorFlow and Keras are in `detrand._patching` only, held against the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import detrand

PACKAGE = Path(detrand.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if PACKAGE / "_patching" not in path.parents)
PRIVATE_MODULES = ("tensorflow.python", "tensorflow.core", "tensorflow._api", "keras.src", "tf_keras.src")
OF_PYTHON = {"_replace", "_asdict", "_fields", "_make", "_getframe"}  # of named tuples and sys: documented names
OWN = {"self", "cls"}
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "vars", "get", "pop", "setdefault"}


def private_names(source: str) -> list[str]:
    """Return the private modules that a module names, and the private attributes that it does not define itself."""
    tree = ast.parse(source)
    own = set(_defined(tree)) | OF_PYTHON
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names if _is_private_module(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            full_names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(node, name) for name in full_names if _is_private_module(name)]
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own:
            found.append((node, ast.unparse(node)))
        elif isinstance(node, ast.Call) and _name_of(node.func) in BY_NAME:
            given = [argument for argument in node.args if isinstance(argument, ast.Constant)]
            found += [(node, name.value) for name in given if _is_private(name.value) and name.value not in own]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_private_module(node.value):
            found.append((node, node.value))
    return [f"line {node.lineno}: {name}" for node, name in found]


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines: functions, classes, variables, and attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _name_of(node.value) in OWN:
            yield node.attr


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and name.startswith("_") and not name.startswith("__")


def _is_private_module(name: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in PRIVATE_MODULES)


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_uses_no_private_name_of_a_framework(path):
    assert private_names(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from tensorflow.python.framework import ops", ["line 1: tensorflow.python.framework.ops"]),
        ("from keras import src", ["line 1: keras.src"]),
        ("import tf_keras.src.backend as backend", ["line 1: tf_keras.src.backend"]),
        ("x = sys.modules['keras.src.backend']", ["line 1: keras.src.backend"]),
        ("graph._names_in_use.clear()", ["line 1: graph._names_in_use"]),
        ("class Graph(tf.Graph):\n    def names(self):\n        return self._names", ["line 3: self._names"]),
        ("info = getattr(variable, '_save_slice_info', None)", ["line 1: _save_slice_info"]),
        ("import keras\nfrom tensorflow import nest", []),
        ("class Box:\n    def __init__(self):\n        self._value = 0\nbox._value", []),
        ("pair._replace(first=1)", []),
    ],
)
def test_the_search_finds_private_names_and_nothing_else(source, expected):
    assert private_names(source) == expected
