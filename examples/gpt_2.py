"""GPT-2 of gpt-2-simple, which uses plain ``get_variable``, and the same code inside a Keras 3 layer.

Run with ``python -m detrand validate examples/gpt_2.py``.
The code is unchanged; the network has fewer and smaller layers, and no dropout.
"""

import importlib.util
from pathlib import Path

import keras
import numpy as np

import detrand


def load_model():
    """Import only ``gpt_2_simple.src.model``, because the package disables eager execution when it is imported."""
    package = importlib.util.find_spec("gpt_2_simple")
    if package is None:
        raise ImportError("this example needs gpt-2-simple. Install the [examples] extra")
    file = Path(package.origin).parent / "src" / "model.py"
    spec = importlib.util.spec_from_file_location("gpt_2_model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model = load_model()
HPARAMS = model.HParams(n_vocab=97, n_ctx=32, n_embd=48, n_head=4, n_layer=3)


def gpt_2(tokens, training):
    """Return the logits, and the keys and values of every layer."""
    return model.model(HPARAMS, tokens)


class GPT2(keras.layers.Layer):
    """The same code in a Keras 3 layer."""

    @detrand.track_tf1_style_variables
    def call(self, tokens, training=False):
        return gpt_2(tokens, training)


migration = detrand.Migration(
    tf1=gpt_2, port=GPT2, inputs=np.random.default_rng(0).integers(0, HPARAMS.n_vocab, (2, 16), dtype=np.int32)
)
