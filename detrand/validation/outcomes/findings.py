"""Findings of causes, of divergences, and of variables that differ.

Where a variable explains a divergence, only the variable is a finding (`explained_by_variables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from detrand.arguments import and_more
from detrand.seeding.callsite import UNKNOWN
from detrand.validation.audit.hyperparameters import layer_of
from detrand.validation.diagnosis.causes.arrays import is_rearranged
from detrand.validation.diagnosis.causes.cause import Cause
from detrand.validation.diagnosis.causes.computation import DRAWS_NUMPY
from detrand.validation.diagnosis.causes.values import unconfirmed
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.loops import iteration_of
from detrand.validation.diagnosis.name_map import variables_by_op
from detrand.validation.diagnosis.op_kinds import PLUMBING, kind
from detrand.validation.frameworks.traces import TracedOp
from detrand.validation.results import Fault, Finding, Place
from detrand.validation.runner import Runner
from detrand.variables.comparison import VariablesComparison
from detrand.variables.pairing import exact_role_of

UNKNOWN_CAUSE = "the cause is not known"


def finding_of_cause(
    runner: Runner, kind: str, cause: Cause, tf1: Place | None = None, port: Place | None = None
) -> Finding:
    """Return the finding that a cause is, with its remedy in the framework of the port.

    A computation whose cause is not confirmed has no remedy: it may not be what differs. Draws from NumPy have one:
    they do differ.
    """
    is_known = bool(cause.confirmed) or kind != "computation" or cause == DRAWS_NUMPY
    own_form = runner.framework.own_form(*cause.own_form) if is_known and cause.own_form is not None else ""
    remedy = (own_form or cause.remedy) if is_known else ""
    return Finding(kind, cause.title, tf1, port, confirmed=cause.confirmed, remedy=remedy, fault=cause.fault)


def finding_of(runner: Runner, divergence: Divergence, likely: Sequence[Cause], kind: str = "computation") -> Finding:
    """Return the finding that a divergence is: its likeliest cause, if it is confirmed."""
    confirmed = divergence.confirmed or (
        "both hold the same numbers, in a different order" if is_rearranged(divergence) else ""
    )
    is_known = bool(confirmed and likely and likely[0] not in unconfirmed(divergence))
    where = f"another result at {divergence.op}"
    cause = (
        Cause(where, fault=Fault.POSSIBLE) if likely else Cause(f"{where}; {UNKNOWN_CAUSE}", fault=Fault.UNEXPLAINED)
    )
    cause = (likely[0] if is_known else cause)._replace(confirmed=confirmed)
    values = divergence.attributes.get(divergence.attribute)
    greatest = None if divergence.leaf is None else divergence.leaf.greatest_absolute
    if values is None and greatest is not None:
        values = greatest.texts()
    tf1_value, port_value = values or ("", "")
    (tf1_op, port_op), drawing = (divergence.tf1, divergence.port), divergence.drawing
    if cause.fault is Fault.RANDOM_OP_OF_TF1 and drawing[0] is not None:
        tf1_op, tf1_value = drawing[0], ""
    elif cause.fault is Fault.RANDOM_OP_OF_PORT and drawing[1] is not None:
        port_op, port_value = drawing[1], ""
    elif cause.fault in (Fault.MASK, Fault.RANDOM_OP_ELSEWHERE):
        (tf1_op, port_op), tf1_value, port_value = drawing, "", ""
    elif cause.fault is Fault.SOFTMAX_MASK and divergence.masking is not None:
        (tf1_op, port_op), tf1_value, port_value = (each.op for each in divergence.masking), "", ""
    producer, user = divergence.producer, "" if port_op is None else _line_of(port_op)
    if producer is not None and (_line_of(producer) or not user):  # what is missing comes after it
        used = f", used at {user}" if user and user not in producer.line else ""
        port_op = replace(producer, line=producer.line + used)
        tf1_value = port_value = ""
    return replace(
        finding_of_cause(runner, kind, cause, place_of(tf1_op, tf1_value), place_of(port_op, port_value)),
        others=() if is_known else tuple(each.title for each in likely),
        count=divergence.count,
        rest_agrees=divergence.rest_agrees,
        is_exact=divergence.is_exact,
        is_of_weights=any(op is not None and op.type == "ReadVariableOp" for op in (divergence.tf1, port_op)),
    )


def place_of(op: TracedOp | None, value: str) -> Place | None:
    """Return an op of a program as a place, with the value there."""
    return None if op is None else Place(f"{op.name} ({op.type})", _line_of(op), value)


def _line_of(op: TracedOp) -> str:
    """Return the line that adds an op; empty if it is not known."""
    return "" if op.line == str(UNKNOWN) else op.line


def findings_of_variables(runner: Runner) -> Iterator[Finding]:
    """Yield a finding for each way in which variables differ, at the first variable that does."""
    comparison = runner.compared_variables()
    lines_of_tf1, lines_of_port = runner.lines_of_variables
    for each in comparison.groups("TF1", "the port"):
        fault, of_fault = _FAULTS_OF_VARIABLES[each.what]
        name, count, remedy = " + ".join(each.tf1_names), len(each.lines), ". ".join(each.advice) or of_fault
        title = f"variables: {each.title} ({count}): {and_more(each.lines, 4, '; ')}"
        first = each.tf1_names[0]
        line_of_port = lines_of_port.get(first) or lines_of_port.get(each.port_name, "")
        of_tf1, of_port = Place(name, lines_of_tf1.get(first, "")), Place(each.port_name, line_of_port)
        if fault is Fault.VARIABLE_OF_PORT and (shared := _shared_in_tf1(runner)):
            pairs = (f"{copy} for {name}" for copy, name in shared.items())
            title = f"variables: the port has copies of variables that TF1 shares ({count}): {and_more(pairs, 4)}"
            remedy = "make the layer once in the port, and call it at each place"
            of_tf1 = Place(shared[name], lines_of_tf1.get(shared[name], ""))
        elif fault in (Fault.VARIABLE_OF_TF1, Fault.VARIABLE_OF_PORT) and not each.advice:
            remedy = _remedy_of_one_program(comparison)
        elif fault is Fault.TRAINABLE:
            remedy = _remedy_of_trainable(comparison)
        yield Finding(
            "variables",
            title,
            None if fault is Fault.VARIABLE_OF_PORT and of_tf1.op == name else of_tf1,
            None if fault is Fault.VARIABLE_OF_TF1 else of_port,
            remedy=remedy,
            fault=fault,
        )


# How variables differ -> the fault and its remedy, which depends on the variables where it is empty.
_FAULTS_OF_VARIABLES = {
    "only in TF1": (Fault.VARIABLE_OF_TF1, ""),
    "only in port": (Fault.VARIABLE_OF_PORT, ""),
    "shape": (
        Fault.SHAPE,
        "give the port's layers TF1's sizes; for a variable that has the same numbers in a different form, pass a "
        "Rearranged in name_map",
    ),
    "dtype": (Fault.OTHER, "give the port's layers TF1's dtype, or pass Migration(dtype_policy=...)"),
    "trainable": (Fault.TRAINABLE, ""),
}


def _remedy_of_trainable(comparison: VariablesComparison) -> str:
    """Return what to do about variables that only one program trains."""
    remedy = "freeze these variables in the port, as with trainable=False of their layer"
    if any(pair.tf1.trainable for pair in comparison.differing_in("trainable")):
        remedy = (
            "make these variables trainable in the port. If TF1 does not train them either, pass the names of those "
            "that it trains as TrainStep(var_list=[...]), as to minimize(var_list=...), or its training op as "
            "TrainStep(tf1_train_op=...)"
        )
    if _frozen_normalizations(comparison):
        remedy += ". A frozen BatchNormalization of Keras normalizes with its moving averages, in training too"
    return remedy


_ARGUMENTS_OF_LAYERS = {"bias": "use_bias", "gamma": "scale", "beta": "center"}


def _remedy_of_one_program(comparison: VariablesComparison) -> str:
    """Return what to do about variables that only one program has; empty if only their names may differ."""
    if comparison.only_in_tf1 and comparison.only_in_port:
        return ""
    kinds = {name.rpartition("/")[2] for name in (*comparison.only_in_tf1, *comparison.only_in_port)}
    argument = _ARGUMENTS_OF_LAYERS.get(kinds.pop(), "") if len(kinds) == 1 else ""
    if argument:
        return f"pass {argument}={bool(comparison.only_in_tf1)} to the port's layer"
    if comparison.only_in_tf1:
        return "add these variables to the port, and what TF1 computes from them"
    return "remove these variables from the port, and what it computes from them"


def _shared_in_tf1(runner: Runner) -> dict[str, str]:
    """Return, for each variable that only the port has, one that TF1 uses at several places and that may stand for it.

    Nothing is returned unless there is one for each, and the port has all of TF1's variables.
    """
    comparison = runner.compared_variables()
    if comparison.only_in_tf1:
        return {}
    trace = runner.tf1.ops()
    holding = variables_by_op(trace, {pair.tf1_name for pair in comparison.pairs})
    uses = Counter[str]()
    for op in trace.ops.values():
        taken = {holding[source] for source in op.sources if source in holding}
        if kind(op) not in PLUMBING:
            uses.update(taken)
        elif len(taken) == 1:
            holding[op.name] = taken.pop()
    found = dict[str, str]()
    for name, spec in comparison.only_in_port.items():
        for pair in comparison.pairs:
            is_like = pair.port.shape == spec.shape and exact_role_of(pair.port_name) == exact_role_of(name)
            if is_like and uses[pair.tf1_name] > 1:
                uses[pair.tf1_name] -= 1
                found[name] = pair.tf1_name
                break
    return found if len(found) == len(comparison.only_in_port) else {}


def _frozen_normalizations(comparison: VariablesComparison) -> set[str]:
    """Return the layers with moving averages of which variables are frozen in one program only."""
    averages = {layer_of(pair.tf1_name) for pair in comparison.pairs if pair.tf1.trainable is False}
    flags = ((pair, {pair.tf1.trainable, pair.port.trainable}) for pair in comparison.pairs)
    return averages & {layer_of(pair.tf1_name) for pair, of_pair in flags if of_pair == {True, False}}


def explained_by_variables(
    runner: Runner, divergences: Sequence[Divergence], findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield findings of divergences; where a variable explains one, yield the variable's finding instead.

    Where an op takes a variable that only one program has, or one of a different shape, the variable is the fault.
    Statistics of the batch in place of moving averages make all ops of a normalization differ.
    """
    comparison, of_variables = runner.compared_variables(), {each.fault: each for each in findings_of_variables(runner)}
    only = comparison.only_in_tf1.keys(), comparison.only_in_port.keys()
    other_shapes = comparison.differing_in("shape")
    of_other_shapes = {name for pair in other_shapes for name in (*pair.tf1_names, pair.port_name)}
    frozen, normalizations = _frozen_normalizations(comparison), set[str]()
    found: list[tuple[Finding, set[str]]] = []
    explained = set[str]()  # layers and lines
    for divergence, finding in zip(divergences, findings, strict=True):
        # A line may make several layers, and an op may take no variable.
        where = {layer_of(name) for names in divergence.variables for name in names}
        where |= {op.line for op in (divergence.port,) if op is not None and op.line != str(UNKNOWN)}
        explanation = None
        takes_other_shape = not of_other_shapes.isdisjoint(frozenset().union(*divergence.variables))
        if takes_other_shape and divergence.port is not None and iteration_of(divergence.port.name)[1]:
            explanation = Fault.SHAPE  # the ops of a cell depend on each other
        elif finding.fault in (Fault.NORMALIZES_IN_TRAINING, Fault.NORMALIZES_IN_INFERENCE):
            normalizations |= where
            if where & frozen:
                frozen |= where
                explanation = Fault.TRAINABLE
        elif finding.fault not in _OF_BOTH_PROGRAMS:
            sides = zip((Fault.VARIABLE_OF_TF1, Fault.VARIABLE_OF_PORT), divergence.variables, only, strict=True)
            explanation = next((fault for fault, names, known in sides if names & known), None)
            if explanation is None and takes_other_shape:
                explanation = Fault.SHAPE
            if explanation is None and where & normalizations:
                continue
        of_variable = None if explanation is None else of_variables.get(explanation)
        if of_variable is None:
            found.append((finding, where))
            continue
        explained |= where
        confirmed = replace(of_variable, confirmed=finding.confirmed, rest_agrees=finding.rest_agrees)
        found.append((confirmed, where))
    for finding, where in found:  # one iteration of a loop may take no variable that another one takes
        if finding.fault not in (Fault.UNEXPLAINED, Fault.POSSIBLE) or where.isdisjoint(explained):
            yield finding


# Faults of what both programs have, which no variable of only one of them explains.
_OF_BOTH_PROGRAMS = {Fault.VALUE, Fault.ACTIVATION, Fault.DROPOUT, Fault.REDUCTION, Fault.AXES, Fault.ORDER}
