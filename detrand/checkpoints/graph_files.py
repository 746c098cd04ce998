"""`GraphFile`: a TF1 program that is a file: a frozen graph, a SavedModel, or the ``.meta`` file of a checkpoint.

Its code need not run. In a session's graph it is imported with its variables, collections and control flow, and its
random ops take the op seeds of the scope, in the order in which the model made them. The constants of a frozen graph
that were variables are variables again.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detrand.arguments import and_more, plural, quote, wrong_type
from detrand.checkpoints.graph_definitions import (
    decide_conditionals,
    known_constants,
    leave_forward_pass,
    needed_for,
    not_run_once,
    replace_nodes,
    run_iterations_in_turn,
    tensor_name,
)
from detrand.checkpoints.upstream import all_upstream, input_ops, op_of
from detrand.comparison.structures import flatten
from detrand.errors import MigrationError
from detrand.packages import tf
from detrand.seeding import cursors
from detrand.seeding.cursors import Cursor

_TRAINING = re.compile(r"(is_)?train(ing)?(_phase|_mode)?|phase(_train)?", re.IGNORECASE)
_READERS = re.compile(r"(.*/)?(read|ReadVariableOp(_\d+)?)")  # the ops that read variables in a TF1 graph
_PASSED_ON = ("Switch", "Enter", "Identity")
_VARIABLES = ("Variable", "VariableV2", "VarHandleOp")
_PLACEHOLDERS = ("Placeholder", "PlaceholderWithDefault")
_NOT_TRAINED = ("moving_mean", "moving_variance")  # as tf.layers, slim and Keras name them
_SAVER = re.compile(r"save(_\d+)?/")  # the ops of a Saver
_NO_OUTPUTS = ("Const", "NoOp", "Assert", "SaveV2", *_PLACEHOLDERS)
_MOST_NAMES = 12
_ACCEPTED = "Give a GraphDef (.pb or .pbtxt), the folder of a SavedModel, or the .meta file of a checkpoint"
_SIGNATURE = "serving_default"  # the name that TensorFlow gives to the only signature


def says_whether_it_trains(name: str) -> bool:
    """Return whether a parameter or placeholder of this name says whether a model trains."""
    return _TRAINING.fullmatch(name) is not None


class Placeholder(NamedTuple):
    """A placeholder of a graph."""

    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    has_default: bool


class OriginalOutputs(NamedTuple):
    """What a TF1 program has computed in TensorFlow 1.

    Attributes:
      tensorflow: the version of TensorFlow.
      seed: the seed of the random ops.
      inputs: the inputs.
      outputs: the outputs by run: ``"inference"``, ``"training"``, and ``"checkpoint"`` if there was one.
    """

    tensorflow: str
    seed: int
    inputs: tuple[np.ndarray, ...]
    outputs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class GraphFile:
    """A TF1 program that is a file, for ``Migration(tf1=...)``: its code is not needed.

    >>> import os, tempfile
    >>> import tensorflow as tf
    >>> from detrand import GraphFile
    >>> with tf.Graph().as_default() as graph:
    ...     x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
    ...     logits = tf.multiply(x, 2.0, name="logits")
    >>> file = os.path.join(tempfile.mkdtemp(), "model.pb")
    >>> with open(file, "wb") as opened:
    ...     _ = opened.write(graph.as_graph_def().SerializeToString())
    >>> tf1 = GraphFile(file, outputs="logits")
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     print(session.run(tf1(tf.constant([[1.0, 2.0]]), training=False)))
    [[2. 4.]]

    Args:
      path: a frozen graph (a ``GraphDef``, in binary form or as text), the folder of a SavedModel of TensorFlow 1 or
        the file ``saved_model.pb`` in it, or a file ``.meta`` beside a checkpoint.
      inputs: the names of the placeholders, or of other tensors, in whose place the migration's inputs come; those of a
        SavedModel may be names of its signature. By default, all placeholders that the outputs depend on and that
        ``feeds`` leaves open, in the order in which the model made them. If the migration's only input is a dict, its
        keys are the names.
      outputs: the names of the outputs, in any nested structure, such as ``"logits"`` or ``["logits", "end_point:1"]``.
        By default, those of the SavedModel's signature (a dict if there are several), and in a frozen graph each op
        that no other op uses.
      feeds: an array or number for each placeholder that is no input, by name, or a function of ``training`` that
        returns it: ``{"keep_prob": lambda training: 0.5 if training else 1.0}``. A boolean placeholder named
        ``is_training``, ``training`` or the like gets ``training`` by itself.
      signature: the name of the SavedModel's signature. If it has only one, that is the default.

    Raises:
      ArgumentError: for an argument of a wrong type.
      MigrationError: when the program is built, if the file cannot be read, or has no tensor of a name.
    """

    path: str | os.PathLike[str]
    inputs: Sequence[str] | None = field(default=None, kw_only=True)
    outputs: Any = field(default=None, kw_only=True)
    feeds: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    signature: str = field(default=_SIGNATURE, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)):
            raise wrong_type("path", self.path, "the path of a graph", "write GraphFile('model.pb')")
        if not isinstance(self.feeds, Mapping) or not all(isinstance(name, str) for name in self.feeds):
            raise wrong_type("feeds", self.feeds, "a dict from names of placeholders to values")
        if self.inputs is not None and (
            isinstance(self.inputs, str) or not all(isinstance(name, str) for name in self.inputs)
        ):
            raise wrong_type("inputs", self.inputs, "a list of names", 'write inputs=["images"]')
        if not all(isinstance(name, str) for name in flatten(self.outputs) if self.outputs is not None):
            raise wrong_type("outputs", self.outputs, "a name, or names in a list, tuple or dict")

    @property
    def __name__(self) -> str:
        return self._file.stem or "saved_model"  # of the working directory

    @property
    def _file(self) -> Path:
        """The file, or the folder of a SavedModel."""
        path = Path(os.fsdecode(self.path))
        return path.parent if path.name == "saved_model.pb" else path

    @property
    def is_frozen(self) -> bool:
        """Whether it is a frozen graph, which has neither initial values nor losses."""
        return self._graph(False).is_frozen

    @property
    def has_variables(self) -> bool:
        """Whether it has variables, or constants that were variables."""
        graph = self._graph(False)
        return bool(graph.frozen_variables()) if graph.is_frozen else graph.has_collection("variables")

    @property
    def takes_training(self) -> bool:
        """Whether it computes something else in training, as far as can be known."""
        graph = self._graph(False)
        needed = graph.upstream(tf.nest.flatten(self._outputs(graph)))
        by_itself = [name for name in self._feeds(graph, False) if name not in self.feeds and name in needed]
        return bool(by_itself) or graph is not self._graph(True) or any(map(callable, self.feeds.values()))

    @property
    def placeholders(self) -> list[Placeholder]:
        """The placeholders that the outputs depend on, in order; all of them if the outputs are not known."""
        graph, outputs = self._graph(False), self.output_names
        names = list(graph.nodes) if outputs is None else graph.upstream(tf.nest.flatten(outputs))
        found = [graph.nodes[name] for name in names if graph.nodes[name].op in _PLACEHOLDERS]
        return [
            Placeholder(
                node.name,
                tf.as_dtype(node.attr["dtype"].type),
                tf.TensorShape(node.attr["shape"].shape),
                node.op == "PlaceholderWithDefault",
            )
            for node in found
        ]

    @property
    def output_names(self) -> Any:
        """The names of the outputs, in their structure; None if they are not known."""
        graph = self._graph(False)
        known = self.outputs is not None or graph.outputs or graph.is_frozen
        return self._outputs(graph) if known else None

    @property
    def checkpoint(self) -> str | None:
        """The prefix of the checkpoint beside the graph; None if there is none."""
        path = self._file
        prefix = path.with_suffix("") if path.suffix == ".meta" else path / "variables" / "variables"
        return str(prefix) if prefix.with_name(f"{prefix.name}.index").exists() else None

    @functools.cached_property
    def original(self) -> OriginalOutputs | None:
        """Return what ``examples/save_tf1.py`` has recorded in TensorFlow 1; None if there is nothing."""
        file = self._file / "assets.extra" / "detrand.npz"
        if not file.exists():
            return None
        try:
            with np.load(file) as arrays:
                content = dict(arrays)
            seed, version = int(content.pop("seed")), str(content.pop("tensorflow"))
            inputs = [
                content.pop(f"inputs/{number}") for number in range(len(content)) if f"inputs/{number}" in content
            ]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise MigrationError(f"{file} cannot be read: {error}. Save the program again") from error
        outputs: dict[str, Any] = {}
        for run in ("inference", "training", "checkpoint"):
            of_run = {
                name.removeprefix(f"{run}/"): each for name, each in content.items() if name.startswith(f"{run}/")
            }
            names = self._outputs(self._graph(run == "training"))
            if set(tf.nest.flatten(names)) <= of_run.keys():
                outputs[run] = tf.nest.map_structure(of_run.__getitem__, names)
        return OriginalOutputs(version, seed, tuple(inputs), outputs)

    def in_folder(self, folder: Path) -> GraphFile:
        """Return the same program, its path looked up in a folder first."""
        beside = folder / self.path
        return dataclasses.replace(self, path=beside) if beside.exists() else self

    @functools.cached_property
    def _graphs(self) -> dict[bool, _Graph]:
        """The graph by ``training``; most files have one for both."""
        from detrand._patching.graphs import parse_message

        path = self._file
        if not path.exists():
            raise MigrationError(
                f"the graph {path} does not exist; give the path of a .pb or .meta file or a SavedModel"
            )
        try:
            if path.is_dir():
                return _of_saved_model(path, self.signature)
            if path.suffix == ".meta":
                graph = _Graph(parse_message(tf.compat.v1.MetaGraphDef, path.read_bytes()), False, self.signature)
            else:
                definition = parse_message(tf.compat.v1.GraphDef, path.read_bytes())
                graph = _Graph(tf.compat.v1.MetaGraphDef(graph_def=definition), True, self.signature)
        except MigrationError:
            raise
        except (OSError, ValueError) as error:
            raise MigrationError(f"{path} cannot be read as a TF1 graph: {error}. {_ACCEPTED}") from error
        if not graph.nodes:
            raise MigrationError(f"{path} holds no graph. {_ACCEPTED}")
        return {False: graph, True: graph}

    def _graph(self, training: bool) -> _Graph:
        return self._graphs[training]

    def __call__(self, *inputs: Any, training: bool) -> Any:
        """Add the program to the default graph, and return its outputs."""
        graph = self._graph(training)
        outputs = self._outputs(graph)
        feeds = {
            graph.tensor(name): feed(training) if callable(feed) else feed
            for name, feed in self._feeds(graph, training).items()
        }
        given = self._inputs(graph, outputs, feeds, inputs)
        mapped = feeds | given
        needed = graph.upstream(tf.nest.flatten(outputs), mapped)
        open_placeholders = [name for name in needed if graph.nodes[name].op == "Placeholder"]
        if open_placeholders:
            s, have = ("s", "have") if len(open_placeholders) > 1 else ("", "has")
            raise MigrationError(
                f"the outputs of {self.path} depend on the placeholder{s} {and_more(open_placeholders, _MOST_NAMES)}, "
                f"which {have} no value. Pass one in GraphFile(feeds={{{open_placeholders[0]!r}: ...}}), or as an "
                "input of the migration"
            )
        if graph.is_frozen and (variables := [name for name in needed if graph.nodes[name].op in _VARIABLES]):
            raise MigrationError(
                f"{self.path} is not frozen: it has the variable{'s' * (len(variables) > 1)} "
                f"{and_more(variables, _MOST_NAMES)}, but no values. Give the .meta file of a checkpoint, a "
                "SavedModel, or the graph as convert_variables_to_constants has frozen it"
            )
        if unknown := [name for name in needed if not graph.knows(graph.nodes[name].op)]:
            op = graph.nodes[unknown[0]].op
            raise MigrationError(
                f"{self.path} has the op {unknown[0]} of the type {op}, which this TensorFlow does not have. If a "
                "library of its own defines it, load that with tf.load_op_library. If it is one of tf.contrib, compare "
                "outputs that are computed before it: GraphFile(outputs=...)"
            )
        known = {name: bool(feed) for name, feed in feeds.items() if isinstance(feed, (bool, np.bool_))}
        tensors = {name: _cast(value, graph.dtype(name)) for name, value in mapped.items()}
        try:
            return graph.added(tensors, known, outputs)
        except ValueError as error:
            for name in given:
                shape, accepted = tensors[name].shape, graph.shape(name)
                if not shape.is_compatible_with(accepted):
                    raise MigrationError(
                        f"{self.path} cannot compute with these inputs: its placeholder {op_of(name)} has the shape "
                        f"{accepted}, but an input of shape {shape} was given. Give an input of the placeholder's shape"
                    ) from error
            raise

    def _outputs(self, graph: _Graph) -> Any:
        """Return the names of the output tensors, in their structure."""
        if self.outputs is not None:
            return tf.nest.map_structure(graph.tensor, self.outputs)
        if graph.outputs:
            return next(iter(graph.outputs.values())) if len(graph.outputs) == 1 else dict(graph.outputs)
        if not graph.is_frozen:
            raise MigrationError(f"{self.path} does not say what its outputs are. Name them: GraphFile(outputs=[...])")
        used = {op_of(name) for node in graph.nodes.values() for name in node.input}
        names = [f"{name}:0" for name, node in graph.nodes.items() if name not in used and node.op not in _NO_OUTPUTS]
        return names[0] if len(names) == 1 else names

    def _feeds(self, graph: _Graph, training: bool) -> dict[str, Any]:
        """Return the value, or the function that returns it, for each placeholder that is no input."""
        feeds = dict(self.feeds)
        known = {graph.tensor(name) for name in (*feeds, *(self.inputs or ()))}
        for name, node in graph.nodes.items():
            is_boolean = node.op in _PLACEHOLDERS and node.attr["dtype"].type == tf.bool.as_datatype_enum
            if is_boolean and f"{name}:0" not in known and says_whether_it_trains(name.rpartition("/")[2]):
                feeds[name] = training
        return feeds

    def _inputs(self, graph: _Graph, outputs: Any, feeds: Collection[str], given: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs of the migration by the tensors in whose place they come."""
        if self.inputs is None and len(given) == 1 and isinstance(given[0], Mapping):
            return {graph.tensor(name): value for name, value in given[0].items()}
        names = [*(self.inputs or ())]
        if self.inputs is None:
            needed = graph.upstream(tf.nest.flatten(outputs), feeds)
            candidates = [name for name in needed if graph.nodes[name].op in _PLACEHOLDERS]
            required = [name for name in candidates if graph.nodes[name].op == "Placeholder"]
            names = candidates if len(candidates) == len(given) else required
        if len(names) != len(given):
            raise MigrationError(
                f"the migration has {plural(len(given), 'input')}, but {self.path} takes {len(names)}: "
                f"{and_more(names, _MOST_NAMES) or 'none'}. Name the placeholders that get the inputs: "
                "GraphFile(inputs=[...])"
            )
        return dict(zip(map(graph.tensor, names), given, strict=True))


def _of_saved_model(path: Path, signature: str) -> dict[bool, _Graph]:
    """Return the graphs of a SavedModel by ``training``: those with the tags ``serve`` and ``train``."""
    from detrand._patching.graphs import meta_graphs_of_saved_model

    found = meta_graphs_of_saved_model(path)
    if not found:
        raise MigrationError(f"{path} holds no SavedModel; give the folder that has the file saved_model.pb")
    by_tag = {tag: graph for graph in reversed(found) for tag in graph.meta_info_def.tags}
    in_inference = by_tag.get("serve", found[0])
    in_training = by_tag.get("train", in_inference)
    if in_inference.object_graph_def.nodes and "variables" not in in_inference.collection_def:
        raise MigrationError(
            f"{path} was saved by TensorFlow 2, as an object without a TF1 program. Give a SavedModel that TensorFlow "
            "1 has saved, or write a function tf1(*inputs, training) that builds the model"
        )
    inference = _Graph(in_inference, False, signature, path / "assets")
    if in_training is in_inference:
        return {False: inference, True: inference}
    of_training = signature if signature in in_training.signature_def else _SIGNATURE
    return {False: inference, True: _Graph(in_training, False, of_training, path / "assets")}


class _FrozenVariable(NamedTuple):
    """A variable whose value is a constant in a frozen graph.

    Attributes:
      value: the constant.
      readers: the ops that read it.
    """

    value: np.ndarray
    readers: tuple[str, ...]


class _Graph:
    """A graph in a file, with the tensors of a signature by their names in it."""

    def __init__(
        self, meta_graph: tf.compat.v1.MetaGraphDef, is_frozen: bool, signature: str, assets: Path | None = None
    ):
        from detrand._patching.graphs import assets_of

        self._meta_graph = meta_graph
        self.is_frozen = is_frozen
        self._assets = {} if assets is None else {k: str(assets / each) for k, each in assets_of(meta_graph).items()}
        self.nodes = {node.name: node for node in meta_graph.graph_def.node}
        self._functions = {each.signature.name: each for each in meta_graph.graph_def.library.function}
        self._inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        signatures = {name: each for name, each in meta_graph.signature_def.items() if each.outputs}
        if signature not in signatures and (len(signatures) > 1 or signature != _SIGNATURE):
            known, remedy = ", ".join(sorted(signatures)), "Write GraphFile(signature=...)"
            raise MigrationError(
                f"the graph has no signature {signature!r}; it has {known or 'none'}. "
                f"{remedy if known else 'Leave signature out'}"
            )
        if signatures:
            chosen = signatures.get(signature) or next(iter(signatures.values()))
            self._inputs = {name: chosen.inputs[name].name for name in sorted(chosen.inputs)}
            self.outputs = {name: chosen.outputs[name].name for name in sorted(chosen.outputs)}

    def has_collection(self, name: str) -> bool:
        """Return whether the graph has a collection."""
        return name in self._meta_graph.collection_def

    def knows(self, op_type: str) -> bool:
        """Return whether a type of ops is one of TensorFlow's, or a function of the graph."""
        from detrand._patching.graphs import op_def

        return op_type in self._functions or op_def(op_type) is not None

    def tensor(self, name: str) -> str:
        """Return the full name of a tensor, given by it, by its op, or by its name in the signature."""
        for names in (self._inputs, self.outputs):
            if name in names:
                return names[name]
        if op_of(name) not in self.nodes:
            nodes = [node for node in self.nodes.values() if not _SAVER.match(node.name)]
            placeholders = [node.name for node in nodes if node.op in _PLACEHOLDERS]
            ends = [node.name for node in nodes if node.op not in _NO_OUTPUTS][-3:]
            known = f"its last ops are {', '.join(ends) or 'none'}"
            if self.outputs:
                inputs, outputs = (and_more(names, _MOST_NAMES) or "none" for names in (self._inputs, self.outputs))
                known = f"its signature has the inputs {inputs} and the outputs {outputs}"
            raise MigrationError(
                f"the graph has no tensor {quote(name)}. Its placeholders are "
                f"{and_more(placeholders, _MOST_NAMES) or 'none'}; {known}"
            )
        return name if ":" in name else f"{name}:0"

    def dtype(self, tensor: str) -> tf.DType | None:
        """Return the dtype of a placeholder; None for another tensor."""
        node = self.nodes[op_of(tensor)]
        return tf.as_dtype(node.attr["dtype"].type) if node.op in _PLACEHOLDERS else None

    def shape(self, tensor: str) -> tf.TensorShape:
        """Return the shape of a placeholder; an unknown one for another tensor."""
        node = self.nodes[op_of(tensor)]
        shape = tf.TensorShape(node.attr["shape"].shape if node.op in _PLACEHOLDERS else None)
        return shape if shape.rank else tf.TensorShape(None)  # old graphs have () for an unknown shape

    def upstream(self, tensors: Iterable[str], given: Collection[str] = ()) -> list[str]:
        """Return the names of the ops that tensors depend on, but for given tensors, in the order of the graph."""
        found = needed_for(self._meta_graph.graph_def, tensors, given)
        return [name for name in self.nodes if name in found]

    def frozen_variables(self) -> dict[str, _FrozenVariable]:
        """Return the constants of a frozen graph that were variables: those that an op reads as a TF1 graph does."""
        found: dict[str, list[str]] = {}
        for reader, tensor in _reads(self.nodes.values(), self._functions):
            name, is_direct = op_of(tensor), True
            while self.nodes[name].op in _PASSED_ON:  # into a conditional or a loop
                name, is_direct = op_of(self.nodes[name].input[0]), False
            if self.nodes[name].op == "Const":
                found.setdefault(name, []).extend([reader] * is_direct)
        return {
            name: _FrozenVariable(tf.make_ndarray(self.nodes[name].attr["value"].tensor), tuple(filter(None, readers)))
            for name, readers in found.items()
        }

    def added(self, mapped: Mapping[str, tf.Tensor], known: Mapping[str, bool], outputs: Any) -> Any:
        """Add the graph to the default graph with tensors in place of its own, and return its outputs.

        Conditionals that depend on tensors whose values are known are left out.
        """
        graph = tf.compat.v1.get_default_graph()
        meta_graph = type(self._meta_graph)()
        meta_graph.CopyFrom(self._meta_graph)
        definition = meta_graph.graph_def
        leave_forward_pass(meta_graph, tf.nest.flatten(outputs))
        decide_conditionals(meta_graph, {**known_constants(definition), **known})
        mapped = {**mapped, **{name: tf.constant(asset) for name, asset in self._assets.items()}}
        cursor = cursors.current()
        if cursor is not None:
            run_iterations_in_turn(definition)
            _seed_functions(definition.library, cursor)
        scope = ""
        if self.is_frozen:
            mapped |= self._add_frozen_variables()
            _remove(definition, {op_of(name) for name in mapped})
            used = {tensor_name(each) for node in definition.node for each in node.input}
            taken = {op.name for op in graph.get_operations()}
            if not taken.isdisjoint(node.name for node in definition.node):  # of an earlier tower
                scope = graph.unique_name("imported", mark_as_used=False)
            tf.import_graph_def(definition, {name: each for name, each in mapped.items() if name in used}, name=scope)
        else:
            tf.compat.v1.train.import_meta_graph(meta_graph, clear_devices=True, input_map=mapped)
        start = f"{scope}/" if scope else ""
        for name in not_run_once(definition):  # an imported loop does not say so
            graph.prevent_fetching(graph.get_operation_by_name(f"{start}{name}"))
        if cursor is not None:
            ops = {op.name.removeprefix(start): op for op in graph.get_operations()}
            _seed([(node, ops.get(node.name)) for node in self._meta_graph.graph_def.node], cursor)
        return tf.nest.map_structure(
            lambda name: mapped[name] if name in mapped else graph.get_tensor_by_name(f"{start}{name}"), outputs
        )

    def _add_frozen_variables(self) -> dict[str, tf.Tensor]:
        """Add the variables of a frozen graph to the default graph, and return what stands for their constants."""
        mapped: dict[str, tf.Tensor] = {}
        for name, (constant, readers) in self.frozen_variables().items():
            variable = tf.compat.v1.get_variable(name, initializer=constant, trainable=not name.endswith(_NOT_TRAINED))
            value = tf.convert_to_tensor(variable)
            mapped |= {f"{each}:0": value for each in (name, *readers)}
        return mapped


def _reads(nodes: Iterable[tf.compat.v1.NodeDef], functions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each tensor that an op reads as a TF1 graph reads variables, and the op; empty if it is in a function."""
    for node in nodes:
        if node.op == "Identity" and _READERS.fullmatch(node.name):
            yield node.name, node.input[0]
        given = [each for each in node.input if not each.startswith("^")]
        called = [
            name for value in node.attr.values() for name in (value.func.name, *(f.name for f in value.list.func))
        ]
        for function in filter(None, map(functions.get, called)):
            parameters = [each.name for each in function.signature.input_arg]
            arguments = dict(zip(parameters, given[len(given) - len(parameters) :], strict=False))
            for _, tensor in _reads(function.node_def, functions):
                if op_of(tensor) in arguments:
                    yield "", arguments[op_of(tensor)]


def _remove(definition: tf.compat.v1.GraphDef, names: Collection[str]) -> None:
    """Remove ops from the definition of a graph, and what refers to them but for their outputs."""
    from detrand._patching.graphs import forget_colocation

    kept = [node for node in definition.node if node.name not in names]
    for node in kept:
        node.input[:] = [each for each in node.input if each.removeprefix("^") == each or each[1:] not in names]
        forget_colocation(node)
    replace_nodes(definition, kept)


def _seed(nodes: Iterable[tuple[Any, tf.Operation | None]], cursor: Cursor) -> None:
    """Give the random ops of a graph in a file the op seeds that come next; those that were left out take theirs, too.

    Given are all of the file's ops, each with the op that was imported.
    """
    v1 = tf.compat.v1
    initializers = [each.initializer for each in (*v1.global_variables(), *v1.local_variables())]
    initialize = all_upstream(initializers, lambda op: [*input_ops(op), *op.control_inputs])
    for node, op in nodes:
        if op is None:
            if "seed2" in node.attr:
                cursor.next_seeds(_in_graph)
        elif any(attribute.name == "seed2" for attribute in op.op_def.attr):
            with cursor.drawing_from((op.get_attr("seed"), op.get_attr("seed2"))):
                if op in initialize:
                    with cursor.initializing():
                        _take(op, cursor)
                else:
                    _take(op, cursor)


def _take(op: tf.Operation, cursor: Cursor) -> None:
    from detrand._patching.graphs import set_integer
    from detrand._patching.tensorflow import static_shape_and_dtype

    for attribute, value in zip(("seed", "seed2"), cursor.next_seeds(_in_graph), strict=True):
        set_integer(op, attribute, value)
    cursor.describe_last(op.type, *static_shape_and_dtype(op.outputs[0]) if op.outputs else (None, ""))


def _in_graph() -> None:
    """Say that an op is added to the graph of a session; see `Cursor.next_seeds`."""


def _seed_functions(library: Any, cursor: Cursor) -> None:
    """Give the random ops of a library of functions the op seeds that come next."""
    for function in library.function:
        for node in function.node_def:
            if "seed2" in node.attr:
                node.attr["seed"].i, node.attr["seed2"].i = cursor.next_seeds(_in_graph)
                cursor.describe_last(node.op, None, "")


def _cast(value: Any, dtype: tf.DType | None) -> tf.Tensor:
    """Return a value as a tensor of the dtype of what it stands for, as a session feeds it."""
    tensor = value if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype_hint=dtype)
    return tensor if dtype is None or tensor.dtype == dtype else tf.cast(tensor, dtype)
