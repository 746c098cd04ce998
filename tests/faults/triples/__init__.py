"""Ports with three independent faults each, on the lines that end in ``# FAULT 1`` to ``# FAULT 3``.

Each function with the decorator `faults` makes a migration. ``faulty=False`` makes its sound twin.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf

import detrand


@dataclasses.dataclass(frozen=True)
class Triple:
    """A port with three faults: the regexes of their causes, and the lines that make them."""

    name: str
    make: Callable[[bool], detrand.Migration]
    causes: tuple[str, str, str]
    file: str
    lines: tuple[int, ...]


def faults(first: str, second: str, third: str) -> Callable[[Any], Any]:
    """Decorate a function ``make(faulty)`` with the regexes of the causes of its faults."""

    def decorate(make: Any) -> Any:
        make.causes = first, second, third
        return make

    return decorate


def triples() -> Iterator[Triple]:
    """Yield all ports of this package."""
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, make in vars(module).items():
            if hasattr(make, "causes"):
                lines, start = inspect.getsourcelines(make)
                marked = {
                    mark[1]: start + number
                    for number, line in enumerate(lines)
                    if (mark := re.search(r"# FAULT (\d)$", line.rstrip()))
                }
                yield Triple(name, make, make.causes, inspect.getfile(make), tuple(marked[k] for k in "123"))


def trained(
    tf1: Any,
    port: Any,
    inputs: Any,
    labels: Any,
    tf1_loss: Any,
    port_loss: Any,
    tf1_optimizer: Any,
    port_optimizer: Any,
    **arguments: Any,
) -> detrand.Migration:
    """Return a migration that is trained for four steps."""
    train = detrand.TrainStep(
        labels=labels,
        tf1_loss=tf1_loss,
        port_loss=port_loss,
        tf1_optimizer=tf1_optimizer,
        port_optimizer=port_optimizer,
        steps=4,
        **arguments,
    )
    return detrand.Migration(tf1=tf1, port=port, inputs=inputs, train=train)


def descent() -> Any:
    return tf.train.GradientDescentOptimizer(0.1)
