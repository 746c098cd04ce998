"""Numbers that a port repeats outside of a scope, which gives each random op its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detrand.seeding.streams import RandomOp
from detrand.validation.reference import (
    CONSTANT_MODE,
    TRAINING,
)
from detrand.validation.results import Finding, Place
from detrand.validation.runner import Runner


def _repeated(port: Sequence[_Drawn], tf1: Sequence[RandomOp]) -> Iterator[tuple[_Drawn, _Drawn]]:
    """Yield pairs of the port's random ops that draw the same numbers outside of a scope, unless some of TF1 do, too.

    Each is given with its name. A scope gives each op its own numbers, so that nothing else shows it.
    """

    def numbers(op: RandomOp) -> tuple[Any, ...]:
        return op.own_seed, op.op_type, op.shape, op.dtype

    of_tf1 = Counter(numbers(op) for op in tf1 if op.own_seed is not None)
    kinds_in_tf1 = {each[1:] for each, count in of_tf1.items() if count > 1}
    first: dict[Any, _Drawn] = {}
    for drawn in port:
        op = drawn[1]
        if op.own_seed is not None and op.shape != () and numbers(op)[1:] not in kinds_in_tf1:
            earlier = first.setdefault(numbers(op), drawn)
            if earlier is not drawn:
                yield earlier, drawn


_Drawn = tuple[str, RandomOp]


def findings_of_initial_seeds(runner: Runner, drawn_by: Mapping[str, Sequence[RandomOp]]) -> Iterator[Finding]:
    """Yield a finding for each variable of the port that gets the numbers of another one."""
    drawn = [(name, op) for name, ops in drawn_by.items() for op in ops]
    for (first, _), (second, _) in _repeated(drawn, runner.tf1.outcome(CONSTANT_MODE).random_ops):
        port_names, (of_tf1, of_port) = runner.compared_variables().port_names, runner.lines_of_variables
        names = [port_names.get(name, name) for name in (first, second)]
        yield Finding(
            "initializers",
            f"{names[0]} and {names[1]} start with the same numbers: their initializers draw from one seed",
            Place(second, of_tf1.get(second, "")),
            Place(names[1], of_port.get(second, "")),
            confirmed="they have the same seed, distribution and shape",
            remedy="give each variable an initializer of its own, without a seed",
        )


def findings_of_seeds(runner: Runner) -> Iterator[Finding]:
    """Yield a finding for each random op of the port that repeats its own numbers, or those of another one."""
    tf1, drawn = runner.tf1.outcome(TRAINING).random_ops, [("", op) for op in runner.port(TRAINING).random_ops]
    drawn = [("", op) for _, op in drawn if op.phase == "compute" and op.own_seed is not None]
    stateless = {op.shape for op in tf1 if op.op_seed is None}
    for _, op in drawn:
        if op.own_seed is not None and op.own_seed[1] is None and op.shape not in stateless:
            title = f"the port draws the same numbers in every step: from the integer seed {op.own_seed[0]}"
            yield Finding(
                "computation",
                title,
                port=Place(f"{op.op_type} {op.shape}", op.caller),
                confirmed="each call begins with this seed",
                remedy="draw from a keras.random.SeedGenerator that the layer keeps, in place of the integer",
            )
    of_generators = [each for each in drawn if each[1].own_seed and each[1].own_seed[1] is not None]
    for (_, first), (_, second) in _repeated(of_generators, tf1):
        title = f"two random ops of the port draw the same numbers: both from the seed {(first.own_seed or (0,))[0]}"
        lines = runner.lines_of_seeds.get((first.own_seed or (0,))[0], ())
        lines = (lines[-1], lines[0]) if len(lines) > 1 else (second.caller, first.caller)
        places = [Place(f"{second.op_type} {second.shape}", line) for line in lines]
        yield Finding(
            "computation",
            title,
            port=places[0],
            more=(places[1],),
            confirmed="they have the same seed",
            remedy="give each of these ops a seed of its own, or none",
        )
