"""The checks of a migration, in the order of TensorFlow's guide: each compares what the two programs did.

- `registry`: the checks by name, and how one is run.
- `variables`: each variable is made once, and has its counterpart.
- `of_variables`: initial values and regularizers.
- `seeds`: numbers that a port repeats outside of a scope.
- `computation`: what both programs compute with the same weights and random numbers.
- `training`: training steps, and the probe of both optimizers.
- `numbers`: the one number of a loss that differs, however the loss is written.
"""
