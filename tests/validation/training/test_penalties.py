"""Weight decay counts wherever a program has it: in a collection, in its loss, in its gradients or as a regularizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import Migration, TrainStep, enable_v1_layers, validate

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6)
SIZES = {"hidden": 5, "logits": 3}
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(inputs, training, collection=None):
    """Two dense layers, whose kernels have weight decay in a collection, as in TensorFlow's CIFAR-10 tutorial."""
    for name, units in SIZES.items():
        with v1.variable_scope(name):
            kernel = v1.get_variable("kernel", (inputs.shape[-1], units))
            bias = v1.get_variable("bias", (units,), initializer=v1.constant_initializer(0.1))
        if collection:
            v1.add_to_collection(collection, tf.multiply(tf.nn.l2_loss(kernel), 0.02, name="weight_loss"))
        inputs = tf.matmul(inputs, kernel) + bias
    return inputs


def in_collection(name):
    return lambda inputs, training: network(inputs, training, name)


def port(kernels=None, biases=None, last=..., made=None):
    """Return a factory of the port, with the factors of L2, and optionally another one of the last kernel."""
    factors = {"hidden": kernels, "logits": kernels if last is ... else last}

    def make():
        layers = [
            keras.layers.Dense(
                units,
                bias_initializer=keras.initializers.Constant(0.1),
                kernel_regularizer=factors[name] and keras.regularizers.L2(factors[name]),
                bias_regularizer=biases and keras.regularizers.L2(biases),
                name=name,
            )
            for name, units in SIZES.items()
        ]
        model = keras.Sequential([keras.Input((4,)), *layers])
        if made is not None:
            made[:] = [model]
        return model

    return make


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def total_of(collection):
    def loss(labels, logits):
        v1.add_to_collection(collection, cross_entropy(labels, logits))
        return tf.add_n(v1.get_collection(collection), name="total_loss")

    return loss


def get_total_loss(labels, logits):
    v1.losses.sparse_softmax_cross_entropy(labels, logits)
    return v1.losses.get_total_loss()


def kernels_of(variables):
    return [each for each in variables if "kernel" in each.name]


def with_penalty(penalty):
    return lambda labels, logits: cross_entropy(labels, logits) + penalty(v1.trainable_variables())


def halved(variables):
    return 0.02 * tf.add_n([tf.nn.l2_loss(each) for each in kernels_of(variables)])


def all_halved(variables):
    return 0.02 * tf.add_n([tf.nn.l2_loss(each) for each in variables])


def squared(variables):
    return sum(0.02 * tf.reduce_sum(tf.square(each)) for each in kernels_of(variables))


def with_decay_in_gradients(decayed):
    def train(loss):
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        pairs = optimizer.compute_gradients(loss)
        pairs = [(gradient + 0.02 * each if decayed in each.name else gradient, each) for gradient, each in pairs]
        return optimizer.apply_gradients(pairs)

    return {"tf1_train_op": train, "port_optimizer": lambda: keras.optimizers.SGD(0.1, 0.9)}


def report_of(make_port, tf1=network, tf1_loss=cross_entropy, port_loss=SPARSE, **train):
    given = {"port_optimizer": lambda: keras.optimizers.SGD(0.1), "steps": 3} | train
    if "tf1_train_op" not in given:
        given["tf1_optimizer"] = lambda: v1.train.GradientDescentOptimizer(0.1)
    step = TrainStep(labels=LABELS, tf1_loss=tf1_loss, port_loss=port_loss, **given)
    migration = Migration(tf1=tf1, port=make_port, inputs=INPUTS, train=step)
    return validate(migration, checks=["variables-match", "regularizers-match", "training-steps"])


def in_port_loss(penalty):
    """Return a port, and its loss, which penalizes the variables of the port that was made last."""
    made = []
    loss = lambda labels, logits: SPARSE(labels, logits) + penalty(made[0].trainable_variables)  # noqa: E731
    return {"make_port": port(made=made), "port_loss": loss}


def kernels_of_keras(variables):
    return 0.02 * sum(tf.nn.l2_loss(variables[position]) for position in (0, 2))


def mean_with_penalty(labels, logits):
    rows = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(rows + halved(v1.trainable_variables()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"tf1": in_collection("losses"), "tf1_loss": total_of("losses")},
        {"tf1": in_collection("losses")},
        {"tf1": in_collection("weight_losses"), "tf1_loss": total_of("weight_losses")},
        {"tf1": in_collection(v1.GraphKeys.LOSSES), "tf1_loss": get_total_loss},
        {"tf1_loss": mean_with_penalty},
        {"tf1": in_collection("losses"), "tf1_loss": total_of("losses"), **in_port_loss(kernels_of_keras)},
        with_decay_in_gradients("kernel"),
    ],
    ids=[
        *("collection", "added by detrand", "own collection", "get_total_loss"),
        *("mean of a sum", "in both losses", "in gradients"),
    ],
)
def test_weight_decay_passes_wherever_both_programs_have_it(given):
    report = report_of(**{"make_port": port(0.01), **given})
    assert report.ok, str(report)
    differing = [each for each in report.audit.differing if each.name == "regularizer"]
    assert not differing


@pytest.mark.slow
def test_weight_decay_in_a_collection_passes_without_training():
    migration = Migration(tf1=in_collection("losses"), port=port(0.01), inputs=INPUTS)
    report = validate(migration)
    assert report.ok, str(report)


@pytest.mark.slow
def test_weight_decay_in_gradients_passes_beside_that_of_an_optimizer():
    decay = with_decay_in_gradients("")
    decay["tf1_train_op"] = lambda loss: v1.train.GradientDescentOptimizer(0.1).apply_gradients(
        [
            (gradient + 0.02 * each, each)
            for gradient, each in v1.train.GradientDescentOptimizer(0.1).compute_gradients(loss)
        ]
    )
    decay["port_optimizer"] = lambda: keras.optimizers.SGD(0.1, weight_decay=0.02)
    report = report_of(port(), **decay)
    assert report.ok, str(report)


KERNELS, BIASES = "hidden/kernel, logits/kernel", "hidden/bias, logits/bias"
HALVED = ". tf.nn.l2_loss(w) is sum(w**2) / 2; Keras's L2 takes sum(w**2)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "names", "tf1", "of_port"),
    [
        ({"tf1_loss": with_penalty(squared), "make_port": port(0.01)}, KERNELS, 0.02, 0.01),
        ({"tf1_loss": with_penalty(halved), "make_port": port(0.02)}, KERNELS, 0.01, 0.02),
        ({"tf1_loss": with_penalty(halved), "make_port": port(0.01, 0.01)}, BIASES, None, 0.01),
        ({"tf1_loss": with_penalty(all_halved), "make_port": port(0.01)}, BIASES, 0.01, None),
        ({"tf1_loss": with_penalty(halved), "make_port": port()}, KERNELS, 0.01, None),
        ({"make_port": port(0.01)}, KERNELS, None, 0.01),
        ({"tf1_loss": with_penalty(squared), **in_port_loss(kernels_of_keras)}, KERNELS, 0.02, 0.01),
        ({"tf1": in_collection("losses"), "make_port": port(0.01, last=0.03)}, "logits/kernel", 0.01, 0.03),
        ({"make_port": port(0.02), **with_decay_in_gradients("kernel")}, KERNELS, 0.01, 0.02),
        ({"make_port": port(0.01), **with_decay_in_gradients("")}, BIASES, 0.01, None),
        ({"make_port": port(), **with_decay_in_gradients("kernel")}, KERNELS, 0.01, None),
    ],
    ids=[
        *("not halved in TF1", "not halved in the port", "biases of the port", "biases of TF1", "only TF1"),
        *("only the port", "in both losses", "one layer", "gradients not halved", "biases in gradients", "gradients"),
    ],
)
def test_weight_decay_that_differs_is_one_finding(given, names, tf1, of_port):
    (finding,) = report_of(**given).findings
    words = [f"{factor:g} sum(w**2)" if factor else "none" for factor in (tf1, of_port)]
    assert finding.title == "regularizer differs in {}: {} (TF1), {} (port)".format(names, *words)
    assert finding.confirmed
    remedy = f"penalize {names} by {words[0]} in the port, as keras.regularizers.L2({tf1}) does"
    remedy += HALVED if {tf1, of_port} == {0.01, 0.02} else ""
    assert finding.remedy == (remedy if tf1 else f"remove the penalty of {names} from the port")
    assert finding.count == len(names.split(", "))


def by_logarithms(labels, logits):
    """Return the cross entropy as a difference of two terms, neither of which TF1 has."""
    normalizers = tf.math.log(tf.reduce_sum(tf.exp(logits), -1))
    of_labels = tf.reduce_sum(logits * tf.one_hot(labels, 3), -1)
    return tf.reduce_mean(normalizers) - tf.reduce_mean(of_labels)


@pytest.mark.parametrize("factor", [0.02, 0.03], ids=["not halved", "another factor"])
def test_a_penalty_beside_a_loss_that_is_written_differently_is_one_finding(factor):
    made = []

    def with_squares(labels, logits):
        squares = [tf.reduce_sum(made[0].trainable_variables[position] ** 2) for position in (0, 2)]
        return by_logarithms(labels, logits) + factor * sum(squares)

    given = {"tf1_loss": with_penalty(halved), "port_loss": with_squares}
    (finding,) = report_of(port(made=made), **given).findings
    words = f"0.01 sum(w**2) (TF1), {factor} sum(w**2) (port)"
    assert finding.title == f"regularizer differs in hidden/kernel, logits/kernel: {words}"
    assert finding.confirmed and "squares = [" in finding.port.source


@pytest.mark.slow
def test_the_line_of_a_penalty_is_named():
    in_losses = {"tf1_loss": with_penalty(squared), **in_port_loss(kernels_of_keras)}
    for given, of_tf1, of_port in (
        (in_losses, "0.02 * tf.reduce_sum(tf.square(each))", "0.02 * sum(tf.nn.l2_loss("),
        (
            {"tf1": in_collection("losses"), "make_port": port(0.03)},
            "tf.nn.l2_loss(kernel), 0.02",
            "keras.layers.Dense(",
        ),
        (
            {"make_port": port(0.02), **with_decay_in_gradients("kernel")},
            "gradient + 0.02 * each",
            "keras.layers.Dense(",
        ),
    ):
        finding = report_of(**given).findings[0]
        assert finding.kind == "regularizers"
        assert of_tf1 in finding.tf1.source
        assert of_port in finding.port.source


def test_the_line_of_a_regularizer_is_named_without_training():
    def tf1(inputs, training):
        penalty = lambda w: 0.02 * tf.nn.l2_loss(w)  # noqa: E731
        return v1.layers.dense(inputs, 3, kernel_regularizer=penalty, name="logits")

    layer = lambda: keras.layers.Dense(3, name="logits")  # noqa: E731
    with enable_v1_layers():
        (finding,) = validate(Migration(tf1=tf1, port=layer, inputs=INPUTS)).findings
    assert finding.title == "regularizer differs in logits/kernel: 0.01 sum(w**2) (TF1), none (port)"
    assert "penalty = lambda w" in finding.tf1.source
    assert "keras.layers.Dense(3" in finding.port.source


@pytest.mark.slow
def test_a_penalty_trains_what_the_loss_does_not_depend_on():
    """The last layers of a network may lead to no output."""

    def tf1(inputs, training):
        given = {"kernel_regularizer": lambda w: 0.01 * tf.reduce_sum(w**2)}
        logits = v1.layers.dense(inputs, 3, name="logits", **given)
        v1.layers.dense(logits, 2, name="unused", **given)
        return logits

    class Port(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            given = dict.fromkeys(("kernel_regularizer", "bias_regularizer"), keras.regularizers.L2(0.01))
            self.logits = keras.layers.Dense(3, name="logits", **given)
            self.unused = keras.layers.Dense(2, name="unused", **given)

        def call(self, inputs):
            logits = self.logits(inputs)
            self.unused(logits)
            return logits

    def train_op(loss):
        return v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)

    train = TrainStep(
        labels=LABELS,
        tf1_loss=cross_entropy,
        port_loss=SPARSE,
        tf1_train_op=train_op,
        port_optimizer=lambda: keras.optimizers.SGD(0.1, 0.9),
        steps=3,
    )
    with enable_v1_layers():
        given = Migration(tf1=tf1, port=Port, inputs=INPUTS, train=train)
        (finding,) = validate(given, checks=["training-steps"]).findings
    assert finding.title.startswith("regularizer differs in logits/bias, unused/bias: none (TF1)")
    assert finding.confirmed


class WithLoss(keras.layers.Dense):
    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.sum(self.kernel**2))
        return super().call(inputs)


def frozen_port(kit=keras, kind=None, built=False, regularized=False):
    """Return a factory of a port that freezes its hidden layer, before it has variables or after that."""

    def make():
        bias, l2 = kit.initializers.Constant(0.1), kit.regularizers.L2(0.01)
        regularizer = l2 if regularized else None
        hidden = (kind or kit.layers.Dense)(5, bias_initializer=bias, kernel_regularizer=regularizer, name="hidden")
        if built:
            hidden.build((None, 4))
        hidden.trainable = False
        return kit.Sequential(
            [hidden, kit.layers.Dense(3, bias_initializer=bias, kernel_regularizer=l2, name="logits")]
        )

    return make


@pytest.mark.slow_except("frozen at first-L2-loss")
@pytest.mark.parametrize(
    "given",
    [{"tf1_loss": with_penalty(halved)}, {"tf1": in_collection(v1.GraphKeys.REGULARIZATION_LOSSES)}],
    ids=["loss", "collection"],
)
@pytest.mark.parametrize("regularized", [False, True], ids=["none", "L2"])
@pytest.mark.parametrize("built", [False, True], ids=["frozen at first", "frozen when built"])
def test_the_penalty_of_a_frozen_layer_has_a_remedy_of_its_own(built, regularized, given):
    (finding,) = report_of(frozen_port(built=built, regularized=regularized), **given, var_list=["logits/*"]).findings
    assert finding.title == "regularizer differs in hidden/kernel: 0.01 sum(w**2) (TF1), none (port)"
    assert finding.confirmed
    assert "add_loss in the port: Keras leaves out the regularizers of frozen layers" in finding.remedy


@pytest.mark.slow
def test_a_layer_that_the_port_does_not_freeze_gets_a_regularizer():
    """TF1 trains only the last layer, and penalizes both."""
    make_port = port(last=0.01)
    report = report_of(make_port, tf1_loss=with_penalty(halved), var_list=["logits/*"])
    (finding,) = (each for each in report.findings if each.kind == "regularizers")
    assert finding.title == "regularizer differs in hidden/kernel: 0.01 sum(w**2) (TF1), none (port)"
    assert finding.remedy.startswith("penalize hidden/kernel by 0.01 sum(w**2) in the port, as keras.regularizers.L2")


@pytest.mark.slow_except("none")
@pytest.mark.parametrize("regularized", [True, False], ids=["L2", "none"])
def test_a_layer_that_only_the_port_freezes_hides_its_penalty(regularized):
    report = report_of(frozen_port(regularized=regularized), tf1_loss=with_penalty(halved))
    frozen, *others = report.findings
    assert frozen.title.startswith("variables: trainable differs (2): hidden/kernel")
    lacking = "regularizer differs in hidden/kernel: 0.01 sum(w**2) (TF1), none (port)"
    assert [each.title for each in others] == ([] if regularized else [lacking])
    assert all(each.confirmed for each in others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("penalty", "kit", "make_port"),
    [
        (halved, keras, frozen_port(kind=WithLoss)),
        (lambda variables: halved(variables[2:]), keras, frozen_port()),
        (halved, tf_keras, frozen_port(tf_keras, regularized=True)),
    ],
    ids=["add_loss", "not in TF1", "tf_keras"],
)
def test_the_remedies_for_a_frozen_layer_pass(penalty, kit, make_port):
    report = report_of(
        make_port, tf1_loss=with_penalty(penalty), port_optimizer=lambda: kit.optimizers.SGD(0.1), var_list=["logits/*"]
    )
    failed = {check.name for check in report.checks if not check.ok} - {"variables-match"}  # tf_keras keeps the flags
    assert not failed, str(report)


@pytest.mark.slow
def test_weight_decay_and_a_loss_that_both_differ_are_two_findings():
    def summed(labels, logits):
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

    findings = report_of(port(0.01), tf1=in_collection("losses"), tf1_loss=summed).findings
    assert not any(finding.kind == "regularizers" for finding in findings)
    findings = report_of(port(0.02), tf1=in_collection("losses"), tf1_loss=summed).findings
    assert {finding.kind for finding in findings} == {"regularizers", "training"}
