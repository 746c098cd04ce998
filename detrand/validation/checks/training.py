"""The check of training steps: both programs are trained, their steps are compared, and what differs is explained."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from detrand.arguments import and_more
from detrand.comparison.values import Comparison, LeafComparison
from detrand.errors import passing_over
from detrand.seeding.callsite import describe_error
from detrand.steps.comparison import StepsComparison, greatest_absolute
from detrand.validation.audit.hyperparameters import REGULARIZER, WEIGHT_DECAY
from detrand.validation.checks.computation import drawn_by_replicas, with_reason
from detrand.validation.checks.loss import (
    agrees,
    difference_elsewhere,
    findings_of_loss,
    is_reproduced,
    loss_of_other_outputs,
)
from detrand.validation.checks.optimizers import (
    Needed,
    cause_in_schedule,
    needed_in_optimizer,
    probe_optimizers,
)
from detrand.validation.checks.penalties import (
    findings_of_penalties_in_loss,
    findings_of_regularizers,
    only_split_differently,
    with_decays,
    without_penalties,
)
from detrand.validation.diagnosis.causes.averages import AVERAGES_OF_WEIGHTS, MOVING_AVERAGES
from detrand.validation.diagnosis.causes.cause import Cause, describe_causes, in_one_program, of_hyperparameter
from detrand.validation.diagnosis.causes.computation import causes
from detrand.validation.diagnosis.causes.training import causes_of_training
from detrand.validation.diagnosis.causes.updates import OPTIMIZER_DIFFERS, UPDATED
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.outcomes.findings import finding_of, finding_of_cause, place_of
from detrand.validation.programs.outcome import ADDED_LOSS, RunConfig
from detrand.validation.reference import TRAINING
from detrand.validation.results import Fault, Finding, Found, OwnForm, Place
from detrand.validation.runner import Runner
from detrand.validation.training.compare import (
    AVERAGES_BEGIN,
    SPLIT,
    compare_trainings,
    updates_agree,
    with_equal_averages,
)
from detrand.validation.training.penalties import with_penalties, without_variables
from detrand.validation.training.port import TrainedConstantsError, lines_of_optimizer, port_loss_of, train_port
from detrand.validation.training.probe import without_decay
from detrand.validation.training.steps import LEARNING_RATE, WEIGHT_AVERAGES, Training, train_step_of

# Summaries of what one of the programs cannot compute, by the name under which it would be recorded.
NOT_COMPARED = {
    "gradients": "gradients not compared: the golden file was recorded without the dtype policy, which rounds them",
    LEARNING_RATE: "learning rates not compared: an optimizer keeps none, or TF1 has several optimizers",
    "regularization_loss": "the port has no losses attribute: port_loss must add the regularization losses",
    WEIGHT_AVERAGES: "moving averages of weights not compared: the port's optimizer is not one of Keras",
    AVERAGES_BEGIN: (
        "the port's moving averages of weights begin with the weights after step 0, TF1's with the initial weights; "
        "compared from step 1 on, each step from TF1's averages"
    ),
    SPLIT: "regularization losses not compared: one program has in its loss what the other one adds as regularization",
}


def training_steps(runner: Runner) -> Found:
    """Compare training steps; if they agree, also the optimizers, the losses of other outputs, and other batches."""
    try:
        found = _training_steps(runner)
    except TrainedConstantsError as error:
        return _of_constants(runner, error.names)
    if found.ok and found.compared and runner.migration.strategy is None:
        found = _with_other_outputs(runner, found)
    weak = [each for each in runner.weaknesses if found.ok and found.compared and each.is_of_batch]
    if not weak:
        return found
    try:
        of_probe = _training_steps(runner.probe)
    except Exception as error:  # a model may take no other batch
        return replace(found, summary=f"{found.summary}; not trained with other batches: {describe_error(error)}")
    if of_probe.ok:
        return replace(found, summary=f"{found.summary}; with a larger batch: {of_probe.summary}")
    return with_reason(of_probe, f"with a larger batch ({weak[0].words})", found)


def _of_constants(runner: Runner, names: Sequence[str]) -> Found:
    """Return what a training shows that changes elements which TF1 does not have."""
    comes, it = ("which comes", "it") if len(names) == 1 else ("which come", "them")
    cause = Cause(
        f"the port trains {and_more(names, 2)}, {comes} from no TF1 variable",
        fault=Fault.TRAINABLE,
        remedy=f"do not train {and_more(names, 2)} in the port: the name_map makes {it} constant",
        own_form=(OwnForm.FREEZE, ", ".join(names)),
    )
    port_names, lines = runner.compared_variables().port_names, runner.lines_of_variables[1]
    of_first = (lines.get(name, "") for name, others in port_names.items() if names[0] in others.split(", "))
    finding = finding_of_cause(runner, "training", cause, port=Place(names[0], next(of_first, "")))
    return Found(False, finding.title, findings=(finding,))


def _with_other_outputs(runner: Runner, found: Found) -> Found:
    """Return what training steps show with what the losses of other outputs do."""
    config = runner.port(TRAINING).config
    of_tf1, of_port = runner.tf1.training(config.mode).steps, found.computed["port"]
    try:
        of_others = loss_of_other_outputs(runner, (float(of_port[0]["loss"]), float(of_tf1[0]["loss"])))
    except Exception as error:
        return replace(found, summary=f"{found.summary}; losses of other outputs not compared: {describe_error(error)}")
    if of_others is None:
        return found
    if of_others.ok:
        return replace(found, summary=f"{found.summary}; {of_others.summary}")
    return replace(of_others, summary=f"{of_others.summary}; {found.summary}")


def _training_steps(runner: Runner) -> Found:
    not_compared = drawn_by_replicas(runner, TRAINING)
    if not_compared is not None:
        return not_compared
    config = runner.port(TRAINING).config
    executions = {"eagerly": _train(runner, config, compiled=False)}
    # In a graph, the runtime counts the runs of each op, so no op can draw a later run of another.
    if not runner.op_seeds_of_loops() and not runner.framework.no_graph:
        executions["in a tf.function"] = _train(runner, config, compiled=True)
    found = _found_in(runner, executions)
    if found.ok or all(each.confirmed for each in found.findings):
        return found
    # What nothing explains may be rounding.
    noise = runner.tf1.training_noise(config.mode)
    if noise is None:
        return found
    measured = {how: (unguided, _within(runner, counted, noise)) for how, (unguided, counted) in executions.items()}
    return _found_in(runner, measured)


class _Trained(NamedTuple):
    """A training of the port beside TF1's.

    Attributes:
      port: the training of the port.
      tf1: the training of TF1, with moving averages read as the port's are.
      comparison: the comparison of the two.
      left_out: names that are not compared, because one of the programs does not know them.
      noise: how far rounding moves TF1's training; None if that was not measured.
    """

    port: Training
    tf1: Training
    comparison: StepsComparison
    left_out: frozenset[str]
    noise: TrainingNoise | None = None


def _train(runner: Runner, config: RunConfig, *, compiled: bool) -> tuple[_Trained, _Trained]:
    """Return a training left to itself, and the one that counts: guided by TF1's variables if the first differs."""
    migration = runner.migration

    def train(tf1: Training, guided: bool) -> _Trained:
        initial = runner.tf1.outcome(TRAINING).initial
        port = train_port(migration, runner.tf1.batches, config, tf1, initial, compiled=compiled, guided=guided)
        port, tf1 = with_equal_averages(port, tf1)
        return _Trained(port, tf1, *compare_trainings(migration, port, tf1, guided=guided))

    in_optimizer = runner.tf1.training(config.mode)
    in_loss = with_decays(runner)  # as a port may decay weights by its loss, or else by its optimizer
    for tf1 in [in_optimizer, in_loss] if in_loss is not in_optimizer else [in_loss]:
        unguided = train(tf1, guided=False)
        if unguided.comparison and updates_agree(migration, unguided.port, unguided.tf1):
            return unguided, unguided
    if (in_neither := without_penalties(runner)) is not None:
        of_decay = train(in_neither, guided=False)
        if of_decay.comparison.steps[0]["loss"]:
            unguided = of_decay
            if unguided.comparison and updates_agree(migration, unguided.port, unguided.tf1):
                return unguided, unguided
    guided = train(unguided.tf1, guided=True)
    counted = unguided if unguided.comparison and guided.comparison else guided
    return unguided, counted


def _within(runner: Runner, trained: _Trained, noise: TrainingNoise) -> _Trained:
    """Return a training that may differ from TF1's by as much as rounding moves that one."""
    if trained.comparison:
        return trained
    compared = compare_trainings(runner.migration, trained.port, trained.tf1, guided=True, noise=noise)
    return _Trained(trained.port, trained.tf1, *compared, noise)


def _found_in(runner: Runner, executions: Mapping[str, tuple[_Trained, _Trained]]) -> Found:
    """Return what trainings show, each left to itself and as it counts, by how the port ran."""
    last, _ = list(executions.values())[-1]
    summaries = _summaries(runner, executions)
    differing = {how: counted for how, (_, counted) in executions.items() if not counted.comparison}
    details = _each_once(
        {how: str(each.comparison) for how, each in differing.items()}, " (actual: port, desired: TF1)"
    )
    if differing:
        likely, findings = _explained(runner, differing)
        details = [describe_causes(likely), *details] if likely else details
    else:
        likely = ()
        summary, findings = probe_optimizers(runner, last.tf1, last.port.sliced)
        summaries += [summary] if summary else []
        findings += tuple(_decay_that_hides(runner)) if last.tf1.without_penalties and not findings else ()
    trainings = {}
    for how, (unguided, counted) in executions.items():
        if not unguided.comparison:
            trainings[f"{how}, left to itself"] = unguided.comparison
        trainings[how] = counted.comparison
    runs = zip(("port", "port in a tf.function"), executions.values(), strict=False)
    steps_of = {"tf1": last.tf1.steps, **{run: unguided.port.steps for run, (unguided, _) in runs}}
    return Found(
        not differing and not findings,
        "; ".join(summaries),
        "\n\n".join(details),
        likely,
        findings=findings,
        trainings=trainings,
        training_noise={how: counted.noise for how, (_, counted) in executions.items() if counted.noise is not None},
        computed={run: dict(enumerate(steps)) for run, steps in steps_of.items()},
        uncontrolled={"tf1": last.tf1.uncontrolled, "port": last.port.uncontrolled},
    )


def _summaries(runner: Runner, executions: Mapping[str, tuple[_Trained, _Trained]]) -> list[str]:
    """Return how each training compares, and what is not compared, or differently than a reader may expect."""
    tf1, config = runner.tf1.outcome(TRAINING), runner.port(TRAINING).config
    last, _ = list(executions.values())[-1]
    summaries = _each_once({how: _in_one_line(*trained) for how, trained in executions.items()})
    left_out = {name for unguided, _ in executions.values() for name in unguided.left_out}
    differ = not all(counted.comparison for _, counted in executions.values())
    has_losses = any(step.get(_ADDED) for step in last.tf1.steps)  # which the whole loss has, if it agrees
    left_out -= {_ADDED} if last.tf1.without_penalties or not (differ and has_losses) else set()
    summaries += [NOT_COMPARED[name] for name in sorted(left_out)]
    summaries += runner.tf1.training(config.mode).unordered
    if own := [name for name in last.tf1.of_loss if name not in last.port.variables_after(0)]:
        summaries.append(f"not compared: {and_more(own, 3)}, which only TF1's loss has")
    if len(executions) == 1 and not runner.framework.no_graph:
        summaries.append("not trained in a tf.function, where several ops cannot draw what one op draws in a loop")
    if last.tf1.without_penalties:
        summaries.append("compared without the penalties of TF1's loss, for which the port's optimizer decays weights")
    elif last.tf1.steps[0]["loss"] != runner.tf1.training(config.mode).steps[0]["loss"]:
        summaries.append("TF1 adds weight decay to gradients, which is compared as a loss with these gradients")
    averages = last.tf1.steps[0].get("moving_averages", ())
    if last.port.replicas > 1 and not tf1.whole_batch and not set(averages).issubset(last.port.averaged):
        summaries.append("the port keeps the moving averages of the first replica; TF1's are those of the first tower")
    return summaries


def _each_once(texts: Mapping[str, str], remark: str = "") -> list[str]:
    """Return each text once, after what it is about and a remark."""
    about: dict[str, list[str]] = {}
    for what, text in texts.items():
        about.setdefault(text, []).append(what)
    return [f"{' and '.join(what)}{remark}: {text}" for text, what in about.items()]


def _in_one_line(unguided: _Trained, counted: _Trained) -> str:
    drifts = counted.comparison and not unguided.comparison
    without = "without TF1's variables at the start of each step, rounding adds up"
    drift = f"; {without}: {unguided.comparison.summary}" if drifts else ""
    by_rounding = "; as far as rounding moves TF1's own training" if drifts and counted.noise is not None else ""
    return f"{counted.comparison.summary}{by_rounding}{drift}"


def _explained(runner: Runner, differing: Mapping[str, _Trained]) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return the likely causes of trainings that differ, in words, and the findings."""
    of_penalties: list[Finding] = []
    with_port_penalties = _with_penalties_of_port(runner, differing)
    if with_port_penalties is not None:
        of_penalties, differing = list(findings_of_regularizers(runner, _WITH_PENALTIES)), with_port_penalties
    added_differs = any(
        not by_name.get(_ADDED, True) for each in differing.values() for by_name in each.comparison.steps.values()
    )
    has_no_losses = any(_ADDED in each.left_out for each in differing.values())  # its loss has all penalties
    is_split = has_no_losses or (added_differs and only_split_differently(runner))
    made_last = functools.cache(lambda: runner.fresh_port.port.made_anew(training=True))

    def causes_of(trained: _Trained) -> dict[str, tuple[Cause, ...]]:
        def port_loss(step: int, outputs: Any) -> float | None:
            _, labels = runner.tf1.batches[step]
            added = float(trained.port.steps[step].get(_ADDED, 0.0)) if is_split else 0.0
            with passing_over():  # the outputs may have a different structure
                initial = runner.tf1.outcome(TRAINING).initial
                made_last().view().assign(trained.tf1.variables_after(step - 1) if step else initial)
                return port_loss_of(made_last(), step, labels, outputs) + added
            return None

        port, tf1, comparison = _as_one_loss(trained) if is_split else trained[:3]
        elsewhere = functools.partial(difference_elsewhere, runner)
        return causes_of_training(port, tf1, comparison, runner.audit.differing, port_loss, elsewhere)

    by_execution = list(map(causes_of, differing.values()))
    parts = {name: of_part for each in reversed(by_execution) for name, of_part in each.items()}
    if "outputs" in parts and _trains_variables_of_its_own(runner, differing):
        del parts["outputs"]
    if (cause := _decay_of_others(runner, next(iter(differing.values())))) is not None:
        parts |= dict.fromkeys(UPDATED.intersection(parts), (cause,))
    titles = [*(each.title for each in of_penalties), *(cause.title for of in parts.values() for cause in of)]
    findings = tuple(_Explanation(runner, tuple(differing.values()), parts).findings())
    named = [each.title for each in findings]
    if named and OPTIMIZER_DIFFERS not in named:  # what the updates alone do not show
        titles = [each for title in titles for each in (named if title == OPTIMIZER_DIFFERS else [title])]
    return tuple(dict.fromkeys(titles)), tuple(of_penalties) + findings


def _decay_that_hides(runner: Runner) -> Iterator[Finding]:
    """Yield that the port's optimizer decays by a different number: with a small learning rate, no update shows it."""
    of_port = lines_of_optimizer(train_step_of(runner.migration).port_optimizer)
    of_tf1 = runner.tf1.training(runner.port(TRAINING).config.mode).lines
    made = [lines.get("optimizer", "") for lines in (of_tf1, of_port)]
    for each in runner.audit.differing:
        if (each.of, each.name.replace(" ", "_")) == WEIGHT_DECAY:
            places = (Place("optimizer", line, value) for line, value in zip(made, (each.tf1, each.port), strict=True))
            yield finding_of_cause(runner, "training", of_hyperparameter(each), *places)


def _decay_of_others(runner: Runner, trained: _Trained) -> Cause | None:
    """Return that the port's optimizer decays variables that TF1's loss does not penalize, if nothing else differs."""

    def updated_differently(comparison: StepsComparison) -> list[str]:
        of_steps = [by_name["updates"] for by_name in comparison.steps.values() if "updates" in by_name]
        return list(dict.fromkeys(_variable(leaf.path) for each in of_steps for leaf in each.leaves if not leaf.ok))

    penalized = {name for name, of_loss in trained.tf1.regularizers.items() if of_loss != "none"}
    names = updated_differently(trained.comparison) if trained.tf1.without_penalties else []
    if not names or not penalized.isdisjoint(names):
        return None
    migration, initial = without_decay(runner.migration), runner.tf1.outcome(TRAINING).initial
    if migration is None:
        return None
    config, batches = runner.port(TRAINING).config, runner.tf1.batches
    port = train_port(migration, batches, config, trained.tf1, initial, compiled=False, guided=True)
    of_no_decay, _ = compare_trainings(migration, port, trained.tf1, guided=True)
    if not penalized.issuperset(updated_differently(of_no_decay)):
        return None
    which, confirmed = and_more(names, 4), "without the decay in the port's optimizer, the updates of these agree"
    remedy = f"leave {which} out of the weight decay of the port's optimizer"
    return Cause(f"weight decay differs: only the port decays {which}", confirmed, remedy=remedy)


def _as_one_loss(trained: _Trained) -> tuple[Training, Training, StepsComparison]:
    """Return a training in which each loss has the regularization loss as a part, wherever a program adds it."""

    def without(by_name: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in by_name.items() if name != _ADDED}

    port, tf1 = (replace(each, steps=tuple(map(without, each.steps))) for each in (trained.port, trained.tf1))
    compared = {number: without(by_name) for number, by_name in trained.comparison.steps.items()}
    return port, tf1, replace(trained.comparison, steps=compared)


_ADDED = "regularization_loss"
_WITH_PENALTIES = "with TF1's penalty, the total losses and the gradients agree"


def _with_penalties_of_port(runner: Runner, differing: Mapping[str, _Trained]) -> dict[str, _Trained] | None:
    """Return trainings that differ beside TF1's with the port's penalties of weights.

    It is None unless their total losses and gradients agree then.
    """
    penalties = {each.of: (each.tf1, each.port) for each in runner.audit.differing if each.name == REGULARIZER}
    if not penalties or not differing:
        return None
    initial, found = runner.tf1.outcome(TRAINING).initial, dict[str, _Trained]()
    for how, trained in differing.items():
        gradients = trained.tf1.steps[0]["gradients"]
        by_penalty = {name for name, (own, _) in penalties.items() if own == "none" and name not in gradients}
        tf1, port = (without_variables(each, by_penalty) for each in (trained.tf1, trained.port))
        tf1 = with_penalties(tf1, initial, penalties)
        compared = compare_trainings(runner.migration, port, tf1, guided=True, noise=trained.noise)
        found[how] = trained._replace(port=port, tf1=tf1, comparison=compared[0], left_out=compared[1])
        for by_name in compared[0].steps.values():
            gradients = by_name.get("gradients")
            gradients_agree = gradients is None or gradients.ok or _follows_from_variables(runner, gradients)
            if not (gradients_agree and by_name.get("loss", True) and by_name.get("regularization_loss", True)):
                return None
    return found


def _trains_variables_of_its_own(runner: Runner, differing: Mapping[str, _Trained]) -> bool:
    """Return whether outputs agree until a variable that only one program has is trained."""
    comparison = runner.compared_variables()
    in_one = [*comparison.only_in_tf1.values(), *comparison.only_in_port.values()]
    in_step_0 = [each.comparison.steps[0].get("outputs", True) for each in differing.values()]
    return all(in_step_0) and any(spec.trainable for spec in in_one)


@dataclass(frozen=True)
class _Part:
    """A part of a step that differs by itself, in the first step in which it does.

    Attributes:
      likely: the likely causes.
      step: the number of the step.
      comparison: the comparison of the part in this step.
    """

    likely: tuple[Cause, ...]
    step: int
    comparison: Comparison

    @property
    def leaf(self) -> LeafComparison:
        """The first leaf that differs."""
        leaf = self.comparison.first_divergence
        assert leaf is not None
        return leaf

    @property
    def variable(self) -> str:
        """The variable of this leaf, by its TF1 name; empty if it is of none."""
        return _variable(self.leaf.path)

    @property
    def place(self) -> str:
        return f"step {self.step}, {self.leaf.path}"


class _Explanation:
    """What explains trainings that differ, given the likely causes of the parts of a step that differ by themselves."""

    def __init__(self, runner: Runner, trained: Sequence[_Trained], parts: Mapping[str, tuple[Cause, ...]]):
        self.runner, self.trained, self.parts, self.tf1 = runner, trained, parts, trained[0].tf1

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of each part."""
        for name, likely in self.parts.items():
            steps = ((n, by[name]) for each in self.trained for n, by in each.comparison.steps.items() if name in by)
            step, comparison = next((number, each) for number, each in steps if not each)
            for finding in _FINDINGS_OF[name](self, _Part(likely, step, comparison)):
                yield replace(finding, symptom=_SYMPTOMS_OF.get(name, ""))

    @functools.cached_property
    def needed(self) -> Needed:
        """What the port's optimizer needs of TF1's."""
        return needed_in_optimizer(self.runner, self.trained[0].port.sliced, rates_differ=LEARNING_RATE in self.parts)

    @functools.cached_property
    def port_lines(self) -> Mapping[str, str]:
        """The lines that make the port's optimizer and its learning rate."""
        return lines_of_optimizer(train_step_of(self.runner.migration).port_optimizer)

    def finding(
        self, part: _Part, lines: tuple[str, str] = ("", ""), kind: str = "training", cause: Cause | None = None
    ) -> Finding:
        """Return the finding of a part, at lines of both programs: of its likely causes, or of a given one.

        A cause may have a line of its own in TF1.
        """
        first, *others = [cause] if cause else part.likely or [Cause(f"{part.leaf.path} differs in step {part.step}")]
        desired, actual = part.leaf.first_mismatch.texts() if part.leaf.first_mismatch else ("", "")
        in_tf1 = Place(part.place, self.tf1.lines.get(first.line) or lines[0], desired)
        found = finding_of_cause(self.runner, kind, first, in_tf1, Place(part.place, lines[1], actual))
        return replace(found, others=tuple(each.title for each in others))

    def lines_of_variable(self, name: str) -> tuple[str, str]:
        """Return the lines of both programs that make a variable, or add `ADDED_LOSS`; empty if they are not known."""
        of_tf1, of_port = self.runner.lines_of_variables
        return of_tf1.get(name, ""), of_port.get(name, "")

    def lines_of(self, made: str) -> tuple[str, str]:
        """Return the lines of both programs that make an optimizer, or what it has, by its name in these lines."""
        return self.tf1.lines.get(made, ""), self.port_lines.get(made, self.port_lines.get("optimizer", ""))

    def of_regularization(self, part: _Part) -> Iterator[Finding]:
        yield self.finding(part, self.lines_of_variable(ADDED_LOSS), "regularizers")

    def of_outputs(self, part: _Part) -> Iterator[Finding]:
        """Yield what makes outputs differ, and what only one program does to gradients, as the outputs hide it."""
        yield self.finding(part, kind="computation")
        if "gradients" in self.parts:
            return
        yield from self.of_stop(self.tf1.steps[0]["gradients"])

    def of_stop(self, variables: Collection[str], confirmed: str = "") -> Iterator[Finding]:
        """Yield that only one program stops gradients of some variables, if it does."""
        if in_one := self.runner.stop_in_one_program(variables):
            who, in_tf1, in_port, names = in_one
            stops = f"stops gradients of {and_more(names, 4)} ({_stop_gradient(self.runner, who)})"
            cause = in_one_program(who, stops, confirmed)
            yield finding_of_cause(self.runner, "training", cause, place_of(in_tf1, ""), place_of(in_port, ""))

    def of_loss(self, part: _Part) -> Sequence[Finding]:
        """Return what differs in the loss: in the first step, or in a later one that shows more of it.

        A term whose weight is 0 in a step of one program is missing there.
        """
        of_first = self._of_loss(part, part.step)
        if not all(each.fault in _VAGUE for each in of_first) or not self._loss_depends_on_step(part):
            return of_first or self._of_loss_untraced(part)
        differing = {n for each in self.trained for n, by in each.comparison.steps.items() if not by.get("loss", True)}
        later = sorted(differing - {part.step})
        for step in dict.fromkeys((*later[:1], *later[-1:])):
            found = self._of_loss(part, step)
            if found and all(each.confirmed and each.fault not in _VAGUE for each in found):
                return found
        return of_first or self._of_loss_untraced(part)

    def _of_loss_untraced(self, part: _Part) -> Sequence[Finding]:
        train = train_step_of(self.runner.migration)
        of_tf1, of_port = train.line_of_loss("tf1"), train.line_of_loss("port")
        if of_penalties := findings_of_penalties_in_loss(self.runner, of_port):
            return of_penalties
        outputs = self.trained[0].comparison.steps[part.step].get("outputs")
        with passing_over():  # a loss that cannot be traced
            if outputs and greatest_absolute([outputs]) and agrees(self.runner.of_step(part.step)):
                cause = Cause("losses differ, because outputs differ within their tolerance", fault=Fault.UNEXPLAINED)
                return [self.finding(part, (of_tf1, of_port), "computation", cause)]
        return [self.finding(part, (of_tf1, of_port))]

    def _of_loss(self, part: _Part, step: int) -> Sequence[Finding]:
        runner, steps = self.runner.of_step(step), (self.trained[0].port.steps[step], self.tf1.steps[step])
        if runner.migration.strategy is None and self.trained[0].comparison.steps[step].get("outputs", True):
            with passing_over():  # a loss that cannot be traced
                if not is_reproduced(runner, (float(steps[0]["loss"]), float(steps[1]["loss"]))):
                    return []
        found = findings_of_loss(runner, part.likely)
        seen = f"; seen in step {step}" if step else ""
        return [replace(each, confirmed=each.confirmed and f"{each.confirmed}{seen}") for each in found]

    def _loss_depends_on_step(self, part: _Part) -> bool:
        """Return whether the loss of a program depends on how many updates its optimizer has made."""
        with passing_over():  # a loss that cannot be traced
            if "global_step" in self.runner.tf1.trace_of_loss().ops:
                return True
            port, (_, labels) = self.runner.fresh_port.port, self.runner.tf1.batches[part.step]
            outputs, steps = self.tf1.steps[part.step]["outputs"], (part.step, part.step + 1, len(self.tf1.steps))
            return len({port_loss_of(port, step, labels, outputs) for step in steps}) > 1
        return False

    def of_metrics(self, part: _Part) -> Iterator[Finding]:
        metric = part.leaf.path.partition("['")[2].partition("']")[0]
        train = train_step_of(self.runner.migration)
        yield self.finding(part, (train.line_of_metric("tf1", metric), train.line_of_metric("port", metric)))

    def of_gradients(self, part: _Part) -> Sequence[Finding]:
        """Return where gradients are stopped, or where backward passes diverge; nothing if variables explain it."""
        if _follows_from_variables(self.runner, part.comparison):
            return []
        if stop := _stop_of_gradients(self.runner, part.comparison):
            cause, places = stop
            cause = cause._replace(confirmed=part.likely[0].confirmed if part.likely else "")
            return [finding_of_cause(self.runner, "training", cause, *places)]
        if "loss" in self.parts:  # which agrees by chance in a step in which the gradients do not
            return []
        found = _findings_of_gradients(self.runner, part.comparison)
        if all(each.fault in _OPS_ONLY for each in found):  # a gradient may be stopped on one of several ways
            variables = [_variable(leaf.path) for leaf in part.comparison.leaves if not leaf.ok]
            found = list(self.of_stop(variables, part.likely[0].confirmed if part.likely else "")) or found
        return found or [self.finding(part, self.lines_of_variable(part.variable))]

    def of_rate(self, part: _Part) -> Iterator[Finding]:
        tf1, port = (
            {number: float(step[LEARNING_RATE]) for number, step in enumerate(each.steps)}
            for each in (self.tf1, self.trained[0].port)
        )
        cause = cause_in_schedule(self.runner, tf1, port, self.tf1.schedule.numbers)
        found = self.finding(part, self.lines_of(LEARNING_RATE), cause=cause)
        yield replace(found, confirmed=self.needed.rate or found.confirmed)
        if not self.parts.keys() & set(UPDATED):  # all updates that differ follow from the rates
            for other in self.needed.others:
                yield self.finding(part, self.lines_of("optimizer"), cause=other)

    def of_updates(self, part: _Part) -> Iterator[Finding]:
        """Yield what the port's optimizer needs, or else what explains the updates; nothing if the rates do.

        Other rates change slots, and with these the updates of later steps whose rates agree.
        """
        if self.needed.rate and not self.needed.others:
            return
        for cause in self.needed.beside(part.likely) or (None,):
            yield self.finding(part, self.lines_of("optimizer"), cause=cause)

    def of_weight_averages(self, part: _Part) -> Iterator[Finding]:
        yield self.finding(part, self.lines_of("average"))

    def of_moving_averages(self, part: _Part) -> Iterator[Finding]:
        of_tf1, of_port = self.lines_of_variable(part.variable)
        if part.variable:
            config = self.runner.port(TRAINING).config
            of_port = self.runner.lines_of_updates([part.variable], config)[part.variable]
        yield self.finding(part, (of_tf1, of_port), "averages")


# A part of a step -> what yields its findings.
_FINDINGS_OF: dict[str, Callable[[_Explanation, _Part], Iterable[Finding]]] = {
    LEARNING_RATE: _Explanation.of_rate,
    "outputs": _Explanation.of_outputs,
    "regularization_loss": _Explanation.of_regularization,
    "loss": _Explanation.of_loss,
    "metrics": _Explanation.of_metrics,
    "gradients": _Explanation.of_gradients,
    **dict.fromkeys(UPDATED, _Explanation.of_updates),
    **dict.fromkeys(MOVING_AVERAGES, _Explanation.of_moving_averages),
    **dict.fromkeys(AVERAGES_OF_WEIGHTS, _Explanation.of_weight_averages),
}


_OPS_ONLY = {Fault.ONLY_IN_ONE, Fault.OPS, Fault.UNEXPLAINED}
_VAGUE = {
    Fault.TERM,
    Fault.OPS,
    Fault.UNEXPLAINED,
    Fault.POSSIBLE,
}  # what a loss may show of a fault in one step, and not in another
_SYMPTOMS_OF = {"loss": "loss", **dict.fromkeys(UPDATED, "optimizer")}


def _follows_from_variables(runner: Runner, gradients: Comparison) -> bool:
    """Return whether gradients differ only because variables do, such as in which of them are trained."""
    differing = runner.compared_variables().differing
    return all(leaf.ok or (leaf.reason != "values" and _variable(leaf.path) in differing) for leaf in gradients.leaves)


def _stop_of_gradients(runner: Runner, gradients: Comparison) -> tuple[Cause, tuple[Place | None, Place | None]] | None:
    """Return the cause and the places, if only one program stops the gradients that differ."""
    agree = {_variable(leaf.path): leaf.ok for leaf in gradients.leaves}
    names = [name for name, ok in agree.items() if not ok]
    found = runner.stop_of_gradients(agree)
    if found is None:
        return None
    who, *ops = found
    op = ops[who != "TF1"]
    stop = _stop_gradient(runner, who)
    what = {"StopGradient": stop, "IdentityN": "tf.custom_gradient"}.get(op.type, op.type) if op else ""
    verb = "replaces" if what == "tf.custom_gradient" else "stops"
    cause = in_one_program(who, f"{verb} gradients of {and_more(names, 4)} ({what})")
    return cause, (place_of(ops[0], ""), place_of(ops[1], ""))


def _stop_gradient(runner: Runner, who: str) -> str:
    return "tf.stop_gradient" if who == "TF1" else runner.framework.stop_gradient


def _findings_of_gradients(runner: Runner, gradients: Comparison) -> list[Finding]:
    """Return a finding for each place where the backward passes diverge, of those that are confirmed.

    There are none where only one program has a gradient: which variables it trains is no matter of the backward pass.
    """
    if any(leaf.reason not in (None, "values") for leaf in gradients.leaves):
        return []
    divergences: Sequence[Divergence] = ()
    with passing_over():  # the difference is worth more than its place
        divergences = runner.divergences_of_gradients(
            [_variable(leaf.path) for leaf in gradients.leaves if not leaf.ok]
        )
    findings = [finding_of(runner, each, causes(each), "training") for each in divergences]
    return [replace(each, title=f"gradients: {each.title}") for each in findings if each.confirmed]


def _variable(path: str) -> str:
    """Return the variable that a path of a step names, by its TF1 name; empty if it names none."""
    _, found, name = path.rpartition("['")
    return name.removesuffix("']") if found else ""
