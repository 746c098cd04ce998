"""Moving averages are held to what each step adds to them."""

import keras
import pytest
import tensorflow.compat.v1 as tf

import detrand
from tests.faults.tf1 import batch_norm, dense, numbers


class Port(keras.Model):
    """Batch normalization whose moving variance gets ``share`` of the variance of each batch."""

    def __init__(self, momentum, share):
        super().__init__()
        self.a, self.b = keras.layers.Dense(4), keras.layers.Dense(2)
        self.gamma = self.add_weight(shape=(4,), initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=(4,), initializer="zeros", name="beta")
        self.mean = self.add_weight(shape=(4,), initializer="zeros", name="mean", trainable=False)
        self.var = self.add_weight(shape=(4,), initializer="ones", name="var", trainable=False)
        self.momentum, self.share = momentum, share

    def call(self, x, training=False):
        x = self.a(x)
        mean, variance = keras.ops.moments(x, 0) if training else (self.mean.value, self.var.value)
        if training:
            self.mean.assign(self.mean * self.momentum + mean * (1 - self.momentum))
            self.var.assign(self.var * self.momentum + self.share * variance * (1 - self.momentum))
        return self.b(tf.nn.batch_normalization(x, mean, variance, self.beta.value, self.gamma.value, 1e-3))


def validated(size, decay, momentum, share=1.0):
    def tf1(x, training):
        return dense(batch_norm(dense(x, 4, "a"), training, "bn", decay=decay), 2, "b")

    train = detrand.TrainStep(
        labels=numbers(8, 2, seed=1),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_optimizer=lambda: tf.train.GradientDescentOptimizer(0.01),
        port_optimizer=lambda: keras.optimizers.SGD(0.01),
        steps=3,
    )
    names = {f"bn/{name}": f"port/{other}" for name, other in (("scale", "gamma"), ("offset", "beta"))}
    names |= {f"bn/{name}": f"port/{name}" for name in ("mean", "var")}
    names |= {"a/w": "port/dense/kernel", "a/b": "port/dense/bias"}
    names |= {"b/w": "port/dense_1/kernel", "b/b": "port/dense_1/bias"}
    migration = detrand.Migration(
        tf1=tf1, port=lambda: Port(momentum, share), inputs=size * numbers(8, 3), name_map=names, train=train
    )
    return detrand.validate(migration, checks=["training-steps"]).checks[0]


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.9, 0.99, 0.999])
def test_the_same_momentum_passes(decay):
    assert validated(1e-3, decay, decay).ok


@pytest.mark.slow
def test_another_momentum_fails():
    check = validated(1e-3, 0.999, 0.99)
    assert not check.ok
    assert "momentum differs: 0.999 (TF1), 0.99 (port)" in check.causes


@pytest.mark.slow
def test_a_variance_that_is_slightly_too_small_fails():
    check = validated(1.0, 0.999, 0.999, share=0.9975)
    assert not check.ok
    assert "moving_average_updates" in check.summary


SHARE = 0.125


def student_and_teacher(x, training):
    """Train the student only; a step moves the teacher towards it."""
    with tf.variable_scope("teacher"):
        tf.get_variable("w", [3, 2], trainable=False)
    return dense(x, 2, "student", bias=False)


def step_of_student(loss):
    student, teacher = (
        next(each for each in tf.global_variables() if each.name == f"{name}/w:0") for name in ("student", "teacher")
    )
    with tf.control_dependencies([tf.train.GradientDescentOptimizer(0.1).minimize(loss)]):
        return teacher.assign_add(SHARE * (student.read_value() - teacher))


class Student(keras.Model):
    def __init__(self):
        super().__init__()
        self.student = self.add_weight(shape=(3, 2), name="student")
        self.teacher = self.add_weight(shape=(3, 2), name="teacher", trainable=False)

    def call(self, x, training=False):
        return keras.ops.matmul(x, self.student)


class SGDOfStudent(keras.optimizers.SGD):
    """Gradient descent that moves a teacher by ``share``, a number or a function of the step, towards the student."""

    def __init__(self, share, is_first):
        super().__init__(0.1)
        self.share, self.is_first = share, is_first

    def apply(self, grads, trainable_variables=None):
        for moves in (self.is_first, not self.is_first):
            if moves:
                share = self.share(self.iterations) if callable(self.share) else self.share
                student, teacher = made[0].student, made[0].teacher
                teacher.assign_add(share * (student - teacher))
            else:
                super().apply(grads, trainable_variables)


made = []


def student():
    made[:] = [Student()]
    return made[0]


def finding_of_teacher(share, is_first=False):
    train = detrand.TrainStep(
        labels=numbers(8, 2, seed=1),
        tf1_loss=tf.losses.mean_squared_error,
        port_loss=keras.losses.MeanSquaredError(),
        tf1_train_op=step_of_student,
        port_optimizer=lambda: SGDOfStudent(share, is_first),
        steps=3,
    )
    names = {f"{name}/w": f"student/{name}" for name in ("student", "teacher")}
    migration = detrand.Migration(
        tf1=student_and_teacher, port=student, inputs=numbers(8, 3), name_map=names, train=train
    )
    report = detrand.validate(migration, checks=["training-steps"])
    return next(iter(report.findings), None)


def test_a_variable_that_follows_a_weight_passes():
    assert finding_of_teacher(SHARE) is None


@pytest.mark.slow
def test_a_variable_that_follows_a_weight_before_the_update_is_named():
    found = finding_of_teacher(SHARE, is_first=True)
    assert found.title == "TF1 moves teacher/w towards the weights after the update, the port before it"
    assert found.confirmed and found.remedy == "move the variables after the update in the port"


@pytest.mark.slow
def test_another_share_of_a_weight_is_named():
    found = finding_of_teacher(0.25)
    what = "share of the distance that a step moves teacher/w towards the weights"
    assert found.title == f"{what} differs: 0.125 (TF1), 0.25 (port)"
    assert found.remedy == "use 0.125 in the port"


@pytest.mark.slow
def test_a_variable_that_follows_a_weight_in_one_program_only_is_named():
    found = finding_of_teacher(0.0)
    assert found.title == "only TF1 moves teacher/w towards the weights, by 0.125 of the distance in each step"


@pytest.mark.slow
def test_updates_without_one_ratio_in_all_steps_are_no_momentum():
    found = finding_of_teacher(lambda step: SHARE / (1 + keras.ops.cast(step, "float32")))
    assert found.title.startswith("updates of teacher/w differ") and not found.confirmed


def replaced(x, training):
    scale = tf.get_variable("scale", (), trainable=False, initializer=tf.ones_initializer())
    shift = tf.get_variable("shift", (3,), trainable=False, initializer=tf.ones_initializer())
    outputs = x @ tf.get_variable("kernel", (3, 2)) + scale + tf.reduce_sum(shift)
    if training:
        with tf.control_dependencies([outputs]):
            for update in (tf.assign(scale, tf.reduce_mean(x)), tf.assign(shift, tf.reduce_mean(x, 0))):
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return outputs


class Replaced(tf.Module):
    def __init__(self, update, factor=1.0):
        super().__init__()
        self.scale = tf.Variable(1.0, trainable=False, name="scale")
        self.shift = tf.Variable(tf.ones(3), trainable=False, name="shift")
        self.kernel = tf.Variable(tf.zeros((3, 2)), name="kernel")
        self.update, self.factor = update, factor

    def __call__(self, x, training=False):
        outputs = x @ self.kernel + self.scale + tf.reduce_sum(self.shift)
        if training:
            getattr(self.scale, self.update)(self.factor * tf.reduce_mean(x))
            getattr(self.shift, self.update)(tf.reduce_mean(x, 0))
        return outputs


def titles_of_updates(update, factor=1.0):
    migration = detrand.Migration(tf1=replaced, port=lambda: Replaced(update, factor), inputs=1 + numbers(8, 3))
    return [finding.title for finding in detrand.validate(migration, checks=["random-training"]).findings]


def test_a_new_value_that_is_added_to_the_old_one_is_named():
    assert titles_of_updates("assign") == []
    assert titles_of_updates("assign_add") == ["only the port adds the new value to the old one"]


def test_one_number_shows_no_momentum():
    (title,) = titles_of_updates("assign", factor=1.5)
    assert "momentum" not in title
