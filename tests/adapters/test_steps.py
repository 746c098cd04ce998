"""Step k of eager code draws what a TF1 session draws on its run k. The conformance table has the families of ops."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, philox
from detrand.adapters import eager
from detrand.changes import Changes
from detrand.random_tool import stream_of
from detrand.seeding import cursors
from tests.adapters.test_tensorflow import assert_same, eager_run, records_of
from tests.support.interrupts import interrupted_at, lines_run
from tests.support.step_runs import (
    CLASSES,
    assert_steps_equal_runs,
    normals,
    parametrize_modes,
    run_steps,
    session_runs,
    uniform_then,
    uniforms,
)
from tests.test_random_tool import executed_eagerly

ALPHA = np.array([0.5, 2.0, 7.0], np.float32)

# Each draws from a batch, whose size may change from run to run.
FAMILIES = {
    **{
        f"uniform_{dtype}": lambda x, dtype=dtype: tf.random.uniform(tf.shape(x), dtype=dtype)
        for dtype in ("float16", "float32", "float64")
    },
    "uniform_bfloat16": lambda x: tf.cast(tf.random.uniform(tf.shape(x), dtype="bfloat16"), "float32"),
    "integers": lambda x: tf.random.uniform(tf.shape(x), -5, 1000, "int32"),
    "integers_of_64_bits": lambda x: tf.random.uniform(tf.shape(x), -5, 10**12, "int64"),
    "integers_between_a_tensor_and_a_number": lambda x: tf.raw_ops.RandomUniformInt(
        shape=tf.shape(x), minval=tf.constant(-5, tf.int64), maxval=99
    ),
    "integers_between_numbers": lambda x: tf.raw_ops.RandomUniformInt(shape=tf.shape(x), minval=-5, maxval=99),
    "normal": lambda x: tf.random.normal(tf.shape(x)),
    "normal_float64": lambda x: tf.random.normal(tf.shape(x), dtype="float64"),
    "truncated_normal": lambda x: tf.random.truncated_normal(tf.shape(x)),
    "gamma": lambda x: tf.random.gamma(tf.shape(x), ALPHA),
    "gamma_for_each_element": lambda x: tf.random.gamma([2], x),
    "shuffle": tf.random.shuffle,
    "shuffle_of_indices": lambda x: tf.random.shuffle(tf.range(tf.size(x))),
    "dropout": lambda x: tf.nn.dropout(x, 0.4),
    "poisson": lambda x: tf.random.poisson([2], x),
    "categorical": lambda x: tf.random.categorical(x, 3),
    "categorical_samples": lambda x: tf.random.categorical([[0.1, 0.2, 0.3]], tf.size(x)),
    "parameterized_truncated_normal": lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=tf.shape(x), means=[0.0], stdevs=[1.0], minvals=[-1.0], maxvals=[2.0]
    ),
    "fractional_max_pool": lambda x: tf.nn.fractional_max_pool(
        tf.tile(x[:, :, None, None], [1, 2, 6, 1]), [1, 1.44, 1.73, 1], seed=1
    ),
    "learned_unigram_candidates": lambda x: tf.random.learned_unigram_candidate_sampler(
        tf.cast(x, "int64") % 10, 3, 4, True, 10
    )[0],
    "log_uniform_candidates": lambda x: tf.random.log_uniform_candidate_sampler(CLASSES, 1, 4, True, 10)[0],
}


@parametrize_modes
@pytest.mark.parametrize("draw", FAMILIES.values(), ids=FAMILIES)
def test_batches_of_several_sizes_draw_what_the_session_draws(draw, mode):
    # A kernel advances its counter by what it has drawn, so run k does not begin at a multiple of k.
    sizes = (5, 1, 5, 2, 2, 9, 5)
    batches = [np.linspace(1, 4, 3 * n, dtype=np.float32).reshape(n, 3) for n in sizes]
    tool, reference = assert_steps_equal_runs(lambda x: [draw(x), draw(x), tf.random.uniform([2])], mode, batches)
    count = len(reference.random_ops)
    assert records_of(reference) == records_of(tool)[:count]
    assert [op.run for op in tool.random_ops] == [run for run in range(len(sizes)) for _ in range(count)]


def test_ops_that_are_runs_of_one_op_node_follow_each_other_whatever_they_draw():
    tool, sizes = DeterministicRandomTestTool(42, "num_random_ops"), (3, 2, 4, 3, 2)
    stream_of(tool).give_next([5] * len(sizes))
    draws = [tf.random.uniform, tf.random.normal, lambda shape: tf.random.gamma(shape, 2.0), *[tf.random.uniform] * 2]
    with tool.scope():
        drawn = [draw([size]).numpy() for draw, size in zip(draws, sizes, strict=True)]
    for numbers, before in ((drawn[0], 0), (drawn[3], 3 + 2 + 4), (drawn[4], 3 + 2 + 4 + 3)):
        np.testing.assert_array_equal(numbers, philox.uniform(numbers.shape, 42, 5, drawn=before))


def test_an_op_whose_own_seeds_equal_the_tools_draws_as_in_the_session():
    def program(_):
        return [uniforms(), tf.raw_ops.RandomUniform(shape=[3], dtype="float32", seed=42, seed2=0), uniforms()]

    assert_steps_equal_runs(program, "constant")


SEEDED = {
    "uniform": lambda **seeds: tf.raw_ops.RandomUniform(shape=[3], dtype="float32", **seeds),
    "uniform_of_a_tensor": lambda **seeds: tf.raw_ops.RandomUniform(shape=tf.constant([3]), dtype="float32", **seeds),
    "normal": lambda **seeds: tf.raw_ops.RandomStandardNormal(shape=[3], dtype="float32", **seeds),
    "integers": lambda **seeds: tf.raw_ops.RandomUniformInt(shape=[9], minval=0, maxval=99, **seeds),
    "gamma": lambda **seeds: tf.raw_ops.RandomGamma(shape=[3], alpha=ALPHA, **seeds),
    "shuffle": lambda **seeds: tf.raw_ops.RandomShuffle(value=np.arange(9), **seeds),
    "poisson": lambda **seeds: tf.raw_ops.RandomPoissonV2(shape=[9], rate=3.0, **seeds),
    "categorical": lambda **seeds: tf.raw_ops.Multinomial(logits=[[0.1, 0.2, 0.3]], num_samples=9, **seeds),
}


@pytest.mark.parametrize("seeds", [{"seed": 3}, {"seed2": 3}], ids=str)
@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_an_op_with_one_seed_of_its_own_draws_as_in_the_session(draw, seeds):
    def program(*_):
        return [uniforms(), draw(**seeds), uniforms()]

    assert_steps_equal_runs(program, "num_random_ops")
    assert_same(eager_run(program, "num_random_ops")[0], session_runs(program, "num_random_ops", [None])[0])


@pytest.mark.parametrize(
    "seeds",
    [
        {"seed": np.int64(77), "seed2": np.int64(4)},
        {"seed": np.int32(-3), "seed2": 4},
        {"seed": 0, "seed2": np.array(5)},
        {"seed": 1.5, "seed2": np.float32(-2.5)},
        {"seed": None, "seed2": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_seeds_of_its_own_that_are_no_ints(draw, seeds):
    def program(*_):
        return [uniforms(), draw(**seeds), uniforms()]

    # A different program may have kept the seeds that it converted to ints.
    for cached in (eager._key_and_algorithm, eager._first_counters, eager._first_seeds):
        cached.cache_clear()
    desired = session_runs(program, "num_random_ops", [None])[0]
    assert_same(eager_run(program, "num_random_ops")[0], desired)
    assert_steps_equal_runs(program, "num_random_ops")


def test_a_seed_that_comes_to_0_is_none():
    def program(*_):
        return SEEDED["uniform"](seed=0.5)

    assert_steps_equal_runs(program, "num_random_ops")


@pytest.mark.parametrize("seed", ["3", "x", [3], np.array([3, 4]), np.nan, np.inf, 3j, 2**63, np.uint64(2**63), 1e30])
@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_a_bad_seed_fails_as_without_a_scope(draw, seed):
    with pytest.raises(Exception) as desired:
        draw(seed=seed, seed2=4)
    with DeterministicRandomTestTool().scope() as tool, pytest.raises(type(desired.value)):
        draw(seed=seed, seed2=4)
    with tool.scope(), tool.step(), pytest.raises(type(desired.value)):
        draw(seed=seed, seed2=4)
    with tool.scope(), tf.Graph().as_default(), pytest.raises((type(desired.value), ValueError)):
        draw(seed=seed, seed2=4)
    assert tool.random_ops == ()


@parametrize_modes
def test_many_runs_of_several_hundred_numbers_equal_the_sessions(mode):
    def program(_):
        return [
            tf.random.uniform([311]),
            tf.random.gamma([101], 0.3),
            tf.random.shuffle(tf.range(350)),
            tf.random.poisson([120], 4.0),
        ]

    assert_steps_equal_runs(program, mode, [None] * 70)


@parametrize_modes
def test_empty_batches_draw_what_the_session_draws(mode):
    batches = [np.ones((n, 3), np.float32) for n in (0, 4, 0, 1, 4)]

    def program(x):
        return [
            tf.random.uniform(tf.shape(x)),
            tf.random.shuffle(x),
            tf.random.shuffle(x[:, :0]),
            tf.nn.dropout(x, 0.5),
        ]

    assert_steps_equal_runs(program, mode, batches)


# --- What steps leave behind


def test_records_have_the_run():
    tool = run_steps(*[uniform_then(normals)] * 3)
    assert [(op.index, op.op_seed, op.run) for op in tool.random_ops] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
        (4, 0, 2),
        (5, 1, 2),
    ]
    assert tool.operation_seed == 2


def test_no_kernel_holds_a_seed():
    executed = executed_eagerly(lambda: run_steps(*[uniform_then(normals)] * 5).random_ops[:0])
    drawing = {(op_type, attributes) for op_type, attributes in executed if op_type.startswith("Stateless")}
    assert len(drawing) == 2


def test_sessions_end_with_the_tool():
    tool = run_steps(*[lambda: tf.random.poisson([2], 5.0)] * 3)
    with Changes() as changes:
        (node,) = tool._stream.enter_step("train", changes).entries
    session = weakref.ref(node.kept)
    assert session() is not None
    del tool, node
    gc.collect()
    assert session() is None


def test_each_op_node_has_one_session(monkeypatch):
    made = []
    original = eager._OpInSession.__init__
    monkeypatch.setattr(eager._OpInSession, "__init__", lambda self, *args: made.append(self) or original(self, *args))
    run_steps(*[lambda: (tf.random.poisson([2], 5.0), tf.random.categorical([[0.1, 0.9]], 3))] * 4)
    assert [op._op.type for op in made] == ["RandomPoissonV2", "Multinomial"]


@pytest.mark.filterwarnings("ignore:tool.step.* was (entered but never left|called but never entered):RuntimeWarning")
@pytest.mark.parametrize("draws", [False, True])
def test_a_step_that_is_interrupted_at_any_line_is_left(draws):
    def step():
        with tool.step():
            if draws:
                uniforms()

    tool = DeterministicRandomTestTool()
    with tool.scope():
        for _ in range(3):
            step()
        outer, count = cursors.current(), len(lines_run(step))
        gc.freeze()  # what is there by now would make each collection slow
        for number in range(count):
            assert interrupted_at(number, step, KeyboardInterrupt)
            gc.collect()  # the interrupt refers to the step's frames
            assert cursors.current() is outer
            step()
