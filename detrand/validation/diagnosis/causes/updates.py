"""Likely causes of a difference of two updates: optimizers, the clipping of gradients and of weights, weight decay.

Each step of the port begins with TF1's weights, and its update is made of TF1's gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.values import Comparison
from detrand.validation.audit.hyperparameters import OPTIMIZER
from detrand.validation.diagnosis.causes.cause import CLOSE, Cause, add_or_remove, differs, of_hyperparameter, of_values
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
from detrand.validation.training.steps import CLIPPING, FACTOR, Step, Training

_SAME = 1e-6  # relative tolerance for equal weights
_SAME_NORM = 1e-6  # relative tolerance for equal norms of gradients
_LEAST_CLIPPED = 3  # weights at a bound, which is no chance
UPDATED = {"weights", "slots", "updates"}
_WITH_THIS = "with this, the updates of both programs agree"
_CLIP, _DO_NOT_CLIP = "clip gradients in the port as TF1 does", "do not clip gradients in the port"
OPTIMIZER_DIFFERS = (
    "the optimizer or one of its hyperparameters differs: epsilon (1e-8 in tf.train.AdamOptimizer, 1e-7 in Keras), "
    "momentum, Nesterov momentum, decay, the initial values of its slots (1 in tf.train.RMSPropOptimizer), or what it "
    "does to gradients, such as clipping"
)


def of_updates(
    port: Training,
    tf1: Training,
    step: int,
    comparisons: Mapping[str, Comparison],
    hyperparameters: Sequence[AuditedHyperparameter],
) -> Iterable[Cause]:
    """Return the likely causes of updates that differ in a step of a guided port, whose parts compare as given."""
    if known := tuple(known_updates(port.steps, tf1.steps)):
        return known
    port_step, tf1_step = port.steps[step], tf1.steps[step]
    of_optimizer = [of_hyperparameter(each) for each in hyperparameters if each.of == OPTIMIZER]
    have_slots = all("slots" in each for each in (port_step, tf1_step))  # others take slices as dense gradients
    of_slices = [*_slices(comparisons, port.in_slices if have_slots else ())]
    others = [*of_optimizer, *_updates(port, tf1)]
    comes_first = _trains_others(tf1_step, port.in_slices)  # which an argument would change, too
    likely = [*of_slices, *others] if comes_first else [*others, *of_slices]
    likely.sort(key=lambda cause: not (cause.confirmed and cause.line))  # a change of gradients is no guess
    return likely or _changes_of_gradients(port, tf1)


def known_updates(port: Sequence[Step], tf1: Sequence[Step]) -> Iterator[Cause]:
    """Yield what is known to make updates of guided steps differ, because those of both programs are computed so."""
    if _have_rates_in_momentum(port, tf1):
        yield Cause(
            _RATES_IN_MOMENTUM,
            "with TF1's momentum computed one way and the port's the other, both updates are explained",
            remedy="return tf.compat.v1.train.MomentumOptimizer in the port, or subclass keras.optimizers.SGD with an "
            "update_step that adds up gradients and multiplies the sum by the rate",
        )
    yield from _clipped_weights(port, tf1)
    if found := _rows_that_stay(port, tf1):
        stays, moves, names = found
        title = f"only {moves} updates rows of {and_more(names, 4)} that have no gradient"
        cause = Cause(title, "the updates of all other rows agree", remedy="update all rows in the port")
        keep = (
            "return the optimizer of tf.compat.v1.train in the port, and read the rows with tf.nn.embedding_lookup, so "
            "that gradients come in slices"
        )
        yield cause._replace(remedy=keep, own_form=(OwnForm.KEEP_ROWS, "")) if stays == "TF1" else cause


_RATES_IN_MOMENTUM = (
    "TF1 multiplies its momentum by the learning rate of each step, but the port's momentum holds the rates of earlier "
    "steps"
)


def _clipped_weights(port: Sequence[Step], tf1: Sequence[Step]) -> Iterator[Cause]:
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


def _rows_that_stay(port: Sequence[Step], tf1: Sequence[Step]) -> tuple[str, str, list[str]] | None:
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


def _have_rates_in_momentum(port: Sequence[Step], tf1: Sequence[Step]) -> bool:
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
            "pass tf.convert_to_tensor(gradient) to Keras's Adam; for any other optimizer, return the one of "
            "tf.compat.v1.train, which leaves rows without slices as they are"
        )
        yield Cause(title, remedy=remedy)


def _trains_others(step: Step, in_slices: Collection[str]) -> bool:
    """Return whether a step trains variables whose gradients come in no slices."""
    gradients = step.get("gradients", {}).items()
    return any(each is not None and np.any(each) for name, each in gradients if name not in in_slices)


def _updates(port: Training, tf1: Training) -> Iterator[Cause]:
    """Yield what explains the updates of a port that is guided by TF1, in all steps whose weights before are known."""
    if accumulation := _accumulation(port.steps, tf1.steps):
        yield accumulation
        return
    steps = list(_updates_of_steps(port.steps, tf1.steps))
    if _clips_before_it_adds_slices(tf1) and clipping_of([step.applied(step.port) for step in steps]) != NOT_CLIPPED:
        title = "TF1 clips gradients by the norm of their slices, before it adds up the slices of a row"
        by_sums = "PyTorch, and Keras given dense gradients, clip by the norm of the sums"
        remedy = f"{by_sums}. To compare everything else, clip tf.convert_to_tensor(gradient) in TF1"
        yield Cause(title, line=CLIPPING, remedy=remedy)
        return
    if not any(step.differing for step in steps):
        return
    yield from _decay_of_weights(next(step for step in steps if step.differing))
    differing = list(dict.fromkeys(name for step in steps for name in step.differing))
    likely = list(_changed_gradients(steps, differing, tf1.lines.get(CLIPPING, ""), port.clipping or ""))
    yield from likely or _multiple_of_updates(steps, differing)


def _accumulation(port: Sequence[Step], tf1: Sequence[Step]) -> Cause | None:
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


def _updates_of_steps(port: Sequence[Step], tf1: Sequence[Step]) -> Iterator[_Updates]:
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


def _decay_of_weights(step: _Updates) -> Iterator[Cause]:
    """Yield that only one program takes a share of the weights away, if that explains all that differs in a step."""
    found = [step.port.decay_beside(step.tf1, name) for name in step.differing]
    decays = [decay for decay in found if decay is not None]
    if len(decays) == len(step.differing) and np.ptp(decays) <= 0.01 * max(map(abs, decays)):
        who, names = "the port" if decays[0] > 0 else "TF1", and_more(step.differing, 4)
        share = f"{abs(decays[0]):.4g} times each weight of {names}"
        yield Cause(f"weight decay differs: only {who} subtracts {share} in each step", _WITH_THIS)


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
        return cause._replace(remedy=_DO_NOT_CLIP)
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


def _changes_of_gradients(port: Training, tf1: Training) -> Iterator[Cause]:
    """Yield what the lines of one program do to gradients, where neither the updates nor a probe show it."""
    if CLIPPING in tf1.lines and port.clipping == "":
        title = "TF1 clips gradients, and no argument of the port's optimizer does"
        yield Cause(title, line=CLIPPING, remedy=f"{_CLIP}, for example with global_clipnorm=")
    elif port.clipping and CLIPPING not in tf1.lines:
        title = f"the port's optimizer clips gradients ({port.clipping}), and TF1 has no op that does"
        yield Cause(title, remedy=_DO_NOT_CLIP)
    elif FACTOR in tf1.lines and CLIPPING not in tf1.lines:
        yield Cause("TF1 changes gradients before it applies them", line=FACTOR)
    yield Cause(OPTIMIZER_DIFFERS, fault=Fault.UNEXPLAINED)


def cause_of_updates(port: Training, tf1: Training, differing: Sequence[int]) -> Cause:
    """Return why updates by gradients that grow from step to step differ, given the steps that differ."""
    for cause in _updates(port, tf1):
        return cause
    norms = [float(np.sqrt(sum(np.square(g).sum() for g in step["gradients"].values()))) for step in tf1.steps]
    agreeing = [step for step in range(1, len(norms)) if step not in differing]
    if agreeing and agreeing[-1] < differing[0]:
        at = f"{norms[agreeing[-1]]:.3g} and below"
        title = f"clipping of gradients differs: the updates agree for gradients of norm {at}, and differ above"
        return Cause(title, remedy=_CLIP)
    if agreeing and agreeing[0] > differing[-1]:
        at = f"{norms[agreeing[0]]:.3g} and above"
        return Cause(
            f"epsilon of the optimizer differs: the updates agree for gradients of norm {at}, and differ below"
        )
    return Cause(f"updates differ for gradients of norm {norms[differing[0]]:.3g} to {norms[differing[-1]]:.3g}")


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
