"""Eager loops and branches: each iteration is a further run of the first one's ops, as in a graph."""

import contextlib
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.ops import rnn

from detrand import DeterministicRandomTestTool, ScopeError, StepMismatchError, enable_v1_layers
from detrand._patching import function_traces
from detrand._patching.tensorflow import WHILE_LOOPS
from tests.adapters.test_tensorflow import assert_same, eager_run
from tests.support.step_runs import (
    assert_steps_equal_runs,
    counted,
    loop,
    normals,
    nothing,
    parametrize_modes,
    session_runs,
    steps,
    uniforms,
    v1,
)

# --- Loops run one iteration at a time, so that each iteration draws a fixed run


@pytest.mark.parametrize("options", [{}, {"parallel_iterations": 8}], ids=["default", "asked for"])
@pytest.mark.parametrize("kit", [tf, v1], ids=["v2", "v1"])
def test_a_graph_runs_one_iteration_at_a_time(kit, options):
    def built(function=False):
        def build():
            return kit.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)], **options)

        if function:
            ops = tf.function(build).get_concrete_function().graph.get_operations()
        else:
            with tf.Graph().as_default() as graph:
                build()
            ops = graph.get_operations()
        return {op.get_attr("parallel_iterations") for op in ops if op.type in ("Enter", "While", "StatelessWhile")}

    outside = {options.get("parallel_iterations", 10)}
    for function in (False, True):
        assert built(function) == outside
        with DeterministicRandomTestTool().scope():
            assert built(function) == {1}
            assert built(function) == {1}
        assert built(function) == outside


def test_a_positional_parallel_iterations_becomes_one():
    with DeterministicRandomTestTool().scope(), tf.Graph().as_default() as graph:
        v1.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)], None, 8, False)
        (loop,) = [op for op in graph.get_operations() if op.type == "StatelessWhile"]
    assert loop.get_attr("parallel_iterations") == 1


# --- Loops of Keras: the step that Keras tries beforehand draws nothing


@pytest.mark.parametrize("unroll", [False, True], ids=["loop", "unrolled"])
@pytest.mark.parametrize("kit", [keras, tf_keras], ids=["keras", "tf_keras"])
@parametrize_modes
def test_recurrent_layers_of_keras_draw_what_the_session_draws(kit, mode, unroll):
    class Cell(kit.layers.Layer):
        state_size = output_size = 2

        def call(self, inputs, states, training=False):
            sum = states[0] * 0.5 + inputs * tf.random.uniform([2])
            return sum, [sum]

    x = np.arange(1, 7, dtype=np.float32).reshape(1, 3, 2)

    def program():
        return (
            tf.random.normal([2]),
            kit.layers.RNN(Cell(), return_sequences=True, unroll=unroll)(x),
            tf.random.normal([2]),
        )

    def in_tf1(_):
        def scan(sum, inputs):
            return sum * 0.5 + inputs * tf.random.uniform([2])

        first, sums = tf.random.normal([2]), []
        if unroll:
            sum = tf.zeros([1, 2])
            for inputs in tf.unstack(tf.constant(x), axis=1):
                sum = scan(sum, inputs)
                sums.append(sum)
            sums = tf.stack(sums, 1)
        else:
            sums = tf.transpose(tf.scan(scan, tf.transpose(tf.constant(x), [1, 0, 2]), tf.zeros([1, 2])), [1, 0, 2])
        return first, sums, tf.random.normal([2])

    (desired,), _ = session_runs(in_tf1, mode, [None])
    for way in (lambda function: function, tf.function):
        with DeterministicRandomTestTool(mode=mode).scope():
            actual = way(program)()
        assert_same(actual, desired)


# --- Loops: each iteration is a run of the ops in the body


def two_ops(x):
    return tf.nn.dropout(x + 1.0, 0.5) * tf.random.normal([2])


def nested(times):
    def inner(x):
        return counted(times, lambda y: y * 0.5 + tf.random.uniform([2]), x) + tf.random.normal([2])

    return counted(3, inner)


def beside_an_op(times):
    return [counted(times, two_ops), tf.random.uniform([2])]


def a_random_condition(times):
    drawn = loop(
        lambda i, _: (i < times) & (tf.random.uniform([]) < 0.9),
        lambda i, x: (i + 1, x * 0.5 + tf.random.uniform([2])),
        0,
        tf.zeros([2]),
    )
    return [*drawn, tf.random.uniform([2])]


def a_maximum_of_iterations(times):
    drawn = loop(
        lambda x, _: tf.reduce_all(tf.random.uniform([]) < 2.0),
        lambda x, y: (x + tf.random.uniform([2]), y),
        tf.zeros([2]),
        0,
        maximum_iterations=times,
    )
    return [drawn[0], tf.random.uniform([2])]


def two_loops_on_one_line(times):
    return [counted(times, tf.nn.relu), counted(times - 1, two_ops), counted(times, two_ops), tf.random.uniform([2])]


def loops_of_tf_v1(times):
    def body(i, x):
        return i + 1, x + tf.random.uniform([2])

    drawn = v1.while_loop(lambda i, _: i < times, body, (0, tf.zeros([2])), parallel_iterations=1)
    return [drawn[1], tf.random.uniform([2])]


def map_scan_and_fold(times):
    ones = tf.ones([times, 2])
    mapped = tf.map_fn(lambda x: tf.nn.dropout(x, 0.5) * tf.random.normal([2]), ones, parallel_iterations=1)
    return [
        tf.reshape(mapped, [-1]),  # eager code does not know the shape of no elements
        tf.scan(lambda sum, x: sum * 0.5 + x * tf.random.uniform([2]), ones, tf.zeros([2]), parallel_iterations=1),
        tf.foldl(lambda sum, x: sum * 0.5 + x * tf.random.uniform([2]), ones, tf.zeros([2]), parallel_iterations=1),
        tf.random.uniform([2]),
    ]


def ops_without_a_stateless_twin(times):
    drawn = counted(times, lambda x: x * 0.5 + tf.random.poisson([2], 5.0))
    return [drawn, counted(times, lambda x: x * 0.5 + tf.cast(tf.random.categorical([[0.1, 0.9]], 2)[0], "float32"))]


def growing_draws(times):
    def body(i, x):
        return i + 1, tf.concat([x, tf.random.uniform([i + 1])], 0)

    invariants = (tf.TensorShape([]), tf.TensorShape([None]))
    drawn = loop(lambda i, _: i < times, body, 0, tf.zeros([0]), shape_invariants=invariants)
    return [drawn[1], tf.random.uniform([2])]


def a_function_in_a_loop(times):
    function = tf.function(lambda x: x * 0.5 + tf.random.uniform([2]))
    return [counted(times, lambda x: function(x) + tf.random.normal([2])), tf.random.uniform([2])]


LOOPS = (
    nested,
    beside_an_op,
    a_random_condition,
    a_maximum_of_iterations,
    two_loops_on_one_line,
    loops_of_tf_v1,
    map_scan_and_fold,
    ops_without_a_stateless_twin,
    growing_draws,
)
parametrize_loops = pytest.mark.parametrize("program", LOOPS, ids=lambda program: program.__name__)


@parametrize_modes
@parametrize_loops
class TestLoops:
    def test_iterations_outside_of_steps_draw_those_of_run_0(self, program, mode):
        desired, reference = session_runs(program, mode, [np.int32(3)])
        actual, tool = eager_run(lambda: program(3), mode)
        assert_same(actual, desired)
        first_runs = [(op.op_type, op.op_seed) for op in tool.random_ops if op.run == 0]
        assert first_runs == [(op.op_type, op.op_seed) for op in reference.random_ops]

    def test_iterations_in_step_k_draw_those_of_run_k(self, program, mode):
        assert_steps_equal_runs(program, mode, [np.int32(3)] * 4)

    def test_the_number_of_iterations_may_differ_between_steps(self, program, mode):
        assert_steps_equal_runs(program, mode, [np.int32(times) for times in (3, 1, 5, 0, 2)])


@pytest.mark.parametrize("target", WHILE_LOOPS, ids=str)
def test_by_whatever_name_the_loop_is_called(target):
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        target.checked()(lambda i, _: i < 3, lambda i, x: (i + 1, x + tf.random.uniform([2])), (0, tf.zeros([2])))
    assert [(op.op_seed, op.run) for op in tool.random_ops] == [(0, 0), (0, 1), (0, 2)]


# --- Recurrent networks


class Summing:
    """A cell without weights, whose output depends on what dropout keeps of its inputs and state."""

    state_size = output_size = 2

    def __call__(self, inputs, state, scope=None):
        return inputs + state, tf.tanh(inputs + 0.5 * state)

    def zero_state(self, batch_size, dtype):
        return tf.zeros([batch_size, 2], dtype)


def cell_with_dropout(**kwargs):
    class Cell(Summing, v1.nn.rnn_cell.RNNCell):
        pass

    keep = {f"{what}_keep_prob": probability for what, probability in (("input", 0.5), ("state", 0.7), ("output", 0.6))}
    return v1.nn.rnn_cell.DropoutWrapper(Cell(), **keep, **kwargs)


def dynamic_rnn(x):
    outputs = rnn.dynamic_rnn(cell_with_dropout(), x, dtype=tf.float32, parallel_iterations=1)
    return [*outputs, tf.random.uniform([2])]


def dynamic_rnn_with_lengths(x):
    outputs = rnn.dynamic_rnn(cell_with_dropout(), x, [1, 3], dtype=tf.float32, parallel_iterations=1)
    return [*outputs, tf.random.uniform([2])]


def bidirectional_dynamic_rnn(x):
    cells = cell_with_dropout(), cell_with_dropout()
    return rnn.bidirectional_dynamic_rnn(*cells, x, dtype=tf.float32, parallel_iterations=1)


def variational_dropout(x):
    cell = cell_with_dropout(variational_recurrent=True, dtype=tf.float32, input_size=2)
    return [*rnn.dynamic_rnn(cell, x, dtype=tf.float32, parallel_iterations=1), tf.random.uniform([2])]


def static_rnn(x):
    return [*rnn.static_rnn(cell_with_dropout(), tf.unstack(x, 3, axis=1), dtype=tf.float32), tf.random.uniform([2])]


def raw_rnn(x):
    cell = cell_with_dropout()

    def loop_fn(time, output, state, _):
        state = cell.zero_state(2, tf.float32) if output is None else state
        following = tf.nn.dropout(x[:, tf.minimum(time, 2)], 0.5)
        return tf.fill([2], time >= 3), following, state, output, None

    outputs, state, _ = rnn.raw_rnn(cell, loop_fn, parallel_iterations=1)
    return [outputs.stack(), state, tf.random.uniform([2])]


NETWORKS = (dynamic_rnn, dynamic_rnn_with_lengths, bidirectional_dynamic_rnn, variational_dropout, static_rnn, raw_rnn)
SEQUENCES = np.linspace(0.1, 1, 12, dtype=np.float32).reshape(2, 3, 2)


@parametrize_modes
@pytest.mark.parametrize("program", NETWORKS, ids=lambda program: program.__name__)
def test_recurrent_networks_draw_what_the_session_draws(program, mode):
    with enable_v1_layers():
        assert_steps_equal_runs(program, mode, [SEQUENCES] * 3)
        desired, _ = session_runs(program, mode, [SEQUENCES])
        assert_same(eager_run(lambda: program(tf.constant(SEQUENCES)), mode)[0], desired)


@pytest.mark.slow_except("SimpleRNN-num_random_ops")
@parametrize_modes
@pytest.mark.parametrize("name", ["SimpleRNN", "GRU", "LSTM"])
def test_recurrent_layers_of_tf_keras_draw_what_the_session_draws(name, mode):
    for unroll in (True, False):

        def program(x):
            return [layer(x, training=True), tf.random.uniform([2])]  # noqa: B023

        def make_layer():
            options = {"dropout": 0.4, "recurrent_dropout": 0.3, "return_sequences": True, "unroll": unroll}  # noqa: B023
            return getattr(tf_keras.layers, name)(3, **options)

        layer = make_layer()
        with one_graph_for_loops():
            desired, reference = session_runs(program, mode, [SEQUENCES] * 3)
        layer = make_layer()
        actual, tool = steps(program, mode, [SEQUENCES] * 3)
        assert_same(actual, desired)
        assert len(reference.random_ops) == sum(op.run == 0 for op in tool.random_ops)
        layer = make_layer()
        assert_same(eager_run(lambda: program(tf.constant(SEQUENCES)), mode)[0], desired[:1])


@contextlib.contextmanager
def one_graph_for_loops():
    """Make loops as TensorFlow 1 does: if their bodies are functions, tf_keras draws masks for each iteration."""
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


# --- Conditionals: each branch has op nodes of its own


def smart_cond(pred, true_fn, false_fn):
    return tf.__internal__.smart_cond.smart_cond(pred, true_fn, false_fn)


def switch_case(pred, true_fn, false_fn):
    return tf.switch_case(tf.cast(tf.logical_not(pred), "int32"), [true_fn, false_fn])


def case(pred, true_fn, false_fn):
    return tf.case([(pred, true_fn)], default=false_fn)


CONDITIONALS = (tf.cond, v1.cond, smart_cond, switch_case, case)
TAKEN = [np.int32(yes) for yes in (1, 0, 0, 1, 1, 0)]


@pytest.mark.parametrize("conditional", CONDITIONALS, ids=lambda function: function.__name__)
class TestConditionals:
    @parametrize_modes
    def test_a_conditional_in_which_one_branch_draws_agrees_in_both_modes(self, conditional, mode):
        def program(yes):
            drawn = conditional(tf.equal(yes, 1), uniforms, nothing)

            def body(i, x):
                return i + 1, x * 0.5 + conditional(tf.less(i, 2), uniforms, nothing)

            return [drawn, loop(lambda i, _: i < 4, body, 0, tf.zeros([2]))[1], tf.random.uniform([2])]

        assert_steps_equal_runs(program, mode, TAKEN)

    def test_branches_that_both_draw_agree_in_constant_mode(self, conditional):
        def program(yes):
            return [conditional(tf.equal(yes, 1), uniforms, uniforms), tf.random.uniform([2])]

        assert_steps_equal_runs(program, "constant", TAKEN)

    def test_branches_that_both_draw_last_agree_in_both_modes(self, conditional):
        # No other op has taken the op seeds of the branch that comes later.
        assert_steps_equal_runs(lambda yes: conditional(tf.equal(yes, 1), uniforms, uniforms), "num_random_ops", TAKEN)

    def test_a_branch_of_two_ops_that_comes_later(self, conditional):
        def two():
            return uniforms() * normals()

        assert_steps_equal_runs(lambda yes: conditional(tf.equal(yes, 1), uniforms, two), "num_random_ops", TAKEN)

    def test_a_late_branch_whose_op_seeds_are_taken_is_refused(self, conditional):
        def program(yes):
            return [conditional(tf.equal(yes, 1), uniforms, uniforms), tf.random.uniform([2])]

        message = (
            r"^execution 0 of the .*branch.* draws at .*, which the program's first pass did not .*: not 2, which comes"
        )
        with pytest.raises(StepMismatchError, match=message):
            steps(program, "num_random_ops", TAKEN)

    def test_branches_in_a_different_order_raise(self, conditional):
        with pytest.raises(StepMismatchError, match="which the program's first pass did not execute"):
            steps(lambda yes: conditional(tf.equal(yes, 1), uniforms, uniforms), "num_random_ops", [0, 1])

    def test_op_seeds_that_are_set_to_the_graphs_agree(self, conditional):
        batches = TAKEN
        desired, _ = session_runs(
            lambda yes: [conditional(tf.equal(yes, 1), uniforms, uniforms), tf.random.uniform([2])],
            "num_random_ops",
            batches,
        )
        tool = DeterministicRandomTestTool(mode="num_random_ops")

        def otherwise():
            tool.operation_seed = 1
            return uniforms()

        actual = []
        with tool.scope():
            for k, yes in enumerate(batches):
                with tool.step():
                    drawn = conditional(tf.equal(yes, 1), uniforms, otherwise if k == 1 else uniforms)
                    if k == 0:
                        tool.operation_seed = 2
                    actual.append([drawn, tf.random.uniform([2])])
        assert_same(actual, desired)


def test_three_branches_that_come_one_after_the_other():
    branches = [uniforms, lambda: uniforms() * normals(), normals]
    taken = [np.int32(index) for index in (0, 1, 2, 1, 0, 2)]
    assert_steps_equal_runs(lambda index: tf.switch_case(index, branches), "num_random_ops", taken)


def test_conditionals_out_of_steps_draw_as_before():
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        for yes in (True, False):
            tf.cond(tf.constant(yes), uniforms, uniforms)
    assert [(op.op_seed, op.run) for op in tool.random_ops] == [(0, 0), (1, 0)]


def test_a_late_branch_whose_first_op_is_in_a_loop():
    def branch():
        return counted(2, lambda x: x + uniforms()) * normals()

    assert_steps_equal_runs(lambda yes: tf.cond(tf.equal(yes, 1), nothing, branch), "num_random_ops", [1, 0, 1, 0])


# --- Op seeds that a program sets: a graph is built once, so what eager code repeats sets them once


def set_in_a_step(times, tool):
    tool.operation_seed = 20
    drawn = uniforms()
    tool.operation_seed = 30
    return [drawn, uniforms(), normals()]


def set_in_a_loop(times, tool):
    def body(x):
        tool.operation_seed = 20
        return x * 0.5 + uniforms() * counted(2, lambda y: y + normals())

    return [counted(times, body), uniforms()]


def set_in_branches(times, tool):
    def branch(op_seed):
        def draws():
            tool.operation_seed = op_seed
            return uniforms() * counted(2, lambda x: x + normals())

        return draws

    def body(i, x):
        return i + 1, x * 0.5 + tf.cond(i < 2, branch(20), branch(30))

    drawn = loop(lambda i, _: i < times, body, 0, tf.zeros([2]))[1]
    tool.operation_seed = 40
    return [drawn, uniforms()]


def set_in_a_function(times, tool):
    @tf.function
    def function(x):
        tool.operation_seed = 20
        return x * 0.5 + uniforms()

    return [counted(times, function), normals()]


def set_for_another_tool(times, tool):
    inner = DeterministicRandomTestTool(7, "num_random_ops")

    def body(x):
        inner.operation_seed = 20
        with inner.scope():
            return x * 0.5 + uniforms()

    return [counted(times, body), in_scope_of(inner, normals)(), uniforms()]


OP_SEEDS_SET = (set_in_a_step, set_in_a_loop, set_in_branches, set_in_a_function, set_for_another_tool)


@parametrize_modes
@pytest.mark.parametrize("program", OP_SEEDS_SET, ids=lambda program: program.__name__)
def test_op_seeds_that_a_program_sets(program, mode):
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        drawn = program(3, tool)
        desired = [session.run(drawn) for _ in range(3)]
    after = tool.operation_seed

    tool, actual = DeterministicRandomTestTool(mode=mode), []
    with tool.scope():
        make_function = tf.function(lambda: program(3, tool)) if program is set_in_a_function else None
        for _ in desired:
            with tool.step():
                drawn = make_function() if make_function else program(3, tool)
                actual.append([tensor.numpy() for tensor in drawn])
    assert_same(actual, desired)
    assert tool.operation_seed == after


def test_a_late_branch_takes_the_op_seed_that_was_set_before_it_in_constant_mode():
    def program(tool, times):
        def body(i, x):
            x = x * 0.5 + tf.cond(i < 1, uniforms, normals)
            tool.operation_seed = 50
            return i + 1, x + normals()

        return loop(lambda i, _: i < times, body, 0, tf.zeros([2]))[1]

    batches = [np.int32(times) for times in (1, 3, 2)]
    tool = DeterministicRandomTestTool()
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        times = v1.placeholder(tf.int32, [])
        drawn = program(tool, times)
        desired = [[session.run(drawn, {times: batch})] for batch in batches]
    tool, actual = DeterministicRandomTestTool(), []
    with tool.scope():
        for batch in batches:
            with tool.step():
                actual.append([program(tool, batch)])
    assert_same(actual, desired)


@parametrize_modes
def test_a_loop_that_a_function_executes_once(mode):
    def program():
        with tf.init_scope():
            drawn = counted(3, lambda x: x * 0.5 + uniforms())
        return [drawn + 0, normals()]

    (desired,), _ = session_runs(lambda _: program(), mode, [None])
    for way in (lambda function: function, tf.function):
        with DeterministicRandomTestTool(mode=mode).scope():
            assert_same(way(program)(), desired)


@parametrize_modes
def test_an_op_seed_that_is_set_in_a_function_that_is_traced_twice(mode):
    def program(decorate, tool):
        variables = []

        def function():
            if not variables:
                variables.append(tf.Variable(tf.zeros([2])))
            tool.operation_seed = 20
            return uniforms() + variables[0]

        return [decorate(function)(), normals()]

    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        drawn = program(lambda function: function, tool)
        session.run(v1.global_variables_initializer())
        desired = session.run(drawn)
    port = DeterministicRandomTestTool(mode=mode)
    with port.scope():
        assert_same(program(tf.function, port), desired)
    assert port.operation_seed == tool.operation_seed


@parametrize_modes
def test_initial_values_in_a_function_do_not_wait_for_what_is_around_them(mode):
    def program(decorate, tool):
        variables = []

        def function(x):
            with tf.control_dependencies([x]):
                tool.operation_seed = 20
                if not variables:
                    variables.append(tf.Variable(normals))
                return uniforms() + variables[0]

        return decorate(function)

    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        drawn = program(lambda function: function, tool)(v1.placeholder_with_default(0.0, []))
        session.run(v1.global_variables_initializer())
        desired = [session.run(drawn) for _ in range(3)]
    port = DeterministicRandomTestTool(mode=mode)
    with port.scope():
        function = program(tf.function, port)
        assert_same([function(tf.constant(0.0)) for _ in range(3)], desired)
    assert port.operation_seed == tool.operation_seed


@pytest.mark.parametrize("draws", [True, False])
def test_a_function_whose_arguments_its_variables_start_from_is_refused_if_it_draws(draws):
    tool, variables = DeterministicRandomTestTool(mode="num_random_ops"), []

    @tf.function
    def function(x):
        tool.operation_seed = 20
        if not variables:
            variables.append(tf.Variable(lambda: tf.random.uniform([]) + x, shape=[]))
        return variables[0] + (tf.random.uniform([]) if draws else 0)

    with tool.scope():
        first = function(tf.constant(2.0))
        if draws:
            for _ in range(2):
                with pytest.raises(ScopeError, match=rf"{__file__}:\d+ is traced a third time"):
                    function(tf.constant(2.0))
        else:
            np.testing.assert_array_equal(function(tf.constant(2.0)), first)
    assert tool.operation_seed == (22 if draws else 21)


def test_an_op_seed_that_a_throwaway_call_sets_is_set_back():
    tool, op_seeds = DeterministicRandomTestTool(mode="num_random_ops"), iter([20, 30, 40])

    class Cell(keras.layers.Layer):
        state_size = output_size = 2

        def call(self, x, states):
            tool.operation_seed = next(op_seeds)
            return x + uniforms(), [states[0]]

    with tool.scope():
        keras.layers.RNN(Cell(), unroll=False)(tf.zeros([1, 2, 2]))
    assert [(op.op_seed, op.run) for op in tool.random_ops] == [(30, 0), (30, 1)]
    assert tool.operation_seed == 31


# --- Scopes inside: a part of the step, loop, branch or function around them


def in_scope_of(tool, draw):
    def program(*args):
        with tool.scope():
            return draw(*args)

    return program


def a_scope_in_a_loop(times, inner):
    def body(x):
        with inner.scope():
            x += tf.random.uniform([2]) * counted(2, lambda y: y + tf.random.normal([2]))
        return x * 0.5 + tf.random.uniform([2])

    return [counted(times, body), tf.random.uniform([2])]


def scopes_that_follow_each_other(times, inner):
    def body(x):
        with inner.scope():
            x += tf.random.uniform([2])
        with inner.scope():
            return x * 0.5 + tf.random.uniform([2])

    return [counted(times, body), in_scope_of(inner, uniforms)()]


def a_scope_with_a_seed_but_no_op_last(times, inner):
    def body(x):
        with inner.scope():
            x = tf.nn.dropout(x + tf.random.uniform([2]), rate=0)
        return x * 0.5 + tf.random.uniform([2])

    return [counted(times, body), tf.random.uniform([2])]


def a_scope_around_a_loop(times, inner):
    with inner.scope():
        return [counted(times, lambda x: x * 0.5 + tf.random.uniform([2])), tf.random.uniform([2])]


def a_scope_in_a_branch(times, inner):
    drawn = tf.cond(tf.less(times, 9), in_scope_of(inner, uniforms), nothing)
    return [drawn, in_scope_of(inner, normals)(), tf.random.uniform([2])]


def a_scope_of_a_new_tool(times, inner):
    def body(x):
        with DeterministicRandomTestTool(5, "num_random_ops").scope():
            return x * 0.5 + tf.random.uniform([2])

    return [counted(times, body), tf.random.uniform([2])]


SCOPES_INSIDE = (
    a_scope_in_a_loop,
    scopes_that_follow_each_other,
    a_scope_with_a_seed_but_no_op_last,
    a_scope_around_a_loop,
    a_scope_in_a_branch,
    a_scope_of_a_new_tool,
)


@parametrize_modes
@pytest.mark.parametrize("program", SCOPES_INSIDE, ids=lambda program: program.__name__)
class TestScopesInside:
    def program(self, program):
        inner = DeterministicRandomTestTool(7, "num_random_ops")
        return lambda times: program(times, inner)

    def test_a_scope_of_another_tool_draws_what_the_session_draws(self, program, mode):
        desired, _ = session_runs(self.program(program), mode, [np.int32(3)] * 3)
        actual, _ = steps(self.program(program), mode, [np.int32(3)] * 3)
        assert_same(actual, desired)

    def test_a_scope_of_another_tool_outside_of_steps_draws_what_the_session_draws(self, program, mode):
        (desired,), _ = session_runs(self.program(program), mode, [np.int32(3)])
        (actual,), _ = eager_run(lambda: self.program(program)(3), mode)
        assert_same(actual, desired)

    def test_a_scope_of_the_same_tool_inside_that_of_another_draws_what_the_session_draws(self, program, mode):
        def in_two_scopes(tool):
            inner = DeterministicRandomTestTool(7, "num_random_ops")
            return lambda times: counted(times, in_scope_of(inner, lambda x: x + program(2, tool)[0]))

        tool, actual = DeterministicRandomTestTool(mode=mode), []
        with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
            drawn = in_two_scopes(tool)(3)
            desired = [session.run(drawn) for _ in range(3)]
        tool = DeterministicRandomTestTool(mode=mode)
        with tool.scope():
            port = in_two_scopes(tool)
            for _ in desired:
                with tool.step():
                    actual.append(port(3).numpy())
        assert_same(actual, desired)


@parametrize_modes
def test_a_scope_in_a_function_that_is_traced_twice_takes_op_seeds_once(mode):
    def program(decorate):
        inner, variables = DeterministicRandomTestTool(7, "num_random_ops"), []

        def function():
            if not variables:
                variables.append(tf.Variable(tf.zeros([2])))
            with inner.scope():
                drawn = tf.random.uniform([2])
            return drawn * tf.random.normal([2]) + variables[0]

        return [decorate(function)(), uniforms(), in_scope_of(inner, uniforms)()]

    (desired,), _ = session_runs(lambda _: program(lambda function: function), mode, [None])
    with DeterministicRandomTestTool(mode=mode).scope():
        assert_same(program(tf.function), desired)


def test_a_scope_inside_with_a_different_seed_in_a_later_step_is_refused():
    tool = DeterministicRandomTestTool()
    message = r"^step 1 draws RandomUniform with seed 1 of float32 at .*, where step 0 drew RandomUniform with seed 0"
    with tool.scope(), pytest.raises(StepMismatchError, match=message):
        for seed in range(2):
            with tool.step(), DeterministicRandomTestTool(seed).scope():
                uniforms()


def live_contexts():
    return sum(type(thing) is function_traces._OneCall for thing in gc.get_objects())


def test_contexts_of_calls_live_as_long_as_the_traces():
    gc.collect()
    before = live_contexts()
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        inner = tf.function(uniforms)
        outer = tf.function(lambda inner=inner: [inner() for _ in range(5)])
        outer()
        assert live_contexts() == before + 5
        del inner, outer
    gc.collect()
    assert live_contexts() <= before + 1  # a thread's newest context waits for its trace
