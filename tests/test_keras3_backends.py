"""Keras 3 on JAX, PyTorch and NumPy draws what a TF1 session does, in each run.

A process has one backend: each backend's programs run in one of its own, and what they return is compared here.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool
from tests.keras3_cases import CASES, layers, run_layer
from tests.keras3_process import Program, is_installed, run_on
from tests.test_tensorflow_adapter import parametrize_modes, session_runs

BACKENDS = ("jax", "torch", "numpy")
parametrize_backends = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.skipif(not is_installed(name), reason=f"{name} is not installed"))
        for name in BACKENDS
    ],
)
CASE_NAMES = [(kind, case.name) for kind, make in CASES.items() for case in make()]
OTHERWISE_COMPUTED = {  # from the same numbers
    **{(backend, "RandomElasticTransform"): "draws from a seed in its own way" for backend in BACKENDS},
    ("torch", "RandAugment"): "several layers change one tensor in place",
    ("numpy", "RandAugment"): "several layers change one array in place",
}
MODES = ("constant", "num_random_ops")


@functools.cache
def outcomes(backend):
    """What all programs that are needed here return, by (function, arguments, seed, mode)."""
    programs = [
        *(Program("tests.keras3_cases", "run_case", case, 42, mode) for case in CASE_NAMES for mode in MODES),
        *(Program("tests.keras3_cases", "run_layer", (name, 2)) for name in layers()),
    ]
    return dict(zip(programs, run_on(backend, programs), strict=True))


def result(backend, *program):
    return outcomes(backend)[Program(*program)].checked()


def assert_close(actual, desired, rtol):
    for a, b in zip(actual, desired, strict=True):
        assert a.shape == b.shape
        b = b.astype(a.dtype)  # noqa: PLW2901, JAX has no numbers of 64 bits unless asked
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol)


@parametrize_modes
@pytest.mark.parametrize(("kind", "name"), CASE_NAMES, ids=lambda value: value)
@parametrize_backends
def test_equals_the_session(backend, kind, name, mode):
    (case,) = (case for case in CASES[kind]() if case.name == name)
    desired, reference = session_runs(lambda: [*case.tf1(), tf.random.uniform([3, 2])], mode)
    actual = result(backend, "tests.keras3_cases", "run_case", (kind, name), 42, mode)
    assert_close(actual.values, desired[0], case.rtol)
    assert described(actual.random_ops) == described(reference.random_ops)


def described(random_ops):
    return [(op.op_type, op.op_seed, op.run, op.shape, op.dtype, op.phase) for op in random_ops]


@pytest.mark.parametrize("name", sorted(layers()))
@parametrize_backends
def test_a_layer_equals_itself_on_tensorflow(backend, name):
    actual = result(backend, "tests.keras3_cases", "run_layer", (name, 2))
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        desired = [tensor.numpy() for tensor in tf.nest.flatten(run_layer(name, seed=1))]
    if (backend, name) not in OTHERWISE_COMPUTED:
        for a, b in zip(actual.values, desired, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2 if b.max() > 2 else 1e-5)
    assert described(actual.random_ops) == described(tool.random_ops)
