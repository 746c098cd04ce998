"""Likely causes of a difference of two computations: the known faults of ports that leave such evidence.

`causes` takes the evidence of a check that ran both programs once. Evidence is no proof, so causes are ordered by how
specific it is: a hyperparameter that differs at the first divergence comes before a ratio of two that could be chance.
A new cause is one more function that yields a `Cause`: it is in `arrays`, `values` or `ops`, and called in `causes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from detrand.arguments import and_more, plural
from detrand.comparison.values import LeafComparison
from detrand.validation.audit.hyperparameters import INITIALIZER, REGULARIZER
from detrand.validation.diagnosis.causes.arrays import (
    of_arrangement,
    of_axes,
    of_broadcasts,
    of_concatenation,
    of_masks,
    of_moves,
    of_other_axes,
    of_scale,
    of_shapes,
    of_slices,
    of_softmaxes,
    of_transposition,
)
from detrand.validation.diagnosis.causes.cause import Cause, in_one_program, is_close, of_hyperparameter, of_values
from detrand.validation.diagnosis.causes.ops import of_draws, of_exchanged_tensors, of_inputs, of_ops, of_uses
from detrand.validation.diagnosis.causes.values import (
    of_attributes,
    of_constant,
    of_dropout,
    of_epsilon,
    of_layer,
    of_limits,
    of_padding_mode,
    of_training_mode,
    of_windows,
    unconfirmed,
)
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.layer_order import LayerOrder
from detrand.validation.results import AuditedHyperparameter, Fault

_MOST_LAYERS = 3
DRAWS_NUMPY = Cause(
    "a program draws from NumPy's global generator (np.random), which draws different numbers in each run",
    remedy="pass Migration(seed_numpy=True)",
)


def causes(
    divergence: Divergence | None = None,
    output: LeafComparison | None = None,
    losses: tuple[np.ndarray | None, np.ndarray | None] | None = None,
    hyperparameters: Sequence[AuditedHyperparameter] = (),
    *,
    draws_numpy: bool = False,
    random_ops: Sequence[Cause] = (),
) -> tuple[Cause, ...]:
    """Return the likely causes, the likeliest first; empty if none is known.

    Args:
      divergence: the first divergence; None if it is not known.
      output: the first output that differs; None if none does.
      losses: the regularization losses of the port and of TF1, each None if it has none; None if they agree.
      hyperparameters: those that differ.
      draws_numpy: whether a program may draw from NumPy's global generator, which is not seeded.
      random_ops: the random ops that only one program has.
    """
    if divergence is not None and (certain := _certain_causes(divergence)) is not None:
        return certain
    found = [*([DRAWS_NUMPY] if draws_numpy else []), *random_ops]
    of_dtypes = list(_of_dtypes(divergence, output))
    if divergence is None:
        found += of_dtypes
    else:
        found += _possible_causes(divergence, hyperparameters, of_dtypes, found)
    if losses is not None:
        found += _regularization(*losses)
    found += (of_hyperparameter(each) for each in hyperparameters if each.name in (INITIALIZER, REGULARIZER))
    return tuple(dict.fromkeys(found))


def _certain_causes(divergence: Divergence) -> tuple[Cause, ...] | None:
    """Return the causes of a divergence beside which there are no others; None if it may have several causes."""
    if divergence.hyperparameter is not None:
        return (of_hyperparameter(divergence.hyperparameter, divergence.count),)
    if divergence.iterations is not None:
        tf1, port = divergence.iterations
        remedy = f"run the loop {plural(tf1, 'time')} in the port"
        return (of_values("number of iterations of a loop in Python", tf1, port, remedy=remedy),)
    if divergence.layer_order is not None:
        return (_of_layer_order(divergence.layer_order),)
    if divergence.is_swap and (exchanged := tuple(of_exchanged_tensors(divergence))):
        return exchanged
    if divergence.takes_other:
        return tuple(of_inputs(divergence))
    for causes_of in (of_shapes, of_softmaxes, of_slices, of_concatenation, of_transposition):
        if found := tuple(causes_of(divergence)):
            return found
    return None


def _of_dtypes(divergence: Divergence | None, output: LeafComparison | None) -> Iterator[Cause]:
    """Yield that the dtypes of an output, or else of what diverges first, differ."""
    if output is not None and output.reason == "dtype":
        yield of_values("dtype", output.desired.dtype, output.actual.dtype)
    elif divergence is not None and divergence.dtypes[0]:
        dtypes = [re.sub(r"<dtype: '(\w+)'>", r"\1", each) for each in divergence.dtypes]
        if not all(each.startswith(("int", "uint")) for each in dtypes):  # integers hold the same numbers
            yield of_values("dtype", *dtypes)


def _possible_causes(
    divergence: Divergence,
    hyperparameters: Sequence[AuditedHyperparameter],
    of_dtypes: Sequence[Cause],
    others: Sequence[Cause],
) -> list[Cause]:
    """Return the causes that fit a part of a divergence: specific evidence first, ratios that could be chance last.

    ``others`` are causes that other evidence shows. Moves, broadcasts and other axes are possible only without any.
    """
    possible, windows, found = unconfirmed(divergence), list(of_windows(divergence)), list[Cause]()
    found += windows if windows else [] if possible else of_attributes(divergence)
    found += of_layer(divergence, hyperparameters)
    found += of_dtypes
    found += of_dropout(divergence, hyperparameters)
    found += of_draws(divergence)
    found += of_masks(divergence)
    found += of_epsilon(divergence)
    found += list(of_axes(divergence)) or of_arrangement(divergence)
    found += of_constant(divergence)
    found += of_padding_mode(divergence)
    found += of_training_mode(divergence) or of_uses(divergence)
    found += of_limits(divergence)
    found += [] if windows else of_ops(divergence)
    found += of_inputs(divergence)
    found += of_scale(divergence)
    for causes_of in (of_moves, of_broadcasts, of_other_axes):
        found += [] if found or others else causes_of(divergence)
    return [*found, *possible]


def _of_layer_order(order: LayerOrder) -> Cause:
    """Return the cause that the programs compute layers in different orders."""
    first, then = (and_more(names, _MOST_LAYERS) for names in (order.first, order.then))
    comes, it = "comes" if len(order.first) == 1 else "come", "it" if len(order.then) == 1 else "them"
    title = f"order of layers differs: {first} {comes} before {then} in TF1, and after {it} in the port"
    return Cause(title, fault=Fault.ORDER, remedy=f"compute {first} before {then} in the port")


def _regularization(port: np.ndarray | None, tf1: np.ndarray | None) -> Iterator[Cause]:
    if port is None or tf1 is None:
        yield in_one_program("TF1" if port is None else "the port", "has a regularizer")
    elif tf1:
        title = f"factor of a regularizer differs: the port's regularization loss is {port / tf1:.4g} times TF1's"
        for ratio, part in ((2, "half"), (0.5, "twice")):
            if is_close(port / tf1, ratio):
                remedy = f"pass {part} the factor to Keras's L2: tf.nn.l2_loss(w) is sum(w**2) / 2"
                yield Cause(title, remedy=remedy)
                return
        yield Cause(f"{title}; or a variable is penalized in one program only")
