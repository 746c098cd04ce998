"""The decorator `track_tf1_style_variables` for methods with TF1 code, and `get_or_create_layer` for use inside them.

A decorated method runs like code that builds a TF1 graph: ``get_variable`` returns the variables that earlier calls
created, by name, and creates those that are missing. The `ObjectVariables` of an object hold the variables, and its
`Owner` tracks them. A `CallStore` holds the variables that one call has asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import tensorflow as tf

from detrand._patching.graphs import variable_store
from detrand._patching.keras import underlying_variable
from detrand._patching.tensorflow import decorated
from detrand.errors import ArgumentError, DetrandError, TF1CodeError
from detrand.remedies import remedy_of
from detrand.seeding import callsite
from detrand.seeding.callsite import Site
from detrand.shim.emulated_graph import in_emulated_graph
from detrand.shim.owners import owner_of
from detrand.shim.variable_store import CallStore, ObjectVariables
from detrand.variables.sources import TF1_STYLE_VARIABLES, tf1_style_variables

_Method = TypeVar("_Method", bound=Callable[..., Any])


def track_tf1_style_variables(method: _Method) -> _Method:
    """Decorate a method of a Keras layer, Keras model or ``tf.Module`` that holds TF1-style code.

    Inside the method, ``tf.compat.v1.get_variable``, ``variable_scope`` and everything built on them
    (``tf.compat.v1.layers``, tf_slim, templates) work as in a TF1 graph. Each call starts with empty collections and
    name counters, as a fresh graph does, and finds the variables of earlier calls by their names. The object owns
    the variables: they are in ``weights`` and ``trainable_weights`` of a layer, and in ``variables`` of a module.
    Regularizers of ``get_variable`` and of v1 layers add to a layer's ``losses``.

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
      method: the method; it may take any arguments and return any result.

    Returns:
      The decorated method.

    Raises:
      ArgumentError: when the method is called on an object that is not a layer, a model or a module.
      TF1CodeError: when the method raises an exception that detrand knows a remedy for.
    """
    if not callable(method):
        raise ArgumentError(
            f"track_tf1_style_variables decorates a method, but {method!r} of type {type(method).__name__} was given. "
            "Write @track_tf1_style_variables directly above `def call(self, ...)`."
        )

    def tracked(self: Any, *args: Any, **kwargs: Any) -> Any:
        variables = _variables_of(self, method)
        store = variable_store() if in_emulated_graph() else None
        if isinstance(store, CallStore) and store.variables is variables:
            return method(self, *args, **kwargs)  # called by another decorated method of the object: one graph
        try:
            with variables.emulate_graph() as emulated:
                result = method(self, *args, **kwargs)
                if emulated.layers:
                    _check_kept(emulated.layers, variables, method)
                return result
        except Exception as error:
            if isinstance(error, DetrandError) or not remedy_of(str(error)):
                raise
            described = f"{method.__qualname__} raised {callsite.describe_error(error)}"
            raise TF1CodeError(described).with_traceback(error.__traceback__) from error

    return decorated(method, tracked)


def get_or_create_layer(name: str, create_layer_method: Callable[[], Any]) -> Any:
    """Return a layer or model that TF1-style code uses, creating it on the first call.

    Call it in a method decorated with `track_tf1_style_variables`, to create a Keras layer or model there. The object
    that the method belongs to keeps the layer and tracks its weights and losses.

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
      name: the layer's key; the same name in the same variable scope returns the same layer.
      create_layer_method: creates the layer; takes no arguments.

    Returns:
      The layer. In a TF1 graph, where the program is built only once, a new layer.

    Raises:
      ArgumentError: if it is called eagerly outside a decorated method, or if the object cannot track layers of
        this kind.
    """
    store = variable_store() if in_emulated_graph() else None
    if isinstance(store, CallStore):
        scope = tf.compat.v1.get_variable_scope().name
        return store.variables.layer(f"{scope}/{name}" if scope else name, create_layer_method)
    if tf.compat.v1.executing_eagerly_outside_functions():
        raise ArgumentError(
            f"get_or_create_layer({name!r}, ...) was called outside a method decorated with track_tf1_style_variables, "
            "where no object keeps the layer. Call it inside such a method."
        )
    return create_layer_method()


def _check_kept(layers: list[tuple[Any, Site]], variables: ObjectVariables, method: Callable[..., Any]) -> None:
    """Raise an `ArgumentError` if a method has made layers that its object does not keep."""
    weights = [(layer, site, _ids_of_variables(layer.variables)) for layer, site in layers]
    if not any(ids for _, _, ids in weights):
        return
    kept = _ids_of_variables([*variables.variables.values(), *variables.owner.variables()])
    for layer, site, ids in sorted(weights, key=lambda made: -len(made[2])):  # a model before the layers in it
        if ids - kept:
            kind = f"{type(layer).__module__.split('.')[0]} {type(layer).__name__}"
            raise ArgumentError(
                f"{method.__qualname__} made the {kind} {layer.name!r} at {site} and does not keep it, so each call "
                f"makes a new layer with new weights. Write get_or_create_layer({layer.name!r}, lambda: "
                f"{type(layer).__name__}(...)) instead, or make the layer once, in __init__, and keep it on self."
            )


def _ids_of_variables(variables: Iterable[Any]) -> set[int]:
    underlying = map(underlying_variable, variables)
    return {id(variable) for variable in underlying if isinstance(variable, tf.Variable)}


def _variables_of(instance: Any, method: Callable[..., Any]) -> ObjectVariables:
    variables = tf1_style_variables(instance)
    if variables is None:
        made = ObjectVariables(owner_of(instance, method))
        variables = vars(instance).setdefault(TF1_STYLE_VARIABLES, made)  # another thread may have made them first
    return variables
