"""The table of TensorFlow's random ops: the generated function of each, which every draw goes through."""

from __future__ import annotations

import re

from detrand._patching.patches import Target

_RANDOM = "tensorflow.python.ops.gen_random_ops"
_SAMPLING = "tensorflow.python.ops.gen_candidate_sampling_ops"
_IMAGE = "tensorflow.python.ops.gen_image_ops"
_NN = "tensorflow.python.ops.gen_nn_ops"
_STATEFUL = "tensorflow.python.ops.gen_stateful_random_ops"
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
ACCIDENTAL_HITS = Target(_SAMPLING, "compute_accidental_hits", ("true_classes", "sampled_candidates", "num_true"))
RAW_OP_MODULES = tuple(f"tensorflow._api.v2.{part}raw_ops" for part in ("", "compat.v1.", "compat.v2."))
