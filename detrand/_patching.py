"""Checked, reversible patches, and the only place that knows private names of TensorFlow and Keras.

`Target` names a function and the parameters that it must have; `Patches` replaces targets and puts
everything back; `Shared` keeps one set of patches for all scopes of a process, from the first scope that is
entered to the last that is left. A replacement asks which scope governs the calling thread and falls
through to the original where none does, so that one set of patches serves any number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from tensorflow.python.client import session
from tensorflow.python.eager import context, execute, lift_to_graph, record
from tensorflow.python.framework import dtypes, func_graph, ops, random_seed
from tensorflow.python.ops import gen_stateless_random_ops_v2, stateful_random_ops
from tensorflow.python.util import tf_decorator, tf_stack

from detrand.errors import PatchError

_ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclass(frozen=True)
class Target:
    """A function that a patch replaces.

    Attributes:
      module: dotted name of the module that it is in.
      name: its name there; ``"Class.method"`` for a method.
      parameters: the parameter names that it must begin with.
    """

    module: str
    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def loaded(self) -> bool:
        """Whether the module is imported."""
        return self.module in sys.modules

    def owner(self) -> Any:
        """Returns the module or the class whose attribute it is."""
        owner: Any = importlib.import_module(self.module)
        for part in self.name.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    @property
    def attribute(self) -> str:
        """The name of the attribute of `owner`."""
        return self.name.rsplit(".", 1)[-1]

    def checked(self) -> Callable[..., Any]:
        """Returns the function as it is now.

        Raises:
          PatchError: if it is not there or takes other parameters.
        """
        try:
            function = inspect.getattr_static(self.owner(), self.attribute)
        except (ImportError, AttributeError) as error:
            raise PatchError(f"detrand replaces {self}, but {_versions()} has no such function ({error})") from error
        parameters = inspect.signature(function).parameters
        if {parameter.kind for parameter in parameters.values()} == _ANYTHING:
            return function  # somebody's patch, TensorFlow's own tool's for one, which passes on what it gets
        found = tuple(parameters)
        if found[: len(self.parameters)] != self.parameters:
            raise PatchError(
                f"detrand replaces {self}, and expects its parameters to be ({', '.join(self.parameters)}), but in "
                f"{_versions()} they are ({', '.join(found)}). Install a release that this detrand supports, or a "
                "newer detrand."
            )
        return function


def _versions() -> str:
    modules = [(name, sys.modules.get(name)) for name in ("tensorflow", "keras", "tf_keras")]
    return ", ".join(f"{name} {getattr(module, '__version__', '?')}" for name, module in modules if module)


class Patches:
    """Replaced functions, each of which `undo` puts back, in reverse order."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()

    def replace(self, target: Target, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces a target by ``make(original)``.

        Sets of patches that replace one target may be undone in any order, as scopes of several threads are:
        ``make`` is then called again, with the function that is below it from then on.

        Raises:
          PatchError: if the target is not as expected. Nothing is changed then.
        """
        target.checked()
        self._undo.callback(_Layers.add(target.owner(), target.attribute, make))

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Sets an attribute, present or not, until `undo`."""
        missing = object()
        before = vars(owner).get(attribute, missing)

        def undo() -> None:
            # Whoever has replaced the attribute since then, and left it so, keeps it: our replacement
            # inside falls through to the original once no scope is open.
            if vars(owner).get(attribute, missing) is not value:
                return
            if before is missing:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)

        setattr(owner, attribute, value)
        self._undo.callback(undo)

    def when_imported(self, module: str, apply: Callable[[Patches], None]) -> None:
        """Calls ``apply(self)`` now if the module is loaded, else as soon as it is, until `undo`."""
        if module in sys.modules:
            apply(self)
            return
        finder = _AfterImport(module, lambda: apply(self))
        sys.meta_path.insert(0, finder)
        self._undo.callback(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)

    def enter(self, manager: contextlib.AbstractContextManager[Any]) -> None:
        """Enters a context manager that `undo` leaves."""
        self._undo.enter_context(manager)

    def on_undo(self, callback: Callable[[], None]) -> None:
        """Has `undo` call a function."""
        self._undo.callback(callback)

    def undo(self) -> None:
        """Puts everything back."""
        self._undo.close()


class _Layers:
    """The replacements of one attribute, each around the one below it."""

    _all: ClassVar[dict[tuple[Any, str], _Layers]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, owner: Any, attribute: str):
        self._key = (owner, attribute)
        self._is_inherited = attribute not in vars(owner)
        self._original = inspect.getattr_static(owner, attribute)
        self._layers: list[tuple[Callable[..., Any], Callable[..., Any]]] = []  # (make, what it made), lowest first

    @classmethod
    def add(cls, owner: Any, attribute: str, make: Callable[..., Any]) -> Callable[[], None]:
        """Puts ``make``'s function on top, and returns what takes it away again, wherever it is by then."""
        with cls._lock:
            layers = cls._all.get((owner, attribute))
            if layers is None or not layers._is_installed():
                layers = cls._all[owner, attribute] = cls(owner, attribute)
            layer = layers._put_on_top(make)
            setattr(owner, attribute, layer[1])
            return functools.partial(layers._remove, make)

    def _remove(self, make: Callable[..., Any]) -> None:
        owner, attribute = self._key
        with self._lock:
            # Whoever has replaced the attribute since then, and left it so, keeps it: our replacement
            # inside falls through to the original once no scope is open.
            was_installed = self._is_installed()
            position = [made_by for made_by, _ in self._layers].index(make)
            above = self._layers[position + 1 :]
            del self._layers[position:]
            for other, _ in above:
                self._put_on_top(other)
            if not self._layers and self._all.get(self._key) is self:
                del self._all[self._key]
            if was_installed and not self._layers and self._is_inherited:
                delattr(owner, attribute)
            elif was_installed:
                setattr(owner, attribute, self._top())

    def _put_on_top(self, make: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        below = self._top()
        self._layers.append((make, functools.wraps(below)(make(below))))
        return self._layers[-1]

    def _top(self) -> Callable[..., Any]:
        return self._layers[-1][1] if self._layers else self._original

    def _is_installed(self) -> bool:
        owner, attribute = self._key
        return vars(owner).get(attribute) is self._top()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the regular finders find one module, and calls back when it has been executed."""

    def __init__(self, module: str, callback: Callable[[], None]):
        self._module = module
        self._callback = callback

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_call_back(module: ModuleType) -> None:
            execute(module)
            self._callback()

        spec.loader.exec_module = execute_and_call_back  # type: ignore[method-assign]
        return spec


class Shared:
    """One set of patches for the whole process, installed while at least one scope needs it.

    Args:
      install: applies the patches; called when the first scope is entered.
    """

    def __init__(self, install: Callable[[Patches], None]):
        self._install = install
        self._lock = threading.RLock()
        self._users = 0
        self._patches = Patches()

    def acquire(self) -> None:
        """Installs the patches if nobody has yet.

        Raises:
          PatchError: if one cannot be installed. All others are undone then.
        """
        with self._lock:
            if not self._users:
                patches = Patches()
                try:
                    self._install(patches)
                except BaseException:
                    patches.undo()
                    raise
                self._patches = patches
            self._users += 1

    def release(self) -> None:
        """Undoes the patches if nobody else needs them."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._patches.undo()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the patches while the block runs."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


THREAD_START = Target("threading", "Thread.start", ("self",))

# --- TensorFlow's private names -----------------------------------------------------------------------------

GET_SEED = Target("tensorflow.python.framework.random_seed", "get_seed", ("op_seed",))
FUNCTION_FIRST_CALL = (
    Target("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function._call", ("self",)),
    Target(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function",
        "Function._get_concrete_function_garbage_collected",
        ("self",),
    ),
)
FUNCTION_INITIALIZE = Target(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "Function._initialize",
    ("self", "args", "kwds"),
)
CREATE_VARIABLE = Target("tensorflow.python.ops.variables", "VariableMetaclass.__call__", ("cls",))
V2_INITIALIZER_DRAWS = tuple(
    Target("tensorflow.python.ops.init_ops_v2", f"_RandomGenerator.{name}", ("self", "shape", *bounds, "dtype"))
    for name, bounds in {
        "random_normal": ("mean", "stddev"),
        "random_uniform": ("minval", "maxval"),
        "truncated_normal": ("mean", "stddev"),
    }.items()
)

_RANDOM = "tensorflow.python.ops.gen_random_ops"
_SAMPLING = "tensorflow.python.ops.gen_candidate_sampling_ops"
_IMAGE = "tensorflow.python.ops.gen_image_ops"
_NN = "tensorflow.python.ops.gen_nn_ops"

# Every op that draws from attributes (seed, seed2) and counts its runs. tests/test_tensorflow_adapter.py
# holds this table against TensorFlow's registry of ops.
RANDOM_OPS = {
    "RandomUniform": Target(_RANDOM, "random_uniform", ("shape", "dtype", "seed", "seed2", "name")),
    "RandomUniformInt": Target(_RANDOM, "random_uniform_int", ("shape", "minval", "maxval", "seed", "seed2", "name")),
    "RandomStandardNormal": Target(_RANDOM, "random_standard_normal", ("shape", "dtype", "seed", "seed2", "name")),
    "TruncatedNormal": Target(_RANDOM, "truncated_normal", ("shape", "dtype", "seed", "seed2", "name")),
    "RandomGamma": Target(_RANDOM, "random_gamma", ("shape", "alpha", "seed", "seed2", "name")),
    "RandomShuffle": Target(_RANDOM, "random_shuffle", ("value", "seed", "seed2", "name")),
    "ParameterizedTruncatedNormal": Target(
        _RANDOM,
        "parameterized_truncated_normal",
        ("shape", "means", "stdevs", "minvals", "maxvals", "seed", "seed2", "name"),
    ),
    "RandomPoisson": Target(_RANDOM, "random_poisson", ("shape", "rate", "seed", "seed2", "name")),
    "RandomPoissonV2": Target(_RANDOM, "random_poisson_v2", ("shape", "rate", "seed", "seed2", "dtype", "name")),
    "Multinomial": Target(_RANDOM, "multinomial", ("logits", "num_samples", "seed", "seed2", "output_dtype", "name")),
    "UniformCandidateSampler": Target(_SAMPLING, "uniform_candidate_sampler", ("true_classes", "num_true")),
    "LogUniformCandidateSampler": Target(_SAMPLING, "log_uniform_candidate_sampler", ("true_classes", "num_true")),
    "LearnedUnigramCandidateSampler": Target(
        _SAMPLING, "learned_unigram_candidate_sampler", ("true_classes", "num_true")
    ),
    "ThreadUnsafeUnigramCandidateSampler": Target(
        _SAMPLING, "thread_unsafe_unigram_candidate_sampler", ("true_classes", "num_true")
    ),
    "FixedUnigramCandidateSampler": Target(_SAMPLING, "fixed_unigram_candidate_sampler", ("true_classes", "num_true")),
    "AllCandidateSampler": Target(_SAMPLING, "all_candidate_sampler", ("true_classes", "num_true")),
    "RandomCrop": Target(_IMAGE, "random_crop", ("image", "size", "seed", "seed2", "name")),
    "SampleDistortedBoundingBox": Target(
        _IMAGE, "sample_distorted_bounding_box", ("image_size", "bounding_boxes", "seed", "seed2")
    ),
    "SampleDistortedBoundingBoxV2": Target(
        _IMAGE,
        "sample_distorted_bounding_box_v2",
        ("image_size", "bounding_boxes", "min_object_covered", "seed", "seed2"),
    ),
    "FractionalMaxPool": Target(_NN, "fractional_max_pool", ("value", "pooling_ratio")),
    "FractionalAvgPool": Target(_NN, "fractional_avg_pool", ("value", "pooling_ratio")),
}
ACCIDENTAL_HITS = Target(_SAMPLING, "compute_accidental_hits", ("true_classes", "sampled_candidates", "num_true"))
RAW_OP_MODULES = tuple(f"tensorflow._api.v2.{part}raw_ops" for part in ("", "compat.v1.", "compat.v2."))


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """Asks for seeds as TensorFlow's own ops do, through any patch: ``tf.compat.v1.get_seed`` is bound at import."""
    return random_seed.get_seed(op_seed)


def record_gradient(op_type: str, inputs: list[Any], attributes: tuple[Any, ...], outputs: list[Any]) -> None:
    """Tells the open gradient tapes that an op has computed ``outputs`` from ``inputs``, eagerly."""
    if execute.must_record_gradient():
        execute.record_gradient(op_type, inputs, attributes, outputs)


def no_recording() -> contextlib.AbstractContextManager[None]:
    """Returns a scope whose ops no gradient tape records."""
    return record.stop_recording()


def stateless_kernels() -> ModuleType:
    """Returns the ops that draw from an explicit key and counter."""
    return gen_stateless_random_ops_v2


@contextlib.contextmanager
def global_seed_restored() -> Iterator[None]:
    """Puts TensorFlow's global seed and generators back, whatever the block does to them.

    The graph-level seed counts as global where eager execution is off: the default graph is the process's.
    """
    eager = context.context()
    seed, rng = eager._seed, getattr(eager, "_rng", None)
    rng_state = rng.getstate() if rng is not None else None
    graph = None if context.executing_eagerly() else ops.get_default_graph()
    graph_seed = graph.seed if graph is not None else None
    generator = stateful_random_ops.global_generator
    generator_state = None if generator is None or graph is not None else generator.state.read_value()
    try:
        yield
    finally:
        eager._seed, eager._rng = seed, rng
        if rng is not None:
            rng.setstate(rng_state)
        if graph is not None:
            graph.seed = graph_seed
        stateful_random_ops.global_generator = generator
        if generator_state is not None:
            generator.state.assign(generator_state)


def scoped_variable_name(name: str | None) -> str:
    """Returns the name that a variable would get if it were created now; the name stays free."""
    name = name or "Variable"
    if name.endswith("/"):
        return name[:-1]
    with ops.init_scope():  # where variables are created
        if not context.executing_eagerly():
            return ops.get_default_graph().unique_name(name, mark_as_used=False)
        return f"{context.context().scope_name}{name}"


@contextlib.contextmanager
def scratch_function_graph() -> Iterator[None]:
    """Builds the ops of the block in a graph that is thrown away, and may use tensors from outside."""
    with func_graph.FuncGraph("scratch").as_default():
        yield


def is_traced_by_function() -> bool:
    """Returns whether the default graph is built by a ``tf.function``, and not by Keras to learn shapes."""
    return any("polymorphic_function" in creator.__module__ for creator in _variable_creators())


def _variable_creators() -> list[Callable[..., Any]]:
    graph = ops.get_default_graph()
    return [creator for _, creator in graph._variable_creator_stack]


def value_of(tensor: Any) -> Any:
    """Computes a tensor of a graph that is never run: its ops are copied to one that is.

    Raises:
      ValueError: if it depends on what is only a placeholder.
    """
    with ops.Graph().as_default() as graph:
        copies = lift_to_graph.lift_to_graph([tensor], graph)
        with session.Session(graph=graph) as run:
            return run.run(copies[tensor])


def save_slice(variable: Any) -> tuple[str, tuple[int, ...]] | None:
    """Returns the name and shape of the partitioned variable that a variable is a part of, if it is one."""
    info = getattr(variable, "_save_slice_info", None)
    return info and (info.full_name, tuple(info.full_shape))


def executing_eagerly() -> bool:
    """Returns what ``tf.executing_eagerly()`` does, as fast as TensorFlow's generated functions ask for it."""
    return (context._context or context.context())._thread_local_data.is_eager


def static_shape_and_dtype(tensor: Any) -> tuple[tuple[int | None, ...] | None, str]:
    """Returns a tensor's shape, ``None`` for what is unknown, and the name of its dtype.

    Of an eager tensor they are read where TensorFlow keeps them, at a fraction of what ``.shape`` and
    ``.dtype.name`` cost.
    """
    try:
        dtype = dtypes._TYPE_TO_STRING[tensor._datatype_enum()]
    except AttributeError:  # a symbolic tensor
        shape = tensor.shape
        return None if shape.rank is None else tuple(shape.as_list()), tensor.dtype.name
    return tensor._shape_tuple(), dtype


def decorated(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Any:
    """Returns a wrapper that TensorFlow and tf_keras, too, take to have the signature of what it wraps."""
    return tf_decorator.make_decorator(function, wrapper)


def autograph_origin(filename: str, line: int) -> tuple[str, int]:
    """Returns the user's file and line of a line of AutoGraph's rewritten source."""
    mapper = tf_stack._source_mapper_stacks[threading.get_ident()][-1]
    origin = mapper.get_effective_source_map().get((filename, line))
    return (origin[0], origin[1]) if origin else (filename, line)


# --- Keras's private names ----------------------------------------------------------------------------------

KERAS3_RANDOM = "keras.src.backend.tensorflow.random"
KERAS3_DRAWS = {
    name: Target(KERAS3_RANDOM, name, parameters)
    for name, parameters in {
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
    }.items()
}
KERAS3_SHAPE_INFERENCE = Target("keras.src.backend", "compute_output_spec", ("fn",))
KERAS3_CREATE_VARIABLE = Target(
    "keras.src.backend.common", "KerasVariable.__init__", ("self", "initializer", "shape", "dtype", "trainable")
)

KERAS3_INITIALIZE_LATER = Target("keras.src.backend.tensorflow.core", "Variable._deferred_initialize", ("self",))


def keras3_path(variable: Any, name: str | None) -> str:
    """Returns the path that a new Keras 3 variable would get if its name were set now; the name stays free."""
    from keras.src.backend.common import global_state, name_scope
    from keras.src.utils import naming

    if name is None:
        name = naming.to_snake_case(type(variable).__name__)
        taken = (global_state.get_global_attribute("object_name_uids") or {}).get(name)
        name = f"{name}_{taken}" if taken else name
    parent = name_scope.current_path()
    return f"{parent}/{name}" if parent else name


def is_seed_state(variable: Any) -> bool:
    """Returns whether a variable is the state of a Keras 3 seed generator."""
    return is_instance_of_loaded(variable, "keras", "Variable") and variable.name == "seed_generator_state"


def flattened_layers(layer: Any) -> Iterator[Any]:
    """Yields a layer of Keras 3 or tf_keras and all layers in it."""
    return iter(layer._flatten_layers())


def module_leaves(module: Any, predicate: Callable[[Any], bool]) -> Iterator[Any]:
    """Yields what is in the attributes of a ``tf.Module``, and of the modules in it, and fulfils a condition."""
    return iter(module._flatten(predicate=predicate))


def underlying_variable(variable: Any) -> Any:
    """Returns the variable that holds a Keras 3 variable's value, if there is one; of others, itself."""
    value = getattr(variable, "_value", None) if is_instance_of_loaded(variable, "keras", "Variable") else None
    return variable if value is None else value


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


KERAS_LAZY_LOADER = Target("tensorflow.python.util.lazy_loader", "KerasLazyLoader.__getattr__", ("self", "item"))
TF_KERAS_LEGACY_LAYERS = {
    f"tf_keras.legacy_tf_layers{name}": f"tf_keras.src.legacy_tf_layers{name}"
    for name in ("", ".base", ".convolutional", ".core", ".normalization", ".pooling")
}

# What tf_slim finds in no release of TensorFlow that has Keras 3, (module, name), and where it is now.
MOVED_NAMES = {
    ("tensorflow.python.framework.ops", "Tensor"): ("tensorflow.python.framework.tensor", "Tensor"),
    ("tensorflow.python.framework.ops", "IndexedSlices"): (
        "tensorflow.python.framework.indexed_slices",
        "IndexedSlices",
    ),
    ("tensorflow.python.ops.array_ops", "stack"): ("tensorflow.python.ops.array_ops_stack", "stack"),
    ("tensorflow.python.ops.array_ops", "unstack"): ("tensorflow.python.ops.array_ops_stack", "unstack"),
    ("tensorflow.python.ops.control_flow_ops", "Assert"): ("tensorflow.python.ops.control_flow_assert", "Assert"),
    ("tensorflow.python.ops.control_flow_ops", "case"): ("tensorflow.python.ops.control_flow_case", "case"),
    ("tensorflow.python.ops.control_flow_ops", "cond"): ("tensorflow.python.ops.cond", "cond"),
    ("tensorflow.python.ops.control_flow_ops", "while_loop"): ("tensorflow.python.ops.while_loop", "while_loop"),
    ("tensorflow.python.ops.variable_scope", "variable"): ("tensorflow.python.ops.variable_v1", "VariableV1"),
}


def tf_keras_api_of(lazy_loader: ModuleType) -> str | None:
    """Returns the tf_keras module with the names of a lazily loaded one that Keras 3 has none of."""
    submodule = vars(lazy_loader).get("_tfll_submodule") or ""
    return f"tf_keras.api._v1.keras.{submodule}" if submodule.startswith("__internal__.legacy.") else None


TF_KERAS_SHAPE_INFERENCE = Target(
    "tf_keras.src.engine.base_layer", "Layer._infer_output_signature", ("self", "inputs", "args", "kwargs")
)


def keras3_dtype(dtype: Any) -> str:
    """Returns the name of a Keras 3 dtype; of the default float where it is None."""
    from keras import backend

    return backend.standardize_dtype(dtype or backend.floatx())


def tf_keras_floatx() -> str:
    """Returns tf_keras's default float."""
    import tf_keras

    return tf_keras.backend.floatx()


def is_instance_of_loaded(instance: Any, package: str, name: str) -> bool:
    """Returns whether an object is of a class of a package, importing nothing: else it cannot be."""
    owner: Any = sys.modules.get(package)
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner is not None and isinstance(instance, owner)


def track_in_keras3(layer: Any, name: str, variable: Any) -> Any:
    """Makes a ``tf.Variable`` the value of a new Keras 3 variable of a layer, and returns that.

    Args:
      layer: the layer, built or not.
      name: TF1 name of the variable, which ends the new variable's path.
      variable: the variable.
    """
    from keras.src.backend.common import global_state

    keras_variable_class = _keras3_wrapper_class()
    # A layer called on symbolic inputs is in a stateless scope, in which only deferred variables are allowed.
    stateless_scope = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        keras_variable = keras_variable_class(variable, name, layer.path or layer.name)
    finally:
        global_state.set_global_attribute("stateless_scope", stateless_scope)
    with keras3_tracker_unlocked(layer):
        layer._track_variable(keras_variable)
    return keras_variable


@contextlib.contextmanager
def keras3_tracker_unlocked(layer: Any) -> Iterator[None]:
    """Lets a Keras 3 layer track what it is given in the block although it is built."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if locked:
            layer._lock_state()


@functools.lru_cache(maxsize=1)
def _keras3_wrapper_class() -> type:
    from keras.src import backend

    class TF1Variable(backend.Variable):
        """A Keras variable whose value is a variable that TF1-style code has created."""

        def __init__(self, variable: Any, name: str, layer_path: str):
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
            # Keras's constructor converts what it is given to a tensor; this variable is given its value.
            return value if value is self._wrapped else super()._convert_to_tensor(value, dtype=dtype)

        def _initialize(self, value: Any) -> None:
            self._value = self._wrapped

    return TF1Variable


def track_in_tf_keras(layer: Any, name: str, variable: Any) -> None:
    """Makes a variable one of a tf_keras layer's weights, and one of its checkpoint."""
    layer._track_variable(variable)
    layer._track_trackable(variable, name=name, overwrite=True)
