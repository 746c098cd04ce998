"""NASNet in tf_object_detection 0.0.3, with fewer cells: separable convolutions, many branches."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from nets.nasnet import nasnet


def model(inputs, training):
    config = nasnet.cifar_config()
    config.parse("num_cells=3,num_conv_filters=8")
    with contrib.slim.arg_scope(nasnet.nasnet_cifar_arg_scope()):
        return nasnet.build_nasnet_cifar(inputs, 5, is_training=training, config=config)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, inputs, training=False):
        return model(inputs, training)


migration = detrand.Migration(
    name="nasnet",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32),
)
