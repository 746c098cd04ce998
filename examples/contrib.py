"""A stand-in for the parts of tf.contrib that models of 2016 to 2018 use most.

TensorFlow 2 has no tf.contrib. Copy this file beside the migration, and import the model in the block of
`tensorflow_1`, in which ``import tensorflow`` imports ``tf.compat.v1``, with this module as ``tf.contrib``::

    import contrib

    with contrib.tensorflow_1():
        import model

If the model says ``import tensorflow.compat.v1 as tf`` already, ``contrib.install()`` before its import is enough.

- ``layers``, ``slim``, ``framework``, ``metrics`` and ``losses`` are those of tf_slim and TensorFlow, under their old
  names; ``layers.embed_sequence`` is defined here.
- ``rnn`` has the cells of ``tf.compat.v1.nn.rnn_cell``, the functions of ``tf.compat.v1.nn`` and, defined here,
  ``LayerNormBasicLSTMCell`` and stacks of bidirectional networks.
- ``util.constant_value``, and ``ModeKeys`` and ``EstimatorSpec`` of ``tf.estimator``.
- ``legacy_seq2seq.rnn_decoder``, the sequence losses and ``training.HParams`` are defined here.
"""

import contextlib
import json
import re
import sys
import types

import tensorflow
import tensorflow.compat.v1 as tf

import detrand

detrand.enable_v1_layers()  # tf_slim and the RNN cells use layers that Keras 3 does not have

import tf_slim as slim  # noqa: E402


def install():
    """Make this module ``tf.contrib`` of TensorFlow 2 and of ``tf.compat.v1``, whose layers work then, too."""
    detrand.enable_v1_layers()
    contrib = sys.modules[__name__]
    tensorflow.contrib = tf.contrib = contrib
    if not hasattr(tf, "estimator"):
        tf.estimator = types.SimpleNamespace(ModeKeys=ModeKeys, EstimatorSpec=EstimatorSpec)
    sys.modules["tensorflow.contrib"] = contrib
    for name, module in vars(contrib).items():
        if isinstance(module, types.ModuleType) and (
            module is slim or module.__name__.startswith("tensorflow.contrib.")
        ):
            sys.modules[f"tensorflow.contrib.{name}"] = module


@contextlib.contextmanager
def tensorflow_1():
    """Make ``import tensorflow``, in the block, import ``tf.compat.v1``, with this module as ``tf.contrib``."""
    install()
    sys.modules["tensorflow"] = tf
    try:
        yield
    finally:
        sys.modules["tensorflow"] = tensorflow


def _missing(module, name):
    raise AttributeError(f"the stand-in for {module} has no {name!r}: add it to {__file__}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    _missing("tf.contrib", name)


def _module(name, *sources, **names):
    """Return a module of tf.contrib with the public names of other modules, and some more."""
    module = types.ModuleType(f"tensorflow.contrib.{name}", f"Stand-in for tf.contrib.{name}.")
    for source in sources:
        vars(module).update({key: value for key, value in vars(source).items() if not key.startswith("_")})
    vars(module).update(names)

    def find(missing):  # TensorFlow looks up the RNN cells when they are asked for
        found = next((getattr(source, missing) for source in sources if hasattr(source, missing)), None)
        return _missing(f"tf.contrib.{name}", missing) if found is None else found

    module.__getattr__ = find
    return module


# --- layers, framework ----------------------------------------------------------------------------------------------


def embed_sequence(
    ids,
    vocab_size=None,
    embed_dim=None,
    unique=False,
    initializer=None,
    regularizer=None,
    trainable=True,
    scope=None,
    reuse=None,
):
    """Return the embeddings of a sequence of ids; ``unique`` changes no number, and is ignored."""
    with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape = None if reuse and (vocab_size is None or embed_dim is None) else [vocab_size, embed_dim]
        embeddings = slim.model_variable(
            "embeddings", shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        return tf.nn.embedding_lookup(embeddings, ids)


layers = _module("layers", slim, slim.layers, embed_sequence=embed_sequence)
framework = _module(
    "framework",
    slim,
    nest=_module("framework.nest", tf.nest, is_sequence=tf.nest.is_nested),
    get_global_step=tf.train.get_global_step,
    get_or_create_global_step=tf.train.get_or_create_global_step,
    list_variables=tf.train.list_variables,
    load_variable=tf.train.load_variable,
)
losses = _module("losses", tf.losses)
metrics = _module("metrics", slim.metrics)

# --- rnn ------------------------------------------------------------------------------------------------------------

_cells = tf.nn.rnn_cell


class LayerNormBasicLSTMCell(_cells.RNNCell):
    """An LSTM cell with layer normalization of its gates and its cell state, and dropout of the candidate values."""

    def __init__(
        self,
        num_units,
        forget_bias=1.0,
        input_size=None,
        activation=tf.tanh,
        layer_norm=True,
        norm_gain=1.0,
        norm_shift=0.0,
        dropout_keep_prob=1.0,
        dropout_prob_seed=None,
        reuse=None,
    ):
        super().__init__(_reuse=reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self):
        return _cells.LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self):
        return self._num_units

    def _normalized(self, values, scope):
        if not self._layer_norm:
            return values
        with tf.variable_scope(scope):
            for name, value in (("gamma", self._gain), ("beta", self._shift)):
                tf.get_variable(name, values.shape[-1:], values.dtype, tf.constant_initializer(value))
        return slim.layers.layer_norm(values, reuse=True, scope=scope)

    def call(self, inputs, state):
        c, h = state
        both = tf.concat([inputs, h], 1)
        gates = tf.matmul(both, tf.get_variable("kernel", [both.shape[-1], 4 * self._num_units], both.dtype))
        if not self._layer_norm:
            gates = tf.nn.bias_add(gates, tf.get_variable("bias", [4 * self._num_units], both.dtype))
        names = ("input", "transform", "forget", "output")
        i, j, f, o = map(self._normalized, tf.split(gates, 4, 1), names)
        candidate = self._activation(j)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            candidate = tf.nn.dropout(candidate, self._keep_prob, seed=self._seed)
        c = self._normalized(c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * candidate, "state")
        h = self._activation(c) * tf.sigmoid(o)
        return h, _cells.LSTMStateTuple(c, h)


def _stacked(bidirectional, join, cells_fw, cells_bw, inputs, initial_fw, initial_bw, scope, options):
    """Return the outputs and the states of a stack of bidirectional networks."""
    count = len(cells_fw)
    states = []
    with tf.variable_scope(scope or "stack_bidirectional_rnn"):
        initial = (initial_fw or [None] * count, initial_bw or [None] * count)
        for layer, (fw, bw, start_fw, start_bw) in enumerate(zip(cells_fw, cells_bw, *initial, strict=True)):
            with tf.variable_scope(f"cell_{layer}"):
                found = bidirectional(fw, bw, inputs, initial_state_fw=start_fw, initial_state_bw=start_bw, **options)
                inputs, layer_states = join(found)
            states.append(layer_states)
    return inputs, *map(tuple, zip(*states, strict=True))


def stack_bidirectional_dynamic_rnn(
    cells_fw,
    cells_bw,
    inputs,
    initial_states_fw=None,
    initial_states_bw=None,
    dtype=None,
    sequence_length=None,
    parallel_iterations=None,
    time_major=False,
    scope=None,
    swap_memory=False,
):
    """Return the outputs, and the forward and backward states, of a stack of ``bidirectional_dynamic_rnn``."""
    options = {"dtype": dtype, "sequence_length": sequence_length, "parallel_iterations": parallel_iterations}
    options |= {"time_major": time_major, "swap_memory": swap_memory}
    return _stacked(
        tf.nn.bidirectional_dynamic_rnn,
        lambda found: (tf.concat(found[0], 2), found[1]),
        *(cells_fw, cells_bw, inputs, initial_states_fw, initial_states_bw, scope, options),
    )


def stack_bidirectional_rnn(
    cells_fw,
    cells_bw,
    inputs,
    initial_states_fw=None,
    initial_states_bw=None,
    dtype=None,
    sequence_length=None,
    scope=None,
):
    """Return the list of outputs, and the forward and backward states, of a stack of ``static_bidirectional_rnn``."""
    return _stacked(
        tf.nn.static_bidirectional_rnn,
        lambda found: (found[0], found[1:]),
        *(cells_fw, cells_bw, inputs, initial_states_fw, initial_states_bw, scope),
        {"dtype": dtype, "sequence_length": sequence_length},
    )


rnn = _module(
    "rnn",
    _cells,
    LayerNormBasicLSTMCell=LayerNormBasicLSTMCell,
    stack_bidirectional_dynamic_rnn=stack_bidirectional_dynamic_rnn,
    stack_bidirectional_rnn=stack_bidirectional_rnn,
    static_rnn=tf.nn.static_rnn,
    static_state_saving_rnn=tf.nn.static_state_saving_rnn,
    static_bidirectional_rnn=tf.nn.static_bidirectional_rnn,
)

# --- seq2seq --------------------------------------------------------------------------------------------------------

_cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits


def _sequence_loss(
    logits,
    targets,
    weights,
    average_across_timesteps=True,
    average_across_batch=True,
    softmax_loss_function=None,
    name=None,
):
    """Return the weighted cross-entropy of a batch of sequences: logits have the shape (batch, time, classes)."""
    with tf.name_scope(name, "sequence_loss", [logits, targets, weights]):
        shape = tf.shape(logits)
        loss = softmax_loss_function or _cross_entropy
        losses = loss(labels=tf.reshape(targets, [-1]), logits=tf.reshape(logits, [-1, shape[2]]))
        losses *= tf.reshape(weights, [-1])
        if not (average_across_timesteps and average_across_batch):
            losses = tf.reshape(losses, shape[:2])
        if not (average_across_timesteps or average_across_batch):
            return losses
        axis = None if average_across_timesteps and average_across_batch else [int(average_across_timesteps)]
        return tf.div_no_nan(tf.reduce_sum(losses, axis), tf.reduce_sum(weights, axis))


seq2seq = _module("seq2seq", sequence_loss=_sequence_loss)


def sequence_loss_by_example(
    logits, targets, weights, average_across_timesteps=True, softmax_loss_function=None, name=None
):
    """Return the weighted cross-entropy of each sequence of a batch, from a list with an item for each time step."""
    with tf.name_scope(name, "sequence_loss_by_example", [*logits, *targets, *weights]):
        losses = []
        for logit, target, weight in zip(logits, targets, weights, strict=True):
            if softmax_loss_function is None:
                loss = _cross_entropy(labels=tf.reshape(target, [-1]), logits=logit)
            else:
                loss = softmax_loss_function(labels=target, logits=logit)
            losses.append(loss * weight)
        total = tf.add_n(losses)
        return total / (tf.add_n(weights) + 1e-12) if average_across_timesteps else total


def sequence_loss(
    logits,
    targets,
    weights,
    average_across_timesteps=True,
    average_across_batch=True,
    softmax_loss_function=None,
    name=None,
):
    """Return the sum over the batch of `sequence_loss_by_example`, or its mean."""
    with tf.name_scope(name, "sequence_loss", [*logits, *targets, *weights]):
        cost = tf.reduce_sum(
            sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        )
        return cost / tf.cast(tf.shape(targets[0])[0], cost.dtype) if average_across_batch else cost


def rnn_decoder(decoder_inputs, initial_state, cell, loop_function=None, scope=None):
    """Return the list of outputs, and the state, of a cell; a ``loop_function`` makes inputs of outputs."""
    with tf.variable_scope(scope or "rnn_decoder"):
        state, outputs = initial_state, []
        for position, given in enumerate(decoder_inputs):
            fed = given
            if loop_function is not None and outputs:
                with tf.variable_scope("loop_function", reuse=True):
                    fed = loop_function(outputs[-1], position)
            if position:
                tf.get_variable_scope().reuse_variables()
            output, state = cell(fed, state)
            outputs.append(output)
    return outputs, state


legacy_seq2seq = _module(
    "legacy_seq2seq",
    rnn_decoder=rnn_decoder,
    sequence_loss=sequence_loss,
    sequence_loss_by_example=sequence_loss_by_example,
)

util = _module("util", constant_value=tf.get_static_value)

# --- training -------------------------------------------------------------------------------------------------------


class ModeKeys:
    """``tf.estimator.ModeKeys``, which models take as an argument; TensorFlow 2.16 and later have no tf.estimator."""

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


class EstimatorSpec(types.SimpleNamespace):
    """``tf.estimator.EstimatorSpec``, which a ``model_fn`` returns: what it is given, as attributes.

    >>> EstimatorSpec(ModeKeys.PREDICT, predictions=1.0).predictions
    1.0
    """

    def __init__(self, mode, predictions=None, loss=None, train_op=None, eval_metric_ops=None, **others):
        given = {"predictions": predictions, "loss": loss, "train_op": train_op, "eval_metric_ops": eval_metric_ops}
        super().__init__(mode=mode, **given, **others)


class HParams:
    """Hyperparameters as attributes, which keep the type of their first value.

    >>> hparams = HParams(learning_rate=0.1, sizes=[64, 64], activation="relu")
    >>> hparams.parse("learning_rate=0.5,sizes=[8,16]").values()
    {'learning_rate': 0.5, 'sizes': [8, 16], 'activation': 'relu'}
    """

    def __init__(self, hparam_def=None, model_structure=None, **values):
        self._names = []
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name, value):
        """Add a hyperparameter."""
        if hasattr(self, name):
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        self._names.append(name)
        setattr(self, name, list(value) if isinstance(value, tuple) else value)

    def set_hparam(self, name, value):
        """Set a hyperparameter, cast to the type of the value that it has."""
        if name not in self._names:
            raise KeyError(name)
        before = getattr(self, name)
        if isinstance(before, list):
            value = [self._cast(before[0] if before else None, one) for one in value]
        setattr(self, name, value if isinstance(before, list) else self._cast(before, value))

    @staticmethod
    def _cast(before, value):
        if before is None or (isinstance(before, bool) and isinstance(value, bool)):
            return value
        if isinstance(before, bool):
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if isinstance(before, int) and float(value) != int(float(value)):
            raise ValueError(f"Could not cast {value!r} to an integer")
        return type(before)(float(value)) if isinstance(before, int) else type(before)(value)

    def del_hparam(self, name):
        """Remove a hyperparameter."""
        self._names.remove(name)
        delattr(self, name)

    def parse(self, values):
        """Set hyperparameters from a text such as ``"a=1,b=[2,3]"``."""
        text = re.compile(r"\s*(\w+)\s*=\s*(\[[^\]]*\]|[^,\[]*)\s*(,|$)")
        position = 0
        while position < len(values):
            found = text.match(values, position)
            if found is None:
                raise ValueError(f"Malformed hyperparameter value: {values[position:]}")
            name, value, _ = found.groups()
            items = [item.strip() for item in value.strip("[]").split(",")]
            self.set_hparam(name, items if value.startswith("[") else value.strip())
            position = found.end()
        return self

    def override_from_dict(self, values):
        """Set hyperparameters from a dict."""
        for name, value in values.items():
            self.set_hparam(name, value)
        return self

    set_from_map = override_from_dict

    def values(self):
        """Return the hyperparameters as a dict."""
        return {name: getattr(self, name) for name in self._names}

    def get(self, key, default=None):
        """Return a hyperparameter, or a default."""
        return getattr(self, key) if key in self._names else default

    def to_json(self, indent=None, separators=None, sort_keys=False):
        """Return the hyperparameters as JSON."""
        return json.dumps(self.values(), indent=indent, separators=separators, sort_keys=sort_keys)

    def __contains__(self, key):
        return key in self._names

    def __repr__(self):
        return f"HParams({self.values()})"


training = _module("training", HParams=HParams)
