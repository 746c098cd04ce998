"""Keras 3 programs that run on any backend, each with the TensorFlow 1 program that draws the same numbers.

`CASES` has functions of ``keras.random``, initializers and layers; `layers` gives every layer that draws. Importing
this module imports neither Keras nor TensorFlow, so that the backend can still be chosen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

X = np.linspace(-1, 1, 120, dtype=np.float32).reshape(2, 3, 4, 5)
MATRIX = X.reshape(24, 5)
SEQUENCE = X.reshape(2, 12, 5)
LOGITS = np.log([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]).astype(np.float32)
ALPHA = np.array([0.5, 2.0, 7.0], np.float32)


class Case(NamedTuple):
    """A program.

    Attributes:
      name: of the case.
      keras: draws with Keras, given a seed to override; or calls a layer, given that. Returns a list of tensors.
      tf1: draws the same by ops of TensorFlow 1.
      rtol: how far arithmetic that is not TensorFlow's may move the numbers; 0 where they are only drawn.
      layer: makes the layer, given a seed to override.
    """

    name: str
    keras: Callable[[Any], list[Any]]
    tf1: Callable[[], list[Any]]
    rtol: float = 0.0
    layer: Callable[[Any], Any] | None = None

    def program(self, seed: Any) -> Callable[[], list[Any]]:
        """Return what draws with Keras; a layer is made once."""
        argument = seed if self.layer is None else self.layer(seed)
        return lambda: self.keras(argument)


def functions() -> list[Case]:
    """Return the functions of ``keras.random``."""
    import tensorflow as tf
    from keras import random

    def two_gammas() -> list[Any]:
        first, second = tf.random.gamma([3], 1.0), tf.random.gamma([3], 2.0)
        return [first / (first + second)]

    def binomial() -> list[Any]:
        seeds = tf.random.uniform([2], 0, 2**31 - 1, tf.int32)
        return [tf.random.stateless_binomial([9], seeds, 10.0, 0.4, tf.float32)]

    return [
        Case("uniform", lambda s: [random.uniform((3, 2), seed=s)], lambda: [tf.random.uniform([3, 2])]),
        Case("uniform_scalar", lambda s: [random.uniform((), seed=s)], lambda: [tf.random.uniform([])]),
        Case(
            "uniform_scaled",
            lambda s: [random.uniform((7,), -2.0, 3.1, seed=s)],
            lambda: [tf.random.uniform([7], -2.0, 3.1)],
        ),
        *(
            Case(
                f"{name}_{dtype}",
                lambda s, name=name, dtype=dtype: [getattr(random, name)((9,), 1.0, 2.5, dtype, seed=s)],
                lambda name=name, dtype=dtype: [getattr(tf.random, name)([9], 1.0, 2.5, dtype)],
            )
            for name in ("uniform", "normal", "truncated_normal")
            for dtype in ("float16", "bfloat16", "float32", "float64")
        ),
        Case("normal", lambda s: [random.normal((3, 3), seed=s)], lambda: [tf.random.normal([3, 3])]),
        Case(
            "truncated_normal",
            lambda s: [random.truncated_normal((50,), seed=s)],
            lambda: [tf.random.truncated_normal([50])],
        ),
        Case(
            "randint",
            lambda s: [random.randint((7,), -3, 9, seed=s)],
            lambda: [tf.random.uniform([7], -3, 9, tf.int32)],
        ),
        Case(
            "randint_uint8",
            lambda s: [random.randint((7,), 3, 200, "uint8", seed=s)],
            lambda: [tf.cast(tf.random.uniform([7], 3, 200, tf.int64), tf.uint8)],
        ),
        Case(
            "categorical",
            lambda s: [random.categorical(LOGITS, 5, seed=s)],
            lambda: [tf.cast(tf.random.categorical(LOGITS, 5), tf.int32)],
        ),
        Case("dropout", lambda s: [random.dropout(X, 0.3, seed=s)], lambda: [tf.nn.dropout(X, 0.3)]),
        Case(
            "dropout_noise_shape",
            lambda s: [random.dropout(MATRIX, 0.3, (24, None), seed=s), random.dropout(MATRIX, 0.3, (24, 1), seed=s)],
            lambda: [tf.nn.dropout(MATRIX, 0.3, (24, None)), tf.nn.dropout(MATRIX, 0.3, (24, 1))],
        ),
        *(
            Case(
                f"dropout_{dtype}",
                lambda s, dtype=dtype: [random.dropout(_cast(MATRIX, dtype), 0.3, seed=s)],
                lambda dtype=dtype: [tf.nn.dropout(tf.cast(MATRIX, dtype), 0.3)],
            )
            for dtype in ("float16", "bfloat16")
        ),
        Case(
            "shuffle",
            lambda s: [random.shuffle(MATRIX, seed=s)],
            lambda: [tf.gather(MATRIX, tf.random.shuffle(range(24)))],
        ),
        Case(
            "shuffle_of_the_last_axis",
            lambda s: [random.shuffle(X, axis=-1, seed=s)],
            lambda: [tf.gather(X, tf.random.shuffle(range(5)), axis=-1)],
        ),
        Case("gamma", lambda s: [random.gamma((5,), 2.0, seed=s)], lambda: [tf.random.gamma([5], 2.0)]),
        Case("gamma_of_each", lambda s: [random.gamma((4, 3), ALPHA, seed=s)], lambda: [tf.random.gamma([4], ALPHA)]),
        Case(
            "gamma_broadcast",
            lambda s: [random.gamma((3, 2), ALPHA[:, None], seed=s)],
            lambda: [tf.random.gamma([], np.repeat(ALPHA[:, None], 2, 1))],
        ),
        Case(
            "gamma_bfloat16",
            lambda s: [random.gamma((3,), 2.0, "bfloat16", seed=s)],
            lambda: [tf.cast(tf.random.gamma([3], 2.0), tf.bfloat16)],
        ),
        Case("beta", lambda s: [random.beta((3,), 1.0, 2.0, seed=s)], two_gammas),
        Case("binomial", lambda s: [random.binomial((9,), 10.0, 0.4, seed=s)], binomial),
    ]


def _cast(array: Any, dtype: str) -> Any:
    from keras import ops

    return ops.cast(array, dtype)


def initializers() -> list[Case]:
    """Return every initializer that draws, with its twin in TensorFlow 1."""
    import tensorflow as tf
    from keras import initializers

    v1 = tf.compat.v1
    pairs: dict[str, tuple[Any, Any]] = {
        "RandomNormal": ({"mean": 0.5, "stddev": 0.2}, v1.random_normal_initializer(0.5, 0.2)),
        "TruncatedNormal": ({"mean": 0.5, "stddev": 0.2}, v1.truncated_normal_initializer(0.5, 0.2)),
        "RandomUniform": ({"minval": -0.1, "maxval": 0.3}, v1.random_uniform_initializer(-0.1, 0.3)),
        "GlorotNormal": ({}, v1.glorot_normal_initializer()),
        "GlorotUniform": ({}, v1.glorot_uniform_initializer()),
        "HeNormal": ({}, v1.initializers.he_normal()),
        "HeUniform": ({}, v1.initializers.he_uniform()),
        "LecunNormal": ({}, v1.initializers.lecun_normal()),
        "LecunUniform": ({}, v1.initializers.lecun_uniform()),
        "Orthogonal": ({"gain": 1.3}, v1.orthogonal_initializer(1.3)),
    }
    cases = [
        _initializer(name, getattr(initializers, name), arguments, twin) for name, (arguments, twin) in pairs.items()
    ]
    for distribution in ("truncated_normal", "untruncated_normal", "uniform"):
        for mode in ("fan_in", "fan_out", "fan_avg"):
            arguments = {"scale": 2.0, "mode": mode, "distribution": distribution}
            twin = v1.variance_scaling_initializer(**arguments)
            name = f"VarianceScaling_{mode}_{distribution}"
            cases.append(_initializer(name, initializers.VarianceScaling, arguments, twin))
    return cases


def _initializer(name: str, kind: Any, arguments: dict[str, Any], twin: Any) -> Case:
    shapes = [(7, 4), (4, 7), (3, 3, 2, 5)]
    # LAPACK's QR decomposition, which other backends use, rounds differently from Eigen's.
    return Case(
        name,
        lambda seed: [kind(**arguments, seed=seed)(shape, "float32") for shape in shapes],
        lambda: [twin(list(shape), "float32") for shape in shapes],
        rtol=2e-6 if name == "Orthogonal" else 0.0,
    )


def layers_with_twins() -> list[Case]:
    """Return the layers that do what a few ops of TensorFlow 1 do."""
    import tensorflow as tf
    from keras import layers

    def of(kind: Any, *arguments: Any, inputs: Any = MATRIX, tf1: Any, rtol: float = 0.0, **options: Any) -> Case:
        return Case(
            kind.__name__,
            lambda layer: [layer(inputs, training=True)],
            lambda: [tf1()],
            rtol,
            lambda seed: kind(*arguments, **options, seed=seed),
        )

    def alpha_dropout(rate: float) -> Any:
        negative = -1.6732632423543772848170429916717 * 1.0507009873554804934193349852946
        a = ((1 - rate) * (1 + rate * negative**2)) ** -0.5
        kept = tf.cast(tf.random.uniform(MATRIX.shape) >= rate, tf.float32)
        return a * (MATRIX * kept + negative * (1 - kept)) - a * negative * rate

    def spatial(rank: int) -> Case:
        inputs = np.ones((2, *(3, 4, 5)[:rank], 6), np.float32)
        noise_shape = (2, *(1,) * rank, 6)
        kind = getattr(layers, f"SpatialDropout{rank}D")
        return of(kind, 0.4, inputs=inputs, tf1=lambda: tf.nn.dropout(inputs, 0.4, noise_shape))

    drops = {"dropout": 0.4, "recurrent_dropout": 0.3, "kernel_initializer": "he_normal", "use_bias": False}
    recurrent = {"inputs": SEQUENCE, "rtol": 2e-6, **drops}
    attention = of(
        layers.MultiHeadAttention,
        *(2, 3),
        tf1=_attention,
        rtol=2e-6,
        dropout=0.4,
        kernel_initializer="random_normal",
        use_bias=False,
    )
    return [
        of(layers.Dropout, 0.4, inputs=X, tf1=lambda: tf.nn.dropout(X, 0.4)),
        *(spatial(rank) for rank in (1, 2, 3)),
        of(layers.GaussianNoise, 0.2, tf1=lambda: MATRIX + tf.random.normal(MATRIX.shape, 0.0, 0.2)),
        of(layers.GaussianDropout, 0.2, tf1=lambda: MATRIX * tf.random.normal(MATRIX.shape, 1.0, (0.2 / 0.8) ** 0.5)),
        of(layers.AlphaDropout, 0.2, tf1=lambda: alpha_dropout(0.2), rtol=2e-6),
        of(layers.SimpleRNN, 3, tf1=_simple_rnn, **recurrent),
        of(stacked_cells, tf1=_stacked_cells, inputs=SEQUENCE, rtol=2e-6),
        of(layers.LSTM, 3, tf1=_lstm, implementation=1, **recurrent),
        of(layers.GRU, 3, tf1=_gru, implementation=1, reset_after=False, **recurrent),
        attention._replace(keras=lambda layer: [layer(SEQUENCE, SEQUENCE, training=True)]),
        of(layers.Attention, inputs=[SEQUENCE, SEQUENCE], tf1=_dot_attention, rtol=2e-6, dropout=0.4),
    ]


def _gates(count: int) -> tuple[Any, Any, Any, Any]:
    """Return kernels, recurrent kernels and both kinds of masks of a recurrent cell of three units, for each gate."""
    import tensorflow as tf

    v1 = tf.compat.v1
    kernel = v1.get_variable("kernel", [5, 3 * count], initializer=v1.initializers.he_normal())
    recurrent = v1.get_variable("recurrent", [3, 3 * count], initializer=v1.orthogonal_initializer())
    masks = [tf.nn.dropout(tf.ones([2, 5]), 0.4) for _ in range(count)]
    recurrent_masks = [tf.nn.dropout(tf.ones([2, 3]), 0.3) for _ in range(count)]
    return tf.split(kernel, count, 1), tf.split(recurrent, count, 1), masks, recurrent_masks


def _simple_rnn() -> Any:
    import tensorflow as tf

    (kernel,), (recurrent,), (mask,), (recurrent_mask,) = _gates(1)
    state = tf.zeros([2, 3])
    for x in tf.unstack(SEQUENCE, axis=1):
        state = tf.tanh((x * mask) @ kernel + (state * recurrent_mask) @ recurrent)
    return state


def stacked_cells(seed: Any) -> Any:
    """Return a layer whose cells draw masks before its loop."""
    from keras import layers

    options = {"dropout": 0.4, "kernel_initializer": "he_normal", "use_bias": False, "seed": seed}
    return layers.RNN([layers.SimpleRNNCell(3, **options) for _ in range(2)])


def _stacked_cells() -> Any:
    import tensorflow as tf

    v1 = tf.compat.v1
    cells = []
    for number, size in enumerate((5, 3)):
        with v1.variable_scope(f"cell_{number}"):
            kernel = v1.get_variable("kernel", [size, 3], initializer=v1.initializers.he_normal())
            recurrent = v1.get_variable("recurrent", [3, 3], initializer=v1.orthogonal_initializer())
        cells.append((kernel, recurrent))
    masks = [tf.nn.dropout(tf.ones([2, size]), 0.4) for size in (5, 3)]
    states = [tf.zeros([2, 3])] * 2
    for step in tf.unstack(SEQUENCE, axis=1):
        inputs = step
        for number, ((kernel, recurrent), mask) in enumerate(zip(cells, masks, strict=True)):
            inputs = states[number] = tf.tanh((inputs * mask) @ kernel + states[number] @ recurrent)
    return states[-1]


def _lstm() -> Any:
    import tensorflow as tf

    kernels, recurrents, masks, recurrent_masks = _gates(4)
    state, carry = tf.zeros([2, 3]), tf.zeros([2, 3])
    for x in tf.unstack(SEQUENCE, axis=1):
        in_gate, forget, new, out = (
            (x * mask) @ kernel + (state * recurrent_mask) @ recurrent
            for kernel, recurrent, mask, recurrent_mask in zip(kernels, recurrents, masks, recurrent_masks, strict=True)
        )
        carry = tf.sigmoid(forget) * carry + tf.sigmoid(in_gate) * tf.tanh(new)
        state = tf.sigmoid(out) * tf.tanh(carry)
    return state


def _gru() -> Any:
    import tensorflow as tf

    kernels, recurrents, masks, recurrent_masks = _gates(3)
    state = tf.zeros([2, 3])
    for x in tf.unstack(SEQUENCE, axis=1):
        update, reset, new = ((x * mask) @ kernel for kernel, mask in zip(kernels, masks, strict=True))
        update = tf.sigmoid(update + (state * recurrent_masks[0]) @ recurrents[0])
        reset = tf.sigmoid(reset + (state * recurrent_masks[1]) @ recurrents[1])
        new = tf.tanh(new + (reset * state * recurrent_masks[2]) @ recurrents[2])
        state = update * state + (1 - update) * new
    return state


def _attention() -> Any:
    import tensorflow as tf

    v1 = tf.compat.v1
    initializer = v1.random_normal_initializer(stddev=0.05)
    query, key, value = (
        tf.einsum("bti,ihd->bthd", SEQUENCE, v1.get_variable(name, [5, 2, 3], initializer=initializer))
        for name in ("query", "key", "value")
    )
    outputs = v1.get_variable("outputs", [2, 3, 5], initializer=initializer)
    weights = tf.nn.softmax(tf.einsum("bthd,bshd->bhts", query, key) / 3**0.5)
    weights = tf.nn.dropout(weights, 0.4)
    return tf.einsum("bthd,hdi->bti", tf.einsum("bhts,bshd->bthd", weights, value), outputs)


def _dot_attention() -> Any:
    import tensorflow as tf

    weights = tf.nn.dropout(tf.nn.softmax(SEQUENCE @ SEQUENCE.transpose(0, 2, 1)), 0.4)
    return weights @ SEQUENCE


CASES = {"function": functions, "initializer": initializers, "layer": layers_with_twins}
IMAGES = (np.random.RandomState(1).rand(6, 8, 8, 3) * 255).astype(np.float32)
LABELS = np.eye(6, dtype=np.float32)


class Layer(NamedTuple):
    """A layer that draws: how it is made, given a seed to override, and what it is called on."""

    make: Callable[[Any], Any]
    inputs: Any = IMAGES
    arguments: tuple[Any, ...] = ()


def layers() -> dict[str, Layer]:
    """Return every layer of Keras that draws when it is called."""
    from keras import layers

    def of(name: str, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
        return lambda seed: getattr(layers, name)(*arguments, **options, seed=seed)

    def cell(name: str) -> Callable[[Any], Any]:
        return lambda seed: layers.RNN(getattr(layers, name)(3, dropout=0.4, recurrent_dropout=0.3, seed=seed))

    def conv_lstm(rank: int) -> Layer:
        inputs = np.ones((2, 3, *(4,) * rank, 2), np.float32)
        return Layer(of(f"ConvLSTM{rank}D", 3, 2, dropout=0.4, recurrent_dropout=0.3), inputs)

    labelled = {"images": IMAGES, "labels": LABELS}
    of_factor = ("RandomBrightness", "RandomContrast", "RandomGaussianBlur", "RandomGrayscale", "RandomInvert")
    of_range = ("RandomColorDegeneration", "RandomHue", "RandomSaturation", "RandomSharpness")
    made = {
        **{
            name: Layer(of(name, 0.4), MATRIX)
            for name in ("Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise")
        },
        "SpatialDropout1D": Layer(of("SpatialDropout1D", 0.4), SEQUENCE),
        "SpatialDropout2D": Layer(of("SpatialDropout2D", 0.4), X),
        "SpatialDropout3D": Layer(of("SpatialDropout3D", 0.4), np.ones((4, 2, 2, 2, 3), np.float32)),
        "Attention": Layer(of("Attention", dropout=0.4), [SEQUENCE, SEQUENCE]),
        "AdditiveAttention": Layer(of("AdditiveAttention", dropout=0.4), [SEQUENCE, SEQUENCE]),
        "MultiHeadAttention": Layer(of("MultiHeadAttention", 2, 3, dropout=0.4), SEQUENCE, (SEQUENCE,)),
        "GroupQueryAttention": Layer(of("GroupQueryAttention", 3, 2, 1, dropout=0.4), SEQUENCE, (SEQUENCE,)),
        **{
            name: Layer(of(name, 3, dropout=0.4, recurrent_dropout=0.3), SEQUENCE)
            for name in ("SimpleRNN", "LSTM", "GRU")
        },
        **{name: Layer(cell(name), SEQUENCE) for name in ("SimpleRNNCell", "LSTMCell", "GRUCell")},
        **{f"ConvLSTM{rank}D": conv_lstm(rank) for rank in (1, 2, 3)},
        **{name: Layer(of(name, 0.5)) for name in of_factor},
        **{name: Layer(of(name, (0.1, 0.9), (0, 255))) for name in of_range},
        "RandomColorJitter": Layer(of("RandomColorJitter", (0, 255), 0.4, 0.4, 0.4, 0.4)),
        "RandomCrop": Layer(of("RandomCrop", 5, 5)),
        "RandomElasticTransform": Layer(of("RandomElasticTransform", 1.0)),
        "RandomErasing": Layer(of("RandomErasing", 1.0)),
        "RandomFlip": Layer(of("RandomFlip")),
        "RandomPerspective": Layer(of("RandomPerspective", 1.0)),
        "RandomPosterization": Layer(of("RandomPosterization", 4)),
        "RandomRotation": Layer(of("RandomRotation", 0.3)),
        "RandomShear": Layer(of("RandomShear", 0.5, 0.5)),
        "RandomTranslation": Layer(of("RandomTranslation", 0.2, 0.2)),
        "RandomZoom": Layer(of("RandomZoom", 0.3)),
        "Solarization": Layer(of("Solarization", 0.5, 0.5)),
        "RandAugment": Layer(of("RandAugment", factor=0.9)),
        "AugMix": Layer(of("AugMix", factor=0.9)),
        "CutMix": Layer(of("CutMix"), labelled),
        "MixUp": Layer(of("MixUp"), labelled),
    }
    return {name: layer for name, layer in made.items() if hasattr(layers, name)}


def run_case(kind: str, name: str) -> list[Any]:
    """Run a case with Keras, and return the op seed that comes next as well."""
    (case,) = (case for case in CASES[kind]() if case.name == name)
    return [*case.program(seed=7)(), *functions()[0].keras(None)]


def run_layer(name: str, seed: int) -> Any:
    """Run a layer whose weights are the same each time, and check that its seed generators are left as they are."""
    make, inputs, arguments = layers()[name]
    inputs = copy.deepcopy(inputs)  # some of Keras's layers change them in place
    layer = make(seed)
    layer(inputs, *arguments)
    for weight in layer.trainable_variables:
        weight.assign(np.linspace(-1, 1, np.prod(weight.shape)).reshape(weight.shape))
    states = [variable for variable in layer.variables if variable.name == "seed_generator_state"]
    before = [state.numpy() for state in states]
    outputs = layer(inputs, *arguments, training=True)
    for state, expected in zip(states, before, strict=True):
        np.testing.assert_array_equal(state.numpy(), expected)
    return outputs
