"""The checks of a migration, in the order of TensorFlow's guide: each compares what the two programs did.

- `registry`: the checks by name, and how one is run.
- `variables`: each variable is made once, and has its counterpart.
- `of_variables`: initial values and regularizers.
- `seeds`: numbers that a port repeats outside of a scope.
- `computation`: what both programs compute with the same weights and random numbers.
- `training`: training steps: both programs are trained, compared, and what differs is explained.
- `optimizers`: both optimizers, with gradients and steps that a training does not reach.
- `penalties`: penalties of weights that differ, in the losses or in the updates of both programs.
- `loss`: the ops at which total losses diverge, or the one number that explains them.
- `loss_faults`: known faults of a whole loss, such as labels and outputs that are exchanged.
- `loss_terms`: the terms of a loss that differ, however the programs add and average.
- `numbers`: the one number of a loss that differs, however the loss is written.
"""
