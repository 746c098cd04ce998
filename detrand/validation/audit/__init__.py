"""The audit: the hyperparameters of both programs side by side.

- `audit`: the comparison.
- `hyperparameters`: the epsilons, momenta, rates, initializers and regularizers of a graph, of layers and of
  optimizers; a new one is read here.
- `initial_values`: the initial values of variables in words.
- `dataflow`: the variables and constants that tensors of a graph come from.
"""
