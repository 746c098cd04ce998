"""Drafts of migration files, which ``detrand init`` writes.

A draft has the TF1 model, inputs for it, and a port: the TF1 code in a layer, or one that exists, with the name map
that the two programs show.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from detrand.checkpoints.graph_files import GraphFile, says_whether_it_trains
from detrand.errors import MigrationError
from detrand.seeding.callsite import describe_error
from detrand.shim.v1_layers import enable_v1_layers
from detrand.validation.migration_files import first_in_path, with_files_found
from detrand.validation.runner import Runner

_KEEP_PROB = re.compile(r".*keep_?prob.*", re.IGNORECASE)
_DROP_RATE = re.compile(r".*drop(out)?(_?(rate|prob|probability|p))?", re.IGNORECASE)
_BATCH, _ANY_SIZE = 2, 8  # in place of a dimension that the model leaves open

_EXAMPLE = '''def tf1(x, training):
    """Build the TF1 model: put yours in its place, or import it and call it here."""
    hidden = tf.nn.relu(tf.matmul(x, tf.compat.v1.get_variable("hidden/kernel", (8, 16))))
    hidden = tf.nn.dropout(hidden, rate=0.5) if training else hidden
    return tf.matmul(hidden, tf.compat.v1.get_variable("logits/kernel", (16, 3)))
'''

_FILE = '''"""Compares a TF1 model with its port: detrand validate {file}"""

{import_keras}import numpy as np
{imports}
rng = np.random.default_rng(0)
{arrays}


{model}
{port_code}
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

{import_keras}import numpy as np

import detrand
{import_port}
rng = np.random.default_rng(0)
{arrays}

tf1 = detrand.GraphFile(
    {path!r},
    inputs={inputs_of_graph!r},{labels}
    outputs={outputs!r},{remark}
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


class Draft(NamedTuple):
    """The text of a migration file, and what its author has to do before it can be run; empty if nothing."""

    text: str
    to_do: str = ""


class _Port(NamedTuple):
    """The port of a draft: a class that the draft defines, or what an import brings.

    Attributes:
      code: the class, with ``{names}`` for the inputs; empty if it is imported.
      line: the import; empty if the class is in the draft.
    """

    name: str
    code: str = ""
    line: str = ""

    def fields(self, names: str) -> dict[str, str]:
        """Return what the templates have for the port, given the names of the inputs."""
        code = f"\n{self.code.format(names=names)}\n" if self.code else ""
        return {
            "import_keras": "import keras\n" if code else "",
            "import_port": self.line,
            "port_code": code,
            "port": self.name,
            "name_map": _NO_NAME_MAP,
        }


_PORT_OF_TF1_CODE = _Port(
    "Port",
    '''
class Port(keras.layers.Layer):
    """The TF1 code in a Keras layer, so that the checks pass. Put Keras layers in its place, piece by piece."""

    @detrand.track_tf1_style_variables
    def call(self, {names}, training=False):
        return tf1({names}, training)
''',
)
_PORT_TO_WRITE = _Port(
    "Port",
    '''
class Port(keras.layers.Layer):
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
      port: ``module:function`` or ``module:Class`` of a port to import. The text has a ``name_map`` if its variables
        can be paired with those of the model. Without it, the text has a class for the port.

    Raises:
      MigrationError: if the model or the port cannot be imported, or the model cannot be called or has neither inputs
        nor placeholders.
    """
    if not port:
        return _draft(file, source, None)
    if not source:
        raise MigrationError("--port needs the TF1 model that it is a port of: give --from, too")
    module, name = _module_and_name("--port", port)
    with enable_v1_layers():  # the module may have TF1 code, too
        _imported(module, name, file.parent)
    found = _draft(file, source, _Port(name, line=f"from {module} import {name}  # noqa: E402\n"))
    return found if found.to_do else Draft(_with_name_map(found.text, file))


def _draft(file: Path, source: str, port: _Port | None) -> Draft:
    if not source:
        arrays = {"x": "rng.normal(size=(4, 8)).astype(np.float32)"}
        imports = "import tensorflow as tf\n\nimport detrand\n"
        return Draft(_text(file, "example", imports, arrays, _EXAMPLE, port or _PORT_OF_TF1_CODE))
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
        return text
    code = str(runner.found_names.proposal).replace("name_map = ", "name_map=").replace("\n}", "\n},")
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
        path=os.path.relpath(source, file.parent),
        arrays="\n".join(f"{name} = {array}" for name, array in zip(names, arrays.values(), strict=True)),
        inputs_of_graph=list(arrays),
        outputs=["..."] if outputs is None else outputs,
        remark="  # name the tensors to compare" if outputs is None else "",
        labels="  # leave out labels" if outputs is None and len(names) > 1 else "",
        feeds="".join(f"{name!r}: {feed}, " for name, feed in feeds.items()).removesuffix(", "),
        inputs=names[0] if len(names) == 1 else f"({', '.join(names)})",
        **(port or _PORT_TO_WRITE).fields(", ".join(names)),
    )
    to_do = [*(["name the outputs"] if outputs is None else []), *([] if port else ["write the port"])]
    return Draft(text, f"{' and '.join(to_do)} in it" if to_do else "")


def _draft_of(module: str, name: str, file: Path, source: str, port: _Port) -> Draft:
    model, needs_contrib = _imported(module, name, file.parent)
    layers = "detrand.enable_v1_layers()  # brings tf.layers and tf.nn.rnn_cell back\n"
    line = f"from {module} import {name}  # noqa: E402\n"
    in_block = f"with contrib.tensorflow_1():  # import tensorflow as it was in TensorFlow 1\n    {line}"
    imports = (
        "\nimport contrib\nimport detrand\n\n" + in_block if needs_contrib else f"\nimport detrand\n\n{layers}{line}"
    )
    given, inputs = _parameters(source, model)
    if inputs:
        array = f"rng.normal(size=({_BATCH}, {_ANY_SIZE})).astype(np.float32)  # set the shape and dtype"
        body = f"    return {_call(name, {**{each: each for each in inputs}, **given})}\n"
        to_do = f"set the shape and dtype of {' and '.join(inputs)} in it"
        return Draft(_text(file, name, imports, dict.fromkeys(inputs, array), _function(inputs, body), port), to_do)
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
    return Draft(_text(file, name, imports, arrays, _function(arrays, body), port))


def _call(name: str, arguments: Mapping[str, str]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def _function(inputs: Iterable[str], body: str) -> str:
    return f'def tf1({", ".join(inputs)}, training):\n    """Build the TF1 model, in both programs."""\n{body}'


def _text(file: Path, name: str, imports: str, arrays: Mapping[str, str], model: str, port: _Port) -> str:
    names = ", ".join(arrays)
    fields = port.fields(names)
    return _FILE.format(
        file=file,
        name=name,
        imports=imports + fields.pop("import_port"),
        arrays="\n".join(f"{each} = {array}" for each, array in arrays.items()),
        model=model,
        inputs=names if len(arrays) == 1 else f"({names})",
        **fields,
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
        raise MigrationError(
            f"the parameters of {source} cannot be read: {error}; name a function of Python"
        ) from error
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
            "of the inputs, or one that makes placeholders"
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
    return f"np.full({size}, {'a text' if dtype == tf.string else False!r}){remark}"


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
