"""The results of a validation, which a `Report` holds: the results of checks, their findings, and the audit."""

from __future__ import annotations

import enum
import linecache
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from detrand.arguments import and_more, plural
from detrand.comparison.metrics import OutputMetric
from detrand.comparison.values import Comparison
from detrand.seeding.streams import RandomOp
from detrand.steps.comparison import StepsComparison
from detrand.validation.noise.floor import NoiseFloor, TrainingNoise

_MOST_PLACES = 4


class Fault(enum.Enum):
    """What a finding says of a fault. Decisions depend on it and never on the words of the title."""

    OTHER = enum.auto()
    UNEXPLAINED = enum.auto()  # nothing explains the difference
    POSSIBLE = enum.auto()  # where the programs differ; its causes are only possible
    OPS = enum.auto()  # ops that differ, which have no name together
    ONLY_IN_ONE = enum.auto()  # what only one program computes
    VALUE = enum.auto()  # both values of one thing
    ACTIVATION = enum.auto()
    DROPOUT = enum.auto()  # its rate
    REDUCTION = enum.auto()
    AXES = enum.auto()  # their order, or the arrangement of the elements
    ORDER = enum.auto()  # of ops, layers or tensors
    RANDOM_OP_OF_TF1 = enum.auto()  # which the port lacks
    RANDOM_OP_OF_PORT = enum.auto()  # which TF1 lacks
    RANDOM_OP_ELSEWHERE = enum.auto()  # in another place of the port
    DRAWN_SHAPE = enum.auto()  # of random numbers
    MULTIPLE = enum.auto()  # of TF1's loss
    CONSTANT = enum.auto()  # the same in each loss
    MASK = enum.auto()  # of random numbers, as a dropout makes one
    SOFTMAX_MASK = enum.auto()  # which elements are 0 after Softmax
    NORMALIZES_IN_TRAINING = enum.auto()  # the port, with statistics of the batch
    NORMALIZES_IN_INFERENCE = enum.auto()  # the port, with moving averages
    OTHER_TENSORS = enum.auto()  # outputs or labels in the place of others
    SUM_OR_MEAN = enum.auto()  # of a loss
    READING = enum.auto()  # of outputs by a loss, as probabilities or logits
    BROADCAST = enum.auto()  # of outputs and labels
    TERM = enum.auto()  # of a loss, which only one program has
    VARIABLE_OF_TF1 = enum.auto()  # which the port lacks
    VARIABLE_OF_PORT = enum.auto()  # which TF1 lacks
    SWAPPED = enum.auto()  # variables, with which exchanged the outputs agree
    SHAPE = enum.auto()  # of a variable
    TRAINABLE = enum.auto()  # of a variable
    CREATION = enum.auto()  # of variables in each call


class OwnForm(enum.Enum):
    """Remedies that are different in some frameworks, which have a form of their own of what Keras has or TF1 does."""

    CLIP_GLOBAL_NORM = enum.auto()  # with TF1's limit
    CLIP_EACH_NORM = enum.auto()  # with TF1's limit
    CLIP_ELEMENTS = enum.auto()  # with TF1's limit
    KEEP_ROWS = enum.auto()  # those without gradients
    TRAIN_ROWS = enum.auto()
    FREEZE = enum.auto()  # a variable, whose name is given
    EPSILON_OF_ADAM = enum.auto()  # added before the bias of the moments is corrected
    BIAS_OF_ADAM = enum.auto()  # of the moments, which is not corrected
    INITIAL_RMS = enum.auto()  # which is 1 in TF1
    SCHEDULE = enum.auto()  # the one that TF1 has, whose name is given
    MOMENTUM = enum.auto()  # of moving averages; with TF1's value
    PAD_SAME = enum.auto()
    CROP_SAME = enum.auto()  # what a transposed convolution returns
    PIXEL_CENTERS = enum.auto()  # of a resize
    FROM_LOGITS = enum.auto()  # which a loss reads
    FROM_PROBABILITIES = enum.auto()
    EXCHANGE = enum.auto()  # labels and outputs of a loss
    SMOOTH_LABELS = enum.auto()  # with TF1's value
    BATCH_FIRST = enum.auto()  # in a layer
    CHANNELS_OF_BLOCK = enum.auto()  # which an op moves to space, or back
    VARIANCE_OF_ALL = enum.auto()  # elements, and not of a sample
    RADIUS_OF_RESPONSES = enum.auto()  # of a local response normalization; with TF1's value
    ALPHA_OF_RESPONSES = enum.auto()  # the same
    FLATTEN_AXES = enum.auto()  # in TF1's order, which is known
    UNFLATTEN_AXES = enum.auto()
    FLATTEN = enum.auto()  # with the axes in TF1's order


@dataclass(frozen=True)
class Place:
    """Where a program differs from the other one.

    Attributes:
      op: the op or the variable.
      line: ``file:line`` of the code; empty if it is not known. Where a layer is made and where it is called are
        ``file:line, called at file:line``; what is missing belongs in between, in ``file:line, used at file:line``.
      value: the value there, as text; empty if there is none to show.
    """

    op: str
    line: str = ""
    value: str = ""

    @property
    def source(self) -> str:
        """The line of source code; empty if the file cannot be read."""
        return next((text.strip() for _, text in self.excerpt(0)), "")

    @property
    def file_and_number(self) -> tuple[str, int]:
        """The file and the number of the line; ``("", 0)`` if the line is not known."""
        file, _, number = re.split(", (?:called|used) at ", self.line)[0].rpartition(":")
        return (file, int(number)) if number.isdigit() else ("", 0)

    def excerpt(self, around: int) -> list[tuple[int, str]]:
        """Return the line of source code and so many around it, with their numbers; none if the file cannot be read."""
        filename, number = self.file_and_number
        if not number:
            return []
        numbers = range(max(1, number - around), number + around + 1)
        lines = [(each, linecache.getline(filename, each)) for each in numbers]
        return [(each, text.rstrip()) for each, text in lines if text]

    @property
    def layer(self) -> tuple[str, str]:
        """The scope of the op and its line, which the ops of a layer have in common."""
        scope, _, _ = self.op.rpartition("/")
        return scope or self.op, self.line

    @property
    def shown_line(self) -> str:
        """The line with a path that is relative to the working directory, if the file is in it."""
        return self.line.replace(os.path.join(os.getcwd(), ""), "")

    def __str__(self) -> str:
        return f"{self.op} at {self.shown_line}" if self.line else self.op


@dataclass(frozen=True)
class Finding:
    """A fault of a port; ``str()`` describes it.

    Attributes:
      kind: what differs: ``"computation"``, ``"variables"``, ``"names"``, ``"initializers"``, ``"regularizers"``,
        ``"averages"`` (what a call changes), ``"training"``, ``"checkpoint"``, ``"original"`` (TF1's graph computes
        other numbers than in TensorFlow 1) or ``"error"``.
      title: the fault in one line, with both values.
      tf1: its place in TF1; None where TF1 has nothing of the kind.
      port: its place in the port; None where the port has nothing of the kind.
      checks: the names of the checks that show it.
      confirmed: how it was confirmed; empty if it is only possible.
      others: what else may be the cause, the likeliest first.
      remedy: what to do; empty if that is not known.
      more: further places in the port of the same fault.
      count: at how many places it is.
      symptom: the name under which ``detrand explain`` explains it; set in the findings of a report.
      fault: the kind of the fault, for code that decides by findings.
      rest_agrees: whether no other difference is left once the port has what confirms the finding.
      is_exact: whether what confirms the finding cannot hide a different fault.
      is_of_weights: whether the programs differ where they read a variable.
    """

    kind: str
    title: str
    tf1: Place | None = None
    port: Place | None = None
    checks: tuple[str, ...] = ()
    confirmed: str = ""
    others: tuple[str, ...] = ()
    remedy: str = ""
    more: tuple[Place, ...] = ()
    count: int = 1
    symptom: str = ""
    fault: Fault = field(default=Fault.OTHER, repr=False)
    rest_agrees: bool = field(default=False, repr=False)
    is_exact: bool = field(default=False, repr=False)
    is_of_weights: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.title} (at {plural(self.count, 'place')})" if self.count > 1 else self.title]
        for who, place in (("TF1", self.tf1), ("port", self.port)):
            if place is None:
                continue
            value = f": {place.value}" if place.value else ""
            lines.append(f"  {who:<4}  {place}{value}")
            if place.source:
                lines.append(f"        > {place.source}")
        elsewhere = [each for each in self.more if not each.line or self.port is None or each.line != self.port.line]
        if elsewhere:
            where = [os.path.basename(place.line) if place.line else place.op for place in elsewhere]
            lines.append(f"  also at {and_more(dict.fromkeys(where), _MOST_PLACES)}")
        if self.confirmed:
            lines.append(f"  confirmed: {self.confirmed}")
        lines += [f"  possible: {other}" for other in self.others]
        if self.remedy:
            lines.append(f"  what to do: {self.remedy}")
        if self.checks:
            lines.append(f"  shown by {', '.join(self.checks)}")
        if self.symptom:
            lines.append(f"  more: detrand explain {self.symptom}")
        return "\n".join(lines)


_NUMBER_OF_NAME = re.compile(r"(?:_\d+)+(?=[/:, )]|$)")  # of an iteration, or of an op that has the name of another one


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with one for each fault; those without a cause come last.

    A fault that several checks show at the same lines becomes one finding. So does a fault that one check shows at
    several lines, or at one line of a block that runs repeatedly.
    """
    by_fault: dict[tuple[str, str], Finding] = {}
    keys: dict[object, tuple[str, str]] = {}  # of the computations at two places, and of those alike at two lines
    for each in findings:
        key = each.kind, each.title
        if each.kind == "computation" and (each.tf1 or each.port):
            places = each.tf1 and replace(each.tf1, value=""), each.port and replace(each.port, value="")
            key = keys.setdefault(places, key)
            lines = [place.line for place in (each.tf1, each.port) if place is not None and place.line]
            if len(lines) == 2 and each.fault is not Fault.VALUE:  # values may differ from block to block
                ops = (_NUMBER_OF_NAME.sub("", place.op) for place in (each.tf1, each.port) if place is not None)
                key = keys.setdefault((each.fault, *lines, *ops), key)
        if key not in by_fault:
            by_fault[key] = each
            continue
        first = by_fault[key]
        known = {place.layer for place in (first.port, first.tf1, *first.more) if place is not None}
        place = each.port or each.tf1
        is_new = place is not None and place.layer not in known and each.checks[:1] == first.checks[:1]
        by_fault[key] = replace(
            first,
            checks=tuple(dict.fromkeys([*first.checks, *each.checks])),
            confirmed=first.confirmed or each.confirmed,
            others=tuple(dict.fromkeys(other for other in (*first.others, *each.others) if other != first.title)),
            more=(*first.more, place) if is_new and place is not None else first.more,
            count=first.count + each.count if is_new else max(first.count, each.count),
        )
    named = {each.title for each in by_fault.values() if each.confirmed}
    found = [each for each in by_fault.values() if each.fault not in UNNAMED or named.isdisjoint(each.others[:1])]
    return tuple(sorted(found, key=lambda each: each.fault in UNNAMED))


UNNAMED = (Fault.UNEXPLAINED, Fault.POSSIBLE)  # which may be one more place of a fault that has a name


def explain_outputs(findings: Iterable[Finding]) -> bool:
    """Return whether outputs that differ agree once the faults of these findings are corrected."""
    computations = [finding for finding in findings if finding.kind == "computation"]
    return bool(computations) and computations[-1].rest_agrees


@dataclass(frozen=True)
class Found:
    """What a check found.

    Attributes:
      ok: whether the check did not fail.
      summary: one line for a table.
      details: what a person needs to find the fault; of a check that passed, what there is to write down.
      causes: common causes of such a difference, the most likely first.
      comparisons: comparisons of numbers, by name.
      trainings: comparisons of training, by how the port was trained.
      raised: type of the exception that ended the check, and line of user code or else message; None without one.
      noise: how far TF1's outputs move when they are computed in other variants; None if that was not measured.
      training_noise: how far the numbers of TF1's training move, by how the port was trained.
      computed: what each program computed, for event files: the run (``tf1``, ``port``) -> step -> name -> values.
        A report does not keep it.
      findings: the faults that it shows.
      divergences: the paragraphs of the details that are divergences.
      tensors: how the tensors of the programs differ, in TF1's order of computation; empty if the outputs agree.
      differing: the variables that fail the check, if it names them.
      accepted: the items of the migration's ``expect`` that accept what differs, or some of it.
      uncontrolled: the draws of the training of both programs, ``tf1`` and ``port``, that no scope controls.
      compared: whether the check could compare the programs; a check that could not has not failed, and proves
        nothing.
      metrics: the metrics of outputs for which the migration asks; they do not affect the verdict.
    """

    ok: bool
    summary: str
    details: str = ""
    causes: tuple[str, ...] = ()
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    trainings: dict[str, StepsComparison] = field(default_factory=dict)
    raised: tuple[type[Exception], str] | None = None
    noise: NoiseFloor | None = None
    training_noise: Mapping[str, TrainingNoise] = field(default_factory=dict)
    computed: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict, repr=False)
    findings: tuple[Finding, ...] = ()
    divergences: tuple[str, ...] = ()
    tensors: tuple[TensorDifference, ...] = field(default=(), repr=False)
    differing: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    uncontrolled: Mapping[str, tuple[RandomOp, ...]] = field(default_factory=dict, repr=False)
    compared: bool = True
    metrics: tuple[OutputMetric, ...] = ()

    @property
    def verdict(self) -> str:
        """``"passed"``, ``"accepted"``, ``"FAILED"`` or ``"not compared"``."""
        if not self.compared:
            return "not compared"
        return "FAILED" if not self.ok else "accepted" if self.accepted else "passed"

    @property
    def noise_remarks(self) -> dict[str, str]:
        """Remarks on how noise was measured, by variant of the computation; empty where no noise was measured."""
        remarks = [{} if self.noise is None else self.noise.remarks]
        remarks += [noise.remarks for noise in self.training_noise.values()]
        return {variant: remark for of_noise in remarks for variant, remark in of_noise.items()}


@dataclass(frozen=True, kw_only=True)
class CheckResult(Found):
    """What one check found, with its name and its time.

    Attributes:
      name: name of the check.
      seconds: how long it took, in seconds.
    """

    name: str
    seconds: float

    @property
    def headline(self) -> str:
        """The first finding of a check that failed; the summary of another one."""
        if self.ok or not self.findings:
            return self.summary
        first, *others = merged(self.findings)
        return f"{first.title}; and {plural(len(others), 'more finding')}" if others else first.title


@dataclass(frozen=True)
class TensorDifference:
    """A tensor of TF1 beside the port's tensor that holds the same numbers, or else the nearest ones.

    Attributes:
      tf1: TF1's op, with its line.
      port: the port's op, with its line; empty if the port has no tensor of this size.
      amount: the greatest absolute difference in float64, relative to TF1's greatest element; None without a tensor.
      same: whether the port computes the same numbers.
    """

    tf1: str
    port: str
    amount: float | None
    same: bool


@dataclass(frozen=True)
class PairedVariable:
    """A variable of TF1 beside the port's.

    Attributes:
      tf1: its name in TF1; empty if only the port has it.
      port: its name in the port; empty if only TF1 has it.
      tf1_shape: its shape in TF1, with the dtype, as text.
      port_shape: its shape in the port, with the dtype, as text.
    """

    tf1: str
    port: str
    tf1_shape: str
    port_shape: str


@dataclass(frozen=True)
class AuditedHyperparameter:
    """A hyperparameter of both programs.

    Attributes:
      of: its owner: ``"optimizer"``, ``"dropout after dense"``, the TF1 name of a variable or of a variable's scope.
      name: its name, such as ``"epsilon"``.
      tf1: its value in TF1, as text.
      port: its value in the port, as text.
    """

    of: str
    name: str
    tf1: str
    port: str

    @property
    def same(self) -> bool:
        """Whether both values are the same."""
        return self.tf1 == self.port

    def __str__(self) -> str:
        return f"{self.of}: {self.name} {self.tf1} (TF1), {self.port} (port)"


@dataclass(frozen=True)
class Audit:
    """The hyperparameters of both programs; ``str()`` lists those that differ.

    Attributes:
      hyperparameters: those that could be read in both programs.
      not_audited: what could not be read in both programs, and why, a line each.
    """

    hyperparameters: tuple[AuditedHyperparameter, ...] = ()
    not_audited: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[AuditedHyperparameter, ...]:
        """The hyperparameters that differ."""
        return tuple(each for each in self.hyperparameters if not each.same)

    @property
    def groups(self) -> dict[tuple[str, str, str], list[str]]:
        """The owners of the hyperparameters that differ, by name, value in TF1 and value in the port."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for each in self.differing:
            found.setdefault((each.name, each.tf1, each.port), []).append(each.of)
        return found

    @property
    def summary(self) -> str:
        """How many hyperparameters were audited, and how many of them differ."""
        audited = f"audited {plural(len(self.hyperparameters), 'hyperparameter')}"
        if not self.hyperparameters:
            return audited
        if not self.differing:
            return f"{audited}: none differs"
        return f"{audited}: {len(self.differing)} {'differs' if len(self.differing) == 1 else 'differ'}"

    def __str__(self) -> str:
        differing = [f"  {each}" for each in self.differing]
        return "\n".join([self.summary, *differing, *(f"  not audited: {what}" for what in self.not_audited)])
