# ruff: noqa: SIM117 - what is expected and what is in the scope read better apart
"""Each kind of variable, made in each way, in both scopes; that nothing is left behind; that nothing is replaced."""

import contextlib
import re
import subprocess
import sys
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import (
    ArgumentError,
    DeterministicRandomTestTool,
    ScopeError,
    VariableCreationError,
    assert_no_variable_creations,
    catch_and_raise_created_variables,
)
from detrand._patching.keras import KERAS3_CREATE_VARIABLE, KERAS3_INITIALIZE_LATER, track_in_keras3
from detrand._patching.patches import THREAD_START
from detrand._patching.variables import CREATE_VARIABLE
from tests.support.tool_runs import global_seed_kept

v1 = tf.compat.v1
SCOPES = [assert_no_variable_creations, catch_and_raise_created_variables]
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0"])
TARGETS = [
    THREAD_START,
    CREATE_VARIABLE,
    KERAS3_CREATE_VARIABLE,
    KERAS3_INITIALIZE_LATER,
]


@pytest.fixture(autouse=True)
def everything_restored():
    before = [target.checked() for target in TARGETS]
    yield
    assert [target.checked() for target in TARGETS] == before


def line_here():
    return sys._getframe(1).f_lineno


@contextlib.contextmanager
def raises_creation(*names):
    with pytest.raises(VariableCreationError) as caught:
        yield caught
    listed = re.findall(r"^  (\S+) +shape ", str(caught.value), re.MULTILINE)
    assert listed == list(names)


def tf_variable():
    tf.Variable(np.ones((2, 3), np.float32), name="w")


def v1_variable_in_a_graph_entered_inside():
    with tf.Graph().as_default(), v1.variable_scope("net"):
        v1.get_variable("w", [2, 3])


def v1_ref_variable():
    with tf.Graph().as_default():
        v1.get_variable("w", [2, 3], use_resource=False)


def v1_variable_eagerly():
    with v1.variable_scope("net"):
        v1.get_variable("w", [2, 3])


def v1_variable_under_a_taken_name():
    with tf.Graph().as_default(), tf.name_scope("net"):
        tf.constant(1.0, name="w")
        v1.Variable(tf.ones([2, 3]), name="w")


def v1_variable_from_a_function():
    with tf.Graph().as_default():
        v1.get_variable("w", initializer=lambda: tf.ones([2, 3]))


def tf_variable_from_a_function():
    tf.Variable(lambda: tf.random.normal([2, 3]), name="w")


def tf_variable_in_a_name_scope():
    with tf.name_scope("a"), tf.name_scope("b"):
        tf.Variable([[1.0] * 3] * 2, name="w")


def keras3_layer():
    keras.layers.Dense(3, name="dense", use_bias=False).build((None, 2))


def keras3_variable_from_a_value():
    keras.Variable(np.ones((2, 3), np.float32), name="w")


def tf_keras_layer():
    tf_keras.layers.Dense(3, name="dense", use_bias=False)(np.ones((1, 2), np.float32))


def mirrored_variable():
    with STRATEGY.scope():
        tf.Variable(tf.ones([2, 3]), name="w")


KINDS = {
    tf_variable: "w",
    v1_variable_in_a_graph_entered_inside: "net/w",
    v1_ref_variable: "w",
    v1_variable_eagerly: "net/w",
    v1_variable_under_a_taken_name: "net/w_1",
    v1_variable_from_a_function: "w",
    tf_variable_from_a_function: "w",
    tf_variable_in_a_name_scope: "a/b/w",
    keras3_layer: "dense/kernel",
    keras3_variable_from_a_value: "w",
    tf_keras_layer: "dense/kernel",
    mirrored_variable: "w",
}
kinds = pytest.mark.parametrize(("create", "name"), KINDS.items(), ids=[create.__name__ for create in KINDS])


@kinds
def test_an_attempt_raises_name_shape_dtype_and_the_users_line(create, name):
    first = create.__code__.co_firstlineno
    with pytest.raises(VariableCreationError, match=re.escape(f"variable '{name}' (shape (2, 3), dtype float32)")) as e:
        with assert_no_variable_creations():
            create()
    line = re.search(re.escape(__file__) + r":(\d+)", str(e.value))
    assert first < int(line[1]) <= first + 3
    assert isinstance(e.value, ValueError)
    assert "use tf.compat.v1.get_variable, get_or_create_layer" in str(e.value)


@kinds
def test_created_variables_are_listed_at_the_end(create, name):
    ran_on = False
    with raises_creation(name) as caught:
        with catch_and_raise_created_variables():
            create()
            ran_on = True
    assert ran_on
    assert re.search(rf"  {name}  shape \(2, 3\)  dtype float32  at {re.escape(__file__)}:\d+\n", str(caught.value))


@kinds
def test_the_name_in_an_attempt_is_the_name_of_the_next_variable(create, name):
    with pytest.raises(VariableCreationError), assert_no_variable_creations():
        create()
    with raises_creation(name), catch_and_raise_created_variables():
        create()


def test_a_keras3_variable_without_a_name_takes_no_number_when_refused():
    def create():
        keras.Variable("zeros", shape=(2,))

    create()  # takes the name without a number
    with pytest.raises(VariableCreationError) as refused, assert_no_variable_creations():
        create()
    attempted = re.search("variable '(variable(_[0-9]+)?)'", str(refused.value))[1]
    with raises_creation(attempted), catch_and_raise_created_variables():
        create()


def test_variables_are_listed_in_order_with_their_lines():
    with raises_creation("b", "a", "dense/kernel", "dense/bias") as caught:
        with catch_and_raise_created_variables():
            tf.Variable([1, 2], name="b")
            tf.Variable(1.0, name="a")
            line = line_here()
            keras.layers.Dense(3, name="dense").build((None, 2))
    assert "4 variables were created" in str(caught.value)
    assert [int(n) for n in re.findall(rf"{re.escape(__file__)}:(\d+)", str(caught.value))] == [
        line - 2,
        line - 1,
        line + 1,
        line + 1,
    ]


class TestNothingIsLeftBehind:
    def test_creations_in_a_graph_are_found(self):
        with tf.Graph().as_default() as graph:
            v1.get_variable("a", [2])
            ops = [op.name for op in graph.get_operations()]
            with pytest.raises(VariableCreationError), assert_no_variable_creations():
                v1.get_variable("w", [2, 3], regularizer=tf.nn.l2_loss)
            assert [op.name for op in graph.get_operations()] == ops
            assert [v.name for v in v1.global_variables() + v1.trainable_variables()] == ["a:0", "a:0"]
            assert v1.get_variable("w", [2, 3]).name == "w:0"

    def test_variables_of_an_imported_graph_are_found(self):
        with tf.Graph().as_default():
            v1.get_variable("w", [2, 3])
            meta_graph = v1.train.export_meta_graph()
        with (
            tf.Graph().as_default(),
            pytest.raises(VariableCreationError, match=r"'w'"),
            assert_no_variable_creations(),
        ):
            v1.train.import_meta_graph(meta_graph)

    def test_creations_by_a_keras3_layer_are_found(self):
        layer = keras.layers.Dense(3)
        with pytest.raises(VariableCreationError), assert_no_variable_creations():
            layer(tf.ones((1, 2)))
        assert layer.weights == []

    @pytest.mark.parametrize("execute", ["eager", "graph"])
    def test_no_op_seed_is_taken(self, execute):
        tool = DeterministicRandomTestTool(mode="num_random_ops")
        with contextlib.ExitStack() as stack:
            if execute == "graph":
                stack.enter_context(tf.Graph().as_default())
            stack.enter_context(tool.scope())
            with pytest.raises(VariableCreationError, match=r"shape \(2, 3\), dtype float32"):
                with assert_no_variable_creations():
                    tf.Variable(lambda: tf.random.normal([2, 3]))
            with pytest.raises(VariableCreationError), assert_no_variable_creations():
                v1.get_variable("w", [2, 3])
        assert (tool.operation_seed, tool.random_ops) == (0, ())

    def test_no_random_number_is_drawn(self):
        def draws_after(create):
            with global_seed_kept():
                tf.random.set_seed(7)
                create()
                return tf.random.uniform([3]).numpy()

        def refused():
            with pytest.raises(VariableCreationError), assert_no_variable_creations():
                tf.Variable(lambda: tf.random.normal([2, 3]))

        np.testing.assert_array_equal(draws_after(refused), draws_after(lambda: None))

    def test_a_function_that_fails_leaves_shape_and_dtype_unknown(self):
        def fail():
            raise RuntimeError("mine")

        with pytest.raises(VariableCreationError, match=r"\(shape unknown, dtype unknown\)"):
            with assert_no_variable_creations():
                tf.Variable(fail)


class TestWhatDoesNotCount:
    @pytest.fixture
    def use(self):
        variable = tf.Variable([1.0, 2.0])
        policy_layer = tf_keras.layers.Dense(1, dtype="mixed_float16")
        policy_layer(tf.ones((1, 2)))

        @tf.function
        def as_argument(v):
            return v * 2.0

        def use():
            variable.assign_add([1.0, 1.0])
            as_argument(variable)
            # As TensorFlow does where a structure with a variable in it is put together again.
            type(variable)(shape=(2,), dtype=tf.float32, trainable=True, handle=variable.handle)
            tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v + 1.0), [0, variable])
            policy_layer(tf.ones((1, 2)))
            with tf.Graph().as_default():
                tf.constant(1.0) + 1.0

        return use

    def test_using_variables_that_exist_is_no_creation(self, use):
        with assert_no_variable_creations(), catch_and_raise_created_variables():
            use()

    def test_assigning_in_a_graph_is_no_creation(self):
        with tf.Graph().as_default():
            variable = v1.get_variable("w", [2], use_resource=True)
            with assert_no_variable_creations():
                tf.identity(variable.assign([1.0, 2.0]).read_value())

    def test_reusing_a_v1_variable_is_no_creation(self):
        with tf.Graph().as_default():
            v1.get_variable("w", [2])
            with assert_no_variable_creations(), v1.variable_scope("", reuse=True):
                v1.get_variable("w", [2])

    def test_a_variable_with_a_mixed_precision_wrapper_counts_once(self):
        with raises_creation("dense/kernel", "dense/bias"), catch_and_raise_created_variables():
            tf_keras.layers.Dense(1, dtype="mixed_float16", name="dense")(tf.ones((1, 2)))

    def test_a_keras3_variable_around_a_tensorflow_variable_is_what_is_created_inside(self):
        variable = tf.Variable([1.0])
        layer = keras.layers.Layer(name="layer")
        with catch_and_raise_created_variables():
            track_in_keras3(layer, "net/w", variable)
            assert keras.Variable(variable).value is variable
        with raises_creation("half"), catch_and_raise_created_variables():
            keras.Variable(variable, dtype="float16", name="half")

    def test_a_variable_that_keras3_initializes_later_counts_once(self):
        class Outer(keras.layers.Layer):
            def __init__(self):
                super().__init__(name="outer")
                self.inner = keras.layers.Dense(2, name="inner")

            def call(self, inputs):
                return self.inner(inputs)

        with raises_creation("outer/inner/kernel", "outer/inner/bias"):
            with catch_and_raise_created_variables():
                Outer()(keras.Input((2,)))


class TestFunctions:
    def test_creation_while_tracing_counts_once(self):
        class Model(tf.Module):
            weight = None

            @tf.function
            def __call__(self, inputs):
                if self.weight is None:
                    self.weight = tf.Variable(2.0, name="w")
                return inputs * self.weight

        model = Model()
        with raises_creation("w"), catch_and_raise_created_variables():
            model(tf.constant(3.0))
            assert model(tf.constant(3.0)).numpy() == 6.0

    def test_an_attempt_while_tracing_keeps_its_class(self):
        @tf.function
        def call():
            return tf.Variable(2.0, name="w")

        with pytest.raises(VariableCreationError, match=r"'w' \(shape \(\), dtype float32\)") as caught:
            with assert_no_variable_creations():
                call()
        assert f"{__file__}:{call.python_function.__code__.co_firstlineno + 2}" in str(caught.value)

    def test_variables_are_not_kept_alive(self):
        # A tf.function may create its variables anew once they are gone.
        with pytest.raises(VariableCreationError):
            with catch_and_raise_created_variables():
                tf.Variable(1.0, name="a")
                gone = weakref.ref(tf.Variable(2.0, name="b"))
                assert gone() is None


class TestThreads:
    @pytest.mark.slow
    def test_replicas_of_a_strategy_count_once(self, tmp_path):
        # Logical devices are laid out once in a process, before TensorFlow starts its runtime.
        program = tmp_path / "replicas.py"
        program.write_text(
            "import tensorflow as tf\n"
            "from detrand import assert_no_variable_creations, catch_and_raise_created_variables\n"
            "cpu = tf.config.list_physical_devices('CPU')[0]\n"
            "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
            "strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
            "def create():\n"
            "    return tf.Variable(1.0, name='w')\n"
            "for scope in (catch_and_raise_created_variables, assert_no_variable_creations):\n"
            "    try:\n"
            "        with scope():\n"
            "            print(len(strategy.run(create).values))\n"
            "    except ValueError as error:\n"
            "        print(error)\n"
        )
        run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
        assert re.match(
            r"2\n1 variable was created inside .*\n  w  shape \(\)  dtype float32  at .*replicas.py:7\n.*\n"
            r"variable 'w' \(shape \(\), dtype float32\) was about to be created at .*replicas.py:7, inside",
            run.stdout,
        ), run.stdout

    def test_a_thread_started_inside_is_observed(self):
        def create():
            with contextlib.suppress(VariableCreationError):
                tf.Variable(1.0, name="w")

        with raises_creation("w"), catch_and_raise_created_variables():
            in_thread(create)
        with pytest.raises(VariableCreationError, match="caught this error and continued"):
            with assert_no_variable_creations():
                in_thread(create)

    def test_a_thread_started_before_is_not_observed(self):
        inside, created = threading.Event(), threading.Event()

        def create():
            assert inside.wait(30)
            tf.Variable(1.0)
            created.set()

        thread = threading.Thread(target=create)
        thread.start()
        with assert_no_variable_creations(), catch_and_raise_created_variables():
            inside.set()
            assert created.wait(30)
        thread.join()

    def test_a_thread_that_outlives_the_scope_is_no_longer_observed(self):
        left, result = threading.Event(), []

        def create():
            assert left.wait(30)
            result.append(tf.Variable(1.0))

        thread = threading.Thread(target=create)
        with assert_no_variable_creations():
            thread.start()
        left.set()
        thread.join()
        assert result

    def test_a_scope_continues_when_a_scope_entered_earlier_is_left(self):
        """Both replace the same functions; the fixture asserts that neither leaves its own behind."""
        inside, left = threading.Event(), threading.Event()
        raised = []

        def second():
            with pytest.raises(VariableCreationError) as caught, assert_no_variable_creations():
                inside.set()
                assert left.wait(30)
                tf.Variable(1.0, name="mine")
            raised.append(str(caught.value))

        thread = threading.Thread(target=second)
        with DeterministicRandomTestTool().scope():
            thread.start()
            assert inside.wait(30)
        left.set()
        thread.join()
        assert "'mine'" in raised[0]


def in_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


class TestScope:
    def test_nested_scopes_each_report_their_creations(self):
        with raises_creation("outer", "inner"), catch_and_raise_created_variables():
            tf.Variable(1.0, name="outer")
            with raises_creation("inner"), catch_and_raise_created_variables():
                tf.Variable(1.0, name="inner")
            with pytest.raises(VariableCreationError), assert_no_variable_creations():
                tf.Variable(1.0, name="refused")

    @pytest.mark.parametrize("scope", SCOPES)
    def test_an_exception_of_the_user_is_not_replaced(self, scope):
        mine = KeyError("mine")
        with pytest.raises(KeyError) as caught, scope():
            with contextlib.suppress(VariableCreationError):
                tf.Variable(1.0, name="w")
            raise mine
        assert caught.value is mine
        if scope is catch_and_raise_created_variables and sys.version_info >= (3, 11):
            (note,) = mine.__notes__
            assert re.match(r"Before this error, 1 variable was created inside .*\n  w  shape \(\)", note)

    def test_an_attempt_that_the_block_catches_is_raised_at_its_end(self):
        with pytest.raises(VariableCreationError, match=r"(?s)'w'.* caught this error and continued"):
            with assert_no_variable_creations(), contextlib.suppress(ValueError):
                tf.Variable(1.0, name="w")

    @pytest.mark.parametrize("scope", SCOPES)
    def test_a_scope_decorates_functions(self, scope):
        @scope()
        def create(how_many):
            for _ in range(how_many):
                tf.Variable(1.0, name="w")
            return how_many

        assert create(0) == 0
        for _ in range(2):
            with pytest.raises(VariableCreationError, match="w"):
                create(1)

    @pytest.mark.parametrize("scope", SCOPES)
    def test_bad_use_is_an_error(self, scope):
        entered = scope()
        with entered:
            pass
        with pytest.raises(ScopeError, match="has been entered before"), entered:
            pass
        with pytest.raises(ScopeError, match="left but never entered"):
            entered.__exit__(None, None, None)
        unused = scope()
        with pytest.raises(ArgumentError, match=r"5, which is not a function\. Use `with"):
            unused(5)
        with pytest.raises(ArgumentError, match=r"cannot decorate .*generator"):
            unused(lambda: (yield))
        with pytest.warns(RuntimeWarning, match=f"{scope.__name__}.*was called but never entered"):
            del unused

    def test_a_call_with_wrong_arguments_fails_as_without_the_scope(self):
        with pytest.raises(TypeError), assert_no_variable_creations():
            tf.Variable(*[None] * 30)
