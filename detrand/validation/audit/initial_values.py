"""Initial values of variables in words, the same for the initializers of TF1, Keras 3 and tf_keras.

`describe_initial_value` reads them from the ops of a graph, `describe_initializer` from what a variable was created by.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from detrand.errors import passing_over
from detrand.packages import tf
from detrand.validation.audit.dataflow import ADDS, Dataflow

DRAWS = {"RandomUniform": "uniform", "RandomStandardNormal": "normal", "TruncatedNormal": "truncated normal"}
DRAWS |= {f"Stateless{name}{version}": kind for name, kind in DRAWS.items() for version in ("", "V2")}
DRAWS |= {f"StatelessRandomNormal{version}": "normal" for version in ("", "V2")}
_MOST_OPS = 20  # no initializer has more between its draw and its variable


def describe_initial_value(tensor: tf.Tensor) -> str | None:
    """Return an initial value in words, such as ``"uniform from -0.5 to 0.5"``, or None if its kind is unknown.

    >>> with tf.Graph().as_default():
    ...     print(describe_initial_value(tf.random.uniform((3, 2), -0.5, 0.5)))
    uniform from -0.5 to 0.5
    """
    flow = Dataflow({})
    constant = flow.number(tensor)
    if constant is not None:
        return f"constant {constant:.6g}"
    scale, shift = 1.0, 0.0
    for _ in range(_MOST_OPS):
        op = tensor.op
        if op.type in DRAWS:
            return _describe_draw(DRAWS[op.type], scale, shift)
        if "Qr" in (op.type, *(operand.op.type for operand in op.inputs)):  # then the signs of its columns are set
            return "orthogonal" + (f", times {scale:.6g}" if scale != 1 else "")
        if op.type in ("Mul", *ADDS):
            parts = flow.number_and_rest(op, ("Mul", *ADDS))
            if parts is None:
                return None
            number, tensor = parts
            scale, shift = (scale * number, shift) if op.type == "Mul" else (scale, shift + scale * number)
        elif op.inputs:
            tensor = op.inputs[0]
        else:
            return None
    return None


def _describe_draw(kind: str, scale: float, shift: float) -> str:
    if kind == "uniform":
        return f"uniform from {shift:.6g} to {scale + shift:.6g}"
    return f"{kind} of stddev {abs(scale):.6g}" + (f" and mean {shift:.6g}" if shift else "")


def describe_initializer(initial_value: Any) -> str | None:
    """Return an initial value, or what a function returns as one, in words; None if its kind is unknown.

    >>> describe_initializer(lambda: tf.random.normal((3, 2), stddev=0.1))
    'normal of stddev 0.1'
    """
    # A user's initializer may raise outside of its program. tf_keras warns of one that draws twice; here it draws
    # nothing.
    with passing_over(), warnings.catch_warnings(), tf.Graph().as_default():
        warnings.simplefilter("ignore")
        value = initial_value() if callable(initial_value) else np.asarray(initial_value)
        if isinstance(value, np.ndarray) and value.size == 1:  # which may be random
            return None
        return describe_initial_value(tf.convert_to_tensor(value))
    return None
