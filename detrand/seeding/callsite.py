"""The line of the user's code that is running: the innermost frame outside the frameworks.

A message that names a line of TensorFlow helps nobody. `user_site` and `line_of_user` pass over the files of
TensorFlow, Keras, JAX, PyTorch, Flax and detrand, of the standard library and of tf_slim's layer functions; what
remains is the model.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from detrand.errors import DetrandError
from detrand.remedies import remedy_of

_FRAMEWORKS = (
    *(
        "tensorflow",
        "keras",
        "tf_keras",
        "jax",
        "torch",
        "flax",
        "optax",
        "sympy",
        "setuptools",
        "numpy",
        "wrapt",
        "absl",
        "optree",
        "detrand",
    ),
    *("tf_slim/layers", "tf_slim/ops"),
)
# What calls layers and functions of the program, or TensorFlow for it, and is on the stack between its own lines.
_BETWEEN = (
    "detrand/validation/training/train_op.py",
    "detrand/validation/programs/layer_sites.py",
    "detrand/validation/diagnosis/trace.py",
    "detrand/validation/frameworks/jax_trace.py",
    "detrand/validation/frameworks/torch_trace.py",
)
_DRAW_FOR_CALLER = (
    *("tensorflow/python/autograph", "numpy", "scipy", "sklearn", "pandas"),
    *("torch/nn", "torch/utils/data", "torch/distributions", "flax", "detrand/adapters/uncontrolled.py"),
)
_KERAS_DATA = re.compile(r"/src/(trainers/data_adapters|engine|(legacy/)?preprocessing)/|/src/utils/\w*data\w*\.py$")
_AUTOGRAPH_FILE = "__autograph_generated_file"
_MOST_CONTINUATIONS = 100  # in one function
_MOST_KEPT = 4096


class Site(NamedTuple):
    """A line of source code."""

    filename: str
    line: int  # from 1; 0 where no user code is on the stack

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.line else self.filename


class Call(NamedTuple):
    """A function that is called, and the line that it runs; named as in ``traceback.FrameSummary``."""

    filename: str
    lineno: int
    name: str


UNKNOWN = Site("<no user code on the stack>", 0)


# Random ops ask for their site each time they run, so what a frame costs is one lookup, and a bytecode offset a tenth
# of a line number. The code object is held, so that no other gets its id.
_framework_files: set[str] = set()
_sites_by_offset: dict[tuple[int, int], tuple[Site, CodeType]] = {}


def user_site(skip: int = 0) -> Site:
    """Return the line of user code that the calling thread is executing; `UNKNOWN` if there is none.

    Args:
      skip: number of callers known not to be user code.
    """
    frame: Any = sys._getframe(1 + skip)
    while True:
        try:
            while (code := frame.f_code).co_filename in _framework_files:
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
        if len(_framework_files) >= _MOST_KEPT:
            _framework_files.clear()
        _framework_files.add(code.co_filename)


def site_of_draw(depth: int, *also: str) -> Site | None:
    """Return the line of user code whose draw it is; `UNKNOWN` without one on the stack, None if a framework draws.

    NumPy draws for its caller, and so do the datasets of Keras, which draws for itself elsewhere.

    Args:
      depth: position on the stack of the frame that draws, counted from this function's, which is 0.
      also: other packages that draw for their caller.
    """
    frame: Any = sys._getframe(depth)
    while frame is not None and is_of_package(frame.f_code.co_filename, *_DRAW_FOR_CALLER, *also):
        frame, depth = frame.f_back, depth + 1
    if frame is None:
        return UNKNOWN
    filename = frame.f_code.co_filename
    if not is_framework(filename):
        return site(filename, frame.f_lineno)
    return user_site(depth) if _is_of_keras_data(filename) else None


def is_called_by(part: str) -> bool:
    """Return whether a folder or file of PyTorch has called detrand, perhaps by way of other parts of PyTorch."""
    frame: Any = sys._getframe(1)
    while is_of_package(frame.f_code.co_filename, "detrand", "torch"):
        if is_of_package(frame.f_code.co_filename, part):
            return True
        frame = frame.f_back
    return False


def site_of_op(op: Any) -> Site:
    """Return the line of the program that added an op to a graph; `UNKNOWN` if a framework added it by itself."""
    return site_of_traceback((frame.filename, frame.lineno) for frame in reversed(op.traceback or ()))


def site_of_traceback(lines: Iterable[tuple[str, int]]) -> Site:
    """Return the innermost line of the program, given a traceback, the innermost line first.

    The code that started a validation is no part of the program.
    """
    for filename, line in lines:
        if _starts_validation(filename):
            return UNKNOWN
        if _is_of_user(filename):
            return Site(filename, line)
    return UNKNOWN


def calls_of_op(op: Any) -> list[Any]:
    """Return the frames of the program that added an op to a graph, the outermost first: the user's, and Keras's."""
    found: list[Any] = []
    for frame in op.traceback or ():
        if _starts_validation(frame.filename):
            found.clear()
        elif is_of_user(frame) or is_of_package(frame.filename, "keras", "tf_keras"):
            found.append(frame)
    return found


def running_calls() -> tuple[Call, ...]:
    """Return the calls of the program that the calling thread is executing, the outermost first; see `calls_of`."""
    frames: list[Any] = []
    frame: Any = sys._getframe(1)
    while frame is not None and not _starts_validation(frame.f_code.co_filename):
        frames.append(frame)
        frame = frame.f_back
    return calls_of((each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in frames)


def calls_of(lines: Iterable[tuple[str, int, str]]) -> tuple[Call, ...]:
    """Return the calls of the program in a traceback, the innermost line first: all but those of detrand."""
    found = list[Call]()
    for filename, line, name in lines:
        if _starts_validation(filename):
            break
        if not is_of_package(filename, "detrand"):
            found.append(Call(filename, line, name))
    return tuple(reversed(found))


def site_of_calls(calls: Sequence[Call]) -> Site:
    """Return the innermost line of the program in calls of it."""
    return next((Site(each.filename, each.lineno) for each in reversed(calls) if is_of_user(each)), UNKNOWN)


def _starts_validation(filename: str) -> bool:
    """Return whether a file has code that starts a validation, which is no part of the program."""
    return is_of_package(filename, "detrand/validation") and not is_of_package(filename, *_BETWEEN)


def site_of_argument(value: Any) -> Site:
    """Return the line of user code that assigns an argument of the caller, makes it, or else passes it."""
    own: Any = getattr(value, "__code__", None)
    if own is not None and not is_framework(own.co_filename):
        return site(own.co_filename, own.co_firstlineno)
    frame: Any = sys._getframe(1)
    passed = UNKNOWN
    while frame is not None:
        filename, line, names = frame.f_code.co_filename, frame.f_lineno, frame.f_locals
        if filename != "<string>" and not is_framework(filename):  # where the __init__ of a dataclass is
            local = [name for name, each in names.items() if each is value]
            lines = [each for name in local for each in _stores(frame.f_code, name) if each <= line]
            if lines := lines[-1:] or ([] if local else _mentions(frame, value)):
                return site(filename, lines[0])
            if not local and passed == UNKNOWN:
                passed = site(filename, line)
        frame = frame.f_back  # it may have passed the value on
    return passed


def _stores(code: CodeType, name: str) -> list[int]:
    """Return the lines of code that assign to a name."""
    lines = [(end, line) for _, end, line in code.co_lines() if line is not None]
    offsets = [each.offset for each in dis.get_instructions(code) if "STORE" in each.opname and each.argval == name]
    found = (next((line for end, line in lines if offset < end), 0) for offset in offsets)
    return [line for line in found if line]


def _mentions(frame: Any, value: Any) -> list[int]:
    """Return the line of a function that runs at which it mentions a function, or the class of an object.

    That is a line of the statement that runs, or else the only line.
    """
    code, names = frame.f_code, {**frame.f_globals, **frame.f_locals}

    def resolved(name: str) -> Any:
        root, *attributes = name.split(".")
        found = names.get(root)
        for attribute in attributes:
            found = getattr(found, attribute, None) if inspect.ismodule(found) else None
        return found

    values = {name: resolved(name) for name in {name for _, _, found in _names_in(code) for _, name in found}}
    mentioned = {name for name, each in values.items() if each is value or each is type(value)}
    before, found = 0 if code.co_name == "<module>" else code.co_firstlineno - 1, list[tuple[int, bool]]()
    for first, last, lines in _names_in(code):
        runs = first <= frame.f_lineno - before <= last
        found += [(line + before, runs) for line, name in lines if name in mentioned]
    running = [line for line, runs in found if runs]
    return running[:1] or [line for line, _ in found if len(found) == 1]


@functools.lru_cache(maxsize=_MOST_KEPT)  # the functions that call the user's are the same for each argument
def _names_in(code: CodeType) -> list[tuple[int, int, list[tuple[int, str]]]]:
    """Return the first and the last line of each statement, and its names, such as ``losses.Huber``, with lines."""
    whole = code.co_name == "<module>"
    try:
        lines = linecache.getlines(code.co_filename) if whole else inspect.getsourcelines(code)[0]
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, ValueError, IndexError):  # the source of a lambda may be no statement
        return []
    return [
        (
            statement.lineno,
            statement.end_lineno or 0,
            [
                (node.lineno, _dotted(node))
                for node in ast.walk(statement)
                if isinstance(node, (ast.Name, ast.Attribute))
            ],
        )
        for statement in ast.walk(tree)
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body")
    ]


def _dotted(node: ast.expr) -> str:
    """Return the name that an expression is, such as ``losses.Huber``; nothing for an attribute of something else."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def site(filename: str, line: int) -> Site:
    """Return a line as a site: the line from which AutoGraph rewrote it, if it did."""
    if _AUTOGRAPH_FILE in os.path.basename(filename):
        from detrand._patching.tensorflow import autograph_origin

        filename, line, text = autograph_origin(filename, line)
        return Site(filename, _line_of(text.strip(), filename, line))
    return Site(filename, line)


def _line_of(text: str, filename: str, line: int) -> int:
    """Return the number of a line in its file, given AutoGraph's, which counts lines joined by a backslash as one."""
    for number in range(line, line + _MOST_CONTINUATIONS) if text else ():
        found = linecache.getline(filename, number).strip()
        if found and (found == text or (found.endswith("\\") and text.startswith(found[:-1].rstrip()))):
            return number
    return line


def is_of_user(frame: Any) -> bool:
    """Return whether a line in the traceback of an op, in which AutoGraph's are mapped, belongs to the user."""
    return _is_of_user(frame.filename)


def _is_of_user(filename: str) -> bool:
    # What AutoGraph adds has no line of its own. TensorFlow 2.16 rewrites tf_keras, too.
    return not is_framework(filename) and _AUTOGRAPH_FILE not in os.path.basename(filename)


@functools.lru_cache(maxsize=_MOST_KEPT)
def is_framework(filename: str) -> bool:
    """Return whether a source file belongs to a framework, rather than to the user."""
    if filename.startswith(("<frozen", "<eval_with_key>")) or is_of_package(filename, *_FRAMEWORKS):
        return True
    path = Path(os.path.realpath(filename))
    stdlib = os.path.realpath(sysconfig.get_paths()["stdlib"])
    return path.is_relative_to(stdlib) and "site-packages" not in path.parts


def _is_of_keras_data(filename: str) -> bool:
    return is_of_package(filename, "keras", "tf_keras") and bool(_KERAS_DATA.search(Path(filename).as_posix()))


@functools.lru_cache(maxsize=_MOST_KEPT)
def is_of_package(filename: str, *packages: str) -> bool:
    """Return whether a source file belongs to one of some packages, or folders of packages, that are imported."""
    path = Path(os.path.realpath(filename))
    for name in packages:
        package, _, folder = name.partition("/")
        module_file = getattr(sys.modules.get(package), "__file__", None)
        if module_file and path.is_relative_to(Path(os.path.realpath(module_file)).parent / folder):
            return True
    return False


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Keras puts the message of an exception in bold
# TensorFlow's message for an op that failed in a graph: the calls that added the op, the message, the calls again.
_IN_GRAPH = re.compile(r"Detected at node.*?\(most recent call last\):(.*?)\nNode: '.*?'\n(.*?)\s*\[\[\{\{", re.DOTALL)
_IN_KERAS = re.compile(r"Exception encountered when calling .*?\n\n(.*?)\n\n(?:Call )?[Aa]rguments received", re.DOTALL)
_CALL = re.compile(r'File "([^"]+)", line (\d+)')


def describe_error(error: BaseException) -> str:
    """Return an exception in one line: type, message, the line of user code, and what to do if that is known.

    The line is the innermost one outside the frameworks; for an op that failed in a graph, the line that added the op.
    """
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    line, text = line_of_user(error), _COLOUR.sub("", str(error))
    if in_keras := _IN_KERAS.search(text):
        text = in_keras[1]
    if in_graph := _IN_GRAPH.search(text):
        calls, text = in_graph.groups()
        added = [site(name, int(number)) for name, number in _CALL.findall(calls) if not is_framework(name)]
        line = str(added[-1]) if added else line
    message = " ".join(text.split()) or "no message"
    remedy = "" if isinstance(error, DetrandError) else remedy_of(message)
    return f"{type(error).__name__}: {message}" + (f" ({line})" if line else "") + (f"; {remedy}" if remedy else "")


def line_of_user(error: BaseException) -> str:
    """Return ``file:line`` of the innermost user code that an exception has passed; an empty text if there is none."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        filename = frame.f_code.co_filename
        if filename != "<string>" and not is_framework(filename):  # where the __init__ of a dataclass is
            where = f"{filename}:{line}"
    return where
