"""The variables of TF1-style code: those that an object has, and those that one call of its method asks for.

TF1 code gets variables in two ways. ``get_variable`` finds one by its name, in the store of its graph. ``tf.Variable``
always makes one, and the graph gives it a name that is free. A call of a method starts as an empty graph, so both
names are the same in each call, and in each call after the first they lead to the variable of the first.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from detrand._patching.graphs import VariableStore, is_traced_by_function, partitions_of, value_of
from detrand._patching.keras import initialize_waiting_keras3_variables
from detrand._patching.variables import copy_save_slice
from detrand.errors import ArgumentError
from detrand.seeding import callsite
from detrand.seeding.callsite import Site
from detrand.shim.dispatchers import LazyLoss, dispatchers, layer_constructors
from detrand.shim.owners import Owner
from detrand.shim.program import (
    Beginning,
    Program,
    beginning_here,
    name_in_graph,
    name_in_scope,
    names_stay_free,
    run_program,
)
from detrand.variables.sources import TF1StyleVariables

_AUTO = tf.VariableSynchronization.AUTO
_GLOBAL, _TRAINABLE = tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES


class ObjectVariables(TF1StyleVariables):
    """The variables of one object that TF1-style code has created, and their regularizers.

    Args:
      owner: makes them variables of the object.

    Attributes:
      owner: the same.
      partitions: in how many slices each partitioned variable is along each axis, by its name.
      lock: held while a variable or layer is looked for and created: methods of one object may run in several threads.
    """

    def __init__(self, owner: Owner):
        super().__init__()
        self.owner = owner
        self.partitions: dict[str, list[int]] = {}
        self.lock = threading.RLock()
        self._layers: dict[str, Any] = {}
        self._beginning: Beginning | None = None
        self._notes_layers = True
        self._by_name: dict[str, tf.Variable] = {}  # by the names that `get_variable` knows them by
        self._sites: dict[int, Site] = {}  # where they were created
        self._losses: dict[tuple[str, int], LazyLoss | None] = {}  # by who regularizes, and which variable

    def __deepcopy__(self, memo: dict[int, Any]) -> ObjectVariables:
        duplicate = ObjectVariables(copy.deepcopy(self.owner, memo))
        duplicate.variables = copy.deepcopy(self.variables, memo)
        duplicate.partitions = dict(self.partitions)
        duplicate.local_names = set(self.local_names)
        duplicate._by_name = copy.deepcopy(self._by_name, memo)
        duplicate._layers = copy.deepcopy(self._layers, memo)
        duplicate._beginning = self._beginning
        for name, variable in self.variables.items():
            duplicate._sites[id(duplicate.variables[name])] = self._sites[id(variable)]
            copy_save_slice(variable, duplicate.variables[name])
        duplicates = {id(variable): duplicate.variables[name] for name, variable in self.variables.items()}
        for (who, key), loss in self._losses.items():
            variable = duplicates[key]
            copied = loss and LazyLoss(copy.deepcopy(loss.regularizer, memo), variable)
            duplicate._losses[who, id(variable)] = copied
        return duplicate

    @contextlib.contextmanager
    def program(self) -> Iterator[Program]:
        """Runs TF1 code of the object in the block."""
        # A layer that is called in a variable scope goes on from there, with its properties and names, and does so for
        # good: its variables are to be found again wherever it is called from.
        start = self._beginning or beginning_here()
        store = ProgramStore(self)
        constructors = layer_constructors if self._notes_layers else contextlib.nullcontext()
        with dispatchers, constructors, run_program(store, start) as running:
            compute_dtype, variable_dtype = self.owner.precision()
            if compute_dtype != variable_dtype:
                scope = tf.compat.v1.get_variable_scope()
                scope.set_dtype(tf.as_dtype(compute_dtype))
                scope.set_custom_getter(store.getter_in_mixed_precision(tf.as_dtype(variable_dtype)))
            yield running
        # Layers that nothing keeps are made in each call: if not in the first one, then in two that follow each other.
        self._beginning, self._notes_layers = start, running.has_keras_variables

    def get(self, name: str) -> tf.Variable | None:
        """Returns the variable that ``get_variable(name)`` has created, if it has."""
        return self._by_name.get(name)

    def add(self, tf1_name: str, variable: tf.Variable, name: str | None, is_local: bool) -> None:
        """Makes a variable one of the object's.

        Args:
          tf1_name: the name that it has in TF1.
          variable: the variable.
          name: the name that ``get_variable`` is to find it by; None if it is not.
          is_local: whether TF1 leaves it out of checkpoints.
        """
        if name is not None:
            self._by_name[name] = variable
        if is_local:
            self.local_names.add(tf1_name)
        self.variables[tf1_name] = variable
        self._sites[id(variable)] = callsite.user_site()
        self.owner.add(tf1_name, variable)

    def site_of(self, variable: tf.Variable) -> Site:
        """Returns the line of user code that created a variable."""
        return self._sites[id(variable)]

    def layer(self, name: str, create: Callable[[], Any]) -> Any:
        """Returns the layer that is kept under a name, after creating it if there is none."""
        with self.lock:
            if name not in self._layers:
                layer = create()
                self.owner.keep(name, layer)
                self._layers[name] = layer
        return self._layers[name]

    def regularize(self, who: str, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> LazyLoss | None:
        """Adds ``regularizer(variable)`` to the object's losses, once.

        Args:
          who: ``get_variable`` or a layer; TF1 adds both their losses if both regularize a variable.
          variable: the variable.
          regularizer: the regularizer.

        Returns:
          The loss; None if the regularizer gives none, as tf_slim's does for a scale of 0.
        """
        with self.lock:
            key = who, id(variable)
            if key not in self._losses:
                loss = LazyLoss(regularizer, variable)
                self._losses[key] = None if loss.compute() is None else loss
                if self._losses[key] is not None:
                    self.owner.regularize(variable, regularizer)
            return self._losses[key]


class ProgramStore(VariableStore):
    """The variables that one call of a decorated method has asked for.

    TensorFlow's own store decides what ``reuse``, custom getters and partitioners mean. To it each call
    starts without variables, as a fresh graph does; a variable that it finds missing is created only if
    no earlier call has done so.
    """

    def __init__(self, variables: ObjectVariables):
        super().__init__()
        self.variables = variables
        self.is_creating = False
        self._tf1_names: dict[str, str] = {}
        self._weights: dict[int, tuple[tf.Tensor, tf.Variable]] = {}  # what is read in another dtype, and its variable

    def get_variable(self, name: str, shape: Any = None, dtype: Any = tf.float32, *args: Any, **kwargs: Any) -> Any:
        """Override TensorFlow's method, which takes longer to find a variable that an earlier call has created."""
        known = self.variables.get(name)
        is_found_at_once = (
            known is not None
            and name not in self.asked_for
            and not (args or self.variables.partitions)
            and _is_asked_for_plainly(known, shape, dtype, kwargs)
        )
        if not is_found_at_once:
            return super().get_variable(name, shape, dtype, *args, **kwargs)
        name_in_graph(name)
        return self._noted(known, name, kwargs.get("regularizer"), kwargs.get("collections"))

    def get_single_variable(
        self, name: str, reuse: Any = None, regularizer: Any = None, collections: Any = None, **kwargs: Any
    ) -> Any:
        """Overrides TensorFlow's: one variable, or one slice of a partitioned one."""
        if name in self.asked_for:
            if reuse is False:  # TensorFlow's own check asks some variables for an op that they do not have
                raise self._refused(
                    f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
                    "reuse=tf.AUTO_REUSE in VarScope?",
                    self.asked_for[name],
                )
            variable = self.asked_for[name]
            return variable if _is_plainly(variable, **kwargs) else self._found(variable, name, **kwargs)
        with self.variables.lock:
            known = self.variables.get(name)
            if known is not None:
                # To TF1, with a graph for each call, it would be new: only its shape and type must be the same.
                variable = known
                if not _is_plainly(known, **kwargs):
                    self._found(known, name, **_without_initializer(known, **kwargs))
                name_in_graph(name)
            elif name in self.variables.partitions:
                raise self._refused(
                    f"No partitioner was provided, but a partitioned version of the variable was found: {name}/part_0. "
                    "Perhaps a variable of the same name was already created with partitioning?",
                    self.variables.get(f"{name}/part_0"),
                )
            elif reuse is True:
                raise self._refused(
                    f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
                    "reuse=tf.AUTO_REUSE in VarScope?"
                )
            else:
                self._tf1_names[name] = name_in_graph(name)
                variable = super().get_single_variable(name=name, reuse=reuse, collections=collections, **kwargs)
        return self._noted(variable, name, regularizer, collections)

    def _noted(self, variable: tf.Variable, name: str, regularizer: Any, collections: Any) -> tf.Variable:
        """Returns a variable that the program has from now on."""
        self.asked_for[name] = variable
        _collect(variable, collections)
        if regularizer:
            self._regularize("get_variable", variable, regularizer)
        return variable

    def get_partitioned_variable(self, name: str, partitioner: Any, **kwargs: Any) -> Any:
        """Overrides TensorFlow's: all slices of a variable."""
        whole = self.variables.get(name)
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
                    self.variables.get(f"{name}/part_0"),
                )
            return partitions

        partitioned = super().get_partitioned_variable(name, partitioner=partitioner and partition_as_before, **kwargs)
        self.variables.partitions.setdefault(name, partitions_of(partitioned))
        partitioned.trainable = all(part.trainable for part in partitioned)  # which RNN cells ask for
        return partitioned

    def _found(self, variable: tf.Variable, name: str, **kwargs: Any) -> tf.Variable:
        """Returns a variable if it has the shape and type that are asked for."""
        asked_before = name in self.asked_for
        self.asked_for[name] = variable
        try:
            return super().get_single_variable(name=name, **kwargs)
        except ValueError as error:
            if not asked_before:
                del self.asked_for[name]
            raise self._refused(str(error), variable) from None

    def _refused(self, reason: str, variable: tf.Variable | None = None) -> ArgumentError:
        created = "" if variable is None else f" It was created at {self.variables.site_of(variable)}."
        return ArgumentError(f"{reason}{created} It was asked for at {callsite.user_site()}.")

    def create(self, variable_v1: Callable[..., Any], name: str, collections: Any = None, **kwargs: Any) -> Any:
        """Creates a variable that ``get_variable`` has found to be missing.

        Args:
          variable_v1: TensorFlow's constructor.
          name: the variable's name.
          collections: the keys of the collections that it is put in.
          **kwargs: further arguments of the constructor.
        """
        # A caching device would keep a value of the first call, and a session caches none for longer than a run.
        kwargs.update(use_resource=True, collections=[], caching_device=None)
        tf1_name = self._tf1_names[name]
        variable = self.variables.owner.restored(tf1_name)
        if variable is None:
            with self._creating():
                variable = _created_outside(variable_v1, name=tf1_name, **kwargs)
        self.variables.add(tf1_name, variable, name, _is_local(collections))
        return variable

    def construct(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Does what ``tf.Variable`` does in TF1 code: makes a variable, or finds the one that an earlier call has made.

        Args:
          next_creator: makes a variable.
          **kwargs: the arguments of ``tf.Variable``.
        """
        if self.is_creating:
            return next_creator(**kwargs)
        tf1_name = name_in_scope(kwargs.get("name") or "Variable")
        collections = kwargs.get("collections")
        with self.variables.lock:
            variable = self.variables.variables.get(tf1_name)
            if variable is None:
                kwargs.update(name=tf1_name, caching_device=None)
                constructor: Callable[..., Any] = tf.Variable
                if "collections" in kwargs:
                    constructor = tf.compat.v1.Variable
                    kwargs.update(use_resource=True, collections=[])
                if tf.executing_eagerly() or _is_traced(kwargs.get("initial_value")):
                    constructor = next_creator  # one that starts anew would call the creators twice
                with self._creating(), tf.compat.v1.name_scope(None):
                    variable = _created_outside(constructor, **kwargs)
                self.variables.add(tf1_name, variable, None, _is_local(collections))
            else:
                self._check_initial_value(variable, tf1_name, kwargs.get("initial_value"))
        _collect(variable, collections)
        return variable

    def _check_initial_value(self, variable: tf.Variable, tf1_name: str, initial_value: Any) -> None:
        if initial_value is None or callable(initial_value):
            return
        shape = tf.TensorShape(getattr(initial_value, "shape", np.shape(initial_value)))
        if not shape.is_compatible_with(variable.shape):
            raise self._refused(
                f"tf.Variable {tf1_name} of an earlier call has shape {variable.shape}, but its initial value has "
                f"shape {shape} in this one. The variables of a call are counted to name them; give each one a name of "
                "its own if some calls leave out some of them.",
                variable,
            )

    def getter_in_mixed_precision(self, variable_dtype: tf.DType) -> Callable[..., Any]:
        """Returns a custom getter that keeps weights in one dtype and returns them in that which they are asked for.

        Code that asks for the dtype that variables are kept in gets the variable itself: batch normalization does.
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
        self.is_creating = True
        try:
            with names_stay_free():
                yield
        finally:
            self.is_creating = False

    def add_regularizer(self, variable: Any, regularizer: Callable[[Any], Any]) -> None:
        """Called by the v1 layers for the weights that they regularize themselves, partitioned ones among them."""
        _, variable = self._weights.get(id(variable), (None, variable))
        for part in [variable] if isinstance(variable, tf.Variable) else variable:
            if tf.executing_eagerly():
                self._regularize("layer", part, regularizer)
            else:  # the layer has added the loss to the collection
                self.variables.regularize("layer", part, regularizer)

    def _regularize(self, who: str, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        loss = self.variables.regularize(who, variable, regularizer)
        if loss is not None:
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES, loss)


def _is_plainly(
    variable: tf.Variable, shape: Any = None, dtype: Any = None, initializer: Any = None, **kwargs: Any
) -> bool:
    """Returns whether a variable is what ``get_variable`` is asked for; TensorFlow's own way to tell takes longer."""
    if dtype is not variable.dtype or not isinstance(shape, (list, tuple)):
        return False
    return (initializer is None or callable(initializer)) and list(shape) == variable.shape.as_list()


def _is_asked_for_plainly(variable: tf.Variable, shape: Any, dtype: Any, arguments: dict[str, Any]) -> bool:
    """Return whether a variable is what ``get_variable`` asks for, with no arguments that need a closer look."""
    return (
        arguments.get("custom_getter") is None
        and arguments.get("partitioner") is None
        and arguments.get("synchronization", _AUTO) is _AUTO
        and _is_plainly(variable, shape, dtype, arguments.get("initializer"))
    )


def _is_local(collections: Any) -> bool:
    return bool(collections) and _GLOBAL not in collections


def _collect(variable: tf.Variable, collections: Any) -> None:
    keys = set(collections) if collections else {_GLOBAL}
    if variable.trainable:
        keys.add(_TRAINABLE)
    tf.compat.v1.add_to_collections(keys, variable)


def _without_initializer(variable: tf.Variable, initializer: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Returns arguments of ``get_variable`` that ask for a variable's shape and type, whatever its initializer was."""
    if initializer is not None and kwargs.get("shape") is None:  # both are those of the initial value
        shape = None if callable(initializer) else getattr(initializer, "shape", np.shape(initializer))
        kwargs.update(shape=shape, dtype=variable.dtype)
    return {**kwargs, "initializer": None}


def _created_outside(variable_v1: Callable[..., Any], initial_value: Any, **kwargs: Any) -> Any:
    """Creates a variable outside of the graph that is being built, if one is."""
    if _is_traced(initial_value):
        return variable_v1(initial_value=initial_value, **kwargs)  # the tf.function takes the value out of it
    if _is_symbolic(initial_value):
        initial_value = value_of(initial_value)
    with tf.init_scope():
        return variable_v1(initial_value=initial_value, **kwargs)


def _is_traced(value: Any) -> bool:
    return _is_symbolic(value) and is_traced_by_function()


def _is_symbolic(value: Any) -> bool:
    # Most initial values are callable, and telling that these are no tensors takes TensorFlow long.
    return not callable(value) and tf.is_tensor(value) and not hasattr(value, "numpy")
