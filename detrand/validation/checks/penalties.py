"""Penalties of weights, such as weight decay: what differs, and where each program has its own.

TF1's update may add a decay to gradients that the port adds to its loss, or the other way round. `with_decays` returns
a training of TF1 in which both count as losses, `without_penalties` one in which neither does.

`findings_of_regularizers` reports the regularizers that differ, and `findings_of_penalties_in_loss` the penalties that
the port's loss computes by itself.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from detrand._patching.keras import is_instance_of_loaded
from detrand.arguments import and_more
from detrand.errors import passing_over
from detrand.validation.audit.hyperparameters import (
    AMOUNTS,
    REGULARIZER,
    SQUARES,
    WEIGHT_DECAY,
    factors_of,
    hyperparameters_of_optimizer,
)
from detrand.validation.diagnosis.causes.cause import is_close
from detrand.validation.reference import TRAINING
from detrand.validation.results import Finding, Place
from detrand.validation.runner import Runner
from detrand.validation.training.compare import splits_differently
from detrand.validation.training.penalties import Penalties, loss_of_penalty, with_penalties
from detrand.validation.training.port import make_port_optimizer, port_loss_of
from detrand.validation.training.steps import Training
from detrand.variables.sources import named_variables


def with_decays(runner: Runner) -> Training:
    """Return TF1's training with the decay that its update adds to gradients as a loss, as the audit counts it."""
    tf1 = runner.tf1.training(runner.port(TRAINING).config.mode)
    return with_penalties(tf1, runner.tf1.outcome(TRAINING).initial, decays_as_losses(runner))


def without_penalties(runner: Runner) -> Training | None:
    """Return TF1's training without the penalties of its loss.

    It is None if the loss has none, or if the port's optimizer is known to decay no weights.

    A port's optimizer may add to gradients what TF1's loss adds to them, as the ``weight_decay`` of PyTorch does.
    """
    tf1, initial = runner.tf1.training(runner.port(TRAINING).config.mode), runner.tf1.outcome(TRAINING).initial
    penalties = {name: (of_loss, "none") for name, of_loss in tf1.regularizers.items() if of_loss != "none"}
    with passing_over():  # a factory may raise, which the check reports
        of_optimizer = hyperparameters_of_optimizer(make_port_optimizer(runner.migration))
        if penalties and of_optimizer.get(WEIGHT_DECAY, math.nan) is not None:
            changed, not_exposed = with_penalties(tf1, initial, penalties), (*tf1.not_exposed, "regularization_loss")
            return replace(changed, decays=tf1.decays, not_exposed=not_exposed, without_penalties=True)
    return None


def decays_as_losses(runner: Runner) -> Penalties:
    """Return the regularizers without and with the decay of TF1's update, of variables that the port regularizes."""
    tf1 = runner.tf1.training(runner.port(TRAINING).config.mode)
    audited = {each.of: each.tf1 for each in runner.audit.hyperparameters if each.name == REGULARIZER}
    pairs = {name: (tf1.regularizers.get(name), audited.get(name)) for name in tf1.decays}
    return {name: (own, total) for name, (own, total) in pairs.items() if own and total and own != total}


def findings_of_regularizers(runner: Runner, confirmed: str) -> Iterator[Finding]:
    """Yield a finding for each pair of penalties that differ, with all variables that have it and one remedy."""
    port_names, (of_tf1, of_port) = runner.compared_variables().port_names, runner.lines_of_penalties
    frozen, hidden = _frozen_in_keras(runner), _hidden_by_freezing(runner)
    for (name, tf1, port), all_owners in runner.audit.groups.items():
        owners = [each for each in all_owners if each not in hidden]
        by_remedy = [each for each in owners if each not in frozen], [each for each in owners if each in frozen]
        for variables in filter(None, by_remedy) if name == REGULARIZER else ():
            names, (first, *others) = and_more(variables, 4), variables
            places = {each: Place(port_names.get(each, each), of_port.get(each, "")) for each in variables}
            yield Finding(
                "regularizers",
                f"regularizer differs in {names}: {tf1} (TF1), {port} (port)",
                Place(first, of_tf1.get(first, "")),
                places[first],
                confirmed=confirmed,
                remedy=_remedy(names, tf1, port, is_frozen=first in frozen),
                more=tuple(places[each] for each in others),
                count=len(variables),
            )


def _hidden_by_freezing(runner: Runner) -> set[str]:
    """Return the variables with TF1's penalty that only the port freezes, so that Keras 3 leaves the penalty out."""
    variables, found = named_variables(runner.fresh_port.port.variables), set[str]()
    weights = np.linspace(-1, 2, 7, dtype=np.float32)  # any that show a penalty and its factors
    in_tf1 = {each.of: each.tf1 for each in runner.audit.differing if each.name == REGULARIZER}
    for pair in runner.compared_variables().differing_in("trainable"):
        regularizer = getattr(variables.get(pair.port_name), "regularizer", None)
        if pair.port.trainable is False and regularizer is not None and pair.tf1_name in in_tf1:
            with passing_over():  # a regularizer is the user's code
                if is_close(float(regularizer(weights)), loss_of_penalty(in_tf1[pair.tf1_name], weights)):
                    found.add(pair.tf1_name)
    return found


def _frozen_in_keras(runner: Runner) -> set[str]:
    """Return the variables of Keras 3 that neither program trains, by their TF1 names."""
    variables = named_variables(runner.fresh_port.port.variables)
    return {
        pair.tf1_name
        for pair in runner.compared_variables().pairs
        if pair.port.trainable is False and pair.tf1.trainable is not True
        if is_instance_of_loaded(variables.get(pair.port_name), "keras", "Variable")
    }


def _remedy(names: str, tf1: str, port: str, *, is_frozen: bool) -> str:
    """Return how to give variables of the port TF1's penalty."""
    if tf1 == "none":
        return f"remove the penalty of {names} from the port"
    if is_frozen:
        return (
            f"penalize {names} by {tf1} with add_loss in the port: Keras leaves out the regularizers of frozen layers. "
            "Or remove the penalty from TF1: it changes no gradient of a trained variable"
        )
    remedy = f"penalize {names} by {tf1} in the port, as {_in_keras(tf1)} does"
    return f"{remedy}. {_HALF}; Keras's L2 takes sum(w**2)" if _is_half_or_double(tf1, port) else remedy


_HALF = "tf.nn.l2_loss(w) is sum(w**2) / 2"


def _is_half_or_double(tf1: str, port: str) -> bool:
    """Return whether one of two penalties has half the factor of the squares of the other one."""
    factors = [of.get(SQUARES, 0.0) for of in map(factors_of, (tf1, port))]
    return all(factors) and any(is_close(factors[0] / factors[1], ratio) for ratio in (2, 0.5))


def _remedy_in_loss(names: str, tf1: str, port: str) -> str:
    """Return how to give variables TF1's penalty in the port's loss."""
    if tf1 == "none":
        return f"leave {names} out of the penalty in the port"
    return f"penalize {names} by {tf1} in the port" + (f". {_HALF}" if _is_half_or_double(tf1, port) else "")


def _in_keras(penalty: str) -> str:
    """Return the regularizer of Keras that adds a penalty."""
    factors = {kind: f"{factor:g}" for kind, factor in factors_of(penalty).items()}
    if len(factors) > 1:
        return f"keras.regularizers.L1L2({factors[AMOUNTS]}, {factors[SQUARES]})"
    kind, factor = next(iter(factors.items()))
    return f"keras.regularizers.{'L2' if kind == SQUARES else 'L1'}({factor})"


def findings_of_penalties_in_loss(runner: Runner, line: str) -> list[Finding]:
    """Return a finding for each pair of penalties that the losses of both programs add for variables, if they differ.

    There are none unless the port's loss is TF1's with TF1's penalties, or if the port has regularization losses, which
    the audit shows.

    Args:
      runner: the runner.
      line: the line that adds the port's penalties.
    """
    config = runner.port(TRAINING).config
    tf1, initial = runner.tf1.training(config.mode), runner.tf1.outcome(TRAINING).initial
    target, (_, labels) = tf1.steps[0], runner.tf1.batches[0]
    names = [name for name in tf1.regularizers if name in initial]
    count = _PROBED * len(names) * sum(initial[name].size for name in names)
    if not names or count > _MOST_ELEMENTS or runner.port(TRAINING).regularization_loss is not None:
        return []
    loss, penalties = math.nan, dict[str, str | None]()
    with passing_over():  # a loss is the user's code
        port = runner.fresh_port.port.made_anew(training=True)

        def loss_with(name: str, weight: np.ndarray) -> float:
            port.set_weights(config, {**initial, name: weight})
            return port_loss_of(port, 0, labels, target["outputs"])

        penalties = {name: _penalty_of(functools.partial(loss_with, name), initial[name]) for name in names}
        loss = loss_with(names[0], initial[names[0]])
    differing = defaultdict[tuple[str, str], list[str]](list)
    for name, of_port in penalties.items():
        of_tf1 = tf1.regularizers[name]
        if of_port is None:
            return []
        if not _are_close(of_tf1, of_port):
            differing[of_tf1, of_port].append(name)
            loss += loss_of_penalty(of_tf1, initial[name]) - loss_of_penalty(of_port, initial[name])
    if not is_close(loss, float(target["loss"])):
        return []
    port_names, found = runner.compared_variables().port_names, list[Finding]()
    for (of_tf1, of_port), variables in differing.items():
        listed, places = and_more(variables, 4), [Place(port_names.get(each, each), line) for each in variables]
        found.append(
            Finding(
                "regularizers",
                f"regularizer differs in {listed}: {of_tf1} (TF1), {of_port} (port)",
                Place(variables[0], tf1.lines_of_penalties.get(variables[0], "")),
                places[0],
                confirmed="with TF1's penalties, the losses agree",
                remedy=_remedy_in_loss(and_more([place.op for place in places], 4), of_tf1, of_port),
                more=tuple(places[1:]),
                count=len(variables),
            )
        )
    return found


_PROBED = 5  # how often a loss is computed for each variable
_MOST_ELEMENTS = 10**8  # that are added up
_WEIGHT = 100.0  # at which a penalty is large beside the rest of a loss


def _penalty_of(loss_with: Callable[[np.ndarray], float], weight: np.ndarray) -> str | None:
    """Return the penalty of a variable in a loss, in words; None if it is neither of squares nor of amounts."""
    nothing, once, opposite, twice, thrice = (
        loss_with(np.full_like(weight, times * _WEIGHT)) for times in (0, 1, -1, 2, 3)
    )
    of_one, of_two, of_three = (each - nothing for each in (once, twice, thrice))
    squares, amounts = of_two / 2 - of_one, 2 * of_one - of_two / 2  # what both are for the first weights
    least = _SMALL * max(abs(nothing), abs(of_three))
    if abs(opposite - once) > least or abs(9 * squares + 3 * amounts - of_three) > least:
        return None
    factors = {SQUARES: squares / _WEIGHT**2, AMOUNTS: amounts / _WEIGHT}
    sizes = {SQUARES: squares, AMOUNTS: amounts}
    words = [f"{factors[kind] / weight.size:.4g} {kind}" for kind, size in sizes.items() if abs(size) > least]
    return " + ".join(words) or "none"


_SMALL = 1e-5  # relative


def _are_close(one: str, other: str) -> bool:
    factors = [factors_of(each) for each in (one, other)]
    same_kinds = factors[0].keys() == factors[1].keys()
    return same_kinds and all(
        math.isclose(factor, factors[1][kind], rel_tol=1e-3) for kind, factor in factors[0].items()
    )


def only_split_differently(runner: Runner) -> bool:
    """Return whether both programs add the same penalties, but split them differently into loss and regularization.

    This is so if the total losses of TF1's outputs agree. If the losses have another fault, the audit shows it: TF1's
    loss has all penalties that the port adds as regularization losses.
    """
    return _total_losses_agree(runner) or _adds_what_is_in_loss(runner)


def _total_losses_agree(runner: Runner) -> bool:
    """Return whether both programs have one total loss of TF1's outputs, of which they regularize different parts."""
    migration, config = runner.migration, runner.port(TRAINING).config
    tf1 = with_decays(runner).steps[0]
    _, labels = runner.tf1.batches[0]
    loss = None
    with passing_over():  # training-steps reports it
        port = runner.fresh_port.port.made_anew(training=True)
        port.set_weights(config, runner.tf1.outcome(TRAINING).initial)
        loss = port_loss_of(port, 0, labels, tf1["outputs"])
    if loss is None:
        return False
    regularization = runner.port(TRAINING).regularization_loss
    added = {} if regularization is None else {"regularization_loss": regularization}
    total = loss + float(added.get("regularization_loss", 0.0))
    return migration.strategy is None and splits_differently({"loss": total, **added}, tf1)


def _adds_what_is_in_loss(runner: Runner) -> bool:
    """Return whether TF1 has no regularization loss, and its own loss has all penalties that the port adds as one."""
    tf1, port = runner.tf1.outcome(TRAINING), runner.port(TRAINING)
    penalties = [each for each in runner.audit.hyperparameters if each.name == REGULARIZER and each.of in tf1.initial]
    if tf1.regularization_loss is not None or port.regularization_loss is None or not penalties:
        return False
    added = sum(loss_of_penalty(each.port, tf1.initial[each.of]) for each in penalties)
    return all(each.same for each in penalties) and is_close(float(port.regularization_loss), added)
