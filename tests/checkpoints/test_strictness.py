"""A checkpoint is loaded completely or not at all, and the error names what is wrong."""

import re
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import ArgumentError, CheckpointError, load_tf1_checkpoint
from detrand.checkpoints.loading import restore_session
from tests.support.checkpoint_files import NET, VALUES, Net, variables, write

v1 = tf.compat.v1


@pytest.fixture(scope="module")
def no_checkpoints(tmp_path_factory):
    """A directory with files that could be mistaken for checkpoints, and one checkpoint, model.ckpt."""
    folder = tmp_path_factory.mktemp("no_checkpoints")
    for name in ("empty", "notes", "unnamed", "gone", "broken", "v1"):
        (folder / name).mkdir()
    for name in (".", "unnamed", "gone", "broken"):
        write(folder / name / "model.ckpt", {"w": np.float32([3])})
    (folder / "notes" / "a.txt").write_text("a text")
    (folder / "unnamed" / "checkpoint").unlink()
    (folder / "gone" / "model.ckpt.index").unlink()
    with open(folder / "broken" / "model.ckpt.index", "rb+") as opened:
        opened.truncate(40)
    write(folder / "v1" / "model.ckpt", {"w": np.float32([3])}, version=1)
    with open(folder / "v1" / "model.ckpt", "rb+") as opened:
        opened.write(b"damage")
    (folder / "v1" / "parts-00000-of-00001").write_bytes((folder / "v1" / "model.ckpt").read_bytes())
    with tf.Graph().as_default(), v1.Session() as session:
        w, x = v1.get_variable("w", initializer=[3.0]), v1.placeholder(tf.float32, ())
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "saved_model"), {"x": x}, {"y": w * x})
    zipfile.ZipFile(folder / "model.keras", "w").close()
    np.savez(folder / "weights.npz", w=np.float32([3]))
    h5py.File(folder / "model.weights.h5", "w").close()
    return folder


class TestStrictness:
    def test_all_faults_at_once_and_no_variable_touched(self, path):
        values = {"a": np.ones((2,), np.float32), "b": np.ones((2, 3), np.float32), "c": np.ones(4, np.float32)}
        write(path, {**values, "net/extra": np.ones(5, np.float32), "good": np.ones(1, np.float32)})
        target = [
            tf.Variable([0.0], name="good"),
            tf.Variable(tf.zeros((3, 2)), name="b"),
            tf.Variable(tf.zeros(4, tf.float64), name="c"),
            tf.Variable(tf.zeros(2), name="a"),
            tf.Variable(tf.zeros(5), name="net/extras"),
        ]
        with pytest.raises(CheckpointError) as caught:
            load_tf1_checkpoint(target, path)
        assert str(caught.value) == (
            f"the checkpoint {path!r} does not fit the target: 1 only in the checkpoint, 1 only in the target, 1 with "
            "a different shape, 1 with a different dtype. No variable was changed\n"
            "only in the checkpoint (1):\n"
            "  net/extra: float32 (5,)\n"
            "only in the target (1):\n"
            "  net/extras: float32 (5,), trainable\n"
            "shape differs (1):\n"
            "  b: (2, 3) in the checkpoint, (3, 2) in the target\n"
            "  If the port's variable is transposed, pass name_map={'b': Rearranged(['b'], np.transpose)}\n"
            "dtype differs (1):\n"
            "  c: float32 in the checkpoint, float64 in the target\n"
            "If only the names differ, pass name_map={\n"
            "  'net/extra': 'net/extras',\n"
            "}"
        )
        assert not any(np.any(variable.numpy()) for variable in target)

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("kept", [0, 0.3, 0.7, 0.99])
    @pytest.mark.parametrize("file", ["index", "data-00000-of-00001"])
    def test_a_truncated_file_is_refused(self, path, version, kept, file):
        write(path, VALUES, version=version)
        damaged = path if version == 1 else f"{path}.{file}"
        with open(damaged, "rb+") as opened:
            opened.truncate(int(len(opened.read()) * kept))
        target = variables()
        with pytest.raises(CheckpointError, match=r"cannot be read as a checkpoint|damaged: its values cannot be read"):
            load_tf1_checkpoint(target, path)
        assert not any(np.any(variable.numpy()) for variable in target)

    def test_a_flipped_bit_in_the_last_value_changes_no_variable(self, path):
        write(path, VALUES)
        with open(f"{path}.data-00000-of-00001", "rb+") as opened:
            data = bytearray(opened.read())
            data[-1] ^= 1
            opened.seek(0)
            opened.write(data)
        target = variables()
        with pytest.raises(CheckpointError, match=r"is damaged: .*No variable was changed. Copy"):
            load_tf1_checkpoint(target, path)
        assert not any(np.any(variable.numpy()) for variable in target)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("model.ckpr", r"'{tmp}' has no checkpoint of that name. Pass '{tmp}/model.ckpt'"),
            ("no/model.ckpt", r"the directory '{tmp}/no' does not exist"),
            ("empty", r"it is an empty directory. Pass the prefix, such as .*or a directory with a 'checkpoint' file"),
            ("notes", r"it is a directory without a checkpoint. Pass the prefix, such as"),
            ("notes/a.txt", r"it is not a file that a Saver writes, or it is truncated"),
            (
                "unnamed",
                r"without a 'checkpoint' file, which would name the latest checkpoint. Pass '{tmp}/unnamed/model.ckpt'",
            ),
            ("gone", r"the directory's 'checkpoint' file names '{tmp}/gone/model.ckpt', which does not exist"),
            ("gone/model.ckpt", r"its file 'model.ckpt.index' is missing. Copy the checkpoint again"),
            ("broken/model.ckpt", r"its file 'model.ckpt.index' is damaged. Copy the checkpoint again"),
            ("broken", r"its file 'model.ckpt.index' is damaged. Copy the checkpoint again"),
            ("v1/model.ckpt", r"Failed to find the saved tensor slices"),  # TensorFlow's words
            ("v1", r"Failed to find the saved tensor slices"),
            ("v1/parts-?????-of-00001", r"Failed to find the saved tensor slices"),
            (
                "saved_model",
                r"it is a SavedModel. Pass the checkpoint inside it, '{tmp}/saved_model/variables/variables'",
            ),
            ("saved_model/saved_model.pb", r"it is a SavedModel. Pass the checkpoint inside it,"),
            ("model.keras", r"it is a zip archive, in which Keras saves models"),
            ("model.weights.h5", r"it is an HDF5 file, in which Keras saves models"),
            ("checkpoint", r"it is the file that names .* latest checkpoint. Pass the directory, '{tmp}'"),
            ("model.ckpt.index", r"it is one of a checkpoint's files. Pass the prefix, '{tmp}/model.ckpt'$"),
            ("model.ckpt.meta", r"Pass the prefix, '{tmp}/model.ckpt'$"),
            ("model.ckpt.data-00000-of-00001", r"Pass the prefix, '{tmp}/model.ckpt'$"),
        ],
    )
    def test_a_path_without_a_checkpoint_says_what_is_there(self, given, message, no_checkpoints):
        with pytest.raises(CheckpointError, match=message.format(tmp=re.escape(str(no_checkpoints)))) as caught:
            load_tf1_checkpoint(variables(), no_checkpoints / given)
        assert str(caught.value).startswith(f"path='{no_checkpoints / given}' cannot be read as a checkpoint: ")
        assert "\n" not in str(caught.value)

    def test_the_code_that_makes_a_checkpoint_of_arrays_runs(self, no_checkpoints, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match="it is an archive of NumPy arrays, not a checkpoint") as caught:
            load_tf1_checkpoint(variables(), no_checkpoints / "weights.npz")
        code = str(caught.value).partition("write a checkpoint: ")[2]
        assert eval(code, {"detrand": detrand, "tf": tf, "np": np}) == "model.ckpt"
        target = tf.Variable([0.0], name="w")
        load_tf1_checkpoint([target], "model.ckpt")
        assert target.numpy() == [3]

    def test_the_checkpoint_in_a_saved_model_of_tf1(self, no_checkpoints):
        target = tf.Variable([0.0], name="w")
        load_tf1_checkpoint([target], no_checkpoints / "saved_model/variables/variables")
        assert target.numpy() == [3]

    def test_the_error_names_the_damaged_variable(self, path):
        write(path, {"a": np.ones(10, np.float32), "b": np.ones(10, np.float32)})
        with open(f"{path}.data-00000-of-00001", "rb+") as opened:
            opened.truncate(60)
        target = variables({"a": np.zeros(10, np.float32), "b": np.zeros(10, np.float32)})
        with pytest.raises(
            CheckpointError, match=r"cannot be read \(Read less bytes than requested; first damaged variable: 'b'\)"
        ):
            load_tf1_checkpoint(target, path)
        assert not any(np.any(variable.numpy()) for variable in target)

    def test_a_session_that_cannot_be_restored_says_why(self, path):
        write(path, {"a": np.ones(30, np.float32)})
        with open(f"{path}.data-00000-of-00001", "rb+") as opened:
            opened.truncate(60)
        message = re.escape(
            f"the checkpoint {path!r} cannot be restored: OutOfRangeError: Read less bytes than requested"
        )
        with tf.Graph().as_default(), v1.Session() as session:
            v1.get_variable("a", (30,))
            with pytest.raises(CheckpointError, match=rf"^{message} \(\S+test_strictness\.py:\d+\)$"):
                restore_session(session, path, None)

    @pytest.mark.parametrize(
        "others", [{"w/part_0": (3, 2), "w/part_2": (2, 2)}, {"w/part_0": (3, 2), "w/part_1": (2,)}]
    )
    def test_parts_that_make_no_variable_are_not_joined(self, others, path):
        write(path, {name: np.ones(shape, np.float32) for name, shape in others.items()})
        with pytest.raises(CheckpointError) as caught:
            load_tf1_checkpoint([tf.Variable(tf.zeros((5, 2)), name="w")], path)
        listed = "".join(f"  {name}: float32 {shape}\n" for name, shape in others.items())
        assert f"only in the checkpoint (2):\n{listed}only in the target (1):\n  w: float32 (5, 2)" in str(caught.value)

    def test_an_object_based_checkpoint_is_refused(self, tmp_path):
        prefix = tf.train.Checkpoint(w=tf.Variable([1.0])).save(str(tmp_path / "objects"))
        with pytest.raises(CheckpointError, match=r"is an object-based checkpoint.*Restore it into the layer"):
            load_tf1_checkpoint([tf.Variable([0.0], name="w")], prefix)

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (Net, r"target=<Net .*> has no variables.*Call it once first"),
            (lambda: "/some/path", r"target must hold variables, but the checkpoint path '/some/path'"),
            (lambda: 3, r"target must be a tf.Graph.*but 3 of type int"),
        ],
        ids=["not-built", "path", "int"],
    )
    def test_a_target_that_cannot_be_loaded_into(self, target, message, path):
        write(path, NET)
        with pytest.raises(ArgumentError, match=message):
            load_tf1_checkpoint(target(), path)

    def test_a_graph_is_refused_in_favour_of_a_saver(self, path):
        write(path, NET)
        with tf.Graph().as_default() as graph:
            v1.get_variable("w", (1,))
        with pytest.raises(ArgumentError, match=r"'w', which is a variable of a tf.Graph. Use .*Saver"):
            load_tf1_checkpoint(graph, path)

    def test_a_path_of_another_type_is_refused(self):
        with pytest.raises(ArgumentError, match="path must be the path of a checkpoint, but 3 of type int"):
            load_tf1_checkpoint(variables(), 3)

    def test_inner_layers_that_are_not_built_are_named(self, path):
        write(path, NET)
        target = variables({"net/w": VALUES["net/w"]})
        with pytest.raises(CheckpointError, match="call it once first"):
            load_tf1_checkpoint(target, path)


THREE = {"a": np.float32([1, 2]), "b": np.float32([3, 4]), "c": np.float32([5, 6])}


class TestAllOrNothing:
    """An assignment fails after other variables have been assigned."""

    def fails(self, monkeypatch, variable, error):
        """Make an assignment raise after some variables have been assigned."""
        assign = variable.assign

        def half_done(value, *arguments, **options):
            monkeypatch.undo()
            assign([7, 7])
            raise error

        monkeypatch.setattr(variable, "assign", half_done)

    @pytest.mark.parametrize("error", [ValueError("no memory"), KeyboardInterrupt()], ids=["error", "interrupt"])
    @pytest.mark.parametrize("make", [tf.Variable, keras.Variable], ids=["tensorflow", "keras3"])
    def test_assigned_values_are_put_back(self, error, make, path, monkeypatch):
        write(path, THREE)
        target = {name: make([float("nan"), 1.0], name=name) for name in THREE}
        second = target["b"] if make is tf.Variable else target["b"].value
        self.fails(monkeypatch, second, error)
        expected = CheckpointError if isinstance(error, ValueError) else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            load_tf1_checkpoint(target, path)
        if expected is CheckpointError:
            assert (
                str(caught.value) == "variable 'b' cannot be assigned (ValueError: no memory). No variable was changed"
            )
        for variable in target.values():
            np.testing.assert_array_equal(variable.numpy(), [np.nan, 1])
        load_tf1_checkpoint(target, path)
        np.testing.assert_array_equal(target["b"].numpy(), [3, 4])

    def test_values_that_cannot_be_put_back_are_counted(self, path, monkeypatch):
        write(path, THREE)
        target = variables(THREE)

        def fails(value):
            raise ValueError("gone")

        def fails_second(value, assign=target[0].assign):
            monkeypatch.setattr(target[0], "assign", fails)
            return assign(value)

        monkeypatch.setattr(target[0], "assign", fails_second)
        monkeypatch.setattr(target[1], "assign", fails)
        with pytest.raises(CheckpointError, match=r"'b' cannot be .*gone\)\. 1 value could not be restored"):
            load_tf1_checkpoint(target, path)

    def test_a_variable_without_a_value_is_refused(self, path):
        write(path, THREE)
        target = variables(THREE)

        def fails():
            target[2] = tf.Variable(tf.random.normal([2]), name="c")
            raise OSError("half way")

        with pytest.raises(OSError, match="half way"):
            tf.function(fails, autograph=False)()
        with pytest.raises(CheckpointError, match=r"'c' cannot be assigned .*never been init.*No variable was ch"):
            load_tf1_checkpoint(target, path)
        assert not np.any(target[0].numpy())

    @pytest.mark.slow
    def test_values_are_put_back_on_several_devices(self, path):
        """The value of each device is put back, even if the devices have different values."""
        write(path, THREE)
        done = subprocess.run(
            [sys.executable, "-c", ON_SEVERAL_DEVICES, path], capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines() == [
            "CheckpointError: variable 'b' cannot be assigned (OSError: device lost). No variable was changed",
            "[1, 1] [9, 9] [0, 0] [0, 0] [0, 0] [0, 0]",
            "[1, 2] [1, 2] [3, 4] [3, 4] [5, 6] [5, 6]",
        ], done.stderr


ON_SEVERAL_DEVICES = """
import sys
import tensorflow as tf
from detrand import load_tf1_checkpoint
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    a = tf.Variable([0.0, 0.0], name="a", trainable=False, synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.MEAN)
    b, c = (tf.Variable([0.0, 0.0], name=name) for name in "bc")
a.values[0].assign([1, 1])
a.values[1].assign([9, 9])
assign = b.values[1].assign
def lost(*arguments, **options):
    b.values[1].assign = assign
    raise OSError("device lost")
b.values[1].assign = lost
for attempt in range(2):
    try:
        load_tf1_checkpoint([a, b, c], sys.argv[1])
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    print(*(list(map(int, one.numpy())) for variable in (a, b, c) for one in variable.values))
"""
