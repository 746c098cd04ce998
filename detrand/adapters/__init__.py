"""The adapters, which make each framework draw a stream's numbers; there is one module for each way of executing.

TensorFlow:

- `tensorflow`: plants seeds in every random op, in graphs, in functions and eagerly.
- `eager`: draws of ops that are executed eagerly, from key and counter or in a session.
- `control_flow`: decides, in loops, branches, functions and datasets, which executions are runs of the same op node.
- `xla`: draws where XLA compiles a function, computed by the formulas of `detrand.philox`.

Keras:

- `keras3`: what Keras 3 draws, on any backend.
- `keras3_tensorflow`: its random functions on TensorFlow.
- `keras3_arrays`: its random functions on PyTorch and NumPy, drawn by `detrand.philox`.
- `keras3_jax`: the same functions on JAX, which may compile them.
- `tf_keras`: what tf_keras draws.
- `keras_draws`: what both have in common: random functions, which draw in float32 in mixed precision, as TF1 does, and
  recurrence.

PyTorch and Flax:

- `modules`: what their layers and random functions draw.

Shared by all:

- `counter_draws`: draws of TensorFlow 1's ops as NumPy functions of a counter.
- `uncontrolled`: records of draws that no scope controls.

Where TensorFlow is not installed, its modules, `keras3_tensorflow` and `tf_keras` are not imported.
"""
