"""Optimizers: the slots of a variable under their TF1 names, learning rates and hyperparameters.

The optimizers are those of ``tf.compat.v1.train``, of Keras 3, of tf_keras, of PyTorch and of optax.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand._patching import flax, torch
from detrand._patching.flax import OptaxOptimizer
from detrand._patching.keras import is_instance_of_loaded, underlying_variable
from detrand._patching.patches import Target
from detrand.packages import tf

# Keras's SGD accumulates gradients times the negative learning rate, TF1's MomentumOptimizer accumulates gradients.
SCALED_MOMENTUM = "momentum times the negative learning rate"
# The slot that holds the moving average of a weight, by the default name that TF1 gives it.
AVERAGE_OF_WEIGHT = "ExponentialMovingAverage"
# All gradients of a TF1 graph pass through this function: those of optimizers, and of ``tf.gradients``.
GRADIENTS = Target("tensorflow.python.ops.gradients_util", "_GradientsHelper", ("ys", "xs", "grad_ys"))
APPLY_GRADIENTS = Target(
    "tensorflow.python.training.optimizer", "Optimizer.apply_gradients", ("self", "grads_and_vars")
)

# Name in TF1 -> attribute of the optimizers of Keras 3 and tf_keras, a list with one slot for each trained variable.
_ATTRIBUTES = {
    "SGD": {SCALED_MOMENTUM: "momentums"},
    "Adam": {"m": "_momentums", "v": "_velocities"},
    "RMSprop": {"rms": "_velocities", "momentum": "_momentums", "mg": "_average_gradients"},
    "Adagrad": {"accumulator": "_accumulators"},
    "Adadelta": {"accum": "_accumulated_grads", "accum_update": "_accumulated_delta_vars"},
    "Ftrl": {"accum": "_accumulators", "linear": "_linears"},
}
# Slot of a legacy optimizer of tf_keras -> name in TF1, where the two names differ; both use the same kernels.
_OLDER_NAMES = {
    "SGD": {"momentum": SCALED_MOMENTUM},
    "Adadelta": {"accum_grad": "accum", "accum_var": "accum_update"},
    "Ftrl": {"accumulator": "accum"},
}
_UPDATES = ("update_step", "_resource_apply_dense", "_resource_apply_sparse", "_apply_dense", "_apply_sparse")
_PACKAGES = ("tensorflow", "keras", "tf_keras")


def slots_of_optimizer(optimizer: Any, variable: Any) -> dict[str, Any]:
    """Return an optimizer's slots of a TensorFlow variable under their TF1 names; none before the first update.

    If its update is defined outside TensorFlow and Keras, the meaning of its slots is unknown: only the average of the
    variable is returned, which also a ``tf.train.ExponentialMovingAverage`` keeps.
    """
    if is_torch_optimizer(optimizer):
        return _slots_in_torch(optimizer, variable)
    if isinstance(optimizer, OptaxOptimizer):
        return optimizer.slots_of(variable)
    average = _average(optimizer, variable)
    found = {} if average is None else {AVERAGE_OF_WEIGHT: average}
    return found if is_average(optimizer) else found | _slots(optimizer, variable)


# Name in TF1 -> key of the state of a parameter in PyTorch. Its momentum of RMSprop has no learning rate, TF1's has.
_STATE_IN_TORCH = {
    "SGD": {"momentum": "momentum_buffer"},
    "Adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "RMSprop": {"rms": "square_avg", "mg": "grad_avg"},
    "Adagrad": {"accumulator": "sum"},
    "Adadelta": {"accum": "square_avg", "accum_update": "acc_delta"},
}


def is_torch_optimizer(optimizer: Any) -> bool:
    """Return whether an object is an optimizer of ``torch.optim``, without importing it."""
    return is_instance_of_loaded(optimizer, "torch", "optim.Optimizer")


def is_tf1_optimizer(optimizer: Any) -> bool:
    """Return whether an object is a ``tf.compat.v1.train.Optimizer``, without importing TensorFlow."""
    return is_instance_of_loaded(optimizer, "tensorflow", "compat.v1.train.Optimizer")


def _slots_in_torch(optimizer: Any, variable: Any) -> dict[str, Any]:
    state = optimizer.state.get(variable.tensor, {})
    keys = _STATE_IN_TORCH.get(type(optimizer).__name__, {}) if type(optimizer).__module__[:6] == "torch." else {}
    return {name: state[key].clone() for name, key in keys.items() if state.get(key) is not None}


_NAMES_IN_TORCH = {"lr": "learning_rate", "eps": "epsilon", "alpha": "rho"}
_BETAS = ("beta_1", "beta_2")


def hyperparameters_of_torch_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return the hyperparameters of an optimizer of ``torch.optim`` by their names in Keras.

    One that differs between groups of parameters is a tuple of its values; a weight decay, of those that are not 0.
    """
    given: dict[str, Any] = {}
    for name in optimizer.defaults:
        values = [group[name] for group in optimizer.param_groups]
        values = [each for each in values if each or name != "weight_decay"] or values
        is_one = all(each == values[0] for each in values)
        given[_NAMES_IN_TORCH.get(name, name)] = values[0] if is_one else tuple(values)
    return given | dict(zip(_BETAS, given.pop("betas", ()), strict=False))


def initial_rms_in_torch(optimizer: Any) -> float | None:
    """Return what the squares of an RMSprop of ``torch.optim`` begin with; None if not all of them are one number."""
    squares = [state["square_avg"] for state in optimizer.state.values() if "square_avg" in state]
    numbers = {float(number) for each in squares for number in each.unique()} if squares else {0.0}
    return numbers.pop() if len(numbers) == 1 else None


def has_hyperparameter(optimizer: Any, name: str) -> bool:
    """Return whether `set_hyperparameter` can give an optimizer a hyperparameter, by its name in Keras."""
    if is_torch_optimizer(optimizer):
        return name in hyperparameters_of_torch_optimizer(optimizer)
    if isinstance(optimizer, OptaxOptimizer):
        return name in optimizer.hyperparameters
    return hasattr(optimizer, name) or bool(_slots_that_begin(optimizer, name))


def set_hyperparameter(optimizer: Any, name: str, value: Any) -> None:
    """Give an optimizer that is not built yet another value of a hyperparameter, such as ``"initial_rms"``."""
    if isinstance(optimizer, OptaxOptimizer):
        optimizer.set(name, value)
        return
    if not is_torch_optimizer(optimizer):
        if hasattr(optimizer, name):
            setattr(optimizer, name, value)
        else:
            _begin_slots(optimizer, _slots_that_begin(optimizer, name), value)
        return
    for group in optimizer.param_groups:
        if name in _BETAS:
            group["betas"] = tuple(
                value if each == name else beta for each, beta in zip(_BETAS, group["betas"], strict=True)
            )
        else:
            group[next((key for key, other in _NAMES_IN_TORCH.items() if other == name and key in group), name)] = value


def _slots_that_begin(optimizer: Any, name: str) -> str:
    """Return the attribute of an optimizer of Keras with the slots whose initial value a name stands for, or none."""
    kinds = (kind.__name__ for kind in type(optimizer).__mro__)
    slots = next((_ATTRIBUTES[kind] for kind in kinds if kind in _ATTRIBUTES), {})
    is_initial = name.startswith("initial_") and hasattr(optimizer, "build")
    return slots.get(name.removeprefix("initial_"), "") if is_initial else ""


def _begin_slots(optimizer: Any, attribute: str, value: float) -> None:
    """Make an optimizer of Keras give slots an initial value when it is built."""
    original = optimizer.build

    def build(variables: Any) -> None:
        original(variables)
        for slot in getattr(optimizer, attribute):
            slot.assign(np.full(slot.shape, value, np.float32))

    optimizer.build = build


def before_each_step_in_torch(optimizer: Any, change: Callable[[int], None]) -> None:
    """Call a function before each step of an optimizer of ``torch.optim``, with the number of the step."""
    numbers = itertools.count()
    optimizer.register_step_pre_hook(lambda *_: change(next(numbers)))


def has_hooks(optimizer: Any) -> bool:
    """Return whether functions are called before each step of an optimizer of ``torch.optim``."""
    return is_torch_optimizer(optimizer) and bool(optimizer._optimizer_step_pre_hooks)


def epsilon_as_in_tf1(optimizer: Any) -> None:
    """Make an Adam of PyTorch or optax add its epsilon where TF1 does, to the root of the uncorrected moment."""
    if isinstance(optimizer, OptaxOptimizer):
        optimizer.add_epsilon_as_in_tf1()
        return
    epsilon, beta = optimizer.param_groups[0]["eps"], optimizer.param_groups[0]["betas"][1]

    def change(step: int) -> None:
        set_hyperparameter(optimizer, "epsilon", epsilon / math.sqrt(1 - beta ** (step + 1)))

    before_each_step_in_torch(optimizer, change)


def without_bias_correction(optimizer: Any) -> None:
    """Make an Adam of Keras 3, PyTorch or optax use its moments as they are, as BERT's optimizer for TF1 does.

    Its first moment is not divided by ``1 - beta_1**t``, nor its second one by ``1 - beta_2**t``, in step t. A decay of
    weights beside the update, that of AdamW, stays as it is.
    """
    if isinstance(optimizer, OptaxOptimizer):
        optimizer.leave_out_bias_correction()
    elif is_torch_optimizer(optimizer):
        _without_bias_correction_in_torch(optimizer)
    else:
        for name in ("update_step", "_parallel_update_step"):  # the second one on PyTorch
            if hasattr(optimizer, name):
                _scale_rate_in_keras3(optimizer, name)


def _scale_rate_in_keras3(optimizer: Any, method: str) -> None:
    from keras import ops

    original = getattr(optimizer, method)

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        step = ops.cast(optimizer.iterations + 1, "float32")
        factor = (1 - ops.power(optimizer.beta_1, step)) / ops.sqrt(1 - ops.power(optimizer.beta_2, step))
        original(gradient, variable, learning_rate * factor)

    setattr(optimizer, method, update_step)


def _without_bias_correction_in_torch(optimizer: Any) -> None:
    saved: list[dict[str, Any]] = []
    numbers, is_adamw = itertools.count(1), is_instance_of_loaded(optimizer, "torch", "optim.AdamW")

    def change(*_: Any) -> None:
        step = next(numbers)
        saved[:] = [{name: group[name] for name in ("lr", "eps", "weight_decay")} for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            first, second = (1 - beta**step for beta in group["betas"])
            factor = first / math.sqrt(second)
            group.update(lr=group["lr"] * factor, eps=group["eps"] / math.sqrt(second))
            if group.get("decoupled_weight_decay", is_adamw):
                group["weight_decay"] /= factor

    def restore(*_: Any) -> None:
        for group, values in zip(optimizer.param_groups, saved, strict=True):
            group.update(values)

    optimizer.register_step_pre_hook(change)
    handle = optimizer.register_step_post_hook(restore)
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # before a schedule of the user's steps


def corrects_bias(optimizer: Any) -> str:
    """Return whose Adam an optimizer is if it corrects the bias of its moments; empty if not, or if not known."""
    is_of_keras3 = is_instance_of_loaded(optimizer, "keras", "optimizers.Adam")
    return "Keras" if is_of_keras3 else corrects_before_epsilon(optimizer)


def corrects_before_epsilon(optimizer: Any) -> str:
    """Return whose Adam an optimizer is if it adds its epsilon after it has corrected the moments; empty if not."""
    if isinstance(optimizer, OptaxOptimizer):
        return "optax" if optimizer.kind == "Adam" else ""
    is_torchs = any(is_instance_of_loaded(optimizer, "torch", f"optim.{name}") for name in ("Adam", "AdamW"))
    return "PyTorch" if is_torchs else ""


def adds_epsilon_to_root(optimizer: Any) -> bool:
    """Return whether an optimizer is an RMSprop of PyTorch, which adds its epsilon to the root of the average."""
    return is_instance_of_loaded(optimizer, "torch", "optim.RMSprop")


def epsilon_in_root(optimizer: Any) -> None:
    """Make an RMSprop of PyTorch take the root of the average and its epsilon, as TF1's does.

    Each parameter is set anew after a step, from what it and its momentum were before.
    """
    import torch

    before: list[tuple[dict[str, Any], Any, Any, Any]] = []

    def keep(*_: Any) -> None:
        trained = ((group, each) for group in optimizer.param_groups for each in group["params"])
        states = ((group, each, optimizer.state.get(each, {})) for group, each in trained if each.grad is not None)
        before[:] = [
            (
                group,
                each,
                each.detach().clone(),
                torch.clone(state["momentum_buffer"]) if group["momentum"] and state else 0.0,
            )
            for group, each, state in states
        ]

    @torch.no_grad()  # type: ignore[misc, untyped-decorator, unused-ignore]
    def correct(*_: Any) -> None:
        for group, parameter, weight, momentum in before:
            state = optimizer.state[parameter]
            average = state["square_avg"] - (state["grad_avg"] ** 2 if group["centered"] else 0)
            gradient = parameter.grad + group["weight_decay"] * weight
            update = group["momentum"] * momentum + gradient / torch.sqrt(average + group["eps"])
            if group["momentum"]:
                state["momentum_buffer"].copy_(update)
            parameter.copy_(weight - group["lr"] * update)

    optimizer.register_step_pre_hook(keep)
    handle = optimizer.register_step_post_hook(correct)
    optimizer._optimizer_step_post_hooks.move_to_end(handle.id, last=False)  # before a schedule of the user's steps


def is_average(optimizer: Any) -> bool:
    """Return whether an object is a ``tf.train.ExponentialMovingAverage``."""
    return is_instance_of_loaded(optimizer, "tensorflow", "train.ExponentialMovingAverage")


def _average(optimizer: Any, variable: Any) -> Any:
    if is_average(optimizer):
        return optimizer.average(variable)
    averages = getattr(optimizer, "_model_variables_moving_average", ()) if getattr(optimizer, "use_ema", False) else ()
    position = _position(optimizer, variable) if averages else None
    return None if position is None else underlying_variable(averages[position])


def _slots(optimizer: Any, variable: Any) -> dict[str, Any]:
    updates = [getattr(type(optimizer), name, None) for name in _UPDATES]
    if not all(update is None or update.__module__.partition(".")[0] in _PACKAGES for update in updates):
        return {}
    if hasattr(optimizer, "get_slot_names"):
        names = next((of for name, of in _OLDER_NAMES.items() if _is_older(optimizer, name)), {})
        slots = {name: _slot(optimizer, variable, name) for name in optimizer.get_slot_names()}
        return {names.get(name, name): slot for name, slot in slots.items() if slot is not None}
    attributes = next((of for name, of in _ATTRIBUTES.items() if _is_of_keras(optimizer, name)), {})
    position = _position(optimizer, variable)
    found = {name: getattr(optimizer, attribute, ()) for name, attribute in attributes.items()}
    return {
        name: underlying_variable(slots[position]) for name, slots in found.items() if position is not None and slots
    }


def _is_older(optimizer: Any, name: str) -> bool:
    return is_instance_of_loaded(optimizer, "tf_keras", f"optimizers.legacy.{name}")


def _is_of_keras(optimizer: Any, name: str) -> bool:
    return any(is_instance_of_loaded(optimizer, package, f"optimizers.{name}") for package in ("keras", "tf_keras"))


def _slot(optimizer: Any, variable: Any, name: str) -> Any:
    try:
        return optimizer.get_slot(variable, name)
    except KeyError:  # of a legacy optimizer of tf_keras; the others return None for a slot that does not exist
        return None


def _position(optimizer: Any, variable: Any) -> int | None:
    """Return the position of a variable among those that an optimizer of Keras 3 or tf_keras trains, or None."""
    if hasattr(optimizer, "_index_dict"):
        return optimizer._index_dict.get(optimizer._var_key(variable))
    trained = [underlying_variable(one) for one in getattr(optimizer, "_trainable_variables", ())]
    return next((position for position, one in enumerate(trained) if one is variable), None)


def make_slots(optimizer: Any, variables: list[Any]) -> None:
    """Create an optimizer's slots, which it would otherwise create in its first update."""
    # The methods of Keras 3 and tf_keras, of legacy optimizers of tf_keras, and of TF1.
    for name in ("build", "_create_all_weights", "_create_slots"):
        if hasattr(optimizer, name):
            getattr(optimizer, name)(variables)
            return


def learning_rate_of(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer's next update, a number or a tensor; None if it has none."""
    if is_torch_optimizer(optimizer):
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        return rates.pop() if len(rates) == 1 else None
    if isinstance(optimizer, OptaxOptimizer):
        return optimizer.learning_rate
    if is_instance_of_loaded(
        optimizer, "tf_keras", "optimizers.legacy.Optimizer"
    ):  # its argument decay changes its rate
        return optimizer._decayed_lr(tf.float32)
    # The public property of tf_keras's optimizers is the rate of the last update.
    is_of_tf_keras = is_instance_of_loaded(optimizer, "tf_keras", "optimizers.Optimizer")
    names = ("_learning_rate",) if is_of_tf_keras else ("_lr", "learning_rate", "_learning_rate")
    rate = next((rate for name in names if (rate := getattr(optimizer, name, None)) is not None), None)
    if not callable(rate):
        return rate
    return rate(optimizer.iterations) if hasattr(optimizer, "iterations") else rate()


def schedule_of(optimizer: Any) -> Any:
    """Return the schedule of an optimizer's learning rate, a function or one of PyTorch; None if it has none."""
    if is_torch_optimizer(optimizer):
        return torch.schedule_of(optimizer)
    if isinstance(optimizer, OptaxOptimizer):
        return optimizer.schedule
    rates = getattr(optimizer, "_learning_rate", None), getattr(optimizer, "learning_rate", None)
    return next((rate for rate in rates if callable(rate)), None)


def arguments_of_schedule(schedule: Any) -> dict[str, Any]:
    """Return the arguments of a schedule of Keras, PyTorch or optax; none of a schedule that does not show them."""
    if torch.is_schedule(schedule):
        return torch.arguments_of_schedule(schedule)
    is_of_keras = hasattr(schedule, "get_config")
    return dict(schedule.get_config()) if is_of_keras else flax.arguments_of_schedule(schedule)


def schedule_with(schedule: Any, arguments: dict[str, Any]) -> Any:
    """Return a schedule of the same kind with other arguments, a function of the step."""
    if torch.is_schedule(schedule):
        return torch.ChangedSchedule(schedule, arguments)
    is_of_keras = hasattr(schedule, "from_config")
    return type(schedule).from_config(arguments) if is_of_keras else flax.schedule_with(schedule, arguments)


def hyperparameters_of_tf1_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return the hyperparameters that a ``tf.compat.v1.train.Optimizer`` was given, numbers and tensors, by name."""
    from tensorflow.python.framework import tensor

    attributes = {name.removeprefix("_"): value for name, value in vars(optimizer).items()}
    return {name: value for name, value in attributes.items() if isinstance(value, (int, float, tensor.Tensor))}
