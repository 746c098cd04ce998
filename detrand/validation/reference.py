"""`Reference`: where the numbers of a TF1 program come from: sessions, or a golden file."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from detrand._patching.optimizers import is_average
from detrand.packages import tf
from detrand.validation.audit.hyperparameters import (
    DECAY,
    OPTIMIZER,
    REGULARIZER,
    Hyperparameters,
    hyperparameters_of_graph,
    hyperparameters_of_optimizer,
    lines_of_penalties,
)
from detrand.validation.diagnosis.trace import trace_tf1, traced_op
from detrand.validation.frameworks.traces import Trace
from detrand.validation.migration import Migration
from detrand.validation.noise.floor import NoiseFloor, TrainingNoise
from detrand.validation.noise.measurement import measure_noise_floor
from detrand.validation.noise.variants import VARIANTS, Vary
from detrand.validation.precision import half_precision
from detrand.validation.programs.outcome import Outcome, RunConfig
from detrand.validation.programs.port import Port, port_scope
from detrand.validation.programs.replicas import UnsharedVariablesError
from detrand.validation.programs.tf1 import TF1Graph, TF1Program, tf1_program
from detrand.validation.training.loss import LossOfOutputs, gradients_of_loss, loss_of_outputs
from detrand.validation.training.noise import measure_gradient_noise, measure_training_noise
from detrand.validation.training.probe import ProbeOfTF1, probe_tf1
from detrand.validation.training.steps import Training, train_step_of
from detrand.validation.training.tf1 import train_in_session, training_graph
from detrand.variables.comparison import NameMap
from detrand.variables.sources import is_layer_or_module, parts_of
from detrand.variables.tf1_view import Shapes

Answer = TypeVar("Answer")

INFERENCE = RunConfig(training=False, mode="num_random_ops")
TRAINING = RunConfig(training=True, mode="num_random_ops")
CONSTANT_WEIGHTS = RunConfig(training=False, weights="constant")
DISTINCT_WEIGHTS = RunConfig(training=False, weights="distinct")
DISTINCT_TRAINING = RunConfig(training=True, weights="distinct")
CONSTANT_MODE = RunConfig(training=True, mode="constant")
# A port has run once before it is loaded; in constant mode the second run draws what the first one drew.
CHECKPOINT = RunConfig(training=False, mode="constant", weights="checkpoint")
MODES = ("num_random_ops", "constant")  # in which the programs may be trained


_Outputs = int | RunConfig  # of a training step, or of a run config


def run_configs_of(migration: Migration) -> tuple[RunConfig, ...]:
    """Return all run configs that the checks of a migration ask for."""
    configs = INFERENCE, TRAINING, CONSTANT_WEIGHTS, DISTINCT_WEIGHTS, CONSTANT_MODE, DISTINCT_TRAINING
    return configs if migration.checkpoint is None else (*configs, CHECKPOINT)


def _synchronized(migration: Migration) -> str:
    """Return which layer of a port on replicas uses the moments of the whole batch, as no tower can; empty if none."""
    with port_scope(migration, INFERENCE):
        port = Port(migration)
    parts = parts_of(port.variables) if is_layer_or_module(port.variables) else []
    names = [part.name for part in parts if getattr(part, "synchronized", False)]
    return f"{names[0]} of the port is synchronized and uses the moments of the whole batch" if names else ""


class Reference:
    """What the TF1 program of a migration computes, each answer once, when a check first asks for it.

    The answers of a golden file are given, by question, so no session is opened.

    Attributes:
      runs_tf1: whether answers that are not known yet can be found.
    """

    def __init__(self, migration: Migration, answers: Mapping[tuple[Any, ...], Any] | None = None):
        self._migration = migration
        self.runs_tf1 = not answers
        self._answers = dict(answers or {})
        self._graphs: dict[tuple[bool, str], TF1Graph] = {}  # by training and mode
        self._whole_batch = ""  # why it runs on the whole batch, and not in towers
        self._outputs_of_loss: tuple[_Outputs, _Outputs] = 0, DISTINCT_TRAINING  # and the other ones
        if not answers and migration.strategy is not None and (synchronized := _synchronized(migration)):
            self._leave_towers(synchronized)

    def _leave_towers(self, why: str) -> None:
        self._whole_batch = why
        self._migration = dataclasses.replace(self._migration, strategy=None)
        self._graphs.clear()

    def with_name_map(self, name_map: NameMap | None) -> Reference:
        """Return the reference of the same TF1 program for a migration with another name map."""
        reference = copy.copy(self)
        reference._migration = dataclasses.replace(self._migration, name_map=name_map)
        return reference

    def _answer(self, question: tuple[Any, ...], run: Callable[[], Answer]) -> Answer:
        """Return a known answer, or run: in towers, or on the whole batch if towers cannot share variables."""
        if question not in self._answers:
            try:
                self._answers[question] = run()
            except UnsharedVariablesError as error:
                self._leave_towers(str(error))
                self._answers[question] = run()
        return self._answers[question]

    def outcome(self, config: RunConfig) -> Outcome:
        """Return the outcome in a run config."""
        return self._run(config)[0]

    def _run(self, config: RunConfig) -> tuple[Outcome, Hyperparameters | Exception]:
        """Return the outcome in a run config, and the hyperparameters in its graph, or why they cannot be read.

        They are read for `INFERENCE` and `TRAINING` only: other run configs have the same graphs.
        """

        def run() -> tuple[Outcome, Hyperparameters | Exception]:
            hyperparameters: Hyperparameters | Exception = {}
            lines: dict[str, str] = {}
            with self._program(config) as program:
                try:
                    if config in (INFERENCE, TRAINING):
                        loss = program.built.regularization_loss
                        losses = [] if loss is None else [loss]
                        hyperparameters = hyperparameters_of_graph(program.session.graph, losses)
                        lines = lines_of_penalties(losses, program.built.view)
                except Exception as error:  # the program can be run nevertheless
                    hyperparameters = error
                outcome = program.run()
                if program.can_run_again:
                    self._graphs[config.training, program.built.stream.mode] = program.built
            outcome = dataclasses.replace(outcome, whole_batch=self._whole_batch, lines_of_penalties=lines)
            return outcome, hyperparameters

        return self._answer(("run", config), run)

    def _program(self, config: RunConfig) -> contextlib.AbstractContextManager[TF1Program]:
        """Return the context manager in which the program can be run in a config, in a known graph if one is fit."""
        graphs = (self._graphs.get((config.training, mode)) for mode in (config.mode, "num_random_ops"))
        suitable = (graph for graph in graphs if graph is not None and graph.can_run_in(config.mode))
        train = self._migration.train
        own_train_op = config.training and train is not None and train.tf1_train_op is not None
        updates = self._of_train_op()[0] if own_train_op else None
        return tf1_program(self._migration, config, next(suitable, None), updates)

    def _of_train_op(self) -> tuple[frozenset[str], Hyperparameters]:
        """Return the names of the ``UPDATE_OPS`` that the user's training op runs, and what its optimizer is given."""

        def read() -> tuple[frozenset[str], Hyperparameters]:
            with training_graph(self._migration, self.batches[0], TRAINING.mode) as graph:
                optimizers = [each for each in graph.update.optimizers if not is_average(each)]
                of_optimizer = hyperparameters_of_optimizer(optimizers[0]) if len(optimizers) == 1 else {}
                # What an optimizer leaves out, such as clipping, the training op may do.
                return graph.update_ops, {name: value for name, value in of_optimizer.items() if value is not None}

        return self._answer(("training op",), read)

    def shapes(self) -> Shapes:
        """Return the shapes of the variables, by name; in training, there may be more than in inference."""
        variables = self.outcome(TRAINING).variables | self.outcome(INFERENCE).variables
        return {name: spec.shape for name, spec in variables.items()}

    def hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters in the graphs; None if a golden file does not have them."""

        def read() -> Hyperparameters:
            found: Hyperparameters = {}
            for config in (INFERENCE, TRAINING):
                _, hyperparameters = self._run(config)
                if isinstance(hyperparameters, Exception):
                    raise hyperparameters
                found |= hyperparameters
            return found

        return self._answer(("hyperparameters",), read)

    def optimizer_hyperparameters(self) -> Hyperparameters | None:
        """Return the hyperparameters of the optimizer; None if a golden file does not have them."""

        def read() -> Hyperparameters:
            make = train_step_of(self._migration).tf1_optimizer
            if make is None:
                found = self._of_train_op()[1]
            else:
                with tf.Graph().as_default():
                    found = hyperparameters_of_optimizer(make())
            training = self.training(TRAINING.mode)
            averages = {(OPTIMIZER, "use_ema"): True} if "average" in training.lines else {}
            of_loss = {
                (name, REGULARIZER): None if words == "none" else words for name, words in training.regularizers.items()
            }
            return found | averages | of_loss | {(name, DECAY): words for name, words in training.decays.items()}

        return self._answer(("optimizer_hyperparameters",), read)

    def trace(self, config: RunConfig) -> Trace:
        """Return the ops and what they compute in the config of an outcome that comes from no checkpoint."""
        if ("trace", config) in self._answers:
            return self._answers["trace", config]
        with self._program(config) as program:
            return trace_tf1(program)  # too large to be kept

    def of_step(self, number: int) -> Reference:
        """Return a copy of this reference whose `loss_of_outputs` is that of a training step."""
        reference = copy.copy(self)
        reference._outputs_of_loss = number, DISTINCT_TRAINING
        return reference

    def of_other_outputs(self) -> Reference:
        """Return a copy of this reference with `loss_of_outputs` and `loss_of_other_outputs` exchanged."""
        reference = copy.copy(self)
        reference._outputs_of_loss = self._outputs_of_loss[::-1]
        return reference

    def loss_of_outputs(self) -> LossOfOutputs:
        """Return the total loss of TF1's outputs in the first training step, or that of `of_step`."""
        return self._loss_of(self._outputs_of_loss[0])

    def loss_of_other_outputs(self) -> tuple[LossOfOutputs, float] | None:
        """Return the total loss of TF1's outputs with distinct weights, and what it is in TF1.

        It is None if it overflows, or if a golden file was recorded of a loss that cannot be traced.
        """
        other = self._outputs_of_loss[1]
        if not self.of_other_outputs().knows_trace_of_loss:
            return None
        trace = self._trace_of_loss(other)
        (name,) = trace.outputs.values()
        value = float(trace.values[name].elements[0])
        return (self._loss_of(other), value) if np.isfinite(value) else None

    def trace_of_loss(self) -> Trace:
        """Return the ops of `loss_of_outputs`, and what they compute."""
        return self._trace_of_loss(self._outputs_of_loss[0])

    @property
    def knows_trace_of_loss(self) -> bool:
        """Whether `trace_of_loss` can be found; a golden file has the traces of few steps."""
        return self.runs_tf1 or ("trace of loss", self._outputs_of_loss[0]) in self._answers

    def _loss_of(self, of: _Outputs) -> LossOfOutputs:
        if isinstance(of, int):
            step, outputs = of, self.training(TRAINING.mode).steps[of]["outputs"]
        else:
            step, outputs = 0, self.outcome(of).outputs
        return loss_of_outputs(self._migration, step, self.batches[step], outputs)

    def _trace_of_loss(self, of: _Outputs) -> Trace:
        def trace() -> Trace:
            with tf1_program(self._loss_of(of).migration, TRAINING) as program:
                return trace_tf1(program)

        return self._answer(("trace of loss", of), trace)

    def trace_of_gradients(self) -> tuple[Migration, Trace]:
        """Return the migration whose outputs are the gradients of the first training step, and its ops in TF1."""
        program = gradients_of_loss(self._migration, self.batches[0][1], self.shapes())
        with tf1_program(program, TRAINING) as built:
            return program, trace_tf1(built)

    def ops(self) -> Trace:
        """Return the ops in inference, with or without what they compute."""

        def read() -> Trace:
            with self._program(INFERENCE) as program:
                outputs = {path: origin.name for path, origin in program.origins().items()}
                ops = {op.name: traced_op(op) for op in program.session.graph.get_operations()}
                return Trace.of(ops, outputs, {})

        return self._answers.get(("trace", INFERENCE)) or self._answer(("ops",), read)

    def noise_floor(self, outcome: Outcome, variants: Mapping[str, Vary] = VARIANTS) -> NoiseFloor | None:
        """Return how far the numbers of an outcome move in variants; None if the migration does not ask for it."""
        if not self._migration.measures_rounding:
            return None

        def measure() -> NoiseFloor:
            with self._program(outcome.config) as program:
                return measure_noise_floor(program, outcome.changed, variants)

        of_all = "noise_floor", outcome.config  # which a golden file has
        if not variants:
            return NoiseFloor.least(outcome.outputs, outcome.changed)
        if of_all in self._answers:
            return self._answers[of_all].of_variants(variants)
        if len(variants) == len(VARIANTS):
            return self._answer(of_all, measure)
        return self._answer((*of_all, *variants), measure)

    @functools.cached_property
    def batches(self) -> list[tuple[Any, Any]]:
        """The inputs and labels of each training step."""
        return self._migration.training_batches()

    def training(self, mode: str) -> Training:
        """Return the training in a mode of `MODES`."""

        def train() -> Training:
            training = train_in_session(self._migration, self.batches, mode)
            if half_precision(self._migration.dtype_policy) is None:
                return training
            noise = measure_gradient_noise(self._migration, self.batches, mode, training)
            return dataclasses.replace(training, gradient_noise=noise)

        return self._answer(("training", mode), train)

    def probe(self) -> ProbeOfTF1 | None:
        """Return what the optimizer does with gradients and steps that the training does not reach."""

        def run() -> ProbeOfTF1:
            training = self.training(TRAINING.mode)
            with self._program(TRAINING) as program:
                view = program.built.view
                constraints = {name: getattr(view.parts_of(name)[0], "constraint", None) for name in view.specs}
            return probe_tf1(self._migration, training, constraints)

        return self._answer(("probe",), run)

    def training_noise(self, mode: str) -> TrainingNoise | None:
        """Return how far the numbers of each step move; None if the migration does not ask for it."""
        if not self._migration.measures_training:
            return None
        training = self.training(mode)
        return self._answer(
            ("training_noise", mode), lambda: measure_training_noise(self._migration, self.batches, mode, training)
        )
