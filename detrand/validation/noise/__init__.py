"""The noise floor: how far only rounding moves what a TF1 program computes, measured without the port.

- `floor`: `NoiseFloor` and `TrainingNoise`, and the tolerance of a port that follows from them.
- `variants`: the variants of a program that compute the same numbers but round differently, and sessions that run them.
- `graph_rewrites`: the ``GraphDef`` of a variant: reductions reordered, computed in float64, rounded to half precision.
- `measurement`: a program is run in all variants, and its outputs are compared with the program's own.

`detrand.validation.training.noise` measures the noise floor of a training.

Perturbed weights and inputs (Monte Carlo arithmetic) cannot replace the rewrites of graphs, because they do not show
rounding inside an op: ``docs/tolerances.rst`` has the cases.
"""
