"""The windows of convolutions and pooling as attributes of TensorFlow: sizes, strides and paddings as texts.

TensorFlow adds an axis to sequences, whose windows it moves over images of one row. A padding that is neither ``SAME``
nor ``VALID`` is shown as how much it adds to the ends of each axis.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import Any

Ends = list[tuple[int, int]]  # what is added before and after the elements of each axis


def of_axes(text: str, count: int) -> list[int]:
    """Return the sizes of an attribute, such as the strides ``[1, 2, 2, 1]``, along the axes of an image."""
    return list(ast.literal_eval(text))[1:-1][-count:]


def as_attribute(sizes: Any, count: int) -> str:
    """Return sizes along the axes of an image as the text of an attribute."""
    sizes = several(sizes, count)
    return str([1, *([1] if count == 1 else []), *sizes, 1])


def several(sizes: Any, count: int) -> list[int]:
    """Return a size for each axis, given one for all or one for each."""
    found = [sizes] if isinstance(sizes, int) else list(sizes)
    return found * count if len(found) == 1 else found


def dilated(sizes: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Return the sizes of windows with their dilation."""
    return [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]


def same(sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]) -> Ends:
    """Return what TensorFlow's SAME adds, for windows with their dilation."""
    totals = [max((math.ceil(n / s) - 1) * s + w - n, 0) for n, w, s in zip(sizes, windows, strides, strict=True)]
    return [(total // 2, total - total // 2) for total in totals]


def padding_text(
    padding: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    *,
    counts: bool = False,
) -> str:
    """Return what a padding is called in TensorFlow, or else how much it is; and whether a mean counts it."""
    if not any(map(any, padding)):
        return "VALID"
    if list(padding) == same(sizes, windows, strides) and not counts:
        return "SAME"
    return text_of_ends(padding) + (" that count" if counts else "")


def text_of_ends(padding: Sequence[tuple[int, int]]) -> str:
    """Return how much a padding adds to each axis, as text."""
    if all(start == end for start, end in padding):
        return f"({', '.join(str(start) for start, _ in padding)}) at both ends"
    return f"({', '.join(map(str, padding))}) at the ends"


def padding_of(text: str, sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]) -> Ends:
    """Return what a padding adds, given its text."""
    if text == "SAME":
        return same(sizes, windows, strides)
    if text == "VALID":
        return [(0, 0)] * len(sizes)
    amounts = [int(each) for each in re.findall(r"-?\d+", text)]
    if "at both ends" in text:
        return [(each, each) for each in amounts]
    return list(zip(amounts[::2], amounts[1::2], strict=True))
