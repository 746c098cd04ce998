"""Private names of Keras 3 for its random numbers, on any of its backends."""

from __future__ import annotations

import copy
import sys
from typing import Any

from detrand._patching.patches import Target

BACKENDS = ("tensorflow", "jax", "torch", "numpy", "openvino")
_DRAWS = {
    "normal": ("shape", "mean", "stddev", "dtype", "seed"),
    "uniform": ("shape", "minval", "maxval", "dtype", "seed"),
    "categorical": ("logits", "num_samples", "dtype", "seed"),
    "randint": ("shape", "minval", "maxval", "dtype", "seed"),
    "truncated_normal": ("shape", "mean", "stddev", "dtype", "seed"),
    "dropout": ("inputs", "rate", "noise_shape", "seed"),
    "shuffle": ("x", "axis", "seed"),
    "gamma": ("shape", "alpha", "dtype", "seed"),
    "binomial": ("shape", "counts", "probabilities", "dtype", "seed"),
    "beta": ("shape", "alpha", "beta", "dtype", "seed"),
}
SHAPE_INFERENCE = Target("keras.src.backend", "compute_output_spec", ("fn",))
NEXT_SEED = Target("keras.src.random.seed_generator", "SeedGenerator.next", ("self",))
INITIALIZE_VARIABLE = (
    Target("keras.src.backend.common", "KerasVariable.__init__", ("self", "initializer")),
    Target("keras.src.backend.common", "KerasVariable._deferred_initialize", ("self",)),
)
ARRAY_DATA = "keras.src.trainers.data_adapters.array_data_adapter"
BATCHES = Target(ARRAY_DATA, "ArrayDataAdapter._get_iterator", ("self", "slice_and_convert_fn", "inputs"))
TORCH_BATCHES = Target(ARRAY_DATA, "ArrayDataAdapter.get_torch_dataloader", ("self",))
AUG_MIX = "keras.src.layers.preprocessing.image_preprocessing.aug_mix"

# These backends call the first argument once to infer the shape of its outputs, unless the loop is unrolled.
TRYING_BACKENDS = ("tensorflow", "torch")
RECURRENCE = Target("keras.src.backend", "rnn", ("step_function", "inputs", "initial_states"))
# Before the loop, each cell of a stack is called once to infer the next cell's inputs, after it has drawn its masks.
CELL_MASKS = Target("keras.src.layers.rnn.rnn", "RNN._maybe_config_dropout_masks", ("self", "cell"))

TORCH_ELASTIC_TRANSFORM = Target("keras.src.backend.torch.image", "elastic_transform", ("images", "alpha", "sigma"))
# PyTorch has no loops of its own, so these execute their body again and again. Each with the position of its body.
TORCH_LOOPS = {
    Target("keras.src.backend.torch.core", "while_loop", ("cond", "body")): 1,
    Target("keras.src.backend.torch.core", "fori_loop", ("lower", "upper", "body_fun")): 2,
    Target("keras.src.backend.torch.core", "scan", ("f", "init")): 0,
}


def random_module(backend: str) -> str:
    """Return the name of the module of a backend's random functions."""
    return f"keras.src.backend.{backend}.random"


def draws(backend: str) -> dict[str, Target]:
    """Return a backend's random functions by name; the backend need not be imported."""
    return {name: Target(random_module(backend), name, parameters) for name, parameters in _DRAWS.items()}


def image_seed(backend: str) -> Target:
    """Return the function that gives a backend's image functions a seed for their own draws."""
    return Target(f"keras.src.backend.{backend}.image", "draw_seed", ("seed",))


def backend() -> str:
    """Return the backend that Keras 3 uses; of Keras, only the backend may have been imported."""
    from keras.src.backend import config

    return config.backend()


def backend_of(generator: Any) -> str:
    """Return the backend of a seed generator's state: in a tf.data pipeline, layers use TensorFlow's."""
    module = type(generator.state).__module__
    return next((name for name in BACKENDS if f".{name}." in module), backend())


def seed_dtype(backend: str) -> str:
    """Return the dtype of the seeds of a backend that is imported."""
    return sys.modules[f"keras.src.backend.{backend}"].random_seed_dtype()


def is_symbolic() -> bool:
    """Return whether Keras, if it is loaded, calls a layer only to infer the shape of its outputs."""
    scopes = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return scopes is not None and scopes.in_symbolic_scope()


def unshuffled(adapter: Any) -> Any:
    """Return a copy of an adapter that feeds ``fit`` with arrays; the copy feeds them in order."""
    in_order = copy.copy(adapter)
    in_order._shuffle = False
    return in_order


def shuffling(adapter: Any) -> tuple[Any, int, int]:
    """Return how arrays are shuffled (a bool, or "batch"), the number of samples, and the size of a batch."""
    return adapter._shuffle, adapter._num_samples, adapter._batch_size


def in_torch_vmap() -> bool:
    """Return whether PyTorch executes ops for all lanes of a ``vmap`` at once."""
    from torch._C import _functorch

    levels = _functorch.get_interpreter_stack() or ()
    return any(level.key() == _functorch.TransformType.Vmap for level in levels)


def in_torch_proxies() -> bool:
    """Return whether PyTorch records the ops that it executes, for a program in which other tensors are constants."""
    from torch.fx.experimental import proxy_tensor

    return proxy_tensor.get_proxy_mode() is not None
