"""A port's Adam that corrects the bias of its moments, where TF1's optimizer, as BERT's, uses them as they are."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from tests.support.keras3_process import is_installed

v1 = tf.compat.v1
RATE, DECAY, EPSILON = 0.01, 0.1, 1e-6
INPUTS = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 8)


class WithoutCorrection(v1.train.Optimizer):
    """What BERT trains with: the moments are not divided by ``1 - beta**t``, and all weights decay."""

    def __init__(self, rate=RATE):
        super().__init__(False, "without_correction")
        self.learning_rate, self.epsilon = rate, EPSILON

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        for gradient, weights in grads_and_vars:
            of_weights = weights.op.name
            first, second = (
                v1.get_variable(
                    f"{of_weights}/{moment}", weights.shape, trainable=False, initializer=v1.zeros_initializer()
                )
                for moment in ("adam_m", "adam_v")
            )
            next_first, next_second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            change = next_first / (tf.sqrt(next_second) + self.epsilon) + DECAY * weights
            updates += [weights.assign(weights - self.learning_rate * change), first.assign(next_first)]
            updates += [second.assign(next_second)]
        if global_step is not None:
            updates.append(global_step.assign_add(1))
        return tf.group(*updates)


def warmed_up(loss):
    step, weights = v1.train.get_or_create_global_step(), v1.trainable_variables()
    rate = tf.minimum(RATE, RATE * tf.cast(step + 1, tf.float32) / 3)
    gradients, _ = tf.clip_by_global_norm(v1.gradients(loss, weights), 0.5)
    return WithoutCorrection(rate).apply_gradients(zip(gradients, weights, strict=True), step)


def logits_of(inputs, training):
    kernel = v1.get_variable("kernel", [6, 3])
    return inputs @ kernel + v1.get_variable("bias", [3], initializer=v1.zeros_initializer())


def migration(port, port_loss, port_optimizer, names, **of_tf1):
    return detrand.Migration(
        tf1=logits_of,
        port=port,
        inputs=INPUTS,
        name_map=dict(zip(("kernel", "bias"), names, strict=True)),
        train=detrand.TrainStep(
            labels=LABELS,
            tf1_loss=v1.losses.sparse_softmax_cross_entropy,
            port_loss=port_loss,
            port_optimizer=port_optimizer,
            steps=4,
            **(of_tf1 or {"tf1_optimizer": WithoutCorrection}),
        ),
    )


def of_keras(optimizer):
    def port():
        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(inputs))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return migration(port, loss, optimizer, ("logits/kernel", "logits/bias"))


class OfKeras(keras.optimizers.AdamW):
    """The remedy of the finding."""

    def update_step(self, gradient, variable, learning_rate):
        step = keras.ops.cast(self.iterations + 1, "float32")
        factor = (1 - self.beta_1**step) / keras.ops.sqrt(1 - self.beta_2**step)
        super().update_step(gradient, variable, learning_rate * factor)


def of_torch(optimizer, **of_tf1):
    import torch

    def port():
        module = torch.nn.Linear(6, 3)
        torch.nn.init.xavier_uniform_(module.weight)
        torch.nn.init.zeros_(module.bias)
        return module

    def loss(labels, logits):
        return torch.nn.functional.cross_entropy(logits, labels)

    return migration(port, loss, optimizer, ("weight", "bias"), **of_tf1)


def adamw_of_torch(parameters, **arguments):
    import torch

    return torch.optim.AdamW(parameters, RATE, eps=EPSILON, weight_decay=DECAY, **arguments)


def remedy_in_torch(parameters):
    optimizer, steps = adamw_of_torch(parameters), itertools.count(1)

    def change(*_):
        step = next(steps)
        root = math.sqrt(1 - 0.999**step)
        factor = (1 - 0.9**step) / root
        for group in optimizer.param_groups:
            group.update(lr=RATE * factor, eps=EPSILON / root, weight_decay=DECAY / factor)

    def restore(*_):  # so that the rate is the one that the check reads
        for group in optimizer.param_groups:
            group.update(lr=RATE)

    optimizer.register_step_pre_hook(change)
    optimizer.register_step_post_hook(restore)
    return optimizer


def warmed_up_in_torch(parameters):
    import torch

    parameters = list(parameters)
    optimizer = adamw_of_torch(parameters)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 3))

    def clip(*_):
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)

    optimizer.register_step_pre_hook(clip)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


def of_flax(optimizer):
    import jax
    import optax
    from flax import nnx

    def loss(labels, logits):
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def port():
        return nnx.Linear(6, 3, kernel_init=jax.nn.initializers.glorot_uniform(), rngs=nnx.Rngs(0))

    return migration(port, loss, optimizer, ("kernel", "bias"))


def adamw_of_optax():
    import optax

    return optax.adamw(RATE, eps=EPSILON, weight_decay=DECAY)


def remedy_in_optax():
    import jax.numpy as jnp
    import optax

    def root(step):
        return jnp.sqrt(1 - 0.999 ** (step + 1))

    return optax.chain(
        optax.inject_hyperparams(optax.scale_by_adam)(eps=lambda step: EPSILON / root(step)),
        optax.scale_by_schedule(lambda step: (1 - 0.9 ** (step + 1)) / root(step)),
        optax.add_decayed_weights(DECAY),
        optax.scale_by_learning_rate(RATE),
    )


FAULTY = {
    "keras": lambda: of_keras(lambda: keras.optimizers.AdamW(RATE, weight_decay=DECAY, epsilon=EPSILON)),
    "torch": lambda: of_torch(adamw_of_torch),
    "torch, warmed up and clipped": lambda: of_torch(warmed_up_in_torch, tf1_train_op=warmed_up),
    "flax": lambda: of_flax(adamw_of_optax),
}
SOUND = {
    "keras": lambda: of_keras(lambda: OfKeras(RATE, weight_decay=DECAY, epsilon=EPSILON)),
    "torch": lambda: of_torch(remedy_in_torch),
    "flax": lambda: of_flax(remedy_in_optax),
}
WHOSE = {"keras": "Keras", "torch": "PyTorch", "flax": "optax"}


def framework_of(name):
    framework = name.partition(",")[0]
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed")
    return framework


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_the_finding_says_that_the_port_corrects_the_bias(name):
    framework = framework_of(name)
    report = detrand.validate(FAULTY[name](), checks=["training-steps"])
    (finding,) = report.findings
    whose = f"{WHOSE[framework]}'s Adam"
    assert finding.title == f"{whose} corrects the bias of its moments, TF1's optimizer uses them as they are"
    assert finding.confirmed == "with the moments as they are in the port's optimizer, the updates agree"
    assert "(1 - b" in finding.remedy
    assert report.checks[0].causes == (finding.title,)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_port_with_the_remedy_passes(name):
    framework_of(name)
    report = detrand.validate(SOUND[name](), checks=["training-steps"])
    assert report.ok, str(report)


@pytest.mark.slow
def test_what_else_differs_is_found_beside_it():
    migration = of_keras(lambda: keras.optimizers.AdamW(2 * RATE, weight_decay=DECAY, epsilon=1e-3))
    assert {each.title for each in detrand.validate(migration, checks=["training-steps"]).findings} == {
        "learning rate differs in step 0: 0.01 (TF1), 0.02 (port)",
        "epsilon differs in the optimizer: 1e-06 (TF1), 0.001 (port)",
        "Keras's Adam corrects the bias of its moments, TF1's optimizer uses them as they are",
    }
