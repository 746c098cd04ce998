"""A process in which packages are not installed, and ports that run in it: each draws and trains as `session_steps`.

``python -m tests.support.without_tensorflow HIDDEN CODE`` executes code where the packages HIDDEN, separated by commas,
cannot be found.
"""

import importlib.machinery
import subprocess
import sys

import numpy as np

from detrand import DeterministicRandomTestTool, StepRecorder

FRAMEWORKS = ("tensorflow", "tf_keras", "keras", "torch", "jax", "flax", "optax")
STEPS, RATE = 3, 0.01
INPUTS = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)


def run_without(hidden, code, **environment):
    """Return what code prints, and what it prints as errors, where packages are not installed."""
    command = [sys.executable, "-m", __name__, ",".join(hidden), code]
    finished = subprocess.run(command, check=False, capture_output=True, text=True, env=environment or None)
    assert finished.returncode == 0, finished.stderr
    return finished


def hide(packages):
    """Make the import system of this process find packages no more."""

    class Finder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, fullname, path=None, target=None):
            return None if fullname.partition(".")[0] in packages else super().find_spec(fullname, path, target)

    regular = importlib.machinery.PathFinder
    sys.meta_path = [Finder if finder is regular else finder for finder in sys.meta_path]


def torch_steps(mode):
    """Record the steps of a port to PyTorch."""
    import torch

    recorder, tool = StepRecorder(), DeterministicRandomTestTool(mode=mode)
    kernel, layer = torch.tensor(KERNEL, requires_grad=True), torch.nn.Dropout(0.4)
    with tool.scope():
        for step in range(STEPS):
            with tool.step():
                outputs = torch.nn.functional.dropout(layer(torch.tensor(INPUTS) @ kernel), 0.5)
            loss = (outputs**2).sum()
            (gradient,) = torch.autograd.grad(loss, kernel)
            recorder.record(step, outputs=outputs, loss=loss, gradients={"kernel": gradient})
            with torch.no_grad():
                kernel -= RATE * gradient
    return recorder


def flax_steps(mode):
    """Record the steps of a port to Flax, which JAX compiles."""
    import jax
    from flax import nnx

    first, second = nnx.Dropout(0.4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    @jax.jit
    def step_of(kernel, low):
        def loss_of(kernel):
            outputs = second(first(INPUTS @ kernel))
            return (outputs**2).sum(), outputs

        loss, gradient = jax.value_and_grad(loss_of, has_aux=True)(kernel)
        return loss, gradient, [rngs.normal((3,)), rngs.uniform((3,), minval=low, maxval=2.0)]

    recorder, kernel, rngs = StepRecorder(), jax.numpy.asarray(KERNEL), nnx.Rngs(2)
    with DeterministicRandomTestTool(mode=mode).scope():
        for step in range(STEPS):
            (loss, outputs), gradient, noise = step_of(kernel, -1.0)
            recorder.record(step, noise=noise, outputs=outputs, loss=loss, gradients={"kernel": gradient})
            kernel = kernel - RATE * gradient
    return recorder


def keras_steps(mode):
    """Record the steps of a port to Keras 3 on PyTorch."""
    import keras
    import torch

    recorder, tool = StepRecorder(), DeterministicRandomTestTool(mode=mode)
    kernel = keras.Variable(KERNEL)
    first, second = keras.layers.Dropout(0.4), keras.layers.Dropout(0.5)
    with tool.scope():
        for step in range(STEPS):
            with tool.step():
                outputs = second(first(keras.ops.matmul(INPUTS, kernel), training=True), training=True)
                noise = [keras.random.normal((3,)), keras.random.uniform((3,), -1.0, 2.0)]
            loss = keras.ops.sum(outputs**2)
            (gradient,) = torch.autograd.grad(loss, kernel.value)
            recorder.record(step, noise=noise, outputs=outputs, loss=loss, gradients={"kernel": gradient})
            kernel.assign(kernel - RATE * gradient)
    return recorder


if __name__ == "__main__":
    hide(sys.argv[1].split(","))
    exec(sys.argv[2])
