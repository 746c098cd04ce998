"""Remedies for the exceptions that TF1 code raises in TensorFlow 2, by their messages: `remedy_of`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from detrand.packages import install

_WRITE_FUNCTION = "write @tf.function above @detrand.track_tf1_style_variables, so that the method builds a graph"
_IMPORT_V1 = "write `import tensorflow.compat.v1 as tf` in place of `import tensorflow as tf`"
_CONTRIB = (
    "TensorFlow 2 has no tf.contrib: copy examples/contrib.py of detrand, which has its most used functions, and "
    "import the model in `with contrib.tensorflow_1():`"
)
_LEGACY_KERAS = (
    "set the environment variable TF_USE_LEGACY_KERAS=1 before TensorFlow is imported: then tf.keras is Keras 2 "
    "(pip install tf_keras)"
)
# What Python 3 writes for a name, attribute or module of Python 2.
_PYTHON_3 = {
    "basestring": "str",
    "cPickle": "pickle",
    "has_key": "in",
    "iteritems": "items",
    "iterkeys": "keys",
    "itervalues": "values",
    "long": "int",
    "raw_input": "input",
    "reduce": "functools.reduce",
    "StringIO": "io",
    "unicode": "str",
    "urllib2": "urllib.request",
    "xrange": "range",
}
# What TensorFlow 1.0 renamed or removed, by its path in `tf`.
_RENAMED = {
    "batch_matmul": "matmul",
    "complex_abs": "abs",
    "histogram_summary": "summary.histogram",
    "image_summary": "summary.image",
    "merge_all_summaries": "summary.merge_all",
    "mul": "multiply",
    "neg": "negative",
    "nn.rnn": "nn.static_rnn",
    "nn.seq2seq": "contrib.legacy_seq2seq",
    "pack": "stack",
    "python.ops.seq2seq": "contrib.legacy_seq2seq",
    "scalar_summary": "summary.scalar",
    "select": "where",
    "sub": "subtract",
    "train.SummaryWriter": "summary.FileWriter",
    "unpack": "unstack",
}


def remedy_of(message: str) -> str:
    """Return what to do about an exception of TF1 code, by its message; an empty text if that is not known."""
    for pattern, remedy in _REMEDIES:
        found = re.search(pattern, message, re.DOTALL)
        if text := found and (remedy if isinstance(remedy, str) else remedy(found)):
            return text
    return ""


def _of_missing_name(found: re.Match[str]) -> str:
    """Return what to do about a name that a module of TensorFlow does not have."""
    module, name = found["module"], found["name"]
    path = re.sub(r"^(_api|v2|compat|v1|\.)+\b", "", module).strip(".")
    path = f"{path}.{name}" if path else name
    if path.partition(".")[0] == "contrib":
        return f"add {path} to the stand-in for tf.contrib" if "tensorflow.contrib" in sys.modules else _CONTRIB
    if path.partition(".")[0] == "estimator":
        return (
            "TensorFlow 2 has no tf.estimator: import the model in `with contrib.tensorflow_1():` of "
            "examples/contrib.py, which has its ModeKeys, and return the model's outputs in place of an EstimatorSpec"
        )
    if path in _RENAMED:
        return f"TensorFlow 1.0 renamed it: write tf.{_RENAMED[path]}"
    here = sys.modules["tensorflow"].compat.v1 if "v1" not in module.split(".") else None
    for part in path.split("."):
        here = getattr(here, part, None)
    if here is not None:
        return f"tf.{path} is in tf.compat.v1: {_IMPORT_V1}"
    return ""


def _of_python_2(found: re.Match[str]) -> str:
    """Return what to do about a name that only Python 2 has."""
    new = _PYTHON_3.get(found["name"])
    return f"the model is written for Python 2: write `{new}` in place of `{found['name']}`" if new else ""


def _of_keras_backend(found: re.Match[str]) -> str:
    """Return what to do about a function that keras.backend does not have."""
    backend, name = sys.modules["tensorflow"].compat.v1.keras.backend, found["name"]
    if hasattr(backend, name):
        return f"Keras 3 has it in tf.keras only: write tf.keras.backend.{name}"
    return f"Keras 3 does not have it: use tf.keras.backend, and {_LEGACY_KERAS}"


# The first pattern counts that is found in the message and has a remedy.
_REMEDIES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r"must be Tensor, not \S*EagerTensor|EagerTensor' object has no attribute "
        r"'(permute|unsqueeze|squeeze|view|flatten|contiguous|transpose|size|dim|float|long)'",
        "return the torch.nn.Module itself from port, not a function that calls it: its inputs are then tensors of "
        "PyTorch",
    ),
    (r"No module named 'torch'", f"install PyTorch: {install('torch')}"),
    (r"No module named '(flax|optax)'", f"install Flax and optax: {install('flax')}"),
    (r"No module named 'tensorflow(?P<module>)\.(?P<name>contrib[\w.]*)", _of_missing_name),
    (
        r"No module named 'tensorflow\.examples",
        "TensorFlow 2 has no tensorflow.examples: load the data in the migration",
    ),
    (r"module '(?:tensorflow\.keras|keras[\w.]*)\.backend' has no attribute '(?P<name>\w+)'", _of_keras_backend),
    (r"module 'tensorflow\.?(?P<module>[\w.]*)' has no attribute '(?P<name>\w+)'", _of_missing_name),
    (r"cannot import name '(?P<name>\w+)' from 'tensorflow\.?(?P<module>[\w.]*)'", _of_missing_name),
    (
        r"is not available with Keras 3|No module named 'tf_keras\.legacy_tf_layers'"
        r"|module 'tensorflow\.python\.[\w.]+' has no attribute "
        r"'(Tensor|IndexedSlices|(un)?stack|Assert|case|cond|while_loop|variable)'",  # those of `MOVED_NAMES`
        "call detrand.enable_v1_layers() first, which brings it back",
    ),
    (
        r"'(int|NoneType)' object has no attribute '(value|merge_with|is_compatible_with)'",
        "if it is a dimension of a shape, it is an int or None in TensorFlow 2: leave out `.value`, or call "
        "tf.compat.v1.disable_v2_tensorshape() before the model is made",
    ),
    (
        r"Session graph is empty|eval is not supported when eager|placeholder tensor 'detrand_input"
        "|the variable is uninitialized|Cannot (use|evaluate).*default session",
        "run no session in the model: return the tensors, which detrand computes",
    ),
    (
        r"placeholder.* is not compatible with eager|must feed a value for placeholder",
        "feed it by name: make the model in `with detrand.forward_pass({'input_x': x, ...})`, in the function that "
        "both programs call",
    ),
    (
        r"tf\.function only supports singleton tf\.Variables",
        "a tf.function makes variables in its first call only: if some exist in training only, call the port with "
        "training=True first, in the function that makes it",
    ),
    (
        r"Optimizer\.compute_gradients should be a function when eager",
        "make the model in `with detrand.forward_pass({...})`, where minimize does nothing; if the model calls "
        f"compute_gradients, {_WRITE_FUNCTION}",
    ),
    (
        r"flag --\w+ before flags were parsed|Unknown command line flag",
        "the command line is detrand's: call tf.compat.v1.flags.FLAGS(['']) after the flags are defined",
    ),
    (
        r"The flag '\w+' is defined twice",
        "the module was executed twice: import it once, and under one name",
    ),
    (
        r"Your Layer or Model is in an invalid state.*interleaving",
        "make the layers of tf_keras in the function that makes the port: those made before break once a layer of "
        "their class is made in a TF1 graph",
    ),
    (
        r"Can't call numpy\(\) on Tensor that requires grad|type_value`: t(orch\.|ensor\()|not EagerTensor"
        r"|method was called on traced array|has no attribute '_(id|error_repr)'",
        "if the port calls TensorFlow's ops, set KERAS_BACKEND=tensorflow, or write keras.ops in their place",
    ),
    (
        r"TensorBoard is not installed|(image|histogram|scalar)\(\) got an unexpected keyword",
        f"{_IMPORT_V1}, or leave out the summary",
    ),
    (
        r"Op:ImageSummary|(not supported|undefined) when eager|(not compatible with|when) eager execution",
        f"a decorated method runs eagerly: {_WRITE_FUNCTION}",
    ),
    (
        r"'tuple' object has no attribute '(as_list|ndims|rank|with_rank|dims|is_fully_defined|num_elements)'",
        f"if it is a shape, Keras 3 has it as a tuple: write tf.TensorShape(shape), or {_LEGACY_KERAS}",
    ),
    (
        r"Layer\.add_variable\(\)|has no attribute '(add_update|add_variable|get_shape|inbound_nodes|outbound_nodes)'"
        r"|add_weight\(\) got multiple values|`name` must be passed as a keyword argument",
        f"Keras 3 does not have it: {_LEGACY_KERAS}",
    ),
    (
        r"unexpected keyword argument '(keep_prob|dim|keep_dims|dimension|reduction_indices|squeeze_dims)'",
        f"TensorFlow 2 has renamed this argument: {_IMPORT_V1}",
    ),
    (
        r"expects 1 input\(s\), but it received \d+ input tensors",
        "a call whose only argument is named inputs gets all inputs of the migration as a list: unpack it, and leave "
        "out inputs that only one program takes, such as labels, which TrainStep(labels=...) takes",
    ),
    (
        r"Argument `output` must have rank \(ndim\) `target\.ndim - 1`",
        "losses of Keras take (y_true, y_pred): labels and outputs may be exchanged",
    ),
    (r"Shape .* must have rank 0", "if it is tf.concat, write tf.concat(values, axis): TensorFlow 1.0 swapped the two"),
    (r"(name|'dict' object has no attribute|No module named) '(?P<name>\w+)'", _of_python_2),
    (
        r"'float' object cannot be interpreted as an integer"
        r"|expected a sequence of integers or a single integer, got '[\d.]+'",
        "if it is the result of a division, write // in place of /, which gives a float in Python 3",
    ),
    (
        r"'(map|zip|filter|dict_keys|dict_values|dict_items)' object is not subscriptable"
        r"|object of type '(map|zip|filter)' has no len",
        "it is a list in Python 2 only: write list(...) around it",
    ),
    (
        r"module 'numpy' has no attribute '(?P<name>float|int|bool|object|str|complex)'",
        lambda found: (
            f"write {found['name']}, or `numpy.{found['name']} = {found['name']}` before the model is imported"
        ),
    ),
)
