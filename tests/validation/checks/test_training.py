"""How a loss that differs by a factor is confirmed by its gradients."""

import numpy as np
import pytest

from detrand.validation.diagnosis.causes.loss import _scale_alike

KERNEL, BIAS = np.float32([[1.0, -2.0]]), np.float32([0.5, 1.0])


def step(loss, **gradients):
    return {"loss": np.float32(loss), "gradients": gradients}


@pytest.mark.parametrize(
    ("tf1", "port", "alike"),
    [
        ((KERNEL, BIAS), (6 * KERNEL, 6 * BIAS), True),
        ((KERNEL, BIAS), (6 * KERNEL, 3 * BIAS), False),
        ((KERNEL, BIAS), (6 * KERNEL, 6 * BIAS[::-1]), False),
        ((KERNEL, None), (6 * KERNEL, None), True),
        ((KERNEL, BIAS), (6 * KERNEL, None), False),
        ((None, None), (None, None), False),
    ],
    ids=["alike", "another factor", "no factor", "none in both", "none in the port", "none at all"],
)
def test_gradients_scale_as_the_loss_does_if_all_of_them_do(tf1, port, alike):
    of_tf1, of_port = (step(loss, kernel=k, bias=b) for loss, (k, b) in ((2.0, tf1), (12.0, port)))
    assert _scale_alike(of_port, of_tf1) == alike
