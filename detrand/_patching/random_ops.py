"""The table of TensorFlow's random ops: the generated function of each, which every draw goes through."""

from __future__ import annotations

from detrand._patching.patches import Target

_RANDOM = "tensorflow.python.ops.gen_random_ops"
_SAMPLING = "tensorflow.python.ops.gen_candidate_sampling_ops"
_IMAGE = "tensorflow.python.ops.gen_image_ops"
_NN = "tensorflow.python.ops.gen_nn_ops"

# Every op that draws from attributes (seed, seed2) and counts its runs. tests/conformance compares this table with
# TensorFlow's registry of ops.
RANDOM_OPS = {
    "RandomUniform": Target(_RANDOM, "random_uniform", ("shape", "dtype", "seed", "seed2", "name")),
    "RandomUniformInt": Target(_RANDOM, "random_uniform_int", ("shape", "minval", "maxval", "seed", "seed2", "name")),
    "RandomStandardNormal": Target(_RANDOM, "random_standard_normal", ("shape", "dtype", "seed", "seed2", "name")),
    "TruncatedNormal": Target(_RANDOM, "truncated_normal", ("shape", "dtype", "seed", "seed2", "name")),
    "RandomGamma": Target(_RANDOM, "random_gamma", ("shape", "alpha", "seed", "seed2", "name")),
    "RandomShuffle": Target(_RANDOM, "random_shuffle", ("value", "seed", "seed2", "name")),
    "ParameterizedTruncatedNormal": Target(
        _RANDOM,
        "parameterized_truncated_normal",
        ("shape", "means", "stdevs", "minvals", "maxvals", "seed", "seed2", "name"),
    ),
    "RandomPoisson": Target(_RANDOM, "random_poisson", ("shape", "rate", "seed", "seed2", "name")),
    "RandomPoissonV2": Target(_RANDOM, "random_poisson_v2", ("shape", "rate", "seed", "seed2", "dtype", "name")),
    "Multinomial": Target(_RANDOM, "multinomial", ("logits", "num_samples", "seed", "seed2", "output_dtype", "name")),
    "UniformCandidateSampler": Target(_SAMPLING, "uniform_candidate_sampler", ("true_classes", "num_true")),
    "LogUniformCandidateSampler": Target(_SAMPLING, "log_uniform_candidate_sampler", ("true_classes", "num_true")),
    "LearnedUnigramCandidateSampler": Target(
        _SAMPLING, "learned_unigram_candidate_sampler", ("true_classes", "num_true")
    ),
    "ThreadUnsafeUnigramCandidateSampler": Target(
        _SAMPLING, "thread_unsafe_unigram_candidate_sampler", ("true_classes", "num_true")
    ),
    "FixedUnigramCandidateSampler": Target(_SAMPLING, "fixed_unigram_candidate_sampler", ("true_classes", "num_true")),
    "AllCandidateSampler": Target(_SAMPLING, "all_candidate_sampler", ("true_classes", "num_true")),
    "RandomCrop": Target(_IMAGE, "random_crop", ("image", "size", "seed", "seed2", "name")),
    "SampleDistortedBoundingBox": Target(
        _IMAGE, "sample_distorted_bounding_box", ("image_size", "bounding_boxes", "seed", "seed2")
    ),
    "SampleDistortedBoundingBoxV2": Target(
        _IMAGE,
        "sample_distorted_bounding_box_v2",
        ("image_size", "bounding_boxes", "min_object_covered", "seed", "seed2"),
    ),
    "FractionalMaxPool": Target(_NN, "fractional_max_pool", ("value", "pooling_ratio")),
    "FractionalAvgPool": Target(_NN, "fractional_avg_pool", ("value", "pooling_ratio")),
}
_STATELESS, _STATELESS_V2 = (f"tensorflow.python.ops.gen_stateless_random_ops{version}" for version in ("", "_v2"))
_KEY_AND_COUNTER = ("key", "counter", "alg")
# Ops of tf.random.stateless_* and tf.random.Generator, whose inputs decide what they draw. The table leaves out the ops
# before TensorFlow 2.4, which only tf.raw_ops has.
EXPLICIT_OPS = {
    "StatelessRandomUniformV2": Target(_STATELESS_V2, "stateless_random_uniform_v2", ("shape", *_KEY_AND_COUNTER)),
    "StatelessRandomUniformFullIntV2": Target(
        _STATELESS_V2, "stateless_random_uniform_full_int_v2", ("shape", *_KEY_AND_COUNTER)
    ),
    "StatelessRandomUniformIntV2": Target(
        _STATELESS_V2, "stateless_random_uniform_int_v2", ("shape", *_KEY_AND_COUNTER)
    ),
    "StatelessRandomNormalV2": Target(_STATELESS_V2, "stateless_random_normal_v2", ("shape", *_KEY_AND_COUNTER)),
    "StatelessTruncatedNormalV2": Target(_STATELESS_V2, "stateless_truncated_normal_v2", ("shape", *_KEY_AND_COUNTER)),
    "StatelessRandomGammaV3": Target(_STATELESS_V2, "stateless_random_gamma_v3", ("shape", *_KEY_AND_COUNTER)),
    "StatelessShuffle": Target(_STATELESS_V2, "stateless_shuffle", ("value", *_KEY_AND_COUNTER)),
    "StatelessMultinomial": Target(_STATELESS, "stateless_multinomial", ("logits", "num_samples", "seed")),
    "StatelessParameterizedTruncatedNormal": Target(
        _STATELESS, "stateless_parameterized_truncated_normal", ("shape", "seed")
    ),
    "StatelessRandomBinomial": Target(_STATELESS, "stateless_random_binomial", ("shape", "seed")),
    "StatelessRandomPoisson": Target(_STATELESS, "stateless_random_poisson", ("shape", "seed")),
    "StatefulRandomBinomial": Target(
        "tensorflow.python.ops.gen_stateful_random_ops", "stateful_random_binomial", ("resource", "algorithm")
    ),
    "StatelessSampleDistortedBoundingBox": Target(
        _IMAGE, "stateless_sample_distorted_bounding_box", ("image_size", "bounding_boxes")
    ),
}
ACCIDENTAL_HITS = Target(_SAMPLING, "compute_accidental_hits", ("true_classes", "sampled_candidates", "num_true"))
RAW_OP_MODULES = tuple(f"tensorflow._api.v2.{part}raw_ops" for part in ("", "compat.v1.", "compat.v2."))
