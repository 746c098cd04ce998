"""The errors that detrand raises, and `passing_over` for those that end no report.

The docstring of each class gives the cause and the remedy.

Every error is a `DetrandError` and also a builtin error (`ValueError`, `AssertionError`, `RuntimeError` or
`ImportError`), so code that was written for TensorFlow's own tools catches it too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_log = logging.getLogger("detrand")


class DetrandError(Exception):
    """Base class of all errors that detrand raises."""

    # AutoGraph replaces an error in a `tf.function` by one of the same class that also names the user's line, but only
    # if the class has Exception's own __init__. The builtin bases of the classes below would hide it.
    __init__ = Exception.__init__


class ArgumentError(DetrandError, ValueError):
    """An argument has a wrong type or value.

    Cause: the argument that the message names. The call that gets it raises before it changes anything. Remedy: the
    message says what is accepted, and what to pass instead.
    """


class ScopeError(DetrandError, RuntimeError):
    """A scope was used incorrectly.

    Cause: for example, the scope was entered twice, or left without being entered. Remedy: use each scope once, in a
    ``with`` statement or as a decorator, and create a new one for the next use.
    """


class SeedReuseError(DetrandError, ValueError):
    """Two random ops were about to get the same op seed in ``"num_random_ops"`` mode.

    They would draw the same numbers, but two ops of a TF1 graph draw different numbers. Cause: ``tool.operation_seed``
    was set to an op seed that is in use, or that the automatic count reached later. Remedy: set it above every op seed
    in use, or use a new `DeterministicRandomTestTool` for the second program.
    """


class StepMismatchError(DetrandError, ValueError):
    """A step ran different random ops than the first step.

    Cause: every step must repeat the random ops of the first step, as each ``Session.run`` of a TF1 graph does, but
    this step draws more, fewer or different numbers. Remedy: move code that draws only in some steps, such as an
    evaluation, out of the step.
    """


class TF1CodeError(DetrandError, RuntimeError):
    """TF1 code raised an exception in a decorated method, because it does not work in TensorFlow 2 as it is.

    Cause: for example, a name that TensorFlow 2 does not have, a placeholder, or a function that works only in a
    graph. The original exception is the ``__cause__``. Remedy: the message says what to write instead.
    """


class VariableCreationError(DetrandError, ValueError):
    """A variable was created in a scope where all variables should exist already.

    Cause: the model creates new weights on each call instead of reusing the weights of the first call. Remedy: create
    the variable, layer or model once, keep it on ``self``, and reuse it.

    Attributes:
      created: the name and the ``file:line`` of each variable that was created, if the block ended.
    """

    created: tuple[tuple[str, str], ...] = ()


class VariableMismatchError(DetrandError, AssertionError):
    """Two programs do not have the same variables.

    Cause: the names, shapes, dtypes or trainable flags that the message lists. Remedy: pass a ``name_map`` if only the
    names differ; otherwise fix the code that creates the port's variables.
    """


class CheckpointError(ArgumentError):
    """A checkpoint cannot be read or written, or its variables do not fit the program's.

    Cause: a wrong path, damaged files, an object-based checkpoint, or variables that differ; the message lists all
    that does not fit. No variable has been changed. Remedy: pass the prefix of a complete name-based checkpoint, and a
    ``name_map`` if only the names differ.

    Attributes:
      does_not_fit: whether the variables of the checkpoint differ from the program's.
    """

    does_not_fit = False


class RecordingError(ArgumentError):
    """A file of recorded numbers cannot be read or written, or holds a different kind of recording.

    Cause: a wrong path, a damaged file, or a file that a different version of detrand or a different migration wrote.
    Remedy: pass a file that this version recorded for this migration, or record it again.
    """


class ComparisonError(DetrandError, AssertionError):
    """Two structures of numbers differ by more than the tolerance, or have different structures, shapes or dtypes.

    Cause: the leaves that the message lists by their paths. Remedy: fix the computation of the first leaf that differs,
    or pass a larger ``rtol`` and ``atol`` if a difference of that size is acceptable.
    """


class MissingPackageError(DetrandError, ImportError):
    """A package that detrand depends on is not installed.

    Cause: detrand was installed without its dependencies, as for a machine without TensorFlow, but what the message
    names needs the package. Remedy: install what the message says. Or run the TF1 program where TensorFlow is
    installed, and record its numbers: in a golden file for ``validate``, or with ``StepRecorder.save``.
    """


class MigrationError(DetrandError, ValueError):
    """A migration, or the file that should define it, cannot be used.

    Cause: an error in the file or in one of the migration's functions, which the message names. No check was run, or
    the checks could not continue. Remedy: fix the file at the line that the message gives.
    """


class PatchError(DetrandError, RuntimeError):
    """A private function of TensorFlow or Keras, which detrand patches, has a different signature than expected.

    Cause: a release of TensorFlow or Keras that this version of detrand does not support. Nothing has been changed.
    Remedy: install a supported release, or a newer version of detrand.
    """


@contextlib.contextmanager
def passing_over() -> Iterator[None]:
    """Suppress errors in the block and log them, where a report without the block's result is better than none.

    Such an error may be a mistake of detrand. ``--traceback`` prints it, and a test in which detrand's own code makes
    one fails.
    """
    try:
        yield
    except Exception:
        _log.debug("an error is passed over", exc_info=True)
