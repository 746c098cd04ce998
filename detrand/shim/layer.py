"""`VariableScopeLayer`: a Keras layer whose forward pass is TF1 code."""

from __future__ import annotations

from typing import Any

import keras

from detrand.shim.decorator import track_tf1_style_variables


class VariableScopeLayer(keras.layers.Layer):
    """A base class for Keras layers whose forward pass is TF1 code.

    Subclasses define ``forward_pass`` with the arguments of ``call``. It works like a ``call`` that is decorated with
    `track_tf1_style_variables`.

    >>> import tensorflow as tf
    >>> from detrand import VariableScopeLayer, variables_of
    >>> class Scale(VariableScopeLayer):
    ...     def forward_pass(self, inputs, training=False):
    ...         return inputs * tf.compat.v1.get_variable("factor", (), initializer=tf.compat.v1.ones_initializer())
    >>> layer = Scale()
    >>> print(layer(tf.constant([2.0, 3.0])).numpy())
    [2. 3.]
    >>> list(variables_of(layer))
    ['factor']
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.forward_pass is not VariableScopeLayer.forward_pass:
            # Keras looks at the arguments of `call`.
            cls.call = track_tf1_style_variables(cls.forward_pass)  # type: ignore[method-assign]

    def forward_pass(self, *args: Any, **kwargs: Any) -> Any:
        """The TF1 code; a subclass must define it."""
        raise NotImplementedError(
            f"{type(self).__name__} is a VariableScopeLayer without a forward_pass. Define "
            "`def forward_pass(self, inputs, training=False)` with the TF1 code in it."
        )

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward_pass`."""
        return self.forward_pass(*args, **kwargs)
