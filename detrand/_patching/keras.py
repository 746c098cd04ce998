"""Private names of Keras 3 and tf_keras: targets of patches, and questions about layers, variables and names."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import MethodType, ModuleType
from typing import Any

from detrand._patching.patches import Target
from detrand.changes import Changes, attribute_set
from detrand.errors import CheckpointError

KERAS3_CREATE_VARIABLE = Target(
    "keras.src.backend.common", "KerasVariable.__init__", ("self", "initializer", "shape", "dtype", "trainable")
)

KERAS3_INITIALIZE_LATER = Target("keras.src.backend.tensorflow.core", "Variable._deferred_initialize", ("self",))


def keras3_path(variable: Any, name: str | None) -> str:
    """Return the path that a new Keras 3 variable would have if it were named now; the name stays free."""
    from keras.src.backend.common import global_state, name_scope
    from keras.src.utils import naming

    if name is None:
        name = naming.to_snake_case(type(variable).__name__)
        taken = (global_state.get_global_attribute("object_name_uids") or {}).get(name)
        name = f"{name}_{taken}" if taken else name
    parent = name_scope.current_path()
    return f"{parent}/{name}" if parent else name


def is_seed_state(variable: Any) -> bool:
    """Return whether a variable is the state of a Keras 3 seed generator."""
    return is_instance_of_loaded(variable, "keras", "Variable") and variable.name == "seed_generator_state"


def generators_of(layer: Any) -> list[Any]:
    """Return the generators of random numbers of a layer of Keras 3 or tf_keras."""
    found = (getattr(layer, name, None) for name in ("seed_generator", "_random_generator"))
    return [generator for generator in found if generator is not None]


def flattened_layers(layer: Any) -> Iterator[Any]:
    """Yield a layer of Keras 3 or tf_keras and all layers in it."""
    return iter(layer._flatten_layers())


def module_leaves(module: Any, predicate: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the values that fulfil a condition, in the attributes of a ``tf.Module`` and of the modules in it."""
    return iter(module._flatten(predicate=predicate))


def underlying_variable(variable: Any) -> Any:
    """Return TensorFlow's variable that holds the value of a Keras 3 variable; any other variable itself."""
    value = getattr(variable, "_value", None) if is_instance_of_loaded(variable, "keras", "Variable") else None
    return value if hasattr(value, "assign") else variable  # JAX and PyTorch have no variables that are assigned


TF_KERAS_BACKEND = "tf_keras.src.backend"
TF_KERAS_DRAWS = {
    name: Target(TF_KERAS_BACKEND, f"RandomGenerator.{name}", ("self", *parameters))
    for name, parameters in {
        "random_normal": ("shape", "mean", "stddev", "dtype", "nonce"),
        "random_uniform": ("shape", "minval", "maxval", "dtype", "nonce"),
        "truncated_normal": ("shape", "mean", "stddev", "dtype", "nonce"),
        "dropout": ("inputs", "rate", "noise_shape"),
        "make_seed_for_stateless_op": (),
    }.items()
}


_numbers = itertools.count(1)
# A negative number for each generator without a seed; an id would come again once its object is gone.
_UNSEEDED: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def own_seed_of(source: Any) -> tuple[int | None, Any]:
    """Return the seed that a random function of Keras begins with, given what it draws from, and the generator of more.

    The generator is None if each draw begins with the seed anew, as in initializers. The seed is None if Keras chooses
    one for a generator, which is then no other generator's.
    """
    if type(source) is int:
        return source, None
    if is_instance_of_loaded(source, TF_KERAS_BACKEND, "RandomGenerator"):
        if source._rng_type == source.RNG_STATELESS:  # without a seed, it will choose one for all draws
            return _UNSEEDED.setdefault(source, -next(_numbers)) if source._seed is None else source._seed, None
        return source._seed, source
    seed = getattr(source, "_initial_seed", None)
    return seed if type(seed) is int else None, source


# Every layer passes through the constructor of its framework.
LAYER_CONSTRUCTORS = (
    Target("keras.src.layers.layer", "Layer.__init__", ("self",)),
    Target("tf_keras.src.engine.base_layer", "Layer.__init__", ("self",)),
    Target("torch.nn.modules.module", "Module.__init__", ("self",)),
)

# Every optimizer passes through the constructor of its framework; TF1 averages weights with objects of their own.
OPTIMIZER_CONSTRUCTORS = (
    Target("keras.src.optimizers.base_optimizer", "BaseOptimizer.__init__", ("self",)),
    Target("tf_keras.src.optimizers.optimizer", "_BaseOptimizer.__init__", ("self",)),
    Target("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2.__init__", ("self",)),
    Target("tensorflow.python.training.optimizer", "Optimizer.__init__", ("self",)),
    Target("torch.optim.optimizer", "Optimizer.__init__", ("self",)),
    Target("tensorflow.python.training.moving_averages", "ExponentialMovingAverage.__init__", ("self",)),
)

# The base class of Keras's schedules has no constructor, and not all of PyTorch's call that of theirs.
SCHEDULE_CONSTRUCTORS = (
    *(
        Target(f"{package}.src.optimizers.schedules.learning_rate_schedule", f"{name}.__init__", ("self",))
        for package in ("keras", "tf_keras")
        for name in (
            *("ExponentialDecay", "PiecewiseConstantDecay", "PolynomialDecay", "InverseTimeDecay"),
            *("CosineDecay", "CosineDecayRestarts"),
        )
    ),
    *(
        Target("torch.optim.lr_scheduler", f"{name}.__init__", ("self",))
        for name in ("LRScheduler", "SequentialLR", "ChainedScheduler")
    ),
)

# An op on symbolic tensors is an object of a functional model, as a layer is.
OPERATION_CONSTRUCTOR = Target("keras.src.ops.operation", "Operation.__init__", ("self",))

# Every layer is called through these.
LAYER_CALLS = (
    Target("keras.src.layers.layer", "Layer.__call__", ("self",)),
    Target("keras.src.ops.operation", "Operation.__call__", ("self",)),
    Target("tf_keras.src.engine.base_layer", "Layer.__call__", ("self",)),
)

# Layers make weights by this, and so do users in layers of their own.
ADD_WEIGHT = (
    Target("keras.src.layers.layer", "Layer.add_weight", ("self",)),
    Target("tf_keras.src.engine.base_layer", "Layer.add_weight", ("self",)),
)

KERAS_LAZY_LOADER = Target("tensorflow.python.util.lazy_loader", "KerasLazyLoader.__getattr__", ("self", "item"))
TF_KERAS_LEGACY_LAYERS = {
    f"tf_keras.legacy_tf_layers{name}": f"tf_keras.src.legacy_tf_layers{name}"
    for name in ("", ".base", ".convolutional", ".core", ".normalization", ".pooling")
}

_FRAMEWORK, _OPS = "tensorflow.python.framework", "tensorflow.python.ops"
# (module, name) that tf_slim uses and that TensorFlow has moved, and where the name is now.
MOVED_NAMES = {
    (f"{_FRAMEWORK}.ops", "Tensor"): (f"{_FRAMEWORK}.tensor", "Tensor"),
    (f"{_FRAMEWORK}.ops", "IndexedSlices"): (f"{_FRAMEWORK}.indexed_slices", "IndexedSlices"),
    (f"{_OPS}.array_ops", "stack"): (f"{_OPS}.array_ops_stack", "stack"),
    (f"{_OPS}.array_ops", "unstack"): (f"{_OPS}.array_ops_stack", "unstack"),
    (f"{_OPS}.control_flow_ops", "Assert"): (f"{_OPS}.control_flow_assert", "Assert"),
    (f"{_OPS}.control_flow_ops", "case"): (f"{_OPS}.control_flow_case", "case"),
    (f"{_OPS}.control_flow_ops", "cond"): (f"{_OPS}.cond", "cond"),
    (f"{_OPS}.control_flow_ops", "while_loop"): (f"{_OPS}.while_loop", "while_loop"),
    (f"{_OPS}.variable_scope", "variable"): (f"{_OPS}.variable_v1", "VariableV1"),
}


def tf_keras_module_with(lazy_loader: ModuleType, name: str) -> str | None:
    """Return the tf_keras module to look a name of a lazily loaded module up in; None if Keras 3 has the name."""
    if name.startswith("_tfll_"):  # the loader's own state
        return None
    submodule = vars(lazy_loader).get("_tfll_submodule") or ""
    return f"tf_keras.api._v1.keras.{submodule}" if submodule.startswith("__internal__.legacy.") else None


TF_KERAS_SHAPE_INFERENCE = Target(
    "tf_keras.src.engine.base_layer", "Layer._infer_output_signature", ("self", "inputs", "args", "kwargs")
)


# Calls its first argument once to infer the shape of the result, unless it unrolls the loop.
TF_KERAS_RECURRENCE = Target(TF_KERAS_BACKEND, "rnn", ("step_function", "inputs", "initial_states"))
# Makes the dropout masks that a cell keeps in its call, for all calls in one graph or in eager code.
TF_KERAS_MASKS = Target(
    "tf_keras.src.layers.rnn.dropout_rnn_cell_mixin", "_generate_dropout_mask", ("generator", "ones", "rate")
)


def keras3_dtype(dtype: Any) -> str:
    """Return the name of a Keras 3 dtype; None stands for the default float."""
    if "keras" not in sys.modules:  # Flax draws, of a dtype that is a name
        return dtype
    from keras import backend

    return backend.standardize_dtype(dtype or backend.floatx())


LEGACY_KERAS_BACKENDS = ("tensorflow.python.keras.backend", TF_KERAS_BACKEND)  # of the versions with v1 layers


class LayerNames:
    """The numbers that one version of Keras, loaded or not, has given to unnamed layers in a graph."""

    def __init__(self, graph: Any, keras_backend: str):
        self._graph = graph
        self._all: Any = getattr(sys.modules.get(keras_backend), "PER_GRAPH_OBJECT_NAME_UIDS", {})

    @property
    def counters(self) -> dict[Any, int]:
        """A copy of the numbers, by class name."""
        return dict(self._all.get(self._graph, {}))

    @counters.setter
    def counters(self, counters: dict[Any, int]) -> None:
        if counters:
            self._all[self._graph] = collections.defaultdict(int, counters)
        else:
            self._all.pop(self._graph, None)


@contextlib.contextmanager
def layer_names_counted_anew() -> Iterator[None]:
    """Name the layers of Keras 3 and tf_keras that are made in the block as a new process would."""
    with contextlib.ExitStack() as stack:
        if "keras" in sys.modules:  # tf_keras, too, imports TensorFlow, and that imports Keras
            stack.enter_context(_unset_in_keras3("object_name_uids"))
        if TF_KERAS_BACKEND in sys.modules:
            backend = sys.modules[TF_KERAS_BACKEND]
            stack.enter_context(attribute_set(backend, "PER_GRAPH_OBJECT_NAME_UIDS", weakref.WeakKeyDictionary()))
            stack.enter_context(attribute_set(backend, "OBSERVED_NAMES", set()))
        yield


@contextlib.contextmanager
def _unset_in_keras3(name: str) -> Iterator[Any]:
    """Unset one of Keras 3's global attributes in the block, and yield its value."""
    from keras.src.backend.common import global_state

    value = global_state.get_global_attribute(name)
    with Changes() as changes:
        attribute = functools.partial(global_state.get_global_attribute, name)
        changes.restore(name, attribute, functools.partial(global_state.set_global_attribute, name))
        global_state.set_global_attribute(name, None)
        yield value


def is_instance_of_loaded(instance: Any, package: str, name: str) -> bool:
    """Return whether an object is an instance of a package's class, without importing the package."""
    owner: Any = sys.modules.get(package)
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner is not None and isinstance(instance, owner)


def other_backend_of(layer: Any) -> str:
    """Return the name of the backend on which a layer of Keras 3 runs, unless that is TensorFlow."""
    if not is_instance_of_loaded(layer, "keras", "Layer"):
        return ""
    backend: str = sys.modules["keras"].backend.backend()
    return "" if backend == "tensorflow" else backend


_FUNCTIONAL = {
    "keras.src.models.functional": "Functional",
    "tf_keras.src.engine.functional": "Functional",
}


def takes_inputs_in_a_list(model: Any) -> bool:
    """Return whether a model takes its inputs as one argument: a functional one of several, or one whose call says so.

    By convention, the only argument of a ``call`` that somebody wrote is named ``inputs`` then. A mask right after it
    may be the second input.
    """
    is_layer = any(is_instance_of_loaded(model, package, "Layer") for package in ("keras", "tf_keras.layers"))
    if is_layer and not getattr(model.call, "__module__", "").startswith(("keras.", "tf_keras.")):
        given = [*inspect.signature(model.call).parameters.values()]
        first = [(each.name, each.kind) for each in given[:1]] == [("inputs", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        names = [each.name for each in given[1:]]
        return first and {*names} <= {"training", "mask"} and names[:1] != ["mask"]
    classes = [getattr(sys.modules.get(module), name, None) for module, name in _FUNCTIONAL.items()]
    calls = [functional.call for functional in classes if functional is not None]
    inputs = getattr(model, "inputs", None) if getattr(type(model), "call", None) in calls else None
    return isinstance(inputs, list) and len(inputs) > 1


def track_in_keras3(layer: Any, name: str, variable: Any) -> Any:
    """Make a ``tf.Variable`` the value of a new Keras 3 variable of a layer, whose path ends with the TF1 name."""
    from detrand._patching.variables import track_by_name

    # A layer that is called on symbolic inputs is in a stateless scope, which allows only deferred variables.
    with _unset_in_keras3("stateless_scope"):
        keras_variable = _keras3_wrapper_class()(variable, name, layer.path or layer.name)
    if variable.constraint is not None:
        keras_variable.constraint = lambda keras_variable: variable.constraint(keras_variable.value)
    with keras3_tracker_unlocked(layer):
        layer._track_variable(keras_variable)
    track_by_name(layer, name, variable)
    save_by_name_in_keras3(layer)
    return keras_variable


def initialize_waiting_keras3_variables() -> None:
    """Initialize the Keras 3 variables that a symbolic call would initialize at its end, to keep the order of draws."""
    if "keras" in sys.modules:
        from keras.src.backend.common.variables import initialize_all_variables

        with _unset_in_keras3("stateless_scope") as scope:
            if scope is not None:
                initialize_all_variables()


@contextlib.contextmanager
def keras3_tracker_unlocked(layer: Any) -> Iterator[None]:
    """Allow a built Keras 3 layer to track more variables and layers in the block."""
    with Changes() as changes:
        if layer._tracker.locked:
            changes.on_undo(layer._lock_state)
        layer._tracker.unlock()
        yield


@functools.lru_cache(maxsize=1)
def _keras3_wrapper_class() -> type:
    from keras.src import backend

    class TF1Variable(backend.Variable):
        """A Keras variable whose value is a variable that TF1-style code has created."""

        # TF1's are functions, which the properties of Keras's class refuse in some releases.
        regularizer: Any = None
        constraint: Any = None

        def __init__(self, variable: Any, name: str, layer_path: str):
            self.tf1_name = name
            self._wrapped = variable
            super().__init__(
                variable,
                shape=tuple(variable.shape),
                dtype=variable.dtype.name,
                trainable=variable.trainable,
                autocast=False,
                name=name.rsplit("/", 1)[-1],
            )
            self._path = f"{layer_path}/{name}"

        def _convert_to_tensor(self, value: Any, dtype: Any = None) -> Any:
            # Keras's constructor converts its argument to a tensor; the argument of this class is the value itself.
            return value if value is self._wrapped else super()._convert_to_tensor(value, dtype=dtype)

        def _initialize(self, value: Any) -> None:
            self._value = self._wrapped

    return TF1Variable


# Methods of a Keras 3 layer that are replaced on single layers, for as long as these live.
KERAS3_OWN_LOSSES = Target("keras.src.layers.layer", "Layer._get_own_losses", ("self",))
KERAS3_SAVE_OWN_VARIABLES = Target("keras.src.layers.layer", "Layer.save_own_variables", ("self", "store"))
KERAS3_LOAD_OWN_VARIABLES = Target("keras.src.layers.layer", "Layer.load_own_variables", ("self", "store"))


def add_own_losses_in_keras3(layer: Any, compute: Callable[[Any], list[Any]]) -> None:
    """Add ``compute(layer)`` to the losses of a Keras 3 layer, whenever they are read."""

    def own_losses(layer: Any) -> list[Any]:
        return [*type(layer)._get_own_losses(layer), *compute(layer)]

    _replace_method(layer, KERAS3_OWN_LOSSES, own_losses)


def save_by_name_in_keras3(layer: Any) -> None:
    """Make Keras 3 save and load a layer's TF1 variables by name: TF1 code may create them in any order.

    A layer whose class defines how it is saved stays unchanged.
    """
    if KERAS3_SAVE_OWN_VARIABLES.attribute in vars(layer):
        return
    targets = (KERAS3_SAVE_OWN_VARIABLES, KERAS3_LOAD_OWN_VARIABLES)
    if all(getattr(type(layer), target.attribute) is target.checked() for target in targets):
        for target, method in zip(targets, (_save_by_name, _load_by_name), strict=True):
            _replace_method(layer, target, method)


def _save_by_name(layer: Any, store: Any) -> None:
    for key, variable in _own_variables_by_key(layer).items():
        store[key] = variable.numpy()


def _load_by_name(layer: Any, store: Any) -> None:
    variables, saved = _own_variables_by_key(layer), set(store.keys())
    if all(key.isdecimal() for key in saved):  # saved by position
        type(layer).load_own_variables(layer, store)
        return
    if saved != variables.keys():
        missing, left_over = sorted(variables.keys() - saved), sorted(saved - variables.keys())
        raise CheckpointError(
            f"The weights of layer {layer.name!r} cannot be loaded: missing {missing}, left over {left_over} (numbers "
            "stand for variables that TF1 code has not created, colons for slashes). Call the layer first, so that it "
            "has all its variables, then load."
        )
    for key, variable in variables.items():
        variable.assign(store[key])


def _own_variables_by_key(layer: Any) -> dict[str, Any]:
    own: list[Any] = [*layer._trainable_variables, *layer._non_trainable_variables]
    wrapper: Any = _keras3_wrapper_class()
    others = [variable for variable in own if not isinstance(variable, wrapper)]
    named = {variable.tf1_name.replace("/", ":"): variable for variable in own if isinstance(variable, wrapper)}
    return {**{str(position): variable for position, variable in enumerate(others)}, **named}


def _replace_method(layer: Any, target: Target, method: Callable[..., Any]) -> None:
    target.checked()
    vars(layer)[target.attribute] = MethodType(method, layer)


def track_in_tf_keras(layer: Any, name: str, variable: Any) -> None:
    """Make a variable one of a tf_keras layer's weights, and a part of its checkpoint."""
    from detrand._patching.variables import track_by_name, tracked_by_name

    if tracked_by_name(layer, name) is not variable:
        layer._track_variable(variable)
        track_by_name(layer, name, variable)
