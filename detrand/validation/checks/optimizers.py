"""The optimizers of both programs beside each other, with gradients and steps that a training does not reach.

`probe_optimizers` compares them after a training that agrees. `needed_in_optimizer` says which of TF1's values the
port's optimizer needs after one that does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from detrand._patching.keras import is_instance_of_loaded, underlying_variable
from detrand._patching.optimizers import (
    adds_epsilon_to_root,
    corrects_before_epsilon,
    corrects_bias,
    has_hooks,
    has_hyperparameter,
    is_tf1_optimizer,
    schedule_of,
)
from detrand.arguments import and_more
from detrand.errors import MigrationError, passing_over
from detrand.seeding.callsite import describe_error
from detrand.validation.audit.hyperparameters import OPTIMIZER, is_own
from detrand.validation.checks.penalties import decays_as_losses, without_penalties
from detrand.validation.diagnosis.causes.cause import Cause, in_one_program, of_hyperparameter, of_values
from detrand.validation.diagnosis.causes.training import of_rates
from detrand.validation.diagnosis.causes.updates import cause_of_updates, known_updates, of_clipping
from detrand.validation.outcomes.findings import finding_of_cause
from detrand.validation.reference import TRAINING
from detrand.validation.results import Finding, OwnForm, Place
from detrand.validation.runner import Runner
from detrand.validation.training.clipping import NOT_CLIPPED, AppliedStep, Clipping, clipping_of, factor_of
from detrand.validation.training.penalties import with_penalties
from detrand.validation.training.port import CLIPPING_ARGUMENTS, lines_of_optimizer, make_port_optimizer
from detrand.validation.training.probe import (
    APPLIED,
    BIAS_OF_ADAM,
    EPSILON_OF_ADAM,
    EPSILON_OF_RMSPROP,
    SIZES,
    InPort,
    ProbeOfTF1,
    depends_on_model,
    differs_beyond,
    needed_changes,
    rates_that_differ,
    steps_that_differ,
    without_decay,
)
from detrand.validation.training.schedules import changed_to_tf1
from detrand.validation.training.steps import FACTOR, LEARNING_RATE, Training, train_step_of
from detrand.variables.sources import named_variables

_WITH_VALUE = "with TF1's value in the port's optimizer, the updates agree"
_WITH_APPLIED = "with the gradients that TF1 applies, the updates agree"

_OF_MODEL = "the port's optimizer updates variables of the model differently from others of the same names"


class Probed(NamedTuple):
    """What a probe shows: a summary, and findings if the optimizers differ."""

    summary: str = ""
    findings: tuple[Finding, ...] = ()


def probe_optimizers(runner: Runner, tf1: Training, sliced: Collection[str]) -> Probed:
    """Compare the optimizers of programs whose trainings agree, given TF1's training.

    The port's optimizer gets slices of some variables' gradients, which are given by TF1's names. The programs of the
    migration are not run. Of a port in half precision or on replicas, only the learning rates are compared.
    """
    try:
        probe = _probe_of_tf1(runner, tf1.decays)
        if probe is None:
            return Probed("optimizers not probed: the golden file has no probe of TF1's")
        differing = _compared(runner, tf1, probe, sliced)
    except Exception as error:  # an optimizer may be made for the model's variables only
        return Probed(f"optimizers not probed: {describe_error(error.__cause__ or error)}")
    if differing.agree:
        until = f"until step {max(differing.rates):,}" if differing.rates else ""
        if differing.training is None:
            agree = f"the learning rates agree {until}" if until else ""
            return Probed("; ".join(filter(None, [differing.not_probed, agree])))
        rates_too = f", and their learning rates {until}" if until else ""
        return Probed(f"the optimizers agree for gradients from {SIZES[0]:g} to {SIZES[-1]:g}{rates_too}")
    step, what, values, likely = _likely(runner, tf1, probe, differing, sliced)
    port_lines = lines_of_optimizer(train_step_of(runner.migration).port_optimizer)
    made, place = LEARNING_RATE if what == LEARNING_RATE else "optimizer", f"step {step}, {what}"
    in_port, findings = Place(place, port_lines.get(made, ""), values[1]), []
    for each in likely:
        in_tf1 = Place(place, tf1.lines.get(each.line) or tf1.lines.get(made, ""), values[0])
        findings.append(replace(finding_of_cause(runner, "training", each, in_tf1, in_port), symptom="optimizer"))
    return Probed(likely[0].title, tuple(findings))


@dataclass(frozen=True)
class _Compared:
    """The port's optimizer beside TF1's probe.

    Attributes:
      rates: the port's learning rates by step.
      rates_differ: the steps at which they differ from TF1's.
      training: the training of the probe's variables; None if there is none.
      updates_differ: its steps whose updates differ.
      beyond: this training beyond the greatest jump of TF1's rate, if its updates differ only there; else None.
      not_probed: why there is no training, if it raised.
    """

    rates: Mapping[int, float]
    rates_differ: Sequence[int]
    training: Training | None = None
    updates_differ: Sequence[int] = ()
    beyond: Training | None = None
    not_probed: str = ""

    @property
    def agree(self) -> bool:
        return not self.rates_differ and not self.updates_differ and self.beyond is None


def _compared(runner: Runner, trained: Training, tf1: ProbeOfTF1, sliced: Collection[str]) -> _Compared:
    rates, rates_differ = rates_that_differ(runner.migration, tf1)
    migration, beyond = without_decay(runner.migration) if trained.without_penalties else runner.migration, None
    if migration is None:
        not_probed = "updates not probed: the port's optimizer decays weights, and has no argument weight_decay"
        return _Compared(rates, rates_differ, not_probed=not_probed)
    if migration.dtype_policy is not None or migration.strategy is not None:
        return _Compared(rates, rates_differ)
    if tf1.not_probed:
        return _Compared(rates, rates_differ, not_probed=f"updates not probed: {tf1.not_probed}")
    try:
        counterparts = _counterparts(runner, make_port_optimizer(migration), sliced)
        training, updates_differ = steps_that_differ(migration, tf1, counterparts)
        initial = runner.tf1.outcome(TRAINING).initial
        if updates_differ and depends_on_model(runner.migration, trained, initial, counterparts):
            return _Compared(rates, rates_differ, not_probed=f"updates not probed: {_OF_MODEL}")
    except Exception as error:  # an optimizer may be made for the model's variables only
        not_probed = f"optimizers not probed: {describe_error(error.__cause__ or error)}"
        return _Compared(rates, rates_differ, not_probed=not_probed)
    if not rates_differ and not updates_differ:
        with passing_over():  # an optimizer may have no configuration
            beyond = differs_beyond(migration, tf1, counterparts)
    return _Compared(rates, rates_differ, training, updates_differ, beyond)


def _likely(
    runner: Runner, tf1: Training, probe: ProbeOfTF1, port: _Compared, sliced: Collection[str]
) -> tuple[int, str, tuple[str, str], Sequence[Cause]]:
    """Return the step that differs first, what differs in it, its values if it has any, and the likely causes."""
    needed = Needed()
    if port.updates_differ:
        needed = needed_in_optimizer(runner, sliced, rates_differ=bool(port.rates_differ))
    if port.rates_differ:
        step = port.rates_differ[0]
        confirmed = "where the learning rates are equal, the updates agree" if port.training is not None else ""
        tf1_rates = {each: probe.rates[each] for each in port.rates}
        cause = of_rates(step, tf1_rates, port.rates, tf1.schedule.function)
        cause = cause_in_schedule(runner, tf1_rates, port.rates, tf1.schedule.numbers) or cause
        cause = cause._replace(confirmed=needed.rate if port.updates_differ else confirmed)
        return step, LEARNING_RATE, (f"{probe.rates[step]:g}", f"{port.rates[step]:g}"), [cause, *needed.others]
    if port.beyond is not None and probe.beyond is not None:
        before, after = (float(probe.beyond.steps[number][LEARNING_RATE]) for number in (0, -1))
        unknown = Cause(f"updates differ after the learning rate changes from {before:g} to {after:g}")
        known = list(known_updates(port.beyond.steps, probe.beyond.steps))
        return probe.boundary, "updates", ("", ""), known or [unknown]
    assert port.training is not None
    of_updates = list(known_updates(port.training.steps, probe.training.steps))
    of_updates = of_updates or [cause_of_updates(port.training, probe.training, port.updates_differ)]
    return port.updates_differ[0], "updates", ("", ""), needed.beside(of_updates) or of_updates


def cause_in_schedule(
    runner: Runner, tf1: Mapping[int, float], port: Mapping[int, float], numbers: Sequence[float]
) -> Cause | None:
    """Return the value in the port's schedule that differs, given the rates by step, and the numbers of TF1's rate."""
    if len(numbers) < 2:  # TF1's rate is one number
        return None
    with passing_over():  # functions of the user may raise
        changed = changed_to_tf1(schedule_of(make_port_optimizer(runner.migration)), tf1, port, numbers)
        confirmed = "with TF1's value, the port's schedule computes TF1's rates"
        return None if changed is None else of_values(changed.what, changed.tf1, changed.port, confirmed)
    return None


class Needed(NamedTuple):
    """What the port's optimizer needs of TF1's, so that its updates are TF1's.

    Attributes:
      rate: how it was confirmed that TF1's learning rates are needed; empty if they are not.
      others: what else is needed.
    """

    rate: str = ""
    others: tuple[Cause, ...] = ()

    def beside(self, likely: Sequence[Cause]) -> tuple[Cause, ...]:
        """Return what else is needed; nothing if that is only other gradients, and the updates say more."""
        is_of_gradients = all(each.confirmed == _WITH_APPLIED for each in self.others)
        return () if is_of_gradients and any(each.confirmed for each in likely) else self.others


def needed_in_optimizer(runner: Runner, sliced: Collection[str], *, rates_differ: bool) -> Needed:
    """Return which of TF1's values the port's optimizer needs; nothing if all of them together do not suffice."""
    with passing_over():  # an optimizer may be made for the model's variables only
        return _needed_in_optimizer(runner, sliced, rates_differ)
    return Needed()


def _needed_in_optimizer(runner: Runner, sliced: Collection[str], rates_differ: bool) -> Needed:
    audited = {each.name.replace(" ", "_"): each for each in runner.audit.differing if each.of == OPTIMIZER}
    audited.pop(LEARNING_RATE, None)
    in_loss = without_penalties(runner) is not None
    migration = without_decay(runner.migration) if in_loss else runner.migration
    if migration is None or (in_loss and "kind" in audited):  # such as AdamW, whose decay does what no penalty does
        return Needed()
    tf1, optimizer = _probe_of_tf1(runner), make_port_optimizer(migration)
    if tf1 is None or tf1.not_probed:
        return Needed()
    changes: dict[str, Any] = {}
    in_gradients = _difference_in_gradients(tf1, _clipping_of_port(optimizer))
    if in_gradients is not None:
        changes[APPLIED] = tf1.applied  # first, so that it is left out if another change does the same
    if whose := corrects_before_epsilon(optimizer):
        changes[EPSILON_OF_ADAM] = True
    if adds_epsilon_to_root(optimizer):
        changes[EPSILON_OF_RMSPROP] = True
    who_corrects = corrects_bias(optimizer)
    changes |= {name: _value_of(each.tf1) for name, each in audited.items() if has_hyperparameter(optimizer, name)}
    if rates_differ and not is_tf1_optimizer(optimizer):
        changes[LEARNING_RATE] = [float(step[LEARNING_RATE]) for step in tf1.training.steps]
    counterparts = _counterparts(runner, optimizer, sliced)
    needed = needed_changes(migration, tf1, counterparts, changes)
    if not needed and who_corrects:
        changes.pop(EPSILON_OF_ADAM, None)
        needed = needed_changes(migration, tf1, counterparts, {**changes, BIAS_OF_ADAM: True})
    causes = {} if in_gradients is None else {APPLIED: in_gradients}
    if whose:
        title, own_form = f"{whose}'s {EPSILON_OF_ADAM}", (OwnForm.EPSILON_OF_ADAM, "")
        causes[EPSILON_OF_ADAM] = Cause(title, _WITH_VALUE, own_form=own_form)
    remedy = "subclass torch.optim.RMSprop in the port with a step that divides by (square_avg + eps).sqrt()"
    causes[EPSILON_OF_RMSPROP] = Cause(EPSILON_OF_RMSPROP, _WITH_VALUE, remedy=remedy)
    if who_corrects:
        causes[BIAS_OF_ADAM] = Cause(
            f"{who_corrects}'s {BIAS_OF_ADAM}",
            "with the moments as they are in the port's optimizer, the updates agree",
            remedy="subclass the port's optimizer with an update_step that multiplies the learning rate of step t, "
            "from 1 on, by (1 - beta_1**t) / sqrt(1 - beta_2**t)",
            own_form=(OwnForm.BIAS_OF_ADAM, ""),
        )
    causes |= {name: of_hyperparameter(each)._replace(confirmed=_WITH_VALUE) for name, each in audited.items()}
    return Needed(
        _WITH_VALUE if LEARNING_RATE in needed else "", tuple(causes[name] for name in needed if name != LEARNING_RATE)
    )


def _probe_of_tf1(runner: Runner, in_optimizer: Collection[str] = ()) -> ProbeOfTF1 | None:
    """Return the probe of TF1's optimizer, whose decay of some variables only counts as its own; None without one."""
    tf1 = runner.tf1.probe()
    if tf1 is None:
        return None
    initial = {name: np.zeros_like(array) for name, array in tf1.training.steps[0]["weights"].items()}
    in_loss = {name: pair for name, pair in decays_as_losses(runner).items() if name not in in_optimizer}
    return tf1._replace(training=with_penalties(tf1.training, initial, in_loss))


def _difference_in_gradients(tf1: ProbeOfTF1, of_port: Clipping) -> Cause | None:
    """Return how the programs change gradients differently before they apply them; None if that is not known."""
    pairs = zip(tf1.training.steps, tf1.applied, strict=True)
    steps = [AppliedStep(_in_float64(step["gradients"]), _in_float64(applied), {}) for step, applied in pairs]
    of_tf1 = clipping_of(steps)
    if of_tf1 is not None and of_tf1 != of_port:
        return of_clipping(of_tf1, of_port, _WITH_APPLIED)
    factors = {name: factor_of(steps, [name]) for name in tf1.applied[0]}
    by_factor: dict[str, list[str]] = {}
    for name, factor in factors.items() if None not in factors.values() else ():
        if (in_words := f"{factor:.4g}") != "1":
            by_factor.setdefault(in_words, []).append(name)
    if len(by_factor) == 1:
        [(factor_in_words, names)] = by_factor.items()
        of_variables = "" if len(names) == len(tf1.applied[0]) else f" of {and_more(names, 4)}"
        return of_values(f"{FACTOR}{of_variables}", factor_in_words, "1", _WITH_APPLIED)._replace(line=FACTOR)
    of_each = "; ".join(f"those of {and_more(names, 4)} by {factor}" for factor, names in by_factor.items())
    does = f"multiplies gradients before it applies them: {of_each}"
    return in_one_program("TF1", does, _WITH_APPLIED)._replace(line=FACTOR) if of_each else None


def _in_float64(arrays: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array, np.float64) for name, array in arrays.items() if array is not None}


def _clipping_of_port(optimizer: Any) -> Clipping:
    """Return how the port's optimizer clips gradients."""
    for name, what in CLIPPING_ARGUMENTS.items():
        if (limit := getattr(optimizer, name, None)) is not None:
            return Clipping(what, f"{limit:.4g}")
    if has_hooks(optimizer):
        return Clipping("none, unless in a hook")
    return Clipping(f"as {type(optimizer).__name__} does") if is_own(optimizer) else NOT_CLIPPED


def _counterparts(runner: Runner, optimizer: Any, sliced: Collection[str]) -> dict[str, InPort]:
    """Return the port's variables by the names of TF1's, for an optimizer that gets slices of some of them.

    Raises:
      MigrationError: if one has a constraint that the optimizer would not apply to the probe's variables.
    """
    view, variables = runner.fresh_port.view, named_variables(runner.fresh_port.port.variables).values()
    constraints = {id(underlying_variable(each)): getattr(each, "constraint", None) for each in variables}
    found, compared = dict[str, InPort](), runner.compared_variables()
    for name, other in compared.port_names.items():
        parts = view.parts_of(name) if name in view.positions else []
        constraint = next((each for part in parts if (each := constraints.get(id(part)))), None)
        is_applied = name not in compared.rearranged and is_instance_of_loaded(
            optimizer, "keras", "optimizers.Optimizer"
        )
        if constraint is not None and not (is_applied and len(parts) == 1):
            raise MigrationError(f"{other} has a constraint")
        found[name] = InPort(other, constraint, name in sliced)
    return found


def _value_of(text: str) -> Any:
    """Return the value of an optimizer's hyperparameter, given its text."""
    flags = {"none": None, "True": True, "False": False}
    return flags[text] if text in flags else float(text)
