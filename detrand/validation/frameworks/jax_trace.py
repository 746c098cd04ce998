"""`JaxTrace`: a model on JAX whose ops are watched and can be given other values.

JAX traces a call of the model to a jaxpr, in the model's own dtypes. Its equations run in float64, as TF1 does
(`jax_programs`), and become ops of TensorFlow (`jax_functions`); an equation that has no steps, or of which they give
another result, is one op. From then on the ops run without JAX and without the model, with what is substituted.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from detrand.adapters.keras3_jax import drawing_now
from detrand.changes import Changes
from detrand.checkpoints.upstream import op_of
from detrand.comparison.values import leaves_by_path
from detrand.seeding.callsite import UNKNOWN, Call, calls_of, line_of_user
from detrand.validation.frameworks.jax_functions import (
    FUNCTIONS,
    STEPS,
    TYPES,
    Attributes,
    Axes,
    Fused,
    Steps,
    fused,
)
from detrand.validation.frameworks.jax_programs import DRAW, Equation, Operand, Program, Where, mark
from detrand.validation.frameworks.traces import (
    CONSTANT,
    INPUT,
    NOTHING,
    READ,
    NoStepsError,
    RecordedPort,
    Substitution,
    Trace,
    TracedOp,
    constants_of,
)
from detrand.variables.tf1_view import TF1View

_CLOSE = 1e-6  # relative tolerance for steps in place of an equation; numbers are rounded to float32 in them


@dataclass(eq=False)
class _Op:
    """An op that a model runs; see `TracedOp`.

    Attributes:
      compute: returns the array of its output, or a list of arrays, given its attributes and its inputs' arrays.
      inputs, outputs: the names of its tensors.
      numbers: the operands that are no tensors, by position.
      axes: the positions of those that are axes of the first operand.
      traceback: see `Where`.
    """

    name: str
    type: str
    line: str
    compute: Callable[..., Any] | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: Attributes | None = None
    numbers: Mapping[int, np.ndarray] | None = None
    axes: tuple[int, ...] = ()
    traceback: Any = None


class JaxTrace(RecordedPort):
    """A model with the values of its variables.

    Attributes:
      outputs: the names of the tensors that are outputs, by the outputs' paths.
      whole: the names of primitives that are one op of their own name, and of primitives and functions whose steps do
        not have such arguments or results.
    """

    def __init__(
        self,
        layers: Iterable[tuple[str, Any]],
        compute: Callable[[Callable[..., Any]], Any],
        view: TF1View,
        line_of: Callable[[Any], str],
        variables: Mapping[str, Any],
        value_of: Callable[[Any], Any],
        call: Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any],
    ):
        """Trace a model.

        Args:
          layers: the layers of the model with their names.
          compute: gives the model its variables, and calls a function with the model as a function, its inputs and a
            function that counts the draws; returns what that returns.
          view: the view of the model's variables.
          line_of: returns the line that made a layer.
          variables: the variables by name, each a part of the view.
          value_of: returns the array that a variable holds now.
          call: calls a model with inputs, and with arrays in place of its variables' by their names, which may be
            traced; returns its outputs, and leaves the variables as they are.

        Raises:
          TypeError: if JAX cannot trace the model.
        """
        super().__init__(view, variables)
        self._layers, self._line_of = [*layers], line_of
        self._count: Counter[str] = Counter()
        self._compute: dict[str, _Op] = {}
        self.whole: set[str] = set()
        self._run_model = functools.partial(compute, lambda model, batch, drawn: model(*batch))
        paths: list[str] = []
        values = {path: value_of(variable) for path, variable in variables.items()}

        def outputs_of(values: Mapping[str, Any], batch: Sequence[Any], model: Callable[..., Any]) -> list[Any]:
            leaves = leaves_by_path(call(model, batch, values))
            paths[:] = [path for path, leaf in leaves.items() if isinstance(leaf, jax.Array)]
            return [leaves[path] for path in paths]

        def traced(model: Callable[..., Any], batch: Sequence[Any], drawn: Callable[[], int]) -> Any:
            values.update((path, value_of(variable)) for path, variable in variables.items())
            given = values, tuple(batch)
            with self._marked(), drawing_now():
                try:
                    return jax.make_jaxpr(functools.partial(outputs_of, model=model))(*given), jax.tree.leaves(given)
                except Exception as error:  # of code that looks at numbers, as no compiled program can
                    first = _error_of_jax(error)
                    at = f" at {line}" if (line := line_of_user(first)) else ""
                    raise TypeError(f"JAX cannot trace the port: it raises {type(first).__name__}{at}") from error

        closed, given = compute(traced)
        program = Program(closed, given, FUNCTIONS)
        self.computes_narrowly = program.has_halves
        self._name_inputs(sorted(values), program.inputs)
        groups = fused(program.equations, program.outputs)
        absorbed = {id(each) for group in groups.values() for each in group.before}
        with np.errstate(all="ignore"):
            for equation in program.equations:
                self._add(equation, groups, absorbed)
        self.outputs = {path: self._name_of(leaf) for path, leaf in zip(paths, program.outputs, strict=True)}
        self.complete({op.name: self._traced(op) for op in self._compute.values()})

    def run(self, substituted: Substitution = NOTHING) -> Trace:
        """Run the ops with what is substituted, and return their trace."""
        arrays = dict(self.arrays)
        changed = {op for op, _ in substituted.edges} | set(substituted.attributes)
        with np.errstate(all="ignore"):
            for op in self._compute.values():
                if op.compute is None or (op.name not in changed and changed.isdisjoint(map(op_of, op.inputs))):
                    continue
                changed.add(op.name)
                attributes = {**(op.attributes or {}), **substituted.attributes.get(op.name, {})}
                given: list[Any] = [
                    substituted.edges.get((op.name, n), arrays[name]) for n, name in enumerate(op.inputs)
                ]
                given = [tuple(np.ravel(each)) if n in op.axes else _wide(each) for n, each in enumerate(given)]
                try:
                    found = op.compute(attributes, *given)
                except Exception as error:  # shapes that do not fit
                    raise ValueError(f"{op.name} cannot compute: {error}") from error
                arrays.update(zip(op.outputs, found if isinstance(found, list) else [found], strict=True))
        return self.trace_of(arrays, substituted)

    def outputs_as_written(self) -> dict[str, np.ndarray]:
        """Call the model, and return the outputs that it computes in its own dtypes, by path."""
        leaves = leaves_by_path(self._run_model())
        return {path: np.array(leaf) for path, leaf in leaves.items() if isinstance(leaf, jax.Array)}

    def calls_of(self, op: str) -> Sequence[Call]:
        """Return the calls of the program that run an op, the outermost first, and those of frameworks among them."""
        traceback = self._compute[op].traceback
        frames = () if traceback is None else traceback.frames
        return calls_of((each.file_name, each.line_num, each.function_name) for each in frames)

    @contextlib.contextmanager
    def _marked(self) -> Iterator[None]:
        """Make the equations of each layer belong to it in the block."""
        layers = [layer for _, layer in self._layers]
        numbers = {id(layer): number for number, layer in enumerate(layers)}
        owners = [[each for each in type(layer).__mro__ if "__call__" in vars(each)] for layer in layers]
        with Changes() as changes:
            for owner in {classes[0] for classes in owners if classes}:
                changes.set(owner, "__call__", _marking(vars(owner)["__call__"], numbers))
            yield

    def _name_inputs(self, paths: Sequence[str], inputs: Sequence[Operand]) -> None:
        names = [(path, READ) for path in paths]
        names += [(f"input_{n}" if n else "input", INPUT) for n in range(len(inputs) - len(paths))]
        for (name, op_type), operand in zip(names, inputs, strict=True):
            operand.name = name
            self._compute[name] = _Op(name, op_type, str(UNKNOWN), outputs=(name,))
            is_weight = op_type == READ and operand.value.dtype.kind == "f"
            self.arrays[name] = operand.value.astype(np.float32) if is_weight else operand.value

    # Equations become ops.

    def _add(self, equation: Equation, groups: Mapping[Equation, Fused], absorbed: set[int]) -> None:
        """Add the ops of an equation."""
        is_constant = equation.name != DRAW and all(each.is_constant for each in equation.inputs)
        if is_constant or id(equation) in absorbed:
            return
        group = groups.get(equation)
        if group is not None:
            if self._by_steps(equation, group.steps):
                return
            for before in group.before:
                self._add(before, groups, absorbed - {id(before)})
        steps = FUNCTIONS.get(equation.name) if equation.parts else STEPS.get(equation.name)
        if steps is not None and self._by_steps(equation, steps):
            return
        if steps is not None or equation.name not in (*TYPES, DRAW):
            self.whole.add(equation.name)
        for part in equation.parts:
            self._add(part, groups, absorbed)
        if not equation.parts:
            self._by_steps(equation, _as_one_op)

    def _by_steps(self, equation: Equation, steps: Steps) -> bool:
        """Add an equation by its steps; return False, and add nothing, if these do not give its result."""
        count, counted = len(self._compute), self._count.copy()
        path, line = self._path_and_line(equation.where)
        scope = "/".join(filter(None, [path, equation.where.loops + _name_in_trace(equation)]))
        step = functools.partial(self._step, self._named(scope), line, equation.where.traceback)
        try:
            found = steps(step, equation)
            found = found if isinstance(found, list) else [found]
            is_same = len(found) == len(equation.outputs) and all(map(_agree, found, equation.outputs))
        except Exception:  # operands that the steps do not have
            is_same = False
        if not is_same:
            for name in [*self._compute][count:]:
                for tensor in self._compute.pop(name).outputs:
                    self.arrays.pop(tensor, None)
            self._count = counted
            return False
        for operand, result in zip(equation.outputs, found, strict=True):
            operand.name = result.name
        return True

    def _step(
        self,
        key: str,
        line: str,
        traceback: Any,
        op_type: str,
        function: Callable[..., Any],
        *operands: Any,
        attributes: Attributes | None = None,
    ) -> Any:
        """Compute one op; see `Step`."""
        name = key if key not in self._compute else self._named(f"{key}/{op_type}")
        is_floating = any(isinstance(each, Operand) and _is_floating(each.value) for each in operands)
        inputs, numbers, axes, values = list[str](), {}, [], list[Any]()
        for position, operand in enumerate(operands):
            if isinstance(operand, Operand) and not operand.is_constant:
                if not operand.name:
                    raise NoStepsError  # of an equation that is a part of another op
                inputs.append(operand.name)
                values.append(operand.value)
                continue
            is_axes = isinstance(operand, Axes)
            array = np.asarray(operand.axes, np.int32) if is_axes else _as_constant(operand, is_floating)
            numbers[position] = array
            axes += [position] if is_axes else []
            inputs.append(self._constant(f"{name}/constant_{position}", array))
            values.append(tuple(operand.axes) if is_axes else array)

        def compute(attributes: Attributes, *arrays: Any) -> Any:
            found = function(attributes, *arrays) if attributes else function(*arrays)
            return np.asarray(found) if isinstance(found, np.generic) else found  # of NumPy, for an array of one number

        result = compute(attributes or {}, *values)
        found = result if isinstance(result, list) else [result]
        outputs = tuple(f"{name}:{n}" if n else name for n in range(len(found)))
        self._compute[name] = _Op(
            name, op_type, line, compute, tuple(inputs), outputs, attributes, numbers, tuple(axes), traceback
        )
        results = [Operand(array, None, False, tensor) for array, tensor in zip(found, outputs, strict=True)]
        for operand in results:
            self.arrays[operand.name] = operand.value
        return results if isinstance(result, list) else results[0]

    def _path_and_line(self, where: Where) -> tuple[str, str]:
        """Return the path of the layer in which an equation is, and the line: of user code, and which makes it."""
        if where.layer is None:
            return "", str(where.site)
        path, layer = self._layers[where.layer]
        is_of_framework = type(layer).__module__.startswith(("keras.", "flax."))
        made = self._line_of(layer) if is_of_framework else ""
        if made and where.site != UNKNOWN and str(where.site) != made:
            return path, f"{made}, called at {where.site}"
        return path, made or str(where.site)

    def _name_of(self, operand: Operand) -> str:
        """Return the name of an operand, which is added if it is a constant."""
        if not operand.name:
            operand.name = self._constant(self._named("constant"), operand.value)
        return operand.name

    def _named(self, name: str) -> str:
        """Return a name that no other op has."""
        number = self._count[name]
        self._count[name] += 1
        return f"{name}_{number}" if number else name

    def _constant(self, name: str, array: Any) -> str:
        self._compute[name] = _Op(name, CONSTANT, str(UNKNOWN), outputs=(name,))
        self.arrays[name] = array
        self.constants.add(name)
        return name

    def _traced(self, op: _Op) -> TracedOp:
        """Return what a trace has of an op."""
        arrays = {n: self.arrays[name] for n, name in enumerate(op.inputs) if name in self.constants}
        constants, attributes = constants_of({**arrays, **(op.numbers or {})}, op.attributes or {})
        return TracedOp(op.name, op.type, op.line, op.inputs, attributes, constants=constants)


def _marking(original: Callable[..., Any], numbers: Mapping[int, int]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in numbers:
            return original(self, *args, **kwargs)
        with mark(numbers[id(self)]):
            return original(self, *args, **kwargs)

    return call


def _error_of_jax(error: BaseException) -> BaseException:
    """Return the error of JAX from which Keras has made another one; the error itself if there is none."""
    first: BaseException | None = error
    while first is not None and not isinstance(first, jax.errors.JAXTypeError):
        first = first.__cause__ or first.__context__
    return first or error


def _as_one_op(step: Any, equation: Equation) -> Any:
    op_type = equation.params["op_type"] if equation.name == DRAW else TYPES.get(equation.name, equation.name)
    return step(op_type, equation.compute, *equation.inputs)


_NAMES = {DRAW: "drawn", "conv_general_dilated": "conv", "dot_general": "matmul", "_softmax": "softmax"}


def _name_in_trace(equation: Equation) -> str:
    return _NAMES.get(equation.name, equation.name.strip("_"))


def _as_constant(operand: Any, is_floating: bool) -> np.ndarray:
    """Return a constant operand as an array, rounded to float32 if it is a number with a fraction."""
    array = operand.value if isinstance(operand, Operand) else np.asarray(operand)
    is_number = is_floating and not isinstance(operand, Operand) and array.dtype.kind == "f"
    return array.astype(np.float32).astype(np.float64) if is_number else array


def _wide(array: Any) -> Any:
    """Return the array of a variable, which is shown in float32, in float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) and array.dtype == np.float32 else array


def _is_floating(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def _agree(found: Operand, result: Operand) -> bool:
    """Return whether a step has computed what an equation computes."""
    one, other = found.value, result.value
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is other or not isinstance(other, np.ndarray)
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return False
    if other.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    finite = np.abs(other[np.isfinite(other)])
    return bool(np.allclose(one, other, _CLOSE, _CLOSE * float(finite.max(initial=0)), equal_nan=True))
