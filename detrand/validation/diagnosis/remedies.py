"""What to change in a port, by the title of a finding."""

from __future__ import annotations

import re

# A remedy is true of every finding whose title matches; most specific first.
_REMEDIES = (
    (
        r"names of .+ differ, and the outputs do not show .+",
        "correct the name_map that -v shows, and pass it as Migration(name_map=...)",
    ),
    (
        r"the port creates variables when it is called again",
        "make the variables and layers once, in __init__ or build, and not in each call. TF1 code in a layer gets them "
        "from get_variable and get_or_create_layer",
    ),
    (
        r"the checkpoint .+ does not fit the TF1 program: .+",
        "pass a checkpoint of the whole program, and build the program with the arguments with which it was trained; "
        "-v lists what does not fit",
    ),
    (r"the port sums a loss where TF1 takes the mean: .+", "take the mean in the port"),
    (r"TF1 sums a loss where the port takes the mean: .+", "sum the loss in the port"),
    (r"the port's loss reads the outputs as probabilities.+", "pass from_logits=True to the port's loss"),
    (r"the port's loss reads the outputs as logits.+", "pass from_logits=False to the port's loss"),
    (
        r"labels and outputs are exchanged",
        "pass the two in the other order; losses of Keras take (y_true, y_pred)",
    ),
    (
        r"initializer differs: constant 0 \(TF1\), -1 and 0 \(port\)",
        "if this is the bias of an LSTM, pass unit_forget_bias=True to the layer: TF1 adds 1 for the forget gate",
    ),
    (
        r"shape of random numbers differs: (.+) \(TF1\), .+",
        r"draw random numbers of shape \1 in the port, where TF1 does; noise_shape sets the shape for a dropout",
    ),
    (r"label smoothing differs: none \(TF1\), .+", "do not smooth the labels in the port"),
    (
        r"label smoothing differs: (.+) \(TF1\), none \(port\)",
        r"smooth the labels in the port, as label_smoothing=\1 does in keras.losses.CategoricalCrossentropy",
    ),
    (r".+ of the CTC loss differs: [^;]+; .+", "make the port's CTC loss take what TF1's takes"),
    (
        r"blank index of the CTC loss differs: (\d+) \(TF1\), .+",
        r"pass blank_index=\1 (mask_index in Keras) to the port's loss",
    ),
    (
        r"axis of time of the CTC loss differs: .+",
        "transpose the logits in the port, or pass another logits_time_major to tf.nn.ctc_loss",
    ),
    (
        r"preprocess_collapse_repeated of the CTC loss differs: True \(TF1\), .+",
        "remove repeated labels in the port before the loss, or call tf.compat.v1.nn.ctc_loss, which can do that",
    ),
    (
        r"ctc_merge_repeated of the CTC loss differs: False \(TF1\), .+",
        "call tf.compat.v1.nn.ctc_loss in the port: tf.nn.ctc_loss always merges repeated labels",
    ),
    (r"the port has no activation where TF1 has (.+)", r"add the activation \1 to the port"),
    (r"TF1 has no activation where the port has (.+)", r"remove the activation \1 from the port"),
    (
        r"variables: shape differs .*",
        "give the port's layers TF1's sizes; for a variable that has the same numbers in a different form, pass a "
        "Rearranged in name_map",
    ),
    (r"variables: dtype differs .*", "give the port's layers TF1's dtype, or pass Migration(dtype_policy=...)"),
    (
        r"variables: trainable differs.*: True in TF1, False in the port.*",
        "make these variables trainable in the port. If TF1 does not train them either, pass the names of those that "
        "it trains as TrainStep(var_list=[...]), as to minimize(var_list=...), or its training op as "
        "TrainStep(tf1_train_op=...)",
    ),
    (
        r"variables: trainable differs.*: False in TF1, True in the port.*",
        "freeze these variables in the port, as with trainable=False of their layer",
    ),
    (
        r"a keep_prob is used as a rate.+ differs: (.+) \(TF1\), (.+) \(port\)",
        r"use the rate \1 in the port: keep_prob \2 is a rate of \1",
    ),
    (r"only the port trains (.+)", r"freeze \1 in the port, or pass TrainStep(var_list=...)"),
    (r"only TF1 trains (.+)", r"train \1 in the port, as TF1's training op does"),
    (
        r".+ start with the same numbers: .+",
        "give each variable an initializer of its own, without a seed",
    ),
    (
        r"the port draws the same numbers in every step: .+",
        "draw from a keras.random.SeedGenerator that the layer keeps, in place of the integer",
    ),
    (r"two random ops of the port draw the same numbers: .+", "give each of them another seed, or none"),
    (r"the port never updates .+", "update this in the port; a Keras layer does so when called with training=True"),
    (r"only TF1 changes no weight in step .+", "pass gradient_accumulation_steps to the port's optimizer"),
    (
        r"learning rate changes only in TF1 \((.+)\) until .+",
        r"pass a schedule of keras.optimizers.schedules to the port's optimizer that computes what \1 does in TF1",
    ),
    (
        r"learning rate changes only in TF1 until .+",
        "pass a schedule that computes TF1's rates to the port's optimizer",
    ),
    (r"learning rate changes only in the port until .+", "pass TF1's rate, a number, to the port's optimizer"),
    (r"learning rate differs in step [1-9]\d*: .+", "make the port's schedule compute TF1's rates"),
    (
        r"initial rms differs in the optimizer: 1 \(TF1\), .+",
        "return tf.compat.v1.train.RMSPropOptimizer in the port, or a subclass of keras.optimizers.RMSprop whose "
        "velocities begin with ones: Keras has no argument for them",
    ),
    (
        r"TF1 averages the weights before the update, .+",
        "let TF1 average after the update (tf.control_dependencies), or average before it in the port: Keras's use_ema "
        "averages after it",
    ),
    (
        r"decay of the moving averages of weights in step .+ = (min.+) for num_updates n \(TF1\), .+",
        r"make ema_momentum of the port's optimizer \1, a property of a subclass, where n is iterations + 1",
    ),
    (
        r"only TF1 keeps moving averages of the weights.*decay (min.+) for num_updates n\).*",
        r"pass use_ema=True to the port's optimizer, with \1 as ema_momentum, a property of a subclass, where n is "
        r"iterations + 1",
    ),
    (
        r"only TF1 keeps moving averages of the weights.+, of the weights before the update",
        "average the weights before the update in the port, too: Keras's use_ema averages them after it",
    ),
    (
        r"PyTorch's Adam adds epsilon after .+",
        "in step t, from 1 on, set the epsilon of PyTorch's Adam to TF1's / sqrt(1 - beta_2**t), in a step_pre_hook",
    ),
    (
        r"optax's Adam adds epsilon after .+",
        "write optax.inject_hyperparams(optax.adam)(rate, eps=lambda step: epsilon / jnp.sqrt(1 - b2 ** (step + 1)))",
    ),
    (
        r"only TF1 keeps moving averages of the weights.*decay (.+)\)",
        r"pass use_ema=True, ema_momentum=\1 to the port's optimizer",
    ),
    (r"only TF1 keeps moving averages of the weights.*", "pass use_ema=True to the port's optimizer"),
    (
        r"only TF1 clips weights after each update, .+",
        "clip the weights in the port with a constraint of its layers, such as kernel_constraint and bias_constraint",
    ),
    (
        r"TF1 multiplies its momentum by the learning rate of each step, .+",
        "return tf.compat.v1.train.MomentumOptimizer in the port, or subclass keras.optimizers.SGD with an update_step "
        "that adds up gradients and multiplies the sum by the rate",
    ),
    (
        r"TF1 leaves rows of .+ without gradients as they are, .+",
        "return the optimizer of tf.compat.v1.train in the port, and look rows up, so that gradients come in slices",
    ),
    (r"the port leaves rows of .+ without gradients as they are, .+", "update all rows in the port"),
    (r"clipping of gradients differs: none \(TF1\), .+", "do not clip gradients in the port"),
    (r"clipping of gradients differs: global norm (\S+) \(TF1\).+", r"pass global_clipnorm=\1 to the port's optimizer"),
    (r"clipping of gradients differs: norm of each (\S+) \(TF1\).+", r"pass clipnorm=\1 to the port's optimizer"),
    (r"clipping of gradients differs: each element (\S+) \(TF1\).+", r"pass clipvalue=\1 to the port's optimizer"),
    (r"only TF1 (?!uses ).+", "add this to the port"),
    (r"only the port (?!uses ).+", "remove this from the port"),
    (r"the port .+, which broadcasts to .+", "use tf.squeeze or tf.reshape, so that both have one shape"),
    (
        r"axis of (.+) differs: (?:.*Transpose.*|not transposed) \(TF1\), .+",
        r"compute \1 along TF1's axis",
    ),
    (r".+ takes different tensors: (.+) \(TF1\), .+ \(port\)", r"pass the port's counterpart of \1 here"),
    (r"arithmetic differs: (.+) \(TF1\), .+", r"compute in the port what TF1 does here, which \1"),
    (r"what is computed differs: .+", ""),  # these are names of ops
    (r"clipping or normalization of gradients differs: .+", ""),
    (r".+ differs: (.+ in place of .+) gives TF1's loss", r"use \1 in the port"),
    (r"order of .+ differs: (.+) \(TF1\), .+ \(port\)", r"use this order in the port: \1"),
    (r"(.+) differs in the optimizer: none \(TF1\), .+ \(port\)", r"leave out \1 in the port's optimizer"),
    (r"(?:.+ )?differs(?: in [^:]+)?: none \(TF1\), .+ \(port\)", "leave this out in the port"),
    (r"(?:.+ )?differs(?: in [^:]+)?: (.+) \(TF1\), .+ \(port\)", r"use \1 in the port"),
)


def remedy_of(title: str) -> str:
    """Return what to change in the port, given the title of a finding; empty if the title does not decide that.

    >>> remedy_of("epsilon differs in bn1: 1e-05 (TF1), 0.001 (port)")
    'use 1e-05 in the port'
    """
    for pattern, remedy in _REMEDIES:
        match = re.fullmatch(pattern, title.removeprefix("loss: "), re.DOTALL)
        if match:
            return match.expand(remedy)
    return ""
