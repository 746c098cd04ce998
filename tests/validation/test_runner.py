"""The op seeds that make a port draw what TF1 draws in a different order."""

import pytest

from detrand import RandomOp
from detrand.validation.runner import op_seeds_of_counterparts

KERNEL, BIAS = ("RandomUniform", (3, 4), "float32", "init"), ("RandomUniform", (4,), "float32", "init")
MASK, NORMALS = ("RandomUniform", (3, 4), "float32", "compute"), ("RandomStandardNormal", (4,), "float32", "compute")
DRAWN_FIRST = ("RandomUniform", (4,), "float32", "compute")  # tf.Variable(tf.random.uniform([4]))
UNKNOWN = ("RandomUniform", (None, 4), "float32", "compute")
NOTHING = ("", None, "", "compute")  # a dropout of TF1 with rate 0


def ops(*kinds, run=0):
    return [
        RandomOp(index, index, run, op_type, shape, dtype, phase, "file.py:1")
        for index, (op_type, shape, dtype, phase) in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([KERNEL, MASK, BIAS], [KERNEL, MASK, BIAS], ()),
        ([KERNEL, MASK, BIAS], [KERNEL, BIAS, MASK], (0, 2, 1)),
        ([MASK, KERNEL, BIAS], [KERNEL, MASK, BIAS], (1, 0, 2)),
        ([NORMALS, DRAWN_FIRST], [BIAS, NORMALS], (1, 0)),
        ([KERNEL, NOTHING, BIAS], [KERNEL, BIAS], (0, 2)),
        ([KERNEL, BIAS], [KERNEL, NOTHING, BIAS], (0, 2, 1)),
        ([NORMALS, UNKNOWN], [MASK, NORMALS], (1, 0)),
        ([KERNEL, BIAS], [BIAS], ()),
        ([KERNEL], [KERNEL, BIAS], ()),
        ([KERNEL, NORMALS], [NORMALS, BIAS], ()),
        ([], [], ()),
    ],
    ids=[
        "the same",
        "initialized first",
        "alike but for the phase",
        "drawn before the variable",
        "nothing drawn in TF1",
        "nothing drawn in the port",
        "unknown shape",
        "one less",
        "one more",
        "another",
        "none",
    ],
)
def test_counterparts_are_paired_with_their_op_seeds(a, b, expected):
    assert op_seeds_of_counterparts(ops(*a), ops(*b), {}, {}) == expected


def test_initializers_of_variables_of_the_same_name_are_counterparts():
    """Two kernels alike, made in the other order. What only one program names goes by its kind."""
    a, b = ops(KERNEL, KERNEL, BIAS, MASK), ops(KERNEL, KERNEL, MASK, BIAS)
    assert op_seeds_of_counterparts(a, b, {0: "q", 1: "k"}, {0: "k", 1: "q", 3: "bias"}) == (1, 0, 3, 2)
    assert op_seeds_of_counterparts(a, b, {0: "q", 1: "bias"}, {0: "k", 1: "q", 3: "bias"}) == (1, 0, 3, 2)


def test_additional_ops_have_no_counterpart():
    assert op_seeds_of_counterparts(ops(KERNEL, MASK, BIAS), ops(KERNEL, BIAS), {}, {}) == (0, 2)
    a, b = ops(KERNEL, MASK, NORMALS, BIAS), ops(KERNEL, BIAS, NORMALS)
    assert op_seeds_of_counterparts(a, b, {}, {}) == ()


def test_later_runs_and_what_no_scope_controls_take_no_op_seed():
    uncontrolled = RandomOp(0, None, 0, "np.random.normal", (4,), "float64", "compute", "file.py:1")
    a, b = ops(KERNEL, NORMALS), ops(NORMALS, KERNEL)
    assert op_seeds_of_counterparts([uncontrolled, *a], [*b, uncontrolled, *ops(NORMALS, run=1)], {}, {}) == (1, 0)
