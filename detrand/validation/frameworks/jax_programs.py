"""Programs of JAX as equations with what they compute: a jaxpr whose calls are entered and whose loops are unrolled.

A `Program` is made from a jaxpr and what it is given. All is computed in float64, and by NumPy where that is possible:
JAX compiles each primitive for each shape. A number that a random op draws is drawn once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from detrand.seeding.callsite import UNKNOWN, Site, is_of_package, site_of_traceback
from detrand.validation.frameworks.windows import dilated

DRAW = "detrand_draw"
LOOPS = {"scan", "while"}
_MOST_ITERATIONS, _MOST_EQUATIONS = 64, 20_000
_MARK = re.compile(r"detrand_layer_(\d+)")  # the scope of a layer
_SOURCE = re.compile(r"(\S+) at (.*):\d+$")


def mark(number: int) -> contextlib.AbstractContextManager[Any]:
    """Return a scope whose equations belong to a layer of a number."""
    return jax.named_scope(f"detrand_layer_{number}")


@dataclass(frozen=True)
class Where:
    """The place of an equation.

    Attributes:
      layer: the number of its layer.
      site: its line.
      loops: the iterations of loops in which it is.
      traceback: that which has its line, as JAX keeps it.
    """

    layer: int | None = None
    site: Site = UNKNOWN
    loops: str = ""
    traceback: Any = field(default=None, compare=False, repr=False)


@dataclass(eq=False)
class Operand:
    """An array in a program.

    Attributes:
      value: the array; a key of ``jax.random`` is none of NumPy's.
      equation: what computes it; None for inputs, variables and constants.
      is_constant: whether it is computed from constants only.
      name: its name in a trace.
    """

    value: Any
    equation: Equation | None = None
    is_constant: bool = True
    name: str = ""


@dataclass(eq=False)
class Equation:
    """A primitive, or a call of a function, that a program has run.

    Attributes:
      name: the name of the primitive or of the function.
      compute: returns the arrays that it computes, given those of its inputs.
      parts: the equations of the function that it calls.
    """

    name: str
    inputs: list[Operand]
    outputs: list[Operand]
    params: Mapping[str, Any]
    compute: Callable[..., list[Any]] = field(repr=False)
    where: Where
    parts: list[Equation] = field(default_factory=list, repr=False)

    @property
    def leaves(self) -> Iterator[Equation]:
        """The primitives that it runs."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves


class Program:
    """A jaxpr that has run.

    Attributes:
      equations: what it has run, in order.
      inputs: what it was given.
      outputs: what it has computed.
      has_halves: whether it has numbers in half precision.
    """

    def __init__(self, closed: Any, given: Sequence[Any], functions: Collection[str]):
        """Run a jaxpr.

        Args:
          closed: the jaxpr.
          given: the arrays that it takes.
          functions: the names of functions of JAX whose calls are equations.
        """
        self._functions, self._count = functions, 0
        self.has_halves = False
        self._known: dict[Any, list[Operand]] = {}
        self.equations: list[Equation] = []
        self.inputs = [Operand(_widened(np.asarray(each)), is_constant=False) for each in given]
        with np.errstate(all="ignore"):
            self.outputs = self._entered(closed, self.inputs, Where(), self.equations, has_lines=True)

    def _entered(
        self, closed: Any, inputs: Sequence[Operand], outer: Where, into: list[Equation], *, has_lines: bool
    ) -> list[Operand]:
        """Run a jaxpr that is called at a place, and return what it computes."""
        jaxpr, consts = _opened(closed)
        known = dict(zip(jaxpr.constvars, (Operand(_array(each)) for each in consts), strict=True))
        known |= dict(zip(jaxpr.invars, inputs, strict=True))

        def operand(atom: Any) -> Operand:
            return Operand(_array(atom.val)) if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            where = _where(eqn, outer) if has_lines else outer
            found = self._run(eqn, [operand(each) for each in eqn.invars], where, into, has_lines=has_lines)
            known.update(zip(eqn.outvars, found, strict=True))
        return [operand(each) for each in jaxpr.outvars]

    def _run(
        self, eqn: JaxprEqn, inputs: list[Operand], where: Where, into: list[Equation], *, has_lines: bool
    ) -> list[Operand]:
        name, inner = eqn.primitive.name, called(eqn)
        self.has_halves |= any(is_half(each.aval) for each in eqn.outvars)
        if name == "cond":
            index = min(max(int(inputs[0].value), 0), len(eqn.params["branches"]) - 1)
            return self._entered(eqn.params["branches"][index], inputs[1:], where, into, has_lines=has_lines)
        if name in LOOPS and (found := self._unrolled(eqn, inputs, where, into, has_lines=has_lines)) is not None:
            return found
        if inner is None:
            return self._noted(name, inputs, where, into, lambda *arrays: computed(eqn, arrays), eqn.params)
        function, of_jax = function_of(eqn, inner)
        has_lines = has_lines and not of_jax
        if not (of_jax and function in self._functions):
            return self._entered(inner, inputs, where, into, has_lines=has_lines)
        parts: list[Equation] = []
        outputs = self._entered(inner, inputs, where, parts, has_lines=has_lines)
        into.append(
            Equation(function, inputs, outputs, eqn.params, lambda *arrays: evaluated(inner, arrays), where, parts)
        )
        return outputs

    def _noted(
        self,
        name: str,
        inputs: list[Operand],
        where: Where,
        into: list[Equation],
        compute: Callable[..., list[Any]],
        params: Mapping[str, Any] | None = None,
    ) -> list[Operand]:
        """Note an equation, and return what it computes; one that a line has computed before is the same."""
        key = (id(into), name, where, str(params), compute if params is None else None, *map(_identity, inputs))
        if name != DRAW and key in self._known:
            return self._known[key]
        arrays = compute(*(each.value for each in inputs))
        is_drawn = name == DRAW
        is_constant = not is_drawn and all(each.is_constant for each in inputs)
        again = (lambda *_: arrays) if is_drawn else compute
        equation = Equation(name, inputs, [], params or {}, again, where)
        equation.outputs = [Operand(array, equation, is_constant) for array in arrays]
        self._count += 1
        into.append(equation)
        self._known[key] = equation.outputs
        return equation.outputs

    def _unrolled(
        self, eqn: JaxprEqn, inputs: list[Operand], where: Where, into: list[Equation], *, has_lines: bool
    ) -> list[Operand] | None:
        """Run the iterations of a loop as equations; return None if there are too many."""
        loop = Loop.of(eqn, [each.value for each in inputs])
        size = len(_opened(loop.body)[0].eqns)
        if loop.length > _MOST_ITERATIONS or self._count + loop.length * size > _MOST_EQUATIONS:
            return None
        consts, carry, sequences = loop.split(inputs)
        stacked: list[list[Operand]] = []
        for number, time in enumerate(loop.times):
            inside = replace(where, loops=f"{where.loops}{eqn.primitive.name}/iteration_{number}/")
            at_time = [
                self._noted("slice", [each], inside, into, lambda x, time=time: [x[time]])[0] for each in sequences
            ]
            found = self._entered(loop.body, [*consts, *carry, *at_time], inside, into, has_lines=has_lines)
            carry = found[: len(carry)]
            stacked.append(found[len(carry) :])
        order = range(loop.length)[:: -1 if loop.is_reversed else 1]
        outputs = [
            self._noted("stack", [stacked[number][n] for number in order], where, into, lambda *x: [np.stack(x)])[0]
            for n in range(len(eqn.outvars) - len(carry))
        ]
        return [*carry, *outputs]


def _identity(operand: Operand) -> Any:
    """Return what is the same for two operands that are one array, or one constant number."""
    value = operand.value
    is_number = operand.is_constant and isinstance(value, np.ndarray) and value.size == 1
    return (value.dtype.str, value.shape, value.tobytes()) if is_number else id(operand)


class Loop(NamedTuple):
    """A loop: its body, how many constants and states it takes, and in which order it takes what it goes through."""

    body: Any
    consts: tuple[int, int]  # the positions of the constants of the body: from, to
    states: int
    length: int
    is_reversed: bool

    @classmethod
    def of(cls, eqn: JaxprEqn, arrays: Sequence[Any]) -> Loop:
        """Return the loop that an equation is, given what it takes."""
        params = eqn.params
        if eqn.primitive.name == "scan":
            consts = (0, params["num_consts"])
            return cls(params["jaxpr"], consts, params["num_carry"], params["length"], params["reverse"])
        start, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        state, count = list(arrays[end:]), 0
        while bool(np.asarray(evaluated(params["cond_jaxpr"], [*arrays[:start], *state])[0]).all()):
            state, count = evaluated(params["body_jaxpr"], [*arrays[start:end], *state]), count + 1
        return cls(params["body_jaxpr"], (start, end), len(state), count, False)

    @property
    def times(self) -> range:
        """The positions in the sequences, in the order of the iterations."""
        return range(self.length)[:: -1 if self.is_reversed else 1]

    def split(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return constants, states and sequences."""
        start, end = self.consts
        return [*inputs[start:end]], [*inputs[end : end + self.states]], [*inputs[end + self.states :]]


def _where(eqn: JaxprEqn, outer: Where) -> Where:
    """Return the place of an equation, which is in another one."""
    marks = _MARK.findall(str(eqn.source_info.name_stack))
    traceback = eqn.source_info.traceback
    frames = () if traceback is None else traceback.frames
    site = site_of_traceback((each.file_name, each.line_num) for each in frames)
    where = replace(outer, layer=int(marks[-1]) if marks else outer.layer)
    return where if site == UNKNOWN else replace(where, site=site, traceback=traceback)


def _opened(closed: Any) -> tuple[Any, Sequence[Any]]:
    return (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())


_CALLED = ("call_jaxpr", "fun_jaxpr", "jaxpr")
_CALLS = {
    *("jit", "pjit", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "closed_call", "core_call"),
    *("remat", "remat2", "checkpoint", "custom_lin"),
}


def called(eqn: JaxprEqn) -> Any:
    """Return the jaxpr that an equation calls with its inputs; None if it is no call."""
    found = (eqn.params.get(name) for name in _CALLED) if eqn.primitive.name in _CALLS else ()
    return next((each for each in found if isinstance(each, (ClosedJaxpr, Jaxpr))), None)


def function_of(eqn: JaxprEqn, inner: Any) -> tuple[str, bool]:
    """Return the name of the function that an equation calls, and whether it is one of JAX.

    JAX keeps the trace of such a function, with the lines of the first call.
    """
    source = _SOURCE.match(_opened(inner)[0].debug_info.func_src_info or "")
    name = str(eqn.params.get("name") or (source[1] if source else ""))
    return name, source is not None and is_of_package(source[2], "jax")


# What equations compute.


def evaluated(closed: Any, arrays: Sequence[Any]) -> list[Any]:
    """Return what a jaxpr computes in float64."""
    jaxpr, consts = _opened(closed)
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(_array, consts), *arrays), strict=True))

    def value(atom: Any) -> Any:
        return _array(atom.val) if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        known.update(zip(eqn.outvars, computed(eqn, [value(each) for each in eqn.invars]), strict=True))
    return [value(each) for each in jaxpr.outvars]


def computed(eqn: JaxprEqn, arrays: Sequence[Any]) -> list[Any]:
    """Return what an equation computes in float64, given its inputs."""
    name, params, inner = eqn.primitive.name, eqn.params, called(eqn)
    if inner is not None:
        return evaluated(inner, arrays)
    if name == "cond":
        index = min(max(int(arrays[0]), 0), len(params["branches"]) - 1)
        return evaluated(params["branches"][index], arrays[1:])
    if name in LOOPS:
        return _looped(eqn, arrays)
    if name == DRAW:
        return [_widened(np.asarray(params["numbers"](*map(np.asarray, arrays))))]
    found: Any = NotImplemented
    if name in NUMPY and all(isinstance(each, np.ndarray) for each in arrays):
        found = NUMPY[name](*arrays, **params)
    if found is NotImplemented:
        found = _bound(eqn, arrays)
    found = found if isinstance(found, (list, tuple)) else [found]
    return [_as_aval(array, var.aval) for array, var in zip(found, eqn.outvars, strict=True)]


def _looped(eqn: JaxprEqn, arrays: Sequence[Any]) -> list[Any]:
    loop = Loop.of(eqn, arrays)
    consts, carry, sequences = loop.split(arrays)
    stacked: list[list[Any]] = []
    for time in loop.times:
        found = evaluated(loop.body, [*consts, *carry, *(each[time] for each in sequences)])
        carry = found[: loop.states]
        stacked.append(found[loop.states :])
    order = range(loop.length)[:: -1 if loop.is_reversed else 1]
    outputs = [
        np.stack([stacked[number][n] for number in order]) if stacked else np.zeros(var.aval.shape, var.aval.dtype)
        for n, var in enumerate(eqn.outvars[loop.states :])
    ]
    return [*carry, *outputs]


def _bound(eqn: JaxprEqn, arrays: Sequence[Any]) -> Any:
    """Run a primitive by JAX: in float64, or else in its own dtypes."""
    try:
        with _in_x64():
            params = {name: np.dtype(np.float64) if _is_float(each) else each for name, each in eqn.params.items()}
            return eqn.primitive.bind(*map(jax.numpy.asarray, arrays), **params)
    except Exception:  # of a primitive with functions of its own dtypes
        own = [
            jax.numpy.asarray(array, var.aval.dtype) if isinstance(array, np.ndarray) else array
            for array, var in zip(arrays, eqn.invars, strict=True)
        ]
        return eqn.primitive.bind(*own, **eqn.params)


def _in_x64() -> contextlib.AbstractContextManager[Any]:
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # of JAX 0.7

    return enable_x64(True)


def _is_float(value: Any) -> bool:
    """Return whether a value is a dtype of floating-point numbers."""
    return isinstance(value, (np.dtype, type)) and bool(jax.numpy.issubdtype(value, np.floating))


def is_half(aval: Any) -> bool:
    """Return whether an array is in half precision."""
    return _is_float(getattr(aval, "dtype", None)) and aval.dtype.itemsize < 4


def _array(value: Any) -> Any:
    """Return a constant as an array in float64; a key of ``jax.random`` as it is."""
    try:
        return _widened(np.asarray(value))
    except TypeError:
        return value


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if _is_float(array.dtype) else array


def _as_aval(array: Any, aval: Any) -> Any:
    """Return what an equation computes in the dtype that it has there, or in float64."""
    if not isinstance(aval.dtype, np.dtype):
        return array
    return np.asarray(array).astype(np.float64 if _is_float(aval.dtype) else aval.dtype, copy=False)


# Primitives in NumPy.


def _broadcast_in_dim(x: np.ndarray, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> np.ndarray:
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(x.reshape(sizes), shape)


def _dot_general(x: np.ndarray, y: np.ndarray, *, dimension_numbers: Any, **_: Any) -> np.ndarray:
    (of_x, of_y), (batch_x, batch_y) = dimension_numbers
    free_x = [axis for axis in range(x.ndim) if axis not in (*of_x, *batch_x)]
    free_y = [axis for axis in range(y.ndim) if axis not in (*of_y, *batch_y)]
    batch, size = [x.shape[axis] for axis in batch_x], math.prod(x.shape[axis] for axis in of_x)
    sizes = [x.shape[axis] for axis in free_x], [y.shape[axis] for axis in free_y]
    one = x.transpose(*batch_x, *free_x, *of_x).reshape(*batch, math.prod(sizes[0]), size)
    other = y.transpose(*batch_y, *of_y, *free_y).reshape(*batch, size, math.prod(sizes[1]))
    return np.matmul(one, other).reshape(*batch, *sizes[0], *sizes[1])


def _select_n(which: np.ndarray, *cases: np.ndarray, **_: Any) -> np.ndarray:
    if len(cases) == 2:
        return np.where(which.astype(bool), cases[1], cases[0])
    return np.choose(which, np.broadcast_arrays(*cases))


def _divide(x: np.ndarray, y: np.ndarray, **_: Any) -> np.ndarray:
    if x.dtype.kind == "f":
        return x / y
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(np.where(y == 0, 1, y)))  # towards zero


def _round(x: np.ndarray, *, rounding_method: Any, **_: Any) -> np.ndarray:
    return np.round(x) if int(rounding_method) else np.sign(x) * np.floor(np.abs(x) + 0.5)


def _slice(x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> np.ndarray:
    steps = strides or [1] * x.ndim
    bounds = list(zip(start_indices, limit_indices, steps, strict=True))
    if x.shape == tuple(len(range(*each)) for each in bounds):  # a substitute that is cropped
        return x
    if any(limit > n for limit, n in zip(limit_indices, x.shape, strict=True)):
        raise ValueError(f"a slice up to {limit_indices} of {x.shape}")
    return x[tuple(itertools.starmap(slice, bounds))]


def _bounded(x: np.ndarray, starts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[slice, ...]:
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ValueError(f"a slice of the size {sizes} of {x.shape}")
    first = [min(max(int(start), 0), n - size) for start, n, size in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(first, sizes, strict=True))


def _dynamic_update_slice(x: np.ndarray, update: np.ndarray, *starts: np.ndarray, **_: Any) -> np.ndarray:
    found = x.copy()
    found[_bounded(x, starts, update.shape)] = update
    return found


def _iota(*, dtype: Any, shape: Any, dimension: int, **_: Any) -> np.ndarray:
    sizes = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension]).reshape(sizes), shape)


def _split(x: np.ndarray, *, sizes: Any, axis: int, **_: Any) -> list[np.ndarray]:
    if sum(sizes) != x.shape[axis]:
        raise ValueError(f"parts of the sizes {sizes} of {x.shape}")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _pad(x: np.ndarray, value: np.ndarray, *, padding_config: Any, **_: Any) -> Any:
    if any(each[2] or each[0] < 0 or each[1] < 0 for each in padding_config):
        return NotImplemented
    return np.pad(x, [each[:2] for each in padding_config], constant_values=value)


def _accumulated(function: Any) -> Callable[..., np.ndarray]:
    def accumulated(x: np.ndarray, *, axis: int, reverse: bool, **_: Any) -> np.ndarray:
        return np.flip(function(np.flip(x, axis), axis=axis), axis) if reverse else function(x, axis=axis)

    return accumulated


def _sort(x: np.ndarray, *others: np.ndarray, dimension: int, **_: Any) -> Any:
    return NotImplemented if others else np.sort(x, dimension)


def _windowed(function: Any, initial: float) -> Callable[..., Any]:
    def windowed(
        x: np.ndarray,
        *,
        window_dimensions: Any,
        window_strides: Any,
        padding: Any,
        base_dilation: Any = (1,),
        window_dilation: Any = (1,),
        **_: Any,
    ) -> Any:
        if x.dtype.kind != "f" or any(each > 1 for each in (*base_dilation, *window_dilation)):
            return NotImplemented
        return in_windows(function, initial, x, window_dimensions, window_strides, padding)

    return windowed


def in_windows(
    function: Any, initial: float, x: np.ndarray, sizes: Sequence[int], strides: Sequence[int], padding: Any
) -> np.ndarray:
    """Return what a function of NumPy computes of windows over all axes of an array."""
    padded = np.pad(x, padding, constant_values=initial)
    windows = np.lib.stride_tricks.sliding_window_view(padded, sizes)
    windows = windows[tuple(slice(None, None, stride) for stride in strides)]
    return np.asarray(function(windows, axis=tuple(range(x.ndim, 2 * x.ndim))))


def convolved(
    x: np.ndarray,
    kernel: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    *,
    zeros: Sequence[int] = (),
    groups: int = 1,
) -> np.ndarray:
    """Return a convolution of images whose channels are last, with ``zeros`` - 1 zeros between their elements."""
    count = kernel.ndim - 2
    if any(each > 1 for each in zeros):
        sizes = [(size - 1) * each + 1 for size, each in zip(x.shape[1:-1], zeros, strict=True)]
        wide = np.zeros((len(x), *sizes, x.shape[-1]))
        _strided(wide, zeros)[:] = x
        x = wide
    x = np.pad(x, [(0, 0), *((max(start, 0), max(end, 0)) for start, end in padding), (0, 0)])
    for axis, (start, end) in enumerate(padding, 1):
        x = x.take(range(max(-start, 0), x.shape[axis] - max(-end, 0)), axis)
    axes = tuple(range(1, count + 1))
    windows = np.lib.stride_tricks.sliding_window_view(x, dilated(kernel.shape[:count], dilations), axes)
    windows = _strided(windows, [*strides, *[1] * (1 + count)])
    windows = _strided(windows, [*[1] * (1 + count), *dilations])
    within = [count + 1, *range(count + 2, 2 * count + 2)]  # the channel, and the axes of the window
    if groups == 1:
        return np.tensordot(windows, kernel, (within, [count, *range(count)]))
    shape, each = windows.shape[: count + 1], math.prod(kernel.shape[:count])
    columns = windows.reshape(math.prod(shape), groups, -1)  # channels of the group, then the window
    of_groups = np.moveaxis(kernel, -2, 0).reshape(kernel.shape[-2] * each, groups, -1).swapaxes(0, 1)
    return np.matmul(columns.swapaxes(0, 1), of_groups).swapaxes(0, 1).reshape(*shape, -1)


def _strided(x: np.ndarray, strides: Iterable[int]) -> np.ndarray:
    """Return some elements of the axes after the first one."""
    steps = (slice(None), *(slice(None, None, stride) for stride in strides))
    return x[steps]


def channels_last(dimension_numbers: Any, rank: int) -> bool:
    """Return whether the images of a convolution have their channels last, and the kernel has them before its own."""
    image, kernel = (0, rank - 1, *range(1, rank - 1)), (rank - 1, rank - 2, *range(rank - 2))
    numbers = dimension_numbers
    return (tuple(numbers.lhs_spec), tuple(numbers.rhs_spec), tuple(numbers.out_spec)) == (image, kernel, image)


def _conv_general_dilated(
    x: np.ndarray,
    kernel: np.ndarray,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int = 1,
    **_: Any,
) -> Any:
    if batch_group_count > 1 or x.dtype.kind != "f":
        return NotImplemented
    images, kernels, out = (tuple(each) for each in dimension_numbers)
    x = x.transpose(images[0], *images[2:], images[1])
    kernel = kernel.transpose(*kernels[2:], kernels[1], kernels[0])
    zeros, groups = lhs_dilation, feature_group_count
    found = convolved(x, kernel, window_strides, padding, rhs_dilation, zeros=zeros, groups=groups)
    return np.moveaxis(found, range(found.ndim), (out[0], *out[2:], out[1]))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays that ignores the parameters of a primitive."""
    return lambda *arrays, **_: function(*arrays)


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    **{name: _plain(getattr(np, name)) for name in ("floor", "ceil", "exp", "exp2", "log", "expm1", "log1p", "tanh")},
    **{name: _plain(getattr(np, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "sqrt", "cbrt", "square")},
    **{name: _plain(getattr(np, f"arc{name[1:]}")) for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    **{"neg": _plain(np.negative), "sign": _plain(np.sign), "abs": _plain(np.abs), "is_finite": _plain(np.isfinite)},
    **{"add": _plain(np.add), "add_any": _plain(np.add), "sub": _plain(np.subtract), "mul": _plain(np.multiply)},
    **{"max": _plain(np.maximum), "min": _plain(np.minimum), "pow": _plain(np.power), "atan2": _plain(np.arctan2)},
    **{"eq": _plain(np.equal), "ne": _plain(np.not_equal), "lt": _plain(np.less), "le": _plain(np.less_equal)},
    **{"gt": _plain(np.greater), "ge": _plain(np.greater_equal), "rem": _plain(np.fmod), "div": _divide},
    **{"and": _plain(np.bitwise_and), "or": _plain(np.bitwise_or), "xor": _plain(np.bitwise_xor)},
    **{"not": _plain(np.invert), "rsqrt": _plain(lambda x: 1 / np.sqrt(x)), "round": _round},
    "logistic": _plain(lambda x: 0.5 * (1 + np.tanh(x / 2))),
    "integer_pow": lambda x, *, y, **_: x.astype(np.float64) ** y if y < 0 else x**y,
}
COPIES = {"copy", "copy_p", "reduce_precision", "optimization_barrier", "pvary", "name"}
NUMPY: Mapping[str, Callable[..., Any]] = {
    **ELEMENTWISE,
    **dict.fromkeys((*COPIES, "stop_gradient"), lambda *arrays, **_: list(arrays)),
    "select_n": _select_n,
    "clamp": _plain(lambda lower, x, upper: np.minimum(np.maximum(x, lower), upper)),
    "convert_element_type": lambda x, *, new_dtype, **_: x if new_dtype != np.bool_ else x != 0,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": lambda x, *, new_sizes, dimensions=None, **_: (
        x.reshape(new_sizes) if dimensions is None else NotImplemented
    ),
    "squeeze": lambda x, *, dimensions, **_: x.squeeze(tuple(dimensions)),
    "transpose": lambda x, *, permutation, **_: x.transpose(permutation),
    "rev": lambda x, *, dimensions, **_: np.flip(x, tuple(dimensions)),
    "concatenate": lambda *arrays, dimension, **_: np.concatenate(arrays, dimension),
    "pad": _pad,
    "slice": _slice,
    "dynamic_slice": lambda x, *starts, slice_sizes, **_: x[_bounded(x, starts, slice_sizes)],
    "dynamic_update_slice": _dynamic_update_slice,
    "iota": _iota,
    "split": _split,
    "sort": _sort,
    "dot_general": _dot_general,
    "conv_general_dilated": _conv_general_dilated,
    "reduce_window_max": _windowed(np.max, -math.inf),
    "reduce_window_min": _windowed(np.min, math.inf),
    "reduce_window_sum": _windowed(np.sum, 0.0),
    **{
        f"reduce_{name}": lambda x, *, axes, function=function, **_: function(x, axis=tuple(axes))
        for name, function in {
            **{"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "and": np.all, "or": np.any}
        }.items()
    },
    "argmax": lambda x, *, axes, **_: np.argmax(x, axes[0]),
    "argmin": lambda x, *, axes, **_: np.argmin(x, axes[0]),
    "cumsum": _accumulated(np.cumsum),
    "cumprod": _accumulated(np.cumprod),
    "cummax": _accumulated(np.maximum.accumulate),
    "cummin": _accumulated(np.minimum.accumulate),
}
