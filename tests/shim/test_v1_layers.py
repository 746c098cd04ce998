"""`enable_v1_layers`: the names of tf.compat.v1 that Keras 3 lacks are back, and go away with the block."""

import gc
import importlib
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, enable_v1_layers
from detrand._patching.keras import MOVED_NAMES
from tests.support.interrupts import interrupted_at

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
IMAGE = np.linspace(-1, 1, 96, dtype=np.float32).reshape(1, 4, 8, 3)
LAYERS = {
    "average_pooling1d": lambda v1: v1.layers.average_pooling1d(IMAGE[0], 2, 2),
    "average_pooling2d": lambda v1: v1.layers.average_pooling2d(IMAGE, 2, 2),
    "average_pooling3d": lambda v1: v1.layers.average_pooling3d(IMAGE[None], (1, 2, 2), 2),
    "batch_normalization": lambda v1: v1.layers.batch_normalization(tf.constant(X), training=True),
    "conv1d": lambda v1: v1.layers.conv1d(IMAGE[0], 2, 3),
    "conv2d": lambda v1: v1.layers.conv2d(IMAGE, 2, 3),
    "conv2d_transpose": lambda v1: v1.layers.conv2d_transpose(IMAGE, 2, 3),
    "conv3d": lambda v1: v1.layers.conv3d(IMAGE[None], 2, (1, 2, 2)),
    "conv3d_transpose": lambda v1: v1.layers.conv3d_transpose(IMAGE[None], 2, 2),
    "dense": lambda v1: v1.layers.dense(X, 3),
    "dropout": lambda v1: v1.layers.dropout(X, 0.5, training=True),
    "flatten": lambda v1: v1.layers.flatten(IMAGE),
    "max_pooling1d": lambda v1: v1.layers.max_pooling1d(IMAGE[0], 2, 2),
    "max_pooling2d": lambda v1: v1.layers.max_pooling2d(IMAGE, 2, 2),
    "max_pooling3d": lambda v1: v1.layers.max_pooling3d(IMAGE[None], (1, 2, 2), 2),
    "separable_conv1d": lambda v1: v1.layers.separable_conv1d(IMAGE[0], 2, 3),
    "separable_conv2d": lambda v1: v1.layers.separable_conv2d(IMAGE, 2, 3),
}
LAYER_CLASSES = ["Conv2D", "Dense", "BatchNormalization", "Dropout", "Flatten", "MaxPooling2D", "Layer", "InputSpec"]
CELLS = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DeviceWrapper",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
]

pytestmark = pytest.mark.filterwarnings(r"ignore:`tf\.(layers|nn\.rnn_cell)\..*` is deprecated:UserWarning")


@pytest.mark.parametrize("name", LAYERS)
def test_every_function_of_tf_layers_builds_and_runs(name):
    with enable_v1_layers(), DeterministicRandomTestTool().scope(), tf.Graph().as_default():
        outputs = LAYERS[name](tf.compat.v1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            value = session.run(outputs)
    assert np.isfinite(value).all() and value.any()


def test_the_classes_are_those_of_tf_keras():
    with enable_v1_layers():
        for name in CELLS:
            cell = getattr(tf.compat.v1.nn.rnn_cell, name)
            assert cell.__name__ == name and cell.__module__.startswith("tf_keras.src.layers.rnn.legacy_cell")
        for name in LAYER_CLASSES:
            assert isinstance(getattr(tf.compat.v1.layers, name), type)
        assert tf.compat.v1.layers.experimental.keras_style_scope


@pytest.mark.parametrize("name", ["base", "convolutional", "core", "normalization", "pooling", "layers"])
def test_the_modules_of_tensorflow_python_layers_are_there(name):
    with enable_v1_layers():
        module = importlib.import_module(f"tensorflow.python.layers.{name}")
        layer = {"base": "Layer", "convolutional": "Conv2D", "core": "Dense", "normalization": "BatchNormalization"}
        assert isinstance(getattr(module, layer.get(name, "MaxPooling2D" if name == "pooling" else "Dense")), type)


def test_batch_norm_of_tf_slim_works():
    import tf_slim as slim

    with enable_v1_layers(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outputs = slim.batch_norm(tf.constant(X), is_training=True)
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(outputs).mean(0), np.zeros(6), atol=1e-6)


@pytest.mark.parametrize(("home", "name"), MOVED_NAMES, ids=[name for _, name in MOVED_NAMES])
def test_names_that_tf_slim_uses_and_tensorflow_has_moved(home, name):
    module = importlib.import_module(home)
    before = vars(module).get(name)
    with enable_v1_layers():
        new_home, new_name = MOVED_NAMES[home, name]
        assert getattr(module, name) is getattr(importlib.import_module(new_home), new_name)
    assert vars(module).get(name) is before


def test_tf_slim_drops_out_by_a_tensor():
    import tf_slim

    with enable_v1_layers(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        training = tf.compat.v1.placeholder(tf.bool, ())
        outputs = tf_slim.dropout(tf.ones((8, 8)), 0.5, is_training=training)
        assert np.all(session.run(outputs, {training: False}) == 1)
        assert set(np.unique(session.run(outputs, {training: True}))) == {0, 2}


def is_enabled():
    try:
        return callable(tf.compat.v1.layers.dense) and callable(tf.compat.v1.nn.rnn_cell.GRUCell)
    except AttributeError:
        return False


def test_the_end_of_a_block_disables_v1_layers():
    assert not is_enabled()
    before = {name for name in sys.modules if name.startswith("tf_keras.legacy_tf_layers")}
    with enable_v1_layers():
        assert is_enabled()
        with enable_v1_layers():
            assert is_enabled()
        assert is_enabled()
    assert not is_enabled()
    with pytest.raises(AttributeError, match="`dense` is not available with Keras 3"):
        _ = tf.compat.v1.layers.dense
    with pytest.raises(AttributeError, match="`GRUCell` is not available with Keras 3"):
        _ = tf.compat.v1.nn.rnn_cell.GRUCell
    assert {name for name in sys.modules if name.startswith("tf_keras.legacy_tf_layers")} == before


def test_an_error_in_a_block_disables_v1_layers():
    with pytest.raises(KeyError), enable_v1_layers():
        raise KeyError
    assert not is_enabled()


def test_to_leave_one_call_twice_does_not_undo_another_call():
    with enable_v1_layers():
        enabled = enable_v1_layers()
        enabled.close()
        enabled.close()
        assert is_enabled()
    assert not is_enabled()


def test_an_interrupt_at_any_line_disables_v1_layers():
    def enable():
        with enable_v1_layers():
            pass

    enable()
    for line in itertools.count():
        is_interrupted = interrupted_at(line, enable, KeyboardInterrupt)
        if is_enabled():
            gc.collect()  # frames of the interrupted function may refer to each other
        assert not is_enabled(), line
        if not is_interrupted:
            break


def test_blocks_in_several_threads_do_not_end_each_other():
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        with enable_v1_layers():
            inside.set()
            leave.wait()
            seen.append(is_enabled())

    thread = threading.Thread(target=other)
    with enable_v1_layers():
        thread.start()
        inside.wait()
    leave.set()
    thread.join()
    assert seen == [True]
    assert not is_enabled()


FOR_GOOD = """
import detrand, sys
assert "tensorflow" not in sys.modules
import tensorflow as tf
try:
    tf.compat.v1.layers.dense
except AttributeError as error:
    print("before:", error)
detrand.enable_v1_layers()
detrand.enable_v1_layers()
with detrand.enable_v1_layers():
    pass
from tensorflow.python.layers import core, normalization
import tf_slim
with tf.Graph().as_default():
    tf_slim.batch_norm(tf.compat.v1.layers.dense(tf.ones((2, 3)), 4))
    tf.compat.v1.nn.rnn_cell.BasicLSTMCell(3)(tf.ones((2, 3)), (tf.ones((2, 3)), tf.ones((2, 3))))
    print([v.op.name for v in tf.compat.v1.trainable_variables()])
"""


@pytest.mark.slow
def test_a_call_stays_and_can_be_repeated():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FOR_GOOD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "before: " in done.stdout
    assert done.stdout.splitlines()[-1] == str(
        ["dense/kernel", "dense/bias", "BatchNorm/beta", "basic_lstm_cell/kernel", "basic_lstm_cell/bias"]
    )
