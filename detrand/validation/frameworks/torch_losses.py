"""Losses of ``torch.nn.functional`` as ops of TensorFlow, in the steps in which TF1 computes its own.

`LOSSES` has a function for each loss; see `detrand.validation.frameworks.torch_functions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from detrand.validation.frameworks.torch_functions import STEPS, Axes, Step
from detrand.validation.frameworks.traces import NoStepsError

F = torch.nn.functional
_LEAST_LOG = -100.0  # of probabilities in PyTorch's binary cross-entropy


def _reduced(step: Step, losses: Any, reduction: str) -> Any:
    """Compute the mean or the sum of losses, or neither."""
    if reduction == "none":
        return losses
    if reduction not in ("mean", "sum"):
        raise NoStepsError
    return STEPS[reduction](step, losses)


def _square(step: Step, x: Any) -> Any:
    return step("Mul", torch.mul, x, x)


def _summed(step: Step, x: Any) -> Any:
    """Compute the sum over the last axis."""
    return STEPS["sum"](step, x, -1)


def _cross_entropy(
    step: Step,
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    logits = input if input.dim() < 3 else step("Transpose", lambda x: torch.movedim(x, 1, -1), input)
    of_classes = not target.is_floating_point()
    labels = target if of_classes or target.dim() < 3 else step("Transpose", lambda x: torch.movedim(x, 1, -1), target)
    if of_classes and not label_smoothing:
        losses = step("SparseSoftmaxCrossEntropyWithLogits", _of_classes, logits, _in_range(step, labels, ignore_index))
        return _of_counted(step, losses, labels, weight, ignore_index, reduction)
    count = logits.shape[-1]
    shares = labels
    if of_classes:
        shares = step("OneHot", lambda y: F.one_hot(y, count).double(), _in_range(step, labels, ignore_index))
    if label_smoothing:
        kept = step("Mul", torch.mul, shares, 1 - label_smoothing)
        shares = step("AddV2", torch.add, kept, label_smoothing / count)
    if weight is None:
        losses = step("SoftmaxCrossEntropyWithLogits", _of_shares, logits, shares)
    else:
        logs = step("LogSoftmax", lambda x: torch.log_softmax(x, -1), logits)
        weighted = step("Mul", torch.mul, step("Mul", torch.mul, shares, logs), weight)
        losses = step("Neg", torch.neg, _summed(step, weighted))
    if of_classes:
        return _of_counted(step, losses, labels, weight, ignore_index, reduction, is_weighted=True)
    return _reduced(step, losses, reduction)


def _of_classes(logits: Any, labels: Any) -> Any:
    return -torch.log_softmax(logits, -1).gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)


def _of_shares(logits: Any, shares: Any) -> Any:
    return -(torch.log_softmax(logits, -1) * shares).sum(-1)


def _in_range(step: Step, labels: Any, ignored: int) -> Any:
    """Return labels with the first class in place of those that are ignored."""
    if not bool((labels == ignored).any()):
        return labels
    return step("SelectV2", torch.where, step("NotEqual", torch.ne, labels, ignored), labels, 0)


def _nll_loss(
    step: Step, input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    logs = input if input.dim() < 3 else step("Transpose", lambda x: torch.movedim(x, 1, -1), input)

    def gathered(x: Any, y: Any) -> Any:
        return x.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    losses = step("Neg", torch.neg, step("GatherV2", gathered, logs, _in_range(step, target, ignore_index)))
    return _of_counted(step, losses, target, weight, ignore_index, reduction)


def _of_counted(
    step: Step, losses: Any, labels: Any, weight: Any, ignored: int, reduction: str, *, is_weighted: bool = False
) -> Any:
    """Weight the losses of classes, leave out those that are ignored, and compute their sum or weighted mean."""
    weights = None
    if weight is not None:
        taken = _in_range(step, labels, ignored)
        weights = step("GatherV2", lambda rows, y: rows[y.long()], weight, taken)
        losses = losses if is_weighted else step("Mul", torch.mul, losses, weights)
    if bool((labels == ignored).any()):
        mask = step("Cast", lambda x: x.double(), step("NotEqual", torch.ne, labels, ignored))
        weights = mask if weights is None else step("Mul", torch.mul, weights, mask)
        losses = step("Mul", torch.mul, losses, mask)
    if weights is None or reduction != "mean":
        return _reduced(step, losses, reduction)
    return step("RealDiv", torch.div, _reduced(step, losses, "sum"), _reduced(step, weights, "sum"))


def _binary_cross_entropy(step: Step, input: Any, target: Any, weight: Any = None, *, reduction: str = "mean") -> Any:
    def log_of(x: Any) -> Any:
        logs = step("Log", torch.log, x)
        is_small = bool((x.detach() < math.exp(_LEAST_LOG)).any())
        return step("Maximum", torch.clamp, logs, _LEAST_LOG) if is_small else logs

    of_ones = step("Neg", torch.neg, step("Mul", torch.mul, target, log_of(input)))
    rest = step("Sub", lambda one, x: one - x, 1.0, target)
    of_zeros = step("Mul", torch.mul, rest, log_of(step("Sub", lambda one, x: one - x, 1.0, input)))
    return _weighted(step, step("Sub", torch.sub, of_ones, of_zeros), weight, reduction)


def _weighted(step: Step, losses: Any, weight: Any, reduction: str) -> Any:
    return _reduced(step, losses if weight is None else step("Mul", torch.mul, losses, weight), reduction)


def _binary_cross_entropy_with_logits(
    step: Step, input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    sizes = step("Neg", torch.neg, step("Abs", torch.abs, input))
    logs = step("Log1p", torch.log1p, step("Exp", torch.exp, sizes))
    if pos_weight is None:
        product = step("Mul", torch.mul, input, target)
        losses = step("AddV2", torch.add, step("Sub", torch.sub, step("Relu", torch.relu, input), product), logs)
    else:
        more = step("Mul", torch.mul, step("Sub", torch.sub, pos_weight, 1.0), target)
        factor = step("AddV2", lambda one, x: one + x, 1.0, more)
        of_zeros = step("Mul", torch.mul, step("Sub", lambda one, x: one - x, 1.0, target), input)
        of_ones = step("AddV2", torch.add, logs, step("Relu", torch.relu, step("Neg", torch.neg, input)))
        losses = step("AddV2", torch.add, of_zeros, step("Mul", torch.mul, factor, of_ones))
    return _weighted(step, losses, weight, reduction)


def _mse_loss(step: Step, input: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Any:
    losses = step("SquaredDifference", lambda x, y: (x - y) ** 2, input, target)
    if weight is not None:
        raise NoStepsError
    return _reduced(step, losses, reduction)


def _l1_loss(step: Step, input: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Any:
    if weight is not None:
        raise NoStepsError
    return _reduced(step, step("Abs", torch.abs, step("Sub", torch.sub, input, target)), reduction)


def _huber(step: Step, input: Any, target: Any, delta: float) -> Any:
    sizes = step("Abs", torch.abs, step("Sub", torch.sub, input, target))
    small = step("Minimum", lambda x, delta: x.clamp(max=delta), sizes, delta)
    of_small = step("Mul", torch.mul, _square(step, small), 0.5)
    large = step("Mul", torch.mul, step("Sub", torch.sub, sizes, small), delta)
    return step("AddV2", torch.add, of_small, large)


def _huber_loss(
    step: Step, input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    if weight is not None:
        raise NoStepsError
    return _reduced(step, _huber(step, input, target, delta), reduction)


def _smooth_l1_loss(step: Step, input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
    losses = _huber(step, input, target, beta)
    return _reduced(step, losses if beta == 1 else step("RealDiv", torch.div, losses, beta), reduction)


def _kl_div(step: Step, input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    if log_target:
        shares = step("Exp", torch.exp, target)
        losses = step("Mul", torch.mul, shares, step("Sub", torch.sub, target, input))
    elif bool((target.detach() > 0).all()):
        losses = step("Mul", torch.mul, target, step("Sub", torch.sub, step("Log", torch.log, target), input))
    else:
        own = step("Xlogy", torch.xlogy, target, target)
        losses = step("Sub", torch.sub, own, step("Mul", torch.mul, target, input))
    if reduction == "batchmean":
        return step("RealDiv", torch.div, _reduced(step, losses, "sum"), float(len(input)))
    return _reduced(step, losses, reduction)


def _poisson_nll_loss(
    step: Step,
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    if full:
        raise NoStepsError
    if log_input:
        losses = step("Sub", torch.sub, step("Exp", torch.exp, input), step("Mul", torch.mul, target, input))
    else:
        logs = step("Log", torch.log, step("AddV2", torch.add, input, eps))
        losses = step("Sub", torch.sub, input, step("Mul", torch.mul, target, logs))
    return _reduced(step, losses, reduction)


def _soft_margin_loss(step: Step, input: Any, target: Any, *, reduction: str = "mean") -> Any:
    product = step("Mul", torch.mul, step("Neg", torch.neg, target), input)
    return _reduced(step, step("Log1p", torch.log1p, step("Exp", torch.exp, product)), reduction)


def _margin_ranking_loss(
    step: Step, input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: str = "mean"
) -> Any:
    product = step("Mul", torch.mul, step("Neg", torch.neg, target), step("Sub", torch.sub, input1, input2))
    shifted = step("AddV2", torch.add, product, margin) if margin else product
    return _reduced(step, step("Relu", torch.relu, shifted), reduction)


def _cosine_similarity(step: Step, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    axes = Axes((dim % x1.dim(),))

    def normalized(x: Any) -> Any:
        total = step("Sum", lambda x, axes: torch.sum(x, axes, keepdim=True), step("Square", torch.square, x), axes)
        factor = step("Rsqrt", torch.rsqrt, step("Maximum", lambda x, least: x.clamp(least), total, eps**2))
        return step("Mul", torch.mul, x, factor)

    product = step("Mul", torch.mul, normalized(x1), normalized(x2))
    return step("Sum", torch.sum, product, axes)


def _ctc_loss(
    step: Step,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    lengths = torch.as_tensor(target_lengths)

    def losses_of(x: Any, y: Any) -> Any:
        return F.ctc_loss(x, y, input_lengths, lengths, blank, "none", zero_infinity)

    losses = step("CTCLoss", losses_of, log_probs, targets)
    if reduction == "mean":
        losses = step("RealDiv", torch.div, losses, lengths.clamp(min=1).double())
    return _reduced(step, losses, reduction)


def _without_old_arguments(steps: Callable[..., Any]) -> Callable[..., Any]:
    """Return steps of a loss that has arguments of older versions, of which only None is known."""

    def without(step: Step, *args: Any, size_average: Any = None, reduce: Any = None, **arguments: Any) -> Any:
        if size_average is not None or reduce is not None:
            raise NoStepsError
        return steps(step, *args, **arguments)

    return without


_WITH_OLD_ARGUMENTS: Mapping[str, Callable[..., Any]] = {
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "mse_loss": _mse_loss,
    "l1_loss": _l1_loss,
    "smooth_l1_loss": _smooth_l1_loss,
    "kl_div": _kl_div,
    "poisson_nll_loss": _poisson_nll_loss,
    "soft_margin_loss": _soft_margin_loss,
    "margin_ranking_loss": _margin_ranking_loss,
}
LOSSES: Mapping[str, Callable[..., Any]] = {
    **{name: _without_old_arguments(steps) for name, steps in _WITH_OLD_ARGUMENTS.items()},
    **{"huber_loss": _huber_loss, "cosine_similarity": _cosine_similarity, "ctc_loss": _ctc_loss},
}
