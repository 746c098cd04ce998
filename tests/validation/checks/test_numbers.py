"""The one number of a loss that differs, and equations that have no such solution."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep
from detrand.validation.checks.numbers import _Equation, numbers_of_loss
from detrand.validation.reference import TRAINING
from detrand.validation.runner import Runner
from tests.faults.tf1 import numbers

v1 = tf.compat.v1
INPUTS, KERNEL = numbers(6, 3), numbers(3, 4, seed=2) / 3


def numbers_that_differ(of_tf1, of_port, *, rows=6):
    """Return the numbers with which a port's loss is TF1's."""
    migration = Migration(
        tf1=lambda x, training: tf.matmul(x, v1.get_variable("dense/kernel", initializer=KERNEL)),
        port=lambda: keras.layers.Dense(4, use_bias=False, name="dense"),
        inputs=INPUTS[:rows],
        train=TrainStep(
            labels=numbers(6, 4, seed=1)[:rows],
            tf1_loss=of_tf1,
            port_loss=of_port,
            tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(0.1),
            port_optimizer=lambda: keras.optimizers.SGD(0.1),
            steps=1,
        ),
    )
    runner = Runner(migration)
    tf1, config = runner.tf1, runner.port(TRAINING).config
    program, initial = tf1.loss_of_outputs().migration, tf1.outcome(TRAINING).initial
    others = tf1.loss_of_other_outputs()
    other = None if others is None else (others[0].migration, others[1])
    return numbers_of_loss(program, config, tf1.trace_of_loss(), tf1.shapes(), initial, terms=True, other=other)


def squares(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs))


def weighted(weight):
    return lambda labels, outputs: squares(labels, outputs) + weight * tf.reduce_sum(tf.exp(outputs))


def weighted_by_hand(weight, of_squares=1.0):
    """Return the same loss, written differently."""

    def loss(labels, outputs):
        errors = (outputs - labels) ** 2.0
        return of_squares * tf.reduce_mean(errors) + weight * tf.reduce_sum(tf.reduce_sum(tf.math.exp(outputs), 0))

    return loss


def test_a_number_that_tf1_gives_to_the_same_kind_of_op_has_both_places():
    number, *_ = numbers_that_differ(weighted(0.3), weighted_by_hand(0.2))
    assert (number.title, number.needed, number.value) == ("factor differs: 0.3 (TF1), 0.2 (port)", "0.3", "0.2")
    assert number.tf1 is not None and number.tf1.type == "Mul"


def test_a_factor_that_the_port_lacks_is_that_of_a_term():
    def without_factor(labels, outputs):
        return weighted_by_hand(0.0)(labels, outputs) + tf.reduce_sum(tf.reduce_mean(tf.math.exp(outputs), 0))

    found = numbers_that_differ(weighted(0.07), without_factor)
    title = "factor of a term differs: with 0.42 in place of 1, the port's loss is TF1's"
    assert title in [each.title for each in found]


@pytest.mark.parametrize("right_by_chance", [0.345, 1 / 29])
@pytest.mark.parametrize("rows", [6, 1])
def test_a_number_that_is_right_by_chance_is_no_finding(rows, right_by_chance):
    """Of these outputs, the port's loss is TF1's with this number, and of others it is not."""
    outputs = INPUTS[:rows] @ KERNEL
    weight = float(right_by_chance * np.abs(outputs).sum() / np.exp(outputs).sum())

    def port(labels, outputs):
        return squares(labels, outputs) + 0.2 * tf.reduce_sum(tf.abs(outputs))

    assert numbers_that_differ(weighted(weight), port, rows=rows) == []


def test_a_number_of_one_digit_needs_no_other_outputs():
    (number,) = numbers_that_differ(weighted(0.3), weighted_by_hand(0.2, 1.0), rows=1)
    assert number.needed == "0.3"


WEIGHTS = np.array([2, 1, 0, 1, 0, 3], np.float32)


def of_rows(outputs):
    return tf.reduce_sum(tf.square(outputs), 1)


def mean_of_some(labels, outputs):
    return tf.reduce_mean(tf.boolean_mask(of_rows(outputs), WEIGHTS > 0))


def mean_of_all(labels, outputs):
    return tf.reduce_mean(tf.reduce_sum(outputs**2.0, 1) * tf.cast(WEIGHTS > 0, tf.float32))


def by_nonzero_weights(labels, outputs):
    return v1.losses.compute_weighted_loss(of_rows(outputs), WEIGHTS) + squares(labels, outputs)


def by_weights(labels, outputs):
    errors = (labels - outputs) ** 2.0
    return tf.reduce_sum(of_rows(outputs) * WEIGHTS) / tf.reduce_sum(tf.constant(WEIGHTS)) + tf.reduce_mean(errors)


def mean_in_steps(labels, outputs):
    means = tf.reduce_mean(tf.exp(outputs), 1)
    return tf.reduce_sum(means) / tf.cast(tf.shape(labels)[0] - 1, tf.float32)


@pytest.mark.parametrize(
    ("of_tf1", "of_port", "needed", "value"),
    [
        (mean_of_some, mean_of_all, "4", "6"),
        (mean_of_all, mean_of_some, "6", "4"),
        (by_nonzero_weights, by_weights, "4", "7"),
        (mean_in_steps, lambda labels, outputs: tf.reduce_mean(tf.reduce_mean(tf.exp(outputs), 1)), "5", "6"),
    ],
    ids=["all rows", "some rows", "weights beside another term", "rows less one"],
)
def test_the_divisor_of_the_same_sum_has_both_places(of_tf1, of_port, needed, value):
    (number,) = numbers_that_differ(of_tf1, of_port)
    assert number.title == f"divisor of the same sum differs: {needed} (TF1), {value} (port)"
    types = {number.tf1.type, number.port.type}
    assert types <= {"Mean", "RealDiv", "DivNoNan"}
    mean = f"take the mean of {needed} elements in the port"
    assert number.remedy == mean if number.tf1.type == "Mean" else number.remedy.startswith("divide by the counterpart")


def test_a_divisor_of_the_same_sum_beside_another_fault_is_no_solution():
    def with_a_term(labels, outputs):
        return mean_of_all(labels, outputs) + tf.reduce_mean(tf.abs(labels) ** 3.0)

    titles = [each.title for each in numbers_that_differ(mean_of_some, with_a_term)]
    assert not any("divisor of the same sum" in title for title in titles)


def logarithm_of(errors):
    return tf.debugging.check_numerics(tf.math.log(errors), "of a number below 0")


def logarithm_in_a_branch(errors):
    return tf.cond(tf.reduce_max(errors) > -1e9, lambda: logarithm_of(errors), lambda: errors)


@pytest.mark.parametrize("logarithm", [logarithm_of, logarithm_in_a_branch])
def test_a_number_that_the_loss_refuses_is_no_solution(logarithm):
    def port(labels, outputs):
        return tf.reduce_mean(logarithm(tf.square(labels - outputs) + 2.0))

    assert numbers_that_differ(lambda labels, outputs: -20.0 - squares(labels, outputs), port) == []


def test_a_sum_in_place_of_a_mean_is_the_reduction_of_a_term():
    def port(labels, outputs):
        return tf.reduce_sum((labels - outputs) ** 2.0) + tf.reduce_sum(tf.reduce_sum(tf.math.exp(outputs), 0))

    (number,) = numbers_that_differ(weighted(1.0), port)
    assert number.title == "reduction of a term differs: with a mean in place of a sum, the port's loss is TF1's"


def equation(difference, atol=1e-7):
    return _Equation(difference, atol)


@pytest.mark.parametrize(
    ("difference", "value", "known", "solution"),
    [
        (lambda x: x - 0.25, 1.0, [], 0.25),
        (lambda x: x - 1 / 3, 1.0, [], 1 / 3),
        (lambda x: x + 1 / 7.25, 1.0, [0.0, 7.25], -1 / 7.25),
        (lambda x: x, 1.0, [], 0.0),
        (lambda x: x * x + 1, 1.0, [], None),
        (lambda x: 1.0, 1.0, [], None),
        (lambda x: math.nan, 1.0, [], None),
        (lambda x: x - math.pi / 10, 1.0, [], None),
        (lambda x: 1e-5 * (x - 0.25), 1.0, [], None),
    ],
    ids=["digits", "reciprocal", "of a known one", "zero", "no root", "flat", "refused", "many digits", "inexact"],
)
def test_a_solution_is_a_number_of_few_digits_or_a_known_one(difference, value, known, solution):
    found = equation(difference).solution(value, difference(value), known)
    assert found == (solution if solution is None else pytest.approx(solution, rel=1e-6, abs=1e-6))


@pytest.mark.parametrize(("factor", "solution"), [(0.25, 0.25), (0.962, None), (1 / 12, 1 / 12)])
def test_the_factor_of_a_term_is_a_rounder_number(factor, solution):
    """Any loss has some factor for each of its terms."""
    assert equation(lambda x: 7.0 * (x - factor)).solution(1.0, 7.0 * (1 - factor), [], digits=2) == solution


def test_a_known_number_comes_before_others():
    assert equation(lambda x: x - 0.25).solution(1.0, 0.75, [0.25]) == 0.25
