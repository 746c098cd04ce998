"""The proposal network of MTCNN, of facenet 1.0.5."""

import sys
import types

import contrib
import keras
import numpy as np

import detrand

sys.modules.setdefault("cv2", types.ModuleType("cv2"))  # reads images only
with contrib.tensorflow_1():
    from facenet.src.align import detect_face


def model(images, training):
    network = detect_face.PNet({"data": images})
    return network.layers["conv4-2"], network.layers["prob1"]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, images, training=False):
        return model(images, training)


migration = detrand.Migration(
    name="facenet_mtcnn",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype(np.float32),
)
