"""What to do about the exceptions that TF1 code raises in TensorFlow 2, by their messages: `remedy_of`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

_WRITE_FUNCTION = "write @tf.function above @detrand.track_tf1_style_variables, so that the method builds a graph"
_IMPORT_V1 = "write `import tensorflow.compat.v1 as tf` in place of `import tensorflow as tf`"
_CONTRIB = (
    "TensorFlow 2 has no tf.contrib: copy examples/contrib.py of detrand, which has its most used functions, and "
    "import the model in `with contrib.tensorflow_1():`"
)
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
        if found := re.search(pattern, message, re.DOTALL):
            return remedy if isinstance(remedy, str) else remedy(found)
    return ""


def _of_missing_name(found: re.Match[str]) -> str:
    """Return what to do about a name that a module of TensorFlow does not have."""
    module, name = found["module"], found["name"]
    path = re.sub(r"^(_api|v2|compat|v1|\.)+\b", "", module).strip(".")
    path = f"{path}.{name}" if path else name
    if path.partition(".")[0] == "contrib":
        return f"add {path} to the stand-in for tf.contrib" if "tensorflow.contrib" in sys.modules else _CONTRIB
    if path in _RENAMED:
        return f"TensorFlow 1.0 renamed it: write tf.{_RENAMED[path]}"
    here = sys.modules["tensorflow"].compat.v1 if "v1" not in module.split(".") else None
    for part in path.split("."):
        here = getattr(here, part, None)
    if here is not None:
        return f"tf.{path} is in tf.compat.v1: {_IMPORT_V1}"
    return ""


# The first pattern that is found in the message counts.
_REMEDIES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"No module named 'tensorflow(?P<module>)\.(?P<name>contrib[\w.]*)", _of_missing_name),
    (
        r"No module named 'tensorflow\.examples",
        "TensorFlow 2 has no tensorflow.examples: load the data in the migration",
    ),
    (r"module 'tensorflow\.?(?P<module>[\w.]*)' has no attribute '(?P<name>\w+)'", _of_missing_name),
    (r"cannot import name '(?P<name>\w+)' from 'tensorflow\.?(?P<module>[\w.]*)'", _of_missing_name),
    (
        r"is not available with Keras 3|No module named 'tf_keras\.legacy_tf_layers'",
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
        "the module was executed twice: import it, and name it in one way only",
    ),
    (
        r"TensorBoard is not installed|(image|histogram|scalar)\(\) got an unexpected keyword",
        f"{_IMPORT_V1}, or leave out the summary",
    ),
    (
        r"Op:ImageSummary|(not supported|undefined) when eager|(not compatible with|when) eager execution",
        f"a decorated method runs eagerly: {_WRITE_FUNCTION}",
    ),
)
