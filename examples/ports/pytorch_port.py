"""The classifier of ``tf1_program.py`` in PyTorch, with the session's initial weights and dropout masks.

Run with ``python examples/ports/pytorch_port.py``; needs torch. It prints the losses of the session and of the port,
and fails if they are not close.
"""

import tf1_program
import torch
from tf1_program import LEARNING_RATE, RATE, SEED
from torch import nn

import detrand
from detrand import philox


class Port(nn.Module):
    """The same layers; the dropout mask is an argument."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, kernel_size=3, padding="same")
        self.dense = nn.Linear(8 * 8 * 8, 10)

    def forward(self, images, mask):
        hidden = torch.relu(self.conv(images.permute(0, 3, 1, 2)))
        hidden = hidden.permute(0, 2, 3, 1).flatten(start_dim=1)  # in TensorFlow's order, so that the mask fits
        hidden = torch.where(mask, hidden * (1 / (1 - RATE)), 0)
        return self.dense(hidden)


@torch.no_grad()
def set_initial_weights(model, op_seeds):
    """Set the weights of a model to the initial weights of the session."""
    conv = philox.glorot_uniform((3, 3, 3, 8), SEED, op_seeds["conv/kernel/Initializer/random_uniform/RandomUniform"])
    dense = philox.variance_scaling(  # with scale 2, this is he_normal
        (8 * 8 * 8, 10), SEED, op_seeds["dense/kernel/Initializer/truncated_normal/TruncatedNormal"], scale=2.0
    )
    # TensorFlow has height, width, inputs, outputs; PyTorch has outputs, inputs, height, width.
    model.conv.weight.copy_(torch.from_numpy(conv).permute(3, 2, 0, 1))
    model.dense.weight.copy_(torch.from_numpy(dense).T)
    model.conv.bias.zero_()
    model.dense.bias.zero_()


def losses_of_training(op_seeds):
    """Train the port, and return the loss of each batch."""
    model = Port()
    set_initial_weights(model, op_seeds)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    losses, drawn = [], 0
    for images, labels in tf1_program.batches():
        shape = (len(images), 8 * 8 * 8)
        mask = philox.dropout_mask(shape, RATE, SEED, op_seeds["dropout/random_uniform/RandomUniform"], drawn=drawn)
        drawn += mask.size
        outputs = model(torch.from_numpy(images), torch.from_numpy(mask))
        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    in_session, op_seeds = tf1_program.losses_of_training()
    in_port = losses_of_training(op_seeds)
    for step, losses in enumerate(zip(in_session, in_port, strict=True)):
        print("step {}: session {:.6f}, port {:.6f}".format(step, *losses))
    detrand.assert_allclose(in_port, in_session)
