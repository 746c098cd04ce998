"""The variables of a program, by the names that they have in a TF1 checkpoint.

- `spec`: `VariableSpec`, the shape, dtype and trainable flag of a variable.
- `sources`: `variables_of`, the variables of a graph, layer, module, list or checkpoint; parts joined.
- `checkpoint_files`: the specs in a checkpoint, and the reason why a path cannot be read as a checkpoint.
- `comparison`: `assert_variables_match`, and name maps.
- `pairing`: the pairing of variables whose names differ, by names, shapes and order.
- `creation`: the two scopes that report variables that a model creates again in a later call.
- `forms`: `Rearranged`, for variables that the port has in a different form, and where each element is.
- `rnn_cells`: the name maps of TF1's recurrent cells.
- `torch_modules`: the variables of a ``torch.nn.Module``, and the forms of its kernels.
- `flax_modules`: the variables of a ``flax.nnx.Module``.
- `tf1_view`: `TF1View`, the variables of a program by their TF1 names and in TF1's form.
- `reset`: `reset_variables`.
"""
