"""What a user reads where TF1 code does not work in TensorFlow 2: in a TF1 program, and in a decorated method."""

import importlib
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim

from detrand import Migration, MigrationError, TF1CodeError, track_tf1_style_variables, validate
from detrand.remedies import _RENAMED
from detrand.validation.migration_files import load_migrations

X = np.ones((2, 3), np.float32)


def imported_from_contrib(x):
    from tensorflow.contrib import rnn  # noqa: F401


def imported_from_examples(x):
    from tensorflow.examples.tutorials.mnist import input_data  # noqa: F401


def imported_name(x):
    from tensorflow import placeholder  # noqa: F401


def slim_dense_layer(x):
    return tf_slim.batch_norm(x)


def built(build):
    """Return a function that builds a layer whose ``build`` is given."""

    class Layer(tensorflow.keras.layers.Layer):
        def call(self, x):
            return x

    Layer.build = build
    return lambda x: Layer(name="built").build((2, 3))


def imported_module_of_python_2(x):
    import cPickle  # noqa: F401


def session_in_model(x):
    kernel = tf.get_variable("kernel", [3, 2])
    return tf.Session().run(tf.matmul(x, kernel))


def optimizer_in_model(x):
    kernel = tf.get_variable("kernel", [3, 2])
    return tf.train.AdamOptimizer().minimize(tf.reduce_sum(tf.matmul(x, kernel)))


LEGACY_KERAS = "set the environment variable TF_USE_LEGACY_KERAS=1"
IMPORT_V1 = "write `import tensorflow.compat.v1 as tf`"
FUNCTION = "write @tf.function above @detrand.track_tf1_style_variables"
# What code does, where it fails, and what its error says.
IN_BOTH = {
    "contrib": (lambda x: tensorflow.contrib.layers.flatten(x, "flat"), "copy examples/contrib.py"),
    "contrib-v1": (lambda x: tf.contrib.layers.flatten(x, "flat"), "copy examples/contrib.py"),
    "HParams": (lambda x: tf.contrib.training.HParams(units=3), "copy examples/contrib.py"),
    "import-contrib": (imported_from_contrib, "copy examples/contrib.py"),
    "import-examples": (imported_from_examples, "load the data in the migration"),
    "placeholder-v2": (lambda x: tensorflow.placeholder(tf.float32), f"tf.placeholder is in tf.compat.v1: {IMPORT_V1}"),
    "tf_slim-moved": (slim_dense_layer, "call detrand.enable_v1_layers() first"),
    "import-name": (imported_name, f"tf.placeholder is in tf.compat.v1: {IMPORT_V1}"),
    "Session-v2": (lambda x: tensorflow.Session(), IMPORT_V1),
    "get_variable-v2": (lambda x: tensorflow.get_variable("w", []), IMPORT_V1),
    "app.flags-v2": (lambda x: tensorflow.app.flags.FLAGS, IMPORT_V1),
    "optimizer-v2": (
        lambda x: tensorflow.train.AdamOptimizer(),
        f"tf.train.AdamOptimizer is in tf.compat.v1: {IMPORT_V1}",
    ),
    "merge_all-v2": (lambda x: tensorflow.summary.merge_all(), f"tf.summary.merge_all is in tf.compat.v1: {IMPORT_V1}"),
    "renamed": (lambda x: tf.mul(x, x), "write tf.multiply"),
    "dimension": (lambda x: x.shape[1].value, "leave out `.value`, or call tf.compat.v1.disable_v2_tensorshape()"),
    "unknown-dimension": (lambda x: tf.TensorShape([None])[0].value, "leave out `.value`"),
    "placeholder": (lambda x: x + tf.placeholder(tf.float32, [2, 3]), "detrand.forward_pass"),
    "layers": (lambda x: tf.layers.dense(x, 2), "call detrand.enable_v1_layers() first"),
    "session": (session_in_model, "run no session in the model"),
    "nn.rnn_cell-v2": (lambda x: tensorflow.nn.rnn_cell.GRUCell(3), IMPORT_V1),
    "nn.rnn_cell": (lambda x: tf.nn.rnn_cell.GRUCell(3), "call detrand.enable_v1_layers() first"),
    "flags-v2": (lambda x: tensorflow.flags.FLAGS, IMPORT_V1),
    "gfile-v2": (lambda x: tensorflow.gfile.Exists("x"), IMPORT_V1),
    "logging-v2": (lambda x: tensorflow.logging.info("x"), IMPORT_V1),
    "keep_prob-v2": (lambda x: tensorflow.nn.dropout(x, keep_prob=0.5), IMPORT_V1),
    "keep_dims-v2": (lambda x: tensorflow.reduce_sum(x, keep_dims=True), IMPORT_V1),
    "estimator": (lambda x: tf.estimator.ModeKeys.TRAIN, "which has its ModeKeys"),
    "concat": (lambda x: tf.concat(1, [x, x]), "write tf.concat(values, axis)"),
    "as_list": (built(lambda layer, shape: shape.as_list()), f"write tf.TensorShape(shape), or {LEGACY_KERAS}"),
    "ndims": (built(lambda layer, shape: shape.ndims), "write tf.TensorShape(shape)"),
    "value": (built(lambda layer, shape: shape[-1].value), "leave out `.value`"),
    "add_variable": (built(lambda layer, shape: layer.add_variable("w", shape=(3,))), LEGACY_KERAS),
    "add_update": (built(lambda layer, shape: layer.add_update(None)), LEGACY_KERAS),
    "learning_phase": (lambda x: tensorflow.keras.backend.learning_phase(), LEGACY_KERAS),
    "get_session": (lambda x: keras.backend.get_session(), LEGACY_KERAS),
    "backend": (lambda x: keras.backend.mean([x]), "write tf.keras.backend.mean"),
    "numpy": (lambda x: tf.cast(x, np.float), "`numpy.float = float` before the model is imported"),
    "numpy-int": (lambda x: np.zeros(3, np.int), "write int"),
    "xrange": (lambda x: [x for _ in xrange(3)], "write `range` in place of `xrange`"),  # noqa: F821
    "iteritems": (lambda x: {}.iteritems(), "write `items` in place of `iteritems`"),
    "cPickle": (imported_module_of_python_2, "write `pickle`"),
    "division": (lambda x: np.zeros(6 / 2), "write // in place of /"),
    "division-range": (lambda x: range(6 / 2), "write // in place of /"),
    "zip": (lambda x: zip([x], [x], strict=True)[0], "write list(...) around it"),
    "map": (lambda x: len(map(int, "12")), "write list(...) around it"),
}
IN_METHOD = {
    "name": (lambda x: x.name, FUNCTION),
    "op": (lambda x: x.op.name, FUNCTION),
    "graph": (lambda x: x.graph, FUNCTION),
    "consumers": (lambda x: x.consumers(), FUNCTION),
    "gradients": (lambda x: tf.gradients(x * x, [x]), FUNCTION),
    "minimize": (optimizer_in_model, "detrand.forward_pass"),
    "image": (lambda x: tf.summary.image("x", tf.reshape(x, [1, 2, 3, 1])), FUNCTION),
    "merge_all": (lambda x: tf.summary.merge_all(), FUNCTION),
    "eval": (lambda x: x.eval(), "run no session in the model"),
}


@pytest.fixture(autouse=True)
def without_stand_in(monkeypatch):
    """Hide the stand-in for tf.contrib that an example has installed."""
    for module in (tensorflow, tf):
        monkeypatch.delattr(module, "contrib", raising=False)
        monkeypatch.delattr(module, "estimator", raising=False)
    for name in [name for name in sys.modules if name.startswith("tensorflow.contrib")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("fault", IN_BOTH)
def test_an_error_of_a_tf1_program_names_the_line_and_the_remedy(fault):
    program, remedy = IN_BOTH[fault]
    with pytest.raises(MigrationError) as error:
        validate(Migration(tf1=lambda x, training: program(x), port=lambda: lambda x, training: x, inputs=X))
    check_message(str(error.value), remedy)


@pytest.mark.filterwarnings("ignore:Cannot activate TF2 compatibility support for TF1 summary")
@pytest.mark.parametrize("fault", [*IN_BOTH, *IN_METHOD])
def test_an_error_of_a_decorated_method_names_the_line_and_the_remedy(fault):
    program, remedy = {**IN_BOTH, **IN_METHOD}[fault]

    class InModule(tensorflow.Module):
        @track_tf1_style_variables
        def call(self, x):
            return program(x)

    class InLayer(keras.layers.Layer):
        @track_tf1_style_variables
        def call(self, x, training=False):
            return program(x)

    with pytest.raises(TF1CodeError) as error:
        InModule().call(tf.constant(X))
    check_message(str(error.value), remedy)
    with pytest.raises(TF1CodeError, match="raised"):
        InLayer()(X)
    migration = Migration(tf1=lambda x, training: x * 2.0, port=InLayer, inputs=X)
    report = validate(migration, checks=["variables-created-once"])
    check_message(report.checks[0].summary, remedy)


def check_message(message, remedy):
    assert remedy in message
    assert "test_remedies.py:" in message
    assert len(message) < 900, message


@pytest.mark.filterwarnings("ignore:Cannot activate TF2 compatibility support for TF1 summary")
def test_a_function_above_the_decorator_builds_a_graph():
    class InFunction(tensorflow.Module):
        @tensorflow.function
        @track_tf1_style_variables
        def call(self, x):
            for fault in ("name", "op", "graph", "consumers", "image", "merge_all"):
                IN_METHOD[fault][0](x)
            return tf.gradients(x * x, [x])[0]

    module = InFunction()
    np.testing.assert_array_equal(module.call(tf.constant(X)), 2 * X)


@pytest.mark.parametrize("training_first", [False, True])
def test_variables_of_training_only_are_made_in_the_first_call_of_a_function(training_first):
    def program(x, training):
        x = tf.matmul(x, tf.get_variable("kernel", [3, 2]))
        return x + tf.get_variable("bias", [2]) if training else x

    class InFunction(keras.layers.Layer):
        @tensorflow.function
        @track_tf1_style_variables
        def call(self, x, training=False):
            return program(x, training)

    def port():
        layer = InFunction()
        if training_first:
            layer(X, training=True)
        return layer

    report = validate(Migration(tf1=program, port=port, inputs=X))
    assert report.ok == training_first, str(report)
    if not training_first:
        check_message(report.checks[0].summary, "call the port with training=True first")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("import tensorflow as tf\n\nx = tf.placeholder(tf.float32)", "is in tf.compat.v1"),
        ("print 'training'", "Missing parentheses"),
    ],
)
def test_an_error_in_an_imported_model_names_the_line_of_the_model(tmp_path, model, message):
    (tmp_path / "model_with_error.py").write_text(model)
    (tmp_path / "migration.py").write_text("import model_with_error")
    with pytest.raises(MigrationError, match=message) as error:
        load_migrations(str(tmp_path / "migration.py"))
    assert f"model_with_error.py:{len(model.splitlines())}" in str(error.value)


def test_layers_of_tf_keras_that_a_graph_breaks_are_to_be_made_in_the_port():
    layer = tf_keras.layers.Dense(2, name="dense")

    class Port(tf_keras.Model):
        def call(self, x, training):
            return layer(x)

    def tf1(x, training):
        return tf_keras.layers.Dense(2, name="dense")(x)

    (finding,) = validate(Migration(tf1=tf1, port=Port, inputs=X)).findings
    assert "make the layers of tf_keras in the function that makes the port" in finding.title


def test_a_module_that_the_stand_in_lacks_is_to_be_added(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow.contrib", types.ModuleType("tensorflow.contrib"))
    with pytest.raises(MigrationError, match=r"add contrib\.rnn to the stand-in"):
        validate(Migration(tf1=lambda x, training: imported_from_contrib(x), port=lambda: None, inputs=X))


def test_other_exceptions_pass_through():
    class Faulty(tensorflow.Module):
        @track_tf1_style_variables
        def call(self, x):
            return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        Faulty().call(X)


def test_renamed_functions_exist_under_their_new_names():
    for old, new in _RENAMED.items():
        if not new.startswith("contrib"):
            module, _, name = f"tensorflow.compat.v1.{new}".rpartition(".")
            assert hasattr(importlib.import_module(module), name), new
        assert not hasattr(tf, old)


FLAGS = """
import tensorflow.compat.v1 as tf
import detrand
tf.flags.DEFINE_integer("units", 3, "")
{call}
def tf1(x, training):
    return x * float(tf.flags.FLAGS.units)
migration = detrand.Migration(tf1=tf1, port=lambda: tf1, inputs=[1.0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", ["", "tf.flags.FLAGS([''])"])
def test_flags_of_the_model_are_not_those_of_the_command(tmp_path, call):
    file = tmp_path / "model.py"
    file.write_text(FLAGS.format(call=call))
    command = [sys.executable, "-m", "detrand", "validate", str(file), "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == bool(call), done.stderr
    assert call or "call tf.compat.v1.flags.FLAGS(['']) after the flags are defined" in done.stderr


NOT_EAGER = """
import tensorflow.compat.v1 as tf
import detrand
tf.disable_v2_behavior()
{call}
def tf1(x, training):
    return x * 2.0
migration = detrand.Migration(tf1=tf1, port=lambda: tf1, inputs=[1.0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", ["", "tf.enable_eager_execution()"])
def test_eager_execution_that_a_model_has_turned_off_is_an_error(tmp_path, call):
    file = tmp_path / "model.py"
    file.write_text(NOT_EAGER.format(call=call))
    done = subprocess.run(
        [sys.executable, "-m", "detrand", "validate", str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == bool(call), done.stderr
    assert call or "Call tf.compat.v1.enable_eager_execution() after the import" in done.stderr
