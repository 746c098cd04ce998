"""`track_tf1_style_variables`: TF1 code inside a method, tracked variables and losses outside.

A decorated method runs as the building of a TF1 graph does: ``get_variable`` gives the variables that
earlier calls created, by name, and creates what is missing. An object's `_Variables` hold them, and its `_Owner`
makes them variables of that object, in the way of Keras 3, tf_keras or ``tf.Module``. A `_Store` is what one
call has asked for.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from detrand import _patching
from detrand._patching import tf1_program
from detrand._patching.tf1_program import LazyLoss, VariableStore
from detrand.errors import ArgumentError

_Method = TypeVar("_Method", bound=Callable[..., Any])
_VARIABLES = "_detrand_store"  # detrand.variables reads it


def track_tf1_style_variables(method: _Method) -> _Method:
    """Decorates a method of a Keras layer, Keras model or ``tf.Module`` that holds TF1-style code.

    Inside the method ``tf.compat.v1.get_variable``, ``variable_scope`` and whatever is built on them
    (``tf.compat.v1.layers``, tf_slim, templates) work as in a TF1 graph: each call starts with empty collections and
    name counters, as a fresh graph does, and finds the variables of earlier calls by their names. The
    variables are those of the object: in ``weights`` and ``trainable_weights`` of a layer, in ``variables`` of a
    module. Regularizers given to ``get_variable`` and v1 layers show in a layer's ``losses``.

    >>> import keras
    >>> import tensorflow as tf
    >>> from detrand import track_tf1_style_variables, variables_of
    >>> class Scale(keras.layers.Layer):
    ...     @track_tf1_style_variables
    ...     def call(self, inputs):
    ...         with tf.compat.v1.variable_scope("scale"):
    ...             factor = tf.compat.v1.get_variable("factor", shape=(), initializer=tf.compat.v1.ones_initializer())
    ...         return inputs * factor
    >>> layer = Scale()
    >>> print(layer(tf.constant([2.0, 3.0])).numpy())
    [2. 3.]
    >>> list(variables_of(layer))
    ['scale/factor']

    Args:
      method: the method; any arguments, any result.

    Returns:
      The decorated method.

    Raises:
      ArgumentError: when the method is called on an object that is no layer, model or module.
    """
    if not callable(method):
        raise ArgumentError(
            f"track_tf1_style_variables decorates a method, but {method!r} of type {type(method).__name__} was given; "
            "write @track_tf1_style_variables directly above `def call(self, ...)`"
        )

    def tracked(self: Any, *args: Any, **kwargs: Any) -> Any:
        variables = _variables_of(self, method)
        store = tf1_program.current_store() if tf1_program.in_program() else None
        if isinstance(store, _Store) and store.variables is variables:
            return method(self, *args, **kwargs)  # a decorated method that calls another one: one program
        with variables.program():
            return method(self, *args, **kwargs)

    return _patching.decorated(method, tracked)


def get_or_create_layer(name: str, create_layer_method: Callable[[], Any]) -> Any:
    """Returns a layer or model that TF1-style code uses, creating it on the first call.

    For a Keras layer or model that a method decorated with `track_tf1_style_variables` creates itself: it is kept,
    and its weights and losses are among those of the object that the method belongs to.

    >>> import keras
    >>> import tensorflow as tf
    >>> from detrand import get_or_create_layer, track_tf1_style_variables
    >>> class Doubled(keras.layers.Layer):
    ...     @track_tf1_style_variables
    ...     def call(self, inputs):
    ...         dense = get_or_create_layer("dense", lambda: keras.layers.Dense(3))
    ...         return dense(inputs) * 2
    >>> layer = Doubled()
    >>> layer(tf.ones((1, 2))).shape, layer(tf.ones((1, 2))).shape, len(layer.weights)
    (TensorShape([1, 3]), TensorShape([1, 3]), 2)

    Args:
      name: what to keep the layer under; the same name gives the same layer.
      create_layer_method: makes the layer; takes no arguments.

    Returns:
      The layer. In a TF1 graph, where the program is built only once, a new one.

    Raises:
      ArgumentError: if it is called eagerly outside of a decorated method, or the layer is of a kind that the
        object cannot track.
    """
    store = tf1_program.current_store() if tf1_program.in_program() else None
    if isinstance(store, _Store):
        return store.variables.layer(name, create_layer_method)
    if tf.compat.v1.executing_eagerly_outside_functions():
        raise ArgumentError(
            f"get_or_create_layer({name!r}, ...) was called outside of a method decorated with "
            "track_tf1_style_variables, where nothing keeps the layer; call it inside one"
        )
    return create_layer_method()


class _Variables:
    """The variables of one object that TF1-style code has created, and their regularizers."""

    def __init__(self, owner: _Owner):
        self.variables: dict[str, tf.Variable] = {}  # by the names that they have in TF1, in the order of creation
        self.lock = threading.RLock()  # methods of one object may run in several threads
        self._layers: dict[str, Any] = {}
        self._owner = owner
        self._prefix: str | None = None
        self._by_name: dict[str, tf.Variable] = {}  # by the names that `get_variable` knows them by
        self._losses: dict[tuple[str, int], LazyLoss] = {}  # by who regularizes, and which variable

    def __deepcopy__(self, memo: dict[int, Any]) -> _Variables:
        duplicate = _Variables(copy.deepcopy(self._owner, memo))
        duplicate.variables = copy.deepcopy(self.variables, memo)
        duplicate._by_name = copy.deepcopy(self._by_name, memo)
        duplicate._layers = copy.deepcopy(self._layers, memo)
        duplicate._prefix = self._prefix
        for (who, _), loss in self._losses.items():
            variable = copy.deepcopy(loss.variable, memo)
            duplicate._losses[who, id(variable)] = LazyLoss(copy.deepcopy(loss.regularizer, memo), variable)
        return duplicate

    def program(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager in which the object's TF1 code runs."""
        if self._prefix is None:
            # Variables of a layer that TF1 code calls inside a scope take the name of that scope, for good.
            self._prefix = tf1_program.current_scope_name() if tf1_program.in_program() else ""
        return tf1_program.tf1_program(_Store(self), self._prefix)

    def get(self, name: str) -> tf.Variable | None:
        """Returns the variable that ``get_variable(name)`` has created, if it has."""
        return self._by_name.get(name)

    def add(self, name: str, tf1_name: str, variable: tf.Variable) -> None:
        """Makes a variable one of the object's."""
        self._by_name[name] = self.variables[tf1_name] = variable
        self._owner.add(tf1_name, variable)

    def layer(self, name: str, create: Callable[[], Any]) -> Any:
        """Returns the layer that is kept under a name, after creating it if there is none."""
        with self.lock:
            if name not in self._layers:
                layer = create()
                self._owner.keep(name, layer)
                self._layers[name] = layer
        return self._layers[name]

    def regularize(self, who: str, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> LazyLoss:
        """Adds ``regularizer(variable)`` to the object's losses, once, and returns it.

        Args:
          who: ``get_variable`` or a layer; TF1 adds both their losses if both regularize a variable.
          variable: the variable.
          regularizer: the regularizer; what it gives may be None, as tf_slim's does for a scale of 0.
        """
        with self.lock:
            loss = self._losses.get((who, id(variable)))
            if loss is None:
                loss = self._losses[who, id(variable)] = LazyLoss(regularizer, variable)
                if loss.compute() is not None:
                    self._owner.regularize(variable, regularizer)
        return loss


class _Store(VariableStore):
    """The variables that one call of a decorated method has asked for.

    TensorFlow's own store decides what ``reuse``, custom getters and partitioners mean. To it each call
    starts without variables, as a fresh graph does; a variable that it finds missing is created only if
    no earlier call has done so.
    """

    __slots__ = ("_tf1_names", "variables")

    def __init__(self, variables: _Variables):
        super().__init__()
        self.variables = variables
        self._tf1_names: dict[str, str] = {}

    def _get_single_variable(
        self, name: str, reuse: Any = None, regularizer: Any = None, collections: Any = None, **kwargs: Any
    ) -> Any:
        """Overrides TensorFlow's: one variable, or one slice of a partitioned one."""
        if name in self._vars:
            if reuse is False:  # TensorFlow's own check asks some variables for an op that they do not have
                raise ValueError(
                    f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
                    "reuse=tf.AUTO_REUSE in VarScope?"
                )
            return super()._get_single_variable(name=name, reuse=reuse, **kwargs)
        with self.variables.lock:
            known = self.variables.get(name)
            if known is not None:
                # To TF1, with a graph for each call, it would be new: only its shape and type must be the same.
                self._vars[name], reuse = known, None
                kwargs.update(_without_initializer(known, **kwargs))
            self._tf1_names[name] = tf1_program.name_in_graph(name)
            variable = super()._get_single_variable(name=name, reuse=reuse, **kwargs)
        self._vars[name] = variable
        keys = {*(collections or [tf.compat.v1.GraphKeys.GLOBAL_VARIABLES])}
        if variable.trainable:
            keys.add(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        tf.compat.v1.add_to_collections(keys, variable)
        if regularizer:
            self._regularize("get_variable", variable, regularizer)
        return variable

    def create(self, variable_v1: Callable[..., Any], **kwargs: Any) -> Any:
        """Creates a variable that ``get_variable`` has found to be missing.

        Args:
          variable_v1: TensorFlow's constructor.
          **kwargs: its arguments.
        """
        name = kwargs["name"]
        tf1_name = self._tf1_names[name]
        # A caching device would keep a value of the first call, and a session caches none for longer than a run.
        kwargs.update(name=tf1_name, use_resource=True, collections=[], caching_device=None)
        with tf1_program.names_stay_free():
            variable = _created_outside(variable_v1, **kwargs)
        self.variables.add(name, tf1_name, variable)
        return variable

    def add_regularizer(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        """Called by the v1 layers for the weights that they regularize themselves."""
        if tf.executing_eagerly():
            self._regularize("layer", variable, regularizer)
        else:  # the layer has added the loss to the collection
            self.variables.regularize("layer", variable, regularizer)

    def _regularize(self, who: str, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        loss = self.variables.regularize(who, variable, regularizer)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES, loss)


def _without_initializer(variable: tf.Variable, initializer: Any = None, **kwargs: Any) -> dict[str, Any]:
    """Returns arguments of ``get_variable`` that ask for a variable's shape and type, whatever its initializer was."""
    if initializer is not None and kwargs.get("shape") is None:  # both are those of the initial value
        shape = None if callable(initializer) else getattr(initializer, "shape", np.shape(initializer))
        kwargs.update(shape=shape, dtype=variable.dtype)
    return {**kwargs, "initializer": None}


def _created_outside(variable_v1: Callable[..., Any], initial_value: Any, **kwargs: Any) -> Any:
    """Creates a variable outside of the graph that is being built, if one is."""
    if tf.is_tensor(initial_value) and not hasattr(initial_value, "numpy"):  # a tensor of that graph
        if _patching.is_traced_by_function():
            return variable_v1(initial_value=initial_value, **kwargs)  # the tf.function takes the value out of it
        initial_value = _patching.value_of(initial_value)
    with tf.init_scope():
        return variable_v1(initial_value=initial_value, **kwargs)


def _variables_of(instance: Any, method: Callable[..., Any]) -> _Variables:
    variables = vars(instance).get(_VARIABLES) if hasattr(instance, "__dict__") else None
    if variables is None:
        owner = _owner_of(instance, method)
        variables = vars(instance).setdefault(_VARIABLES, _Variables(owner))  # of the thread that is first
    return variables


def store_variables(instance: Any) -> dict[str, tf.Variable]:
    """Returns the variables that TF1-style code has created in an object's methods, by their TF1 names."""
    variables = vars(instance).get(_VARIABLES) if hasattr(instance, "__dict__") else None
    return dict(variables.variables) if variables is not None else {}


def _owner_of(instance: Any, method: Callable[..., Any]) -> _Owner:
    if _patching.is_instance_of_loaded(instance, "keras", "Layer"):
        return _Keras3Layer(instance)
    if _patching.is_instance_of_loaded(instance, "tf_keras", "layers.Layer"):
        return _TfKerasLayer(instance)
    if isinstance(instance, tf.Module):
        return _Module(instance)
    raise ArgumentError(
        f"{method.__qualname__} is decorated with track_tf1_style_variables and was called on {instance!r} of type "
        f"{type(instance).__name__}, which cannot track variables; make {type(instance).__name__} a "
        "keras.layers.Layer, a tf_keras.layers.Layer or a tf.Module"
    )


class _Owner:
    """Makes variables those of an object.

    Args:
      instance: the object.
    """

    def __init__(self, instance: Any):
        self._reference = weakref.ref(instance)  # the object holds its owner

    def __deepcopy__(self, memo: dict[int, Any]) -> _Owner:
        return type(self)(copy.deepcopy(self._instance, memo))

    @property
    def _instance(self) -> Any:
        return self._reference()

    def add(self, name: str, variable: tf.Variable) -> None:
        """Tracks a new variable."""
        raise NotImplementedError

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        """Adds ``regularizer(variable)`` to the losses."""
        raise NotImplementedError

    def keep(self, name: str, layer: Any) -> None:
        """Tracks a layer that the object's method has created."""
        if not isinstance(layer, self._trackable()):
            kinds = " or ".join(f"{kind.__module__.split('.')[0]} {kind.__name__}" for kind in self._trackable())
            raise ArgumentError(
                f"get_or_create_layer({name!r}, ...) made {layer!r} of type {type(layer).__name__}, which "
                f"{type(self._instance).__name__} cannot track; make a {kinds}"
            )
        setattr(self._instance, f"_tf1_style_layer_{name}", layer)

    def _trackable(self) -> tuple[type, ...]:
        """Returns the classes of layers that the object tracks."""
        raise NotImplementedError


class _Keras3Layer(_Owner):
    """A Keras 3 layer tracks Keras variables alone: each TF1 variable is the value of one."""

    def __init__(self, layer: Any):
        super().__init__(layer)
        self._keras_variables: dict[int, Any] = {}

    def add(self, name: str, variable: tf.Variable) -> None:
        self._keras_variables[id(variable)] = _patching.track_in_keras3(self._instance, name, variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        keras_variable = self._keras_variables[id(variable)]
        other = keras_variable.regularizer
        keras_variable.regularizer = lambda keras_variable: (
            regularizer(keras_variable.value) + (0 if other is None else other(keras_variable))
        )

    def keep(self, name: str, layer: Any) -> None:
        with _patching.keras3_tracker_unlocked(self._instance):
            super().keep(name, layer)

    def _trackable(self) -> tuple[type, ...]:
        return (sys.modules["keras"].layers.Layer,)


class _TfKerasLayer(_Owner):
    """A tf_keras layer has lists of weights, and calls its losses when they are asked for."""

    def add(self, name: str, variable: tf.Variable) -> None:
        _patching.track_in_tf_keras(self._instance, name, variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        layers = _patching.flattened_layers(self._instance)
        if not any(variable is weight for layer in layers if layer is not self._instance for weight in layer.weights):
            self._instance.add_loss(functools.partial(regularizer, variable))  # a layer that is kept has added its own

    def _trackable(self) -> tuple[type, ...]:
        return (tf.Module,)  # which tf_keras layers are


class _Module(_Owner):
    """A ``tf.Module`` finds variables in its attributes; it has no losses."""

    def add(self, name: str, variable: tf.Variable) -> None:
        if not hasattr(self._instance, "_tf1_style_variables"):
            self._instance._tf1_style_variables = []
        self._instance._tf1_style_variables.append(variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        pass

    def _trackable(self) -> tuple[type, ...]:
        return (tf.Module,)
