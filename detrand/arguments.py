"""Argument checks, and the words of messages: quoted values, counted nouns, numbers, percentages, shortened lists."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable
from typing import Any

from detrand.errors import ArgumentError


def wrong_type(name: str, given: Any, accepted: str, remedy: str = "") -> ArgumentError:
    """Return the error for an argument of a type that is not accepted."""
    message = f"{name} must be {accepted}, but {quote(given)} of type {type(given).__name__} was given"
    return ArgumentError(f"{message}; {remedy}" if remedy else message)


def check_callable(name: str, given: Any, accepted: str) -> None:
    """Raise an `ArgumentError` unless an argument can be called."""
    if not callable(given):
        raise wrong_type(name, given, accepted)


def check_factory(name: str, factory: Any, what: str, example: str) -> None:
    """Raise an `ArgumentError` unless an argument can be called without arguments."""
    accepted = f"a function without arguments that {what}, such as {example}"
    check_callable(name, factory, accepted)
    # A layer or model of Keras, or a module. Of some, the value cannot be read before they are built.
    names = ("trainable_variables", "named_parameters", "set_attributes")
    if not inspect.isclass(factory) and any(inspect.getattr_static(factory, name, None) is not None for name in names):
        raise wrong_type(name, factory, accepted)
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ArgumentError(
            f"{name} must be a function without arguments that {what}, but {quote(factory)} cannot be called "
            f"without arguments ({error}). Pass a factory, such as {example}"
        ) from None
    except ValueError:
        pass  # a builtin without a signature


def takes_one_argument(function: Any) -> bool:
    """Return whether a function must be called with one argument.

    >>> takes_one_argument(lambda parameters: None), takes_one_argument(lambda rate=0.1: None)
    (True, False)
    """
    try:
        signature = inspect.signature(function)
        signature.bind(None)
    except (TypeError, ValueError):  # of something that takes no argument, or cannot be called, or is a builtin
        return False
    try:
        signature.bind()
    except TypeError:
        return True
    return False


def as_int(value: Any) -> int | None:
    """Return an integer of any type as an int; None for anything else, booleans included.

    >>> as_int(3), as_int(3.0), as_int(True)
    (3, None, None)
    """
    if type(value).__name__ in ("bool", "bool_"):  # Python's, and NumPy's, which some versions take for an index
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def shorten(text: str, width: int) -> str:
    """Return a text, cut to a width."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def quote(value: Any) -> str:
    """Return the repr of a value for a message: in one line, cut to 80 characters."""
    return shorten(" ".join(repr(value).split()), 80)


def titled_list(title: str, items: Iterable[object]) -> list[str]:
    """Return the lines of a list under its title and count; none for an empty list.

    >>> titled_list("only in TF1", ["net/w", "net/b"])
    ['only in TF1 (2):', '  net/w', '  net/b']
    """
    lines = [f"  {item}" for item in items]
    return [f"{title} ({len(lines)}):", *lines] if lines else []


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun, in the singular or the plural.

    >>> plural(1, "variable"), plural(2, "variable"), plural(0, "entry", "entries")
    ('1 variable', '2 variables', '0 entries')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def number(value: float) -> str:
    """Return a number with at most 4 significant digits, except that an int below a million has all its digits.

    >>> number(12345), number(2**40), number(0.000123456)
    ('12,345', '1.1e+12', '0.0001235')
    """
    return f"{value:,}" if isinstance(value, int) and abs(value) < 1_000_000 else f"{value:.4g}"


def percent(count: int, total: int) -> str:
    """Return how many per cent of a total a count is; only nothing is 0 %, and only everything is 100 %.

    >>> percent(2, 3), percent(5, 5), percent(1, 10_000), percent(9_999, 10_000)
    ('66.7 %', '100 %', '<0.1 %', '>99.9 %')
    """
    if count in (0, total):
        return "100 %" if count else "0 %"
    share = 100 * count / total
    return "<0.1 %" if share < 0.1 else ">99.9 %" if share > 99.9 else f"{share:.3g} %"


def and_more(items: Iterable[object], most: int, separator: str = ", ") -> str:
    """Return a list in words that names the first items and counts the others.

    >>> and_more(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    >>> and_more(["a", "b"], most=2)
    'a, b'
    """
    texts = [str(item) for item in items]
    rest = len(texts) - most
    return separator.join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")
