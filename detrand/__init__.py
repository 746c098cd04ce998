"""Prove that a TensorFlow 1 model and its port to TensorFlow 2 or Keras 3 compute the same numbers.

Everything public is an attribute of this module and is loaded on first use: ``import detrand`` and ``detrand.philox``
import no TensorFlow. The packages and modules, from top to bottom; imports run down this list:

- `__main__`, `testing`, `pytest_plugin`: the command, assertions for tests, and fixtures.
- `report`: what renders a report.
- `validation`: `validate` and everything that it does.
- `checkpoints`: name-based TF1 checkpoints, loaded into a port and saved from it.
- `steps`: training steps, recorded and compared.
- `random_op_diff`: the first difference between the random ops of two programs.
- `random_tool`: `DeterministicRandomTestTool`.
- `adapters`: a stream's numbers in TensorFlow, Keras 3 and tf_keras, a module for each way of executing.
- `shim`: TF1 code inside a layer.
- `variables`: the variables of a program, by name.
- `comparison`: nested structures of numbers, compared.
- `seeding`: the op seed and run of each random op; the line of user code that a message names.
- `philox`: the numbers themselves, in NumPy.
- `_patching`: the private names of TensorFlow and Keras, and the functions that are replaced.
- `scopes`, `arguments`, `errors`: context managers, argument checks and words of messages, exceptions.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Type checkers read these imports. At run time, `__getattr__` makes each of them when its name is first used.
if TYPE_CHECKING:
    from detrand import errors as errors
    from detrand import philox as philox
    from detrand import testing as testing
    from detrand.checkpoints.loading import LoadedCheckpoint as LoadedCheckpoint
    from detrand.checkpoints.loading import NameMapProposal as NameMapProposal
    from detrand.checkpoints.loading import load_tf1_checkpoint as load_tf1_checkpoint
    from detrand.checkpoints.loading import save_tf1_checkpoint as save_tf1_checkpoint
    from detrand.checkpoints.loading import suggest_name_map as suggest_name_map
    from detrand.comparison.values import Comparison as Comparison
    from detrand.comparison.values import assert_allclose as assert_allclose
    from detrand.comparison.values import assert_not_allclose as assert_not_allclose
    from detrand.comparison.values import compare as compare
    from detrand.errors import ArgumentError as ArgumentError
    from detrand.errors import CheckpointError as CheckpointError
    from detrand.errors import ComparisonError as ComparisonError
    from detrand.errors import DetrandError as DetrandError
    from detrand.errors import MigrationError as MigrationError
    from detrand.errors import PatchError as PatchError
    from detrand.errors import RecordingError as RecordingError
    from detrand.errors import ScopeError as ScopeError
    from detrand.errors import SeedReuseError as SeedReuseError
    from detrand.errors import StepMismatchError as StepMismatchError
    from detrand.errors import VariableCreationError as VariableCreationError
    from detrand.errors import VariableMismatchError as VariableMismatchError
    from detrand.random_op_diff import diff_random_ops as diff_random_ops
    from detrand.random_tool import DeterministicRandomTestTool as DeterministicRandomTestTool
    from detrand.seeding.streams import RandomOp as RandomOp
    from detrand.shim.decorator import get_or_create_layer as get_or_create_layer
    from detrand.shim.decorator import track_tf1_style_variables as track_tf1_style_variables
    from detrand.shim.layer import VariableScopeLayer as VariableScopeLayer
    from detrand.shim.v1_layers import enable_v1_layers as enable_v1_layers
    from detrand.steps.comparison import StepsComparison as StepsComparison
    from detrand.steps.comparison import Tolerance as Tolerance
    from detrand.steps.comparison import compare_steps as compare_steps
    from detrand.steps.recorder import StepRecorder as StepRecorder
    from detrand.validation.migration import Migration as Migration
    from detrand.validation.migration import TrainStep as TrainStep
    from detrand.validation.results import Report as Report
    from detrand.validation.validate import validate as validate
    from detrand.variables.comparison import assert_variables_match as assert_variables_match
    from detrand.variables.creation import assert_no_variable_creations as assert_no_variable_creations
    from detrand.variables.creation import catch_and_raise_created_variables as catch_and_raise_created_variables
    from detrand.variables.reset import reset_variables as reset_variables
    from detrand.variables.sources import variables_of as variables_of
    from detrand.variables.spec import VariableSpec as VariableSpec

_CODE = sys._getframe().f_code


@functools.cache
def _modules() -> dict[str, str]:
    """Return the module of each public name, from the bytecode of the imports above: there may be no source file."""
    import dis

    modules, module = {}, ""
    for instruction in dis.get_instructions(_CODE):
        if instruction.opname == "IMPORT_NAME":
            module = instruction.argval
        elif instruction.opname == "IMPORT_FROM" and module.startswith(__name__):
            modules[instruction.argval] = module
    return modules


if not TYPE_CHECKING:  # a type checker that saw it would accept every name

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted(_modules())
        if name not in _modules():
            public = ", ".join(sorted(_modules()))
            raise AttributeError(f"module 'detrand' has no attribute {name!r}; its public names are {public}")
        module = _modules()[name]
        if module == __name__:
            return importlib.import_module(f"{module}.{name}")
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return [*sorted(_modules()), "__all__", "__version__"]
