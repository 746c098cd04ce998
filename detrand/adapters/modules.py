"""Modules of PyTorch and Flax in a stream: their dropout draws what ``tf.nn.dropout`` draws.

All layers of PyTorch drop with ``torch.nn.functional.dropout``, except recurrent ones and fused attention, which drops
with it here. ``torch.rand``, ``torch.randn``, ``torch.normal`` and the like draw as TensorFlow's ops. What is drawn has
the shape of its inputs, in this order of axes; but where it is known that TF1 draws only for an image with its channels
last, that is drawn, too. Flax has the layer ``nnx.Dropout``; what ``nnx.Rngs`` draw by themselves counts draws, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand import philox
from detrand._patching import flax
from detrand._patching.patches import Patches, Replacements
from detrand._patching.torch import ATTENTION, COMPILER, DROPOUT
from detrand.adapters import counter_draws
from detrand.adapters.keras3_arrays import TorchDraws, next_op, uncompiled
from detrand.adapters.uncontrolled import record
from detrand.seeding import callsite
from detrand.seeding.cursors import Cursor, governed

_THROUGH = ("torch",)  # PyTorch draws for its caller, and its compiler calls what `uncompiled` returns


def install(patches: Patches) -> None:
    """Install the dispatchers once PyTorch or Flax is imported, and those that PyTorch's compiler leaves when it is."""
    patches.when_imported(DROPOUT.module, functools.partial(_replace, False))
    patches.when_imported("torch", functools.partial(_replace_draws, False))  # once all draws are recorded
    patches.when_imported(COMPILER, functools.partial(_replace, True))
    patches.when_imported(COMPILER, functools.partial(_replace_draws, True))
    patches.when_imported(flax.DROPOUT.module, _replace_in_flax)


def _replace(makes_uncompiled: bool, patches: Patches) -> None:
    patches.replace_all(_dispatchers(makes_uncompiled))


def _replace_draws(makes_uncompiled: bool, patches: Patches) -> None:
    import torch

    patches.set_all(torch, _draws(makes_uncompiled))


@functools.cache
def _draws(makes_uncompiled: bool) -> dict[str, Any]:
    """Return the dispatchers of the functions of PyTorch that draw, by name."""
    import torch

    return {
        name: (uncompiled(draw) if makes_uncompiled else draw)(getattr(torch, name)) for name, draw in _DRAWS.items()
    }


@functools.cache
def _dispatchers(makes_uncompiled: bool) -> Replacements:
    draws = {DROPOUT: _dropout, ATTENTION: _attention}
    return Replacements({target: uncompiled(draw) if makes_uncompiled else draw for target, draw in draws.items()})


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
    drawn, is_image = _in_axes_of_tf1(cursor, shape)
    op = next_op("RandomUniform", drawn, dtype)
    keep = torch.from_numpy(counter_draws.philox_draw(philox.dropout_mask, drawn, p, dtype=dtype, **op.state))
    keep = keep.movedim(-1, 1) if is_image else keep
    scale = torch.tensor(1 / (1 - p), dtype=input.dtype)
    dropped = torch.where(keep.to(input.device), input * scale.to(input.device), torch.zeros_like(input))
    return input.copy_(dropped) if inplace else dropped


def _of_size(op_type: str, label: str) -> Callable[..., Any]:
    """Return what makes a dispatcher of a function that takes a size, as one argument or as several."""

    def draw(cursor: Cursor, original: Any, *size: Any, **options: Any) -> Any:
        if not size and "size" not in options:
            return original(**options)  # which raises
        sizes = size or (options.pop("size"),)
        drawn = _drawn(cursor, op_type, sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes, options)
        if drawn is None:
            drawn = original(*sizes, **options)
            record(label, drawn, depth=4, through=_THROUGH)
        return drawn

    return governed(draw)


def _of_like(op_type: str, label: str) -> Callable[..., Any]:
    """Return what makes a dispatcher of a function that takes a tensor, whose shape and dtype it draws."""

    def draw(cursor: Cursor, original: Any, input: Any, **options: Any) -> Any:
        drawn = _drawn(cursor, op_type, input.shape, {"dtype": input.dtype, "device": input.device, **_given(options)})
        if drawn is None:
            drawn = original(input, **options)
            record(label, drawn, depth=4, through=_THROUGH)
        return drawn

    return governed(draw)


@governed
def _normal(cursor: Cursor, original: Any, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any) -> Any:
    """Draw as ``RandomStandardNormal``, times the deviation, plus the mean."""
    import torch

    parameters = [each for each in (mean, std) if isinstance(each, torch.Tensor)]
    if not parameters and size is None:
        return original(mean, std, **options)  # which raises
    shape = size if size is not None else torch.broadcast_shapes(*(each.shape for each in parameters))
    given = {"dtype": parameters[0].dtype, "device": parameters[0].device} if parameters else {}
    standard = _drawn(cursor, "RandomStandardNormal", shape, {**given, **_given(options)})
    if standard is None:
        drawn = original(mean, std, *(() if size is None else (size,)), **options)
        record("torch.normal", drawn, depth=4, through=_THROUGH)
        return drawn
    return standard * std + mean


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _drawn(cursor: Cursor, op_type: str, shape: Any, options: dict[str, Any]) -> Any:
    """Return the numbers of an op, or None if PyTorch draws: from a given generator, into a tensor, or for Keras."""
    import torch

    options = _given(options)
    dtype, device = options.get("dtype", torch.get_default_dtype()), options.get("device", torch.get_default_device())
    own_way = options.keys() - {"dtype", "layout", "device", "requires_grad", "pin_memory", "memory_format"}
    if own_way or not dtype.is_floating_point or options.get("layout", torch.strided) is not torch.strided:
        return None
    if callsite.site_of_draw(4, *_THROUGH, "detrand") is None:  # a framework calls, and has seeded PyTorch
        return None
    TorchDraws().check()
    name = str(dtype).removeprefix("torch.")
    drawn, is_image = _in_axes_of_tf1(cursor, tuple(map(operator.index, shape)))
    op = next_op(op_type, drawn, name)
    array = np.asarray(counter_draws.philox_draw(_NUMBERS[op_type], drawn, dtype=name, **op.state))
    tensor = torch.from_numpy(array.astype(np.float32) if name == "bfloat16" else array)
    tensor = (tensor.movedim(-1, 1) if is_image else tensor).to(dtype=dtype, device=device)
    return tensor.requires_grad_() if options.get("requires_grad") else tensor


def _in_axes_of_tf1(cursor: Cursor, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the shape to draw, and whether it is that of an image which has its channels last in TF1."""
    in_tf1, drawn_shapes = (*shape[:1], *shape[2:], *shape[1:2]), cursor.stream.drawn_shapes
    is_image = len(shape) > 2 and shape not in drawn_shapes and in_tf1 in drawn_shapes
    return in_tf1 if is_image else shape, is_image


_NUMBERS: dict[str, Callable[..., np.ndarray]] = {
    "RandomUniform": philox.uniform,
    "RandomStandardNormal": philox.normal,
}
_DRAWS = {
    "rand": _of_size("RandomUniform", "torch.rand"),
    "randn": _of_size("RandomStandardNormal", "torch.randn"),
    "rand_like": _of_like("RandomUniform", "torch.rand_like"),
    "randn_like": _of_like("RandomStandardNormal", "torch.randn_like"),
    "normal": _normal,
}


@governed
def _attention(
    cursor: Cursor,
    original: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Drop shares of attention as ``tf.nn.dropout`` does; they are the attention to one value at each position."""
    others = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if not dropout_p:
        return original(query, key, value, attn_mask, **others)
    import torch

    length = key.shape[-2]
    each = torch.eye(length, dtype=value.dtype, device=value.device).expand(*value.shape[:-1], length)
    shares = original(query, key, each, attn_mask, **others)
    of_heads = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3) if enable_gqa else value
    return torch.matmul(torch.nn.functional.dropout(shares, dropout_p), of_heads)


def _replace_in_flax(patches: Patches) -> None:
    from detrand.adapters import keras3_jax

    patches.replace_all(_dispatchers_in_flax())
    keras3_jax.install(patches)


@functools.cache
def _dispatchers_in_flax() -> Replacements:
    draws = {"normal": _normal_in_flax, "uniform": _uniform_in_flax}
    of_keys = {target: draws[method] for (_, method), target in flax.DRAWS.items()}
    return Replacements({flax.DROPOUT: _dropout_in_flax, **of_keys})


@governed
def _normal_in_flax(cursor: Cursor, original: Any, rngs: Any, shape: Any = (), dtype: Any = None, **others: Any) -> Any:
    """Draw as ``RandomStandardNormal``."""
    return _jax_draws().normal(shape, dtype=_name_of(dtype))


@governed
def _uniform_in_flax(
    cursor: Cursor,
    original: Any,
    rngs: Any,
    shape: Any = (),
    dtype: Any = None,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    **others: Any,
) -> Any:
    """Draw as ``RandomUniform``."""
    return _jax_draws().uniform(shape, minval, maxval, dtype=_name_of(dtype))


def _jax_draws() -> Any:
    from detrand.adapters.keras3_jax import JaxDraws

    return JaxDraws()


def _name_of(dtype: Any) -> str:
    return "float32" if dtype is None or dtype is float else np.dtype(dtype).name


@governed
def _dropout_in_flax(
    cursor: Cursor, original: Any, layer: Any, inputs: Any, *, deterministic: Any = None, rngs: Any = None
) -> Any:
    """Drop as ``tf.nn.dropout`` does, by ``RandomUniform`` of the dtype of the inputs."""
    drops = (layer.deterministic if deterministic is None else deterministic) is False
    has_key = rngs is not None or layer.rngs is not None
    if not (drops and has_key and 0 < layer.rate < 1):  # Flax raises without a key
        return original(layer, inputs, deterministic=deterministic, rngs=rngs)
    from jax import numpy as jnp

    shape, dtype = list(inputs.shape), str(inputs.dtype)
    for axis in layer.broadcast_dims:
        shape[axis] = 1
    keep = _jax_draws().mask(shape, layer.rate, dtype)
    return jnp.where(keep, inputs * jnp.asarray(1 / (1 - layer.rate), dtype), jnp.zeros_like(inputs))
