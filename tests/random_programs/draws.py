"""The random ops that programs draw from, in the spellings of TF1 code and of its ports."""

from __future__ import annotations

from typing import NamedTuple

# What XLA makes of a family: the session's numbers, the session's up to rounding, a ScopeError, or numbers of its own.
EXACT, CLOSE, REFUSED, UNCONTROLLED = "exact", "close", "refused", "uncontrolled"


class Spelling(NamedTuple):
    """One way to write a draw.

    Attributes:
      name: what the spelling is called in lists.
      tf1: an expression for TF1 code, which may contain `x`, a float64 scalar, and `numbers(x)`, six float32 numbers.
        `{dtype}` and `{shape}` stand for one of `dtypes` and a shape, `{seed}` for nothing or `, seed=7`, and `{n}` for
        the number of the draw.
      port: the expression for the port, if it differs.
      setup: lines that run before the program, once, in TF1 code; they may create variables.
      port_setup: the port's lines, if they differ.
      dtypes: what `{dtype}` may be.
      xla: what XLA makes of it.
      creates: whether the first call creates variables, so that the draw can be in no loop or branch.
    """

    name: str
    tf1: str
    port: str = ""
    setup: str = ""
    port_setup: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    xla: str = EXACT
    creates: bool = False


FLOATS = ("float32", "float64", "float16", "bfloat16")
LOGITS = "[[0.1, 0.9, 0.4], [0.5, 0.2, 0.3]]"
SAMPLER = "[[1], [2]], 1, 3"
IMAGE = "image(x)"


def _tf_random() -> list[Spelling]:
    return [
        Spelling("tf.random.uniform", "tf.random.uniform({shape}, dtype='{dtype}'{seed})", dtypes=FLOATS),
        Spelling("tf.random.normal", "tf.random.normal({shape}, dtype='{dtype}'{seed})", dtypes=FLOATS, xla=CLOSE),
        Spelling(
            "tf.random.truncated_normal",
            "tf.random.truncated_normal({shape}, dtype='{dtype}'{seed})",
            dtypes=FLOATS,
            xla=CLOSE,
        ),
        Spelling(
            "tf.random.uniform of integers",
            "tf.random.uniform({shape}, 0, 1000, dtype='{dtype}'{seed})",
            dtypes=("int32", "int64"),
        ),
        Spelling("tf.random_uniform", "v1.random_uniform({shape}, -1.0, 2.0{seed})"),
        Spelling("tf.random_normal", "v1.random_normal({shape}, stddev=0.5{seed})", xla=CLOSE),
        Spelling("tf.truncated_normal", "v1.truncated_normal({shape}, mean=1.0{seed})", xla=CLOSE),
        Spelling("a shape that is a tensor", "tf.random.uniform(tf.stack([2, 1]){seed})"),
        Spelling("tf.random.gamma", "tf.random.gamma({shape}, [0.5, 2.0]{seed})", xla=REFUSED),
        Spelling("tf.random_gamma", "v1.random_gamma({shape}, 3.0, beta=2.0, dtype='{dtype}'{seed})",
                 dtypes=("float64", "float16"), xla=REFUSED),
        Spelling("tf.random.poisson", "tf.random.poisson({shape}, [0.5, 4.0]{seed})", xla=REFUSED),
        Spelling("tf.random_poisson", "v1.random_poisson(20.0, {shape}{seed})", xla=REFUSED),
        Spelling("poisson of a rate that is drawn", "tf.random.poisson([2], 1.0 + tf.abs(x){seed})", xla=REFUSED),
        Spelling(
            "tf.random.categorical",
            f"tf.random.categorical({LOGITS}, 3, '{{dtype}}'{{seed}})",
            dtypes=("int64", "int32"),
        ),
        Spelling("tf.multinomial", f"v1.multinomial({LOGITS}, 2{{seed}})"),
        Spelling("tf.random.shuffle", "tf.random.shuffle(tf.range(5){seed})"),
        Spelling("tf.random_shuffle", "v1.random_shuffle(tf.reshape(numbers(x), [3, 2]) + tf.range(2.0){seed})"),
        Spelling(
            "parameterized truncated normal",
            "tf.raw_ops.ParameterizedTruncatedNormal("
            "shape=[2, 2], means=[0.0, 3.0], stdevs=[1.0, 2.0], minvals=[-1.0, 0.0], maxvals=[2.0, 9.0])",
            xla=REFUSED,
        ),
        Spelling("tf.raw_ops", "tf.raw_ops.RandomUniform(shape=[2], dtype='float32')"),
        Spelling(
            "a Bernoulli mask", "tf.cast(tf.random.uniform({shape}{seed}) < 0.4, tf.float32)"
        ),
        Spelling("a binomial count", "tf.reduce_sum(tf.floor(tf.random.uniform([3]{seed}) + 0.4))"),
        Spelling("tf.nn.dropout", "tf.nn.dropout(numbers(x), rate=0.5{seed})"),
        Spelling("tf.nn.dropout with keep_prob", "v1.nn.dropout(numbers(x), keep_prob=0.5{seed})",
                 "tf.nn.dropout(numbers(x), rate=0.5{seed})"),
        Spelling("tf.nn.dropout with noise_shape", "tf.nn.dropout(numbers(x), 0.5, noise_shape=[2, 1]{seed})"),
        Spelling("tf.nn.dropout with rate 0", "tf.nn.dropout(numbers(x), rate=0{seed})"),
        *_stateless(),
    ]  # fmt: skip


def _stateless() -> list[Spelling]:
    spellings = {
        "stateless_dropout": "tf.nn.experimental.stateless_dropout(numbers(x), 0.5, (1, 2))",
        "stateless_shuffle": "tf.random.experimental.stateless_shuffle(tf.range(5), (1, 2))",
        "stateless_uniform": "tf.random.stateless_uniform([2], (3, 4))",
    }
    return [Spelling(name, tf1, xla=UNCONTROLLED) for name, tf1 in spellings.items()]


def _images() -> list[Spelling]:
    return [
        Spelling("tf.image.random_crop", f"tf.image.random_crop({IMAGE}, [1, 2, 3]{{seed}})"),
        Spelling("tf.random_crop", f"v1.random_crop({IMAGE}, [2, 1, 3]{{seed}})"),
        Spelling("tf.image.random_flip_left_right", f"tf.image.random_flip_left_right({IMAGE}{{seed}})"),
        Spelling("tf.image.random_flip_up_down", f"tf.image.random_flip_up_down(tf.stack([{IMAGE}] * 2){{seed}})"),
        Spelling("tf.image.random_brightness", f"tf.image.random_brightness({IMAGE}, 0.5{{seed}})", xla=CLOSE),
        Spelling("tf.image.random_contrast", f"tf.image.random_contrast({IMAGE}, 0.2, 0.8{{seed}})", xla=CLOSE),
        Spelling("tf.image.random_hue", f"tf.image.random_hue({IMAGE}, 0.3{{seed}})", xla=CLOSE),
        Spelling("tf.image.random_saturation", f"tf.image.random_saturation({IMAGE}, 0.2, 0.8{{seed}})", xla=CLOSE),
        Spelling(
            "tf.image.sample_distorted_bounding_box",
            "tf.image.sample_distorted_bounding_box([9, 9, 3], [[[0.1, 0.1, 0.9, 0.9]]]{seed})[1]",
            xla=REFUSED,
        ),
        Spelling(
            "tf.nn.fractional_max_pool",
            "tf.nn.fractional_max_pool(tf.reshape(tf.range(36.0), [1, 6, 6, 1]), [1, 1.44, 1.73, 1], True{seed})[0]",
            xla=REFUSED,
        ),
    ]


def _samplers() -> list[Spelling]:
    weights = "tf.reshape(tf.range(-1.0, 1.0, 0.25), [8, 1]), tf.zeros([8])"
    weights += ", tf.constant([[1], [2]], tf.int64), numbers(x)[:, :1]"
    return [
        Spelling(
            "tf.random.uniform_candidate_sampler",
            f"tf.random.uniform_candidate_sampler({SAMPLER}, True, 9{{seed}})[0]",
            xla=REFUSED,
        ),
        Spelling(
            "tf.random.log_uniform_candidate_sampler",
            f"tf.random.log_uniform_candidate_sampler({SAMPLER}, False, 9{{seed}})[0]",
            xla=REFUSED,
        ),
        Spelling(
            "tf.nn.learned_unigram_candidate_sampler",
            f"tf.nn.learned_unigram_candidate_sampler({SAMPLER}, True, 9{{seed}})[0]",
            xla=REFUSED,
        ),
        Spelling(
            "tf.random.fixed_unigram_candidate_sampler",
            "tf.random.fixed_unigram_candidate_sampler([[1], [2]], 1, 3, True, 4, unigrams=[1, 2, 3, 4]{seed})[0]",
            xla=REFUSED,
        ),
        Spelling("tf.nn.nce_loss", f"tf.nn.nce_loss({weights}, 3, 8)", xla=REFUSED),
        Spelling("v1 tf.nn.nce_loss", f"v1.nn.nce_loss({weights}, 3, 8)", xla=REFUSED),
        Spelling(
            "tf.nn.sampled_softmax_loss", f"tf.nn.sampled_softmax_loss({weights}, 3, 8{{seed}})", xla=REFUSED
        ),
    ]  # fmt: skip


def _variables() -> list[Spelling]:
    def variable(name: str, tf1: str, port: str = "", xla: str = EXACT) -> Spelling:
        return Spelling(name, "v_{n} * 1", setup=f"v_{{n}} = {tf1}", port_setup=f"v_{{n}} = {port or tf1}", xla=xla)

    return [
        variable("tf.Variable of a function", "tf.Variable(lambda: tf.random.normal([2]{seed}))"),
        variable("tf.Variable of a draw", "tf.Variable(tf.random.truncated_normal([2]{seed}))"),
        variable(
            "tf.get_variable with an initializer",
            "v1.get_variable('v_{n}', [2, 2], initializer=v1.truncated_normal_initializer(stddev=0.1{seed}))",
        ),
        variable(
            "tf.get_variable with Glorot's",
            "v1.get_variable('v_{n}', [2, 2], initializer=v1.glorot_uniform_initializer({seed_only}))",
            "tf.Variable(keras.initializers.GlorotUniform({seed_only})((2, 2)))",
        ),
        variable("tf.get_variable without an initializer", "v1.get_variable('v_{n}', [2, 2])"),
        variable("tf_keras.initializers", "tf.Variable(tf_keras.initializers.HeNormal({seed_only})((2, 2)))"),
        variable("keras.initializers", "tf.Variable(v1.initializers.random_normal(stddev=0.05)([3]))",
                 "keras.Variable(keras.initializers.RandomNormal({seed_only}), (3,)).value"),
    ]  # fmt: skip


def _layers() -> list[Spelling]:
    def layer(name: str, tf1: str, make: str, xla: str = EXACT, inputs: str = "numbers(x)") -> Spelling:
        return Spelling(
            name, tf1, f"layer_{{n}}({inputs}, training=True)", port_setup=f"layer_{{n}} = {make}", xla=xla
        )  # fmt: skip

    dropout = "tf.nn.dropout(numbers(x), rate=0.5{seed})"
    noise = "numbers(x) + tf.random.normal([2, 3], 0.0, 0.5)"
    spatial = "tf.nn.dropout(tf.stack([numbers(x)] * 2), 0.5, noise_shape=[2, 1, 3])"
    stacked = "tf.stack([numbers(x)] * 2)"
    dense_tf1 = "v_{n} = v1.get_variable('v_{n}', [3, 1], initializer=v1.glorot_uniform_initializer())"
    lstm = "{library}.layers.LSTM(1, dropout=0.5, recurrent_dropout=0.5)"
    return [
        layer("keras.layers.Dropout", dropout, "keras.layers.Dropout(0.5{seed})"),
        layer("tf_keras.layers.Dropout", dropout, "tf_keras.layers.Dropout(0.5{seed})"),
        layer("keras.layers.GaussianNoise", noise, "keras.layers.GaussianNoise(0.5{seed})", CLOSE),
        layer("tf_keras.layers.GaussianNoise", noise, "tf_keras.layers.GaussianNoise(0.5{seed})", CLOSE),
        layer("keras.layers.SpatialDropout1D", spatial, "keras.layers.SpatialDropout1D(0.5{seed})", inputs=stacked),
        layer("tf_keras.layers.SpatialDropout1D", spatial, "tf_keras.layers.SpatialDropout1D(0.5)", inputs=stacked),
        Spelling(
            "keras.Sequential",
            f"{dropout} + tf.random.normal([2, 3], 0.0, 0.5)",
            "layer_{n}(numbers(x), training=True)",
            port_setup="layer_{n} = keras.Sequential("
            "[keras.layers.Dropout(0.5{seed}), keras.layers.GaussianNoise(0.5)])",
            xla=CLOSE,
        ),
        Spelling(
            "tf_keras.Sequential",
            f"{dropout} + tf.random.normal([2, 3], 0.0, 0.5)",
            "layer_{n}(numbers(x), training=True)",
            port_setup="layer_{n} = tf_keras.Sequential("
            "[tf_keras.layers.Dropout(0.5), tf_keras.layers.GaussianNoise(0.5)])",
            xla=CLOSE,
        ),
        Spelling("keras.random.uniform", "tf.random.uniform([2]{seed})", "keras.random.uniform((2,){seed})"),
        Spelling("keras.random.dropout", dropout, "keras.random.dropout(numbers(x), 0.5{seed})"),
        Spelling(
            "keras.layers.Dense",
            "tf.matmul(numbers(x), v_{n})",
            "layer_{n}(numbers(x))",
            dense_tf1,
            "layer_{n} = keras.layers.Dense(1, use_bias=False{seed_of_kernel})\nlayer_{n}.build((2, 3))",
            xla=CLOSE,
        ),
        Spelling(
            "tf_keras.layers.Dense, built by the first call",
            "tf.matmul(numbers(x), v1.get_variable('v_{n}', [3, 1], initializer=v1.glorot_uniform_initializer()))",
            "layer_{n}(numbers(x))",
            port_setup="layer_{n} = tf_keras.layers.Dense(1, use_bias=False)",
            xla=CLOSE,
            creates=True,
        ),
        Spelling(
            "keras.layers.Dense, built by the first call",
            "tf.matmul(numbers(x), v1.get_variable('v_{n}', [3, 1], initializer=v1.glorot_uniform_initializer()))",
            "layer_{n}(numbers(x))",
            port_setup="layer_{n} = keras.layers.Dense(1, use_bias=False)",
            xla=CLOSE,
            creates=True,
        ),
        Spelling(
            "tf_keras.layers.LSTM",
            f"layer_{{n}}({stacked}, training=True)",
            setup=f"layer_{{n}} = {lstm.format(library='tf_keras')}\nlayer_{{n}}.build((2, 2, 3))",
            port_setup=f"layer_{{n}} = {lstm.format(library='tf_keras')}\nlayer_{{n}}.build((2, 2, 3))",
            xla=CLOSE,
        ),
    ]


SPELLINGS = {
    spelling.name: spelling for spelling in [*_tf_random(), *_images(), *_samplers(), *_variables(), *_layers()]
}
