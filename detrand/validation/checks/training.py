"""The check of training steps, and the probe of both optimizers after it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import numpy as np

from detrand._patching.keras import underlying_variable
from detrand._patching.optimizers import corrects_before_epsilon, has_hyperparameter
from detrand.arguments import and_more
from detrand.comparison.values import Comparison
from detrand.errors import MigrationError
from detrand.seeding.callsite import describe_error
from detrand.steps.comparison import StepsComparison
from detrand.validation.audit.hyperparameters import AMOUNTS, OPTIMIZER, REGULARIZER, SQUARES, factors_of, is_own
from detrand.validation.checks.computation import drawn_by_replicas, with_reason
from detrand.validation.checks.numbers import numbers_of_loss
from detrand.validation.compare_outcomes import finding_of, place_of
from detrand.validation.diagnosis.causes import (
    broadcast_in_one,
    causes,
    causes_of_loss,
    describe_causes,
    differs,
    is_close,
    words_of,
)
from detrand.validation.diagnosis.causes_of_training import (
    AVERAGES_OF_WEIGHTS,
    BROADCAST,
    MOVING_AVERAGES,
    UPDATED,
    Cause,
    cause_of_updates,
    causes_of_training,
    known_updates,
    rates_in_words,
)
from detrand.validation.noise.floor import TrainingNoise
from detrand.validation.programs.outcome import RunConfig
from detrand.validation.reference import (
    TRAINING,
)
from detrand.validation.results import Finding, Found, Place
from detrand.validation.runner import Runner
from detrand.validation.training.compare import (
    AVERAGES_BEGIN,
    SPLIT,
    compare_trainings,
    updates_agree,
    with_equal_averages,
)
from detrand.validation.training.penalties import Penalties, with_penalties
from detrand.validation.training.port import (
    CLIPPING_ARGUMENTS,
    lines_of_optimizer,
    make_port_optimizer,
    port_loss_of,
    train_port,
)
from detrand.validation.training.probe import (
    APPLIED,
    EPSILON_IN_TORCH,
    RATE,
    SIZES,
    InPort,
    ProbeOfTF1,
    changes_of_gradients,
    differs_beyond,
    needed_changes,
    rates_that_differ,
    steps_that_differ,
)
from detrand.validation.training.steps import CLIPPING, FACTOR, WEIGHT_AVERAGES, Training, train_step_of
from detrand.variables.sources import named_variables

# Summaries of what one of the programs cannot compute, by the name under which it would be recorded.
NOT_COMPARED = {
    "gradients": "gradients not compared: the golden file was recorded without the dtype policy, which rounds them",
    "learning_rate": "learning rates not compared: an optimizer keeps none, or TF1 has several optimizers",
    "regularization_loss": "the port has no losses attribute: port_loss must add the regularization losses",
    WEIGHT_AVERAGES: "moving averages of weights not compared: the port's optimizer is not one of Keras",
    AVERAGES_BEGIN: (
        "the port's moving averages of weights begin with the weights after step 0, TF1's with the initial weights; "
        "compared from step 1 on, each step from TF1's averages"
    ),
    SPLIT: "regularization losses not compared: one program has in its loss what the other one adds as regularization",
}


def training_steps(runner: Runner) -> Found:
    """Compare training steps, and probe the optimizers and another batch size if they agree."""
    found = _training_steps(runner)
    weak = [each for each in runner.weaknesses if found.ok and found.compared and "batch" in each]
    if not weak:
        return found
    try:
        of_probe = _training_steps(runner.probe)
    except Exception as error:  # a model may take no other batch
        return replace(found, summary=f"{found.summary}; not trained with other batches: {describe_error(error)}")
    if of_probe.ok:
        return replace(found, summary=f"{found.summary}; with a larger batch: {of_probe.summary}")
    return with_reason(of_probe, f"with a larger batch ({weak[0]})", found)


def _training_steps(runner: Runner) -> Found:
    not_compared = drawn_by_replicas(runner, TRAINING)
    if not_compared is not None:
        return not_compared
    config = runner.port(TRAINING).config
    executions = {"eagerly": _train(runner, config, compiled=False)}
    # In a graph, the runtime counts the runs of each op, so no op can draw a later run of another.
    if not runner.op_seeds_of_loops() and not runner.framework.untraced:
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


def _within(runner: Runner, trained: _Trained, noise: TrainingNoise) -> _Trained:
    """Return a training that may differ from TF1's by as much as rounding moves that one."""
    if trained.comparison:
        return trained
    compared = compare_trainings(runner.migration, trained.port, trained.tf1, guided=True, noise=noise)
    return _Trained(trained.port, trained.tf1, *compared, noise)


def _found_in(runner: Runner, executions: Mapping[str, tuple[_Trained, _Trained]]) -> Found:
    """Return what trainings show, each left to itself and as it counts, by how the port ran."""
    tf1, config = runner.tf1.outcome(TRAINING), runner.port(TRAINING).config
    last, _ = list(executions.values())[-1]

    summaries = _each_once({how: _in_one_line(*trained) for how, trained in executions.items()})
    left_out = {name for unguided, _ in executions.values() for name in unguided.left_out}
    summaries += [NOT_COMPARED[name] for name in sorted(left_out)]
    summaries += runner.tf1.training(config.mode).unordered
    if len(executions) == 1 and not runner.framework.untraced:
        summaries.append("not trained in a tf.function, where several ops cannot draw what one op draws in a loop")
    if last.tf1.steps[0]["loss"] != runner.tf1.training(config.mode).steps[0]["loss"]:
        summaries.append("TF1 adds weight decay to gradients, which is compared as a loss with these gradients")
    averages = last.tf1.steps[0].get("moving_averages", ())
    if last.port.replicas > 1 and not tf1.whole_batch and not set(averages).issubset(last.port.averaged):
        summaries.append("the port keeps the moving averages of the first replica; TF1's are those of the first tower")
    differing = {how: counted for how, (_, counted) in executions.items() if not counted.comparison}
    details = _each_once(
        {how: str(each.comparison) for how, each in differing.items()}, " (actual: port, desired: TF1)"
    )

    def port_loss(step: int, outputs: Any) -> float | None:
        _, labels = runner.tf1.batches[step]
        with contextlib.suppress(Exception):  # the outputs may have a different structure
            return port_loss_of(runner.fresh_port.port, labels, outputs)
        return None

    without_penalties = _with_penalties_of_port(runner, differing)
    explained = list(findings_of_regularizers(runner, _WITH_PENALTIES)) if without_penalties is not None else []
    differing = differing if without_penalties is None else without_penalties
    of_tf1 = [
        causes_of_training(each.port, each.tf1, each.comparison, runner.audit.differing, port_loss)
        for each in differing.values()
    ]
    parts = {name: causes for each in reversed(of_tf1) for name, causes in each.items()}
    if "outputs" in parts and _trains_variables_of_its_own(runner, differing):
        del parts["outputs"]
    of_parts = [cause.title for causes in parts.values() for cause in causes]
    likely = tuple(dict.fromkeys([*(each.title for each in explained), *of_parts]))
    findings = [*explained, *_findings_of_training(runner, differing, parts)]
    if not details:
        of_probe, findings = _probe_of_optimizers(runner, last.tf1.lines, last.port.sliced)
        summaries += of_probe
    trainings = {}
    for how, (unguided, counted) in executions.items():
        if not unguided.comparison:
            trainings[f"{how}, left to itself"] = unguided.comparison
        trainings[how] = counted.comparison
    runs = zip(("port", "port in a tf.function"), executions.values(), strict=False)
    steps_of = {"tf1": last.tf1.steps, **{run: unguided.port.steps for run, (unguided, _) in runs}}
    return Found(
        not details and not findings,
        "; ".join(summaries),
        "\n\n".join([describe_causes(likely), *details] if likely else details),
        likely,
        findings=tuple(findings),
        trainings=trainings,
        training_noise={how: counted.noise for how, (_, counted) in executions.items() if counted.noise is not None},
        computed={run: dict(enumerate(steps)) for run, steps in steps_of.items()},
        uncontrolled={"tf1": last.tf1.uncontrolled, "port": last.port.uncontrolled},
    )


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
        tf1 = with_penalties(trained.tf1, initial, penalties)
        compared = compare_trainings(runner.migration, trained.port, tf1, guided=True, noise=trained.noise)
        found[how] = trained._replace(tf1=tf1, comparison=compared[0], left_out=compared[1])
        explained = "loss", "gradients", "regularization_loss"
        if not all(by_name.get(name, True) for by_name in compared[0].steps.values() for name in explained):
            return None
    return found


def with_decays(runner: Runner) -> Training:
    """Return TF1's training with the decay that its update adds to gradients as a loss, as the audit counts it."""
    tf1 = runner.tf1.training(runner.port(TRAINING).config.mode)
    return with_penalties(tf1, runner.tf1.outcome(TRAINING).initial, _decays_as_losses(runner))


def _decays_as_losses(runner: Runner) -> Penalties:
    """Return the regularizers without and with the decay of TF1's update, of variables that the port regularizes."""
    tf1 = runner.tf1.training(runner.port(TRAINING).config.mode)
    audited = {each.of: each.tf1 for each in runner.audit.hyperparameters if each.name == REGULARIZER}
    pairs = {name: (tf1.regularizers.get(name), audited.get(name)) for name in tf1.decays}
    return {name: (own, total) for name, (own, total) in pairs.items() if own and total and own != total}


def _probe_of_tf1(runner: Runner) -> ProbeOfTF1 | None:
    """Return the probe of TF1's optimizer, whose decay counts as in the training; None if there is none."""
    tf1 = runner.tf1.probe()
    if tf1 is None:
        return None
    initial = {name: np.zeros_like(array) for name, array in tf1.training.steps[0]["weights"].items()}
    return tf1._replace(training=with_penalties(tf1.training, initial, _decays_as_losses(runner)))


def findings_of_regularizers(runner: Runner, confirmed: str) -> Iterator[Finding]:
    """Yield a finding for each pair of penalties that differ, with all variables that have it."""
    port_names, (of_tf1, of_port) = runner.compared_variables().port_names, runner.lines_of_variables
    for (name, tf1, port), variables in runner.audit.groups.items():
        if name != REGULARIZER:
            continue
        names, (first, *others) = and_more(variables, 4), variables
        places = {each: Place(port_names.get(each, each), of_port.get(each, "")) for each in variables}
        if tf1 == "none":
            remedy = f"remove the penalty of {names} from the port"
        else:
            remedy = f"penalize {names} by {tf1} in the port, as {_in_keras(tf1)} does"
            factors = [of.get(SQUARES, 0.0) for of in map(factors_of, (tf1, port))]
            if all(factors) and any(is_close(factors[0] / factors[1], ratio) for ratio in (2, 0.5)):
                remedy += ". tf.nn.l2_loss(w) is sum(w**2) / 2; Keras's L2 takes sum(w**2)"
        yield Finding(
            "regularizers",
            f"regularizer differs in {names}: {tf1} (TF1), {port} (port)",
            Place(first, of_tf1.get(first, "")),
            places[first],
            confirmed=confirmed,
            remedy=remedy,
            more=tuple(places[each] for each in others),
            count=len(variables),
        )


def _in_keras(penalty: str) -> str:
    """Return the regularizer of Keras that adds a penalty."""
    factors = {kind: f"{factor:g}" for kind, factor in factors_of(penalty).items()}
    if len(factors) > 1:
        return f"keras.regularizers.L1L2({factors[AMOUNTS]}, {factors[SQUARES]})"
    kind, factor = next(iter(factors.items()))
    return f"keras.regularizers.{'L2' if kind == SQUARES else 'L1'}({factor})"


def _findings_of_training(
    runner: Runner, differing: Mapping[str, _Trained], parts: Mapping[str, tuple[Cause, ...]]
) -> Iterator[Finding]:
    """Yield a finding for each part of a step that differs by itself."""
    of_optimizers = {RATE: RATE, **dict.fromkeys(UPDATED, "optimizer")}
    of_optimizers |= dict.fromkeys(AVERAGES_OF_WEIGHTS, "average")
    port_lines, needed = dict[str, str](), list[Cause]()
    if not parts.keys().isdisjoint(of_optimizers):
        port_lines = lines_of_optimizer(train_step_of(runner.migration).port_optimizer)
        needed = _needed_in_optimizer(runner, next(iter(differing.values())).port.sliced, rates_differ=RATE in parts)
    tf1_lines = next((each.tf1.lines for each in differing.values()), {})
    for name, likely in parts.items():
        if name == "loss" and (found := _findings_of_loss(runner, likely)):
            yield from found
            continue
        comparisons = [each.comparison.steps for each in differing.values()]
        step, of_step = next((n, by[name]) for of in comparisons for n, by in of.items() if not by.get(name, True))
        leaf = of_step.first_divergence
        assert leaf is not None
        of_tf1, of_port = _lines_of(runner, leaf.path)
        if name in of_optimizers:
            of_tf1 = tf1_lines.get(of_optimizers[name], "")
            of_port = port_lines.get(of_optimizers[name], port_lines.get("optimizer", ""))
        if name == "metrics":
            train = train_step_of(runner.migration)
            of_tf1, of_port = (train.line_of_metric(program, _metric(leaf.path)) for program in ("tf1", "port"))
        kind, variable = _KINDS_OF_PARTS.get(name, "training"), _variable(leaf.path)
        if kind == "averages" and variable:
            of_port = runner.lines_of_updates([variable], runner.port(TRAINING).config)[variable]
        desired, actual = leaf.first_mismatch.texts() if leaf.first_mismatch else ("", "")
        first, *others = likely or (Cause(f"{leaf.path} differs in step {step}"),)
        of_tf1 = tf1_lines.get(first.line) or of_tf1
        place = f"step {step}, {leaf.path}"
        made = Place(place, of_tf1, desired), Place(place, of_port, actual)
        places: tuple[Place | None, Place | None] = made
        if name in UPDATED and (of_optimizer := _likeliest([each for each in needed if each.title != RATE], likely)):
            for each in of_optimizer:
                at_its_line = replace(made[0], line=tf1_lines.get(each.line) or made[0].line)
                yield Finding(kind, each.title, at_its_line, made[1], confirmed=each.confirmed)
            continue
        if name == "gradients" and _follows_from_variables(runner, of_step):
            continue
        if name == "gradients" and (stop := _stop_of_gradients(runner, of_step)):
            (title, places), others = stop, []
            first = first._replace(title=title)
        elif name == "gradients" and (found := _findings_of_gradients(runner, of_step)):
            yield from found
            continue
        confirmed = _WITH_VALUE if name == RATE and any(each.title == RATE for each in needed) else first.confirmed
        yield Finding(kind, first.title, *places, confirmed=confirmed, others=tuple(each.title for each in others))
    if "outputs" in parts and "gradients" not in parts:
        trained = next(iter(differing.values())).tf1.steps[0]["gradients"]
        if in_one := runner.stop_in_one_program(trained):
            who, in_tf1, in_port, names = in_one
            title = f"only {who} stops gradients of {and_more(names, 4)} (tf.stop_gradient)"
            yield Finding("training", title, place_of(in_tf1, ""), place_of(in_port, ""))


def _follows_from_variables(runner: Runner, gradients: Comparison) -> bool:
    """Return whether gradients differ only because variables do, such as in which of them are trained."""
    differing = runner.compared_variables().differing
    return all(leaf.ok or (leaf.reason != "values" and _variable(leaf.path) in differing) for leaf in gradients.leaves)


def _trains_variables_of_its_own(runner: Runner, differing: Mapping[str, _Trained]) -> bool:
    """Return whether outputs agree until a variable that only one program has is trained."""
    comparison = runner.compared_variables()
    in_one = [*comparison.only_in_tf1.values(), *comparison.only_in_port.values()]
    in_step_0 = [each.comparison.steps[0].get("outputs", True) for each in differing.values()]
    return all(in_step_0) and any(spec.trainable for spec in in_one)


def _stop_of_gradients(runner: Runner, gradients: Comparison) -> tuple[str, tuple[Place | None, Place | None]] | None:
    """Return a title and the places, if only one program stops the gradients that differ."""
    agree = {_variable(leaf.path): leaf.ok for leaf in gradients.leaves}
    names = [name for name, ok in agree.items() if not ok]
    found = runner.stop_of_gradients(agree)
    if found is None:
        return None
    who, *ops = found
    op = ops[who != "TF1"]
    what = {"StopGradient": "tf.stop_gradient", "IdentityN": "tf.custom_gradient"}.get(op.type, op.type) if op else ""
    verb = "replaces" if what == "tf.custom_gradient" else "stops"
    return f"only {who} {verb} gradients of {and_more(names, 4)} ({what})", (place_of(ops[0], ""), place_of(ops[1], ""))


def _findings_of_gradients(runner: Runner, gradients: Comparison) -> list[Finding]:
    """Return a finding for each place where the backward passes diverge, of those that are confirmed.

    There are none where only one program has a gradient: which variables it trains is no matter of the backward pass.
    """
    if any(leaf.reason not in (None, "values") for leaf in gradients.leaves):
        return []
    try:
        divergences = runner.divergences_of_gradients(
            [_variable(leaf.path) for leaf in gradients.leaves if not leaf.ok]
        )
    except Exception:  # the difference is worth more than its place
        return []
    findings = [finding_of(each, causes(each), "training") for each in divergences]
    return [replace(each, title=f"gradients: {each.title}") for each in findings if each.confirmed]


_KINDS_OF_PARTS = {
    **{"outputs": "computation", "regularization_loss": "regularizers"},
    **dict.fromkeys(MOVING_AVERAGES, "averages"),
}
_WITH_VALUE = "with TF1's value in the port's optimizer, the updates agree"
_WITH_APPLIED = "with the gradients that TF1 applies, the updates agree"


def _likeliest(needed: Sequence[Cause], likely: Sequence[Cause]) -> list[Cause]:
    """Return what the port's optimizer needs; nothing if that is only other gradients, and the updates say more."""
    is_known = any(each.confirmed for each in likely) and all(each.confirmed == _WITH_APPLIED for each in needed)
    return [] if is_known else list(needed)


def _needed_in_optimizer(runner: Runner, sliced: Collection[str], *, rates_differ: bool) -> list[Cause]:
    """Return which of TF1's values the port's optimizer needs; `RATE` for the learning rates."""
    audited = {each.name.replace(" ", "_"): each for each in runner.audit.differing if each.of == OPTIMIZER}
    audited.pop(RATE, None)
    try:
        tf1, optimizer = _probe_of_tf1(runner), make_port_optimizer(runner.migration)
        if tf1 is None:
            return []
        changes: dict[str, Any] = {}
        in_gradients, line = _difference_in_gradients(tf1, _clipping_of_port(optimizer))
        if in_gradients:
            changes[APPLIED] = tf1.applied  # first, so that it is left out if another change does the same
        if corrects_before_epsilon(optimizer):
            changes[EPSILON_IN_TORCH] = True
        changes |= {name: _value_of(each.tf1) for name, each in audited.items() if has_hyperparameter(optimizer, name)}
        if rates_differ:
            changes[RATE] = [float(step[RATE]) for step in tf1.training.steps]
        needed = needed_changes(runner.migration, tf1, _counterparts(runner, optimizer, sliced), changes)
    except Exception:  # an optimizer may be made for the model's variables only
        return []
    titles = {RATE: RATE, APPLIED: in_gradients, EPSILON_IN_TORCH: EPSILON_IN_TORCH}
    titles |= {name: words_of(each) for name, each in audited.items()}
    return [
        Cause(titles[name], _WITH_APPLIED, line) if name == APPLIED else Cause(titles[name], _WITH_VALUE)
        for name in needed
    ]


def _difference_in_gradients(tf1: ProbeOfTF1, of_port: str) -> tuple[str, str]:
    """Return how the programs change gradients differently before they apply them, and which of TF1's lines does it.

    Both are empty if that is not known.
    """
    of_tf1, factors = changes_of_gradients(tf1)
    if of_tf1 and of_tf1 != of_port:
        return differs(CLIPPING, of_tf1, of_port), CLIPPING
    by_factor: dict[str, list[str]] = {}
    for name, factor in factors.items():
        by_factor.setdefault(f"{factor:.4g}", []).append(name)
    if len(by_factor) == 1:
        [(factor_in_words, names)] = by_factor.items()
        of_variables = "" if len(names) == len(tf1.applied[0]) else f" of {and_more(names, 4)}"
        return differs(f"{FACTOR}{of_variables}", factor_in_words, "1"), FACTOR
    of_each = "; ".join(f"those of {and_more(names, 4)} by {factor}" for factor, names in by_factor.items())
    return (f"only TF1 multiplies gradients before it applies them: {of_each}", FACTOR) if of_each else ("", "")


def _clipping_of_port(optimizer: Any) -> str:
    """Return how the port's optimizer clips gradients, in words."""
    for name, words in CLIPPING_ARGUMENTS.items():
        if (limit := getattr(optimizer, name, None)) is not None:
            return f"{words} {limit:.4g}"
    return f"as {type(optimizer).__name__} does" if is_own(optimizer) else "none"


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
        is_applied = name not in compared.rearranged and isinstance(optimizer, keras.optimizers.Optimizer)
        if constraint is not None and not (is_applied and len(parts) == 1):
            raise MigrationError(f"{other} has a constraint")
        found[name] = InPort(other, constraint, name in sliced)
    return found


def _value_of(text: str) -> Any:
    """Return the value of an optimizer's hyperparameter, given its text."""
    flags = {"none": None, "True": True, "False": False}
    return flags[text] if text in flags else float(text)


def _probe_of_optimizers(
    runner: Runner, tf1_lines: Mapping[str, str], sliced: Collection[str]
) -> tuple[list[str], list[Finding]]:
    """Return what gradients and steps show that the training does not reach: summaries, and findings if they differ.

    The programs of the migration are not run for it. A port in half precision or on replicas is not probed.
    """
    migration = runner.migration
    if migration.dtype_policy is not None or migration.strategy is not None:
        return [], []
    try:
        tf1 = _probe_of_tf1(runner)
        if tf1 is None:
            return ["optimizers not probed: the golden file has no probe of TF1's"], []
        port_rates, rates = rates_that_differ(migration, tf1)
        counterparts = _counterparts(runner, make_port_optimizer(migration), sliced)
        port, differing = steps_that_differ(migration, tf1, counterparts)
    except Exception as error:  # an optimizer may be made for the model's variables only
        return [f"optimizers not probed: {describe_error(error.__cause__ or error)}"], []
    beyond = None
    if not rates and not differing and tf1.beyond is not None:
        with contextlib.suppress(Exception):  # an optimizer may have no configuration
            beyond = differs_beyond(migration, tf1, counterparts)
    if not rates and not differing and beyond is None:
        sizes = f"for gradients from {SIZES[0]:g} to {SIZES[-1]:g}"
        until = f", and their learning rates until step {max(tf1.rates):,}" if tf1.rates else ""
        return [f"the optimizers agree {sizes}{until}"], []
    needed = _needed_in_optimizer(runner, sliced, rates_differ=bool(rates)) if differing else []
    others = [each for each in needed if each.title != RATE]
    values = "", ""
    if rates:
        step, where = rates[0], RATE
        values = f"{tf1.rates[step]:g}", f"{port_rates[step]:g}"
        confirmed = "where the learning rates are equal, the updates agree"
        if differing:
            confirmed = _WITH_VALUE if len(others) < len(needed) else ""
        title = rates_in_words(step, tf1.rates, port_rates, tf1_lines.get("schedule", ""))
        likely = [Cause(title, confirmed), *others]
    elif beyond is not None and tf1.beyond is not None:
        step, where = tf1.boundary, "updates"
        before, after = (float(tf1.beyond.steps[number][RATE]) for number in (0, -1))
        likely = list(known_updates(beyond.steps, tf1.beyond.steps))
        likely = likely or [Cause(f"updates differ after the learning rate changes from {before:g} to {after:g}")]
    else:
        step, where = differing[0], "updates"
        of_updates = list(known_updates(port.steps, tf1.training.steps))
        of_updates = of_updates or [cause_of_updates(port, tf1.training, differing)]
        likely = _likeliest(others, of_updates) or of_updates
    port_lines, made = lines_of_optimizer(train_step_of(migration).port_optimizer), RATE if rates else "optimizer"
    place = f"step {step}, {where}"
    in_port = Place(place, port_lines.get(made, ""), values[1])
    findings = [
        Finding(
            "training",
            each.title,
            Place(place, tf1_lines.get(each.line) or tf1_lines.get(made, ""), values[0]),
            in_port,
            confirmed=each.confirmed,
        )
        for each in likely
    ]
    return [likely[0].title], findings


def _lines_of(runner: Runner, path: str) -> tuple[str, str]:
    """Return the lines of both programs of the variable that a path of a step names; empty if they are not known."""
    of_tf1, of_port = runner.lines_of_variables
    return of_tf1.get(_variable(path), ""), of_port.get(_variable(path), "")


def _variable(path: str) -> str:
    """Return the variable that a path of a step names, by its TF1 name; empty if it names none."""
    return path.rpartition("['")[2].removesuffix("']")


def _metric(path: str) -> str:
    """Return the metric that a path of a step names."""
    return path.partition("['")[2].partition("']")[0]


def _findings_of_loss(runner: Runner, likely: Sequence[Cause]) -> list[Finding]:
    """Return a finding for each difference in the loss; none if it cannot be traced.

    What explains the whole loss says more than the ops at which the losses diverge, unless one op is all that differs.
    A loss that is a multiple of TF1's leaves no tensor that could be given TF1's value, but has multiples of its
    gradients.
    """
    try:
        divergences, inputs = runner.divergences_of_loss()
    except Exception:  # the difference is worth more than its place
        return []
    findings = [finding_of(each, causes_of_loss(each, inputs), "training") for each in divergences]
    line = train_step_of(runner.migration).line_of_loss  # for an op of a framework's loss
    ports = [
        replace(each.port, line=each.port.line or line) if each.port else Place("the loss", line) for each in findings
    ]
    found = [replace(each, title=f"loss: {each.title}", port=port) for each, port in zip(findings, ports, strict=True)]
    whole = likely[0] if likely else Cause("")
    is_summed = "sums a loss where" in whole.title
    is_converted = "reads the outputs as" in whole.title or whole.title == BROADCAST
    for each, finding in zip(divergences, found, strict=True):
        confirmed = whole.confirmed if whole.title == BROADCAST else ""
        if broadcast := broadcast_in_one(each, confirmed=bool(confirmed)):
            title, op = broadcast
            place = finding.port if title.startswith("TF1") else place_of(op, "")
            return [replace(finding, title=f"loss: {title}", port=place, confirmed=confirmed, others=())]
    in_one_place = len(found) == 1 and bool(found[0].confirmed)
    if is_summed and in_one_place and not _LESS_THAN_A_SUM.match(found[0].title):
        return found
    are_named = all(each.confirmed and not _ONLY_OPS.match(each.title) for each in found)
    are_exact = in_one_place or all(each.attribute for each in divergences)
    if not found or (are_named and are_exact and not is_summed):
        return found
    confirmed = whole.confirmed or (found[0].confirmed if is_summed and in_one_place else "")
    number = None if is_summed or is_converted else _finding_of_number(runner, line, terms=not confirmed)
    if number is not None and (number.confirmed or not confirmed):
        return [number]
    if not confirmed and not is_summed and (len(found) == 1 or (are_named and len(found) <= _MOST_REWRITTEN)):
        return found
    first, others = found[0], tuple(dict.fromkeys(each.title for each in found))
    if confirmed or not _OTHER_TENSORS.match(first.title):
        first, others = replace(first, title=whole.title or "the losses of the same outputs differ"), ("", *others)
    port = first.port or Place("the loss", line)
    return [replace(first, others=() if confirmed else others[1:], confirmed=confirmed, port=port)]


_MOST_REWRITTEN = 2  # differences that a loss may show which is written differently in the port
# Titles that only list ops, those that say less than a sum in place of a mean, and those that say more than values.
_ONLY_OPS = re.compile("loss: (only .+ computes|another|what is computed|the loss is computed|the operands of)")
_LESS_THAN_A_SUM = re.compile("loss: (only|another|what is computed|the loss is computed|the operands of)")
_OTHER_TENSORS = re.compile(r"loss: (\w+ takes different tensors: (outputs|labels)|order of the operands of)")


def _finding_of_number(runner: Runner, line: str, *, terms: bool) -> Finding | None:
    """Return the finding of a number in the port's loss that makes it TF1's; of several, it names them all."""
    tf1, config = runner.tf1, runner.port(TRAINING).config
    try:
        program, initial = tf1.loss_of_outputs().migration, tf1.outcome(TRAINING).initial
        numbers = numbers_of_loss(program, config, tf1.trace_of_loss(), tf1.shapes(), initial, terms=terms)
    except Exception:  # the difference is worth more than its place
        return None
    if not numbers:
        return None
    first, *others = dict.fromkeys(f"loss: {each.title}" for each in numbers)
    number, port = numbers[0], place_of(numbers[0].port, numbers[0].value)
    assert port is not None
    return Finding(
        "training",
        first,
        place_of(number.tf1, number.needed),
        replace(port, line=port.line or line),
        confirmed="" if others else f"with {number.needed} here, the losses agree",
        others=tuple(others),
    )


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

    unguided = train(with_decays(runner), guided=False)
    if unguided.comparison and updates_agree(migration, unguided.port, unguided.tf1):
        return unguided, unguided
    guided = train(unguided.tf1, guided=True)
    counted = unguided if unguided.comparison and guided.comparison else guided
    return unguided, counted


def _each_once(texts: Mapping[str, str], remark: str = "") -> list[str]:
    """Return each text once, after what it is about and a remark."""
    about: dict[str, list[str]] = {}
    for what, text in texts.items():
        about.setdefault(text, []).append(what)
    return [f"{' and '.join(what)}{remark}: {text}" for text, what in about.items()]


def _in_one_line(unguided: _Trained, counted: _Trained) -> str:
    drifts = counted.comparison and not unguided.comparison
    drift = f"; left to itself, the port drifts: {unguided.comparison.summary}" if drifts else ""
    by_rounding = "; as far as rounding moves TF1's own training" if drifts and counted.noise is not None else ""
    return f"{counted.comparison.summary}{by_rounding}{drift}"
