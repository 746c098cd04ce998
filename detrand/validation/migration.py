"""`Migration`: a TF1 program and its port with inputs for both; and `TrainStep`: how both are trained."""

from __future__ import annotations

import fnmatch
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detrand.arguments import check_callable, check_factory, quote, takes_one_argument, wrong_type
from detrand.checkpoints.graph_files import GraphFile
from detrand.comparison.metrics import is_metric
from detrand.errors import ArgumentError, MigrationError
from detrand.packages import tf
from detrand.seeding.callsite import UNKNOWN, site_of_argument
from detrand.seeding.streams import checked_seed
from detrand.steps.comparison import Tolerance, checked_tolerances
from detrand.validation.batches import Input, as_batch, as_labels, batches_of, describe_batch, training_batches
from detrand.validation.precision import POLICIES, PolicyTolerance, variable_dtype
from detrand.validation.tolerances import OutputTolerances
from detrand.variables.comparison import NameMap, mapped_name

# The checks, in order; the first one and the last two are optional.
CHECK_NAMES = (
    *(
        "tf1-as-recorded",
        "variables-created-once",
        "variables-match",
        "initializers-match",
        "regularizers-match",
        "constant-weights",
    ),
    *("random-inference", "random-training", "constant-mode", "checkpoint", "training-steps"),
)
# The checks that name the variables that fail them.
_MEASURED = "measured: 4 times as much as rounding moves TF1's outputs, and at least 4 ULPs"
_OF_VARIABLES = ("initializers-match", "regularizers-match")
Tolerances = Sequence[Tolerance]


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A TF1 model and its port, to be checked by ``detrand.validate`` or ``python -m detrand validate``.

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> import detrand
    >>> def tf1(inputs, training):
    ...     kernel = tf.compat.v1.get_variable("dense/kernel", (3, 2))
    ...     bias = tf.compat.v1.get_variable("dense/bias", (2,), initializer=tf.compat.v1.zeros_initializer())
    ...     return tf.matmul(inputs, kernel) + bias
    >>> migration = detrand.Migration(
    ...     tf1=tf1,
    ...     port=lambda: keras.layers.Dense(2, name="dense"),
    ...     inputs=np.ones((4, 3), np.float32),
    ... )
    >>> detrand.validate(migration).ok
    True

    Args:
      tf1: a function that builds the TF1 model in the default graph. It is called as ``tf1(*inputs, training=...)``
        with a placeholder for each array, and returns the outputs in any nested structure. Or the path of a frozen
        graph, a SavedModel or a ``.meta`` file, or a `GraphFile`.
      port: a function without arguments that makes a new port on each call: a Keras or tf_keras layer or model, a
        ``tf.Module``, or any callable. The port is called as ``port(*inputs, training=...)`` and returns outputs of
        the same structure; a Keras layer whose ``call`` has no ``training`` is called without it. A Keras layer whose
        ``call`` has one argument, named ``inputs``, gets several inputs as a list, as a functional model does. A
        ``torch.nn.Module`` or a ``flax.nnx.Module`` is put into training or evaluation mode and called as
        ``port(*inputs)``. A plain function can be a port only if it has no variables, because variables in its closure
        cannot be found.
      inputs: an array, or a dict of arrays with text as keys, such as the features of an Estimator's ``model_fn``;
        or a tuple or list of these, one for each input. Or a function without arguments that returns an iterable of
        such batches; the first batch is used.
      name: name in reports; the name of ``tf1`` by default. If ``python -m detrand`` runs all migrations of a file,
        migrations with the same default name are named after the Python variables that hold them.
      name_map: the port's variable name for each TF1 variable name that differs: a dict or a function. Variables that
        the port has in a different form have a `Rearranged` in place of a name.
      checkpoint: a name-based TF1 checkpoint: its prefix, or a directory whose latest checkpoint is used. It adds a
        check that both programs compute the same with its weights. If ``tf1`` is a SavedModel or a ``.meta`` file, its
        own checkpoint is the default. In a file for ``python -m detrand validate``, a relative path is looked up in the
        file's folder and then in the working directory.
      seed: the seed of both programs.
      seed_numpy: whether NumPy's global generator and Python's ``random`` are seeded with ``seed`` before each program
        is built, for models that draw initial values from them. Both are restored afterwards.
      tolerances: a list of `Tolerance`, such as ``[Tolerance(rtol=1e-4, atol=0.0, of="['logits']*")]``, of which the
        first that covers an output counts. Other outputs may differ by as much as rounding moves TF1's, which is
        measured. A `Tolerance` without ``of`` is for all outputs and for what training steps compute; ``[Tolerance()]``
        has the fixed rtol 1e-6 and atol 1e-5 of TensorFlow's guide.
      train: how both programs are trained. It adds a check that each training step computes the same.
      dtype_policy: ``"mixed_float16"``, ``"mixed_bfloat16"``, ``"float16"``, ``"bfloat16"`` or ``"float64"``: the
        policy of the port's Keras 3 or tf_keras layers while the port is made and run; the policy of the process is
        restored afterwards. TF1 computes in float32. Random numbers of the port are drawn in float32, as in TF1, and
        cast. Variables and outputs may have a different dtype than in TF1. Unless ``tolerances`` are given, outputs may
        differ by 8 epsilons of the coarser of the dtypes that the two programs compute in.
      strategy: a ``tf.distribute.Strategy``, or a function without arguments that makes one. The port is made in its
        scope, and each replica gets an equal part of the batch. TF1 runs in towers: ``tf1`` is called once for each
        replica with its part of the batch, and the towers share variables. If the towers cannot share variables, TF1
        runs on the whole batch, and checks in which the port draws random numbers compare nothing.
      metrics: numbers about outputs that reports show, and that do not affect the verdict: ``"cosine"`` (similarity),
        ``"top-5"`` (the share of TF1's five greatest elements that are among the port's; any number) and ``"kl"``
        (divergence, of probabilities or of the softmax of logits). A dict by the output's path as reports show it, in
        which ``*`` stands for any characters, or by its key: ``{"logits": ["cosine", "top-5", "kl"]}``.
      expect: differences that are intended, by the check that finds them, such as ``["regularizers-match"]``; or by
        the check and a variable's TF1 name, in which ``*`` stands for any characters:
        ``["initializers-match: logits/*"]``. A check that fails in nothing else is accepted, and the report says so.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """

    tf1: Callable[..., Any] | str | os.PathLike[str]
    port: Callable[[], Any]
    inputs: Any
    name: str = ""
    name_map: NameMap | None = None
    checkpoint: str | os.PathLike[str] | None = None
    seed: int = 42
    seed_numpy: bool = False
    tolerances: Tolerances = ()
    train: TrainStep | None = None
    dtype_policy: str | None = None
    strategy: tf.distribute.Strategy | Callable[[], tf.distribute.Strategy] | None = None
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    expect: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tf1, (str, os.PathLike)):
            object.__setattr__(self, "tf1", GraphFile(self.tf1))
        check_callable(
            "tf1", self.tf1, "a function tf1(*inputs, training) that builds the TF1 model, or a graph's path"
        )
        check_factory("port", self.port, "makes the port", "lambda: MyLayer(10), not the layer itself")
        if self.name_map is not None and not callable(self.name_map) and not isinstance(self.name_map, Mapping):
            raise wrong_type("name_map", self.name_map, "a dict from TF1 names to names in the port, or a function")
        if self.checkpoint is not None and not isinstance(self.checkpoint, (str, os.PathLike)):
            remedy = "pass its prefix, as in 'dir/model.ckpt-100'"
            raise wrong_type("checkpoint", self.checkpoint, "the path of a checkpoint", remedy)
        for tolerance in checked_tolerances(self.tolerances):
            if tolerance.until is not None:
                raise ArgumentError(
                    f"tolerances of a migration hold in every step, but {tolerance!r} was given; give it in "
                    "TrainStep(tolerances=...)"
                )
        if self.dtype_policy is not None:
            self._check_dtype_policy(self.dtype_policy)
        strategy = self.strategy
        if not (strategy is None or callable(strategy) or (hasattr(strategy, "scope") and hasattr(strategy, "run"))):
            remedy = "write strategy=tf.distribute.MirroredStrategy, for example"
            raise wrong_type("strategy", strategy, "a tf.distribute.Strategy, or a function that makes one", remedy)
        checked_seed("seed", self.seed)
        holds_float32 = self.dtype_policy is None or variable_dtype(self.dtype_policy) == "float32"
        if isinstance(self.tf1, GraphFile) and self.checkpoint is None and holds_float32:
            object.__setattr__(self, "checkpoint", self.tf1.checkpoint)
        self._check_metrics()
        self._check_expect()
        self._check_batches()
        if not self.name:
            object.__setattr__(self, "name", self.default_name)

    def _check_dtype_policy(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ArgumentError(
                f"dtype_policy must be one of {', '.join(map(repr, POLICIES))}, but {policy!r} was given. Leave it out "
                "for a port in float32"
            )
        if self.checkpoint is not None and variable_dtype(policy) != "float32":
            raise ArgumentError(
                f"checkpoint cannot be combined with dtype_policy={policy!r}: the checkpoint holds float32, and the "
                f"port's variables are {variable_dtype(policy)}; use two migrations, one with each"
            )

    def _check_metrics(self) -> None:
        if not isinstance(self.metrics, Mapping) or not all(isinstance(of, str) and of for of in self.metrics):
            remedy = 'write metrics={"logits": ["cosine", "top-5", "kl"]}, for example'
            raise wrong_type("metrics", self.metrics, "a dict from outputs to lists of metrics", remedy)
        for of, names in self.metrics.items():
            if not isinstance(names, (list, tuple)):
                raise wrong_type(f"metrics[{of!r}]", names, "a list of metrics")
            for name in names:
                if not isinstance(name, str) or not is_metric(name):
                    raise ArgumentError(
                        f"metrics[{of!r}] has {quote(name)}, which is no metric; the metrics are 'cosine', 'kl', and "
                        "'top-1', 'top-5' and so on"
                    )

    def metrics_of(self, path: str) -> list[str]:
        """Return the names of the metrics of the output at a path."""
        asked = [names for of, names in self.metrics.items() if is_metric_of(of, path)]
        return [*dict.fromkeys(name for names in asked for name in names)]

    def _check_expect(self) -> None:
        if not isinstance(self.expect, (list, tuple)) or not all(isinstance(each, str) for each in self.expect):
            remedy = 'write expect=["initializers-match"], for example'
            raise wrong_type("expect", self.expect, "a list of names of checks", remedy)
        for expected in self.expect:
            check, pattern = split_expected(expected)
            if check not in CHECK_NAMES:
                raise ArgumentError(
                    f"expect has {expected!r}, which names no check. The checks are {', '.join(CHECK_NAMES)}; "
                    f"a variable may follow {' and '.join(_OF_VARIABLES)}, as in '{_OF_VARIABLES[0]}: dense/*'"
                )
            if pattern and check not in _OF_VARIABLES:
                raise ArgumentError(
                    f"expect has {expected!r}, but only {' and '.join(_OF_VARIABLES)} can be accepted for some "
                    f"variables; write {check!r}"
                )

    def _check_batches(self) -> None:
        """Check inputs and labels as far as they are arrays; functions are called later."""
        if not callable(self.inputs):
            self._check_takes(as_batch(self.inputs))
        if self.train is None:
            return
        if not isinstance(self.train, TrainStep):
            remedy = "write train=detrand.TrainStep(labels=..., tf1_loss=..., ...)"
            raise wrong_type("train", self.train, "a detrand.TrainStep", remedy)
        if not callable(self.inputs) and not callable(self.train.labels):
            self.training_batches()

    @property
    def program(self) -> Callable[..., Any]:
        """The function that builds the TF1 model in the default graph."""
        assert callable(self.tf1)
        return self.tf1

    @property
    def numpy_seed(self) -> int | None:
        """The seed for NumPy's global generator; None if it is not seeded."""
        return self.seed if self.seed_numpy else None

    @property
    def default_name(self) -> str:
        """The name of a migration that is given none."""
        return str(getattr(self.tf1, "__name__", type(self.tf1).__name__))

    @property
    def output_tolerances(self) -> OutputTolerances:
        """How close each output must be; those of the guide where none is given."""
        return OutputTolerances((*self.tolerances, Tolerance()))

    @property
    def tolerance_in_words(self) -> str:
        """How close outputs must be, in one line."""
        if self.policy_tolerance is not None:
            return str(self.policy_tolerance)
        return self.output_tolerances.in_words(_MEASURED if self.measures_rounding else "")

    @property
    def policy_tolerance(self) -> PolicyTolerance | None:
        """The tolerance that follows from the dtype policy; None if tolerances are given, or there is no policy."""
        return None if self.tolerances or self.dtype_policy is None else PolicyTolerance(self.dtype_policy)

    @property
    def measures_rounding(self) -> bool:
        """Whether outputs that no tolerance covers may differ by as much as rounding moves TF1's."""
        return self.dtype_policy is None and all(tolerance.of != "*" for tolerance in self.tolerances)

    @property
    def measures_training(self) -> bool:
        """Whether what rounding moves in TF1's training may differ; half precision has a measurement of its own."""
        return self.measures_rounding or (self.policy_tolerance is not None and self.dtype_policy == "float64")

    def tf1_names(self, names: Iterable[str]) -> dict[Any, str]:
        """Return the names of TF1 variables by what ``name_map`` maps them to: their names in the port."""
        return {mapped_name(self.name_map, name): name for name in names}

    def first_batch(self) -> tuple[Input, ...]:
        """Return the inputs of one call, as arrays."""
        batch = batches_of("inputs", self.inputs, as_batch, 1)[0]
        try:
            self._check_takes(batch)
        except ArgumentError as error:  # the inputs of a function are known only now
            raise MigrationError(str(error)) from error
        return batch

    def _check_takes(self, batch: tuple[Input, ...]) -> None:
        """Raise an `ArgumentError` unless ``tf1`` accepts that many inputs."""
        try:
            inspect.signature(self.program).bind(*batch, training=False)
        except TypeError as error:
            raise ArgumentError(
                f"tf1(*inputs, training=...) cannot be called with the inputs {describe_batch(batch)}: {error}; each "
                "item of a tuple or list is one argument, and so is an array or a dict"
            ) from None
        except ValueError:
            pass  # a builtin without a signature

    def training_batches(self) -> list[tuple[tuple[Input, ...], Any]]:
        """Return the inputs and labels of each training step, as arrays; see `batches.training_batches`."""
        assert self.train is not None
        return training_batches(self.inputs, self.train.labels, self.train.steps)


def is_metric_of(of: str, path: str) -> bool:
    """Return whether a key of ``metrics`` is for the output at a path."""
    return path == f"[{of!r}]" or Tolerance(of=of).covers(path)


def split_expected(expected: str) -> tuple[str, str]:
    """Return the check and the pattern of variables of an item of ``expect``; the pattern is empty if it has none."""
    check, _, pattern = expected.partition(":")
    return check.strip(), pattern.strip()


Metric = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """How a TF1 model and its port are trained; it adds the check ``training-steps`` to a `Migration`.

    >>> import keras
    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from detrand import Migration, TrainStep, validate
    >>> def tf1(inputs, training):
    ...     return tf.matmul(inputs, tf.compat.v1.get_variable("dense/kernel", (3, 2)))
    >>> migration = Migration(
    ...     tf1=tf1,
    ...     port=lambda: keras.layers.Dense(2, use_bias=False, name="dense"),
    ...     inputs=np.ones((4, 3), np.float32),
    ...     train=TrainStep(
    ...         labels=np.zeros((4, 2), np.float32),
    ...         tf1_loss=tf.compat.v1.losses.mean_squared_error,
    ...         port_loss=keras.losses.MeanSquaredError(),
    ...         tf1_optimizer=lambda: tf.compat.v1.train.AdamOptimizer(0.01),
    ...         port_optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-8),
    ...         steps=3,
    ...     ),
    ... )
    >>> validate(migration).checks[-1].ok
    True

    Args:
      labels: an array, or a tuple, list or dict of arrays, each with the batch as its first axis; every step uses them.
        Or a function without arguments that returns an iterable of such batches: step k uses batch k. If there are
        fewer batches than steps, they start over; in that case, ``labels()`` and the migration's ``inputs()`` must
        return the same number of batches.
      tf1_loss: called as ``tf1_loss(labels, outputs)`` in the graph with the outputs of ``tf1``; returns a scalar. The
        regularization losses of the graph, and the losses that ``tf1`` adds with ``tf.losses.add_loss`` and does not
        return, are added to it, unless it contains them. What functions such as ``tf.losses.huber_loss`` compute in
        ``tf1`` is not.
      port_loss: called as ``port_loss(labels, outputs)`` with the outputs of the port; returns a scalar. The port's
        ``losses`` are added to it if the port has that attribute. With a strategy it is called on each replica with a
        part of the batch, and the results are summed, so a mean must divide by the size of the whole batch, as
        ``tf.nn.compute_average_loss`` does.
      tf1_optimizer: called without arguments in the graph; returns a ``tf.compat.v1.train.Optimizer``. Its learning
        rate may depend on ``tf.compat.v1.train.get_or_create_global_step()``, which counts the updates. Each step
        also runs ``tf.GraphKeys.UPDATE_OPS``.
      tf1_train_op: in place of ``tf1_optimizer``, the training of your own script: called as ``tf1_train_op(loss)`` in
        the graph with the total loss, and returns the op, or the ops, that a session runs in each step. What it does
        not do, such as to run ``tf.GraphKeys.UPDATE_OPS``, is not done.
      port_optimizer: called without arguments; returns an optimizer of Keras 3, tf_keras or ``tf.compat.v1.train``. For
        a ``torch.nn.Module``, it is called with the list of the parameters that it trains, and returns an optimizer of
        ``torch.optim``. For a ``flax.nnx.Module``, it returns an optimizer of ``optax``.
      var_list: the trainable variables that a step trains, as in ``var_list`` of TF1's ``minimize``: a list of their
        TF1 names, in which ``*`` stands for any characters, as in ``["logits/*"]``. By default, all trainable
        variables. The port may freeze the others. A ``tf1_train_op`` decides by itself what TF1 trains.
      metrics: name -> a function ``metric(labels, outputs)`` for both programs, or a pair of functions,
        ``(tf1, port)``. In the graph it may return ``(value, update_op)`` as ``tf.compat.v1.metrics`` do. For the
        port it may be a Keras metric, which is reset before the first step.
      steps: number of steps.
      tolerances: how close the numbers must be, as for `compare_steps`. For numbers that none of them covers, the
        migration's tolerances hold in steps 0 to 9, and rtol 5 % in later steps.

    Raises:
      ArgumentError: for an argument that cannot be used.
    """

    labels: Any
    tf1_loss: Callable[[Any, Any], Any]
    port_loss: Callable[[Any, Any], Any]
    tf1_optimizer: Callable[[], Any] | None = None
    tf1_train_op: Callable[[Any], Any] | None = None
    port_optimizer: Callable[..., Any]
    var_list: Sequence[str] | None = None
    metrics: Mapping[str, Metric | tuple[Metric, Metric]] = field(default_factory=dict)
    steps: int = 5
    tolerances: Sequence[Tolerance] = ()
    # A loss or metric of a program -> it, and the line that makes it, if it is an object, or else passes it.
    _lines: Mapping[tuple[str, str], tuple[Any, str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("tf1_loss", "port_loss"):
            check_callable(name, getattr(self, name), f"a function {name}(labels, outputs) that returns a scalar")
        self._check_update()
        if type(self.steps) is not int or self.steps < 1:
            remedy = "pass steps=5, for example, so that the slots of the optimizer have an effect"
            raise wrong_type("steps", self.steps, "an integer from 1", remedy)
        given = self.var_list
        is_list = isinstance(given, (list, tuple)) and given and all(isinstance(one, str) and one for one in given)
        if given is not None and not is_list:
            remedy = 'write var_list=["logits/*"], for example'
            raise wrong_type("var_list", given, "a list of names of TF1 variables, or None for all", remedy)
        if not isinstance(self.metrics, Mapping):
            raise wrong_type("metrics", self.metrics, "a dict of name -> function")
        for name in self.metrics:
            if not all(map(callable, (self.metric("tf1", name), self.metric("port", name)))):
                accepted = "a function metric(labels, outputs), or a pair of them, (tf1, port)"
                raise wrong_type(f"metrics[{name!r}]", self.metrics[name], accepted)
        checked_tolerances(self.tolerances)
        if not callable(self.labels):
            as_labels(self.labels)
        named: dict[tuple[str, str], Any] = {("tf1", ""): self.tf1_loss, ("port", ""): self.port_loss}
        named |= {(program, name): self.metric(program, name) for program in ("tf1", "port") for name in self.metrics}
        found = dict[tuple[str, str], tuple[Any, str]]()
        for key, value in named.items():
            before, line = self._lines.get(key, (None, ""))
            made = UNKNOWN if before is value else site_of_argument(value)
            found[key] = value, line if made == UNKNOWN else str(made)
        object.__setattr__(self, "_lines", found)

    def _check_update(self) -> None:
        given = [name for name in ("tf1_optimizer", "tf1_train_op") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ArgumentError(
                f"TrainStep takes tf1_optimizer or tf1_train_op, but {'both were' if given else 'neither was'} given. "
                "Pass tf1_train_op to train TF1 by the op of your own script, and tf1_optimizer to apply the gradients "
                "of all variables and run UPDATE_OPS"
            )
        for name in ("tf1_optimizer", "port_optimizer"):
            takes_parameters = name == "port_optimizer" and takes_one_argument(self.port_optimizer)
            if (name != "tf1_optimizer" or name in given) and not takes_parameters:
                check_factory(name, getattr(self, name), "makes an optimizer", "lambda: Adam(0.001)")
        if self.tf1_train_op is not None:
            accepted = "a function tf1_train_op(loss) that builds and returns the op that a step runs"
            check_callable("tf1_train_op", self.tf1_train_op, accepted)
            try:
                inspect.signature(self.tf1_train_op).bind(None)
            except TypeError as error:
                raise ArgumentError(
                    f"tf1_train_op must be {accepted}, but {quote(self.tf1_train_op)} cannot be called with one "
                    f"argument ({error}). Wrap it, as in lambda loss: train(loss, tf.train.get_global_step())"
                ) from None
            except ValueError:
                pass  # a builtin without a signature

    def line_of_loss(self, program: str) -> str:
        """Return the line that makes a program's loss, if it is an object, or else passes it; empty if unknown."""
        return self._lines[program, ""][1]

    def trains(self, name: str) -> bool:
        """Return whether a step trains the trainable variable with a TF1 name."""
        return self.var_list is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.var_list)

    def line_of_metric(self, program: str, name: str) -> str:
        """Return the line of a program's metric, as `line_of_loss` does."""
        return self._lines[program, name][1]

    def metric(self, program: str, name: str) -> Any:
        """Return the metric of one program, ``"tf1"`` or ``"port"``."""
        given: Any = self.metrics[name]
        return given[program == "port"] if isinstance(given, tuple) and len(given) == 2 else given
