"""squeezenet of facenet 1.0.5: slim, batch normalization with updates in place, dropout."""

import contrib
import keras
import numpy as np

import detrand

with contrib.tensorflow_1():
    from facenet.src.models import squeezenet


def model(images, training):
    return squeezenet.inference(images, 0.8, phase_train=training, weight_decay=5e-5)[0]


class Port(keras.layers.Layer):
    @detrand.track_tf1_style_variables
    def call(self, images, training=False):
        return model(images, training)


migration = detrand.Migration(
    name="facenet_squeezenet",
    tf1=model,
    port=Port,
    inputs=np.random.default_rng(0).normal(size=(2, 128, 128, 3)).astype(np.float32),
)
