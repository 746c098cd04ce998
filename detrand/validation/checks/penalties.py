"""Penalties of weights, such as weight decay: what differs, and where each program has its own.

TF1's update may add a decay to gradients that the port adds to its loss. `with_decays` returns a training of TF1 in
which both count as losses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from detrand._patching.keras import is_instance_of_loaded
from detrand.arguments import and_more
from detrand.errors import passing_over
from detrand.validation.audit.hyperparameters import AMOUNTS, REGULARIZER, SQUARES, factors_of
from detrand.validation.diagnosis.causes import is_close
from detrand.validation.reference import TRAINING
from detrand.validation.results import Finding, Place
from detrand.validation.runner import Runner
from detrand.validation.training.compare import splits_differently
from detrand.validation.training.penalties import Penalties, loss_of_penalty, with_penalties
from detrand.validation.training.port import port_loss_of
from detrand.validation.training.steps import Training
from detrand.variables.sources import named_variables


def with_decays(runner: Runner) -> Training:
    """Return TF1's training with the decay that its update adds to gradients as a loss, as the audit counts it."""
    tf1 = runner.tf1.training(runner.port(TRAINING).config.mode)
    return with_penalties(tf1, runner.tf1.outcome(TRAINING).initial, decays_as_losses(runner))


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
            f"add {tf1} of {names} by add_loss in the port: Keras leaves out the regularizers of frozen layers. Or "
            "leave this penalty out in TF1, since it changes no gradient of what is trained"
        )
    remedy = f"penalize {names} by {tf1} in the port, as {_in_keras(tf1)} does"
    factors = [of.get(SQUARES, 0.0) for of in map(factors_of, (tf1, port))]
    if all(factors) and any(is_close(factors[0] / factors[1], ratio) for ratio in (2, 0.5)):
        remedy += ". tf.nn.l2_loss(w) is sum(w**2) / 2; Keras's L2 takes sum(w**2)"
    return remedy


def _in_keras(penalty: str) -> str:
    """Return the regularizer of Keras that adds a penalty."""
    factors = {kind: f"{factor:g}" for kind, factor in factors_of(penalty).items()}
    if len(factors) > 1:
        return f"keras.regularizers.L1L2({factors[AMOUNTS]}, {factors[SQUARES]})"
    kind, factor = next(iter(factors.items()))
    return f"keras.regularizers.{'L2' if kind == SQUARES else 'L1'}({factor})"


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
