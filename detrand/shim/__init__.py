"""TF1 code unchanged inside a layer: where ``tf.compat.v1.get_variable`` leads, and what the layer then tracks."""
