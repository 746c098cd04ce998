"""`Torch`: the framework of a port that is a ``torch.nn.Module``.

Its methods import PyTorch, which a process with such a port has imported.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from detrand._patching.keras import is_instance_of_loaded
from detrand._patching.optimizers import is_torch_optimizer
from detrand._patching.torch import is_compiled
from detrand.changes import Changes, attribute_set
from detrand.errors import ComparisonError
from detrand.seeding import cursors
from detrand.validation.frameworks.framework import Compute, Framework, module_of
from detrand.validation.frameworks.traces import TracedPort
from detrand.validation.results import OwnForm
from detrand.variables.tf1_view import TF1View
from detrand.variables.torch_modules import TorchVariable, own_variables, torch_variables

_OWN_FORMS = {
    OwnForm.PAD_SAME: (
        "pad with torch.nn.functional.pad as TF1's SAME does, where the end of an axis may get one more than its "
        "start, and pass padding=0"
    ),
    OwnForm.CROP_SAME: (
        "pass padding=0, and crop what the layer returns as TF1's SAME does: (kernel_size - stride) // 2 from the "
        "start of each axis, and what is left of kernel_size - stride from its end"
    ),
    OwnForm.FLATTEN_AXES: (
        "permute the image to channels last before it is flattened, or rearrange the kernel after it: "
        "dense_to_torch(name, flattened=shape)"
    ),
    OwnForm.UNFLATTEN_AXES: ("give the array the shape of an image with its channels last, and permute it then"),
    OwnForm.PIXEL_CENTERS: (
        "PyTorch has no align_corners=False of TF1: compute the positions as TF1 does, without the half pixel"
    ),
    OwnForm.CHANNELS_OF_BLOCK: (
        "put the channels of each block of size r in TF1's order: x.unflatten(1, (r * r, -1)).transpose(1, 2)"
        ".flatten(1, 2) before pixel_shuffle, x.unflatten(1, (-1, r * r)).transpose(1, 2).flatten(1, 2) after "
        "pixel_unshuffle"
    ),
    OwnForm.VARIANCE_OF_ALL: "pass correction=0 to var or std in the port, whose default is 1",
    OwnForm.RADIUS_OF_RESPONSES: "use size = 2 * {tf1} + 1 in the port, whose window has this size",
    OwnForm.ALPHA_OF_RESPONSES: "use alpha = {tf1} * size in the port: PyTorch divides it by the size of the window",
    OwnForm.FROM_LOGITS: (
        "in the port, call torch.nn.functional.cross_entropy or binary_cross_entropy_with_logits, which read logits"
    ),
    OwnForm.FROM_PROBABILITIES: (
        "in the port, call torch.nn.functional.binary_cross_entropy, or nll_loss with the logarithms of the outputs"
    ),
    OwnForm.EXCHANGE: "exchange labels and outputs in the port; losses of PyTorch take (input, target)",
    OwnForm.SMOOTH_LABELS: (
        "smooth the labels in the port, as label_smoothing={tf1} does in torch.nn.functional.cross_entropy"
    ),
    OwnForm.BATCH_FIRST: "pass batch_first=True to the layer",
    OwnForm.FREEZE: "call requires_grad_(False) in the port on {tf1}",
    OwnForm.TRAIN_ROWS: "leave out padding_idx of torch.nn.Embedding, which keeps a row from being trained",
    **{
        form: f"clip them in a function that is passed to optimizer.register_step_pre_hook in the port: {call}"
        for form, call in (
            (OwnForm.CLIP_GLOBAL_NORM, "torch.nn.utils.clip_grad_norm_(parameters, {tf1})"),
            (OwnForm.CLIP_EACH_NORM, "for each in parameters: torch.nn.utils.clip_grad_norm_([each], {tf1})"),
            (OwnForm.CLIP_ELEMENTS, "torch.nn.utils.clip_grad_value_(parameters, {tf1})"),
        )
    },
    OwnForm.EPSILON_OF_ADAM: (
        "in step t, from 1 on, set the epsilon of PyTorch's Adam to TF1's / sqrt(1 - beta_2**t), in a step_pre_hook"
    ),
    OwnForm.BIAS_OF_ADAM: (
        "in step t, from 1 on, multiply the learning rate of PyTorch's Adam by (1 - beta_1**t) / sqrt(1 - beta_2**t), "
        "divide its epsilon by this root, and the weight_decay of AdamW by the factor, in a step_pre_hook"
    ),
    OwnForm.INITIAL_RMS: (
        "give each parameter a state before the first step: optimizer.state[each] = dict(step=torch.zeros(()), "
        "square_avg=torch.ones_like(each)), and zeros as momentum_buffer with a momentum, as grad_avg if centered"
    ),
    OwnForm.SCHEDULE: (
        "step a schedule of torch.optim.lr_scheduler that computes what {tf1} does in TF1: "
        "optimizer.register_step_post_hook(lambda *_: schedule.step())"
    ),
    OwnForm.KEEP_ROWS: (
        "put the rows without gradients back after each update, those of the optimizer's state, too, in a function "
        "that is passed to optimizer.register_step_post_hook in the port"
    ),
}


class Torch(Framework):
    """PyTorch, on the CPU."""

    no_graph = "the port is a torch.nn.Module, of which only layers show hyperparameters"
    remedy = "return more tensors from both programs: the first one that differs shows the layer"
    why_no_strategy = "is a torch.nn.Module, and a strategy has replicas on TensorFlow only; leave out strategy"
    why_no_policy = (
        "is a torch.nn.Module, which no dtype policy of Keras governs; leave out dtype_policy, and return a module in "
        "float32"
    )
    draws_initial_values = adds_losses = passes_training = False
    stop_gradient = "detach() or torch.no_grad()"
    own_forms = _OWN_FORMS

    def check(self, model: Any) -> None:
        """Raise a `ValueError` for a module that is compiled, not complete, or not on the CPU."""
        import torch

        module = module_of(model)
        for path, each in module.named_modules():
            compilers = {"compile": is_compiled(each), "jit": isinstance(each, torch.jit.ScriptModule)}
            for name in (name for name, has_compiled in compilers.items() if has_compiled):
                what = f"a module whose part {path}" if path else "a module that"
                raise ValueError(
                    f"returned {what} torch.{name} has compiled, whose random numbers cannot be controlled. Return the "
                    "module itself"
                )
        for name, parameter in module.named_parameters():
            if torch.nn.parameter.is_lazy(parameter):
                raise ValueError(
                    f"returned a module whose parameter {name} is made by its first call. Call the module once inside "
                    "port, for example with zeros"
                )
        for name, variable in torch_variables(module).items():
            device = variable.tensor.device
            if device.type != "cpu":
                raise ValueError(
                    f"returned a module whose {name} is on the device {device}. TF1 and the port are compared "
                    "on the CPU: return module.cpu()"
                )

    def function(self, model: Any, inputs: int) -> Callable[..., Any]:
        """Return a function that puts the module into training or inference mode and calls it."""
        module = module_of(model)

        def called(*given: Any, training: bool) -> Any:
            module.train(training)
            return model(*given)

        return called

    def parameters(self, model: Any) -> dict[str, Any]:
        """Return the parameters of the module by name."""
        return dict(module_of(model).named_parameters())

    def tensor(self, array: Any) -> Any:
        """Return an array as a tensor."""
        import torch

        return torch.tensor(np.asarray(array))

    def loss_and_gradients(
        self, compute: Compute, trained: Callable[[], Sequence[Any]], model: Any
    ) -> tuple[Any, Sequence[Any]]:
        """Return the values and the gradients."""
        loss, others = compute()
        return others, gradients_of(loss, [variable.tensor for variable in trained()])

    @contextlib.contextmanager
    def sample_variances(self) -> Iterator[list[tuple[np.ndarray, int]]]:
        """Yield a list, to which each batch normalization of the block adds the variance and size of its sample."""
        import torch

        found: list[tuple[np.ndarray, int]] = []

        def note(input: Any, *args: Any, **kwargs: Any) -> None:
            axes = [axis for axis in range(input.dim()) if axis != 1]
            size = input.numel() // input.shape[1]
            if size > 1:
                found.append((array_of(input.var(axes)), size))

        with _noting_calls(torch.nn.functional, "batch_norm", note):
            yield found

    @contextlib.contextmanager
    def dropout_rates(self) -> Iterator[set[float] | None]:
        """Yield a set, to which each dropout of the block adds its rate."""
        import torch

        found: set[float] = set()

        def note(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
            found.update([p] if training and p else [])

        with _noting_calls(torch.nn.functional, "dropout", note):
            yield found

    def weights(self, layer: Any) -> Sequence[Any]:
        """Return the variables of a module, without those of the modules in it."""
        return own_variables(layer)

    def hyperparameter(self, layer: Any, name: str) -> Any:
        """Return an attribute of a layer as Keras has it; PyTorch's momentum is that of the new value."""
        value = getattr(layer, {"epsilon": "eps", "rate": "p"}.get(name, name), None)
        return 1 - value if name == "momentum" and isinstance(value, float) else value

    def own_form(self, form: OwnForm, tf1: str) -> str:
        """Return how to do in PyTorch what TF1 does, given TF1's value; empty if that is as in Keras."""
        if form is OwnForm.MOMENTUM:
            return f"pass momentum={1 - float(tf1):g}: in PyTorch, it is the share of the new value"
        return super().own_form(form, tf1)

    def traced(
        self,
        model: Any,
        compute: Callable[[Callable[..., Any]], Any],
        view: TF1View,
        line_of: Callable[[Any], str],
    ) -> TracedPort | None:
        """Return the module as a port whose ops can be watched."""
        from detrand.validation.frameworks.torch_trace import TorchTrace

        module = module_of(model)
        paths = {id(each): path.replace(".", "/") for path, each in module.named_modules()}
        variables = {
            path.replace(".", "/"): (variable, variable.tensor) for path, variable in torch_variables(module).items()
        }
        return TorchTrace(module, compute, view, line_of, paths, variables)

    def check_optimizer(self, optimizer: Any) -> None:
        """Raise a `ComparisonError` unless it is an optimizer of ``torch.optim``."""
        if not is_torch_optimizer(optimizer):
            raise ComparisonError(
                f"port_optimizer returned {type(optimizer).__name__}, which cannot update a torch.nn.Module. Write "
                "port_optimizer=lambda parameters: torch.optim.Adam(parameters, 0.001), for example"
            )

    def update(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]], **arguments: Any) -> None:
        """Make a step of an optimizer of ``torch.optim``, which leaves parameters without a gradient as they are."""
        optimizer.zero_grad()
        for gradient, variable in pairs:
            variable.tensor.grad = gradient
        optimizer.step()
        optimizer.zero_grad()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's own generator in the block, if PyTorch is imported, and let it fill the tensors of a module."""
    torch = sys.modules.get("torch")
    with Changes() as changes:
        for stream in cursors.open_streams():
            changes.set(stream, "torch_initializes", True)
        if torch is not None:
            changes.restore("PyTorch's random state", torch.get_rng_state, torch.set_rng_state)
            torch.default_generator.manual_seed(seed)
        yield


def _noting_calls(owner: Any, name: str, note: Callable[..., None]) -> contextlib.AbstractContextManager[None]:
    """Return a scope that calls a function with the arguments of each call of another one before that runs."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    return attribute_set(owner, name, noted)


def is_torch_tensor(leaf: Any) -> bool:
    """Return whether a leaf is a tensor of PyTorch, without importing it."""
    return is_instance_of_loaded(leaf, "torch", "Tensor")


def array_of(tensor: Any) -> np.ndarray:
    """Return a tensor as an array."""
    return np.copy(tensor.detach().cpu().numpy())


def gradients_of(loss: Any, tensors: Sequence[Any]) -> list[Any]:
    """Return the gradients of a scalar; None where it does not depend on a tensor."""
    import torch

    if not tensors or not loss.requires_grad:
        return [None] * len(tensors)
    return list(torch.autograd.grad(loss, tensors, allow_unused=True))


def parameters_of(variables: Sequence[Any]) -> list[Any]:
    """Return the parameters that some variables are; an example if there are none, or they are of another framework."""
    try:
        import torch
    except ImportError:
        return []
    tensors = [variable.tensor for variable in variables if isinstance(variable, TorchVariable)]
    return tensors or [torch.nn.Parameter(torch.zeros(1))]


def step_with_zeros(optimizer: Any) -> None:
    """Make a step of an optimizer with gradients of zeros: a function that is called before it may need gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = parameter.new_zeros(parameter.shape)
    optimizer.step()


def probed_module(shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Return a module with parameters of zeros by name, each of which has a gradient; see the probe of optimizers."""
    import torch

    class Probed(torch.nn.Module):
        def forward(self, gradients: Any, step: Any) -> Any:
            return sum(gradients.sum() * parameter.sum() for parameter in self.parameters())

    module = Probed()
    for name, shape in shapes.items():
        module.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    return module
