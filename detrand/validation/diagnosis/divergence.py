"""A place where two programs diverge: the ops after which they no longer compute the same numbers, and their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from detrand.arguments import and_more
from detrand.comparison.values import LeafComparison
from detrand.validation.frameworks.traces import TracedOp, Value
from detrand.validation.programs.upstream import op_of
from detrand.validation.results import AuditedHyperparameter

_MOST_SHOWN = 4


def confirmation(given: str, *, rest_agrees: bool) -> str:
    """Return in words what a port shows that is given something; empty if nothing is."""
    agrees = "the rest agrees" if rest_agrees else "what follows agrees up to the next difference"
    return f"{given}, {agrees}" if given else ""


@dataclass(frozen=True)
class Divergence:
    """A place where two programs diverge; ``str()`` describes it.

    Attributes:
      tf1: TF1's first op that has no counterpart; None if each of its ops has one.
      port: the port's first op that has no counterpart; None if each of its ops has one.
      after: the ops before it that agree, as TF1 names them, or as the port does if only the port goes on.
      leaf: how the values of the two ops compare; None if their shapes differ.
      attributes: the attributes and constant inputs of the two ops that differ, with TF1's value and the port's.
      values: the values of TF1's op and of the port's op.
      sources: the values that TF1's op is computed from, and those that the port's op is computed from.
      regions: TF1's ops and the port's from there to where the rest agrees, once the port has TF1's value; all that
        have no counterpart, if no substitute makes the rest agree.
      variables: the TF1 names of the variables that TF1's region, and the port's, takes.
      drawing: the first op of TF1's region, and of the port's, that takes random numbers; None if none does.
      taken: what TF1's op takes, and what the port's op takes, by TF1's names; empty where it has none.
      dtypes: the dtypes of the two ops, as the ops have them, if they differ.
      uses: the positions of the migration's inputs from which TF1's region, and the port's, is computed.
      given: the positions of the inputs from which the two ops are computed.
      operands: the positions of the inputs from which each operand of the two ops is computed.
      confirmed: what makes more agree, in words; empty if nothing was found that does.
      rest_agrees: whether no other difference is left then.
      attribute: the attribute or constant input that makes the difference, if it was substituted.
      count: at how many ops of the port it was.
      hyperparameter: the audited hyperparameter that makes the difference, if that was substituted.
      constants: TF1's array and the port's at the end of the regions, if the port's is a constant or the attribute
        is a constant input.
      producer: where the port lacks the ops of TF1's region, its op after which they belong.
      term_of: the program whose only output is the other's plus a term, ``"TF1"`` or ``"the port"``; empty if neither.
      is_order: whether the programs compute the same in another order, and differ twice because of it.
      is_swap: whether each of two tensors is taken in the place of the other one, and the programs differ twice.
    """

    tf1: TracedOp | None
    port: TracedOp | None
    after: tuple[str, ...]
    leaf: LeafComparison | None
    attributes: Mapping[str, tuple[str, str]]
    values: tuple[Value | None, Value | None] = field(repr=False)
    sources: tuple[list[Value], list[Value]] = field(repr=False)
    regions: tuple[tuple[TracedOp, ...], tuple[TracedOp, ...]] = field(default=((), ()), repr=False)
    variables: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    drawing: tuple[TracedOp | None, TracedOp | None] = (None, None)
    taken: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    dtypes: tuple[str, str] = ("", "")
    uses: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    given: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    operands: tuple[tuple[frozenset[int], ...], tuple[frozenset[int], ...]] = ((), ())
    confirmed: str = ""
    rest_agrees: bool = False
    attribute: str = ""
    count: int = 1
    hyperparameter: AuditedHyperparameter | None = None
    constants: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)
    producer: TracedOp | None = None
    term_of: str = ""
    is_order: bool = False
    is_swap: bool = False

    @property
    def op(self) -> str:
        """The op to look at, with its line: TF1's, or the port's if only the port goes on."""
        return str(self.tf1 or self.port)

    @property
    def is_exact(self) -> bool:
        """Whether it is confirmed by a number, or by the one tensor that the programs make of one tensor.

        A value that is made of several tensors hides which of them is which.
        """
        if not self.confirmed or self.term_of or self.is_order:
            return False
        return bool(self.attribute) or all(len(_taken_from_outside(region)) <= 1 for region in self.regions)

    @property
    def types(self) -> tuple[str, str]:
        """The types of TF1's op and of the port's; empty where there is none."""
        return "" if self.tf1 is None else self.tf1.type, "" if self.port is None else self.port.type

    def __str__(self) -> str:
        if self.after:
            lines = [f"First divergence. Identical up to {and_more(self.after, _MOST_SHOWN)}, then:"]
        else:
            lines = ["First divergence, at a variable or an op on inputs and variables only:"]
        lines += [f"  TF1 computes       {self.tf1 or 'nothing that the port does not compute'}"]
        lines += [f"  the port computes  {self.port or 'nothing that TF1 does not compute'}"]
        lines += [f"  {name} differs: {tf1} (TF1), {port} (port)" for name, (tf1, port) in self.attributes.items()]
        if self.leaf is not None and self.leaf.greatest_absolute is not None:
            tf1_value, _ = self.values
            kept = "elements" if tf1_value is None or tf1_value.is_whole else "recorded elements"
            lines.append(f"  {self.leaf.mismatched:,} of {self.leaf.size:,} {kept} differ")
            lines.append("  " + self.leaf.greatest_absolute.in_words("max |difference|"))
        lines += [f"  confirmed: {self.confirmed}"] if self.confirmed else []
        return "\n".join(lines)


def _taken_from_outside(region: Sequence[TracedOp]) -> set[str]:
    """Return the tensors that a region of ops takes, besides constants."""
    inside = {op.name for op in region}
    taken = ((op, number, tensor) for op in region for number, tensor in enumerate(op.inputs))
    return {
        tensor for op, number, tensor in taken if f"input {number}" not in op.constants and op_of(tensor) not in inside
    }
