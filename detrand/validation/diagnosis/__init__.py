"""The diagnosis: where two programs diverge, and the likely causes.

- `trace`: the ops of either program and what they computed.
- `loops`: loops as straight code, in which each iteration has ops of its own.
- `port_graph`: the port as a graph in which any tensor can be given TF1's value.
- `matching` (a package): two traces side by side: which tensors hold the same numbers, and where the programs diverge.
- `layer_order`: the layers that the programs compute in different orders.
- `divergence`: a place where the programs diverge.
- `candidates`: the pairs of tensors of which the port's may get TF1's value.
- `trials`: the substitutes that may make the rest agree: TF1's tensors, attributes, constants and hyperparameters.
- `substitutes`: the trials after which more agrees; the port runs with one after the other.
- `edits`: one op of the port left out, replaced or added, after which the outputs agree.
- `search`: the search for all divergences; each is confirmed by giving the port TF1's value.
- `op_kinds`: the kinds of ops, of which only one program may have some.
- `causes`: the likely causes of a difference of two computations, losses or trainings; a new cause goes here.
- `name_map`: the pairs of variables that both programs use alike, whatever their names are.
"""
