"""The numbers that TensorFlow's stateful random ops draw, computed with NumPy only.

- `distributions`: uniform floats and integers, dropout masks, normals and truncated normals.
- `gammas`: the gamma distribution.
- `initializers`: initial weights whose scale depends on the variable's shape.
- `generator`: Philox4x32-10, which computes words from a key and counters, and its constants.
- `arguments`: the arguments that the functions have in common, described and checked.

The ``run``-th execution (from 0) of a stateful kernel with the attributes ``(seed, op_seed)`` draws `n` numbers, which
are a pure function of these::

    start   = op_seed * 2**64 + run * n * 256               a 128-bit counter
    words   = Philox4x32-10(counter=start + g, key=seed)    four 32-bit words for each g = 0, 1, 2, ...
    numbers = distribution(words)

A number of at most 32 bits takes one word, a 64-bit number takes two. Box-Muller makes two normals from the words of
two numbers. The truncated normal discards numbers that are too large, so each group of numbers (four, or two of 64
bits) has a separate range of counters: 64 counters, or 256 words, for each number. The gamma distribution discards
numbers too, and each number has 256 counters. The numbers depend on the shape only through n, so two shapes with the
same n get the same numbers. In run 0, a shorter draw is the beginning of a longer one.

>>> uniform((3, 1), seed=42, op_seed=0) * 3
array([[2.5063772],
       [2.7488918],
       [1.4839486]], dtype=float32)

To the kernels, ``(0, 0)`` means "nondeterministic", so ``tf.compat.v1.get_seed`` returns ``(0, 2**31 - 1)`` instead.
The functions here replace ``seed=0, op_seed=0`` in the same way.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, for Philox and its constants;
TensorFlow's CPU kernels ``RandomUniform``, ``RandomUniformInt``, ``RandomStandardNormal``, ``TruncatedNormal`` and
``RandomGamma`` (``philox_random.h``, ``random_distributions.h``, ``random_op.cc``) for the rest.
"""

from detrand.philox.distributions import dropout_mask, normal, randint, truncated_normal, uniform
from detrand.philox.gammas import gamma
from detrand.philox.initializers import glorot_uniform, variance_scaling

__all__ = [
    "dropout_mask",
    "gamma",
    "glorot_uniform",
    "normal",
    "randint",
    "truncated_normal",
    "uniform",
    "variance_scaling",
]
