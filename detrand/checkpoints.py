"""Name-based TF1 checkpoints: loaded into a port, saved from one, and their names paired with a port's.

A checkpoint is a dict of name -> tensor. `variables_of` says what is in it and in the target, `compare_specs` pairs
the two. Only when all of them fit, and every value has been read, is the first variable assigned.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from detrand import _patching
from detrand.errors import ArgumentError, CheckpointError
from detrand.name_matching import match_names
from detrand.variable_specs import NameMap, Pair, VariablesComparison, VariableSpec, compare_specs
from detrand.variables import checkpoint_prefix, checkpoint_specs, named_variables, spec_of, variables_of


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
            [f"{len(self.loaded)} variables loaded", *_section("left over in the checkpoint", self.left_over)]
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
    ``global_step`` may be left over. Any other variable of the checkpoint without one in the target, and any of the
    target without one in the checkpoint, is an error. A partitioned variable is one variable, however many parts
    it has in the checkpoint and in the target.

    To load the moving averages in place of the variables, map them:
    ``name_map=lambda name: name.removesuffix("/ExponentialMovingAverage")``. The variables are then left over.

    Args:
      target: a layer or model of Keras 3 or tf_keras (called once, so that it has variables), a `tf.Module`, a list
        of those or of variables, or a dict of name -> variable. Names are those of `variables_of`.
      path: the checkpoint's prefix (V1 or V2), or a directory whose latest checkpoint counts.
      name_map: TF1 name -> name in the target, for the variables whose names differ; or a function from the one to
        the other, called for each name in the checkpoint; or the path of a JSON file with such a dict.

    Returns:
      The names of what was loaded and of what was left over.

    Raises:
      CheckpointError: if the checkpoint cannot be read or is object-based; or with a list of everything that is
        missing in it, left over in it, or of another shape or dtype. No variable has been touched.
      ArgumentError: if the target has no variables or they are in a `tf.Graph`, or ``name_map`` has an entry for
        a name that is not in the checkpoint, gives two of them one name, or is no map.
    """
    path = _as_path("path", path)
    wholes = _wholes("target", target)
    if not wholes:
        raise ArgumentError(
            f"there is nothing to load into: target={_short(target)} has no variables. A layer has none before it is "
            "built or called for the first time; call it once, then load the checkpoint"
        )
    specs = checkpoint_specs("path", path)
    target_specs = {name: whole.spec for name, whole in wholes.items()}
    comparison, left_over = _paired(specs, target_specs, _read_name_map(name_map))
    _check_fit(path, comparison)
    with _eagerly("load_tf1_checkpoint"):
        parts = [(pair, part) for pair in comparison.pairs for part in wholes[pair.tf2_name].parts]
        for (_, part), value in zip(parts, _restored(path, parts), strict=True):
            part.assign(value if isinstance(part, tf.Variable) else value.numpy())
    return LoadedCheckpoint(tuple(pair.tf1_name for pair in comparison.pairs), left_over)


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
            f"there is nothing to save: source={_short(source)} has no variables. A layer has none before it is built "
            "or called for the first time"
        )
    named = [(name, part) for name, whole in wholes.items() for part in whole.parts]
    unfinished = f"{path}_temp_{uuid.uuid4().hex}"
    with _eagerly("save_tf1_checkpoint"):
        try:
            tf.raw_ops.SaveV2(
                prefix=f"{unfinished}/part",
                tensor_names=[name for name, _ in named],
                shape_and_slices=[_patching.slice_spec(part) for _, part in named],
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
    tf1, port = variables_of(checkpoint), variables_of(target)
    for argument, given, specs in (("checkpoint", checkpoint, tf1), ("target", target, port)):
        if not specs:
            raise ArgumentError(
                f"{argument}={_short(given)} has no variables. A layer has none before it is built or called for the "
                "first time; call it once, then ask for names"
            )
    slots = optimizer_slots(tf1)
    wanted = {name: spec for name, spec in tf1.items() if name not in slots or name in port}
    pairs, unsure = match_names(wanted, port)
    return NameMapProposal({name: other for name, other in pairs.items() if name != other}, unsure)


@dataclass(frozen=True)
class _Whole:
    """A variable, or all parts of a partitioned one."""

    spec: VariableSpec
    parts: list[Any]


def _wholes(argument: str, source: Any) -> dict[str, _Whole]:
    if isinstance(source, (str, os.PathLike)):
        raise ArgumentError(
            f"{argument} must hold variables, but the path {os.fspath(source)!r} was given; pass the layer, "
            "module or variables first, and the checkpoint's path after it"
        )
    wholes: dict[str, _Whole] = {}
    for name, variable in named_variables(source).items():
        part = _patching.underlying_variable(variable)
        if hasattr(part, "graph"):  # TensorFlow's eager variables raise an AttributeError
            raise ArgumentError(
                f"{argument} holds {name!r}, which is a variable of a tf.Graph; for those use "
                "tf.compat.v1.train.Saver in a session"
            )
        spec, whole = spec_of(variable), _patching.save_slice(part)
        if whole is None:
            wholes[name] = _Whole(spec, [part])
            continue
        known = wholes.setdefault(whole[0], _Whole(VariableSpec(whole[1], spec.dtype, spec.trainable), []))
        if any(_patching.slice_spec(part) == _patching.slice_spec(other) for other in known.parts):
            raise ArgumentError(
                f"{argument} holds several partitioned variables of the name {whole[0]!r}; pass the layers that "
                "they belong to one after the other"
            )
        known.parts.append(part)
    return wholes


def _paired(
    specs: dict[str, VariableSpec], target: dict[str, VariableSpec], name_map: NameMap | None
) -> tuple[VariablesComparison, tuple[str, ...]]:
    """Pairs a checkpoint's variables with the target's, and returns the names of what need not be loaded as well."""
    if callable(name_map):
        name_map = {name: _called(name_map, name) for name in specs}
        given: set[str] = set()
    else:
        given = set(name_map) if isinstance(name_map, Mapping) else set()
    expected = {name: name_map.get(name, name) if isinstance(name_map, Mapping) else name for name in specs}
    wanted = dict(specs)
    for slot in optimizer_slots(specs):
        other, variable = expected[slot], slot.removesuffix(_AVERAGE)
        if slot not in given and not (isinstance(other, str) and other in target):
            del wanted[slot]
        elif variable != slot and variable not in given and expected.get(variable) == other:
            wanted.pop(variable, None)  # its moving average is loaded in its place
    if isinstance(name_map, Mapping):
        name_map = {name: other for name, other in name_map.items() if name in wanted or name not in specs}
    return compare_specs(wanted, target, name_map), tuple(name for name in specs if name not in wanted)


def _called(name_map: Callable[[str], str], name: str) -> str:
    try:
        return name_map(name)
    except Exception as error:
        raise ArgumentError(
            f"name_map raised {type(error).__name__}({error}) for {name!r}; it is called for each name in the "
            "checkpoint and must return one"
        ) from error


_AVERAGE = "/ExponentialMovingAverage"
# What the optimizers of TF1, of tf.keras in TF1 graphs and of BERT call the variables that they keep beside a variable.
_SLOT = re.compile(
    r"(Momentum|Adam|RMSProp|Adagrad|AdagradDA|ProximalAdagrad|Adadelta|Ftrl|AdaMax|adam_m|adam_v"
    r"|ExponentialMovingAverage|biased|local_step|m|v|vhat|mg|rms|momentum|accumulator)(_\d+)?"
)
_BOOKKEEPING = re.compile(
    r"(.*/)?(global_step|beta[12]_power(_\d+)?"
    r"|(Adam|SGD|RMSprop|Adagrad|Adadelta|Adamax|Nadam|Ftrl)(_\d+)?"
    r"/(iter|decay|learning_rate|beta_1|beta_2|rho|momentum))"
)


def optimizer_slots(specs: Mapping[str, VariableSpec]) -> list[str]:
    """Returns the names of what is in a checkpoint for its training alone: slots, averages and step counters."""
    return [name for name, spec in specs.items() if _is_slot(name, spec, specs)]


def _is_slot(name: str, spec: VariableSpec, specs: Mapping[str, VariableSpec]) -> bool:
    if _BOOKKEEPING.fullmatch(name):
        return spec.shape == ()
    base, _, slot = name.rpartition("/")
    if base in specs:
        # Optimizers may have any name; whatever else is named as if inside a variable has another shape.
        return bool(_SLOT.fullmatch(slot)) or _same_kind(spec, specs[base])
    if not _SLOT.fullmatch(slot):
        return False
    # An optimizer in a scope: scope/w/Adam; of a partitioned w, of whose slot TensorFlow cuts the name at the wrong
    # place, w/pe/part_0/Adam.
    words = base.split("/")
    inside = [words[:end] for end in range(1, len(words))] + [words[start:] for start in range(1, len(words))]
    return any(_same_kind(spec, specs.get("/".join(run))) for run in inside)


def _same_kind(spec: VariableSpec, other: VariableSpec | None) -> bool:
    return other is not None and (spec.shape, spec.dtype) == (other.shape, other.dtype)


def _read_name_map(name_map: Any) -> Any:
    if not isinstance(name_map, (str, os.PathLike)):
        return name_map
    path = os.fspath(name_map)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"name_map={path!r} is no JSON file that can be read ({error}); give the path of a file with a dict of "
            "TF1 name -> name in the target, or the dict itself"
        ) from error
    if not isinstance(found, dict):
        raise ArgumentError(
            f"name_map={path!r} holds a {type(found).__name__}; it must hold one dict of TF1 name -> name in the target"
        )
    return found


def _check_fit(path: str, comparison: VariablesComparison) -> None:
    shape_differs = [pair for pair in comparison.pairs if not _compatible(pair)]
    expected = comparison.expected_names
    missing, left_over = comparison.only_in_tf2, comparison.only_in_tf1
    counts = [
        f"{len(items)} {text}"
        for items, text in (
            (missing, "missing in it"),
            (left_over, "left over in it"),
            (shape_differs, "of another shape"),
            (comparison.dtype_differs, "of another dtype"),
        )
        if items
    ]
    if not counts:
        return
    lines = [f"the checkpoint {path!r} does not fit the target: {', '.join(counts)}; no variable was changed"]
    lines += _section("missing in the checkpoint", [f"{name}: {spec}" for name, spec in missing.items()])
    lines += _section(
        "left over in the checkpoint",
        [f"{_both(name, expected[name])}: {spec}" for name, spec in left_over.items()],
    )
    for title, pairs in (("shape", shape_differs), ("dtype", comparison.dtype_differs)):
        found = [
            f"{pair.name}: {getattr(pair.tf1, title)} in the checkpoint, {getattr(pair.tf2, title)} in the target"
            for pair in pairs
        ]
        lines += _section(f"{title} differs", found)
    renames = comparison.likely_renames()
    if renames:
        lines += ["perhaps only names differ; if so, pass name_map={"]
        lines += [f"  {name!r}: {other!r}," for name, other in renames.items()]
        lines += ["}"]
    if left_over and not missing:
        lines += ["a layer has the variables of inner layers only after it was called: call the target once first"]
    raise CheckpointError("\n".join(lines))


def _compatible(pair: Pair) -> bool:
    return tf.TensorShape(pair.tf1.shape).is_compatible_with(tf.TensorShape(pair.tf2.shape))


def _both(tf1_name: str, name: str) -> str:
    return tf1_name if tf1_name == name else f"{tf1_name} ({name} by name_map)"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    return [f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)] if lines else []


def _restored(path: str, parts: list[tuple[Pair, Any]]) -> list[tf.Tensor]:
    """Reads all values, in one op that reads V1 and V2, and a slice as well as a whole."""
    try:
        return tf.raw_ops.RestoreV2(
            prefix=checkpoint_prefix(path),
            tensor_names=[pair.tf1_name for pair, _ in parts],
            shape_and_slices=[_patching.slice_spec(part) for _, part in parts],
            dtypes=[tf.as_dtype(pair.tf1.dtype) for pair, _ in parts],
        )
    except tf.errors.OpError as error:
        raise CheckpointError(
            f"the checkpoint {path!r} is damaged: its values cannot be read ({error.message}); no variable was "
            "changed. Copy the checkpoint again, all of its files"
        ) from error


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
            f"{argument} must be the path of a checkpoint, but {_short(path)} of type {type(path).__name__} was "
            "given; pass its prefix, as in 'dir/model.ckpt-100'"
        )
    return os.fsdecode(path)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
