"""The variables of a program, by the names that they have in a TF1 checkpoint.

spec         `VariableSpec`: shape, dtype and trainable flag of a variable
sources      `variables_of`: the variables of a graph, layer, module, list or checkpoint
partitioned  joined variables: a partitioned variable with all its parts
comparison   `assert_variables_match`, name maps, and the pairing of variables whose names differ
creation     the two scopes that find variables which a model creates instead of reusing its own
reset        `reset_variables`
"""
