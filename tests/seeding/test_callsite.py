"""The line of user code that a message names."""

import dataclasses
import functools
import inspect
import os
import sys
import types

import keras
import pytest
import tensorflow as tf
import tf_keras
import tf_slim

from detrand import random_tool, validation
from detrand.errors import DetrandError
from detrand.seeding import callsite

SLIM = os.path.dirname(tf_slim.__file__)


def here(offset=0):
    return f"{__file__}:{inspect.currentframe().f_back.f_lineno + offset}"


def recorded(function):
    tool = random_tool.DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        function()
    return [op.caller for op in tool.random_ops]


def test_this_file_is_user_code():
    assert str(callsite.user_site()) == here()


def test_a_line_that_runs_again_is_the_same_site():
    sites = [callsite.user_site() for _ in range(3)]
    other = callsite.user_site()
    assert sites[0] is sites[1] is sites[2]
    assert other != sites[0]


def test_two_calls_on_one_line_are_equal_sites():
    first, second = callsite.user_site(), callsite.user_site()
    assert first == second


@pytest.mark.slow
def test_sites_of_discarded_code_are_not_kept():
    for i in range(callsite._MOST_KEPT + 10):
        source = compile("site = callsite.user_site()", f"cell_{i}.py", "exec")
        exec(source, found := {"callsite": callsite})
        assert str(found["site"]) == f"cell_{i}.py:1"
    assert len(callsite._sites_by_offset) <= callsite._MOST_KEPT
    assert callsite.is_framework.cache_info().currsize <= callsite._MOST_KEPT


def test_framework_files_are_bounded(monkeypatch):
    monkeypatch.setattr(callsite, "_MOST_KEPT", 5)
    monkeypatch.setattr(callsite, "is_framework", lambda filename: filename.startswith("framework_"))
    monkeypatch.setattr(callsite, "_framework_files", kept := set())
    for i in range(20):
        exec(compile("callsite.user_site()", f"framework_{i}.py", "exec"), {"callsite": callsite})
    assert 0 < len(kept) <= 5


def test_frames_of_the_standard_library_are_passed_over():
    assert str(functools.reduce(lambda *_: callsite.user_site(), [1, 2])) == here()


def test_a_layer_of_frameworks_is_passed_over():
    def program():
        tf.nn.dropout(tf.ones([2]), 0.5)

    assert recorded(program) == [f"{__file__}:{program.__code__.co_firstlineno + 1}"]


def test_the_line_that_added_an_op_to_a_graph():
    with tf.Graph().as_default():
        op = tf.nn.dropout(tf.ones([2]), 0.5).op
    assert str(callsite.site_of_op(op)) == here(-1)


def test_the_code_that_started_a_validation_is_no_part_of_the_program():
    folder = os.path.dirname(validation.__file__)
    user, started, between, framework = (
        types.SimpleNamespace(filename=name, lineno=7)
        for name in (__file__, f"{folder}/runner.py", f"{folder}/diagnosis/trace.py", tf.__file__)
    )
    for frames, site in [
        ([user, started, framework], callsite.UNKNOWN),
        ([user, started, user, between, framework], callsite.Site(__file__, 7)),
        ([user, framework], callsite.Site(__file__, 7)),
        (None, callsite.UNKNOWN),
    ]:
        assert callsite.site_of_op(types.SimpleNamespace(traceback=frames)) == site


def test_the_calls_of_a_program_begin_where_a_validation_starts_it():
    folder = os.path.dirname(validation.__file__)
    files = [tf.__file__, __file__, f"{folder}/diagnosis/trace.py", keras.__file__, f"{folder}/runner.py", __file__]
    calls = callsite.calls_of((name, number, f"call_{number}") for number, name in enumerate(files))
    assert calls == ((keras.__file__, 3, "call_3"), (__file__, 1, "call_1"), (tf.__file__, 0, "call_0"))
    assert callsite.site_of_calls(calls) == callsite.Site(__file__, 1)
    assert callsite.site_of_calls(calls[:1]) == callsite.UNKNOWN


def test_the_calls_that_run_end_here():
    def called():
        return callsite.running_calls()

    *_, caller, last = called()
    assert (last.name, f"{last.filename}:{last.lineno}") == ("called", here(-3))
    assert (caller.name, f"{caller.filename}:{caller.lineno}") == (inspect.currentframe().f_code.co_name, here(-2))


def test_autographs_copy_is_mapped_back():
    @tf.function
    def program(x):
        if x > 0:
            return tf.random.uniform([2])
        return tf.random.normal([2])

    first = program.python_function.__code__.co_firstlineno
    callers = recorded(lambda: program(tf.constant(1)))
    assert callers == [f"{__file__}:{first + 3}", f"{__file__}:{first + 4}"]


def test_a_backslash_moves_no_line_of_autographs_copy():
    # fmt: off
    @tf.function
    def program(x):
        shape = [2] if x is None \
            else [3]
        return tf.random.uniform(shape) + \
            tf.random.normal(shape)
    # fmt: on

    first = program.python_function.__code__.co_firstlineno
    assert recorded(lambda: program(tf.constant(1))) == 2 * [f"{__file__}:{first + 4}"]


@pytest.mark.parametrize(
    "filename",
    [
        pytest.param(tf.__file__, id="tensorflow"),
        pytest.param(keras.__file__, id="keras"),
        pytest.param(tf_keras.__file__, id="tf_keras"),
        pytest.param(f"{SLIM}/layers/layers.py", id="layers of tf_slim"),
        pytest.param(f"{SLIM}/ops/arg_scope.py", id="ops of tf_slim"),
        *(pytest.param(sys.modules[name].__file__, id=name) for name in ("numpy", "wrapt", "absl", "optree")),
        pytest.param(callsite.__file__, id="detrand"),
        pytest.param(os.__file__, id="standard_library"),
        pytest.param("<frozen importlib._bootstrap>", id="frozen"),
    ],
)
def test_files_of_frameworks_are_recognized(filename):
    assert callsite.is_framework(filename)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_files_of_a_framework_that_may_not_be_installed_are_recognized(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__file__=str(tmp_path / name / "__init__.py")))
    assert callsite.is_framework(str(tmp_path / name / "nn.py"))


@pytest.mark.parametrize(
    "filename",
    [__file__, pytest.__file__, f"{SLIM}/nets/vgg.py", "<stdin>", "/home/user/tensorflow/model.py"],
)
def test_files_of_users_are_not_framework_files(filename):
    assert not callsite.is_framework(filename)


def test_a_stack_without_user_code_has_an_unknown_site(monkeypatch):
    monkeypatch.setattr(callsite, "is_framework", lambda filename: True)
    monkeypatch.setattr(callsite, "_framework_files", set())
    monkeypatch.setattr(callsite, "_sites_by_offset", {})
    assert callsite.user_site() is callsite.UNKNOWN
    with tf.Graph().as_default():
        assert callsite.site_of_op(tf.constant(1).op) is callsite.UNKNOWN
    assert str(callsite.UNKNOWN) == "<no user code on the stack>"


@pytest.mark.parametrize(
    ("call", "passed_over"),
    [
        (lambda function: function(), True),
        (lambda function: tf.nest.map_structure(lambda _: function(), 1), True),
        (lambda function: keras.tree.map_structure(lambda _: function(), 1), False),
    ],
    ids=["directly", "tensorflow", "keras"],
)
def test_only_frames_of_tensorflow_are_passed_over_where_that_is_asked(call, passed_over):
    site = call(lambda: callsite.site_of_draw(3 if call.__code__.co_cellvars else 2, "tensorflow"))
    assert site == (callsite.Site(__file__, call.__code__.co_firstlineno) if passed_over else None)


class Loss:
    """A class whose objects have no line."""


class TestArguments:
    """The line of an argument: where it is defined, assigned or made, or else where it is passed."""

    @staticmethod
    def given(value):
        return str(callsite.site_of_argument(value))

    def test_a_function_is_defined(self):
        assert self.given(recorded) == f"{__file__}:{recorded.__code__.co_firstlineno}"

    # Assertions that pytest rewrites assign what they compute, so each line is found outside of one.

    def test_an_object_is_assigned_last_before_the_call(self):
        loss = Loss()
        loss = Loss()
        line = self.given(loss)
        loss = None
        assert line == here(-3)

    def test_an_object_is_made_in_the_call(self):
        other = Loss()
        line = self.given(
            Loss(),
        )
        assert line == here(-2), other

    def test_a_function_of_a_framework_is_named_in_the_call(self):
        line = self.given(
            tf.nn.relu,
        )
        assert line == here(-2)

    def test_an_object_is_made_on_the_only_line_that_names_its_class(self):
        losses = [Loss()]
        line = self.given(losses[0])
        assert line == here(-2)

    def test_an_object_that_several_lines_may_have_made_is_passed(self):
        losses = [Loss()]
        losses += [Loss()]
        line = self.given(losses[0])
        assert line == here(-1)

    def test_an_object_of_a_caller_is_assigned_there(self):
        def passed_on(loss):
            return self.given(loss)

        loss = Loss()
        line = passed_on(loss)
        assert line == here(-2)

    def test_an_object_that_the_init_of_a_dataclass_passes_on_is_made_in_the_call(self):
        @dataclasses.dataclass
        class Step:
            loss: object

            def __post_init__(self):
                self.line = str(callsite.site_of_argument(self.loss))

        step = Step(Loss())
        assert step.line == here(-1)


def raised(function, *args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


class TestErrors:
    """An exception in one line, with the line of user code that it comes from."""

    def test_the_innermost_line_of_the_user_is_named(self):
        def fails():
            raise ValueError("two\n  lines")

        line = fails.__code__.co_firstlineno + 1
        assert callsite.describe_error(raised(fails)) == f"ValueError: two lines ({__file__}:{line})"
        described = callsite.describe_error(raised(lambda: functools.reduce(lambda *_: tf.nest.flatten(fails()), "ab")))
        assert described == f"ValueError: two lines ({__file__}:{line})"

    def test_an_error_that_a_framework_raises_has_the_line_that_called_it(self):
        described = callsite.describe_error(raised(lambda: tf.nest.pack_sequence_as([1], [1, 2])))
        assert described.startswith("ValueError: ")
        assert described.endswith(f" ({here(-2)})")

    def test_an_error_that_was_not_raised_has_no_line(self):
        assert callsite.describe_error(ValueError("wrong")) == "ValueError: wrong"

    def test_an_error_without_a_message_is_described_by_its_type(self):
        assert callsite.describe_error(ValueError()) == "ValueError: no message"

    def test_a_syntax_error_has_the_line_of_the_source(self):
        error = raised(compile, "\na b", "model.py", "exec")
        assert callsite.describe_error(error) == "SyntaxError: invalid syntax (model.py:2)"
        assert callsite.describe_error(SyntaxError("wrong")) == "SyntaxError: wrong"

    def test_an_op_that_fails_in_a_graph_has_the_line_that_added_it(self):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            placeholder = tf.compat.v1.placeholder(tf.float32, [None])
            reshaped = tf.reshape(placeholder, [3])
            line = here(-1)
            described = callsite.describe_error(raised(session.run, reshaped, {placeholder: [1, 2]}))
        assert described.startswith("InvalidArgumentError: ")
        assert "2 values, but the requested shape has 3" in described
        assert "Detected at node" not in described
        assert described.endswith(f" ({line})")

    @pytest.mark.parametrize("base", [keras.layers.Layer, tf_keras.layers.Layer], ids=["keras3", "tf_keras"])
    def test_an_error_in_a_layer_of_keras_has_its_own_message(self, base):
        class Layer(base):
            def call(self, inputs):
                raise ValueError("wrong")

        line = Layer.call.__code__.co_firstlineno + 1
        assert callsite.describe_error(raised(Layer(), tf.ones(1))) == f"ValueError: wrong ({__file__}:{line})"

    def test_a_known_remedy_is_named_unless_the_error_is_detrands(self):
        message = "No module named 'tensorflow.contrib'"
        assert callsite.describe_error(ValueError(message)).startswith(f"ValueError: {message}; ")
        assert callsite.describe_error(DetrandError(message)) == f"DetrandError: {message}"
