"""The networks of tf_slim, unchanged, each with its arg_scope, and the same code inside a Keras 3 layer.

Run them all with ``python -m detrand validate examples/tf_slim_networks.py``, or one of them with, for example,
``python -m detrand validate examples/tf_slim_networks.py:vgg_16``. Each network gets images of its usual size.
"""

import keras
import numpy as np

import detrand

detrand.enable_v1_layers()  # tf_slim uses layers that Keras 3 does not have

import tf_slim as slim  # noqa: E402
from tf_slim.nets import alexnet, inception, overfeat, resnet_v1, resnet_v2, vgg  # noqa: E402

NUM_CLASSES = 1000


def slim_migration(network, arg_scope, size):
    """Return the migration of a network of tf_slim, for images of one size."""

    def forward(inputs, training):
        with slim.arg_scope(arg_scope()):
            return network(inputs, NUM_CLASSES, is_training=training)

    class Port(keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, inputs, training=False):
            return forward(inputs, training)

    return detrand.Migration(
        name=network.__name__,
        tf1=forward,
        port=Port,
        inputs=np.random.default_rng(0).random((1, size, size, 3), dtype=np.float32),
    )


alexnet_v2 = slim_migration(alexnet.alexnet_v2, alexnet.alexnet_v2_arg_scope, 224)
vgg_a = slim_migration(vgg.vgg_a, vgg.vgg_arg_scope, 224)
vgg_16 = slim_migration(vgg.vgg_16, vgg.vgg_arg_scope, 224)
overfeat_231 = slim_migration(overfeat.overfeat, overfeat.overfeat_arg_scope, 231)
inception_v1 = slim_migration(inception.inception_v1, inception.inception_v1_arg_scope, 224)
inception_v2 = slim_migration(inception.inception_v2, inception.inception_v2_arg_scope, 224)
inception_v3 = slim_migration(inception.inception_v3, inception.inception_v3_arg_scope, 299)
resnet_v1_50 = slim_migration(resnet_v1.resnet_v1_50, resnet_v1.resnet_arg_scope, 224)
resnet_v2_50 = slim_migration(resnet_v2.resnet_v2_50, resnet_v2.resnet_arg_scope, 224)
