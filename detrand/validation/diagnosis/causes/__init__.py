"""The likely causes of a difference, each with its remedy.

A new cause is one more function, in the module of the evidence that shows it. `causes`, `causes_of_loss` or
`causes_of_training` calls it.

- `cause`: a likely cause, the forms in which causes are written, and the words for ops in them.
- `arrays`: causes that arrays show: their shape, the arrangement of their elements, their axes, a mask, a factor.
- `values`: causes that are values: attributes, hyperparameters, and the numbers that the programs take.
- `ops`: causes that the ops show: which ops only one program has, in which order, and what they take.
- `computation`: `causes` of a difference of two computations, which asks these in order.
- `loss`: causes of a difference of two losses, by which labels and outputs these take.
- `updates`: causes of a difference of two updates, such as optimizers and the clipping of gradients.
- `averages`: causes of a difference of moving averages, of weights and of normalizations.
- `training`: `causes_of_training`, the causes of each part of a training step that differs.
"""
