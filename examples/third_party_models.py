"""Models that other people published for TensorFlow 1 between 2016 and 2019, unchanged, inside a Keras 3 layer.

The packages are installed without what they depend on, because that would be TensorFlow 1::

    pip install '.[examples]' six
    pip install --no-deps --target packages tf_object_detection==0.0.3 albert-tensorflow==1.1 facenet==1.0.5 \
        dltk==0.2.1 baselines==0.1.5
    PYTHONPATH=packages python -m detrand validate examples/third_party_models.py
"""

import importlib
import os
import sys
import types

sys.path.append(os.path.dirname(__file__))  # of contrib.py

import contrib
import keras
import numpy as np
import tensorflow as tf

import detrand

slim = contrib.slim
random = np.random.default_rng(0)
np.float = float  # the name that NumPy had for it
tf.compat.v1.disable_v2_tensorshape()  # baselines writes shape[1].value
for unused in ("gym", "gym.spaces", "joblib", "mpi4py", "zmq"):  # baselines' environments, which no model needs
    sys.modules.setdefault(unused, types.ModuleType(unused))


def import_model(module):
    """Import a module in which ``import tensorflow`` means TensorFlow 1."""
    with contrib.tensorflow_1():
        return importlib.import_module(module)


def images(*shape):
    return random.normal(size=shape).astype(np.float32)


def eagerly(model):
    class Port(keras.layers.Layer):
        @detrand.track_tf1_style_variables
        def call(self, *inputs, training=False):
            return model(*inputs, training=training)

    return Port


def in_a_function(model):
    """Return a port of a model that reads the names of its tensors, which eager tensors do not have."""

    class Port(keras.layers.Layer):
        @tf.function
        @detrand.track_tf1_style_variables
        def call(self, *inputs, training=False):
            return model(*inputs, training=training)

    return Port


def migration(model, *inputs, port=eagerly, **arguments):
    return detrand.Migration(tf1=model, port=port(model), inputs=inputs, name=model.__name__, **arguments)


# --- images: generators, mobile networks, faces -----------------------------------------------------------------------

cyclegan_module = import_model("nets.cyclegan")


def cyclegan(inputs, training):
    return cyclegan_module.cyclegan_generator_resnet(inputs, num_resnet_blocks=2, num_filters=8)[0]


pix2pix_module = import_model("nets.pix2pix")


def pix2pix(inputs, training):
    block = pix2pix_module.Block
    with slim.arg_scope(pix2pix_module.pix2pix_arg_scope()):
        blocks = [block(8, 0.5), block(16, 0.5), block(16, 0)]
        return pix2pix_module.pix2pix_generator(inputs, 3, blocks=blocks, is_training=training)[0]


mobilenet_v1_module = import_model("nets.mobilenet_v1")


def mobilenet_v1(inputs, training):
    with slim.arg_scope(mobilenet_v1_module.mobilenet_v1_arg_scope(is_training=training)):
        return mobilenet_v1_module.mobilenet_v1(inputs, 5, depth_multiplier=0.25, is_training=training)[0]


mobilenet_v2_module = import_model("nets.mobilenet.mobilenet_v2")


def mobilenet_v2(inputs, training):
    with slim.arg_scope(mobilenet_v2_module.training_scope(is_training=training)):
        return mobilenet_v2_module.mobilenet(inputs, 5, depth_multiplier=0.35)[0]


nasnet_module = import_model("nets.nasnet.nasnet")


def nasnet(inputs, training):
    config = nasnet_module.cifar_config()
    config.parse("num_cells=3,num_conv_filters=8")
    with slim.arg_scope(nasnet_module.nasnet_cifar_arg_scope()):
        return nasnet_module.build_nasnet_cifar(inputs, 5, is_training=training, config=config)[0]


facenet_module = import_model("facenet.src.models.inception_resnet_v1")


def facenet(inputs, training):
    return facenet_module.inference(inputs, 0.8, phase_train=training, bottleneck_layer_size=8)[0]


squeezenet_module = import_model("facenet.src.models.squeezenet")


def squeezenet(inputs, training):
    return squeezenet_module.inference(inputs, 0.8, phase_train=training, bottleneck_layer_size=8)[0]


feature_maps = import_model("object_detection.models.feature_map_generators")


def feature_pyramid(fine, middle, coarse, training):
    levels = [("fine", fine), ("middle", middle), ("coarse", coarse)]
    return list(feature_maps.fpn_top_down_feature_maps(levels, depth=8).values())


# --- volumes of medical images ----------------------------------------------------------------------------------------

unet_module = import_model("dltk.networks.segmentation.unet")
STRIDES = ((1, 1, 1), (2, 2, 2))


def mode(training):
    return "train" if training else "eval"


def unet_3d(inputs, training):
    return unet_module.residual_unet_3d(inputs, 2, filters=(4, 8), strides=STRIDES, mode=mode(training))["logits"]


def unet_3d_asymmetric(inputs, training):
    return unet_module.asymmetric_residual_unet_3d(inputs, 2, filters=(4, 8), strides=STRIDES, mode=mode(training))[
        "logits"
    ]


fcn_module = import_model("dltk.networks.segmentation.fcn")


def fcn_3d(inputs, training):
    return fcn_module.residual_fcn_3d(inputs, 2, filters=(4, 8), strides=STRIDES, mode=mode(training))["logits"]


resnet_module = import_model("dltk.networks.regression_classification.resnet")


def resnet_3d(inputs, training):
    return resnet_module.resnet_3d(inputs, 3, filters=(4, 8), strides=STRIDES, mode=mode(training))["logits"]


autoencoder_module = import_model("dltk.networks.autoencoder.convolutional_autoencoder")


def autoencoder_3d(inputs, training):
    return autoencoder_module.convolutional_autoencoder_3d(
        inputs, filters=(4, 8), strides=((2, 2, 2), (2, 2, 2)), num_hidden_units=5, mode=mode(training)
    )


super_resolution_module = import_model("dltk.networks.super_resolution.simple_super_resolution")


def super_resolution_3d(inputs, training):
    return super_resolution_module.simple_super_resolution_3d(inputs, filters=(4, 8), mode=mode(training))


# --- text and reinforcement learning ----------------------------------------------------------------------------------

albert_module = import_model("albert.modeling")


def albert(ids, training):
    config = albert_module.AlbertConfig(
        50, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = albert_module.AlbertModel(config, training, ids)
    return model.get_sequence_output(), model.get_pooled_output()


baselines = import_model("baselines.a2c.utils")


def policy_cnn(inputs, training):
    hidden = tf.nn.relu(baselines.conv(inputs, "c1", nf=8, rf=8, stride=4, init_scale=np.sqrt(2)))
    hidden = tf.nn.relu(baselines.conv(hidden, "c2", nf=8, rf=4, stride=2, init_scale=np.sqrt(2)))
    hidden = tf.nn.relu(baselines.fc(baselines.conv_to_fc(hidden), "fc1", nh=16, init_scale=np.sqrt(2)))
    return baselines.fc(hidden, "pi", 4, init_scale=0.01), baselines.fc(hidden, "v", 1)[:, 0]


def policy_lstm(inputs, masks, state, training):
    inputs, masks = baselines.batch_to_seq(inputs, 2, 5), baselines.batch_to_seq(masks, 2, 5)
    hidden, state = baselines.lnlstm(inputs, masks, state, "lstm1", nh=6)
    return baselines.seq_to_batch(hidden), state


VOLUME = images(1, 8, 8, 8, 1)
MIGRATIONS = [
    migration(cyclegan, images(1, 32, 32, 3)),
    migration(pix2pix, images(1, 32, 32, 3)),
    migration(mobilenet_v1, images(2, 64, 64, 3)),
    migration(mobilenet_v2, images(2, 64, 64, 3), port=in_a_function),
    migration(nasnet, images(2, 32, 32, 3)),
    migration(facenet, images(1, 160, 160, 3)),
    migration(squeezenet, images(1, 96, 96, 3)),
    migration(feature_pyramid, images(1, 16, 16, 4), images(1, 8, 8, 6), images(1, 4, 4, 8)),
    *(migration(model, VOLUME) for model in (unet_3d, unet_3d_asymmetric, fcn_3d, resnet_3d)),
    *(migration(model, VOLUME) for model in (autoencoder_3d, super_resolution_3d)),
    migration(albert, random.integers(1, 50, (2, 8)).astype(np.int32), port=in_a_function),
    migration(policy_cnn, images(2, 64, 64, 4), seed_numpy=True),
    migration(policy_lstm, images(10, 7), np.zeros((10, 1), np.float32), images(2, 12), seed_numpy=True),
]
globals().update({f"{migration.name}_migration": migration for migration in MIGRATIONS})
