"""Variables of a model and of its training, in graphs with real optimizers that a TF1 Saver has saved."""

import contextlib
import inspect

import pytest
import tensorflow as tf
import tf_keras

from detrand import VariableSpec, variables_of
from detrand.checkpoints.training_state import optimizer_slots

v1 = tf.compat.v1
legacy = tf_keras.optimizers.legacy

# Names that contain each other, and names that optimizers give to slots.
MODEL = {
    "net/w": (3, 2),
    "net/w_1": (3, 2),
    "w": (3, 2),
    "tower/net/w": (3, 2),
    "net/v": (3, 2),
    "attention/m": (3, 2),
    "attention/momentum": (3, 2),
    "scale": (),
    "net/scale": (),
    "net/table": (4, 2),
}


def saved(path, train, scope=None, as_dict=False):
    """Build the model and its training in a TF1 graph, and return what a Saver writes."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name, shape in MODEL.items():
            v1.get_variable(name, shape, partitioner=v1.fixed_size_partitioner(2) if name == "net/table" else None)
        variables = v1.trainable_variables()
        loss = tf.add_n([tf.reduce_sum(variable) for variable in variables])
        with v1.variable_scope(scope) if scope else contextlib.nullcontext():
            train(loss, variables)
        session.run(v1.global_variables_initializer())
        given = {variable.op.name: variable for variable in v1.global_variables()} if as_dict else None
        v1.train.Saver(given).save(session, path)
    return variables_of(path)


def minimize(make, *arguments, **options):
    return lambda loss, variables: make(*arguments, **options).minimize(loss)


def keras_minimize(make, *arguments, **options):
    def train(loss, variables):
        make(*arguments, **options).apply_gradients(list(zip(v1.gradients(loss, variables), variables, strict=True)))

    return train


def keras_fit(make, *arguments, **options):
    """Build the training of ``fit`` of a Keras model in a TF1 graph."""

    def train(loss, variables):
        with tf.name_scope("training"):
            make(*arguments, **options).get_updates(loss, variables)

    return train


def two(train):
    return lambda loss, variables: [train(loss, variables) for _ in range(2)]


def averages(loss, variables, **options):
    tensors = [tf.identity(loss), tf.stack([loss, loss])]
    tf.train.ExponentialMovingAverage(0.9, **options).apply([*tensors, *variables])


OF_TF1 = {
    "AdadeltaOptimizer": minimize(v1.train.AdadeltaOptimizer),
    "AdagradDAOptimizer": minimize(lambda: v1.train.AdagradDAOptimizer(0.1, v1.train.get_or_create_global_step())),
    "AdagradOptimizer": minimize(v1.train.AdagradOptimizer, 0.1),
    "AdamOptimizer": minimize(v1.train.AdamOptimizer),
    "FtrlOptimizer": minimize(v1.train.FtrlOptimizer, 0.1),
    "MomentumOptimizer": minimize(v1.train.MomentumOptimizer, 0.1, 0.9),
    "ProximalAdagradOptimizer": minimize(v1.train.ProximalAdagradOptimizer, 0.1),
    "RMSPropOptimizer": minimize(v1.train.RMSPropOptimizer, 0.1, centered=True),
}
WITHOUT_SLOTS = {"Optimizer", "GradientDescentOptimizer", "ProximalGradientDescentOptimizer", "SyncReplicasOptimizer"}
OF_KERAS = {
    "Adadelta": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "Adamax": {},
    "Ftrl": {},
    "Nadam": {},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "SGD": {"momentum": 0.9},
}
OF_NEWER_KERAS = {"Adafactor": {}, "AdamW": {}, "Lion": {}}

CASES = {
    **OF_TF1,
    "two": two(minimize(v1.train.AdamOptimizer)),
    "keras-two": two(keras_minimize(tf_keras.optimizers.Adam)),
    "legacy-two": two(keras_minimize(legacy.Adam)),
    "loss-scale": minimize(
        lambda: v1.mixed_precision.MixedPrecisionLossScaleOptimizer(v1.train.AdamOptimizer(), "dynamic")
    ),
    "learning-rate": lambda loss, variables: v1.get_variable("learning_rate", (), trainable=False),
    "averages": averages,
    "averages-unbiased": lambda loss, variables: averages(loss, variables, zero_debias=True),
    **{f"legacy-{name}": keras_minimize(getattr(legacy, name), **options) for name, options in OF_KERAS.items()},
    "fit-Adam": keras_fit(legacy.Adam),
    "fit-SGD": keras_fit(legacy.SGD, momentum=0.9),
    "fit-named": keras_fit(legacy.Adam, name="my_optimizer"),
    "legacy-loss-scale": keras_minimize(lambda: tf_keras.mixed_precision.LossScaleOptimizer(legacy.Adam())),
    **{
        f"keras-{name}": keras_minimize(getattr(tf_keras.optimizers, name), **options)
        for name, options in {**OF_KERAS, **OF_NEWER_KERAS}.items()
        if name != "Nadam"  # cannot be built in a TF1 graph
    },
}


@pytest.mark.slow_except(
    "AdamOptimizer-None",
    "RMSPropOptimizer-None",
    "two-None",
    "loss-scale-None",
    "averages-training",
    "learning-rate-None",
    "legacy-Adam-None",
    "fit-named-None",
    "keras-Adam-None",
    "keras-SGD-None",
    "MomentumOptimizer-training",
)
@pytest.mark.parametrize(
    ("case", "scope"), [*((case, None) for case in CASES), *((case, "training") for case in (*OF_TF1, "averages"))]
)
def test_all_variables_but_the_models_are_training_state(case, scope, tmp_path):
    specs = saved(str(tmp_path / "model.ckpt"), CASES[case], scope)
    assert set(optimizer_slots(specs)) == specs.keys() - MODEL.keys() != set()


def test_slots_of_parts_that_a_saver_was_given_by_name(tmp_path):
    specs = saved(str(tmp_path / "model.ckpt"), OF_TF1["AdamOptimizer"], as_dict=True)
    model = {*(MODEL.keys() - {"net/table"}), "net/table/part_0", "net/table/part_1"}
    assert "net/table/part_1/Adam_1" in specs
    assert set(optimizer_slots(specs)) == specs.keys() - model


@pytest.mark.parametrize("name", ["my_optimizer", "Adam_optimizer"])
def test_slots_of_an_optimizer_with_its_own_name(name, tmp_path):
    specs = saved(str(tmp_path / "model.ckpt"), minimize(v1.train.AdamOptimizer, name=name))
    assert set(optimizer_slots(specs)) == specs.keys() - MODEL.keys() != set()


def test_every_tf1_optimizer_is_in_the_cases():
    def classes(module):
        return {
            name
            for name, found in vars(module).items()
            if inspect.isclass(found) and name != "Optimizer" and hasattr(found, "apply_gradients")
        }

    assert classes(v1.train) == OF_TF1.keys() | WITHOUT_SLOTS - {"Optimizer"}
    assert classes(legacy) == OF_KERAS.keys()
    assert classes(tf_keras.optimizers) == OF_KERAS.keys() | OF_NEWER_KERAS.keys()


# The form of Keras's optimizers before TensorFlow 1.14, in tf.keras and in Keras 2.
UNNAMED = ["Adam/iterations", "Adam/lr", "Adam/beta_1", "Adam/beta_2", "Adam/decay"]


@pytest.mark.parametrize("slot", ["training/Variable", "training/Variable_3", "training/Adam/Variable_12"])
def test_slots_of_unnamed_optimizers_are_recognized(slot):
    model = dict.fromkeys(["net/w", "Variable", "net/Variable_1"], VariableSpec((3, 2), "float32", None))
    kept = {slot: VariableSpec((3, 2), "float32", None), **dict.fromkeys(UNNAMED, VariableSpec((), "float32", None))}
    assert set(optimizer_slots({**model, **kept})) == kept.keys()


@pytest.mark.parametrize(
    "names",
    [
        ("w", "encoder/w"),  # one name ends as the other
        ("net/kernel", "net/kernel/inner"),  # of another shape, see below
        ("kernel", "attention/v/kernel", "attention/m/kernel"),
        ("w", "tower/w/gain"),
        ("encoder/w", "net/iter", "net/encoder/w/gain"),
        ("w", "Adam/w"),
        ("Adam", "other/Adam"),
        ("beta1_power", "step"),
        ("training/Variable", "training/w"),
    ],
    ids="-".join,
)
def test_similar_names_of_a_model_are_not_slots(names):
    specs = {name: VariableSpec((3, 1 + name.count("inner")), "float32", None) for name in names}
    assert optimizer_slots(specs) == []
