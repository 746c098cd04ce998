"""The checks of the variables: each is made once, and has its counterpart in the other program."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from detrand.arguments import and_more, plural, titled_list
from detrand.errors import VariableCreationError, passing_over
from detrand.validation.checks.computation import compare_in
from detrand.validation.outcomes.findings import findings_of_variables
from detrand.validation.precision import dtype_policy, variable_dtype
from detrand.validation.programs.outcome import numpy_seeded
from detrand.validation.reference import INFERENCE, TRAINING
from detrand.validation.results import Fault, Finding, Found, PairedVariable, Place, explain_outputs
from detrand.validation.runner import FoundNames, Runner
from detrand.variables.creation import catch_and_raise_created_variables
from detrand.variables.spec import VariableSpec


def variables_created_once(runner: Runner) -> Found:
    """Check that calling the port again creates no variables."""
    port = runner.fresh_port.port
    with dtype_policy(runner.migration.dtype_policy), numpy_seeded(runner.migration.numpy_seed):
        port(training=True)  # a branch that is built only in training may create its variables now, but no later
        parameters = port.framework.parameters(port.model)
        try:
            with catch_and_raise_created_variables():
                port(training=True)
                port(training=False)
        except VariableCreationError as error:
            return _created(str(error), [Place(*each) for each in error.created])
        after = port.framework.parameters(port.model)
    if created := [name for name, parameter in after.items() if parameters.get(name) is not parameter]:
        details = f"parameters that a call makes: {and_more(created, 4)}. Make each of them in __init__"
        return _created(details, [])
    return Found(True, "no variables created when it is called again")


def _created(details: str, places: Sequence[Place]) -> Found:
    """Return what the check found if each call makes variables at some places; none if they are not known."""
    title, first = "the port creates variables when it is called again", next(iter(places), None)
    finding = Finding(
        "variables",
        title,
        port=first,
        more=tuple(places[1:]),
        remedy="make the variables and layers once, in __init__ or build, and not in each call. TF1 code in a layer "
        "gets them from get_variable and get_or_create_layer",
        fault=Fault.CREATION,
        symptom="created",
    )
    return Found(False, title, details, findings=(finding,))


_NO_VARIABLES = (
    "No variables of the port were found. Variables in the closure of a plain function cannot be found: return a Keras "
    "layer, a model, a tf.Module, a torch.nn.Module or a flax.nnx.Module that owns them."
)


def paired_variables(runner: Runner) -> tuple[PairedVariable, ...]:
    """Return the variables of both programs in pairs, then those that only one program has."""
    comparison = runner.compared_variables()

    def form(spec: VariableSpec) -> str:
        return f"{spec.dtype} {spec.shape}"

    return (
        *(PairedVariable(pair.tf1_name, pair.port_name, form(pair.tf1), form(pair.port)) for pair in comparison.pairs),
        *(PairedVariable(name, "", form(spec), "") for name, spec in comparison.only_in_tf1.items()),
        *(PairedVariable("", name, "", form(spec)) for name, spec in comparison.only_in_port.items()),
    )


def variables_match(runner: Runner) -> Found:
    """Check that the programs have the same variables."""
    found, left_out = _compare_all_variables(runner), runner.training_state()
    if runner.missing_names:
        found = _with_missing_names(found, runner)
    if not left_out:
        return found
    needed = f"left out {plural(len(left_out), 'variable')} of TF1's optimizer"
    details = f"{found.details}\n{needed}, which the port does not have: {and_more(left_out, 5)}".lstrip("\n")
    return replace(found, summary=f"{found.summary}; {needed}", details=details)


def _compare_all_variables(runner: Runner) -> Found:
    dtype = variable_dtype(runner.migration.dtype_policy)
    tf1, port = runner.variables()
    if not tf1 and not port:
        return Found(True, "neither program has variables")
    difference = runner.compared_variables()
    count = plural(len(tf1), "variable")
    if difference.ok:
        policy = "" if dtype == "float32" else f" (float32 in TF1 is {dtype} in the port)"
        if runner.found_names is None and (swapped := runner.better_names()):
            return _swapped(swapped, runner.lines_of_variables)
        forms = difference.in_another_form()
        listed = [line for what, lines in forms.items() for line in titled_list(what, lines)]
        titles = [f"; {what} ({len(lines)})" for what, lines in forms.items()]
        equal = f"shapes, dtypes and trainable flags are equal{policy}{''.join(titles)}"
        if runner.found_names is not None:
            proof = runner.found_names.proof or _proof_of_faults(runner)
            return _names_differ(runner.found_names, proof, f"{count}: {equal}", listed)
        return Found(True, f"{count}: names, {equal}", "\n".join(listed))
    report = str(difference)
    if not port:
        summary = f"{count} in TF1, none in the port"
        finding = Finding("variables", summary, remedy=_NO_VARIABLES, symptom="created")
        return Found(False, summary, f"{report}\n{_NO_VARIABLES}", findings=(finding,))
    return Found(False, report.splitlines()[0], report, findings=tuple(findings_of_variables(runner)))


def _proof_of_faults(runner: Runner) -> str:
    """Return the proof that the pairs of variables are right, once faults are corrected; empty if there is none."""
    for name, config in (("random-inference", INFERENCE), ("random-training", TRAINING)):
        with passing_over():  # the check reports it
            found = compare_in(runner, config)
            if explain_outputs(found.findings) and all(each.is_exact for each in found.findings):
                return f"the outputs agree once what {name} finds is corrected"
    return ""


def _names_differ(found: FoundNames, proof: str, equal: str, reshaped: Sequence[str]) -> Found:
    """Return what the check found if only names differ, with the name map to write down.

    The proof that the pairs are right is empty if there is none.
    """
    proposal = found.proposal
    number = sum(1 if isinstance(name, str) else len(name) for name in proposal.name_map)
    count = f"names{' or forms' if found.cells else ''} of {plural(number, 'variable')}"
    if not proof:
        summary = f"{count} differ, and the outputs do not show which variable is which"
        if found.gave_up:
            summary += f": the search stopped after {plural(found.gave_up, 'run')} of the port without progress"
        details = f"{summary}. The other checks use this name_map. Correct it, and pass it as Migration(name_map=...):"
        finding = Finding(
            "names", summary, remedy="pass the pairs of this check, corrected, as Migration(name_map=...)"
        )
        return Found(False, summary, f"{details}\n{proposal}", findings=(finding,))
    details = f"{count} differ, but {proof}. To write the pairs down, pass Migration(name_map=...):\n{proposal}"
    return Found(True, f"{equal}; {count} differ, but {proof}", "\n".join([details, *reshaped]))


def _with_missing_names(found: Found, runner: Runner) -> Found:
    """Return what the check found, failed because the user's name map names variables that the port does not have."""
    port = runner.variables()[1]
    names = runner.found_names
    proven = names.pairs.names if names is not None and names.proof else {}
    lines, pairs = [], []
    for name, missing in runner.missing_names.items():
        nearest = [proven[name]] if name in proven else difflib.get_close_matches(missing, port, n=1, cutoff=0.0)
        pairs += [f"{name!r}: {other!r}" for other in nearest]
        line = f"name_map names the port variable {missing!r} for {name!r}, which does not exist"
        lines.append("; nearest: ".join([line, *map(repr, nearest)]))
    more = f"; {plural(len(lines) - 1, 'more entry', 'more entries')}" if len(lines) > 1 else ""
    title = f"name_map names variables that the port does not have: {and_more(runner.missing_names.values(), 4)}"
    remedy = f"write the port's own names in name_map, such as {and_more(pairs, 4)}" if pairs else ""
    return replace(
        found,
        ok=False,
        summary=f"{lines[0]}{more}; {found.summary}",
        details="\n".join([*lines, found.details]),
        findings=found.findings or (Finding("variables", title, remedy=remedy),),
    )


def _swapped(names: Mapping[str, tuple[str, str]], lines: tuple[Mapping[str, str], Mapping[str, str]]) -> Found:
    """Return what the check found if the outputs agree only with other pairs than the names or the name map say."""
    pairs = [f"{name} is {right} in the port, not {used}" for name, (used, right) in names.items()]
    details = [
        "With distinct weights, the outputs agree only if these variables are paired. If the names are right, the port "
        "uses one variable in place of another. If not, pass Migration(name_map=...) with:",
        *(f"    {name!r}: {right!r},  # not {used!r}" for name, (used, right) in names.items()),
    ]
    more = f"; {plural(len(pairs) - 1, 'more variable')}" if len(pairs) > 1 else ""
    summary = f"swapped: {pairs[0]}{more}"
    name, (used, right) = next(iter(names.items()))
    finding = Finding(
        "variables",
        f"variables are swapped: {and_more(names, 4)}",
        Place(name, lines[0].get(name, ""), used),
        Place(used, lines[1].get(name, ""), right),
        confirmed="if they are exchanged, the outputs with distinct weights agree",
        remedy="exchange them in the port; or, if only their names are wrong, pass the pairs of this check as name_map",
        symptom="swapped",
        fault=Fault.SWAPPED,
    )
    return Found(False, summary, "\n".join([summary, *details]), findings=(finding,))
