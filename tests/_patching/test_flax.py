"""Optimizers of optax: their hyperparameters by their names in Keras, and what they do with others."""

import functools

import numpy as np
import pytest

from detrand._patching.flax import OptaxOptimizer, arguments_of_schedule, schedule_with

optax = pytest.importorskip("optax")
nnx = pytest.importorskip("flax.nnx")
jnp = pytest.importorskip("jax").numpy


class Variable:
    """What an optimizer asks of a variable: Flax's variable."""

    def __init__(self):
        self.variable = nnx.Param(jnp.ones(3))


def trained(optimizer, steps=3):
    """Return a variable after some steps with gradients of their own."""
    variable = Variable()
    for step in range(steps):
        optimizer.update({("layer", "kernel"): (variable, jnp.array([1.0, -0.5, 1e-6]) * (step + 1))})
    return np.asarray(variable.variable[...]), optimizer.slots_of(variable)


def schedule(step):
    return 0.1 / (1 + step)


OF_SGD = {"learning_rate": 0.1, "momentum": 0.0, "nesterov": False}
OF_ADAM = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
OF_RMSPROP = {"learning_rate": 0.1, "momentum": 0.9, "rho": 0.8, "epsilon": 1e-8, "initial_rms": 1.0, "centered": False}
KNOWN = {
    "SGD": (lambda: optax.sgd(0.1), OF_SGD),
    "momentum": (lambda: optax.sgd(0.1, 0.9, nesterov=True), {**OF_SGD, "momentum": 0.9, "nesterov": True}),
    "Adam": (lambda: optax.adam(0.1), OF_ADAM),
    "RMSprop": (lambda: optax.rmsprop(0.1, 0.8, initial_scale=1.0, momentum=0.9), OF_RMSPROP),
    "Adagrad": (
        lambda: optax.adagrad(0.1),
        {"learning_rate": 0.1, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    ),
    "clipped": (
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.clip(0.1), optax.adam(0.1)),
        {**OF_ADAM, "global_clipnorm": 0.5, "clipvalue": 0.1},
    ),
    "injected": (lambda: optax.inject_hyperparams(optax.adam)(0.1), OF_ADAM),
}


@pytest.mark.parametrize("name", KNOWN)
def test_hyperparameters_have_their_names_in_keras(name):
    make, expected = KNOWN[name]
    optimizer = OptaxOptimizer(make())
    assert optimizer.hyperparameters == expected
    assert optimizer.learning_rate == 0.1
    assert optimizer.kind == {"momentum": "SGD", "clipped": "Adam", "injected": "Adam"}.get(name, name)


@pytest.mark.parametrize(
    ("make", "rate"),
    [
        pytest.param(lambda: optax.adam(0.1, nesterov=True), 0.1, id="nesterov's adam"),
        pytest.param(lambda: optax.lamb(0.1), 0.1, id="lamb"),
        pytest.param(lambda: optax.adamw(0.1, mask=lambda params: params), 0.1, id="masked"),
        pytest.param(lambda: optax.chain(optax.scale(2.0), optax.sgd(0.1)), None, id="two rates"),
        pytest.param(lambda: optax.inject_hyperparams(optax.adam)(0.1, eps=schedule), 0.1, id="scheduled epsilon"),
        pytest.param(
            lambda: optax.GradientTransformation(lambda params: None, lambda updates, state, params: (updates, state)),
            None,
            id="own",
        ),
    ],
)
def test_what_no_optimizer_of_keras_does_has_no_hyperparameters(make, rate):
    optimizer = OptaxOptimizer(make())
    assert (optimizer.kind, optimizer.hyperparameters, optimizer.learning_rate) == ("", {}, rate)


def test_a_schedule_is_read_at_a_step():
    for make in (optax.sgd, optax.inject_hyperparams(optax.sgd)):
        optimizer = OptaxOptimizer(make(schedule))
        assert optimizer.learning_rate == pytest.approx(0.1)
        optimizer.iterations.assign(9)
        assert optimizer.learning_rate == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("make", "name", "value", "expected"),
    [
        (lambda: optax.sgd(0.1), "learning_rate", 0.2, lambda: optax.sgd(0.2)),
        (lambda: optax.sgd(0.1), "learning_rate", schedule, lambda: optax.sgd(schedule)),
        (lambda: optax.sgd(0.1), "momentum", 0.9, lambda: optax.sgd(0.1, 0.9)),
        (lambda: optax.adam(0.1), "epsilon", 1e-3, lambda: optax.adam(0.1, eps=1e-3)),
        (lambda: optax.rmsprop(0.1), "initial_rms", 1.0, lambda: optax.rmsprop(0.1, initial_scale=1.0)),
        (lambda: optax.rmsprop(0.1), "momentum", 0.9, lambda: optax.rmsprop(0.1, momentum=0.9)),
        (
            lambda: optax.sgd(0.1),
            "global_clipnorm",
            0.5,
            lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
        ),
        (lambda: optax.chain(optax.clip(0.1), optax.sgd(0.1)), "clipvalue", None, lambda: optax.sgd(0.1)),
    ],
)
def test_an_optimizer_with_another_value_does_what_optax_does_with_it(make, name, value, expected):
    changed = OptaxOptimizer(make())
    changed.set(name, value)
    np.testing.assert_array_equal(trained(changed)[0], trained(OptaxOptimizer(expected()))[0])


@pytest.mark.parametrize("is_centered", [False, True], ids=["plain", "centered"])
def test_the_momentum_of_rmsprop_is_that_of_tf1(is_centered):
    own = {"eps_in_sqrt": True, "initial_scale": 1.0, "momentum": 0.5, "centered": is_centered}
    optimizer = OptaxOptimizer(optax.rmsprop(0.1, 0.8, 1e-3, **own))
    gradients, squares, momentum = np.zeros(3), np.ones(3), np.zeros(3)
    for step in range(1, 4):  # the kernels ApplyRMSProp and ApplyCenteredRMSProp
        gradient = np.array([1.0, -0.5, 1e-6]) * step
        gradients = 0.8 * gradients + 0.2 * gradient if is_centered else 0.0
        squares = 0.8 * squares + 0.2 * gradient**2
        momentum = 0.5 * momentum + 0.1 * gradient / np.sqrt(squares - gradients**2 + 1e-3)
    np.testing.assert_allclose(trained(optimizer)[1]["momentum"], momentum, rtol=1e-6)


def test_the_momentum_of_sgd_is_that_of_tf1():
    momentum = trained(OptaxOptimizer(optax.sgd(0.1, 0.5)), 1)[1]["momentum"]
    np.testing.assert_array_equal(momentum, np.float32([1.0, -0.5, 1e-6]))


LINEAR = {"init_value": 0.0, "end_value": 0.1, "power": 1, "transition_steps": 3, "transition_begin": 0}
SCHEDULES = {
    "exponential": (
        lambda: optax.exponential_decay(0.1, 2, 0.5, end_value=0.01),
        {"init_value": 0.1, "transition_steps": 2, "decay_rate": 0.5, "transition_begin": 0, "end_value": 0.01},
    ),
    "linear": (lambda: optax.linear_schedule(0.0, 0.1, 3), LINEAR),
    "cosine": (
        lambda: optax.cosine_decay_schedule(0.1, 4, alpha=0.2),
        {"init_value": 0.1, "decay_steps": 4, "alpha": 0.2, "exponent": 1.0},
    ),
    "piecewise": (
        lambda: optax.piecewise_constant_schedule(0.1, {2: 0.5}),
        {"init_value": 0.1, "boundaries_and_scales": {2: 0.5}},
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_the_arguments_of_its_function(name):
    make, expected = SCHEDULES[name]
    optimizer = OptaxOptimizer(optax.chain(optax.clip(1.0), optax.sgd(make())))
    arguments = arguments_of_schedule(optimizer.schedule)
    assert {**arguments, **expected} == arguments
    again = schedule_with(optimizer.schedule, arguments)
    np.testing.assert_array_equal([again(step) for step in range(6)], [make()(step) for step in range(6)])


def test_schedules_that_are_joined_have_their_own_arguments():
    (arguments, boundaries) = arguments_of_schedule(optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 9)).values()
    assert boundaries == [3]
    assert [arguments_of_schedule(each)["init_value"] for each in arguments] == [0.0, 0.1]


def test_a_schedule_of_the_users_own_has_no_arguments():
    assert OptaxOptimizer(optax.sgd(schedule)).schedule is schedule
    assert OptaxOptimizer(optax.scale_by_schedule(functools.partial(schedule))).schedule is None
    assert arguments_of_schedule(schedule) == {}
    assert OptaxOptimizer(optax.sgd(0.1)).schedule is None


def test_adam_adds_epsilon_as_tf1_does():
    optimizer = OptaxOptimizer(optax.adam(0.1, eps=1e-3))
    optimizer.add_epsilon_as_in_tf1()
    expected, m, v = np.ones(3), np.zeros(3), np.zeros(3)
    for step in range(1, 4):
        gradient = np.array([1.0, -0.5, 1e-6]) * step
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        expected -= 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step) * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(trained(optimizer)[0], expected, rtol=1e-5)


def test_slots_have_their_names_in_tf1():
    names = {
        "m": optax.adam,
        "momentum": lambda rate: optax.sgd(rate, 0.9),
        "rms": optax.rmsprop,
        "accumulator": optax.adagrad,
        "accum": optax.adadelta,
    }
    for name, make in names.items():
        _, slots = trained(OptaxOptimizer(make(0.1)), steps=1)
        assert name in slots
    _, slots = trained(OptaxOptimizer(optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9)), steps=1)
    np.testing.assert_allclose(slots["momentum"], [1.0, -0.5, 1e-6])
