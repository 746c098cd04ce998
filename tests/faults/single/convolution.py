"""Convolutions, pooling, resizing and the arrangement of pixels."""

import keras
import tensorflow.compat.v1 as tf
import tf_keras
import tf_slim as slim
from keras import layers, ops

import detrand
from tests.faults.case import case
from tests.faults.tf1 import conv, dense, numbers, old_layers, zeros


@case("padding", "conv|pad", "pad")
def fixed_padding_of_a_resnet(fault):
    def conv_same(x, channels, name):
        x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
        return conv(x, channels, 3, name, tf.nn.relu, strides=2, padding="VALID")

    def tf1(x, training):
        x = conv_same(conv(x, 4, 3, "conv0", tf.nn.relu), 6, "conv1")
        return dense(tf.reduce_mean(conv(x, 6, 1, "conv2"), [1, 2]), 3, "logits")

    def port():
        x = inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        x = x if fault else layers.ZeroPadding2D(1)(x)
        x = layers.Conv2D(6, 3, 2, padding="same" if fault else "valid", activation="relu")(x)  # FAULT
        x = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 1)(x))
        return keras.Model(inputs, layers.Dense(3)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


@case("stride", "conv|reduce", "stride")
def stride_of_the_bottleneck(fault):
    @old_layers
    def tf1(x, training):
        with slim.arg_scope([slim.conv2d], padding="SAME"):
            y = slim.conv2d(x, 4, 1, stride=2, scope="reduce")
            y = slim.conv2d(y, 4, 3, scope="spatial")
            y = slim.conv2d(y, 8, 1, activation_fn=None, scope="expand")
            shortcut = slim.conv2d(x, 8, 1, stride=2, activation_fn=None, scope="shortcut")
        return tf.nn.relu(y + shortcut)

    def port():
        inputs = keras.Input((8, 8, 4))
        y = layers.Conv2D(4, 1, 1 if fault else 2, activation="relu")(inputs)  # FAULT
        y = layers.Conv2D(4, 3, 2 if fault else 1, padding="same", activation="relu")(y)  # FAULT
        y = layers.Conv2D(8, 1)(y)
        shortcut = layers.Conv2D(8, 1, 2)(inputs)
        return keras.Model(inputs, layers.ReLU()(layers.Add()([y, shortcut])))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 4))


@case("dilation", "conv|context", "dilat|SpaceToBatch")
def dilation_of_a_context_module(fault):
    @old_layers
    def tf1(x, training):
        for i, rate in enumerate([1, 2, 4]):
            x = tf.layers.conv2d(x, 4, 3, padding="same", dilation_rate=rate, activation=tf.nn.relu, name=f"ctx{i}")
        return tf.layers.conv2d(x, 2, 1, name="classes")

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.Conv2D(4, 3, padding="same", dilation_rate=2, activation="relu"),
                layers.Conv2D(4, 3, padding="same", dilation_rate=2 if fault else 4, activation="relu"),  # FAULT
                layers.Conv2D(2, 1),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 12, 12, 2))


@case("padding", "transpose|crop|slice", "crop|slice|offset|begin")
def crop_after_a_transposed_convolution(fault):
    def tf1(x, training):
        x = tf.nn.relu(conv(x, 4, 3, "encode", strides=2))
        w = tf.get_variable("decode/filter", [4, 4, 2, 4])
        x = tf.nn.conv2d_transpose(x, w, [tf.shape(x)[0], 8, 8, 2], [1, 2, 2, 1], "SAME")
        return tf.nn.sigmoid(tf.nn.bias_add(x, zeros("decode/b", [2])))

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.encode = layers.Conv2D(4, 3, 2, padding="same", activation="relu")
            self.decode = layers.Conv2DTranspose(2, 4, 2, padding="valid")

        def call(self, x, training=False):
            x = self.decode(self.encode(x))
            x = x[:, :8, :8] if fault else x[:, 1:9, 1:9]  # FAULT
            return ops.sigmoid(x)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 8, 8, 3))


@case("padding", "conv|pad", "pad|causal")
def causal_convolution(fault):
    def tf1(x, training):
        for i, rate in enumerate([1, 2]):
            w = tf.get_variable(f"layer{i}/w", [3, 4, 4])
            padded = tf.pad(x, [[0, 0], [2 * rate, 0], [0, 0]])
            x = x + tf.tanh(tf.nn.convolution(padded, w, padding="VALID", dilation_rate=[rate]))
        return dense(x, 5, "logits")

    def port():
        x = inputs = keras.Input((10, 4))
        y = layers.Conv1D(4, 3, padding="causal", activation="tanh", use_bias=False)(x)
        x = layers.Add()([x, y])
        padding = "same" if fault else "causal"
        y = layers.Conv1D(4, 3, padding=padding, dilation_rate=2, activation="tanh", use_bias=False)(x)  # FAULT
        x = layers.Add()([x, y])
        return keras.Model(inputs, layers.Dense(5)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 10, 4))


@case("pooling", "pool", "avg|average|max.?pool")
def average_pool_of_an_inception_branch(fault):
    def tf1(x, training):
        x = tf.nn.max_pool2d(conv(x, 4, 3, "stem", tf.nn.relu), 3, 2, "VALID")
        first = conv(x, 3, 1, "b0", tf.nn.relu)
        second = conv(tf.nn.avg_pool2d(x, 3, 1, "SAME"), 3, 1, "b1", tf.nn.relu)
        return dense(tf.reduce_mean(tf.concat([first, second], 3), [1, 2]), 2, "logits")

    def port():
        x = inputs = tf_keras.Input((11, 11, 2))
        x = tf_keras.layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        x = tf_keras.layers.MaxPooling2D(3, 2)(x)
        first = tf_keras.layers.Conv2D(3, 1, activation="relu")(x)
        pool = tf_keras.layers.MaxPooling2D if fault else tf_keras.layers.AveragePooling2D
        second = pool(3, 1, padding="same")(x)  # FAULT
        second = tf_keras.layers.Conv2D(3, 1, activation="relu")(second)
        x = tf_keras.layers.GlobalAveragePooling2D()(tf_keras.layers.Concatenate()([first, second]))
        return tf_keras.Model(inputs, tf_keras.layers.Dense(2)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 11, 11, 2))


@case("padding", "pool", "pad")
def padding_of_a_max_pool(fault):
    @old_layers
    def tf1(x, training):
        x = tf.layers.conv2d(x, 4, 3, activation=tf.nn.relu, name="c1")
        x = tf.layers.max_pooling2d(x, 3, 2, padding="same", name="p1")
        x = tf.layers.conv2d(x, 4, 3, padding="same", name="c2")
        return tf.reduce_max(x, [1, 2])

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(3, 2, padding="valid" if fault else "same"),  # FAULT
                layers.Conv2D(4, 3, padding="same"),
                layers.GlobalMaxPooling2D(),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 10, 10, 3))


@case("padding", "pool", "pad|divi|count")
def average_pool_that_counts_its_padding(fault):
    def tf1(x, training):
        x = conv(x, 4, 3, "first", tf.nn.elu)
        x = tf.nn.avg_pool2d(x, 3, 1, "SAME")
        return conv(x, 2, 3, "second", strides=2)

    class Port(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = layers.Conv2D(4, 3, padding="same", activation="elu")
            self.pad, self.pool = layers.ZeroPadding2D(1), layers.AveragePooling2D(3, 1)  # FAULT
            self.pool_same = layers.AveragePooling2D(3, 1, padding="same")
            self.second = layers.Conv2D(2, 3, 2, padding="same")

        def call(self, x, training=False):
            x = self.first(x)
            x = self.pool(self.pad(x)) if fault else self.pool_same(x)  # FAULT
            return self.second(x)

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 8, 8, 3))


@case("stride", "pool", "stride")
def stride_of_a_max_pool(fault):
    @old_layers
    def tf1(x, training):
        x = slim.conv2d(x, 6, 3, scope="conv4")
        x = slim.max_pool2d(x, 2, stride=1, padding="SAME", scope="pool5")
        x = slim.conv2d(x, 4, 3, rate=2, scope="fc6")
        return tf.reduce_mean(x, [1, 2])

    def port():
        x = inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(6, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2, strides=2 if fault else 1, padding="same")(x)  # FAULT
        x = layers.Conv2D(4, 3, padding="same", dilation_rate=2, activation="relu")(x)
        return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


@case("resize", "resize", r"align\w* (of )?corners|half.?pixel")
def resize_with_aligned_corners(fault):
    def tf1(x, training):
        x = tf.nn.relu(conv(x, 4, 3, "conv", strides=2))
        x = tf.image.resize_bilinear(x, [9, 9], align_corners=True)
        return conv(x, 2, 1, "score")

    class Port(tf.Module):
        def __init__(self):
            super().__init__()
            glorot = tf_keras.initializers.GlorotUniform()
            self.conv = tf.Variable(glorot([3, 3, 3, 4]), name="conv")
            self.conv_bias = tf.Variable(tf.zeros([4]), name="conv_bias")
            self.score = tf.Variable(glorot([1, 1, 4, 2]), name="score")
            self.score_bias = tf.Variable(tf.zeros([2]), name="score_bias")

        def __call__(self, x, training=False):
            x = tf.nn.relu(tf.nn.conv2d(x, self.conv, 2, "SAME") + self.conv_bias)
            x = tf.image.resize_bilinear(x, [9, 9], align_corners=not fault)  # FAULT
            return tf.nn.conv2d(x, self.score, 1, "SAME") + self.score_bias

    return detrand.Migration(tf1=tf1, port=Port, inputs=numbers(2, 10, 10, 3))


@case("resize", "resize|upsampl|nearest", r"align\w* (of )?corners|pixel")
def upsampling_between_pixels(fault):
    def tf1(x, training):
        x = conv(x, 4, 3, "lateral", tf.nn.relu)
        x = tf.image.resize_bilinear(x, [16, 16])
        return conv(x, 1, 3, "heat")

    class Resize(layers.Layer):
        def call(self, x):
            return tf.image.resize_bilinear(x, [16, 16])

    def port():
        return keras.Sequential(
            [
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.UpSampling2D(2, interpolation="bilinear") if fault else Resize(),  # FAULT
                layers.Conv2D(1, 3, padding="same"),
            ]
        )

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 8, 8, 3))


@case("padding", "pad", "mode|reflect|symmetric")
def mirrored_padding(fault):
    def tf1(x, training):
        x = tf.pad(x, [[0, 0], [2, 2], [2, 2], [0, 0]], mode="REFLECT")
        x = conv(x, 4, 5, "conv", tf.nn.relu, padding="VALID")
        return conv(x, 3, 1, "out", tf.tanh)

    class Style(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(4, 5, activation="relu")
            self.out = layers.Conv2D(3, 1, activation="tanh")

        def call(self, x, training=False):
            mode = "symmetric" if fault else "reflect"
            x = ops.pad(x, [[0, 0], [2, 2], [2, 2], [0, 0]], mode=mode)  # FAULT
            return self.out(self.conv(x))

    return detrand.Migration(tf1=tf1, port=Style, inputs=numbers(2, 8, 8, 3))


@case("order", "depth|transpose|reshape|permute|shuffle", "transpos|permut|axes|order|arrange")
def subpixels_in_another_order(fault):
    def tf1(x, training):
        x = conv(x, 8, 3, "features", tf.nn.relu)
        return tf.depth_to_space(conv(x, 12, 3, "pixels"), 2)

    class Upscale(keras.Model):
        def __init__(self):
            super().__init__()
            self.features = layers.Conv2D(8, 3, padding="same", activation="relu")
            self.pixels = layers.Conv2D(12, 3, padding="same")

        def call(self, x, training=False):
            x = ops.reshape(self.pixels(self.features(x)), (-1, 6, 6, *((3, 2, 2) if fault else (2, 2, 3))))  # FAULT
            x = ops.transpose(x, (0, 1, 4, 2, 5, 3) if fault else (0, 1, 3, 2, 4, 5))  # FAULT
            return ops.reshape(x, (-1, 12, 12, 3))

    return detrand.Migration(tf1=tf1, port=Upscale, inputs=numbers(2, 6, 6, 1))


@case("missing", "shuffle|transpose|reshape|conv", "shuffle|transpos|reshape|permut")
def channel_shuffle_left_out(fault):
    def tf1(x, training):
        halves = tf.split(x, 2, 3)
        x = tf.concat([conv(half, 4, 1, f"group{i}") for i, half in enumerate(halves)], 3)
        x = tf.reshape(x, [-1, 6, 6, 2, 4])
        x = tf.reshape(tf.transpose(x, [0, 1, 2, 4, 3]), [-1, 6, 6, 8])
        w = tf.get_variable("depthwise", [3, 3, 8, 1])
        x = tf.nn.depthwise_conv2d(tf.nn.relu(x), w, [1, 1, 1, 1], "SAME")
        return conv(x, 4, 1, "out")

    class Shuffle(layers.Layer):
        def call(self, x):
            x = ops.transpose(ops.reshape(x, (-1, 6, 6, 2, 4)), (0, 1, 2, 4, 3))
            return ops.reshape(x, (-1, 6, 6, 8))

    def port():
        x = inputs = keras.Input((6, 6, 4))
        x = [layers.Conv2D(4, 1)(x[..., :2]), layers.Conv2D(4, 1)(x[..., 2:])]
        x = layers.Concatenate()(x)  # FAULT
        x = x if fault else Shuffle()(x)
        x = layers.ReLU()(x)  # FAULT
        x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        return keras.Model(inputs, layers.Conv2D(4, 1)(x))

    return detrand.Migration(tf1=tf1, port=port, inputs=numbers(2, 6, 6, 4))
