"""Migrations to Flax that import no TensorFlow: a sound port, and two faults."""

import jax
import optax
from flax import nnx

from tests.support.golden_tf1 import migration


class Network(nnx.Module):
    """The port; its activation may be another one than TF1's."""

    def __init__(self, activation=jax.nn.relu):
        rngs, draw = nnx.Rngs(0), jax.nn.initializers.glorot_uniform()
        self.hidden = nnx.Linear(6, 5, kernel_init=draw, rngs=rngs)
        self.logits = nnx.Linear(5, 3, kernel_init=draw, rngs=rngs)
        self.activation, self.dropout = activation, nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, inputs):
        """Return the logits."""
        return self.logits(self.dropout(self.activation(self.hidden(inputs))))


def made(name, port=Network, momentum=0.9):
    """Return a migration with a port or with a momentum."""
    return migration(
        name,
        port,
        ("hidden.kernel", "hidden.bias", "logits.kernel", "logits.bias"),
        port_loss=lambda labels, logits: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(),
        port_optimizer=lambda: optax.sgd(0.1, momentum=momentum),
    )


sound = made("sound")
activation = made("activation", lambda: Network(jax.nn.elu))
optimizer = made("optimizer", momentum=0.8)
