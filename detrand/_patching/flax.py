"""Names of Flax and optax: what draws, how modules are made and traced, and what an optimizer is made of.

An optimizer of optax is a pair of functions. `OptaxOptimizer` keeps its state, and has its hyperparameters by their
names in Keras: they are in the closures of these functions, which optax's public functions return.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detrand._patching.keras import is_instance_of_loaded
from detrand._patching.patches import Target
from detrand.changes import Changes

DROPOUT = Target("flax.nnx.nn.stochastic", "Dropout.__call__", ("self", "inputs", "deterministic", "rngs"))
# Draws of random keys that count themselves, without the keys. Each is also a method of one stream of them.
DRAWS = {
    (name, method): Target("flax.nnx.rnglib", f"{name}.{method}", ("key", "shape", "dtype"))
    for name in ("Rngs", "RngStream")
    for method in ("normal", "uniform")
}
# Every module passes through this function, which calls its constructor.
MAKE_MODULE = Target("flax.nnx.pytreelib", "PytreeMeta._pytree_meta_construct", ("cls", "self"))


@contextlib.contextmanager
def in_current_trace(nodes: Sequence[Any]) -> Iterator[None]:
    """Make modules and variables changeable in the block, as if they were made in the trace in which it runs.

    Flax allows a change only in the trace in which a module was made, and copies modules into others. The losses of
    users read the module that they have made. On leaving the block, each variable gets the value from before.
    """
    from flax import nnx
    from flax.nnx import tracers

    with Changes() as changes:
        for node in nodes:
            is_variable = isinstance(node, nnx.Variable)
            state, set_state = (
                (node._trace_state, _set_trace_of_variable)
                if is_variable
                else (node._pytree__state.trace_state, _set_trace_of_module)
            )
            changes.on_undo(set_state, node, state)
            set_state(node, tracers.TraceState())
            if is_variable:
                changes.on_undo(node.set_raw_value, node.get_raw_value())
        yield


def _set_trace_of_variable(variable: Any, state: Any) -> None:
    object.__setattr__(variable, "_trace_state", state)


def _set_trace_of_module(module: Any, state: Any) -> None:
    module._pytree__state._trace_state = state


def is_optax(optimizer: Any) -> bool:
    """Return whether an object is a transformation of optax, without importing it."""
    return is_instance_of_loaded(optimizer, "optax", "GradientTransformation")


# Part of an optimizer: the name of optax's function -> name in Keras -> name of the function's argument.
_ARGUMENTS = {
    "scale_by_adam": {"beta_1": "b1", "beta_2": "b2", "epsilon": "eps"},
    "trace": {"momentum": "decay", "nesterov": "nesterov"},
    "scale_by_rms": {"rho": "decay", "epsilon": "eps", "initial_rms": "initial_scale"},
    "scale_by_stddev": {"rho": "decay", "epsilon": "eps", "initial_rms": "initial_scale"},
    "scale_by_rss": {"initial_accumulator_value": "initial_accumulator_value", "epsilon": "eps"},
    "scale_by_adadelta": {"rho": "rho", "epsilon": "eps"},
    "add_decayed_weights": {"weight_decay": "weight_decay"},
    "clip_by_global_norm": {"global_clipnorm": "max_norm"},
    "clip": {"clipvalue": "max_delta"},
    "scale": {"learning_rate": "step_size"},
    "scale_by_schedule": {"learning_rate": "step_size_fn"},
    "identity": {},
}
_KINDS = {
    "scale_by_adam": "Adam",
    "scale_by_rms": "RMSprop",
    "scale_by_stddev": "RMSprop",
    "scale_by_rss": "Adagrad",
    "scale_by_adadelta": "Adadelta",
}
# Type of a state in optax -> name in TF1 -> name of the slots in the state.
_SLOTS = {
    "ScaleByAdamState": {"m": "mu", "v": "nu"},
    "TraceState": {"momentum": "trace"},
    "ScaleByRmsState": {"rms": "nu"},
    "ScaleByRStdDevState": {"mg": "mu", "rms": "nu"},
    "ScaleByRssState": {"accumulator": "sum_of_squares"},
    "ScaleByAdaDeltaState": {"accum": "e_g", "accum_update": "e_x"},
}
# Hyperparameters of an optimizer that has no part for them -> the part, which is put before the others.
_ADDED = {"momentum": "trace", "global_clipnorm": "clip_by_global_norm", "clipvalue": "clip"}
_RATE = "learning_rate"


class _Count:
    """The number of steps that an optimizer has made."""

    value = 0

    def assign(self, value: int) -> None:
        self.value = int(value)


class OptaxOptimizer:
    """An optimizer of optax with its state.

    Attributes:
      iterations: the number of its steps.
      hyperparameters: its hyperparameters by their names in Keras; a schedule is a function of a step.
      kind: the name of its class in Keras; empty if it does what no optimizer of Keras does.
      schedule: the function that computes its learning rate; None if it has none.
    """

    def __init__(self, transformation: Any):
        self._transformation, self._state = transformation, None
        self._paths: dict[int, tuple[Any, ...]] = {}
        self._parts = list(_parts_of(transformation))
        self.iterations = _Count()
        names = [name for name, _ in self._parts]
        kinds = [_KINDS[name] for name in names if name in _KINDS]
        rates = [
            arguments[_ARGUMENTS[name][_RATE]] for name, arguments in self._parts if _RATE in _ARGUMENTS.get(name, ())
        ]
        self._rate = _negative(rates[0]) if len(rates) == 1 else None
        self.schedule = _closure(rates[0]).get(_RATE) if len(rates) == 1 and callable(rates[0]) else None
        is_known = all(_is_known(*part) for part in self._parts) and len(set(names)) == len(names)
        self.kind = next(iter(kinds), "SGD") if is_known and len(rates) == 1 and len(kinds) < 2 else ""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Its hyperparameters by their names in Keras."""
        if not self.kind:
            return {}
        found = {"momentum": 0.0, "nesterov": False} if self.kind in ("SGD", "RMSprop") else {}
        for name, arguments in self._parts:
            for in_keras, argument in _ARGUMENTS[name].items():
                if argument in arguments:
                    found[in_keras] = _negative(arguments[argument]) if in_keras == _RATE else arguments[argument]
        if self.kind == "RMSprop":
            del found["nesterov"]
            found["centered"] = any(name == "scale_by_stddev" for name, _ in self._parts)
        return found

    @property
    def learning_rate(self) -> Any:
        """The learning rate of its next step; None if it is not known."""
        return float(self._rate(self.iterations.value)) if callable(self._rate) else self._rate

    @property
    def global_clipnorm(self) -> Any:
        """The greatest global norm of the gradients; None without."""
        return self.hyperparameters.get("global_clipnorm")

    @property
    def clipvalue(self) -> Any:
        """The greatest element of the gradients; None without."""
        return self.hyperparameters.get("clipvalue")

    def set(self, name: str, value: Any) -> None:
        """Give it another value of a hyperparameter, before its first step."""
        parts = []
        for part, arguments in self._parts:
            argument = _ARGUMENTS[part].get(name)
            if argument is None:
                parts.append((part, arguments))
            elif name == _RATE:
                self._rate = value
                part_of_rate = "scale_by_schedule" if callable(value) else "scale"
                parts.append((part_of_rate, {_ARGUMENTS[part_of_rate][_RATE]: _negative(value)}))
            elif value is not None:
                parts.append((part, {**arguments, argument: value}))
        added = _ADDED.get(name, "")
        if added and value and all(added != part for part, _ in parts):
            # The momentum of RMSprop is one of updates, that of SGD and clipping are of gradients.
            position = len(parts) if self.kind == "RMSprop" and name == "momentum" else 0
            parts.insert(position, (added, {_ARGUMENTS[added][name]: value}))
        self._parts = parts
        self._transformation = _made_of(parts)

    def add_epsilon_as_in_tf1(self) -> None:
        """Make an Adam add its epsilon where TF1 does, to the root of the uncorrected moment."""
        self._transformation = _made_of(self._parts, {"scale_by_adam": _scale_by_adam})

    def leave_out_bias_correction(self) -> None:
        """Make an Adam use its moments as they are."""
        import optax
        from jax import numpy as jnp

        def scale_by_adam(**arguments: Any) -> Any:
            def factor(step: Any) -> Any:
                return (1 - arguments["b1"] ** (step + 1)) / jnp.sqrt(1 - arguments["b2"] ** (step + 1))

            return optax.chain(_scale_by_adam(**arguments), optax.scale_by_schedule(factor))

        self._transformation = _made_of(self._parts, {"scale_by_adam": scale_by_adam})

    def update(self, pairs: Mapping[tuple[Any, ...], tuple[Any, Any]]) -> None:
        """Make a step, given pairs of a variable and its gradient by the variables' paths in the module."""
        import optax
        from flax import nnx

        values = nnx.from_flat_state({path: variable.variable.get_value() for path, (variable, _) in pairs.items()})
        gradients = nnx.from_flat_state({path: gradient for path, (_, gradient) in pairs.items()})
        if self._state is None:
            self._state = self._transformation.init(values)
        updates, self._state = self._transformation.update(gradients, self._state, values)
        for path, value in nnx.to_flat_state(optax.apply_updates(values, updates)):
            pairs[path][0].variable.set_value(value)
        self._paths = {id(variable): path for path, (variable, _) in pairs.items()}
        self.iterations.assign(self.iterations.value + 1)

    def slots_of(self, variable: Any) -> dict[str, Any]:
        """Return the slots of a variable under their TF1 names; none before the first step.

        A momentum of updates, that of RMSprop, has the sign of updates in optax, and that of gradients in TF1.
        """
        path, found = self._paths.get(id(variable)), dict[str, Any]()
        names = [name for name, _ in self._parts]
        before = names[: names.index("trace")] if "trace" in names else []
        is_of_updates = any(_RATE in _ARGUMENTS.get(name, ()) for name in before)
        for state in _states(self._state) if path is not None else ():
            for in_tf1, name in _SLOTS.get(type(state).__name__, {}).items():
                slot = getattr(state, name)
                for key in path or ():
                    slot = slot[key]
                if hasattr(slot, "dtype"):  # of a variable that a mask leaves out, there is none
                    found[in_tf1] = -slot if in_tf1 == "momentum" and is_of_updates else slot
        return found


def _negative(rate: Any) -> Any:
    """Return the negative of a number or of a schedule: optax multiplies gradients by the negative learning rate."""
    return (lambda step: -rate(step)) if callable(rate) else -rate


def _scale_by_adam(eps: Any, **arguments: Any) -> Any:
    """Return what optax's function of this name does, with epsilon added to the root of the uncorrected moment."""
    import optax
    from jax import numpy as jnp

    def epsilon(step: Any) -> Any:
        return eps / jnp.sqrt(1 - arguments["b2"] ** (step + 1))

    return optax.inject_hyperparams(optax.scale_by_adam)(eps=epsilon, **arguments)


def _made_of(parts: Sequence[tuple[str, Mapping[str, Any]]], own: Mapping[str, Any] | None = None) -> Any:
    """Return an optimizer that is made of parts, by functions of optax or by own ones."""
    import optax

    makers = {**{part: getattr(optax, part) for part, _ in parts}, **(own or {})}
    return optax.chain(*(makers[part](**arguments) for part, arguments in parts))


def _is_known(part: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a part does what a part of an optimizer of Keras does."""
    import optax

    if part not in _ARGUMENTS:
        return False
    parameters = inspect.signature(getattr(optax, part)).parameters
    others = arguments.keys() - set(_ARGUMENTS[part].values())
    return all(arguments[name] == parameters[name].default for name in others)


def arguments_of_schedule(schedule: Any) -> dict[str, Any]:
    """Return the arguments of the function of optax that has made a schedule; none if not all of them are known."""
    make = _maker(schedule)
    if make is None:
        return {}
    parameters, known = inspect.signature(make).parameters, _closure(schedule)
    return {name: known[name] for name in parameters} if parameters.keys() <= known.keys() else {}


def schedule_with(schedule: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a schedule of the same function of optax with other arguments."""
    make = _maker(schedule)
    assert make is not None, "arguments_of_schedule has found arguments"
    return make(**arguments)


def _maker(schedule: Any) -> Any:
    if not inspect.isfunction(schedule) or schedule.__module__.split(".")[0] != "optax":
        return None
    import optax

    return getattr(optax, schedule.__qualname__.partition(".")[0], None)


def _closure(function: Any) -> dict[str, Any]:
    """Return what a function takes from the function around it, by name; nothing for what is no function in Python."""
    found = {}
    if inspect.isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # of a name that has got no value
                found[name] = cell.cell_contents
    return found


def _states(state: Any) -> Iterator[Any]:
    yield state
    for inner in state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else ():
        yield from _states(inner)


def _parts_of(transformation: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the functions of optax that have made the parts of an optimizer, with their arguments.

    The name is empty for a part that no public function of optax has made.
    """
    import optax

    init, update = transformation.init, transformation.update
    of_optax = all(inspect.isfunction(each) for each in (init, update)) and update.__module__.split(".")[0] == "optax"
    name = update.__qualname__.partition(".")[0] if of_optax else ""
    inside = [_closure(each) for each in (init, update)] if name else []
    if name == "chain":
        for functions in zip(inside[0]["init_fns"], inside[1]["update_fns"], strict=True):
            yield from _parts_of(optax.GradientTransformation(*functions))
    elif name == "with_extra_args_support":
        yield from _parts_of(inside[1]["tx"])
    elif name == "inject_hyperparams" and all(hasattr(each, "schedule_fn") for each in inside[0]["sched_hps"].values()):
        schedules = {key: each.schedule_fn for key, each in inside[0]["sched_hps"].items()}
        given = {**inside[0]["other_hps"], **inside[0]["numeric_hps"]}
        if _RATE in schedules:
            given[_RATE] = schedules.pop(_RATE)
        yield from _parts_of(inside[0]["inner_factory"](**given, **{key: each(0) for key, each in schedules.items()}))
        yield from [("", {})] * bool(schedules)
    else:
        name = "identity" if update is optax.identity().update else name  # whose functions are in no other function
        parameters = inspect.signature(getattr(optax, name)).parameters if hasattr(optax, name) else {}
        known = {key: value for each in inside for key, value in each.items() if key in parameters}
        yield (name if parameters or name == "identity" else ""), known
