"""Causes that arrays show: their shape, the arrangement of their elements, their axes, a mask, a factor."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from detrand.arguments import and_more
from detrand.validation.diagnosis.causes.cause import (
    ARITHMETIC,
    CLOSE,
    Cause,
    argument_in_words,
    in_one_program,
    of_values,
    op_with_constants,
    slice_in_words,
    use_order,
)
from detrand.validation.diagnosis.divergence import Divergence
from detrand.validation.diagnosis.op_kinds import (
    ACTIVATIONS,
    CLIPS,
    MOVES,
    OF_LAST_AXIS,
    PLUMBING,
    in_order,
    is_unknown,
    kind,
    kind_of,
    only_in,
)
from detrand.validation.frameworks.traces import TracedOp, Value
from detrand.validation.results import Fault, OwnForm

_SAME = 1e-6  # relative tolerance for elements that two constants have in common
_MOST_AXES = 5
_MOST_TRANSPOSED = 6  # as of the blocks of an image with several channels
_MOST_PARTS = 5
_MOST_TRIED = 64  # elements, before all are compared
_REARRANGE = MOVES - {"Reshape", "Tile"}
_ELEMENTWISE = {*ACTIVATIONS, *ARITHMETIC, *CLIPS, "Abs", "Exp", "Log", "Neg", "Sqrt", "Rsqrt", "Square"} - {"Softmax"}
_JOINING, _IN_PRODUCTS = {"ConcatV2", "Pack"}, {"MatMul", "Einsum"}


def of_shapes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the shapes of an array that both programs hold in one order, if they are different."""
    if not divergence.confirmed:
        return
    constant, then = divergence.tf1.constants.get("input 1") if divergence.tf1 else None, ""
    if constant is not None and divergence.types[0] == "Transpose":
        then = f", and then transpose it to {tuple(map(int, constant))}"
    elif divergence.types[1] == "Transpose":
        then = ", and leave out the transposition there"
    elif divergence.attribute == "input 1":
        argument = argument_in_words(divergence.tf1, "input 1")
        then = f", and then use TF1's {argument}: {divergence.attributes['input 1'][0]}"
    sources, port_value = divergence.sources, divergence.values[1]
    in_port = [*sources[1], *([] if port_value is None else [port_value])]
    for tf1, port in itertools.product(sources[0], in_port):
        sizes = [[size for size in each.shape if size > 1] for each in (tf1, port)]
        if tf1.size == port.size and len(tf1.shape) == len(port.shape) and sizes[0] != sizes[1]:
            pair = tf1.paired_with(port)
            if are_close(*pair) and (pair[0] != pair[0][:1]).any():
                yield _of_two_shapes(tf1.shape, port.shape, then)
                return


def _of_two_shapes(tf1: tuple[int, ...], port: tuple[int, ...], then: str = "") -> Cause:
    remedy = f"reshape the array to {tf1} in the port{then}"
    return of_values("shape of an array", tf1, port, fault=Fault.AXES, remedy=remedy)


def of_slices(divergence: Divergence) -> Iterator[Cause]:
    """Yield the elements that two slices take, where their bounds are no constants, as those that depend on a shape."""
    ops = divergence.tf1, divergence.port
    if any(op is None or kind(op) != "StridedSlice" for op in ops) or all(map(slice_in_words, ops)):
        return
    tf1, port = (
        next(filter(None, (_as_slice_of(source, value) for source in sources)), "")
        for value, sources in zip(divergence.values, divergence.sources, strict=True)
    )
    if tf1 and port and tf1 != port:
        yield of_values("slice", tf1, port, remedy=f"take {tf1} in the port")


def _as_slice_of(source: Value, value: Value | None) -> str:
    """Return in words which elements of an array another one consists of; empty if it is no slice of it."""
    whole, part = source.array, None if value is None else value.array
    if whole is None or part is None or whole.ndim != part.ndim or not part.size:
        return ""
    greatest = np.unravel_index(np.abs(part).argmax(), part.shape)  # few elements of the array are equal to it
    for place in np.argwhere(whole == part[greatest]):
        starts = [int(start) for start in place - greatest]
        if min(starts, default=0) < 0:
            continue
        bounds = [(start, start + size - 1) for start, size in zip(starts, part.shape, strict=True)]
        if np.array_equal(whole[tuple(slice(first, last + 1) for first, last in bounds)], part):
            words = [
                f"element {first} of axis {axis}" if first == last else f"elements {first} to {last} of axis {axis}"
                for axis, (first, last) in enumerate(bounds)
                if part.shape[axis] < whole.shape[axis]
            ]
            return and_more(words, _MOST_AXES)
    return ""


def of_concatenation(divergence: Divergence) -> Iterator[Cause]:
    """Yield the order in which TF1 has the parts that the port concatenates, where TF1 joins them by another op."""
    port, parts = divergence.values[1], [value.array for value in divergence.sources[1] if value.array is not None]
    if divergence.types[1] != "ConcatV2" or divergence.types[0] == "ConcatV2":
        return
    if port is None or port.array is None or not 1 < len(parts) <= _MOST_PARTS:
        return
    own = _order_of_parts(parts, port.array)
    names = [name for name in divergence.taken[1] if name]
    if len(names) != len(own):
        names = [f"part {number}" for number in range(len(own))]
    for value in (divergence.values[0], *divergence.sources[0]):
        if own and value is not None and value.array is not None and value.size == port.size:
            order = _order_of_parts(parts, value.array.reshape(port.shape))
            if order and order != own:
                in_tf1 = ", ".join(names[own.index(number)] for number in order)
                what = "order of the parts that are concatenated"
                yield of_values(what, in_tf1, ", ".join(names), fault=Fault.ORDER, remedy=use_order(in_tf1))
                return


def _order_of_parts(parts: Sequence[np.ndarray], whole: np.ndarray) -> tuple[int, ...]:
    """Return the order in which an array consists of parts along an axis; nothing if it does not."""
    for axis in range(whole.ndim):
        others = [np.delete(array.shape, axis) for array in (whole, *parts) if array.ndim == whole.ndim]
        if len(others) > len(parts) and (np.array(others) == others[0]).all():
            for order in itertools.permutations(range(len(parts))):
                if are_close(np.concatenate([parts[number] for number in order], axis), whole):
                    return order
    return ()


def of_transposition(divergence: Divergence) -> Iterator[Cause]:
    """Yield the order of axes in which the port would transpose an array to what TF1 makes of it by other ops."""
    op, (tf1, port) = divergence.port, divergence.values
    order = op.constants.get("input 1") if op is not None and op.type == "Transpose" else None
    if order is None or tf1 is None or port is None or "Transpose" in divergence.types[:1]:
        return
    if tf1.array is None or port.array is None or tf1.size != port.size or port.array.ndim > _MOST_TRANSPOSED:
        return
    elements, before = tf1.array.reshape(-1), port.array.transpose(np.argsort(order))
    for axes in itertools.permutations(range(before.ndim)):
        arranged = before.transpose(axes)
        if are_close(arranged.flat[:_MOST_TRIED], elements[:_MOST_TRIED]) and are_close(arranged.ravel(), elements):
            remedy = f"transpose the array to {axes} in the port"
            yield of_values("order of axes", axes, tuple(map(int, order)), fault=Fault.AXES, remedy=remedy)
            return


def of_arrangement(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the elements of an array are rearranged: by the op itself, or by an op before it."""
    (tf1_value, port_value), (tf1_sources, port_sources) = divergence.values, divergence.sources
    if tf1_value is None or port_value is None:
        return
    moves = [Counter(kind(op) for op in region if kind(op) in _REARRANGE) for region in divergence.regions]
    loops = [any(op.body for op in region) for region in divergence.regions]  # which move numbers by other ops
    # Then an op before it is not at fault.
    is_moved_alike = bool(divergence.confirmed) and (moves[0] == moves[1] or loops[0] != loops[1])
    # Such an op takes axes in the order that it needs, so an order before it shows nothing.
    is_moved_alike |= any(kind(op) == "Einsum" or is_unknown(op.type) for region in divergence.regions for op in region)
    pairs = [(value, port_value) for value in (tf1_value, *tf1_sources)]
    pairs += [(tf1_value, value) for value in port_sources]
    for number, (tf1, port) in enumerate((of_tf1.array, of_port.array) for of_tf1, of_port in pairs):
        if tf1 is None or port is None or tf1.size != port.size or max(tf1.ndim, port.ndim) > _MOST_AXES:
            continue
        if not are_close(tf1.reshape(-1), port.reshape(-1)):
            orders = _flattened(tf1, port, [value.array for value in port_sources])
            rearranged = _rearranged(tf1, port, divergence.regions) if not number or not is_moved_alike else ()
            yield from itertools.islice(itertools.chain(orders, rearranged), 1)


def _flattened(tf1: np.ndarray, port: np.ndarray, sources: Sequence[np.ndarray | None]) -> Iterator[Cause]:
    """Yield in which order the port flattens axes, or makes them of flat ones, where TF1 keeps the elements' order."""
    for source in sources:
        if source is None or source.size != port.size or not are_close(source.reshape(-1), tf1.reshape(-1)):
            continue
        is_flattened = port.ndim < source.ndim
        whole, other = (source, port) if is_flattened else (port, source)
        for axes in itertools.permutations(range(whole.ndim)) if other.ndim < whole.ndim <= _MOST_AXES else ():
            arranged = whole.transpose(axes)
            if are_close(arranged.reshape(-1), other.reshape(-1)):
                if not is_flattened and tf1.ndim == whole.ndim and tf1.shape not in (whole.shape, arranged.shape):
                    yield _of_two_shapes(tf1.shape, arranged.shape)
                    return
                what = "that are flattened" if is_flattened else "into which a flat axis is split"
                form, order = OwnForm.FLATTEN_AXES if is_flattened else OwnForm.UNFLATTEN_AXES, tuple(range(whole.ndim))
                cause = of_values(f"order of the axes {what}", order, axes, fault=Fault.AXES, remedy=use_order(order))
                yield cause._replace(own_form=(form, str(order)))


def _rearranged(tf1: np.ndarray, port: np.ndarray, regions: Sequence[Sequence[TracedOp]]) -> Iterator[Cause]:
    """Yield how the elements of two arrays are rearranged, which regions of ops compute."""
    if tf1.ndim != port.ndim:
        who, more, fewer = ("TF1", tf1, port) if tf1.ndim > port.ndim else ("the port", port, tf1)
        for axes in itertools.permutations(range(more.ndim)):
            if are_close(more.transpose(axes).reshape(-1), fewer.reshape(-1)):
                words = f"{who} flattens an array with its axes in a different order: the arrays agree if"
                is_port = who == "the port"
                own_form = (OwnForm.FLATTEN, "") if is_port else None
                title = f"{words} {'the port' if is_port else 'TF1'}'s is transposed to {axes}"
                back = tuple(map(int, np.argsort(axes)))
                remedy = (
                    f"transpose the array to {axes} in the port before the flatten"
                    if is_port
                    else f"transpose the array to {back} in the port, and then flatten it"
                )
                yield Cause(title, fault=Fault.AXES, remedy=remedy, own_form=own_form)
        return
    for axis in range(tf1.ndim):
        if are_close(np.flip(tf1, axis), port):
            who = _only_one([any(map(_reverses, region)) for region in regions])
            does = f"flips an array along axis {axis}"
            yield (
                in_one_program(who, does, fault=Fault.AXES)
                if who
                else Cause(f"one program {does}", fault=Fault.AXES, remedy="flip the array in the port where TF1 does")
            )
    for axes in itertools.permutations(range(tf1.ndim)):
        if are_close(tf1.transpose(axes), port):
            who = _only_one([any(op.type == "Transpose" for op in region) for region in regions])
            words = f"order of axes differs: TF1's array transposed to {axes} is the port's array"
            back = tuple(map(int, np.argsort(axes)))
            leave_out = "leave out the transposition in the port"
            remedy = leave_out if who == "the port" else f"transpose the port's array to {back}"
            yield Cause(words, fault=Fault.AXES, remedy=remedy)


def _only_one(does: Sequence[bool]) -> str:
    """Return which program alone does something, given whether TF1 and the port do; empty if both do, or neither."""
    return "" if does[0] == does[1] else "TF1" if does[0] else "the port"


def _reverses(op: TracedOp) -> bool:
    """Return whether an op takes elements from the last to the first."""
    steps = op.constants.get("input 3", np.ones(1)) if kind(op) == "StridedSlice" else np.ones(1)
    return op.type == "ReverseV2" or bool((steps < 0).any())


def of_axes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the op that one program computes along other axes, which it transposes before and after."""
    if all(divergence.regions):
        (tf1, of_tf1), (port, of_port) = map(_first_between_transposes, divergence.regions)
        if tf1 == port and tf1 not in {*_ELEMENTWISE, *PLUMBING} and of_tf1 != of_port:
            remedy = f"compute {tf1} along TF1's axis"
            words = _axes_of_softmax(divergence, tf1) or [of_tf1, of_port]
            yield of_values(f"axis of {tf1}", *words, fault=Fault.AXES, remedy=remedy)
            return
    computed = [set(in_order(region)) - MOVES for region in divergence.regions]
    transposes = [[op for op in region if op.type == "Transpose"] for region in divergence.regions]
    with_axes = computed[0] - _ELEMENTWISE - _JOINING
    is_alike = computed[0] == computed[1] and with_axes.isdisjoint(("MatMul", "Einsum"))  # their axes are moved anyway
    if with_axes and is_alike and len(transposes[0]) != len(transposes[1]):
        beside = {kind(op) for region in divergence.regions for op in _beside_transposes(region)}
        names = and_more(sorted(with_axes & beside or with_axes), 3)
        words = _axes_of_softmax(divergence, names) or [
            and_more(dict.fromkeys(map(op_with_constants, each)), 4) or "not transposed" for each in transposes
        ]
        remedy = f"compute {names} along TF1's axis"
        yield of_values(f"axis of {names}", *words, fault=Fault.AXES, remedy=remedy)


def _first_between_transposes(region: Sequence[TracedOp]) -> tuple[str, str]:
    """Return the kind of a region's first op, and how its axes are transposed before it, and back after it."""
    first, order = region[0], region[0].constants.get("input 1")
    if kind(first) == "Transpose" and order is not None:
        perms = {op.name: op.constants.get("input 1") for op in region if kind(op) == "Transpose"}
        back = {name for name, perm in perms.items() if perm is not None and np.array_equal(perm, np.argsort(order))}
        for op in region:
            if first.name in op.sources and any(op.name in each.sources for each in region if each.name in back):
                return kind(op), op_with_constants(first)
    return kind(first), "not transposed"


def _beside_transposes(region: Sequence[TracedOp]) -> Iterator[TracedOp]:
    """Yield the ops of a region that take what it transposes, or are transposed by it."""
    transposed = {op.name for op in region if op.type == "Transpose"}
    taken = {name for op in region if op.type == "Transpose" for name in op.sources}
    yield from (op for op in region if op.name in taken or not transposed.isdisjoint(op.sources))


def of_softmaxes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the axes of two softmaxes that make equally many elements, along axes of different sizes."""
    tf1, port = divergence.values
    op_type = divergence.types[0]
    if op_type != divergence.types[1] or op_type not in OF_LAST_AXIS or tf1 is None or port is None:
        return
    if tf1.size == port.size and tf1.shape[-1:] != port.shape[-1:]:
        sizes = [f"an axis of {shape[-1]} elements" for shape in (tf1.shape, port.shape)]
        words = _axes_of_softmax(divergence, op_type) or sizes
        remedy = f"compute {op_type} along TF1's axis"
        yield of_values(f"axis of {op_type}", *words, fault=Fault.AXES, remedy=remedy)


def _axes_of_softmax(divergence: Divergence, op_type: str) -> list[str]:
    """Return along which axes two regions compute a softmax; nothing if that is not known, or for other ops.

    It is computed along the last axis, to which any other axis is transposed before it, and from there after it.
    """
    found, rank = list[int | None](), 0
    for region in divergence.regions if op_type in OF_LAST_AXIS else ():
        of_type = {op.name: op for op in region if op.type == op_type}
        perms = [(op, op.constants["input 1"]) for op in region if op.type == "Transpose" and "input 1" in op.constants]
        before = (int(perm[-1]) for op, perm in perms if any(op.name in each.sources for each in of_type.values()))
        after = (int(np.argsort(perm)[-1]) for op, perm in perms if not of_type.keys().isdisjoint(op.sources))
        found.append(next(itertools.chain(before, after), None))
        rank = max([rank, *(len(perm) for _, perm in perms)])
    words = [str(rank - 1 if axis is None else axis) for axis in found]
    return words if rank and words[0] != words[1] else []


def of_other_axes(divergence: Divergence) -> Iterator[Cause]:
    """Yield the axes that differ, where no substitute for them can be made."""
    op_type = divergence.types[0]
    for name, values in divergence.attributes.items():
        if argument_in_words(divergence.tf1, name) == "axis":
            yield of_values(f"axis of {op_type}", *values)


def of_broadcasts(divergence: Divergence) -> Iterator[Cause]:
    """Yield an operand that is equal in both programs, and has its elements along another axis."""
    if kind_of(divergence.types[0]) not in ARITHMETIC or kind_of(divergence.types[0]) != kind_of(divergence.types[1]):
        return
    of_each = [list(zip(values, _in_one_rank(values), strict=True)) for values in divergence.sources]
    for (tf1, of_tf1), (port, of_port) in itertools.product(*of_each):
        same = tf1.size == port.size and are_close(*(each.reshape(-1) for each in tf1.paired_with(port)))
        if same and of_tf1 != of_port:
            axes = [[axis - len(shape) for axis, size in enumerate(shape) if size > 1] for shape in (of_tf1, of_port)]
            words = [f"{axis} in shape {tuple(each.shape)}" for axis, each in zip(axes, (tf1, port), strict=True)]
            yield of_values(f"axis of an operand of {divergence.types[0]}", *words)
            return


def _in_one_rank(operands: Sequence[Value]) -> list[tuple[int, ...]]:
    """Return the shapes of operands as they are broadcast, without the axes along which no operand has two elements."""
    rank = max((len(each.shape) for each in operands), default=0)
    padded = [(1,) * (rank - len(each.shape)) + tuple(each.shape) for each in operands]
    kept = [axis for axis in range(rank) if any(shape[axis] != 1 for shape in padded)]
    return [tuple(shape[axis] for axis in kept) for shape in padded]


def of_moves(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the programs move numbers, where they compute nothing else on the way to where both agree again."""
    if not set().union(*only_in(*divergence.regions)) <= MOVES | PLUMBING | _IN_PRODUCTS:
        return
    moves = [[op for op in region if kind(op) in MOVES] for region in divergence.regions]
    loops = [any(op.body for op in region) for region in divergence.regions]  # which move numbers by other ops
    if loops[0] != loops[1] or [kind(op) for op in moves[0]] == [kind(op) for op in moves[1]]:
        return
    if any(kind(op) == "Einsum" for region in divergence.regions for op in region):  # which repeats by itself
        moves = [[op for op in each if op.type != "Tile"] for each in moves]
    texts = [Counter(map(op_with_constants, each)) for each in moves]
    only = [[*(texts[0] - texts[1])], [*(texts[1] - texts[0])]]
    only = only if any(only) else [[*each] for each in texts]  # the same in a different order
    words = [and_more(each, 4) or "nothing" for each in only]
    if not all(only):
        who, one = ("TF1", words[0]) if only[0] else ("the port", words[1])
        yield in_one_program(who, f"moves or crops elements: {one}", fault=Fault.AXES)
    else:
        yield of_values("arrangement of the elements", *words, fault=Fault.AXES)


def is_rearranged(divergence: Divergence) -> bool:
    """Return whether the programs only move numbers from there on, and hold the same ones in a different order."""
    tf1, port = (
        None if value is None or not value.is_whole else np.sort(value.elements) for value in divergence.values
    )
    if tf1 is None or port is None or tf1.size < 2 or tf1[0] == tf1[-1]:
        return False
    return all(kind(op) in MOVES | _JOINING for region in divergence.regions for op in region) and are_close(tf1, port)


def of_masks(divergence: Divergence) -> Iterator[Cause]:
    """Yield how the programs mask the inputs of Softmax, where they mask different elements."""
    if divergence.masking is None:
        return
    tf1, port = (each.elements for each in divergence.masking)
    shares = [f"{each.sum():,} of {each.size:,} elements" for each in (tf1, port)]
    remedy = "mask the elements in the port that TF1 masks"
    if not port.any() or not tf1.any():
        who, share = ("TF1", shares[0]) if tf1.any() else ("the port", shares[1])
        yield in_one_program(who, f"masks the inputs of Softmax ({share})", fault=Fault.SOFTMAX_MASK)
    elif any(np.array_equal(tf1.swapaxes(*axes), port) for axes in itertools.combinations(range(tf1.ndim), 2)):
        title = f"the port's mask of the inputs of Softmax is TF1's with two axes exchanged ({shares[0]})"
        remedy = "exchange the axes of the mask in the port, such as those of queries and keys"
        yield Cause(title, fault=Fault.SOFTMAX_MASK, remedy=remedy)
    elif shares[0] != shares[1]:
        yield of_values("mask of the inputs of Softmax", *shares, fault=Fault.SOFTMAX_MASK, remedy=remedy)
    else:
        title = f"the programs mask different elements of the inputs of Softmax, {tf1.sum():,} of {tf1.size:,} each"
        yield Cause(title, fault=Fault.SOFTMAX_MASK, remedy=remedy)


def of_scale(divergence: Divergence) -> Iterator[Cause]:
    """Yield the factor between two values, if it is one number."""
    tf1, port = divergence.values
    if tf1 is None or port is None or "ReadVariableOp" in divergence.types:
        return
    factor = factor_between(tf1, port)
    if factor is not None and f"{factor:.4g}" != "1":
        yield Cause(f"a factor differs: the port's values are {factor:.4g} times TF1's")


def factor_between(tf1_value: Value, port_value: Value) -> float | None:
    """Return the number that each element of TF1's array is multiplied by in the port's, if it is one number."""
    if tf1_value.shape != port_value.shape:
        return None
    tf1, port = tf1_value.paired_with(port_value)
    if tf1.dtype.kind != "f" or not np.array_equal(tf1 == 0, port == 0):
        return None
    if not (np.isfinite(tf1).all() and np.isfinite(port).all()):  # a mask may be -inf
        return None
    ratios = (port[tf1 != 0] / tf1[tf1 != 0]).astype(np.float64)
    return float(np.median(ratios)) if ratios.size > 1 and np.ptp(ratios) <= CLOSE * abs(np.median(ratios)) else None


def how_arrays_differ(tf1: np.ndarray, port: np.ndarray) -> str:
    """Return how one array becomes the other, which is of the same size, or else their first entries that differ."""
    pair = [np.squeeze(np.asarray(each, np.float64)) for each in (tf1, port)]
    if pair[0].shape == pair[1].shape:
        for axis in range(pair[0].ndim):
            if np.allclose(np.flip(pair[0], axis), pair[1], rtol=CLOSE):
                return f"the port's array is TF1's, reversed along axis {axis}"
        factor = factor_between(*map(Value.of, pair))
        if factor is not None:
            return f"the port's array is {factor:.4g} times TF1's"
        for axis in range(pair[0].ndim):
            if (order := _order_of(*(np.moveaxis(each, axis, 0) for each in pair))) is not None:
                entries = and_more(map(str, order), 8)
                return f"the port's array is TF1's, in a different order along axis {axis}: {entries}"
    for axes in itertools.permutations(range(min(pair[0].ndim, _MOST_AXES))):
        if pair[0].ndim <= _MOST_AXES and are_close(pair[0].transpose(axes).reshape(-1), pair[1].reshape(-1)):
            return f"the port's array is TF1's, transposed to {axes}"
    flat = [each.reshape(-1) for each in pair]
    differing = np.flatnonzero(~np.isclose(flat[0], flat[1], rtol=_SAME, atol=0))
    first = int(differing[0]) if differing.size else 0
    where = ", ".join(map(str, np.unravel_index(first, tf1.shape)))
    count = f"{differing.size:,} of {flat[0].size:,} entries, the first at [{where}]"
    return f"{flat[0][first]:.6g} (TF1), {flat[1][first]:.6g} (port) in {count}"


def _order_of(tf1: np.ndarray, port: np.ndarray) -> list[int] | None:
    """Return the rows of TF1's array that the port's rows are, if these are the same rows in a different order."""
    rows = [each.reshape(len(each), -1) for each in (tf1, port)]
    order = [int(np.abs(rows[0] - row).max(axis=1).argmin()) for row in rows[1]]
    is_order = len(set(order)) == len(order) and order != sorted(order)
    return order if is_order and np.allclose(rows[0][order], rows[1], rtol=CLOSE) else None


def are_close(tf1: np.ndarray, port: np.ndarray) -> bool:
    """Return whether arrays of one shape and kind of dtype hold the same numbers, but for rounding."""
    return (
        tf1.shape == port.shape
        and tf1.dtype.kind == port.dtype.kind
        and bool(np.allclose(tf1, port, rtol=CLOSE, atol=0))
    )
