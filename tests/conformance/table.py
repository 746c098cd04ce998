"""The table's rows: each a family of random ops, with a program that draws them in each way of executing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow.python.ops import init_ops, init_ops_v2

from detrand import philox
from tests.conformance.ways import NOT_IN_PHILOX, Program, Row, Seeds

v1 = tf.compat.v1


def fed(value: Any) -> tf.Tensor:
    """A tensor that no optimizer takes for a constant to compute with beforehand, in whatever way it runs."""
    array = np.asarray(value)
    return v1.placeholder_with_default(array, array.shape)


def _uniform_floats(dtype: str) -> Row:
    return Row(
        f"uniform {dtype}",
        ("RandomUniform", "RandomUniform"),
        lambda: [tf.random.uniform([3, 5], dtype=dtype), tf.random.uniform([7], -2, 3, dtype, seed=5)],
        keras3=lambda: [
            keras.random.uniform((3, 5), dtype=dtype),
            keras.random.uniform((7,), -2.0, 3.0, dtype, seed=5),
        ],
        tf_keras=lambda: [
            tf_keras.initializers.RandomUniform(0, 1)([3, 5], dtype),
            tf_keras.initializers.RandomUniform(-2, 3, seed=5)([7], dtype),
        ],
        numpy=lambda seeds: [
            philox.uniform((3, 5), *next(seeds), dtype=dtype),
            philox.uniform((7,), *next(seeds), dtype, minval=-2, maxval=3),
        ],
    )


def _normal_floats(dtype: str) -> Row:
    return Row(
        f"normal {dtype}",
        ("RandomStandardNormal", "RandomStandardNormal"),
        lambda: [tf.random.normal([3, 5], dtype=dtype), tf.random.normal([7], 1, 2, dtype, seed=5)],
        keras3=lambda: [keras.random.normal((3, 5), dtype=dtype), keras.random.normal((7,), 1.0, 2.0, dtype, seed=5)],
        tf_keras=lambda: [
            tf_keras.initializers.RandomNormal(0, 1)([3, 5], dtype),
            tf_keras.initializers.RandomNormal(1, 2, seed=5)([7], dtype),
        ],
        numpy=lambda seeds: [
            philox.normal((3, 5), *next(seeds), dtype=dtype),
            philox.normal((7,), *next(seeds), dtype, mean=1, stddev=2),
        ],
    )


def _truncated_normal_floats(dtype: str) -> Row:
    return Row(
        f"truncated normal {dtype}",
        ("TruncatedNormal", "TruncatedNormal"),
        lambda: [tf.random.truncated_normal([3, 5], dtype=dtype), tf.random.truncated_normal([7], 1, 2, dtype, seed=5)],
        keras3=lambda: [
            keras.random.truncated_normal((3, 5), dtype=dtype),
            keras.random.truncated_normal((7,), 1.0, 2.0, dtype, seed=5),
        ],
        tf_keras=lambda: [
            tf_keras.initializers.TruncatedNormal(0, 1)([3, 5], dtype),
            tf_keras.initializers.TruncatedNormal(1, 2, seed=5)([7], dtype),
        ],
        numpy=lambda seeds: [
            philox.truncated_normal((3, 5), *next(seeds), dtype=dtype),
            philox.truncated_normal((7,), *next(seeds), dtype, mean=1, stddev=2),
        ],
    )


def _integers(dtype: str, low: int, high: int) -> Row:
    return Row(
        f"uniform {dtype} from {low} to {high}",
        ("RandomUniformInt", "RandomUniformInt"),
        lambda: [tf.random.uniform([3, 5], low, high, dtype), tf.random.uniform([7], low, high, dtype, seed=5)],
        keras3=lambda: [
            keras.random.randint((3, 5), low, high, dtype),
            keras.random.randint((7,), low, high, dtype, seed=5),
        ],
        numpy=lambda seeds: [
            philox.randint((3, 5), low, high, *next(seeds), dtype=dtype),
            philox.randint((7,), low, high, *next(seeds), dtype=dtype),
        ],
    )


_LARGE = 300_001


def _large() -> list[Row]:
    return [
        Row(
            "uniform, 300,001 numbers",
            ("RandomUniform",),
            lambda: [tf.random.uniform([_LARGE])],
            keras3=lambda: [keras.random.uniform((_LARGE,))],
            numpy=lambda seeds: [philox.uniform((_LARGE,), *next(seeds))],
        ),
        Row(
            "normal, 300,001 numbers",
            ("RandomStandardNormal",),
            lambda: [tf.random.normal([_LARGE])],
            keras3=lambda: [keras.random.normal((_LARGE,))],
            numpy=lambda seeds: [philox.normal((_LARGE,), *next(seeds))],
        ),
        Row(
            "truncated normal, 300,001 numbers",
            ("TruncatedNormal",),
            lambda: [tf.random.truncated_normal([_LARGE])],
            keras3=lambda: [keras.random.truncated_normal((_LARGE,))],
            numpy=lambda seeds: [philox.truncated_normal((_LARGE,), *next(seeds))],
        ),
        Row(
            "gamma, 300,001 numbers",
            ("RandomGamma",),
            lambda: [tf.random.gamma([_LARGE], 0.7)],
            keras3=lambda: [keras.random.gamma((_LARGE,), 0.7)],
            numpy=lambda seeds: [philox.gamma((_LARGE,), 0.7, *next(seeds))],
        ),
        Row(
            "shuffle, 300,001 numbers",
            ("RandomShuffle",),
            lambda: [tf.random.shuffle(tf.range(_LARGE))],
            keras3=lambda: [keras.random.shuffle(tf.range(_LARGE))],
        ),
        Row("poisson, 300,001 numbers", ("RandomPoissonV2",), lambda: [tf.random.poisson([_LARGE], 3.0)]),
    ]


_ALPHA = np.array([0.5, 2.0, 7.0], np.float32)
_LOGITS = np.log([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]).astype(np.float32)
_CUBE = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def _other_distributions() -> list[Row]:
    return [
        Row(
            "gamma float32",
            ("RandomGamma", "RandomGamma", "RandomGamma"),
            lambda: [tf.random.gamma([5], 2.0), tf.random.gamma([4], _ALPHA), tf.random.gamma([2, 2], _ALPHA, seed=5)],
            keras3=lambda: [
                keras.random.gamma((5,), 2.0),
                keras.random.gamma((4, 3), _ALPHA),
                keras.random.gamma((2, 2, 3), _ALPHA, seed=5),
            ],
            numpy=lambda seeds: [
                philox.gamma((5,), 2.0, *next(seeds)),
                philox.gamma((4,), _ALPHA, *next(seeds)),
                philox.gamma((2, 2), _ALPHA, *next(seeds)),
            ],
        ),
        Row(
            "gamma float64",
            ("RandomGamma",),
            lambda: [tf.random.gamma([4], _ALPHA.astype("float64"), dtype="float64")],
            keras3=lambda: [keras.random.gamma((4, 3), _ALPHA.astype("float64"), "float64")],
            numpy=lambda seeds: [philox.gamma((4,), _ALPHA.astype("float64"), *next(seeds), dtype="float64")],
        ),
        Row(
            "gamma float16, with a rate",
            ("RandomGamma", "RandomGamma"),
            lambda: [
                tf.random.gamma([4], _ALPHA.astype("float16"), dtype="float16"),
                tf.random.gamma([2], fed(_ALPHA), beta=fed(_ALPHA)),
            ],
        ),
        Row(
            "poisson",
            ("RandomPoissonV2", "RandomPoissonV2", "RandomPoissonV2"),
            lambda: [
                tf.random.poisson([4], _ALPHA),
                v1.random_poisson(20.0, [3], seed=5),
                tf.random.poisson([3], 0.5, dtype="int64"),
            ],
        ),
        Row(
            "categorical",
            ("Multinomial", "Multinomial"),
            lambda: [
                tf.random.categorical(_LOGITS, 9, "int32"),
                tf.random.categorical(_LOGITS, 9, "int64", seed=5),
            ],
            keras3=lambda: [
                keras.random.categorical(_LOGITS, 9, "int32"),
                keras.random.categorical(_LOGITS, 9, "int64", seed=5),
            ],
        ),
        Row("multinomial", ("Multinomial",), lambda: [v1.multinomial(_LOGITS, 9, seed=5)]),
        Row(
            "shuffle",
            ("RandomShuffle", "RandomShuffle", "RandomShuffle"),
            lambda: [
                tf.random.shuffle(tf.range(20)),
                tf.random.shuffle(_CUBE, seed=5),
                tf.random.shuffle(tf.zeros([0, 3])),
            ],
            keras3=lambda: [
                keras.random.shuffle(tf.range(20)),
                keras.random.shuffle(_CUBE, seed=5),
                keras.random.shuffle(tf.zeros([0, 3])),
            ],
        ),
        Row(
            "parameterized truncated normal",
            ("ParameterizedTruncatedNormal",),
            lambda: [
                tf.raw_ops.ParameterizedTruncatedNormal(
                    shape=[2, 9], means=[0.0, 3.0], stdevs=[1.0, 2.0], minvals=[-1.0, 0.0], maxvals=[2.0, 9.0]
                )
            ],
        ),
        Row(
            "raw ops without seeds",
            ("RandomUniform", "RandomStandardNormal", "RandomUniformInt", "Multinomial"),
            lambda: [
                tf.raw_ops.RandomUniform(shape=[3], dtype="float32"),
                v1.raw_ops.RandomStandardNormal(shape=[3], dtype="float64"),
                tf.raw_ops.RandomUniformInt(shape=[9], minval=0, maxval=9),
                tf.raw_ops.Multinomial(logits=_LOGITS, num_samples=9),
            ],
        ),
        Row(
            "scalars and empty shapes",
            ("RandomUniform", "RandomUniform", "RandomStandardNormal", "RandomGamma"),
            lambda: [
                tf.random.uniform([]),
                tf.random.uniform([0, 3]),
                tf.random.normal([0]),
                tf.random.gamma([0], 2.0),
            ],
            keras3=lambda: [
                keras.random.uniform(()),
                keras.random.uniform((0, 3)),
                keras.random.normal((0,)),
                keras.random.gamma((0,), 2.0),
            ],
            numpy=lambda seeds: [
                philox.uniform((), *next(seeds)),
                philox.uniform((0, 3), *next(seeds)),
                philox.normal((0,), *next(seeds)),
                philox.uniform((0,), *next(seeds)),
            ],
        ),
        Row(
            "raw ops with seeds of their own, which they keep",
            ("RandomUniform",),
            lambda: [
                tf.random.uniform([3]),
                tf.raw_ops.RandomUniform(shape=[3], dtype="float32", seed=-5, seed2=-6),
                tf.raw_ops.RandomUniformInt(shape=[9], minval=0, maxval=9, seed=-5, seed2=2**40),
                tf.raw_ops.Multinomial(logits=_LOGITS, num_samples=9, seed=5),
            ],
        ),
        Row(
            "shapes known only when run",
            ("RandomUniform", "RandomUniformInt", "RandomGamma"),
            lambda: [
                tf.random.uniform(fed([2, 3])),
                tf.random.uniform(fed([4]), 0, 9, "int32"),
                tf.random.gamma(fed(np.array([4], np.int32)), _ALPHA),
            ],
            numpy=lambda seeds: [
                philox.uniform((2, 3), *next(seeds)),
                philox.randint((4,), 0, 9, *next(seeds), dtype="int32"),
                philox.gamma((4,), _ALPHA, *next(seeds)),
            ],
        ),
    ]


_TRUE_CLASSES = np.array([[1], [2]], np.int64)
_WEIGHTS = np.linspace(-1, 1, 80, dtype=np.float32).reshape(20, 4)
_INPUTS = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)


def _candidate_samplers() -> list[Row]:
    sampler = {"true_classes": _TRUE_CLASSES, "num_true": 1, "num_sampled": 4}
    return [
        Row(
            "candidate samplers",
            (
                "UniformCandidateSampler",
                "LogUniformCandidateSampler",
                "LearnedUnigramCandidateSampler",
                "FixedUnigramCandidateSampler",
                "AllCandidateSampler",
                "ThreadUnsafeUnigramCandidateSampler",
            ),
            lambda: [
                tf.random.uniform_candidate_sampler(**sampler, unique=True, range_max=10),
                tf.random.log_uniform_candidate_sampler(**sampler, unique=False, range_max=10, seed=5),
                tf.random.learned_unigram_candidate_sampler(**sampler, unique=True, range_max=10),
                tf.random.fixed_unigram_candidate_sampler(
                    **sampler, unique=True, range_max=10, unigrams=list(range(1, 11))
                ),
                tf.random.all_candidate_sampler(**sampler, unique=True),
                tf.raw_ops.ThreadUnsafeUnigramCandidateSampler(**sampler, unique=True, range_max=10),
            ],
        ),
        Row(
            "nce_loss and sampled_softmax_loss",
            # The seed without an op is that of ComputeAccidentalHits, which asks for one and draws nothing.
            ("LogUniformCandidateSampler", "LogUniformCandidateSampler", ""),
            lambda: [
                tf.nn.nce_loss(fed(_WEIGHTS), tf.zeros([20]), _TRUE_CLASSES, fed(_INPUTS), 5, 20),
                tf.nn.sampled_softmax_loss(fed(_WEIGHTS), tf.zeros([20]), _TRUE_CLASSES, fed(_INPUTS), 5, 20),
            ],
        ),
    ]


_IMAGE = np.random.RandomState(0).rand(8, 8, 3).astype(np.float32)
_BOXES = np.array([[[0.1, 0.1, 0.9, 0.9]]], np.float32)


def _images() -> list[Row]:
    uniform = ("RandomUniform",)
    return [
        Row(
            "random crop",
            ("RandomUniformInt", "RandomUniformInt"),
            lambda: [tf.image.random_crop(_IMAGE, [4, 4, 3]), v1.random_crop(_IMAGE, [3, 3, 3], seed=5)],
        ),
        Row(
            "random flips",
            uniform * 3,
            lambda: [
                tf.image.random_flip_left_right(_IMAGE),
                tf.image.random_flip_up_down(np.stack([_IMAGE] * 5)),
                tf.image.random_flip_up_down(_IMAGE, seed=5),
            ],
        ),
        Row("random brightness", uniform, lambda: [tf.image.random_brightness(fed(_IMAGE), 0.5)]),
        Row("random contrast", uniform, lambda: [tf.image.random_contrast(fed(_IMAGE), 0.2, 0.8)]),
        Row("random hue", uniform, lambda: [tf.image.random_hue(fed(_IMAGE), 0.3)]),
        Row("random saturation", uniform, lambda: [tf.image.random_saturation(fed(_IMAGE), 0.2, 0.8)]),
        Row("random JPEG quality", ("RandomUniformInt",), lambda: [tf.image.random_jpeg_quality(_IMAGE, 20, 90)]),
        Row(
            "sample_distorted_bounding_box",
            ("SampleDistortedBoundingBoxV2",) * 2 + ("SampleDistortedBoundingBox",),
            lambda: [
                tf.image.sample_distorted_bounding_box([20, 20, 3], _BOXES),
                v1.image.sample_distorted_bounding_box([20, 20, 3], _BOXES, seed=5, min_object_covered=0.3),
                tf.raw_ops.SampleDistortedBoundingBox(image_size=[20, 20, 3], bounding_boxes=_BOXES),
            ],
        ),
    ]


_POOLED = np.arange(72, dtype=np.float32).reshape(1, 6, 6, 2)
_RATIO = [1, 1.44, 1.73, 1]


def _pool(pool: Callable[..., Any], **kwargs: Any) -> list[Any]:
    """Return the outputs of a pooling, and its gradient."""
    value = fed(_POOLED)
    if tf.executing_eagerly():
        with tf.GradientTape() as tape:
            tape.watch(value)
            pooled = pool(value, _RATIO, **kwargs)
        return [*pooled, tape.gradient(pooled[0], value)]
    pooled = pool(value, _RATIO, **kwargs)
    return [*pooled, tf.gradients(pooled[0], value)[0]]


def _fractional_poolings() -> list[Row]:
    return [
        Row(
            "fractional max pooling and its gradient",
            ("FractionalMaxPool",) * 2,
            lambda: [
                _pool(tf.nn.fractional_max_pool, pseudo_random=True, seed=5),
                _pool(tf.nn.fractional_max_pool, overlapping=True),
            ],
        ),
        Row(
            "fractional average pooling and its gradient",
            ("FractionalAvgPool",) * 2,
            lambda: [
                _pool(tf.nn.fractional_avg_pool, pseudo_random=True, seed=5),
                _pool(tf.nn.fractional_avg_pool, overlapping=True),
            ],
        ),
        Row(
            "fractional poolings of tf.compat.v1",
            ("FractionalMaxPool", "FractionalAvgPool"),
            lambda: [
                _pool(v1.nn.fractional_max_pool, pseudo_random=True),
                _pool(v1.nn.fractional_avg_pool, deterministic=True, seed=5, seed2=6),
            ],
        ),
    ]


_X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(2, 4, 5)
_RATE = 0.3
_STDDEV = (_RATE / (1 - _RATE)) ** 0.5


def _layer_row(name: str, op_type: str, tf1: Program, *args: Any, **numpy: Any) -> Row:
    """A noise layer that both Kerases have."""
    layer = getattr(keras.layers, name)(*args)
    return Row(
        f"{name} layer",
        (op_type,),
        tf1,
        keras3=lambda: [layer(_X, training=True)],
        # Made when it is called: tf_keras breaks those made before, once a layer of the class is made in a TF1 graph.
        tf_keras=lambda: [getattr(tf_keras.layers, name)(*args)(_X, training=True)],
        **numpy,
    )


def _dropped(seeds: Seeds, noise_shape: tuple[int, ...] = _X.shape, dtype: str = "float32") -> np.ndarray:
    kept = philox.dropout_mask(noise_shape, _RATE, *next(seeds), dtype)
    return np.where(kept, _X.astype(dtype) * np.dtype(dtype).type(1 / (1 - _RATE)), np.dtype(dtype).type(0))


def _alpha_dropout() -> list[tf.Tensor]:
    alpha_p = -1.6732632423543772848170429916717 * 1.0507009873554804934193349852946
    a = ((1 - _RATE) * (1 + _RATE * alpha_p**2)) ** -0.5
    kept = tf.cast(tf.random.uniform(_X.shape) >= _RATE, "float32")
    return [a * (fed(_X) * kept + alpha_p * (1 - kept)) - a * alpha_p * _RATE]


def _dropouts() -> list[Row]:
    return [
        Row(
            "dropout",
            ("RandomUniform", "RandomUniform"),
            lambda: [tf.nn.dropout(_X, _RATE), tf.nn.dropout(_X, _RATE, noise_shape=[2, 1, 5], seed=5)],
            keras3=lambda: [
                keras.random.dropout(_X, _RATE),
                keras.random.dropout(_X, _RATE, noise_shape=(2, 1, 5), seed=5),
            ],
            numpy=lambda seeds: [_dropped(seeds), _dropped(seeds, (2, 1, 5))],
        ),
        Row(
            "dropout float16",
            ("RandomUniform",),
            lambda: [tf.nn.dropout(_X.astype("float16"), _RATE)],
            keras3=lambda: [keras.random.dropout(_X.astype("float16"), _RATE)],
            numpy=lambda seeds: [_dropped(seeds, dtype="float16")],
        ),
        Row(
            "dropout with rate 0 takes a seed and draws nothing",
            ("", "", "RandomUniform"),
            lambda: [tf.nn.dropout(tf.constant(_X), 0), tf.nn.dropout(tf.constant(_X), 0.0), tf.nn.dropout(_X, _RATE)],
        ),
        Row(
            "dropout of tf.compat.v1",
            ("RandomUniform", "RandomUniform"),
            lambda: [v1.nn.dropout(_X, rate=_RATE, seed=5), v1.nn.dropout(fed(_X), rate=fed(np.float32(_RATE)))],
            numpy=lambda seeds: [_dropped(seeds), _dropped(seeds)],
        ),
        _layer_row(
            "Dropout",
            "RandomUniform",
            lambda: [tf.nn.dropout(_X, _RATE)],
            _RATE,
            numpy=lambda seeds: [_dropped(seeds)],
        ),
        _layer_row(
            "SpatialDropout1D",
            "RandomUniform",
            lambda: [tf.nn.dropout(_X, _RATE, noise_shape=[2, 1, 5])],
            _RATE,
            numpy=lambda seeds: [_dropped(seeds, (2, 1, 5))],
        ),
        _layer_row(
            "GaussianNoise",
            "RandomStandardNormal",
            lambda: [fed(_X) + tf.random.normal(_X.shape, 0.0, 0.5)],
            0.5,
            numpy=lambda seeds: [_X + philox.normal(_X.shape, *next(seeds), stddev=0.5)],
        ),
        _layer_row(
            "GaussianDropout",
            "RandomStandardNormal",
            lambda: [fed(_X) * tf.random.normal(_X.shape, 1.0, _STDDEV)],
            _RATE,
            numpy=lambda seeds: [_X * philox.normal(_X.shape, *next(seeds), mean=1.0, stddev=_STDDEV)],
        ),
        _layer_row("AlphaDropout", "RandomUniform", _alpha_dropout, _RATE),
    ]


def _dataset() -> list[tf.Tensor]:
    numbers = tf.data.Dataset.range(20)
    return [
        numbers.shuffle(20).batch(20).get_single_element(),
        numbers.shuffle(5, seed=5).repeat(2).batch(40).get_single_element(),
    ]


_SHAPES = ([5, 3], [3, 3, 2, 4])


def _weights(make: Callable[..., Any], shapes: Any = _SHAPES) -> Program:
    """Weights drawn by an initializer without a seed, and by one with a seed of its own."""
    return lambda: [make()(shape) for shape in shapes] + [make(seed=5)(shapes[0])]


class _Initializer(NamedTuple):
    """An initializer that all frameworks have.

    Attributes:
      name: in tf.compat.v2 and the Kerases.
      op_type: TensorFlow's name of the op.
      numpy: draws the same by detrand.philox, or why nothing does.
      arguments: what TF1 defaults to otherwise.
    """

    name: str
    op_type: str
    numpy: Callable[..., np.ndarray] | str
    arguments: Mapping[str, float] = MappingProxyType({})


_INITIALIZERS = {  # by TF1 name
    "random_uniform": _Initializer(
        "RandomUniform",
        "RandomUniform",
        functools.partial(philox.uniform, minval=-0.05, maxval=0.05),
        {"minval": -0.05, "maxval": 0.05},
    ),
    "random_normal": _Initializer(
        "RandomNormal", "RandomStandardNormal", functools.partial(philox.normal, stddev=0.05), {"stddev": 0.05}
    ),
    "truncated_normal": _Initializer(
        "TruncatedNormal", "TruncatedNormal", functools.partial(philox.truncated_normal, stddev=0.05), {"stddev": 0.05}
    ),
    "variance_scaling": _Initializer("VarianceScaling", "TruncatedNormal", philox.variance_scaling),
    "glorot_uniform": _Initializer("GlorotUniform", "RandomUniform", philox.glorot_uniform),
    "glorot_normal": _Initializer(
        "GlorotNormal", "TruncatedNormal", functools.partial(philox.variance_scaling, mode="fan_avg")
    ),
    "he_uniform": _Initializer(
        "HeUniform", "RandomUniform", functools.partial(philox.variance_scaling, scale=2.0, distribution="uniform")
    ),
    "he_normal": _Initializer("HeNormal", "TruncatedNormal", functools.partial(philox.variance_scaling, scale=2.0)),
    "lecun_uniform": _Initializer(
        "LecunUniform", "RandomUniform", functools.partial(philox.variance_scaling, distribution="uniform")
    ),
    "lecun_normal": _Initializer("LecunNormal", "TruncatedNormal", philox.variance_scaling),
    "orthogonal": _Initializer("Orthogonal", "RandomStandardNormal", NOT_IN_PHILOX),
}


def _initializer(tf1_name: str) -> Row:
    name, op_type, draw, arguments = _INITIALIZERS[tf1_name]
    make_tf1 = getattr(v1.initializers, tf1_name)
    make_port = getattr(init_ops_v2, name, None) or getattr(init_ops_v2, tf1_name)
    return Row(
        f"{name} initializer",
        (op_type,) * 3,
        _weights(lambda **seed: make_tf1(**arguments, **seed)),
        port=_weights(make_port),
        keras3=_weights(getattr(keras.initializers, name)),
        tf_keras=_weights(getattr(tf_keras.initializers, name)),
        numpy=draw if isinstance(draw, str) else lambda seeds: [draw(s, *next(seeds)) for s in (*_SHAPES, _SHAPES[0])],
    )


def _initializers_of_tf1_alone() -> list[Row]:
    normal = "RandomStandardNormal"
    return [
        Row("uniform_unit_scaling initializer", ("RandomUniform",) * 3, _weights(init_ops.UniformUnitScaling)),
        Row(
            "delta orthogonal initializer", (normal, normal), _weights(init_ops.ConvolutionDeltaOrthogonal, _SHAPES[1:])
        ),
        Row(
            "orthogonal 1-d convolution initializer",
            (normal,) * 10,
            _weights(init_ops.ConvolutionOrthogonal1D, [[3, 2, 2]]),
            is_regrouped=True,
        ),
        Row(
            "orthogonal 2-d convolution initializer",
            (normal,) * 18,
            _weights(init_ops.ConvolutionOrthogonal2D, [[3, 3, 2, 2]]),
            is_regrouped=True,
        ),
    ]


TABLE = (
    *(_uniform_floats(dtype) for dtype in ("float16", "bfloat16", "float32", "float64")),
    _integers("int32", 1, 7),
    _integers("int32", -(2**31), 2**31 - 1),
    _integers("int64", -5, 10**12),
    *(_normal_floats(dtype) for dtype in ("float16", "bfloat16", "float32", "float64")),
    *(_truncated_normal_floats(dtype) for dtype in ("float16", "bfloat16", "float32", "float64")),
    *_large(),
    *_other_distributions(),
    *_candidate_samplers(),
    *_images(),
    *_fractional_poolings(),
    *_dropouts(),
    Row("tf.data shuffle", ("ShuffleDataset", "ShuffleDataset"), _dataset),
    *(_initializer(tf1_name) for tf1_name in _INITIALIZERS),
    *_initializers_of_tf1_alone(),
)
