"""The value in a schedule of PyTorch that differs from TF1's: an argument, or a number in a function."""

import inspect
import itertools

import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, TrainStep, validate
from detrand._patching.torch import arguments_of_schedule
from detrand.validation.training.schedules import changed_to_tf1

torch = pytest.importorskip("torch")
schedules = torch.optim.lr_scheduler
v1 = tf.compat.v1
STEPS = range(700)


def staircase(step):
    return 0.1 * 0.5 ** (step // 2)


def smooth(step):
    return 0.1 * 0.96 ** (step / 1000)


def fifths(step):
    return [0.1, 0.02, 0.004][sum(step > each for each in (299, 599))]


def boundaries(step):
    return [0.1, 0.01, 0.001][sum(step > each for each in (299, 599))]


def warmed_up(step):
    return 0.1 * (0.1 + 0.9 * step / 5) if step < 5 else 0.1 * 0.5 ** ((step - 5) // 100)


@pytest.mark.slow_except("milestones of several", "gamma", "inside", "function", "size")
@pytest.mark.parametrize(
    ("make", "tf1", "numbers", "expected"),
    [
        (
            lambda optimizer: schedules.StepLR(optimizer, 3, 0.5),
            staircase,
            [0.1, 0.5, 2],
            ("argument step_size of the learning-rate schedule", 2, 3),
        ),
        (
            lambda optimizer: schedules.StepLR(optimizer, 2, 0.6),
            staircase,
            [0.1, 0.5, 2],
            ("argument gamma of the learning-rate schedule", 0.5, 0.6),
        ),
        (
            lambda optimizer: schedules.MultiStepLR(optimizer, [300, 650]),
            boundaries,
            [0.1, 0.01, 0.001, 299, 599],
            ("argument milestones of the learning-rate schedule", [300, 600], [300, 650]),
        ),
        (
            lambda optimizer: schedules.MultiStepLR(optimizer, [300, 600], 0.3),
            fifths,
            [0.1, 0.02, 0.004, 299, 599],
            ("argument gamma of the learning-rate schedule", 0.2, 0.3),
        ),
        (
            lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 0.94 ** (step / 1000)),
            smooth,
            [0.1, 0.96, 1000],
            ("number in the learning-rate schedule", 0.96, 0.94),
        ),
        (
            lambda optimizer: schedules.SequentialLR(
                optimizer, [schedules.LinearLR(optimizer, 0.1, 1, 5), schedules.StepLR(optimizer, 100, 0.4)], [5]
            ),
            warmed_up,
            [0.1, 0.5, 0.9, 5, 100],
            ("argument gamma of StepLR in the learning-rate schedule", 0.5, 0.4),
        ),
        (
            lambda optimizer: schedules.SequentialLR(
                optimizer, [schedules.LinearLR(optimizer, 0.1, 1, 5), schedules.StepLR(optimizer, 100, 0.5)], [6]
            ),
            warmed_up,
            [0.1, 0.5, 0.9, 5, 100],
            ("argument milestones of the learning-rate schedule", [5], [6]),
        ),
    ],
    ids=["size", "gamma", "milestones", "gamma of milestones", "function", "inside", "milestones of several"],
)
def test_the_value_that_differs_is_named(make, tf1, numbers, expected):
    optimizer, stepped = made(make), made(make)
    port = {}
    for step in STEPS:
        port[step] = rate_of(stepped[0])
        stepped[0].step()
        stepped[1].step()
    changed = changed_to_tf1(optimizer[1], {step: tf1(step) for step in STEPS}, port, sorted(map(float, numbers)))
    assert changed is not None
    assert changed[:3] == expected
    assert rate_of(optimizer[0]) == port[0]


def made(make):
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], 0.1)
    return optimizer, make(optimizer)


def rate_of(optimizer):
    return float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("name", ["StepLR", "LinearLR", "CosineAnnealingWarmRestarts", "PolynomialLR"])
def test_arguments_are_tried_in_their_order(name):
    kind = getattr(schedules, name)
    given = [each for each in inspect.signature(kind).parameters if each not in ("optimizer", "last_epoch")]
    _, schedule = made(lambda optimizer: kind(optimizer, *([2] if name[0] in "SC" else [])))
    assert list(arguments_of_schedule(schedule)) == given


def test_a_schedule_that_does_not_step_each_time_has_none():
    _, schedule = made(lambda optimizer: schedules.StepLR(optimizer, 1, 0.5))
    port = {step: 0.1 * 0.5 ** (step // 2) for step in STEPS}
    assert changed_to_tf1(schedule, {step: 0.1 * 0.25**step for step in STEPS}, port, [0.1, 0.25, 1.0]) is None


class Dense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x)


def dense(x, training):
    weights, bias = v1.get_variable("out/kernel", (4, 3)), v1.get_variable("out/bias", 3)
    return tf.matmul(x, weights) + bias


def validated(tf1_rate, port_optimizer):
    train = TrainStep(
        labels=np.array([0, 1, 2, 0, 1]),
        tf1_loss=v1.losses.sparse_softmax_cross_entropy,
        port_loss=lambda labels, outputs: torch.nn.functional.cross_entropy(outputs, labels),
        tf1_optimizer=lambda: v1.train.GradientDescentOptimizer(tf1_rate(v1.train.get_or_create_global_step())),
        port_optimizer=port_optimizer,
        steps=4,
    )
    inputs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    return validate(Migration(tf1=dense, port=Dense, inputs=inputs, train=train), checks=["training-steps"])


@pytest.mark.slow
def test_the_finding_is_at_the_line_of_the_schedule():
    def port_optimizer(parameters):
        optimizer = torch.optim.SGD(parameters, 0.1)
        schedule = schedules.StepLR(optimizer, 3, 0.5)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    report = validated(lambda step: v1.train.exponential_decay(0.1, step, 2, 0.5, staircase=True), port_optimizer)
    (finding,) = report.findings
    assert finding.title == "argument step_size of the learning-rate schedule differs: 2 (TF1), 3 (port)"
    assert finding.port.line.endswith(f"test_torch_schedules.py:{port_optimizer.__code__.co_firstlineno + 2}")
    assert finding.confirmed == "with TF1's value in the port's optimizer, the updates agree"


@pytest.mark.slow
def test_a_hook_that_steps_now_and_then_leaves_the_rates_as_the_finding():
    def port_optimizer(parameters):
        optimizer, steps = torch.optim.SGD(parameters, 0.1), itertools.count(1)
        schedule = schedules.StepLR(optimizer, 1, 0.5)
        optimizer.register_step_post_hook(lambda *_: None if next(steps) % 2 else schedule.step())
        return optimizer

    report = validated(lambda step: v1.train.exponential_decay(0.1, step, 2, 0.25, staircase=True), port_optimizer)
    assert [each.title for each in report.findings] == ["learning rate differs in step 2: 0.025 (TF1), 0.05 (port)"]
