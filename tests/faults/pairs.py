"""Validates ports that compute one step in place of another one, for all ordered pairs of steps.

    python -m tests.faults.pairs [--sample N] [--seed N]

The steps are activations of rows, and ops that keep the shape of images. Prints the findings of each pair that does not
have exactly one finding with a known cause, and how many pairs have one.
"""

import argparse
import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

import detrand
from detrand.validation.results import Fault
from tests.support.shim_ports import shim_port

v1 = tf.compat.v1
Step = Callable[[tf.Tensor], tf.Tensor]
ROWS = 2 * np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
IMAGES = np.random.default_rng(0).normal(size=(3, 6, 6, 4)).astype(np.float32)


def gelu(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1 + tf.math.erf(x / 2**0.5))


def normalized(*axes: int, epsilon: float = 1e-3) -> Step:
    def normalize(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + epsilon)

    return normalize


def padded(mode: str, start: int = 1) -> Step:
    """Return a step that pads the rows of images, and takes as many rows as there were from a start."""
    return lambda x: tf.pad(x, [[0, 0], [2, 2], [0, 0], [0, 0]], mode)[:, start : start + 6]


def resized(method: str) -> Step:
    return lambda x: tf.image.resize(x[:, ::2, ::2], (6, 6), method)


ACTIVATIONS: Mapping[str, Step] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.2),
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "softplus": tf.nn.softplus,
    "softsign": tf.nn.softsign,
    "softmax": tf.nn.softmax,
    "silu": tf.nn.silu,
    "gelu": gelu,
    "mish": lambda x: x * tf.tanh(tf.nn.softplus(x)),
    "hard_sigmoid": lambda x: tf.clip_by_value(0.2 * x + 0.5, 0.0, 1.0),
    "abs": tf.abs,
    "square": tf.square,
    "sin": tf.sin,
    "identity": tf.identity,
}
STEPS: Mapping[str, Step] = {
    "identity": tf.identity,
    "transpose": lambda x: tf.transpose(x, (0, 2, 1, 3)),
    "flip_rows": lambda x: x[:, ::-1],
    "flip_channels": lambda x: x[..., ::-1],
    "roll_rows": lambda x: tf.roll(x, 1, 1),
    "roll_columns": lambda x: tf.roll(x, 1, 2),
    "reflect": padded("REFLECT"),
    "symmetric": padded("SYMMETRIC"),
    "shift": padded("CONSTANT"),
    "shift_back": padded("CONSTANT", 3),
    "cumsum": lambda x: tf.cumsum(x, 1),
    "cumsum_reverse": lambda x: tf.cumsum(x, 1, reverse=True),
    "center_rows": lambda x: x - tf.reduce_mean(x, 1, keepdims=True),
    "center_channels": lambda x: x - tf.reduce_mean(x, 3, keepdims=True),
    "l2_channels": lambda x: tf.nn.l2_normalize(x, 3),
    "l2_rows": lambda x: tf.nn.l2_normalize(x, 1),
    "softmax_channels": lambda x: tf.nn.softmax(x, 3),
    "softmax_rows": lambda x: tf.nn.softmax(x, 1),
    "instance_norm": normalized(1, 2),
    "layer_norm": normalized(3),
    "layer_norm_epsilon": normalized(3, epsilon=0.1),
    "batch_norm": normalized(0, 1, 2),
    "lrn": lambda x: tf.nn.lrn(x, 1, alpha=0.5),
    "max_pool": lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME"),
    "max_pool_2": lambda x: tf.nn.max_pool2d(x, 2, 1, "SAME"),
    "avg_pool": lambda x: tf.nn.avg_pool2d(x, 3, 1, "SAME"),
    "nearest": resized("nearest"),
    "bilinear": resized("bilinear"),
    "tile": lambda x: tf.tile(x[:, ::2, ::2], (1, 2, 2, 1)),
}


def rows(inputs: tf.Tensor, training: bool, *, step: Step) -> tf.Tensor:
    hidden = step(tf.matmul(inputs, v1.get_variable("first", (4, 5))))
    hidden = step(tf.matmul(hidden, v1.get_variable("second", (5, 5))))
    return tf.matmul(hidden, v1.get_variable("last", (5, 2)))


def images(inputs: tf.Tensor, training: bool, *, step: Step) -> tf.Tensor:
    hidden = step(tf.nn.conv2d(inputs, v1.get_variable("first", (3, 3, 4, 4)), 1, "SAME"))
    return tf.nn.elu(tf.nn.conv2d(tf.tanh(hidden), v1.get_variable("last", (3, 3, 4, 5)), 1, "SAME")[:, 1:])


def findings_of(
    model: Callable[..., tf.Tensor], inputs: np.ndarray, tf1: Step, port: Step
) -> tuple[detrand.Finding, ...]:
    """Return the findings of a port that computes one step where TF1 computes another one."""

    def program(inputs: tf.Tensor, training: bool) -> tf.Tensor:
        return model(inputs, training, step=tf1)

    migration = detrand.Migration(tf1=program, port=shim_port(model, step=port), inputs=inputs)
    return detrand.validate(migration, checks=["constant-weights", "random-inference"]).findings


def is_one_cause(findings: Sequence[detrand.Finding]) -> bool:
    """Return whether there is exactly one finding, and its cause is known."""
    return len(findings) == 1 and findings[0].fault not in (Fault.UNEXPLAINED, Fault.POSSIBLE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.pairs")
    parser.add_argument("--sample", type=int, help="how many pairs of each kind, drawn at random; all by default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kinds = {"activations": (rows, ROWS, ACTIVATIONS), "steps": (images, IMAGES, STEPS)}
    for kind, (model, inputs, steps) in kinds.items():
        pairs = list(itertools.permutations(steps, 2))
        if arguments.sample is not None:
            pairs = random.Random(arguments.seed).sample(pairs, min(arguments.sample, len(pairs)))
        good = 0
        for tf1, port in pairs:
            findings = findings_of(model, inputs, steps[tf1], steps[port])
            good += is_one_cause(findings)
            if not is_one_cause(findings):
                print(f"{tf1} -> {port}: {'; '.join(each.title for each in findings) or 'no finding'}", flush=True)
        print(f"{good} of {len(pairs)} pairs of {kind} have one finding with a cause", flush=True)


if __name__ == "__main__":
    main()
