"""TF1 programs that are files: frozen graphs, SavedModels and the .meta files of checkpoints."""

import contextlib
import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    GraphFile,
    Migration,
    MigrationError,
    TrainStep,
    validate,
)
from tests.support.graph_files import CONVERTED, IMAGES, build, freeze, make_port, trained

v1 = tf.compat.v1
pytestmark = pytest.mark.filterwarnings(CONVERTED)
KEEP_PROB = {"keep_prob": lambda training: 0.5 if training else 1.0}


@contextlib.contextmanager
def model(**arguments):
    """Open a session of the model with trained weights."""
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = build(**arguments)
        trained(session)
        yield session, outputs


@pytest.fixture(params=["of TensorFlow 1", "with resource variables", "of TensorFlow 2"])
def use_resource(request):
    """Return whether variables are resources; in graphs of TensorFlow 2, conditionals are functions."""
    if request.param != "of TensorFlow 2":
        v1.disable_control_flow_v2()
    yield request.param != "of TensorFlow 1"
    v1.enable_control_flow_v2()


@pytest.fixture
def frozen(use_resource, tmp_path):
    """Write a frozen graph, and return its path with what it computes in inference."""
    with model(use_resource=use_resource) as (session, outputs):
        path = tmp_path / "frozen.pb"
        path.write_bytes(freeze(session).SerializeToString())
        return path, session.run(outputs, {"images:0": IMAGES, "is_training:0": False})


@pytest.fixture
def saved_model(use_resource, tmp_path):
    """Write a SavedModel, and return its path with what it computes in inference."""
    with model(use_resource=use_resource) as (session, outputs):
        images = session.graph.get_tensor_by_name("images:0")
        path = tmp_path / "saved"
        v1.saved_model.simple_save(session, str(path), {"pictures": images}, {"logits": outputs})
        return path, session.run(outputs, {"images:0": IMAGES, "is_training:0": False})


@pytest.fixture
def meta(use_resource, tmp_path):
    """Write a checkpoint of a graph with its training op."""
    with model(use_resource=use_resource) as (session, outputs):
        labels = v1.placeholder(tf.float32, [None, 3], name="labels")
        v1.train.AdamOptimizer(0.01).minimize(v1.losses.mean_squared_error(labels, outputs))
        session.run(v1.variables_initializer([each for each in v1.global_variables() if "Adam" in each.name]))
        session.run([each.initializer for each in v1.global_variables() if "_power" in each.name])
        return v1.train.Saver().save(session, str(tmp_path / "model.ckpt")) + ".meta"


@pytest.fixture
def small(tmp_path):
    """Write a SavedModel of a product, and return its path."""
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.float32, [None, 2], name="images")
        outputs = tf.matmul(images, v1.get_variable("kernel", [2, 3], initializer=v1.ones_initializer()))
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "small"), {"pictures": images}, {"logits": outputs})
    return tmp_path / "small"


def run(tf1, *inputs, training=False, weights=None):
    """Return what a program computes in a session, with its initial values or those of a checkpoint."""
    with tf.Graph().as_default(), v1.Session() as session:
        outputs = tf1(*map(tf.constant, inputs), training=training)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        if weights is not None:
            v1.train.Saver().restore(session, weights)
        return session.run(outputs), [(each.op.name, each.trainable) for each in v1.global_variables()]


def test_a_frozen_graph_computes_what_the_session_computed_and_has_its_variables(frozen):
    path, expected = frozen
    found, variables = run(GraphFile(path), IMAGES)
    np.testing.assert_array_equal(found, expected)
    assert sorted(variables) == [
        ("bn/beta", True),
        ("bn/gamma", True),
        ("bn/moving_mean", False),
        ("bn/moving_variance", False),
        ("conv/kernel", True),
        ("logits/bias", True),
        ("logits/kernel", True),
    ]


def test_a_saved_model_computes_what_the_session_computed(saved_model):
    path, expected = saved_model
    found, _ = run(GraphFile(path), IMAGES, weights=GraphFile(path).checkpoint)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow_except("of TensorFlow 1")
def test_a_port_of_a_frozen_graph_is_compared_with_the_frozen_weights(frozen):
    path, _ = frozen
    report = validate(Migration(tf1=GraphFile(path, feeds=KEEP_PROB), port=make_port, inputs=IMAGES))
    assert report.ok, str(report)
    assert [check.name for check in report.checks] == [
        "variables-created-once",
        "variables-match",
        "constant-weights",
        "random-inference",
        "random-training",
        "constant-mode",
    ]
    assert "left out: initializers-match, regularizers-match (a frozen graph has none)" in report.summary


@pytest.mark.slow_except("with resource variables")
def test_a_port_of_a_saved_model_passes_all_checks(saved_model):
    path, _ = saved_model
    report = validate(Migration(tf1=GraphFile(path, feeds=KEEP_PROB), port=make_port, inputs=IMAGES))
    assert report.ok, str(report)
    assert len(report.checks) == 9
    assert report.checks[-1].name == "checkpoint"
    assert not report.left_out


@pytest.mark.slow_except("with resource variables-regularizer")
@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ({"rate": 0.4}, {"random-training", "constant-mode"}),
        ({"regularizer": 0.0}, {"regularizers-match"}),
        ({"epsilon": 0.1}, {"constant-weights", "random-inference", "random-training", "constant-mode", "checkpoint"}),
    ],
    ids=["rate", "regularizer", "epsilon"],
)
def test_a_fault_of_a_port_of_a_saved_model_is_found(saved_model, fault, failing):
    path, _ = saved_model
    file = GraphFile(path, feeds=KEEP_PROB)
    report = validate(Migration(tf1=file, port=lambda: make_port(**fault), inputs=IMAGES))
    assert {check.name for check in report.checks if not check.ok} == failing
    assert next(iter(fault)) in report.findings[0].title


def train_step(**changes):
    arguments = {
        "labels": np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32),
        "tf1_loss": lambda labels, outputs: tf.reduce_mean((outputs - labels) ** 2),
        "port_loss": keras.losses.MeanSquaredError(),
        "tf1_optimizer": lambda: v1.train.AdamOptimizer(0.01),
        "port_optimizer": lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
        "steps": 3,
    }
    return TrainStep(**{**arguments, **changes})


@pytest.mark.slow
def test_a_graph_beside_a_checkpoint_is_trained(meta):
    """Its own training op, loss and slots are left out, and the dropout masks of each step are compared."""
    file = GraphFile(meta, outputs="outputs", feeds=KEEP_PROB)
    checks = ["variables-match", "regularizers-match", "checkpoint", "training-steps"]
    migration = Migration(tf1=file, port=make_port, inputs=IMAGES, train=train_step())
    report = validate(migration, checks=checks)
    assert report.ok, str(report)
    faulty = dataclasses.replace(migration, train=train_step(port_optimizer=lambda: keras.optimizers.Adam(0.01)))
    report = validate(faulty, checks=["training-steps"])
    assert "epsilon" in report.findings[0].title


@pytest.mark.slow
def test_a_frozen_graph_is_trained_from_its_weights(frozen):
    path, _ = frozen
    migration = Migration(tf1=path, port=functools.partial(make_port, 0, None), inputs=IMAGES, train=train_step())
    file = GraphFile(path, feeds={"is_training": False})
    report = validate(dataclasses.replace(migration, tf1=file), checks=["variables-match", "random-inference"])
    assert report.ok, str(report)
    report = validate(migration, checks=["variables-match", "random-training"])
    assert report.ok, str(report)


def test_a_frozen_graph_does_not_say_what_is_trained(frozen):
    def make():
        port = make_port()
        port.get_layer("conv").trainable = False
        return port

    path, _ = frozen
    assert validate(Migration(tf1=path, port=make, inputs=IMAGES), checks=["variables-match"]).ok


def write_graph(path, build_graph):
    with tf.Graph().as_default() as graph:
        build_graph()
        path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def test_only_outputs_are_compared_where_no_constant_can_be_recognized_as_a_variable(tmp_path):
    kernel = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    x = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)

    def build_graph():
        tf.matmul(v1.placeholder(tf.float32, [None, 5]), tf.constant(kernel))

    def make(factor=1.0):
        initializer = keras.initializers.Constant(factor * kernel)
        return keras.layers.Dense(3, use_bias=False, kernel_initializer=initializer)

    path = write_graph(tmp_path / "folded.pb", build_graph)
    report = validate(Migration(tf1=str(path), port=make, inputs=x))
    assert report.ok, str(report)
    assert [check.name for check in report.checks] == ["variables-created-once", "random-inference"]
    report = validate(Migration(tf1=path, port=lambda: make(1.01), inputs=x))
    assert [check.name for check in report.checks if not check.ok] == ["random-inference"]


def test_inputs_are_taken_in_order_by_name_or_by_the_keys_of_a_dict(tmp_path):
    def build_graph():
        a, b = (v1.placeholder(tf.float32, [2], name=name) for name in "ab")
        tf.subtract(a, b, name="difference")
        tf.add(a, v1.placeholder_with_default([1.0, 2.0], [2], name="c"), name="sum")

    path = write_graph(tmp_path / "graph.pb", build_graph)
    one, two = np.float32([1, 1]), np.float32([2, 2])
    assert run(GraphFile(path, outputs="difference"), one, two)[0].tolist() == [-1, -1]
    assert run(GraphFile(path, outputs="difference", inputs=["b", "a:0"]), one, two)[0].tolist() == [1, 1]
    by_name = lambda x, training: GraphFile(path, outputs=["difference"])({"b": x, "a": 3 * x}, training=training)  # noqa: E731
    assert run(by_name, one)[0][0].tolist() == [2, 2]
    assert np.array(run(GraphFile(path), one, two)[0]).tolist() == [[-1, -1], [2, 3]]
    assert run(GraphFile(path, outputs="difference"), np.float64(one), two)[0].dtype == np.float32
    assert run(GraphFile(path, outputs={"s": "sum"}, feeds={"c": 4}), one)[0]["s"].tolist() == [5, 5]


def test_random_ops_draw_in_the_order_of_the_graph_what_they_draw_in_tf1_code(saved_model):
    """The seeds in the file are not used."""
    path, _ = saved_model
    drawn = []
    for tf1 in (GraphFile(path, feeds=KEEP_PROB), lambda x, training: build(x, tf.constant(training), 0.5)):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with tool.scope():
            outputs, _ = run(tf1, IMAGES, training=True)
        drawn.append(outputs)
        assert [op.phase for op in tool.random_ops] == ["init", "compute", "init"]
        assert [op.shape for op in tool.random_ops] == [(3, 3, 2, 4), (4, 36), (36, 3)]
    np.testing.assert_allclose(*drawn, rtol=1e-5)


@pytest.mark.slow
def test_two_graphs_of_a_saved_model_are_those_of_training_and_inference(tmp_path):
    builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "saved"))
    for training in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            outputs = build(is_training=tf.constant(training), keep_prob=0.5 if training else 1.0)
            inputs = session.graph.get_tensor_by_name("images:0")
            signature = v1.saved_model.predict_signature_def({"images": inputs}, {"logits": outputs})
            signatures = {"serving_default": signature}
            session.run(v1.global_variables_initializer())
            if training:
                builder.add_meta_graph_and_variables(session, ["train"], signatures)
            else:
                builder.add_meta_graph(["serve"], {**signatures, "only_here": signature})
    builder.save()
    report = validate(Migration(tf1=tmp_path / "saved", port=make_port, inputs=IMAGES))
    assert report.ok, str(report)
    assert len(report.checks) == 9
    assert GraphFile(tmp_path / "saved", signature="only_here").takes_training


@pytest.mark.slow
def test_loops_in_a_graph_are_trained(tmp_path):
    """Gradients of the loops of TensorFlow 1 need what the file says of their contexts."""
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [4, 5], name="x")
            kernel = v1.get_variable("kernel", [5, 5])

            def body(i, y, states):
                tf.constant(1.0)  # which nothing needs
                y = tf.tanh(tf.matmul(y, kernel))
                return i + 1, y, states.write(i, y)

            _, _, states = tf.while_loop(lambda i, *_: i < 3, body, (0, x, tf.TensorArray(tf.float32, 3)))
            tf.transpose(states.stack(), [1, 0, 2], name="outputs")
            session.run(v1.global_variables_initializer())
            path = v1.train.Saver().save(session, str(tmp_path / "model.ckpt")) + ".meta"
    finally:
        v1.enable_control_flow_v2()

    class Port(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(5, 5), name="kernel")

        def call(self, x, training=False):
            states = [x]
            for _ in range(3):
                states.append(keras.ops.tanh(states[-1] @ self.kernel))
            return keras.ops.stack(states[1:], 1)

    inputs = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    labels = np.zeros((4, 3, 5), np.float32)
    train = train_step(labels=labels, port_loss=lambda labels, outputs: keras.ops.mean((outputs - labels) ** 2))
    migration = Migration(tf1=GraphFile(path, outputs="outputs"), port=Port, inputs=inputs, train=train)
    report = validate(migration, checks=["random-inference", "training-steps"])
    assert report.ok, str(report)


def test_a_fault_before_a_conditional_that_depends_on_the_inputs_is_found(tmp_path):
    """What is in the branches cannot be fetched, because only one of them is run."""

    def build_graph():
        x = v1.placeholder(tf.float32, [2, 3], name="x")
        y = tf.nn.elu(x)
        branches = (lambda: tf.tanh(y) * 2.0), (lambda: tf.exp(y))
        v1.cond(tf.reduce_sum(y) > 0, *branches, name="cond")

    v1.disable_control_flow_v2()
    try:
        path = write_graph(tmp_path / "graph.pb", build_graph)
    finally:
        v1.enable_control_flow_v2()

    def port(x, training, activation=tf.nn.elu):
        y = activation(x)
        return tf.cond(tf.reduce_sum(y) > 0, lambda: tf.tanh(y) * 2.0, lambda: tf.exp(y))

    x = np.float32([[1, 2, -0.5], [-1, 0.5, 3]])
    file = GraphFile(path, outputs="cond/Merge")
    assert validate(Migration(tf1=file, port=lambda: port, inputs=x)).ok
    faulty = Migration(tf1=file, port=lambda: functools.partial(port, activation=tf.nn.selu), inputs=x)
    report = validate(faulty, checks=["random-inference"])
    assert "Elu" in report.findings[0].title


def test_iterations_of_loops_draw_in_turn(tmp_path):
    def build_graph():
        _, outputs = tf.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y + tf.random.uniform([2])), (0, v1.placeholder(tf.float32, [2]))
        )
        tf.identity(outputs, "outputs")

    v1.disable_control_flow_v2()
    try:
        path = write_graph(tmp_path / "graph.pb", build_graph)
    finally:
        v1.enable_control_flow_v2()
    with DeterministicRandomTestTool().scope(), tf.Graph().as_default() as graph:
        GraphFile(path)(tf.zeros([2]), training=False)
    enters = [op for op in graph.get_operations() if op.type == "Enter"]
    assert {op.get_attr("parallel_iterations") for op in enters} == {1}


def test_random_ops_that_are_left_out_take_their_op_seeds(tmp_path):
    """So the others have the op seeds that they have in the whole graph, in training as in inference."""

    def build_graph():
        is_training = v1.placeholder(tf.bool, [], name="is_training")
        x = v1.cond(is_training, lambda: tf.random.uniform([2]), lambda: tf.zeros([2]))
        tf.add(x, tf.random.normal([2]), name="outputs")

    v1.disable_control_flow_v2()
    try:
        path = write_graph(tmp_path / "graph.pb", build_graph)
    finally:
        v1.enable_control_flow_v2()
    op_seeds = []
    for training in (True, False):
        with DeterministicRandomTestTool(mode="num_random_ops").scope(), tf.Graph().as_default() as graph:
            GraphFile(path, outputs="outputs")(training=training)
        op_seeds.append({op.type: op.get_attr("seed2") for op in graph.get_operations() if "Random" in op.type})
    assert op_seeds == [{"RandomUniform": 0, "RandomStandardNormal": 1}, {"RandomStandardNormal": 1}]


def test_a_lookup_table_of_a_saved_model_reads_its_asset(tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("no\nyes\n")
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None], name="words")
        asset = tf.constant(str(vocabulary))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        reader = tf.lookup.TextFileInitializer(
            asset, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        ids = tf.lookup.StaticHashTable(reader, -1).lookup(words)
        outputs = tf.gather(v1.get_variable("embedding", [2, 3]), ids)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "saved"))
        signature = v1.saved_model.predict_signature_def({"words": words}, {"vectors": outputs})
        assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, assets)
        builder.save()
        expected = session.run(outputs, {words: ["yes", "no"]})
    vocabulary.unlink()
    file = GraphFile(tmp_path / "saved")
    np.testing.assert_array_equal(run(file, np.array(["yes", "no"]), weights=file.checkpoint)[0], expected)


def test_towers_share_the_variables_of_a_frozen_graph(frozen):
    path, expected = frozen
    file = GraphFile(path)

    def towers(x, training):
        first = file(x[:2], training=training)
        with v1.variable_scope(v1.get_variable_scope(), reuse=True):
            return tf.concat([first, file(x[2:], training=training)], 0)

    found, variables = run(towers, IMAGES)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(variables) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": 3}, "path must be the path of a graph, but 3 of type int was given"),
        ({"inputs": "x"}, "inputs must be a list of names, but 'x' of type str was given"),
        ({"outputs": [3]}, "outputs must be a name, or names in a list, tuple or dict"),
        ({"feeds": ["x"]}, "feeds must be a dict from names of placeholders to values"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        GraphFile(**{"path": "model.pb", **arguments})


def keep_prob_graph():
    x = v1.placeholder(tf.float32, [2], name="x")
    tf.multiply(x, v1.placeholder(tf.float32, [], name="keep_prob"), name="outputs")


def unfrozen_graph():
    tf.multiply(v1.placeholder(tf.float32, [2], name="x"), v1.get_variable("scale", []), name="outputs")


@pytest.mark.parametrize(
    ("build_graph", "arguments", "message"),
    [
        (
            keep_prob_graph,
            {},
            "has 1 input, but .*graph.pb takes 2: x, keep_prob. Name the placeholders that get the inputs",
        ),
        (keep_prob_graph, {"inputs": ["x"]}, "depend on the placeholder keep_prob, which has no value. Pass one"),
        (keep_prob_graph, {"outputs": "logits"}, "has no tensor 'logits'. Its placeholders are x, keep_prob; its last"),
        (unfrozen_graph, {}, "graph.pb is not frozen: it has the variable scale, but no values"),
        (lambda: None, {}, "graph.pb holds no graph"),
        (
            lambda: tf.reshape(v1.placeholder(tf.float32, [None, 3], name="x"), [-1, 3]),
            {},
            r"its placeholder x has the shape \(None, 3\), but an input of shape \(2,\) was given",
        ),
    ],
    ids=["number of inputs", "open placeholder", "name of an output", "not frozen", "empty", "shape"],
)
def test_a_graph_that_cannot_be_used_is_named(tmp_path, build_graph, arguments, message):
    path = write_graph(tmp_path / "graph.pb", build_graph)
    with pytest.raises(MigrationError, match=message):
        validate(
            Migration(tf1=GraphFile(path, **arguments), port=lambda: lambda x, training: x, inputs=np.ones(2, "f"))
        )


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_signature_that_does_not_exist_is_an_error(small, tmp_path, is_frozen):
    path = write_graph(tmp_path / "graph.pb", keep_prob_graph) if is_frozen else small
    known = "none. Leave signature out" if is_frozen else "serving_default. Write GraphFile"
    with pytest.raises(MigrationError, match=f"has no signature 'serving'; it has {known}"):
        _ = GraphFile(path, signature="serving").output_names


def test_the_only_signature_of_a_saved_model_is_the_default(small):
    file = small / "saved_model.pb"
    file.write_bytes(file.read_bytes().replace(b"serving_default", b"serving_of_mine"))
    assert GraphFile(small).output_names == GraphFile(small, signature="serving_of_mine").output_names == "MatMul:0"


def test_the_file_of_a_saved_model_is_its_folder(small):
    by_file, by_folder = GraphFile(small / "saved_model.pb"), GraphFile(str(small))
    assert by_file.checkpoint == by_folder.checkpoint == str(small / "variables" / "variables")
    assert by_file.__name__ == by_folder.__name__ == "small"
    assert by_file.output_names == by_folder.output_names


def test_an_error_for_a_name_shows_the_names_that_are_there(small, tmp_path):
    message = "Its placeholders are images; its signature has the inputs pictures and the outputs logits$"
    with pytest.raises(MigrationError, match=f"no tensor 'logit'. {message}"):
        run(GraphFile(small, outputs="logit"), IMAGES)

    def with_saver():
        tf.multiply(v1.placeholder(tf.float32, [2], name="x"), v1.get_variable("scale", []), name="outputs")
        v1.train.Saver()
        v1.global_variables_initializer()

    path = write_graph(tmp_path / "graph.pb", with_saver)
    with pytest.raises(MigrationError, match=r"Its placeholders are x; its last ops are .*, outputs$"):
        run(GraphFile(path, outputs="logit"), IMAGES)


def test_an_op_of_contrib_that_tensorflow_2_does_not_have_is_named(tmp_path):
    def build_graph():
        hidden = tf.add(v1.placeholder(tf.float32, [2], name="x"), 1.0, name="hidden")
        tf.identity(hidden, "sampled")

    path = write_graph(tmp_path / "graph.pb", build_graph)
    definition = v1.GraphDef.FromString(path.read_bytes())
    definition.node[-1].op = "Resampler"
    path.write_bytes(definition.SerializeToString())
    one = np.float32([1, 1])
    with pytest.raises(
        MigrationError, match=r"has the op sampled of the type Resampler, which this TensorFlow does not"
    ):
        run(GraphFile(path), one)
    assert run(GraphFile(path, outputs="hidden"), one)[0].tolist() == [2, 2]


def test_graphs_are_read_as_text_too(tmp_path):
    with tf.Graph().as_default() as graph:
        keep_prob_graph()
        tf.io.write_graph(graph, str(tmp_path), "graph.pb")  # as_text=True is the default
        v1.train.export_meta_graph(str(tmp_path / "graph.meta"), as_text=True)
    for file in "graph.pb", "graph.meta":
        found, _ = run(GraphFile(tmp_path / file, outputs="outputs"), np.float32([1, 2]), np.float32(0.5))
        assert found.tolist() == [0.5, 1.0]


def test_files_that_are_no_graphs_are_named(tmp_path):
    (tmp_path / "text.pb").write_text("no graph")
    np.savez(tmp_path / "arrays.npz", np.full(2, 0.1))
    tf.saved_model.save(tf.Module(), str(tmp_path / "object"))
    (tmp_path / "empty").mkdir()
    for name, message in {
        "absent.pb": "absent.pb does not exist; give the path of a .pb or .meta file or a SavedModel",
        "text.pb": "text.pb cannot be read as a TF1 graph: it is text, with the error 1:1 : .*. Give a GraphDef",
        "arrays.npz": r"it has a different format, or is truncated. Give a GraphDef \(.pb or .pbtxt\), the folder of a",
        "object": "object was saved by TensorFlow 2, as an object without a TF1 program",
        "empty": "^[^ ]*empty holds no SavedModel; give the folder that has the file saved_model.pb",
    }.items():
        migration = Migration(tf1=tmp_path / name, port=lambda: lambda x, training: x, inputs=np.ones(2, "f"))
        with pytest.raises(MigrationError, match=message):
            validate(migration)


def test_outputs_of_a_graph_beside_a_checkpoint_must_be_named(meta):
    with pytest.raises(MigrationError, match=r"does not say what its outputs are. Name them: GraphFile\(outputs="):
        validate(Migration(tf1=meta, port=make_port, inputs=IMAGES))
