"""The private names of each framework that detrand uses, and the machinery that replaces some of them.

- `patches`: checked, reversible replacement of functions (`Target`, `Patches`, `Shared`).
- `tensorflow`: eager kernels, seeds, control flow and other names of TensorFlow that have no module of their own here.
- `random_ops`: the table of TensorFlow's random ops.
- `function_traces`, `xla`: how a ``tf.function`` is traced, and compiled.
- `variables`: how TensorFlow creates, names and tracks variables.
- `graphs`: the bookkeeping of TF1 graphs (the names that variables get, collections, variable scopes, variable
  stores), and function graphs.
- `optimizers`: slots, learning rates and hyperparameters of optimizers.
- `keras`: layers and variables of Keras 3 and tf_keras.
- `keras3_random`, `jax_draws`: what Keras 3 draws with on each backend.
- `torch`: what PyTorch draws with, and what it compiles.
- `flax`: what Flax draws with, its modules in a trace, and what an optimizer of optax is made of.

A module here has targets of patches, and small functions that read private state. What detrand does with these names is
in the other packages, which name nothing private. If a release of a framework renames one of them, entering a scope
raises `PatchError` with the name: change the `Target` that has it. A new `Target` goes into the module of its topic.
"""
