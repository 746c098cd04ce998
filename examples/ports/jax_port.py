"""The classifier of ``tf1_program.py`` in JAX, with the session's initial weights and dropout masks.

Run with ``python examples/ports/jax_port.py``; needs jax. It prints the losses of the session and of the port,
and fails if they are not close.
"""

import jax
import jax.numpy as jnp
import tf1_program
from tf1_program import LEARNING_RATE, RATE, SEED

import detrand
from detrand import philox


def initial_weights(op_seeds):
    """Return the initial weights of the session."""
    conv = philox.glorot_uniform((3, 3, 3, 8), SEED, op_seeds["conv/kernel/Initializer/random_uniform/RandomUniform"])
    dense = philox.variance_scaling(  # with scale 2, this is he_normal
        (8 * 8 * 8, 10), SEED, op_seeds["dense/kernel/Initializer/truncated_normal/TruncatedNormal"], scale=2.0
    )
    return {"conv": (jnp.asarray(conv), jnp.zeros(8)), "dense": (jnp.asarray(dense), jnp.zeros(10))}


def mean_loss(weights, images, labels, mask):
    """Return the loss of the same layers; the dropout mask is an argument."""
    kernel, bias = weights["conv"]
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = jax.nn.relu(jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=layout) + bias)
    hidden = hidden.reshape(len(images), -1)
    hidden = jnp.where(mask, hidden * (1 / (1 - RATE)), 0)
    kernel, bias = weights["dense"]
    log_probabilities = jax.nn.log_softmax(hidden @ kernel + bias)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


@jax.jit
def training_step(weights, images, labels, mask):
    """Return the loss and the new weights; a mask drawn inside the function would be traced only once."""
    loss, gradients = jax.value_and_grad(mean_loss)(weights, images, labels, mask)
    return loss, jax.tree.map(lambda weight, gradient: weight - LEARNING_RATE * gradient, weights, gradients)


def losses_of_training(op_seeds):
    """Train the port, and return the loss of each batch."""
    weights = initial_weights(op_seeds)
    losses, drawn = [], 0
    for images, labels in tf1_program.batches():
        shape = (len(images), 8 * 8 * 8)
        mask = philox.dropout_mask(shape, RATE, SEED, op_seeds["dropout/random_uniform/RandomUniform"], drawn=drawn)
        drawn += mask.size
        loss, weights = training_step(weights, images, labels, mask)
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    in_session, op_seeds = tf1_program.losses_of_training()
    in_port = losses_of_training(op_seeds)
    for step, losses in enumerate(zip(in_session, in_port, strict=True)):
        print("step {}: session {:.6f}, port {:.6f}".format(step, *losses))
    detrand.assert_allclose(in_port, in_session)
