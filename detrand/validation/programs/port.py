"""The port of a migration: made by the factory, and run eagerly, in a ``tf.function`` or in a Keras functional model.

`run_port`, `run_port_from_checkpoint` and `run_port_in_functional_model` make a new port and run it with given weights.
A `Port` in `port_scope` can also be called, traced and trained.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.keras import (
    generators_of,
    is_instance_of_loaded,
    layer_names_counted_anew,
    other_backend_of,
    own_seed_of,
    underlying_variable,
)
from detrand.comparison.structures import map_structure
from detrand.comparison.values import compare
from detrand.errors import MigrationError, passing_over
from detrand.packages import is_loaded, tf
from detrand.random_tool import DeterministicRandomTestTool, stream_of
from detrand.seeding.callsite import UNKNOWN, describe_error
from detrand.seeding.streams import RandomOp
from detrand.validation.batches import describe_batch
from detrand.validation.frameworks import flax, keras3, tensorflow, torch
from detrand.validation.frameworks.framework import Framework, keras_of, module_of
from detrand.validation.frameworks.traces import RecordedPort, TracedPort
from detrand.validation.migration import Migration
from detrand.validation.precision import dtype_policy
from detrand.validation.programs.counterparts import (
    Position,
    are_ambiguous,
    controlled,
    op_seeds_of_counterparts,
    positions_in,
    positions_in_trace,
    unused_in,
)
from detrand.validation.programs.distinct_weights import changed, distinct_weights, has_scale
from detrand.validation.programs.layer_sites import LayerSites
from detrand.validation.programs.outcome import (
    ADDED_LOSS,
    Outcome,
    RunConfig,
    UntracedPortError,
    numpy_draws_from_now,
    numpy_seeded,
)
from detrand.validation.programs.replicas import Replicas, in_own_containers
from detrand.validation.programs.sample_variances import as_of_batch
from detrand.variables.comparison import mapped_name, rearranged_in
from detrand.variables.flax_modules import is_flax_module
from detrand.variables.forms import Rearranged
from detrand.variables.reset import reset_variables
from detrand.variables.sources import (
    assign,
    is_layer_or_module,
    joined_variables,
    named_variables,
    parts_of,
    variables_of,
)
from detrand.variables.tf1_view import Shapes, TF1View
from detrand.variables.torch_modules import is_torch_module

_NEARLY = 1e-3  # relative: how close outputs are if random ops are each other's counterparts


def run_port(migration: Migration, config: RunConfig, tf1_shapes: Shapes, tf1: Outcome | None = None) -> Outcome:
    """Make a new port and run it once, as `TF1Program.run` runs the TF1 program; see `BuiltPort.run`."""
    return BuiltPort(migration, config, tf1_shapes).run(config, tf1)


class BuiltPort:
    """A new port that has been called once, in a run config, and can run in all others with the same ``training``.

    Variables that do not get the weights of a config have the same values before each run.
    """

    def __init__(self, migration: Migration, config: RunConfig, tf1_shapes: Shapes):
        draws_numpy = numpy_draws_from_now()
        self._port, self._random_ops_before, self._random_ops = built_port(migration, config, tf1_shapes)
        self._draws_numpy = draws_numpy()
        view = self._port.view()
        rearranged = view.constants()
        weights = {
            name
            for name, spec in view.specs.items()
            if has_scale(spec) and spec.shape == tf1_shapes.get(name) and name not in rearranged
        }
        kept = [part for position, part in enumerate(view.parts) if not weights.issuperset(view.names_of(position))]
        self._kept = [(part, part.numpy()) for part in kept if migration.strategy is None]

    @property
    def framework(self) -> Framework:
        """The framework on which the port runs."""
        return self._port.framework

    def with_inputs_of(self, migration: Migration) -> BuiltPort:
        """Return the same port, to be called on the inputs of another migration."""
        other = copy.copy(self)
        other._port = self._port.with_inputs_of(migration)
        return other

    def run(self, config: RunConfig, tf1: Outcome | None = None) -> Outcome:
        """Run the port once.

        With the outcome of TF1, the port has TF1's initial values, and its random ops draw what their counterparts
        draw.
        """
        draws_numpy = numpy_draws_from_now()
        outcome = self._run(config, tf1) if tf1 is None or config.mode == "constant" else self._run_paired(config, tf1)
        before = (*self._random_ops_before, *self._random_ops)
        return replace(outcome, draws_numpy=self._draws_numpy or draws_numpy(), random_ops_before=before)

    def _run_paired(self, config: RunConfig, tf1: Outcome) -> Outcome:
        port = self._port
        random_ops = tuple(op for op in self._random_ops if op.phase != "init")
        if not are_ambiguous(tf1.random_ops, random_ops):
            return self._run_with_positions(config, tf1, random_ops)
        if not port.framework.no_graph:
            return self._run_with_positions(config, tf1, random_ops, *port.positions(config, random_ops))
        outcome = self._run_with_positions(config, tf1, random_ops)
        if are_nearly_equal(outcome, tf1):
            return outcome  # a trace takes as long as several calls
        positions, unused = port.positions_in_trace(config, random_ops, tf1.initial)
        return self._run_with_positions(config, tf1, random_ops, positions, unused) if positions else outcome

    def _run_with_positions(
        self,
        config: RunConfig,
        tf1: Outcome,
        random_ops: tuple[RandomOp, ...],
        positions: Sequence[Position | None] = (),
        unused: Collection[int] = (),
    ) -> Outcome:
        """Run the port with its random ops paired, whose positions are known or not; see `op_seeds_of_counterparts`."""

        def op_seeds_of(ops: Sequence[RandomOp]) -> tuple[int, ...]:
            return op_seeds_of_counterparts(
                tf1.random_ops,
                ops,
                initializes=not self._port.view().parts,
                positions=(tf1.positions, positions),
                unused=(tf1.unused, unused),
                in_loops=tf1.in_loops,
            )

        for _ in range(2):  # a second time if its random ops are not those of the first call
            op_seeds = op_seeds_of(random_ops)
            outcome = self._run(replace(config, op_seeds=op_seeds), tf1)
            random_ops = outcome.random_ops
            if op_seeds == op_seeds_of(random_ops):
                break
        return outcome

    def _run(self, config: RunConfig, tf1: Outcome | None) -> Outcome:
        port = self._port
        for part, value in self._kept:
            assign(part, value)
        with port_scope(port.migration, config) as tool:
            before = port.set_weights(config, {} if tf1 is None else tf1.initial)
            with port.framework.sample_variances() as variances:
                called = port.call(config.training)
            return port.outcome(config, *called, tool, before, variances)


def read(output: Any) -> Any:
    """Return an output of a port in a graph, or the tensor that reads it if it is a variable."""
    is_variable = isinstance(output, tf.Variable) or is_instance_of_loaded(output, "keras", "Variable")
    return tf.convert_to_tensor(output) if is_variable else output


def are_nearly_equal(port: Outcome, tf1: Outcome) -> bool:
    """Return whether a port's outputs are so close to TF1's that its random ops are each other's counterparts."""
    return bool(compare(port.outputs, tf1.outputs, _NEARLY, atol=0.0, equal_nan=True, check_dtype=False))


def built_port(
    migration: Migration, config: RunConfig, tf1_shapes: Shapes
) -> tuple[Port, tuple[RandomOp, ...], tuple[RandomOp, ...]]:
    """Return a new port, called once in a scope of its own, which creates its variables.

    Returned with it are the random ops that it ran when it was made, and in the call.
    """
    with port_scope(migration, replace(config, op_seeds=())) as tool:
        port = Port(migration, tf1_shapes)
        before = len(tool.random_ops)
        port(config.training)
    return port, tool.random_ops[:before], tool.random_ops[before:]


class FreshPort(NamedTuple):
    """A port that was made and called in constant mode, in which the order of random ops does not matter.

    Attributes:
      port: the port.
      view: the view of its variables.
      arrays: its own initial values by TF1 name, from before the first call, which may change variables.
      drawn_by: the random ops that drew them, by TF1 name.
      initializers: what its variables were created with, numbers or functions that return them, by the variables' ids.
    """

    port: Port
    view: TF1View
    arrays: dict[str, np.ndarray]
    drawn_by: dict[str, tuple[RandomOp, ...]]
    initializers: dict[int, Any]


def fresh_port(migration: Migration, tf1_shapes: Shapes, training: bool) -> FreshPort:
    """Make a port and call it, in training too if it has more variables there."""
    config = RunConfig(training=False)
    created: dict[int, tuple[Any, np.ndarray]] = {}  # by id; the variable is kept so that the id stays its own
    initializers: dict[int, Any] = {}
    drawn: dict[int, tuple[int, int]] = {}  # the first random op since the variable before, and the first one after it

    def keep(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        variable = next_creator(**arguments)
        key = id(underlying_variable(variable))
        initializers[key] = arguments.get("initial_value")
        if tf.executing_eagerly():
            created[key] = variable, variable.numpy()
            drawn[key] = max((last for _, last in drawn.values()), default=0), len(tool.random_ops)
        return variable

    kept = tf.variable_creator_scope(keep) if is_loaded("tensorflow") else contextlib.nullcontext()
    with port_scope(migration, config) as tool, kept:
        port = Port(migration, tf1_shapes)
        created.update({key: (variable, variable.numpy()) for key, (variable, _) in created.items()})
        port(training=False)
        if training:
            port(training=True)
    view = port.view()
    parts = {position: created.get(id(part), (part, None))[1] for position, part in enumerate(view.parts)}
    known = {position: view.parts[position].numpy() if array is None else array for position, array in parts.items()}
    ops = tool.random_ops
    drawn_by = {
        name: ops[slice(*drawn[id(part)])]
        for position, part in enumerate(view.parts)
        if id(part) in drawn
        for name in view.names_of(position)
    }
    return FreshPort(port, view, view.from_parts(known, values=True), drawn_by, initializers)


def run_port_from_checkpoint(migration: Migration, tf1: Outcome) -> Outcome:
    """Make a new port and run it with the weights that the TF1 program got from the checkpoint.

    Raises:
      CheckpointError: if the port has different variables.
    """
    from detrand.checkpoints.loading import load_tf1_checkpoint

    assert tf1.restored is not None and migration.checkpoint is not None
    with port_scope(migration, tf1.config) as tool:
        port = Port(migration)
        port(tf1.config.training)
        load_tf1_checkpoint(port.variables, migration.checkpoint, _entries(migration, tf1.restored.tf1_names).get)
        return port.outcome(tf1.config, *port.call(tf1.config.training), tool)


def _entries(migration: Migration, tf1_names: Mapping[str, str]) -> dict[str, str | Rearranged | None]:
    """Return the entries of the name map by the names in a checkpoint."""
    stored = {tf1_name: name for name, tf1_name in tf1_names.items()}
    entries = {name: mapped_name(migration.name_map, tf1_name) for name, tf1_name in tf1_names.items()}
    for key, entry in rearranged_in(migration.name_map, stored).items():
        names = tuple(stored[name] for name in key)
        entries |= dict.fromkeys(names, replace(entry, tf1_names=names))
    return entries


def run_port_in_functional_model(
    migration: Migration, tf1: Outcome, tf1_shapes: Shapes, op_seeds: tuple[int, ...]
) -> Outcome | None:
    """Run a new port inside a Keras functional model with TF1's initial values; return None if it is no Keras layer.

    The op seeds are those of the ops of a call; see `Stream.give_next`.
    """
    config = tf1.config
    with port_scope(migration, config) as tool:
        port = Port(migration, tf1_shapes)
        keras = keras_of(port.model)
        if keras is None:
            return None
        batch = migration.first_batch()
        inputs = map_structure(
            lambda array: keras.Input(
                batch_shape=array.shape, dtype="string" if array.dtype.kind == "O" else array.dtype.name
            ),
            list(batch),
        )
        model = keras.Model(inputs, port.function(*in_own_containers(inputs), training=config.training))
        port.set_weights(config, tf1.initial)
        stream_of(tool).give_next(op_seeds)
        outputs = model(list(port.batch), training=config.training)
        return port.outcome(replace(config, op_seeds=op_seeds), outputs, port.regularization_loss(), tool)


@contextlib.contextmanager
def port_scope(migration: Migration, config: RunConfig) -> Iterator[DeterministicRandomTestTool]:
    """Open the scope of a new tool and the migration's dtype policy, in which a port is made and run."""
    tool = DeterministicRandomTestTool(migration.seed, config.mode)
    if config.op_seeds:
        stream_of(tool).give_next(config.op_seeds)
    if config.next_op_seed and config.mode == "num_random_ops":
        tool.operation_seed = config.next_op_seed
    if migration.dtype_policy is not None:
        stream_of(tool).keras_draws_float32 = True
    stream_of(tool).images = config.images
    stream_of(tool).traces_anew = True  # a port is called in several scopes
    own_step = tensorflow.own_global_step()
    with dtype_policy(migration.dtype_policy), own_step, numpy_seeded(migration.numpy_seed), tool.scope():
        yield tool


class Port:
    """A port, made by the migration's factory, and called as the migration's program is.

    The shapes of TF1's variables are needed where the port's variables are read or assigned by their TF1 names.

    Attributes:
      migration: the migration.
      model: what the factory returned.
      function: the model as a function of the migration's inputs.
      variables: the source of its variables, for `variables_of`.
      replicas: the replicas that it runs on.
      batch: the migration's inputs as tensors of its framework.
      sites: the lines of its layers.
      framework: the framework on which it runs.

    Raises:
      MigrationError: if the factory raises, or returns something that cannot be called or is not new, or if its
        framework cannot run it, or not with the migration's strategy or dtype policy.
    """

    def __init__(self, migration: Migration, tf1_shapes: Shapes | None = None):
        self.migration = migration
        self._tf1_shapes = tf1_shapes or {}
        self.replicas = Replicas(migration.name, migration.strategy)
        self.sites = LayerSites()
        try:
            # A port has the same names whenever it is made.
            seeded = torch.seeded(migration.seed)
            with layer_names_counted_anew(), self.replicas.scope(), self.sites.watched(), seeded:
                self.model: Any = migration.port()
        except Exception as error:
            raise MigrationError(f"port of {migration.name} raised {describe_error(error)}") from error
        if not callable(self.model):
            raise MigrationError(
                f"port of {migration.name} returned {self.model!r} of type {type(self.model).__name__}, which cannot "
                "be called. Return a layer, a model or a function"
            )
        check_new(migration.name, self.model)
        self.framework = framework_of(self.model)
        self._check_framework()
        self.batch = self.tensors(migration.first_batch())
        self.function = self.framework.function(self.model, len(self.batch))
        self.variables = variables_source(self.model)

    def made_anew(self, training: bool) -> Port:
        """Return a new port, called once; a loss that reads a model reads the one that was made last."""
        return built_port(self.migration, RunConfig(training, "constant"), self._tf1_shapes)[0]

    def with_inputs_of(self, migration: Migration) -> Port:
        """Return the same port with the inputs of another migration."""
        other = copy.copy(self)
        other.migration, other.batch = migration, self.tensors(migration.first_batch())
        return other

    def _check_framework(self) -> None:
        """Raise a `MigrationError` if the framework cannot run the model as the migration asks for."""
        name, framework, migration = self.migration.name, self.framework, self.migration
        if framework.why_no_strategy and migration.strategy is not None:
            raise MigrationError(f"port of {name} {framework.why_no_strategy}")
        if framework.why_no_policy and migration.dtype_policy is not None:
            raise MigrationError(f"port of {name} {framework.why_no_policy}")
        try:
            framework.check(self.model)
        except ValueError as error:
            raise MigrationError(f"port of {name} {error}") from None

    def tensors(self, batch: Any) -> Any:
        """Return a batch of arrays as the port takes it: as tensors of its framework; None stays None."""
        return map_structure(lambda array: None if array is None else self.framework.tensor(array), batch)

    def __call__(self, training: bool) -> Any:
        """Call the port on the migration's inputs, and return its outputs."""
        return self.call(training)[0]

    def call(self, training: bool) -> tuple[Any, tf.Tensor | None]:
        """Call the port; return its outputs and the mean of the replicas' regularization losses.

        Raises:
          MigrationError: if its signature does not fit the migration's inputs.
        """
        try:
            return self.call_model(self.function, self.batch, training)
        except TypeError as error:
            if why := self.framework.why_not_called(self.model, len(self.batch)):
                inputs = describe_batch(self.migration.first_batch())
                passed = f"{inputs} and training=..." if self.framework.passes_training else inputs
                raise MigrationError(
                    f"port of {self.migration.name} cannot be called with the inputs {passed}: {why}"
                ) from error
            raise

    def call_model(
        self, model: Callable[..., Any], batch: tuple[Any, ...], training: bool
    ) -> tuple[Any, tf.Tensor | None]:
        """Call a model on each replica with its part of a batch."""
        results = self.replicas.run(lambda *part: (model(*part, training=training), self.regularization_loss()), *batch)
        outputs, losses = zip(*results, strict=True)
        mean = losses[0] if len(losses) == 1 else None if losses[0] is None else tf.add_n(losses) / len(losses)
        return self.replicas.joined(outputs), mean

    def regularization_loss(self) -> tf.Tensor | None:
        """Return the sum of the regularization losses that the last call added; None if there are none."""
        losses = self.framework.losses(self.model)
        if self.framework.no_graph:
            losses = [self.framework.dense(as_array(loss)) for loss in losses]
            return sum(losses[1:], losses[0]) if losses else None
        return tf.add_n(losses) if losses else None

    def graph(self, training: bool, look: Callable[[Any], Any]) -> tf.Graph:
        """Return the graph of the port in a ``tf.function``, which is not run; the migration's inputs are arguments.

        A function looks at the port's outputs where it is traced, and returns what the ``tf.function`` is to return.

        Raises:
          UntracedPortError: if the port does not run on TensorFlow.
        """
        self.check_graph()
        from detrand._patching.tensorflow import converted_by_autograph, function_as_is

        model = converted_by_autograph(self.function)
        program = function_as_is(lambda *batch: look(model(*in_own_containers(batch), training=training)))
        return program.get_concrete_function(*self.batch).graph

    def check_graph(self) -> None:
        """Raise an `UntracedPortError` if the port does not run on TensorFlow."""
        if self.framework.no_graph:
            raise UntracedPortError(self.framework.no_graph)

    def positions(self, config: RunConfig, random_ops: Sequence[RandomOp]) -> tuple[list[Position | None], list[int]]:
        """Return the positions of the random ops of a call, in order, and the places in it of those that nothing uses.

        A ``tf.function`` shows both, if it can.
        """
        with passing_over():  # a port that cannot be traced can be run nevertheless
            with port_scope(self.migration, replace(config, op_seeds=())) as tool:
                graph = self.graph(config.training, lambda outputs: outputs)
            traced, kinds = controlled(tool.random_ops), [op.op_type for op in controlled(random_ops)]
            if self.migration.strategy is None and [op.op_type for op in traced] == kinds:
                view = self.view()
                names = {id(part.handle): view.names_of(position) for position, part in enumerate(view.parts)}
                read = {inner.op.name: names[id(outer)] for outer, inner in graph.captures if id(outer) in names}
                found = positions_in(graph, read)
                idle = unused_in(graph, [*(output.op for output in graph.outputs), *graph.control_outputs])
                places = [place for place, op in enumerate(traced) if op.op_seed in idle]
                return [found.get(op.op_seed or 0) for op in traced], places
        return [], []

    def positions_in_trace(
        self, config: RunConfig, random_ops: Sequence[RandomOp], initial: Mapping[str, np.ndarray]
    ) -> tuple[list[Position | None], list[int]]:
        """Return what `positions` does, of a port whose framework traces it with TF1's initial values, if it can."""
        with passing_over():  # a port that cannot be traced can be run nevertheless
            traced = self.traced(replace(config, op_seeds=()), initial)
            view = self.view()
            names = {id(part): view.names_of(position) for position, part in enumerate(view.parts)}
            if isinstance(traced, RecordedPort):
                read = {name: names[id(part)] for name, part in traced.parts.items() if id(part) in names}
                positions, unused = positions_in_trace(traced, read)
                if len(positions) == len(controlled(random_ops)):
                    return positions, unused
        return [], []

    def traced(self, config: RunConfig, initial: Mapping[str, np.ndarray] | None) -> TracedPort | None:
        """Return the port in a run config as its framework traces it; None for TensorFlow, which has a graph."""

        def compute(run: Callable[..., Any]) -> Any:
            with port_scope(self.migration, config) as tool:
                self.set_weights(config, initial)
                model = partial(self.function, training=config.training)
                return run(model, self.batch, lambda: len(tool.random_ops))

        return self.framework.traced(self.model, compute, self.view(), self.sites.line_of)

    def lines_of_variables(self) -> dict[str, str]:
        """Return the lines that make variables, or else their innermost layers, by the variables' TF1 names."""
        view, found = self.view(), dict[str, tuple[int, str]]()
        names = {id(part): view.names_of(position) for position, part in enumerate(view.parts)}
        for layer in parts_of(self.variables) if is_layer_or_module(self.variables) else ():
            owned, line = list(named_variables(layer).values()), self.sites.line_of(layer)
            for variable in owned:
                own = self.sites.line_of(variable)
                size, where = (0, own) if own else (len(owned), line)
                for name in names.get(id(underlying_variable(variable)), ()) if where else ():
                    found[name] = min(found.get(name, (size, where)), (size, where))
        return {ADDED_LOSS: self._line_of_added_loss(), **{name: line for name, (_, line) in found.items()}}

    def _line_of_added_loss(self) -> str:
        """Return the line of the first loss that the model adds, or else that of the model."""
        if self.framework.losses(self.model):
            with passing_over(), self.sites.watched():  # a port that cannot be traced
                graph = self.graph(True, lambda outputs: self.model.losses[0])
                lines = self.sites.sites_of(graph.get_operations())
                line = lines[graph.outputs[0].op.inputs[0].op.name]  # its output is a copy
                if line != str(UNKNOWN):
                    return line
        return self.sites.line_of(self.model)

    def lines_of_seeds(self) -> dict[int, list[str]]:
        """Return the lines that make the layers with a generator of random numbers, by the seed that it is given."""
        found = defaultdict[int, list[str]](list)
        for layer in parts_of(self.variables) if is_layer_or_module(self.variables) else ():
            for generator in generators_of(layer):
                seed, line = own_seed_of(generator)[0], self.sites.line_of(layer)
                if seed is not None and line:
                    found[seed].append(line)
        return found

    def view(self) -> TF1View:
        """Return the view of the variables that the port has now."""
        return TF1View(joined_variables("port", self.variables), self.migration.name_map, self._tf1_shapes)

    def set_weights(self, config: RunConfig, initial: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        """Give the variables the weights of a config; return the distinct weights as the port has them.

        The initial values are those of TF1, by its names. Where the port has all of TF1's variables, those that only
        the port has keep their own initial values.
        """
        if config.weights == "distinct":
            return self.assign(distinct_weights(config.scales))
        if config.weights == "initial":
            self.view().assign(initial or {})
            return {}
        view = self.view()
        if specs := view.specs:
            assert config.constant is not None
            has_all = self._tf1_shapes.keys() <= specs.keys()
            own = {name: array for name, array in view.values().items() if has_all and name not in self._tf1_shapes}
            reset_variables(self.variables, config.constant)
            shapes: dict[str, Any] = {name: spec.shape for name, spec in specs.items() if has_scale(spec)}
            constants = {name: np.full(shape, config.constant) for name, shape in shapes.items()}  # in TF1's form
            self.assign({**constants, **own})
        return {}

    def assign(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Assign arrays by TF1 name to the variables that have the names; return the variables' values then."""
        view = self.view()
        view.assign(arrays)
        return {name: array for name, array in view.values().items() if name in arrays}

    def outcome(
        self,
        config: RunConfig,
        outputs: Any,
        regularization_loss: tf.Tensor | None,
        tool: DeterministicRandomTestTool,
        before: Mapping[str, np.ndarray] | None = None,
        variances: Sequence[tuple[np.ndarray, int]] = (),
    ) -> Outcome:
        """Return the outcome of a call: what the port has computed, and the variables that differ from those before.

        The variances are those of the samples that the call has normalized, each with its size.
        """
        changes = changed(before, self.view().values()) if before else {}
        return Outcome(
            config,
            map_structure(as_array, outputs),
            as_array(regularization_loss),
            variables_of(self.variables),
            tool.random_ops,
            changed=changes,
            of_batch=as_of_batch(before or {}, changes, variances),
            keeps_losses=self.framework.keeps_losses(self.model),
        )


def as_array(leaf: Any) -> Any:
    """Return a tensor or variable of any framework as an array; anything else as it is."""
    if tensorflow.is_tensor(leaf):
        return leaf.numpy() if hasattr(leaf, "numpy") else leaf
    if torch.is_torch_tensor(leaf):
        return torch.array_of(leaf)
    return np.array(leaf) if flax.is_jax_array(leaf) else keras3.array_of(leaf)


def framework_of(model: Any) -> Framework:
    """Return the framework on which a model runs."""
    module = module_of(model)
    if is_torch_module(module):
        return torch.Torch()
    if is_flax_module(module) or flax.is_linen_module(module):
        return flax.Flax(model)
    backend = other_backend_of(module)
    return keras3.KerasBackend(backend) if backend else tensorflow.TensorFlow()


# Layers, modules and optimizers of the ports that have been made, by their ids, because user classes may define __eq__.
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def check_new(name: str, model: Any) -> None:
    """Raise a `MigrationError` if a port has a layer or module with variables of an earlier port."""
    owner = variables_source(model)
    parts = parts_of(owner) if is_layer_or_module(owner) else []
    for part in parts:
        if _made.get(id(part)) is part and getattr(part, "built", True) and named_variables(part):
            what = f"the same {type(part).__name__}" if part is model else f"ports with the same {_described(part)}"
            raise MigrationError(
                f"port of {name} returned {what} twice, which still has the variables of the first call. Make it "
                "inside port, so that each call returns a new port"
            )
    for part in parts:
        _made[id(part)] = part


def check_new_optimizer(name: str, optimizer: Any) -> None:
    """Raise a `MigrationError` unless the optimizer of a port is a new one."""
    if _made.get(id(optimizer)) is optimizer:
        raise MigrationError(
            f"port_optimizer of {name} returned the same {type(optimizer).__name__} twice, which still has the slots "
            "of the first training. Make it inside port_optimizer, so that each call returns a new optimizer"
        )
    _made[id(optimizer)] = optimizer


def variables_source(model: Any) -> Any:
    """Return the source of a port's variables, for `variables_of`: a plain function shows none."""
    owner = getattr(model, "__self__", model)  # of a method
    return owner if is_layer_or_module(owner) else []


def _described(part: Any) -> str:
    return f"{type(part).__name__} {part.name!r}" if getattr(part, "name", None) else type(part).__name__
