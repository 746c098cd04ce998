"""TF1 checkpoints, by name, into the variables of a port."""
