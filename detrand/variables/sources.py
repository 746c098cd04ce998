"""The variables of a program, as a TF1 checkpoint names them: what they are, how two programs' differ.

A TF1 graph, a layer, a list and a checkpoint each have another way to their variables and to their names.
`named_variables` hides which; everything else here works on the dict that it returns, or on that of the specs.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from detrand._patching.keras import (
    flattened_layers,
    is_instance_of_loaded,
    is_seed_state,
    module_leaves,
    underlying_variable,
)
from detrand._patching.tensorflow import save_slice
from detrand.arguments import quote
from detrand.errors import ArgumentError, CheckpointError, VariableMismatchError
from detrand.variables.comparison import NameMap, VariablesComparison, compare_specs
from detrand.variables.spec import VariableSpec

_ACCEPTED = (
    "a tf.Graph, a layer or model of Keras 3 or tf_keras, a tf.Module, a list or tuple of those or of variables, a "
    "dict of name -> variable, the path of a name-based checkpoint, or the result of variables_of"
)


def variables_of(source: Any) -> dict[str, VariableSpec]:
    """Returns what variables a program has, each under the name that it has in a TF1 checkpoint.

    >>> import tensorflow as tf
    >>> from detrand import variables_of
    >>> with tf.Graph().as_default() as graph, tf.compat.v1.variable_scope("net"):
    ...     _ = tf.compat.v1.get_variable("w", [3, 2])
    >>> variables_of(graph)
    {'net/w': VariableSpec(shape=(3, 2), dtype='float32', trainable=True)}

    Names:
      - of TensorFlow variables without ``:0``; the parts of a partitioned variable are one variable;
      - of Keras 3 variables, the path (``"model/dense/kernel"``);
      - of variables that TF1 code in a method decorated with `track_tf1_style_variables` has created, the TF1 name,
        wherever in a model that layer or module is;
      - where several variables have one name, as all unnamed ``tf.Variable`` in TF2 have, the later ones
        get a number as a TF1 graph gives it (``Variable``, ``Variable_1``), so none is lost.

    A layer's variables are its weights: not the state of metrics, optimizers and seed generators (such state is left
    out of lists, too). A graph's are its global variables, in the order of their creation; a layer's, module's or
    list's come in its own order, a checkpoint's sorted by name.

    Args:
      source: a `tf.Graph`, a layer or model of Keras 3 or tf_keras, a `tf.Module`, a list or tuple of those or of
        variables, a dict of name -> variable or `VariableSpec`, the path of a name-based checkpoint (V1 or V2) or of a
        directory whose latest checkpoint counts, or the result of an earlier call.

    Returns:
      Name -> `VariableSpec`.

    Raises:
      ArgumentError: if ``source`` is nothing of that.
      CheckpointError: (an `ArgumentError`) if the checkpoint is missing, damaged or object-based.
    """
    return _specs("source", source)


def assert_variables_match(tf1: Any, port: Any, name_map: NameMap | None = None) -> None:
    """Asserts that a TF1 program and its port have the same variables: names, shapes, dtypes, trainable flags.

    >>> from detrand import VariableSpec, assert_variables_match
    >>> tf1 = {"net/w": VariableSpec((3, 2), "float32", True)}
    >>> assert_variables_match(tf1, [tf.Variable(tf.ones((3, 2)), name="net/w")])
    >>> assert_variables_match(tf1, [tf.Variable(tf.ones((2, 3)), name="net/w")])
    Traceback (most recent call last):
    detrand.errors.VariableMismatchError: the variables differ: 1 in TF1, 1 in the port; 1 differing in shape
    shape differs (1):
      net/w: (3, 2) in TF1, (2, 3) in the port

    Args:
      tf1: the TF1 program's variables: whatever `variables_of` takes.
      port: the port's, likewise.
      name_map: TF1 name -> name in the port, for the variables whose names differ; or a function from the one to
        the other, called for each TF1 name.

    Raises:
      VariableMismatchError: (an `AssertionError`) with the difference, and where names differ with a name_map that
        pairs the most alike; also if there is no variable on either side.
      ArgumentError: if a side is nothing that has variables, or ``name_map`` has an entry for no TF1 variable or
        gives two of them one name.
    """
    __tracebackhide__ = True
    comparison = compare_variables(tf1, port, name_map)
    if not comparison.ok:
        raise VariableMismatchError(str(comparison))


def compare_variables(tf1: Any, port: Any, name_map: NameMap | None = None) -> VariablesComparison:
    """Compares as `assert_variables_match` does, and returns the difference instead of raising it."""
    return compare_specs(_specs("tf1", tf1), _specs("port", port), name_map)


def named_variables(source: Any) -> dict[str, Any]:
    """Returns a program's variables under the names that `variables_of` gives them, parts of one apart.

    Args:
      source: what `variables_of` takes, except checkpoints and specs.

    Raises:
      ArgumentError: for those, and for anything else.
    """
    if isinstance(source, (str, os.PathLike)):
        raise ArgumentError(
            f"source must hold variables, but the checkpoint path {source!r} was given; pass the graph, "
            "layer or variables"
        )
    named = _named("source", source)
    for name, variable in named:
        if isinstance(variable, VariableSpec):
            raise ArgumentError(
                f"source must hold variables, but {quote(source)} holds the VariableSpec {name!r}; pass the graph, "
                "layer or variables that it describes"
            )
    return _by_unique_name(named)


def spec_of(variable: Any) -> VariableSpec:
    """Describes a variable of TensorFlow or Keras."""
    dtype = variable.dtype
    name = dtype if isinstance(dtype, str) else tf.as_dtype(dtype).base_dtype.name
    return VariableSpec(shape_tuple(variable.shape), name, bool(variable.trainable))


def name_of(variable: Any) -> str:
    """Returns a variable's name without ``:0``; of a Keras 3 variable, its path."""
    return str(getattr(variable, "path", None) or variable.name).removesuffix(":0")


def shape_tuple(shape: Any) -> tuple[int | None, ...] | None:
    """Returns a shape of any type as a tuple; ``None`` if not even its rank is known."""
    shape = tf.TensorShape(shape)
    return None if shape.rank is None else tuple(shape.as_list())


def _specs(argument: str, source: Any) -> dict[str, VariableSpec]:
    if isinstance(source, (str, os.PathLike)):
        return checkpoint_specs(argument, os.fspath(source))
    specs: list[tuple[str, VariableSpec]] = []
    partitioned = set()
    for name, variable in _named(argument, source):
        spec = variable if isinstance(variable, VariableSpec) else spec_of(variable)
        whole = save_slice(underlying_variable(variable))
        if whole is None:
            specs.append((name, spec))
        elif whole not in partitioned:
            partitioned.add(whole)
            specs.append((whole[0], VariableSpec(whole[1], spec.dtype, spec.trainable)))
    return _by_unique_name(specs)


def _by_unique_name(named: list[tuple[str, Any]]) -> dict[str, Any]:
    taken = {name for name, _ in named}
    result: dict[str, Any] = {}
    for name, item in named:
        unique = name
        for number in itertools.count(1):
            if unique not in result and (unique == name or unique not in taken):
                break
            unique = f"{name}_{number}"
        result[unique] = item
    return result


def _named(argument: str, source: Any) -> list[tuple[str, Any]]:
    if isinstance(source, tf.Graph):
        variables = source.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return _once((name_of(v), v) for v in variables)
    if is_layer_or_module(source):
        return _once(_weights(source))
    if isinstance(source, Mapping) and all(isinstance(name, str) for name in source):
        items = list(source.items())
        for name, item in items:
            if not isinstance(item, VariableSpec) and not _is_variable(item):
                raise _not_accepted(f"{argument}[{name!r}]", item, "a variable or a VariableSpec")
        return items
    if isinstance(source, (list, tuple)):
        return _once(pair for position, item in enumerate(source) for pair in _item(f"{argument}[{position}]", item))
    raise _not_accepted(argument, source, _ACCEPTED)


def _item(argument: str, item: Any) -> list[tuple[str, Any]]:
    if is_layer_or_module(item):
        return _weights(item)
    if _is_variable(item):
        return [] if is_seed_state(item) else [(name_of(item), item)]
    raise _not_accepted(argument, item, "a variable, layer, model or tf.Module")


def _weights(owner: Any) -> list[tuple[str, Any]]:
    """Returns the weights of a layer or module; those of TF1 code inside under their TF1 names, but no local ones."""
    weights, parts = _weights_of(owner), parts_of(owner)
    stores = [store for store in (getattr(part, "_detrand_store", None) for part in parts) if store is not None]
    from_tf1 = [pair for store in stores for pair in store.variables.items()]
    local = {id(store.variables[name]) for store in stores for name in store.local_names}
    tf1_names = {id(variable): name for name, variable in from_tf1}
    named = [(tf1_names.get(id(underlying_variable(v))) or name_of(v), v) for v in weights]
    return _once((name, v) for name, v in [*named, *from_tf1] if id(underlying_variable(v)) not in local)


def parts_of(owner: Any) -> list[Any]:
    """Returns all layers and modules of a layer or module; itself is one of these."""
    if _is_layer(owner):
        parts = [*flattened_layers(owner), *getattr(owner, "submodules", ())]
        return list({id(part): part for part in parts}.values())
    parts = [owner]
    for leaf in _variables_and_parts(owner):
        if _is_layer(leaf):  # of Keras 3, into which modules do not look, or of tf_keras
            parts += parts_of(leaf)
        elif not _is_variable(leaf):
            parts.append(leaf)
    return parts


def _weights_of(owner: Any) -> list[Any]:
    """Returns the variables of a layer or module."""
    if _is_layer(owner):
        return owner.weights
    weights: list[Any] = []
    for leaf in _variables_and_parts(owner):
        weights += [leaf] if _is_variable(leaf) else leaf.weights if _is_layer(leaf) else []
    return weights


def _variables_and_parts(module: tf.Module) -> Iterable[Any]:
    return module_leaves(module, lambda leaf: _is_variable(leaf) or is_layer_or_module(leaf))


def _is_layer(source: Any) -> bool:
    return any(is_instance_of_loaded(source, package, "layers.Layer") for package in ("keras", "tf_keras"))


def is_layer_or_module(source: Any) -> bool:
    """Returns whether something is a layer or model of Keras 3 or tf_keras, or a tf.Module."""
    return isinstance(source, tf.Module) or _is_layer(source)


def _is_variable(item: Any) -> bool:
    return isinstance(item, tf.Variable) or is_instance_of_loaded(item, "keras", "Variable")


def _once(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    for name, variable in named:
        found.setdefault(id(underlying_variable(variable)), (name, variable))
    return list(found.values())


def checkpoint_specs(argument: str, path: str) -> dict[str, VariableSpec]:
    """Returns what a name-based checkpoint holds, sorted by name.

    Args:
      argument: what the caller's argument is called.
      path: the checkpoint's prefix, or a directory whose latest checkpoint counts.

    Raises:
      CheckpointError: if there is none that can be read, or it is object-based.
    """
    prefix = checkpoint_prefix(path)
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except (ValueError, tf.errors.OpError) as error:
        raise _unreadable(argument, path, str(error)) from error
    if not shapes:  # TensorFlow takes some files for checkpoints that are none
        raise _unreadable(argument, path, "it holds nothing")
    if _OBJECT_GRAPH in shapes:
        raise CheckpointError(
            f"{argument}={path!r} is an object-based checkpoint: its names are paths of attributes and not those of "
            "variables. Restore it into the layer or module that it was saved from, and pass that"
        )
    return {name: VariableSpec(tuple(shapes[name]), dtypes[name].name, None) for name in sorted(shapes)}


def checkpoint_prefix(path: str) -> str:
    """Returns the prefix of the latest checkpoint in a directory; of anything else, the path itself."""
    return (os.path.isdir(path) and tf.train.latest_checkpoint(path)) or path


def _unreadable(argument: str, path: str, reason: str) -> CheckpointError:
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path)
    hint = "as in 'dir/model.ckpt-100', or a directory with a 'checkpoint' file"
    return CheckpointError(
        f"{argument}={path!r} is no checkpoint that can be read ({reason}); pass the prefix, "
        + (hint if prefix == path else f"{prefix!r}")
    )


_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def _not_accepted(argument: str, given: Any, accepted: str) -> ArgumentError:
    hint = ""
    if isinstance(given, tf.compat.v1.Session):
        hint = "; pass its graph, session.graph"
    elif _is_variable(given):
        hint = "; pass a list, [variable]"
    elif isinstance(given, (set, frozenset, Iterator)):
        hint = "; pass list(...) of it"
    return ArgumentError(
        f"{argument} must be {accepted}, but {quote(given)} of type {type(given).__name__} was given{hint}"
    )
