"""The line of user code that a message names."""

import functools
import inspect
import os
import sys

import pytest
import tensorflow as tf

from detrand import random_tool
from detrand.seeding import callsite


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


def test_autographs_copy_is_mapped_back():
    @tf.function
    def program(x):
        if x > 0:
            return tf.random.uniform([2])
        return tf.random.normal([2])

    first = program.python_function.__code__.co_firstlineno
    callers = recorded(lambda: program(tf.constant(1)))
    assert callers == [f"{__file__}:{first + 3}", f"{__file__}:{first + 4}"]


@pytest.mark.parametrize(
    "filename",
    [
        pytest.param(tf.__file__, id="tensorflow"),
        pytest.param(sys.modules["keras"].__file__, id="keras"),
        pytest.param(callsite.__file__, id="detrand"),
        pytest.param(os.__file__, id="standard_library"),
        pytest.param("<frozen importlib._bootstrap>", id="frozen"),
    ],
)
def test_files_of_frameworks_are_recognized(filename):
    assert callsite.is_framework(filename)


@pytest.mark.parametrize("filename", [__file__, pytest.__file__, "<stdin>", "/home/user/tensorflow/model.py"])
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
