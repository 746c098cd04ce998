"""Either program of a migration, run once in a run config.

- `outcome`: `RunConfig`, how a program is run, and `Outcome`, what it computed.
- `tf1`: the TF1 program, built in a graph and run in a session.
- `port`: the port, made by its factory and run eagerly, in a ``tf.function`` or in a functional model.
- `counterparts`: the random ops of TF1 whose numbers the random ops of the port draw.
- `layer_sites`: the lines that make the layers of a port.
- `replicas`: the replicas that a port runs on, and the TF1 program as towers.
- `distinct_weights`: weights that differ from variable to variable, and are equal in both programs.
- `calibration`: the scales of distinct weights with which activations are neither linear nor saturated.
- `activations`: the activations of a TF1 program, and whether a run exercises them.
- `sample_variances`: moving averages of a sample's variance, as they would be with the batch's.
- `update_order`: the order in which a TF1 graph updates and reads its variables.
"""
