"""The update of TF1's training step: `update_of` builds it by ``tf1_optimizer``, or by the user's ``tf1_train_op``."""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from detrand._patching.optimizers import APPLY_GRADIENTS, GRADIENTS, is_average, learning_rate_of
from detrand._patching.patches import Patches, with_signature_of
from detrand.arguments import and_more, quote
from detrand.checkpoints.upstream import all_upstream, input_ops
from detrand.errors import MigrationError
from detrand.packages import tf
from detrand.seeding.callsite import UNKNOWN, is_of_user, site, site_of_op
from detrand.validation.migration import Migration
from detrand.validation.programs.layer_sites import LayerSites
from detrand.validation.programs.update_order import all_run, source_of, updated_by
from detrand.validation.training import steps
from detrand.validation.training.steps import CLIPPING, FACTOR, Schedule, train_step_of
from detrand.variables.tf1_view import TF1View


class Applied(NamedTuple):
    """A gradient that an optimizer applies.

    Attributes:
      part: the variable, or the part of one, that it updates.
      gradient: the gradient, dense or in slices.
      of_loss: the gradient of the total loss; None if it has none.
    """

    part: Any
    gradient: Any
    of_loss: Any


@dataclass(frozen=True)
class Update:
    """The update of a step in the TF1 graph.

    Attributes:
      run: the ops and tensors that a session runs for it.
      rate: the learning rate of its optimizer; None if that has none, or if there are several.
      gradients: pairs of a gradient of the total loss and a part of a variable that is trained.
      applied: the gradients that optimizers apply to these parts, as far as they are known.
      optimizers: the optimizers, and the ``tf.train.ExponentialMovingAverage`` of weights.
      of_loss: whether it is made of gradients of the total loss itself, and not of a tensor computed from the loss.
      lines: where the optimizer, its learning rate and the moving average of weights were made, by ``"optimizer"``,
        ``"learning_rate"`` and ``"average"``; where gradients are changed before the update, by `FACTOR`, and where
        they are clipped, by `CLIPPING`.
      schedule: how the learning rate is computed.
    """

    run: Sequence[Any]
    rate: Any
    gradients: Sequence[tuple[Any, Any]]
    applied: Sequence[Applied]
    optimizers: Sequence[Any]
    of_loss: bool
    lines: dict[str, str]
    schedule: Schedule


def norms_of_slices(update: Update) -> tf.Tensor | None:
    """Return a step's pair of `Training.norms_of_slices`; None if TF1 clips no slices, or clips them in a branch."""
    gradients = [gradient for gradient, _ in update.gradients if gradient is not None]
    pairs = [(each.gradient, each.of_loss) for each in update.applied]
    dense = [pair for pair in pairs if all(isinstance(each, tf.Tensor) and _is_run(each) for each in pair)]
    has_slices = any(isinstance(each, tf.IndexedSlices) for each in gradients)
    dtypes = {each.dtype for each in (*gradients, *(each for pair in dense for each in pair))}
    if CLIPPING not in update.lines or not has_slices or not dense or len(dtypes) > 1:
        return None
    applied, of_loss, all_together = (tf.linalg.global_norm(of) for of in (*zip(*dense, strict=True), gradients))
    return tf.stack([all_together, applied / of_loss])


def _is_run(tensor: tf.Tensor) -> bool:
    """Return whether every step computes a tensor: one of a branch or a loop belongs to that."""
    return bool(tensor.graph is tf.compat.v1.get_default_graph() and tensor.graph.is_fetchable(tensor))


def update_of(migration: Migration, view: TF1View, loss: tf.Tensor, computed: Any) -> Update:
    """Build the update of a step that computes the tensors in a structure; `order_updates` must order its ops.

    Raises:
      MigrationError: if the user's function returns nothing that trains a variable.
    """
    train, sites = train_step_of(migration), LayerSites()
    tf.compat.v1.train.get_or_create_global_step()
    var_list = _trained(migration, view)
    before = [each for each in tf.nest.flatten(computed, expand_composites=True) if tf.is_tensor(each)]
    with sites.watched():
        if train.tf1_optimizer is not None:
            optimizer = steps.checked_optimizer("tf1_optimizer", train.tf1_optimizer(), "compute_gradients")
            rate = learning_rate_of(optimizer)
            rate = None if rate is None else tf.convert_to_tensor(rate)
            asked = _Gradients(loss)
            with asked.noted():
                given = list(optimizer.compute_gradients(loss, **var_list))
            values = tf.nest.flatten([rate, [each for each, _ in given]], expand_composites=True)
            values = [each for each in values if each is not None]
            first = [*tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS), *before, *values]
            with tf.control_dependencies(first), asked.noted():
                run = [optimizer.apply_gradients(given, tf.compat.v1.train.get_global_step())]
            # An optimizer of the user's may clip them before it returns them.
            gradients = [(asked.of_loss.get(part.op.name, each), part) for each, part in given]
            optimizers, of_loss = [optimizer], True
        else:
            run, gradients, asked = _own_train_op(migration, view, loss)
            of_loss = all(part.op.name in asked.of_loss for _, part in gradients)
            optimizers = sites.made(tf.compat.v1.train.Optimizer)
            rates = [each for each in map(learning_rate_of, optimizers) if each is not None]
            rate = rates[0] if len(rates) == 1 else None
    averages = [each for each in sites.made(object) if is_average(each)]
    lines = sites.lines_of_optimizer(optimizers[0], rate) if optimizers else {}
    if averages:
        lines["average"] = sites.line_of(averages[0])
    lines |= _lines_of_changes(run, asked.taken, [part for _, part in gradients])
    applied = tuple(_applied_gradients(run, gradients, asked.given))
    return Update(run, rate, gradients, applied, [*optimizers, *averages], of_loss, lines, _schedule_of(rate))


_MOST_NUMBERS = 16  # of one constant
_CLIPS = {"Minimum", "Maximum", "ClipByValue"}
_PASSING = {"Identity", "Cast", "NoOp", "Pack", "Reshape", "Shape"}


def _lines_of_changes(run: Sequence[Any], taken: Sequence[tuple[str, Any]], parts: Sequence[Any]) -> dict[str, str]:
    """Return the lines of the first op that changes gradients before they are applied, and of the first that clips.

    Where no kernel of an optimizer applies them, the ops before an assignment are the optimizer.
    """
    from detrand._patching.graphs import function_graphs

    found = dict[str, str]()
    between, updating = _ops_between(run, taken, parts)
    is_assigned = all("Assign" in op.type for op in updating)
    for op in between:
        types = {op.type, *(inner.type for graph in function_graphs(op) for inner in graph.get_operations())}
        if op.type not in _PASSING and not _is_of_optimizer(op):
            if not is_assigned:
                found.setdefault(FACTOR, str(site_of_op(op)))
            if not _CLIPS.isdisjoint(types):
                found.setdefault(CLIPPING, str(site_of_op(op)))
    return found


def _ops_between(
    run: Sequence[Any], taken: Sequence[tuple[str, Any]], parts: Sequence[Any]
) -> tuple[list[tf.Operation], list[tf.Operation]]:
    """Return the ops from gradients of parts to the ops that update these, in the order of the graph, and the latter.

    They begin with the gradients that code takes, of any tensor, and end at kernels of optimizers, or at the branches
    and functions that hold kernels, whose gradients are in another graph.
    """
    names = {part.op.name for part in parts}
    given = tf.nest.flatten([gradient for name, gradient in taken if name in names], expand_composites=True)
    first = {each.op for each in given if each is not None}
    if not first:
        return [], []
    run_ops, trained = all_run(run), {getattr(part, "handle", part).op for part in parts}
    in_order = [op for op in next(iter(first)).graph.get_operations() if op in run_ops]
    reached, updating = set(first), list[tf.Operation]()
    for op in in_order:
        if reached.isdisjoint(input_ops(op)):
            continue
        reached.add(op)
        if not trained.isdisjoint(input_ops(op)):
            updating.append(op)
        else:  # variables in which gradients are summed
            reached.update(each.op for each in op.inputs if each.dtype == tf.resource)

    def before(op: tf.Operation) -> list[tf.Operation]:
        users = [user for each in op.outputs if each.dtype == tf.resource for user in each.consumers()]
        return [each for each in (*input_ops(op), *users) if each in reached]

    between = all_upstream(updating, before) - first - set(updating)
    return [op for op in in_order if op in between], updating


def _is_of_optimizer(op: tf.Operation) -> bool:
    """Return whether one of TensorFlow's optimizers added an op, for example to add up the slices of a row."""
    for frame in reversed(op.traceback or ()):
        if is_of_user(frame):
            return False
        if "tensorflow/python/training/" in frame.filename.replace("\\", "/"):
            return True
    return True


def _schedule_of(rate: Any) -> Schedule:
    """Return the function of ``tf.train`` that user code calls for a learning rate, and the rate's constants."""
    op, found = getattr(rate, "op", None), ""
    for frame in reversed(getattr(op, "traceback", None) or ()):
        if is_of_user(frame):
            break
        found = f"tf.train.{frame.name}" if frame.name.islower() and hasattr(tf.compat.v1.train, frame.name) else found
    needed = () if op is None else all_upstream([op], input_ops)
    arrays = [tf.make_ndarray(each.get_attr("value")) for each in needed if each.type == "Const"]
    flat = (number for array in arrays if array.dtype.kind in "fiu" for number in array.flat[:_MOST_NUMBERS])
    numbers = {float(str(number)) for number in flat}  # as it is written, and not as float32 rounds it
    return Schedule(found, (*sorted(numbers),))


def _trained(migration: Migration, view: TF1View) -> dict[str, list[Any]]:
    """Return the ``var_list`` for ``compute_gradients``, or nothing if all variables are trained.

    Raises:
      MigrationError: if a pattern of the migration's list matches no variable.
    """
    train = train_step_of(migration)
    if train.var_list is None:
        return {}
    trainable = [name for name, spec in view.specs.items() if spec.trainable]
    for pattern in train.var_list:
        if not fnmatch.filter(trainable, pattern):
            raise MigrationError(
                f"var_list has {pattern!r}, which matches no trainable variable of the TF1 program; it has "
                f"{', '.join(trainable) or 'none'}"
            )
    return {"var_list": [part for name in filter(train.trains, trainable) for part in view.parts_of(name)]}


def _own_train_op(
    migration: Migration, view: TF1View, loss: tf.Tensor
) -> tuple[list[Any], list[tuple[Any, Any]], _Gradients]:
    """Return what the user's training op runs, the gradients of the total loss of what it trains, and those it takes.

    It trains the variables that it updates and takes a gradient of; if it takes none, all trainable ones it updates.
    """
    build = train_step_of(migration).tf1_train_op
    assert build is not None
    trainable = [part for part in view.parts if part.trainable]
    gradients = dict(zip([part.op.name for part in trainable], tf.compat.v1.gradients(loss, trainable), strict=True))
    asked = _Gradients(loss)
    with asked.noted():
        returned = build(loss)
    run = _checked(migration, returned, loss, build)
    updated = updated_by(loss.graph, run)
    trained = [part for part in trainable if part.op.name in updated]
    if not trained:
        names = and_more([part.op.name for part in trainable], 3) or "none"
        what = "the loss itself" if run[0] is loss else f"{quote(returned)}, which updates no trainable variable"
        raise MigrationError(
            f"tf1_train_op of {migration.name} returned {what}{_at(build)}. The program's trainable variables: {names}."
            f" {_RETURN}"
        )
    gradients |= asked.of_loss  # those that the update is made of
    chosen = [part for part in trained if part.op.name in asked.names] or trained
    return run, [(gradients[part.op.name], part) for part in chosen], asked


def _applied_gradients(
    run: Sequence[Any], gradients: Sequence[tuple[Any, Any]], given_to: Mapping[str, Any]
) -> Iterator[Applied]:
    """Yield the gradients that kernels of optimizers apply, given pairs of a gradient of the loss and a part.

    Where an optimizer updates a part by other ops, as Adam does for slices, it is the gradient that it was given. What
    it applies in a branch or a function is left out.
    """
    pairs = {getattr(part, "handle", part).op: (part, of_loss) for of_loss, part in gradients}
    others = {part.op.name: (part, of_loss) for of_loss, part in gradients if part.op.name in given_to}
    for op in all_run(run):
        if "Apply" not in op.type or (pair := pairs.get(source_of(op.inputs[0]))) is None:
            continue
        part, of_loss = pair
        given = dict(zip((argument.name for argument in op.op_def.input_arg), op.inputs, strict=True))
        gradient = given.get("grad", given.get("delta"))
        if gradient is not None and "indices" in given:
            gradient = tf.IndexedSlices(gradient, given["indices"], tf.constant(part.shape.as_list()))
        if gradient is not None:
            others.pop(part.op.name, None)
            yield Applied(part, gradient, of_loss)
    for name, (part, of_loss) in others.items():
        yield Applied(part, given_to[name], of_loss)


class _Gradients:
    """The gradients that code takes in a graph, and gives to optimizers.

    Attributes:
      taken: all that it takes, with the names of their variables' ops.
      names: these names.
      of_loss: the gradients of one loss, by these names.
      given: what TensorFlow's optimizers apply in this graph, by these names.
    """

    def __init__(self, loss: tf.Tensor) -> None:
        self._loss = loss
        self.given: dict[str, Any] = {}
        self.taken: list[tuple[str, Any]] = []
        self.names: set[str] = set()
        self.of_loss: dict[str, Any] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what the block takes and gives."""
        with Patches() as patches:
            patches.replace(GRADIENTS, self._noting)
            patches.replace(APPLY_GRADIENTS, self._noting_given)
            yield

    def _noting_given(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            for gradient, variable in pairs:
                tensors = [each for each in tf.nest.flatten(gradient, expand_composites=True) if each is not None]
                if tensors and all(each.graph is self._loss.graph for each in tensors):
                    self.given[variable.op.name] = gradient
            return original(optimizer, pairs, *args, **kwargs)

        return with_signature_of(original, apply_gradients)

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gradients(ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
            found = original(ys, xs, grad_ys, *args, **kwargs)
            ys, names = tf.nest.flatten(ys), [getattr(getattr(x, "op", None), "name", "") for x in tf.nest.flatten(xs)]
            self.names.update(names)
            self.taken += zip(names, found, strict=False)
            is_of_loss = len(ys) == 1 and self._is_loss(ys[0]) and grad_ys is None
            if is_of_loss and len(names) == len(found):
                self.of_loss |= dict(zip(names, found, strict=True))
            return found

        return with_signature_of(original, gradients)

    def _is_loss(self, tensor: Any) -> bool:
        while tensor is not self._loss and tf.is_tensor(tensor) and tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        return tensor is self._loss


_RETURN = "Return the op that a session runs in each step, such as tf.train.AdamOptimizer(0.001).minimize(loss)"


def _checked(migration: Migration, returned: Any, loss: tf.Tensor, build: Any) -> list[Any]:
    """Return the ops and tensors that the user's function returned.

    Raises:
      MigrationError: if it returned none, or something else, or what belongs to another graph.
    """
    graph, given = loss.graph, tf.nest.flatten(returned)
    for each in given or [None]:
        if not hasattr(each, "graph") or not hasattr(each, "name"):
            what = f"{quote(returned)} of type {type(returned).__name__}"
            raise MigrationError(f"tf1_train_op of {migration.name} returned {what}{_at(build)}. {_RETURN}")
        if each.graph is not graph:
            made = site_of_op(getattr(each, "op", each))
            raise MigrationError(
                f"tf1_train_op of {migration.name} returned {each.name!r}, which is not of the graph of the loss"
                f"{'' if made == UNKNOWN else f', but was made at {made}'}{_at(build)}. Each validation builds new "
                "graphs: build the op inside tf1_train_op, in the default graph, from the loss that it is given"
            )
    return [each if isinstance(each, tf.Operation) else graph.as_graph_element(each) for each in given]


def _at(function: Any) -> str:
    """Return the line of a function, in parentheses; empty if it has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({site(code.co_filename, code.co_firstlineno)})"
