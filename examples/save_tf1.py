"""Save a TF1 program where it still runs, so that its port can be checked where it does not.

Copy this file to the machine with TensorFlow 1. It needs TensorFlow 1.15 with NumPy, and Python 3.7; the model may use
``tf.contrib`` and all else that TensorFlow 2 does not have::

    import numpy as np
    import save_tf1

    def model(images, training):  # builds the model in the default graph, and returns its outputs
        ...

    images = np.random.RandomState(0).rand(4, 32, 32, 3).astype(np.float32)
    save_tf1.save("saved", model, [images], checkpoint="model.ckpt-1000")

The folder ``saved`` is a SavedModel with two graphs, one of inference and one of training. Copy it to the machine with
the port, where ``detrand.Migration(tf1="saved", inputs=images, ...)`` runs all checks, random numbers included.

What TensorFlow 1 has computed is in ``saved/assets.extra/detrand.npz``, and the check ``tf1-as-recorded`` compares it
with what the newer TensorFlow computes from the graphs. The file holds, for NumPy: ``seed``; ``tensorflow``, which is
its version; the inputs as ``inputs/0``, ``inputs/1`` and so on; and each output by the name of its tensor, as
``inference/NAME`` and ``training/NAME`` with the initial values that the seeds draw, and as ``checkpoint/NAME`` with
the weights of a checkpoint.
"""

import os

import numpy as np

try:
    import tensorflow.compat.v1 as tf
except ImportError:  # of TensorFlow before 1.13
    import tensorflow as tf

RECORDING = "detrand.npz"
TAGS = {True: "train", False: "serve"}


def save(folder, model, inputs, seed=42, checkpoint=None):
    """Save a TF1 program as a SavedModel, with what it computes.

    Args:
      folder: the folder to write, which must not exist.
      model: called as ``model(*inputs, training=...)`` with a placeholder for each array; it returns a tensor, or
        tensors in a list, a tuple or a dict.
      inputs: a list of arrays.
      seed: the seed of all random ops. The op seed of each is its number in the graph, from 0.
      checkpoint: the prefix of a checkpoint of the trained model, whose weights are saved, too.
    """
    if os.path.exists(folder):
        raise ValueError(f"the folder {folder} exists already; give a different name")
    recorded = {"seed": np.array(seed), "tensorflow": np.array(tf.__version__)}
    recorded.update({f"inputs/{number}": np.asarray(array) for number, array in enumerate(inputs)})
    builder = tf.saved_model.builder.SavedModelBuilder(folder)
    for training in (True, False):
        meta_graph, fed, outputs = _built(model, inputs, training)
        _seed(meta_graph.graph_def, seed)
        with tf.Graph().as_default() as graph, tf.Session(config=_as_written()) as session:
            tf.train.import_meta_graph(meta_graph)
            _initialize(session)
            tensors = {name: graph.get_tensor_by_name(tensor) for name, tensor in outputs.items()}
            feeds = {graph.get_tensor_by_name(name): array for name, array in zip(fed, inputs)}  # noqa: B905
            saver = tf.train.Saver() if tf.global_variables() else None
            signature = tf.saved_model.signature_def_utils.build_signature_def(
                {f"input_{number}": tf.saved_model.utils.build_tensor_info(each) for number, each in enumerate(feeds)},
                {name: tf.saved_model.utils.build_tensor_info(tensor) for name, tensor in tensors.items()},
                "tensorflow/serving/predict",
            )
            arguments = {"signature_def_map": {"serving_default": signature}}
            weights = _values(session)
            if checkpoint is not None:
                saver.restore(session, checkpoint)
            if training:
                builder.add_meta_graph_and_variables(session, [TAGS[training]], **arguments)
            else:
                builder.add_meta_graph([TAGS[training]], **arguments)
                if checkpoint is not None:
                    _record(recorded, "checkpoint", session, tensors, feeds)
            for variable, value in weights.items():
                variable.load(value, session)
            _record(recorded, "training" if training else "inference", session, tensors, feeds)
    builder.save()
    extra = os.path.join(folder, "assets.extra")
    if not os.path.isdir(extra):
        os.makedirs(extra)
    np.savez(os.path.join(extra, RECORDING), **recorded)


def _built(model, inputs, training):
    """Return the graph of a model, and the names of the tensors that are its inputs, and its outputs by name."""
    with tf.Graph().as_default():
        arrays = [np.asarray(array) for array in inputs]
        placeholders = [tf.placeholder(array.dtype, array.shape, "saved_input") for array in arrays]
        outputs = model(*placeholders, training=training)
        if isinstance(outputs, (list, tuple)):
            outputs = {f"output_{number}": tensor for number, tensor in enumerate(outputs)}
        elif not isinstance(outputs, dict):
            outputs = {"output": outputs}
        names = {name: tf.convert_to_tensor(tensor).name for name, tensor in outputs.items()}
        return tf.train.export_meta_graph(), [each.name for each in placeholders], names


def _seed(definition, seed):
    """Give the random ops of a graph the seeds that detrand gives them, those of its functions first.

    Loops run one iteration at a time, so that random ops in them draw in this order.
    """
    count = 0
    for nodes in [function.node_def for function in definition.library.function] + [definition.node]:
        for node in nodes:
            if "seed2" in node.attr:
                node.attr["seed"].i, node.attr["seed2"].i = seed, count
                count += 1
            if "parallel_iterations" in node.attr:
                node.attr["parallel_iterations"].i = 1


def _as_written():
    """Return the config of a session that runs its graph as it was written."""
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def _initialize(session):
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])


def _values(session):
    """Return the values of all variables, by variable."""
    variables = tf.global_variables()
    return dict(zip(variables, session.run(variables))) if variables else {}  # noqa: B905


def _record(recorded, run, session, tensors, feeds):
    names = sorted(tensors)
    values = session.run([tensors[name] for name in names], feeds)
    recorded.update({f"{run}/{tensors[name].name}": value for name, value in zip(names, values)})  # noqa: B905
