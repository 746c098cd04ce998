"""What variables a program has, under the names of a TF1 checkpoint, and who creates them."""
