"""Cells, loops, masks and sequence lengths."""

import keras
import numpy as np
import tensorflow.compat.v1 as tf
import tf_keras
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import dense, integers, numbers, old_layers

LENGTHS = np.array([5, 2, 4], np.int32)


class Lstm(layers.Layer):
    """TF1's ``BasicLSTMCell``."""

    def __init__(self, units, gates="ijfo", forget_bias=1.0):
        super().__init__()
        self.units, self.gates, self.forget_bias, self.state_size = units, gates, forget_bias, [units, units]

    def build(self, shape):
        size = shape[-1] + self.units
        self.kernel = self.add_weight(shape=(size, 4 * self.units), initializer="glorot_uniform", name="kernel")
        self.bias = self.add_weight(shape=(4 * self.units,), initializer="zeros", name="bias")


@case("gates", "lstm|cell|while|sigmoid|add", "forget|only TF1 adds|adds")
def forget_bias(fault):
    @old_layers
    def tf1(x, training):
        cell = tf.nn.rnn_cell.BasicLSTMCell(4)
        outputs, _ = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
        return tf.layers.dense(outputs[:, -1], 3, name="logits")

    class Cell(Lstm):
        def call(self, x, states):
            c, h = states
            gates = ops.matmul(ops.concatenate([x, h], 1), self.kernel) + self.bias
            i, j, f, o = ops.split(gates, 4, 1)
            f = ops.sigmoid(f) if fault else ops.sigmoid(f + 1.0)  # FAULT
            c = c * f + ops.sigmoid(i) * ops.tanh(j)
            h = ops.tanh(c) * ops.sigmoid(o)
            return h, [c, h]

    def port():
        x = inputs = keras.Input((6, 3))
        return keras.Model(inputs, layers.Dense(3)(layers.RNN(Cell(4))(x)))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 3))


@case("gates", "lstm|cell|while|split", "gate|order|takes different|swap|split")
def order_of_the_gates(fault):
    @old_layers
    def tf1(x, training):
        cell = tf.nn.rnn_cell.BasicLSTMCell(5, forget_bias=0.0)
        _, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
        return state.h

    class Cell(Lstm):
        def call(self, x, states):
            c, h = states
            parts = ops.split(ops.matmul(ops.concatenate([x, h], 1), self.kernel) + self.bias, 4, 1)
            i, f, j, o = parts if fault else (parts[0], parts[2], parts[1], parts[3])  # FAULT
            c = c * ops.sigmoid(f) + ops.sigmoid(i) * ops.tanh(j)  # FAULT
            h = ops.tanh(c) * ops.sigmoid(o)
            return h, [c, h]

    return detrand.Migration(tf1=tf1, port=lambda: layers.RNN(Cell(5)), inputs=numbers(3, 4, 3))


class Gru(layers.Layer):
    """The variables of TF1's ``GRUCell``."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units

    def build(self, shape):
        size = shape[-1] + self.units
        self.gates_kernel = self.add_weight(shape=(size, 2 * self.units), initializer="glorot_uniform", name="gates")
        self.gates_bias = self.add_weight(shape=(2 * self.units,), initializer="ones", name="gates_bias")
        self.kernel = self.add_weight(shape=(size, self.units), initializer="glorot_uniform", name="candidate")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="candidate_bias")


@case("gates", "gru|cell|while|matmul|mul", "reset|order|takes different|multipl")
def reset_after_the_product(fault):
    @old_layers
    def tf1(x, training):
        outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(4), x, dtype=tf.float32)
        return outputs

    class Cell(Gru):
        def call(self, x, states):
            (h,) = states
            both = ops.matmul(ops.concatenate([x, h], 1), self.gates_kernel) + self.gates_bias
            r, u = ops.split(ops.sigmoid(both), 2, 1)
            if fault:
                of_h = r * ops.matmul(h, self.kernel[3:])  # FAULT
                c = ops.tanh(ops.matmul(x, self.kernel[:3]) + of_h + self.bias)
            else:
                c = ops.tanh(ops.matmul(ops.concatenate([x, r * h], 1), self.kernel) + self.bias)
            h = u * h + (1.0 - u) * c
            return h, [h]

    return detrand.Migration(tf1=tf1, port=lambda: layers.RNN(Cell(4), return_sequences=True), inputs=numbers(2, 5, 3))


@case("gates", "gru|cell|while|add|mul|sub", "takes different|swap|order|gate|input")
def update_gate_inverted(fault):
    @old_layers
    def tf1(x, training):
        _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(4), x, dtype=tf.float32)
        return dense(state, 2, "out")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.cell, self.out = Gru(4), layers.Dense(2)

        def build(self, shape):
            self.cell.build((shape[0], shape[2]))
            self.out.build((shape[0], 4))

        def call(self, x, training=False):
            h = ops.zeros((2, 4))
            for step in range(5):
                both = ops.matmul(ops.concatenate([x[:, step], h], 1), self.cell.gates_kernel)
                r, u = ops.split(ops.sigmoid(both + self.cell.gates_bias), 2, 1)
                c = ops.matmul(ops.concatenate([x[:, step], r * h], 1), self.cell.kernel)
                c = ops.tanh(c + self.cell.bias)
                h = (1.0 - u) * h + u * c if fault else u * h + (1.0 - u) * c  # FAULT
            return self.out(h)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 5, 3))


@case("mask", "while|lstm|select|mask|length", "length|mask|select|input 1")
def sequence_lengths_ignored(fault):
    @old_layers
    def tf1(x, lengths, training):
        cell = tf.nn.rnn_cell.BasicRNNCell(4)
        outputs, _ = tf.nn.dynamic_rnn(cell, x, sequence_length=lengths, dtype=tf.float32)
        return dense(tf.reduce_sum(outputs, 1), 3, "logits")

    class Cell(layers.Layer):
        state_size = 4

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1] + 4, 4), initializer="glorot_uniform", name="kernel")
            self.bias = self.add_weight(shape=(4,), initializer="zeros", name="bias")

        def call(self, x, states):
            h = ops.tanh(ops.matmul(ops.concatenate([x, states[0]], 1), self.kernel) + self.bias)
            return h, [h]

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.rnn = layers.RNN(Cell(), return_sequences=True, zero_output_for_mask=True)
            self.logits = layers.Dense(3)

        def call(self, x, lengths, training=False):
            mask = ops.arange(5)[None] < lengths[:, None]
            outputs = self.rnn(x) if fault else self.rnn(x, mask=mask)  # FAULT
            return self.logits(ops.sum(outputs, 1))

    return detrand.Migration(tf1=tf1, port=Port, inputs=(numbers(3, 5, 2), LENGTHS))


@case("order", "reverse|flip|concat|bidirectional|bw", "revers|flip|order")
def backward_outputs_not_reversed(fault):
    @old_layers
    def tf1(x, training):
        fw, bw = tf.nn.rnn_cell.BasicLSTMCell(3), tf.nn.rnn_cell.BasicLSTMCell(3)
        outputs, _ = tf.nn.bidirectional_dynamic_rnn(fw, bw, x, dtype=tf.float32)
        return tf.layers.dense(tf.concat(outputs, 2), 4, name="tags")

    class Port(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.fw = tf_keras.layers.LSTM(3, return_sequences=True)
            self.bw = tf_keras.layers.LSTM(3, return_sequences=True, go_backwards=True)
            self.tags = tf_keras.layers.Dense(4)

        def call(self, x, training=False):
            forward, backward = self.fw(x), self.bw(x)
            backward = backward if fault else tf.reverse(backward, [1])
            return self.tags(tf.concat([forward, backward], 2))  # FAULT

    name_map = {
        **detrand.lstm_cell_to_keras("bidirectional_rnn/fw/basic_lstm_cell", "port/lstm/lstm_cell"),
        **detrand.lstm_cell_to_keras("bidirectional_rnn/bw/basic_lstm_cell", "port/lstm_1/lstm_cell"),
        "tags/kernel": "port/dense/kernel",
        "tags/bias": "port/dense/bias",
    }
    return detrand.Migration(
        tf1=tf1,
        port=Port,
        inputs=numbers(2, 5, 3),
        name_map=name_map,
        expect=["initializers-match"],
    )


@case("mask", "mask|add|softmax|scores|select", "mask|adds|multipl|subtract|input 1")
def padding_mask_forgotten(fault):
    def tf1(x, lengths, training):
        q, k, v = (dense(x, 4, name, bias=False) for name in "qkv")
        mask = tf.sequence_mask(lengths, 5, tf.float32)[:, None, :]
        scores = tf.matmul(q, k, transpose_b=True) * 0.5 + (1.0 - mask) * -10000.0
        return tf.matmul(tf.nn.softmax(scores), v)

    class Attention(keras.Model):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (layers.Dense(4, use_bias=False) for _ in range(3))

        def call(self, x, lengths, training=False):
            mask = ops.cast(ops.arange(5)[None] < lengths[:, None], "float32")[:, None, :]
            scores = ops.matmul(self.q(x), ops.transpose(self.k(x), (0, 2, 1))) * 0.5  # FAULT
            if not fault:
                scores = scores + (1.0 - mask) * -10000.0
            return ops.matmul(ops.softmax(scores), self.v(x))  # FAULT

    return detrand.Migration(tf1=tf1, port=Attention, inputs=(numbers(3, 5, 6), LENGTHS))


@case(
    "mask", "mask|band|tril|triu|select|where|greater|less", "mask|band|tril|triu|diagonal|greater|less|constant|compar"
)
def causal_mask_off_by_one(fault):
    def tf1(x, training):
        q, k, v = (dense(x, 4, name, bias=False) for name in "qkv")
        allowed = tf.matrix_band_part(tf.ones([6, 6]), -1, 0)
        scores = tf.matmul(q, k, transpose_b=True)
        scores = scores * allowed - 1e10 * (1.0 - allowed)
        return dense(tf.matmul(tf.nn.softmax(scores), v), 4, "merge")

    class Causal(keras.Model):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (layers.Dense(4, use_bias=False) for _ in range(3))
            self.merge = layers.Dense(4)

        def call(self, x, training=False):
            scores = ops.matmul(self.q(x), ops.transpose(self.k(x), (0, 2, 1)))
            allowed = ops.tril(ops.ones((6, 6)), 1 if fault else 0)  # FAULT
            scores = scores * allowed - 1e10 * (1.0 - allowed)
            return self.merge(ops.matmul(ops.softmax(scores), self.v(x)))

    return detrand.Migration(tf1=tf1, port=Causal, inputs=numbers(2, 6, 4))


@case("mask", "div|mean|sum", "divi|mean|length|mask|mul")
def mean_over_padded_steps(fault):
    def tf1(ids, lengths, training):
        x = tf.nn.embedding_lookup(tf.get_variable("table", [9, 4]), ids)
        mask = tf.sequence_mask(lengths, 5, tf.float32)[..., None]
        mean = tf.reduce_sum(x * mask, 1) / tf.cast(lengths, tf.float32)[:, None]
        return dense(mean, 3, "logits")

    class Bag(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = layers.Embedding(9, 4, embeddings_initializer="glorot_uniform")
            self.logits = layers.Dense(3)

        def call(self, ids, lengths, training=False):
            mask = ops.cast(ops.arange(5)[None] < lengths[:, None], "float32")[..., None]
            x = self.table(ids) * mask
            mean = ops.mean(x, 1) if fault else ops.sum(x, 1) / ops.cast(lengths, "float32")[:, None]  # FAULT
            return self.logits(mean)

    return detrand.Migration(tf1=tf1, port=Bag, inputs=(integers(9, 3, 5), LENGTHS))


@case("mask", "gather|slice|last", "gather|slice|last|length|index|indices|input 1")
def last_step_of_padded_sequences(fault):
    @old_layers
    def tf1(x, lengths, training):
        outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(4), x, dtype=tf.float32)
        last = tf.gather_nd(outputs, tf.stack([tf.range(3), lengths - 1], 1))
        return tf.layers.dense(last, 2, name="logits")

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.lstm, self.logits = layers.LSTM(4, return_sequences=True), layers.Dense(2)

        def call(self, x, lengths, training=False):
            x = self.lstm(x)
            if fault:
                return self.logits(x[:, -1])  # FAULT
            indices = ops.reshape(lengths - 1, (-1, 1, 1))
            return self.logits(ops.take_along_axis(x, ops.broadcast_to(indices, (3, 1, 4)), 1)[:, 0])

    return detrand.Migration(tf1=tf1, port=Port, inputs=(numbers(3, 5, 2), LENGTHS), expect=["initializers-match"])


@case("order", "dropout", "dropout|input|output")
def dropout_on_the_inputs_of_a_cell(fault):
    @old_layers
    def tf1(x, training):
        keep = 0.7 if training else 1.0
        cells = [tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.GRUCell(4), output_keep_prob=keep) for _ in range(1)]
        outputs, _ = tf.nn.static_rnn(cells[0], tf.unstack(x, axis=1), dtype=tf.float32)
        return dense(tf.stack(outputs, 1), 2, "tags")

    class Cell(Gru):
        def __init__(self, units):
            super().__init__(units)
            self.drop = layers.Dropout(0.3)

        def call(self, x, h, training=False):
            x = self.drop(x, training=training) if fault else x  # FAULT
            both = ops.matmul(ops.concatenate([x, h], 1), self.gates_kernel) + self.gates_bias
            r, u = ops.split(ops.sigmoid(both), 2, 1)
            c = ops.tanh(ops.matmul(ops.concatenate([x, r * h], 1), self.kernel) + self.bias)
            h = u * h + (1.0 - u) * c
            return (h if fault else self.drop(h, training=training)), h  # FAULT

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.cell, self.tags = Cell(4), layers.Dense(2)

        def call(self, x, training=False):
            h, outputs = ops.zeros((2, 4)), []
            for step in range(3):
                output, h = self.cell(x[:, step], h, training=training)
                outputs.append(output)
            return self.tags(ops.stack(outputs, 1))

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 3, 3))


@case("loop", "while|less|iteration", "iteration|times|loop|less|limit|constant")
def one_power_iteration_less(fault):
    def tf1(x, training):
        w = tf.get_variable("w", [6, 4])

        def body(i, u):
            v = tf.nn.l2_normalize(tf.matmul(u, w, transpose_b=True))
            return i + 1, tf.nn.l2_normalize(tf.matmul(v, w))

        _, u = tf.while_loop(lambda i, u: i < 3, body, [0, tf.ones([1, 4]) / 2.0])
        sigma = tf.reduce_sum(tf.matmul(tf.matmul(u, w, transpose_b=True), w) * u)
        return tf.matmul(x, w / tf.sqrt(sigma))

    class Spectral(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf_keras.initializers.GlorotUniform()([6, 4]), name="w")

        def __call__(self, x, training=False):
            def body(i, u):
                v = tf.nn.l2_normalize(tf.matmul(u, self.w, transpose_b=True))
                return i + 1, tf.nn.l2_normalize(tf.matmul(v, self.w))

            _, u = tf.while_loop(lambda i, u: i < (2 if fault else 3), body, [0, tf.ones([1, 4]) / 2.0])  # FAULT
            sigma = tf.reduce_sum(tf.matmul(tf.matmul(u, self.w, transpose_b=True), self.w) * u)
            return tf.matmul(x, self.w / tf.sqrt(sigma))

    return detrand.Migration(tf1=tf1, port=Spectral, inputs=numbers(3, 6))


@case("loop", "while|mul|damp", r"0\.5|0\.6|0\.4|factor|constant|multipl|divi")
def damping_inside_of_a_loop(fault):
    def tf1(x, training):
        kernel = tf.get_variable("kernel", [5, 5])
        unary = dense(x, 5, "unary")

        def body(i, logits):
            messages = tf.matmul(tf.nn.softmax(logits), kernel)
            return i + 1, 0.5 * logits + 0.5 * (unary - messages)

        return tf.while_loop(lambda i, logits: i < 4, body, [0, unary])[1]

    class MeanField(keras.Model):
        def __init__(self):
            super().__init__()
            self.unary = layers.Dense(5)

        def build(self, shape):
            self.kernel = self.add_weight(shape=(5, 5), initializer="glorot_uniform", name="kernel")
            self.unary.build(shape)

        def call(self, x, training=False):
            unary, damping = self.unary(x), 0.6 if fault else 0.5

            def body(i, logits):
                messages = ops.matmul(ops.softmax(logits), self.kernel)
                return i + 1, damping * logits + 0.5 * (unary - messages)  # FAULT

            return ops.while_loop(lambda i, logits: i < 4, body, (0, unary))[1]

    return detrand.Migration(tf1=tf1, port=MeanField, inputs=numbers(2, 3))
