"""A port that gives an array a different shape, with the elements in TF1's order: heads, groups, pieces and images."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detrand import Migration, validate
from detrand.packages import is_installed

ops, v1 = keras.ops, tf.compat.v1
needs_torch = pytest.mark.skipif(not is_installed("torch"), reason="PyTorch is not installed")
SEQUENCES = np.random.default_rng(0).normal(size=(3, 6, 8)).astype(np.float32)
ROWS = SEQUENCES[:, 0]


def dense(x, count, name):
    return tf.tensordot(x, v1.get_variable(f"{name}/kernel", (x.shape[-1], count)), 1)


def attention(x, training):
    def heads(name):
        return tf.transpose(tf.reshape(dense(x, 8, name), [-1, 6, 2, 4]), [0, 2, 1, 3])

    queries, keys, values = map(heads, ("queries", "keys", "values"))
    context = tf.matmul(tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / 2.0), values)
    return dense(tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, 6, 8]), 4, "out")


def as_tf1(x):
    return ops.transpose(ops.reshape(x, (-1, 6, 2, 4)), (0, 2, 1, 3))


def at_once(x):
    return ops.reshape(x, (-1, 2, 6, 4))


def interleaved(x):
    return ops.transpose(ops.reshape(x, (-1, 6, 4, 2)), (0, 3, 1, 2))


class Attention(keras.Model):
    """An attention whose queries, keys and values are split by functions."""

    def __init__(self, *splits):
        super().__init__()
        self.splits = splits
        names = ("queries", "keys", "values", "out")
        self.parts = [keras.layers.Dense(8 if name != "out" else 4, use_bias=False, name=name) for name in names]

    def call(self, x, training=False):
        queries, keys, values = (split(layer(x)) for split, layer in zip(self.splits, self.parts[:3], strict=True))
        shares = ops.softmax(ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2))) / 2.0)
        context = ops.transpose(ops.matmul(shares, values), (0, 2, 1, 3))
        return self.parts[3](ops.reshape(context, (-1, 6, 8)))


def findings(tf1, port, inputs=SEQUENCES):
    migration = Migration(tf1=tf1, port=port, inputs=inputs)
    return validate(migration, checks=["constant-weights", "random-inference"]).findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("splits", "shape"),
    [
        ((at_once, at_once, at_once), (3, 2, 6, 4)),
        ((as_tf1, as_tf1, at_once), (3, 2, 6, 4)),
        ((interleaved, interleaved, interleaved), (3, 6, 4, 2)),
    ],
    ids=["at once", "values", "interleaved"],
)
def test_heads_that_are_split_differently_are_one_finding(splits, shape):
    (finding,) = findings(attention, lambda: Attention(*splits))
    assert finding.title == f"shape of an array differs: (3, 6, 2, 4) (TF1), {shape} (port)"
    assert finding.remedy == "reshape the array to (3, 6, 2, 4) in the port, and then transpose it to (0, 2, 1, 3)"
    assert finding.confirmed


def test_heads_that_are_split_alike_are_none():
    assert not findings(attention, lambda: Attention(as_tf1, as_tf1, as_tf1))


def masked(x, training):
    mask = tf.transpose(tf.reshape(x > 0, [-1, 6, 2, 4]), [0, 2, 1, 3])
    return tf.cast(mask, tf.float32) * v1.get_variable("scale", (2, 6, 4), initializer=v1.ones_initializer())


class Masked(keras.Model):
    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(2, 6, 4), initializer="ones", name="scale")

    def call(self, x, training=False):
        return ops.cast(ops.reshape(x > 0, (-1, 2, 6, 4)), "float32") * self.scale


@pytest.mark.slow
def test_a_mask_has_a_shape_too():
    (finding,) = findings(masked, Masked)
    assert finding.title == "shape of an array differs: (3, 6, 2, 4) (TF1), (3, 2, 6, 4) (port)"


def maxout(x, training):
    return dense(tf.reduce_max(tf.reshape(dense(x, 16, "hidden"), [-1, 8, 2]), 2), 4, "out")


class Maxout(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(16, use_bias=False, name="hidden")
        self.out = keras.layers.Dense(4, use_bias=False, name="out")

    def call(self, x, training=False):
        return self.out(ops.max(ops.reshape(self.hidden(x), (-1, 2, 8)), 1))


@pytest.mark.slow
def test_pieces_of_a_maxout_that_are_others_have_another_shape():
    (finding,) = findings(maxout, Maxout, ROWS)
    assert finding.title == "shape of an array differs: (3, 8, 2) (TF1), (3, 2, 8) (port)"
    assert finding.remedy == "reshape the array to (3, 8, 2) in the port, and then use TF1's axis: 2"


def shuffled(x, training):
    kernel = v1.get_variable("first/kernel", (3, 3, 3, 8))
    groups = tf.reshape(tf.nn.conv2d(x, kernel, 1, "SAME"), [-1, 6, 6, 2, 4])
    mixed = tf.reshape(tf.transpose(groups, [0, 1, 2, 4, 3]), [-1, 6, 6, 8])
    return tf.nn.conv2d(mixed, v1.get_variable("second/kernel", (3, 3, 8, 4)), 1, "SAME")


def shuffles_in_torch(groups):
    import torch

    class Shuffles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 3, padding="same", bias=False)
            self.second = torch.nn.Conv2d(8, 4, 3, padding="same", bias=False)

        def forward(self, x):
            hidden = self.first(x.permute(0, 3, 1, 2))
            mixed = hidden.view(-1, groups, 8 // groups, 6, 6).transpose(1, 2).reshape(-1, 8, 6, 6)
            return self.second(mixed).permute(0, 2, 3, 1)

    return Shuffles


@needs_torch
@pytest.mark.slow
def test_groups_of_channels_of_another_size_have_another_shape():
    images = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
    assert not findings(shuffled, shuffles_in_torch(2), images)
    (finding,) = findings(shuffled, shuffles_in_torch(4), images)
    assert finding.title == "shape of an array differs: (2, 6, 6, 2, 4) (TF1), (2, 6, 6, 4, 2) (port)"


def blocks(x, order):
    x = ops.transpose(ops.reshape(x, (-1, 3, 2, 3, 2, 3)), (0, 1, 3, *order))
    return ops.reshape(x, (-1, 3, 3, 12))


def pixels(x, order):
    x = ops.transpose(ops.reshape(x, (-1, 3, 3, 2, 2, 3)), (0, 1, *order))
    return ops.reshape(x, (-1, 6, 6, 3))


@pytest.mark.parametrize(
    "function, by_hand, before, order, other",
    [
        (tf.nn.space_to_depth, blocks, (0, 1, 3), (2, 4, 5), (4, 2, 5)),
        (tf.nn.depth_to_space, pixels, (0, 1), (3, 2, 4, 5), (4, 2, 3, 5)),
    ],
    ids=["space to depth", "depth to space"],
)
def test_a_transposition_by_hand_has_an_order_of_axes(function, by_hand, before, order, other):
    shape = (2, 6, 6, 3) if by_hand is blocks else (2, 3, 3, 12)
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def tf1(x, training):
        return dense(function(x, 2), 2, "out")

    def port(axes):
        return lambda: keras.Sequential(
            [
                keras.layers.Lambda(lambda x: by_hand(x, axes)),
                keras.layers.Dense(2, use_bias=False, name="out"),
            ]
        )

    assert not findings(tf1, port(order), images)
    (finding,) = findings(tf1, port(other), images)
    assert finding.title == f"order of axes differs: {(*before, *order)} (TF1), {(*before, *other)} (port)"


def generated(x, training):
    image = tf.reshape(tf.nn.relu(dense(x, 72, "hidden")), [-1, 3, 3, 8])
    return tf.nn.conv2d(image, v1.get_variable("out/kernel", (3, 3, 8, 2)), 1, "SAME")


@needs_torch
@pytest.mark.slow
def test_an_image_with_its_channels_first_has_an_order_of_axes():
    import torch

    class Generates(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = torch.nn.Linear(8, 72, bias=False)
            self.out = torch.nn.Conv2d(8, 2, 3, padding="same", bias=False)

        def forward(self, x):
            return self.out(torch.relu(self.hidden(x)).view(-1, 8, 3, 3)).permute(0, 2, 3, 1)

    (finding,) = findings(generated, Generates, ROWS)
    orders = "(0, 1, 2, 3) (TF1), (0, 3, 1, 2) (port)"
    assert finding.title == f"order of the axes into which a flat axis is split differs: {orders}"
    assert "channels last" in finding.remedy
