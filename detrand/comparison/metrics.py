"""Metrics of two outputs that people ask for: cosine similarity, top-k agreement and KL divergence.

They describe a port to people. No check decides by them: a metric that is nearly perfect hides a small fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_TOP = re.compile(r"top-([1-9]\d*)")


@dataclass(frozen=True)
class OutputMetric:
    """A metric of an output of both programs, over the vectors along its last axis; ``str()`` is one line.

    Attributes:
      path: path of the output.
      name: ``"cosine"``, ``"top-5"`` or ``"kl"``.
      mean: the mean over all vectors.
      worst: the metric of the vector in which the programs differ the most.
    """

    path: str
    name: str
    mean: float
    worst: float

    def __str__(self) -> str:
        return f"{self.path}: {self.name} {self.mean:.6g} (worst {self.worst:.6g})"


def is_metric(name: str) -> bool:
    """Return whether there is a metric of a name.

    >>> is_metric("cosine"), is_metric("top-5"), is_metric("top-0")
    (True, True, False)
    """
    return name in ("cosine", "kl") or _TOP.fullmatch(name) is not None


def has_vectors(array: np.ndarray) -> bool:
    """Return whether an array holds vectors of numbers along its last axis; those of ml_dtypes have the kind V."""
    return bool(array.ndim and array.size) and array.dtype.kind in "fiuV"


def metric_of(path: str, name: str, tf1: np.ndarray, port: np.ndarray) -> OutputMetric | None:
    """Return a metric of an output of both programs, in float64; None if they hold no vectors of one shape.

    >>> print(metric_of("output", "top-1", np.array([[1.0, 3.0], [2.0, 1.0]]), np.array([[1.0, 2.0], [0.0, 1.0]])))
    output: top-1 0.5 (worst 0)
    """
    if tf1.shape != port.shape or not (has_vectors(tf1) and has_vectors(port)):
        return None
    vectors = [np.asarray(each, np.float64).reshape(-1, each.shape[-1]) for each in (tf1, port)]
    top = _TOP.fullmatch(name)
    measure: Callable[..., np.ndarray] = _cosine if name == "cosine" else _kl
    values = measure(*vectors) if top is None else _top(int(top[1]), *vectors)
    worst = values.max() if name == "kl" else values.min()
    return OutputMetric(path, name, float(values.mean()), float(worst))


def _cosine(tf1: np.ndarray, port: np.ndarray) -> np.ndarray:
    """Return the cosine of the angle between the vectors of each pair; that of two zeros is 1."""
    norms = [np.linalg.norm(each, axis=-1) for each in (tf1, port)]
    product = norms[0] * norms[1]
    cosine = (tf1 * port).sum(axis=-1) / np.where(product == 0, 1, product)
    return np.where((norms[0] == 0) & (norms[1] == 0), 1.0, np.clip(cosine, -1, 1))


def _top(count: int, tf1: np.ndarray, port: np.ndarray) -> np.ndarray:
    """Return the share of each TF1 vector's greatest elements that are among the port's; the first of equal ones."""
    of_tf1, of_port = (np.argsort(-each, axis=-1, kind="stable")[:, :count] for each in (tf1, port))
    return (of_tf1[:, :, None] == of_port[:, None, :]).any(axis=-1).mean(axis=-1)


def _kl(tf1: np.ndarray, port: np.ndarray) -> np.ndarray:
    """Return the divergence of the port's probabilities from TF1's, in nats.

    Vectors of TF1 that are not negative and have the sum 1 are probabilities. Others are logits, of which the softmax
    is taken.
    """
    are_probabilities = bool((tf1 >= 0).all() and np.allclose(tf1.sum(axis=-1), 1, rtol=0, atol=1e-3))
    with np.errstate(divide="ignore", invalid="ignore"):
        of_tf1, of_port = (np.log(each) if are_probabilities else log_softmax(each) for each in (tf1, port))
        terms = np.exp(of_tf1) * (of_tf1 - of_port)
    return np.where(np.exp(of_tf1) == 0, 0.0, terms).sum(axis=-1)


def softmax(logits: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the softmax of an array along an axis."""
    powers = np.exp(logits - logits.max(axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def log_softmax(logits: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the logarithm of the softmax of an array along an axis."""
    shifted = logits - logits.max(axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))
