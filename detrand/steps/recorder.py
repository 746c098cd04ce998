"""A recorder of training steps: `StepRecorder` keeps what each step computes, by step and name."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detrand.arguments import plural, wrong_type
from detrand.comparison.leaves import read_leaf
from detrand.comparison.structures import in_numpy, load_structure, map_leaves, save_structure
from detrand.errors import ArgumentError

_KIND = "recorded steps"


class StepRecorder:
    """A record of what each step of a training computes: learning rate, loss, gradients, and any other value.

    >>> from detrand import StepRecorder
    >>> recorder = StepRecorder()
    >>> for step, loss in enumerate([0.5, 0.25]):
    ...     recorder.record(step, loss=loss, gradients={"kernel": [1.0, -loss]})
    >>> recorder
    <StepRecorder of 2 steps, 0 to 1: loss, gradients>
    >>> recorder[1]
    {'loss': 0.25, 'gradients': {'kernel': [1.0, -0.25]}}

    Inside a ``tf.function``, ``record`` is part of the function: each call of the function records.

    >>> import tensorflow as tf
    >>> recorder, weight = StepRecorder(), tf.Variable(1.0)
    >>> @tf.function
    ... def train(step):
    ...     weight.assign_sub(0.25)
    ...     recorder.record(step, weight=weight)
    >>> for step in tf.range(3):
    ...     train(step)
    >>> print(*(recorder[step]["weight"] for step in recorder.steps))
    0.75 0.5 0.25

    `compare_steps` compares two recorders.
    """

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, Any]] = {}
        # For each call of record in a function: the queue of its tensors, and the values, with inputs for the tensors.
        self._staged: list[tuple[_StagingArea, dict[str, Any]]] = []

    def record(self, step: Any, /, **named: Any) -> None:
        """Record values of a step. A later call may add more names to the step.

        Args:
          step: number of the step, from 0: an integer, or an integer tensor or variable. Inside a ``tf.function`` it
            must be a tensor or variable, such as ``optimizer.iterations``: a Python number would stay the number of
            the first call.
          **named: the values: tensors, variables, arrays, numbers, text, and any nesting of them in dicts, lists,
            tuples, named tuples and dataclasses. They are copied, variables with their current value.

        Raises:
          ArgumentError: for a step that is not such an integer, a value without numbers, such as a tensor of a
            ``tf.Graph`` (fetch it with ``Session.run``, and record the result), or a name that the step already has.
            For values recorded in a ``tf.function``, an invalid step or a repeated name raises when the recorder is
            read.
        """
        if not named:
            raise ArgumentError("record got no values; pass them by name, as in recorder.record(0, loss=loss)")
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and tensorflow.inside_function():
            self._record_in_function(step, named)
        else:
            self._keep(step, {name: in_numpy(value, name) for name, value in named.items()})

    def _record_in_function(self, step: Any, named: dict[str, Any]) -> None:
        """Add an op that keeps the tensors: a call of Python instead would cost a third of a small step."""
        import tensorflow as tf

        from detrand._patching import xla

        if xla.is_compiled() or xla.has_sessions():
            raise ArgumentError(
                "record cannot be called in a function that XLA compiles or a Session runs; return the values from "
                "the function, or fetch them, and record them outside"
            )
        inputs: list[Any] = [tf.convert_to_tensor(step)]

        def as_input(leaf: Any, where: str) -> Any:
            if not tf.is_tensor(leaf):
                return in_numpy(leaf, where)
            inputs.append(tf.convert_to_tensor(leaf))
            return _Input(len(inputs) - 1)

        values = {name: map_leaves(value, as_input, name) for name, value in named.items()}
        staged = _StagingArea(inputs)
        weakref.finalize(self, staged.run, "StageClear").atexit = False
        self._staged.append((staged, values))

    def _collect(self) -> dict[int, dict[str, Any]]:
        """Return all recorded steps, with the tensors that functions have kept since the last call."""
        for staged, values in self._staged:
            for inputs in staged.take():

                def from_input(leaf: Any, where: str, inputs: Any = inputs) -> Any:
                    return in_numpy(inputs[leaf.position], where) if isinstance(leaf, _Input) else leaf

                self._keep(inputs[0], {name: map_leaves(value, from_input, name) for name, value in values.items()})
        return self._steps

    def _keep(self, step: Any, values: dict[str, Any]) -> None:
        number = _checked_step(step)
        recorded = self._steps.setdefault(number, {})
        for name in values:
            if name in recorded:
                raise ArgumentError(
                    f"{name} of step {number} is already recorded; give each step its own number, and each value of "
                    "a step its own name. Inside a tf.function, pass the step as a tensor"
                )
        recorded.update(values)

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that have been recorded, in ascending order."""
        return tuple(sorted(self._collect()))

    def __getitem__(self, step: int) -> Mapping[str, Any]:
        """The values of a step by name, with NumPy arrays for tensors; KeyError if nothing was recorded."""
        return dict(self._collect()[step])

    def __len__(self) -> int:
        return len(self._collect())

    def __repr__(self) -> str:
        if not self._collect():
            return "<StepRecorder of 0 steps>"
        names = dict.fromkeys(name for step in self.steps for name in self._steps[step])
        return f"<StepRecorder of {plural(len(self), 'step')}, {self.steps[0]} to {self.steps[-1]}: {', '.join(names)}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save all steps in a ``.npz`` file, with the arrays and, as JSON, their structure.

        Structure and dtypes are kept, bfloat16 included; dataclasses are loaded as named tuples.

        >>> import tempfile
        >>> recorder = StepRecorder()
        >>> recorder.record(0, loss=0.5)
        >>> path = tempfile.mkdtemp() + "/steps.npz"
        >>> recorder.save(path)
        >>> StepRecorder.load(path)[0]
        {'loss': 0.5}

        Args:
          path: the file; an existing one is replaced once the new one is complete.

        Raises:
          RecordingError: if the file cannot be written.
          ArgumentError: for a dict key that is neither text nor a number.
        """
        save_structure(path, _KIND, self._collect())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StepRecorder:
        """Return a recorder with the steps of a file that `save` wrote.

        Raises:
          RecordingError: if the file is missing, damaged, of a different version, or holds something else.
        """
        recorder = cls()
        recorder._steps = load_structure(path, _KIND)
        return recorder


_NUMBERS = itertools.count()


class _StagingArea:
    """A first-in, first-out queue that an op of a function fills with tensors whenever the function runs.

    The op of ``tf.queue.FIFOQueue`` would hand the rest of the function to another thread, which takes longer than all
    other recording of a small step.
    """

    def __init__(self, tensors: Sequence[Any]):
        import tensorflow as tf

        self._dtypes = [tensor.dtype for tensor in tensors]
        self._place = {"container": "detrand", "shared_name": f"recorded_{next(_NUMBERS)}"}
        with tf.device("CPU:0"):  # the device that tensors are taken from
            tf.raw_ops.Stage(values=tensors, **self._place)

    def take(self) -> Iterator[list[Any]]:
        for _ in range(int(self.run("StageSize"))):
            yield self.run("Unstage")

    def run(self, op_type: str) -> Any:
        import tensorflow as tf

        with tf.init_scope(), tf.device("CPU:0"):
            return getattr(tf.raw_ops, op_type)(dtypes=self._dtypes, **self._place)


class _Input:
    """A placeholder in a structure for one of the kept tensors."""

    def __init__(self, position: int):
        self.position = position


def _checked_step(step: Any) -> int:
    leaf = read_leaf(step, "step")
    if leaf.kind != "int" or leaf.array.shape or leaf.array < 0:
        remedy = "pass the number of the step, such as optimizer.iterations"
        raise wrong_type("step", step, "an integer from 0", remedy)
    return int(leaf.array)
