"""Likely causes of a difference of moving averages: those of weights, and those of a normalization.

Each step of the port begins with TF1's averages. `momenta` takes the evidence of one update.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from detrand.arguments import and_more
from detrand.validation.audit.hyperparameters import MOMENTUM, OPTIMIZER, layer_of
from detrand.validation.diagnosis.causes.cause import Cause, in_one_program, of_momentum, of_values
from detrand.validation.results import AuditedHyperparameter, Fault
from detrand.validation.training.clipping import projection
from detrand.validation.training.steps import UPDATES_OF_AVERAGES, UPDATES_OF_WEIGHT_AVERAGES, WEIGHT_AVERAGES, Step

_OF_SHARE = 0.01  # of a share of a distance, how far other shares may be from it
_OF_ROUNDING = 0.1  # of the change of a moving average in a step, which may be a few units in the last place
_OF_CHANGE, _OF_AVERAGE = 1e-3, 1e-6  # how far a change may be from a multiple of another, relative to it, to the value
AVERAGES_OF_WEIGHTS = {WEIGHT_AVERAGES, UPDATES_OF_WEIGHT_AVERAGES}
MOVING_AVERAGES = {"moving_averages", UPDATES_OF_AVERAGES}
_BEFORE, _AFTER = "before", "after"
_LIMITED = "min(decay, (1 + n) / (10 + n))"
_OF_NUM_UPDATES = f"{_LIMITED} for num_updates n"
_OF_SUBCLASS = f"ema_momentum returns {_LIMITED}, where n is iterations + 1"


def of_averages_of_weights(port: Sequence[Step], tf1: Sequence[Step]) -> Iterator[Cause]:
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
            remedy += f", in a subclass whose property {_OF_SUBCLASS}"
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
                "average after the update in TF1 (tf.control_dependencies), or before it in the port: Keras's use_ema "
                "averages after the update"
                if when_in_tf1 == _BEFORE
                else ""
            ),
        )
    for step, decay in of_port.items():
        if step in of_tf1 and f"{decay:.4g}" != f"{of_tf1[step]:.4g}":
            where = "" if in_tf1 else f" in step {step}"
            tf1_decay = f"{of_tf1[step]:.4g}{f' = {_OF_NUM_UPDATES}' if is_counted else ''}"
            yield of_values(
                f"decay of the moving averages of weights{where}",
                tf1_decay,
                f"{decay:.4g}",
                "with these decays, decay * average + (1 - decay) * w gives the averages of both programs",
                remedy=f"use a subclass of the port's optimizer whose property {_OF_SUBCLASS}" if is_counted else None,
            )
            return


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


def _decays(steps: Sequence[Step], before: Sequence[Step]) -> tuple[str, dict[int, float]]:
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


def of_moving_averages(
    port: Sequence[Step], tf1: Sequence[Step], hyperparameters: Sequence[AuditedHyperparameter]
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
                f"the port does not update its moving averages: {name} never changes",
                remedy=f"call the port's layer with training=True, or assign to {name}",
            )
        elif tf1_stays and not port_stays:
            yield Cause(
                f"TF1 does not update its moving averages: {name} never changes",
                remedy="run tf.GraphKeys.UPDATE_OPS with TF1's training op, or leave these updates out in the port",
            )
        elif not np.array_equal(port_values[0], tf1_values[0]):
            may = "for a batch normalization, the momentum (decay) may differ, or the kind of variance that it averages"
            yield Cause(f"updates of {name} differ: {may}", fault=Fault.UNEXPLAINED)
        else:
            continue
        return


def _followed_weights(port: Sequence[Step], tf1: Sequence[Step]) -> Iterator[Cause]:
    """Yield how the programs move variables, such as those of a target network, towards the weights.

    Each step of the port begins with TF1's values.
    """
    names = defaultdict[Cause, dict[str, None]](dict)
    for name, weight in itertools.product(tf1[0]["moving_averages"], tf1[0]["weights"]):
        of_tf1, of_port = (_shares_of_weight(name, weight, steps, tf1) for steps in (tf1, port))
        common = next((when for when in of_tf1 if when in of_port), None)
        if common is not None:
            shares = of_tf1[common], of_port[common]
            if not math.isclose(*shares, rel_tol=2 * _OF_SHARE):
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
    what = "share of the distance that a step moves {} towards the weights"
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


def _shares_of_weight(name: str, weight: str, steps: Sequence[Step], before: Sequence[Step]) -> dict[str, float]:
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
            is_exact = not share or rounding < _OF_SHARE * abs(share) * np.ptp(towards)
            if not is_exact or np.abs(end - start - share * distance).max() > rounding:
                break
            shares.append(share)
        if 1 < len(shares) == len(steps) - 1 and np.ptp(shares) <= _OF_SHARE * max(map(abs, shares)):
            found[when] = float(np.mean(shares))
    return found


def _stays(values: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Return whether no step changes a variable, which may begin each step with the other program's value."""
    return len(values) > 1 and all(
        np.array_equal(value, before) or np.array_equal(value, other)
        for value, before, other in zip(values[1:], values, others, strict=False)
    )


def momenta(
    port: Mapping[str, np.ndarray],
    tf1: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    hyperparameters: Sequence[AuditedHyperparameter],
    *,
    only_known: bool = False,
) -> dict[str, Cause]:
    """Return why moving averages differ, by name, where the port's update is a multiple of TF1's, or adds the value.

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
        if (added := _of_added(changes[0], changes[1], np.asarray(values[name], np.float64))) is not None:
            found[name] = added
            continue
        ratio = next(_ratio_of_changes(changes[0], changes[1], values[name]), math.nan)
        is_multiple = math.isfinite(ratio) and not math.isclose(ratio, 1, rel_tol=_OF_CHANGE)
        has_several = changes[1].size > 1  # one number is a multiple of any other one
        times = f"the port's updates of the moving averages are {ratio:.4g} times TF1's"
        known = [each for each in hyperparameters if each.name == MOMENTUM and each.of == layer_of(name)]
        for each in known:
            expected = (1 - float(each.port)) / (1 - float(each.tf1))
            is_confirmed = is_multiple and math.isclose(ratio, expected, rel_tol=_OF_ROUNDING)
            confirmed = f"{times}, as these momenta say" if is_confirmed else ""
            found[name] = of_momentum(each, confirmed)
        if is_multiple and has_several and not known and not only_known:
            found[name] = Cause(f"momentum differs: {times}", "the ratio is the same in every element")
    return found


def _of_added(port: np.ndarray, tf1: np.ndarray, value: np.ndarray) -> Cause | None:
    """Return the cause that only one program adds the new value of an average to the old one; None if none does.

    The changes of the average are given, and what it was before. Where all elements are the same number, such as a
    count, adding it is no proof.
    """
    if not np.ptp(value):
        return None
    remedies = {
        "the port": "assign the new value in the port, as assign does, and assign_add does not",
        "TF1": "add the new value to the old one in the port, as assign_add does",
    }
    for who, (change, other) in {"the port": (port, tf1), "TF1": (tf1, port)}.items():
        if np.allclose(change, other + value, rtol=_OF_CHANGE, atol=_OF_AVERAGE * np.abs(value).max()):
            cause = in_one_program(who, "adds the new value to the old one", "so it is in every element")
            return cause._replace(remedy=remedies[who])
    return None


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
