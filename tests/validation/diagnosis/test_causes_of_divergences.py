"""What `causes` says of a divergence whose programs are not run."""

import dataclasses

import numpy as np
import pytest

from detrand import compare
from detrand._patching.graphs import op_def
from detrand.validation.diagnosis.causes.computation import causes
from detrand.validation.diagnosis.causes.loss import broadcast_in_one, causes_of_loss, with_label_smoothing
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.frameworks.traces import TracedOp, Value
from detrand.validation.results import OwnForm
from detrand.validation.training.loss import LossInput

INPUTS = LossInput("labels", "labels"), LossInput("outputs", "outputs")
ARRAY = np.arange(24.0).reshape(2, 3, 4) ** 1.5


def op(name, op_type, *inputs, **attributes):
    """Return an op; attributes begin with ``attribute_`` or, for constant inputs, ``input_``."""
    texts = {name.replace("_", " ", 1): str(value) for name, value in attributes.items()}
    given = {name: np.asarray(value) for name, value in attributes.items() if name.startswith("input_")}
    constants = {name.replace("_", " ", 1): array for name, array in given.items()}
    arguments = tuple(each.name for each in op_def(op_type).input_arg) if constants else ()
    return TracedOp(name, op_type, "model.py:1", inputs, texts, constants=constants, arguments=arguments)


def titles(found):
    return tuple(each.title for each in found)


def divergence(tf1, port, **parts):
    names = {**tf1.attributes, **port.attributes}
    pairs = {name: (tf1.attributes.get(name, ""), port.attributes.get(name, "")) for name in names}
    found = {"attributes": {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}}
    found |= {
        "values": (None, None),
        "sources": ([], []),
        "after": (),
        "leaf": None,
        "confirmed": "with TF1's value here, the rest agrees",
    }
    return Divergence(tf1, port, **{**found, "regions": ((tf1,), (port,)), **parts})


def test_a_dtype_that_differs_is_named():
    comparison = compare(np.ones(2, np.float64), np.ones(2, np.float32))
    assert titles(causes(output=comparison.first_divergence)) == ("dtype differs: float32 (TF1), float64 (port)",)


def test_what_is_taken_from_an_array_by_an_op_of_another_type_is_nothing_to_add_or_remove():
    regions = (
        (op("sorted", "TopKV2", "x", "k"), op("last", "StridedSlice", "sorted", "b", "e", "s")),
        (op("order", "TopKV2", "x", "k"), op("taken", "GatherV2", "order", "i", "axis")),
    )
    found = causes(divergence(regions[0][0], regions[1][0], regions=regions))
    assert titles(found) == ("what is taken from an array differs: StridedSlice (TF1), GatherV2 (port)",)
    found = causes(divergence(regions[0][0], regions[1][0], regions=(regions[0][:1], regions[1])))
    assert titles(found) == ("only the port computes GatherV2",)


def test_axes_in_another_order_are_named():
    values = Value.of(ARRAY), Value.of(ARRAY.transpose(0, 2, 1).copy())
    found = titles(causes(divergence(op("a", "Relu"), op("b", "Relu"), values=values)))
    assert "order of axes differs: TF1's array transposed to (0, 2, 1) is the port's array" in found


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((ARRAY, ARRAY.transpose(2, 0, 1)), "the port's array is TF1's, transposed to (2, 0, 1)"),
        ((ARRAY, ARRAY[:, ::-1]), "the port's array is TF1's, reversed along axis 1"),
        ((ARRAY[0], ARRAY[0][[1, 2, 0]]), "the port's array is TF1's, in a different order along axis 0: 1, 2, 0"),
        ((ARRAY, ARRAY.reshape(4, 6) + 1), "0 (TF1), 1 (port) in 24 of 24 entries, the first at [0, 0, 0]"),
    ],
    ids=["transposed", "reversed", "in a different order", "other numbers"],
)
def test_how_constants_differ_is_named(arrays, words):
    ops = op("a", "AddV2", "x", "c"), op("b", "AddV2", "x", "c")
    assert titles(causes(divergence(*ops, constants=arrays)))[0] == f"constant differs: {words}"


def test_a_slice_without_constant_bounds_is_an_attribute():
    ops = (
        op(name, "StridedSlice", "x", "b", "e", "s", attribute_begin_mask=mask)
        for name, mask in zip("ab", (0, 1), strict=True)
    )
    found = titles(causes(divergence(*ops, attribute="attribute begin_mask")))
    assert found == ("begin_mask of StridedSlice differs: 0 (TF1), 1 (port)",)


def test_a_padding_of_an_op_of_its_own_that_does_not_differ_is_no_cause():
    pads = [op(name, "Pad", "x", "p", input_1="[[0 0] [1 1]]") for name in ("pa", "pb")]
    convolutions = [
        op(name, "Conv2D", pad.name, "w", attribute_strides=strides, attribute_padding="VALID")
        for name, pad, strides in zip("ab", pads, ("[1, 2, 2, 1]", "[1, 1, 1, 1]"), strict=True)
    ]
    regions = tuple(zip(pads, convolutions, strict=True))
    found = titles(causes(divergence(*convolutions, regions=regions)))
    assert found == ("stride differs: [1, 2, 2, 1] (TF1), [1, 1, 1, 1] (port)",)


def test_an_op_along_other_axes_is_named():
    transpose = op("t", "Transpose", "x", "p", input_1=np.array([0, 2, 1]))
    ops = op("a", "Softmax", "x"), op("b", "Softmax", "t")
    found = titles(causes(divergence(*ops, regions=((ops[0],), (transpose, ops[1])))))
    assert found == ("axis of Softmax differs: 2 (TF1), 1 (port)",)


def test_other_moves_of_the_same_numbers_are_named():
    ops = op("a", "Transpose", "x", "p", input_1="[1 0]"), op("b", "Roll", "x", "p", input_1="1")
    (found,) = titles(causes(divergence(*ops, confirmed="")))
    assert found == "arrangement of the elements differs: Transpose [1 0] (TF1), Roll 1 (port)"


def test_axes_that_no_substitute_shows_are_named():
    ops = (op(name, "ConcatV2", "x", "y", "axis", input_2=axis) for name, axis in zip("ab", (0, 1), strict=True))
    assert titles(causes(divergence(*ops, confirmed=""))) == ("axis of ConcatV2 differs: 0 (TF1), 1 (port)",)


def test_arithmetic_by_different_ops_is_named():
    ops = op("a", "Mul", "x", "c", input_1=0.5), op("b", "AddV2", "x", "c", input_1=3.0)
    found = {each.title: each.remedy for each in causes(divergence(*ops, attributes={}))}
    remedy = found["arithmetic differs: multiplies by 0.5 (TF1), adds 3.0 (port)"]
    assert remedy == "compute the same in the port: TF1 multiplies by 0.5"


def test_a_regularization_loss_of_0_has_no_factor():
    assert causes(losses=(np.float32(1.0), np.float32(0.0))) == ()


def test_constant_inputs_of_an_op_of_a_loss_are_named_by_their_arguments():
    ops = (
        op(name, "ClipByValue", "x", "low", "high", input_1=low, input_2=high)
        for name, low, high in zip("ab", (0.1, 0.2), (0.9, 0.8), strict=True)
    )
    found = titles(causes_of_loss(divergence(*ops), INPUTS))
    words = "clip_value_min 0.1, clip_value_max 0.9 (TF1), clip_value_min 0.2, clip_value_max 0.8 (port)"
    assert found == (f"ClipByValue differs: {words}",)


def test_what_only_one_program_computes_from_the_labels_are_weights():
    ops = op("a", "GatherV2", "w", "labels"), op("b", "SoftmaxCrossEntropyWithLogits", "outputs", "labels")
    given, operands = (frozenset({0}), frozenset({0, 1})), ((frozenset(), frozenset({0})), ())
    found = titles(causes_of_loss(divergence(*ops, given=given, operands=operands, confirmed=""), INPUTS))
    assert found == ("only TF1 weights the loss by the labels (GatherV2)",)


def test_a_number_that_scales_the_labels_is_no_weight():
    factor, limit = op("a", "Mul", "c", "labels", input_0=3.0), op("b", "Minimum", "labels", "n")
    labels = frozenset({0})
    parts = {"given": (labels, labels), "operands": ((frozenset(), labels), (labels, labels)), "attributes": {}}
    found = titles(causes_of_loss(divergence(factor, limit, regions=((factor,), ()), **parts), INPUTS))
    assert found == ("only TF1 multiplies by 3.0",)


def test_two_tensors_of_labels_are_no_weight():
    ops = op("a", "Sub", "labels", "more"), op("b", "Sub", "outputs", "labels")
    given, operands = (frozenset({0}), frozenset({0, 1})), ((frozenset({0}), frozenset({0})), ())
    found = titles(causes_of_loss(divergence(*ops, given=given, operands=operands, confirmed=""), INPUTS))
    assert not any("weights" in each for each in found)


def test_factors_and_numbers_that_do_not_fit_are_no_label_smoothing():
    given = frozenset({0}), frozenset({0})
    factor = divergence(op("a", "Mul", "x", "c", input_1=0.9), op("b", "Mul", "x", "c", input_1=0.8), given=given)
    added = divergence(op("c", "AddV2", "x", "c", input_1=0.025), op("d", "AddV2", "x", "c", input_1=0.05), given=given)
    (smoothing,) = with_label_smoothing([factor, added], INPUTS)
    assert smoothing.attributes == {"label smoothing": ("0.1", "0.2")}
    other = dataclasses.replace(added, attributes={"input 1": ("0.025", "0.04")})
    assert with_label_smoothing([factor, other], INPUTS) == (factor, other)


RELU, SIGMOID, MUL = op("r", "Relu", "x"), op("s", "Sigmoid", "r"), op("m", "Mul", "s", "c", input_1=2.0)
TURNED = op("t", "Transpose", "x", "p", input_1=np.array([0, 2, 1]))
TAKEN = {"attributes": {}, "taken": (("mul", "x"), ("lookup", "x"))}
POOL, SQUARE = op("a", "MaxPool", "x"), op("d", "Square", "x")
HALF, PRODUCT = op("a", "Mul", "x", "0.5", input_1=0.5), op("b", "MatMul", "x", "y")
SWAPPED = {"attributes": {}, "taken": (("a", "b"), ("b", "a"))}
PADDED = {"attribute_padding": "SAME"}, {"attribute_padding": "VALID"}
CENTERS = {"attribute_half_pixel_centers": "False"}, {"attribute_half_pixel_centers": "True"}


@pytest.mark.parametrize(
    ("ops", "parts", "title", "remedy", "own_form"),
    [
        (
            (op("a", "Softmax", "x"), op("b", "Softmax", "t")),
            {"regions": ((op("a", "Softmax", "x"),), (TURNED, op("b", "Softmax", "t")))},
            "axis of Softmax differs: 2 (TF1), 1 (port)",
            "compute Softmax along TF1's axis",
            None,
        ),
        (
            (SIGMOID, MUL),
            {"regions": ((SIGMOID, MUL), (MUL, SIGMOID)), "is_order": True},
            "order of ops differs: Sigmoid, then Mul (TF1), Mul, then Sigmoid (port)",
            "use this order in the port: Sigmoid, then Mul",
            None,
        ),
        (
            (POOL, SQUARE),
            {"regions": ((POOL, op("c", "LRN", "a")), (SQUARE, op("b", "Sum", "d"), POOL))},
            "order of ops differs: MaxPool comes first in TF1 and last in the port",
            "compute MaxPool first in the port",
            None,
        ),
        (
            (HALF, PRODUCT),
            {"regions": ((HALF, PRODUCT), (PRODUCT, op("d", "RealDiv", "b", "4", input_1=4.0)))},
            "constant factor differs: 0.5 (TF1), 0.25 (port)",
            "multiply by 0.5 in the port, in one factor or in several",
            None,
        ),
        (
            (SIGMOID, MUL),
            {"regions": ((SIGMOID,), (op("c", "Sigmoid", "y"),)), "is_order": True},
            "order of ops differs: Sigmoid is in a different place in the port",
            "compute Sigmoid where TF1 does",
            None,
        ),
        (
            (op("a", "AddV2", "mul", "x"), op("b", "AddV2", "lookup", "x")),
            TAKEN,
            "AddV2 takes different tensors: mul (TF1), lookup (port)",
            "pass the port's counterpart of mul here",
            None,
        ),
        (
            (op("a", "Sub", "a", "b"), op("b", "Sub", "b", "a")),
            SWAPPED,
            "order of the inputs differs: a, b (TF1), b, a (port)",
            "use this order in the port: a, b",
            None,
        ),
        (
            (RELU, op("b", "Identity", "x")),
            {},
            "the port has no activation where TF1 has Relu",
            "add the activation Relu to the port",
            None,
        ),
        (
            (op("b", "Identity", "x"), RELU),
            {},
            "TF1 has no activation where the port has Relu",
            "remove the activation Relu from the port",
            None,
        ),
        (
            (op("a", "Log", "x"), op("b", "Cos", "x")),
            {},
            "what is computed differs: Log (TF1), Cos (port)",
            "",
            None,
        ),
        (
            tuple(op(name, "MaxPool", "x", **padding) for name, padding in zip("ab", PADDED, strict=True)),
            {"attribute": "attribute padding"},
            "padding differs: SAME (TF1), VALID (port)",
            "use SAME in the port",
            (OwnForm.PAD_SAME, "SAME"),
        ),
        (
            tuple(op(name, "MaxPool", "x", **padding) for name, padding in zip("ab", PADDED[::-1], strict=True)),
            {"attribute": "attribute padding"},
            "padding differs: VALID (TF1), SAME (port)",
            "use VALID in the port",
            None,
        ),
        (
            tuple(
                op(name, "Conv2DBackpropInput", "x", "k", "s", **padding)
                for name, padding in zip("ab", PADDED, strict=True)
            ),
            {"attribute": "attribute padding"},
            "padding differs: SAME (TF1), VALID (port)",
            "use SAME in the port",
            (OwnForm.CROP_SAME, "SAME"),
        ),
        (
            tuple(op(name, "ResizeBilinear", "x", "s", **centers) for name, centers in zip("ab", CENTERS, strict=True)),
            {"attribute": "attribute half_pixel_centers"},
            "half pixel centers in a resize differs: False (TF1), True (port)",
            "set half pixel centers in a resize to False in the port",
            (OwnForm.PIXEL_CENTERS, "False"),
        ),
        (
            (op("a", "Reshape", "x", "s"), op("b", "Reshape", "x", "s")),
            {
                "values": (Value.of(ARRAY.reshape(2, 12)), Value.of(ARRAY.transpose(0, 2, 1).reshape(2, 12))),
                "sources": ([Value.of(ARRAY)], [Value.of(ARRAY)]),
                "confirmed": "",
            },
            "order of the axes that are flattened differs: (0, 1, 2) (TF1), (0, 2, 1) (port)",
            "use this order in the port: (0, 1, 2)",
            (OwnForm.FLATTEN_AXES, "(0, 1, 2)"),
        ),
        (
            (op("a", "Reshape", "x", "s"), op("b", "Reshape", "x", "s")),
            {"values": (Value.of(ARRAY), Value.of(ARRAY.transpose(0, 2, 1).reshape(-1))), "confirmed": ""},
            "TF1 flattens an array with its axes in a different order: the arrays agree if TF1's is transposed to "
            "(0, 2, 1)",
            "transpose the array to (0, 2, 1) in the port, and then flatten it",
            None,
        ),
        (
            (op("a", "Reshape", "x", "s"), op("b", "Reshape", "x", "s")),
            {"values": (Value.of(ARRAY.transpose(0, 2, 1).reshape(-1)), Value.of(ARRAY)), "confirmed": ""},
            "the port flattens an array with its axes in a different order: the arrays agree if the port's is "
            "transposed to (0, 2, 1)",
            "transpose the array to (0, 2, 1) in the port before the flatten",
            (OwnForm.FLATTEN, ""),
        ),
    ],
)
def test_a_cause_of_a_divergence_says_what_to_change(ops, parts, title, remedy, own_form):
    found = {each.title: each for each in causes(divergence(*ops, **parts))}
    assert title in found
    assert (found[title].remedy, found[title].own_form) == (remedy, own_form)


@pytest.mark.parametrize(("tf1_broadcasts", "remedy"), [(False, "use tf.squeeze or tf.reshape"), (True, "")])
def test_a_port_that_broadcasts_reshapes(tf1_broadcasts, remedy):
    whole = dataclasses.replace(op("a", "Sub", "x", "y"), broadcast=((4, 1), (4,)))
    ops = (whole, op("b", "Sub", "x", "y")) if tf1_broadcasts else (op("b", "Sub", "x", "y"), whole)
    cause, _, is_in_tf1 = broadcast_in_one(divergence(*ops), confirmed=True)
    who = "TF1" if tf1_broadcasts else "the port"
    assert cause.title == f"{who} subtracts [4] from [4, 1], which broadcasts to [4, 4]"
    assert is_in_tf1 is tf1_broadcasts and cause.remedy.startswith(remedy) and bool(cause.remedy) is bool(remedy)


def test_a_sum_over_a_count_in_place_of_a_mean_is_a_reduction():
    of_tf1 = (
        op("nonzero", "NotEqual", "x", "zero", input_1="0"),
        op("total", "Sum", "x", "axes", input_1="0"),
        op("ones", "SelectV2", "nonzero", "one", "zero"),
        op("mean", "DivNoNan", "total", "loss/count"),
    )
    of_port = op("m", "Mean", "y", "axes", input_1="0"), op("scaled", "RealDiv", "m", "z")
    found = titles(causes(divergence(of_tf1[1], of_port[0], regions=(of_tf1, of_port))))
    assert found == ("reduction differs: Sum, divided by count (TF1), Mean (port)",)
