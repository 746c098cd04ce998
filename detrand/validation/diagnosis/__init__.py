"""The diagnosis: where two programs diverge, and the likely causes.

- `trace`: the ops of either program and what they computed.
- `port_graph`: the port as a graph in which any tensor can be given TF1's value.
- `divergence`: where the traces of two programs diverge; each place is confirmed by giving the port TF1's value.
- `depth`: how far apart the tensors of both programs are, for a chart.
- `op_kinds`: the kinds of ops, of which only one program may have some.
- `causes`: the likely causes of a difference; a new cause goes here.
- `remedies`: what to change in the port, by the cause.
- `audit`: the hyperparameters of both programs side by side.
- `hyperparameters`: the epsilons, momenta, rates, initializers and regularizers of a graph, of layers and of
  optimizers; a new one is read here.
- `initial_values`: the initial values of variables in words.
- `name_map`: the pairs of variables that both programs use alike, whatever their names are.
- `name_search`: the pairs of variables that are used alike, by the values that both programs compute.
- `dataflow`: the variables and constants that tensors of a graph come from.
"""
