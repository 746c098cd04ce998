"""Known faults of a whole loss: `LossFaults` finds the one that explains the port's loss.

Where two arguments are exchanged, labels smoothed or taken from other positions, or a CTC loss takes another class as
its blank, the losses diverge at many ops, none of which is the fault. So the port's loss runs once more without the
fault, or TF1's with it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detrand.checkpoints.upstream import all_upstream, op_of
from detrand.comparison.metrics import softmax
from detrand.packages import tf
from detrand.seeding.callsite import is_of_user
from detrand.validation.checks.loss_terms import Difference, Loss, differences_of_terms
from detrand.validation.checks.penalties import findings_of_penalties_in_loss
from detrand.validation.diagnosis.causes.cause import CLOSE, Cause, differs, of_values
from detrand.validation.diagnosis.causes.loss import CONVERSIONS, LABEL_SMOOTHING, SAME_LOSS, causes_of_loss
from detrand.validation.diagnosis.matching.comparison import TraceComparison
from detrand.validation.diagnosis.matching.tensors import RTOLS
from detrand.validation.diagnosis.op_kinds import PLUMBING, kind, only_in
from detrand.validation.diagnosis.port_graph import traced_port
from detrand.validation.frameworks.traces import NOTHING, Edge, Substitution, Trace, TracedOp
from detrand.validation.migration import TrainStep
from detrand.validation.outcomes.findings import finding_of_cause, place_of
from detrand.validation.reference import TRAINING
from detrand.validation.results import Fault, Finding, OwnForm, Place
from detrand.validation.runner import Runner
from detrand.validation.training.loss import LossOfOutputs
from detrand.validation.training.steps import train_step_of

_MOST_CALLS, _MOST_STEPS = 24, 8  # each runs the port's loss
_ORDERED = {"Sub", "RealDiv", "Pow", "MatMul"}  # ops whose operands have an order, which a finding of the op names
_MOST_BLANKS = 64
_FLAGS_OF_CTC = "preprocess_collapse_repeated", "ctc_merge_repeated", "ignore_longer_outputs_than_inputs"
_COPIES = {"Cast", "Identity", "Reshape", "Squeeze", "ExpandDims"}
_SPARSE = "SparseSoftmaxCrossEntropyWithLogits"
_LOGARITHMS = {"Log", "Log1p", "SoftmaxCrossEntropyWithLogits", _SPARSE}  # ops by which a loss reads its outputs
_ROUNDED = 1e-3  # relative: how near a solution must be to a number of two digits


class PortLoss:
    """The port's loss of TF1's outputs.

    Attributes:
      port: the port whose output it is.
      trace: what it computes.
      value: the loss; None if the trace does not have it.
      arrays: the inputs.
      inputs: what each of the inputs is.
      labels: the positions of the inputs that are labels.
    """

    def __init__(self, runner: Runner, of_outputs: LossOfOutputs):
        tf1, config = runner.tf1, runner.port(TRAINING).config
        program, self.inputs = of_outputs
        self.port = traced_port(program, config, tf1.shapes(), tf1.outcome(TRAINING).initial)
        self.trace, self.arrays = self.port.run(), [np.asarray(array) for array in program.first_batch()]
        (self._name,) = self.port.outputs.values()
        value = self.trace.values.get(self._name)
        self.value = None if value is None else float(value.elements[0])
        self.labels = frozenset(number for number, each in enumerate(self.inputs) if each.kind == "labels")

    def of(self, substitution: Substitution) -> float:
        """Return the loss with substitutes; NaN if it cannot be computed with them."""
        try:
            value = self.port.run(substitution).values.get(self._name)
        except (ValueError, TypeError):  # values that do not fit
            return math.nan
        return math.nan if value is None else float(value.elements[0])

    def array(self, tensor: str) -> np.ndarray | None:
        """Return what a tensor holds, in float64; None if that is not known."""
        return _array(self.trace, self.arrays, tensor)

    def is_of(self, tensor: str, what: str) -> bool:
        """Return whether a tensor is computed from inputs of one kind only, such as labels."""
        needed = all_upstream([op_of(tensor)], lambda name: self.trace.ops[name].sources)
        given = {each.kind for each, name in zip(self.inputs, self.trace.inputs, strict=True) if name in needed}
        return given == {what}

    def instead(self, tensor: str, array: np.ndarray) -> Substitution:
        """Return an array in place of a tensor."""
        return Substitution(dict.fromkeys(self.port.edges_of(tensor), self.port.fitted(array, tensor)))


def _array(trace: Trace, inputs: Sequence[np.ndarray], tensor: str) -> np.ndarray | None:
    """Return what a tensor of a trace holds, given the inputs, perhaps in another shape; None if that is not known."""
    if tensor in trace.values:
        return trace.values[tensor].array
    name = op_of(tensor)
    if name in trace.inputs:
        array = inputs[trace.inputs.index(name)]
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    op = trace.ops.get(name)
    return _array(trace, inputs, op.inputs[0]) if op is not None and op.type in _COPIES else None


def with_lines_of_losses(finding: Finding, train: TrainStep) -> Finding:
    """Return a finding with the lines of the losses where no line of its ops is known, as in a framework's losses."""
    of_tf1, of_port = finding.tf1, finding.port or Place("the loss")
    if of_tf1 is not None:
        of_tf1 = replace(of_tf1, line=of_tf1.line or train.line_of_loss("tf1"))
    return replace(finding, tf1=of_tf1, port=replace(of_port, line=of_port.line or train.line_of_loss("port")))


class LossFaults:
    """The faults that the port's loss of TF1's outputs may have, as findings; None where one is not what differs."""

    def __init__(self, runner: Runner):
        self._runner, self._train, self._tf1 = runner, train_step_of(runner.migration), runner.tf1.trace_of_loss()
        self._loss = PortLoss(runner, runner.tf1.loss_of_outputs())
        self._comparison = comparison = TraceComparison(self._tf1, self._loss.trace, RTOLS[0])
        self._diverged, self._in_both = comparison.tf1.diverged, comparison.port.matched.keys()
        (self._output,) = self._tf1.outputs.values()
        self._target = float(self._tf1.values[self._output].elements[0])

    def in_part(self) -> Finding | None:
        """Return the finding of a fault of a call in the loss, or of the labels."""
        known = self._exchanged(self._calls()) or self._ctc() or self._smoothed_in_one() or self._changed_labels()
        return known or self._swapped() or self._other_positions() or self._misread()

    @property
    def is_multiple(self) -> bool:
        """Whether the port's loss is the same multiple of TF1's for other outputs, too, as far as that is known."""
        if self._other is None or not self._target or self._loss.value is None:
            return True
        loss, target = self._other
        return loss.value is None or math.isclose(
            loss.value * self._target, self._loss.value * target, rel_tol=CLOSE, abs_tol=1e-12
        )

    def in_terms(self) -> list[Finding]:
        """Return a finding for each term of the loss that differs, if others agree."""
        tf1, port = Loss(self._tf1, self._loss.arrays), Loss(self._loss.trace, self._loss.arrays)
        others = None
        if self._other is not None:
            loss, trace = self._other[0], self._runner.of_other_outputs().tf1.trace_of_loss()
            others = Loss(trace, loss.arrays), Loss(loss.trace, loss.arrays)
        found = differences_of_terms(tf1, port, others)
        for penalty in (each for each in found if each.is_penalty):
            if findings := findings_of_penalties_in_loss(self._runner, penalty.port.line):
                rest = [each for each in found if each is not penalty]
                return [
                    *(self._in_term(each) or self._finding(each.cause, each.port, each.tf1) for each in rest),
                    *findings,
                ]
        return [self._in_term(each) or self._finding(each.cause, each.port, each.tf1) for each in found]

    def _in_term(self, term: Difference) -> Finding | None:
        """Return the finding of what only one program computes in a term that is no multiple of TF1's.

        Where both compute something of their own, this may be the same in another form.
        """
        divergence = self._comparison.divergence((term.tf1.name, term.port.name))
        only = [kinds.keys() - PLUMBING for kinds in only_in(*divergence.regions)]
        if term.is_multiple or all(only) or not any(only) or divergence.port is None:
            return None
        confirmed = term.cause.confirmed
        cause = causes_of_loss(replace(divergence, confirmed=confirmed), self._loss.inputs)[0]
        is_all = not all(any(kind(op) not in PLUMBING for op in region) for region in divergence.regions)
        remedy = cause.remedy if is_all else "compute this term in the port as TF1 does"
        return self._finding(cause._replace(confirmed=confirmed, remedy=remedy), divergence.port, divergence.tf1)

    def as_a_whole(self) -> Finding | None:
        """Return the finding that labels and outputs are exchanged in the whole loss."""
        return self._exchanged([(self._train.line_of_loss("port"), list(self._loss.trace.ops.values()))])

    def _explains(self, substitution: Substitution, rtol: float = RTOLS[0]) -> bool:
        return abs(self._loss.of(substitution) - self._target) <= rtol * abs(self._target)

    def _finding(self, cause: Cause, port: TracedOp, tf1: TracedOp | None = None) -> Finding:
        """Return the finding of a cause; its place in TF1 is the first op that diverges if no other one is known."""
        of_tf1 = tf1 or next(iter(self._diverged), self._tf1.ops[op_of(self._output)])
        finding = finding_of_cause(self._runner, "training", cause, place_of(of_tf1, ""), place_of(port, ""))
        return with_lines_of_losses(replace(finding, title=f"loss: {cause.title}"), self._train)

    # Labels and outputs that are exchanged.

    def _exchanged(self, calls: Iterable[tuple[str, Sequence[TracedOp]]]) -> Finding | None:
        lines = dict[frozenset[Edge], tuple[str, TracedOp, Substitution]]()  # of the innermost call that takes the two
        for line, ops in calls:
            if (exchange := self._exchange(ops)) is not None:
                op, substitution = exchange
                lines[frozenset(substitution.edges)] = line, op, substitution
        for line, op, substitution in itertools.islice(lines.values(), _MOST_CALLS):
            if self._explains(substitution):
                cause = Cause(
                    "labels and outputs are exchanged",
                    "with labels and outputs exchanged, the losses agree",
                    remedy="exchange labels and outputs in the port; losses of Keras take (y_true, y_pred)",
                    own_form=(OwnForm.EXCHANGE, ""),
                )
                return self._finding(cause, replace(op, line=line))
        return None

    def _exchange(self, ops: Sequence[TracedOp]) -> tuple[TracedOp, Substitution] | None:
        """Return the first op of a call, and the call's labels and outputs in the other order; None without any."""
        computing = [op for op in ops if kind(op) not in PLUMBING]
        if not computing or (len(computing) == 1 and kind(computing[0]) in _ORDERED):
            return None
        taken = self._taken(ops)
        arrays = self._arrays_of(taken)
        labels = [tensor for tensor in arrays if self._loss.is_of(tensor, "labels")]
        outputs = [tensor for tensor in arrays if tensor not in labels]
        pairs = [*zip(labels, outputs, strict=False)]
        if not pairs or len(labels) != len(outputs) or any(arrays[a].size != arrays[b].size for a, b in pairs):
            return None
        both = [each for pair in pairs for each in (pair, pair[::-1])]
        edges = {edge: self._loss.port.fitted(arrays[other], one) for one, other in both for edge in taken[one]}
        return computing[0], Substitution(edges)

    def _swapped(self) -> Finding | None:
        """Return the finding of two outputs, or two labels, that are exchanged, in all uses or in one line."""
        trace, port, swaps = self._loss.trace, self._loss.port, dict[frozenset[Edge], tuple[str, str, Substitution]]()
        inputs = zip(self._loss.inputs, trace.inputs, self._loss.arrays, strict=True)
        for one, other in itertools.combinations(reversed([each for each in inputs if each[0].kind != "inputs"]), 2):
            (kind_of_one, words), _, array = one
            if kind_of_one != other[0].kind or array.shape != other[2].shape or array.dtype != other[2].dtype:
                continue
            edges_of = [[edge for edge in port.edges_of(each[1]) if edge[0] in trace.ops] for each in (one, other)]
            given = {edge: port.fitted(other[2], one[1]) for edge in edges_of[0]}
            given |= {edge: port.fitted(array, other[1]) for edge in edges_of[1]}
            lines = [{trace.ops[op].line for op, _ in edges} for edges in edges_of]
            for line in (None, *sorted(lines[0] & lines[1])) if array.size > 1 and all(lines) else ():
                edges = {edge: instead for edge, instead in given.items() if line in (None, trace.ops[edge[0]].line)}
                swaps.setdefault(frozenset(edges), (other[0].words, words, Substitution(edges)))
        for words, others, substitution in itertools.islice(swaps.values(), _MOST_STEPS):
            if self._explains(substitution):
                first = trace.ops[next(iter(substitution.edges))[0]]
                cause = Cause(
                    f"{words} and {others} are exchanged",
                    "with the two exchanged in the port, the losses agree",
                    fault=Fault.OTHER_TENSORS,
                    remedy="exchange the two in the port",
                )
                return self._finding(cause, first)
        return None

    def _calls(self) -> Iterator[tuple[str, Sequence[TracedOp]]]:
        """Yield the calls of functions in the loss, each with its line and the ops that it adds.

        Those of TensorFlow, whose arguments have names, come first; then the outermost.
        """
        calls: dict[tuple[bool, int, tuple[str, ...]], list[TracedOp]] = defaultdict(list)
        lines = dict[tuple[bool, int, tuple[str, ...]], str]()
        for op in self._loss.trace.ops.values():
            frames = self._loss.port.calls_of(op.name)
            scope = op.name.partition("/")[0] if "/" in op.name else ""
            for depth, frame in enumerate(frames):
                callee = [f"{each.filename}:{each.name}" for each in frames[depth + 1 : depth + 2]]
                if is_of_user(frame) and (callee or scope):
                    at = [f"{each.filename}:{each.lineno}" for each in frames[: depth + 1]]
                    call = bool(callee), depth, (*at, *(callee or [scope]))
                    calls[call].append(op)
                    lines[call] = at[-1]
        for call in sorted(calls, key=lambda each: each[:2]):
            yield lines[call], calls[call]

    # Outputs that a call in the loss reads as probabilities in place of logits, or as logits.

    def _misread(self) -> Finding | None:
        calls = [(line, ops) for line, ops in self._calls() if any(op.type in _LOGARITHMS for op in ops)]
        for line, ops in calls[: -_MOST_CALLS - 1 : -1]:  # the innermost ones first
            taken = self._taken(ops)
            arrays = self._arrays_of(taken)
            outputs = [each for each in arrays if each in self._in_both and self._loss.is_of(each, "outputs")]
            for cause, word, convert in CONVERSIONS if len(outputs) == 1 else ():
                with np.errstate(all="ignore"):
                    array = convert(arrays[outputs[0]])
                if cause.fault is Fault.READING and np.isfinite(array).all():
                    fitted = self._loss.port.fitted(array, outputs[0])
                    if self._explains(Substitution(dict.fromkeys(taken[outputs[0]], fitted)), SAME_LOSS):
                        confirmed = f"with the {word} of the outputs here, the losses agree"
                        return self._finding(cause._replace(confirmed=confirmed), replace(ops[0], line=line))
        return None

    def _taken(self, ops: Sequence[TracedOp]) -> dict[str, list[Edge]]:
        """Return what ops take from outside, with where they do."""
        names, taken = {op.name for op in ops}, dict[str, list[Edge]]()
        for op in ops:
            for position, tensor in enumerate(op.inputs):
                if op_of(tensor) not in names or op_of(tensor) in self._loss.trace.inputs:
                    taken.setdefault(tensor, []).append((op.name, position))
        return taken

    def _arrays_of(self, tensors: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the arrays of floats with several elements among some tensors."""
        arrays = {tensor: array for tensor in tensors if (array := self._loss.array(tensor)) is not None}
        return {tensor: array for tensor, array in arrays.items() if array.dtype.kind == "f" and array.size > 1}

    # A label smoothing in one program.

    def _smoothed_in_one(self) -> Finding | None:
        for op, size in self._labels():
            for share in dict.fromkeys((1 / size, 0.5)):
                number = self._smoothing(op, size, share)
                if number is not None:
                    return self._finding(_smoothing_differs(number), self._user_of(op))
        return None

    def _user_of(self, op: TracedOp) -> TracedOp:
        """Return an op of the port, or the first one that takes it if it is an input, which has no line."""
        return self._loss.trace.ops[self._loss.port.edges_of(op.name)[0][0]] if op.type == "Placeholder" else op

    def _labels(self) -> Iterator[tuple[TracedOp, int]]:
        """Yield the ops that are labels as shares of classes, or take classes as labels; and the number of classes."""
        for op in self._loss.trace.ops.values():
            array = self._loss.array(op.name)
            if op.type == _SPARSE and (logits := self._loss.array(op.inputs[0])) is not None:
                yield op, logits.shape[-1]
            elif op.type not in ("Placeholder", "OneHot") or array is None or array.dtype.kind != "f" or not array.ndim:
                continue
            elif self._loss.is_of(op.name, "labels") and array.shape[-1] > 1 and array.min() >= 0 and array.max() <= 1:
                yield op, array.shape[-1]

    def _smoothing(self, op: TracedOp, size: int, share: float) -> float | None:
        """Return what smooths these labels to give TF1's loss, less than 0 if they are smoothed already.

        It counts only if it has two digits, or leaves a share of two digits to the others, as a smoothing is no other
        number; None if there is none.
        """

        def difference(number: float) -> float:
            return self._loss.of(_smoothed(self._loss, op, share, number)) - self._target

        before, of_before, now, of_now = 0.0, self._loss.of(NOTHING) - self._target, 0.1, math.nan
        for _ in range(_MOST_STEPS):
            of_now = difference(now)
            if not math.isfinite(of_now) or of_now == of_before or abs(now) >= 1:
                return None
            if abs(of_now) <= 0.01 * RTOLS[0] * abs(self._target):
                break
            before, of_before, now = now, of_now, now - of_now * (now - before) / (of_now - of_before)
        others = size / (size - 1)
        for each in (float(f"{now:.2g}"), others * float(f"{now / others:.2g}")):
            if 0 < abs(each) < 1 and abs(each - now) <= _ROUNDED * abs(now) and self._is_smoothing(op, share, each):
                return each
        return None

    def _is_smoothing(self, op: TracedOp, share: float, number: float) -> bool:
        """Return whether a smoothing makes the port's loss TF1's; where no other outputs show it, it has one digit."""
        if self._other is None and abs(number) != float(f"{abs(number):.1g}"):
            return False
        return self._makes_tf1s(functools.partial(_smoothed, op=op, share=share, number=number))

    @functools.cached_property
    def _other(self) -> tuple[PortLoss, float] | None:
        """The port's loss of other outputs, and TF1's; None where no others are known."""
        if (other := self._runner.tf1.loss_of_other_outputs()) is None:
            return None
        of_outputs, target = other
        return PortLoss(self._runner, of_outputs), target

    # Labels that only one program multiplies, or adds a number to.

    def _changed_labels(self) -> Finding | None:
        """Return the finding of labels that one program changes and the other one takes as they are."""
        for given in self._given_labels():
            in_tf1, in_port = self._made_of(given, self._tf1), self._made_of(given, self._loss.trace)
            in_one = [(change, _SAME) for change in in_tf1 if change not in in_port and _SAME in in_port]
            in_one += [(_SAME, change) for change in in_port if change not in in_tf1 and _SAME in in_tf1]
            for tf1, port in in_one[:_MOST_CALLS]:
                name, labels = in_port[port].name, tf1.of(given)
                if self._makes_tf1s(functools.partial(PortLoss.instead, tensor=name, array=labels)):
                    return self._finding(_labels_differ(tf1, port), self._user_of(in_port[port]), in_tf1[tf1])
        return None

    def _given_labels(self) -> Iterator[np.ndarray]:
        """Yield the labels that the loss is given, or the shares of classes that it makes of them."""
        for op in self._loss.trace.ops.values():
            array = self._loss.array(op.name)
            if op.type not in ("Placeholder", "OneHot") or array is None or array.size < 2 or array.dtype.kind != "f":
                continue
            if self._loss.is_of(op.name, "labels"):
                yield (array > array.min()).astype(np.float64) if op.type == "OneHot" else array

    def _made_of(self, given: np.ndarray, trace: Trace) -> dict[_Change, TracedOp]:
        """Return the first op for each change of labels that a program makes."""
        found: dict[_Change, TracedOp] = {}
        for op in trace.ops.values():
            array, taken = _array(trace, self._loss.arrays, op.name), trace.inputs_of([op])
            if not taken or not taken <= self._loss.labels or array is None or array.dtype.kind != "f":
                continue
            if array.size == given.size and (change := _Change.between(given.reshape(-1), array.reshape(-1))):
                found.setdefault(change, op)
        return found

    def _makes_tf1s(self, substitution: Callable[[PortLoss], Substitution]) -> bool:
        """Return whether substitutes make the port's loss TF1's; of other outputs, too, if TF1's is known."""
        if not self._explains(substitution(self._loss)):
            return False
        if self._other is None:
            return True
        loss, target = self._other
        return math.isclose(loss.of(substitution(loss)), target, rel_tol=RTOLS[0])

    # Labels or outputs of other positions, such as each word in place of the next one.

    def _other_positions(self) -> Finding | None:
        """Return the finding that the port takes slices of labels and outputs at other positions than TF1."""
        in_tf1, in_port = self._slices(self._tf1), self._slices(self._loss.trace)
        moved = dict[str, tuple[_Slice, _Slice]]()  # TF1's slice, and the port's
        for own, op in in_port.items():
            others = [each for each in in_tf1 if each not in in_port and each.of_same_axis(own)]
            if own not in in_tf1 and len(others) == 1:
                moved[op.name] = others[0], own
        for each in (*({name: both} for name, both in moved.items()), moved):
            instead = {name: tf1 for name, (tf1, _) in each.items()}
            if instead and self._makes_tf1s(functools.partial(_with_slices, slices=instead)):
                (name, tf1), *_ = instead.items()
                return self._finding(_slices_differ([*each.values()]), self._loss.trace.ops[name], in_tf1[tf1])
        return None if in_port else self._positions_of_tf1_only(in_tf1)

    def _positions_of_tf1_only(self, slices: Mapping[_Slice, TracedOp]) -> Finding | None:
        """Return the finding that only TF1 takes slices of labels and outputs, as for the word that comes next."""
        given = self._tf1.inputs
        of_inputs = [(given.index(op.sources[0]), each) for each, op in slices.items() if op.sources[0] in given]
        taken = dict(of_inputs)
        if not taken or len(taken) < len(of_inputs):
            return None

        def loss_of_slices(of_outputs: LossOfOutputs) -> float:
            arrays = map(np.asarray, of_outputs.migration.first_batch())
            inputs = tuple(taken[n].taken_from(array) if n in taken else array for n, array in enumerate(arrays))
            loss = PortLoss(self._runner, of_outputs._replace(migration=replace(of_outputs.migration, inputs=inputs)))
            return math.nan if loss.value is None else loss.value

        reference = self._runner.tf1
        of_losses = [(reference.loss_of_outputs(), self._target), reference.loss_of_other_outputs()]
        for of_outputs, target in filter(None, of_losses):
            if not math.isclose(loss_of_slices(of_outputs), target, rel_tol=RTOLS[0]):
                return None
        users = (each for each in self._loss.trace.ops.values() if self._loss.trace.inputs_of([each]) and each.inputs)
        return self._finding(
            _slices_differ([(each, None) for each in taken.values()]), next(users), next(iter(slices.values()))
        )

    def _slices(self, trace: Trace) -> dict[_Slice, TracedOp]:
        """Return the slices of labels and outputs that a program takes, each with the first op that takes it."""
        found = dict[_Slice, TracedOp]()
        for op in trace.ops.values():
            kinds = {self._loss.inputs[number].kind for number in trace.inputs_of([op])}
            if op.inputs and len(kinds) == 1:
                part, whole = (_array(trace, self._loss.arrays, each) for each in (op.name, op.inputs[0]))
                if (taken := _Slice.of(next(iter(kinds)), part, whole)) is not None:
                    found.setdefault(taken, op)
        return found

    # A CTC loss.

    def _ctc(self) -> Finding | None:
        """Return the finding of a CTC loss of which the port computes another one, as TF1's op shows."""
        op = next((op for op in self._tf1.ops.values() if op.type == "CTCLoss"), None)
        given = None if op is None else _array(self._tf1, self._loss.arrays, op.name)
        if op is None or given is None:
            return None
        like = [name for name, value in self._loss.trace.values.items() if value.size == given.size]
        arrays = {name: array for name in like[:-_MOST_CALLS:-1] if (array := self._loss.array(name)) is not None}
        explained = [name for name in arrays if self._explains(self._loss.instead(name, given))]
        for changes, losses in self._ctc_losses(op):
            if losses is None or np.allclose(losses, given, rtol=CLOSE, atol=0):
                continue
            for name, array in arrays.items():
                if np.allclose(losses, array.reshape(losses.shape), rtol=RTOLS[0], atol=0):
                    confirmed = "with the port's values, TF1's op computes the port's losses"
                    confirmed += ", and with TF1's losses here, the rest agrees" if name in explained else ""
                    return self._finding(_ctc_differs(changes, confirmed), self._loss.trace.ops[op_of(name)], op)
        in_port = [self._loss.trace.ops[op_of(name)] for name in explained if "ctc" in name.lower()]
        unknown = Cause("the CTC losses of the same outputs differ", "with TF1's losses here, the rest agrees")
        return self._finding(unknown, in_port[0], op) if in_port else None

    def _ctc_losses(self, op: TracedOp) -> Iterator[tuple[Sequence[tuple[str, str, str]], np.ndarray | None]]:
        """Yield what a port may compute in place of TF1's CTC losses, with what differs: TF1's value and the port's.

        What differs the least comes first.
        """
        taken = [
            op.constants.get(f"input {number}", _array(self._tf1, self._loss.arrays, tensor))
            for number, tensor in enumerate(op.inputs)
        ]
        if any(array is None for array in taken):
            return
        logits, indices, *others = (np.asarray(array) for array in taken)
        labels, frames = (array.reshape(-1) for array in others)
        last, count = logits.shape[-1] - 1, len(frames)
        flags = {name: op.attributes[f"attribute {name}"] == "True" for name in _FLAGS_OF_CTC}
        same: _CTCChange = (), {}
        kinds = [[same] for _ in range(4)]
        for blank, offset in itertools.product((last, *range(min(last, _MOST_BLANKS))), (0, 1, -1)):
            what = [(_BLANK, str(last), str(blank))] if blank != last else []
            what += [("offset of the labels", "0", str(offset))] if offset else []
            if what:
                kinds[0].append((what, {"blank": blank, "labels_values": labels + offset}))
        for name in _FLAGS_OF_CTC[:2]:
            kinds[1].append(([(name, str(flags[name]), str(not flags[name]))], {name: not flags[name]}))
        every = np.full_like(frames, len(logits))
        kinds[2].append(([("logit_length", str(frames), str(every))], {"sequence_length": every}))
        kinds[2].append(([(_TIME, "0", "1")], {"inputs": logits.swapaxes(0, 1)}))
        kinds[2].append(([("activation of the logits", "none", "softmax")], {"inputs": softmax(logits)}))
        for padded in self._loss.arrays:
            if padded.dtype.kind == "i" and padded.ndim == 2 and len(padded) == count:
                lengths = np.bincount(indices[:, 0], minlength=count), np.full(count, padded.shape[1])
                whole = {"labels_indices": np.argwhere(np.ones(padded.shape)), "labels_values": padded.reshape(-1)}
                kinds[3].append(([("label_length", str(lengths[0]), str(lengths[1]))], whole))
        given = {"inputs": logits, "labels_indices": indices, "labels_values": labels, "sequence_length": frames}
        for of_kinds in sorted(itertools.product(*kinds), key=lambda each: sum(bool(what) for what, _ in each)):
            what = [one for each, _ in of_kinds for one in each]
            changed = {name: value for _, each in of_kinds for name, value in each.items()}
            if changed.get("blank", 0) in (0, last) or len(what) == 1:
                yield what, _ctc_loss(**{"blank": last, **given, **flags, **changed})


def _smoothed(loss: PortLoss, op: TracedOp, share: float, number: float) -> Substitution:
    """Return labels that move to a share of all classes by a number, or that come from there if it is negative."""
    part, value, uniform = number if number >= 0 else number / (1 + number), loss.array(op.name), np.asarray(share)
    if value is not None and op.type == _SPARSE and (logits := loss.array(op.inputs[0])) is not None:
        with np.errstate(divide="ignore"):  # of masked logits
            uniform = -np.log(softmax(logits)).mean(axis=-1).reshape(value.shape)  # of logits of a sequence, too
    return NOTHING if value is None else loss.instead(op.name, (1 - part) * value + part * uniform)


class _Change(NamedTuple):
    """What a program makes of labels: so many times the labels, plus a number."""

    factor: float
    added: float

    @classmethod
    def between(cls, given: np.ndarray, found: np.ndarray) -> _Change | None:
        """Return the change from given labels to those that were found; None if it is not of this form."""
        least, greatest = int(given.argmin()), int(given.argmax())
        width = float(given[greatest] - given[least])
        factor = float(found[greatest] - found[least]) / width if width else float(found[0]) / (float(given[0]) or 1.0)
        added = float(found[least]) - factor * float(given[least])
        change = cls(float(f"{factor:.5g}"), float(f"{added:.5g}") if abs(added) > CLOSE else 0.0)
        return change if change.factor and np.allclose(change.of(given), found, rtol=CLOSE, atol=CLOSE) else None

    def of(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels after the change."""
        return self.factor * labels + self.added

    def __str__(self) -> str:
        factor = "y" if self.factor == 1 else f"{self.factor:g} y"
        return f"{factor} {'-' if self.added < 0 else '+'} {abs(self.added):g}" if self.added else factor


_SAME = _Change(1.0, 0.0)


def _labels_differ(tf1: _Change, port: _Change) -> Cause:
    """Return the cause that the programs change labels differently."""
    confirmed = "with TF1's labels here, the losses agree"
    if tf1.added or port.added:
        return of_values("scaling of the labels y", tf1, port, confirmed)
    factors = f"{tf1.factor:g}", f"{port.factor:g}"
    return of_values("factor of the labels (such as 1 - label smoothing)", *factors, confirmed)


def _smoothing_differs(number: float) -> Cause:
    """Return the cause that only TF1 smooths labels, by a number, or only the port, by less than 0."""
    smoothing = f"{abs(number):.6g}"
    if number > 0:
        remedy = f"smooth the labels in the port, as label_smoothing={smoothing} does in "
        remedy += "keras.losses.CategoricalCrossentropy"
        confirmed = f"with a smoothing of {smoothing}, the losses agree"
        cause = of_values(LABEL_SMOOTHING, smoothing, "none", confirmed, remedy=remedy)
        return cause._replace(own_form=(OwnForm.SMOOTH_LABELS, smoothing))
    confirmed = f"without a smoothing of {smoothing}, the losses agree"
    return of_values(LABEL_SMOOTHING, "none", smoothing, confirmed, remedy="do not smooth the labels in the port")


class _Slice(NamedTuple):
    """The slice of labels or outputs, of positions of one axis, that a program takes."""

    what: str
    axis: int
    size: int  # of the axis
    first: int
    length: int

    @classmethod
    def of(cls, what: str, part: np.ndarray | None, whole: np.ndarray | None) -> _Slice | None:
        """Return which slice of an array a part is; None if it is none, or may be several."""
        if part is None or whole is None or part.ndim != whole.ndim or not part.size:
            return None
        shorter = [axis for axis in range(part.ndim) if part.shape[axis] != whole.shape[axis]]
        if len(shorter) != 1:
            return None
        (axis,), size, length = shorter, whole.shape[shorter[0]], part.shape[shorter[0]]
        found = [cls(what, axis, size, first, length) for first in range(size - length + 1)]
        found = [each for each in found if np.array_equal(each.taken_from(whole), part)]
        return found[0] if len(found) == 1 else None

    def of_same_axis(self, other: _Slice) -> bool:
        """Return whether this is a slice of the same axis."""
        return self[:3] == other[:3]

    def taken_from(self, whole: np.ndarray) -> np.ndarray:
        """Return this slice of an array."""
        return whole.take(range(self.first, self.first + self.length), self.axis)

    def __str__(self) -> str:
        """Return the slice as code, such as ``[:, 1:]``."""
        last = self.first + self.length
        until = last - self.size if self.size - last < last and self.length > 1 else last
        return f"[{':, ' * self.axis}{self.first or ''}:{until or ''}]"


def _with_slices(loss: PortLoss, slices: Mapping[str, _Slice]) -> Substitution:
    """Return slices of what ops slice, in place of theirs."""
    substitution = NOTHING
    for name, taken in slices.items():
        whole = loss.array(loss.trace.ops[name].inputs[0])
        if whole is not None:
            substitution = substitution.and_also(loss.instead(name, taken.taken_from(whole)))
    return substitution


def _slices_differ(slices: Sequence[tuple[_Slice, _Slice | None]]) -> Cause:
    """Return the cause that the port takes other slices of labels and outputs, or none, given TF1's and its own."""
    titles = [differs(f"slice of the {tf1.what}", tf1, port or "all") for tf1, port in slices]
    taken = " and ".join(f"{tf1} of the {tf1.what}" for tf1, _ in slices)
    confirmed, remedy = f"with {taken} here, the losses agree", f"use {taken} in the port"
    return Cause("; ".join(titles), confirmed, fault=Fault.VALUE, remedy=remedy)


_CTCChange = tuple[Sequence[tuple[str, str, str]], dict[str, Any]]  # what differs, and the arguments of the op
_BLANK, _TIME = "blank index", "axis of time"  # what may differ
_COLLAPSES, _MERGES, _ = _FLAGS_OF_CTC
# What differs, TF1's value -> the remedy; that of another value is to use it.
_REMEDIES_OF_CTC = {
    (_COLLAPSES, "True"): (
        "remove repeated labels in the port before the loss, or call tf.compat.v1.nn.ctc_loss, which can do that"
    ),
    (_MERGES, "False"): ("call tf.compat.v1.nn.ctc_loss in the port: tf.nn.ctc_loss always merges repeated labels"),
    (_TIME, "0"): "transpose the logits in the port, or pass the other value of logits_time_major to tf.nn.ctc_loss",
}


def _ctc_differs(changes: Sequence[tuple[str, str, str]], confirmed: str) -> Cause:
    """Return the cause that values of a CTC loss differ, given each with TF1's value and the port's."""
    each = [of_values(f"{what} of the CTC loss", tf1, port, confirmed) for what, tf1, port in changes]
    if len(each) > 1:
        remedy = "pass TF1's values to the port's CTC loss"
        return Cause("; ".join(cause.title for cause in each), confirmed, remedy=remedy)
    ((what, tf1, _),) = changes
    if what == _BLANK:
        others = "mask_index in Keras, blank in PyTorch"
        return each[0]._replace(remedy=f"pass blank_index={tf1} to the port's loss ({others})")
    return each[0]._replace(remedy=_REMEDIES_OF_CTC.get((what, tf1), each[0].remedy))


def _ctc_loss(blank: int, inputs: np.ndarray, sequence_length: np.ndarray, **arguments: Any) -> np.ndarray | None:
    """Return what TF1's op computes if a class is blank; None if it refuses the arguments.

    A copy of this class becomes the last one, as a label may be that class, too. It is no part of the softmax.
    """
    try:
        is_frame = np.arange(len(inputs))[:, np.newaxis] < sequence_length
        rest = np.where(is_frame, np.log1p(softmax(inputs)[..., blank]), 0).sum(axis=0)
        inputs = np.concatenate([inputs, inputs[..., blank : blank + 1]], axis=-1)
        losses, _ = tf.raw_ops.CTCLoss(inputs=inputs, sequence_length=sequence_length, **arguments)
    except (tf.errors.OpError, ValueError, TypeError, IndexError):  # labels or lengths that do not fit
        return None
    return losses.numpy() - rest
