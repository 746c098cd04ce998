"""The speed of `detrand.philox`, compared with NumPy's own Philox generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.cases import Case, Group, Workload
from detrand import philox

_COUNT = 1_000_000
_SEEDS = 42, 7
_numpy = np.random.Generator(np.random.Philox(42))


def _float32() -> np.ndarray:
    return _numpy.random(_COUNT, dtype=np.float32)


def _normal() -> np.ndarray:
    return _numpy.standard_normal(_COUNT, dtype=np.float32)


_DRAWS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "uniform_float32": (_float32, lambda: philox.uniform(_COUNT, *_SEEDS)),
    "uniform_range": (_float32, lambda: philox.uniform(_COUNT, *_SEEDS, minval=-0.1, maxval=0.1)),
    "uniform_float64": (lambda: _numpy.random(_COUNT), lambda: philox.uniform(_COUNT, *_SEEDS, dtype="float64")),
    "uniform_bfloat16": (_float32, lambda: philox.uniform(_COUNT, *_SEEDS, dtype="bfloat16")),
    "uniform_float16": (_float32, lambda: philox.uniform(_COUNT, *_SEEDS, dtype="float16")),
    "dropout_mask": (lambda: _float32() >= 0.1, lambda: philox.dropout_mask(_COUNT, 0.1, *_SEEDS)),
    "randint": (
        lambda: _numpy.integers(0, 10, _COUNT, dtype=np.int32),
        lambda: philox.randint(_COUNT, 0, 10, *_SEEDS),
    ),
    "normal": (_normal, lambda: philox.normal(_COUNT, *_SEEDS)),
    "truncated_normal": (_normal, lambda: philox.truncated_normal(_COUNT, *_SEEDS)),
    "gamma": (
        lambda: _numpy.standard_gamma(2.5, _COUNT, dtype=np.float32),
        lambda: philox.gamma(_COUNT, 2.5, *_SEEDS),
    ),
}


def _workload(name: str, by_numpy: Callable[[], object], by_detrand: Callable[[], object]) -> Workload:
    return Workload(f"philox/{name}", lambda: [Case("NumPy Philox", by_numpy), Case("detrand.philox", by_detrand)])


GROUPS = (
    Group(
        "philox",
        "``detrand.philox``",
        "A call draws a million numbers on the CPU, in float32 unless the name has a different dtype. NumPy's Philox "
        "generator draws from the same distribution. If it has none, it draws float32 uniforms from 0 to 1, or normals "
        "that are not truncated.",
        tuple(_workload(name, *draws) for name, draws in _DRAWS.items()),
    ),
)
