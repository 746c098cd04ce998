"""`DeterministicRandomTestTool`: the same random numbers in a TF1 session, eagerly and in a function."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from detrand._patching.patches import Patches, Shared
from detrand._patching.tensorflow import executing_eagerly, global_seed_restored
from detrand.errors import ArgumentError, ScopeError
from detrand.scopes import Scope
from detrand.seeding import streams
from detrand.seeding.records import RandomOp
from detrand.seeding.streams import DEFAULT_STEP, Cursor, Stream


class DeterministicRandomTestTool:
    """Makes TF1 graph code and its TF2 port draw the same random numbers, so that they can be compared.

    Run each of the two programs in a scope of a tool of its own, made with the same arguments. Random ops, variable
    initializers and dropout of TensorFlow, Keras 3 and tf_keras inside the scope then draw what the TF1 session
    draws. Op seeds that the programs set themselves are overridden.

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

    The scope is a decorator, too:

    >>> @DeterministicRandomTestTool(seed=1, mode="num_random_ops").scope()
    ... def two_draws():
    ...     return tf.random.normal(()), tf.random.normal(())

    Args:
      seed: the seed of every op; an integer from 0 to 2**63 - 1.
      mode: ``"constant"`` (default): all ops take the same op seed, so ops of one type and shape draw
        the same numbers, and the order of ops does not matter. ``"num_random_ops"``: the i-th op takes op
        seed i (from 0), so every op draws its own numbers, and both programs must run their
        random ops in the same order.

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

        In ``"num_random_ops"`` mode it goes up by one with each op, and goes on in the tool's next scope.
        It can be set, in either mode, to any non-negative integer below 2**63.

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
        self._stream.operation_seed = value

    @property
    def random_ops(self) -> tuple[RandomOp, ...]:
        """Every random op that the tool has given an op seed, in order, and what it found that no scope can control.

        >>> import tensorflow as tf
        >>> tool = DeterministicRandomTestTool(mode="num_random_ops")
        >>> with tool.scope():
        ...     _ = tf.random.uniform((3,))
        >>> tool.random_ops[0].op_type, tool.random_ops[0].shape
        ('RandomUniform', (3,))
        """
        return self._stream.random_ops

    def scope(self) -> Scope:
        """Returns a context manager in which random ops draw this tool's numbers.

        It yields the tool. Nothing is changed before it is entered. However it is left, TensorFlow's
        global seed and generators and every function that it had replaced are as they were before.
        Scopes can be nested, the innermost one counting, and open in several threads at once: each governs the
        thread that entered it, and the threads started inside it.
        """
        return Scope("tool.scope()", self._open_scope)

    def step(self, name: str = DEFAULT_STEP) -> Scope:
        """Returns a context manager whose block is one more ``Session.run`` of the same program.

        In the first block, random ops take op seeds as outside of steps. In the k-th block (from 0) the i-th op takes
        the op seed of the first block's i-th op again, and draws what that op draws when it runs for the k-th time.
        What initializes a variable is no part of that: it takes an op seed of its own whenever the variable is
        created. Nor is an op inside a ``tf.function``, whose graph counts its runs.

        >>> import tensorflow as tf
        >>> tool = DeterministicRandomTestTool()
        >>> with tool.scope():
        ...     for _ in range(2):
        ...         with tool.step():
        ...             print(tf.random.uniform((3,)).numpy() * 3)
        [2.5063772 2.7488918 1.4839486]
        [1.0985427  0.04636002 2.0274115 ]

        It yields k, and is a decorator, too: each call of the function is a step. A step governs the thread that
        entered it and the threads started inside.

        Args:
          name: which program the step is a run of. Each has its own op seeds and runs, as what a session runs for
            training and for evaluation has; it takes its op seeds in its first step.

        Raises:
          ArgumentError: for a name that is no str, or empty.
          ScopeError: on entering: outside of the tool's scope, in another step, or while a graph or function is built.
          StepMismatchError: if the block executes other random ops than the first one, in type, dtype or number: at
            the op, or on leaving where ops are missing. A block that is left by an exception raises nothing else.
        """
        if not isinstance(name, str) or not name:
            raise ArgumentError(
                f"name must be a str that is not empty, but {name!r} of type {type(name).__name__} was given; use "
                'tool.step(), or tool.step(name="eval")'
            )
        return Scope("tool.step()", lambda stack: self._open_step(stack, name))

    def _open_step(self, stack: contextlib.ExitStack, name: str) -> int:
        cursor = streams.current()
        if cursor is None or cursor.stream is not self._stream:
            where = "outside of every scope" if cursor is None else "in the scope of another tool"
            raise ScopeError(f"tool.step() was entered {where}; put `with tool.scope():` around all steps")
        if not executing_eagerly():
            raise ScopeError(
                "tool.step() was entered while a graph or a tf.function is built. A step is for code that is executed "
                "at once: put it around the call of the function; the runs of a Session need none"
            )
        return stack.enter_context(cursor.step(name))

    def _open_scope(self, stack: contextlib.ExitStack) -> DeterministicRandomTestTool:
        from detrand.adapters import keras3

        stack.enter_context(_dispatchers)
        stack.enter_context(global_seed_restored())
        stack.callback(streams.leave, streams.enter(self._stream))
        stack.enter_context(keras3.compiling_for(self._stream))
        return self


def tool_with_op_seeds(seed: int, op_seeds: Sequence[int]) -> DeterministicRandomTestTool:
    """Returns a tool whose first random ops take given op seeds, each another one, and the others those above."""
    tool = DeterministicRandomTestTool(seed, "num_random_ops")
    tool._stream.give_next(op_seeds)
    return tool


def make_keras_draw_float32(tool: DeterministicRandomTestTool) -> None:
    """Lets Keras's layers in the tool's scope draw float32 numbers where they ask for others, and cast."""
    tool._stream.keras_draws_float32 = True


def _install(patches: Patches) -> None:
    from detrand.adapters import keras3, tensorflow, tf_keras

    patches.enter(global_seed_restored())
    patches.run_threads_in(_scope_of_child_thread)
    tensorflow.install(patches)
    keras3.install(patches)
    tf_keras.install(patches)


def _scope_of_child_thread() -> contextlib.AbstractContextManager[None] | None:
    cursor = streams.current()
    return None if cursor is None else _governed_thread(cursor.for_child_thread())


@contextlib.contextmanager
def _governed_thread(cursor: Cursor) -> Iterator[None]:
    from detrand.adapters import keras3

    with streams.governing_thread(cursor), keras3.compiling_for(cursor.stream):
        yield


_dispatchers = Shared(_install)
