"""Name-based TF1 checkpoints, loaded into the variables of a port and saved from them; and graphs in files.

- `loading`: `load_tf1_checkpoint`, `save_tf1_checkpoint` and `suggest_name_map`; also restores a TF1 session.
- `pairing`: the pairing of a checkpoint's variables with a program's, and the error if they do not fit.
- `training_state`: the variables of a checkpoint that only training needs (slots, averages, step counters).
- `graph_files`: `GraphFile`, a TF1 program that is a frozen graph, a SavedModel or a ``.meta`` file.
- `graph_definitions`: what is left out of such a graph before a session imports it.
- `upstream`: the walk from nodes of a graph to everything that they depend on.
"""
