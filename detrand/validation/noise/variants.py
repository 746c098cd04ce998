"""Other ways to compute what a TF1 program computes, and sessions that compute in them.

A sound port adds in another order, fuses other ops, or computes a quotient as a product with an inverse. How much
that changes depends on the program, and can be seen without the port: the TF1 graph is run again, with the same
random numbers,

- with its sums reordered: from the last term on; from another term on; reductions also one term after another;
- as Grappler, which TensorFlow runs in every session by default, rewrites it; and as it does so without its arithmetic
  optimization;
- in float64, from which the program itself is off by all of its own rounding;
- with each weight and input off by a unit in its last place, up or down: a port that rounds once more, early on, gets
  what others compute from such numbers. It shows where great numbers cancel out. Whole numbers stay as they are, for a
  program may take them for what they are.

The reference is the graph as it was written, run as these are. What is in a ``tf.while_loop`` or a ``tf.cond`` is
rewritten, too. The number of threads does not count: it changes no bit on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detrand.validation.noise.float64_graph import widen_to_float64
from detrand.validation.noise.floor import epsilon_of
from detrand.validation.noise.reordered_sums import ORDERS, Order, reorder_sums
from detrand.validation.noise.rounded_graph import round_to


class Snapshot(NamedTuple):
    """A program whose variables have values, to be run again elsewhere.

    Attributes:
      graph: its graph, which must live on: functions in Python that it calls belong to it.
      variables: the value of each variable, by the name of its op.
      initializers: the ops that initialize tables.
    """

    graph: tf.Graph
    variables: dict[str, np.ndarray]
    initializers: list[str]

    @classmethod
    def of(cls, session: tf.compat.v1.Session) -> Snapshot:
        """Returns the program that is in a session."""
        v1 = tf.compat.v1
        variables = {variable.op.name: variable for variable in (*v1.global_variables(), *v1.local_variables())}
        tables = v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
        return cls(session.graph, session.run(variables), [op.name for op in tables])


class Variant(NamedTuple):
    """A graph to be run in place of a program's.

    Attributes:
      graph_def: the graph.
      config: of the session.
      renamed: what of its tensors is called otherwise than in the program.
      remark: what there is to say of it.
      change: what becomes of each weight and input.
    """

    graph_def: Any
    config: tf.compat.v1.ConfigProto
    renamed: Mapping[str, str] = {}
    remark: str = ""
    change: Callable[[np.ndarray], np.ndarray] = lambda array: array


def as_written(snapshot: Snapshot) -> Variant:
    """Returns the graph as the program has it."""
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return Variant(snapshot.graph.as_graph_def(add_shapes=True), config)


def _reordered(order: Order) -> Callable[[Snapshot], Variant | None]:
    def vary(snapshot: Snapshot) -> Variant | None:
        variant = as_written(snapshot)
        renamed, count = reorder_sums(variant.graph_def, order)
        return variant._replace(renamed=renamed) if count else None

    return vary


def _rewritten_by_grappler(**options: Any) -> Callable[[Snapshot], Variant]:
    def vary(snapshot: Snapshot) -> Variant:
        config = tf.compat.v1.ConfigProto()
        rewriting = config.graph_options.rewrite_options
        rewriting.min_graph_nodes = -1  # small graphs, too
        for name, value in options.items():
            setattr(rewriting, name, value)
        return as_written(snapshot)._replace(config=config)

    return vary


def _in_float64(snapshot: Snapshot) -> Variant:
    variant = as_written(snapshot)
    renamed, kept = widen_to_float64(variant.graph_def)
    remark = f"but for {', '.join(f'{count} {op}' for op, count in kept.items())}" if kept else ""
    return variant._replace(renamed=renamed, remark=remark)


def _off_by_an_ulp(snapshot: Snapshot) -> Variant:
    return as_written(snapshot)._replace(change=functools.partial(next_numbers, np.random.default_rng(0)))


def next_numbers(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Returns the next number up or down, by chance, of each floating-point number that is not whole.

    >>> rng = np.random.default_rng(0)
    >>> bool(next_numbers(rng, np.array(0.1)) in (np.nextafter(0.1, 0), np.nextafter(0.1, 1)))
    True
    >>> next_numbers(rng, np.array([0.0, 3.0, np.inf]))
    array([ 0.,  3., inf])
    """
    array = np.asarray(array)
    if not is_floating(array):
        return array
    towards = np.where(rng.random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype)
    moved = np.nextafter(array, towards)
    return np.where(np.isfinite(array) & (array != np.floor(array)), moved, array)


_OFF = 2  # RewriterConfig.OFF
OFF_BY_AN_ULP = "weights and inputs off by an ULP"
WAYS: dict[str, Callable[[Snapshot], Variant | None]] = {
    **{f"sums {order}": _reordered(order) for order in ORDERS},
    "rewritten by Grappler": _rewritten_by_grappler(),
    "by Grappler without arithmetic": _rewritten_by_grappler(arithmetic_optimization=_OFF),
    "in float64": _in_float64,
    OFF_BY_AN_ULP: _off_by_an_ulp,
}


def rounded_to(dtype: tf.DType, seed: int, units: float = 1.0) -> Callable[[Snapshot], Variant]:
    """Returns what makes of a program one that rounds to half precision, from weights and inputs that are off.

    Args:
      dtype: what it rounds to.
      seed: of the numbers by which weights and inputs are off.
      units: by how many units in the last place at most.
    """

    def vary(snapshot: Snapshot) -> Variant:
        variant, rng = as_written(snapshot), np.random.default_rng(seed)
        renamed = round_to(variant.graph_def, dtype)

        def off(array: np.ndarray) -> np.ndarray:
            if not is_floating(array):
                return array
            moved = array * (1 + units * epsilon_of(dtype) * rng.uniform(-1, 1, array.shape))
            return np.where(array == np.floor(array), array, moved).astype(array.dtype)

        return variant._replace(renamed=renamed, change=off)

    return vary


def ways_to_round(dtype: tf.DType) -> dict[str, Callable[[Snapshot], Variant | None]]:
    """Returns the ways in which a port in half precision may round."""
    return {f"rounded to {dtype.name}, {number}": rounded_to(dtype, number) for number in range(4)}


class Rerun:
    """A session in which a variant of a program runs, with the variables that the program had.

    Args:
      snapshot: the program.
      variant: what its graph has become.
    """

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
        """Gives variables values, by the names of their ops."""
        feeds = {self._assignments[name][0]: self._variant.change(value) for name, value in variables.items()}
        self._session.run([self._assignments[name][1] for name in variables], feeds)

    def fetch(
        self,
        tensors: Mapping[Any, str],
        inputs: Mapping[str, np.ndarray],
        inner: Mapping[str, np.ndarray] | None = None,
    ) -> dict[Any, np.ndarray]:
        """Runs the graph once.

        Args:
          tensors: the names that the program has for what is fetched, by any key.
          inputs: the inputs, by the names of their placeholders.
          inner: what other tensors are taken to be, by the names that the program has for them.

        Returns:
          What was fetched, by key.
        """
        renamed = self._variant.renamed
        feeds = {f"{name}:0": self._variant.change(array) for name, array in inputs.items()}
        feeds |= {_renamed(name, renamed): array for name, array in (inner or {}).items()}
        return self._session.run({key: _renamed(name, renamed) for key, name in tensors.items()}, feeds)


def _renamed(tensor: str, renamed: Mapping[str, str]) -> str:
    reference = renamed.get(tensor.removesuffix(":0"), tensor)
    return reference if ":" in reference else f"{reference}:0"


def is_floating(array: np.ndarray) -> bool:
    """Returns whether an array holds floating-point numbers."""
    return array.dtype != object and tf.as_dtype(array.dtype).is_floating
