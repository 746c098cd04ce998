"""Steps that differ from the first, steps that are left early, and steps where there can be none."""

import contextlib

import keras
import pytest
import tensorflow as tf
import tf_keras

from detrand import ArgumentError, DeterministicRandomTestTool, ScopeError, StepMismatchError
from tests.adapters.test_tensorflow import assert_same
from tests.support.step_runs import (
    CLASSES,
    MODES,
    counted,
    normals,
    nothing,
    parametrize_modes,
    run_steps,
    session_runs,
    session_runs_with,
    uniform_then,
    uniforms,
    v1,
)

# --- Steps that differ


def repeated(draw):
    return lambda: counted(3, lambda x: x + draw())


AT = r"at \S+\.py:\d+"
UNIFORM, NORMAL = f"RandomUniform of float32 {AT}", f"RandomStandardNormal of float32 {AT}"
NOTHING = rf"nothing \(an op seed was taken {AT}, and no op followed\)"
ADVICE = r"A graph runs the same random ops each time\. "
# The first step, the second, and what the error says.
MISMATCHES = {
    "another_type": (
        uniform_then(uniforms),
        uniform_then(normals),
        rf"step 1 draws {NORMAL} as its random op 1 \(from 0\), where step 0 drew {UNIFORM}\. {ADVICE}Move what "
        r"only some steps draw out of the step, or into a step with a different name: tool.step\(name=...\)\.$",
    ),
    "another_dtype": (
        uniform_then(uniforms),
        uniform_then(lambda: tf.random.uniform([2], dtype="float64")),
        rf"step 1 draws RandomUniform of float64 {AT} as its random op 1 .*, where step 0 drew {UNIFORM}\.",
    ),
    "one_too_many": (
        uniform_then(uniforms),
        uniform_then(uniform_then(normals)),
        rf"step 1 draws {NORMAL} as its random op 2 \(from 0\), after {UNIFORM}, the last random op of step 0\. "
        f"{ADVICE}Move",
    ),
    "one_where_none_was": (
        nothing,
        normals,
        rf"step 1 draws {NORMAL} .* op 0 .*, where step 0 drew nothing\. {ADVICE}Move",
    ),
    "one_missing": (
        uniform_then(normals),
        uniforms,
        rf"step 1 ended before its random op 1 \(from 0\), where step 0 drew {NORMAL}\. {ADVICE}Draw initial values "
        "before the first step, or in a function that is passed to tf.Variable; break, continue and return may leave a "
        "step only after",
    ),
    "all_missing": (uniforms, nothing, f"step 1 ended before its random op 0 .*, where step 0 drew {UNIFORM}"),
    "no_op_after_the_seed": (
        lambda: tf.nn.dropout(tf.ones([2]), 0.5),
        lambda: tf.nn.dropout(tf.ones([2]), 0),
        rf"step 1 draws {NOTHING} as .* where step 0 drew {UNIFORM}\.",
    ),
    "an_op_after_a_seed_without_one": (
        lambda: tf.nn.dropout(tf.ones([2]), 0),
        lambda: tf.nn.dropout(tf.ones([2]), 0.5),
        rf"step 1 draws {UNIFORM} as .* where step 0 drew {NOTHING}\.",
    ),
    "initial_values": (
        lambda: tf.Variable(tf.random.normal([2])),
        nothing,
        f"step 1 ended before .* where step 0 drew {NORMAL}.* passed to tf.Variable",
    ),
    "an_op_in_place_of_a_loop": (
        uniform_then(repeated(normals)),
        uniform_then(normals),
        f"step 1 draws {NORMAL} as its random op 1 .*, after {UNIFORM}, the last random op of step 0",
    ),
    "a_loop_in_place_of_an_op": (
        uniform_then(normals),
        uniform_then(repeated(normals)),
        rf"step 1 draws {NORMAL}, in a tf.while_loop, as its random op 1 .*, where step 0 drew {NORMAL}\.",
    ),
    "a_loop_too_many": (
        uniforms,
        uniform_then(repeated(normals)),
        rf"step 1 draws {NORMAL}, in a tf.while_loop, as its random op 1 .*, after {UNIFORM}, the last random op of "
        r"step 0\.",
    ),
    "a_loop_missing": (
        uniform_then(repeated(normals)),
        uniforms,
        rf"step 1 ended without the tf.while_loop {AT}, in which step 0 drew\. {ADVICE}Draw initial values before",
    ),
    "another_op_in_a_loop": (
        repeated(uniforms),
        repeated(normals),
        f"execution 3 of the body of the tf.while_loop {AT} draws {NORMAL} as its random op 0 .*, where execution 0 of "
        rf"the body of the tf.while_loop {AT} drew {UNIFORM}\. {ADVICE}Use tf.cond for what only some executions draw",
    ),
    "seeds_of_its_own": (
        lambda: tf.raw_ops.RandomUniform(shape=[2], dtype="float32", seed=1, seed2=2),
        lambda: tf.raw_ops.RandomUniform(shape=[2], dtype="float32", seed=1, seed2=3),
        r"step 1 draws RandomUniform with seeds \(1, 3\) of its own .* RandomUniform with seeds \(1, 2\) of its own",
    ),
    "another_attribute": (
        lambda: tf.random.uniform_candidate_sampler(CLASSES, 1, 3, True, 9),
        lambda: tf.random.uniform_candidate_sampler(CLASSES, 1, 4, True, 9),
        f"UniformCandidateSampler {AT} has the attributes .*'num_sampled': 4.* but had .*'num_sampled': 3.* in",
    ),
}


@parametrize_modes
@pytest.mark.parametrize(("first", "second", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_steps_that_differ_name_both_ops(first, second, message, mode):
    with pytest.raises(StepMismatchError, match=f"^{message}"):
        run_steps(first, second, mode=mode)


def test_a_step_mismatch_is_a_value_error():
    assert issubclass(StepMismatchError, ValueError)


def test_a_step_mismatch_names_both_lines():
    def program(k):
        return uniforms() if k == 0 else normals()

    first, second = (f"{draw.__code__.co_filename}:{draw.__code__.co_firstlineno + 1}" for draw in (uniforms, normals))
    with pytest.raises(StepMismatchError, match=rf"at {second} .* at {first}\."):
        run_steps(lambda: program(0), lambda: program(1))


def test_the_message_has_the_name_of_the_step():
    tool = DeterministicRandomTestTool()
    with tool.scope():
        with tool.step(name="eval"):
            uniforms()
        with (
            pytest.raises(
                StepMismatchError, match=r"^step 1 of 'eval' ended before .* where step 0 of 'eval' drew RandomUniform"
            ),
            tool.step(name="eval"),
        ):
            pass


def test_an_extra_op_raises_where_it_is():
    reached = []
    with pytest.raises(StepMismatchError):
        run_steps(uniforms, lambda: (uniforms(), reached.append("before"), uniforms(), reached.append("after")))
    assert reached == ["before"]


def test_iterations_that_differ_outside_of_steps_name_both_ops():
    def body(i, x):
        return i + 1, x + (uniforms() if i < 2 else normals())

    message = (
        r"^execution 2 of the body of the tf.while_loop at .* RandomStandardNormal .* execution 0 .* RandomUniform"
    )
    with pytest.raises(StepMismatchError, match=message), DeterministicRandomTestTool().scope():
        tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([2])])


@pytest.mark.parametrize("mode", MODES)
def test_different_shapes_are_no_mismatch(mode):
    tool = run_steps(uniforms, lambda: tf.random.uniform([3, 1]), mode=mode)
    assert [op.shape for op in tool.random_ops] == [(2,), (3, 1)]


# --- Steps that are left early


def test_an_exception_is_not_masked():
    def fail():
        uniforms()
        raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's"):
        run_steps(uniform_then(normals), fail)


@parametrize_modes
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_ops_that_ran_before_an_exception_have_run(failing, mode):
    # As in a session: each kernel counts its own executions.
    tool = DeterministicRandomTestTool(mode=mode)
    with tool.scope(), tf.Graph().as_default(), v1.Session() as session:
        first, second = tf.random.uniform([2]), tf.random.poisson([2], 5.0)
        desired = [session.run([first] if k == failing else [first, second]) for k in range(4)]
    tool = DeterministicRandomTestTool(mode=mode)
    actual = []
    with tool.scope():
        for k in range(4):
            with contextlib.suppress(KeyError), tool.step() as number:
                actual.append([tf.random.uniform([2])])
                if k == failing:
                    raise KeyError
                actual[-1].append(tf.random.poisson([2], 5.0))
            assert number == k
    assert_same(actual, desired)


def test_an_op_that_fails_has_not_run():
    desired, _ = session_runs(lambda _: [tf.random.uniform([2]), normals()], "num_random_ops", [None] * 2)
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    actual = []
    with tool.scope():
        for shape in ([2], [-1], [2]):
            with contextlib.suppress(tf.errors.InvalidArgumentError), tool.step():
                actual.append([tf.random.uniform(shape), normals()])
    assert_same(actual, desired)


@pytest.mark.parametrize("how", ["break", "continue", "return"])
@pytest.mark.parametrize("early", [True, False], ids=["before_the_last_op", "after_it"])
def test_an_early_exit_before_the_last_op_of_a_step_raises(how, early):
    def train(tool):
        for k in range(3):
            with tool.step():
                uniforms()
                if not early:
                    normals()
                if k == 1:
                    if how == "break":
                        break
                    if how == "continue":
                        continue
                    return
                if early:
                    normals()

    tool = DeterministicRandomTestTool()
    with tool.scope():
        if early:  # it looks the same as a step in which an op is missing
            with pytest.raises(
                StepMismatchError, match="break, continue and return may leave a step only after its last"
            ):
                train(tool)
        else:
            train(tool)
        with tool.step() as k:
            uniforms(), normals()
    assert k == (3 if how == "continue" and not early else 2)


# --- Bad input


@pytest.mark.parametrize(
    ("name", "given"), [(3, "3 of type int"), (None, "None of type NoneType"), ("", "'' of type str")], ids=str
)
def test_a_bad_step_name_is_refused(name, given):
    message = rf"^name must be a non-empty str, but {given} was given; use tool.step\(\), or tool.step\(name="
    with pytest.raises(ArgumentError, match=message):
        DeterministicRandomTestTool().step(name)


def test_a_step_outside_of_a_scope_is_refused():
    tool = DeterministicRandomTestTool()
    with (
        pytest.raises(ScopeError, match=r"^tool.step\(\) was entered outside every scope\. Put `with tool.scope\(\):`"),
        tool.step(),
    ):
        pass


def test_a_step_in_the_scope_of_another_tool_is_refused():
    tool = DeterministicRandomTestTool()
    message = r"^tool.step\(\) was entered in the scope of another tool\. Put `with"
    with tool.scope(), DeterministicRandomTestTool().scope(), pytest.raises(ScopeError, match=message), tool.step():
        pass


@pytest.mark.parametrize("name", ["train", "eval"])
def test_a_step_inside_a_step_is_refused(name):
    tool = DeterministicRandomTestTool()
    with (
        pytest.raises(
            ScopeError, match=r"^a step was entered inside step 0\. A step is one Session.run, and none runs"
        ),
        tool.scope(),
        tool.step(),
        tool.step(name=name),
    ):
        pass


def test_a_step_inside_a_loop_body_is_refused():
    tool = DeterministicRandomTestTool()

    def body(i):
        with tool.step():
            return [i + 1]

    message = r"^a step was entered inside execution 0 of the body .* a whole Session.run"
    with tool.scope(), pytest.raises(ScopeError, match=message):
        tf.while_loop(lambda i: i < 2, body, [0])


def test_a_step_in_a_function_or_in_a_graph_is_refused():
    tool = DeterministicRandomTestTool()

    def in_a_step():
        with tool.step():
            return uniforms()

    message = r"tool.step\(\) was entered while a graph or a tf.function is built.* put it around the call"
    with tool.scope():
        with pytest.raises(ScopeError, match=message):
            tf.function(in_a_step)()
        with tf.Graph().as_default(), pytest.raises(ScopeError, match=message):
            in_a_step()


@pytest.mark.parametrize("draw", [uniforms, lambda: tf.data.Dataset.range(3).shuffle(3)], ids=["op", "dataset"])
def test_a_random_op_of_a_graph_in_a_step_is_refused(draw):
    tool = DeterministicRandomTestTool()
    message = r"^a random op was about to be added to a tf.Graph inside tool.step\(\)"
    with tool.scope(), tool.step(), tf.Graph().as_default(), pytest.raises(ScopeError, match=message):
        draw()


def test_a_graph_in_a_step_may_be_governed_by_another_tool():
    tool = DeterministicRandomTestTool()
    with tool.scope(), tool.step():
        drawn = session_runs_with(DeterministicRandomTestTool(3))
    assert_same(drawn, session_runs_with(DeterministicRandomTestTool(3)))


def test_a_session_may_run_in_a_step():
    desired = session_runs_with(DeterministicRandomTestTool())
    tool = DeterministicRandomTestTool()
    actual = []
    with tool.scope():
        with tf.Graph().as_default() as graph:
            drawn = uniforms()
        with contextlib.closing(v1.Session(graph=graph)) as session:
            for _ in desired:
                with tool.step():
                    actual.append([session.run(drawn)])
    assert_same(actual, desired)


def test_symbolic_layers_in_a_step_are_no_graphs():
    # Keras builds scratch graphs, whose ops never run.
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        for _ in range(2):
            with tool.step():
                for kit in (keras, tf_keras):
                    inputs = kit.Input((3,))
                    model = kit.Model(inputs, kit.layers.Dropout(0.5)(inputs))
                    model(tf.ones([2, 3]), training=True)
    assert [(op.op_seed, op.run) for op in tool.random_ops] == [(0, 0), (1, 0), (0, 1), (1, 1)]
