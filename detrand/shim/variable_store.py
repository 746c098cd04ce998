"""The variables of TF1-style code: those of an object, and those that one call of its method has asked for.

TF1 code gets variables in two ways. ``get_variable`` finds a variable by name in the store of its graph.
``tf.Variable`` creates one, and the graph gives it a free name. Each call of a method starts with an empty graph, so
a variable has the same name in each call, and later calls find the variable of the first call by this name.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.graphs import (
    VariableStore,
    is_traced_by_function,
    names_stay_free,
    partitions_of,
    take_variable_name,
    value_of,
)
from detrand._patching.keras import initialize_waiting_keras3_variables
from detrand._patching.variables import copy_save_slice
from detrand.changes import attribute_set, locked
from detrand.errors import ArgumentError, ScopeError
from detrand.seeding import callsite
from detrand.seeding.callsite import Site
from detrand.shim.dispatchers import LazyLoss, dispatchers, layer_constructors
from detrand.shim.emulated_graph import (
    Beginning,
    EmulatedGraph,
    beginning_here,
    current_emulated_graph,
    emulate_graph,
    in_emulated_graph,
)
from detrand.shim.owners import Owner

_AUTO = tf.VariableSynchronization.AUTO
_GLOBAL, _TRAINABLE = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES


class ObjectVariables:
    """The variables of one object that TF1-style code has created, and their regularizers."""

    def __init__(self, owner: Owner):
        self.variables: dict[str, tf.Variable] = {}  # by the names that they have in TF1, in the order of creation
        self.local_names: set[str] = set()  # of variables that TF1 saves in no checkpoint: local ones, and of metrics
        self.owner = owner
        self.by_name: dict[str, tf.Variable] = {}  # by the names that `get_variable` finds them by
        self.partitions: dict[str, list[int]] = {}  # how many parts a partitioned variable has along each axis, by name
        self.sites: dict[Any, Site] = {}  # the line of user code that created each variable, by its reference
        # Held while a variable or layer is found or created: methods of one object may run in several threads.
        self.lock = threading.RLock()
        self._layers: dict[str, Any] = {}
        self._beginning: Beginning | None = None
        self._notes_layers = True
        self._losses: dict[tuple[str, Any], LazyLoss | None] = {}  # by what regularizes, and the variable

    def __deepcopy__(self, memo: dict[int, Any]) -> ObjectVariables:
        duplicate = copy.copy(self)
        duplicate.lock = threading.RLock()
        for name in vars(self).keys() - {"lock", "_beginning"}:
            setattr(duplicate, name, copy.deepcopy(getattr(self, name), memo))
        for name, variable in self.variables.items():
            copy_save_slice(variable, duplicate.variables[name])
        return duplicate

    @contextlib.contextmanager
    def emulate_graph(self) -> Iterator[EmulatedGraph]:
        """Run the block in an emulated graph, as a call of the object's method."""
        # A layer that is first called in a variable scope always starts there, with the scope's name and properties:
        # otherwise its variables would not be found when it is called from elsewhere.
        start = self._beginning or beginning_here()
        store = CallStore(self)
        constructors = layer_constructors.installed() if self._notes_layers else contextlib.nullcontext()
        with dispatchers.installed(), constructors, emulate_graph(store, start) as emulated:
            compute_dtype, variable_dtype = self.owner.precision()
            if compute_dtype != variable_dtype:
                scope = tf.compat.v1.get_variable_scope()
                scope.set_dtype(tf.as_dtype(compute_dtype))
                scope.set_custom_getter(store.getter_in_mixed_precision(tf.as_dtype(variable_dtype)))
            yield emulated
        # Noting layers is slow. A layer that nothing keeps is made in every call, so it is noted in the call after
        # one that has created Keras variables.
        self._beginning, self._notes_layers = start, emulated.has_keras_variables

    def add(self, tf1_name: str, variable: tf.Variable, name: str | None, is_local: bool) -> None:
        """Add a variable, which ``get_variable`` finds by a name or not at all; a local one is in no checkpoint."""
        if name is not None:
            self.by_name[name] = variable
        if is_local:
            self.local_names.add(tf1_name)
        self.variables[tf1_name] = variable
        self.sites[variable.ref()] = callsite.user_site()
        self.owner.add(tf1_name, variable)

    def layer(self, name: str, create: Callable[[], Any]) -> Any:
        """Return the layer that is kept under a name, or create it."""
        return locked(self.lock, self._layer, name, create)

    def _layer(self, name: str, create: Callable[[], Any]) -> Any:
        if name not in self._layers:
            layer = create()
            self.owner.keep(name, layer)
            self._layers[name] = layer
        return self._layers[name]

    def regularize(self, who: str, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> LazyLoss | None:
        """Add ``regularizer(variable)`` to the object's losses, once, and return it.

        If both ``get_variable`` and a layer regularize a variable, TF1 adds both losses. A regularizer may return
        None, as tf_slim's does for a scale of 0.
        """
        return locked(self.lock, self._regularize, (who, variable.ref()), variable, regularizer)

    def _regularize(self, key: Any, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> LazyLoss | None:
        if key not in self._losses:
            loss = LazyLoss(regularizer, variable)
            self._losses[key] = None if loss.compute() is None else loss
            if self._losses[key] is not None:
                self.owner.regularize(variable, regularizer)
        return self._losses[key]

    def losses(self) -> list[LazyLoss]:
        """Return the losses of all regularizers."""
        return [loss for loss in self._losses.values() if loss is not None]


class CallStore(VariableStore):
    """The variables that one call of a decorated method has asked for.

    TensorFlow's own store decides what ``reuse``, custom getters and partitioners mean. It has no variables when a
    call starts, like the store of a fresh graph. A variable that it lacks is created only if no earlier call has
    created it.
    """

    def __init__(self, variables: ObjectVariables):
        super().__init__()
        self.variables = variables
        self.is_creating = False
        self._weights: dict[int, tuple[tf.Tensor, tf.Variable]] = {}  # casts of variables, by their ids

    def get_variable(self, name: str, shape: Any = None, dtype: Any = tf.float32, *args: Any, **kwargs: Any) -> Any:
        """Override TensorFlow's method, which takes longer to find a variable that an earlier call has created."""
        known = self.variables.by_name.get(name)
        is_found_at_once = (
            known is not None
            and name not in self.asked_for
            and not (args or self.variables.partitions)
            and kwargs.get("custom_getter") is None
            and kwargs.get("partitioner") is None
            and kwargs.get("synchronization", _AUTO) is _AUTO
            and _is_plainly(known, shape, dtype, kwargs.get("initializer"))
        )
        if not is_found_at_once:
            return super().get_variable(name, shape, dtype, *args, **kwargs)
        _take_name(name)
        return self._noted(known, name, kwargs.get("regularizer"), kwargs.get("collections"))

    def get_single_variable(
        self, name: str, reuse: Any = None, regularizer: Any = None, collections: Any = None, **kwargs: Any
    ) -> Any:
        """Find or create one variable, or one part of a partitioned variable."""
        if name in self.asked_for:
            if reuse is False:  # TensorFlow's own check reads an op that some variables do not have
                raise self._refused(
                    f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
                    "reuse=tf.AUTO_REUSE in VarScope?",
                    self.asked_for[name],
                )
            return self._found(self.asked_for[name], name, **kwargs)
        variable = locked(self.variables.lock, self._found_or_created, name, reuse, collections=collections, **kwargs)
        return self._noted(variable, name, regularizer, collections)

    def _found_or_created(self, name: str, reuse: Any, *, collections: Any, **kwargs: Any) -> tf.Variable:
        known = self.variables.by_name.get(name)
        if known is not None:
            # In TF1, with a graph for each call, it would be new: only its shape and dtype must be the same.
            variable = self._found(known, name, **kwargs)
            _take_name(name)
            return variable
        if name in self.variables.partitions:
            raise self._refused(
                f"No partitioner was provided, but a partitioned version of the variable was found: {name}/part_0. "
                "Perhaps a variable of the same name was already created with partitioning?",
                self.variables.by_name.get(f"{name}/part_0"),
            )
        if reuse is True:
            raise self._refused(
                f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
                "reuse=tf.AUTO_REUSE in VarScope?"
            )
        return super().get_single_variable(name=name, reuse=reuse, collections=collections, **kwargs)

    def _noted(self, variable: tf.Variable, name: str, regularizer: Any, collections: Any) -> tf.Variable:
        """Note that the call has asked for a variable, and return it."""
        self.asked_for[name] = variable
        _collect(variable, collections)
        if regularizer:
            _collect_loss(self.variables.regularize("get_variable", variable, regularizer))
        return variable

    def get_partitioned_variable(self, name: str, partitioner: Any, **kwargs: Any) -> Any:
        """Find or create all parts of a partitioned variable."""
        whole = self.variables.by_name.get(name)
        if whole is not None and name not in self.asked_for:
            raise self._refused(
                f"A partitioner was provided, but an unpartitioned version of the variable was found: {name}. Perhaps "
                "a variable of the same name was already created without partitioning?",
                whole,
            )

        def partition_as_before(**arguments: Any) -> Any:
            partitions = partitioner(**arguments)
            known = self.variables.partitions.get(name, partitions)
            if list(known) != list(partitions):
                raise self._refused(
                    f"Trying to reuse partitioned variable {name}, but specified partitions {partitions} and found "
                    f"partitions {known}.",
                    self.variables.by_name.get(f"{name}/part_0"),
                )
            return partitions

        partitioned = super().get_partitioned_variable(name, partitioner=partitioner and partition_as_before, **kwargs)
        self.variables.partitions.setdefault(name, partitions_of(partitioned))
        partitioned.trainable = all(part.trainable for part in partitioned)  # RNN cells read it
        return partitioned

    def _found(self, variable: tf.Variable, name: str, **kwargs: Any) -> tf.Variable:
        """Return a variable, or raise an `ArgumentError` if its shape or dtype is not the one that is asked for."""
        if _is_plainly(variable, **kwargs):
            return variable
        asked_before = name in self.asked_for
        if not asked_before:
            kwargs = _without_initializer(variable, **kwargs)
        self.asked_for[name] = variable
        try:
            return super().get_single_variable(name=name, **kwargs)
        except ValueError as error:
            if not asked_before:
                del self.asked_for[name]
            raise self._refused(str(error), variable) from None

    def _refused(self, reason: str, variable: tf.Variable | None = None) -> ArgumentError:
        created = "" if variable is None else f" It was created at {self.variables.sites[variable.ref()]}."
        return ArgumentError(f"{reason}{created} It was asked for at {callsite.user_site()}.")

    def create(self, variable_v1: Callable[..., Any], name: str, collections: Any = None, **kwargs: Any) -> Any:
        """Create a variable that ``get_variable`` has not found, as TensorFlow's constructor ``variable_v1`` does."""
        # A caching device would keep the value of the first call; a session keeps it for one run.
        kwargs.update(use_resource=True, collections=[], caching_device=None)
        tf1_name = _take_name(name)
        variable = self.variables.owner.restored(tf1_name)
        if variable is None:
            with self._creating():
                variable = _created_outside(variable_v1, name=tf1_name, **kwargs)
        self.variables.add(tf1_name, variable, name, _is_local(collections))
        return variable

    def construct(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Create the variable of a ``tf.Variable(**kwargs)`` in TF1 code, or find the one of an earlier call."""
        if self.is_creating:
            return next_creator(**kwargs)
        graph = tf.compat.v1.get_default_graph()
        tf1_name = _take_name(kwargs.get("name") or "Variable", graph.get_name_scope())
        variable = locked(self.variables.lock, self._constructed, next_creator, **{**kwargs, "name": tf1_name})
        _collect(variable, kwargs.get("collections"))
        return variable

    def _constructed(self, next_creator: Callable[..., Any], *, name: str, **kwargs: Any) -> tf.Variable:
        variable = self.variables.variables.get(name)
        if variable is not None:
            self._check_initial_value(variable, name, kwargs.get("initial_value"))
            return variable
        is_local = _is_local(kwargs.get("collections"))
        kwargs.update(caching_device=None)
        constructor: Callable[..., Any] = tf.Variable
        if "collections" in kwargs:
            constructor = tf.compat.v1.Variable
            kwargs.update(use_resource=True, collections=[])
        if tf.executing_eagerly() or _is_traced(kwargs.get("initial_value")):
            constructor = next_creator  # any other constructor would call the variable creators twice
        with self._creating(), tf.compat.v1.name_scope(None):
            variable = _created_outside(constructor, name=name, **kwargs)
        self.variables.add(name, variable, None, is_local)
        return variable

    def _check_initial_value(self, variable: tf.Variable, tf1_name: str, initial_value: Any) -> None:
        if initial_value is None or callable(initial_value):
            return
        shape = tf.TensorShape(getattr(initial_value, "shape", np.shape(initial_value)))
        if not shape.is_compatible_with(variable.shape):
            raise self._refused(
                f"tf.Variable {tf1_name} has shape {variable.shape} from an earlier call, but its initial value in "
                f"this call has shape {shape}. The variables of a call are counted to name them: give each variable "
                "its own name if some calls leave out some of them.",
                variable,
            )

    def getter_in_mixed_precision(self, variable_dtype: tf.DType) -> Callable[..., Any]:
        """Return a custom getter that keeps weights in one dtype, and returns them in the dtype that is asked for.

        Code that asks for the variable dtype, as batch normalization does, gets the variable itself.
        """
        compute_dtype = tf.compat.v1.get_variable_scope().dtype

        def get(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            asked = tf.as_dtype(kwargs.get("dtype") or compute_dtype).base_dtype
            if asked != compute_dtype or kwargs.get("trainable") is False:
                return getter(*args, **kwargs)
            initializer = kwargs.get("initializer")
            if initializer is not None and not callable(initializer):
                kwargs["initializer"] = tf.cast(initializer, variable_dtype)
            variable = getter(*args, **{**kwargs, "dtype": variable_dtype})
            if not isinstance(variable, tf.Variable):  # a partitioned one
                return variable
            weight = tf.cast(variable, compute_dtype)
            self._weights[id(weight)] = weight, variable
            return weight

        return get

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        initialize_waiting_keras3_variables()
        with attribute_set(self, "is_creating", True), names_stay_free(current_emulated_graph().graph):
            yield

    def add_regularizer(self, variable: Any, regularizer: Callable[[Any], Any]) -> None:
        """Add a regularizer; v1 layers call it for the weights that they regularize themselves."""
        _, variable = self._weights.get(id(variable), (None, variable))
        for part in [variable] if isinstance(variable, tf.Variable) else variable:
            loss = self.variables.regularize("layer", part, regularizer)
            if tf.executing_eagerly():  # else the layer has added the loss to the collection
                _collect_loss(loss)


def _take_name(name: str, name_scope: str = "") -> str:
    """Return the name that TF1 gives a variable; it is taken from then on."""
    if not in_emulated_graph():
        raise ScopeError(
            f"variable {name!r} was asked for in a thread that a method decorated with track_tf1_style_variables has "
            "started. Ask for it in the thread that runs the method, and pass it to the other thread."
        )
    return take_variable_name(current_emulated_graph().graph, name, name_scope)


def _is_plainly(
    variable: tf.Variable, shape: Any = None, dtype: Any = None, initializer: Any = None, **kwargs: Any
) -> bool:
    """Return whether a variable has the shape and dtype that ``get_variable`` asks for, faster than TensorFlow does."""
    if dtype is not variable.dtype or not isinstance(shape, (list, tuple)):
        return False
    return (initializer is None or callable(initializer)) and list(shape) == variable.shape.as_list()


def _is_local(collections: Any) -> bool:
    return bool(collections) and _GLOBAL not in collections


def _collect(variable: tf.Variable, collections: Any) -> None:
    keys = set(collections) if collections else {_GLOBAL}
    if variable.trainable:
        keys.add(_TRAINABLE)
    tf.compat.v1.add_to_collections(keys, variable)


def _collect_loss(loss: LazyLoss | None) -> None:
    if loss is not None:
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES, loss)


def _without_initializer(variable: tf.Variable, initializer: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Return arguments of ``get_variable`` that ask for the same shape and dtype, without the initializer."""
    if initializer is not None and kwargs.get("shape") is None:  # the initial value has both
        shape = None if callable(initializer) else getattr(initializer, "shape", np.shape(initializer))
        kwargs.update(shape=shape, dtype=variable.dtype)
    return {**kwargs, "initializer": None}


def _created_outside(variable_v1: Callable[..., Any], initial_value: Any, **kwargs: Any) -> Any:
    """Create a variable outside the graph that is being built, if there is one."""
    if _is_traced(initial_value):
        return variable_v1(initial_value=initial_value, **kwargs)  # the tf.function lifts the value out of its graph
    if _is_symbolic(initial_value):
        initial_value = value_of(initial_value)
    with tf.init_scope():
        return variable_v1(initial_value=initial_value, **kwargs)


def _is_traced(value: Any) -> bool:
    return _is_symbolic(value) and is_traced_by_function()


def _is_symbolic(value: Any) -> bool:
    # Most initial values are callable; TensorFlow takes long to find that these are not tensors.
    return not callable(value) and tf.is_tensor(value) and not hasattr(value, "numpy")
