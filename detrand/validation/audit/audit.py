"""The audit: the hyperparameters of both programs side by side.

`audit` reads them with `detrand.validation.audit.hyperparameters` and compares them. No check fails because of it:
hyperparameters that differ may compute the same numbers, and equal ones may be written differently. It shows what
checks of a few steps can miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from detrand.arguments import and_more, plural
from detrand.seeding.callsite import line_of_user
from detrand.validation.audit.hyperparameters import (
    ACTIVATION,
    DECAY,
    DROPOUT,
    EPSILON,
    FORGET_BIAS,
    INITIALIZER,
    MOMENTUM,
    RATE,
    REGULARIZER,
    SQUARES,
    WEIGHT_DECAY,
    Hyperparameters,
    PortHyperparameters,
    factors_of,
    hyperparameters_of_optimizer,
    is_own,
    layer_of,
    with_decay,
)
from detrand.validation.frameworks.tensorflow import own_global_step
from detrand.validation.migration import Migration
from detrand.validation.programs.outcome import UntracedPortError, numpy_seeded
from detrand.validation.programs.port import FreshPort
from detrand.validation.results import Audit, AuditedHyperparameter

_OF_LAYERS = (EPSILON, MOMENTUM, FORGET_BIAS, ACTIVATION)  # any variable of a layer may have them
_MOST_SHOWN = 3


def audit(
    migration: Migration,
    tf1: Callable[[], Hyperparameters | None],
    tf1_optimizer: Callable[[], Hyperparameters | None],
    port: Callable[[], FreshPort],
    port_optimizer: Callable[[], Any],
) -> Audit:
    """Return the hyperparameters of both programs side by side; it never raises.

    ``tf1`` and ``tf1_optimizer`` return those of TF1 and of its training, or None if a golden file does not hold them;
    ``port`` returns a port, and ``port_optimizer`` its optimizer.
    """
    notes: list[str] = []

    def read(what: str, hyperparameters: Callable[[], Any]) -> Any:
        try:
            found = hyperparameters()
        except UntracedPortError as error:
            notes.append(f"{what}: {error}")
            return {}
        except Exception as error:  # the checks report in full what a program raises
            line = line_of_user(error)
            notes.append(f"{what}, which raised {type(error).__name__}{f' ({line})' if line else ''}")
            return {}
        if found is None:
            notes.append(f"{what}: the golden file holds no hyperparameters; record it again")
        return found or {}

    of_tf1 = read("the TF1 program", tf1)
    with numpy_seeded(migration.numpy_seed):  # initializers of the port are called
        of_port = _read_port(migration, of_tf1, port, read)
    of_tf1, of_port = _with_rates_paired(of_tf1, of_port), _with_rates_paired(of_port, of_tf1)
    if not notes:
        notes += _describe_only_in(of_tf1, of_port, "the port")
        notes += _describe_only_in(of_port, of_tf1, "TF1")
    if migration.train is not None:
        of_training = read("the optimizer of TF1", tf1_optimizer)
        of_tf1 = of_training | of_tf1 | of_training
        with own_global_step():
            optimizer = read("the optimizer of the port", port_optimizer)
        if optimizer:
            of_port |= read("the optimizer of the port", lambda: hyperparameters_of_optimizer(optimizer))
            notes += [f"what {type(optimizer).__name__} adds to its base class"] if is_own(optimizer) else []
    for (name, what), decay in list(of_tf1.items()):
        if what == DECAY and (of_port.get((name, REGULARIZER)) or of_port.get(WEIGHT_DECAY, 0.0) is None):
            of_tf1[name, REGULARIZER] = with_decay(of_tf1.get((name, REGULARIZER)), decay)
    in_loss = {of_tf1[key] for key in of_tf1 if key[1] == REGULARIZER and not of_port.get(key)} - {None}
    if in_loss and of_port.get(WEIGHT_DECAY):  # which adds to gradients what TF1's loss adds to them
        factors = [factors_of(each).get(SQUARES, 0.0) for each in in_loss]
        of_tf1[WEIGHT_DECAY] = 2 * factors[0] if len(factors) == 1 else of_port[WEIGHT_DECAY]
    return Audit(_compare(of_tf1, of_port), tuple(dict.fromkeys(notes)))


def _read_port(
    migration: Migration,
    tf1: Hyperparameters,
    fresh: Callable[[], FreshPort],
    read: Callable[[str, Callable[[], Any]], Any],
) -> Any:
    """Return the hyperparameters of a port: those that its layers do not have, from its ops."""
    port = read("the port", lambda: PortHyperparameters(migration, fresh()))
    if not port or not port.view.parts:
        return {}
    of_layers = read("the port", port.of_layers)
    of_ops = read("the ops of the port", lambda: port.of_ops(training=True))
    if any(name == RATE for _, name in of_ops):
        of_layers.pop((DROPOUT, RATE), None)  # the layers do not know what they are applied to
    found = of_ops | of_layers
    if any(_only_in(tf1, found, name) for name in _OF_LAYERS):
        found = read("the ops of the port", lambda: port.of_ops(training=False)) | found
    return found


def _compare(tf1: Hyperparameters, port: Hyperparameters) -> tuple[AuditedHyperparameter, ...]:
    """Return the hyperparameters that both programs have, except those that are None in both."""
    found = {
        AuditedHyperparameter(_owner(of, name), name.replace("_", " "), _as_text(value), _as_text(port[of, name])): None
        for (of, name), value in tf1.items()
        if (of, name) in port and not value is port[of, name] is None
    }
    return tuple(found)


def _only_in(one: Hyperparameters, other: Hyperparameters, name: str) -> set[str]:
    """Return the owners that have a hyperparameter of this name in one program and not in the other."""
    in_one = {_owner(of, name) for (of, its_name), value in one.items() if its_name == name and value is not None}
    return in_one - {_owner(of, name) for of, its_name in other if its_name == name}


def _describe_only_in(one: Hyperparameters, other: Hyperparameters, who: str) -> Iterator[str]:
    """Yield a line for each kind of hyperparameter that the other program, ``who``, does not expose."""
    for name in (*_OF_LAYERS, RATE, INITIALIZER, REGULARIZER):
        if owners := sorted(_only_in(one, other, name)):
            of_variables = name in (INITIALIZER, REGULARIZER)
            of = plural(len(owners), "variable") if of_variables else and_more(owners, _MOST_SHOWN)
            yield f"{name} of {of}, which {who} does not expose"


def _with_rates_paired(hyperparameters: Hyperparameters, others: Hyperparameters) -> Hyperparameters:
    """Return hyperparameters with the dropout rates of those places in one that the other program does not have."""
    elsewhere = {key for key in hyperparameters if key[1] == RATE and (key not in others or key[0] == DROPOUT)}
    rates = sorted({rate for key in elsewhere for rate in hyperparameters[key]})
    kept = {key: value for key, value in hyperparameters.items() if key not in elsewhere}
    return {**kept, (DROPOUT, RATE): tuple(rates)} if rates else kept


def _owner(of: str, name: str) -> str:
    return layer_of(of) if name in _OF_LAYERS else of


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(dict.fromkeys(map(_as_text, sorted(value))))
    if isinstance(value, float):
        return f"{value:.6g}"  # float32 has no more
    return "none" if value is None else str(value)
