"""The variables of a flax.nnx.Module: names, flags, values, and the forms of kernels, against computations of TF1."""

import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import VariableSpec, lstm_cell_to_flax
from detrand.variables.comparison import compare_variables
from detrand.variables.forms import rearranged_form

nnx = pytest.importorskip("flax.nnx")
jnp = pytest.importorskip("jax").numpy
v1 = tf.compat.v1


def drawn(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


class Block(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.stem = nnx.List([nnx.Conv(3, 8, (3, 3), use_bias=False, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        self.seen = nnx.Intermediate(x)
        return self.head(self.norm(self.stem[0](x)))


@pytest.mark.slow
def test_names_and_flags_are_those_of_the_state_in_the_order_of_creation():
    assert {name: (spec.shape, spec.trainable) for name, spec in detrand.variables_of(Block()).items()} == {
        "stem.0.kernel": ((3, 3, 3, 8), True),
        "norm.mean": ((8,), False),
        "norm.var": ((8,), False),
        "norm.scale": ((8,), True),
        "norm.bias": ((8,), True),
        "head.kernel": ((8, 2), True),
        "head.bias": ((2,), True),
    }
    first, *_, last = detrand.variables_of(Block())
    assert (first, last) == ("stem.0.kernel", "head.bias")


@pytest.mark.slow
def test_what_a_call_keeps_of_its_activations_is_no_variable():
    module = Block()
    before = list(detrand.variables_of(module))
    module(jnp.ones((1, 4, 4, 3)))
    assert hasattr(module, "seen")
    assert list(detrand.variables_of(module)) == before


def test_a_variable_of_two_modules_is_one_variable():
    class Tied(nnx.Module):
        def __init__(self):
            self.encoder = nnx.Embed(5, 3, rngs=nnx.Rngs(0))
            self.decoder = self.encoder

    assert len(detrand.variables_of(Tied())) == 1


def test_reset_gives_every_variable_the_value_and_keeps_the_keys():
    module = Block()
    key = module.dropout.rngs.key.get_value()
    detrand.reset_variables(module, 0.5)
    assert all((spec.numpy() == 0.5).all() for spec in detrand.variables.sources.named_variables(module).values())
    assert module.dropout.rngs.key.get_value() == key


@pytest.mark.slow
@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_a_kernel_of_a_transposed_convolution_is_loaded_and_saved(transpose_kernel, tmp_path):
    x, kernel, path = drawn(2, 6, 6, 3), drawn(3, 2, 4, 3), str(tmp_path / "model.ckpt")
    layer = nnx.ConvTranspose(
        3, 4, (3, 2), strides=2, use_bias=False, transpose_kernel=transpose_kernel, padding="VALID", rngs=nnx.Rngs(0)
    )
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("up/kernel", initializer=kernel)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, path)
    detrand.load_tf1_checkpoint(layer, path, {"up/kernel": "kernel"})
    expected = tf.nn.conv2d_transpose(x, kernel, (2, 13, 12, 4), 2, "VALID")
    np.testing.assert_allclose(np.asarray(layer(jnp.asarray(x))), expected, rtol=1e-5, atol=1e-5)
    saved = tf.train.load_checkpoint(detrand.save_tf1_checkpoint(layer, path, {"up/kernel": "kernel"}))
    np.testing.assert_array_equal(saved.get_tensor("up/kernel"), kernel)


@pytest.mark.slow
def test_a_depthwise_kernel_is_reshaped():
    layer, kernel = nnx.Conv(3, 6, (3, 3), feature_group_count=3, use_bias=False, rngs=nnx.Rngs(0)), drawn(3, 3, 3, 2)
    tf1 = {"kernel": VariableSpec(kernel.shape, "float32", True)}
    assert compare_variables(tf1, layer).ok
    (variable,) = detrand.variables.sources.named_variables(layer).values()
    variable.assign(kernel.reshape(variable.shape))
    x = drawn(2, 6, 6, 3)
    expected = tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME")
    np.testing.assert_allclose(np.asarray(layer(jnp.asarray(x))), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.OptimizedLSTMCell])
def test_a_cell_computes_what_tf1s_cell_computes(cell):
    module = cell(3, 2, rngs=nnx.Rngs(0))
    kernel, bias, x, state = drawn(5, 8), drawn(8), drawn(4, 3), drawn(4, 2)
    ((names, entry),) = lstm_cell_to_flax("cell", "", optimized=cell is nnx.OptimizedLSTMCell).items()
    form = rearranged_form(entry, ((names[0], kernel.shape), (names[1], bias.shape)))
    variables = detrand.variables.sources.named_variables(module)
    for name, array in form.to_port({names[0]: kernel, names[1]: bias}, values=True).items():
        variables[name.removeprefix(".")].assign(array)
    i, j, f, o = np.split(np.concatenate([x, state], 1) @ kernel + bias, 4, axis=1)
    sigmoid = lambda values: 1 / (1 + np.exp(-values))  # noqa: E731
    memory = sigmoid(f + 1) * state + sigmoid(i) * np.tanh(j)
    (found, _), output = module((jnp.asarray(state), jnp.asarray(state)), jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(found), memory, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(output), sigmoid(o) * np.tanh(memory), rtol=1e-5, atol=1e-6)


def test_names_are_proposed_by_roles_shapes_and_cells():
    class Network(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.conv, self.bn = nnx.Conv(3, 8, (3, 3), use_bias=False, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
            self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(3, 2, rngs=rngs), rngs=rngs)
            self.other = nnx.RNN(nnx.LSTMCell(4, 2, rngs=rngs), rngs=rngs)

    shapes = {
        "stem/weights": (3, 3, 3, 8),
        **{f"stem/BatchNorm/{name}": (8,) for name in ("gamma", "beta", "moving_mean", "moving_variance")},
        "rnn/lstm_cell/kernel": (5, 8),
        "rnn/lstm_cell/bias": (8,),
        "wide/lstm_cell/kernel": (6, 8),
        "wide/lstm_cell/bias": (8,),
    }
    tf1 = {name: VariableSpec(shape, "float32", "moving" not in name) for name, shape in shapes.items()}
    module = Network()
    found = detrand.suggest_name_map(tf1, module)
    assert {name: each for name, each in found.name_map.items() if isinstance(each, str)} == {
        "stem/weights": "conv.kernel",
        "stem/BatchNorm/gamma": "bn.scale",
        "stem/BatchNorm/beta": "bn.bias",
        "stem/BatchNorm/moving_mean": "bn.mean",
        "stem/BatchNorm/moving_variance": "bn.var",
    }
    assert [each.code for each in found.name_map.values() if not isinstance(each, str)] == [
        "lstm_cell_to_flax('rnn/lstm_cell', 'rnn.cell', optimized=True)",
        "lstm_cell_to_flax('wide/lstm_cell', 'other.cell')",
    ]
    assert compare_variables(tf1, module, found.name_map).ok


def test_a_variable_is_the_same_object_each_time():
    module = Block()
    ids = [id(each) for each in detrand.variables.sources.named_variables(module).values()]
    _ = [object() for _ in range(100)]
    assert [id(each) for each in detrand.variables.sources.named_variables(module).values()] == ids
    assert id(next(iter(detrand.variables.sources.named_variables(module.norm).values()))) in ids
