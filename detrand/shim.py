"""`track_tf1_style_variables`: TF1 code inside a method, tracked variables and losses outside.

A decorated method runs as the building of a TF1 graph does: ``get_variable`` gives the variables that
earlier calls created, by name, and creates what is missing. A `_Store` per object holds them, and its
`_Owner` makes them variables of that object, in the way of Keras 3, tf_keras or ``tf.Module``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from detrand import _patching, _tf1_program
from detrand._tf1_program import VariableStore
from detrand.errors import ArgumentError

_Method = TypeVar("_Method", bound=Callable[..., Any])
_STORE = "_detrand_store"


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

    @functools.wraps(method)
    def tracked(self: Any, *args: Any, **kwargs: Any) -> Any:
        store = _store_of(self, method)
        if _tf1_program.in_program() and _tf1_program.current_store() is store:
            return method(self, *args, **kwargs)  # a decorated method that calls another one: one program
        with store.program():
            return method(self, *args, **kwargs)

    return tracked  # type: ignore[return-value]


class _Store(VariableStore):
    """The variables of one object, by the names that TF1 gives them.

    TensorFlow's own store decides what ``reuse``, custom getters and partitioners mean. To it each program
    starts without variables, as a fresh graph does; a variable that it finds missing is created only if
    no earlier call of the object's methods has done so.
    """

    __slots__ = ("__weakref__", "_owner", "_prefix", "_regularized", "variables")

    def __init__(self, owner: _Owner):
        super().__init__()
        self.variables: dict[str, tf.Variable] = {}  # in the order of creation
        self._owner = owner
        self._prefix: str | None = None
        self._regularized: set[int] = set()

    def program(self) -> Any:
        """Returns a context manager in which the object's TF1 code runs."""
        if self._prefix is None:
            # Variables of a layer that TF1 code calls inside a scope take the name of that scope, for good.
            self._prefix = _tf1_program.current_scope_name() if _tf1_program.in_program() else ""
        self._vars, self._partitioned_vars = {}, {}
        return _tf1_program.tf1_program(self, self._prefix)

    def _get_single_variable(
        self, name: str, reuse: Any = None, regularizer: Any = None, collections: Any = None, **kwargs: Any
    ) -> Any:
        """Overrides TensorFlow's: one variable, or one slice of a partitioned one."""
        if name in self._vars or reuse is True:
            return super()._get_single_variable(name=name, reuse=reuse, **kwargs)
        if name in self.variables:
            self._vars[name] = self.variables[name]
            reuse = None
        variable = super()._get_single_variable(name=name, reuse=reuse, **kwargs)
        self._vars[name] = variable
        keys = {*(collections or [tf.compat.v1.GraphKeys.GLOBAL_VARIABLES])}
        if variable.trainable:
            keys.add(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        tf.compat.v1.add_to_collections(keys, variable)
        if regularizer:
            self._regularize(variable, regularizer)
            self._collect_loss(variable, regularizer)
        return variable

    def create(self, variable_v1: Callable[..., Any], **kwargs: Any) -> Any:
        """Creates a variable that ``get_variable`` has found to be missing.

        Args:
          variable_v1: TensorFlow's constructor.
          **kwargs: its arguments.
        """
        kwargs.update(use_resource=True, collections=[])
        name = kwargs["name"]
        if _is_symbolic(kwargs["initial_value"]):
            variable = variable_v1(**kwargs)  # the function that is being traced lifts the value out
        else:
            with tf.init_scope():
                variable = variable_v1(**kwargs)
        self.variables[name] = variable
        self._owner.add(name, variable)
        return variable

    def add_regularizer(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        """Called by the v1 layers for the weights that they regularize themselves."""
        self._regularize(variable, regularizer)
        if tf.executing_eagerly():
            self._collect_loss(variable, regularizer)  # else the layer has done so

    def _regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        if id(variable) not in self._regularized:
            self._regularized.add(id(variable))
            self._owner.regularize(variable, regularizer)

    def _collect_loss(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        loss = _tf1_program.LazyLoss(lambda: regularizer(variable))
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES, loss)


def _is_symbolic(value: Any) -> bool:
    return tf.is_tensor(value) and not hasattr(value, "numpy")


def _store_of(instance: Any, method: Callable[..., Any]) -> _Store:
    store = vars(instance).get(_STORE) if hasattr(instance, "__dict__") else None
    if store is None:
        store = _Store(_owner_of(instance, method))
        object.__setattr__(instance, _STORE, store)
    return store


def store_variables(instance: Any) -> dict[str, tf.Variable]:
    """Returns the variables that TF1-style code has created in an object's methods, by their TF1 names."""
    store = vars(instance).get(_STORE) if hasattr(instance, "__dict__") else None
    return dict(store.variables) if store is not None else {}


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
    """Makes variables those of an object."""

    def add(self, name: str, variable: tf.Variable) -> None:
        """Tracks a new variable."""
        raise NotImplementedError

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        """Adds ``regularizer(variable)`` to the losses; called once for each variable."""
        raise NotImplementedError


class _Keras3Layer(_Owner):
    """A Keras 3 layer tracks Keras variables alone: each TF1 variable is the value of one."""

    def __init__(self, layer: Any):
        self._layer = weakref.ref(layer)
        self._keras_variables: dict[int, Any] = {}

    def add(self, name: str, variable: tf.Variable) -> None:
        self._keras_variables[id(variable)] = _patching.track_in_keras3(self._layer(), name, variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        if regularizer(variable) is not None:  # tf_slim's give None for a scale of 0
            keras_variable = self._keras_variables[id(variable)]
            keras_variable.regularizer = lambda keras_variable: regularizer(keras_variable.value)


class _TfKerasLayer(_Owner):
    """A tf_keras layer has lists of weights, and calls its losses when they are asked for."""

    def __init__(self, layer: Any):
        self._layer = weakref.ref(layer)

    def add(self, name: str, variable: tf.Variable) -> None:
        _patching.track_in_tf_keras(self._layer(), name, variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        if regularizer(variable) is not None:
            self._layer().add_loss(lambda: regularizer(variable))


class _Module(_Owner):
    """A ``tf.Module`` finds variables in its attributes; it has no losses."""

    def __init__(self, module: tf.Module):
        module._tf1_style_variables = []
        self._variables = module._tf1_style_variables  # what TensorFlow has made of the list

    def add(self, name: str, variable: tf.Variable) -> None:
        self._variables.append(variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        pass
