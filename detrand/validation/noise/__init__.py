"""The noise floor: how far rounding alone moves what a TF1 program computes, measured without the port.

- `floor`: `NoiseFloor` and `TrainingNoise`, and the tolerance of a port that follows from them.
- `variants`: the variants of a program that compute the same numbers but round differently, and sessions that run them.
- `graph_rewrites`: the ``GraphDef`` of a variant: reductions reordered, computed in float64, rounded to half precision.
- `measurement`: a program is run in all variants, and its outputs are compared with the program's own.

`detrand.validation.training.noise` measures the noise floor of a training.

Perturbed weights and inputs (Monte Carlo arithmetic) do not make the rewrites of graphs unnecessary: they do not show
what is rounded inside an op. Without the rewrites, four seeds with and without Grappler pass all sound migrations, but
19 of 120 outputs of sound rewordings fail, where 5 fail with them. Worst are a fused batch normalization of
16 x 56 x 56 pixels against `tf.nn.moments` (18 ULPs where 14 would be allowed, and 79 where 28 would be, if the pixels
are near 10), a global average by ``AvgPool`` (25 where 16), and a sum of 4000 squares by `tf.tensordot` (26 where 8).
With only the reductions reordered, the batch normalization still fails; with only float64, the sum of squares does.
"""
