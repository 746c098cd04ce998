"""Which line of the user's code is running: the innermost frame outside the frameworks.

A message that names a line of TensorFlow helps nobody. The files of TensorFlow, Keras, JAX, PyTorch and detrand,
of the standard library and of tf_slim's layer functions are passed over; what remains is the model.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from types import CodeType
from typing import Any

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "jax", "torch", "wrapt", "detrand", "tf_slim/layers", "tf_slim/ops")
_AUTOGRAPH_FILE = "__autograph_generated_file"


class Site:
    """A place in a program. There is one object for each place, so sites are compared by identity.

    Attributes:
      filename: path of the source file, as Python knows it.
      line: line number, from 1; 0 where no user code is on the stack.
    """

    __slots__ = ("filename", "line")

    def __init__(self, filename: str, line: int):
        self.filename = filename
        self.line = line

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.line else self.filename

    def __repr__(self) -> str:
        return f"Site({str(self)!r})"


UNKNOWN = Site("<no user code on the stack>", 0)


_framework_files: set[str] = set()  # those that were met so far: a frame costs one lookup
_sites: dict[tuple[str, int], Site] = {}
# Random ops ask for their site each time they run: a bytecode offset costs a tenth of a line number. The code
# object is held, so that its id stays its own.
_sites_by_offset: dict[tuple[int, int], tuple[Site, CodeType]] = {}


def user_site(skip: int = 0) -> Site:
    """Returns the line of user code that the calling thread is executing.

    Args:
      skip: how many callers are known to be no user code.

    Returns:
      The innermost frame outside the frameworks, mapped back to the source that the user wrote where
      AutoGraph runs a rewritten copy of it; `UNKNOWN` where there is none.
    """
    framework_files = _framework_files
    frame: Any = sys._getframe(1 + skip)
    while True:
        try:
            while (code := frame.f_code).co_filename in framework_files:
                frame = frame.f_back
        except AttributeError:  # the outermost has none before it
            return UNKNOWN
        offset = (id(code), frame.f_lasti)
        if offset in _sites_by_offset:
            return _sites_by_offset[offset][0]
        if not is_framework(code.co_filename):
            known = _sites_by_offset[offset] = (site(code.co_filename, frame.f_lineno), code)
            return known[0]
        framework_files.add(code.co_filename)


def site_through_tensorflow(depth: int) -> Site | None:
    """Returns the line of user code that called something, or had TensorFlow call it; None if another framework did.

    Args:
      depth: how many frames below the caller of it this function is called.
    """
    frame = sys._getframe(depth)
    while frame is not None and _is_tensorflow(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or is_framework(frame.f_code.co_filename):
        return None
    return site(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=4096)
def _is_tensorflow(filename: str) -> bool:
    import tensorflow as tf

    root = os.path.dirname(os.path.realpath(tf.__file__)) + os.sep
    return os.path.realpath(filename).startswith(root)


def site(filename: str, line: int) -> Site:
    """Returns the place that a line is, or was rewritten from by AutoGraph."""
    if _AUTOGRAPH_FILE in os.path.basename(filename):
        from detrand._patching.tensorflow import autograph_origin

        filename, line = autograph_origin(filename, line)
    return _sites.setdefault((filename, line), Site(filename, line))


@functools.cache
def is_framework(filename: str) -> bool:
    """Returns whether a source file belongs to a framework rather than to the user."""
    if filename.startswith("<frozen"):
        return True
    path = os.path.realpath(filename).replace(os.sep, "/")
    if any(path.startswith(root) for root in _framework_roots()):
        return True
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"]).replace(os.sep, "/") + "/"
    return path.startswith(stdlib) and "/site-packages/" not in path


def _framework_roots() -> list[str]:
    roots = []
    for name in _FRAMEWORKS:
        package, _, rest = name.partition("/")
        module_file = getattr(sys.modules.get(package), "__file__", None)
        if module_file:
            root = os.path.dirname(os.path.realpath(module_file)).replace(os.sep, "/")
            roots.append(f"{root}/{rest}/" if rest else f"{root}/")
    return roots


_NEEDS_V1_LAYERS = "not available with Keras 3"  # TensorFlow of tf.compat.v1.layers and nn.rnn_cell
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Keras puts the message of an exception in bold


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Returns an exception in one line: type, message and the line of user code that raised it.

    Args:
      error: the exception.
      file: the user's file; the innermost line in it is named. Without it, the innermost outside the frameworks.
    """
    message = " ".join(_COLOUR.sub("", str(error)).split()) or "no message"
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    line = line_of_user(error, file)
    hint = "; call detrand.enable_v1_layers() first, which brings it back" if _NEEDS_V1_LAYERS in message else ""
    return f"{type(error).__name__}: {message}" + (f" ({line})" if line else "") + hint


def line_of_user(error: BaseException, file: str | None = None) -> str:
    """Returns ``file:line`` of the user code that raised an exception; arguments as for `describe_error`."""
    where = ""
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        is_users = os.path.realpath(filename) == os.path.realpath(file) if file else not is_framework(filename)
        if is_users:
            where = f"{filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return where
