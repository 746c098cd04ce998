"""The line of the user's code that is running: the innermost frame outside the frameworks.

A message that names a line of TensorFlow helps nobody. `user_site` and `line_of_user` pass over the files of
TensorFlow, Keras, JAX, PyTorch and detrand, of the standard library and of tf_slim's layer functions; what remains is
the model.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from types import CodeType
from typing import Any, NamedTuple

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "jax", "torch", "wrapt", "detrand", "tf_slim/layers", "tf_slim/ops")
_AUTOGRAPH_FILE = "__autograph_generated_file"
_MOST_KEPT = 4096


class Site(NamedTuple):
    """A line of source code.

    Attributes:
      filename: path of the source file, as Python knows it.
      line: line number, from 1; 0 where no user code is on the stack.
    """

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.line else self.filename


UNKNOWN = Site("<no user code on the stack>", 0)


# Random ops ask for their site each time they run, so what a frame costs is one lookup, and a bytecode offset a tenth
# of a line number. The code object is held, so that no other gets its id.
_framework_files: set[str] = set()
_sites_by_offset: dict[tuple[int, int], tuple[Site, CodeType]] = {}


def user_site(skip: int = 0) -> Site:
    """Return the line of user code that the calling thread is executing.

    Args:
      skip: number of callers known not to be user code.

    Returns:
      The innermost frame outside the frameworks, mapped back to the user's source where AutoGraph runs a rewritten copy
      of it; `UNKNOWN` if there is none.
    """
    framework_files = _framework_files
    frame: Any = sys._getframe(1 + skip)
    while True:
        try:
            while (code := frame.f_code).co_filename in framework_files:
                frame = frame.f_back
        except AttributeError:  # the outermost frame has no caller
            return UNKNOWN
        offset = (id(code), frame.f_lasti)
        if offset in _sites_by_offset:
            return _sites_by_offset[offset][0]
        if not is_framework(code.co_filename):
            found = site(code.co_filename, frame.f_lineno)
            if len(_sites_by_offset) >= _MOST_KEPT:
                _sites_by_offset.clear()
            _sites_by_offset[offset] = found, code
            return found
        if len(framework_files) >= _MOST_KEPT:
            framework_files.clear()
        framework_files.add(code.co_filename)


def site_through_tensorflow(depth: int) -> Site | None:
    """Return the line of user code that called something directly or through TensorFlow; None for another framework.

    Args:
      depth: position on the stack of the frame that called it, counted from this function's, which is 0.
    """
    frame = sys._getframe(depth)
    while frame is not None and _is_tensorflow(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or is_framework(frame.f_code.co_filename):
        return None
    return site(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=_MOST_KEPT)
def _is_tensorflow(filename: str) -> bool:
    import tensorflow as tf

    root = os.path.dirname(os.path.realpath(tf.__file__)) + os.sep
    return os.path.realpath(filename).startswith(root)


def site_of_op(op: Any) -> Site:
    """Return the line of user code that added an op to a graph; `UNKNOWN` if there is none."""
    for frame in reversed(op.traceback or ()):
        if not is_framework(frame.filename):
            return site(frame.filename, frame.lineno)
    return UNKNOWN


def site(filename: str, line: int) -> Site:
    """Return a line as a site: the line from which AutoGraph rewrote it, if it did."""
    if _AUTOGRAPH_FILE in os.path.basename(filename):
        from detrand._patching.tensorflow import autograph_origin

        return Site(*autograph_origin(filename, line))
    return Site(filename, line)


@functools.lru_cache(maxsize=_MOST_KEPT)
def is_framework(filename: str) -> bool:
    """Return whether a source file belongs to a framework, rather than to the user."""
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


_NEEDS_V1_LAYERS = "not available with Keras 3"  # TensorFlow's message for tf.compat.v1.layers and nn.rnn_cell
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Keras puts the message of an exception in bold


def describe_error(error: BaseException, file: str | None = None) -> str:
    """Return an exception in one line: type, message and the line of user code that raised it.

    Args:
      error: the exception.
      file: the user's file, whose innermost line is named. Without it, the innermost line outside the frameworks.
    """
    message = " ".join(_COLOUR.sub("", str(error)).split()) or "no message"
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    line = line_of_user(error, file)
    hint = "; call detrand.enable_v1_layers() first, which brings it back" if _NEEDS_V1_LAYERS in message else ""
    return f"{type(error).__name__}: {message}" + (f" ({line})" if line else "") + hint


def line_of_user(error: BaseException, file: str | None = None) -> str:
    """Return ``file:line`` of the user code that raised an exception; arguments as for `describe_error`."""
    where = ""
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        is_users = os.path.realpath(filename) == os.path.realpath(file) if file else not is_framework(filename)
        if is_users:
            where = f"{filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return where
