"""The private names of TensorFlow and Keras that detrand uses, and the machinery that replaces some of them.

- `patches`: checked, reversible replacement of functions (`Target`, `Patches`).
- `tensorflow`, `random_ops`, `function_traces`, `xla`, `op_registry`: TensorFlow's targets and questions.
- `tf1_graphs`: the bookkeeping of TF1 graphs: names, collections, variable scopes and stores.
- `keras`, `keras3_random`, `jax_draws`: those of Keras 3, tf_keras and JAX.
- `optimizer_slots`, `strategies`: what optimizers and distribution strategies keep.

No other package names a private module of TensorFlow or Keras.
"""
