"""The variables of a program, by the names that they have in a TF1 checkpoint.

Of a source (a TF1 graph, a layer or module, a list or dict, a checkpoint), `specs_of` returns name -> `VariableSpec`,
`joined_variables` name -> `JoinedVariable`, and `named_variables` name -> variable.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detrand._patching.keras import (
    flattened_layers,
    is_instance_of_loaded,
    is_seed_state,
    module_leaves,
    underlying_variable,
)
from detrand._patching.variables import save_slice, slice_spec
from detrand.arguments import quote, wrong_type
from detrand.errors import ArgumentError
from detrand.packages import tf
from detrand.variables.checkpoint_files import checkpoint_specs
from detrand.variables.flax_modules import flax_variables, is_flax_module, paths_of_modules
from detrand.variables.forms import ModuleVariable
from detrand.variables.spec import VariableSpec, dtype_name, shape_tuple
from detrand.variables.torch_modules import is_torch_module, parts_of_module, torch_variables

_ACCEPTED = (
    "a tf.Graph, a layer or model of Keras 3 or tf_keras, a tf.Module, a torch.nn.Module, a flax.nnx.Module, a list or "
    "tuple of those or of variables, a dict of name -> variable, the path of a name-based checkpoint, or the result of "
    "variables_of"
)


def variables_of(source: Any) -> dict[str, VariableSpec]:
    """Return the specs of a program's variables, by the names that they have in a TF1 checkpoint.

    >>> import tensorflow as tf
    >>> from detrand import variables_of
    >>> with tf.Graph().as_default() as graph, tf.compat.v1.variable_scope("net"):
    ...     _ = tf.compat.v1.get_variable("w", [3, 2])
    >>> variables_of(graph)
    {'net/w': VariableSpec(shape=(3, 2), dtype='float32', trainable=True)}

    The name of a variable is

      - for a TensorFlow variable, its name without ``:0``; a partitioned variable counts as one variable;
      - for a Keras 3 variable, its path (``"model/dense/kernel"``);
      - for a parameter or buffer of a ``torch.nn.Module``, its name in the ``state_dict`` (``"dense.weight"``);
      - for a variable of a ``flax.nnx.Module``, its path in the ``nnx.state`` (``"dense.kernel"``);
      - for a variable that TF1 code creates in a method decorated with `track_tf1_style_variables`, its TF1 name,
        wherever in a model that layer or module is.

    If several variables have the same name, as all unnamed ``tf.Variable`` objects in TF2 do, the later ones are
    numbered as in a TF1 graph (``Variable``, ``Variable_1``), so that none is lost.

    The variables of a frozen layer of tf_keras are not trainable, although their own flags say so. In a `tf.Module`,
    these flags count, as they do for its ``trainable_variables``.

    The variables of a layer are its weights. The state of metrics, optimizers and seed generators is left out, also
    out of lists. The variables of a graph are its global variables, in the order of their creation. Those of a layer,
    module or list keep its order; those of a checkpoint are sorted by name.

    Args:
      source: a `tf.Graph`, a layer or model of Keras 3 or tf_keras, a `tf.Module`, a `torch.nn.Module`, a
        `flax.nnx.Module`, a list or tuple of those or of variables, a dict of name -> variable or `VariableSpec`, the
        path of a name-based checkpoint (V1 or V2) or of a directory (its latest checkpoint is read), or the result of
        an earlier call.

    Returns:
      Name -> `VariableSpec`.

    Raises:
      ArgumentError: if ``source`` is none of these.
      CheckpointError: (an `ArgumentError`) if the checkpoint is missing, damaged or object-based.
    """
    return specs_of("source", source)


def specs_of(argument: str, source: Any) -> dict[str, VariableSpec]:
    """Return what `variables_of` returns; errors call the source by the caller's argument."""
    if isinstance(source, (str, os.PathLike)):
        return checkpoint_specs(argument, os.fsdecode(source))
    return {name: variable.spec for name, variable in _joined(_named(argument, source), _frozen(source)).items()}


@dataclass(frozen=True)
class JoinedVariable:
    """A variable, or all parts of a partitioned one in order; there are no parts if only the spec is known."""

    spec: VariableSpec
    parts: list[Any]

    def joined(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return one array from an array for each part."""
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, self._axis())

    def cut(self, array: Any) -> list[Any]:
        """Return the slice of an array or a tensor for each part."""
        if len(self.parts) == 1:
            return [array]
        axis = self._axis()
        ends = list(itertools.accumulate(part.shape[axis] for part in self.parts))
        before = (slice(None),) * axis
        indices = [(*before, slice(start, end)) for start, end in itertools.pairwise([0, *ends])]
        return [array[index] for index in indices]

    def _axis(self) -> int:
        # TensorFlow partitions a variable along one axis.
        whole = self.spec.shape or ()
        return next(axis for axis, size in enumerate(self.parts[0].shape) if size != whole[axis])


def joined_variables(argument: str, source: Any) -> dict[str, JoinedVariable]:
    """Return the joined variables, by name, of a source that `named_variables` takes."""
    return _joined(list(named_variables(source, argument).items()), _frozen(source))


def _joined(named: list[tuple[str, Any]], frozen: Collection[int]) -> dict[str, JoinedVariable]:
    joined: list[tuple[str, JoinedVariable]] = []
    partitioned: dict[Any, JoinedVariable] = {}
    for name, item in named:
        if isinstance(item, VariableSpec):
            joined.append((name, JoinedVariable(item, [])))
            continue
        part, spec = underlying_variable(item), spec_of(item)
        spec = replace(spec, trainable=spec.trainable and id(part) not in frozen)
        whole = save_slice(part)
        if whole is None:
            joined.append((name, JoinedVariable(spec, [part])))
            continue
        known = partitioned.get(whole)
        if known is None or any(slice_spec(part) == slice_spec(other) for other in known.parts):
            known = partitioned[whole] = JoinedVariable(VariableSpec(whole[1], spec.dtype, spec.trainable), [])
            joined.append((whole[0], known))
        known.parts.append(part)
    return _by_unique_name(joined)


def named_variables(source: Any, argument: str = "source") -> dict[str, Any]:
    """Return a program's variables, also each part of a partitioned one, by the names that `variables_of` uses."""
    if isinstance(source, (str, os.PathLike)):
        raise ArgumentError(
            f"{argument} must hold variables, but the checkpoint path {source!r} was given. Pass the graph, layer or "
            "variables"
        )
    named = _named(argument, source)
    for name, variable in named:
        if isinstance(variable, VariableSpec):
            raise ArgumentError(
                f"{argument} must hold variables, but {quote(source)} holds the VariableSpec {name!r}. Pass the graph, "
                "layer or variables that the spec describes"
            )
    return _by_unique_name(named)


def spec_of(variable: Any) -> VariableSpec:
    """Return the spec of a variable of TensorFlow or Keras."""
    dtype = variable.dtype if isinstance(variable.dtype, str) else dtype_name(variable.dtype)
    form = (variable.tf1_shape, variable.from_tf1) if isinstance(variable, ModuleVariable) else (None, None)
    return VariableSpec(shape_tuple(variable.shape), dtype, bool(variable.trainable), *form)


def assign(variable: Any, value: Any) -> None:
    """Assign an array or a tensor of TensorFlow to a variable, which may be one of JAX, PyTorch or Flax."""
    is_as_given = is_tensorflow_variable(variable) or isinstance(value, (np.ndarray, np.generic))
    variable.assign(value if is_as_given else value.numpy())


def is_tensorflow_variable(item: Any) -> bool:
    """Return whether something is a ``tf.Variable``, without importing TensorFlow."""
    return is_instance_of_loaded(item, "tensorflow", "Variable")


def name_of(variable: Any) -> str:
    """Return a variable's name without ``:0``; for a Keras 3 variable, its path."""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")


def _by_unique_name(named: list[tuple[str, Any]]) -> dict[str, Any]:
    taken = {name for name, _ in named}
    result: dict[str, Any] = {}
    for name, item in named:
        unique = name
        if name in result:
            numbered = (f"{name}_{number}" for number in itertools.count(1))
            unique = next(other for other in numbered if other not in taken)
            taken.add(unique)
        result[unique] = item
    return result


def _named(argument: str, source: Any) -> list[tuple[str, Any]]:
    if isinstance(source, Mapping) and all(isinstance(name, str) for name in source):
        for name, item in source.items():
            if not isinstance(item, VariableSpec) and not _is_variable(item):
                raise _not_accepted(f"{argument}[{name!r}]", item, "a variable or a VariableSpec")
        return list(source.items())
    if is_instance_of_loaded(source, "tensorflow", "Graph"):
        source = source.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    elif is_layer_or_module(source):
        source = [source]
    if not isinstance(source, (list, tuple)):
        raise _not_accepted(argument, source, _ACCEPTED)
    found: dict[int, tuple[str, Any]] = {}
    for position, item in enumerate(source):
        if not is_layer_or_module(item) and not _is_variable(item):
            raise _not_accepted(f"{argument}[{position}]", item, "a variable, layer, model or tf.Module")
        for name, variable in _weights(item) if is_layer_or_module(item) else [(name_of(item), item)]:
            if not is_seed_state(variable):
                found.setdefault(id(underlying_variable(variable)), (name, variable))
    return list(found.values())


def _frozen(source: Any) -> set[int]:
    """Return the ids of the variables that a layer of tf_keras does not train, whatever their own flags are.

    A frozen layer leaves its variables marked as trainable, and the ``trainable_variables`` of a `tf.Module` have them.
    """
    items = source if isinstance(source, (list, tuple)) else [source]
    layers = [item for item in items if is_instance_of_loaded(item, "tf_keras", "layers.Layer")]
    trained, others = (
        {id(underlying_variable(weight)) for layer in layers for weight in getattr(layer, kind)}
        for kind in ("trainable_weights", "non_trainable_weights")
    )
    return others - trained


TF1_STYLE_VARIABLES = "_detrand_tf1_style_variables"


def tf1_style_variables(owner: Any) -> Any:
    """Return the `ObjectVariables` that TF1-style code has created in the methods of an object; None if it has none."""
    return vars(owner).get(TF1_STYLE_VARIABLES) if hasattr(owner, "__dict__") else None


def _weights(owner: Any) -> list[tuple[str, Any]]:
    """Return the weights of a layer or module; TF1 code's variables have their TF1 names, local ones are left out."""
    if is_torch_module(owner):
        return list(torch_variables(owner).items())
    if is_flax_module(owner):
        return list(flax_variables(owner).items())
    weights: list[Any] = []
    for leaf in [owner] if _is_layer(owner) else _variables_and_parts(owner):
        weights += [leaf] if _is_variable(leaf) else leaf.weights if _is_layer(leaf) else []
    stores = [store for store in map(tf1_style_variables, parts_of(owner)) if store is not None]
    from_tf1 = [pair for store in stores for pair in store.variables.items()]
    local = {id(store.variables[name]) for store in stores for name in store.local_names}
    tf1_names = {id(variable): name for name, variable in from_tf1}
    named = [(tf1_names.get(id(underlying_variable(v))) or name_of(v), v) for v in weights]
    return [(name, v) for name, v in [*named, *from_tf1] if id(underlying_variable(v)) not in local]


def parts_of(owner: Any) -> list[Any]:
    """Return all layers and modules inside a layer or module, and itself."""
    if is_torch_module(owner):
        return parts_of_module(owner)
    if is_flax_module(owner):
        return list(paths_of_modules(owner).values())
    if _is_layer(owner):
        parts = [*flattened_layers(owner), *getattr(owner, "submodules", ())]
        return list({id(part): part for part in parts}.values())
    parts = [owner]
    for leaf in _variables_and_parts(owner):
        if _is_layer(leaf):  # a tf.Module does not look inside layers of Keras 3
            parts += parts_of(leaf)
        elif not _is_variable(leaf):
            parts.append(leaf)
    return parts


def _variables_and_parts(module: tf.Module) -> Iterable[Any]:
    return module_leaves(module, lambda leaf: _is_variable(leaf) or is_layer_or_module(leaf))


def _is_layer(source: Any) -> bool:
    return any(is_instance_of_loaded(source, package, "layers.Layer") for package in ("keras", "tf_keras"))


def is_layer_or_module(source: Any) -> bool:
    """Return whether something is a layer or model of Keras, or a module of TensorFlow, PyTorch or Flax."""
    if is_instance_of_loaded(source, "tensorflow", "Module") or _is_layer(source):
        return True
    return is_torch_module(source) or is_flax_module(source)


def _is_variable(item: Any) -> bool:
    if isinstance(item, ModuleVariable) or is_tensorflow_variable(item):
        return True
    return is_instance_of_loaded(item, "keras", "Variable")


def _not_accepted(argument: str, given: Any, accepted: str) -> ArgumentError:
    remedy = ""
    if is_instance_of_loaded(given, "tensorflow", "compat.v1.Session"):
        remedy = "pass its graph, session.graph"
    elif _is_variable(given):
        remedy = "pass a list, [variable]"
    elif isinstance(given, (set, frozenset, Iterator)):
        remedy = "pass list(...) of it"
    return wrong_type(argument, given, accepted, remedy)
