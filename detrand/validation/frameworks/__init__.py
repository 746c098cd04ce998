"""What a port needs of the framework on which it runs: tensors, calls, losses, gradients, updates, a trace.

- `framework`: `Framework`, the interface.
- `tensorflow`: TensorFlow.
- `keras3`: Keras 3 on JAX or PyTorch.
- `torch`: a ``torch.nn.Module``.
- `flax`: a ``flax.nnx.Module``.
- `traces`: `TracedPort`, the interface of a port whose ops are watched, and `Trace`, what they have computed.
- `torch_trace`: `TorchTrace`, the `TracedPort` of PyTorch, for modules and for Keras 3.
- `torch_functions`: functions of PyTorch as ops of TensorFlow; `torch_losses`: its losses.
- `jax_trace`: `JaxTrace`, the `TracedPort` of JAX.
- `jax_programs`: programs of JAX as equations with what they compute.
- `jax_functions`: primitives and functions of JAX as ops of TensorFlow.
- `windows`: the windows of convolutions and pooling as attributes of TensorFlow.

The names and the layouts of a port's variables are in `detrand.variables`, and what it draws in `detrand.adapters`.
"""
