"""The variables of a ``flax.nnx.Module``: its parameters, its batch statistics, and other state without random keys.

`FlaxVariable` has what every variable has: name, shape, dtype, trainable flag, value and assignment. Flax has kernels
in TF1's form, except that of a ``ConvTranspose``, which knows how TF1 has it.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from detrand._patching.keras import is_instance_of_loaded
from detrand.variables.forms import ModuleVariable
from detrand.variables.spec import FromTF1

_Sizes = tuple[int, ...]
Path = tuple[Any, ...]

_variables: weakref.WeakValueDictionary[int, FlaxVariable] = weakref.WeakValueDictionary()  # by id of Flax's variable


def is_flax_module(source: Any) -> bool:
    """Return whether something is a ``flax.nnx.Module``, without importing Flax."""
    return is_instance_of_loaded(source, "flax.nnx", "Module")


class FlaxVariable(ModuleVariable):
    """A variable of a ``flax.nnx.Module``.

    Attributes:
      variable: the variable of Flax.
    """

    def __init__(self, owner: Any, name: str, variable: Any):
        self.name, self.variable = name, variable
        self.tf1_shape: _Sizes | None = _tf1_shape(owner) if name == "kernel" else None
        self.from_tf1: FromTF1 | None = None if self.tf1_shape is None else _flipped

    @property
    def shape(self) -> _Sizes:  # type: ignore[override]
        """Its shape in Flax."""
        return tuple(self.variable.get_value().shape)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(self.variable.get_value().dtype)

    @property
    def trainable(self) -> bool:
        """Whether it is a parameter."""
        return is_instance_of_loaded(self.variable, "flax.nnx", "Param")

    def numpy(self) -> np.ndarray:
        """Return a copy of its value."""
        return np.array(self.variable.get_value())

    def assign(self, value: Any) -> None:
        """Give it the value of an array."""
        import jax

        before = self.variable.get_value()
        self.variable.set_value(
            jax.device_put(np.asarray(value).astype(before.dtype), getattr(before, "sharding", None))
        )


def flax_variables(module: Any) -> dict[str, FlaxVariable]:
    """Return the variables of a module by name, each once and always as the same objects."""
    return {".".join(map(str, path)): variable for path, variable in paths_of_variables(module).items()}


def paths_of_variables(module: Any) -> dict[Path, FlaxVariable]:
    """Return the variables of a module by path, in the order in which each module's attributes were set."""
    from flax import nnx

    nodes = dict(nnx.iter_graph(module))
    found = {path: node for path, node in nodes.items() if path and _is_kept(node)}
    orders: dict[Path, dict[Any, int]] = {}

    def order(path: Path) -> list[int]:
        positions = []
        for end, key in enumerate(path):
            owner = path[:end]
            if owner not in orders:
                attributes = getattr(nodes.get(owner), "__dict__", ())
                orders[owner] = {name: number for number, name in enumerate(attributes)}
            positions.append(key if isinstance(key, int) else orders[owner].get(key, 0))
        return positions

    return {path: _known(module, nodes.get(path[:-1]), path[-1], found[path]) for path in sorted(found, key=order)}


def _is_kept(node: Any) -> bool:
    """Return whether a part of a module is a variable that holds an array, and whose value the next call needs."""
    from flax import nnx

    passing = (nnx.RngState, nnx.Intermediate, nnx.Perturbation, nnx.Cache, nnx.OptState)
    return isinstance(node, nnx.Variable) and not isinstance(node, passing) and hasattr(node.get_value(), "dtype")


def _known(module: Any, owner: Any, name: Any, variable: Any) -> FlaxVariable:
    """Return the object that stands for a variable, which lasts as long as the module in which it was found first."""
    known = _variables.get(id(variable))
    if known is None:
        known = _variables[id(variable)] = FlaxVariable(owner, str(name), variable)
        weakref.finalize(module, _release, known).atexit = False
    return known


def _release(variable: FlaxVariable) -> None:
    """Do nothing: a finalizer keeps its arguments."""


def own_flax_variables(module: Any) -> list[FlaxVariable]:
    """Return the variables of a module without those of the modules in it."""
    return [_known(module, module, name, each) for name, each in vars(module).items() if _is_kept(each)]


def paths_of_modules(module: Any) -> dict[Path, Any]:
    """Return a module and all modules in it by their paths."""
    from flax import nnx

    return {(): module} | {path: node for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)}


def _tf1_shape(layer: Any) -> _Sizes | None:
    """Return the shape of the kernel of a transposed convolution in TF1, where outputs are before inputs."""
    if not is_instance_of_loaded(layer, "flax.nnx", "ConvTranspose") or layer.transpose_kernel:
        return None
    *sizes, inputs, outputs = layer.kernel.get_value().shape
    return (*sizes, outputs, inputs)


def _flipped(kernel: np.ndarray, port_shape: _Sizes) -> np.ndarray:
    """Return a kernel of a transposed convolution as Flax has it, which does not flip its sizes."""
    return np.flip(kernel, tuple(range(kernel.ndim - 2))).swapaxes(-1, -2)
