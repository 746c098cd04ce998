"""Ports on the replicas of a strategy, compared with TF1 in towers: sound ports pass, and faults are found."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, Migration, MigrationError
from detrand.validation.programs.replicas import Replicas
from tests.support.causes import without_lines
from tests.support.classifier_migrations import NAMES
from tests.support.keras3_process import Program, run_on

KITS = ("keras", "tf_keras")
NETWORKS = ("dense_network", "convolutional_network")
CASES = [
    *(("trained", network, kit) for network in NETWORKS for kit in KITS),
    *((name, kit) for name in ("on_a_strategy", "with_lazy_port") for kit in KITS),
    *(("trained_by", optimizer) for optimizer in ("legacy", "tf1", "aggregates nothing")),
    *(("with_loss", loss) for loss in ("mean_of_part", "loss_of_keras", "keras_twice", "sum_of_part")),
    *(("with_other_port", network, (("rate", 0.4),)) for network in NETWORKS),
    ("with_other_port", "dense_network", (("activation", "sigmoid"),)),
    ("with_other_port", "convolutional_network", (("momentum", 0.8),)),
    *((name, rate) for name in ("with_synchronized_moments", "with_variables_made_anew") for rate in (0.0, 0.5)),
    *(("with_rows_of_both_replicas", optimizer) for optimizer in ("Adam", "DenseAdam")),
    *(
        (name,)
        for name in (
            "with_sparse_gradient",
            "with_activity_regularizer",
            "with_a_loss_of_its_training",
            "with_features",
        )
    ),
    *(
        (name,)
        for name in (
            "towers_by_hand_and_built",
            "with_rearranged_variables",
            "of_an_odd_batch",
            "on_no_strategy",
            "from_golden_file",
        )
    ),
]
FAST = [
    ("trained", "dense_network", "keras"),
    ("with_loss", "mean_of_part"),
    ("with_other_port", "dense_network", (("activation", "sigmoid"),)),
    ("with_rearranged_variables",),
    ("of_an_odd_batch",),
    ("on_no_strategy",),
]
ALL = (*NAMES, "training-steps")
DRAWING = ALL[6:]


@functools.cache
def outcomes(fast):
    """Return the outcomes of the fast or of the slow cases, which one process with two devices runs."""
    cases = [case for case in CASES if (case in FAST) == fast]
    programs = [Program("tests.support.replicated_migrations", name, tuple(rest), mode=None) for name, *rest in cases]
    return dict(zip(cases, run_on("tensorflow", programs), strict=True))


@pytest.fixture
def outcome_of():
    return lambda *case: outcomes(case in FAST)[case].checked().values


def marked(*parameters):
    """Return the parameters of a test, which begin with a case, for `parametrize`."""
    return [pytest.param(*values, marks=[] if values[0] in FAST else pytest.mark.slow) for values in parameters]


@pytest.fixture
def found(outcome_of):
    """Return what each check of a case found."""
    return lambda *case: dict(outcome_of(*case))


def named(found, mark):
    return [name for name in ALL if found[name].startswith(mark)]


@pytest.mark.slow
@pytest.mark.parametrize("kit", KITS)
@pytest.mark.parametrize("network", NETWORKS)
def test_sound_ports_pass(found, network, kit):
    checks = found("trained", network, kit)
    assert named(checks, "passed: ") == list(ALL), checks
    assert "port on replicas, TF1 in as many towers" in checks["random-training"]
    # Keras 3 leaves each replica its own moving averages; tf_keras reads the mean.
    of_first = "the port keeps the moving averages of the first replica" in checks["training-steps"]
    assert of_first == (kit == "keras" and network == "convolutional_network")
    assert "optimizers" not in checks["training-steps"]  # they are not probed


@pytest.mark.slow
@pytest.mark.parametrize("kit", KITS)
def test_a_sound_port_on_a_ready_made_strategy_passes_without_training(found, kit):
    checks = found("on_a_strategy", kit)
    assert checks["verdict"].endswith(": all 8 checks passed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [("trained_by", "legacy"), ("trained_by", "tf1"), ("with_loss", "loss_of_keras")], ids="_".join
)
def test_sound_optimizers_and_losses_pass(found, case):
    assert named(found(*case), "passed: ") == list(ALL)


@pytest.mark.slow
def test_sparse_gradients_of_replicas_stay_sparse(found):
    summary = found("with_sparse_gradient")["training-steps"]
    assert summary.startswith("passed: ")
    assert summary.count("rounding adds up") == 1  # the same eagerly and in a function


@pytest.mark.slow
def test_an_embedding_row_that_two_replicas_look_up_is_updated_by_both(found):
    """Keras's Adam squares the slices of each replica; TF1's Adam squares their sum."""
    assert "weights['table']" in found("with_rows_of_both_replicas", "Adam")["training-steps"]
    assert found("with_rows_of_both_replicas", "DenseAdam")["training-steps"].startswith("passed: ")


@pytest.mark.slow
def test_activity_regularization_is_the_mean_of_the_replicas(found):
    assert named(found("with_activity_regularizer"), "passed: ") == list(ALL)


@pytest.mark.slow
def test_losses_of_training_that_towers_compute_are_no_regularization(found):
    assert named(found("with_a_loss_of_its_training"), "passed: ") == list(ALL)


@pytest.mark.slow
def test_inputs_may_be_a_dict(found):
    assert named(found("with_features"), "passed: ") == list(ALL)


@pytest.mark.slow
def test_rearranged_variables_pass(found):
    assert named(found("with_rearranged_variables"), "passed: ") == list(ALL)


@pytest.mark.slow
def test_towers_compute_what_a_program_written_by_hand_computes(outcome_of):
    values = outcome_of("towers_by_hand_and_built")
    for by_hand, built in zip(values[:4], values[4:], strict=True):
        np.testing.assert_allclose(built, by_hand, rtol=1e-6, atol=1e-7)  # their losses sum in a different order


@pytest.mark.slow
def test_golden_files_hold_towers(found):
    assert named(found("from_golden_file"), "passed: ") == list(ALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "failing", "says"),
    marked(
        (("with_loss", "mean_of_part"), ALL[8:], "the port's loss is not scaled for replicas: it is 2 times TF1's"),
        (
            ("with_loss", "keras_twice"),
            ALL[8:],
            "the port's loss is scaled for replicas twice: TF1's is 2 times as large",
        ),
        (
            ("with_loss", "sum_of_part"),
            ALL[8:],
            "the port sums a loss where TF1 takes the mean: it is 6 times",
        ),
        (("trained_by", "aggregates nothing"), ALL[8:], "the replicas have different values of hidden/kernel after an"),
        (
            ("with_other_port", "dense_network", (("rate", 0.4),)),
            DRAWING,
            "rate differs: 0.5 (TF1), 0.4 (port)",
        ),
        (
            ("with_other_port", "convolutional_network", (("rate", 0.4),)),
            DRAWING,
            "rate differs: 0.5 (TF1), 0.4 (port)",
        ),
        (
            ("with_other_port", "convolutional_network", (("momentum", 0.8),)),
            ALL[8:],
            "momentum differs: 0.9 (TF1), 0.8 (port)",
        ),
        (
            ("with_other_port", "dense_network", (("activation", "sigmoid"),)),
            ALL[4:],
            "activation differs: Tanh (TF1), Sigmoid (port)",
        ),
    ),
    ids=[
        "mean_of_a_part",
        "scaled_twice",
        "sum_of_a_part",
        "no_aggregation",
        "rate",
        "rate_of_a_cnn",
        "momentum",
        "tanh",
    ],
)
def test_faults_are_found(found, case, failing, says):
    checks = found(*case)
    assert named(checks, "FAILED: ") == list(failing)
    assert says in without_lines(checks[failing[0]]), checks[failing[0]]


def test_a_fault_is_reported_with_the_line_in_tf1(found):
    details = found("with_other_port", "dense_network", (("activation", "sigmoid"),))["random-training"]
    assert "TF1 computes       Tanh (Tanh) at" in details
    assert "computed in TF1 by all_towers/concat, at" in details
    assert "autograph" not in details


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("with_variables_made_anew", "it makes the variable scale_1 when it is called again, which get_variable would"),
        ("with_synchronized_moments", "bn of the port is synchronized and uses the moments of the whole batch"),
    ],
)
def test_random_numbers_of_replicas_are_not_compared_without_towers(found, case, why):
    checks = found(case, 0.5)
    assert named(checks, "passed: ") == list(ALL[:6])
    assert named(checks, "not compared: ") == list(DRAWING)
    assert f"TF1 runs on the whole batch: {why}" in checks["random-training"]
    # Nobody is to take for proved what was not looked at.
    assert checks["verdict"].endswith(
        ": 6 of 9 checks passed; not compared: random-training, constant-mode, training-steps"
    )
    assert [check["compared"] for check in json.loads(checks["json"])["checks"]] == [True] * 6 + [False] * 3
    # Where nothing is drawn, the whole batch is the same as its parts.
    assert named(found(case, 0.0), "passed: ") == list(ALL)


@pytest.mark.parametrize(
    ("case", "message"),
    marked(
        (
            ("of_an_odd_batch",),
            "has shape (5, 5), which cannot be split among 2 replicas. Give inputs and labels",
        ),
        (("on_no_strategy",), "returned 3 of type int. Return a tf.distribute.Strategy"),
        (("with_lazy_port", "keras"), "creates its variables when it is first called, which its replicas cannot do"),
        (("with_lazy_port", "tf_keras"), "which its replicas cannot do in a tf.function; call it once inside port"),
    ),
    ids=["odd_batch", "no_strategy", "lazy_keras_port", "lazy_tf_keras_port"],
)
def test_migrations_that_cannot_run_on_replicas_are_refused(found, case, message):
    assert message in found(*case)["error"]


def test_replicas_in_different_processes_are_refused(monkeypatch):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    monkeypatch.setattr(tf.distribute.OneDeviceStrategy, "num_replicas_in_sync", 4)
    with pytest.raises(MigrationError, match=r"strategy of mine has 4 replicas, 1 of them in this process. Use a"):
        Replicas("mine", strategy)


def test_an_argument_that_is_no_strategy_is_refused():
    with pytest.raises(ArgumentError, match=r"must be a tf.distribute.Strategy, .* but 'mirrored' of type str was"):
        Migration(tf1=lambda x, training: x, port=lambda: None, inputs=np.ones((4, 2), np.float32), strategy="mirrored")
