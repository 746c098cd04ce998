"""PyTorch in a scope: its dropout draws what the session draws, wherever it is called."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from detrand import DeterministicRandomTestTool, ScopeError, assert_allclose

torch = pytest.importorskip("torch")
nn, functional, distributions = torch.nn, torch.nn.functional, torch.distributions
v1 = tf.compat.v1

X = np.random.default_rng(0).normal(size=(4, 3, 2, 6)).astype(np.float32)
SHARES = np.random.default_rng(0).dirichlet(np.ones(5), 4).astype(np.float32)


def from_session(mode="num_random_ops", runs=2):
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default(), v1.Session() as session:
        dropped = [tf.nn.dropout(X, rate) for rate in (0.4, 0.5)]
        return [session.run(dropped) for _ in range(runs)]


def from_module(module):
    """Drop by a layer, and in place by a function."""
    in_place = torch.from_numpy(X.copy())
    first = module(torch.from_numpy(X))
    assert functional.dropout(in_place, 0.5, inplace=True) is in_place
    return [first.numpy(), in_place.numpy()]


@pytest.mark.parametrize("mode", ["constant", "num_random_ops"])
def test_dropout_draws_what_the_session_draws_in_each_step(mode):
    tool, module = DeterministicRandomTestTool(mode=mode), nn.Dropout(0.4)
    with tool.scope():
        for expected in from_session(mode):
            with tool.step():
                found = from_module(module)
            assert_allclose(found, expected, rtol=0, atol=0)


def test_dropout_in_a_compiled_module_draws_what_the_session_draws():
    module = torch.compile(nn.Sequential(nn.Dropout(0.4)), backend="eager")
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        for expected in from_session():
            with tool.step():
                found = from_module(module)
            assert_allclose(found, expected, rtol=0, atol=0)


def test_dropout_in_a_thread_draws_the_scopes_numbers():
    found = []
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        thread = threading.Thread(target=lambda: found.append(from_module(nn.Dropout(0.4))))
        thread.start()
        thread.join()
    assert_allclose(found, from_session(runs=1), rtol=0, atol=0)


def test_dropout_has_the_gradient_of_its_mask():
    x = torch.from_numpy(X).requires_grad_()
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        dropped = functional.dropout(x, 0.4)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    np.testing.assert_array_equal(gradient.numpy() != 0, dropped.detach().numpy() != 0)


def test_all_lanes_of_a_vmap_would_draw_once():
    with DeterministicRandomTestTool().scope(), pytest.raises(ScopeError, match=r"torch\.vmap of a random op"):
        torch.vmap(functional.dropout, randomness="same")(torch.from_numpy(X))


def test_dropout_is_pytorchs_in_inference_and_outside_of_a_scope():
    x, original = torch.ones(1000), functional.dropout
    tool = DeterministicRandomTestTool()
    with pytest.raises(ZeroDivisionError), tool.scope():
        assert (nn.Dropout(0.5).eval()(x) == 1).all()
        assert (functional.dropout(x, 0.0) == 1).all()
        assert not functional.dropout(x, 1.0).any()
        raise ZeroDivisionError
    assert not tool.random_ops
    assert functional.dropout is original


def attention_in_session(query, key, value, mask, scale):
    """Attention as TF1 code computes it, with dropout of its shares."""
    with DeterministicRandomTestTool(mode="num_random_ops").scope(), tf.Graph().as_default(), v1.Session() as session:
        scores = tf.matmul(query, key, transpose_b=True) * scale + tf.where(mask, 0.0, -1e9)
        return session.run(tf.matmul(tf.nn.dropout(tf.nn.softmax(scores), 0.4), value))


@pytest.mark.parametrize("of_mask", ["bool", "added", "causal"])
def test_fused_attention_drops_what_the_session_drops(of_mask):
    query, key = np.random.default_rng(1).normal(size=(2, 2, 3, 5, 4)).astype(np.float32)
    value = np.random.default_rng(2).normal(size=(2, 3, 5, 6)).astype(np.float32)
    mask = np.tril(np.ones((5, 5), bool))
    given = {"bool": {"attn_mask": torch.from_numpy(mask)}, "causal": {"is_causal": True, "scale": 0.5}}
    given["added"] = {"attn_mask": torch.where(torch.from_numpy(mask), 0.0, -1e9), "scale": 0.1}
    scale = given[of_mask].get("scale", 0.5)
    tool = DeterministicRandomTestTool(mode="num_random_ops")
    with tool.scope():
        found = functional.scaled_dot_product_attention(
            *map(torch.from_numpy, (query, key, value)), dropout_p=0.4, **given[of_mask]
        )
    expected = attention_in_session(query, key, value, mask, scale)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert [op.op_type for op in tool.random_ops] == ["RandomUniform"]


def test_fused_attention_of_shared_heads_drops_what_the_session_drops():
    query = np.random.default_rng(1).normal(size=(2, 4, 5, 4)).astype(np.float32)
    key, value = np.random.default_rng(2).normal(size=(2, 2, 2, 5, 4)).astype(np.float32)
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        found = functional.scaled_dot_product_attention(
            *map(torch.from_numpy, (query, key, value)), dropout_p=0.4, enable_gqa=True
        )
    of_heads = (np.repeat(each, 2, axis=1) for each in (key, value))
    expected = attention_in_session(query, *of_heads, np.ones((5, 5), bool), 0.5)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_fused_attention_without_dropout_is_pytorchs():
    query, original = torch.ones(2, 3, 5, 4), functional.scaled_dot_product_attention
    tool = DeterministicRandomTestTool()
    with tool.scope():
        assert_allclose(functional.scaled_dot_product_attention(query, query, query).numpy(), query.numpy())
    assert not tool.random_ops
    assert functional.scaled_dot_product_attention is original


DRAWS = {
    "rand": (lambda: tf.random.uniform((2, 3)), lambda: torch.rand(2, 3)),
    "rand of a tuple": (lambda: tf.random.uniform((2, 3)), lambda: torch.rand((2, 3), device="cpu")),
    "rand of no size": (lambda: tf.random.uniform(()), lambda: torch.rand(())),
    "rand of float64": (
        lambda: tf.random.uniform((2, 3), dtype=tf.float64),
        lambda: torch.rand(2, 3, dtype=torch.float64),
    ),
    "rand_like": (lambda: tf.random.uniform((2, 3)), lambda: torch.rand_like(torch.zeros(2, 3))),
    "randn": (lambda: tf.random.normal((2, 3)), lambda: torch.randn(size=(2, 3))),
    "randn_like": (
        lambda: tf.random.normal((2, 3), dtype=tf.float64),
        lambda: torch.randn_like(torch.zeros(2, 3), dtype=torch.float64),
    ),
    "randn of bfloat16": (
        lambda: tf.cast(tf.random.normal((2, 3), dtype=tf.bfloat16), tf.float32),
        lambda: torch.randn(2, 3, dtype=torch.bfloat16).float(),
    ),
    "randn as it is laid out by default": (
        lambda: tf.random.normal((2, 3)),
        lambda: torch.randn(2, 3, generator=None, layout=torch.strided, device=torch.device("cpu")),
    ),
    "normal": (lambda: tf.random.normal((2, 3), 1.5, 0.3), lambda: torch.normal(1.5, 0.3, (2, 3))),
    "normal of tensors": (
        lambda: tf.random.normal((2, 3), tf.ones((1, 3)), 2.0 * tf.ones((2, 1))),
        lambda: torch.normal(torch.ones(1, 3), 2.0 * torch.ones(2, 1)),
    ),
    "normal of a mean": (lambda: tf.random.normal((3,), tf.ones(3)), lambda: torch.normal(torch.ones(3))),
    "normal_": (lambda: tf.random.normal((2, 3), 1.5, 0.3), lambda: torch.empty(2, 3).normal_(1.5, std=0.3)),
    "uniform_": (lambda: tf.random.uniform((2, 3), -1.0, 2.0), lambda: torch.empty(2, 3).uniform_(-1, to=2)),
    "Normal.rsample": (
        lambda: tf.random.normal((2, 3)) * 0.3 + 1.5,
        lambda: distributions.Normal(torch.full((2, 3), 1.5), 0.3).rsample(),
    ),
    "Normal.sample": (
        lambda: tf.random.normal((2, 3)) * 0.3 + 1.5,
        lambda: distributions.Normal(torch.full((2, 3), 1.5), 0.3).sample(),
    ),
    "Uniform": (
        lambda: tf.random.uniform((4,), 1.0, 3.0),
        lambda: distributions.Uniform(1.0, 3 * torch.ones(4)).rsample(),
    ),
    "Bernoulli": (
        lambda: v1.distributions.Bernoulli(probs=SHARES, dtype=tf.float32).sample(),
        lambda: distributions.Bernoulli(torch.tensor(SHARES)).sample(),
    ),
    "bernoulli of a tensor": (
        lambda: tf.cast(tf.random.uniform(SHARES.shape) < SHARES, tf.float32),
        lambda: torch.tensor(SHARES).bernoulli(),
    ),
    "Categorical": (
        lambda: tf.transpose(tf.random.categorical(np.log(SHARES), 6)),
        lambda: distributions.Categorical(torch.tensor(SHARES)).sample((6,)),
    ),
    "Categorical of logits": (
        lambda: tf.random.categorical(np.log(SHARES), 1)[:, 0],
        lambda: distributions.Categorical(logits=torch.tensor(np.log(SHARES))).sample(),
    ),
    "multinomial of a row with a share of 0": (
        lambda: tf.random.categorical([[-np.inf, 0.0, 0.0, 1.0]], 9)[0],
        lambda: torch.tensor([0.0, 1.0, 1.0, np.e]).multinomial(9, replacement=True),
    ),
    "randint": (lambda: tf.random.uniform((2, 3), 2, 90, tf.int64), lambda: torch.randint(2, 90, (2, 3))),
    "randint of int32": (
        lambda: tf.random.uniform((7,), 0, 9, tf.int32),
        lambda: torch.randint(high=9, size=(7,), dtype=torch.int32),
    ),
    "randperm": (lambda: tf.random.shuffle(tf.range(9, dtype=tf.int64)), lambda: torch.randperm(9)),
}


@pytest.mark.parametrize(("of_tf1", "of_torch"), DRAWS.values(), ids=DRAWS)
def test_draws_are_those_of_the_session_in_each_step(of_tf1, of_torch):
    with DeterministicRandomTestTool().scope(), tf.Graph().as_default(), v1.Session() as session:
        drawn = of_tf1()
        expected = [session.run(drawn) for _ in range(3)]
    tool = DeterministicRandomTestTool()
    with tool.scope():
        for numbers in expected:
            with tool.step():
                found = of_torch().numpy()
            np.testing.assert_array_equal(found, numbers, strict=True)


def test_a_draw_passes_on_its_gradient_and_takes_one():
    with DeterministicRandomTestTool().scope():
        deviation = torch.ones(3, requires_grad=True)
        standard = torch.randn(3)
    with DeterministicRandomTestTool().scope():
        torch.normal(torch.zeros(3), deviation).sum().backward()
        assert torch.rand(2, requires_grad=True).requires_grad
    np.testing.assert_array_equal(deviation.grad.numpy(), standard.numpy())


@pytest.mark.parametrize(
    "draw",
    [
        lambda **given: torch.rand(3, **given),
        lambda **given: torch.randn(3, **given),
        lambda **given: torch.normal(0.0, 1.0, (3,), **given),
        lambda **given: torch.normal(torch.zeros(3), **given),
        lambda **given: torch.empty(3).normal_(**given),
        lambda **given: torch.empty(3).uniform_(2, 3, **given),
        lambda **given: torch.bernoulli(torch.full((9,), 0.5), **given),
        lambda **given: torch.multinomial(torch.ones(9), 9, True, **given),
        lambda **given: torch.randint(99, (3,), **given),
        lambda **given: torch.randperm(9, **given),
    ],
)
def test_a_generator_of_the_users_draws_its_own_numbers_which_are_recorded(draw):
    expected, tool = draw(generator=torch.Generator().manual_seed(7)), DeterministicRandomTestTool()
    with tool.scope():
        found = draw(generator=torch.Generator().manual_seed(7))
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    (op,) = tool.random_ops
    assert op.op_seed is None and op.op_type.startswith("torch.")
    assert "test_torch.py:" in op.caller


def test_other_dtypes_and_places_are_pytorchs():
    expected = torch.manual_seed(3), torch.randn(2, dtype=torch.complex64)
    with DeterministicRandomTestTool().scope():
        torch.manual_seed(3)
        np.testing.assert_array_equal(torch.randn(2, dtype=torch.complex64).numpy(), expected[1].numpy())
        out = torch.empty(2)
        assert torch.rand(2, out=out) is out
        assert torch.randint(9, (2,), dtype=torch.uint8).dtype == torch.uint8
        assert sorted(torch.multinomial(torch.ones(9), 9)) == list(range(9))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(requires_grad=False),
        lambda: torch.normal(0.0, 1.0),
        lambda: torch.randn(2.5),
        lambda: torch.randint(9),
        lambda: torch.zeros(3).uniform_(0, 1, 2),
    ],
    ids=["rand", "normal", "randn", "randint", "uniform_"],
)
def test_arguments_that_pytorch_refuses_are_refused(draw):
    with pytest.raises(TypeError):
        draw()
    with DeterministicRandomTestTool().scope(), pytest.raises(TypeError):
        draw()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.multinomial(torch.tensor([-1.0, 2.0]), 1),
        lambda: torch.multinomial(torch.zeros(3), 1),
        lambda: torch.randint(5, 5, (2,)),
        lambda: torch.randperm(-1),
    ],
    ids=["share below 0", "no share", "no number", "no size"],
)
def test_numbers_that_pytorch_refuses_are_refused(draw):
    with pytest.raises(RuntimeError):
        draw()
    with DeterministicRandomTestTool().scope(), pytest.raises(RuntimeError):
        draw()


def test_draws_in_a_compiled_program_are_the_sessions():
    draw = torch.compile(lambda x: x + torch.randn_like(x), backend="eager")
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        found = draw(torch.zeros(3)).numpy()
    with DeterministicRandomTestTool(mode="num_random_ops").scope():
        np.testing.assert_array_equal(found, tf.random.normal((3,)).numpy())


IMPORTED_INSIDE = """
import sys

import detrand

assert "torch" not in sys.modules
tool = detrand.DeterministicRandomTestTool(mode="num_random_ops")
with tool.scope():
    import torch

    torch.randn_like(torch.rand(3))
    torch.rand(2, generator=torch.Generator().manual_seed(1))
    import torch._dynamo

    torch.rand(3)
print([(op.op_type, op.op_seed) for op in tool.random_ops])
"""


@pytest.mark.slow
def test_draws_are_taken_over_once_if_pytorch_is_imported_in_the_scope():
    printed = subprocess.run([sys.executable, "-c", IMPORTED_INSIDE], capture_output=True, text=True, check=True).stdout
    expected = [("RandomUniform", 0), ("RandomStandardNormal", 1), ("torch.rand", None), ("RandomUniform", 2)]
    assert printed.strip() == str(expected)


def test_initial_values_of_layers_are_recorded_as_such():
    tool = DeterministicRandomTestTool()
    with tool.scope():
        torch.nn.Linear(2, 3)
        torch.empty(3).uniform_()
    assert [op.phase for op in tool.random_ops] == ["init", "init", "compute"]
    assert [op.op_seed for op in tool.random_ops] == [None, None, 0]
