"""Variables that both programs use alike, which only the values that they compute tell apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate

v1 = tf.compat.v1
VECTORS = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)
GATED = ("gate", "linear", "out")
SEQUENCES = np.random.default_rng(4).normal(size=(2, 5, 6)).astype(np.float32)


def dense(x, scope):
    with v1.variable_scope(scope):
        return tf.tensordot(x, v1.get_variable("w", (6, 6)), 1) + v1.get_variable("b", 6)


class Layers(keras.Model):
    """Layers of one shape, created in the opposite order of their names here."""

    def __init__(self, *names):
        super().__init__(name="model")
        self.named = {name: keras.layers.Dense(6, name=f"x{i}") for i, name in enumerate(reversed(names))}
        for layer in self.named.values():
            layer.build((None, 6))


def expected(*names):
    numbers = {name: i for i, name in enumerate(reversed(names))}
    return {f"{name}/{a}": f"x{numbers[name]}/{b}" for name in names for a, b in (("w", "kernel"), ("b", "bias"))}


def gated(x, training):
    return dense(dense(x, "linear") * tf.sigmoid(dense(x, "gate")), "out")


class Gated(Layers):
    def __init__(self):
        super().__init__("linear", "gate", "out")

    def call(self, x, training=False):
        layers = self.named
        return layers["out"](tf.sigmoid(layers["gate"](x)) * layers["linear"](x))


def attention(x, training):
    for i in range(2):
        query, key, value = (dense(x, f"{part}{i}") for part in "qkv")
        x = x + tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
    return x


class Attention(Layers):
    def __init__(self):
        super().__init__("q0", "k0", "v0", "q1", "k1", "v1")

    def call(self, x, training=False):
        for i in range(2):
            key, value, query = (self.named[f"{part}{i}"](x) for part in "kvq")
            weights = tf.nn.softmax(tf.einsum("btd,bsd->bst", key, query))
            x = x + tf.einsum("bst,btd->bsd", weights, value)
        return x


def masked_attention(x, training):
    """What hides positions depends on no variable, and the port computes it in a different way."""
    shown = tf.cast(x[:, None, :, 0] > 0, tf.float32)
    query, key, value = (dense(x, part) for part in "qkv")
    scores = tf.matmul(query, key, transpose_b=True) + (1 - shown) * -1e9
    return tf.matmul(tf.nn.softmax(scores), value)


class MaskedAttention(Layers):
    def __init__(self):
        super().__init__("q", "k", "v")

    def call(self, x, training=False):
        key, value, query = (self.named[part](x) for part in "kvq")
        scores = tf.where(x[:, :, None, 0] > 0, tf.einsum("bsd,btd->bst", key, query), -1e30)
        return tf.einsum("bst,bsd->btd", tf.nn.softmax(scores, axis=1), value)


def two_towers(x, training):
    def tower(name):
        return tf.tanh(dense(tf.tanh(dense(tf.tanh(dense(x, f"{name}0")), f"{name}1")), f"{name}2"))

    return tower("left") + 0.5 * tower("right")


class TwoTowers(Layers):
    def __init__(self):
        super().__init__(*(f"{name}{i}" for name in ("left", "right") for i in range(3)))

    def call(self, x, training=False):
        left = right = x
        for i in range(3):
            left = tf.tanh(self.named[f"left{i}"](left))
            right = tf.tanh(self.named[f"right{i}"](right))
        return 0.5 * right + left


def recurrence(x, training):
    """The body of a loop has no tensors that can be compared, nor the flow of the loop that the port unrolls."""
    inner, outer, last = (v1.get_variable(name, (6, 6)) for name in ("inner/w", "outer/w", "last/w"))
    biases = [v1.get_variable(name, 6) for name in ("inner/b", "outer/b", "last/b")]

    def step(i, state):
        return i + 1, tf.tanh(tf.matmul(state, inner) + biases[0] + tf.matmul(x[:, i], outer) * tf.sigmoid(biases[1]))

    _, state = tf.while_loop(lambda i, state: i < 3, step, (0, tf.zeros((2, 6))))
    return tf.matmul(state, last) + biases[2]


class Recurrence(Layers):
    def __init__(self):
        super().__init__("inner", "outer", "last")

    def call(self, x, training=False):
        state, outer = tf.zeros((2, 6)), self.named["outer"]
        for i in range(3):
            state = tf.tanh(tf.matmul(x[:, i], outer.kernel) * tf.sigmoid(outer.bias) + self.named["inner"](state))
        return self.named["last"](state)


def attention_of_two_heads(x, training):
    parts = (tf.reshape(dense(x, name), (2, 5, 2, 3)) for name in ("q", "k", "v"))
    query, key, value = (tf.transpose(part, (0, 2, 1, 3)) for part in parts)
    weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / 3**0.5)
    return dense(tf.reshape(tf.transpose(tf.matmul(weights, value), (0, 2, 1, 3)), (2, 5, 6)), "out")


class AttentionOfKeras(keras.Model):
    """Keras has an axis of heads in its kernels and biases."""

    def __init__(self):
        super().__init__(name="model")
        self.attention = keras.layers.MultiHeadAttention(2, 3, name="heads")

    def call(self, x, training=False):
        return self.attention(x, x)


def variables_match(migration):
    return validate(migration, checks=["variables-match"]).checks[0]


def pairs_in(details):
    namespace = {}
    exec(details[details.index("name_map =") :], namespace)
    return namespace["name_map"]


@pytest.mark.slow_except("gated")
@pytest.mark.parametrize(
    ("tf1", "port", "inputs", "names"),
    [
        (gated, Gated, VECTORS, ("linear", "gate", "out")),
        (attention, Attention, SEQUENCES, ("q0", "k0", "v0", "q1", "k1", "v1")),
        (masked_attention, MaskedAttention, SEQUENCES, ("q", "k", "v")),
        (two_towers, TwoTowers, VECTORS, tuple(f"{name}{i}" for name in ("left", "right") for i in range(3))),
        (recurrence, Recurrence, SEQUENCES, ("inner", "outer", "last")),
    ],
    ids=["gated", "attention", "masked-attention", "two-towers", "recurrence"],
)
def test_the_values_show_which_of_several_variables_is_which(tf1, port, inputs, names):
    found = variables_match(Migration(tf1=tf1, port=port, inputs=inputs))
    assert found.ok, found.details
    assert pairs_in(found.details) == expected(*names)


@pytest.mark.slow
def test_kernels_of_heads_are_paired_with_matrices():
    found = variables_match(Migration(tf1=attention_of_two_heads, port=AttentionOfKeras, inputs=SEQUENCES))
    assert found.ok, found.details
    parts = {"q": "query", "k": "key", "v": "value", "out": "attention_output"}
    assert pairs_in(found.details[: found.details.index("\nreshaped (7)")]) == {
        f"{name}/{a}": f"model/heads/{part}/{b}"
        for name, part in parts.items()
        for a, b in (("w", "kernel"), ("b", "bias"))
    }


@pytest.mark.slow
def test_a_wrong_pair_of_variables_that_are_used_alike_is_named():
    name_map = expected("linear", "gate", "out")
    name_map["linear/w"], name_map["gate/w"] = name_map["gate/w"], name_map["linear/w"]
    found = variables_match(Migration(tf1=gated, port=Gated, inputs=VECTORS, name_map=name_map))
    assert found.summary.startswith("swapped: "), found
    assert "'linear/w': 'x2/kernel',  # not 'x1/kernel'" in found.details
    assert "'linear/b'" not in found.details


@pytest.mark.slow
def test_values_before_a_fault_prove_pairs_and_bound_the_search():
    runs = []

    class Faulty(Attention):
        def __init__(self):
            runs.append(self)
            super().__init__()

        def call(self, x, training=False):
            return tf.nn.relu(super().call(x) + x)

    def tf1(x, training):
        return tf.tanh(attention(x, training) + x)

    found = variables_match(Migration(tf1=tf1, port=Faulty, inputs=SEQUENCES))
    assert found.ok, found.details
    assert pairs_in(found.details) == expected("q0", "k0", "v0", "q1", "k1", "v1")
    assert len(runs) < 40


@pytest.mark.slow
def test_a_fault_at_variables_that_are_used_alike_leaves_them_open():
    class Faulty(Gated):
        def call(self, x, training=False):
            layers = self.named
            return layers["out"](tf.tanh(layers["gate"](x)) * layers["linear"](x))

    found = variables_match(Migration(tf1=gated, port=Faulty, inputs=VECTORS))
    assert found.summary == "names of 6 variables differ, and the outputs do not show which variable is which"
    assert found.details.count("# order only") == 4


@pytest.mark.slow
def test_an_input_that_the_port_does_not_use_leaves_the_pairs_that_the_rest_of_the_flow_shows():
    def tf1(x, mask, training):
        return dense(tf.tanh(dense(tf.tanh(dense(x, "first")) * mask, "second")), "third")

    class Faulty(Layers):
        def __init__(self):
            super().__init__("first", "second", "third")

        def call(self, x, mask, training=False):
            layers = self.named
            return layers["third"](tf.tanh(layers["second"](tf.tanh(layers["first"](x)))))

    mask = (VECTORS[:, :1] > 0).astype(np.float32)
    found = variables_match(Migration(tf1=tf1, port=Faulty, inputs=(VECTORS, mask)))
    assert found.ok, found.details
    assert pairs_in(found.details) == expected("first", "second", "third")


def test_the_flow_through_the_iterations_of_a_loop_shows_the_pairs_of_a_faulty_port():
    def tf1(x, training):
        state, read = tf.zeros((2, 6)), []
        for i in range(3):
            with v1.variable_scope("", reuse=v1.AUTO_REUSE):
                state = tf.tanh(dense(state + x[:, i], "step"))
                read.append(tf.sigmoid(dense(state, "read")))
        return tf.stack(read, 1)

    class Faulty(Layers):
        def __init__(self):
            super().__init__("step", "read")

        def call(self, x, training=False):
            def step(i, state, read):
                state = tf.tanh(self.named["step"](state + tf.sin(x[:, i])))
                return i + 1, state, read.write(i, tf.sigmoid(self.named["read"](state)))

            start = 0, tf.zeros((2, 6)), tf.TensorArray(tf.float32, 3, element_shape=(2, 6))
            return tf.transpose(tf.while_loop(lambda i, *_: i < 3, step, start)[2].stack(), (1, 0, 2))

    found = variables_match(Migration(tf1=tf1, port=Faulty, inputs=SEQUENCES))
    assert found.ok, found.details
    assert pairs_in(found.details) == expected("step", "read")


@pytest.mark.slow
def test_clear_names_decide_between_variables_that_are_used_alike():
    class Faulty(keras.Model):
        def __init__(self):
            super().__init__(name="model")
            self.gate, self.linear, self.out = (keras.layers.Dense(6, name=f"my_{name}") for name in GATED)

        def call(self, x, training=False):
            return self.out(tf.tanh(self.gate(x)) * self.linear(x))

    found = variables_match(Migration(tf1=gated, port=Faulty, inputs=VECTORS))
    assert found.ok
    assert found.summary.endswith(
        "names of 6 variables differ, but only one pairing fits how both programs use and call them"
    )
    names = {f"{name}/{a}": f"model/my_{name}/{b}" for name in GATED for a, b in (("w", "kernel"), ("b", "bias"))}
    assert pairs_in(found.details) == names


@pytest.mark.slow
def test_a_search_that_is_given_up_says_so():
    def chain(x, training):
        layers = [(v1.get_variable(f"w{i}/w", (6, 6)), v1.get_variable(f"w{i}/b", 6)) for i in range(5)]

        def step(i, state):
            for kernel, bias in layers:
                state = tf.tanh(tf.matmul(state, kernel) + bias)
            return i + 1, state + 0.0 * tf.random.shuffle(state)  # so that the loop has no iterations of its own

        return tf.while_loop(lambda i, state: i < 3, step, (0, x))[1]

    class Faulty(Layers):
        def __init__(self):
            super().__init__(*(f"w{i}" for i in range(5)))

        def call(self, x, training=False):
            for layer in 3 * list(self.named.values()):
                x = tf.sin(layer(x))  # the fault: a different activation
            return x

    found = variables_match(Migration(tf1=chain, port=Faulty, inputs=VECTORS))
    assert not found.ok
    assert "which variable is which: the search stopped after 24 runs of the port without progress" in found.summary


def with_weights_of_losses(x, training):
    weights = [v1.get_variable(name, [], initializer=v1.constant_initializer(each)) for name, each in LOSSES]
    return {"scores": x @ v1.get_variable("scores", (4, 3)), "first": weights[0], "second": weights[1]}


LOSSES = (("first", -0.5), ("second", 0.5))


class WithWeightsOfLosses(keras.Model):
    """It makes the weights in a different order, under names that say nothing, and returns them."""

    def __init__(self):
        super().__init__()
        self.scores = keras.layers.Dense(3, use_bias=False)
        self.a, self.b = (
            self.add_weight(shape=(), initializer=keras.initializers.Constant(each), name=name)
            for name, each in (("a", 0.5), ("b", -0.5))
        )

    def call(self, x, training=False):
        return {"scores": self.scores(x), "first": self.b, "second": self.a}


def test_variables_that_are_outputs_are_paired_by_these():
    inputs = np.ones((2, 4), np.float32)
    migration = Migration(tf1=with_weights_of_losses, port=WithWeightsOfLosses, inputs=inputs)
    report = validate(migration, checks=["variables-match", "initializers-match", "random-inference"])
    assert report.ok, report


def normalized(x, training):
    for number in range(2):
        with v1.variable_scope(f"block{number}"):
            x = dense(tf.tanh(x), "dense")
            x = tf.nn.batch_normalization(
                x,
                v1.get_variable("moving_mean", 6, trainable=False, initializer=tf.zeros_initializer()),
                v1.get_variable("moving_variance", 6, trainable=False, initializer=tf.ones_initializer()),
                v1.get_variable("beta", 6, initializer=tf.zeros_initializer()),
                v1.get_variable("gamma", 6, initializer=tf.ones_initializer()),
                1e-3,
            )
    return x


class NormalizedAsInTorch(tf.Module):
    """Calls the scale of a normalization its weight, as PyTorch does, which says nothing about a vector."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation
        self.blocks = []
        for number in range(2):
            names = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
            block = {
                name: tf.Variable(
                    tf.fill([6], value), trainable=name in ("weight", "bias"), name=f"norm{number}/{name}"
                )
                for name, value in names.items()
            }
            block["kernel"] = tf.Variable(tf.zeros((6, 6)), name=f"linear{number}/weight")
            block["shift"] = tf.Variable(tf.zeros(6), name=f"linear{number}/bias")
            self.blocks.append(block)

    def __call__(self, x, training=False):
        for block in self.blocks:
            x = self.activation(x) @ block["kernel"] + block["shift"]
            scaled = (x - block["running_mean"]) * tf.math.rsqrt(block["running_var"] + 1e-3)
            x = scaled * block["weight"] + block["bias"]
        return x


@pytest.mark.slow_except("sound")
@pytest.mark.parametrize("activation", [tf.tanh, tf.sin], ids=["sound", "fault"])
def test_a_fault_does_not_pair_a_mean_with_a_shift(activation):
    migration = Migration(tf1=normalized, port=lambda: NormalizedAsInTorch(activation), inputs=VECTORS)
    assert validate(migration, checks=["variables-match"]).ok
