"""`TrainStep`: how both programs of a migration are trained, so that their steps can be compared."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detrand.arguments import check_callable, check_takes_nothing
from detrand.comparison.step_comparison import Tolerance, checked_tolerances
from detrand.errors import ArgumentError
from detrand.validation.batches import as_labels

Metric = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """How a TF1 model and its port are trained; with it, a `Migration` has one more check, ``training-steps``.

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from detrand import Migration, TrainStep, validate
    >>> def tf1(inputs, training):
    ...     return tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))
    >>> migration = Migration(
    ...     tf1=tf1,
    ...     tf2=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
    ...     inputs=np.ones((4, 3), np.float32),
    ...     train=TrainStep(
    ...         labels=np.zeros((4, 2), np.float32),
    ...         tf1_loss=tf.compat.v1.losses.mean_squared_error,
    ...         tf2_loss=keras.losses.MeanSquaredError(),
    ...         tf1_optimizer=lambda: tf.compat.v1.train.AdamOptimizer(0.01),
    ...         tf2_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
    ...         steps=3,
    ...     ),
    ... )
    >>> validate(migration).checks[-1].ok
    True

    Args:
      labels: an array, or a tuple, list or dict of arrays, each with the batch as its first axis; the same in every
        step. Or a callable without arguments that returns an iterable of such batches: step k takes batch k. Where
        there are fewer batches than steps, they start over; then ``labels()`` and the migration's ``inputs()`` must
        give equally many.
      tf1_loss: called as ``tf1_loss(labels, outputs)`` in the graph, with what ``tf1`` returned; returns a scalar. The
        regularization losses of the graph are added to it: it must not contain them.
      tf2_loss: called as ``tf2_loss(labels, outputs)`` with what the port returned. The port's ``losses`` are added to
        it, if it is of a kind that has any. With a strategy it is called on each replica, with that part of the batch,
        and the sum over the replicas counts: a mean divides by the size of the whole batch, as
        ``tf.nn.compute_average_loss`` does.
      tf1_optimizer: called without arguments in the graph; returns a ``tf.compat.v1.train.Optimizer``. Its learning
        rate may depend on ``tf.compat.v1.train.get_or_create_global_step()``, which counts the updates.
      tf2_optimizer: called without arguments; returns an optimizer of Keras 3 or tf_keras, or one of
        ``tf.compat.v1.train``.
      var_list: what a step trains out of the trainable variables, as the ``var_list`` of TF1's ``minimize``: their TF1
        names, in which ``*`` stands for any letters, as in ``["logits/*"]``. All of them by default. The port may have
        frozen the others, or not.
      metrics: name -> a function ``metric(labels, outputs)`` for both programs, or a pair of them, ``(tf1, tf2)``. In
        the graph it may return ``(value, update_op)`` as ``tf.compat.v1.metrics`` do. For the port it may be a Keras
        metric, which is reset before the first step.
      steps: how many steps are compared.
      tolerances: how close they must be, as for `compare_steps`; what none of them covers is held to the migration's
        ``rtol`` and ``atol`` in steps 0 to 9 and to rtol 5% later.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """

    labels: Any
    tf1_loss: Callable[[Any, Any], Any]
    tf2_loss: Callable[[Any, Any], Any]
    tf1_optimizer: Callable[[], Any]
    tf2_optimizer: Callable[[], Any]
    var_list: Sequence[str] | None = None
    metrics: Mapping[str, Metric | tuple[Metric, Metric]] = field(default_factory=dict)
    steps: int = 5
    tolerances: Sequence[Tolerance] = ()

    def __post_init__(self) -> None:
        for name in ("tf1_loss", "tf2_loss"):
            check_callable(name, getattr(self, name), f"a function {name}(labels, outputs) that returns a scalar")
        for name in ("tf1_optimizer", "tf2_optimizer"):
            value = getattr(self, name)
            check_callable(name, value, "a function without arguments that makes an optimizer, such as lambda: Adam()")
            check_takes_nothing(name, value, "makes an optimizer", "lambda: Adam(0.001)")
        if type(self.steps) is not int or self.steps < 1:
            raise ArgumentError(
                f"steps must be an integer from 1, but {self.steps!r} was given; pass steps=5, say, so that what an "
                "optimizer accumulates counts"
            )
        given = self.var_list
        if given is not None and not (isinstance(given, (list, tuple)) and given and all(map(_is_name, given))):
            raise ArgumentError(
                f"var_list must be a list of names of TF1 variables, or None for all, but {given!r} was given; write "
                'var_list=["logits/*"], say'
            )
        if not isinstance(self.metrics, Mapping):
            raise ArgumentError(f"metrics must be a dict of name -> function, but {self.metrics!r} was given")
        for name in self.metrics:
            if not all(map(callable, (self.metric("tf1", name), self.metric("tf2", name)))):
                raise ArgumentError(
                    f"metrics[{name!r}] must be a function metric(labels, outputs), or a pair of them, (tf1, tf2), "
                    f"but {self.metrics[name]!r} was given"
                )
        checked_tolerances(self.tolerances)
        if not callable(self.labels):
            as_labels(self.labels)

    def trains(self, name: str) -> bool:
        """Returns whether a step trains the trainable variable of a TF1 name."""
        return self.var_list is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.var_list)

    def metric(self, side: str, name: str) -> Any:
        """Returns the metric of one program, ``"tf1"`` or ``"tf2"``."""
        given: Any = self.metrics[name]
        return given[side == "tf2"] if isinstance(given, tuple) and len(given) == 2 else given


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and bool(given)
