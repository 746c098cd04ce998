"""`PortGraph`: the port as a graph in which any tensor can be given another value.

The port is traced once. Each run imports its graph, with what is substituted, into a new session, so that stateful ops
begin anew. It computes in float64, as `trace_tf1` does, so that what differs is no rounding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detrand.checkpoints.upstream import input_ops, name_of, op_of
from detrand.comparison.values import leaves_by_path
from detrand.packages import tf
from detrand.seeding.callsite import UNKNOWN, calls_of_op
from detrand.validation.diagnosis.loops import drawn_in_turn, takes_shapes_only, unrolled
from detrand.validation.diagnosis.trace import (
    Imported,
    counted,
    dilations_in,
    functions_inlined,
    gathers_of,
    reads_of,
    traced_op,
    watched_in,
    with_dilations,
)
from detrand.validation.frameworks.tensorflow import functions_as_written
from detrand.validation.frameworks.traces import (
    IN_FUNCTION,
    NOTHING,
    Edge,
    Substitution,
    Trace,
    TracedPort,
    Value,
    values_of,
)
from detrand.validation.migration import Migration
from detrand.validation.noise.graph_rewrites import node_of
from detrand.validation.noise.variants import Rerun, Snapshot, as_written, in_float64
from detrand.validation.programs.counterparts import has_op_seed
from detrand.validation.programs.distinct_weights import distinct_weights
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.programs.port import Port, built_port, port_scope, read
from detrand.variables.tf1_view import Shapes, TF1View

_UPDATES = ("Assign", "ResourceScatter")  # how the types of ops that update variables begin
_MOST_GROWTH = 4  # of what the port computes, by a substitute
_NODE_IN_TEXT = re.compile(r"\{\{node ([^}]+)\}\}")  # as an import calls the op that does not fit


def traced_port(
    migration: Migration, config: RunConfig, tf1_shapes: Shapes, initial: Mapping[str, np.ndarray] | None
) -> TracedPort:
    """Return a new port in a run config, with the values of its variables, as its framework traces it."""
    port = built_port(migration, config, tf1_shapes)[0]
    return port.traced(config, initial) or PortGraph(port, config, initial)


class PortGraph(TracedPort):
    """The graph of a new port in a run config, with the values of its variables.

    Attributes:
      ops: its ops by name, in the order in which they were added.
      outputs: the names of the tensors that are outputs, by the outputs' paths.
      computes_narrowly: whether it computes in half precision without a dtype policy.

    Raises:
      UntracedPortError: if the port does not run on TensorFlow.
      NotImplementedError: if the graph uses a resource that is not a variable, such as a table.
    """

    def __init__(self, port: Port, config: RunConfig, initial: Mapping[str, np.ndarray] | None):
        port.check_graph()
        graph, outputs = _graph_of(port, config, initial)
        self._first: dict[str, Value] | None = None  # what is computed without substitutes
        self._size = 0  # how many numbers that is
        self._feeds: dict[str, np.ndarray] = {}
        self._variables: dict[str, np.ndarray] = {}
        self._stored: dict[str, Any] = {}  # the dtypes of variables
        self._definition = graph.as_graph_def()
        variables = {id(variable.handle): variable for variable in graph.variables}
        weights = distinct_weights(config.scales) if config.weights == "distinct" else initial or {}
        self._view = port.view()
        exact = _not_rounded(self._view, weights)
        captured = {inner.op.name: outer for outer, inner in graph.captures}
        for name, outer in captured.items():
            if outer.dtype != tf.resource:
                self._feeds[name] = outer.numpy()
            elif id(outer) in variables:
                self._stored[name] = variables[id(outer)].dtype.as_numpy_dtype
                self._variables[name] = exact.get(id(outer), variables[id(outer)].numpy())
            else:
                raise NotImplementedError(f"the port uses {outer.name}, a resource that is not a variable")
        tf1_names = {} if port.migration.strategy is not None else _tf1_names(self._view)
        self._variable_names = of_captured = {name: tf1_names.get(id(outer), "") for name, outer in captured.items()}
        self._inputs = given = tuple(tensor.op.name for tensor in graph.inputs if tensor.op.name not in captured)
        self._feeds.update(zip(given, (leaf.numpy() for leaf in tf.nest.flatten(port.batch)), strict=True))
        self._feeds.update(self._later_runs(graph.get_operations(), config.op_seeds))
        straight = unrolled(graph, self._counted, port.sites.sites_of)
        operations = graph.get_operations()
        lines: Mapping[str, str] = port.sites.sites_of(operations)
        functions: Mapping[str, Sequence[Any]] = {}
        self._starts: Mapping[str, Sequence[str]] = {}
        if straight is not None:
            graph, operations, lines, functions, self._starts, drawn = straight
            self._feeds.update(drawn)
            self._definition = graph.as_graph_def()
        self._graph, self.outputs = graph, outputs
        self._all_ops = {op.name: traced_op(op, lines[op.name], functions.get(op.name)) for op in operations}
        self.ops = with_dilations(self._all_ops)
        self._edges: dict[Edge, Edge] = {}  # of the ops that `with_dilations` makes -> of the graph
        for start, window, end in dilations_in(self._all_ops):
            self._edges[end.name, 0] = start.name, 0
            self._edges.update(((end.name, n), (window.name, n)) for n in range(1, len(window.inputs)))
        self._positions = {name_of(tensor): n for n, tensor in enumerate(t for op in operations for t in op.outputs)}
        self._watched = watched_in(operations)
        dtypes = {tensor.dtype for op in operations for tensor in op.outputs}
        has_policy = port.migration.dtype_policy is not None
        self.computes_narrowly = not has_policy and not dtypes.isdisjoint((tf.float16, tf.bfloat16))
        self._read = reads_of(operations, self._variables)
        reads = self._read | gathers_of(operations, self._variables)
        self._reads = {op: of_captured[name] for op, name in reads.items() if of_captured.get(name)}

    def _later_runs(self, operations: Iterable[tf.Operation], op_seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Return what the random ops draw that are given an op seed again: a later run of the first op that has it."""
        of_seed: dict[int, list[tf.Operation]] = {}
        random_ops = [op for op in operations if op.inputs and has_op_seed(op)]
        for op, op_seed in zip(random_ops, op_seeds, strict=False):
            of_seed.setdefault(op_seed, []).append(op)
        found: dict[str, np.ndarray] = {}
        for first, *others in of_seed.values():
            if others and takes_shapes_only(first):
                of_all = (first, *others)
                shapes = self._counted(self._definition, sorted({each.name for op in of_all for each in input_ops(op)}))
                taken = [[shapes[each.name] for each in input_ops(op)] for op in of_all]
                runs = drawn_in_turn(first, taken)[1:]
                found.update((op.name, run) for op, run in zip(others, runs, strict=True))
        return found

    def _counted(self, definition: tf.compat.v1.GraphDef, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return what tensors of a changed graph hold, by name."""
        definition = self._with_variables(definition)
        variables = {name: array.astype(self._stored[name]) for name, array in self._variables.items()}
        return counted(Snapshot(Imported(definition), variables, []), definition, names, self._feeds)

    def run(self, substituted: Substitution = NOTHING) -> Trace:
        """Run the port, and return its trace; a tensor that is substituted everywhere has the value that it is given.

        An op that cannot compute with these values, as their shapes do not fit, is left out with all that it leads to.

        Raises:
          ValueError: if the graph cannot be run with these values.
        """
        edges = {self._edges.get(edge, edge): value for edge, value in substituted.edges.items()}
        substituted = replace(substituted, edges=edges)
        changed = self._changed_by(substituted)
        arrays, left_out = self._computed(substituted, changed)
        for path, value in substituted.outputs.items():
            arrays[self.outputs[path]] = value
        arrays |= self._replaced(substituted)
        known = {} if self._first is None else {n: v for n, v in self._first.items() if op_of(n) not in changed}
        values = {**known, **values_of(arrays, self.outputs.values())}
        if self._first is None and substituted == NOTHING:
            self._first = values
        values = {name: values[name] for name in sorted(values, key=self._positions.__getitem__)}
        not_computed = tuple(sorted(left_out.intersection(map(op_of, self._watched))))
        trace = Trace(self.ops, self.outputs, values, self._inputs, self._reads, not_computed)
        return trace.of_outputs(self.outputs)

    def _computed(self, substituted: Substitution, changed: Collection[str]) -> tuple[dict[str, np.ndarray], set[str]]:
        """Return the numbers of the ops that are changed, or of all if none are known yet; and the ops left out."""
        definition, feeds = self._with_substitutes(substituted)
        left_out: set[str] = set()
        while True:
            try:
                return self._fetched(definition, feeds, changed, left_out), left_out
            except (tf.errors.OpError, ValueError) as error:
                failed = _op_that_raised(error)
                if self._first is None:
                    raise
                if failed not in self.ops or failed in left_out:
                    raise ValueError(str(error)) from error
                left_out |= _leave_out(definition, failed)

    def _fetched(
        self,
        definition: tf.compat.v1.GraphDef,
        feeds: Mapping[str, np.ndarray],
        changed: Collection[str],
        left_out: Collection[str],
    ) -> dict[str, np.ndarray]:
        """Run a session, and return what of the numbers of changed ops is not left out."""
        is_first = self._first is None
        names = {n for n in self._watched if (is_first or op_of(n) in changed) and op_of(n) not in left_out}
        tensors = {name: tensor for name, tensor in self._watched.items() if name in names}
        snapshot = Snapshot(Imported(definition), self._variables, [])
        fetched = {name: tensor.name for name, tensor in tensors.items() if op_of(name) not in self._read}
        with Rerun(snapshot, in_float64(snapshot)) as rerun:
            size = rerun.elements(fetched.values())
            if is_first:
                self._size = size
            elif size > _MOST_GROWTH * self._size:  # such as without the stride of the first convolution
                raise ValueError(f"the port would compute {size:,} numbers, and not {self._size:,}")
            arrays = rerun.fetch(fetched, {**self._feeds, **feeds})
        return arrays | {name: self._variables[self._read[name]] for name in tensors if name in self._read}

    def line_of_update(self, variable: str) -> str:
        """Return the line that updates a variable, given by its TF1 name, or else the last line that uses it."""
        handles = {handle for handle, name in self._variable_names.items() if name == variable}
        uses = [op for op in self.ops.values() if not handles.isdisjoint(op.sources)]
        updates = [op for op in uses if op.type.startswith(_UPDATES)]
        lines = [op.line for op in updates or uses if op.line != str(UNKNOWN)]
        return lines[-1] if lines else ""

    def calls_of(self, op: str) -> list[Any]:
        """Return the frames of the program that added an op, the outermost first; see `callsite.calls_of_op`."""
        return calls_of_op(self._graph.get_operation_by_name(op))

    def layers_of(self, scope: str) -> set[str]:
        """Return the port's own scopes of the variables that are in a scope in TF1."""
        names = [own for name, own in self._view.own_names.items() if name.startswith(f"{scope}/")]
        return {name.rpartition("/")[0] for own in names for name in own} - {""}

    def outputs_as_written(self) -> dict[str, np.ndarray]:
        """Run the port in its own dtypes, and return its outputs by path."""
        definition, _ = self._with_substitutes(NOTHING)
        variables = {name: array.astype(self._stored[name]) for name, array in self._variables.items()}
        snapshot = Snapshot(Imported(definition), variables, [])
        tensors = {path: self._tensor(name).name for path, name in self.outputs.items()}
        with Rerun(snapshot, as_written(snapshot)) as rerun:
            return rerun.fetch(tensors, self._feeds)

    def _changed_by(self, substituted: Substitution) -> set[str]:
        """Return the names of the ops that may compute something else."""
        changed = {op for op, _ in substituted.edges} | set(substituted.attributes)
        functions = {name.partition(IN_FUNCTION)[0] for name in substituted.attributes if IN_FUNCTION in name}
        for op in self._all_ops.values() if functions else ():
            if any(inner.name.partition(IN_FUNCTION)[0] in functions for inner in op.with_body):
                changed.add(op.name)
        for name, op in self._all_ops.items():
            if not changed.isdisjoint(op.sources):
                changed.add(name)
        return changed

    def dtype(self, tensor: str) -> np.dtype:
        """Return the dtype of a tensor."""
        dtype = self._tensor(tensor).dtype
        return np.dtype(np.float64 if dtype.is_floating else dtype.as_numpy_dtype)

    def fitted(self, array: np.ndarray, tensor: str) -> np.ndarray:
        """Return an array in the dtype of a tensor, and in its shape if that has as many elements."""
        target = self._tensor(tensor)
        shape = target.shape.as_list() if target.shape.is_fully_defined() else array.shape
        same = np.prod(shape, dtype=int) == array.size
        return array.reshape(shape if same else array.shape).astype(
            np.float64 if target.dtype.is_floating else target.dtype.as_numpy_dtype
        )

    def constant(self, tensor: str) -> np.ndarray | None:
        """Return the array that a tensor is, if it is a constant."""
        value = tf.get_static_value(self._tensor(tensor))
        return None if value is None else np.asarray(value)

    def array(self, tensor: str) -> np.ndarray | None:
        """Return what a tensor holds, if it is an input or a constant."""
        fed = self._feeds.get(op_of(tensor))
        return self.constant(tensor) if fed is None else np.asarray(fed)

    def _tensor(self, name: str) -> tf.Tensor:
        return self._graph.get_tensor_by_name(name if ":" in name else f"{name}:0")

    def edges_of(self, tensor: str) -> list[Edge]:
        """Return the inputs of ops that a tensor is."""
        return [
            (op.name, position)
            for op in self._graph.get_operations()
            for position, source in enumerate(op.inputs)
            if name_of(source) == tensor
        ]

    def _replaced(self, substituted: Substitution) -> dict[str, np.ndarray]:
        """Return the values of the tensors that no op gets any more."""
        found = {}
        for (op, position), value in substituted.edges.items():
            tensor = name_of(self._graph.get_operation_by_name(op).inputs[position])
            if tensor not in substituted.right and all(each in substituted.edges for each in self.edges_of(tensor)):
                found[tensor] = value
        return found

    def _with_variables(self, definition: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
        """Return a copy of a graph in which the variables are not captured."""
        found = tf.compat.v1.GraphDef()
        found.CopyFrom(definition)
        for node in found.node:
            node.device = ""  # of a replica
            if node.name in self._variables:
                node.CopyFrom(_variable_node(node.name, self._variables[node.name]))
        return found

    def _with_substitutes(self, substituted: Substitution) -> tuple[tf.compat.v1.GraphDef, dict[str, np.ndarray]]:
        """Return the graph to import, and the values to feed to the placeholders that stand for substitutes."""
        from detrand._patching.graphs import op_def

        definition, feeds = self._with_variables(self._definition), {}
        nodes = {node.name: node for node in definition.node}
        for op, attributes in substituted.attributes.items():
            node = nodes[op] if op in nodes else _node_in_function(definition, op)
            counts = {each.number_attr for each in op_def(node.op).output_arg}
            if not counts.isdisjoint(attributes):
                raise ValueError(f"{op} would have more outputs, or fewer")
            for attribute, text in attributes.items():
                node.attr[attribute].CopyFrom(_parsed(node.attr[attribute], text))
        functions = {op.partition(IN_FUNCTION)[0] for op in substituted.attributes if IN_FUNCTION in op}
        for loop, start in self._starts.items():  # iterates again where its condition is changed
            if nodes[loop].attr["cond"].func.name in functions:
                nodes[loop].input[: len(start)] = start
        for number, ((op, position), value) in enumerate(substituted.edges.items()):
            name = f"detrand_substitute_{number}"
            definition.node.append(_placeholder_node(name, value))
            nodes[op].input[position] = name
            feeds[name] = value
        return definition, feeds


def _op_that_raised(error: Exception) -> str:
    """Return the name of the op that could not be imported or run; an empty text if the error names none."""
    op = getattr(error, "op", None)
    found = _NODE_IN_TEXT.search(str(error))
    name = op.name if op is not None else found[1] if found else ""
    return name.partition("/detrand_")[0]  # one of the ops that compute in float64 in its place


def _leave_out(definition: tf.compat.v1.GraphDef, op: str) -> set[str]:
    """Remove an op from a graph with all ops that wait for it, and return their names."""
    gone, kept = {op}, []
    for node in definition.node:
        if node.name in gone or any(node_of(each.removeprefix("^")) in gone for each in node.input):
            gone.add(node.name)
        else:
            kept.append(node)
    del definition.node[:]
    definition.node.extend(kept)
    return gone


def _node_in_function(definition: tf.compat.v1.GraphDef, op: str) -> Any:
    """Return the node of an op in a function, or that of the constant that is one of its inputs (``op:1``)."""
    function, _, name = op.partition(IN_FUNCTION)
    name, _, position = name.partition(":")
    for each in definition.library.function:
        nodes = {node.name: node for node in each.node_def}
        if each.signature.name == function and name in nodes:
            node = nodes[name]
            node = nodes[op_of(node.input[int(position)])] if position else node
            if position and node.op != "Const":
                break
            return node
    raise ValueError(f"{op} cannot be substituted")


def _placeholder_node(name: str, value: np.ndarray) -> Any:
    node = tf.compat.v1.GraphDef().node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    return node


def _variable_node(name: str, value: np.ndarray) -> Any:
    node = _placeholder_node(name, value)
    node.op = "VarHandleOp"
    node.attr["shared_name"].s = name.encode()
    return node


def _parsed(like: Any, text: str) -> Any:
    """Return an attribute's value of the kind of another one, from its text in a trace."""
    value = tf.compat.v1.AttrValue()
    kind = like.WhichOneof("value")
    if kind == "f":
        value.f = float(text)
    elif kind == "i":
        value.i = int(text)
    elif kind == "b":
        value.b = text == "True"
    elif kind == "s":
        value.s = text.encode()
    elif kind == "tensor":
        dtype = tf.as_dtype(like.tensor.dtype).as_numpy_dtype
        value.tensor.CopyFrom(tf.make_tensor_proto(np.asarray(float(text)).astype(dtype)))
    elif kind == "list":
        value.list.i.extend(ast.literal_eval(text))
    else:
        raise ValueError(f"an attribute of kind {kind} cannot be substituted")
    return value


def _graph_of(
    port: Port, config: RunConfig, initial: Mapping[str, np.ndarray] | None
) -> tuple[tf.Graph, dict[str, str]]:
    """Return the graph of a call of a port with the weights of a config, and the names of its outputs by path."""
    from detrand._patching.tensorflow import converted_by_autograph, function_as_is

    outputs: dict[str, str] = {}

    def look(returned: Any) -> Any:
        leaves = leaves_by_path(returned)
        found = {path: read(leaf) for path, leaf in leaves.items()}
        tensors = {path: leaf for path, leaf in found.items() if isinstance(leaf, tf.Tensor)}
        outputs.clear()
        outputs.update((path, name_of(leaf)) for path, leaf in tensors.items())
        return list(tensors.values())

    with port_scope(port.migration, config), functions_as_written(), functions_inlined():
        port.set_weights(config, initial)
        model = converted_by_autograph(port.function)
        program = function_as_is(lambda *batch: look(port.call_model(model, batch, config.training)[0]))
        with port.sites.watched():
            graph = program.get_concrete_function(*port.batch).graph
    return graph, outputs


def _tf1_names(view: TF1View) -> dict[int, str]:
    """Return the TF1 names of variables that have the form of TF1's, by the ids of their handles."""
    return {id(view.parts[position].handle): name for position, name in view.names_of_whole_parts().items()}


def _not_rounded(view: TF1View, arrays: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Return arrays, given by TF1 name, that variables of half precision have rounded, by the ids of their handles."""
    found = view.to_parts(arrays, values=True)
    narrow = {n: part.handle for n, part in enumerate(view.parts) if part.dtype in (tf.float16, tf.bfloat16)}
    return {id(handle): np.asarray(found[position]) for position, handle in narrow.items() if position in found}
