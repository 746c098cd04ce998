"""`reset_variables`, which sets every variable to one value, in a graph or eagerly."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from detrand.arguments import quote, wrong_type
from detrand.errors import ArgumentError
from detrand.packages import tf
from detrand.variables.sources import joined_variables
from detrand.variables.spec import shape_tuple


def reset_variables(source: Any, value: float = 0.001, session: Any = None) -> None:
    """Set every variable to one value, so that two programs can be compared without any randomness.

    >>> from detrand import reset_variables
    >>> weight, step = tf.Variable([1.0, 2.0]), tf.Variable(7)
    >>> reset_variables([weight, step])
    >>> print(weight.numpy(), step.numpy())
    [0.001 0.001] 0

    Integers and bools get the value without its fraction (0.001 becomes 0 and False), and strings become empty, in a
    graph and in its port alike. Seed generators keep their state.

    In a graph, variables need not be initialized (unless their static shape is unknown), no op is added, and the graph
    may be finalized.

    Args:
      source: anything that `variables_of` takes, except checkpoints and specs, which hold no variables.
      value: the value of every element.
      session: the session of a graph's variables; default: the default session.

    Raises:
      ArgumentError: if there are no variables, ``value`` is not a number or does not fit a variable's dtype, or a
        session is missing, belongs to a different graph, or is given although the variables are in no graph.
    """
    if not isinstance(value, Real):
        raise wrong_type("value", value, "a real number", "pass a number, such as value=0.001")
    joined = joined_variables("source", source)
    variables = [(name, part) for name, variable in joined.items() for part in variable.parts]
    if not variables:
        raise ArgumentError(
            f"there is nothing to reset: {quote(source)} has no variables. A layer has none before it is built or "
            "called. Call it once, then reset its variables"
        )
    # hasattr: TensorFlow's eager variables raise an AttributeError.
    in_graph = [(name, part) for name, v in variables if hasattr(v, "graph") for part in getattr(v, "values", (v,))]
    if in_graph:
        _reset_in_session(in_graph, value, session)
        return
    if session is not None:
        raise ArgumentError(
            f"session={quote(session)} was given, but the variables of {quote(source)} are in no graph. Remove the "
            "argument"
        )
    for name, variable in variables:
        shape = shape_tuple(variable.shape)
        is_known = shape is not None and None not in shape
        variable.assign(_filled(name, shape if is_known else tf.shape(variable).numpy(), variable.dtype, value))


def _reset_in_session(variables: list[tuple[str, Any]], value: float, session: Any) -> None:
    session = tf.compat.v1.get_default_session() if session is None else session
    if session is None:
        raise ArgumentError(
            f"variable {variables[0][0]!r} is in a tf.Graph, and no session was given. Pass session=, or call "
            "reset_variables inside `with session.as_default():`"
        )
    feeds = {}
    for name, variable in variables:
        if variable.graph is not getattr(session, "graph", None):
            raise ArgumentError(
                f"variable {name!r} is not in the graph of {quote(session)}. Pass the session that runs its graph"
            )
        shape = variable.shape
        if not shape.is_fully_defined():
            try:
                shape = np.shape(session.run(variable))
            except tf.errors.FailedPreconditionError:
                raise ArgumentError(
                    f"variable {name!r} has no static shape and is not initialized, so its number of elements is "
                    "unknown. Run its initializer first"
                ) from None
        # The initializer assigns its input, whatever is fed for it, so no op has to be added.
        feeds[variable.initializer.inputs[1]] = _filled(name, shape, variable.dtype, value)
    session.run([variable.initializer for _, variable in variables], feeds)


def _filled(name: str, shape: Any, dtype: Any, value: float) -> Any:
    dtype = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    if dtype.kind == "O":  # a string
        return np.full(shape, b"", object)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    if limits is not None and not limits.min <= value <= limits.max:  # NaN is neither
        raise ArgumentError(
            f"value={value!r} does not fit variable {name!r} of dtype {dtype.name}. Pass a value from {limits.min} to "
            f"{limits.max}"
        )
    return np.full(shape, int(value) if dtype.kind in "iub" else value).astype(dtype)
