"""Clipping and scaling are read from gradients and what a session applies in their place."""

import numpy as np
import pytest
import tensorflow as tf

from detrand.validation.diagnosis.causes.updates import of_clipping
from detrand.validation.training.clipping import (
    NORM_OF_EACH,
    NOT_CLIPPED,
    AppliedStep,
    Clipping,
    clipping_of,
    factor_of,
)

v1 = tf.compat.v1
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": ()}
SIZES = (0.01, 0.3, 2.0, 50.0)


def steps(change, sizes=SIZES, rounding=0.0):
    """Return the gradients of steps of growing size, and what a session makes of them."""
    rng, found = np.random.default_rng(0), []
    with tf.Graph().as_default(), v1.Session() as session:
        fed = {name: v1.placeholder(tf.float64, shape) for name, shape in SHAPES.items()}
        changed = dict(zip(SHAPES, change(list(fed.values())), strict=True))
        for size in sizes:
            gradients = {name: size * rng.normal(size=shape) for name, shape in SHAPES.items()}
            applied = session.run(changed, {fed[name]: array for name, array in gradients.items()})
            moved = {name: array + rounding * rng.uniform(-1, 1, array.shape) for name, array in applied.items()}
            found.append(AppliedStep(gradients, moved, dict.fromkeys(SHAPES, rounding)))
    return found


def by_global_norm(limit):
    return lambda gradients: tf.clip_by_global_norm(gradients, limit)[0]


def each(change):
    return lambda gradients: [change(gradient) for gradient in gradients]


def only_smaller_than(limit, change):
    def changed(gradients):
        is_small = tf.linalg.global_norm(gradients) < limit
        return [tf.where(is_small, *pair) for pair in zip(change(gradients), gradients, strict=True)]

    return changed


CHANGES = {
    "none": each(tf.identity),
    "global norm 2.5": by_global_norm(2.5),
    "global norm 0.001": by_global_norm(0.001),
    "norm of each 1.5": each(lambda gradient: tf.clip_by_norm(gradient, 1.5)),
    "each element 0.25": each(lambda gradient: tf.clip_by_value(gradient, -0.25, 0.25)),
}


@pytest.mark.parametrize("words", CHANGES)
def test_clipping_is_named_with_its_limit(words):
    assert str(clipping_of(steps(CHANGES[words]))) == words


def test_rounding_hides_no_clipping():
    for words in ("none", "global norm 2.5", "each element 0.25"):
        rounded = steps(CHANGES[words], rounding=1e-5)
        clipping = clipping_of(rounded)
        assert clipping.what == words.rpartition(" ")[0]
        assert words == "none" or float(clipping.limit) == pytest.approx(float(words.split()[-1]), rel=1e-3)
        assert clipping_of([step._replace(rounding={}) for step in rounded]) is None


@pytest.mark.parametrize(
    "change",
    [
        each(lambda gradient: 0.5 * gradient),
        each(tf.sign),
        each(lambda gradient: tf.maximum(gradient, -0.25)),
        lambda gradients: [gradient / tf.linalg.global_norm(gradients) for gradient in gradients],
        each(tf.zeros_like),
        each(tf.negative),
        only_smaller_than(10.0, by_global_norm(1.0)),
        lambda gradients: [
            tf.clip_by_norm(each, limit) for each, limit in zip(gradients, (0.001, 0.002, 0.003), strict=True)
        ],
        lambda gradients: [tf.clip_by_norm(gradients[0], 1.0), *gradients[1:]],
        lambda gradients: [*by_global_norm(2.0)(gradients[:2]), gradients[2]],
    ],
    ids=[
        *("factor", "sign", "one bound", "normalized", "zeros", "negative", "only small ones", "three limits"),
        *("one variable", "without the last"),
    ],
)
def test_what_is_no_clipping_of_all_gradients_is_not_named(change):
    assert clipping_of(steps(change)) is None


def step_of(*pairs):
    """Return a step of variables, each with its gradient and what is applied in its place."""
    arrays = [{str(n): np.array(pair[which]) for n, pair in enumerate(pairs)} for which in (0, 1)]
    return AppliedStep(*arrays, {})


def test_a_gradient_above_the_limit_that_is_applied_as_it_is_shows_that_nothing_clips():
    clipped_by_norm = step_of(([6.0, 8.0], [3.0, 4.0]))
    below, above = step_of(([3.0, 0.0], [3.0, 0.0])), step_of(([0.0, 8.0], [0.0, 8.0]))
    assert str(clipping_of([clipped_by_norm, below])) == "global norm 5"
    assert clipping_of([clipped_by_norm, below, above]) is None
    clipped_elements = step_of(([2.0, 0.5, -3.0], [1.0, 0.5, -1.0]), ([0.5], [0.5]))
    small, large = ([0.1, 0.1, 0.1],) * 2, ([3.0],) * 2
    assert str(clipping_of([clipped_elements, step_of(small, ([0.2],) * 2)])) == "each element 1"
    assert clipping_of([clipped_elements, step_of(small, large)]) is None


def test_a_gradient_of_zeros_is_clipped_with_the_others():
    assert str(clipping_of([step_of(([6.0, 8.0], [3.0, 4.0]), ([0.0], [0.0]))])) == "global norm 5"


def test_a_limit_that_no_gradient_reaches_is_none():
    assert str(clipping_of(steps(by_global_norm(2.5), sizes=(0.01, 0.1)))) == "none"


def test_nothing_is_known_of_steps_without_applied_gradients():
    unknown = [step._replace(applied={}) for step in steps(by_global_norm(2.5))]
    assert clipping_of([]) is None and clipping_of(unknown) is None
    assert factor_of(unknown, list(SHAPES)) is None


def test_the_norm_of_all_gradients_counts_where_some_are_not_known_to_be_applied():
    partly = [
        step._replace(applied={name: step.applied[name] for name in ("kernel", "bias")})
        for step in steps(by_global_norm(2.5))
    ]
    assert str(clipping_of(partly)) == "global norm 2.5"


def test_a_factor_is_one_number_in_all_steps():
    def twice_the_kernel(gradients):
        return [2.0 * gradients[0], *gradients[1:]]

    found = steps(twice_the_kernel)
    assert factor_of(found, ["kernel"]) == pytest.approx(2.0)
    assert factor_of(found, ["bias", "scale"]) == pytest.approx(1.0)
    assert factor_of(found, list(SHAPES)) is None
    assert factor_of(steps(by_global_norm(2.5)), ["kernel"]) is None


def test_an_argument_that_limits_nothing_is_replaced():
    """Optimizers of Keras take one of the three only."""
    cause = of_clipping(Clipping(NORM_OF_EACH, "1"), NOT_CLIPPED, "", "clipvalue")
    assert cause.title == (
        "clipping of gradients differs: norm of each 1 (TF1), clipvalue, which limits nothing in these steps (port)"
    )
    assert cause.remedy == "pass clipnorm=1 to the port's optimizer in place of clipvalue"
    assert of_clipping(Clipping(NORM_OF_EACH, "1"), NOT_CLIPPED, "").remedy == "pass clipnorm=1 to the port's optimizer"
