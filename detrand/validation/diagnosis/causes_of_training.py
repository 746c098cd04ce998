"""Likely causes of a difference of two trainings.

`causes_of_training` takes the evidence of all steps, `momenta` that of one update of moving averages.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.structures import map_leaves
from detrand.comparison.values import Comparison, leaves_by_path
from detrand.steps.comparison import StepsComparison
from detrand.validation.audit.hyperparameters import MOMENTUM, OPTIMIZER, REGULARIZER, layer_of
from detrand.validation.diagnosis.causes import (
    CLOSE,
    Cause,
    add_or_remove,
    causes,
    differs,
    factor_between,
    in_one_program,
    is_close,
    of_hyperparameter,
    of_momentum,
    of_values,
)
from detrand.validation.diagnosis.causes_of_loss import CONVERSIONS, SAME_LOSS
from detrand.validation.frameworks.traces import Value
from detrand.validation.results import AuditedHyperparameter, Fault, OwnForm
from detrand.validation.training.clipping import (
    EACH_ELEMENT,
    GLOBAL_NORM,
    NORM_OF_EACH,
    NOT_CLIPPED,
    RTOL,
    AppliedStep,
    Clipping,
    clipping_of,
    factor_of,
    projection,
)
from detrand.validation.training.steps import (
    CLIPPING,
    FACTOR,
    UPDATES_OF_AVERAGES,
    UPDATES_OF_WEIGHT_AVERAGES,
    WEIGHT_AVERAGES,
    Training,
)

_FEW_RATES = 3  # so many may be those of the step before because the schedule has other boundaries
_OF_SHIFT = 0.01  # of the difference of learning rates, how far these may differ from those of the step before or after
_OF_ROUNDING = 0.1  # of the change of a moving average in a step, which may be a few units in the last place
_SAME = 1e-6  # relative tolerance for equal learning rates and weights
_SAME_NORM = 1e-6  # relative tolerance for equal norms of gradients
_LEAST_CLIPPED = 3  # weights at a bound, which is no chance
_OF_CHANGE, _OF_AVERAGE = 1e-3, 1e-6  # how far a change may be from a multiple of another, relative to it, to the value


_Step = Mapping[str, Any]  # what was recorded of a training step, by name

UPDATED = {"weights", "slots", "updates"}
_WITH_THIS = "with this, the updates of both programs agree"
_WITH_GRADIENTS = "with TF1's gradients, the updates agree"
_STOPS = "what stops gradients, such as tf.stop_gradient or detach()"
AVERAGES_OF_WEIGHTS = {WEIGHT_AVERAGES, UPDATES_OF_WEIGHT_AVERAGES}
MOVING_AVERAGES = {"moving_averages", UPDATES_OF_AVERAGES}
OPTIMIZER_DIFFERS = (
    "the optimizer or one of its hyperparameters differs: epsilon (1e-8 in tf.train.AdamOptimizer, 1e-7 in Keras), "
    "momentum, Nesterov momentum, decay, the initial values of its slots (1 in tf.train.RMSPropOptimizer), or what it "
    "does to gradients, such as clipping"
)


def causes_of_training(
    port: Training,
    tf1: Training,
    comparison: StepsComparison,
    hyperparameters: Sequence[AuditedHyperparameter] = (),
    port_loss: Callable[[int, Any], float | None] = lambda step, outputs: None,
    elsewhere: Callable[[], float | None] = lambda: None,
) -> dict[str, tuple[Cause, ...]]:
    """Return the likely causes of each part of a step that differs by itself, the likeliest first, by the part's name.

    A part that differs only because an earlier one does is left out: gradients differ where outputs do. Given a step,
    ``port_loss`` returns the port's loss of outputs and the step's labels, without regularization. ``elsewhere``
    returns how much greater the port's loss of very different outputs is than TF1's; None if that is not known.
    """
    found: dict[str, tuple[Cause, ...]] = {}
    for name in comparison.names:
        if all(by_name.get(name, True) for by_name in comparison.steps.values()):
            continue
        if name in MOVING_AVERAGES and not MOVING_AVERAGES.isdisjoint(found):
            continue
        differing = [step for step, by_name in comparison.steps.items() if not by_name.get(name, True)]
        step = next((each for each in differing if not _follows(name, comparison.steps[each])), None)
        of_step = differing[0] if step is None else step  # outputs that differ do not hide a loss that does
        if name == "loss" and (
            of_loss := tuple(_loss_of_outputs(port, tf1, comparison, port_loss, elsewhere, of_step))
        ):
            found[name] = of_loss
            continue
        if step is None or any(
            name in kinds and not kinds.isdisjoint(found) for kinds in (UPDATED, AVERAGES_OF_WEIGHTS)
        ):
            continue
        port_step, tf1_step = port.steps[step], tf1.steps[step]
        if name in MOVING_AVERAGES and _are_trained(comparison.steps[step][name], port_step, tf1_step):
            continue
        causes_of_part: Iterable[Cause] = ()
        in_both = name in port_step and name in tf1_step
        if name == "learning_rate":
            causes_of_part = [_learning_rate(port.steps, tf1.steps, tf1.schedule.function)]
        elif name == "regularization_loss":
            losses = port_step.get(name), tf1_step.get(name)
            regularizers = [each for each in hyperparameters if each.name == REGULARIZER]
            causes_of_part = causes(losses=losses, hyperparameters=regularizers)
        elif name == "loss" and in_both:
            causes_of_part = _loss(port_step, tf1_step, port.replicas, [], "")
        elif name == "gradients" and in_both:
            of_gradients = _gradients(port_step[name], tf1_step[name], comparison.steps[step][name])
            updates_agree = all(by_name.get(each, True) for by_name in comparison.steps.values() for each in UPDATED)
            causes_of_part = (each._replace(confirmed=_WITH_GRADIENTS * updates_agree) for each in of_gradients)
        elif name in UPDATED and (known := tuple(known_updates(port.steps, tf1.steps))):
            causes_of_part = known
        elif name in UPDATED:
            of_optimizer = [of_hyperparameter(each) for each in hyperparameters if each.of == OPTIMIZER]
            have_slots = all("slots" in each for each in (port_step, tf1_step))  # others take slices as dense gradients
            of_slices = [*_slices(comparison.steps[step], port.in_slices if have_slots else ())]
            others = [*of_optimizer, *_updates(port, tf1)]
            comes_first = _trains_others(tf1_step, port.in_slices)  # which an argument would change, too
            likely = [*of_slices, *others] if comes_first else [*others, *of_slices]
            likely.sort(key=lambda cause: not (cause.confirmed and cause.line))  # a change of gradients is no guess
            causes_of_part = likely or _changes_of_gradients(port, tf1)
        elif name in AVERAGES_OF_WEIGHTS:
            causes_of_part = _averages_of_weights(port.steps, tf1.steps)
        elif name in MOVING_AVERAGES and "moving_averages" in port_step and "moving_averages" in tf1_step:
            causes_of_part = _moving_averages(port.steps, tf1.steps, hyperparameters)
        found[name] = tuple(dict.fromkeys(causes_of_part))
    return found


# The parts of a step on which a part depends. Updates are made of TF1's gradients where a port is guided.
_DEPENDS_ON = {
    "metrics": {"outputs"},
    "regularization_loss": set[str](),
    "loss": {"outputs", "regularization_loss"},
    "gradients": {"outputs", "regularization_loss", "loss"},
    **{name: {"outputs"} for name in MOVING_AVERAGES},
    **{name: {"learning_rate"} for name in UPDATED},
    **{name: {"learning_rate", *UPDATED} for name in AVERAGES_OF_WEIGHTS},
}


def _follows(name: str, comparisons: Mapping[str, Comparison]) -> bool:
    """Return whether a part of a step differs because an earlier part of it does."""
    return not all(comparisons.get(each, True) for each in _DEPENDS_ON.get(name, ()))


def _are_trained(comparison: Comparison, port: _Step, tf1: _Step) -> bool:
    """Return whether all moving averages that differ are variables that only one program trains."""
    parts = "gradients", "moving_averages"
    trained, averages = (port.get(part, {}).keys() ^ tf1.get(part, {}).keys() for part in parts)
    paths = [leaf.path for leaf in comparison.leaves if not leaf.ok and leaf.path.endswith("]")]
    return (
        bool(averages or paths)
        and averages <= trained
        and all(any(f"[{name!r}]" in path for name in trained) for path in paths)
    )


def _gradients(port: Mapping[str, Any], tf1: Mapping[str, Any], comparison: Comparison) -> Iterator[Cause]:
    """Yield how gradients differ, of the last variable first: backpropagation reaches that one first."""
    differing = [leaf.path for leaf in comparison.leaves if not leaf.ok]
    names: list[str] = [name for name in reversed(list(tf1)) if any(f"[{name!r}]" in path for path in differing)]
    for who, mine, other in (("the port", port, tf1), ("TF1", tf1, port)):
        if only := [name for name in mine if name not in other]:
            yield _trained_in_one_program(who, and_more(only, 4))
    if port.keys() != tf1.keys():
        return
    for who, mine, other in (("the port", port, tf1), ("TF1", tf1, port)):
        stopped = [name for name in names if mine.get(name) is None and other.get(name) is not None]
        if stopped:
            none = f"in {who}, the gradient of {stopped[0]} is None"
            yield Cause(f"{none}: the loss does not depend on it, or look for {_STOPS}")
    for name in names:
        arrays = tf1.get(name), port.get(name)
        if any(array is None for array in arrays):
            continue
        ratio = factor_between(*(Value.of(np.asarray(array)) for array in arrays))
        if ratio is not None:
            times = f"the gradient of {name} in the port is {ratio:.4g} times TF1's"
            yield Cause(f"{times}: it is scaled or clipped differently")
            return
    for name, (who, rows) in ((name, _rows_of_one_program(tf1[name], port[name])) for name in names):
        if rows:
            named = f"{'row' if len(rows) == 1 else 'rows'} {and_more(map(str, rows), 4)} of {name}"
            cause = _trained_in_one_program(who, named)
            yield cause._replace(own_form=(OwnForm.TRAIN_ROWS, "")) if who == "TF1" else cause
            return
    if names:
        differing_first = f"the gradient of {names[0]} does not"
        yield Cause(f"the outputs and the loss agree, but {differing_first}: look for {_STOPS}")


def _trained_in_one_program(who: str, names: str) -> Cause:
    """Return the cause that only TF1 or only the port trains some variables, or rows of one."""
    freeze = f"freeze {names} in the port, or pass TrainStep(var_list=...)"
    train = f"train {names} in the port, as TF1's training op does"
    return Cause(f"only {who} trains {names}", remedy=train if who == "TF1" else freeze)


def _rows_of_one_program(tf1: Any, port: Any) -> tuple[str, list[int]]:
    """Return the program that alone has gradients of some rows of a variable, and these rows, if the others agree."""
    arrays = [np.asarray(each, np.float64) for each in (tf1, port) if each is not None]
    if len(arrays) < 2 or arrays[0].ndim < 2 or arrays[0].shape != arrays[1].shape:
        return "", []
    flat = [array.reshape(len(array), -1) for array in arrays]
    differing = (np.abs(flat[0] - flat[1]) > CLOSE * np.abs(flat[0]).max(initial=0)).any(1)
    for who, other in (("TF1", flat[1]), ("the port", flat[0])):
        if differing.any() and not differing.all() and not other[differing].any():
            return who, np.flatnonzero(differing).tolist()
    return "", []


def _updates(port: Training, tf1: Training) -> Iterator[Cause]:
    """Yield what explains the updates of a port that is guided by TF1, in all steps whose weights before are known."""
    if accumulation := _accumulation(port.steps, tf1.steps):
        yield accumulation
        return
    steps = list(_updates_of_steps(port.steps, tf1.steps))
    if _clips_before_it_adds_slices(tf1) and clipping_of([step.applied(step.port) for step in steps]) != NOT_CLIPPED:
        title = "TF1 clips gradients by the norm of their slices, before it adds up those of one row"
        by_sums = "if the port clips, it uses the norm of the sums"
        remedy = f"{by_sums}; to compare the rest, pass tf.convert_to_tensor(gradient) to TF1's clipping"
        yield Cause(title, line=CLIPPING, remedy=remedy)
        return
    if not any(step.differing for step in steps):
        return
    yield from _decay_of_weights(next(step for step in steps if step.differing))
    differing = list(dict.fromkeys(name for step in steps for name in step.differing))
    likely = list(_changed_gradients(steps, differing, tf1.lines.get(CLIPPING, ""), port.clipping or ""))
    yield from likely or _multiple_of_updates(steps, differing)


def _accumulation(port: Sequence[_Step], tf1: Sequence[_Step]) -> Cause | None:
    """Return that the programs accumulate gradients over different numbers of steps, if that is so.

    The port is guided, so its weights before a step are TF1's.
    """
    of_tf1, of_port = (
        [
            number
            for number, before in enumerate(tf1[:-1], 1)
            if not all(np.array_equal(steps[number]["weights"].get(name), w) for name, w in before["weights"].items())
        ]
        for steps in (tf1, port)
    )
    if of_tf1 == of_port:
        return None
    counts = [_accumulated_steps(changing, len(tf1)) for changing in (of_tf1, of_port)]
    argument = f"gradient_accumulation_steps={counts[0]}" if counts[0] else "gradient_accumulation_steps"
    remedy = add_or_remove("the port") if counts[0] == 1 else f"pass {argument} to the port's optimizer"
    texts = [str(count or f"more than {len(tf1)}") for count in counts]
    return of_values("number of steps over which gradients are accumulated", *texts, remedy=remedy)


def _accumulated_steps(changing: Sequence[int], steps: int) -> int | None:
    """Return over how many steps gradients are accumulated, given the steps but the first that change a weight."""
    if len(changing) == steps - 1:
        return 1
    return changing[1] - changing[0] if len(changing) > 1 else changing[0] + 1 if changing else None


def _decay_of_weights(step: _Updates) -> Iterator[Cause]:
    """Yield that only one program takes a share of the weights away, if that explains all that differs in a step."""
    found = [step.port.decay_beside(step.tf1, name) for name in step.differing]
    decays = [decay for decay in found if decay is not None]
    if len(decays) == len(step.differing) and np.ptp(decays) <= 0.01 * max(map(abs, decays)):
        who, names = "the port" if decays[0] > 0 else "TF1", and_more(step.differing, 4)
        decay = f"weight decay differs: only {who} takes {abs(decays[0]):.4g} of {names} away in each step"
        yield Cause(decay, _WITH_THIS)


def _changed_gradients(
    steps: Sequence[_Updates], differing: Sequence[str], line_in_tf1: str, argument_in_port: str
) -> Iterator[Cause]:
    """Yield what gradient descent does to gradients in one program only, or differently, as the updates show it.

    The line that clips gradients in TF1, and the argument with which the port's optimizer does, are empty without one.
    """
    applied = [[step.applied(step.tf1) for step in steps], [step.applied(step.port) for step in steps]]
    factors, clips = [factor_of(of, differing) for of in applied], [clipping_of(of) for of in applied]
    is_scaled = all(factors) and f"{factors[0]:.4g}" != f"{factors[1]:.4g}"
    is_clipped = all(clips) and clips[0] != clips[1]
    shown = zip((line_in_tf1, argument_in_port), clips, strict=True)
    is_shown = all(where or clip == NOT_CLIPPED for where, clip in shown)
    likely = []
    tf1, port = clips
    if tf1 is not None and port is not None and is_clipped and (is_shown or not is_scaled):
        unknown = Cause(differs("clipping or normalization of gradients", tf1, port), line=CLIPPING)
        likely.append(of_clipping(tf1, port, _WITH_THIS, argument_in_port) if is_shown else unknown)
    if is_scaled:
        of_variables = "" if len(differing) == len(steps[0].gradients) else f" of {and_more(differing, 4)}"
        confirmed = _WITH_THIS if len(steps) > 1 and not is_clipped else ""
        scale = of_values(f"{FACTOR}{of_variables}", *(f"{factor:.4g}" for factor in factors))
        likely.append(scale._replace(confirmed=confirmed, line=FACTOR))
    if len(likely) > 1:  # one step, or gradients of one norm, show no difference between the two
        likely = [cause._replace(confirmed="") for cause in likely]
    yield from likely


# What of gradients is limited -> the argument of Keras's optimizers, and what other frameworks look their form up by.
_CLIPPINGS = {
    GLOBAL_NORM: ("global_clipnorm", OwnForm.CLIP_GLOBAL_NORM),
    NORM_OF_EACH: ("clipnorm", OwnForm.CLIP_EACH_NORM),
    EACH_ELEMENT: ("clipvalue", OwnForm.CLIP_ELEMENTS),
}


def of_clipping(tf1: Clipping, port: Clipping, confirmed: str, given: str = "") -> Cause:
    """Return the cause that gradients are clipped differently; `given` is the argument of the port's optimizer."""
    idle = f"{given}, which limits nothing in these steps" if given and port == NOT_CLIPPED else ""
    cause = of_values(CLIPPING, tf1, idle or port, confirmed)._replace(line=CLIPPING)
    if tf1 == NOT_CLIPPED:
        return cause._replace(remedy="do not clip gradients in the port")
    argument, own_form = _CLIPPINGS[tf1.what]
    instead = f" in place of {given}" if given not in ("", argument) else ""
    remedy = f"pass {argument}={tf1.limit} to the port's optimizer{instead}"
    return cause._replace(remedy=remedy, own_form=(own_form, tf1.limit))


def _multiple_of_updates(steps: Sequence[_Updates], differing: Sequence[str]) -> Iterator[Cause]:
    """Yield how many times TF1's updates those of the port are, if that is one number."""
    between = [AppliedStep(step.tf1.by_name, step.port.by_name, step.port.rounding) for step in steps]
    ratio = factor_of(between, differing)
    if ratio is not None and f"{ratio:.4g}" != "1":
        times = f"in each of {len(steps)} steps" if len(steps) > 1 else ""
        yield Cause(f"the port's updates of {and_more(differing, 4)} are {ratio:.4g} times TF1's", times)


class _Updates(NamedTuple):
    """What a guided step adds to weights in both programs, by name, and the gradients and the rate of the step."""

    tf1: _Update
    port: _Update
    gradients: Mapping[str, np.ndarray]
    rate: float
    differing: Sequence[str]

    def applied(self, update: _Update) -> AppliedStep:
        """Return what an update applies if it is one of gradient descent; nothing without a learning rate."""
        known = update.by_name if np.isfinite(self.rate) and self.rate else {}
        applied = {name: array / -self.rate for name, array in known.items()}
        return AppliedStep(self.gradients, applied, {name: update.rounding[name] / abs(self.rate) for name in known})


def _updates_of_steps(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[_Updates]:
    """Yield what each step adds to the weights, but those in which neither program changes them."""
    for step in range(1, len(tf1)):
        before, rate = tf1[step - 1]["weights"], float(tf1[step].get("learning_rate", np.nan))
        given = {name: array for name, array in tf1[step]["gradients"].items() if array is not None and name in before}
        weights = {name: np.asarray(before[name], np.float64) for name in given if name in port[step]["weights"]}
        after = [{name: each[step]["weights"][name] for name in weights} for each in (tf1, port)]
        if not weights or any(of[name].shape != weights[name].shape for of in after for name in weights):
            return
        of_tf1, of_port = (_Update({name: of[name] - weights[name] for name in weights}, weights) for of in after)
        if any(array.any() for update in (of_tf1, of_port) for array in update.by_name.values()):
            gradients = {name: np.asarray(given[name], np.float64) for name in weights}
            differing = [name for name in weights if not of_tf1.is_close(name, of_port.by_name[name])]
            yield _Updates(of_tf1, of_port, gradients, rate, differing)


def _changes_of_gradients(port: Training, tf1: Training) -> Iterator[Cause]:
    """Yield what the lines of one program do to gradients, where neither the updates nor a probe show it."""
    if CLIPPING in tf1.lines and port.clipping == "":
        yield Cause("TF1 clips gradients, and no argument of the port's optimizer does", line=CLIPPING)
    elif port.clipping and CLIPPING not in tf1.lines:
        yield Cause(f"the port's optimizer clips gradients ({port.clipping}), and TF1 has no op that does")
    elif FACTOR in tf1.lines and CLIPPING not in tf1.lines:
        yield Cause("TF1 changes gradients before it applies them", line=FACTOR)
    yield Cause(OPTIMIZER_DIFFERS, fault=Fault.UNEXPLAINED)


def _clips_before_it_adds_slices(tf1: Training) -> bool:
    """Return whether what TF1 applies has one norm if the slices of a row count each for themselves, not else."""
    limits = []
    for (norm, factor), step in zip(tf1.norms_of_slices, tf1.steps, strict=False):
        arrays = [array for array in step["gradients"].values() if array is not None]
        of_sums = float(np.linalg.norm([np.linalg.norm(np.ravel(array)) for array in arrays]))
        if factor < 1 - RTOL and norm:
            limits.append((factor * norm, factor * of_sums))
    spreads = [np.ptp(of) / max(of) for of in zip(*limits, strict=True)]
    return len(limits) > 1 and spreads[0] < _SAME_NORM and spreads[1] > 10 * _SAME_NORM


def known_updates(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[Cause]:
    """Yield what is known to make updates of guided steps differ, because those of both programs are computed so."""
    if _have_rates_in_momentum(port, tf1):
        yield Cause(
            _RATES_IN_MOMENTUM,
            "computed in these two ways, the updates of both programs agree",
            remedy="return tf.compat.v1.train.MomentumOptimizer in the port, or subclass keras.optimizers.SGD with an "
            "update_step that adds up gradients and multiplies the sum by the rate",
        )
    yield from _clipped_weights(port, tf1)
    if found := _rows_that_stay(port, tf1):
        stays, moves, names = found
        title = f"{stays} leaves rows of {and_more(names, 4)} without gradients as they are, {moves} does not"
        cause = Cause(title, "the updates of all other rows agree", remedy="update all rows in the port")
        keep = (
            "return the optimizer of tf.compat.v1.train in the port, and look rows up, so that gradients come in slices"
        )
        yield cause._replace(remedy=keep, own_form=(OwnForm.KEEP_ROWS, "")) if stays == "TF1" else cause


_RATES_IN_MOMENTUM = (
    "TF1 multiplies its momentum by the learning rate of each step, but the port's momentum holds the rates of earlier "
    "steps"
)


def _clipped_weights(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[Cause]:
    """Yield that only one program clips weights after the update, if all that differs ends at one of two bounds."""
    pairs = [
        tuple(np.ravel(of["weights"][name]) for of in steps)
        for steps in zip(tf1, port, strict=True)
        for name, array in steps[0]["weights"].items()
        if np.shape(array) == np.shape(steps[1]["weights"].get(name))
    ]
    if not pairs:
        return
    both = [np.concatenate(arrays) for arrays in zip(*pairs, strict=True)]
    is_close = np.abs(both[0] - both[1]) <= _SAME * max(np.abs(each).max(initial=0) for each in both)
    for who, (clipped, free) in zip(("TF1", "the port"), (both, both[::-1]), strict=True):
        below, above = clipped[~is_close & (clipped > free)], clipped[~is_close & (clipped < free)]
        bounds = [float(ends[0]) if len(ends) else None for ends in (below, above)]
        are_one = all(np.ptp(ends) == 0 for ends in (below, above) if len(ends))
        if not are_one or len(below) + len(above) < _LEAST_CLIPPED:
            continue
        low, high = (-np.inf if bounds[0] is None else bounds[0]), (np.inf if bounds[1] is None else bounds[1])
        if clipped.min() >= low and clipped.max() <= high:
            ends = [
                f"{what} {bound:.4g}"
                for what, bound in zip(("at least", "at most"), bounds, strict=True)
                if bound is not None
            ]
            title = f"only {who} clips weights after each update, to {' and '.join(ends)}"
            clip = "clip the weights in the port with a constraint of its layers, such as kernel_constraint and "
            clip += "bias_constraint"
            remedy = clip if who == "TF1" else add_or_remove(who)
            yield Cause(title, f"every weight that differs is at this bound in {who}", remedy=remedy)


def _rows_that_stay(port: Sequence[_Step], tf1: Sequence[_Step]) -> tuple[str, str, list[str]] | None:
    """Return which program leaves rows without gradients as they are, which moves them, and the variables' names.

    There is none if the first updates that differ do so in other rows, too.
    """
    found: dict[bool, list[str]] = {}
    for step in range(1, len(tf1)):
        for name, before in tf1[step - 1]["weights"].items():
            gradient, after = tf1[step]["gradients"].get(name), [of[step]["weights"].get(name) for of in (tf1, port)]
            if gradient is None or any(np.shape(each) != before.shape for each in after):
                continue
            of_tf1, of_port = (_Update({name: each - before}, {name: before}) for each in after)
            if of_tf1.is_close(name, of_port.by_name[name]):
                continue
            has_gradient = np.any(gradient, axis=tuple(range(1, before.ndim)), keepdims=True)
            moves = [bool(np.where(has_gradient, 0, of.by_name[name]).any()) for of in (of_tf1, of_port)]
            in_rest = np.where(has_gradient, of_port.by_name[name], of_tf1.by_name[name])
            if moves[0] == moves[1] or not of_tf1.is_close(name, in_rest):
                return None
            found.setdefault(moves[0], []).append(name)
        if len(found) == 1:
            ((tf1_moves, names),) = found.items()
            return ("the port", "TF1", names) if tf1_moves else ("TF1", "the port", names)
    return None


def _have_rates_in_momentum(port: Sequence[_Step], tf1: Sequence[_Step]) -> bool:
    """Return whether this makes the updates differ: it does where the learning rate changes."""
    slots = [step.get("slots", {}).get("momentum", {}) for step in tf1]
    rates = [float(step.get("learning_rate", np.nan)) for step in tf1]
    names = slots[0].keys() & tf1[0]["weights"].keys() & port[0]["weights"].keys()
    if len(set(rates)) < 2 or not names:
        return False

    def agree(name: str) -> bool:
        gradients = [np.asarray(step["gradients"][name], np.float64) for step in tf1]
        sums = [np.asarray(of[name], np.float64) for of in slots]
        momentum = max(
            (
                (float(np.abs(before).max()), projection(after - gradient, before))
                for before, after, gradient in zip(sums, sums[1:], gradients[1:], strict=False)
            ),
        )[1]
        scaled = -rates[0] * gradients[0]
        for step in range(1, len(tf1)):
            rate, gradient, before = rates[step], gradients[step], tf1[step - 1]["weights"][name]
            scaled = momentum * scaled - rate * gradient
            of_tf1, of_port = (
                _Update({name: of[step]["weights"][name] - before}, {name: before}) for of in (tf1, port)
            )
            ways = [
                (-rate * sums[step], scaled),
                (-rate * (gradient + momentum * sums[step]), momentum * scaled - rate * gradient),  # of Nesterov
            ]
            if not any(of_tf1.is_close(name, one) and of_port.is_close(name, other) for one, other in ways):
                return False
        return True

    return all(map(agree, sorted(names)))


def cause_of_updates(port: Training, tf1: Training, differing: Sequence[int]) -> Cause:
    """Return why updates by gradients that grow from step to step differ, given the steps that differ."""
    for cause in _updates(port, tf1):
        return cause
    norms = [float(np.sqrt(sum(np.square(g).sum() for g in step["gradients"].values()))) for step in tf1.steps]
    agreeing = [step for step in range(1, len(norms)) if step not in differing]
    if agreeing and agreeing[-1] < differing[0]:
        at = f"{norms[agreeing[-1]]:.3g} and below"
        return Cause(f"clipping of gradients differs: the updates agree for gradients of norm {at}, and differ above")
    if agreeing and agreeing[0] > differing[-1]:
        at = f"{norms[agreeing[0]]:.3g} and above"
        return Cause(
            f"epsilon of the optimizer differs: the updates agree for gradients of norm {at}, and differ below"
        )
    return Cause(f"updates differ for gradients of norm {norms[differing[0]]:.3g} to {norms[differing[-1]]:.3g}")


class _Update(NamedTuple):
    """What a step adds to weights, by name, and the weights before it, whose rounding it has."""

    by_name: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]

    @property
    def rounding(self) -> dict[str, float]:
        greatest = {name: np.float32(np.abs(array).max(initial=0)) for name, array in self.weights.items()}
        return {name: float(2 * np.spacing(each)) for name, each in greatest.items()}

    def is_close(self, name: str, expected: np.ndarray) -> bool:
        """Return whether the update of a variable is an expected one, but for rounding."""
        atol = self.rounding[name] + CLOSE * np.abs(expected).max(initial=0)
        return bool((np.abs(self.by_name[name] - expected) <= atol).all())

    def decay_beside(self, other: _Update, name: str) -> float | None:
        """Return the share of a weight that this takes away and the other update does not, if that is all."""
        weights = self.weights[name]
        if not weights.any():
            return None
        difference = self.by_name[name] - other.by_name[name]
        decay = -float((difference * weights).sum() / np.square(weights).sum())
        return decay if self.is_close(name, other.by_name[name] - decay * weights) else None


_BEFORE, _AFTER = "before", "after"


def _averages_of_weights(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[Cause]:
    """Yield how moving averages of weights differ; each step of the port begins with TF1's."""
    when_in_tf1, of_tf1 = _decays(tf1, tf1)
    in_words = {f"{decay:.4g}" for decay in of_tf1.values()}
    in_tf1 = in_words.pop() if len(in_words) == 1 else ""
    is_counted = not in_tf1 and _are_of_num_updates(of_tf1)
    if WEIGHT_AVERAGES not in port[0]:
        its_decay, order, remedy = "", "", "pass use_ema=True to the port's optimizer"
        if in_tf1:
            its_decay = f", decay {in_tf1}"
            remedy = f"pass use_ema=True, ema_momentum={in_tf1} to the port's optimizer"
        elif is_counted:
            its_decay = f", decay {_OF_NUM_UPDATES}"
            remedy += f", with {_LIMITED} as ema_momentum, a property of a subclass, where n is iterations + 1"
        if when_in_tf1 == _BEFORE:
            order = ", of the weights before the update"
            remedy = "average the weights before the update in the port, too: Keras's use_ema averages them after it"
        title = f"only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage{its_decay}){order}"
        confirmed = (
            f"with this decay, decay * average + (1 - decay) * w gives TF1's averages, w {when_in_tf1} the update"
        )
        yield Cause(title, confirmed if its_decay else "", remedy=remedy)
        return
    when_in_port, of_port = _decays(port, tf1)
    if not of_tf1 or not of_port:
        who = " and ".join(name for name, found in (("TF1", of_tf1), ("the port", of_port)) if not found)
        yield Cause(
            f"moving averages of weights are computed differently: in {who}, not as decay * average + (1 - decay) * w"
        )
        return
    if when_in_tf1 != when_in_port:
        yield Cause(
            f"TF1 averages the weights {when_in_tf1} the update, the port {when_in_port} it",
            "computed in this order, decay * average + (1 - decay) * w gives the averages of both programs",
            remedy=(
                "let TF1 average after the update (tf.control_dependencies), or average before it in the port: Keras's "
                "use_ema averages after it"
                if when_in_tf1 == _BEFORE
                else ""
            ),
        )
    for step, decay in of_port.items():
        if step in of_tf1 and f"{decay:.4g}" != f"{of_tf1[step]:.4g}":
            where = "" if in_tf1 else f" in step {step}"
            tf1_decay = f"{of_tf1[step]:.4g}{f' = {_OF_NUM_UPDATES}' if is_counted else ''}"
            limited = f"make ema_momentum of the port's optimizer {_LIMITED}, a property of a subclass, where n is "
            yield of_values(
                f"decay of the moving averages of weights{where}",
                tf1_decay,
                f"{decay:.4g}",
                "with these decays, decay * average + (1 - decay) * w gives the averages of both programs",
                remedy=f"{limited}iterations + 1" if is_counted else None,
            )
            return


_LIMITED = "min(decay, (1 + n) / (10 + n))"
_OF_NUM_UPDATES = f"{_LIMITED} for num_updates n"


def _are_of_num_updates(decays: Mapping[int, float]) -> bool:
    """Return whether decays are those of `_OF_NUM_UPDATES`, of a count that begins with 0 or 1 in the first step."""
    most = max(decays.values(), default=0.0)
    return len(decays) > 1 and any(
        all(
            math.isclose(decay, min(most, (1 + step + first) / (10 + step + first)), rel_tol=_OF_CHANGE)
            for step, decay in decays.items()
        )
        for first in (0, 1)
    )


def _decays(steps: Sequence[_Step], before: Sequence[_Step]) -> tuple[str, dict[int, float]]:
    """Return whether moving averages are of the weights before or after the update, and the decay of each step.

    Steps that show none are left out. The steps begin after given ones.
    """
    found: dict[str, dict[int, float]] = {_AFTER: {}, _BEFORE: {}}
    rests = dict.fromkeys(found, 0.0)
    for step in range(1, len(steps)):
        averages, earlier = steps[step].get(WEIGHT_AVERAGES, {}), before[step - 1].get(WEIGHT_AVERAGES, {})
        weights = {_AFTER: steps[step]["weights"], _BEFORE: before[step - 1]["weights"]}
        names = [name for name in averages if name in earlier and all(name in of for of in weights.values())]
        for when, decays in found.items() if names else ():
            after, towards, start = (
                np.concatenate([np.ravel(of[name]).astype(np.float64) for name in names])
                for of in (averages, weights[when], earlier)
            )
            share = projection(after - start, towards - start)
            rest, change = np.linalg.norm(after - start - share * (towards - start)), np.linalg.norm(after - start)
            rests[when] += float(rest / change) if change else 0.0
            if rest <= _OF_ROUNDING * change:
                decays[step] = 1 - share
    when = min(found, key=lambda each: (-len(found[each]), rests[each]))
    return when, found[when]


def _followed_weights(port: Sequence[_Step], tf1: Sequence[_Step]) -> Iterator[Cause]:
    """Yield how the programs move variables, such as those of a target network, towards the weights.

    Each step of the port begins with TF1's values.
    """
    names = defaultdict[Cause, dict[str, None]](dict)
    for name, weight in itertools.product(tf1[0]["moving_averages"], tf1[0]["weights"]):
        of_tf1, of_port = (_shares_of_weight(name, weight, steps, tf1) for steps in (tf1, port))
        common = next((when for when in of_tf1 if when in of_port), None)
        if common is not None:
            shares = of_tf1[common], of_port[common]
            if not math.isclose(*shares, rel_tol=2 * _OF_SHIFT):
                names[_of_shares(*(f"{share:.3g}" for share in shares))][name] = None
        elif of_tf1 and of_port:
            when, in_port = next(iter(of_tf1)), next(iter(of_port))
            names[_of_order_of_update(when, in_port, f"{of_tf1[when]:.3g}")][name] = None
    for cause, of_cause in names.items():
        yield cause._replace(title=cause.title.format(and_more(of_cause, 2)))


def _of_shares(tf1: str, port: str) -> Cause:
    """Return the cause that a step moves variables by different shares; the title has a place for their names."""
    if "0" in (tf1, port):
        who, share = ("TF1", tf1) if port == "0" else ("the port", port)
        return in_one_program(who, f"moves {{}} towards the weights, by {share} of the distance in each step")
    what = "share of the distance to the weights by which a step moves {}"
    return of_values(what, tf1, port, "with these shares, all steps of both programs give the values that they have")


def _of_order_of_update(tf1: str, port: str, share: str) -> Cause:
    """Return the cause that only one program moves variables after the update; the title has a place for their names.

    An update of both programs moves them by the same share of the distance to the weights.
    """
    return Cause(
        f"TF1 moves {{}} towards the weights {tf1} the update, the port {port} it",
        f"computed in this order, each step of both programs moves them by {share} of the distance",
        fault=Fault.ORDER,
        remedy=f"move the variables {tf1} the update in the port",
    )


def _shares_of_weight(name: str, weight: str, steps: Sequence[_Step], before: Sequence[_Step]) -> dict[str, float]:
    """Return by which share of the distance to a weight each step moves a variable, if all steps have one share.

    There is one for the weight before the update, or for that after it, or for both where these are close to each
    other. The steps begin after given ones.
    """
    found = dict[str, float]()
    for when in (_BEFORE, _AFTER):
        shares = []
        for step in range(1, len(steps)):
            start, end = (
                np.asarray(of.get("moving_averages", {}).get(name, ()), np.float64)
                for of in (before[step - 1], steps[step])
            )
            of_weight = before[step - 1] if when == _BEFORE else steps[step]
            towards = np.asarray(of_weight["weights"].get(weight, ()), np.float64)
            if start.size < 2 or not start.shape == end.shape == towards.shape:
                return {}
            distance, rounding = towards - start, 4 * float(np.spacing(np.float32(np.abs(start).max())))
            share = projection(end - start, distance) if (end != start).any() else 0.0
            # The weight itself has to show: an average that fades seems to move towards any small weight.
            is_exact = not share or rounding < _OF_SHIFT * abs(share) * np.ptp(towards)
            if not is_exact or np.abs(end - start - share * distance).max() > rounding:
                break
            shares.append(share)
        if 1 < len(shares) == len(steps) - 1 and np.ptp(shares) <= _OF_SHIFT * max(map(abs, shares)):
            found[when] = float(np.mean(shares))
    return found


def _learning_rate(port: Sequence[_Step], tf1: Sequence[_Step], schedule: str) -> Cause:
    port_rates, tf1_rates = ([float(step["learning_rate"]) for step in steps] for steps in (port, tf1))
    by_size = sorted(range(len(tf1_rates)), key=lambda each: np.isclose(port_rates[each], tf1_rates[each], _SAME, 0))
    step = next(each for each in by_size if port_rates[each] != tf1_rates[each])
    cause = of_rates(step, dict(enumerate(tf1_rates)), dict(enumerate(port_rates)), schedule)
    for how, of_step, port_part, tf1_part in (
        ("late", "the step before", port_rates[1:], tf1_rates[:-1]),
        ("early", "the next step", port_rates[:-1], tf1_rates[1:]),
    ):
        difference = np.abs(np.subtract(port_part, tf1_part)).max(initial=0)
        if difference > _OF_SHIFT * np.abs(np.subtract(port_rates, tf1_rates)).max():
            continue
        remedy = f"change the learning rate of the port one step {'later' if how == 'early' else 'earlier'}"
        if len(set(tf1_rates)) > _FEW_RATES or 1 < len(set(tf1_rates)) == len(tf1_rates):
            title = f"the port's learning-rate schedule is one step {how}: its rate is TF1's rate of {of_step}"
            return Cause(title, remedy=remedy)
        if len(set(tf1_rates)) > 1:
            title = f"{cause.title}; each rate of the port is TF1's of {of_step}"
            return cause._replace(title=title, remedy=remedy)
    return cause


def of_rates(step: int, tf1: Mapping[int, float], port: Mapping[int, float], schedule: str = "") -> Cause:
    """Return the cause that learning rates by step differ in a step, given the name of TF1's schedule."""
    values = f"{tf1[step]:g} (TF1), {port[step]:g} (port)"
    changes = [len(set(rates.values())) > 1 for rates in (tf1, port)]
    if changes[0] == changes[1]:
        remedy = "make the port's schedule compute TF1's rates" if changes[0] else f"use {tf1[step]:g} in the port"
        return Cause(f"learning rate differs in step {step}: {values}", remedy=remedy)
    who, remedy = "the port", "pass TF1's rate, a number, to the port's optimizer"
    if changes[0]:
        who, remedy = "TF1", "pass a schedule that computes TF1's rates to the port's optimizer"
    if changes[0] and schedule:
        who, computes = f"TF1 ({schedule})", f"that computes what {schedule} does in TF1"
        remedy = f"pass a schedule of keras.optimizers.schedules to the port's optimizer {computes}"
    title = f"learning rate changes only in {who} until step {max(tf1):,}; in step {step}: {values}"
    return Cause(title, remedy=remedy, own_form=(OwnForm.SCHEDULE, schedule) if changes[0] and schedule else None)


def _loss_of_outputs(
    port: Training,
    tf1: Training,
    comparison: StepsComparison,
    port_loss: Callable[[int, Any], float | None],
    elsewhere: Callable[[], float | None],
    step: int,
) -> Iterator[Cause]:
    """Yield how the two losses of TF1's outputs differ in a step, if they do."""
    outputs, desired = tf1.steps[step]["outputs"], _unregularized_loss(tf1.steps[step])
    loss = port_loss(step, outputs)
    if loss is None or is_close(loss, desired):
        return
    if all(by_name.get("gradients", False) for by_name in comparison.steps.values()):
        losses = np.array([[_unregularized_loss(step) for step in each.steps] for each in (port, tf1)])
        far = elsewhere() if np.allclose(losses[0] - losses[1], loss - desired, rtol=CLOSE, atol=0) else math.nan
        if far is None or is_close(far, loss - desired):
            of_port = f"TF1's {'+' if loss > desired else '-'} {abs(loss - desired):.6g}"
            constant = f"the losses differ by a constant: the port's is {of_port}"
            yield Cause(constant, "the gradients agree", fault=Fault.CONSTANT)
            return
    for cause, name, convert in CONVERSIONS:
        if _agrees_with(convert, tf1.steps, port_loss):
            yield cause._replace(confirmed=f"with the {name} of the outputs, the losses agree")
            return
    pairs = [(port_loss(number, each["outputs"]), _unregularized_loss(each)) for number, each in enumerate(tf1.steps)]
    ratios = [of / each if of and each else math.nan for of, each in pairs]
    confirmed = f"so it is in each of {len(ratios)} steps" if len(ratios) > 1 else ""
    confirmed = confirmed or ("so do the gradients" if _scale_alike(port.steps[step], tf1.steps[step]) else "")
    yield from _loss({"loss": loss, "outputs": outputs}, tf1.steps[step], port.replicas, ratios, confirmed)


def _agrees_with(
    convert: Callable[[np.ndarray], np.ndarray],
    steps: Sequence[_Step],
    port_loss: Callable[[int, Any], float | None],
) -> bool:
    """Return whether the port's loss of converted outputs is TF1's in each step: in one, that may be by chance."""
    for number, step in enumerate(steps):
        loss = port_loss(number, map_leaves(step["outputs"], functools.partial(_converted, convert), "outputs"))
        if loss is None or not math.isclose(loss, _unregularized_loss(step), rel_tol=SAME_LOSS):
            return False
    return True


def _converted(convert: Callable[[np.ndarray], np.ndarray], leaf: Any, where: str) -> Any:
    array = np.asarray(leaf)
    if array.dtype.kind != "f" or not array.ndim:
        return leaf
    with np.errstate(all="ignore"):  # they may be no probabilities
        return convert(array.astype(np.float64)).astype(array.dtype)


def _unregularized_loss(step: _Step) -> float:
    regularization = step.get("regularization_loss")
    return float(step["loss"]) - (0.0 if regularization is None else float(regularization))


_LOSSES_DIFFER = "the losses of the same outputs differ: {:.6g} (TF1), {:.6g} (port)"


def _scale_alike(port: _Step, tf1: _Step) -> bool:
    """Return whether the port's gradients are as many times TF1's as its loss is."""
    arrays = [[array for array in step["gradients"].values() if array is not None] for step in (port, tf1)]
    values = [[Value.of(np.asarray(array)) for array in of] for of in arrays]
    if len(values[0]) != len(values[1]) or not tf1["loss"]:
        return False
    factors = [factor_between(of_tf1, of_port) for of_port, of_tf1 in zip(*values, strict=True)]
    ratio = float(port["loss"]) / float(tf1["loss"])
    return bool(factors) and all(factor is not None and is_close(factor, ratio) for factor in factors)


def _loss(port_step: _Step, tf1_step: _Step, replicas: int, ratios: Sequence[float], confirmed: str) -> Iterator[Cause]:
    """Yield how two losses differ, given the ratios of the port's loss to TF1's in all steps, and what confirms one."""
    port, tf1 = _unregularized_loss(port_step), _unregularized_loss(tf1_step)
    if not port or not tf1 or not all(is_close(ratio, port / tf1) for ratio in ratios):
        yield Cause(_LOSSES_DIFFER.format(tf1, port))
        return
    fault, remedy = Fault.OTHER, ""
    shapes = [np.shape(leaf) for leaf in leaves_by_path(tf1_step["outputs"]).values() if leaf is not None]
    sizes = sorted({size for shape in shapes for size in (*shape, math.prod(shape))})  # a loss may be a mean over these
    size = next((size for size in sizes if size > 1 and is_close(max(port / tf1, tf1 / port), size)), None)
    if replicas > 1 and is_close(port, tf1 * replicas):
        title = (
            f"the port's loss is not scaled for replicas: it is {replicas} times TF1's. Each replica divides by the "
            "size of its own part of the batch, and their losses are summed; tf.nn.compute_average_loss divides by the "
            "size of the whole batch"
        )
    elif replicas > 1 and is_close(port * replicas, tf1):
        title = (
            f"the port's loss is scaled for replicas twice: TF1's is {replicas} times as large. The losses of Keras 3 "
            "already divide by the number of replicas"
        )
    elif size is None and not confirmed:
        title = _LOSSES_DIFFER.format(tf1, port)
    elif size is None:
        fault = Fault.MULTIPLE
        title = f"the loss or the weight of a loss differs: the port's loss is {port / tf1:.6g} times TF1's"
    else:
        fault, (larger, smaller) = Fault.SUM_OR_MEAN, ("the port", "TF1") if port > tf1 else ("TF1", "the port")
        title = (
            f"{larger} sums a loss where {smaller} takes the mean: it is {size} times as large, a size of the outputs"
        )
        remedy = "sum the loss in the port" if larger == "TF1" else "take the mean in the port"
    yield Cause(title, confirmed, fault=fault, remedy=remedy)


def _slices(comparisons: Mapping[str, Comparison], in_slices: Collection[str]) -> Iterator[Cause]:
    leaves = (leaf for name in UPDATED if name in comparisons for leaf in comparisons[name].leaves)
    differing = [leaf.path for leaf in leaves if not leaf.ok]
    names = [name for name in sorted(in_slices) if any(path.endswith(f"[{name!r}]") for path in differing)]
    if names and all(any(path.endswith(f"[{name!r}]") for name in names) for path in differing):
        title = (
            f"gradients of {', '.join(names)} come in slices: TF1's optimizers add up the slices of a row, Keras 3's "
            "square each of them"
        )
        remedy = (
            "pass tf.convert_to_tensor(gradient) to Keras's Adam; in place of a different optimizer, return that of "
            "tf.compat.v1.train, which leaves rows without slices as they are"
        )
        yield Cause(title, remedy=remedy)


def _trains_others(step: _Step, in_slices: Collection[str]) -> bool:
    """Return whether a step trains variables whose gradients come in no slices."""
    gradients = step.get("gradients", {}).items()
    return any(each is not None and np.any(each) for name, each in gradients if name not in in_slices)


def _moving_averages(
    port: Sequence[_Step], tf1: Sequence[_Step], hyperparameters: Sequence[AuditedHyperparameter]
) -> Iterator[Cause]:
    """Yield the causes for moving averages that differ; each step of the port begins with TF1's."""
    if of_weights := tuple(_followed_weights(port, tf1)):
        yield from of_weights
        return
    averages = [[step["moving_averages"] for step in steps] for steps in (port, tf1)]
    found, ratios = dict[str, Cause](), defaultdict[str, list[float]](list)
    for before, *after in zip(averages[1], averages[0][1:], averages[1][1:], strict=False):
        names = [name for name in before if all(name in of for of in after)]
        changed, expected = ({name: np.asarray(of[name]) - before[name] for name in names} for of in after)
        found = found or momenta(changed, expected, before, hyperparameters)
        for name in names:
            ratios[name] += [*_ratio_of_changes(changed[name], expected[name], before[name])]
    # A momentum is one number, so all steps have one ratio.
    found = {
        name: cause
        for name, cause in found.items()
        if all(math.isclose(ratio, ratios[name][0], rel_tol=_OF_ROUNDING) for ratio in ratios[name])
    }
    audited = [each for each in hyperparameters if each.name == MOMENTUM and each.of != OPTIMIZER]
    if found or audited:
        likely = found.values() or [of_momentum(each) for each in audited]
        yield from dict.fromkeys(likely)
        return
    for name in sorted(port[0]["moving_averages"].keys() & tf1[0]["moving_averages"].keys()):
        port_values, tf1_values = (
            [np.asarray(step["moving_averages"][name]) for step in steps] for steps in (port, tf1)
        )
        if port_values[0].dtype.kind in "biu":  # a count, such as the global step
            continue
        port_stays, tf1_stays = _stays(port_values, tf1_values), _stays(tf1_values, port_values)
        if port_stays and not tf1_stays:
            yield Cause(
                f"the port does not update its moving averages: {name} never changes. Call it with training=True"
            )
        elif tf1_stays and not port_stays:
            yield Cause(f"TF1 does not update its moving averages: {name} never changes. Run tf.GraphKeys.UPDATE_OPS")
        elif not np.array_equal(port_values[0], tf1_values[0]):
            in_words = "for a batch normalization, the momentum (decay) may, or which variance it averages"
            yield Cause(f"updates of {name} differ: {in_words}", fault=Fault.UNEXPLAINED)
        else:
            continue
        return


def momenta(
    port: Mapping[str, np.ndarray],
    tf1: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    hyperparameters: Sequence[AuditedHyperparameter],
    *,
    only_known: bool = False,
) -> dict[str, Cause]:
    """Return why moving averages differ, by name, where an update in the port is a multiple of TF1's.

    An update with the momentum m adds 1 - m times the distance to a new value.

    Args:
      port: what an update of the port adds to each.
      tf1: what TF1's update adds.
      values: the averages, whose rounding the updates have.
      hyperparameters: those that differ.
      only_known: whether to leave out what no hyperparameter explains, because what is averaged may differ.
    """
    found = {}
    for name in tf1:
        changes = [np.asarray(of.get(name, ()), np.float64) for of in (port, tf1)]
        if changes[0].shape != changes[1].shape or not changes[1].any():
            continue
        ratio = next(_ratio_of_changes(changes[0], changes[1], values[name]), math.nan)
        is_multiple = math.isfinite(ratio) and not math.isclose(ratio, 1, rel_tol=_OF_CHANGE)
        times = f"the port's updates of the moving averages are {ratio:.4g} times TF1's"
        known = [each for each in hyperparameters if each.name == MOMENTUM and each.of == layer_of(name)]
        for each in known:
            expected = (1 - float(each.port)) / (1 - float(each.tf1))
            is_confirmed = is_multiple and math.isclose(ratio, expected, rel_tol=_OF_ROUNDING)
            confirmed = f"{times}, as these momenta say" if is_confirmed else ""
            found[name] = of_momentum(each, confirmed)
        if is_multiple and not known and not only_known:
            found[name] = Cause(f"momentum differs: {times}", "in every element")
    return found


def _ratio_of_changes(port: np.ndarray, tf1: np.ndarray, value: np.ndarray) -> Iterator[float]:
    """Yield how many times what TF1 adds to an average the port adds; NaN if it is no multiple.

    Nothing is yielded if a program adds so little that its rounding hides the ratio.
    """
    if port.shape != tf1.shape or not tf1.any():
        return
    ratio = projection(port, tf1)
    rounding = _OF_AVERAGE * (1 + abs(ratio)) * np.abs(value).max(initial=0)
    if min(np.abs(each).max() for each in (port, tf1)) > 10 * rounding:
        is_multiple = np.abs(port - ratio * tf1).max() <= _OF_CHANGE * np.abs(port).max() + rounding
        yield ratio if is_multiple else math.nan


def _stays(values: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Return whether no step changes a variable, which may begin each step with the other program's value."""
    return len(values) > 1 and all(
        np.array_equal(value, before) or np.array_equal(value, other)
        for value, before, other in zip(values[1:], values, others, strict=False)
    )
