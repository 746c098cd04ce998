"""The private state of TensorFlow's variables: their creation, their names, and which objects track them."""

from __future__ import annotations

from typing import Any

from detrand._patching.patches import Target

CREATE_VARIABLE = Target("tensorflow.python.ops.variables", "VariableMetaclass.__call__", ("cls",))


def is_unread(cls: Any) -> bool:
    """Return whether a class is that of the result of an assignment, which is no new variable."""
    from tensorflow.python.ops import resource_variable_ops

    return cls is resource_variable_ops._UnreadVariable


def scoped_variable_name(name: str | None) -> str:
    """Return the name that a variable would have if it were created now; the name stays free."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    name = name or "Variable"
    if name.endswith("/"):
        return name[:-1]
    with ops.init_scope():  # where variables are created
        if not context.executing_eagerly():
            return ops.get_default_graph().unique_name(name, mark_as_used=False)
        return f"{context.context().scope_name}{name}"


_OF_TF1 = "tf1_style_variables/"  # no attribute of the object can have such a name


def track_by_name(owner: Any, name: str, variable: Any) -> None:
    """Make a variable part of an object's ``tf.train.Checkpoint``, and restore it if a checkpoint is waiting for it."""
    from tensorflow.python.trackable import base

    key = _OF_TF1 + name
    known = vars(owner).get("_self_unconditional_dependency_names")
    is_plain = type(owner)._track_trackable is base.Trackable._track_trackable and not hasattr(
        owner, "_manual_tracking"
    )
    if known and key not in known and is_plain and not owner._deferred_dependencies:
        # _track_trackable does the same for every name after the first, but also sets attributes of the owner: the
        # first call of a Keras 3 layer with 20 variables would take 1.1 times as long.
        known[key] = variable
        owner._self_unconditional_checkpoint_dependencies.append(base.TrackableReference(key, variable))
        return
    owner._track_trackable(variable, name=key, overwrite=True)
    owner._handle_deferred_dependencies(name=key, trackable=variable)


def tracked_by_name(owner: Any, name: str) -> Any:
    """Return the variable that `track_by_name`, or the loader of a SavedModel, has made part of an object, or None."""
    if not hasattr(owner, "_self_unconditional_checkpoint_dependencies"):
        return None  # the object tracks nothing yet
    return owner._lookup_dependency(_OF_TF1 + name)


def save_slice(variable: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and shape of the partitioned variable that a variable is part of, or None."""
    info = getattr(variable, "_save_slice_info", None)
    return info and (info.full_name, tuple(info.full_shape))


def copy_save_slice(variable: Any, duplicate: Any) -> None:
    """Make a copy of a part of a partitioned variable a part, too: TensorFlow's copies are not."""
    info = getattr(variable, "_save_slice_info", None)
    if info:
        duplicate._set_save_slice_info(info)


def slice_spec(variable: Any) -> str:
    """Return which part of a partitioned variable a variable is, in the form that checkpoint ops take."""
    info = getattr(variable, "_save_slice_info", None)
    return info.spec if info else ""
