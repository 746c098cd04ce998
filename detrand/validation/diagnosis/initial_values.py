"""How variables are initialized, in words that are the same for TF1's initializers, Keras 3's and tf_keras's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from detrand._patching.keras import underlying_variable
from detrand.validation.diagnosis.dataflow import Dataflow

DRAWS = {"RandomUniform": "uniform", "RandomStandardNormal": "normal", "TruncatedNormal": "truncated normal"}
DRAWS |= {f"Stateless{name}{version}": kind for name, kind in DRAWS.items() for version in ("", "V2")}
DRAWS |= {f"StatelessRandomNormal{version}": "normal" for version in ("", "V2")}
_ADDS = ("AddV2", "Add")


def describe_initial_value(tensor: tf.Tensor) -> str | None:
    """Returns how an initial value is made, in words, such as ``"uniform from -0.5 to 0.5"``; None if it is not known.

    >>> with tf.Graph().as_default():
    ...     print(describe_initial_value(tf.random.uniform((3, 2), -0.5, 0.5)))
    uniform from -0.5 to 0.5
    """
    flow = Dataflow({})
    constant = flow.number(tensor)
    if constant is not None:
        return f"constant {constant:.6g}"
    scale, shift = 1.0, 0.0
    for _ in range(20):  # that many steps lead from no draw to its variable
        op = tensor.op
        if op.type in DRAWS:
            kind = DRAWS[op.type]
            if kind == "uniform":
                return f"uniform from {shift:.6g} to {scale + shift:.6g}"
            return f"{kind} of stddev {abs(scale):.6g}" + (f" and mean {shift:.6g}" if shift else "")
        if "Qr" in (op.type, *(operand.op.type for operand in op.inputs)):  # the sign of its columns is set
            return "orthogonal" + (f", times {scale:.6g}" if scale != 1 else "")
        if op.type in ("Mul", *_ADDS) and len(op.inputs) == 2:
            numbers = [flow.number(operand) for operand in op.inputs]
            if (numbers[0] is None) == (numbers[1] is None):
                return None
            number = numbers[0] if numbers[1] is None else numbers[1]
            assert number is not None
            scale, shift = (scale * number, shift) if op.type == "Mul" else (scale, shift + scale * number)
            tensor = op.inputs[0 if numbers[0] is None else 1]
        elif op.inputs:
            tensor = op.inputs[0]
        else:
            break
    return None


def describe_initializer(initial_value: Callable[[], Any]) -> str | None:
    """Returns what a function that makes an initial value would add to a graph, in words; None if that is not known."""
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tf_keras warns of an initializer that draws twice; here it draws nothing
        value = initial_value()
        return describe_initial_value(value) if isinstance(value, tf.Tensor) else None


class CreatedVariables:
    """Knows how the variables that are made in a block are initialized, whoever makes them.

    >>> with CreatedVariables().watched() as created:
    ...     variable = tf.Variable(lambda: tf.random.normal((3, 2), stddev=0.1))
    >>> created.initializer_of(variable)
    'normal of stddev 0.1'
    """

    def __init__(self) -> None:
        self._initial_values: dict[int, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[CreatedVariables]:
        """Notes the variables that are made in the block."""

        def note(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            variable = next_creator(**arguments)
            made = underlying_variable(variable)
            self._initial_values[id(made)] = made, arguments.get("initial_value")
            return variable

        with tf.variable_creator_scope(note):
            yield self

    def initializer_of(self, variable: Any) -> str | None:
        """Returns how a variable is initialized; None if it was made elsewhere, or of an array that was drawn."""
        _, initial_value = self._initial_values.get(id(variable), (None, None))
        with contextlib.suppress(Exception):  # an initializer of the user's may need what is not here
            if callable(initial_value):
                return describe_initializer(initial_value)
            if initial_value is not None and tf.executing_eagerly():
                array = tf.convert_to_tensor(initial_value).numpy()
                return describe_initializer(lambda: tf.constant(array))
        return None
