"""The variables of a program, by the names that they have in a TF1 checkpoint.

- `spec`: `VariableSpec`, the shape, dtype and trainable flag of a variable.
- `sources`: `variables_of`, the variables of a graph, layer, module, list or checkpoint.
- `checkpoint_files`: the specs in a checkpoint, and the reason why a path cannot be read as a checkpoint.
- `partitioned`: joined variables, that is, a partitioned variable with all its parts.
- `comparison`: `assert_variables_match`, name maps, and the pairing of variables whose names differ.
- `creation`: the two scopes that find variables which a model creates instead of reusing its own.
- `reset`: `reset_variables`.
"""
