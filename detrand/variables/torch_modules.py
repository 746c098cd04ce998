"""The variables of a ``torch.nn.Module``: its parameters, and the buffers that its ``state_dict`` holds.

`TorchVariable` has what every variable has: name, shape, dtype, trainable flag, value and assignment. Kernels of
PyTorch's layers know the shape in which TF1 has them, and how they are rearranged. `dense_to_torch` and `conv_to_torch`
are entries of a ``name_map`` for kernels of other modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from detrand._patching.keras import is_instance_of_loaded
from detrand.arguments import wrong_type
from detrand.variables.forms import ModuleVariable, Rearranged
from detrand.variables.spec import FromTF1

_Sizes = tuple[int, ...]
_VARIABLES = "_detrand_variables"
_COUNTER = "num_batches_tracked"  # of batch normalization: a number of calls, of which TF1 has nothing


def is_torch_module(source: Any) -> bool:
    """Return whether something is a ``torch.nn.Module`` and no layer of Keras 3 on PyTorch, without importing it."""
    return is_instance_of_loaded(source, "torch", "nn.Module") and not is_instance_of_loaded(source, "keras", "Layer")


class TorchVariable(ModuleVariable):
    """A parameter or a buffer of a ``torch.nn.Module``, of whichever tensor the module has under its name."""

    def __init__(self, owner: Any, name: str):
        self._owner, self.name = owner, name

    @property
    def tensor(self) -> Any:
        """The tensor."""
        return getattr(self._owner, self.name)

    @property
    def shape(self) -> _Sizes:  # type: ignore[override]
        """Its shape in PyTorch."""
        return tuple(self.tensor.shape)

    @property
    def tf1_shape(self) -> _Sizes | None:  # type: ignore[override]
        """The shape that TF1 has a kernel of a layer in; None for what both programs have in one form."""
        return _tf1_shape(self._owner) if self.name == "weight" else None

    @property
    def from_tf1(self) -> FromTF1 | None:  # type: ignore[override]
        """How a kernel of TF1 is rearranged; None without."""
        return None if self.tf1_shape is None else _rearranged

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def trainable(self) -> bool:
        """Whether it is a parameter that a gradient is computed for."""
        return bool(self.tensor.requires_grad)

    def numpy(self) -> np.ndarray:
        """Return a copy of its value."""
        return np.copy(self.tensor.detach().numpy())

    def assign(self, value: Any) -> None:
        """Copy an array into its tensor."""
        self.tensor.detach().copy_(self.tensor.new_tensor(np.asarray(value)))


def torch_variables(module: Any) -> dict[str, TorchVariable]:
    """Return the variables of a module by name, each once and always as the same objects."""
    owners = dict(module.named_modules())
    found: dict[int, tuple[str, TorchVariable]] = {}
    for path, tensor in module.state_dict(keep_vars=True).items():
        prefix, _, name = path.rpartition(".")
        if name != _COUNTER and prefix in owners and id(tensor) not in found:
            known: dict[str, TorchVariable] = owners[prefix].__dict__.setdefault(_VARIABLES, {})
            found[id(tensor)] = path, known.setdefault(name, TorchVariable(owners[prefix], name))
    return dict(found.values())


def own_variables(module: Any) -> list[TorchVariable]:
    """Return the variables of a module without those of the modules in it, as far as `torch_variables` has made any."""
    return list(vars(module).get(_VARIABLES, {}).values())


def parts_of_module(module: Any) -> list[Any]:
    """Return a module and all modules in it."""
    return list(module.modules())


def _tf1_shape(layer: Any) -> _Sizes | None:
    import torch

    nn = torch.nn
    shape = tuple(layer.weight.shape)
    if isinstance(layer, nn.Linear):
        return shape[::-1]
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and layer.groups == layer.in_channels > 1:
        return (*shape[2:], layer.groups, shape[0] // layer.groups)  # depthwise
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d, *transposed)):
        return (*shape[2:], shape[1], shape[0])
    return None


def _rearranged(kernel: np.ndarray, port_shape: _Sizes) -> np.ndarray:
    sizes = range(kernel.ndim - 2)
    if kernel.transpose(-1, -2, *sizes).shape == port_shape:
        return kernel.transpose(-1, -2, *sizes)
    return kernel.transpose(-2, -1, *sizes).reshape(port_shape)  # depthwise


def dense_to_torch(port_name: str, flattened: Sequence[int] = ()) -> Rearranged:
    """Return the entry of a ``name_map`` for the kernel of a dense layer that PyTorch has as (outputs, inputs).

    The weight of a ``torch.nn.Linear`` needs no entry but its name, unless its inputs are a flattened image. TF1
    flattens (height, width, channels), and PyTorch (channels, height, width).

    >>> from detrand import dense_to_torch
    >>> name_map = {"dense/kernel": dense_to_torch("fc.weight", flattened=(7, 7, 64))}

    Args:
      port_name: the name of the parameter in the module.
      flattened: the shape of an image in TF1 before it is flattened: its sizes, and then its channels.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """
    is_shape = isinstance(flattened, (tuple, list)) and all(type(size) is int and size > 0 for size in flattened)
    if not is_shape or len(flattened) == 1:
        raise wrong_type("flattened", flattened, "the shape of an image in TF1, its channels last", "as in (7, 7, 64)")

    def rearranged(kernel: np.ndarray) -> np.ndarray:
        outputs = kernel.shape[-1]
        if not flattened:
            return kernel.reshape(-1, outputs).T
        image = kernel.reshape(*flattened, outputs)
        return np.moveaxis(image, (-1, -2), (0, 1)).reshape(outputs, math.prod(flattened))

    return Rearranged([port_name], rearranged)


def conv_to_torch(port_name: str, *, depthwise: bool = False) -> Rearranged:
    """Return the entry of a ``name_map`` for the kernel of a convolution that PyTorch has with its sizes last.

    The weight of a ``torch.nn.Conv2d`` or ``ConvTranspose2d`` needs no entry but its name. This is for parameters that
    a module passes to ``torch.nn.functional.conv2d`` or ``conv_transpose2d``.

    >>> from detrand import conv_to_torch
    >>> name_map = {"stem/kernel": conv_to_torch("stem_kernel")}

    Args:
      port_name: the name of the parameter in the module.
      depthwise: whether it is the kernel of a depthwise convolution.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """

    def rearranged(kernel: np.ndarray) -> np.ndarray:
        if not depthwise:
            return np.moveaxis(kernel, (-1, -2), (0, 1))
        sizes, (channels, multiplier) = kernel.shape[:-2], kernel.shape[-2:]
        return np.moveaxis(kernel, (-2, -1), (0, 1)).reshape(channels * multiplier, 1, *sizes)

    return Rearranged([port_name], rearranged)
