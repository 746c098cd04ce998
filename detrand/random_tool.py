"""`DeterministicRandomTestTool`: the same random numbers in a TF1 session, eagerly and in a ``tf.function``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

from detrand._patching.patches import Patches, Shared
from detrand.arguments import wrong_type
from detrand.changes import Changes
from detrand.packages import is_installed
from detrand.scopes import Scope
from detrand.seeding import cursors
from detrand.seeding.cursors import Cursor
from detrand.seeding.streams import DEFAULT_STEP, RandomOp, Stream


class DeterministicRandomTestTool:
    """A tool that makes a TF1 program and its port draw the same random numbers, so that they can be compared.

    Run each program in the scope of its own tool, made with the same arguments. Random ops, variable initializers and
    dropout of TensorFlow, Keras 3 and tf_keras inside the scope then draw what the TF1 session draws. Op seeds that the
    programs set are overridden.

    >>> import tensorflow as tf
    >>> from detrand import DeterministicRandomTestTool
    >>> with DeterministicRandomTestTool().scope():
    ...     a = tf.random.uniform((3, 1)) * 3
    >>> print(a.numpy().ravel())
    [2.5063772 2.7488918 1.4839486]

    In a session:

    >>> with DeterministicRandomTestTool().scope(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     print(session.run(tf.random.uniform((3, 1)) * 3).ravel())
    [2.5063772 2.7488918 1.4839486]

    The scope is also a decorator:

    >>> @DeterministicRandomTestTool(seed=1, mode="num_random_ops").scope()
    ... def two_draws():
    ...     return tf.random.normal(()), tf.random.normal(())

    Args:
      seed: the seed of every op; an integer from 0 to 2**63 - 1.
      mode: ``"constant"`` (default): all ops take the same op seed, so ops of one type and shape draw the same numbers,
        and the order of ops does not matter. ``"num_random_ops"``: the i-th op takes op seed i (from 0), so every op
        draws its own numbers, and both programs must run their random ops in the same order.

    Raises:
      ArgumentError: for any other seed or mode.
    """

    def __init__(self, seed: int = 42, mode: str = "constant"):
        self._stream = Stream(seed, mode)

    def __repr__(self) -> str:
        return f"DeterministicRandomTestTool(seed={self._stream.seed}, mode={self._stream.mode!r})"

    @property
    def operation_seed(self) -> int:
        """The op seed that the next random op takes.

        In ``"num_random_ops"`` mode it goes up by one with each op, also from one scope of the tool to the next. It can
        be set, in either mode, to any non-negative integer below 2**63. A step or loop sets it in its first run only.

        >>> import tensorflow as tf
        >>> tool = DeterministicRandomTestTool(mode="num_random_ops")
        >>> with tool.scope():
        ...     _ = tf.random.uniform((3,))
        >>> tool.operation_seed
        1
        """
        return self._stream.operation_seed

    @operation_seed.setter
    def operation_seed(self, value: int) -> None:
        cursor = cursors.current()
        if cursor is None:
            self._stream.operation_seed = value
        else:
            cursor.assign(self._stream, value)

    @property
    def random_ops(self) -> tuple[RandomOp, ...]:
        """Records of the random ops that ran in the tool's scopes, in order, with the draws that no scope can control.

        The tool keeps about 120 bytes for each run of an op: 12 MB for 100,000.

        >>> import tensorflow as tf
        >>> tool = DeterministicRandomTestTool(mode="num_random_ops")
        >>> with tool.scope():
        ...     _ = tf.random.uniform((3,))
        >>> tool.random_ops[0].op_type, tool.random_ops[0].shape
        ('RandomUniform', (3,))
        """
        return self._stream.random_ops

    def scope(self) -> Scope:
        """Return a context manager in which random ops draw this tool's numbers.

        It yields the tool. Nothing changes before it is entered. However it is left, TensorFlow's global seed and
        generators and every function that it replaced are restored. Scopes can be nested: the innermost one decides
        from which tool an op draws, and the step, loop or function around it decides which run. Several threads or
        asyncio tasks can have scopes open: each scope governs the one that entered it, the threads and tasks started
        inside it, and the calls submitted to a ``ThreadPoolExecutor`` inside it.
        """
        return Scope("tool.scope()", self._scope)

    def step(self, name: str = DEFAULT_STEP) -> Scope:
        """Return a context manager whose block is one more ``Session.run`` of the same program.

        In the first block, random ops take op seeds as they do outside steps. In the k-th block (from 0), the i-th op
        takes the op seed of the first block's i-th op again, and draws what that op draws in its k-th run. Two kinds of
        ops are not part of this: an op that initializes a variable takes an op seed of its own whenever the variable is
        created, and an op inside a ``tf.function`` belongs to a graph, which counts its runs.

        >>> import tensorflow as tf
        >>> tool = DeterministicRandomTestTool()
        >>> with tool.scope():
        ...     for _ in range(2):
        ...         with tool.step():
        ...             print(tf.random.uniform((3,)).numpy() * 3)
        [2.5063772 2.7488918 1.4839486]
        [1.0985427  0.04636002 2.0274115 ]

        It yields k. It is also a decorator: each call of the function is a step. A step governs the thread or asyncio
        task that entered it and the threads and tasks started inside.

        Args:
          name: the program that the step is a run of. Programs such as training and evaluation have their own op seeds
            and runs; a program takes its op seeds in its first step.

        Raises:
          ArgumentError: if the name is not a str, or is empty.
          ScopeError: on entering: outside the tool's scope, in another step, or while a graph or function is built. On
            leaving: in another thread or asyncio task.
          StepMismatchError: if the block's random ops differ from the first block's in type, dtype or number: at the
            op, or on leaving if ops are missing. A block that is left by an exception raises nothing else.
        """
        if not isinstance(name, str) or not name:
            raise wrong_type("name", name, "a non-empty str", 'use tool.step(), or tool.step(name="eval")')
        return cursors.Step(self._stream, name, _executes())

    @contextlib.contextmanager
    def _scope(self) -> Iterator[DeterministicRandomTestTool]:
        from detrand.adapters import keras3

        with Changes() as changes:
            _dispatchers.install(changes)
            _keep_global_seed(changes)
            cursor = cursors.enter(self._stream, changes)
            with keras3.compiling_for(self._stream):
                yield self
            cursor.leave("a scope")


def dispatchers_installed() -> contextlib.AbstractContextManager[None]:
    """Return a scope that keeps the patches of all scopes installed, if a block enters many of them."""
    return _dispatchers.installed()


def stream_of(tool: DeterministicRandomTestTool) -> Stream:
    """Return a tool's stream, of which the tool's public attributes show only a part."""
    return tool._stream


def _install(patches: Patches) -> None:
    from detrand.adapters import keras3, modules, uncontrolled

    _keep_global_seed(patches)
    patches.run_threads_in(_scope_of_child_thread)
    if is_installed("tensorflow"):
        from detrand.adapters import tensorflow, tf_keras

        tensorflow.install(patches)
        tf_keras.install(patches)
    uncontrolled.install(patches)
    keras3.install(patches)
    modules.install(patches)


def _keep_global_seed(changes: Changes) -> None:
    if is_installed("tensorflow"):
        from detrand._patching.tensorflow import keep_global_seed

        keep_global_seed(changes)


@functools.cache
def _executes() -> Callable[[], bool]:
    """Return TensorFlow's function that returns whether ops are executed at once."""
    if not is_installed("tensorflow"):
        return lambda: True
    from detrand._patching.tensorflow import executing_eagerly

    return executing_eagerly


def _scope_of_child_thread() -> contextlib.AbstractContextManager[None] | None:
    cursor = cursors.current()
    return None if cursor is None else _governed_thread(cursor.for_child_thread())


@contextlib.contextmanager
def _governed_thread(cursor: Cursor) -> Iterator[None]:
    from detrand.adapters import keras3

    with cursors.governing_thread(cursor), keras3.compiling_for(cursor.stream):
        yield


_dispatchers = Shared(_install)
