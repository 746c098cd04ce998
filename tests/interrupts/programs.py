"""Programs that enter and leave what detrand offers, each to be interrupted at its lines."""

import concurrent.futures
import tempfile
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import detrand
from detrand import DeterministicRandomTestTool
from detrand.comparison.structures import load_structure, save_structure
from detrand.files import written_whole
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
    "scopes of a validation": _in_scopes_of_a_validation,
    "files": _writing_files,
}
