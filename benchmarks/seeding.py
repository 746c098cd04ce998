"""The cost of seeding: plain TensorFlow, detrand, TensorFlow's global seed, TensorFlow's official tool.

Every way of executing is a group. Each of its workloads is a program that is executed in that way, and each case is a
way to seed it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from benchmarks.cases import Case, Group, Workload
from benchmarks.programs import KERAS3, OPS, TRAINING_STEP, Program
from detrand import DeterministicRandomTestTool
from detrand._patching.tensorflow import keep_global_seed
from detrand.changes import Changes

v1 = tf.compat.v1

SEED = 42
_WARM_UP_DRAWS = 40  # a block builds too few graphs for the interpreter to specialize the scope's bytecode; see timing


class _Seeding(NamedTuple):
    """A way to seed.

    Attributes:
      name: its name in the table.
      scope: returns a context manager in which programs are seeded.
      seed_graph: also seeds a new graph.
      step: returns a context manager for a call that is a step.
      memory_calls: number of calls in which the growth of the process is measured, if it is.
    """

    name: str
    scope: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    seed_graph: Callable[[], None] = lambda: None
    step: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    memory_calls: int = 100_000


def _seedings() -> list[_Seeding]:
    """Return every way to seed, with new tools."""
    few = 10_000  # each call keeps a kernel
    return [
        *_seedings_of_keras3(),
        _Seeding("tf.random.set_seed", _global_seed, lambda: tf.random.set_seed(SEED), memory_calls=few),
        _Seeding("official constant", _official("constant"), memory_calls=few),
        _Seeding("official num_random_ops", _official("num_random_ops"), memory_calls=few),
    ]


def _seedings_of_keras3() -> list[_Seeding]:
    """Return the ways to seed Keras 3, which neither the global seed nor the official tool governs."""
    constant, num_random_ops = (DeterministicRandomTestTool(SEED, mode) for mode in ("constant", "num_random_ops"))
    return [
        _Seeding("plain TensorFlow"),
        _Seeding("detrand constant", constant.scope, step=constant.step),
        _Seeding("detrand num_random_ops", num_random_ops.scope, step=num_random_ops.step),
    ]


@contextlib.contextmanager
def _global_seed() -> Iterator[None]:
    with _tensorflow_restored():
        tf.random.set_seed(SEED)
        yield


def _official(mode: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @functools.cache
    def tool() -> Any:
        # Without TF_USE_LEGACY_KERAS, the class has no public name, but it works.
        from tf_keras.src.legacy_tf_layers.migration_utils import DeterministicRandomTestTool as OfficialTool

        return OfficialTool(seed=SEED, mode=mode)

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with _tensorflow_restored(), tool().scope():
            yield

    return scope


@contextlib.contextmanager
def _tensorflow_restored() -> Iterator[None]:
    """Restore the global seed, and drop its kernels, which would slow the next case down."""
    with Changes() as changes:
        keep_global_seed(changes)
        changes.on_undo(tf.random.set_seed, SEED)  # setting any seed clears the kernel cache
        yield


def _eager(program: Program, seeding: _Seeding, memory: bool = False) -> Case:
    return Case(seeding.name, program.make(), seeding.scope, memory_calls=seeding.memory_calls if memory else 0)


def _step(program: Program, seeding: _Seeding) -> Case:
    draw = program.make()

    def one_step() -> None:
        with seeding.step():
            draw()

    return Case(seeding.name, one_step, seeding.scope)


def _in_own_scope(program: Program, seeding: _Seeding) -> Case:
    draw = program.make()

    def draw_in_scope() -> None:
        with seeding.scope():
            draw()

    return Case(seeding.name, draw_in_scope)


def _graph_building(program: Program, seeding: _Seeding) -> Case:
    def build() -> None:
        with tf.Graph().as_default():
            seeding.seed_graph()
            draw = program.make()
            for _ in range(program.draws_in_graph):
                draw()

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with seeding.scope():
            for _ in range(_WARM_UP_DRAWS // program.draws_in_graph if program.draws_in_graph > 1 else 0):
                build()
            yield

    return Case(seeding.name, build, scope)


def _session(program: Program, seeding: _Seeding) -> Case:
    with seeding.scope(), tf.Graph().as_default() as graph:
        seeding.seed_graph()
        fetches = program.make()()
        initializer = v1.global_variables_initializer()
        graph.finalize()
    session = v1.Session(graph=graph)
    session.run(initializer)
    return Case(seeding.name, lambda: session.run(fetches), seeding.scope)


def _function(program: Program, seeding: _Seeding, jit_compile: bool = False) -> Case:
    function = tf.function(program.make(), jit_compile=jit_compile, autograph=False)
    with seeding.scope():
        function()
    return Case(seeding.name, function, seeding.scope)


def _workload(
    name: str,
    program: Program,
    case: Callable[[Program, _Seeding], Case],
    seedings: Callable[[], list[_Seeding]] = _seedings,
) -> Workload:
    return Workload(f"{name}/{program.name}", lambda: [case(program, seeding) for seeding in seedings()])


_ONE_OP = (
    "A call draws a tensor of shape (3, 3), or of a million numbers; ``shuffle`` and ``dropout`` get a tensor of shape "
    "(3, 3)."
)
_STEP = "The training step is gradient descent on six layers, each with dropout."
_EAGER_WITH_MEMORY = functools.partial(_eager, memory=True)
_XLA = functools.partial(_function, jit_compile=True)
_PROGRAMS = (*OPS, TRAINING_STEP)
_POISSON = next(program for program in OPS if program.name == "poisson")
# All families are executed eagerly and by XLA, where detrand draws; a graph of the runtime's draws by itself.
_FEW = (OPS[0], _POISSON, TRAINING_STEP)

GROUPS = (
    Group(
        "seeding/eager",
        "Eager ops, seeded",
        f"{_ONE_OP} {_STEP}",
        (
            _workload("seeding/eager", OPS[0], _EAGER_WITH_MEMORY),
            *(_workload("seeding/eager", program, _eager) for program in _PROGRAMS[1:]),
        ),
    ),
    Group(
        "seeding/step",
        "Steps, seeded",
        "With detrand, each eager call is a ``tool.step()``.",
        tuple(_workload("seeding/step", program, _step) for program in _FEW),
    ),
    Group(
        "seeding/scope",
        "Scopes, seeded",
        "Each eager call is in a scope of its own, or sets the global seed and restores it.",
        tuple(_workload("seeding/scope", program, _in_own_scope) for program in (OPS[0], TRAINING_STEP)),
    ),
    Group(
        "seeding/graph_building",
        "Building of TF1 graphs, seeded",
        "A call makes a graph of ten draws, or of one training step.",
        tuple(_workload("seeding/graph_building", program, _graph_building) for program in _FEW),
    ),
    Group(
        "seeding/session",
        "``Session.run``, seeded",
        "The graph was built before.",
        tuple(_workload("seeding/session", program, _session) for program in _FEW),
    ),
    Group(
        "seeding/tf.function",
        "Calls of a ``tf.function``, seeded",
        "The function was traced before.",
        tuple(_workload("seeding/tf.function", program, _function) for program in _FEW),
    ),
    Group(
        "seeding/xla",
        "Calls of a ``tf.function`` with ``jit_compile=True``, seeded",
        "The function was compiled before. With detrand it draws the session's numbers. Without detrand, it draws "
        "different numbers in each process, whatever the seed.",
        tuple(_workload("seeding/xla", program, _XLA) for program in _PROGRAMS if program.compiles),
    ),
    Group(
        "seeding/keras3",
        "Layers of Keras 3, seeded",
        "A layer is called eagerly, or created and called. The global seed and the official tool do not control it.",
        tuple(_workload("seeding/keras3", program, _eager, _seedings_of_keras3) for program in KERAS3),
    ),
)
