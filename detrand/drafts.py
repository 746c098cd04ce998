"""Drafts of migration files, which ``detrand init`` writes.

A draft has the TF1 model, inputs for it, and a port: the TF1 code in a layer, or one that exists, with the name map
that the two programs show.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from detrand.checkpoints.graph_files import GraphFile, says_whether_it_trains
from detrand.errors import MigrationError, passing_over
from detrand.seeding.callsite import describe_error
from detrand.shim.v1_layers import enable_v1_layers
from detrand.validation.migration_files import first_in_path, with_files_found
from detrand.validation.programs.port import framework_of
from detrand.validation.runner import Runner

_KEEP_PROB = re.compile(r".*keep_?prob.*", re.IGNORECASE)
_DROP_RATE = re.compile(r".*drop(out)?(_?(rate|prob|probability|p))?", re.IGNORECASE)
_BATCH, _ANY_SIZE = 2, 8  # in place of a dimension that the model leaves open
_ANY_ARRAY = f"rng.normal(size=({_BATCH}, {_ANY_SIZE})).astype(np.float32)"

# What the parameters of an Estimator's model_fn get, except its mode.
_OF_MODEL_FN = {
    "features": f'{{"x": {_ANY_ARRAY}}}  # set the names, shapes and dtypes',
    "labels": f"np.zeros({_BATCH}, np.int32)  # set the shape and dtype; the predictions do not depend on them",
    "params": "{}  # set what the model reads",
    "config": "None",
}

_EXAMPLE = '''def tf1(x, training):
    """Build the TF1 model: put yours in its place, or import it and call it here."""
    hidden = tf.nn.relu(tf.matmul(x, tf.compat.v1.get_variable("hidden/kernel", (8, 16))))
    hidden = tf.nn.dropout(hidden, rate=0.5) if training else hidden
    return tf.matmul(hidden, tf.compat.v1.get_variable("logits/kernel", (16, 3)))
'''

_FILE = '''"""Compares a TF1 model with its port: detrand validate {file}"""

import detrand
{import_keras}import numpy as np
{imports}
rng = np.random.default_rng(0)
{arrays}


{model}{port_code}
migration = detrand.Migration(
    name="{name}",
    tf1=tf1,
    port={port},
    inputs={inputs},
    {name_map}
    # checkpoint="model.ckpt-1000",  # also compare with trained weights
    # train=detrand.TrainStep(  # also compare training steps
    #     labels=...,
    #     tf1_loss=...,  # a function of labels and outputs
    #     port_loss=...,
    #     tf1_optimizer=...,  # a function that makes it
    #     port_optimizer=...,
    # ),
)
'''


_GRAPH_FILE = '''"""Compares a TF1 graph with its port: detrand validate {file}"""

import detrand
{import_keras}import numpy as np
{import_port}
rng = np.random.default_rng(0)
{arrays}

tf1 = detrand.GraphFile(
    {path},
    inputs={inputs_of_graph},{labels}
    outputs={outputs},{remark}
    feeds={{{feeds}}},
)
{port_code}
migration = detrand.Migration(
    name="{name}",
    tf1=tf1,
    port={port},
    inputs={inputs},
    {name_map}
)
'''

_NO_NAME_MAP = (
    '# name_map={"hidden/kernel": "dense/kernel"},  # TF1\'s name: the port\'s, where detrand cannot pair them'
)
_NAME_MAP_UNKNOWN = _NO_NAME_MAP.replace(", where detrand cannot pair them", "; unknown until the programs can be run")


class Draft(NamedTuple):
    """A migration file.

    Attributes:
      text: its text.
      to_do: what its author has to do before its port can pass; empty if nothing.
      can_run: whether both programs can be run before that.
    """

    text: str
    to_do: str = ""
    can_run: bool = True


class _Port(NamedTuple):
    """The port of a draft: a class that the draft defines, or what an import brings.

    Attributes:
      code: the class, with ``{names}`` for the inputs; empty if it is imported.
      line: the import; empty if the class is in the draft.
      make: the class or function that is imported.
    """

    name: str
    code: str = ""
    line: str = ""
    make: Callable[[], Any] | None = None

    def takes(self, inputs: int) -> int:
        """Return how many of a number of inputs the port takes; all of them if that is not known."""
        if self.make is not None:
            with passing_over():  # validate reports what the port raises
                model = self.make()
                why_not = framework_of(model).why_not_called
                return next((number for number in range(inputs, 0, -1) if not why_not(model, number)), inputs)
        return inputs

    def fields(self, names: str) -> dict[str, str]:
        """Return what the templates have for the port, given the names of the inputs."""
        code = f"\n\n{self.code.format(names=names)}\n" if self.code else ""
        return {
            "import_keras": "import keras\n" if code else "",
            "import_port": self.line and f"\n{self.line}",
            "port_code": code,
            "port": self.name,
            "name_map": _NO_NAME_MAP,
        }


_PORT_OF_TF1_CODE = _Port(
    "Port",
    '''class Port(keras.layers.Layer):
    """The TF1 code in a Keras layer, so that the checks pass. Put Keras layers in its place, piece by piece."""

    @detrand.track_tf1_style_variables
    def call(self, {names}, training=False):
        return tf1({names}, training)
''',
)
_PORT_TO_WRITE = _Port(
    "Port",
    '''class Port(keras.layers.Layer):
    """Write the port here. detrand pairs its variables with those of the graph."""

    def call(self, {names}, training=False):
        raise NotImplementedError("write the port")
''',
)


def draft(file: Path, source: str = "", port: str = "") -> Draft:
    """Return a migration file to begin with.

    Args:
      file: the file that it is for. The model is imported as the file would import it.
      source: the path of a TF1 graph, or ``module:function`` or ``module:Class`` of a TF1 model. A model with inputs is
        a function of them; one without makes placeholders, and is called once to find these and its outputs. Without a
        source, the text has an example of a model.
      port: ``module:function`` or ``module:Class`` of a port to import. Inputs that it does not take are inputs of the
        model only. The text has a ``name_map`` if its variables can be paired with those of the model. Without a port,
        the text has a class for it.

    Raises:
      MigrationError: if the model or the port cannot be imported, or the model cannot be called or has neither inputs
        nor placeholders.
    """
    if not port:
        return _draft(file, source, None)
    if not source:
        raise MigrationError("--port needs the TF1 model, too: add --from MODULE:NAME")
    module, name = _module_and_name("--port", port)
    with enable_v1_layers():  # the module may have TF1 code, too
        make, _ = _imported(module, name, file.parent)
        found = _draft(file, source, _Port(name, line=f"from {module} import {name}\n", make=make))
    text = _with_name_map(found.text, file) if found.can_run else found.text.replace(_NO_NAME_MAP, _NAME_MAP_UNKNOWN)
    return found._replace(text=text)


def _draft(file: Path, source: str, port: _Port | None) -> Draft:
    if not source:
        arrays = {"x": "rng.normal(size=(4, 8)).astype(np.float32)"}
        imports = "import tensorflow as tf\n"
        return Draft(_text(file, "example", imports, arrays, ["x"], _EXAMPLE, port or _PORT_OF_TF1_CODE))
    if source.endswith((".pb", ".meta")) or Path(source).is_dir():
        return _draft_of_graph_file(file, source, port)
    module, name = _module_and_name("--from", source)
    with enable_v1_layers():
        return _draft_of(module, name, file, source, port or _PORT_OF_TF1_CODE)


def _module_and_name(option: str, given: str) -> tuple[str, str]:
    module, _, name = given.rpartition(":")
    module = module.removesuffix(".py").replace(os.sep, ".")
    if not module or not name.isidentifier():
        raise MigrationError(
            f"{option} {given} names no function; write MODULE:FUNCTION, such as models.resnet:build, or MODULE:CLASS"
        )
    return module, name


def _with_name_map(text: str, file: Path) -> str:
    """Return the text of a draft with the name map that its two programs show; unchanged if they cannot be run."""
    variables: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
    try:
        with first_in_path(file.parent):
            exec(compile(text, file, "exec"), variables)
        runner = Runner(with_files_found(variables["migration"], file))
        runner.complete_name_map()
        if runner.found_names is None:
            return text.replace(f"    {_NO_NAME_MAP}\n", "") if runner.compared_variables().ok else text
    except Exception:  # validate reports what the programs raise
        return text.replace(_NO_NAME_MAP, _NAME_MAP_UNKNOWN)
    code = str(runner.found_names.proposal).replace("name_map = ", "name_map=").replace("\n}", "\n},")
    code = re.sub(r"'([^'\"\n]*)'", r'"\1"', code)
    return text.replace(_NO_NAME_MAP, code.replace("    **", "    **detrand.").replace("\n", "\n    "))


def _draft_of_graph_file(file: Path, source: str, port: _Port | None) -> Draft:
    graph = GraphFile(source)
    feeds, arrays = dict[str, str](), dict[str, str]()
    for name, dtype, shape, has_default in graph.placeholders:
        text = _of_training(name.rpartition("/")[2])
        if text and text != "training":
            feeds[name] = f"lambda training: {text}"
        elif not has_default and not (text and dtype == tf.bool):
            arrays[name] = _array(shape, dtype)
    names, outputs = [re.sub(r"\W", "_", name) for name in arrays], graph.output_names
    text = _GRAPH_FILE.format(
        file=file,
        name=graph.__name__,
        path=_quoted(os.path.relpath(source, file.parent)),
        arrays="\n".join(f"{name} = {array}" for name, array in zip(names, arrays.values(), strict=True)),
        inputs_of_graph=_quoted(list(arrays)),
        outputs=_quoted(["..."] if outputs is None else outputs),
        remark="  # name the tensors to compare" if outputs is None else "",
        labels="  # leave out labels" if outputs is None and len(names) > 1 else "",
        feeds="".join(f"{_quoted(name)}: {feed}, " for name, feed in feeds.items()).removesuffix(", "),
        inputs=names[0] if len(names) == 1 else f"({', '.join(names)})",
        **(port or _PORT_TO_WRITE).fields(", ".join(names)),
    )
    to_do = [*(["name the outputs"] if outputs is None else []), *([] if port else ["write the port"])]
    return Draft(text, f"{' and '.join(to_do)} in it" if to_do else "", can_run=outputs is not None)


def _quoted(value: Any) -> str:
    """Return text, or a list or tuple of texts, as code in double quotes."""
    return json.dumps(value, ensure_ascii=False)


def _draft_of(module: str, name: str, file: Path, source: str, port: _Port) -> Draft:
    model, needs_contrib = _imported(module, name, file.parent)
    line = f"from {module} import {name}\n"
    if needs_contrib:
        in_block = f"with contrib.tensorflow_1():  # import tensorflow as it was in TensorFlow 1\n    {line}"
        imports = f"\nimport contrib\n\n{in_block}{port.line}"
    else:
        layers = "detrand.enable_v1_layers()  # brings tf.layers and tf.nn.rnn_cell back\n"
        imports = f"\n{layers}{''.join(sorted((line, port.line)))}"
    given, inputs = _parameters(source, model)
    to_do = ""
    if {"features", "mode"} <= {*inputs} <= {"mode", *_OF_MODEL_FN}:
        arrays = {each: array for each, array in _OF_MODEL_FN.items() if each in inputs}
        call = _call(name, {**{each: each for each in inputs}, **given})
        body = '    mode = "train" if training else "infer"\n    with detrand.forward_pass({}):\n'
        body += f"        spec = {call}\n    return spec.predictions\n"
        inputs, to_do = ["features"], f"set {_in_words(list(arrays))} in it"
    elif inputs:
        arrays = dict.fromkeys(inputs, f"{_ANY_ARRAY}  # set the shape and dtype")
        body = f"    return {_call(name, {**{each: each for each in inputs}, **given})}\n"
        to_do = f"set the shape and dtype of {_in_words(inputs)} in it"
    else:
        built = _built(source, model, given)
        names = {each: re.sub(r"\W", "_", each) for each in built.arrays}
        feeds = "".join(f'        "{each}": {text},\n' for each, text in {**names, **built.feeds}.items())
        body = f"    feeds = {{\n{feeds}    }}\n    with detrand.forward_pass(feeds):\n"
        if built.attributes:
            outputs = ", ".join(f'"{each}": model.{each}' for each in built.attributes)
            body += f"        model = {_call(name, given)}\n        return {{{outputs}}}\n"
        else:
            body += f"        return {_call(name, given)}\n"
        arrays = {names[each]: array for each, array in built.arrays.items()}
        inputs = list(arrays)
    can_run = not to_do
    taken = port.takes(len(inputs))
    inputs, of_tf1 = inputs[:taken], _in_words(inputs[taken:])
    if of_tf1:
        body = (
            f"    # The port does not take {of_tf1}: return only outputs that do not depend on {of_tf1}.\n"
            f"    # To compare a loss of labels, pass train=detrand.TrainStep(labels=...) to the migration.\n{body}"
        )
        to_do += f"{', ' if to_do else ''}make tf1 return only outputs that do not depend on {of_tf1}"
    function = f'def tf1({", ".join(inputs)}, training):\n    """Build the TF1 model."""\n{body}'
    return Draft(_text(file, name, imports, arrays, inputs, function, port), to_do, can_run)


def _in_words(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), *names[-1:]] if names[1:] else names)


def _call(name: str, arguments: Mapping[str, str]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def _text(
    file: Path, name: str, imports: str, arrays: Mapping[str, str], inputs: Iterable[str], model: str, port: _Port
) -> str:
    names = ", ".join(inputs)
    fields = port.fields(names)
    return _FILE.format(
        file=file,
        name=name,
        imports=imports,
        arrays="\n".join(f"{each} = {array}" for each, array in arrays.items()),
        model=model,
        inputs=f"({names})" if "," in names else names,
        **{**fields, "port_code": fields["port_code"] or "\n"},
    )


def _imported(module: str, name: str, folder: Path) -> tuple[Callable[..., Any], bool]:
    """Return a model, and whether it is imported in the block of the ``contrib.py`` that lies beside the file."""
    needs_contrib = False
    with first_in_path(folder):
        try:
            try:
                model = getattr(importlib.import_module(module), name)
            except Exception:
                if not (folder / "contrib.py").is_file():
                    raise
                with importlib.import_module("contrib").tensorflow_1():
                    model = getattr(importlib.import_module(module), name)
                needs_contrib = True
        except (Exception, SystemExit) as error:
            raise MigrationError(f"{name} cannot be imported from {module}: {describe_error(error)}") from error
    if not callable(model):
        raise MigrationError(f"{module}:{name} is of type {type(model).__name__}; name a function or a class")
    return model, needs_contrib


def _parameters(source: str, model: Callable[..., Any]) -> tuple[dict[str, str], list[str]]:
    """Return what stands for parameters that depend on training, by name, and the parameters that are inputs."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except (TypeError, ValueError) as error:
        raise MigrationError(f"the parameters of {source} cannot be read: {error}; name a Python function") from error
    given, inputs = dict[str, str](), list[str]()
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        text, has_default = _of_training(each.name), each.default is not each.empty
        if text and not (has_default and _DROP_RATE.fullmatch(each.name)):  # which may be the rate of training only
            given[each.name] = text
        elif not has_default:
            inputs.append(each.name)
    return given, inputs


# What says whether a model trains, as text, and its value in inference.
_OF_TRAINING = {"training": False, "0.5 if training else 1.0": 1.0, "0.5 if training else 0.0": 0.0}


def _of_training(name: str) -> str:
    """Return what a parameter or placeholder is given that says whether the model trains; empty for another one."""
    if says_whether_it_trains(name):
        return "training"
    if _KEEP_PROB.fullmatch(name):
        return "0.5 if training else 1.0"
    return "0.5 if training else 0.0" if _DROP_RATE.fullmatch(name) else ""


class _Built(NamedTuple):
    """What a model makes in a graph.

    Attributes:
      feeds: what depends on training, as text, by the name of the placeholder.
      arrays: an array for each other placeholder, as text.
      attributes: the attributes of the model that are outputs; empty if it returns the outputs.
    """

    feeds: dict[str, str]
    arrays: dict[str, str]
    attributes: list[str]


def _built(source: str, model: Callable[..., Any], given: Mapping[str, str]) -> _Built:
    arguments = {name: _OF_TRAINING[text] for name, text in given.items()}
    with tf.Graph().as_default() as graph:
        try:
            outputs = model(**arguments)
        except Exception as error:
            raise MigrationError(f"{source} cannot be called: {describe_error(error)}") from error
        ops = [op for op in graph.get_operations() if op.type in ("Placeholder", "PlaceholderWithDefault")]
    # What has a default keeps it, unless it depends on training.
    placeholders = [op for op in ops if op.type == "Placeholder" or _of_training(_last_part(op))]
    if not placeholders:
        raise MigrationError(
            f"{source} has no inputs: it has no parameter without a default, and makes no placeholder; name a function "
            "that takes the inputs, or one that makes placeholders"
        )
    feeds, arrays = dict[str, str](), dict[str, str]()
    for op in placeholders:
        text = _of_training(_last_part(op))
        dtype, shape = op.outputs[0].dtype, op.outputs[0].shape
        if not text and not shape.rank and dtype in (tf.bool, tf.float32):
            text = "training" if dtype == tf.bool else "1.0"
        if text:
            feeds[op.name] = text
        else:
            arrays[op.name] = _array(shape, dtype)
    return _Built(feeds, arrays, _attributes(source, outputs, {op.outputs[0].name for op in ops}))


def _last_part(op: tf.Operation) -> str:
    name: str = op.name.rpartition("/")[2]
    return name


def _array(shape: tf.TensorShape, dtype: tf.DType) -> str:
    """Return code that makes an array for a placeholder; 0 and 1 are valid ids of nearly all vocabularies."""
    sizes = [] if shape.rank is None else list(shape)
    size = tuple(_ANY_SIZE if n is None and i else _BATCH if n is None else n for i, n in enumerate(sizes))
    remark = f"  # any size where the model has {shape}" if None in sizes[1:] else ""
    if dtype.is_floating:
        return f"rng.normal(size={size}).astype(np.{dtype.name}){remark}"
    if dtype.is_integer:
        return f"rng.integers(0, 2, {size}).astype(np.{dtype.name}){remark}"
    value = '"a text"' if dtype == tf.string else "False"
    return f"np.full({size}, {value}){remark}"


def _attributes(source: str, outputs: Any, placeholders: set[str]) -> list[str]:
    leaves = tf.nest.flatten(outputs)
    if leaves and all(map(tf.is_tensor, leaves)):
        return []
    attributes = getattr(outputs, "__dict__", {})
    tensors = {name: each for name, each in attributes.items() if isinstance(each, tf.Tensor) and name[0] != "_"}
    found = [name for name, each in tensors.items() if each.name not in placeholders]
    if not found:
        raise MigrationError(
            f"{source} returns {type(outputs).__name__}, in which no tensor was found; name a function that returns "
            "the outputs, or a class with outputs as attributes"
        )
    return found
