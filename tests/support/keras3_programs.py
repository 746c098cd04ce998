"""Programs that draw in several runs, or where a backend would draw once for all of them.

Each makes its own tool, and returns what test_keras3_backends.py compares. Nothing is imported here that would
choose a backend, or need one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(1, keepdims=True)
RATE = 0.4
STEPS = 4


def _tool(mode: str = "num_random_ops", seed: int = 42) -> Any:
    from detrand import DeterministicRandomTestTool

    return DeterministicRandomTestTool(seed, mode)


def _model() -> Any:
    import keras

    dense = keras.layers.Dense
    return keras.Sequential([dense(5, use_bias=False), keras.layers.Dropout(RATE, seed=3), dense(1, use_bias=False)])


def trained(mode: str, eagerly: bool) -> list[Any]:
    """Train for some steps, each a step of the tool unless the backend compiles them: the weights after each."""
    import keras

    tool, model = _tool(mode), _model()
    results = []
    with tool.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eagerly)
        for _ in range(STEPS):
            with tool.step() if eagerly else contextlib.nullcontext():
                model.train_on_batch(X, Y)
            results += [weight.numpy() for weight in model.trainable_variables]
    return results


def compiled_and_fitted() -> list[Any]:
    """The weights after ``fit``, which has more files of the backend on the stack than other programs; in a scope."""
    model = _model()
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=4, verbose=0)
    return model.trainable_variables


def trained_in_session(mode: str) -> list[Any]:
    """The same in TensorFlow 1."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with _tool(mode).scope(), tf.Graph().as_default(), v1.Session() as session:
        glorot = v1.glorot_uniform_initializer()
        first, last = (v1.get_variable(n, s, initializer=glorot) for n, s in (("first", [3, 5]), ("last", [5, 1])))
        outputs = tf.nn.dropout(X @ first, RATE) @ last
        loss = tf.reduce_mean(tf.math.squared_difference(outputs, Y))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(v1.global_variables_initializer())
        results = []
        for _ in range(STEPS):
            session.run(train)
            results += session.run([first, last])
        return results


def fitted(mode: str, shuffle: Any, epochs: int = 2) -> list[Any]:
    """Return what ``fit`` feeds, batch after batch, and the op seed that comes next."""
    import keras

    seen = []

    class Spy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            with contextlib.suppress(Exception):  # where Keras asks for shapes, x is no array
                seen.append(keras.ops.convert_to_numpy(x).ravel())
            return self.dense(x)

    tool, model = _tool(mode), Spy()
    model.compile(loss="mse", run_eagerly=True)
    rows = np.arange(11, dtype=np.float32)[:, None]
    model.predict_on_batch(rows)
    seen.clear()
    with tool.scope():
        model.fit(rows, rows, epochs=epochs, batch_size=4, shuffle=shuffle, verbose=0)
    return [*seen, np.array(tool.operation_seed)]


def functional() -> list[Any]:
    """Return the records of a functional model: those of the initializers when it is created, then those of a call."""
    import keras

    tool = _tool()
    with tool.scope():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, _model()(inputs, training=True))
        made = [(op.op_seed, op.phase) for op in tool.random_ops]
        assert made == [(0, "init"), (1, "init")], made
        outputs = model(X)
        assert [(op.op_seed, op.phase) for op in tool.random_ops[2:]] == [(2, "compute")]
    return [outputs]


def pipeline() -> list[Any]:
    """Return batches of a tf.data pipeline with a layer, which draws by TensorFlow's ops on any backend."""
    import keras
    import tensorflow as tf

    layer = keras.layers.RandomFlip()
    images = np.arange(6 * 4 * 4 * 3, dtype=np.float32).reshape(6, 4, 4, 3)
    with _tool("constant").scope():
        data = tf.data.Dataset.from_tensors(images).repeat(3).map(lambda x: layer(x, training=True))
        return [batch.numpy() for batch in data]


def left_as_it_was() -> list[Any]:
    """Everything that a scope replaces is put back, and the numbers are Keras's own again."""
    import keras

    from detrand._patching import keras3_random

    targets = keras3_random.draws(keras.backend.backend()).values()
    before = [target.checked() for target in targets]
    numbers = keras.random.uniform((3,), seed=5)
    with contextlib.suppress(ZeroDivisionError), _tool().scope():
        in_scope = keras.random.uniform((3,), seed=5)
        assert all(target.checked() is not original for target, original in zip(targets, before, strict=True))
        raise ZeroDivisionError
    assert all(target.checked() is original for target, original in zip(targets, before, strict=True))
    assert not np.array_equal(*map(keras.ops.convert_to_numpy, (numbers, in_scope)))
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (numbers, keras.random.uniform((3,), seed=5))))
    return []


def error_of(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the class and the message of the error that a call raises."""
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


# --- JAX


def jax_compiled(mode: str) -> list[Any]:
    """What a function draws that is compiled outside, in three executions, then in another scope's, then after it."""
    import jax
    import keras

    def program(x: Any) -> Any:
        return keras.random.dropout(x, RATE, seed=1), keras.random.normal((2,), seed=1)

    compiled = jax.jit(program)
    outside = compiled(X)
    with _tool(mode).scope():
        results = [compiled(X) for _ in range(3)]
    with _tool(mode, seed=7).scope():
        results.append(compiled(X))
    np.testing.assert_array_equal(compiled(X)[0], outside[0])
    return results


def jax_nested(mode: str) -> list[Any]:
    """What a compiled function draws in a scope, in one inside, in a thread of each, in the first again, and later."""
    import jax
    import keras

    compiled = jax.jit(lambda: keras.random.uniform((2,), seed=1))
    outer, inner = _tool(mode), _tool(mode, seed=7)
    results = []

    def draw() -> None:
        results.append(compiled())

    def draw_in_thread() -> None:
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()

    with outer.scope():
        draw()
        with inner.scope():
            draw()
            with inner.scope():
                draw()
            draw_in_thread()
        draw()
        draw_in_thread()
    with outer.scope():
        draw()
    return results


def jax_beside(mode: str) -> list[Any]:
    """Return what a compiled function draws in a scope after a thread that it does not govern has called it."""
    import jax
    import keras

    compiled = jax.jit(lambda: keras.random.uniform((2,), seed=1))
    called, entered, results = threading.Event(), threading.Event(), []

    def run() -> None:
        entered.wait()
        results.append(compiled())
        called.set()

    thread = threading.Thread(target=run)
    thread.start()
    with _tool(mode).scope():
        entered.set()
        called.wait()
        results.append(compiled())
    thread.join()
    np.testing.assert_array_equal(results[0], compiled())
    return results[1:]


def jax_gradients(mode: str) -> list[Any]:
    """Return gradients of a compiled and of an executed function, three times each: a gradient draws once."""
    import jax
    import keras

    def loss(x: Any) -> Any:
        return (jax.numpy.sin(x) * keras.random.dropout(np.ones_like(X), RATE, seed=1)).sum()

    results = []
    for transformed in (jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss)), jax.jit(jax.value_and_grad(jax.jit(loss)))):
        with _tool(mode).scope():
            results += [transformed(X) for _ in range(3)]
    with _tool("num_random_ops").scope():
        results += [jax.grad(loss)(X) for _ in range(3)]
    return results


def jax_refused() -> dict[str, str]:
    """Return the errors of what JAX may draw once, or twice."""
    import jax
    import keras

    def draw(x: Any) -> Any:
        return x * keras.random.uniform(np.shape(x), seed=1)

    programs = {
        "scan": lambda x: jax.lax.scan(lambda carry, _: (draw(carry), None), x, None, length=3),
        "grad_of_scan": jax.grad(lambda x: jax.lax.scan(lambda c, _: (draw(c), None), x, None, length=3)[0].sum()),
        "map": lambda x: jax.lax.map(draw, x),
        "while_loop": lambda x: jax.lax.while_loop(lambda c: c.sum() > 1, draw, x),
        "cond": lambda x: jax.lax.cond(x.sum() > 0, draw, draw, x),
        "checkpoint": jax.grad(jax.checkpoint(lambda x: jax.numpy.sin(draw(x)).sum())),
        "vmap": jax.vmap(draw),
        "vmap_of_jit": jax.vmap(jax.jit(draw)),
        "jit_of_vmap": jax.jit(jax.vmap(draw)),
        "ops_scan": lambda x: keras.ops.scan(lambda carry, _: (draw(carry), None), x, length=3),
        "vectorized_map": lambda x: keras.ops.vectorized_map(draw, x),
    }
    with _tool().scope():
        return {name: error_of(program, jax.numpy.asarray(X)) for name, program in programs.items()}


def jax_traced_parameters() -> list[Any]:
    """Draw whose parameters are known only when the program is executed, and a gradient through gamma."""
    import jax
    import keras

    def program(scale: Any, logits: Any, alpha: Any) -> Any:
        return (
            keras.random.normal((4,), 1.0, scale, seed=1),
            keras.random.uniform((4,), 0.0, scale, seed=1),
            keras.random.categorical(logits, 6, seed=1),
            keras.random.gamma((4, 3), alpha, seed=1),
        )

    logits, alpha = np.log([[0.2, 0.8], [0.6, 0.4]]).astype(np.float32), np.array([0.5, 2.0, 7.0], np.float32)
    with _tool().scope():
        results = [*jax.jit(program)(np.float32(2.5), logits, alpha)]
        results.append(jax.jit(jax.grad(lambda alpha: keras.random.gamma((4, 3), alpha, seed=1).sum()))(alpha))
    return results


def jax_layer() -> list[Any]:
    """A layer that draws by JAX's own functions, with keys from the scope; its own seed makes no difference."""
    import jax
    import keras

    def call(params: Any, rng: Any, inputs: Any, training: bool) -> Any:
        return inputs + jax.random.normal(rng, inputs.shape) if training else inputs

    results = []
    for layer_seed, seed in ((1, 0), (2, 0), (1, 3)):
        with _tool(seed=seed).scope():
            layer = keras.layers.JaxLayer(call, params={}, seed=layer_seed)
            results.append(layer(X, training=True))
    return results


# --- PyTorch


def torch_compiled(mode: str) -> list[Any]:
    """Return the draws of three calls of a function that ``torch.compile`` compiled outside of the scope."""
    import keras
    import torch

    def program(x: Any) -> Any:
        return keras.random.dropout(x * 1.0, RATE, seed=1) + 1

    compiled = torch.compile(program, backend="eager")
    x = torch.as_tensor(X)
    outside = compiled(x)
    with _tool(mode).scope():
        results = [compiled(x) for _ in range(3)]
    np.testing.assert_array_equal(compiled(x), outside)
    return results


def torch_refused() -> dict[str, str]:
    """Return the errors of what PyTorch would draw once."""
    import keras
    import torch

    def draw(x: Any) -> Any:
        return x * keras.random.uniform(tuple(x.shape), seed=1)

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return draw(x)

    x = torch.as_tensor(X)
    programs = {
        "vmap": lambda: torch.vmap(draw)(x),
        "vectorized_map": lambda: keras.ops.vectorized_map(draw, x),
        "trace": lambda: torch.jit.trace(draw, x),
        "export": lambda: torch.export.export(Module(), (x,), strict=False),
        "make_fx": lambda: torch.fx.experimental.proxy_tensor.make_fx(draw)(x),
    }
    with _tool().scope():
        return {name: error_of(program) for name, program in programs.items()}


def torch_loops() -> list[Any]:
    """Draw in Keras's loops, each followed by another draw."""
    import keras
    from keras import ops

    def draw() -> Any:
        return keras.random.uniform((2,), seed=1)

    with _tool().scope():
        loop = ops.while_loop(lambda i, total: i < 3, lambda i, total: (i + 1, total + draw()), (0, ops.zeros(2)))[1]
        results = [loop, ops.fori_loop(0, 3, lambda i, total: total + draw(), ops.zeros(2))]
        results.append(ops.scan(lambda carry, x: (carry, x + draw()), ops.zeros(()), ops.zeros((3, 2)))[1])
        results += [ops.map(lambda x: x + draw(), ops.zeros((3, 2))), draw()]
    return results


def torch_loops_in_session() -> list[Any]:
    """The same in TensorFlow 1."""
    import tensorflow as tf

    def draw() -> Any:
        return tf.random.uniform([2])

    with _tool().scope(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        zeros = tf.zeros([2])
        total = (lambda i, total: i < 3), (lambda i, total: (i + 1, total + draw())), (0, zeros)
        results = [tf.while_loop(*total)[1], tf.while_loop(*total)[1]]
        # One iteration after the other: a session may draw in parallel ones in any order.
        results += [tf.map_fn(lambda x: x + draw(), tf.zeros([3, 2]), parallel_iterations=1) for _ in range(2)]
        return session.run([*results, draw()])


def torch_generator_left() -> list[Any]:
    """PyTorch's global generator is left as it is by what Keras draws from it: the elastic transform."""
    import keras
    import torch

    state = torch.get_rng_state()
    with _tool().scope():
        results = [
            keras.ops.image.elastic_transform(np.ones((1, 8, 8, 1), np.float32) * X[:, :1], seed=s) for s in (1, 2)
        ]
    assert torch.equal(torch.get_rng_state(), state)
    return results
