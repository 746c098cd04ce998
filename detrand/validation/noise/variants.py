"""Variants of a TF1 program, which compute the same numbers but round differently, and sessions that run them.

A sound port adds in a different order, fuses ops, or multiplies by an inverse instead of dividing. How far that moves
an output depends on the program. ``docs/tolerances.rst`` says what each of the `VARIANTS` shows. The program's own
numbers come from the graph as it was written. The number of threads changes nothing on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from detrand.packages import tf
from detrand.validation.noise.floor import epsilon_of, is_floating
from detrand.validation.noise.graph_rewrites import (
    ORDERS,
    Order,
    move_constants,
    reorder_reductions,
    round_to,
    widen_to_float64,
)
from detrand.validation.programs.tf1 import config_as_written


class Snapshot(NamedTuple):
    """A program whose variables have values, to be run again in another session."""

    graph: tf.Graph  # must live on, because the Python functions that it calls belong to it
    variables: dict[str, np.ndarray]  # by the names of their ops
    initializers: list[str]  # the names of the ops that initialize tables

    @classmethod
    def of(cls, session: tf.compat.v1.Session) -> Snapshot:
        """Return the program that is in a session."""
        v1 = tf.compat.v1
        variables = {variable.op.name: variable for variable in (*v1.global_variables(), *v1.local_variables())}
        tables = v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
        return cls(session.graph, session.run(variables), [op.name for op in tables])


class Variant(NamedTuple):
    """A graph that is run in place of a program's."""

    graph_def: Any
    config: tf.compat.v1.ConfigProto
    renamed: Mapping[str, str] = {}  # the new names of tensors, by the program's
    remark: str = ""  # a limit of the variant that reports show
    change: Callable[[np.ndarray], np.ndarray] = lambda array: array  # of each weight and input
    moves_hyperparameters: bool = False  # whether the optimizer's hyperparameters are off by 1 ULP too


# Makes a variant of a program; None if it would be the program itself.
Vary = Callable[[Snapshot], Variant | None]


def as_written(snapshot: Snapshot) -> Variant:
    """Return the graph as the program has it."""
    return Variant(snapshot.graph.as_graph_def(), config_as_written())


def _rewritten_by_grappler(snapshot: Snapshot) -> Variant:
    return as_written(snapshot)._replace(config=tf.compat.v1.ConfigProto())


def in_float64(snapshot: Snapshot) -> Variant:
    """Return the variant that computes in float64, except for random numbers."""
    variant = as_written(snapshot)
    renamed, kept = widen_to_float64(variant.graph_def)
    remark = f"all but {', '.join(f'{count} {op}' for op, count in kept.items())}" if kept else ""
    return variant._replace(renamed=renamed, remark=remark)


def _reordered(order: Order, snapshot: Snapshot) -> Variant | None:
    variant = as_written(snapshot)
    return variant if reorder_reductions(variant.graph_def, order) else None


def _off_by_an_ulp(seed: int, snapshot: Snapshot) -> Variant:
    variant, change = as_written(snapshot), functools.partial(next_numbers, np.random.default_rng(seed))
    move_constants(variant.graph_def, change)
    return variant._replace(change=change, moves_hyperparameters=True)


IN_FLOAT64: dict[str, Vary] = {"in float64": in_float64}  # the variant that shows most
VARIANTS: dict[str, Vary] = {
    **IN_FLOAT64,
    **{f"reductions {order}": functools.partial(_reordered, order) for order in ORDERS},
    "rewritten by Grappler": _rewritten_by_grappler,
    **{f"weights and inputs off by 1 ULP, seed {seed}": functools.partial(_off_by_an_ulp, seed) for seed in range(4)},
}


def rounded_to(dtype: tf.DType, seed: int, snapshot: Snapshot, units: float) -> Variant:
    """Return the variant that rounds to half precision, and computes from weights and inputs off by up to some ULPs."""
    variant, rng = as_written(snapshot), np.random.default_rng(seed)

    def off(array: np.ndarray) -> np.ndarray:
        return array * (1 + units * epsilon_of(dtype) * rng.uniform(-1, 1, array.shape))

    return variant._replace(renamed=round_to(variant.graph_def, dtype), change=functools.partial(_moved, off))


def next_numbers(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Return the next number up or down, at random, of each floating-point number that is not whole.

    >>> rng = np.random.default_rng(0)
    >>> bool(next_numbers(rng, np.array(0.1)) in (np.nextafter(0.1, 0), np.nextafter(0.1, 1)))
    True
    >>> next_numbers(rng, np.array([0.0, 3.0, np.inf]))
    array([ 0.,  3., inf])
    """

    def next_number(array: np.ndarray) -> np.ndarray:
        towards = np.where(rng.random(array.shape) < 0.5, np.inf, -np.inf)
        return np.nextafter(array, towards.astype(array.dtype))

    return _moved(next_number, array)


def _moved(move: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> np.ndarray:
    """Return an array with all floating-point numbers moved but whole ones, which a program may depend on."""
    array = np.asarray(array)
    if not is_floating(array):
        return array
    stays = ~np.isfinite(array) | (array == np.floor(array))
    return np.where(stays, array, move(array)).astype(array.dtype)


class Rerun:
    """A session in which a variant of a program runs, with the variables of the program."""

    def __init__(self, snapshot: Snapshot, variant: Variant):
        v1 = tf.compat.v1
        self._variant = variant
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(variant.graph_def, name="")
            self._session = v1.Session(config=variant.config)
            self._assignments: dict[str, tuple[Any, Any]] = {}
            for name, value in snapshot.variables.items():
                variable = graph.get_operation_by_name(name)
                fed = v1.placeholder(variable.get_attr("dtype"), value.shape)
                if variable.type == "VarHandleOp":
                    assignment = tf.raw_ops.AssignVariableOp(resource=variable.outputs[0], value=fed)
                else:
                    assignment = tf.raw_ops.Assign(ref=variable.outputs[0], value=fed)
                self._assignments[name] = fed, assignment
        self.assign(snapshot.variables)
        self._session.run([graph.get_operation_by_name(name) for name in snapshot.initializers])

    def __enter__(self) -> Rerun:
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.close()

    def assign(self, variables: Mapping[str, np.ndarray]) -> None:
        """Give variables values, by the names of their ops."""
        feeds = {self._assignments[name][0]: self._variant.change(value) for name, value in variables.items()}
        self._session.run([self._assignments[name][1] for name in variables], feeds)

    def elements(self, tensors: Iterable[str]) -> int:
        """Return how many elements tensors have together, by name, as far as their shapes are known."""
        found = [self._session.graph.get_tensor_by_name(_renamed(name, self._variant.renamed)) for name in tensors]
        return sum(tensor.shape.num_elements() or 0 for tensor in found)

    def fetch(
        self,
        tensors: Mapping[Any, str],
        inputs: Mapping[str, np.ndarray],
        inner: Mapping[str, np.ndarray] | None = None,
    ) -> dict[Any, np.ndarray]:
        """Run the graph once, and return arrays by key; ``inner`` has values in place of other tensors, by name."""
        renamed = self._variant.renamed
        feeds = {f"{name}:0": self._variant.change(array) for name, array in inputs.items()}
        feeds |= {_renamed(name, renamed): array for name, array in (inner or {}).items()}
        return self._session.run({key: _renamed(name, renamed) for key, name in tensors.items()}, feeds)


def _renamed(tensor: str, renamed: Mapping[str, str]) -> str:
    reference = renamed.get(tensor.removesuffix(":0"), tensor)
    return reference if ":" in reference else f"{reference}:0"
