"""`StepRecorder`: what each step of a training run computes, kept by step and name."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detrand.comparison.leaves import read_leaf
from detrand.comparison.structures import in_numpy, load_structure, map_leaves, save_structure
from detrand.errors import ArgumentError

_KIND = "recorded steps"


class StepRecorder:
    """Keeps what each step of a training run computes: learning rate, loss, gradients, whatever is named.

    >>> from detrand import StepRecorder
    >>> recorder = StepRecorder()
    >>> for step, loss in enumerate([0.5, 0.25]):
    ...     recorder.record(step, loss=loss, gradients={"kernel": [1.0, -loss]})
    >>> recorder
    <StepRecorder of 2 steps, 0 to 1: loss, gradients>
    >>> recorder[1]
    {'loss': 0.25, 'gradients': {'kernel': [1.0, -0.25]}}

    Inside a ``tf.function``, ``record`` is part of the function: each call records anew.

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

    Two recorders are compared by `compare_steps`.
    """

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, Any]] = {}
        # One for each call of record in a function: where its calls put what they record, and how that is nested.
        self._staged: list[tuple[_StagingArea, dict[str, Any]]] = []

    def record(self, step: Any, /, **named: Any) -> None:
        """Records values of a step. Names that the step has not got yet can be added by a later call.

        Args:
          step: number of the step, from 0: an integer, or a tensor or variable of one. Inside a ``tf.function`` it
            must be a tensor or variable, such as ``optimizer.iterations``: a Python number would be that of the first
            call for ever.
          **named: the values: tensors, variables, arrays, numbers, text, and any nesting of them in dicts, lists,
            tuples, named tuples and dataclasses. They are copied: of a variable, the value at that moment.

        Raises:
          ArgumentError: for a step that is no such integer, a value without numbers, such as a tensor of a
            ``tf.Graph`` (fetch it with ``Session.run``, and record that), and a name that the step has already. Of what
            a ``tf.function`` records, the first and the last of these are raised when the recorder is read.
        """
        if not named:
            raise ArgumentError("record was given no values; pass them by name, as in recorder.record(0, loss=loss)")
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and tensorflow.inside_function():
            self._record_in_function(tensorflow, step, named)
        else:
            self._keep(step, {name: in_numpy(value, name) for name, value in named.items()})

    def _record_in_function(self, tf: Any, step: Any, named: dict[str, Any]) -> None:
        """Adds an op to the function that records what its inputs are when it runs.

        It stages them, to be read when somebody asks: to call Python would cost a third of a small step.
        """
        from detrand._patching import xla

        if xla.is_compiled() or xla.has_sessions():
            raise ArgumentError(
                "record was called in a function that XLA compiles, or that a Session runs, where nothing can be "
                "recorded; return the values from the function, or fetch them, and record them outside of it"
            )
        inputs: list[Any] = [tf.convert_to_tensor(step)]

        def as_input(leaf: Any, where: str) -> Any:
            if not tf.is_tensor(leaf):
                return in_numpy(leaf, where)
            inputs.append(tf.convert_to_tensor(leaf))
            return _Input(len(inputs) - 1)

        values = {name: map_leaves(value, as_input, name) for name, value in named.items()}
        staged = _StagingArea(tf, [tensor.dtype for tensor in inputs])
        staged.put(inputs)
        weakref.finalize(self, staged.clear).atexit = False
        self._staged.append((staged, values))

    def _collect(self) -> dict[int, dict[str, Any]]:
        """Returns all that is recorded, with what functions have staged since the last time."""
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
                    f"{name} of step {number} is recorded already; give each step its own number, and each value of "
                    "a step its own name. Inside a tf.function, pass the step as a tensor"
                )
        recorded.update(values)

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that have been recorded, in ascending order."""
        return tuple(sorted(self._collect()))

    def __getitem__(self, step: int) -> Mapping[str, Any]:
        """What was recorded of a step, by name, with NumPy arrays for tensors.

        Raises:
          KeyError: if nothing was.
        """
        return dict(self._collect()[step])

    def __len__(self) -> int:
        return len(self._collect())

    def __repr__(self) -> str:
        if not self._collect():
            return "<StepRecorder of no step>"
        names = dict.fromkeys(name for step in self.steps for name in self._steps[step])
        return f"<StepRecorder of {len(self)} steps, {self.steps[0]} to {self.steps[-1]}: {', '.join(names)}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves all that is recorded as a ``.npz`` file, which holds the arrays and, as JSON, how they are nested.

        Structure and dtypes, bfloat16 included, come back as they were; dataclasses come back as named tuples.

        >>> import tempfile
        >>> recorder = StepRecorder()
        >>> recorder.record(0, loss=0.5)
        >>> path = tempfile.mkdtemp() + "/steps.npz"
        >>> recorder.save(path)
        >>> StepRecorder.load(path)[0]
        {'loss': 0.5}

        Args:
          path: the file; one that is there already is replaced, and only when the new one is complete.

        Raises:
          RecordingError: if the file cannot be written.
          ArgumentError: for a dict with a key that is neither text nor a number.
        """
        save_structure(path, _KIND, self._collect())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StepRecorder:
        """Returns a recorder that holds what another one has saved.

        Raises:
          RecordingError: if there is no such file, or it is damaged, of another version, or holds something else.
        """
        recorder = cls()
        recorder._steps = load_structure(path, _KIND)
        return recorder


_NUMBERS = itertools.count()


class _StagingArea:
    """Where an op of a function puts tensors, each time that it runs, until they are taken, the first ones first.

    What ``tf.queue.FIFOQueue`` is, too, whose op hands the rest of the function to another thread: that takes longer
    than all else that is recorded of a small step.
    """

    def __init__(self, tf: Any, dtypes: Sequence[Any]):
        self._tf, self._dtypes = tf, list(dtypes)
        self._place = {"container": "detrand", "shared_name": f"recorded_{next(_NUMBERS)}"}

    def put(self, tensors: Sequence[Any]) -> None:
        with self._tf.device("CPU:0"):  # one place, wherever it is taken from
            self._tf.raw_ops.Stage(values=tensors, **self._place)

    def take(self) -> Iterator[list[Any]]:
        for _ in range(int(self._run("StageSize"))):
            yield self._run("Unstage")

    def clear(self) -> None:
        self._run("StageClear")

    def _run(self, op_type: str) -> Any:
        with self._tf.init_scope(), self._tf.device("CPU:0"):
            return getattr(self._tf.raw_ops, op_type)(dtypes=self._dtypes, **self._place)


class _Input:
    """Stands in a structure for one of the tensors that are staged."""

    def __init__(self, position: int):
        self.position = position


def _checked_step(step: Any) -> int:
    leaf = read_leaf(step, "step")
    if leaf.kind != "int" or leaf.array.shape or leaf.array < 0:
        raise ArgumentError(
            f"step must be an integer from 0, but {step!r} of type {type(step).__name__} was given; pass the number "
            "of the step, such as optimizer.iterations"
        )
    return int(leaf.array)
