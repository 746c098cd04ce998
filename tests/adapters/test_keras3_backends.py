"""Keras 3 on JAX, PyTorch and NumPy draws what a TF1 session draws, in each run.

A process has one backend, so the programs of each backend run in a process of their own, which returns the numbers.
"""

import functools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, philox
from tests.adapters.test_tensorflow import parametrize_modes, session_runs
from tests.support import keras3_programs as programs
from tests.support.keras3_cases import CASES, layers, run_layer
from tests.support.keras3_process import Program, is_installed, run_on

BACKENDS = ("jax", "torch", "numpy")
parametrize_backends = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.skipif(not is_installed(name), reason=f"{name} is not installed"))
        for name in BACKENDS
    ],
)


def cases_on(*cases):
    """Return the parameters of a test for each installed backend."""
    return [
        pytest.param(*case, marks=pytest.mark.skipif(not is_installed(case[0]), reason=f"{case[0]} is not installed"))
        for case in cases
    ]


CASE_NAMES = [(kind, case.name) for kind, make in CASES.items() for case in make()]
OTHERWISE_COMPUTED = {  # from the same numbers
    **{(backend, "RandomElasticTransform"): "draws from a seed in its own way" for backend in BACKENDS},
    ("torch", "RandAugment"): "several layers change one tensor in place",
    ("numpy", "RandAugment"): "several layers change one array in place",
}
MODES = ("constant", "num_random_ops")


def of_several_runs(function, *arguments):
    return Program("tests.support.keras3_programs", function, arguments, mode=None)


FIT = Program("tests.support.keras3_programs", "compiled_and_fitted")
OF_SEVERAL_RUNS = {
    "numpy": [of_several_runs(name) for name in ("functional", "pipeline", "left_as_it_was")],
    "jax": [
        *(of_several_runs("trained", mode, eagerly) for mode in MODES for eagerly in (True, False)),
        *(
            of_several_runs(name, mode)
            for name in ("jax_compiled", "jax_nested", "jax_beside", "jax_gradients")
            for mode in MODES
        ),
        *(of_several_runs("fitted", mode, shuffle) for mode in MODES for shuffle in (True, "batch", False)),
        *(of_several_runs(name) for name in ("functional", "pipeline", "left_as_it_was")),
        *(of_several_runs(name) for name in ("jax_refused", "jax_traced_parameters", "jax_layer")),
    ],
    "torch": [
        *(of_several_runs("trained", mode, True) for mode in MODES),
        *(of_several_runs("torch_compiled", mode) for mode in MODES),
        *(of_several_runs("fitted", mode, shuffle) for mode in MODES for shuffle in (True, "batch", False)),
        *(of_several_runs(name) for name in ("functional", "pipeline", "left_as_it_was")),
        *(of_several_runs(name) for name in ("torch_refused", "torch_loops", "torch_generator_left")),
    ],
}


def is_slow(backend, program):
    """Return whether JAX compiles each op of a program separately, which takes a minute for all of these."""
    is_layer = program.function == "run_case" and program.arguments[0] == "layer"
    of_more_modes = program.function in ("trained", "jax_compiled", "jax_gradients") and "constant" in program.arguments
    return backend == "jax" and (is_layer or of_more_modes or program.function in ("run_layer", "fitted"))


@functools.cache
def outcomes(backend, slow):
    """Return the results of the fast programs, or of the slow programs that are needed; one process runs each kind."""
    programs = [
        *(Program("tests.support.keras3_cases", "run_case", case, 42, mode) for case in CASE_NAMES for mode in MODES),
        *(Program("tests.support.keras3_cases", "run_layer", (name, 2)) for name in layers()),
        *([] if backend == "numpy" else [FIT]),  # the NumPy backend of Keras cannot train
        *OF_SEVERAL_RUNS[backend],
    ]
    programs = [program for program in programs if is_slow(backend, program) == slow]
    return dict(zip(programs, run_on(backend, programs), strict=True))


def result(backend, *program):
    return outcomes(backend, is_slow(backend, Program(*program)))[Program(*program)].checked()


@functools.cache
def case_in_session(kind, name, mode):
    """Return a case, its numbers in a session, and the records: all backends are compared with one session."""
    (case,) = (case for case in CASES[kind]() if case.name == name)
    (desired,), reference = session_runs(lambda: [*case.tf1(), tf.random.uniform([3, 2])], mode)
    return case, desired, described(reference.random_ops)


def assert_close(actual, desired, rtol):
    for a, b in zip(actual, desired, strict=True):
        assert a.shape == b.shape
        b = b.astype(a.dtype)  # noqa: PLW2901, JAX has no numbers of 64 bits unless asked
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol)


@pytest.mark.slow_except("torch-*", "numpy-*", "jax-function-*", "jax-initializer-*")
@parametrize_modes
@pytest.mark.parametrize(("kind", "name"), CASE_NAMES, ids=lambda value: value)
@parametrize_backends
def test_keras_draws_what_the_session_draws(backend, kind, name, mode):
    case, desired, random_ops = case_in_session(kind, name, mode)
    actual = result(backend, "tests.support.keras3_cases", "run_case", (kind, name), 42, mode)
    assert_close(actual.values, desired, case.rtol)
    assert described(actual.random_ops) == random_ops


def described(random_ops):
    # In TensorFlow 1, a binomial draws a seed and calls a stateless op with it.
    controlled = [op for op in random_ops if op.op_seed is not None]
    return [(op.op_type, op.op_seed, op.run, op.shape, op.dtype, op.phase) for op in controlled]


@pytest.mark.slow_except("torch-*", "numpy-*")
@pytest.mark.parametrize("name", sorted(layers()))
@parametrize_backends
def test_a_layer_equals_itself_on_tensorflow(backend, name):
    actual = result(backend, "tests.support.keras3_cases", "run_layer", (name, 2))
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        desired = [tensor.numpy() for tensor in tf.nest.flatten(run_layer(name, seed=1))]
    if (backend, name) not in OTHERWISE_COMPUTED:
        for a, b in zip(actual.values, desired, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2 if b.max() > 2 else 1e-5)
    assert described(actual.random_ops) == described(tool.random_ops)


@pytest.mark.slow_except("*-fast")
@pytest.mark.parametrize(
    ("backend", "slow"),
    cases_on(("jax", False), ("jax", True), ("torch", False), ("numpy", False)),
    ids=["jax-fast", "jax-slow", "torch-fast", "numpy-fast"],
)
def test_callers_are_lines_of_the_programs(backend, slow):
    # Files of JAX or PyTorch are on the stack between these programs and Keras's functions.
    here = os.path.dirname(programs.__file__)
    callers = [op.caller for outcome in outcomes(backend, slow).values() for op in outcome.checked().random_ops]
    assert {os.path.dirname(caller) for caller in callers} == {here}


# --- Several runs


def several_runs(backend, function, *arguments):
    program = of_several_runs(function, *arguments)
    return outcomes(backend, is_slow(backend, program))[program].checked().values


@pytest.mark.slow_except("*-num_random_ops", "torch-steps-constant")
@parametrize_modes
@pytest.mark.parametrize(
    ("backend", "eagerly"),
    cases_on(("jax", False), ("jax", True), ("torch", True)),
    ids=["jax-compiled", "jax-steps", "torch-steps"],
)
def test_training_equals_the_session(backend, eagerly, mode):
    assert_close(several_runs(backend, "trained", mode, eagerly), programs.trained_in_session(mode), 2e-6)


@pytest.mark.slow_except("torch-*")
@parametrize_modes
@pytest.mark.parametrize("shuffle", [True, "batch", False])
@pytest.mark.parametrize("backend", cases_on(("jax",), ("torch",)))
def test_fit_feeds_in_the_order_of_tensorflow(backend, shuffle, mode):
    actual, desired = several_runs(backend, "fitted", mode, shuffle), programs.fitted(mode, shuffle)
    assert_close(actual, desired, 0)
    if shuffle:
        assert not np.array_equal(desired[0], np.arange(4))


@parametrize_backends
def test_a_functional_model_draws_what_the_session_draws(backend):
    def program():
        glorot = tf.compat.v1.glorot_uniform_initializer()
        first, last = (tf.Variable(glorot(shape)) for shape in ([3, 5], [5, 1]))
        return [tf.nn.dropout(programs.X @ first, programs.RATE) @ last]

    (desired,) = session_runs(program, "num_random_ops")[0]
    assert_close(several_runs(backend, "functional"), desired, 2e-6)


@parametrize_backends
def test_a_data_pipeline_draws_as_on_tensorflow(backend):
    first, second, third = actual = several_runs(backend, "pipeline")
    assert_close(actual, programs.pipeline(), 0)
    assert not np.array_equal(first, second) or not np.array_equal(second, third)


@parametrize_backends
def test_a_scope_leaves_everything_as_it_was(backend):
    assert several_runs(backend, "left_as_it_was") == []


def numbers(function, *arguments, mode, index=0, run, seed=42):
    return function(*arguments, seed=seed, op_seed=index if mode == "num_random_ops" else 0, run=run)


def kept(mode, index, run, seed=42):
    mask = numbers(philox.dropout_mask, programs.X.shape, programs.RATE, mode=mode, index=index, run=run, seed=seed)
    return mask * np.float32(1 / (1 - programs.RATE))


needs_jax = pytest.mark.skipif(not is_installed("jax"), reason="jax is not installed")
needs_torch = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")


@pytest.mark.slow_except("num_random_ops")
@parametrize_modes
@needs_jax
def test_each_execution_of_a_compiled_function_is_a_further_run(mode):
    desired = []
    for run, seed in ((0, 42), (1, 42), (2, 42), (0, 7)):
        desired.append(programs.X * kept(mode, 0, run, seed))
        desired.append(numbers(philox.normal, (2,), mode=mode, index=1, run=run, seed=seed))
    assert_close(several_runs("jax", "jax_compiled", mode), desired, 0)


@parametrize_modes
@needs_jax
def test_a_compiled_function_draws_from_the_innermost_scope(mode):
    # (run, seed) of each draw: the inner scope's are between the outer one's.
    draws = [(0, 42), (0, 7), (1, 7), (2, 7), (1, 42), (2, 42), (3, 42)]
    desired = [numbers(philox.uniform, (2,), mode=mode, run=run, seed=seed) for run, seed in draws]
    assert_close(several_runs("jax", "jax_nested", mode), desired, 0)


@parametrize_modes
@needs_jax
def test_functions_that_a_thread_outside_compiles_are_not_used_in_the_scope(mode):
    assert_close(several_runs("jax", "jax_beside", mode), [numbers(philox.uniform, (2,), mode=mode, run=0)], 0)


@pytest.mark.slow
@needs_jax
def test_functions_are_compiled_where_keras_is_imported_in_a_scope():
    program = """
import numpy as np
import detrand
with detrand.DeterministicRandomTestTool().scope():
    import jax, keras
    compiled = jax.jit(lambda: keras.random.uniform((2,), seed=1))
    print(*np.asarray(compiled()))
print(*np.asarray(compiled()), *np.asarray(keras.random.uniform((2,), seed=1)))
"""
    # TensorFlow imports Keras 3 before there is a scope, unless it is configured to use tf_keras.
    environment = {**os.environ, "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    output = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    inside, outside = (np.array(line.split(), np.float32) for line in output.decode().splitlines())
    np.testing.assert_array_equal(inside, philox.uniform((2,), 42, 0))
    np.testing.assert_array_equal(*outside.reshape(2, 2))


@pytest.mark.slow_except("num_random_ops")
@parametrize_modes
@needs_jax
def test_a_gradient_draws_once(mode):
    values = several_runs("jax", "jax_gradients", mode)
    losses, gradients = [values[i] for i in (6, 8, 10)], [*values[:6], *(values[i] for i in (7, 9, 11)), *values[12:]]
    slope = np.cos(programs.X)
    assert_close(gradients[:9], [slope * kept(mode, 0, run) for _ in range(3) for run in range(3)], 1e-6)
    assert_close(losses, [(np.sin(programs.X) * kept(mode, 0, run)).sum() for run in range(3)], 1e-5)
    # The function is not compiled, so each execution is an op of its own.
    assert_close(gradients[9:], [slope * kept("num_random_ops", index, 0) for index in range(3)], 1e-6)


def refusals(backend, function):
    return dict(several_runs(backend, function))


@needs_jax
@pytest.mark.parametrize("program", ["scan", "grad_of_scan", "map", "while_loop", "cond", "checkpoint", "ops_scan"])
def test_jax_refuses_what_it_might_draw_once_or_twice(program):
    error = refusals("jax", "jax_refused")[program]
    assert re.match(
        r"NotImplementedError: Effects not supported in .*a random op in the scope of a Determ.* Draw before it", error
    )


@needs_jax
@pytest.mark.parametrize("program", ["vmap", "vmap_of_jit", "jit_of_vmap", "vectorized_map"])
def test_lanes_of_jax_are_refused(program):
    error = refusals("jax", "jax_refused")[program]
    assert re.match(r"ScopeError: jax.vmap of a random op in the scope of a Determ.* Draw before it and pass", error)


@needs_torch
@pytest.mark.parametrize(
    ("program", "what", "instead"),
    [
        ("vmap", "torch.vmap", "Draw outside it"),
        ("vectorized_map", "torch.vmap", "Draw outside it"),
        ("trace", "torch.jit.trace", "Trace it outside the scope"),
        ("export", "torch.export", "Export it outside the scope"),
        ("make_fx", "torch.export", "Export it outside the scope"),
    ],
)
def test_pytorch_refuses_what_it_would_draw_once(program, what, instead):
    error = refusals("torch", "torch_refused")[program]
    pattern = rf"ScopeError: {what} of a random op in the scope of a Determ.* the same numbers\. {instead}"
    assert re.match(pattern, error), error


@needs_jax
def test_draws_with_parameters_that_jax_traces_equal_the_sessions():
    normal, uniform, classes, gammas, gradient = several_runs("jax", "jax_traced_parameters")
    logits, alpha = np.log([[0.2, 0.8], [0.6, 0.4]]).astype(np.float32), np.array([0.5, 2.0, 7.0], np.float32)

    def program():
        alphas = tf.constant(alpha)
        draws = [
            tf.random.normal([4], 1.0, 2.5),
            tf.random.uniform([4], 0.0, 2.5),
            tf.random.categorical(logits, 6),
            tf.random.gamma([4], alphas),
        ]
        return [*draws, tf.gradients(tf.random.gamma([4], alphas), alphas)[0]]

    desired = session_runs(program, "num_random_ops")[0][0]
    assert_close([normal, uniform, classes, gammas], desired[:4], 2e-7)
    assert_close([gradient], desired[4:], 1e-4)


@needs_jax
def test_a_jax_layer_gets_its_keys_from_the_scope():
    first, other_layer_seed, other_seed = several_runs("jax", "jax_layer")
    np.testing.assert_array_equal(first, other_layer_seed)
    assert not np.array_equal(first, other_seed)


@parametrize_modes
@needs_torch
def test_each_call_of_what_torch_compiles_is_a_further_draw(mode):
    desired = [programs.X * kept(mode, index, 0) + 1 for index in range(3)]
    assert_close(several_runs("torch", "torch_compiled", mode), desired, 0)


@needs_torch
def test_loops_of_pytorch_equal_the_sessions():
    assert_close(several_runs("torch", "torch_loops"), programs.torch_loops_in_session(), 2e-7)


@needs_torch
def test_pytorchs_generator_is_left_as_it_is():
    first, second = several_runs("torch", "torch_generator_left")
    assert not np.array_equal(first, second)
