"""Adapters: a stream's numbers in each framework, with one module for each way of executing.

TensorFlow:

- `tensorflow`: plants seeds in every random op, in graphs, in functions and eagerly.
- `eager`: draws of ops that are executed eagerly, from key and counter or in a session.
- `control_flow`: loops, branches, functions and data sets: which ops are the same op nodes.
- `xla`, `xla_draws`: draws where XLA compiles a function, and the ops that compute them.
- `uncontrolled`: records of draws that no scope controls.

Keras:

- `keras3`: what Keras 3 draws, on any backend; `keras3_tensorflow`, `keras3_arrays` (PyTorch and NumPy) and
  `keras3_jax`: its random functions on each backend.
- `tf_keras`: what tf_keras draws.
- `keras_draws`: random functions of Keras 3 and tf_keras, which may draw in float32.

`formulas`: draws of TensorFlow 1's ops as NumPy functions of a counter.
"""
