"""`Runner`: the two programs of a migration, each run once in a run config however many checks ask for it."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detrand.checkpoints.graph_files import GraphFile
from detrand.checkpoints.pairing import NameMapProposal
from detrand.checkpoints.training_state import AVERAGE, optimizer_slots
from detrand.comparison.structures import map_structure
from detrand.comparison.values import compare, compare_by_path
from detrand.errors import ArgumentError, MigrationError, MissingPackageError, passing_over
from detrand.seeding.streams import RandomOp
from detrand.validation.audit.audit import audit
from detrand.validation.audit.hyperparameters import FORGET_BIAS, Hyperparameters, PortHyperparameters
from detrand.validation.diagnosis.causes.loss import with_label_smoothing
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.matching.stops import stop_in_one_program, stop_of_gradients
from detrand.validation.diagnosis.name_map import (
    flow_of_port,
    flow_of_tf1,
    pair_by_flow,
    search_names,
    variables_by_op,
)
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.diagnosis.search import Diagnosis, find_divergences, ops_without_counterpart
from detrand.validation.diagnosis.trials import Trial
from detrand.validation.frameworks.framework import Framework
from detrand.validation.frameworks.traces import TracedOp
from detrand.validation.migration import Migration
from detrand.validation.precision import variable_dtype
from detrand.validation.probe import Weakness, probed, weaknesses
from detrand.validation.programs.outcome import Outcome, RunConfig
from detrand.validation.programs.port import (
    BuiltPort,
    FreshPort,
    are_nearly_equal,
    built_port,
    fresh_port,
    run_port,
)
from detrand.validation.reference import DISTINCT_TRAINING, DISTINCT_WEIGHTS, INFERENCE, TRAINING, Reference
from detrand.validation.results import Audit, Found
from detrand.validation.training.loss import LossInput
from detrand.validation.training.port import make_port_optimizer
from detrand.variables.comparison import (
    VariablesComparison,
    compare_specs,
    compare_variables,
    mapped_name,
    rearranged_in,
)
from detrand.variables.pairing import Pairs, pair_in_order
from detrand.variables.rnn_cells import CellMap, recurrent_cells_in_all_orders
from detrand.variables.spec import VariableSpec

_MOST_ORDERS = 6  # of recurrent layers of one size: all orders of 3
_EXERCISING = (DISTINCT_WEIGHTS, DISTINCT_TRAINING)  # run configs in which activations are measured


class FoundNames(NamedTuple):
    """The pairing of variables whose names differ, which no ``name_map`` of the user says.

    Attributes:
      pairs: all pairs, and the doubts about them.
      outputs_agree: whether both programs compute the same outputs with distinct weights in these pairs.
      cells: the recurrent cells of TF1 that the port has in Keras's form.
      is_traced: whether the pairs follow from how the programs use the variables, not only from names and shapes.
      by_words: whether names decide between variables that are used alike.
      gave_up: the number of the port's runs after which the search was given up; 0 if nothing was left to try.
    """

    pairs: Pairs
    outputs_agree: bool
    cells: CellMap
    is_traced: bool = True
    by_words: bool = False
    gave_up: int = 0

    @property
    def proposal(self) -> NameMapProposal:
        """The pairs whose names differ, to write down."""
        of_cells = {name for key in self.cells for name in key}
        names = {name: other for name, other in self.pairs.names.items() if name != other and name not in of_cells}
        in_order = () if self.outputs_agree else self.pairs.in_order
        return NameMapProposal({**self.cells, **names}, self.pairs.doubts, in_order)

    @property
    def proof(self) -> str:
        """What shows that the pairs are right; empty if nothing does."""
        if self.outputs_agree:
            return "the outputs with distinct weights agree"
        if self.pairs.in_order or self.pairs.doubts or self.cells:
            return ""
        uses = "use and call" if self.by_words else "use"
        return (
            f"only one pairing fits {f'how both programs {uses} them' if self.is_traced else 'their names and shapes'}"
        )


class Runner:
    """Both programs of a migration; TF1's numbers come from sessions unless another reference is given.

    Attributes:
      migration: the migration, with a complete ``name_map`` if names differ and could be paired.
      tf1: where TF1's numbers come from.
      found_names: how the names were paired that the user's ``name_map`` leaves open; None if there are none.
      missing_names: TF1 name -> the name that the user's ``name_map`` gives it, of which the port has no variable.
    """

    def __init__(self, migration: Migration, tf1: Reference | None = None):
        self.migration = migration
        self.tf1 = tf1 or Reference(migration)
        self._ports: dict[RunConfig, Outcome] = {}
        self._trials: dict[tuple[object, str], Trial] = {}  # of earlier diagnoses
        self._beyond_rounding = frozenset[str]()  # divergences, as text
        self._built: dict[bool, BuiltPort] = {}  # by training
        self._is_probe = False
        self.found_names: FoundNames | None = None
        self.missing_names: dict[str, str] = {}

    def complete_name_map(self) -> None:
        """Pair the variables that the migration's ``name_map`` and equal names leave open."""
        tf1 = self.tf1.outcome(INFERENCE).variables | self.tf1.outcome(TRAINING).variables
        try:
            compare_specs(tf1, {}, self.migration.name_map)
        except ArgumentError as error:  # name_map belongs to the migration
            raise MigrationError(f"the variables of {self.migration.name} cannot be paired: {error}") from error
        try:
            tf1, port = self.variables()
            comparison = compare_specs(tf1, port, self.migration.name_map)
        except MissingPackageError:
            raise
        except Exception:  # the checks report what a program raises
            return
        given = tf1 if callable(self.migration.name_map) else self.migration.name_map or ()
        self.missing_names = {name: comparison.port_names[name] for name in given if name in comparison.only_in_tf1}
        rearranged = rearranged_in(self.migration.name_map, tf1)
        orders = recurrent_cells_in_all_orders(comparison.only_in_tf1, comparison.only_in_port, self._forget_biases())
        cells, *others = itertools.islice(orders, _MOST_ORDERS)
        rearranged |= cells
        name_map = {name: other for name, other in comparison.port_names.items() if name not in _names_in(rearranged)}
        if cells:
            self.migration = replace(self.migration, name_map={**name_map, **rearranged})
            comparison = compare_specs(tf1, port, self.migration.name_map)
        if cells or (comparison.only_in_tf1 and comparison.only_in_port):
            known = {pair.tf1_name: pair.port_name for pair in comparison.pairs}
            self.found_names = self._pair(tf1, port, known, [cells, *others])
            rearranged |= self.found_names.cells
            name_map = _completed(name_map, self.found_names.pairs.names, port)
        if cells or any(name != other for name, other in name_map.items()):
            self.migration = replace(self.migration, name_map={**name_map, **rearranged})
            self.tf1 = self.tf1.with_name_map(self.migration.name_map)
            self._ports.clear()
            self._built.clear()

    def _forget_biases(self) -> dict[str, float]:
        """Return what TF1's LSTM cells add to their forget gates, by the names of their biases, where that is known."""
        hyperparameters: Hyperparameters = {}
        with passing_over():  # the audit reports it
            hyperparameters = self.tf1.hyperparameters() or {}
        return {name: value for (name, what), value in hyperparameters.items() if what == FORGET_BIAS}

    def variables(self) -> tuple[dict[str, VariableSpec], dict[str, VariableSpec]]:
        """Return the variables of TF1, without its `training_state`, and of the port, in inference and in training."""
        tf1, port = self._all_variables()
        left_out = self.training_state()
        return {name: spec for name, spec in tf1.items() if name not in left_out}, port

    def _all_variables(self) -> tuple[dict[str, VariableSpec], dict[str, VariableSpec]]:
        configs = INFERENCE, TRAINING
        of_tf1 = [self.tf1.outcome(config).variables for config in configs]
        of_port = [self.port(config).variables for config in configs]
        return of_tf1[0] | of_tf1[1], of_port[0] | of_port[1]

    def training_state(self) -> list[str]:
        """Return the names of the slots, averages of variables and step counters that the port does not have.

        A TF1 model that makes its training op has them. Averages of tensors stay: the model may read them.
        """
        tf1, port = self._all_variables()

        def is_in_port(name: str) -> bool:
            with contextlib.suppress(ArgumentError):  # from name_map; variables-match reports it
                other = mapped_name(self.migration.name_map, name)
                return not isinstance(other, str) or other in port
            return True

        of_training = [name for name in optimizer_slots(tf1) if not tf1[name].trainable]
        averages = {name for name in of_training if AVERAGE in name and name.removesuffix(AVERAGE) not in tf1}
        return [name for name in of_training if name not in averages and not is_in_port(name)]

    def better_names(self) -> dict[str, tuple[str, str]]:
        """Return TF1 name -> name in the port that is used, and the one with which the outputs agree.

        It is empty if they agree as it is, or if no other pairing makes them agree.
        """
        tf1, port = self.variables()
        comparison = compare_specs(tf1, port, self.migration.name_map)
        used = {pair.tf1_name: pair.port_name for pair in comparison.pairs if pair.tf1_name in tf1}
        try:
            if not used or self.agree(distinct := self.tf1.outcome(DISTINCT_WEIGHTS), self.port(distinct.config)):
                return {}
        except Exception:  # the checks report what a program raises
            return {}
        found = self._pair(tf1, port, {})
        names = found.pairs.names if found.outputs_agree else used
        return {name: (other, names[name]) for name, other in used.items() if names.get(name, other) != other}

    def _pair(
        self,
        tf1: Mapping[str, VariableSpec],
        port: Mapping[str, VariableSpec],
        known: Mapping[str, str],
        orders: Sequence[CellMap] = ({},),
    ) -> FoundNames:
        """Pair variables by the data flow, or in the order of their creation if only that makes the outputs agree.

        Variables in a different form are left out. Recurrent cells are paired in one of the given orders.
        """
        rearranged = rearranged_in(self.migration.name_map, tf1)
        tf1 = {name: spec for name, spec in tf1.items() if name not in _names_in(rearranged)}
        formed = {name for each in rearranged.values() for name in each.port_names}
        port = {name: spec for name, spec in port.items() if name not in formed}
        paired = set(known.values())
        rest = (
            {name: spec for name, spec in tf1.items() if name not in known},
            {name: spec for name, spec in port.items() if name not in paired},
        )
        in_order, strictly = (
            Pairs({**known, **pairs.names}, pairs.in_order, pairs.doubts)
            for pairs in (pair_in_order(*rest), pair_in_order(*rest, by_words=False))
        )
        distinct = self.tf1.outcome(DISTINCT_WEIGHTS)
        config = distinct.config

        def with_pairs(pairs: Pairs, cells: CellMap) -> Migration:
            names = _completed({name: name for name in tf1}, pairs.names, port)
            return replace(self.migration, name_map={**names, **rearranged, **cells})

        def agreeing(*proposals: Pairs, cells: Sequence[CellMap] = orders) -> FoundNames | None:
            for each, pairs in itertools.product(cells, proposals):
                if self.agree(distinct, run_port(with_pairs(pairs, each), config, self.tf1.shapes())):
                    return FoundNames(pairs, True, each)
            return None

        if self.framework.no_graph and (found := agreeing(in_order, strictly)):
            return found._replace(is_traced=False)  # a trace takes as long as several calls
        found_by_flow = None
        with passing_over():  # a port that cannot be traced can be run nevertheless
            flows = flow_of_tf1(self.tf1.ops(), tf1), flow_of_port(self.migration, training=False)
            found_by_flow = pair_by_flow(tf1, port, flows, known)
        if found_by_flow is None:
            found = None if self.framework.no_graph else agreeing(in_order, strictly)
            return found._replace(is_traced=False) if found else FoundNames(in_order, False, orders[0], is_traced=False)
        by_flow, rivals = found_by_flow
        if found := agreeing(by_flow, in_order):
            return found
        by_words = not rivals.keys() <= by_flow.in_order
        cells, gave_up = orders[0], 0
        trace = self.tf1.trace(config) if rivals or len(orders) > 1 else None

        def diverged(pairs: Pairs, cells: CellMap) -> list[TracedOp]:
            assert trace is not None
            return ops_without_counterpart(with_pairs(pairs, cells), config, trace, self.tf1.shapes())

        if len(orders) > 1:
            with passing_over():  # a port that uses a table cannot be run in a graph
                cells = min(orders, key=lambda each: len(diverged(by_flow, each)))
        if rivals and trace is not None:
            by_flow, gave_up = search_names(
                lambda decided: pair_by_flow(tf1, port, flows, decided),
                lambda pairs: diverged(pairs, cells),
                trace,
                variables_by_op(trace, tf1),
                [name for name, spec in tf1.items() if len(spec.shape or ()) > 1],
                known,
            )
        if rivals and (found := agreeing(by_flow, cells=[cells])):
            return found._replace(gave_up=gave_up)
        return FoundNames(by_flow, False, cells, by_words=by_words, gave_up=gave_up)

    def agree(self, tf1: Outcome, port: Outcome) -> bool:
        """Return whether the port has computed TF1's outputs."""
        outputs = tf1.outputs
        closeness = (self.migration.policy_tolerance or self.migration.output_tolerances).closeness(outputs)
        check_dtype = self.migration.dtype_policy is None
        return compare_by_path(port.outputs, outputs, closeness, check_dtype=check_dtype, check_width=False).ok

    def port(self, config: RunConfig) -> Outcome:
        """Return the outcome of the port, called directly; its config has the op seeds of its random ops."""
        if config not in self._ports:
            tf1 = self.tf1.outcome(config) if config.weights == "initial" else None
            built = self._built.get(config.training) or BuiltPort(self.migration, config, self.tf1.shapes())
            given = self.op_seeds_of_loops() if config.training and config.mode == "constant" else ()
            ops = self.tf1.outcome(TRAINING if config.training else INFERENCE).random_ops
            run = functools.partial(built.run, tf1=tf1)
            outcome = self._run(run, replace(config, op_seeds=given), ops, lambda: tf1 or self.tf1.outcome(config))
            next_op_seed = max((op.op_seed + 1 for op in ops if op.op_seed is not None), default=0)
            self._ports[config] = replace(outcome, config=replace(outcome.config, next_op_seed=next_op_seed))
            if self.migration.strategy is None:  # replicas have variables of their own
                self._built[config.training] = built
        return self._ports[config]

    @staticmethod
    def _run(
        run: Callable[[RunConfig], Outcome], config: RunConfig, ops: Iterable[RandomOp], tf1: Callable[[], Outcome]
    ) -> Outcome:
        """Run the port, with numbers for images in the order in which TF1 draws them.

        Where an image has as many channels as rows and columns, the outputs show the order.
        """
        shapes = {op.shape for op in ops if op.shape is not None and len(op.shape) > 2}
        of_images = {(shape[0], shape[-1], *shape[1:-1]) for shape in shapes}
        images, unclear = tuple(of_images - shapes), of_images & shapes
        outcome = run(replace(config, images=images))
        if unclear.isdisjoint(op.shape for op in outcome.random_ops) or are_nearly_equal(outcome, tf1()):
            return outcome
        other = run(replace(config, images=(*images, *unclear)))
        return other if are_nearly_equal(other, tf1()) else outcome

    def op_seeds_of_loops(self) -> tuple[int, ...]:
        """Return the op seeds of the port's random ops in training where some draw what one op in a loop of TF1 draws.

        Others need none in constant mode.
        """
        if not self.tf1.outcome(TRAINING).in_loops:
            return ()
        op_seeds = self.port(TRAINING).config.op_seeds
        return op_seeds if len(set(op_seeds)) < len(op_seeds) else ()

    def loss_depends_on_inputs(self, port: Outcome) -> bool:
        """Return whether the port has a different regularization loss for inputs of zeros, with equal weights."""
        if port.regularization_loss is None:
            return False
        zeros = tuple(map_structure(np.zeros_like, self.migration.first_batch()))
        tf1 = self.tf1.outcome(replace(port.config, op_seeds=())) if port.config.weights == "initial" else None
        try:
            other = run_port(replace(self.migration, inputs=zeros), port.config, self.tf1.shapes(), tf1)
        except Exception:  # a model may refuse zeros
            return False
        return not compare(other.regularization_loss, port.regularization_loss, rtol=1e-5, atol=0.0, equal_nan=True)

    def diagnosis(self, config: RunConfig, differing: Collection[str]) -> Diagnosis:
        """Return where the programs diverge, given the paths of the outputs that differ."""
        asked = replace(config, op_seeds=())
        self._built.clear()  # a diagnosis needs much memory
        tf1 = self.tf1.trace(asked)
        initial = self.tf1.outcome(asked).initial if config.weights == "initial" else {}
        known = list(self._trials.values())
        differing_values = self.audit.differing
        found = find_divergences(
            self.migration, config, tf1, self.tf1.shapes(), differing, initial, known, differing_values
        )
        self._trials.update({(trial.ends, trial.words): trial for trial in found.trials})
        return found

    def note_beyond_rounding(self, divergence: Divergence | None) -> None:
        """Remember that a first divergence is more than rounding, so that no other check measures it."""
        self._beyond_rounding |= set() if divergence is None else {str(divergence)}

    def is_beyond_rounding(self, divergence: Divergence | None) -> bool:
        """Return whether a first divergence is known to be more than rounding."""
        return divergence is not None and str(divergence) in self._beyond_rounding

    def of_step(self, number: int) -> Runner:
        """Return the runner of the same programs, whose losses are those of TF1's outputs in a training step.

        Those of the first step remain if a golden file knows no others.
        """
        runner, tf1 = copy.copy(self), self.tf1.of_step(number)
        runner.tf1 = tf1 if tf1.knows_trace_of_loss else self.tf1
        return runner

    def of_other_outputs(self) -> Runner:
        """Return the runner of the same programs, whose losses are those of TF1's outputs with distinct weights."""
        runner = copy.copy(self)
        runner.tf1 = self.tf1.of_other_outputs()
        return runner

    def divergences_of_loss(self) -> tuple[tuple[Divergence, ...], tuple[LossInput, ...]]:
        """Return where the total losses of TF1's outputs diverge, in the first training step or that of `of_step`."""
        tf1, config = self.tf1, self.port(TRAINING).config
        program, inputs = tf1.loss_of_outputs()
        initial = tf1.outcome(TRAINING).initial
        trace = tf1.trace_of_loss()
        found = find_divergences(program, config, trace, tf1.shapes(), (), initial)
        named = {name: each.words for name, each in zip(trace.inputs, inputs, strict=False)}
        divergences = [
            replace(each, taken=(_renamed(each.taken[0], named), _renamed(each.taken[1], named)))
            for each in found.divergences
        ]
        return with_label_smoothing(divergences, inputs), inputs

    def divergences_of_gradients(self, differing: Collection[str]) -> tuple[Divergence, ...]:
        """Return where the gradients of variables diverge in the first training step, given by TF1 name."""
        tf1, config = self.tf1, self.port(TRAINING).config
        if not tf1.runs_tf1 or self.framework.no_graph:  # a golden file does not have these ops
            return ()
        program, trace = tf1.trace_of_gradients()
        paths = [path for path in trace.outputs if path in {f"[{name!r}]" for name in differing}]
        if not paths:
            return ()
        found = find_divergences(program, config, trace, tf1.shapes(), paths, tf1.outcome(TRAINING).initial)
        return found.divergences

    def stop_of_gradients(self, gradients: Mapping[str, bool]) -> tuple[str, TracedOp | None, TracedOp | None] | None:
        """Return what stops gradients in one program only, and where: in its model, or else in its loss.

        Given is whether the gradients of variables agree.
        """
        tf1, config, shapes = self.tf1, self.port(TRAINING).config, self.tf1.shapes()
        initial = tf1.outcome(TRAINING).initial
        with passing_over():  # a program that cannot be traced
            port = traced_port(self.migration, config, shapes, initial).run()
            if found := stop_of_gradients(tf1.trace(TRAINING), port, gradients):
                return found
            program, inputs = tf1.loss_of_outputs()
            of_outputs = [n for n, each in enumerate(inputs) if each.kind == "outputs"]
            port = traced_port(program, config, shapes, initial).run()
            return stop_of_gradients(tf1.trace_of_loss(), port, {}, of_outputs)
        return None

    def stop_in_one_program(
        self, variables: Collection[str]
    ) -> tuple[str, TracedOp | None, TracedOp | None, list[str]] | None:
        """Return the one program that stops gradients of variables, where, and of which; see `stop_of_gradients`."""
        tf1, config = self.tf1, self.port(TRAINING).config
        with passing_over():  # a program that cannot be traced
            port = traced_port(self.migration, config, tf1.shapes(), tf1.outcome(TRAINING).initial).run()
            return stop_in_one_program(tf1.trace(TRAINING), port, variables)
        return None

    def compared_variables(self) -> VariablesComparison:
        """Return the variables of both programs beside each other."""
        train = self.migration.train
        compared = self._compared_variables(lambda name: train is None or train.trains(name))
        frozen = any(pair.tf1.trainable and pair.port.trainable is False for pair in compared.pairs)
        if train is None or not frozen:
            return compared
        with passing_over():  # the checks report what a program raises
            gradients = self.tf1.training(TRAINING.mode).steps[0]["gradients"]
            return self._compared_variables(lambda name: gradients.get(name) is not None)
        return compared

    def _compared_variables(self, is_trained: Callable[[str], bool]) -> VariablesComparison:
        """Return the comparison of the variables; a port may freeze those that no training step of TF1 trains."""
        dtype, file = variable_dtype(self.migration.dtype_policy), self.migration.tf1
        is_frozen = isinstance(file, GraphFile) and file.is_frozen  # and does not say what is trained
        of_tf1, port = self.variables()
        tf1 = {
            name: replace(
                spec,
                dtype=dtype if spec.dtype == "float32" else spec.dtype,
                trainable=None if is_frozen or (spec.trainable and not is_trained(name)) else spec.trainable,
            )
            for name, spec in of_tf1.items()
        }
        try:
            return compare_variables(tf1, port, name_map=self.migration.name_map)
        except ArgumentError as error:  # name_map belongs to the migration
            raise MigrationError(f"the variables of {self.migration.name} cannot be paired: {error}") from error

    @functools.cached_property
    def lines_of_variables(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The lines that make the variables in TF1, and their layers in the port, by TF1 name."""
        return self.tf1.outcome(INFERENCE).lines | self.tf1.outcome(TRAINING).lines, self._lines_of_port[0]

    @functools.cached_property
    def lines_of_penalties(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The lines that penalize variables, by TF1 name: of user code, or else those of `lines_of_variables`."""
        of_variables, found = self.lines_of_variables, [dict[str, str](), dict[str, str]()]
        with passing_over():  # the checks report what a program raises
            found[0] |= self.tf1.outcome(INFERENCE).lines_of_penalties
            found[0] |= self.tf1.outcome(TRAINING).lines_of_penalties
            if self.migration.train is not None:
                found[0] |= self.tf1.training(TRAINING.mode).lines_of_penalties
        with passing_over():  # a port that cannot be traced
            found[1] |= PortHyperparameters(self.migration, self.fresh_port).lines_of_penalties()
        return {**of_variables[0], **found[0]}, {**of_variables[1], **found[1]}

    @functools.cached_property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """What the inputs do not show; see `probe.weaknesses`."""
        if self._is_probe or self.migration.strategy is not None:
            return ()
        return weaknesses(self.migration, [self.tf1.outcome(each).activations for each in _EXERCISING])

    @functools.cached_property
    def probe(self) -> Runner:
        """The runner of both programs with other inputs.

        Raises:
          MigrationError: if TF1's numbers come from a golden file.
        """
        if not self.tf1.runs_tf1:
            raise MigrationError("the golden file has no numbers for other inputs")
        runner = Runner(probed(self.migration, self.weaknesses))
        runner._is_probe = True
        runner._built = {training: built.with_inputs_of(runner.migration) for training, built in self._built.items()}
        return runner

    def uncontrolled(self, results: Iterable[Found]) -> dict[str, tuple[RandomOp, ...]]:
        """Return the draws of TF1 and of the port that no scope controls, in inference and training and in results."""
        found: dict[str, list[RandomOp]] = {"tf1": [], "port": []}
        for config in (INFERENCE, TRAINING):
            found["tf1"] += self.tf1.outcome(config).uncontrolled
            if config in self._ports:  # chosen checks may need no run of the port
                found["port"] += self._ports[config].uncontrolled
        for name, ops in ((name, ops) for result in results for name, ops in result.uncontrolled.items()):
            found[name] += ops
        return {name: tuple(dict.fromkeys(ops)) for name, ops in found.items()}

    @property
    def lines_of_seeds(self) -> Mapping[int, Sequence[str]]:
        """The lines that make the port's layers with generators of random numbers, by the seeds of these."""
        return self._lines_of_port[1]

    @functools.cached_property
    def _lines_of_port(self) -> tuple[Mapping[str, str], Mapping[int, Sequence[str]]]:
        with passing_over():  # what fails is worth more than its line
            port = built_port(self.migration, TRAINING, self.tf1.shapes())[0]
            return port.lines_of_variables(), port.lines_of_seeds()
        return {}, {}

    def lines_of_updates(self, variables: Iterable[str], config: RunConfig) -> dict[str, str]:
        """Return the lines of the port that update variables, or use them, by their TF1 names, where they are known."""
        of_variables, initial = {name: self.lines_of_variables[1].get(name, "") for name in variables}, {}
        if config.weights == "initial":
            initial = self.tf1.outcome(replace(config, op_seeds=())).initial
        with passing_over():  # a port that cannot be traced
            graph = traced_port(self.migration, config, self.tf1.shapes(), initial)
            return {name: graph.line_of_update(name) or line for name, line in of_variables.items()}
        return of_variables

    @property
    def framework(self) -> Framework:
        """The framework on which the port runs."""
        built = next(iter(self._built.values()), None)  # before the name map is complete, too
        return self.fresh_port.port.framework if built is None else built.framework

    @functools.cached_property
    def audit(self) -> Audit:
        """The hyperparameters of both programs, side by side."""
        tf1 = self.tf1
        return audit(
            self.migration,
            tf1.hyperparameters,
            tf1.optimizer_hyperparameters,
            lambda: self.fresh_port,
            lambda: make_port_optimizer(self.migration),
        )

    @functools.cached_property
    def fresh_port(self) -> FreshPort:
        """A port with its own initial values."""
        in_training, in_inference = (self.tf1.outcome(config).variables for config in (TRAINING, INFERENCE))
        return fresh_port(self.migration, self.tf1.shapes(), training=len(in_training) > len(in_inference))


def _names_in(rearranged: Iterable[tuple[str, ...]]) -> set[str]:
    return {name for key in rearranged for name in key}


def _completed(name_map: Mapping[str, str], names: Mapping[str, str], port: Collection[str]) -> dict[str, str]:
    """Return a name map with pairs in place of its entries; a name that a pair has taken gets no other variable."""
    taken = set(names.values())
    return {
        name: names.get(name) or (f"{name} (missing)" if other in taken or other in port else other)
        for name, other in name_map.items()
    }


def _renamed(names: Sequence[str], words: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(words.get(name, name) for name in names)
