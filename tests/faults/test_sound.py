"""The suite of sound ports and of ports with three faults is complete; a few of its ports are run."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import detrand
from tests.faults.sound import sound_ports
from tests.faults.triples import triples


def test_sixty_sound_ports_and_fifteen_triples() -> None:
    assert len(sound_ports()) >= 60
    assert len(list(triples())) == 15


@pytest.mark.parametrize("triple", list(triples()), ids=lambda triple: triple.name)
def test_each_fault_has_a_line_of_its_own(triple) -> None:
    lines = inspect.getsource(inspect.getmodule(triple.make)).splitlines()
    assert len(set(triple.lines)) == 3
    assert all(f"# FAULT {number}" in lines[line - 1] for number, line in enumerate(triple.lines, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generator", "heads_in_a_dict", "subclassed_optimizer", "einsum_attention"])
def test_a_sound_port_passes(name) -> None:
    assert detrand.validate(sound_ports()[name]()).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "triple", [t for t in triples() if t.name in ("two_heads", "discriminator")], ids=lambda t: t.name
)
def test_a_triple_fails_only_with_its_faults(triple) -> None:
    assert not detrand.validate(triple.make(True)).ok
    assert detrand.validate(triple.make(False)).ok


NOTES = {
    "nan_at_the_same_places": ("random-inference", "NaN in both programs"),
    "nothing_over_nothing_at_equal_weights": ("constant-weights", "NaN in both programs"),
    "int64_against_int32": ("random-inference", "int64 in TF1 and int32 in the port, with equal values"),
    "python_number_among_the_outputs": ("constant-mode", "a Keras functional model returns tensors only"),
    "random_op_of_tf1_that_is_never_fetched": ("random-training", "outputs identical"),
    "random_op_of_the_port_that_is_never_used": ("random-training", "outputs identical"),
}


@pytest.mark.slow_except("python_number_among_the_outputs")
@pytest.mark.parametrize("name", NOTES)
def test_a_port_that_looks_odd_passes_with_a_note(name) -> None:
    report = detrand.validate(sound_ports()[name]())
    check, note = NOTES[name]
    assert report.ok
    assert note in next(each.summary for each in report.checks if each.name == check)


def test_nan_at_other_places_and_other_integers_fail() -> None:
    x = np.array([[-1.0, 2.0], [3.0, -4.0]], np.float32)
    programs = [
        (lambda x, training: tf.math.log(x), lambda x, training=False: tf.math.log(-x)),
        (lambda x, training: tf.argmax(x, 1), lambda x, training=False: tf.argmin(x, 1, tf.int32)),
    ]
    for tf1, port in programs:
        migration = detrand.Migration(tf1=tf1, port=lambda port=port: port, inputs=x)
        report = detrand.validate(migration)
        assert "random-inference" in [check.name for check in report.checks if not check.ok]
        assert "KeyError" not in str(report)
