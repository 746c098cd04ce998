"""The graph that holds the bookkeeping of a TF1 program: its names, its collections and its variable creator.

In eager mode this is an empty graph, which is the default graph although ops execute at once. Inside a function it is
the function's graph, which looks empty while the program runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from detrand._patching.graphs import EagerGraph, emptied_function_graph
from detrand._patching.tensorflow import executing_eagerly


class _Free(threading.local):
    def __init__(self) -> None:
        self.graphs: list[EagerGraph] = []  # in use by no program: making a graph takes longer than cleaning one


_free = _Free()


def emulated_graph(
    names: dict[str, int], name_scope: str, creator: Callable[..., Any]
) -> contextlib.AbstractContextManager[Any]:
    """Return a scope in which the default graph looks empty to TF1 code, and that yields this graph.

    Args:
      names: how often each name has been taken.
      name_scope: the name scope that is open, with a slash at its end if it is not the root.
      creator: called for each variable, as a creator of ``tf.variable_creator_scope`` is.
    """
    if executing_eagerly():
        return _eager_graph(names, name_scope, creator)
    return emptied_function_graph(names, name_scope, creator, _name_in_function_graph)


@contextlib.contextmanager
def _eager_graph(names: dict[str, int], name_scope: str, creator: Callable[..., Any]) -> Iterator[EagerGraph]:
    graph = _free.graphs.pop() if _free.graphs else EagerGraph()
    graph.start(tf.compat.v1.get_default_graph(), names, creator)
    try:
        with graph.as_default_in_scope(name_scope):
            yield graph
    finally:
        graph.clear()
        _free.graphs.append(graph)


def _name_in_function_graph(name: str, surrounding_scope: str, taken: dict[str, int]) -> str:
    # TF1 code reads names (tf_slim makes the keys of its end points of them). An op is therefore named twice: the
    # program's name decides what comes after it; with the surrounding scope in front, and a number if need be, it is
    # unique in the function graph.
    return take_name(f"{surrounding_scope}/{name}" if surrounding_scope else name, taken)


def take_name(name: str, taken: dict[str, int]) -> str:
    """Return the name that ``Graph.unique_name`` returns for a whole name; it is taken from then on."""
    number = taken.get(name.lower(), 0)
    if not number:
        taken[name.lower()] = 1
        return name
    taken[name.lower()] = number + 1
    unique = name
    while number and unique.lower() in taken:
        unique = f"{name}_{number}"
        number += 1
    taken.setdefault(unique.lower(), 1)
    return unique
