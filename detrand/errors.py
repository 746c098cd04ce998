"""The errors that detrand raises: each class says what happened and what to do about it.

Every one of them is a `DetrandError`, and also the builtin error that such a fault is in Python
(`ValueError`, `AssertionError`, ...), so that code written for TensorFlow's own tools catches it too.
"""

from __future__ import annotations


class DetrandError(Exception):
    """Base class of everything that detrand raises by itself."""

    # AutoGraph makes a new error, with the user's line in the message, of one that a `tf.function` raises. It keeps
    # the class only where this is Exception's own, which the builtin bases of the classes below would hide.
    __init__ = Exception.__init__


class ArgumentError(DetrandError, ValueError):
    """An argument that the call cannot take.

    Raised by the call that got it, before anything is changed. The message holds what was given,
    what is accepted and how to put it right.
    """


class ScopeError(DetrandError, RuntimeError):
    """A scope used in a way that has no meaning, such as leaving one that was never entered.

    Remedy: use the scope in a ``with`` statement, or as a decorator.
    """


class SeedReuseError(DetrandError, ValueError):
    """An op seed was about to be drawn from twice in ``"num_random_ops"`` mode.

    Two ops with one op seed draw the same numbers, where two ops of a TF1 graph draw different ones. It
    happens after ``tool.operation_seed`` was set to a number that the automatic counting has passed
    or will run into. Remedy: set it above every op seed already used, or use a new
    `DeterministicRandomTestTool` for the second program.
    """


class StepMismatchError(DetrandError, ValueError):
    """A step ran other random ops than the first step did.

    Step k can only repeat the first step's ops, as a further ``Session.run`` of one graph does.
    Remedy: keep whatever draws in some steps alone (evaluation, say) outside the step.
    """


class VariableCreationError(DetrandError, ValueError):
    """A variable was created where every variable should have existed already.

    The model makes new weights on each call instead of reusing those of the first call. Remedy:
    create the variable, layer or model once, keep it on ``self``, and reuse it.
    """


class VariableMismatchError(DetrandError, AssertionError):
    """Two programs do not have the same variables; the message is the difference.

    Remedy: rename through ``name_map`` where only names differ, else mend the port's construction.
    """


class CheckpointError(ArgumentError):
    """A checkpoint that cannot be read or written, or that holds other variables than it is to be loaded into.

    No variable has been changed. The message lists everything that does not fit. Remedy: give the prefix of a
    name-based checkpoint that is whole, and a ``name_map`` where only names differ.
    """


class RecordingError(ArgumentError):
    """A file of recorded numbers that cannot be read or written, or that holds something else than is asked for.

    Remedy: give the path of a file that this version of detrand has recorded, of the same migration; or record anew.
    """


class ComparisonError(DetrandError, AssertionError):
    """Two structures of numbers differ by more than the tolerance, or cannot be compared.

    The message lists every leaf that differs, by its path.
    """


class MigrationError(DetrandError, ValueError):
    """A migration, or the file that should define one, cannot be used at all.

    No check has been run, or none can go on. Remedy: as the message says, in the user's file.
    """


class PatchError(DetrandError, RuntimeError):
    """A private function of TensorFlow or Keras is not what detrand expects to replace.

    It is raised before anything is changed. Cause: a release of TensorFlow or Keras that detrand was not
    built for. Remedy: install a supported release, or a newer detrand.
    """
