"""PyTorch in a stream: ``torch.nn.functional.dropout`` draws what ``tf.nn.dropout`` draws.

All layers of PyTorch drop with this function, except recurrent ones. A mask has the shape of its inputs, in this order
of axes; but where it is known that TF1 draws only the mask of an image with its channels last, that one is drawn, too.
"""

from __future__ import annotations

import functools
from typing import Any

from detrand import philox
from detrand._patching.patches import Patches, Replacements
from detrand._patching.torch import COMPILER, DROPOUT
from detrand.adapters import counter_draws
from detrand.adapters.keras3_arrays import TorchDraws, next_op, uncompiled
from detrand.seeding.cursors import Cursor, governed


def install(patches: Patches) -> None:
    """Install the dispatchers once PyTorch is imported, and those that its compiler leaves as soon as it is."""
    patches.when_imported(DROPOUT.module, functools.partial(_replace, False))
    patches.when_imported(COMPILER, functools.partial(_replace, True))


def _replace(makes_uncompiled: bool, patches: Patches) -> None:
    patches.replace_all(_dispatchers(makes_uncompiled))


@functools.cache
def _dispatchers(makes_uncompiled: bool) -> Replacements:
    return Replacements({DROPOUT: uncompiled(_dropout) if makes_uncompiled else _dropout})


@governed
def _dropout(
    cursor: Cursor, original: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """Drop as ``tf.nn.dropout`` does, by ``RandomUniform`` of the dtype of the inputs."""
    if not training or not 0 < p < 1:
        return original(input, p, training, inplace)
    import torch

    TorchDraws().check()
    shape, dtype = tuple(input.shape), str(input.dtype).removeprefix("torch.")
    in_tf1 = (*shape[:1], *shape[2:], *shape[1:2])  # of an image
    drawn_shapes = cursor.stream.drawn_shapes
    is_image = len(shape) > 2 and shape not in drawn_shapes and in_tf1 in drawn_shapes
    drawn = in_tf1 if is_image else shape
    op = next_op("RandomUniform", drawn, dtype)
    keep = torch.from_numpy(counter_draws.philox_draw(philox.dropout_mask, drawn, p, dtype=dtype, **op.state))
    keep = keep.movedim(-1, 1) if is_image else keep
    scale = torch.tensor(1 / (1 - p), dtype=input.dtype)
    dropped = torch.where(keep.to(input.device), input * scale.to(input.device), torch.zeros_like(input))
    return input.copy_(dropped) if inplace else dropped
