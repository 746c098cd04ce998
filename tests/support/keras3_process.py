"""Processes that run Keras 3 programs on a backend, each program in the scope of a tool.

A process has one backend, chosen when Keras is imported. `run_on` starts one that reads what to run, runs all of it,
and writes what came out.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import traceback
from typing import Any, NamedTuple

import pytest


class Program(NamedTuple):
    """What to run: ``module.function(*arguments)``, which returns Keras tensors, nested or not, or texts in a dict.

    Attributes:
      module: its name.
      function: its name; it is called in the scope, and gets the tool if it has a parameter of that name.
      arguments: of any type that can be pickled.
      seed: of the tool.
      mode: of the tool; None runs the function in no scope.
    """

    module: str
    function: str
    arguments: tuple[Any, ...] = ()
    seed: int = 42
    mode: str | None = "num_random_ops"


class Outcome(NamedTuple):
    """What came out.

    Attributes:
      values: a flat list of NumPy arrays; of the items of a dict of texts.
      random_ops: the tool's records.
      error: the traceback, if an exception was raised.
    """

    values: list[Any]
    random_ops: tuple[Any, ...]
    error: str | None = None

    def checked(self) -> Outcome:
        """Return it, unless the function raised an exception: then the test fails with that."""
        if self.error:
            pytest.fail(self.error, pytrace=False)
        return self


def is_installed(backend: str) -> bool:
    """Return whether Keras can run on a backend; its NumPy backend imports JAX."""
    return importlib.util.find_spec("jax" if backend == "numpy" else backend) is not None


def run_on(backend: str, programs: list[Program], **environment: str) -> list[Outcome]:
    """Run programs on a backend, one after the other, in one new process."""
    variables = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    command = [sys.executable, "-W", "ignore", "-c", f"import {__name__} as process; process._main()"]
    process = subprocess.run(command, input=pickle.dumps(programs), capture_output=True, env=variables, check=False)
    if process.returncode:
        error = process.stderr.decode()[-4000:]
        return [Outcome([], (), error) for _ in programs]
    return pickle.loads(process.stdout)


def _outcome(program: Program) -> Outcome:
    import keras

    from detrand import DeterministicRandomTestTool

    function = getattr(importlib.import_module(program.module), program.function)
    tool = DeterministicRandomTestTool(program.seed, program.mode or "constant")
    if "tool" in inspect.signature(function).parameters:
        function = functools.partial(function, tool=tool)
    try:
        if program.mode is None:
            values = function(*program.arguments)
        else:
            with tool.scope():
                values = function(*program.arguments)
        if isinstance(values, dict) and all(isinstance(value, str) for value in values.values()):
            return Outcome([*values.items()], tool.random_ops)
        arrays = [keras.ops.convert_to_numpy(value) for value in keras.tree.flatten(values)]
        return Outcome(arrays, tool.random_ops)
    except Exception:
        return Outcome([], tool.random_ops, traceback.format_exc())


def _main() -> None:
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes elsewhere
    programs = pickle.load(sys.stdin.buffer)
    pickle.dump([_outcome(program) for program in programs], output)
