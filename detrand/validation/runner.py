"""`Runner`: the two programs of a migration, each run once in a run config however many checks ask for it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from detrand.errors import ArgumentError
from detrand.random_op_diff import pair_in_any_order
from detrand.seeding.streams import RandomOp
from detrand.validation.diagnosis.audit import audit
from detrand.validation.diagnosis.divergence import Divergence, find_divergence
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import Outcome, RunConfig
from detrand.validation.programs.port import run_port
from detrand.validation.reference import Reference
from detrand.validation.results import Audit


class Runner:
    """Both programs of a migration; TF1's numbers come from sessions unless another reference is given."""

    def __init__(self, migration: Migration, tf1: Reference | None = None):
        self.migration = migration
        self.tf1 = tf1 or Reference(migration)
        self._ports: dict[RunConfig, Outcome] = {}

    def port(self, config: RunConfig) -> Outcome:
        """Return the outcome of the port, called directly.

        If the port runs TF1's random ops in a different order, each draws what its counterpart in TF1 draws; the
        outcome's config has the op seeds.
        """
        outcome = self._run_port(config)
        if config.mode != "num_random_ops":
            return outcome
        tf1 = self.tf1.outcome(config)
        tf1_names: dict[str | None, str] = {}
        with contextlib.suppress(ArgumentError):  # from name_map; variables-match reports it
            tf1_names = self.migration.tf1_names(tf1.variables)
        initialized = {seed: tf1_names.get(name, name) for seed, name in outcome.initialized.items()}
        op_seeds = op_seeds_of_counterparts(tf1.random_ops, outcome.random_ops, tf1.initialized, initialized)
        return self._run_port(replace(config, op_seeds=op_seeds)) if op_seeds else outcome

    def _run_port(self, config: RunConfig) -> Outcome:
        if config not in self._ports:
            self._ports[config] = run_port(self.migration, config, self.tf1.shapes())
        return self._ports[config]

    def divergence(self, config: RunConfig, differing: Collection[str]) -> Divergence | None:
        """Return the first divergence of the programs, of which the outputs at some paths differ; None for none."""
        tf1 = self.tf1.trace(replace(config, op_seeds=()))
        if self.migration.dtype_policy is not None and tf1.noise is None:  # a golden file may not have it
            return None
        return find_divergence(self.migration, config, tf1, self.tf1.shapes(), differing)

    @functools.cached_property
    def audit(self) -> Audit:
        """The hyperparameters of both programs, side by side."""
        tf1 = self.tf1
        return audit(self.migration, tf1.hyperparameters, tf1.optimizer_hyperparameters, tf1.shapes)


def op_seeds_of_counterparts(
    tf1: Sequence[RandomOp],
    port: Sequence[RandomOp],
    tf1_initialized: Mapping[int, str],
    port_initialized: Mapping[int, str],
) -> tuple[int, ...]:
    """Return the op seeds with which the port's ops draw what TF1's do; none if more or less than their order differs.

    An op that initializes a variable is paired with one of the variable of the same name, or else of some variable that
    fits: a Keras functional model draws all its initial weights before anything else. Ops that draw nothing, such as a
    dropout with rate 0, have no counterpart. TF1 may have more ops that initialize nothing if the port has none: a
    graph has a dropout even where it keeps everything. Where it is known which variable an op seed of a program
    initializes, the last two arguments have the variable's name in TF1.
    """
    tf1, port = ([op for op in ops if op.run == 0 and op.op_seed is not None] for ops in (tf1, port))
    drawing_tf1, drawing_port = ([op for op in ops if op.op_type] for ops in (tf1, port))
    programs = (drawing_tf1, tf1_initialized), (drawing_port, port_initialized)
    counterparts: dict[RandomOp, RandomOp] = {}  # TF1's ops, by the port's
    for level in range(3):  # ops of one variable, then of one phase, then any
        paired = set(counterparts.values()), set(counterparts)
        groups: defaultdict[str, tuple[list[RandomOp], list[RandomOp]]] = defaultdict(lambda: ([], []))
        for position, (ops, initialized) in enumerate(programs):
            for op in ops:
                label = (initialized.get(op.op_seed or 0), op.phase, "any")[level]
                if label is not None and op not in paired[position]:
                    groups[label][position].append(op)
        for of_tf1, of_port in groups.values():
            for i, j in pair_in_any_order(of_tf1, of_port):
                counterparts[of_port[j]] = of_tf1[i]
    only_tf1 = set(drawing_tf1) - set(counterparts.values())
    may_have_more = all(op.phase == "init" for op in drawing_port) and all(op.phase != "init" for op in only_tf1)
    if len(counterparts) < len(drawing_port) or (only_tf1 and not may_have_more):
        return ()
    if all(op.op_seed == counterpart.op_seed for op, counterpart in counterparts.items()):
        return ()
    fresh = itertools.count(1 + max(op.op_seed or 0 for op in tf1))
    return tuple(counterparts[op].op_seed or 0 if op in counterparts else next(fresh) for op in port)
