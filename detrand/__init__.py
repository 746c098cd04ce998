"""Prove that a TensorFlow 1 model and its port to TensorFlow 2, Keras 3, PyTorch or Flax compute the same numbers.

Everything public is an attribute of this module and is loaded on first use: ``import detrand`` and ``detrand.philox``
import no TensorFlow. The public names are listed in ``__init__.pyi``. The packages and modules are listed from top to
bottom, and imports run down the list:

- `__main__`, `testing`, `pytest_plugin`: the command, assertions for tests, and fixtures.
- `report`: the renderers of a report.
- `drafts`: migration files to begin with, which `detrand init` writes.
- `validation`: `validate` and everything that it does.
- `checkpoints`: name-based TF1 checkpoints, loaded into a port and saved from it.
- `steps`: training steps, recorded and compared.
- `random_op_diff`: the first difference between the random ops of two programs.
- `random_tool`: `DeterministicRandomTestTool`.
- `adapters`: a stream's numbers in TensorFlow, Keras 3, tf_keras, PyTorch and Flax, a module for each way of executing.
- `shim`: TF1 code inside a layer.
- `variables`: the variables of a program, by name.
- `comparison`: nested structures of numbers, compared.
- `seeding`: the op seed and run of each random op; the line of user code that a message names.
- `philox`: the numbers themselves, in NumPy.
- `_patching`: the private names of TensorFlow, Keras, PyTorch, JAX and Flax, and the functions that are replaced.
- `scopes`, `changes`: context managers that are entered once; changes that are undone when a block ends.
- `files`, `packages`: files that are written whole; packages that may be missing.
- `arguments`, `errors`, `remedies`: argument checks and the words of messages; exceptions; what to do about those that
  TF1 code raises.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
_MODULE_OF = {name.name: line.module for line in _STUB.body if isinstance(line, ast.ImportFrom) for name in line.names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        public = ", ".join(__all__)
        raise AttributeError(f"module 'detrand' has no attribute {name!r}; its public names are {public}")
    from detrand.packages import needed_by

    module = _MODULE_OF[name]
    with needed_by(f"detrand.{name}"):
        if module == __name__:
            return importlib.import_module(f"{module}.{name}")
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
