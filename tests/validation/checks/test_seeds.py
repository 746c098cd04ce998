"""Random ops that draw the same numbers outside of a scope."""

import pytest

from detrand.seeding.streams import RandomOp
from detrand.validation.checks.seeds import _repeated


def op(own_seed, shape=(2,), op_type="RandomUniform"):
    return RandomOp(0, 0, 0, op_type, shape, "float32", "compute", "model.py:1", own_seed)


def pairs(port, *tf1):
    return [(first, second) for (first, _), (second, _) in _repeated([(str(n), op) for n, op in enumerate(port)], tf1)]


@pytest.mark.parametrize("own_seed", [(7, None), (7, 0)], ids=["integer", "generator"])
def test_ops_that_draw_from_one_place_of_one_seed_repeat_each_other(own_seed):
    assert pairs([op(own_seed), op((8, 0)), op(own_seed), op(own_seed)]) == [("0", "2"), ("0", "3")]


@pytest.mark.parametrize(
    "other",
    [op((7, 1)), op((7, 0), (3,)), op((7, 0), op_type="RandomStandardNormal")],
    ids=["later", "shape", "op_type"],
)
def test_ops_that_draw_different_numbers_repeat_nothing(other):
    assert pairs([op((7, 0)), other]) == []


@pytest.mark.parametrize("unseeded", [op(None), op((7, 0), ())], ids=["without a seed", "a scalar"])
def test_ops_without_a_seed_and_scalars_repeat_nothing(unseeded):
    assert pairs([unseeded, unseeded]) == []


def test_what_repeats_itself_in_tf1_too_is_no_fault():
    repeating = [op((7, 0)), op((7, 0))]
    assert pairs(repeating, *[op((9, None))] * 2) == []
    assert pairs(repeating, op((9, None)), op((8, None)), op(None), op(None)) == [("0", "1")]
    assert pairs(repeating, *[op((9, None), (3,))] * 2) == [("0", "1")]
