"""Migrations to PyTorch that import no TensorFlow: a sound port, and two faults."""

import torch

from tests.support.golden_tf1 import migration


class Network(torch.nn.Module):
    """The port; its activation may be another one than TF1's."""

    def __init__(self, activation=torch.nn.functional.relu):
        super().__init__()
        self.hidden, self.logits = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)
        for layer in (self.hidden, self.logits):
            torch.nn.init.xavier_uniform_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
        self.activation, self.dropout = activation, torch.nn.Dropout(0.5)

    def forward(self, inputs):
        """Return the logits."""
        return self.logits(self.dropout(self.activation(self.hidden(inputs))))


def made(name, port=Network, momentum=0.9):
    """Return a migration with a port or with a momentum."""
    return migration(
        name,
        port,
        ("hidden.weight", "hidden.bias", "logits.weight", "logits.bias"),
        port_loss=lambda labels, logits: torch.nn.functional.cross_entropy(logits, labels),
        port_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=momentum),
    )


sound = made("sound")
activation = made("activation", lambda: Network(torch.nn.functional.elu))
optimizer = made("optimizer", momentum=0.8)
