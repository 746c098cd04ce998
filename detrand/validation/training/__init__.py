"""Training: running either program of a migration for several steps, and comparing the steps.

- `steps`: `Training`, a recorded training, and what is recorded of a step of either program.
- `tf1`: the training of the TF1 program in a session.
- `train_op`: the update of TF1's step, by its optimizer or by the training op of the user.
- `port`: the training of the port, eagerly or in a ``tf.function``, on its own or guided by TF1.
- `loss`: the total loss as a program of labels and outputs, whose divergences can be found.
- `penalties`: what the total loss, or the update, adds for each variable, such as weight decay.
- `compare`: the comparison of two trainings, with the tolerance of each kind of value.
- `clipping`: what is done to gradients before they are applied, read from what is applied.
- `probe`: both optimizers with gradients and steps that a short training does not reach.
- `schedules`: the value in the port's schedule with which it computes TF1's learning rates.
- `noise`: how far rounding moves the numbers of TF1's training.
"""
