"""Name-based TF1 checkpoints: loaded into a port, saved from one, and their names paired with a port's.

A checkpoint is a dict of name -> tensor. `pair_variables` says what of it goes into which variable of a port. Only
when all of them fit, and every value has been read, is the first variable assigned; and all are, or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.tensorflow import save_slice, slice_spec
from detrand.arguments import quote
from detrand.checkpoints.files import read_values, specs_in_checkpoint
from detrand.checkpoints.pairing import NameMap, check_fit, mapped_name, pair_variables, read_name_map, section
from detrand.checkpoints.training_state import AVERAGE, optimizer_slots
from detrand.errors import ArgumentError, CheckpointError
from detrand.variables.comparison import match_names
from detrand.variables.partitioned import JoinedVariable, joined_variables
from detrand.variables.sources import checkpoint_prefix, spec_of, variables_of


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What `load_tf1_checkpoint` has done.

    Attributes:
      loaded: the checkpoint's names of the variables that were loaded.
      left_over: the checkpoint's names of what the target has no variable for: slots of optimizers, moving
        averages, the step counter.
    """

    loaded: tuple[str, ...]
    left_over: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [f"{len(self.loaded)} variables loaded", *section("left over in the checkpoint", self.left_over)]
        )


def load_tf1_checkpoint(
    target: Any, path: str | os.PathLike[str], name_map: NameMap | str | os.PathLike[str] | None = None
) -> LoadedCheckpoint:
    """Loads a name-based TF1 checkpoint into the variables of a port, all of it or nothing.

    >>> import tempfile
    >>> from detrand import load_tf1_checkpoint
    >>> v1, path = tf.compat.v1, tempfile.mkdtemp() + "/model.ckpt"
    >>> with tf.Graph().as_default(), v1.Session() as session:
    ...     w = v1.get_variable("net/w", initializer=[1.0, 2.0])
    ...     train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(w))
    ...     session.run(v1.global_variables_initializer())
    ...     _ = v1.train.Saver().save(session, path)
    >>> weight = tf.Variable([0.0, 0.0], name="port/w")
    >>> load_tf1_checkpoint([weight], path, name_map={"net/w": "port/w"})
    LoadedCheckpoint(loaded=('net/w',), left_over=('net/w/Momentum',))
    >>> print(weight.numpy())
    [1. 2.]

    What optimizers keep beside a variable (``w/Momentum``, ``w/Adam_1``, ``beta1_power``), moving averages and
    ``global_step`` may be left over, and so may what ``name_map`` leaves out. Any other variable of the checkpoint
    without one in the target, and any of the target without one in the checkpoint, is an error. A partitioned variable
    is one variable, however many parts it has in the checkpoint and in the target.

    To load the moving averages in place of the variables, map them:
    ``name_map=lambda name: name.removesuffix("/ExponentialMovingAverage")``. The variables are then left over.

    Args:
      target: a layer or model of Keras 3 or tf_keras (called once, so that it has variables), a `tf.Module`, a list
        of those or of variables, or a dict of name -> variable. Names are those of `variables_of`.
      path: the checkpoint's prefix (V1 or V2), or a directory whose latest checkpoint counts.
      name_map: TF1 name -> name in the target, for the variables whose names differ; or a function from the one to
        the other, called for each name in the checkpoint; or the path of a JSON file with such a dict. None in
        place of a name leaves a variable of the checkpoint out: ``{"epoch": None}``.

    Returns:
      The names of what was loaded and of what was left over.

    Raises:
      CheckpointError: if the checkpoint cannot be read or is object-based; or with a list of everything that is
        missing in it, left over in it, or of another shape or dtype; or if a variable cannot be assigned. No variable
        has been changed.
      ArgumentError: if the target has no variables or they are in a `tf.Graph`, or ``name_map`` has an entry for
        a name that is not in the checkpoint, gives two of them one name, or is no map.
    """
    path = _as_path("path", path)
    wholes = _wholes("target", target)
    if not wholes:
        raise ArgumentError(
            f"there is nothing to load into: target={quote(target)} has no variables. A layer has none before it is "
            "built or called for the first time; call it once, then load the checkpoint"
        )
    specs = specs_in_checkpoint("path", path)
    pairing = pair_variables(specs, {name: whole.spec for name, whole in wholes.items()}, read_name_map(name_map))
    check_fit(path, pairing.comparison)
    pairs = pairing.comparison.pairs
    parts = [(pair, part) for pair in pairs for part in wholes[pair.port_name].parts]
    with _eagerly("load_tf1_checkpoint"):
        values = read_values(path, [(pairing.stored[pair.tf1_name], slice_spec(part)) for pair, part in parts])
        _assign_all([(pair.port_name, part) for pair, part in parts], values)
    return LoadedCheckpoint(tuple(pair.tf1_name for pair in pairs), pairing.left_over)


def save_tf1_checkpoint(source: Any, path: str | os.PathLike[str]) -> str:
    """Saves variables under their TF1 names, in a V2 checkpoint that a ``tf.compat.v1.train.Saver`` restores.

    >>> import tempfile
    >>> from detrand import save_tf1_checkpoint, variables_of
    >>> path = save_tf1_checkpoint([tf.Variable([1.0, 2.0], name="net/w")], tempfile.mkdtemp() + "/model.ckpt")
    >>> variables_of(path)
    {'net/w': VariableSpec(shape=(2,), dtype='float32', trainable=None)}

    The parts of a partitioned variable are saved as slices of one, as a Saver does. The directory's ``checkpoint`` file
    names the checkpoint as its latest. There is no ``.meta`` file, which would hold a graph.

    Args:
      source: what `load_tf1_checkpoint` takes as its target. Names are those of `variables_of`.
      path: the checkpoint's prefix; its directory must exist. A checkpoint that is there already is replaced, and
        only when the new one is complete.

    Returns:
      The prefix.

    Raises:
      ArgumentError: if there are no variables or they are in a `tf.Graph`, or ``path`` is no prefix in a directory.
      CheckpointError: if writing fails.
    """
    path = _as_path("path", path)
    folder, base = os.path.split(path)
    if not base or os.path.isdir(path):
        raise ArgumentError(f"path={path!r} is a directory; pass a prefix in it, such as 'dir/model.ckpt'")
    if folder and not os.path.isdir(folder):
        raise ArgumentError(f"path={path!r} is in {folder!r}, which is no directory; make that first")
    wholes = _wholes("source", source)
    if not wholes:
        raise ArgumentError(
            f"there is nothing to save: source={quote(source)} has no variables. A layer has none before it is built "
            "or called for the first time"
        )
    named = [(name, part) for name, whole in wholes.items() for part in whole.parts]
    unfinished = f"{path}_temp_{uuid.uuid4().hex}"
    with _eagerly("save_tf1_checkpoint"):
        try:
            tf.raw_ops.SaveV2(
                prefix=f"{unfinished}/part",
                tensor_names=[name for name, _ in named],
                shape_and_slices=[slice_spec(part) for _, part in named],
                tensors=[_value(part) for _, part in named],
            )
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[f"{unfinished}/part"], destination_prefix=path, delete_old_dirs=True
            )
            tf.compat.v1.train.update_checkpoint_state(folder or ".", path, [path])
        except tf.errors.OpError as error:
            if tf.io.gfile.exists(unfinished):
                tf.io.gfile.rmtree(unfinished)
            raise CheckpointError(f"the checkpoint {path!r} cannot be written: {error.message}") from error
    return path


@dataclass(frozen=True)
class RestoredSession:
    """What `restore_session` has done.

    Attributes:
      port_names: name in the checkpoint -> name in the port, of what the session's variables have been restored from.
      unused: the checkpoint's names of what is of no variable of the graph, nor of its training alone.
    """

    port_names: Mapping[str, str | None]
    unused: tuple[str, ...]


def restore_session(session: Any, path: str, name_map: NameMap | None) -> RestoredSession:
    """Restores the global variables of a TF1 session with a Saver, each from what its counterpart in a port is loaded.

    Args:
      session: the session.
      path: the checkpoint's prefix, or a directory whose latest checkpoint counts.
      name_map: TF1 name -> name in the port, as `load_tf1_checkpoint` takes it. Where it gives one name to a variable
        and to its moving average, the variable is restored from the average.

    Raises:
      CheckpointError: if the checkpoint cannot be read, or lacks a variable or has it with another shape or dtype.
      ArgumentError: for a ``name_map`` that cannot be used.
    """
    wholes = joined_variables("tf1", session.graph)
    specs = specs_in_checkpoint("checkpoint", path)
    port_names = {name: mapped_name(name_map, name) for name in wholes}
    tf1_names = {other: name for name, other in port_names.items()}

    def tf1_name(name: str) -> str | None:
        if name in wholes:
            return name
        found = tf1_names.get(mapped_name(name_map, name))
        return found if name.endswith(AVERAGE) or found not in specs else None

    pairing = pair_variables(specs, {name: whole.spec for name, whole in wholes.items()}, tf1_name)
    check_fit(path, pairing.comparison, "the TF1 program")
    restored: dict[str, Any] = {}
    for pair in pairing.comparison.pairs:
        stored, parts = pairing.stored[pair.tf1_name], wholes[pair.port_name].parts
        if stored.axis is None:
            restored[pair.tf1_name] = parts if save_slice(parts[0]) else parts[0]
            continue
        shapes, shapes_of_parts = [specs[name].shape for name in stored.names], [spec_of(part).shape for part in parts]
        if shapes != shapes_of_parts:
            raise CheckpointError(
                f"the checkpoint {path!r} holds {', '.join(stored.names)} as variables of their own, of the shapes "
                f"{shapes}, and a Saver cannot cut them; the TF1 program has parts of the shapes {shapes_of_parts}"
            )
        restored.update(zip(stored.names, parts, strict=True))
    try:
        tf.compat.v1.train.Saver(restored).restore(session, checkpoint_prefix(path))
    except tf.errors.OpError as error:
        raise CheckpointError(f"the checkpoint {path!r} cannot be restored: {error.message}") from error
    known = {*restored, *wholes, *optimizer_slots(specs)}
    return RestoredSession(
        {pair.tf1_name: port_names[pair.port_name] for pair in pairing.comparison.pairs},
        tuple(name for name in specs if name not in known),
    )


@dataclass(frozen=True)
class NameMapProposal:
    """Which variable of a checkpoint seems to be which of a port.

    Attributes:
      name_map: TF1 name -> name in the port, of the variables whose names differ.
      unsure: name -> reason, of what to look at: entries of ``name_map`` that might as well be others, and names on
        either side that nothing was found for.
    """

    name_map: Mapping[str, str]
    unsure: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = ["name_map = {"]
        for name, other in self.name_map.items():
            doubt = f"  # unsure: {self.unsure[name]}" if name in self.unsure else ""
            lines.append(f"    {name!r}: {other!r},{doubt}")
        lines.append("}")
        lines += [f"# {name}: {reason}" for name, reason in self.unsure.items() if name not in self.name_map]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes ``name_map`` into a JSON file, which `load_tf1_checkpoint` takes."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dict(self.name_map), file, indent=2)
            file.write("\n")


def suggest_name_map(checkpoint: Any, target: Any) -> NameMapProposal:
    """Proposes which variable of a checkpoint is which of a port, by their shapes, dtypes and names.

    >>> from detrand import VariableSpec, suggest_name_map
    >>> tf1 = {"logits/weights": VariableSpec((3, 2), "float32", True), "scale": VariableSpec((7,), "float32", True)}
    >>> port = {"head/kernel": VariableSpec((3, 2), "float32", True)}
    >>> print(suggest_name_map(tf1, port))
    name_map = {
        'logits/weights': 'head/kernel',  # unsure: the names have little in common, only the shape fits
    }
    # scale: no free variable of the target has its shape (7,) and dtype float32

    Variables are paired only if shape and dtype are equal. Where several have the same, their names decide: what they
    are called (``weights`` is a ``kernel``), the numbers in them and their letters.

    Args:
      checkpoint: the path of a name-based checkpoint, or whatever else `variables_of` takes.
      target: the port: what `variables_of` takes.

    Returns:
      The proposal; ``str()`` of it is Python to paste. Read what it is unsure of before use.

    Raises:
      CheckpointError: if the checkpoint cannot be read.
      ArgumentError: if a side is nothing that has variables, or has none.
    """
    is_path = isinstance(checkpoint, (str, os.PathLike))
    tf1 = specs_in_checkpoint("checkpoint", os.fsdecode(checkpoint)) if is_path else variables_of(checkpoint)
    port = variables_of(target)
    for argument, given, specs in (("checkpoint", checkpoint, tf1), ("target", target, port)):
        if not specs:
            raise ArgumentError(
                f"{argument}={quote(given)} has no variables. A layer has none before it is built or called for the "
                "first time; call it once, then ask for names"
            )
    slots = optimizer_slots(tf1)
    wanted = {name: spec for name, spec in tf1.items() if name not in slots or name in port}
    pairs, unsure = match_names(wanted, port)
    return NameMapProposal({name: other for name, other in pairs.items() if name != other}, unsure)


def _wholes(argument: str, source: Any) -> dict[str, JoinedVariable]:
    """Returns the variables of a program that runs eagerly, by name, the parts of one together."""
    if isinstance(source, (str, os.PathLike)):
        raise ArgumentError(
            f"{argument} must hold variables, but the path {os.fspath(source)!r} was given; pass the layer, "
            "module or variables first, and the checkpoint's path after it"
        )
    wholes = joined_variables(argument, source)
    for name, whole in wholes.items():
        if any(hasattr(part, "graph") for part in whole.parts):  # TensorFlow's eager variables raise an AttributeError
            raise ArgumentError(
                f"{argument} holds {name!r}, which is a variable of a tf.Graph; for those use "
                "tf.compat.v1.train.Saver in a session"
            )
    return wholes


def _assign_all(named: Sequence[tuple[str, Any]], values: Sequence[tf.Tensor]) -> None:
    """Assigns every value, or none."""
    former: list[tuple[Any, tf.Tensor]] = []
    for name, variable in named:
        try:
            # What a distribution strategy keeps of a variable on each device may differ between them.
            former += [(one, _former_value(one)) for one in getattr(variable, "values", (variable,))]
        except Exception as error:
            raise CheckpointError(
                f"variable {name!r} cannot be read ({_reason(error)}), and so could not be put back if loading failed; "
                "no variable was changed. Make the target anew, and call it once"
            ) from error
    for (name, variable), value in zip(named, values, strict=True):
        try:
            _assign(variable, value)
        except BaseException as error:
            lost = _put_back(former)
            if not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"variable {name!r} cannot be assigned ({_reason(error)}); "
                + (f"{lost} values could not be put back" if lost else "no variable was changed")
            ) from error


def _former_value(variable: Any) -> tf.Tensor:
    if isinstance(variable, tf.Variable) and not variable.is_initialized():  # such as one of a function that failed
        raise ValueError("it has never been initialized")
    return _value(variable)


def _put_back(former: Sequence[tuple[Any, tf.Tensor]]) -> int:
    """Gives variables their former values again, and returns how many of them have others."""
    lost = 0
    for variable, value in former:
        try:
            if not tf.reduce_all(tf.equal(_value(variable), value)):
                _assign(variable, value)
        except Exception:
            lost += 1
    return lost


def _assign(variable: Any, value: tf.Tensor) -> None:
    variable.assign(value if isinstance(variable, tf.Variable) else value.numpy())


def _value(variable: Any) -> Any:
    return variable.read_value() if isinstance(variable, tf.Variable) else tf.constant(np.asarray(variable.numpy()))


@contextlib.contextmanager
def _eagerly(function: str) -> Iterator[None]:
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise ArgumentError(
                f"{function} was called in a tf.Graph, where nothing is read or assigned at once; call it outside of "
                "the graph, without tf.compat.v1.disable_eager_execution()"
            )
        yield


def _as_path(argument: str, path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(
            f"{argument} must be the path of a checkpoint, but {quote(path)} of type {type(path).__name__} was "
            "given; pass its prefix, as in 'dir/model.ckpt-100'"
        )
    return os.fsdecode(path)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
