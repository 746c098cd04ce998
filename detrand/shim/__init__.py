"""The shim: TF1 code that runs unchanged in a method of a Keras layer or a ``tf.Module``, which tracks its variables.

From top to bottom:

- `layer`: `VariableScopeLayer`, a Keras layer with TF1 code in its forward pass.
- `decorator`: `track_tf1_style_variables` and `get_or_create_layer`. A call of a decorated method seems to build a TF1
  graph.
- `forward_pass`: a scope in which placeholders are fed by name, and TF1 optimizers update nothing.
- `variable_store`: where ``get_variable`` and ``tf.Variable`` find or create a variable, under the name that
  `_patching.graphs` decides.
- `owners`: how Keras 3 layers, tf_keras layers and modules track the variables, losses and layers of their methods.
- `dispatchers`: the functions of TensorFlow and Keras that behave differently inside an emulated graph.
- `emulated_graph`: the graph that looks empty to each call, and how a nested call continues the graph of the outer
  call.
- `v1_layers`: `enable_v1_layers`, which brings ``tf.compat.v1.layers`` back.
"""
