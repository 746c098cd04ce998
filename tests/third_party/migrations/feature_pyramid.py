"""The feature pyramid of the detectors in tf_object_detection 0.0.3."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from object_detection.models import feature_map_generators


def model(fine, middle, coarse, training):
    levels = [("fine", fine), ("middle", middle), ("coarse", coarse)]
    return list(feature_map_generators.fpn_top_down_feature_maps(levels, depth=8).values())


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, fine, middle, coarse, training=False):
        return model(fine, middle, coarse, training)


migration = detrand.Migration(
    name="feature_pyramid",
    tf1=model,
    port=Port,
    inputs=[np.random.default_rng(n).normal(size=(1, n, n, 4)).astype(np.float32) for n in (16, 8, 4)],
)
