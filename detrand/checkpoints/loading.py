"""Loading and saving of name-based TF1 checkpoints, and proposals for name maps.

A checkpoint is a dict of name -> tensor. `load_tf1_checkpoint` first pairs its names with a port's variables, then
reads every value, and assigns only when all of that has succeeded: either all variables are loaded, or none.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.variables import save_slice, slice_spec
from detrand.arguments import plural, quote, titled_list, wrong_type
from detrand.checkpoints.pairing import (
    NameMapProposal,
    RestoredSession,
    Stored,
    check_fit,
    pair_variables,
    read_name_map,
)
from detrand.checkpoints.training_state import AVERAGE, optimizer_slots
from detrand.errors import ArgumentError, CheckpointError
from detrand.seeding.callsite import describe_error
from detrand.variables.checkpoint_files import checkpoint_prefix, checkpoint_specs
from detrand.variables.comparison import NameMap, mapped_name
from detrand.variables.forms import ModuleVariable, Rearranged, has_same_elements
from detrand.variables.pairing import pair_in_order
from detrand.variables.rnn_cells import recurrent_cells
from detrand.variables.sources import JoinedVariable, assign, joined_variables, spec_of, specs_of
from detrand.variables.spec import is_compatible
from detrand.variables.tf1_view import TF1View


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The result of `load_tf1_checkpoint`.

    Attributes:
      loaded: the checkpoint's names of the variables that were loaded.
      left_over: the checkpoint's names of what the target has no variable for: optimizer slots, moving averages, the
        step counter, and what ``name_map`` leaves out.
    """

    loaded: tuple[str, ...]
    left_over: tuple[str, ...]

    def __str__(self) -> str:
        loaded = f"{plural(len(self.loaded), 'variable')} loaded"
        return "\n".join([loaded, *titled_list("left over in the checkpoint", self.left_over)])


def load_tf1_checkpoint(
    target: Any, path: str | os.PathLike[str], name_map: NameMap | str | os.PathLike[str] | None = None
) -> LoadedCheckpoint:
    """Load a name-based TF1 checkpoint into the variables of a port, either all of it or nothing.

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

    Optimizer slots (``w/Momentum``, ``w/Adam_1``, ``beta1_power``), moving averages, ``global_step`` and what
    ``name_map`` leaves out may be left over. Every other variable of the checkpoint must have a counterpart in the
    target, and every variable of the target must have one in the checkpoint. A partitioned variable counts as one
    variable, however many parts it has in the checkpoint and in the target.

    To load the moving averages instead of the variables, map their names to the variables' names:
    ``name_map=lambda name: name.removesuffix("/ExponentialMovingAverage")``. The variables are then left over.

    Args:
      target: a layer or model of Keras 3 or tf_keras (called once, so that it has variables), a `tf.Module`, a
        `torch.nn.Module`, a `flax.nnx.Module`, a list of those or of variables, or a dict of name -> variable. Names
        are those of `variables_of`.
      path: the checkpoint's prefix (V1 or V2), or a directory (its latest checkpoint is loaded).
      name_map: a dict of TF1 name -> name in the target, with an entry for each variable whose names differ; or a
        function that is called with each name in the checkpoint and returns the name in the target; or the path of a
        JSON file with such a dict. None instead of a name leaves the variable out: ``{"epoch": None}``. Variables that
        the target has in a different form have a `Rearranged` in place of a name.

    Returns:
      The names of the variables that were loaded and of those that were left over.

    Raises:
      CheckpointError: if the checkpoint cannot be read, is object-based or does not fit the target, or if a variable
        cannot be assigned. The message lists every variable that does not fit. No variable has been changed.
      ArgumentError: if the target has no variables or they are in a `tf.Graph`, or ``name_map`` has an entry for a name
        that is not in the checkpoint, maps two names to one, or is not a map.
    """
    path = _as_path("path", path)
    joined = _joined("target", target)
    specs = checkpoint_specs("path", path)
    program = {name: variable.spec for name, variable in joined.items()}
    pairing = pair_variables(specs, program, read_name_map(name_map), _fits)
    check_fit(path, pairing.comparison)
    loaded = tuple(pairing.comparison.port_names)
    with _eagerly("load_tf1_checkpoint"):
        values = dict(zip(loaded, read_values(path, [pairing.stored[name] for name in loaded]), strict=True))
        view = TF1View(joined, pairing.name_map, {name: tuple(value.shape) for name, value in values.items()})
        names = {id(part): name for name, variable in joined.items() for part in variable.parts}
        parts = [(view.parts[position], value) for position, value in view.to_parts(values, values=True).items()]
        _assign_all([(names[id(part)], part, value) for part, value in parts])
    return LoadedCheckpoint(loaded, pairing.left_over)


def _fits(shape: Any, other: Any) -> bool:
    return is_compatible(shape, other) or has_same_elements(shape, other)


def check_checkpoint(argument: str, path: str) -> None:
    """Read every variable of a checkpoint once, one after the other.

    Raises:
      CheckpointError: if that fails.
    """
    stored = [Stored((name,), spec.dtype) for name, spec in checkpoint_specs(argument, path).items()]
    for _ in read_values(path, stored):
        pass


def read_values(path: str, wanted: Iterable[Stored]) -> Iterator[tf.Tensor]:
    """Read variables from a checkpoint, V1 or V2, eagerly.

    Raises:
      CheckpointError: if a value cannot be read.
    """
    prefix = checkpoint_prefix(path)
    for stored in wanted:
        try:
            values = []
            for name in stored.names:
                values += tf.raw_ops.RestoreV2(
                    prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[tf.as_dtype(stored.dtype)]
                )
        except tf.errors.OpError as error:
            raise CheckpointError(
                f"the checkpoint {path!r} is damaged: its values cannot be read ({_reason(error)}; first damaged "
                f"variable: {name!r}). No variable was changed. Copy the checkpoint again, with all of its files"
            ) from error
        yield values[0] if stored.axis is None else tf.concat(values, stored.axis)


def _reason(error: tf.errors.OpError) -> str:
    """Return the message of an eager op, without the op's name."""
    return re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", error.message)


def save_tf1_checkpoint(
    source: Any, path: str | os.PathLike[str], name_map: Mapping[str, str] | str | os.PathLike[str] | None = None
) -> str:
    """Save variables under their TF1 names, in a V2 checkpoint that a ``tf.compat.v1.train.Saver`` restores.

    >>> import tempfile
    >>> from detrand import save_tf1_checkpoint, variables_of
    >>> path = save_tf1_checkpoint([tf.Variable([1.0, 2.0], name="net/w")], tempfile.mkdtemp() + "/model.ckpt")
    >>> variables_of(path)
    {'net/w': VariableSpec(shape=(2,), dtype='float32', trainable=None)}

    The parts of a partitioned variable are saved as slices of one variable, as a Saver does. The directory's
    ``checkpoint`` file then names this checkpoint as the latest. There is no ``.meta`` file, which would hold a graph.

    Args:
      source: the variables: any ``target`` that `load_tf1_checkpoint` takes. Names are those of `variables_of`.
      path: the checkpoint's prefix; its directory must exist. An existing checkpoint is replaced as soon as the new
        one is complete.
      name_map: a dict of TF1 name -> name in the source, with an entry for each variable whose names differ; or the
        path of a JSON file with such a dict. Kernels of layers of PyTorch and Flax are saved in TF1's form, all other
        values as they are.

    Returns:
      The prefix.

    Raises:
      ArgumentError: if there are no variables, they are in a `tf.Graph`, or ``path`` is not a prefix in a directory;
        or if ``name_map`` has an entry that is no name in the source, or gives two variables one name.
      CheckpointError: if writing fails.
    """
    path = _as_path("path", path)
    folder, base = os.path.split(path)
    if not base or os.path.isdir(path):
        raise ArgumentError(f"path={path!r} is a directory. Pass a prefix in it, such as 'dir/model.ckpt'")
    if folder and not os.path.isdir(folder):
        raise ArgumentError(f"path={path!r} is in {folder!r}, which is not a directory. Create it first")
    joined = _under_tf1_names(_joined("source", source), read_name_map(name_map) or {})
    named = [(name, part) for name, variable in joined.items() for part in variable.parts]
    unfinished = f"{path}_temp_{uuid.uuid4().hex}"
    with _eagerly("save_tf1_checkpoint"):
        try:
            tf.raw_ops.SaveV2(
                prefix=f"{unfinished}/part",
                tensor_names=[name for name, _ in named],
                shape_and_slices=[slice_spec(part) for _, part in named],
                tensors=[_value_in_tf1(part) for _, part in named],
            )
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[f"{unfinished}/part"],
                destination_prefix=f"{unfinished}/{base}",
                delete_old_dirs=False,
            )
            # The one with the data, then the index, which says what is where in the data.
            for file in sorted(each for each in tf.io.gfile.listdir(unfinished) if each.startswith(f"{base}.")):
                tf.io.gfile.rename(f"{unfinished}/{file}", os.path.join(folder, file), overwrite=True)
            tf.compat.v1.train.update_checkpoint_state(folder or ".", path, [path])
        except tf.errors.OpError as error:
            reason = _reason(error).replace(f"{unfinished}/{base}", path)
            raise CheckpointError(f"the checkpoint {path!r} cannot be written: {reason}") from error
        finally:
            if tf.io.gfile.exists(unfinished):
                tf.io.gfile.rmtree(unfinished)
    return path


def _under_tf1_names(variables: Mapping[str, Any], name_map: Any) -> dict[str, Any]:
    """Return variables by the TF1 names that a name map has for theirs."""
    if not isinstance(name_map, Mapping):
        remedy = "a function cannot be read backwards, from the name in the source to TF1's"
        raise wrong_type("name_map", name_map, "a dict of TF1 name -> name in the source", remedy)
    for name, other in name_map.items():
        if isinstance(other, Rearranged):
            raise ArgumentError(f"name_map rearranges {name!r}, and save_tf1_checkpoint only renames variables")
        if other not in variables:
            close = difflib.get_close_matches(str(other), variables, n=1)
            advice = f"Did you mean {close[0]!r}?" if close else "Remove the entry"
            raise ArgumentError(f"name_map maps {name!r} to {other!r}, which the source does not have. {advice}")
    tf1_names = {other: name for name, other in name_map.items()}
    named = {tf1_names.get(name, name): variable for name, variable in variables.items()}
    if len(named) < len(variables) or len(tf1_names) < len(name_map):
        raise ArgumentError("name_map gives two variables one name. Each needs a TF1 name of its own")
    return named


def restore_session(session: tf.compat.v1.Session, path: str, name_map: NameMap | None) -> RestoredSession:
    """Restore the global variables of a TF1 session with a Saver, from the values that the port's variables get.

    If ``name_map`` maps a variable and its moving average to one name, the variable is restored from the average.

    Raises:
      CheckpointError: if the checkpoint cannot be read, or lacks a variable or has it with a different shape or dtype.
      ArgumentError: for a ``name_map`` that cannot be used.
    """
    joined = joined_variables("tf1", session.graph)
    specs = checkpoint_specs("checkpoint", path)
    tf1_names = {mapped_name(name_map, name): name for name in joined}

    def tf1_name(name: str) -> str | None:
        if name in joined:
            return name
        found = tf1_names.get(mapped_name(name_map, name))
        return found if name.endswith(AVERAGE) or found not in specs else None

    pairing = pair_variables(specs, {name: variable.spec for name, variable in joined.items()}, tf1_name)
    check_fit(path, pairing.comparison, "the TF1 program")
    restored: dict[str, Any] = {}
    for pair in pairing.comparison.pairs:
        stored, parts = pairing.stored[pair.tf1_name], joined[pair.port_name].parts
        if stored.axis is None:
            restored[pair.tf1_name] = parts if save_slice(parts[0]) else parts[0]
            continue
        shapes, shapes_of_parts = [specs[name].shape for name in stored.names], [spec_of(part).shape for part in parts]
        if shapes != shapes_of_parts:
            raise CheckpointError(
                f"the checkpoint {path!r} holds {', '.join(stored.names)} as separate variables of the shapes "
                f"{shapes}, but the TF1 program has parts of the shapes {shapes_of_parts}, and a Saver cannot re-split "
                "separate variables. Use the partitioner that the checkpoint was saved with"
            )
        restored.update(zip(stored.names, parts, strict=True))
    try:
        tf.compat.v1.train.Saver(restored).restore(session, checkpoint_prefix(path))
    except tf.errors.OpError as error:
        raise CheckpointError(f"the checkpoint {path!r} cannot be restored: {describe_error(error)}") from error
    known = {*restored, *joined, *optimizer_slots(specs)}
    return RestoredSession(
        {pair.tf1_name: pair.port_name for pair in pairing.comparison.pairs},
        tuple(name for name in specs if name not in known),
    )


def suggest_name_map(checkpoint: Any, target: Any) -> NameMapProposal:
    """Propose a name map from a checkpoint's variables to a port's, by their shapes, dtypes and names.

    >>> from detrand import VariableSpec, suggest_name_map
    >>> tf1 = {"logits/weights": VariableSpec((3, 2), "float32", True), "scale": VariableSpec((7,), "float32", True)}
    >>> port = {"head/kernel": VariableSpec((3, 2), "float32", True)}
    >>> print(suggest_name_map(tf1, port))
    name_map = {
        'logits/weights': 'head/kernel',
    }
    # scale: no variable left in the target has shape (7,) and dtype float32

    Equal names are paired first; a scope before all names of one program does not count. Then variables of equal dtype,
    size and role are paired in the order of their creation. The role is what the last part of a name says (``biases``
    corresponds to ``bias``), and ``(1, 1, 2048, 1000)`` is as large as ``(2048, 1000)``. A checkpoint's names are in
    the order of the numbers in them. `validate` pairs better, because it sees how both programs use the variables.

    Args:
      checkpoint: the path of a name-based checkpoint, or anything else that `variables_of` takes.
      target: the port: anything that `variables_of` takes.

    Returns:
      The proposal; its ``str()`` is Python code to paste. Check the entries marked as guesses before use.

    Raises:
      CheckpointError: if the checkpoint cannot be read.
      ArgumentError: if ``checkpoint`` or ``target`` has no variables.
    """
    tf1, port = specs_of("checkpoint", checkpoint), specs_of("target", target)
    _check_has_variables("checkpoint", checkpoint, tf1)
    _check_has_variables("target", target, port)
    slots = optimizer_slots(tf1)
    wanted = {name: spec for name, spec in tf1.items() if name not in slots or name in port}
    cells = recurrent_cells(wanted, port)
    of_cells = {name for key, cell in cells.items() for name in (*key, *cell.port_names)}
    rest = ({name: spec for name, spec in specs.items() if name not in of_cells} for specs in (wanted, port))
    pairs = pair_in_order(*rest)
    name_map = {name: other for name, other in pairs.names.items() if name != other}
    return NameMapProposal({**cells, **name_map}, pairs.doubts, pairs.in_order)


def _joined(argument: str, source: Any) -> dict[str, JoinedVariable]:
    """Return the joined variables of a program that runs eagerly, by name."""
    joined = joined_variables(argument, source)
    _check_has_variables(argument, source, joined)
    for name, variable in joined.items():
        # TensorFlow's eager variables raise an AttributeError.
        if any(hasattr(part, "graph") for part in variable.parts):
            raise ArgumentError(
                f"{argument} holds {name!r}, which is a variable of a tf.Graph. Use tf.compat.v1.train.Saver in a "
                "session for it"
            )
    return joined


def _check_has_variables(argument: str, source: Any, found: Mapping[str, Any]) -> None:
    if not found:
        raise ArgumentError(
            f"{argument}={quote(source)} has no variables. A layer has none before it is built or called. Call it once "
            "first"
        )


def _assign_all(assignments: Iterable[tuple[str, Any, tf.Tensor]]) -> None:
    """Assign every value to its named variable, or none."""
    former: list[tuple[Any, tf.Tensor]] = []
    for name, variable, value in assignments:
        try:
            # A distribution strategy's variable has a value on each device, and these may differ.
            former += [(one, _former_value(one)) for one in getattr(variable, "values", (variable,))]
            assign(variable, value)
        except BaseException as error:
            lost = _put_back(former)
            if not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"variable {name!r} cannot be assigned ({type(error).__name__}: {' '.join(str(error).split())}). "
                + (f"{plural(lost, 'value')} could not be restored" if lost else "No variable was changed")
            ) from error


def _former_value(variable: Any) -> tf.Tensor:
    if isinstance(variable, tf.Variable) and not variable.is_initialized():  # created in a tf.function that failed
        raise ValueError("it has never been initialized; create the target again, and call it once")
    return _value(variable)


def _put_back(former: Sequence[tuple[Any, tf.Tensor]]) -> int:
    """Give variables their former values back, and return for how many that failed."""
    lost = 0
    for variable, value in former:
        try:
            if not tf.reduce_all(tf.equal(_value(variable), value)):
                assign(variable, value)
        except Exception:
            lost += 1
    return lost


def _value(variable: Any) -> Any:
    return variable.read_value() if isinstance(variable, tf.Variable) else tf.constant(np.asarray(variable.numpy()))


def _value_in_tf1(variable: Any) -> Any:
    return variable.numpy_in_tf1() if isinstance(variable, ModuleVariable) else _value(variable)


@contextlib.contextmanager
def _eagerly(function: str) -> Iterator[None]:
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise ArgumentError(
                f"{function} was called in a tf.Graph, where variables have no values to read or assign. Call it "
                "outside the graph, without tf.compat.v1.disable_eager_execution()"
            )
        yield


def _as_path(argument: str, path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type(argument, path, "the path of a checkpoint", "pass its prefix, as in 'dir/model.ckpt-100'")
    return os.fsdecode(path)
