"""The value in a port's schedule that differs from TF1's. TF1's rates are given by their formulas."""

import keras
import numpy as np
import pytest

from detrand.validation.training.schedules import changed_to_tf1

STEPS = range(700)


def named(schedule, tf1, numbers):
    """Return the value that differs, TF1's and the port's, given TF1's rate of a step; None for none."""
    port = {step: float(keras.ops.convert_to_numpy(schedule(step))) for step in STEPS} if callable(schedule) else {}
    changed = changed_to_tf1(schedule, {step: tf1(step) for step in STEPS}, port, sorted(map(float, numbers)))
    return None if changed is None else changed[:3]


def decaying(rate, share, steps):
    return lambda step: rate * share ** (step / steps)


def below(boundaries, rates):
    return lambda step: rates[sum(step > each for each in boundaries)]


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of the user's without a configuration, which has another one after its first steps."""

    def __init__(self, after, steps=4):
        self.after, self.steps = after, steps

    def __call__(self, step):
        after = self.after(step)
        return after * keras.ops.minimum(1.0, (keras.ops.cast(step, "float32") + 1.0) / self.steps)


def warmed_up(step):
    return np.float32(0.1 * 0.5 ** (step // 100)) * min(1, (step + 1) / 4)


def staircase(steps=100, share=0.5):
    return keras.optimizers.schedules.ExponentialDecay(0.1, steps, share, staircase=True)


@pytest.mark.slow_except("default of a keyword", "default", "number", "variable")
@pytest.mark.parametrize(
    ("schedule", "tf1", "numbers", "expected"),
    [
        (
            lambda step: 0.1 * 0.94 ** (step / 100),
            decaying(0.1, 0.96, 100),
            [0.1, 0.96, 100],
            ("number in the learning-rate schedule", 0.96, 0.94),
        ),
        (
            decaying(0.1, 0.96, 200),
            decaying(0.1, 0.96, 100),
            [0.1, 0.96, 100],
            ("steps in the learning-rate schedule", 100, 200),
        ),
        (
            lambda step, share=0.94: 0.1 * share ** (step / 100),
            decaying(0.1, 0.96, 100),
            [0.1, 0.96, 100],
            ("share in the learning-rate schedule", 0.96, 0.94),
        ),
        (
            lambda step, rate=0.1, *, steps=200: rate * 0.96 ** (step / steps),
            decaying(0.1, 0.96, 100),
            [0.1, 0.96, 100],
            ("steps in the learning-rate schedule", 100, 200),
        ),
        (
            WarmUp(staircase(), 5),
            warmed_up,
            [0.1, 0.5, 100, 4, 1],
            ("steps of the learning-rate schedule", 4, 5),
        ),
        (
            WarmUp(staircase(share=0.4)),
            warmed_up,
            [0.1, 0.5, 100, 4, 1],
            ("argument decay_rate of ExponentialDecay in the learning-rate schedule", 0.5, 0.4),
        ),
    ],
    ids=["number", "variable", "default", "default of a keyword", "attribute", "inside"],
)
def test_the_value_in_a_schedule_of_the_users_is_named(schedule, tf1, numbers, expected):
    assert named(schedule, tf1, numbers) == expected


def test_a_schedule_that_no_value_makes_right_has_none():
    assert named(lambda step: 0.1 * 0.94 ** (step / 100), lambda step: 0.1 / (1 + step), [0.1, 1]) is None
    assert named(None, decaying(0.1, 0.96, 100), [0.1, 0.96, 100]) is None


@pytest.mark.slow
def test_functions_and_objects_of_the_user_stay_as_they_were():
    schedule, rate = WarmUp(staircase(), 5), decaying(0.1, 0.96, 200)
    named(schedule, warmed_up, [0.1, 0.5, 100, 4, 1])
    named(rate, decaying(0.1, 0.96, 100), [0.1, 0.96, 100])
    assert (schedule.steps, schedule.after.decay_steps, rate(200)) == (5, 100, pytest.approx(0.096))


def test_a_function_with_a_variable_without_a_value_has_none():
    def rate(step):
        return later if step else 0.1

    assert named_without_call(rate) is None
    later = 0.2


def named_without_call(schedule):
    return changed_to_tf1(schedule, {0: 0.1, 1: 0.3}, {}, [0.1, 0.3])
