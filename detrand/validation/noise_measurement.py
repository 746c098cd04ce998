"""Measures the noise floor of a TF1 program: how far its outputs move when they are computed in other ways.

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

from detrand.comparison.values import leaves_by_path
from detrand.validation.execution import Setting, tf1_program
from detrand.validation.float64_graph import widen_to_float64
from detrand.validation.migration import Migration, describe_error
from detrand.validation.noise_floor import NoiseFloor, OutputNoise, epsilon_of, greatest_of, ulp_of
from detrand.validation.reordered_sums import ORDERS, Order, reorder_sums


def measure_noise_floor(
    migration: Migration, setting: Setting, watch: Callable[[tf.Graph], dict[str, tf.Tensor]] | None = None
) -> NoiseFloor:
    """Runs the TF1 program in several ways, and measures how far its outputs move.

    Args:
      migration: the migration.
      setting: how to run it; with mode None, with its ``constant``.
      watch: picks other tensors of the graph in place of the outputs.

    Raises:
      MigrationError: if the program cannot be run as it was written.
    """
    with tf1_program(migration, setting) as program:
        program.set_variables(migration, setting)
        watched = leaves_by_path(program.towers.outputs) if watch is None else watch(program.session.graph)
        snapshot = _Snapshot.of(program.session, watched, program.feeds)
        reference = _run(snapshot, _as_written(snapshot))
    outputs = {path: OutputNoise(ulp_of(array)) for path, array in reference.items() if _is_floating(array)}
    remarks: dict[str, str] = {}
    for way, vary in _WAYS.items():
        try:
            variant = vary(snapshot)
            if variant is None:
                continue
            found = _run(snapshot, variant)
        except Exception as error:  # one way less; the report says so
            remarks[way] = f"cannot be run: {describe_error(error)}"
            continue
        left_out = {}
        for path, noise in outputs.items():
            difference = _greatest_difference(found[path], reference[path])
            if difference <= _most_rounding(reference[path]):
                noise.differences[way] = difference
            else:
                left_out[path] = difference
        said = [variant.remark] if variant.remark else []
        if left_out:
            path, difference = next(iter(left_out.items()))
            said.append(
                f"does not count for {len(left_out)} of {len(outputs)} outputs: {path} differs by {difference:.2g}, "
                "which is no rounding"
            )
        if said:
            remarks[way] = "; ".join(said)
    return NoiseFloor(outputs, remarks)


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype != object and tf.as_dtype(array.dtype).is_floating


def _greatest_difference(found: np.ndarray, reference: np.ndarray) -> float:
    """Returns the greatest absolute difference; infinity where only one of the numbers is finite."""
    if found.shape != reference.shape:
        return np.inf
    found, reference = np.asarray(found, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(reference)
    if (np.isfinite(found) != finite).any():
        return np.inf
    return float(np.abs(found - reference, where=finite, out=np.zeros_like(reference)).max(initial=0))


def _most_rounding(array: np.ndarray) -> float:
    """Returns the greatest difference that is taken for rounding: what leaves half of the digits as they are.

    More comes of other random numbers, where iterations of a loop draw in parallel, or of a rounding that a comparison
    makes much of. A tolerance of that size would let everything pass.
    """
    return greatest_of(array) * epsilon_of(array.dtype) ** 0.5


class _Snapshot(NamedTuple):
    """A program whose variables have values, to be run again elsewhere.

    Attributes:
      graph: its graph, which must live on: functions in Python that it calls belong to it.
      variables: the value of each variable, by the name of its op.
      feeds: the inputs, by the names of their placeholders.
      fetches: the names of the tensors whose noise is measured, by their paths.
      initializers: the ops that initialize tables.
    """

    graph: tf.Graph
    variables: dict[str, np.ndarray]
    feeds: dict[str, np.ndarray]
    fetches: dict[str, str]
    initializers: list[str]

    @classmethod
    def of(
        cls, session: tf.compat.v1.Session, watched: Mapping[str, Any], feeds: Mapping[Any, np.ndarray]
    ) -> _Snapshot:
        v1 = tf.compat.v1
        variables = {variable.op.name: variable for variable in (*v1.global_variables(), *v1.local_variables())}
        return cls(
            session.graph,
            session.run(variables),
            {placeholder.op.name: array for placeholder, array in feeds.items()},
            {path: tf.convert_to_tensor(leaf).name for path, leaf in watched.items() if tf.is_tensor(leaf)},
            [op.name for op in v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)],
        )


class _Variant(NamedTuple):
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


def _as_written(snapshot: _Snapshot) -> _Variant:
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return _Variant(snapshot.graph.as_graph_def(add_shapes=True), config)


def _reordered(order: Order) -> Callable[[_Snapshot], _Variant | None]:
    def vary(snapshot: _Snapshot) -> _Variant | None:
        variant = _as_written(snapshot)
        renamed, count = reorder_sums(variant.graph_def, order)
        return variant._replace(renamed=renamed) if count else None

    return vary


def _rewritten_by_grappler(**options: Any) -> Callable[[_Snapshot], _Variant]:
    def vary(snapshot: _Snapshot) -> _Variant:
        config = tf.compat.v1.ConfigProto()
        rewriting = config.graph_options.rewrite_options
        rewriting.min_graph_nodes = -1  # small graphs, too
        for name, value in options.items():
            setattr(rewriting, name, value)
        return _as_written(snapshot)._replace(config=config)

    return vary


def _in_float64(snapshot: _Snapshot) -> _Variant:
    variant = _as_written(snapshot)
    renamed, kept = widen_to_float64(variant.graph_def)
    remark = f"but for {', '.join(f'{count} {op}' for op, count in kept.items())}" if kept else ""
    return variant._replace(renamed=renamed, remark=remark)


def _off_by_an_ulp(snapshot: _Snapshot) -> _Variant:
    return _as_written(snapshot)._replace(change=functools.partial(next_numbers, np.random.default_rng(0)))


def next_numbers(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Returns the next number up or down, by chance, of each floating-point number that is not whole.

    >>> rng = np.random.default_rng(0)
    >>> bool(next_numbers(rng, np.array(0.1)) in (np.nextafter(0.1, 0), np.nextafter(0.1, 1)))
    True
    >>> next_numbers(rng, np.array([0.0, 3.0, np.inf]))
    array([ 0.,  3., inf])
    """
    array = np.asarray(array)
    if not _is_floating(array):
        return array
    towards = np.where(rng.random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype)
    moved = np.nextafter(array, towards)
    return np.where(np.isfinite(array) & (array != np.floor(array)), moved, array)


_OFF = 2  # RewriterConfig.OFF
_WAYS: dict[str, Callable[[_Snapshot], _Variant | None]] = {
    **{f"sums {order}": _reordered(order) for order in ORDERS},
    "rewritten by Grappler": _rewritten_by_grappler(),
    "by Grappler without arithmetic": _rewritten_by_grappler(arithmetic_optimization=_OFF),
    "in float64": _in_float64,
    "weights and inputs off by an ULP": _off_by_an_ulp,
}


def _run(snapshot: _Snapshot, variant: _Variant) -> dict[str, np.ndarray]:
    """Runs a variant once; returns the outputs by their paths."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session(config=variant.config) as session:
        tf.import_graph_def(variant.graph_def, name="")
        assignments, feeds = [], {}
        for name, value in snapshot.variables.items():
            variable = graph.get_operation_by_name(name)
            fed = v1.placeholder(variable.get_attr("dtype"), value.shape)
            feeds[fed] = variant.change(value)
            if variable.type == "VarHandleOp":
                assignments.append(tf.raw_ops.AssignVariableOp(resource=variable.outputs[0], value=fed))
            else:
                assignments.append(tf.raw_ops.Assign(ref=variable.outputs[0], value=fed))
        session.run(assignments, feeds)
        session.run([graph.get_operation_by_name(name) for name in snapshot.initializers])
        fetches = {path: _renamed(name, variant.renamed) for path, name in snapshot.fetches.items()}
        return session.run(fetches, {f"{name}:0": variant.change(array) for name, array in snapshot.feeds.items()})


def _renamed(tensor: str, renamed: Mapping[str, str]) -> str:
    reference = renamed.get(tensor.removesuffix(":0"), tensor)
    return reference if ":" in reference else f"{reference}:0"
