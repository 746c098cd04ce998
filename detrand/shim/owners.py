"""Owners of variables: how Keras 3 layers, tf_keras layers and ``tf.Module`` track the variables of TF1-style code."""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from detrand._patching.keras import (
    add_own_losses_in_keras3,
    flattened_layers,
    is_instance_of_loaded,
    keras3_tracker_unlocked,
    module_leaves,
    other_backend_of,
    track_in_keras3,
    track_in_tf_keras,
)
from detrand._patching.variables import track_by_name, tracked_by_name
from detrand.errors import ArgumentError, TF1CodeError
from detrand.variables.sources import tf1_style_variables

_IN_MODULE = "_tf1_style_variables"  # the attribute of a tf.Module that holds a list of its variables


def owner_of(instance: Any, method: Callable[..., Any]) -> Owner:
    """Return the `Owner` for an object whose method creates variables."""
    if _is_keras3_layer(instance):
        if backend := other_backend_of(instance):
            raise TF1CodeError(
                f"{method.__qualname__} has TF1 code, which computes with TensorFlow, but Keras runs on {backend}. Set "
                "KERAS_BACKEND=tensorflow before Keras is imported, or replace the TF1 code by Keras layers"
            )
        return _Keras3Layer(instance)
    if is_instance_of_loaded(instance, "tf_keras", "layers.Layer"):
        return _TfKerasLayer(instance)
    if isinstance(instance, tf.Module):
        return _Module(instance)
    raise ArgumentError(
        f"{method.__qualname__} is decorated with track_tf1_style_variables and was called on {instance!r} of type "
        f"{type(instance).__name__}, which cannot track variables. Make {type(instance).__name__} a "
        "keras.layers.Layer, a tf_keras.layers.Layer or a tf.Module."
    )


class Owner:
    """An object that tracks the variables, losses and layers of TF1-style code in its methods."""

    def __init__(self, instance: Any):
        self._reference = weakref.ref(instance)  # the object holds this owner

    def __deepcopy__(self, memo: dict[int, Any]) -> Owner:
        return type(self)(copy.deepcopy(self._instance, memo))

    @property
    def _instance(self) -> Any:
        return self._reference()

    def add(self, name: str, variable: tf.Variable) -> None:
        """Track a new variable."""
        raise NotImplementedError

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        """Add ``regularizer(variable)`` to the losses of the object, if it has losses."""

    def keep(self, name: str, layer: Any) -> None:
        """Track a layer that the object's method has created."""
        kind = self._trackable()
        if not isinstance(layer, kind):
            raise ArgumentError(
                f"get_or_create_layer({name!r}, ...) made {layer!r} of type {type(layer).__name__}, which "
                f"{type(self._instance).__name__} cannot track. Make a {kind.__module__.split('.')[0]} {kind.__name__}."
            )
        setattr(self._instance, f"_tf1_style_layer_{name}", layer)

    def variables(self) -> Iterable[Any]:
        """Return all variables of the object, however they were created."""
        return self._instance.variables

    def restored(self, name: str) -> tf.Variable | None:
        """Return the variable that a SavedModel's loader has created under a TF1 name, if there is one."""
        found = tracked_by_name(self._instance, name)
        return found if isinstance(found, tf.Variable) else None

    def precision(self) -> tuple[str, str]:
        """Return the compute dtype and the variable dtype of the object."""
        compute_dtype = getattr(self._instance, "compute_dtype", None)
        if compute_dtype is None:  # the method is the constructor: the dtype policy is not set yet
            return "float32", "float32"
        return compute_dtype, self._instance.variable_dtype

    def _trackable(self) -> type:
        """Return the class of layers that the object tracks."""
        return tf.Module  # tf_keras layers are modules


class _Keras3Layer(Owner):
    """A Keras 3 layer, which tracks only Keras variables: each TF1 variable is the value of one."""

    def __init__(self, layer: Any):
        super().__init__(layer)
        self._keras_variables: dict[int, Any] = {}

    def add(self, name: str, variable: tf.Variable) -> None:
        self._keras_variables[id(variable)] = track_in_keras3(self._instance, name, variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        if not variable.trainable:  # Keras computes the losses of trainable variables only, TF1 of all
            add_own_losses_in_keras3(self._instance, _frozen_losses)
            return
        keras_variable = self._keras_variables[id(variable)]
        other = keras_variable.regularizer
        keras_variable.regularizer = lambda keras_variable: (
            regularizer(keras_variable.value) + (0 if other is None else other(keras_variable))
        )

    def keep(self, name: str, layer: Any) -> None:
        with keras3_tracker_unlocked(self._instance):
            super().keep(name, layer)

    def _trackable(self) -> type:
        return sys.modules["keras"].layers.Layer


def _frozen_losses(layer: Any) -> list[Any]:
    return [loss.compute() for loss in tf1_style_variables(layer).losses() if not loss.variable.trainable]


class _TfKerasLayer(Owner):
    """A tf_keras layer, which has lists of weights, and computes losses when they are read."""

    def add(self, name: str, variable: tf.Variable) -> None:
        track_in_tf_keras(self._instance, name, variable)

    def regularize(self, variable: tf.Variable, regularizer: Callable[[Any], Any]) -> None:
        layers = flattened_layers(self._instance)
        if not any(variable is weight for layer in layers if layer is not self._instance for weight in layer.weights):
            self._instance.add_loss(functools.partial(regularizer, variable))  # a kept layer has added its own losses


class _Module(Owner):
    """A ``tf.Module``, which finds variables in its attributes and has no losses."""

    def add(self, name: str, variable: tf.Variable) -> None:
        # A plain attribute would be tracked by position; checkpoints need the name.
        vars(self._instance).setdefault(_IN_MODULE, []).append(variable)
        track_by_name(self._instance, name, variable)

    def variables(self) -> Iterable[Any]:
        yield from self._instance.variables
        for layer in module_leaves(self._instance, _is_keras3_layer):  # modules do not look into these
            yield from layer.variables

    def precision(self) -> tuple[str, str]:
        return "float32", "float32"


def _is_keras3_layer(leaf: Any) -> bool:
    return is_instance_of_loaded(leaf, "keras", "Layer")
