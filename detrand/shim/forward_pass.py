"""`forward_pass`: a scope for the constructor of a TF1 model that makes its own placeholders and optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from detrand._patching.graphs import OPTIMIZER_UPDATES, PLACEHOLDERS, take_name
from detrand._patching.patches import Patches, Shared
from detrand.arguments import quote, wrong_type
from detrand.changes import Changes
from detrand.errors import ArgumentError
from detrand.scopes import Entered, Scope
from detrand.seeding import callsite


def forward_pass(feeds: Mapping[str, Any]) -> Scope:
    """Return a scope in which placeholders are fed by name, and TF1 optimizers update nothing.

    A model from 2017 often makes its own placeholders, and a training op, in its constructor. Make the model in this
    scope, in the function that both programs call. In a session, in eager code and in a ``tf.function`` alike, each
    placeholder is the tensor with its name in ``feeds``. The methods ``minimize`` and ``apply_gradients`` of a
    ``tf.compat.v1.train.Optimizer`` add no op and make no variable, because a session runs a training op only if it
    is fetched, but eager code would run it in each call.

    >>> import tensorflow as tf
    >>> from detrand import forward_pass
    >>> class Model:
    ...     def __init__(self):
    ...         x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
    ...         keep_prob = tf.compat.v1.placeholder(tf.float32, name="keep_prob")
    ...         self.outputs = x * keep_prob
    >>> def tf1(inputs, training):
    ...     with forward_pass({"x": inputs, "keep_prob": 0.5 if training else 1.0}):
    ...         return Model().outputs
    >>> print(tf1(tf.ones((1, 2)), training=True).numpy())
    [[0.5 0.5]]

    Args:
      feeds: a tensor, array or number for each placeholder, by the name that the placeholder has in TF1, such as
        ``"x"`` or ``"inputs/x"``. TF1 names placeholders without a name ``"Placeholder"``, ``"Placeholder_1"`` and so
        on. A feed is cast to the dtype of its placeholder, as in a session.

    Raises:
      ArgumentError: if ``feeds`` is no dict with text as keys. In the scope, if a placeholder has no feed, or a feed
        that does not fit; at its end, if no placeholder has the name of a feed.
    """
    if not isinstance(feeds, Mapping) or not all(isinstance(name, str) for name in feeds):
        raise wrong_type("feeds", feeds, "a dict from names of placeholders to tensors", 'write {"input_x": x}')

    return Scope("detrand.forward_pass(feeds)", lambda: _feeding(_Feeds(feeds)))


@contextlib.contextmanager
def _feeding(feeds: _Feeds) -> Iterator[None]:
    with Changes() as changes:
        _dispatchers.install(changes)
        changes.set(feeds, "open", True)
        _entered.enter(feeds, changes)
        yield
    feeds.check_used()


class _Feeds:
    """The feeds of a scope, and the names that the placeholders made in it have taken."""

    open = False

    def __init__(self, feeds: Mapping[str, Any]):
        self._feeds = dict(feeds)
        self._name_scope = tf.get_current_name_scope()
        self._counts: dict[str, int] = {}
        self._made: list[str] = []

    def fed(self, default: Callable[[], Any] | None, dtype: Any, shape: Any, name: str | None) -> Any:
        """Return the tensor for a placeholder; if it has no feed, ``default()``, or raise an `ArgumentError`."""
        dtype = tf.as_dtype(dtype)
        name = name or ("Placeholder" if default is None else "PlaceholderWithDefault")
        name_scope = tf.get_current_name_scope().removeprefix(self._name_scope).strip("/")
        path = take_name(name, name_scope, self._counts)
        self._made.append(path)
        described = f"placeholder {path!r} ({dtype.name}, shape {tf.TensorShape(shape)}) at "
        described += str(callsite.user_site())
        if path not in self._feeds:
            if default is not None:
                return default()
            raise ArgumentError(
                f"{described} is not fed. Feed it by its name: detrand.forward_pass({{{path!r}: ..., ...}}). If the "
                "outputs do not depend on it, as on labels, feed zeros of its shape"
            )
        feed = self._feeds[path]
        try:
            tensor = feed if tf.is_tensor(feed) else tf.convert_to_tensor(feed, dtype_hint=dtype)
            tensor = tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
        except (TypeError, ValueError, tf.errors.UnimplementedError) as error:
            raise ArgumentError(f"{described} is fed {quote(feed)}, which cannot be cast: {error}") from error
        if not tensor.shape.is_compatible_with(shape):
            raise ArgumentError(f"{described} is fed a tensor of shape {tensor.shape}. Feed one of the shape above")
        return tf.identity(tensor, name)

    def check_used(self) -> None:
        """Raise an `ArgumentError` if no placeholder had the name of a feed."""
        unused = sorted(self._feeds.keys() - set(self._made))
        if unused:
            made = ", ".join(map(repr, self._made)) or "no placeholder"
            raise ArgumentError(
                f"detrand.forward_pass feeds {', '.join(map(repr, unused))}, but the code in the scope made {made}. "
                "Rename or remove the feed"
            )


_entered: Entered[_Feeds] = Entered("detrand_feeds")


def _fed(original: Callable[..., Any]) -> Callable[..., Any]:
    def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Any:
        feeds = _entered.innermost()
        return original(dtype, shape, name) if feeds is None else feeds.fed(None, dtype, shape, name)

    return placeholder


def _fed_or_default(original: Callable[..., Any]) -> Callable[..., Any]:
    def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Any:
        feeds = _entered.innermost()
        if feeds is None:
            return original(input, shape, name)
        dtype = tf.convert_to_tensor(input).dtype
        return feeds.fed(lambda: original(input, shape, name), dtype, shape, name)

    return placeholder_with_default


def _updates_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) if _entered.innermost() is None else tf.no_op()

    return update


def _install(patches: Patches) -> None:
    for target in PLACEHOLDERS:
        patches.replace(target, _fed if target.attribute == "placeholder" else _fed_or_default)
    for target in OPTIMIZER_UPDATES:
        patches.replace(target, _updates_nothing)


_dispatchers = Shared(_install)
