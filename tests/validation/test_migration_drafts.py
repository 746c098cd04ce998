"""Migration files that `detrand init` writes."""

import contextlib
import shutil
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import detrand
from detrand import enable_v1_layers
from detrand.__main__ import COULD_NOT_RUN, PASSED, main

VALIDATE = "detrand validate net.py"
MODELS = """
from types import SimpleNamespace

import tensorflow.compat.v1 as tf


class TextCNN:
    def __init__(self, length=12, classes=3):
        with tf.name_scope("inputs"):
            self.words = tf.placeholder(tf.int32, [None, length], name="words")
        self.labels = tf.placeholder(tf.float32, [None, classes], name="labels")
        self.keep_prob = tf.placeholder(tf.float32, name="dropout_keep_prob")
        embedded = tf.nn.embedding_lookup(tf.get_variable("embedding", [20, 4]), self.words)
        hidden = tf.nn.dropout(tf.layers.dense(tf.reduce_mean(embedded, 1), 5), self.keep_prob)
        self.logits = tf.layers.dense(hidden, classes)
        self.loss = tf.losses.softmax_cross_entropy(self.labels, self.logits)
        self.steps = tf.Variable(0, trainable=False)
        self.train = tf.train.AdamOptimizer().minimize(self.loss)


def of_placeholders():
    image = tf.placeholder(tf.float32, [None, None, None, 3], name="image")
    is_training = tf.placeholder(tf.bool, name="is_training")
    scale = tf.placeholder(tf.float32, [], name="scale")
    hidden = tf.layers.dropout(tf.layers.conv2d(image, 2, 3), 0.5, training=is_training)
    return {"hidden": hidden * scale, "mean": tf.reduce_mean(hidden)}


class WithDefaults:
    def __init__(self):
        self.x = tf.placeholder(tf.float32, [None, 6], name="x")
        self.rate = tf.placeholder_with_default(0.0, [], name="dropout_rate")
        self.scale = tf.placeholder_with_default(2.0, [], name="scale")
        self.logits = tf.layers.dense(tf.nn.dropout(self.x, rate=self.rate), 3) * self.scale


def of_rates(x, drop_prob, dropout=0.1):
    return tf.nn.dropout(tf.layers.dense(tf.nn.dropout(x, rate=drop_prob), 3), rate=dropout)


def of_parameters(images, scale, is_training, units=4, keep_prob=1.0):
    return tf.nn.dropout(tf.layers.dense(images, units), keep_prob=keep_prob) * scale


def without_inputs(is_training):
    return tf.ones([3])


def without_outputs():
    tf.placeholder(tf.float32, [3])


def of_tf1():
    import tensorflow

    return tensorflow.placeholder(tensorflow.float32, [3])


class Tagger:
    def __init__(self):
        self.x = tf.placeholder(tf.float32, [None, 4], name="x")
        cell = tf.nn.rnn_cell.BasicLSTMCell(5)
        outputs, _ = tf.nn.dynamic_rnn(cell, tf.reshape(tf.layers.dense(self.x, 12), [-1, 3, 4]), dtype=tf.float32)
        self.logits = tf.layers.dense(outputs, 3)


def of_layers(x, training):
    hidden = tf.layers.dense(tf.layers.dense(x, 8), 8, name="wide", use_bias=False)
    return tf.layers.dense(hidden, 3)


def of_labels(features, labels, training):
    return tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(features, 3))


def with_labels():
    features = tf.placeholder(tf.float32, [None, 4], name="features")
    labels = tf.placeholder(tf.int32, [None], name="labels")
    logits = tf.layers.dense(features, 3)
    return logits, tf.losses.sparse_softmax_cross_entropy(labels, logits)


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dropout(features["x"], params.get("rate", 0.5), training=mode == "train")
    logits = tf.layers.dense(hidden, 3)
    if mode == "infer":
        return SimpleNamespace(predictions=logits)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = tf.train.AdamOptimizer().minimize(loss)
    return SimpleNamespace(predictions=logits, loss=loss, train_op=train_op)


text = "no model"
"""
PORTS = """
import keras


def tagger():
    x = keras.Input((4,))
    hidden = keras.layers.Reshape((3, 4))(keras.layers.Dense(12, name="first")(x))
    hidden = keras.layers.LSTM(5, return_sequences=True)(hidden)
    return keras.Model(x, {"logits": keras.layers.Dense(3, name="last")(hidden)})


def with_names_of_tf1():
    x = image = keras.Input((None, None, 3))
    x = keras.layers.Dropout(0.5)(keras.layers.Conv2D(2, 3)(x))
    return keras.Model(image, {"hidden": x, "mean": keras.ops.mean(x)})


def that_raises():
    raise ValueError("not yet")


def of_layers():
    return keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(8, use_bias=False), keras.layers.Dense(3)])


class OfFeatures(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.logits = keras.layers.Dense(3, name="logits")

    def call(self, features, training=False):
        return self.logits(features)


number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "models_of_2017.py").write_text(MODELS)
    (tmp_path / "ports_of_today.py").write_text(PORTS)
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(detrand, "enable_v1_layers", lambda: stack.enter_context(enable_v1_layers()))
        yield tmp_path
    for name in ("models_of_2017", "ports_of_today", "net"):
        sys.modules.pop(name, None)


@pytest.mark.slow_except("of_placeholders", "WithDefaults", "")
@pytest.mark.parametrize("model", ["", "TextCNN", "of_placeholders", "WithDefaults"])
def test_a_draft_passes_as_it_is(folder, model, capsys):
    source = ["--from", f"models_of_2017:{model}"] if model else []
    assert main(["init", "net.py", *source]) == PASSED
    assert capsys.readouterr().out == f"net.py: written; now run {VALIDATE}\n"
    assert main(["validate", "net.py"]) == PASSED
    assert f"{model or 'example'} passed: all 8 checks passed" in capsys.readouterr().out


def test_placeholders_are_inputs_or_depend_on_training(folder):
    assert main(["init", "--from", "models_of_2017:TextCNN"]) == PASSED
    text = (folder / "migration.py").read_text()
    assert "inputs_words = rng.integers(0, 2, (2, 12)).astype(np.int32)\n" in text
    assert '"inputs/words": inputs_words,' in text
    assert '"dropout_keep_prob": 0.5 if training else 1.0,' in text
    assert 'return {"logits": model.logits, "loss": model.loss}\n' in text
    assert main(["init", "other.py", "--from", "models_of_2017:of_placeholders"]) == PASSED
    text = (folder / "other.py").read_text()
    assert "image = rng.normal(size=(2, 8, 8, 3)).astype(np.float32)  # any size where the model has (None," in text
    assert '"is_training": training,' in text
    assert '"scale": 1.0,' in text


def test_a_default_is_kept_unless_it_depends_on_training(folder):
    assert main(["init", "net.py", "--from", "models_of_2017:WithDefaults"]) == PASSED
    text = (folder / "net.py").read_text()
    assert '"dropout_rate": 0.5 if training else 0.0,' in text
    assert "scale" not in text and 'return {"logits": model.logits}\n' in text
    assert main(["init", "rates.py", "--from", "models_of_2017:of_rates"]) == PASSED
    assert "return of_rates(x=x, drop_prob=0.5 if training else 0.0)\n" in (folder / "rates.py").read_text()


def test_parameters_are_inputs_whose_shapes_are_left_open(folder, capsys):
    assert main(["init", "net.py", "--from", "models_of_2017.py:of_parameters"]) == PASSED
    said = capsys.readouterr().out
    assert said == f"net.py: written; set the shape and dtype of images and scale in it, and run {VALIDATE}\n"
    text = (folder / "net.py").read_text()
    keep_prob = "keep_prob=0.5 if training else 1.0"
    assert f"return of_parameters(images=images, scale=scale, is_training=training, {keep_prob})\n" in text
    (folder / "net.py").write_text(text.replace("(2, 8)", "(2, 4)"))
    assert main(["validate", "net.py"]) == PASSED


def init_with_port(model, port):
    return main(["init", "net.py", "--from", f"models_of_2017:{model}", "--port", f"ports_of_today:{port}"])


@pytest.mark.slow
def test_a_draft_with_a_port_has_a_name_map(folder, capsys):
    assert init_with_port("Tagger", "tagger") == PASSED
    assert capsys.readouterr().out == f"net.py: written; now run {VALIDATE}\n"
    text = (folder / "net.py").read_text()
    assert "from ports_of_today import tagger" in text and "    port=tagger,\n" in text
    assert "class Port" not in text and "import keras" not in text
    assert (
        "    name_map={\n"
        '        **detrand.lstm_cell_to_keras("rnn/basic_lstm_cell", "lstm/lstm_cell"),\n'
        '        "dense/kernel": "first/kernel",\n'
        '        "dense/bias": "first/bias",\n'
        '        "dense_1/kernel": "last/kernel",\n'
        '        "dense_1/bias": "last/bias",\n'
        "    },\n"
    ) in text
    assert main(["validate", "net.py", "--check", "variables-match"]) == PASSED


def test_a_draft_whose_port_has_the_names_of_tf1_needs_no_name_map(folder):
    assert init_with_port("of_placeholders", "with_names_of_tf1") == PASSED
    assert "name_map" not in (folder / "net.py").read_text()


@pytest.mark.parametrize(("model", "port"), [("of_layers", "of_layers"), ("TextCNN", "that_raises")])
def test_a_draft_that_cannot_be_run_yet_says_why_it_has_no_name_map(folder, model, port):
    assert init_with_port(model, port) == PASSED
    name_map = '# name_map={"hidden/kernel": "dense/kernel"},  # TF1\'s name: the port\'s'
    assert f"    {name_map}; unknown until the programs can be run\n" in (folder / "net.py").read_text()


def test_inputs_that_the_port_does_not_take_are_those_of_tf1_only(folder, capsys):
    assert init_with_port("with_labels", "OfFeatures") == PASSED
    to_do = "make tf1 return only outputs that do not depend on labels"
    assert capsys.readouterr().out == f"net.py: written; {to_do}, and run {VALIDATE}\n"
    text = (folder / "net.py").read_text()
    assert "    # The port does not take labels: return only outputs that do not depend on labels.\n" in text
    assert "pass train=detrand.TrainStep(labels=...) to the migration.\n" in text
    assert "def tf1(features, training):\n" in text and "    inputs=features,\n" in text
    assert "    name_map={\n" in text
    (folder / "net.py").write_text(text.replace("return with_labels()", "return with_labels()[0]"))
    assert main(["validate", "net.py"]) == PASSED
    (folder / "net.py").unlink()
    assert init_with_port("of_labels", "OfFeatures") == PASSED
    to_do = f"set the shape and dtype of features and labels in it, {to_do}"
    assert f"net.py: written; {to_do}, and run {VALIDATE}\n" in capsys.readouterr().out
    text = (folder / "net.py").read_text()
    assert "def tf1(features, training):\n" in text and "labels = rng.normal(" in text


def test_a_model_fn_of_an_estimator_gets_its_mode_from_training(folder, capsys):
    assert main(["init", "net.py", "--from", "models_of_2017:model_fn"]) == PASSED
    assert f"net.py: written; set features, labels and params in it, and run {VALIDATE}\n" in capsys.readouterr().out
    text = (folder / "net.py").read_text()
    assert "params = {}  # set what the model reads\n" in text
    assert (
        "def tf1(features, training):\n"
        '    """Build the TF1 model."""\n'
        '    mode = "train" if training else "infer"\n'
        "    with detrand.forward_pass({}):\n"
        "        spec = model_fn(features=features, labels=labels, mode=mode, params=params)\n"
        "    return spec.predictions\n"
    ) in text
    assert main(["validate", "net.py"]) == PASSED


@pytest.mark.slow_except("model")
@pytest.mark.parametrize(
    "options",
    [[], ["--from", "models_of_2017:TextCNN"], ["--from", "models_of_2017:Tagger", "--port", "ports_of_today:tagger"]],
    ids=["example", "model", "port"],
)
def test_a_draft_is_laid_out_as_by_hand(folder, options):
    assert main(["init", "net.py", *options]) == PASSED
    text = (folder / "net.py").read_text()
    assert "noqa" not in text and "in both programs" not in text
    assert "\n\n\n\n" not in text
    assert [text.count(f"\n\n\n{line}") for line in ("def tf1(", "class Port(", "migration = ")] == [
        1,
        "--port" not in options,
        1,
    ]
    lines = text.split("\n")
    imports = [line for line in lines[: lines.index("rng = np.random.default_rng(0)")] if line.startswith("import ")]
    assert imports == sorted(imports) and imports[0] == "import detrand"


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("absent_module:port", "port cannot be imported from absent_module: ModuleNotFoundError"),
        ("ports_of_today:number", "ports_of_today:number is of type int; name a function or a class"),
        ("ports_of_today", "--port ports_of_today names no function; write MODULE:FUNCTION"),
    ],
)
def test_a_port_that_cannot_be_used_is_named(folder, port, message, capsys):
    assert main(["init", "net.py", "--from", "models_of_2017:TextCNN", "--port", port]) == COULD_NOT_RUN
    assert message in capsys.readouterr().err
    assert main(["init", "net.py", "--port", "ports_of_today:tagger"]) == COULD_NOT_RUN
    assert "--port needs the TF1 model, too: add --from MODULE:NAME" in capsys.readouterr().err
    assert not (folder / "net.py").exists()


@pytest.fixture
def tensorflow_as_it_is(monkeypatch):
    """Undo what contrib.py changes in TensorFlow and in the imported modules."""
    before = {*sys.modules}
    for module in (tf, tf.compat.v1):
        monkeypatch.setattr(module, "contrib", None, raising=False)
    monkeypatch.setattr(tf.compat.v1, "estimator", None, raising=False)
    yield
    for name in {*sys.modules} - before:
        if name.startswith(("contrib", "of_contrib", "tensorflow.contrib")):
            del sys.modules[name]


@pytest.mark.usefixtures("tensorflow_as_it_is")
def test_a_model_that_needs_tf_contrib_is_imported_with_the_stand_in_beside_it(folder, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorflow.contrib")]:  # of another test
        monkeypatch.delitem(sys.modules, name)
    (folder / "of_contrib.py").write_text(
        "import tensorflow as tf\n"
        "from tensorflow.contrib import layers\n\n\n"
        "def build():\n"
        '    x = tf.placeholder(tf.float32, [None, 6], name="x")\n'
        "    return layers.fully_connected(x, 3)\n"
    )
    assert main(["init", "net.py", "--from", "of_contrib:build"]) == COULD_NOT_RUN
    assert "copy examples/contrib.py of detrand" in capsys.readouterr().err
    shutil.copy(Path(__file__).parents[2] / "examples" / "contrib.py", folder)
    assert main(["init", "net.py", "--from", "of_contrib:build"]) == PASSED
    assert "with contrib.tensorflow_1():" in (folder / "net.py").read_text()
    assert main(["validate", "net.py"]) == PASSED


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("models_of_2017:absent", "absent cannot be imported from models_of_2017"),
        ("absent_module:build", "build cannot be imported from absent_module: ModuleNotFoundError"),
        ("models_of_2017", "names no function; write MODULE:FUNCTION"),
        ("models_of_2017:text", "is of type str; name a function or a class"),
        ("models_of_2017:without_inputs", "makes no placeholder; name a function that takes the inputs"),
        ("models_of_2017:without_outputs", "returns NoneType, in which no tensor was found"),
        ("models_of_2017:of_tf1", "write `import tensorflow.compat.v1 as tf`"),
    ],
)
def test_a_model_that_cannot_be_used_is_named(folder, source, message, capsys):
    assert main(["init", "net.py", "--from", source]) == COULD_NOT_RUN
    assert message in capsys.readouterr().err
    assert not (folder / "net.py").exists()


def test_a_file_that_exists_is_kept(folder, capsys):
    (folder / "migration.py").write_text("mine")
    assert main(["init"]) == COULD_NOT_RUN
    assert "migration.py exists already; give a different name" in capsys.readouterr().err
    assert (folder / "migration.py").read_text() == "mine"
    assert main(["init", "absent/net.py"]) == COULD_NOT_RUN
    assert "the folder absent does not exist" in capsys.readouterr().err
