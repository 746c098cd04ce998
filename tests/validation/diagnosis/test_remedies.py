"""What findings say to change."""

import pytest

from detrand.validation.diagnosis.remedies import remedy_of


@pytest.mark.parametrize(
    ("title", "remedy"),
    [
        ("momentum differs in bn: 0.997 (TF1), 0.99 (port)", "use 0.997 in the port"),
        (
            "the port creates variables when it is called again",
            "make the variables and layers once, in __init__ or build, and not in each call. TF1 code in a layer gets "
            "them from get_variable and get_or_create_layer",
        ),
        (
            "the checkpoint 'model.ckpt' does not fit the TF1 program: 5 only in the TF1 program. No variable was "
            "changed",
            "pass a checkpoint of the whole program, and build the program with the arguments with which it was "
            "trained; -v lists what does not fit",
        ),
        (
            "variables: shape differs (1): net/w: (3, 2) in TF1, (4, 2) in the port",
            "give the port's layers TF1's sizes; for a variable that has the same numbers in a different form, pass a "
            "Rearranged in name_map",
        ),
        (
            "variables: dtype differs (1): net/w: float32 in TF1, float16 in the port",
            "give the port's layers TF1's dtype, or pass Migration(dtype_policy=...)",
        ),
        (
            "arithmetic differs: divides by 2.0 (TF1), multiplies by 0.3 (port)",
            "compute in the port what TF1 does here, which divides by 2.0",
        ),
        ("learning rate differs in step 0: 0.01 (TF1), 0.001 (port)", "use 0.01 in the port"),
        (
            "learning rate differs in step 2: 0.01 (TF1), 0.001 (port)",
            "make the port's schedule compute TF1's rates",
        ),
        (
            "clipping of gradients differs: global norm 5 (TF1), none (port)",
            "pass global_clipnorm=5 to the port's optimizer",
        ),
        ("clipping of gradients differs: none (TF1), each element 5 (port)", "do not clip gradients in the port"),
        (
            "only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage, decay 0.9)",
            "pass use_ema=True, ema_momentum=0.9 to the port's optimizer",
        ),
        (
            "only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage, decay min(decay, (1 + "
            "n) / (10 + n)) for num_updates n)",
            "pass use_ema=True to the port's optimizer, with min(decay, (1 + n) / (10 + n)) as ema_momentum, a "
            "property of a subclass, where n is iterations + 1",
        ),
        (
            "only TF1 keeps moving averages of the weights (tf.train.ExponentialMovingAverage, decay 0.9), of the "
            "weights before the update",
            "average the weights before the update in the port, too: Keras's use_ema averages them after it",
        ),
        (
            "initial rms differs in the optimizer: 1 (TF1), 0 (port)",
            "return tf.compat.v1.train.RMSPropOptimizer in the port, or a subclass of keras.optimizers.RMSprop whose "
            "velocities begin with ones: Keras has no argument for them",
        ),
        ("strides differs: [1, 1, 1, 1] (TF1), [1, 2, 2, 1] (port)", "use [1, 1, 1, 1] in the port"),
        ("initializer differs: uniform from -1 to 1 (TF1), zeros (port)", "use uniform from -1 to 1 in the port"),
        (
            "order of ops differs: Sigmoid, then Mul (TF1), Mul, then Sigmoid (port)",
            "use this order in the port: Sigmoid, then Mul",
        ),
        ("amsgrad differs in the optimizer: none (TF1), True (port)", "leave out amsgrad in the port's optimizer"),
        (
            "a keep_prob is used as a rate (or a rate as a keep_prob): dropout rate differs: 0.2 (TF1), 0.8 (port)",
            "use the rate 0.2 in the port: keep_prob 0.8 is a rate of 0.2",
        ),
        (
            "shape of random numbers differs: (4, 1, 4) (TF1), (4, 6, 4) (port)",
            "draw random numbers of shape (4, 1, 4) in the port, where TF1 does; noise_shape sets the shape for a "
            "dropout",
        ),
        ("only TF1 multiplies by 1.702", "add this to the port"),
        ("only the port pads", "remove this from the port"),
        ("the port has no activation where TF1 has Relu6", "add the activation Relu6 to the port"),
        ("TF1 has no activation where the port has Tanh", "remove the activation Tanh from the port"),
        ("axis of Softmax differs: Transpose (TF1), not transposed (port)", "compute Softmax along TF1's axis"),
        ("AddV2 takes different tensors: mul (TF1), lookup (port)", "pass the port's counterpart of mul here"),
        ("TF1 sums a loss where the port takes the mean: it is 6 times as large", "sum the loss in the port"),
        (
            "the port's loss reads the outputs as probabilities, TF1's as logits",
            "pass from_logits=True to the port's loss",
        ),
        (
            "clipping of gradients differs: global norm 0.1 (TF1), none (port)",
            "pass global_clipnorm=0.1 to the port's optimizer",
        ),
        (
            "clipping of gradients differs: each element 2 (TF1), none (port)",
            "pass clipvalue=2 to the port's optimizer",
        ),
        ("clipping of gradients differs: none (TF1), global norm 0.1 (port)", "do not clip gradients in the port"),
        ("what is computed differs: Log (TF1), Exp, Sub (port)", ""),
        (
            "loss: factor differs: 0.5 in place of 0.25 gives TF1's loss",
            "use 0.5 in place of 0.25 in the port",
        ),
        ("order of axes differs: TF1's array transposed to (0, 2, 1) is the port's array", ""),
        ("only TF1 uses input 1 here", ""),
        ("another result at Relu (Relu) at model.py:3; what causes it is not known", ""),
        ("a factor differs: the port's values are 0.5882 times TF1's", ""),
    ],
)
def test_a_title_that_says_the_cause_has_a_remedy(title, remedy):
    assert remedy_of(title) == remedy
