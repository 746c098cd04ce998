"""What is set in both programs, side by side: epsilons, momenta, dropout rates, initializers and the optimizers.

Nothing here decides whether a check passes: settings that differ may compute the same, for now or in both programs'
own ways, and those that do not may be spelt otherwise. It shows what checks of a few steps can miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from detrand.checkpoints.pairing import mapped_name
from detrand.validation.execution import Port, Setting, port_scope
from detrand.validation.layer_settings import settings_of_layers
from detrand.validation.migration import Migration, line_of_user
from detrand.validation.optimizer_settings import settings_of_optimizer
from detrand.validation.port_training import make_port_optimizer
from detrand.validation.settings import EPSILON, INITIALIZER, MOMENTUM, RATES, Settings, settings_of_ops
from detrand.validation.training import train_step_of
from detrand.variables.sources import is_layer_or_module
from detrand.variables.whole_variables import whole_variables

_MOST_SHOWN = 3
_MOST_DIGITS = ".6g"  # float32 has no more


@dataclass(frozen=True)
class AuditedSetting:
    """A setting of both programs.

    Attributes:
      of: what it belongs to: ``"optimizer"``, ``"dropout"``, the TF1 name of a variable or of its scope.
      name: its name, such as ``"epsilon"``.
      tf1: its value in TF1, as text.
      port: its value in the port, likewise.
    """

    of: str
    name: str
    tf1: str
    port: str

    @property
    def same(self) -> bool:
        """Whether the values are the same."""
        return self.tf1 == self.port

    def __str__(self) -> str:
        return f"{self.of}: {self.name} {self.tf1} in TF1, {self.port} in the port"


@dataclass(frozen=True)
class Audit:
    """The settings of both programs; ``str()`` names those that differ.

    Attributes:
      settings: those that both programs tell.
      not_audited: what could not be laid side by side, and why, a line each.
    """

    settings: tuple[AuditedSetting, ...] = ()
    not_audited: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[AuditedSetting, ...]:
        """Those that differ."""
        return tuple(setting for setting in self.settings if not setting.same)

    def __str__(self) -> str:
        count = len(self.differing)
        verdict = f"; TF1 and the port differ in {count}:" if count else ", none differs" if self.settings else ""
        lines = [f"audited {len(self.settings)} settings{verdict}"]
        lines += [f"  {setting}" for setting in self.differing]
        lines += [f"  not audited: {what}" for what in self.not_audited]
        return "\n".join(lines)


def audit(migration: Migration, tf1_settings: Callable[[], Settings | None]) -> Audit:
    """Lays the settings of both programs side by side; it never raises.

    Args:
      migration: the migration.
      tf1_settings: tells what is set in the TF1 program, or None if nobody knows.
    """
    notes: list[str] = []

    def read(what: str, settings: Callable[[], Settings | None]) -> Settings | None:
        try:
            return settings()
        except Exception as error:  # what a program raises, its checks have told in full
            notes.append(f"{what}, which raised {type(error).__name__} ({line_of_user(error)})")
            return {}

    tf1 = read("the TF1 program", tf1_settings)
    if tf1 is None:
        return Audit(not_audited=("the TF1 program: a golden file holds no settings",))
    known = tf1
    port = read("the port", lambda: _settings_of_port(migration, known)) or {}
    if not notes:
        notes += _not_told(tf1, port)
    if migration.train is not None:
        tf1 = {**(read("the optimizer of TF1", lambda: _settings_of_tf1_optimizer(migration)) or {}), **tf1}
        optimizer = read("the optimizer of the port", lambda: settings_of_optimizer(make_port_optimizer(migration)))
        port.update(optimizer or {})
    return Audit(tuple(dict.fromkeys(_paired(tf1, port))), tuple(notes))


def _not_told(tf1: Settings, port: Settings) -> Iterator[str]:
    """Yields, for each kind of setting, of how much the port does not tell it."""
    for kind in (EPSILON, MOMENTUM, RATES, INITIALIZER):
        missing = sorted(_missing(tf1, port, kind))
        if kind == INITIALIZER and missing:
            missing = [f"{len(missing)} variables"]
        if missing:
            more = f" and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
            yield f"{kind} of {', '.join(missing[:_MOST_SHOWN])}{more}, which TF1 tells and the port does not"


def _missing(tf1: Settings, port: Settings, kind: str) -> set[str]:
    """Returns of what the port does not tell a kind of setting that TF1 tells."""
    told, ours = ({_shown(of, kind) for of, name in settings if name == kind} for settings in (tf1, port))
    return told - ours


def _shown(of: str, name: str) -> str:
    """Returns what a setting is shown to belong to: the layer, where any of its variables may tell it."""
    return of.rpartition("/")[0] or of if name in (EPSILON, MOMENTUM) else of


def _paired(tf1: Settings, port: Settings) -> Iterator[AuditedSetting]:
    for (of, name), value in tf1.items():
        if (of, name) not in port or value is port[of, name] is None:
            continue
        yield AuditedSetting(_shown(of, name), name.replace("_", " "), _text(value), _text(port[of, name]))


def _settings_of_tf1_optimizer(migration: Migration) -> Settings:
    with tf.Graph().as_default():
        return settings_of_optimizer(train_step_of(migration).tf1_optimizer())


def _settings_of_port(migration: Migration, tf1: Settings) -> Settings:
    """Returns what the layers of a new port tell, and for what they do not, what its ops do where it is traced."""
    with port_scope(migration, Setting(training=False, mode="constant")):
        port = Port(migration)
        port(training=False)  # creates the variables
    if not is_layer_or_module(port.variables):
        return {}
    of_variables = [of for of, name in tf1 if name in (EPSILON, MOMENTUM, INITIALIZER)]
    tf1_names = {mapped_name(migration.name_map, name): name for name in of_variables}
    variables = whole_variables("tf2", port.variables)
    named = {tf1_names.get(name, name): variable for name, variable in variables.items()}
    names = {id(part): name for name, variable in named.items() for part in variable.parts}
    found = settings_of_layers(port.variables, names)
    handles = {id(part.handle): name for name, variable in named.items() for part in variable.parts}
    for training in (True, False):
        if any(_missing(tf1, found, kind) for kind in (EPSILON, MOMENTUM, RATES)):
            found = _settings_of_function(migration, port, training, handles) | found
    return found


def _settings_of_function(migration: Migration, port: Port, training: bool, handles: Mapping[int, str]) -> Settings:
    with port_scope(migration, Setting(training, "constant")):
        graph = port.graph(training)
    names = {inner.op.name: handles[id(outer)] for outer, inner in graph.captures if id(outer) in handles}
    return settings_of_ops(graph.get_operations(), names)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:{_MOST_DIGITS}}" if isinstance(value, float) else str(value)
