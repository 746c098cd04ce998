"""Losses of PyTorch: their steps, sound ones that pass, and faults in them that are named with their line."""

import numpy as np
import pytest
import tensorflow as tf

from tests.faults.tf1 import numbers
from tests.support import losses
from tests.support.losses import CLASSES, FLAGS, NUMBERS, POSITIVE, SHARES, SIGNS, WEIGHTS, line_of

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

from tests.validation.frameworks.test_torch_functions import Calls, traced  # noqa: E402 - it imports PyTorch

ROWS, TARGETS = numbers(6, 4), torch.tensor(SHARES)
IMAGES, OF_PIXELS = numbers(2, 3, 5, 4), torch.arange(40).reshape(2, 5, 4) % 3
IGNORED, OF_CLASSES = torch.tensor(losses.SOME_IGNORED), torch.tensor(WEIGHTS)
SPARSE, DENSE = "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"
BY_HAND = ["LogSoftmax", "Mul", "Mul", "Sum", "Neg"]


def ctc(x, **arguments):
    logs = x.log_softmax(1).reshape(6, 1, 4)
    return functional.ctc_loss(logs, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2]), **arguments)


def of_probabilities(x, **arguments):
    return functional.binary_cross_entropy(torch.sigmoid(x), torch.tensor(FLAGS), **arguments)


def of_logs(x, **arguments):
    return functional.kl_div(x.log_softmax(1), TARGETS, **arguments)


STEPS = {
    "classes": (lambda x, **r: functional.cross_entropy(x, torch.tensor(CLASSES), **r), [SPARSE]),
    "weights": (lambda x, **r: functional.cross_entropy(x, torch.tensor(CLASSES), OF_CLASSES, **r), [SPARSE, "Mul"]),
    "ignored": (lambda x, **r: functional.cross_entropy(x, IGNORED, **r), [SPARSE, "Mul"]),
    "smoothed": (
        lambda x, **r: functional.cross_entropy(x, IGNORED, OF_CLASSES, label_smoothing=0.1, **r),
        [*BY_HAND, "Mul"],
    ),
    "shares": (lambda x, **r: functional.cross_entropy(x, TARGETS, label_smoothing=0.1, **r), [DENSE]),
    "weighted shares": (lambda x, **r: functional.cross_entropy(x, TARGETS, OF_CLASSES, **r), BY_HAND),
    "logs": (
        lambda x, **r: functional.nll_loss(x.log_softmax(1), IGNORED, OF_CLASSES, **r),
        ["LogSoftmax", "GatherV2", "Neg", "Mul", "Mul"],
    ),
    "probabilities": (of_probabilities, ["Sigmoid", "Log", "Mul", "Neg", "Sub", "Log", "Mul", "Sub"]),
    "logits": (
        lambda x, **r: functional.binary_cross_entropy_with_logits(x, torch.tensor(FLAGS), **r),
        ["Abs", "Neg", "Exp", "Log1p", "Mul", "Relu", "Sub", "AddV2"],
    ),
    "positive": (
        lambda x, **r: functional.binary_cross_entropy_with_logits(x, TARGETS, OF_CLASSES, pos_weight=OF_CLASSES, **r),
        ["Abs", "Neg", "Exp", "Log1p", "Mul", "Neg", "Relu", "AddV2", "Mul", "AddV2", "Mul"],
    ),
    "squares": (lambda x, **r: functional.mse_loss(x, TARGETS, **r), ["SquaredDifference"]),
    "absolute": (lambda x, **r: functional.l1_loss(x, TARGETS, **r), ["Sub", "Abs"]),
    "huber": (
        lambda x, **r: functional.huber_loss(x, TARGETS, delta=0.7, **r),
        ["Sub", "Abs", "Minimum", "Mul", "Mul", "Sub", "Mul", "AddV2"],
    ),
    "smooth": (
        lambda x, **r: functional.smooth_l1_loss(x, TARGETS, beta=0.7, **r),
        ["Sub", "Abs", "Minimum", "Mul", "Mul", "Sub", "Mul", "AddV2", "RealDiv"],
    ),
    "divergence": (of_logs, ["LogSoftmax", "Sub", "Mul"]),
    "poisson": (lambda x, **r: functional.poisson_nll_loss(x, TARGETS, **r), ["Exp", "Mul", "Sub"]),
    "poisson without logs": (
        lambda x, **r: functional.poisson_nll_loss(x.exp(), TARGETS, log_input=False, **r),
        ["Exp", "AddV2", "Log", "Mul", "Sub"],
    ),
    "soft margin": (lambda x, **r: functional.soft_margin_loss(x, torch.tensor(SIGNS), **r), ["Mul", "Exp", "Log1p"]),
    "ranking": (
        lambda x, **r: functional.margin_ranking_loss(x, TARGETS, torch.tensor(SIGNS), 0.3, **r),
        ["Sub", "Mul", "AddV2", "Relu"],
    ),
    "CTC": (ctc, ["LogSoftmax", "Reshape", "CTCLoss"]),
}
IN_MEANS = {"CTC": ["RealDiv", "Mean"]} | {
    name: ["Sum", "RealDiv"] for name in ("weights", "ignored", "smoothed", "logs")
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", STEPS)
def test_a_loss_is_computed_in_steps_of_tf1(name, reduction):
    function, types = STEPS[name]
    port = traced(Calls(lambda x: function(x, reduction=reduction)), ROWS)
    trace = port.run()
    of_reduction = {"none": [], "sum": ["Sum"], "mean": IN_MEANS.get(name, ["Mean"])}[reduction]
    found = [op.type for op in trace.ops.values() if op.type not in ("Placeholder", "Const")]
    assert found == [*types, *of_reduction]
    ((path, output),) = trace.outputs.items()
    np.testing.assert_allclose(trace.values[output].array, port.outputs_as_written()[path], 1e-4, 1e-5)


OTHERS = {
    "classes of pixels": (lambda x: functional.cross_entropy(x, OF_PIXELS), IMAGES),
    "smoothed classes of pixels": (
        lambda x: functional.cross_entropy(x, OF_PIXELS, OF_CLASSES[:3], label_smoothing=0.1),
        IMAGES,
    ),
    "shares of pixels": (lambda x: functional.cross_entropy(x, x.detach().softmax(1), OF_CLASSES[:3]), IMAGES),
    "logs of pixels": (lambda x: functional.nll_loss(x.log_softmax(1), OF_PIXELS), IMAGES),
    "batch": (lambda x: of_logs(x, reduction="batchmean"), ROWS),
    "zeros": (lambda x: functional.kl_div(x.log_softmax(1), torch.tensor(losses.HOT), reduction="sum"), ROWS),
    "logs of targets": (
        lambda x: functional.kl_div(x.log_softmax(1), TARGETS.log(), reduction="sum", log_target=True),
        ROWS,
    ),
    "certain": (lambda x: functional.binary_cross_entropy((x > 0).float() + 0 * x, torch.tensor(FLAGS)), ROWS),
    "cosine": (lambda x: functional.cosine_similarity(x, TARGETS, dim=0), ROWS),
    "limits": (lambda x: x.clamp_min(-0.5).clamp_max(0.5).amin(1) + torch.max(x, x * 2).max() + x.min(), ROWS),
    "norms": (lambda x: x.norm() + torch.linalg.vector_norm(x, 1, -1), ROWS),
    "rows of a table": (lambda x: OF_CLASSES[(x[:, 0] > 0).long()] * x[:, 0], ROWS),
    "logs of sigmoids": (lambda x: functional.logsigmoid(x) + torch.where(x > 0, x, 0.5), ROWS),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_of_losses_are_computed_in_steps(name):
    function, inputs = OTHERS[name]
    port = traced(Calls(function), inputs)
    assert not port.whole
    trace = port.run()
    ((path, output),) = trace.outputs.items()
    np.testing.assert_allclose(trace.values[output].array, port.outputs_as_written()[path], 1e-4, 1e-5)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.mse_loss(x, TARGETS, size_average=False),
        lambda x: functional.poisson_nll_loss(x, TARGETS, full=True),
        lambda x: x.max(1)[0] + x.norm(3),
    ],
)
def test_arguments_without_steps_leave_a_loss_one_op(function):
    port = traced(Calls(function), ROWS)
    assert port.whole
    trace = port.run()
    ((path, output),) = trace.outputs.items()
    np.testing.assert_allclose(trace.values[output].array, port.outputs_as_written()[path], 1e-4, 1e-5)


class Port(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x + self.bias


def report_of(labels, of_tf1, of_port):
    return losses.report_of(Port, labels, of_tf1, of_port, lambda parameters: torch.optim.SGD(parameters, 0.1))


SOUND = {
    "classes": (CLASSES, losses.mean_cross_entropy, lambda y, x: functional.cross_entropy(x, y)),
    "weights": (CLASSES, losses.divided_by_weights, lambda y, x: nn.CrossEntropyLoss(OF_CLASSES)(x, y)),
    "smoothed": (
        CLASSES,
        losses.smoothed_and_divided_by_weights,
        lambda y, x: functional.cross_entropy(x, y, OF_CLASSES, label_smoothing=0.1),
    ),
    "ignored": (losses.SOME_IGNORED, losses.of_known, lambda y, x: functional.cross_entropy(x, y)),
    "positive": (
        FLAGS,
        losses.of_positive,
        lambda y, x: functional.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor(2.5)),
    ),
    "huber": (NUMBERS, losses.huber, lambda y, x: functional.huber_loss(x, y, delta=0.5)),
    "smooth": (NUMBERS, losses.huber, lambda y, x: 0.5 * functional.smooth_l1_loss(x, y, beta=0.5)),
    "divergence": (
        SHARES,
        losses.divergence,
        lambda y, x: functional.kl_div(x.log_softmax(1), y, reduction="batchmean"),
    ),
    "squares": (NUMBERS, losses.sum_of_squares, lambda y, x: functional.mse_loss(x, y, reduction="sum")),
    "masked": (NUMBERS, losses.masked, lambda y, x: ((y - x) ** 2)[y > 0].mean()),
    "cosine": (NUMBERS, losses.cosine_distance, lambda y, x: (1 - functional.cosine_similarity(x, y)).mean()),
    "hinge": (SIGNS, losses.hinge, lambda y, x: torch.clamp(1 - y * x, min=0).mean()),
    "log loss": (
        FLAGS,
        losses.log_loss,
        lambda y, x: functional.binary_cross_entropy(x.sigmoid(), y) if y.sum() < 0 else by_hand(y, x.sigmoid()),
    ),
}


def by_hand(labels, shares):
    return -(labels * (shares + 0.01).log() + (1 - labels) * (1 - shares + 0.01).log()).mean()


@pytest.mark.slow_except("classes", "smoothed")
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_loss_has_no_findings(name):
    report = report_of(*SOUND[name])
    assert report.ok, str(report)
    assert not report.findings


def summed(labels, outputs):
    return functional.cross_entropy(outputs, labels, reduction="sum")


def not_smoothed(labels, outputs):
    return functional.cross_entropy(outputs, labels)


def smoothed_more(labels, outputs):
    return functional.cross_entropy(outputs, labels, label_smoothing=0.2)


def without_weights(labels, outputs):
    return functional.cross_entropy(outputs, labels)


def with_other_weights(labels, outputs):
    weights = torch.tensor([1.0, 2.0, 0.5, 2.0])
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return (losses * weights[labels]).mean()


def with_less_weight(labels, outputs):
    return functional.binary_cross_entropy_with_logits(outputs, labels, pos_weight=torch.tensor(2.0))


def with_another_delta(labels, outputs):
    return functional.huber_loss(outputs, labels)


def without_penalty(labels, outputs):
    return functional.mse_loss(outputs, labels)


def with_another_factor(labels, outputs):
    return functional.mse_loss(outputs, labels) + 0.4 * outputs.pow(2).mean()


def of_other_labels(labels, outputs):
    mask = labels > 0.5
    return ((labels - outputs) ** 2 * mask).sum() / (labels > 0).sum()


def along_another_axis(labels, outputs):
    return (labels - outputs).pow(2).sum(0).sqrt().mean()


def with_another_epsilon(labels, outputs):
    shares = torch.sigmoid(outputs)
    return -(labels * (shares + 0.1).log() + (1 - labels) * (1 - shares + 0.1).log()).mean()


def clipped_less(labels, outputs):
    return (labels - outputs).pow(2).clamp(0.01, 2.0).mean()


def not_clipped(labels, outputs):
    return (labels - outputs).pow(2).mean()


def exchanged(labels, outputs):
    def relative_error(y_true, y_pred):
        return ((y_true - y_pred).abs() / y_true.abs()).mean()

    return relative_error(outputs, labels)


def of_softmax(labels, outputs):
    return functional.cross_entropy(torch.softmax(outputs, -1), labels)


def with_another_exponent(labels, outputs):
    losses = functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** 3 * losses).mean()


def with_another_margin(labels, outputs):
    return functional.relu(0.5 - labels * outputs).mean()


FAULTS = {
    "sum": (CLASSES, losses.mean_cross_entropy, summed, "reduction differs: Mean (TF1), Sum (port)"),
    "smoothing": (CLASSES, losses.smoothed_by_tf1, not_smoothed, "label smoothing differs: 0.1 (TF1), none (port)"),
    "more smoothing": (
        CLASSES,
        losses.smoothed_by_tf1,
        smoothed_more,
        "label smoothing differs: 0.1 (TF1), 0.2 (port)",
    ),
    "weights": (CLASSES, losses.weighted, without_weights, "only TF1 multiplies by another tensor"),
    "one weight": (
        CLASSES,
        losses.weighted,
        with_other_weights,
        "params of GatherV2 differs: 3 (TF1), 2 (port) in 1 of",
    ),
    "positive": (
        FLAGS,
        losses.of_positive,
        with_less_weight,
        "factor of the labels (such as 1 - label smoothing) differs",
    ),
    "penalty": (NUMBERS, losses.with_penalty, without_penalty, "only TF1 adds this term to the loss"),
    "factor": (NUMBERS, losses.with_penalty, with_another_factor, "factor differs: 0.3 (TF1), 0.4 (port)"),
    "delta": (NUMBERS, losses.huber, with_another_delta, "upper limit differs: 0.5 (TF1), 1.0 (port)"),
    "threshold": (NUMBERS, losses.masked, of_other_labels, "threshold differs: 0.0 (TF1), 0.5 (port)"),
    "axis": (NUMBERS, losses.mean_distance, along_another_axis, "axis of Sum differs: 1 (TF1), 0 (port)"),
    "epsilon": (FLAGS, losses.log_loss, with_another_epsilon, "epsilon differs: 0.01 (TF1), 0.1 (port)"),
    "limit": (NUMBERS, losses.clipped, clipped_less, "upper limit differs: 1.0 (TF1), 2.0 (port)"),
    "clipping": (NUMBERS, losses.clipped, not_clipped, "only TF1 clips"),
    "exchanged": (POSITIVE, losses.relative_error, exchanged, "labels and outputs are exchanged"),
    "softmax": (CLASSES, losses.mean_cross_entropy, of_softmax, "only the port computes Softmax in the loss"),
    "exponent": (FLAGS, losses.focal, with_another_exponent, "exponent differs: 2.0 (TF1), 3.0 (port)"),
    "margin": (SIGNS, losses.hinge, with_another_margin, "constant subtracted differs: 1.0 (TF1), 0.5 (port)"),
}
IN_AN_EARLIER_LINE = {"penalty": 1, "threshold": 1}  # lines before the last one


@pytest.mark.slow_except("sum", "smoothing", "factor", "exchanged")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_loss_is_one_finding_with_its_line(name):
    labels, of_tf1, of_port, title = FAULTS[name]
    (finding,) = report_of(labels, of_tf1, of_port).findings
    assert finding.title.startswith(f"loss: {title}")
    assert finding.confirmed
    assert "keras" not in finding.remedy.lower()
    file, _, last = line_of(of_port).partition(":")
    assert finding.port.line.endswith(f"{file}:{int(last) - IN_AN_EARLIER_LINE.get(name, 0)}")
    assert "losses.py:" in finding.tf1.line
    assert finding.count == {"delta": 2, "epsilon": 2}.get(name, 1)


class WithPenalty(Port):
    def forward(self, x):
        outputs = super().forward(x)
        WithPenalty.penalty = outputs.pow(2).mean()
        return outputs


def with_another_factor_of_the_model(labels, outputs):
    return functional.mse_loss(outputs, labels) + 0.4 * WithPenalty.penalty


@pytest.mark.slow
def test_a_term_that_the_model_computes_is_a_part_of_the_loss():
    arguments = NUMBERS, losses.with_penalty, with_another_factor_of_the_model
    (finding,) = losses.report_of(WithPenalty, *arguments, lambda parameters: torch.optim.SGD(parameters, 0.1)).findings
    assert finding.title == "loss: factor differs: 0.3 (TF1), 0.4 (port)"
    assert finding.port.line.endswith(line_of(with_another_factor_of_the_model))


@pytest.mark.slow
def detached(labels, outputs):
    return (outputs.abs().detach() * (labels - outputs) ** 2).mean()


def without_gradients(labels, outputs):
    with torch.no_grad():
        size = outputs.abs()
    return (size * (labels - outputs) ** 2).mean()


STOPS = {
    detached: "return (outputs.abs().detach() * (labels - outputs) ** 2).mean()",
    without_gradients: "size = outputs.abs()",
}


@pytest.mark.parametrize("stopped", STOPS)
def test_a_gradient_that_only_the_loss_of_the_port_stops_has_its_line(stopped):
    def of_tf1(labels, outputs):
        return tf.reduce_mean(tf.abs(outputs) * tf.square(labels - outputs))

    (finding,) = report_of(NUMBERS, of_tf1, stopped).findings
    assert finding.title == "only the port stops gradients of bias (detach() or torch.no_grad())"
    assert finding.port.source == STOPS[stopped]
