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
    "Migration": "migration",
    "RandomOp": "streams",
    "TrainStep": "train_step",
    "LoadedCheckpoint": "checkpoints",
    "NameMapProposal": "checkpoints",
    "load_tf1_checkpoint": "checkpoints",
    "save_tf1_checkpoint": "checkpoints",
    "suggest_name_map": "checkpoints",
    "Report": "report",
    "enable_v1_layers": "v1_layers",
    "VariableScopeLayer": "variable_scope_layer",
    "get_or_create_layer": "shim",
    "track_tf1_style_variables": "shim",
    "validate": "validation",
    "StepRecorder": "step_recorder",
    "StepsComparison": "step_comparison",
    "Tolerance": "step_comparison",
    "compare_steps": "step_comparison",
    "VariableSpec": "variable_specs",
    "assert_no_variable_creations": "variable_creation",
    "assert_variables_match": "variables",
    "catch_and_raise_created_variables": "variable_creation",
    "reset_variables": "variables",
    "variables_of": "variables",
    "Comparison": "comparison",
    "assert_allclose": "comparison",
    "assert_not_allclose": "comparison",
    "compare": "comparison",
}
_MODULES = ("errors", "philox", "testing")

if TYPE_CHECKING:
    from detrand import errors, philox, testing
    from detrand.checkpoints import (
        LoadedCheckpoint,
        NameMapProposal,
        load_tf1_checkpoint,
        save_tf1_checkpoint,
        suggest_name_map,
    )
    from detrand.comparison import Comparison, assert_allclose, assert_not_allclose, compare
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
    from detrand.migration import Migration
    from detrand.random_op_diff import diff_random_ops
    from detrand.random_tool import DeterministicRandomTestTool
    from detrand.report import Report
    from detrand.shim import get_or_create_layer, track_tf1_style_variables
    from detrand.step_comparison import StepsComparison, Tolerance, compare_steps
    from detrand.step_recorder import StepRecorder
    from detrand.streams import RandomOp
    from detrand.train_step import TrainStep
    from detrand.v1_layers import enable_v1_layers
    from detrand.validation import validate
    from detrand.variable_creation import assert_no_variable_creations, catch_and_raise_created_variables
    from detrand.variable_scope_layer import VariableScopeLayer
    from detrand.variable_specs import VariableSpec
    from detrand.variables import assert_variables_match, reset_variables, variables_of

__all__ = sorted([*_MODULE_OF, *_MODULES])  # noqa: PLE0605


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"detrand.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"detrand.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'detrand' has no attribute {name!r}; its public names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
