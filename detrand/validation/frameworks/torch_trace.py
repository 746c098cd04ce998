"""`TorchTrace`: a ``torch.nn.Module`` whose ops are watched and can be given other values.

A ``TorchFunctionMode`` sees each function of PyTorch that the module calls, with its arguments. It computes most of
them by the steps in `torch_functions`, which are ops of TensorFlow; a function that has no steps, or of which they give
another result, is one op. All is computed in float64, as TF1 is. A tensor that has its channels first, and the kernel
of a convolution, is shown as TF1 has it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from detrand._patching import keras3_random
from detrand._patching.torch import source_of, version_of
from detrand.changes import Changes, attribute_set
from detrand.comparison.structures import flatten
from detrand.comparison.values import leaves_by_path
from detrand.seeding.callsite import UNKNOWN, Call, running_calls, site_of_calls
from detrand.validation.frameworks.torch_functions import (
    CHANNELS,
    DEPTHWISE,
    DRAWS,
    KERNEL,
    TYPES,
    Attributes,
    Axes,
)
from detrand.validation.frameworks.torch_functions import STEPS as STEPS_OF_LAYERS
from detrand.validation.frameworks.torch_losses import LOSSES
from detrand.validation.frameworks.traces import (
    CONSTANT,
    INPUT,
    NOTHING,
    READ,
    Edge,
    NoStepsError,
    RecordedPort,
    Substitution,
    Trace,
    TracedOp,
    constants_of,
)
from detrand.variables.tf1_view import TF1View

STEPS = {**STEPS_OF_LAYERS, **LOSSES}
_OF_KERAS = keras3_random.draws("torch")["dropout"]
_MOST_STEPS = 10_000  # of one function
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_HALVES = (torch.float16, torch.bfloat16)
_CLOSE = 1e-6  # relative tolerance for steps in place of a function; numbers are rounded to float32 in them
_CASTS = {name for name, op_type in TYPES.items() if op_type == "Cast"}
_ATTENTION, _DROPOUT_OF_ATTENTION = "multi_head_attention_forward", 10  # the position of the argument
_EMPTY = {"empty", "empty_like", "new_empty", "empty_strided"}
_DRAWN = "RandomUniform"
_TYPES_OF_DRAWS = {
    **dict.fromkeys(("rand", "rand_like"), "RandomUniform"),
    **dict.fromkeys(("randn", "randn_like"), "RandomStandardNormal"),
}
_MOVED = {"Transpose", "Reshape", "MatMul", "BatchMatMulV2", "Einsum", "GatherV2"}  # which keep no order of axes


@dataclass
class _Call:
    """An op that a module has run; see `TracedOp`.

    Attributes:
      calls: the calls of the program that run it; see `calls_of`.
      outputs: the names of its tensors.
      numbers: the operands that are no tensors, by position.
      axes: the positions of those that are axes of the first operand.
      layouts: the layouts of operands by position, and of the result, as -1.
    """

    name: str
    type: str
    line: str
    calls: Sequence[Call] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: Attributes = field(default_factory=dict)
    numbers: dict[int, np.ndarray] = field(default_factory=dict)
    axes: tuple[int, ...] = ()
    layouts: Mapping[int, str] = field(default_factory=dict)


@dataclass
class _Plan:
    """How functions are traced, by the names of their calls, which the first run decides.

    Attributes:
      whole: those that are one op, although there are steps for them.
      changing: those that change their arguments.
      is_decided: whether there was a first run.
      has_halves: whether a function returns numbers in half precision.
    """

    whole: set[str] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)
    is_decided: bool = False
    has_halves: bool = False


class _FunctionCall(NamedTuple):
    """A call of a function of PyTorch: the function's name, a name of its own, its line, and the tensors it gets.

    The calls are those of the program that run it.
    """

    function: str
    key: str
    line: str
    calls: Sequence[Call]
    tensors: Sequence[Any]


class _Recorder(TorchFunctionMode):
    """Notes the ops that run in the block, and gives them what is substituted."""

    def __init__(
        self, plan: _Plan, edges: Mapping[Edge, Any], attributes: Mapping[str, Mapping[str, str]], layers: _Layers
    ):
        super().__init__()
        self._plan, self._edges, self._attributes, self._layers = plan, edges, attributes, layers
        self.calls: list[_Call] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.drawn: Callable[[], int] = lambda: 0  # how many random numbers the tool has drawn
        self._seen_draws, self._is_paused = 0, False
        self._has_gradients = torch.is_grad_enabled()
        self._names: dict[int, tuple[Any, int, str, Any]] = {}  # by id: the tensor, its version, its name, in float64
        self._constants: set[str] = set()  # names of constants
        self._count: Counter[str] = Counter()
        self._changed_by: dict[int, tuple[str, str]] = {}  # by a storage's address, what changed it last, and the line

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch what a module calls in the block."""
        with Changes() as changes:
            functional, keras = torch.nn.functional, sys.modules.get(_OF_KERAS.module)
            changes.set(functional, "dropout", self._dropout_of(functional.dropout))
            if keras is not None:
                changes.set(keras, "dropout", self._keras_dropout_of(keras.dropout))
            for name in _TYPES_OF_DRAWS:
                changes.set(torch, name, self._draw_of(name, getattr(torch, name)))
            changes.set(torch.jit.ScriptFunction, "__call__", _of_source)
            with self:
                yield

    def _dropout_of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or not 0 < p < 1:
                return original(input, p, training, inplace)
            dropped = self._dropped(input, p, original)
            return self._written_to(input, dropped) if inplace else dropped

        return dropout

    def _keras_dropout_of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
            if not isinstance(inputs, torch.Tensor) or not 0 < rate < 1:
                return original(inputs, rate, noise_shape, seed)
            return self._dropped(inputs, rate, functools.partial(original, noise_shape=noise_shape, seed=seed))

        return dropout

    def _draw_of(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            if self._is_paused:
                return original(*args, **kwargs)
            self._is_paused = True
            try:  # in float32 what is like a tensor that is computed in float64 here
                narrow = {"dtype": torch.float32} if name.endswith("_like") and args[0].dtype == torch.float64 else {}
                drawn = self._widened(original(*args, **{**narrow, **kwargs}))
            finally:
                self._is_paused = False
            call, self._seen_draws = self._call(name, []), self.drawn()
            self._note(_Call(call.key, _TYPES_OF_DRAWS[name], call.line, call.calls), [drawn])
            return drawn

        return draw

    def _dropped(self, inputs: Any, rate: float, dropout: Callable[..., Any]) -> Any:
        """Compute a dropout in steps, with the mask that a dropout of float32 draws."""
        self._is_paused = True
        try:
            mask = dropout(torch.ones(inputs.shape), rate) != 0
            self.name_of(mask)  # notes the draw, and not what copies the mask
        finally:
            self._is_paused = False
        call = self._call("dropout", [inputs])
        scaled = self._step(call, "Mul", torch.mul, inputs, 1 / (1 - rate))
        return self._step(call, "SelectV2", torch.where, mask, scaled, 0.0)

    def give(self, tensor: Any, name: str, op_type: str) -> None:
        """Note a tensor that no op computes: an input or a variable."""
        self.calls.append(_Call(name, op_type, str(UNKNOWN), outputs=(name,)))
        self._names[id(tensor)] = tensor, version_of(tensor), name, tensor
        array = _array(tensor)
        self.arrays[name] = array.astype(np.float32) if op_type == READ and array.dtype.kind == "f" else array

    def name_of(self, tensor: Any) -> str:
        """Return the name of a tensor, which is a constant if no op has computed it."""
        self._wide(tensor)
        return self._names[id(tensor)][2]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = _function_name(func), kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        if name == _ATTENTION and kwargs["training"] and args[_DROPOUT_OF_ATTENTION]:
            return self._dropping_attention(func, args, kwargs)
        if name in _EMPTY:
            return func(*args, **kwargs).zero_()  # the same numbers in each run
        is_in_place = name.endswith("_") or name == "setitem"
        if not (is_in_place and args and isinstance(args[0], torch.Tensor) and id(args[0]) not in self._names):
            args, kwargs = _mapped(self._wide, args), _mapped(self._wide, kwargs)
        tensors = list(_tensors((args, kwargs)))
        name = name.rstrip("_")
        names = [self.name_of(each) for each in tensors]
        is_constant = name not in DRAWS and self._constants.issuperset(names)
        call = self._call(name, tensors)
        if name in STEPS and call.key not in self._plan.whole and not is_constant:
            return self._by_steps(call, func, args, kwargs)
        return self._whole(call, func, args, kwargs, is_constant=is_constant)

    def _call(self, function: str, tensors: Sequence[Any]) -> _FunctionCall:
        calls = () if self._plan.is_decided else running_calls()
        path, line = self._layers.path_and_line(calls)
        return _FunctionCall(function, self._named(f"{path}/{function}" if path else function), line, calls, tensors)

    def _by_steps(self, call: _FunctionCall, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute a function by its steps, or else as a whole if these do not give its result."""
        steps, key, tensors = STEPS[call.function], call.key, call.tensors
        count, known, counted = len(self.calls), dict(self._names), self._count.copy()
        step = partial(self._step, call)
        arguments = {_ALIASES.get(each, each): value for each, value in kwargs.items() if not _is_dtype(each, value)}
        if self._plan.is_decided and key not in self._plan.changing:
            return steps(step, *args, **arguments)
        try:
            found = steps(step, *args, **arguments)
        except Exception:  # arguments that the steps do not have
            if self._plan.is_decided:
                raise
            found = None
        versions = [version_of(each) for each in tensors]
        result = func(*args, **kwargs)
        changed = [each for each, before in zip(tensors, versions, strict=True) if version_of(each) != before]
        if not self._plan.is_decided and not _agree(found, _mapped(self._widened, result)):
            for name in (output for each in self.calls[count:] for output in each.outputs):
                del self.arrays[name]
                self._constants.discard(name)
            del self.calls[count:]
            self._names, self._count = known, counted
            self._plan.whole.add(key)
            return self._noted(call, result, changed)
        if not changed:
            return found
        self._plan.changing.add(key)
        if any(result is each for each in changed):
            return self._written_to(result, found)
        for each in changed:  # moving averages
            self._noted(call._replace(key=self._named(f"{key}/update")), None, [each])
        return found

    def _dropping_attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute attention that drops shares in steps, or else trace the function: its dropout is an op of its own.

        It would draw another mask if it was computed once more, to be compared with the steps.
        """
        wide = _mapped(self._wide, args), _mapped(self._wide, kwargs)
        call = self._call(_ATTENTION, list(_tensors(wide)))
        try:
            return STEPS[_ATTENTION](partial(self._step, call), *wide[0], **wide[1])
        except NoStepsError:
            with attribute_set(torch.nn.functional, "has_torch_function", lambda *_: False), self:
                return func(*args, **kwargs)

    def _written_to(self, tensor: Any, found: Any) -> Any:
        """Write what steps have computed to the tensor that a function changes, and return it."""
        name = self.name_of(found)
        tensor.data.copy_(found.detach())
        self._names[id(tensor)] = tensor, version_of(tensor), name, tensor
        self._changed_by[_address(tensor)] = name, self.calls[-1].line
        return tensor

    def _step(
        self,
        call: _FunctionCall,
        op_type: str,
        function: Callable[..., Any],
        *operands: Any,
        attributes: Attributes | None = None,
        layouts: Mapping[int, str] | None = None,
    ) -> Any:
        """Compute one op; see `Step`."""
        if all(self.name_of(each) in self._constants for each in operands if isinstance(each, torch.Tensor)):
            plain = [each.axes if isinstance(each, Axes) else each for each in operands]
            return function(attributes, *plain) if attributes else function(*plain)  # a constant, too
        is_first = not any(each.name == call.key for each in self.calls[-_MOST_STEPS:])
        name = call.key if is_first else self._named(f"{call.key}/{op_type}")
        attributes = {**(attributes or {}), **self._attributes.get(name, {})}
        is_floating = any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in operands)
        inputs, numbers, axes = [], {}, []
        values: list[Any] = []
        for position, operand in enumerate(operands):
            value = operand
            if isinstance(operand, torch.Tensor):
                value = self._wide(operand)
                inputs.append(self.name_of(operand))
            elif isinstance(operand, Axes):
                numbers[position] = np.asarray(operand.axes, np.int32)
                axes.append(position)
                value = operand.axes
            else:
                numbers[position] = np.asarray(operand, np.float32 if is_floating else None)
                value = float(numbers[position]) if numbers[position].dtype.kind == "f" else operand
            if position in numbers:
                inputs.append(self._constant(f"{name}/constant_{position}", numbers[position]))
            if (name, position) in self._edges:
                value = self._edges[name, position]
                value = tuple(value.reshape(-1).tolist()) if position in axes else value
            values.append(value)
        result = function(attributes, *values) if attributes else function(*values)
        given = tuple(inputs), (), attributes, numbers, tuple(axes), layouts or {}
        self._note(_Call(name, op_type, call.line, call.calls, *given), list(_tensors(result)))
        return result

    def _whole(self, call: _FunctionCall, func: Any, args: Any, kwargs: Any, *, is_constant: bool) -> Any:
        """Compute a function as one op."""
        tensors = call.tensors
        positions = itertools.count()

        def given(tensor: Any) -> Any:
            return self._edges.get((call.key, next(positions)), tensor)

        args, kwargs = _mapped(given, args), _mapped(given, kwargs)
        versions = [version_of(each) for each in tensors]
        result = func(*args, **kwargs)
        if call.function in _CASTS and isinstance(result, torch.Tensor) and result.dtype in _NARROW:
            self._plan.has_halves |= result.dtype in _HALVES
            result = tensors[0] if tensors[0].is_floating_point() else result  # not rounded
        changed = [each for each, before in zip(tensors, versions, strict=True) if version_of(each) != before]
        if not changed and (is_constant or any(result is each for each in tensors)):  # nothing is computed
            return _mapped(self._widened, result)
        return self._noted(call, result, changed)

    def _noted(self, call: _FunctionCall, result: Any, changed: Sequence[Any]) -> Any:
        """Note a function that is one op, and return its result in float64."""
        op_type = f"Random{call.function.capitalize()}" if call.function in DRAWS else TYPES.get(call.function)
        result = _mapped(self._widened, result)
        found = list(_tensors(result))
        found += [each for each in changed if all(each is not other for other in found)]
        if not found:
            return result
        inputs = tuple(self._names[id(each)][2] for each in call.tensors)
        self._note(_Call(call.key, op_type or call.function, call.line, call.calls, inputs), found)
        for each in changed:
            self._changed_by[_address(each)] = self._names[id(each)][2], call.line
        return result

    def _note(self, call: _Call, results: Sequence[Any]) -> None:
        call.outputs = tuple(f"{call.name}:{n}" if n else call.name for n in range(len(results)))
        self.calls.append(call)
        for name, tensor in zip(call.outputs, results, strict=True):
            self._names[id(tensor)] = tensor, version_of(tensor), name, tensor
            self.arrays[name] = _array(tensor)
            if self._has_gradients and not torch.is_grad_enabled() and tensor.is_floating_point():  # torch.no_grad
                stop = self._named(f"{name}/no_grad")
                self.calls.append(_Call(stop, "StopGradient", call.line, call.calls, (name,), (stop,)))
                self._names[id(tensor)] = tensor, version_of(tensor), stop, tensor
                self.arrays[stop] = self.arrays[name]

    def _named(self, name: str) -> str:
        """Return a name that no other call has."""
        number = self._count[name]
        self._count[name] += 1
        return f"{name}_{number}" if number else name

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.calls.append(_Call(name, CONSTANT, str(UNKNOWN), outputs=(name,)))
        self.arrays[name] = array
        self._constants.add(name)
        return name

    def _wide(self, tensor: Any) -> Any:
        """Return a tensor in float64; note one that no op has computed, or that was changed by way of another one."""
        known = self._names.get(id(tensor))
        if known is not None and known[1] == version_of(tensor):
            return known[3]
        if known is not None:
            by, line = self._changed_by.get(_address(tensor), ("", str(UNKNOWN)))
            name = self._named(f"{known[2].replace(':', '_')}/changed")
            self._note(_Call(name, TYPES["setitem"], line, (), (known[2], *filter(None, [by]))), [tensor])
            return tensor
        wide, draws = self._widened(tensor), self.drawn()
        is_drawn, self._seen_draws = draws > self._seen_draws, draws
        name = self._named("drawn" if is_drawn else "constant")
        if is_drawn:
            self.calls.append(_Call(name, _DRAWN, str(site_of_calls(running_calls())), outputs=(name,)))
            self.arrays[name] = _array(wide)
        else:
            self._constant(name, _array(wide))
        self._names[id(tensor)] = tensor, version_of(tensor), name, wide
        self._names[id(wide)] = wide, version_of(wide), name, wide
        return wide

    def _widened(self, tensor: Any) -> Any:
        self._plan.has_halves |= tensor.dtype in _HALVES
        return tensor.double() if tensor.dtype in _NARROW else tensor


class _Layers:
    """The layers of a model, with what is known of them."""

    def __init__(self, paths: Mapping[int, str], line_of: Callable[[Any], str]):
        self._paths, self._line_of = paths, line_of

    def path_and_line(self, calls: Sequence[Call]) -> tuple[str, str]:
        """Return the path of the layer that runs, and the line: that of user code, and that which makes the layer.

        Given are the calls of the program that run; without them, only the path is known.
        """
        frame: Any = sys._getframe(1)
        line, layer = str(site_of_calls(calls)), None
        while frame is not None and layer is None:
            code = frame.f_code
            if code.co_name in ("forward", "call") and code.co_argcount:
                caller = frame.f_locals.get(code.co_varnames[0])
                layer = caller if id(caller) in self._paths else None
            frame = frame.f_back
        if layer is None:
            return "", line
        is_of_framework = type(layer).__module__.startswith(("torch.", "keras."))
        made = self._line_of(layer) if is_of_framework else ""
        if made and line in (made, str(UNKNOWN)):
            return self._paths[id(layer)], made
        return self._paths[id(layer)], f"{made}, called at {line}" if made else line


class TorchTrace(RecordedPort):
    """A module with the values of its variables.

    Attributes:
      whole: the calls of functions that are one op, because their steps do not have these arguments or results.
    """

    def __init__(
        self,
        module: Any,
        compute: Callable[[Callable[..., Any]], Any],
        view: TF1View,
        line_of: Callable[[Any], str],
        paths: Mapping[int, str],
        variables: Mapping[str, tuple[Any, Any]],
    ):
        """Trace a module.

        Args:
          module: the module.
          compute: gives the module its variables, and calls a function with the module as a function, its inputs and
            a function that counts the draws; returns what that returns.
          view: the view of the module's variables.
          line_of: returns the line that made a layer.
          paths: the names of the layers, by their ids.
          variables: the variables by name, each as a part of the view, and as a tensor.
        """
        super().__init__(view, {path: part for path, (part, _) in variables.items()})
        self._given = module, compute, view, line_of, paths, variables
        self._compute, self._variables = compute, variables
        self._plan, self._layers = _Plan(), _Layers(paths, line_of)
        self._as_written = {
            path: _array(leaf)
            for path, leaf in leaves_by_path(compute(lambda model, batch, drawn: model(*batch))).items()
            if isinstance(leaf, torch.Tensor)
        }
        tensors = [*module.parameters(), *module.buffers()]
        self._dtypes = [(tensor, tensor.dtype) for tensor in tensors]
        self._layouts: dict[str, str] = {}
        recorder = self._recorded(NOTHING)
        self._plan.is_decided = True
        self.whole = frozenset(self._plan.whole)
        self.computes_narrowly = self._plan.has_halves or any(dtype in _HALVES for _, dtype in self._dtypes)
        self._raw = {name: array.shape for name, array in recorder.arrays.items()}
        self._layouts = _layouts(recorder.calls, recorder.arrays, self.outputs.values())
        self._calls = {call.name: call for call in recorder.calls}
        self.constants = {call.name for call in recorder.calls if call.type == CONSTANT}
        self.arrays = self._shown(recorder.arrays)
        copies = _copies(recorder.calls, self.arrays)
        self.complete({call.name: self._op(call, is_copy=call.name in copies) for call in recorder.calls})

    def run(self, substituted: Substitution = NOTHING) -> Trace:
        """Run the module with what is substituted, and return its trace."""
        if substituted == NOTHING:
            return self.trace_of(self.arrays, substituted)
        try:
            recorder = self._recorded(substituted)
        except Exception as error:  # shapes that do not fit
            raise ValueError(str(error)) from error
        if [call.name for call in recorder.calls] != list(self.ops):
            raise ValueError("the module runs other ops with these values")
        return self.trace_of(self._shown(recorder.arrays), substituted)

    def outputs_as_written(self) -> dict[str, np.ndarray]:
        """Return the outputs that the module computes in its own dtypes, by path."""
        return self._as_written

    def calls_of(self, op: str) -> Sequence[Call]:
        """Return the calls of the program that run an op, the outermost first, and those of frameworks among them."""
        return self._calls[op].calls

    def with_batch_first(self) -> Iterator[tuple[Sequence[str], TorchTrace]]:
        """Yield the module with ``batch_first=True`` in all layers that have False, and in each of several."""
        module, compute, view, line_of, paths, variables = self._given
        layers = [each for each in module.modules() if getattr(each, "batch_first", True) is False]
        one_by_one = [[each] for each in layers]
        for chosen in [layers, *one_by_one] if len(layers) > 1 else one_by_one:

            def computed(run: Callable[..., Any], chosen: Sequence[Any] = chosen) -> Any:
                with Changes() as changes:
                    for layer in chosen:
                        changes.set(layer, "batch_first", True)
                    return compute(run)

            try:
                traced = TorchTrace(module, computed, view, line_of, paths, variables)
            except Exception:  # shapes that do not fit
                continue
            yield [paths[id(each)] for each in chosen], traced

    def _recorded(self, substituted: Substitution) -> _Recorder:
        """Run the module in float64, and return what it has run."""
        edges = {edge: self._hidden(*edge, value) for edge, value in substituted.edges.items()}
        recorder = _Recorder(self._plan, edges, substituted.attributes, self._layers)

        def run(model: Callable[..., Any], batch: Sequence[Any], drawn: Callable[[], int]) -> Any:
            for tensor, _ in self._dtypes:
                tensor.data = tensor.data.double() if tensor.is_floating_point() else tensor.data
            batch = _mapped(lambda each: each.double() if each.is_floating_point() else each, tuple(batch))
            recorder.drawn = drawn
            given = (each for each in flatten(batch) if isinstance(each, torch.Tensor))  # a dict by its keys, as in TF1
            for number, tensor in enumerate(given):
                recorder.give(tensor, f"input_{number}" if number else "input", INPUT)
            for path, (_, tensor) in self._variables.items():
                recorder.give(tensor, path, READ)
            with recorder.watched():
                return model(*batch)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the port has warned before
                outputs = self._compute(run)
        finally:
            for tensor, dtype in self._dtypes:
                tensor.data = tensor.data.to(dtype)
        leaves = leaves_by_path(outputs)
        self.outputs = {path: recorder.name_of(leaf) for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
        return recorder

    def _shown(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays in the layouts of TF1."""
        return {name: _in_tf1(array, self._layouts.get(name, "")) for name, array in arrays.items()}

    def _hidden(self, op: str, position: int, value: np.ndarray) -> Any:
        """Return an array of TF1's layout as what an op of the module gets."""
        name = self.ops[op].inputs[position]
        if position in self._calls[op].axes:
            return np.array([self._axis_in_torch(op, int(axis)) for axis in value.reshape(-1)])
        return torch.from_numpy(np.array(_in_torch(value, self._layouts.get(name, "")), order="C"))

    def _axis_in_torch(self, op: str, axis: int) -> int:
        name = self.ops[op].inputs[0]
        if self._layouts.get(name) != CHANNELS:
            return axis
        last = len(self._raw[name]) - 1
        return 1 if axis == last else axis + 1 if axis else 0

    def _op(self, call: _Call, *, is_copy: bool) -> TracedOp:
        """Return what a trace has of a call."""
        arrays = {}
        for position, name in enumerate(call.inputs):
            array = call.numbers.get(position, self.arrays[name] if name in self.constants else None)
            if position in call.axes and self._layouts.get(call.inputs[0]) == CHANNELS and array is not None:
                last = len(self._raw[call.inputs[0]]) - 1
                array = np.sort([0 if axis == 0 else last if axis == 1 else axis - 1 for axis in array])
            if array is not None:
                arrays[position] = array
        constants, attributes = constants_of(arrays, call.attributes)
        op_type = "Identity" if is_copy else call.type
        return TracedOp(call.name, op_type, call.line, call.inputs, attributes, constants=constants)


def _layouts(calls: Sequence[_Call], arrays: Mapping[str, np.ndarray], outputs: Any) -> dict[str, str]:
    """Return the layouts of tensors: those that ops say, and those of what is computed from them elementwise."""
    found: dict[str, str] = {}
    for call in calls:
        for position, layout in call.layouts.items():
            name = call.outputs[0] if position == -1 else call.inputs[position]
            found[name] = layout if arrays.get(name, np.zeros(())).ndim > 2 or name not in arrays else ""
    count = -1
    while count != len(found):
        count = len(found)
        for call in calls:
            rank = arrays[call.outputs[0]].ndim if call.outputs and call.outputs[0] in arrays else 0
            names = [name for name in (*call.inputs, *call.outputs) if name in arrays and arrays[name].ndim == rank]
            if rank > 2 and call.type not in _MOVED and any(found.get(name) == CHANNELS for name in names):
                found.update((name, CHANNELS) for name in names if name not in found)
    for name in outputs:  # the user compares them as they are
        found.pop(name, None)
    return found


def _in_tf1(array: np.ndarray, layout: str) -> np.ndarray:
    """Return an array of PyTorch in TF1's layout."""
    if layout == CHANNELS and array.ndim > 2:
        return np.moveaxis(array, 1, -1)
    if layout in (KERNEL, DEPTHWISE) and array.ndim > 2:
        return np.moveaxis(array, (0, 1), (-1, -2))
    return array


def _in_torch(array: np.ndarray, layout: str) -> np.ndarray:
    """Return an array of TF1's layout as PyTorch has it."""
    if layout == CHANNELS and array.ndim > 2:
        return np.moveaxis(array, -1, 1)
    if layout in (KERNEL, DEPTHWISE) and array.ndim > 2:
        return np.moveaxis(array, (-1, -2), (0, 1))
    return array


def _copies(calls: Sequence[_Call], arrays: Mapping[str, np.ndarray]) -> set[str]:
    """Return the calls that only move axes to where TF1 has them."""
    found = set()
    for call in calls:
        if call.type == "Transpose" and call.inputs[0] in arrays:
            before, after = arrays[call.inputs[0]], arrays[call.outputs[0]]
            if before.size == after.size and np.array_equal(before.reshape(-1), after.reshape(-1), equal_nan=True):
                found.add(call.name)
    return found


_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # names as in NumPy


def _is_dtype(name: str, value: Any) -> bool:
    """Return whether an argument is a dtype of floating-point numbers, which are computed in float64 in any case."""
    return name == "dtype" and (value is None or value.is_floating_point)


def _agree(found: Any, result: Any) -> bool:
    """Return whether steps have computed what a function returns."""
    pair = list(_tensors(found)), list(_tensors(result))
    if len(pair[0]) != len(pair[1]) or isinstance(found, tuple) != isinstance(result, tuple):
        return False
    return all(
        one.shape == other.shape
        and one.dtype == other.dtype
        and (
            bool(torch.allclose(one, other, _CLOSE, _CLOSE * _greatest(other), equal_nan=True))
            if other.is_floating_point()
            else torch.equal(one, other)
        )
        for one, other in zip(*pair, strict=True)
    )


def _greatest(tensor: Any) -> float:
    finite = tensor.detach()[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _function_name(func: Any) -> str:
    """Return the name of a function of PyTorch, such as ``add`` for the operator ``+``."""
    name = getattr(func, "__name__", "") or str(resolve_name(func))
    if name in ("__get__", "__set__", "__delete__"):
        name = getattr(func.__self__, "__name__", name) if name == "__get__" else "set"
    if not name.startswith("__"):
        return name
    name = name.strip("_")
    return name[1:] if name.startswith("i") and name[1:] in STEPS else name  # in place, as ``+=``


def _of_source(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the source of a function that ``torch.jit`` has compiled, whose ops can be watched."""
    return source_of(function)(*args, **kwargs)


def _array(tensor: Any) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    return np.array(tensor.detach().to_dense().numpy() if tensor.is_sparse else tensor.detach().numpy())


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples, lists and dicts with what a function returns of each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _mapped(function, each) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_mapped(function, each) for each in value)
    of_variable = getattr(value, "value", None) if hasattr(type(value), "__torch_function__") else None  # of Keras
    return function(of_variable) if isinstance(of_variable, torch.Tensor) else value
