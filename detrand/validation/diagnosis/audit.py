"""What is set in both programs, side by side: normalizations, dropout, initializers, regularizers and the optimizers.

Nothing here decides whether a check passes: hyperparameters that differ may compute the same, for now or in both
programs' own ways, and those that do not may be spelt otherwise. It shows what checks of a few steps can miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from detrand.seeding.callsite import line_of_user
from detrand.validation.diagnosis.hyperparameters import (
    DROPOUT,
    EPSILON,
    FORGET_BIAS,
    INITIALIZER,
    MOMENTUM,
    RATES,
    REGULARIZER,
    Hyperparameters,
    PortHyperparameters,
    hyperparameters_of_optimizer,
    layer_of,
    listed,
)
from detrand.validation.migration import Migration
from detrand.validation.reference import Reference
from detrand.validation.results import Audit, AuditedHyperparameter
from detrand.validation.training.port import make_port_optimizer

_MOST_SHOWN = 3
_MOST_DIGITS = ".6g"  # float32 has no more
_OF_VARIABLES = (EPSILON, MOMENTUM, FORGET_BIAS, INITIALIZER, REGULARIZER)

_Read = Callable[[str, Callable[[], Hyperparameters | None]], Hyperparameters]


def audit(migration: Migration, reference: Reference) -> Audit:
    """Lays the hyperparameters of both programs side by side; it never raises.

    Args:
      migration: the migration.
      reference: tells what is set in the TF1 program, as far as its graphs have been built.
    """
    notes: list[str] = []

    def read(what: str, hyperparameters: Callable[[], Hyperparameters | None]) -> Hyperparameters:
        try:
            found = hyperparameters()
        except Exception as error:  # what a program raises, its checks have told in full
            notes.append(f"{what}, which raised {type(error).__name__} ({line_of_user(error)})")
            return {}
        if found is None:
            notes.append(f"{what}: the golden file holds no hyperparameters; record it anew")
        return found or {}

    tf1 = read("the TF1 program", reference.hyperparameters)
    port = _hyperparameters_of_port(migration, tf1, read)
    tf1, port = _with_rates_paired(tf1, port), _with_rates_paired(port, tf1)
    if not notes:
        notes += _not_told(tf1, port)
    if migration.train is not None:
        tf1 = read("the optimizer of TF1", reference.optimizer_hyperparameters) | tf1
        port |= read("the optimizer of the port", lambda: hyperparameters_of_optimizer(make_port_optimizer(migration)))
    return Audit(tuple(dict.fromkeys(_paired(tf1, port))), tuple(notes))


def _not_told(tf1: Hyperparameters, port: Hyperparameters) -> Iterator[str]:
    """Yields, for each kind of hyperparameter, of how much the port does not tell it."""
    for kind in (EPSILON, MOMENTUM, FORGET_BIAS, RATES, INITIALIZER, REGULARIZER):
        missing = sorted(_missing(tf1, port, kind))
        if kind in (INITIALIZER, REGULARIZER) and missing:
            missing = [f"{len(missing)} variables"]
        if missing:
            more = f" and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
            yield f"{kind} of {', '.join(missing[:_MOST_SHOWN])}{more}, which TF1 tells and the port does not"


def _missing(tf1: Hyperparameters, port: Hyperparameters, kind: str) -> set[str]:
    """Returns of what the port does not tell a kind of hyperparameter that TF1 tells."""
    told = {_shown(of, kind) for (of, name), value in tf1.items() if name == kind and value is not None}
    return told - {_shown(of, kind) for of, name in port if name == kind}


def _shown(of: str, name: str) -> str:
    """Returns what a hyperparameter is shown to belong to: the layer, where any of its variables may tell it."""
    return layer_of(of) if name in (EPSILON, MOMENTUM, FORGET_BIAS) else of


def _with_rates_paired(hyperparameters: Hyperparameters, others: Hyperparameters) -> Hyperparameters:
    """Returns hyperparameters with all dropout rates together of places that the other program does not know."""
    elsewhere = {key for key in hyperparameters if key[1] == RATES and (key not in others or key[0] == DROPOUT)}
    rates = sorted({rate for key in elsewhere for rate in hyperparameters[key]})
    kept = {key: value for key, value in hyperparameters.items() if key not in elsewhere}
    return {**kept, (DROPOUT, RATES): tuple(rates)} if rates else kept


def _paired(tf1: Hyperparameters, port: Hyperparameters) -> Iterator[AuditedHyperparameter]:
    for (of, name), value in tf1.items():
        if (of, name) not in port or value is port[of, name] is None:
            continue
        yield AuditedHyperparameter(_shown(of, name), name.replace("_", " "), _text(value), _text(port[of, name]))


def _hyperparameters_of_port(migration: Migration, tf1: Hyperparameters, read: _Read) -> Hyperparameters:
    """Returns what a new port tells; what its layers do not know, its ops may."""
    made: list[PortHyperparameters] = []

    def of_layers() -> Hyperparameters:
        made.append(PortHyperparameters(migration, [of for of, name in tf1 if name in _OF_VARIABLES]))
        return made[0].of_layers()

    found = read("the port", of_layers)
    if not made:  # it raised
        return {}
    of_ops = read("the port in a tf.function", lambda: made[0].of_ops(training=True))
    if any(name == RATES for _, name in of_ops):
        found.pop((DROPOUT, RATES), None)  # the layers do not know what they are applied to
    found = of_ops | found
    if any(_missing(tf1, found, kind) for kind in _OF_VARIABLES[:3]):
        found = read("the port in a tf.function", lambda: made[0].of_ops(training=False)) | found
    return found


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return listed(value)
    return f"{value:{_MOST_DIGITS}}" if isinstance(value, float) else str(value)
