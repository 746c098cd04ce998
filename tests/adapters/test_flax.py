"""Flax in a scope: its dropout, and what its random keys draw by themselves, are what the session draws."""

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, ScopeError, assert_allclose

nnx = pytest.importorskip("flax.nnx")
jax = pytest.importorskip("jax")
jnp = jax.numpy
jax_draws = pytest.importorskip("detrand._patching.jax_draws")
drawing_now = pytest.importorskip("detrand.adapters.keras3_jax").drawing_now
v1 = tf.compat.v1

X = np.random.default_rng(0).normal(size=(4, 3, 6)).astype(np.float32)


def from_session(mode="num_random_ops", runs=2):
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default(), v1.Session() as session:
        drawn = [tf.nn.dropout(X, 0.4), tf.nn.dropout(X, 0.5, noise_shape=(4, 1, 6))]
        drawn += [v1.random_normal((2, 3)), v1.random_uniform((5,), -1.0, 2.0)]
        return [session.run(drawn) for _ in range(runs)]


class Draws(nnx.Module):
    def __init__(self):
        self.rngs = nnx.Rngs(0)
        self.first = nnx.Dropout(0.4, rngs=self.rngs)
        self.second = nnx.Dropout(0.5, broadcast_dims=(1,), rngs=self.rngs)

    def __call__(self, x):
        dropped = self.first(x), self.second(x)
        return *dropped, self.rngs.normal((2, 3)), self.rngs.noise.uniform((5,), minval=-1.0, maxval=2.0)


@pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
def test_a_module_draws_what_the_session_draws_in_each_step(mode):
    tool, module = DeterministicRandomTestTool(mode=mode), Draws()
    with tool.scope():
        for expected in from_session(mode):
            with tool.step():
                found = module(jnp.asarray(X))
            assert_allclose(list(map(np.asarray, found)), expected, rtol=0, atol=0)


def test_each_execution_of_a_compiled_module_is_a_further_run():
    module, tool = nnx.Dropout(0.4, rngs=nnx.Rngs(0)), DeterministicRandomTestTool(mode="num_random_ops")
    compiled = nnx.jit(lambda module, x: module(x))
    with tool.scope():
        found = [np.asarray(compiled(module, jnp.asarray(X))) for _ in range(2)]
    assert_allclose(found, [dropped for dropped, *_ in from_session()], rtol=0, atol=0)
    assert [op.run for op in tool.random_ops][:1] == [0]


def test_a_module_in_a_thread_draws_the_scopes_numbers():
    found = []
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        thread = threading.Thread(target=lambda: found.append(np.asarray(Draws()(jnp.asarray(X))[0])))
        thread.start()
        thread.join()
    assert_allclose(found, [from_session(runs=1)[0][0]], rtol=0, atol=0)


def test_dropout_has_the_gradient_of_its_mask():
    module = nnx.Dropout(0.4, rngs=nnx.Rngs(0))
    graph, state = nnx.split(module)

    def total(x):
        dropped = nnx.merge(graph, state)(x)
        return dropped.sum(), dropped

    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        gradient, dropped = jax.grad(total, has_aux=True)(jnp.asarray(X))
    np.testing.assert_array_equal(np.asarray(gradient) != 0, np.asarray(dropped) != 0)


def test_all_lanes_of_a_vmap_would_draw_once():
    module = nnx.Dropout(0.4, rngs=nnx.Rngs(0))
    drop = nnx.vmap(lambda module, x: module(x), in_axes=(None, 0))
    with DeterministicRandomTestTool().scope(), pytest.raises(ScopeError, match=r"jax\.vmap of a random op"):
        drop(module, jnp.asarray(X))


def test_a_dropout_without_a_key_is_refused_as_by_flax():
    with DeterministicRandomTestTool().scope(), pytest.raises(ValueError, match="rngs"):
        nnx.Dropout(0.4)(jnp.asarray(X))


def test_other_draws_of_keys_are_recorded():
    rngs, tool = nnx.Rngs(0), DeterministicRandomTestTool()
    with tool.scope():
        rngs.bernoulli(0.5, (3,))
        rngs.noise.gumbel((2,))
        jax.random.normal(rngs.noise(), (2,))
    assert [op.op_type for op in tool.random_ops] == ["nnx.Rngs.bernoulli", "nnx.Rngs.gumbel", "jax.random.normal"]
    assert all(op.op_seed is None for op in tool.random_ops)


def test_flax_draws_by_itself_in_inference_and_outside_of_a_scope():
    x, methods = jnp.ones(1000), (nnx.Dropout.__call__, nnx.Rngs.normal, nnx.Rngs.gumbel)
    tool = DeterministicRandomTestTool()
    with pytest.raises(ZeroDivisionError), tool.scope():
        assert (nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0))(x) == 1).all()
        assert (nnx.Dropout(0.5, rngs=nnx.Rngs(0))(x, deterministic=True) == 1).all()
        assert (nnx.Dropout(0.0, rngs=nnx.Rngs(0))(x) == 1).all()
        assert not nnx.Dropout(1.0, rngs=nnx.Rngs(0))(x).any()
        raise ZeroDivisionError
    assert not tool.random_ops
    assert (nnx.Dropout.__call__, nnx.Rngs.normal, nnx.Rngs.gumbel) == methods


@pytest.mark.parametrize("first", [0, 1])
def test_scopes_that_are_left_in_any_order_leave_nothing_to_jax(first):
    def draws():
        with DeterministicRandomTestTool().scope():
            yield jnp.ones(2) + 1

    generators = [draws(), draws()]
    for each in generators:
        next(each)
    for number in (first, 1 - first):
        generators[number].close()
    del generators
    gc.collect()
    assert jax_draws.scope.value is None
    assert (jnp.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]


def test_a_program_that_draws_nothing_is_compiled_once_for_the_scopes_of_all_tools():
    traced = []

    @jax.jit
    def double(x):
        traced.append("double")
        return 2 * x

    double(X)
    for _ in range(3):
        with DeterministicRandomTestTool().scope():
            nnx.Rngs(0).normal((2,))  # drawn at once, so in no program
            double(X)
    assert traced == ["double", "double"]  # outside of all scopes, and in them


def _normal():
    return nnx.Rngs(0).normal((2,))


def _normal_of_an_inner_scope():
    with DeterministicRandomTestTool(9).scope():
        return _normal()


def _normal_of_numpy():
    return jnp.asarray(np.random.normal(size=2))


@pytest.mark.parametrize("draw", [_normal, _normal_of_an_inner_scope, _normal_of_numpy])
def test_a_program_that_draws_is_compiled_for_the_scopes_of_one_tool(draw):
    traced = []

    @jax.jit
    def program():
        traced.append(draw)
        return draw()

    tools = [DeterministicRandomTestTool(seed) for seed in (1, 2)]
    for tool in (*tools, *tools):
        with tool.scope():
            program()
    assert len(traced) == 2
    assert [len(tool.random_ops) for tool in tools] == [0 if draw is _normal_of_an_inner_scope else 1] * 2


def test_a_program_that_is_traced_to_draw_now_is_used_nowhere_else():
    double = jax.jit(lambda x: 2 * x * _normal())
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        with drawing_now():
            jax.make_jaxpr(double)(1.0)
        double(1.0)
        double(1.0)
    assert [op.op_seed for op in tool.random_ops] == [0, 1]
