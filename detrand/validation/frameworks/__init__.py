"""What a port needs of the framework on which it runs: tensors, calls, losses, gradients and updates.

- `tensorflow`: `Framework`, the interface, which is TensorFlow's by itself.
- `keras3`: Keras 3 on JAX or PyTorch.
- `torch`: a ``torch.nn.Module``.

The names and the layouts of a port's variables are in `detrand.variables`, and what it draws in `detrand.adapters`.
"""
