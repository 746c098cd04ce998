"""The sources of randomness: what a scope does with each, and what to do in the port.

``python -m tests.adapters.randomness > docs/randomness_table.txt`` writes the table of ``docs/random_numbers.rst``.
`tests.adapters.test_randomness` runs each program, and compares the table with the page.
"""

import importlib
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tf_keras

v1 = tf.compat.v1
SEED = (1, 2)
SAMPLES = 8

CONTROLLED = "controlled: draws what a TF1 session draws"
BY_CHANCE = "draws the same numbers, but chance decides which element gets which; recorded"
RECORDED = "not controlled; recorded"
UNSEEN = "not controlled, and not seen"


class Port(NamedTuple):
    """A program that a scope controls, with the program of a session if that is a different one."""

    draw: Callable[[], Any]
    tf1: Callable[[], Any]


class Recorded(NamedTuple):
    """A program, the types of its records, and the function in which a line with ``# draws`` is that of the records.

    Without such a function, they are of the line of the lambda.
    """

    draw: Callable[[], Any]
    op_types: tuple[str, ...]
    within: Callable[..., Any] | None = None


class Row(NamedTuple):
    """A row of the table: the source, what a scope does with it, what to do in the port, and programs by name."""

    source: str
    kind: str
    remedy: str
    programs: dict[str, Any]


def numbers(count: int = 6) -> tf.data.Dataset:
    """Return a dataset of the first integers."""
    return tf.data.Dataset.range(count)


def uniform(_: Any) -> tf.Tensor:
    """Return a random number."""
    return tf.random.uniform(())


# --- what a scope controls -------------------------------------------------------------------------------------------


def images() -> tf.Tensor:
    """Return images without two equal pixels."""
    return tf.reshape(tf.range(4 * 6 * 6 * 3, dtype=tf.float32), (4, 6, 6, 3)) / 2


def resampled() -> tf.data.Dataset:
    """Return a dataset that keeps some of its elements."""
    of_two = numbers(20).map(lambda x: tf.cast(x % 2, tf.int32))
    return of_two.rejection_resample(lambda x: x, [0.9, 0.1], [0.5, 0.5], seed=2).map(lambda _, kept: kept)


def dequeued() -> Any:
    """Return what comes out of a queue that has been filled before."""
    queue = tf.queue.RandomShuffleQueue(SAMPLES, 0, [tf.int32], [()])
    with tf.control_dependencies([queue.enqueue_many([tf.range(SAMPLES)])]):
        return queue.dequeue_many(SAMPLES)


AUGMENTATIONS = {
    **{"RandomFlip": (), "RandomRotation": (0.2,), "RandomCrop": (3, 3), "RandomZoom": (0.2,)},
    **{"RandomTranslation": (0.2, 0.2), "RandomContrast": (0.3,), "RandomBrightness": (0.3,)},
}


def augmentation(package: Any, name: str) -> Callable[[], tf.Tensor]:
    """Return a program that augments images with a new layer."""
    return lambda: getattr(package.layers, name)(*AUGMENTATIONS[name])(images(), training=True)


def fitted(package: Any, data: Callable[[], Any], shuffle: bool = True, epochs: int = 2) -> np.ndarray:
    """Return the samples in the order in which ``fit`` takes them."""
    model = package.Sequential([package.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse", run_eagerly=True)
    taken, train_step = [], model.train_step

    def watched(batch: Any) -> Any:
        taken.append(np.ravel(batch[0]))
        return train_step(batch)

    model.train_step = watched
    model.fit(*data(), epochs=epochs, shuffle=shuffle, verbose=0)  # draws
    return np.concatenate(taken)


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return samples and their labels."""
    return np.arange(SAMPLES, dtype=np.float32)[:, None], np.zeros((SAMPLES, 1), np.float32)


def mapped_in_parallel() -> tf.Tensor:
    """Return random numbers of a loop whose iterations could run in parallel."""
    return tf.function(lambda: tf.map_fn(uniform, tf.zeros(99), parallel_iterations=50))()


def shuffled_samples() -> tuple[tf.data.Dataset]:
    """Return a dataset of samples that shuffles itself."""
    return (tf.data.Dataset.from_tensor_slices(samples()).shuffle(SAMPLES).batch(4),)


def orders(epochs: int) -> tf.data.Dataset:
    """Return the runs of an op that shuffles the samples."""
    return numbers(epochs).map(lambda _: tf.random.shuffle(tf.range(SAMPLES)))


def two_epochs_begin_anew() -> tf.Tensor:
    """Return the first run of that op, twice: a dataset that is made anew begins with its first run."""
    return tf.tile(tf.random.shuffle(tf.range(SAMPLES)), [2])


def after_seeds() -> tf.Tensor:
    """Return random numbers of a program that sets seeds."""
    tf.random.set_seed(3)
    keras.utils.set_random_seed(4)
    return tf.random.uniform((3,), seed=5)


# --- what is recorded ------------------------------------------------------------------------------------------------


def queue_of_threads() -> None:
    """Build a queue that threads fill."""
    with tf.Graph().as_default():
        element = v1.train.range_input_producer(9, shuffle=False).dequeue()
        v1.train.shuffle_batch([element], 3, 9, 3)  # draws


def in_session(function: Callable[[], Any], dtype: tf.DType, make: Callable[..., Any] = tf.numpy_function) -> Any:
    """Return what a session gets from a Python function."""
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(make(function, [], dtype))  # draws


def in_converted_function() -> Any:
    """Draw in a nested function whose source AutoGraph has rewritten."""

    @tf.function
    def converted():
        return tf.numpy_function(lambda: 1 + np.random.rand(), [], tf.float64)  # draws

    return converted()


def in_generator() -> list[Any]:
    """Draw in a generator that a dataset iterates over."""
    signature = tf.TensorSpec((), tf.float64)

    def draws():
        yield np.random.rand()  # draws

    return list(tf.data.Dataset.from_generator(draws, output_signature=signature))


def torch() -> Any:
    """Return PyTorch, which need not be installed."""
    return importlib.import_module("torch")


def nnx() -> Any:
    """Return Flax, which need not be installed."""
    return importlib.import_module("flax.nnx")


def jax() -> Any:
    """Return JAX, which need not be installed."""
    return importlib.import_module("jax")


class Batches(keras.utils.PyDataset):
    """A dataset of 4 batches."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full((2, 1), index, np.float32), np.zeros((2, 1), np.float32)


class Sequence(tf_keras.utils.Sequence):
    """The same for tf_keras."""

    __len__, __getitem__ = Batches.__len__, Batches.__getitem__


def images_of_folder(package: Any) -> Any:
    """Read images from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            Path(folder, name).mkdir()
            keras.utils.save_img(Path(folder, name, "0.png"), np.zeros((4, 4, 3)))
        package.utils.image_dataset_from_directory(folder, image_size=(4, 4))  # draws


def texts_of_folder() -> Any:
    """Read texts from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            Path(folder, name).mkdir()
            Path(folder, name, "0.txt").write_text("text")
        keras.utils.text_dataset_from_directory(folder)  # draws


_FLIPS = tf_keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)
_FROM_FOLDER = "np.random.randint", "np.random.RandomState"

TABLE = (
    Row(
        "random ops of ``tf.random``, ``tf.nn``, ``tf.image`` (``random_flip_left_right`` and the like), "
        "``tf.experimental.numpy.random`` and ``tf.compat.v1``; initializers and layers of Keras 3 and tf_keras",
        CONTROLLED,
        "Nothing. :doc:`conformance` lists them.",
        {
            "tf.random": lambda: tf.random.normal((3,), seed=7),
            "tf.image flip": lambda: tf.image.random_flip_left_right(images()[0]),
            "tf.image brightness": lambda: tf.image.random_brightness(images()[0], 0.5, seed=7),
            "tf.image crop": lambda: tf.image.random_crop(images(), (4, 3, 3, 3)),
            "tf.image jpeg": lambda: tf.image.random_jpeg_quality(images()[0] / 300, 20, 90),
            "tf.experimental.numpy": lambda: tf.experimental.numpy.random.uniform(size=(3,)),
        },
    ),
    Row(
        "augmentation layers of Keras 3 and tf_keras, such as ``RandomFlip``, ``RandomRotation``, ``RandomCrop``",
        CONTROLLED,
        "Nothing. The layers of Keras 3 and of tf_keras draw different ops, so that they do not augment alike.",
        {
            f"{package.__name__} {name}": augmentation(package, name)
            for package in (keras, tf_keras)
            for name in AUGMENTATIONS
        },
    ),
    Row(
        "``Dataset.shuffle`` with and without ``seed`` or ``reshuffle_each_iteration``, ``Dataset.random``, "
        "``sample_from_datasets``, ``rejection_resample``, ops in the functions of a dataset",
        CONTROLLED,
        "Nothing. Seeds that the program passes are overridden, as those of ops are.",
        {
            "shuffle": lambda: numbers().shuffle(6),
            "shuffle, seed": lambda: numbers().shuffle(6, seed=3).repeat(2),
            "shuffle once": lambda: numbers().shuffle(6, seed=3, reshuffle_each_iteration=False).repeat(2),
            "random": lambda: tf.data.Dataset.random().take(3),
            "random, seed": lambda: tf.data.Dataset.random(seed=4, rerandomize_each_iteration=True).take(3),
            "sample_from_datasets": lambda: tf.data.Dataset.sample_from_datasets([numbers(), numbers()], [0.3, 0.7]),
            "rejection_resample": resampled,
            "map": lambda: numbers().map(uniform),
        },
    ),
    Row(
        "``tf.vectorized_map``; ``tf.map_fn``, ``tf.scan`` and ``tf.while_loop``, whatever their "
        "``parallel_iterations``",
        CONTROLLED,
        "Nothing. Call a ``tf.vectorized_map`` in a ``tf.function`` if steps run it: by itself, it is traced in each "
        "step, which the second step refuses.",
        {
            "vectorized_map": lambda: tf.vectorized_map(uniform, tf.zeros(4)),
            "map_fn": lambda: tf.map_fn(uniform, tf.zeros(4)),
            "parallel map_fn": Port(
                mapped_in_parallel, lambda: tf.map_fn(uniform, tf.zeros(99), parallel_iterations=1)
            ),
        },
    ),
    Row(
        "``model.fit(shuffle=True)`` with arrays, on every backend, or with a dataset",
        CONTROLLED,
        "Nothing. The order is that of ``tf.random.shuffle``. Keras 3 makes its dataset anew in each epoch, so that "
        "each epoch draws the first run; in tf_keras, each epoch draws the next run. Between two epochs, Keras 3 can "
        "begin an order of a dataset that shuffles itself, and throw it away.",
        {
            "arrays, keras": Port(lambda: fitted(keras, samples), two_epochs_begin_anew),
            "arrays, tf_keras": Port(lambda: fitted(tf_keras, samples), lambda: orders(2).unbatch()),
            "dataset": Port(
                lambda: fitted(keras, shuffled_samples, shuffle=False, epochs=1),
                lambda: numbers(SAMPLES).shuffle(SAMPLES),
            ),
        },
    ),
    Row(
        "``RandomShuffleQueue`` that is full before it is emptied",
        CONTROLLED,
        "Nothing.",
        {"filled before": dequeued},
    ),
    Row(
        "``tf.random.set_seed``, ``keras.utils.set_random_seed`` and other seeds that the program sets in the scope",
        CONTROLLED,
        "Nothing. ``keras.utils.set_random_seed`` seeds ``np.random`` and ``random``, too.",
        {"seeds": after_seeds},
    ),
    Row(
        "``Dataset.map`` and ``interleave`` with ``num_parallel_calls``, ``map_and_batch``, ``parallel_interleave``, "
        "with random ops in the function or with ``deterministic=False``; ``RandomShuffleQueue`` that threads fill "
        "(``tf.compat.v1.train.shuffle_batch``)",
        BY_CHANCE,
        "Remove ``num_parallel_calls`` from both programs, or call ``tf.config.experimental.enable_op_determinism()`` "
        "at the start of both. Replace the queue by a dataset, or feed both programs.",
        {
            "map": Recorded(lambda: numbers().map(uniform, num_parallel_calls=2), ("ParallelMapDatasetV2",)),
            "map in any order": Recorded(
                lambda: numbers().map(lambda x: x + 1, num_parallel_calls=2, deterministic=False),
                ("ParallelMapDatasetV2",),
            ),
            "interleave": Recorded(
                lambda: numbers().interleave(lambda _: numbers().map(uniform), num_parallel_calls=2),
                ("ParallelInterleaveDatasetV4",),
            ),
            "map_and_batch": Recorded(
                lambda: numbers().apply(tf.data.experimental.map_and_batch(uniform, 3)), ("MapAndBatchDataset",)
            ),
            "parallel_interleave": Recorded(
                lambda: numbers().apply(tf.data.experimental.parallel_interleave(lambda _: numbers().map(uniform), 2)),
                ("LegacyParallelInterleaveDatasetV2",),
            ),
            "legacy function": Recorded(
                lambda: v1.data.Dataset.range(3).map_with_legacy_function(uniform, num_parallel_calls=2),
                ("ParallelMapDatasetV2",),
            ),
            "shuffle_batch": Recorded(queue_of_threads, ("RandomShuffleQueueV2",), queue_of_threads),
        },
    ),
    Row(
        "``tf.random.Generator`` (``from_seed``, ``from_non_deterministic_state``, ``get_global_generator``), "
        "``tf.random.stateless_*``, ``tf.image.stateless_random_*``, ops of ``tf.raw_ops`` with seeds",
        RECORDED,
        "Draw with the op that TF1 uses (``tf.random.normal``). Where TF1 draws from a seed, too, give both programs "
        "the same.",
        {
            "from_seed": Recorded(lambda: tf.random.Generator.from_seed(3).normal((2,)), ("StatelessRandomNormalV2",)),
            "non-deterministic": Recorded(
                lambda: tf.random.Generator.from_non_deterministic_state().uniform((2,)), ("StatelessRandomUniformV2",)
            ),
            "global generator": Recorded(
                lambda: tf.random.get_global_generator().binomial((2,), 4.0, 0.5), ("StatefulRandomBinomial",)
            ),
            "stateless": Recorded(lambda: tf.random.stateless_gamma((2,), SEED, 2.0), ("StatelessRandomGammaV3",)),
            "image": Recorded(
                lambda: tf.image.stateless_random_flip_up_down(images()[0], SEED), ("StatelessRandomUniformV2",)
            ),
            "raw op": Recorded(
                lambda: tf.raw_ops.RandomStandardNormal(shape=[2], dtype=tf.float32, seed=1), ("RandomStandardNormal",)
            ),
            "stateless raw op": Recorded(
                lambda: tf.raw_ops.StatelessRandomPoisson(shape=[2], seed=SEED, lam=2.0, dtype=tf.int32),
                ("StatelessRandomPoisson",),
            ),
        },
    ),
    Row(
        "functions of ``np.random`` and of Python's ``random``",
        RECORDED,
        "``Migration(seed_numpy=True)`` seeds both before each program. Elsewhere, seed them in both programs, or "
        "draw before the scopes and pass both programs the numbers.",
        {
            "np.random": Recorded(lambda: np.random.normal(size=3), ("np.random.normal",)),
            "np.random.sample": Recorded(lambda: np.random.sample(3), ("np.random.sample",)),
            "random": Recorded(lambda: random.sample(range(9), 3), ("random.sample",)),
        },
    ),
    Row(
        "generators that are made in the scope: ``np.random.default_rng``, ``np.random.RandomState``, "
        "``np.random.Generator``, ``random.Random``",
        RECORDED,
        "The record is of the line that makes the generator, not of its draws. Make it with the same seed in both "
        "programs.",
        {
            "default_rng": Recorded(lambda: np.random.default_rng().normal(), ("np.random.default_rng",)),
            "default_rng, seed": Recorded(lambda: np.random.default_rng(3).normal(), ("np.random.default_rng",)),
            "RandomState": Recorded(lambda: np.random.RandomState(3).rand(), ("np.random.RandomState",)),
            "Generator": Recorded(lambda: np.random.Generator(np.random.PCG64(3)).random(), ("np.random.Generator",)),
            "random.Random": Recorded(lambda: random.Random(3).gauss(0, 1), ("random.Random",)),
            "random.SystemRandom": Recorded(lambda: random.SystemRandom().random(), ("random.Random",)),
        },
    ),
    Row(
        "draws in the function of ``tf.py_function``, ``tf.numpy_function``, ``tf.compat.v1.py_func`` and "
        "``Dataset.from_generator``, which TensorFlow calls in threads of its own; also those of TensorFlow and Keras "
        "in it. Eager calls of these functions are like other eager code.",
        RECORDED,
        "Draw outside of the function, and pass it the numbers.",
        {
            "py_function": Recorded(
                lambda: in_session(lambda: 1 + np.random.rand(), tf.float64, tf.py_function), ("np.random.rand",)
            ),
            "py_func": Recorded(
                lambda: in_session(lambda: random.gauss(0, 1), tf.float64, v1.py_func), ("random.gauss",)
            ),
            "numpy_function": Recorded(lambda: in_session(np.random.rand, tf.float64), ("np.random.rand",), in_session),
            "AutoGraph": Recorded(in_converted_function, ("np.random.rand",), in_converted_function),
            "map": Recorded(
                lambda: list(numbers(1).map(lambda _: tf.py_function(np.random.rand, [], tf.float64))),
                ("np.random.rand",),
            ),
            "from_generator": Recorded(in_generator, ("np.random.rand",), in_generator),
            "TensorFlow op": Recorded(
                lambda: in_session(lambda: tf.random.normal(()), tf.float32, tf.py_function), ("RandomStandardNormal",)
            ),
            "Keras": Recorded(
                lambda: in_session(lambda: keras.random.normal((), seed=1), tf.float32, tf.py_function),
                ("StatelessRandomNormalV2",),
            ),
        },
    ),
    Row(
        "data that Keras shuffles in Python: ``PyDataset`` and ``Sequence`` in ``fit(shuffle=True)``, "
        "``image_dataset_from_directory`` and its relatives, ``timeseries_dataset_from_array``, ``split_dataset``, "
        "``ImageDataGenerator``",
        RECORDED,
        "Pass ``shuffle=False``, and shuffle with ``Dataset.shuffle``. What is drawn in ``__getitem__`` is recorded "
        "like other code, in threads (``workers``), too, but not in other processes (``use_multiprocessing``).",
        {
            "PyDataset": Recorded(lambda: fitted(keras, lambda: (Batches(),)), ("random.shuffle",), fitted),
            "PyDataset, workers": Recorded(
                lambda: fitted(keras, lambda: (Batches(workers=2),)), ("random.shuffle",), fitted
            ),
            "Sequence": Recorded(lambda: fitted(tf_keras, lambda: (Sequence(),)), ("random.shuffle",), fitted),
            "images": Recorded(lambda: images_of_folder(keras), _FROM_FOLDER, images_of_folder),
            "images, tf_keras": Recorded(lambda: images_of_folder(tf_keras), _FROM_FOLDER, images_of_folder),
            "texts": Recorded(texts_of_folder, _FROM_FOLDER, texts_of_folder),
            "time series": Recorded(
                lambda: keras.utils.timeseries_dataset_from_array(np.arange(9.0), None, 3, shuffle=True), _FROM_FOLDER
            ),
            "split_dataset": Recorded(
                lambda: keras.utils.split_dataset(np.arange(9), 0.5, shuffle=True), ("random.randint", "random.shuffle")
            ),
            "ImageDataGenerator": Recorded(lambda: _FLIPS.get_random_transform((8, 8, 3)), ("np.random.random",)),
        },
    ),
    Row(
        "random functions of PyTorch in the program's own code that are not in the list of :doc:`torch`, such as "
        "``torch.poisson`` and ``exponential_``; ``torch.nn.init``, initial values of ``torch.nn``, "
        "``DataLoader(shuffle=True)``",
        RECORDED,
        "Draw with one that is in the list, with ``keras.random``, which is controlled on every backend, or with "
        ":doc:`detrand.philox <philox>`. Draws in a program of ``torch.compile`` and dropout in PyTorch's LSTM "
        "are not seen.",
        {
            "torch.poisson": Recorded(lambda: torch().poisson(torch().ones(3)), ("torch.poisson",)),
            "in place": Recorded(lambda: torch().zeros(3).exponential_(), ("torch.Tensor.exponential_",)),
            "bernoulli_": Recorded(lambda: torch().zeros(3).bernoulli_(), ("torch.Tensor.bernoulli_",)),
            "nn.Linear": Recorded(lambda: torch().nn.Linear(2, 3, bias=False), ("torch.Tensor.uniform_",)),
            "DataLoader": Recorded(
                lambda: list(torch().utils.data.DataLoader(torch().arange(4), shuffle=True)), ("torch.randperm",)
            ),
        },
    ),
    Row(
        "``jax.random`` in the program's own code",
        RECORDED,
        "Draw with ``keras.random`` or :doc:`detrand.philox <philox>`. A compiled function is recorded when it is "
        "traced.",
        {
            "jax.random": Recorded(lambda: jax().random.normal(jax().random.key(3), (2,)), ("jax.random.normal",)),
            "jax.jit": Recorded(
                lambda: jax().jit(lambda key: 1 + jax().random.bits(key))(jax().random.key(3)), ("jax.random.bits",)
            ),
        },
    ),
    Row(
        "``nnx.Rngs`` of Flax in the program's own code: methods that draw other than normal and uniform numbers",
        RECORDED,
        "Nothing for ``rngs.normal``, ``rngs.uniform`` and ``nnx.Dropout``, which are controlled. Else draw with "
        ":doc:`detrand.philox <philox>`. Initial values of Flax's layers, which come from keys, are not seen.",
        {
            "Rngs": Recorded(lambda: nnx().Rngs(3).bernoulli(0.5, (2,)), ("nnx.Rngs.bernoulli",)),
            "stream": Recorded(lambda: nnx().Rngs(3).noise.gumbel((2,)), ("nnx.Rngs.gumbel",)),
        },
    ),
    Row(
        "draws of a generator of NumPy or Python that was made before the scope, also by a library that keeps one "
        "(SciPy's distributions); functions that were imported by name before it (``from numpy.random import "
        "normal``); ``os.urandom``, ``secrets``, ``uuid``; draws in other processes",
        UNSEEN,
        "Make the generator in the scope, or pass the numbers in.",
        {
            "NumPy's generator": np.random.default_rng(3).normal,
            "Python's generator": random.Random(3).random,
            "imported by name": np.random.rand,
        },
    ),
)


def text_of(table: tuple[Row, ...]) -> str:
    """Return a table as reStructuredText."""
    lines = [".. list-table::", "    :header-rows: 1", "    :widths: 45 20 35", ""]
    for cells in (("source of randomness", "in a scope", "what to do in the port"), *(row[:3] for row in table)):
        lines += [f"    {'*' if number == 0 else ' '} - {cell}" for number, cell in enumerate(cells)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(text_of(TABLE), end="")
