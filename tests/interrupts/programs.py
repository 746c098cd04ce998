"""Programs that enter and leave what detrand offers, each to be interrupted at its lines."""

import asyncio
import concurrent.futures
import contextlib
import functools
import tempfile
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import detrand
from detrand import DeterministicRandomTestTool, philox
from detrand.comparison.structures import load_structure, save_structure
from detrand.files import written_whole
from detrand.seeding import cursors
from detrand.validation.precision import dtype_policy
from detrand.validation.programs.layer_sites import LayerSites
from detrand.validation.programs.outcome import numpy_seeded
from tests.support.tool_runs import in_function, in_session

v1 = tf.compat.v1


def _draw():
    return tf.random.uniform([2])


def _in_scope():
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        _draw()


def _in_nested_scopes():
    outer, inner = DeterministicRandomTestTool(), DeterministicRandomTestTool(1)
    with outer.scope():
        tf.random.set_seed(5)
        with inner.scope(), outer.scope():
            _draw()


def _in_steps():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        for _ in range(2):
            with tool.step():
                _draw()


def _decorated():
    @DeterministicRandomTestTool().scope()
    def draw():
        return _draw()

    draw()


def _in_function_in_scope():
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        in_function(_draw)


def _in_session_in_scope():
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        in_session(_draw)


def _in_control_flow():
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        tf.map_fn(lambda x: x + tf.random.uniform([]), tf.zeros([2]))
        tf.cond(tf.constant(True), _draw, _draw)


def _in_compiled_function():
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        tf.function(_draw, jit_compile=True)()


def _in_keras_layers():
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        for package in (keras, tf_keras):
            layer = package.layers.Dropout(0.5, seed=3)
            layer(tf.ones([2, 2]), training=True)
            package.layers.Dense(2, kernel_initializer="ones")(tf.ones([2, 2]))


class TF1Layer(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs):
        with v1.variable_scope("net"):
            kernel = v1.get_variable("kernel", [2, 2], initializer=tf.ones_initializer(), regularizer=tf.nn.l2_loss)
            bias = tf.Variable(tf.zeros([2]), name="bias")
        return v1.layers.dense(inputs @ kernel + bias, 2, kernel_initializer=tf.ones_initializer())


def _in_method():
    with detrand.enable_v1_layers():
        layer = TF1Layer()
        layer(tf.ones([1, 2]))
        layer(tf.ones([1, 2]))


def _in_method_in_function():
    with detrand.enable_v1_layers():
        tf.function(TF1Layer())(tf.ones([1, 2]))


def _in_forward_pass():
    with detrand.forward_pass({"x": tf.ones([2])}):
        v1.placeholder(tf.float32, [2], name="x")


def _watching_creations():
    with detrand.assert_no_variable_creations():
        _draw()
    try:
        with detrand.catch_and_raise_created_variables():
            tf.Variable(1.0)
    except detrand.VariableCreationError:
        pass


def _in_threads():
    tool = DeterministicRandomTestTool()
    with tool.scope(), detrand.assert_no_variable_creations():
        thread = threading.Thread(target=_draw)
        thread.start()
        thread.join()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(_draw).result()


def _in_tasks():
    tool = DeterministicRandomTestTool()

    async def draw(name):
        for _ in range(2):
            with tool.step(name):
                _draw()
                await asyncio.sleep(0)

    async def draw_in_tasks():
        await asyncio.gather(draw("a"), draw("b"))

    with tool.scope():
        asyncio.run(draw_in_tasks())


def _in_thread(function):
    def run():
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "a thread that waits"

    return run


def _in_child_threads():
    tool = DeterministicRandomTestTool()
    desired = _numbers_of(0)
    with tool.scope(), detrand.assert_no_variable_creations():
        _in_thread(_in_thread(_draw))()
        assert np.array_equal(_draw(), desired), "other numbers in the scope"
        for run in range(2):
            with contextlib.suppress(detrand.StepMismatchError), tool.step():  # the thread did not come to its draw
                _in_thread(_draw)()
                numbers = _draw()
            assert np.array_equal(numbers, _numbers_of(run)), "other numbers in a step"


def _pool():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(int).result(60)  # its thread starts: an interrupt before it takes work would make all wait for ever
    return pool


def _in_pool():
    tool = DeterministicRandomTestTool()
    with _pool() as pool:
        with tool.scope():
            concurrent.futures.wait([pool.submit(_draw)], 60)
            for _ in range(2):
                with contextlib.suppress(detrand.StepMismatchError), tool.step():
                    concurrent.futures.wait([pool.submit(_draw)], 60)
            numbers = pool.submit(_draw)
            concurrent.futures.wait([numbers], 60)
        assert pool.submit(cursors.current).result(60) is None, "a cursor of a pool's thread"
        assert numbers.exception() or np.array_equal(numbers.result(), _numbers_of(0)), "other numbers in the pool"


def _in_threads_of_a_task():
    async def draw():
        asyncio.get_running_loop().set_default_executor(pool)
        with DeterministicRandomTestTool().scope():
            draws = [asyncio.to_thread(_draw) for _ in range(2)]
            await asyncio.wait_for(asyncio.gather(*draws, return_exceptions=True), 60)
            assert np.array_equal(_draw(), _numbers_of(0)), "other numbers in the scope"

    with _pool() as pool:
        asyncio.run(draw())


@functools.cache
def _numbers_of(run):
    return philox.uniform([2], 42, 0, run=run)


def _in_scopes_of_a_validation():
    with dtype_policy("mixed_bfloat16"), numpy_seeded(3), LayerSites().watched():
        keras.layers.Dense(2, kernel_initializer="ones")(tf.ones([1, 2]))


def _writing_files():
    with tempfile.TemporaryDirectory() as folder:
        page, recording = Path(folder, "page.html"), Path(folder, "steps.npz")
        page.write_text("before")
        try:
            with written_whole(page) as file:
                file.write_text("after")
            save_structure(recording, "numbers", {"a": np.arange(3)})
        finally:
            names = {file.name for file in Path(folder).iterdir()}
            assert names <= {page.name, recording.name}, names
            assert page.read_text() in ("before", "after")
            if recording.exists():
                load_structure(recording, "numbers")


IN_THREADS = {  # interrupted in the threads that they start
    "child threads": _in_child_threads,
    "thread pool": _in_pool,
    "threads of an asyncio task": _in_threads_of_a_task,
    "scope in a thread": _in_thread(_in_nested_scopes),
    "steps in a thread": _in_thread(_in_steps),
    "decorated method in a thread": _in_thread(_in_method),
    "variable creations in a thread": _in_thread(_watching_creations),
}

PROGRAMS = {
    "scope": _in_scope,
    "nested scopes": _in_nested_scopes,
    "steps": _in_steps,
    "decorated function": _decorated,
    "tf.function": _in_function_in_scope,
    "session": _in_session_in_scope,
    "control flow": _in_control_flow,
    "compiled function": _in_compiled_function,
    "Keras layers": _in_keras_layers,
    "decorated method": _in_method,
    "decorated method in a tf.function": _in_method_in_function,
    "forward pass": _in_forward_pass,
    "variable creations": _watching_creations,
    "threads": _in_threads,
    "asyncio tasks": _in_tasks,
    "scopes of a validation": _in_scopes_of_a_validation,
    "files": _writing_files,
    **IN_THREADS,
}
