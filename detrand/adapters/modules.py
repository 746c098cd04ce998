"""Modules of PyTorch and Flax in a stream: their dropout draws what ``tf.nn.dropout`` draws.

All layers of PyTorch drop with ``torch.nn.functional.dropout``, except recurrent ones and fused attention, which drops
with it here. ``torch.rand``, ``torch.normal``, ``Tensor.normal_`` and the like draw as TensorFlow's ops, and with them
``torch.distributions``; only the initial values of ``torch.nn`` are PyTorch's own. What is drawn has the shape of its
inputs, in this order of axes; but where it is known that TF1 draws only for an image with its channels last, that is
drawn, too. Flax has the layer ``nnx.Dropout``; what ``nnx.Rngs`` draw by themselves counts draws, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from detrand import philox
from detrand._patching import flax
from detrand._patching.patches import Make, Patches, Replacements
from detrand._patching.torch import ATTENTION, COMPILER, DROPOUT
from detrand.adapters import counter_draws
from detrand.adapters.keras3_arrays import TorchDraws, next_op, uncompiled
from detrand.adapters.uncontrolled import record
from detrand.arguments import as_int
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

    patches.set_all(torch, _draws(torch, "torch", makes_uncompiled))
    patches.set_all(torch.Tensor, _draws(torch.Tensor, "torch.Tensor", makes_uncompiled))


@functools.cache
def _draws(owner: Any, label: str, makes_uncompiled: bool) -> dict[str, Any]:
    """Return the dispatchers of the functions or methods of PyTorch that draw, by name."""
    makes = {name: _drawing(f"{label}.{name}", draw) for name, draw in _DRAWS[label].items()}
    return {
        name: (uncompiled(make) if makes_uncompiled else make)(getattr(owner, name)) for name, make in makes.items()
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


Draw = Callable[..., np.ndarray]  # takes a shape, a dtype and the state of an `Op`


def _drawing(label: str, draw: Callable[..., Any]) -> Make:
    """Return what makes a dispatcher of a draw, which returns None where PyTorch draws or refuses the arguments."""

    def drawing(cursor: Cursor, original: Any, *args: Any, **options: Any) -> Any:
        drawn = draw(cursor, *args, **options)
        if drawn is None:
            drawn = original(*args, **options)
            record(label, drawn, depth=4, through=_THROUGH)
        return drawn

    return governed(drawing)


_UNIFORM: Draw = functools.partial(counter_draws.philox_draw, philox.uniform)
_NORMAL: Draw = functools.partial(counter_draws.philox_draw, philox.normal)


def _of_size(op_type: str, draw: Draw, cursor: Cursor, *size: Any, **options: Any) -> Any:
    """Draw a size, which is given as one argument or as several."""
    sizes = options.pop("size", None) if not size else size[0] if isinstance(size[0], (tuple, list)) else size
    return None if sizes is None else _drawn(cursor, op_type, draw, sizes, options)


def _of_like(op_type: str, draw: Draw, cursor: Cursor, input: Any = None, **options: Any) -> Any:
    """Draw the shape and dtype of a tensor."""
    return None if input is None else _drawn(cursor, op_type, draw, input.shape, _like(input, options))


# These draw with the functions above, which the trace of a port knows.
def _normal(cursor: Cursor, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any) -> Any:
    """Draw as ``torch.randn``, times the deviation, plus the mean."""
    import torch

    parameters = [each for each in (mean, std) if isinstance(each, torch.Tensor)]
    if options.get("generator") is not None or (not parameters and size is None):
        return None
    if size is not None:
        return torch.randn(size, **options) * std + mean
    shape = torch.broadcast_shapes(*(each.shape for each in parameters))
    like = next((each for each in parameters if each.shape == shape), None)
    return torch.randn_like(parameters[0].new_empty(shape) if like is None else like, **options) * std + mean


def _normal_in_place(cursor: Cursor, tensor: Any, mean: Any = 0.0, std: Any = 1.0, **options: Any) -> Any:
    import torch

    return None if _fills(cursor, tensor, options) else tensor.copy_(torch.randn_like(tensor) * std + mean)


def _uniform_in_place(cursor: Cursor, tensor: Any, *limits: Any, **options: Any) -> Any:
    import torch

    given = {"from": 0.0, "to": 1.0} | dict(zip(("from", "to"), limits, strict=False)) | options
    low, high = given.pop("from"), given.pop("to")
    if len(limits) > 2 or _fills(cursor, tensor, given):
        return None
    return tensor.copy_(torch.rand_like(tensor) * (high - low) + low)


def _fills(cursor: Cursor, tensor: Any, options: dict[str, Any]) -> bool:
    """Return whether PyTorch fills a tensor by itself: from a generator, for Keras, or with a layer's initial value."""
    if (
        cursor.stream.torch_initializes
        or _given(options)
        or not tensor.is_floating_point()
        or callsite.is_called_by("torch/nn")
    ):
        return True
    return callsite.site_of_draw(1, *_THROUGH, "detrand") is None


def _bernoulli(cursor: Cursor, input: Any, *p: Any, **options: Any) -> Any:
    """Draw 1 where what ``torch.rand`` draws is below the probability, as ``tf.distributions.Bernoulli`` does."""
    import torch

    return None if p or _fills(cursor, input, options) else (torch.rand_like(input) < input).to(input.dtype)


def _multinomial(cursor: Cursor, input: Any, num_samples: int, replacement: bool = False, **options: Any) -> Any:
    """Draw categories as ``Multinomial`` does, if each is drawn from all."""
    import torch

    is_known = isinstance(input, torch.Tensor) and input.dim() in (1, 2) and input.numel() and num_samples > 0
    if not is_known or not (replacement or num_samples == 1):
        return None
    probabilities = np.atleast_2d(input.detach().double().cpu().numpy())
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and probabilities.any(axis=1).all()):
        return None  # PyTorch raises

    def draw(shape: Any, dtype: str, **state: int) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return counter_draws.multinomial(np.log(probabilities), num_samples, **state)

    shape = len(probabilities), num_samples
    drawn = _drawn(cursor, "Multinomial", draw, shape, {"device": input.device, **_given(options)})
    return None if drawn is None else drawn.reshape(*input.shape[:-1], num_samples)


def _randint(cursor: Cursor, *args: Any, **options: Any) -> Any:
    """Draw as ``RandomUniformInt`` of the same dtype."""
    by_name = [name for name in ("low", "high", "size") if name in options]
    names = ("low", "high", "size") if len(args) + len(by_name) == 3 else ("high", "size")
    given = {"low": 0, "high": None, "size": None} | dict(zip(names, args, strict=False)) | options
    low, high, size = as_int(given.pop("low")), as_int(given.pop("high")), given.pop("size")
    if len(args) > len(names) or size is None or low is None or high is None or low >= high:
        return None

    def draw(shape: Any, dtype: str, **state: int) -> np.ndarray:
        return counter_draws.integers(shape, np.asarray(low), np.asarray(high), dtype, **state)

    return _drawn(cursor, "RandomUniformInt", draw, size, given)


def _randperm(cursor: Cursor, n: Any, **options: Any) -> Any:
    """Draw the order into which ``RandomShuffle`` puts n elements."""
    size = as_int(n)
    if size is None or size < 0:
        return None

    def draw(shape: Any, dtype: str, **state: int) -> np.ndarray:
        return counter_draws.permutation(*shape, **state)

    return _drawn(cursor, "RandomShuffle", draw, (size,), options)


def _like(tensor: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device, **_given(options)}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


_OF_INTEGERS = ("RandomUniformInt", "Multinomial", "RandomShuffle")


def _drawn(cursor: Cursor, op_type: str, draw: Draw, shape: Any, options: dict[str, Any]) -> Any:
    """Return the numbers of an op, or None if PyTorch draws: from a given generator, into a tensor, or for Keras."""
    import torch

    integers = op_type in _OF_INTEGERS
    default = torch.int64 if integers else torch.get_default_dtype()
    given = {"dtype": default, "device": torch.get_default_device(), "layout": torch.strided, **_given(options)}
    own_way = given.keys() - {"dtype", "layout", "device", "requires_grad", "pin_memory", "memory_format"}
    dtype, name = given["dtype"], str(given["dtype"]).removeprefix("torch.")
    if own_way or given["layout"] is not torch.strided:
        return None
    if not (name in ("int32", "int64") if integers else dtype.is_floating_point):
        return None
    if callsite.site_of_draw(1, *_THROUGH, "detrand") is None:  # a framework calls, and has seeded PyTorch
        return None
    TorchDraws().check()
    drawn, is_image = _in_axes_of_tf1(cursor, tuple(map(operator.index, shape)))
    op = next_op(op_type, drawn, name)
    array = np.asarray(draw(drawn, dtype=name, **op.state))
    tensor = torch.from_numpy(array.astype(np.float32) if name == "bfloat16" else array)
    tensor = (tensor.movedim(-1, 1) if is_image else tensor).to(dtype=dtype, device=given["device"])
    return tensor.requires_grad_() if given.get("requires_grad") else tensor


def _in_axes_of_tf1(cursor: Cursor, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the shape to draw, and whether it is that of an image which has its channels last in TF1."""
    is_image = shape in cursor.stream.images
    return (*shape[:1], *shape[2:], *shape[1:2]) if is_image else shape, is_image


_DRAWS: dict[str, dict[str, Callable[..., Any]]] = {
    "torch": {
        "rand": functools.partial(_of_size, "RandomUniform", _UNIFORM),
        "randn": functools.partial(_of_size, "RandomStandardNormal", _NORMAL),
        "rand_like": functools.partial(_of_like, "RandomUniform", _UNIFORM),
        "randn_like": functools.partial(_of_like, "RandomStandardNormal", _NORMAL),
        "normal": _normal,
        "bernoulli": _bernoulli,
        "multinomial": _multinomial,
        "randint": _randint,
        "randperm": _randperm,
    },
    "torch.Tensor": {
        "normal_": _normal_in_place,
        "uniform_": _uniform_in_place,
        "bernoulli": _bernoulli,
        "multinomial": _multinomial,
    },
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
