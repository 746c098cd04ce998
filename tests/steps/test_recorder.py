"""A recorder holds what a session fetched, or the values that eager code and functions had at the time."""

import collections
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import ArgumentError, RecordingError, StepRecorder
from detrand.comparison.structures import save_structure

v1 = tf.compat.v1
State = collections.namedtuple("State", ["c", "h"])
RATE, STEPS = 0.1, 3
FEATURES = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def train_in_session():
    """Return the values that each run fetches before it updates the weight."""
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=np.ones((3, 1), np.float32))
        outputs = tf.matmul(FEATURES, weight)
        loss = tf.reduce_sum(outputs**2)
        (gradient,) = tf.gradients(loss, [weight])
        with tf.control_dependencies([gradient]):
            update = v1.assign_sub(weight, RATE * gradient)
        session.run(v1.global_variables_initializer())
        fetched = []
        for _ in range(STEPS):
            fetched.append(session.run({"loss": loss, "gradients": {"w": gradient}, "state": (outputs, loss)}))
            session.run(update)
        return fetched


def train_eagerly(recorder, weight, step):
    with tf.GradientTape() as tape:
        outputs = tf.matmul(FEATURES, tf.convert_to_tensor(weight))
        loss = tf.reduce_sum(outputs**2)
    gradient = tape.gradient(loss, weight if isinstance(weight, tf.Variable) else weight.value)
    recorder.record(step, loss=loss, gradients={"w": gradient})
    recorder.record(step, state=State(outputs, loss), weight=weight)
    weight.assign(weight - RATE * gradient)
    recorder.record(step, after=weight)


VARIABLES = {
    "tensorflow": lambda: tf.Variable(np.ones((3, 1), np.float32)),
    "keras3": lambda: keras.Variable(np.ones((3, 1), np.float32)),
}


@pytest.mark.slow_except("keras3-*", "tensorflow-keras function", "tensorflow-eager")
@pytest.mark.parametrize("way", ["eager", "function", "keras function"])
@pytest.mark.parametrize("make", VARIABLES.values(), ids=VARIABLES)
def test_each_step_holds_what_the_session_fetches(make, way):
    recorder, weight = StepRecorder(), make()
    counter = keras.Variable(0, dtype="int64") if way == "keras function" else tf.Variable(0, dtype=tf.int64)

    def train():
        train_eagerly(recorder, weight, counter)

    if way != "eager":
        train = tf.function(train)
    for _ in range(STEPS):
        train()
        counter.assign(counter + 1)
    assert recorder.steps == (0, 1, 2)
    before = np.ones((3, 1), np.float32)
    for step, fetched in enumerate(train_in_session()):
        found = recorder[step]
        assert list(found) == ["loss", "gradients", "state", "weight", "after"]
        assert found["loss"].dtype == np.float32
        np.testing.assert_array_equal(found["loss"], fetched["loss"])
        np.testing.assert_array_equal(found["gradients"]["w"], fetched["gradients"]["w"])
        np.testing.assert_array_equal(found["state"].c, fetched["state"][0])
        np.testing.assert_array_equal(found["weight"], before)
        before = found["after"]
    np.testing.assert_array_equal(before, weight.numpy())


def test_a_session_fetches_are_recorded_as_they_are():
    recorder, fetched = StepRecorder(), train_in_session()
    for step, values in enumerate(fetched):
        recorder.record(step, **values)
    np.testing.assert_array_equal(recorder[2]["state"][0], fetched[2]["state"][0])
    assert len(recorder) == STEPS


def test_a_keras_train_step_can_record():
    """A Keras train step is a tf.function."""
    recorder = StepRecorder()

    class Recorded(tf_keras.Sequential):
        def train_step(self, data):
            metrics = super().train_step(data)
            recorder.record(self.optimizer.iterations, weights=self.trainable_variables)
            return metrics

    model = Recorded([tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(tf_keras.optimizers.SGD(RATE), "mse")
    model.fit(FEATURES, np.zeros((2, 1), np.float32), epochs=3, verbose=0)
    assert recorder.steps == (1, 2, 3)
    np.testing.assert_array_equal(recorder[3]["weights"][0], model.weights[0].numpy())
    assert len({float(recorder[step]["weights"][0][0, 0]) for step in recorder.steps}) == 3


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.int8, tf.bool, tf.complex64], ids=lambda d: d.name)
def test_values_recorded_in_a_function_keep_their_dtype(dtype):
    recorder = StepRecorder()

    @tf.function
    def call(step, value):
        recorder.record(step, value=value, scalar=value[0], constant=3, text=tf.constant([b"\xff"]), nothing=None)

    value = tf.cast([0, 1, 1], dtype)
    call(tf.constant(0), value)
    found = recorder[0]
    assert found["value"].dtype == found["scalar"].dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(found["value"], value.numpy())
    assert (found["constant"], found["nothing"], found["text"].tolist()) == (3, None, [b"\xff"])


def test_a_python_step_in_a_function_stays_that_of_the_first_call():
    recorder = StepRecorder()

    @tf.function
    def call(loss):
        recorder.record(0, loss=loss)

    call(tf.constant(0.5))
    assert recorder[0] == {"loss": 0.5}
    call(tf.constant(0.25))
    with pytest.raises(ArgumentError, match=r"loss of step 0 is already recorded; .* as a tensor"):
        recorder.steps  # noqa: B018


def test_record_raises_in_a_compiled_function():
    recorder = StepRecorder()

    @tf.function(jit_compile=True)
    def call(step):
        recorder.record(step, loss=0.5)

    with pytest.raises(ArgumentError, match=r"a function that XLA compiles or .*; return the values"):
        call(tf.constant(0))


def test_record_raises_in_a_function_that_a_session_runs():
    recorder = StepRecorder()

    @tf.function
    def call(step):
        recorder.record(step, loss=0.5)

    with tf.Graph().as_default(), pytest.raises(ArgumentError, match=r"or a Session runs.*, or fetch them, and"):
        call(tf.constant(0))


def test_a_function_that_is_traced_again_continues_to_record():
    recorder = StepRecorder()

    @tf.function
    def call(step, values):
        recorder.record(step, values=values, nothing=None)

    for step, size in enumerate([1, 2, 1]):
        call(tf.constant(step), tf.ones(size))
    recorder.record(3, values=np.ones(5))
    assert [recorder[step]["values"].size for step in recorder.steps] == [1, 2, 1, 5]


def test_each_iteration_of_a_loop_in_a_function_is_recorded():
    recorder, other = StepRecorder(), StepRecorder()

    @tf.function
    def call(count):
        total = tf.constant(0)
        for step in tf.range(count):
            total += step
            recorder.record(step, total=total)
            other.record(step + 5, total=-total)
        return total

    call(tf.constant(4))
    assert [recorder[step]["total"] for step in recorder.steps] == [0, 1, 3, 6]
    assert {step: other[step]["total"] for step in other.steps} == {5: 0, 6: -1, 7: -3, 8: -6}


def test_steps_that_can_no_longer_be_read_are_not_kept():
    recorders = [StepRecorder()]
    call = tf.function(lambda step: recorders[0].record(step, loss=0.5)).get_concrete_function(tf.constant(0))
    (stage,) = (op for op in call.graph.get_operations() if op.type == "Stage")
    area = {name: stage.get_attr(name) for name in ("dtypes", "container", "shared_name")}

    def kept():
        with tf.device(stage.device):
            return int(tf.raw_ops.StageSize(**area))

    call(tf.constant(0))
    assert kept() == 1
    recorders.clear()
    gc.collect()
    assert kept() == 0


def test_constants_in_a_function_are_recorded():
    recorder = StepRecorder()
    tf.function(lambda step: recorder.record(step, kind="train"))(tf.constant(4))
    assert recorder[4] == {"kind": "train"}


def test_recorded_values_do_not_change_later():
    recorder, array = StepRecorder(), np.zeros(2)
    recorder.record(0, array=array)
    array[:] = 1
    recorder[0]["other"] = 1
    assert list(recorder[0]) == ["array"]
    np.testing.assert_array_equal(recorder[0]["array"], [0, 0])


@pytest.mark.parametrize(
    ("step", "named", "message"),
    [
        (0, {}, r"record got no values; pass them by name, as in recorder.record\(0, loss=loss\)"),
        (-1, {"loss": 1}, r"step must be an integer from 0, but -1 of type int"),
        (0.5, {"loss": 1}, r"step must be an integer from 0, but 0.5 of type float"),
        (True, {"loss": 1}, r"step must be an integer from 0, but True of type bool"),
        ([0], {"loss": 1}, r"step is a builtins.list, which has no numbers"),
        (np.zeros(2, int), {"loss": 1}, r"step must be an integer from 0"),
        (0, {"loss": object()}, r"loss is a builtins.object, which has no numbers"),
        (0, {"outputs": {"end": [object()]}}, r"outputs\['end'\]\[0\] is a builtins.object"),
    ],
    ids=["nothing", "negative", "float", "bool", "list", "array", "object", "nested object"],
)
def test_wrong_arguments_are_named_and_record_nothing(step, named, message):
    recorder = StepRecorder()
    with pytest.raises(ArgumentError, match=message):
        recorder.record(step, **named)
    assert recorder.steps == ()


def test_a_tensor_of_a_graph_must_be_fetched():
    with tf.Graph().as_default(), pytest.raises(ArgumentError, match=r"loss is a symbolic tensor.*Session.run"):
        StepRecorder().record(0, loss=tf.constant(1.0))


def test_a_name_is_recorded_once_in_a_step():
    recorder = StepRecorder()
    recorder.record(0, loss=1.0)
    with pytest.raises(ArgumentError, match=r"loss of step 0 is already recorded; give each step its own number"):
        recorder.record(0, rate=1.0, loss=1.0)
    assert recorder[0] == {"loss": 1.0}


def test_a_saved_recorder_loads_with_the_same_values(tmp_path):
    recorder = StepRecorder()
    for step in (3, 1):
        recorder.record(step, loss=tf.cast(step, tf.bfloat16), state=State({"w": [tf.ones(2)]}, None))
    recorder.save(tmp_path / "steps.npz")
    loaded = StepRecorder.load(tmp_path / "steps.npz")
    assert loaded.steps == recorder.steps == (1, 3)
    assert repr(loaded) == repr(recorder) == "<StepRecorder of 2 steps, 1 to 3: loss, state>"
    assert loaded[3]["loss"].dtype == tf.bfloat16.as_numpy_dtype
    assert loaded[3]["loss"] == 3
    np.testing.assert_array_equal(loaded[1]["state"].c["w"][0], np.ones(2, np.float32))


def test_loading_another_file_raises(tmp_path):
    save_structure(tmp_path / "other.npz", "letters", {})
    with pytest.raises(RecordingError, match="holds letters, not recorded steps"):
        StepRecorder.load(tmp_path / "other.npz")
    with pytest.raises(RecordingError, match=r"absent.npz cannot be read"):
        StepRecorder.load(tmp_path / "absent.npz")


def test_an_empty_recorder_says_so():
    assert repr(StepRecorder()) == "<StepRecorder of 0 steps>"
