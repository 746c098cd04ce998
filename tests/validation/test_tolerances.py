"""Tolerances of outputs: what a migration says, for which outputs it holds, and what is refused."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, Migration, MigrationError, Tolerance, TrainStep, validate
from detrand.__main__ import COULD_NOT_RUN, main
from detrand.report import html as html_report
from detrand.report import json as json_report
from tests.support.shim_ports import shim_port

INPUTS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


def forward(inputs, training, off=0.0):
    kernel = tf.compat.v1.get_variable("kernel", (5, 3))
    hidden = tf.matmul(inputs, kernel) + 1.0
    return {"logits": [hidden * (1 + off), hidden * 2.0], "hidden": hidden}


Off = shim_port(forward, off=1e-3)  # a port whose first logits are off by a thousandth of their value
LOOSE, STRICT = Tolerance(rtol=2e-3, atol=0.0), Tolerance(rtol=5e-4, atol=0.0)


def loose(of):
    return Tolerance(rtol=2e-3, atol=0.0, of=of)


def migration(**changes):
    return Migration(tf1=forward, port=Off, inputs=INPUTS, **changes)


@pytest.mark.slow_except("first match loose")
@pytest.mark.parametrize(
    ("tolerances", "ok"),
    [
        ([], False),
        ([LOOSE], True),
        ([STRICT], False),
        ([loose("['logits'][0]")], True),
        ([loose("['logits'][1]")], False),
        ([loose("['logits']*")], True),
        ([Tolerance(rtol=5e-4, atol=0.0, of="['logits'][0]"), LOOSE], False),
        ([LOOSE, Tolerance(rtol=5e-4, atol=0.0, of="['logits'][0]")], True),
    ],
    ids=[
        "default",
        "one",
        "one too strict",
        "path",
        "other path",
        "pattern",
        "first match strict",
        "first match loose",
    ],
)
def test_each_output_has_its_own_tolerance(tolerances, ok):
    report = validate(migration(tolerances=tolerances))
    assert report.ok == ok, str(report)
    if not ok:
        outputs = report.checks[5].comparisons["outputs"]
        assert [leaf.path for leaf in outputs.leaves if not leaf.ok] == ["['logits'][0]"]


def test_outputs_that_no_pattern_matches_are_held_to_a_few_ulps():
    outputs = validate(migration(tolerances=[loose("['logits'][0]")])).checks[5].comparisons["outputs"]
    held = {leaf.path: (leaf.rtol, leaf.atol) for leaf in outputs.leaves}
    assert held.pop("['logits'][0]") == (2e-3, 0.0)
    assert held.keys() == {"['logits'][1]", "['hidden']"}
    for rtol, atol in held.values():
        assert rtol == 0 and atol / 2**-23 in (4, 8, 16)  # the outputs are between 1 and 8


@pytest.mark.slow
def test_the_path_of_an_output_covers_no_other_output():
    def starred(inputs, training, off=0.0):
        hidden = forward(inputs, training)["hidden"]
        return {"logits*": hidden, "logits_a": hidden * (1 + off)}

    def report(of):
        return validate(
            Migration(tf1=starred, port=shim_port(starred, off=1e-3), inputs=INPUTS, tolerances=[loose(of)])
        )

    assert report("['logits_*']").ok
    outputs = report("['logits*']").checks[5].comparisons["outputs"]
    assert [leaf.path for leaf in outputs.leaves if not leaf.ok] == ["['logits_a']"]


def test_an_output_without_structure_has_the_path_output():
    def first(inputs, training, off=0.0):
        return forward(inputs, training, off)["logits"][0]

    alone = Migration(
        tf1=first,
        port=shim_port(first, off=1e-3),
        inputs=INPUTS,
        tolerances=[loose("output")],
    )
    assert validate(alone).ok


@pytest.mark.slow
def test_outputs_of_training_steps_are_held_to_it():
    def mean(labels, outputs):
        return tf.reduce_mean(outputs["hidden"] - labels)

    train = TrainStep(
        labels=np.zeros((4, 3), np.float32),
        tf1_loss=mean,
        port_loss=mean,
        tf1_optimizer=lambda: tf.compat.v1.train.GradientDescentOptimizer(0.0),
        port_optimizer=lambda: keras.optimizers.SGD(0.0),
        steps=2,
    )
    (found,) = validate(migration(train=train), checks=["training-steps"]).checks
    assert not found.ok
    assert {f.first_divergence.leaf.path for f in found.trainings.values()} == {"outputs['logits'][0]"}
    assert validate(migration(train=train, tolerances=[loose("['logits'][0]")]), checks=["training-steps"]).ok


def test_a_pattern_that_matches_no_output_is_refused(tmp_path, capsys):
    with pytest.raises(MigrationError, match=r"\"\['logit'\]\" matches no output; the outputs are \['logits'\]\[0\], "):
        validate(migration(tolerances=[LOOSE, loose("['logit']")]))
    file = tmp_path / "wrong_pattern.py"
    file.write_text(
        "import detrand, numpy, tensorflow as tf\n"
        "migration = detrand.Migration(\n"
        "    tf1=lambda x, training: tf.identity(x, 'out'), port=lambda: lambda x, training: x,\n"
        "    inputs=numpy.ones(3, 'f'), tolerances=[detrand.Tolerance(of='logits')])\n"
    )
    assert main(["validate", str(file)]) == COULD_NOT_RUN
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"detrand: tolerances of <lambda>: 'logits' matches no output; the outputs are output; .*\n", error
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerances": 1e-4}, "tolerances must be a list of detrand.Tolerance, but 0.0001 was given"),
        ({"tolerances": [1e-4]}, r"tolerances must be a list of detrand.Tolerance, but \[0.0001\] was given"),
        ({"tolerances": {"hidden": LOOSE}}, "tolerances must be a list of detrand.Tolerance"),
        ({"tolerances": LOOSE}, r"write tolerances=\[detrand.Tolerance\("),
        ({"tolerances": "automatic"}, "but 'automatic' was given; write tolerances="),
        ({"tolerances": [Tolerance(until=10)]}, r"hold in every step, but .* was given; give it in TrainStep"),
    ],
    ids=["number", "number in a list", "dict", "tolerance without a list", "word", "until"],
)
def test_arguments_that_are_no_tolerance_are_refused(changes, message):
    with pytest.raises(ArgumentError, match=message):
        migration(**changes)


def test_every_report_shows_the_tolerances():
    measured = "measured: 4 times as much as rounding moves TF1's outputs, and at least 4 ULPs"
    text = f"['logits'][0]: rtol=0.002, atol=0; others: {measured}"
    report = validate(migration(tolerances=[loose("['logits'][0]")]))
    assert f"seed 42; tolerance {text}; detrand" in str(report)
    assert json.loads(json_report.render([report]))["migrations"][0]["tolerance"] == text
    assert text.replace("'", "&#x27;") in html_report.render([report])
