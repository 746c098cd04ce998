"""The numbers that TensorFlow's stateful random ops draw, computed in NumPy alone.

What a stateful kernel with the attributes ``(seed, op_seed)`` draws on its ``run``-th execution (from 0), `n` numbers
at a time, is a pure function::

    start   = op_seed * 2**64 + run * n * 256               a 128-bit counter
    words   = Philox4x32-10(counter=start + g, key=seed)    four 32-bit words for each g = 0, 1, 2, ...
    numbers = distribution(words)

A 32-bit or smaller number takes one word, a 64-bit one takes two; Box-Muller makes two normals of two numbers' words.
The truncated normal discards normals that are too large, so its numbers come in groups (of four, or two of 64 bits)
that each have counters of their own: 64 for each number, 256 words. The gamma distribution discards too: each of its
numbers has 256 counters. So what is drawn depends on the shape only through n, and in run 0 not even on n: the first
numbers of a longer draw are those of a shorter one.

>>> uniform((3, 1), seed=42, op_seed=0) * 3
array([[2.5063772],
       [2.7488918],
       [1.4839486]], dtype=float32)

The kernels take ``(0, 0)`` to mean "no seed, be nondeterministic"; ``tf.compat.v1.get_seed`` gives them
``(0, 2**31 - 1)`` instead. The functions here do the same with ``seed=0, op_seed=0``.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, for Philox and its constants;
TensorFlow's CPU kernels ``RandomUniform``, ``RandomUniformInt``, ``RandomStandardNormal``, ``TruncatedNormal`` and
``RandomGamma`` (``philox_random.h``, ``random_distributions.h``, ``random_op.cc``) for the rest.
"""

from detrand.philox.distributions import dropout_mask, normal, randint, truncated_normal, uniform
from detrand.philox.gamma import gamma
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
