"""The table of TensorFlow's random ops: the generated function of each, which every draw goes through."""

from __future__ import annotations

import itertools
import re
from typing import Any

from detrand._patching.patches import Target

_RANDOM = "tensorflow.python.ops.gen_random_ops"
_SAMPLING = "tensorflow.python.ops.gen_candidate_sampling_ops"
_IMAGE = "tensorflow.python.ops.gen_image_ops"
_NN = "tensorflow.python.ops.gen_nn_ops"
_STATEFUL = "tensorflow.python.ops.gen_stateful_random_ops"
_DATASET, _EXPERIMENTAL_DATASET = (f"tensorflow.python.ops.gen_{kind}dataset_ops" for kind in ("", "experimental_"))
_STATELESS, _STATELESS_V2 = (f"tensorflow.python.ops.gen_stateless_random_ops{version}" for version in ("", "_v2"))
_SEEDS = ("seed", "seed2")
_KEY_AND_COUNTER = ("key", "counter", "alg")


def _targets(*ops: tuple[str, ...]) -> dict[str, Target]:
    """Return the generated function of each op, named after its type, for rows of module, op type and parameters."""
    return {
        op_type: Target(module, re.sub("(?<!^)(?=[A-Z])", "_", op_type).lower(), tuple(parameters))
        for module, op_type, *parameters in ops
    }


# Every op that draws from attributes (seed, seed2) and counts its runs. tests/conformance compares this table with
# TensorFlow's registry of ops.
RANDOM_OPS = _targets(
    (_RANDOM, "RandomUniform", "shape", "dtype", *_SEEDS, "name"),
    (_RANDOM, "RandomUniformInt", "shape", "minval", "maxval", *_SEEDS, "name"),
    (_RANDOM, "RandomStandardNormal", "shape", "dtype", *_SEEDS, "name"),
    (_RANDOM, "TruncatedNormal", "shape", "dtype", *_SEEDS, "name"),
    (_RANDOM, "RandomGamma", "shape", "alpha", *_SEEDS, "name"),
    (_RANDOM, "RandomShuffle", "value", *_SEEDS, "name"),
    (_RANDOM, "ParameterizedTruncatedNormal", "shape", "means", "stdevs", "minvals", "maxvals", *_SEEDS, "name"),
    (_RANDOM, "RandomPoisson", "shape", "rate", *_SEEDS, "name"),
    (_RANDOM, "RandomPoissonV2", "shape", "rate", *_SEEDS, "dtype", "name"),
    (_RANDOM, "Multinomial", "logits", "num_samples", *_SEEDS, "output_dtype", "name"),
    (_SAMPLING, "UniformCandidateSampler", "true_classes", "num_true"),
    (_SAMPLING, "LogUniformCandidateSampler", "true_classes", "num_true"),
    (_SAMPLING, "LearnedUnigramCandidateSampler", "true_classes", "num_true"),
    (_SAMPLING, "ThreadUnsafeUnigramCandidateSampler", "true_classes", "num_true"),
    (_SAMPLING, "FixedUnigramCandidateSampler", "true_classes", "num_true"),
    (_SAMPLING, "AllCandidateSampler", "true_classes", "num_true"),
    (_IMAGE, "RandomCrop", "image", "size", *_SEEDS, "name"),
    (_IMAGE, "SampleDistortedBoundingBox", "image_size", "bounding_boxes", *_SEEDS),
    (_IMAGE, "SampleDistortedBoundingBoxV2", "image_size", "bounding_boxes", "min_object_covered", *_SEEDS),
    (_NN, "FractionalMaxPool", "value", "pooling_ratio"),
    (_NN, "FractionalAvgPool", "value", "pooling_ratio"),
)
# Ops of tf.random.stateless_* and tf.random.Generator, whose inputs decide what they draw. The table leaves out the ops
# before TensorFlow 2.4, which only tf.raw_ops has.
EXPLICIT_OPS = _targets(
    (_STATELESS_V2, "StatelessRandomUniformV2", "shape", *_KEY_AND_COUNTER),
    (_STATELESS_V2, "StatelessRandomUniformFullIntV2", "shape", *_KEY_AND_COUNTER),
    (_STATELESS_V2, "StatelessRandomUniformIntV2", "shape", *_KEY_AND_COUNTER),
    (_STATELESS_V2, "StatelessRandomNormalV2", "shape", *_KEY_AND_COUNTER),
    (_STATELESS_V2, "StatelessTruncatedNormalV2", "shape", *_KEY_AND_COUNTER),
    (_STATELESS_V2, "StatelessRandomGammaV3", "shape", *_KEY_AND_COUNTER),
    (_STATELESS_V2, "StatelessShuffle", "value", *_KEY_AND_COUNTER),
    (_STATELESS, "StatelessMultinomial", "logits", "num_samples", "seed"),
    (_STATELESS, "StatelessParameterizedTruncatedNormal", "shape", "seed"),
    (_STATELESS, "StatelessRandomBinomial", "shape", "seed"),
    (_STATELESS, "StatelessRandomPoisson", "shape", "seed"),
    (_STATEFUL, "StatefulRandomBinomial", "resource", "algorithm"),
    (_IMAGE, "StatelessSampleDistortedBoundingBox", "image_size", "bounding_boxes"),
)
# Datasets that call their function for several elements at once.
PARALLEL_DATASETS = _targets(
    (_DATASET, "ParallelMapDatasetV2", "input_dataset", "other_arguments", "num_parallel_calls", "f"),
    (_DATASET, "ParallelInterleaveDatasetV4", "input_dataset", "other_arguments", "cycle_length"),
    (_EXPERIMENTAL_DATASET, "LegacyParallelInterleaveDatasetV2", "input_dataset", "other_arguments", "cycle_length"),
    (_EXPERIMENTAL_DATASET, "MapAndBatchDataset", "input_dataset", "other_arguments", "batch_size"),
)
# What starts several threads that draw from one op.
LEFT_TO_CHANCE = {*PARALLEL_DATASETS, "RandomShuffleQueueV2"}
# Ops that draw a next run in each call of the function that they are in.
_COUNTING = {*RANDOM_OPS, "RngReadAndSkip", "StatefulRandomBinomial"}
QUEUE_RUNNER = Target("tensorflow.python.training.queue_runner_impl", "QueueRunner.__init__", ("self", "queue"))
PYTHON_FUNCTION = Target("tensorflow.python.ops.script_ops", "_internal_py_func", ("func", "inp", "Tout"))
# What takes op seeds for ops that draw later: each dataset, when it is iterated over, and a queue.
DATASET = Target("tensorflow.python.data.ops.dataset_ops", "DatasetV2.__init__", ("self", "variant_tensor"))
SHUFFLING_QUEUE = Target("tensorflow.python.ops.gen_data_flow_ops", "random_shuffle_queue_v2", ("component_types",))
ACCIDENTAL_HITS = Target(_SAMPLING, "compute_accidental_hits", ("true_classes", "sampled_candidates", "num_true"))
RAW_OP_MODULES = tuple(f"tensorflow._api.v2.{part}raw_ops" for part in ("", "compat.v1.", "compat.v2."))


def op_type_of_seeded(dataset: Any) -> str:
    """Return the type of a dataset's op, without its version, if the op has an op seed; ``""`` if not.

    Versions differ between a session and eager mode: ``ShuffleDataset`` and ``ShuffleDatasetV3`` shuffle alike.
    """
    return re.sub(r"^_|V\d+$", "", type(dataset).__name__) if hasattr(dataset, "_seed") else ""


def counts_runs(function: Any) -> bool:
    """Return whether the function of a dataset, or one that it calls, has ops that draw a next run in each call."""
    if not hasattr(function, "graph"):  # TensorFlow 1's Defun
        return any(node.op in _COUNTING for node in function.definition.node_def)
    graph = function.graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
    return any(node.op in _COUNTING for node in nodes)
