"""Prove that a TensorFlow 1 model and its port to TensorFlow 2 or Keras 3 compute the same numbers.

Everything public is an attribute of this module, loaded on first use: ``import detrand`` and
``detrand.philox`` import no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_MODULE_OF = {
    "ArgumentError": "errors",
    "CheckpointError": "errors",
    "ComparisonError": "errors",
    "DetrandError": "errors",
    "MigrationError": "errors",
    "PatchError": "errors",
    "RecordingError": "errors",
    "ScopeError": "errors",
    "SeedReuseError": "errors",
    "StepMismatchError": "errors",
    "VariableCreationError": "errors",
    "VariableMismatchError": "errors",
    "DeterministicRandomTestTool": "random_tool",
    "diff_random_ops": "random_op_diff",
    "Migration": "validation.migration",
    "RandomOp": "seeding.streams",
    "TrainStep": "validation.migration",
    "LoadedCheckpoint": "checkpoints.loading",
    "NameMapProposal": "checkpoints.loading",
    "load_tf1_checkpoint": "checkpoints.loading",
    "save_tf1_checkpoint": "checkpoints.loading",
    "suggest_name_map": "checkpoints.loading",
    "Report": "validation.results",
    "enable_v1_layers": "shim.v1_layers",
    "VariableScopeLayer": "shim.layer",
    "get_or_create_layer": "shim.decorator",
    "track_tf1_style_variables": "shim.decorator",
    "validate": "validation.validate",
    "StepRecorder": "steps.recorder",
    "StepsComparison": "steps.comparison",
    "Tolerance": "steps.comparison",
    "compare_steps": "steps.comparison",
    "VariableSpec": "variables.spec",
    "assert_no_variable_creations": "variables.creation",
    "assert_variables_match": "variables.comparison",
    "catch_and_raise_created_variables": "variables.creation",
    "reset_variables": "variables.reset",
    "variables_of": "variables.sources",
    "Comparison": "comparison.values",
    "assert_allclose": "comparison.values",
    "assert_not_allclose": "comparison.values",
    "compare": "comparison.values",
}
_MODULES = ("errors", "philox", "testing")

if TYPE_CHECKING:
    from detrand import errors, philox, testing
    from detrand.checkpoints.loading import (
        LoadedCheckpoint,
        NameMapProposal,
        load_tf1_checkpoint,
        save_tf1_checkpoint,
        suggest_name_map,
    )
    from detrand.comparison.values import Comparison, assert_allclose, assert_not_allclose, compare
    from detrand.errors import (
        ArgumentError,
        CheckpointError,
        ComparisonError,
        DetrandError,
        MigrationError,
        PatchError,
        RecordingError,
        ScopeError,
        SeedReuseError,
        StepMismatchError,
        VariableCreationError,
        VariableMismatchError,
    )
    from detrand.random_op_diff import diff_random_ops
    from detrand.random_tool import DeterministicRandomTestTool
    from detrand.seeding.streams import RandomOp
    from detrand.shim.decorator import get_or_create_layer, track_tf1_style_variables
    from detrand.shim.layer import VariableScopeLayer
    from detrand.shim.v1_layers import enable_v1_layers
    from detrand.steps.comparison import StepsComparison, Tolerance, compare_steps
    from detrand.steps.recorder import StepRecorder
    from detrand.validation.migration import Migration, TrainStep
    from detrand.validation.results import Report
    from detrand.validation.validate import validate
    from detrand.variables.comparison import assert_variables_match
    from detrand.variables.creation import assert_no_variable_creations, catch_and_raise_created_variables
    from detrand.variables.reset import reset_variables
    from detrand.variables.sources import variables_of
    from detrand.variables.spec import VariableSpec

__all__ = sorted([*_MODULE_OF, *_MODULES])  # noqa: PLE0605


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"detrand.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"detrand.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'detrand' has no attribute {name!r}; its public names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
