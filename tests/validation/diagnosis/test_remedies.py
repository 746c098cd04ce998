"""What causes say to change, and the forms that frameworks have of it."""

import types

import numpy as np
import pytest

from detrand.validation.diagnosis.causes.cause import Cause, in_one_program, of_hyperparameter, of_values
from detrand.validation.diagnosis.causes.computation import DRAWS_NUMPY, causes
from detrand.validation.diagnosis.causes.training import of_rates
from detrand.validation.diagnosis.causes.updates import of_clipping
from detrand.validation.frameworks.flax import Flax
from detrand.validation.frameworks.framework import Framework
from detrand.validation.frameworks.torch import Torch
from detrand.validation.outcomes.findings import finding_of_cause
from detrand.validation.results import AuditedHyperparameter, OwnForm
from detrand.validation.training.clipping import EACH_ELEMENT, GLOBAL_NORM, NORM_OF_EACH, NOT_CLIPPED, Clipping

FRAMEWORKS = {"keras": Framework(), "torch": Torch(), "flax": Flax(None)}
CONSTANT, CHANGING = {0: 0.1, 2: 0.1}, {0: 0.1, 2: 0.025}


def remedy_in(framework, cause):
    runner = types.SimpleNamespace(framework=FRAMEWORKS[framework])
    return finding_of_cause(runner, "training", cause).remedy


def of(owner, name, tf1, port):
    return of_hyperparameter(AuditedHyperparameter(owner, name, tf1, port))


@pytest.mark.parametrize(
    ("cause", "title", "remedy"),
    [
        (
            of_values("stride", [1, 1], [2, 2]),
            "stride differs: [1, 1] (TF1), [2, 2] (port)",
            "use [1, 1] in the port",
        ),
        (of_values("mask", "none", 3), "mask differs: none (TF1), 3 (port)", "leave this out in the port"),
        (of_values("cycle", True, False), "cycle differs: True (TF1), False (port)", "set cycle to True in the port"),
        (of_values("activation", "", "Relu"), "activation differs:  (TF1), Relu (port)", ""),
        (in_one_program("TF1", "multiplies by 2"), "only TF1 multiplies by 2", "add this to the port"),
        (in_one_program("the port", "pads"), "only the port pads", "remove this from the port"),
        (
            of("bn", "epsilon", "1e-05", "0.001"),
            "epsilon differs in bn: 1e-05 (TF1), 0.001 (port)",
            "use 1e-05 in the port",
        ),
        (
            of("dropout after dense", "rate", "none", "0.5"),
            "rate differs in dropout after dense: none (TF1), 0.5 (port)",
            "leave this out in the port",
        ),
        (
            of("optimizer", "amsgrad", "none", "True"),
            "amsgrad differs in the optimizer: none (TF1), True (port)",
            "leave out amsgrad in the port's optimizer",
        ),
        (
            of("optimizer", "initial rms", "0", "1"),
            "initial rms differs in the optimizer: 0 (TF1), 1 (port)",
            "use 0 in the port",
        ),
        (
            of_rates(0, {0: 0.01}, {0: 0.001}),
            "learning rate differs in step 0: 0.01 (TF1), 0.001 (port)",
            "use 0.01 in the port",
        ),
        (
            of_rates(2, CHANGING, {0: 0.1, 2: 0.05}),
            "learning rate differs in step 2: 0.025 (TF1), 0.05 (port)",
            "make the port's schedule compute TF1's rates",
        ),
        (
            of_rates(2, CHANGING, CONSTANT),
            "learning rate changes only in TF1 until step 2; in step 2: 0.025 (TF1), 0.1 (port)",
            "pass a schedule that computes TF1's rates to the port's optimizer",
        ),
        (
            of_rates(2, CONSTANT, CHANGING, "exponential_decay"),
            "learning rate changes only in the port until step 2; in step 2: 0.1 (TF1), 0.025 (port)",
            "pass TF1's rate, a number, to the port's optimizer",
        ),
        (
            of_clipping(NOT_CLIPPED, Clipping(EACH_ELEMENT, "5"), ""),
            "clipping of gradients differs: none (TF1), each element 5 (port)",
            "do not clip gradients in the port",
        ),
    ],
)
def test_a_cause_says_what_to_change(cause, title, remedy):
    assert cause.title == title
    assert {remedy_in(framework, cause) for framework in FRAMEWORKS} == {remedy}


PRE_HOOK = "clip them in a function that is passed to optimizer.register_step_pre_hook in the port: "
BEFORE = "clip them before the update, with "


@pytest.mark.parametrize(
    ("what", "keras", "torch", "flax"),
    [
        (
            GLOBAL_NORM,
            "pass global_clipnorm=0.5 to the port's optimizer",
            f"{PRE_HOOK}torch.nn.utils.clip_grad_norm_(parameters, 0.5)",
            f"{BEFORE}optax.chain(optax.clip_by_global_norm(0.5), optimizer)",
        ),
        (
            NORM_OF_EACH,
            "pass clipnorm=0.5 to the port's optimizer",
            f"{PRE_HOOK}for each in parameters: torch.nn.utils.clip_grad_norm_([each], 0.5)",
            f"{BEFORE}optax.chain(optax.stateless(lambda gradients, _: jax.tree.map(lambda each: each / "
            "jnp.maximum(jnp.linalg.norm(each.ravel()) / 0.5, 1), gradients)), optimizer)",
        ),
        (
            EACH_ELEMENT,
            "pass clipvalue=0.5 to the port's optimizer",
            f"{PRE_HOOK}torch.nn.utils.clip_grad_value_(parameters, 0.5)",
            f"{BEFORE}optax.chain(optax.clip(0.5), optimizer)",
        ),
    ],
)
def test_gradients_are_clipped_as_a_framework_does_it(what, keras, torch, flax):
    cause = of_clipping(Clipping(what, "0.5"), NOT_CLIPPED, "")
    assert cause.title == f"clipping of gradients differs: {what} 0.5 (TF1), none (port)"
    assert [remedy_in(framework, cause) for framework in FRAMEWORKS] == [keras, torch, flax]


@pytest.mark.parametrize(
    ("cause", "title", "keras", "torch", "flax"),
    [
        (
            of("optimizer", "initial rms", "1", "0"),
            "initial rms differs in the optimizer: 1 (TF1), 0 (port)",
            "return tf.compat.v1.train.RMSPropOptimizer in the port, or a subclass of keras.optimizers.RMSprop whose "
            "add_optimizer_variables makes the velocities of ones: Keras has no argument for them",
            "give each parameter a state before the first step: optimizer.state[each] = dict(step=torch.zeros(()), "
            "square_avg=torch.ones_like(each)), and zeros as momentum_buffer with a momentum, as grad_avg if centered",
            "pass initial_scale=1.0 to optax.rmsprop",
        ),
        (
            of_rates(2, CHANGING, CONSTANT, "exponential_decay"),
            "learning rate changes only in TF1 (exponential_decay) until step 2; in step 2: 0.025 (TF1), 0.1 (port)",
            "pass a schedule of keras.optimizers.schedules to the port's optimizer that computes what "
            "exponential_decay does in TF1",
            "step a schedule of torch.optim.lr_scheduler that computes what exponential_decay does in TF1: "
            "optimizer.register_step_post_hook(lambda *_: schedule.step())",
            "pass a schedule of optax to the port's optimizer that computes what exponential_decay does in TF1",
        ),
    ],
    ids=["initial rms", "schedule"],
)
def test_an_optimizer_is_changed_as_a_framework_does_it(cause, title, keras, torch, flax):
    assert cause.title == title
    assert [remedy_in(framework, cause) for framework in FRAMEWORKS] == [keras, torch, flax]


def test_the_momentum_of_moving_averages_is_that_of_the_framework():
    of_layer, of_optimizer = (of(owner, "momentum", "0.99", "0.9") for owner in ("bn", "optimizer"))
    assert remedy_in("keras", of_layer) == remedy_in("torch", of_optimizer) == "use 0.99 in the port"
    assert remedy_in("torch", of_layer) == "pass momentum=0.01: in PyTorch, it is the share of the new value"


IN_BOTH = {
    *(OwnForm.CLIP_GLOBAL_NORM, OwnForm.CLIP_EACH_NORM, OwnForm.CLIP_ELEMENTS, OwnForm.EPSILON_OF_ADAM),
    *(OwnForm.BIAS_OF_ADAM, OwnForm.INITIAL_RMS, OwnForm.SCHEDULE),
    *(OwnForm.FROM_LOGITS, OwnForm.FROM_PROBABILITIES, OwnForm.EXCHANGE, OwnForm.SMOOTH_LABELS),
}
IN_FLAX = {OwnForm.FLATTEN}


@pytest.mark.parametrize("form", OwnForm)
def test_each_form_is_one_of_a_framework(form):
    texts = {name: framework.own_form(form, "1") for name, framework in FRAMEWORKS.items()}
    expected = {"torch", "flax"} if form in IN_BOTH else {"flax"} if form in IN_FLAX else {"torch"}
    assert {name for name, text in texts.items() if text} == expected
    assert not any("{" in text for text in texts.values())


@pytest.mark.parametrize(("kind", "confirmed"), [("computation", "the rest agrees"), ("training", "")])
def test_the_remedy_of_a_computation_is_that_of_a_confirmed_cause(kind, confirmed):
    cause = Cause("a cause", confirmed, remedy="change it")
    assert finding_of_cause(None, kind, cause).remedy == "change it"
    assert finding_of_cause(None, "computation", cause._replace(confirmed="")).remedy == ""


@pytest.mark.parametrize(
    ("of_port", "remedy"),
    [
        (0.4, "pass half the factor to Keras's L2: tf.nn.l2_loss(w) is sum(w**2) / 2"),
        (0.1, "pass twice the factor to Keras's L2: tf.nn.l2_loss(w) is sum(w**2) / 2"),
        (0.6, ""),
    ],
)
def test_a_loss_of_squares_that_is_twice_or_half_of_tf1s_says_which_factor_to_pass(of_port, remedy):
    (cause,) = causes(losses=(np.float64(of_port), np.float64(0.2)))
    assert cause.title.startswith("factor of a regularizer differs: the port's regularization loss is ")
    assert cause.remedy == remedy


def test_draws_from_numpy_have_a_remedy_though_no_run_confirms_them():
    (cause,) = causes(draws_numpy=True)
    runner = types.SimpleNamespace(framework=FRAMEWORKS["keras"])
    assert cause == DRAWS_NUMPY
    assert finding_of_cause(runner, "computation", cause).remedy == "pass Migration(seed_numpy=True)"
