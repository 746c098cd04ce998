"""Two traces side by side: which of their tensors hold the same numbers, and where they diverge.

Names do not matter, nor how many ops make up a layer: a tensor has a counterpart if the other program computes the same
numbers anywhere, in any shape. The programs diverge at an op that has no counterpart and from which no op with a
counterpart is computed, while everything that it is computed from has one.

- `tensors`: the tensors that have a counterpart, and how far apart the others are.
- `program`: one of the two programs, with what its ops without a counterpart take, draw and mask.
- `comparison`: both programs, the ops that may make the difference, and the first divergence.
- `stops`: the ops of only one program that stop gradients.
"""
