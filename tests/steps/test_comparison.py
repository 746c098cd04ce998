"""Two recorded trainings are compared step by step; the first difference in TF1's order is named."""

import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, StepRecorder, StepsComparison, Tolerance, compare_steps

v1 = tf.compat.v1


def recorded(steps, **named):
    """Record values, or functions of the step."""
    recorder = StepRecorder()
    for step in steps:
        recorder.record(step, **{name: value(step) if callable(value) else value for name, value in named.items()})
    return recorder


def runs_of_a_session(optimizer, steps=14):
    """Record a session that trains one weight."""
    recorder = StepRecorder()
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=[1.0, -2.0])
        loss = tf.reduce_sum(weight**2)
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.1, step, 4, 0.5, staircase=True)
        update = optimizer(rate).minimize(loss, step)
        session.run(v1.global_variables_initializer())
        for number in range(steps):
            before = session.run({"learning_rate": rate, "loss": loss})
            session.run(update)
            recorder.record(number, **before, weights={"w": session.run(weight)})
    return recorder


def test_equal_runs_have_no_first_divergence():
    comparison = compare_steps(
        runs_of_a_session(v1.train.GradientDescentOptimizer), runs_of_a_session(v1.train.GradientDescentOptimizer)
    )
    assert comparison.ok
    assert comparison
    assert comparison.first_divergence is None
    assert str(comparison) == (
        "all 14 steps identical\n  learning_rate  identical\n  loss           identical\n  weights        identical"
    )


def test_the_first_difference_is_named():
    """With a different epsilon of Adam, weights differ after the first update, the loss from the next step on."""
    session = runs_of_a_session(lambda rate: v1.train.AdamOptimizer(rate, epsilon=1e-8))
    other = runs_of_a_session(lambda rate: v1.train.AdamOptimizer(rate, epsilon=1e-2))
    comparison = compare_steps(other, session)
    assert not comparison
    first = comparison.first_divergence
    assert (first.step, first.name, first.leaf.path) == (0, "weights", "weights['w']")
    assert next(step for step, found in comparison.steps.items() if not found["loss"]) == 1
    text = str(comparison)
    assert text.startswith("14 of 14 steps differ; first: step 0, weights['w']\n  learning_rate  identical\n")
    assert "\n  loss           differs in 13 of 14 steps, first in step 1; max |difference| " in text
    assert "\n\nstep 0, weights['w']: 2 of 2 elements differ (100 %)\n  actual   float32 (2,)" in text


def test_the_greatest_difference_is_reported_with_its_step():
    comparison = compare_steps(
        recorded(range(4), loss=lambda step: 1.0 + (step == 2) * 0.25 + (step == 3) * 0.125),
        recorded(range(4), loss=1.0),
    )
    assert "loss  differs in 2 of 4 steps, first in step 2; max |difference| 0.25 (step 2)" in str(comparison)
    close = compare_steps(
        recorded(range(4), loss=lambda step: 1.0 + (step == 1) * 2**-20), recorded(range(4), loss=1.0)
    )
    assert str(close) == "all 4 steps within 9.5e-07\n  loss  within 9.5e-07 (step 1)"


@pytest.mark.parametrize(
    ("step", "name", "difference", "is_close"),
    [
        (9, "loss", 0.9e-5, True),
        (9, "loss", 1.3e-5, False),
        (10, "loss", 0.049, True),
        (10, "loss", 0.051, False),
        (0, "learning_rate", 0.9e-6, True),
        (0, "learning_rate", 1.1e-6, False),
        (20, "learning_rate", 1.1e-6, False),
    ],
)
def test_the_default_tolerances_follow_the_guide(step, name, difference, is_close):
    comparison = compare_steps(recorded([step], **{name: 1.0 + difference}), recorded([step], **{name: 1.0}))
    assert comparison.ok == is_close


def test_a_small_learning_rate_has_no_absolute_tolerance():
    assert not compare_steps(recorded([0], learning_rate=1e-6), recorded([0], learning_rate=2e-6))


@pytest.mark.parametrize(
    ("tolerances", "expected"),
    [
        ([Tolerance(rtol=0.2, atol=1e-5)], []),
        ([Tolerance(rtol=0.2, atol=1e-5, of="loss")], ["aux_loss"]),
        ([Tolerance(rtol=0.2, atol=1e-5, of="*loss")], []),
        ([Tolerance(0, 0, of="aux*"), Tolerance(rtol=0.2, atol=1e-5)], ["aux_loss"]),
        ([Tolerance(rtol=0.2, atol=1e-5, until=3)], ["loss", "aux_loss"]),
        ([Tolerance(rtol=0.2, atol=1e-5, until=4)], []),
    ],
    ids=["all", "one", "wildcard", "the first counts", "until before", "until after"],
)
def test_the_first_tolerance_that_covers_a_value_counts(tolerances, expected):
    actual, desired = recorded([3], loss=1.1, aux_loss=1.1), recorded([3], loss=1.0, aux_loss=1.0)
    comparison = compare_steps(actual, desired, tolerances)
    assert [name for name, found in comparison.steps[3].items() if not found] == expected


@pytest.mark.parametrize(("path", "covered"), [("['what?']", True), ("['whats']", False), ("['what?'][0]", False)])
def test_only_the_asterisk_stands_for_other_letters(path, covered):
    assert Tolerance(of="['what?']").covers(path) == covered


def test_steps_and_names_that_one_program_lacks_are_listed():
    comparison = compare_steps(recorded([0, 1, 3], loss=1.0, a=1.0), recorded([0, 1, 2], loss=1.0, b=1.0))
    first = comparison.first_divergence
    assert str(first) == "step 0, b: missing in actual; desired is float"
    assert list(comparison.steps) == [0, 1, 2, 3]
    assert {leaf.reason for found in comparison.steps[2].values() for leaf in found.leaves} == {"missing in actual"}
    assert {leaf.reason for found in comparison.steps[3].values() for leaf in found.leaves} == {"missing in desired"}


def test_a_different_dtype_differs_unless_unchecked():
    actual, desired = recorded([0], loss=np.float32(1)), recorded([0], loss=np.float64(1))
    assert compare_steps(actual, desired).first_divergence.leaf.reason == "dtype"
    assert compare_steps(actual, desired, check_dtype=False)


def test_nan_differs_from_nan():
    assert not compare_steps(recorded([0], loss=float("nan")), recorded([0], loss=float("nan")))


def test_a_comparison_without_numbers_fails():
    assert not compare_steps(StepRecorder(), StepRecorder())
    assert str(StepsComparison({})) == "nothing to compare: neither program has recorded a step"
    assert not compare_steps(recorded([0], loss=None), recorded([0], loss=None))


def test_a_loaded_run_compares_as_the_recorded_one(tmp_path):
    run = runs_of_a_session(v1.train.GradientDescentOptimizer, steps=2)
    run.save(tmp_path / "steps.npz")
    comparison = compare_steps(run, StepRecorder.load(tmp_path / "steps.npz"), [Tolerance(0, 0)])
    assert comparison.ok, str(comparison)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rtol": -1, "atol": 0}, "rtol=-1: must be a finite number"),
        ({"rtol": 0, "atol": float("inf")}, "atol=inf: must be a finite number"),
        ({"rtol": 1e-4}, r"Tolerance got rtol=0.0001 only; give rtol and atol together"),
        ({"atol": 1e-4}, r"Tolerance got atol=0.0001 only; give rtol and atol together"),
        (
            {"of": ""},
            "of must be the path of an output, .* or the name of recorded values, .* but '' of type str was given",
        ),
        (
            {"of": 3},
            "of must be the path of an output, .* or the name of recorded values, .* but 3 of type int was given",
        ),
        ({"until": 0}, "until must be a step from 1, or None, but 0 was given"),
        ({"until": True}, "until must be a step from 1, or None, but True was given"),
    ],
    ids=str,
)
def test_a_wrong_tolerance_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        Tolerance(**arguments)


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match=r"actual must be a StepRecorder, but \[1.0\] of type list was given"):
        compare_steps([1.0], StepRecorder())
    with pytest.raises(ArgumentError, match=r"desired must be a StepRecorder, but 'steps.npz' of type str .*\.load"):
        compare_steps(StepRecorder(), "steps.npz")
    for tolerances in (Tolerance(), [0.05]):
        with pytest.raises(ArgumentError, match=r"must be a list of detrand.Tolerance, but .* was given; write tol"):
            compare_steps(StepRecorder(), StepRecorder(), tolerances)
