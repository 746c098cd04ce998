"""Checkpoints: a TF1 session and its Saver write what is loaded here, and restore what is saved here."""

import json
import re
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import (
    ArgumentError,
    CheckpointError,
    VariableSpec,
    load_tf1_checkpoint,
    save_tf1_checkpoint,
    suggest_name_map,
    track_tf1_style_variables,
    variables_of,
)
from detrand.variables.sources import tf1_style_variables

v1 = tf.compat.v1
RNG = np.random.default_rng(0)
VALUES = {
    "net/w": RNG.normal(size=(3, 2)).astype(np.float32),
    "net/table": RNG.normal(size=(7, 3)).astype(np.float64),
    "count": np.array(5, np.int64),
    "flags": np.array([True, False]),
}


def write(path, values, parts=None, version=2, optimizer=None, as_dict=False):
    """Save values as a TF1 program does, some of them in parts; returns all that the session held, by name."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        for name, value in values.items():
            partitioner = v1.fixed_size_partitioner(parts[name]) if parts and name in parts else None
            v1.get_variable(name, value.shape, value.dtype, initializer_to(value), partitioner=partitioner)
        if optimizer is not None:
            loss = tf.add_n([tf.cast(tf.reduce_sum(v), tf.float32) for v in v1.trainable_variables()])
            optimizer(loss)
        session.run(v1.global_variables_initializer())
        given = {v.op.name: v for v in v1.global_variables()} if as_dict else None
        v1.train.Saver(given, write_version=version).save(session, str(path))
        return {v.op.name: session.run(v) for v in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)}


def initializer_to(value):
    def initializer(shape, dtype, partition_info=None):
        start = partition_info.var_offset if partition_info else [0] * len(shape)
        return tf.constant(value[tuple(slice(i, i + n) for i, n in zip(start, shape, strict=True))], dtype)

    return initializer


def variables(values=None, **replaced):
    values = {**(VALUES if values is None else values), **replaced}
    return [tf.Variable(np.zeros_like(value), name=name) for name, value in values.items()]


class Net(keras.layers.Layer):
    """TF1 code in a Keras 3 layer, with its table whole or in parts."""

    def __init__(self, parts=None):
        super().__init__()
        self.parts = parts

    @track_tf1_style_variables
    def call(self, inputs):
        partitioner = v1.fixed_size_partitioner(self.parts) if self.parts else None
        with v1.variable_scope("net"):
            w = v1.get_variable("w", (3, 2))
            table = v1.get_variable("table", (7, 3), tf.float64, partitioner=partitioner)
        return tf.matmul(inputs, w) + tf.cast(tf.reduce_sum(tf.convert_to_tensor(table)), tf.float32)


NET = {name: VALUES[name] for name in ("net/w", "net/table")}


def built(layer):
    layer(tf.ones((1, 3)))
    return layer


def table_of(layer):
    parts = [v for name, v in tf1_style_variables(layer).variables.items() if name.startswith("net/table")]
    return np.concatenate([part.numpy() for part in parts])


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.ckpt")


class TestLoading:
    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("as_dict", [False, True], ids=["list", "dict"])
    def test_variables_get_the_values_of_the_checkpoint(self, path, version, as_dict):
        write(path, VALUES, version=version)
        target = variables()
        given = dict(zip(VALUES, target, strict=True)) if as_dict else target
        result = load_tf1_checkpoint(given, path)
        for variable, value in zip(target, VALUES.values(), strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
        assert sorted(result.loaded) == sorted(VALUES)
        assert result.left_over == ()

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("parts_in_target", [None, 2, 3])
    @pytest.mark.parametrize("parts_in_checkpoint", [None, 2])
    def test_partitioned_variables_are_loaded_however_they_were_saved(
        self, path, version, parts_in_checkpoint, parts_in_target
    ):
        parts = {"net/table": parts_in_checkpoint} if parts_in_checkpoint else None
        held = write(path, NET, parts, version)
        assert ("net/table/part_1" in held) == bool(parts)
        layer = built(Net(parts_in_target))
        assert len(layer.weights) == 1 + (parts_in_target or 1)
        assert load_tf1_checkpoint(layer, path).loaded == ("net/table", "net/w")
        np.testing.assert_array_equal(table_of(layer), VALUES["net/table"])
        np.testing.assert_array_equal(layer.weights[0].numpy(), VALUES["net/w"])

    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("parts_in_target", [None, 2, 3])
    def test_parts_that_were_saved_as_variables_of_their_own(self, path, version, parts_in_target):
        write(path, NET, {"net/table": 2}, version, optimizer=OPTIMIZERS["adam"], as_dict=True)
        assert {"net/table/part_0", "net/table/part_1"} < variables_of(path).keys()
        layer = built(Net(parts_in_target))
        result = load_tf1_checkpoint(layer, path)
        assert result.loaded == ("net/table", "net/w")
        assert "net/table/part_1/Adam" in result.left_over
        np.testing.assert_array_equal(table_of(layer), VALUES["net/table"])

    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("by_name_map", [False, True], ids=["own name", "name_map"])
    def test_parts_along_an_axis_are_joined(self, path, axis, by_name_map):
        value = np.arange(16, dtype=np.float32).reshape(4, 4)
        parts = [tf.Variable(part) for part in np.split(value, 2, axis)]
        save_tf1_checkpoint({f"w/part_{i}": part for i, part in enumerate(parts)}, path)
        target = tf.Variable(np.zeros_like(value), name="port" if by_name_map else "w")
        with pytest.raises(
            CheckpointError, match=r"2 only in the checkpoint, 1 only in the target(.|\n)*w/part_1: float32"
        ):
            load_tf1_checkpoint([tf.Variable(tf.zeros((4, 5)), name="w")], path)
        with pytest.raises(
            CheckpointError, match=r"2 only in the checkpoint, 1 only in the target"
        ):  # along which axis?
            load_tf1_checkpoint([tf.Variable(tf.zeros((1, 1)), shape=(None, None), name="w")], path)
        load_tf1_checkpoint([target], path, {"w": "port"} if by_name_map else None)
        np.testing.assert_array_equal(target.numpy(), value)

    def test_the_target_may_have_parts_of_the_same_name(self, path):
        values = {f"w/part_{i}": np.float32([i]) for i in range(12)}
        write(path, values)
        target = variables(values)
        load_tf1_checkpoint(target, path)
        assert [variable.numpy().item() for variable in target] == list(range(12))
        load_tf1_checkpoint(target, path, {name: name for name in values}.__getitem__)  # which has no "w"
        whole = tf.Variable(tf.zeros(12), name="w")
        load_tf1_checkpoint([whole], path)
        np.testing.assert_array_equal(whole.numpy(), np.arange(12))

    def test_a_v1_checkpoint_in_several_files_is_loaded(self, tmp_path):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.get_variable("w", initializer=[3.0])
            session.run(v1.global_variables_initializer())
            saver = v1.train.Saver(write_version=1, sharded=True)
            path = saver.save(session, str(tmp_path / "m"))
        assert path.endswith("m-?????-of-00001")
        for given in (path, tmp_path):
            target = tf.Variable([0.0], name="w")
            load_tf1_checkpoint([target], given)
            assert target.numpy() == [3]
        with pytest.raises(CheckpointError, match=r"consists of several files\. Pass '.*m-\?{5}-of-00001'"):
            load_tf1_checkpoint([target], tmp_path / "m")

    @pytest.mark.parametrize("package", [keras, tf_keras], ids=["keras3", "tf_keras"])
    def test_a_keras_model_is_loaded_by_name_map(self, package, path):
        values = {"net/w": VALUES["net/w"], "net/b": np.array([7, 8], np.float32)}
        write(path, values)
        model = package.Sequential([package.layers.Dense(2)])
        model.build((None, 3))
        kernel, bias = variables_of(model)
        load_tf1_checkpoint(model, path, name_map={"net/w": kernel, "net/b": bias})
        found = model(np.eye(3, dtype=np.float32)).numpy()
        np.testing.assert_array_equal(found, values["net/w"] + values["net/b"])

    def test_the_variables_of_a_module_are_loaded(self, path):
        write(path, {"w": VALUES["net/w"]})
        module = tf.Module()
        module.w = tf.Variable(tf.zeros((3, 2)), name="w")
        load_tf1_checkpoint(module, path)
        np.testing.assert_array_equal(module.w.numpy(), VALUES["net/w"])

    def test_a_directory_stands_for_its_latest_checkpoint(self, tmp_path):
        for step in (1, 2):
            write(tmp_path / f"model.ckpt-{step}", {"w": np.float32([step])})
        target = tf.Variable([0.0], name="w")
        load_tf1_checkpoint([target], tmp_path)
        assert target.numpy() == [2]

    def test_a_variable_without_static_shape_is_loaded(self, path):
        write(path, {"w": VALUES["net/w"]})
        target = tf.Variable(tf.zeros((1, 2)), shape=(None, 2), name="w")
        load_tf1_checkpoint([target], path)
        np.testing.assert_array_equal(target.numpy(), VALUES["net/w"])

    def test_loading_takes_place_at_once_inside_a_function(self, path):
        write(path, {"w": np.float32([3])})
        target = tf.Variable([0.0], name="w")

        def load():
            load_tf1_checkpoint([target], path)

        tf.function(load, autograph=False)()
        assert target.numpy() == [3]

    def test_loading_while_a_graph_is_built_is_refused(self, path):
        write(path, {"w": np.float32([3])})
        target = tf.Variable([0.0], name="w")
        with tf.Graph().as_default(), pytest.raises(ArgumentError, match=r"in a tf.Graph, .*Call it outside"):
            load_tf1_checkpoint([target], path)


OPTIMIZERS = {
    "adam": lambda loss: v1.train.AdamOptimizer().minimize(loss, v1.train.get_or_create_global_step()),
    "named": lambda loss: v1.train.AdamOptimizer(name="discriminator_opt").minimize(loss),
    "averages": lambda loss: tf.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables()),
}


class TestOptimizerSlots:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_slots_are_left_over_and_listed(self, name, path):
        held = write(path, NET, {"net/table": 2}, optimizer=OPTIMIZERS[name])
        result = load_tf1_checkpoint(built(Net()), path)
        assert result.loaded == ("net/table", "net/w")
        saved = set(variables_of(path))
        assert len(held) > 3
        assert set(result.left_over) == saved - {"net/w", "net/table"} != set()

    def test_are_loaded_where_the_target_has_them(self, path):
        held = write(path, {"w": VALUES["net/w"]}, optimizer=OPTIMIZERS["adam"])
        target = variables({"w": VALUES["net/w"], "w/Adam": VALUES["net/w"], "global_step": np.array(0, np.int64)})
        target[2].assign(4)
        result = load_tf1_checkpoint(target, path)
        assert set(result.loaded) == {"w", "w/Adam", "global_step"}
        assert target[2].numpy() == held["global_step"] == 0
        assert set(result.left_over) == {"w/Adam_1", "beta1_power", "beta2_power"}

    @pytest.mark.parametrize(
        "name_map",
        [{"w/ExponentialMovingAverage": "w"}, lambda name: name.removesuffix("/ExponentialMovingAverage")],
        ids=["dict", "callable"],
    )
    def test_moving_averages_may_be_loaded_in_place_of_variables(self, name_map, path):
        average = np.float32([9.0])
        write(path, {"w": np.float32([1.0]), "w/ExponentialMovingAverage": average})
        target = tf.Variable([0.0], name="w")
        result = load_tf1_checkpoint([target], path, name_map)
        assert target.numpy() == average
        assert (result.loaded, result.left_over) == (("w/ExponentialMovingAverage",), ("w",))

    @pytest.mark.parametrize("name", ["other/Adam", "net/w/inner", "beta1_power", "step"])
    def test_nothing_but_training_state_may_be_left_over(self, name, path):
        """A slot belongs to a variable of its shape, or is a scalar that optimizers have."""
        write(path, {"net/w": VALUES["net/w"], name: np.ones((4,), np.float32)})
        target = variables({"net/w": VALUES["net/w"]})
        with pytest.raises(CheckpointError, match=rf"1 only in the checkpoint(.|\n)*{name}: float32 \(4,\)"):
            load_tf1_checkpoint(target, path)


@pytest.fixture(scope="module")
def no_checkpoints(tmp_path_factory):
    """A directory of things that are taken for checkpoints, and one checkpoint, model.ckpt."""
    folder = tmp_path_factory.mktemp("no_checkpoints")
    for name in ("empty", "notes", "unnamed", "gone", "broken"):
        (folder / name).mkdir()
    for name in (".", "unnamed", "gone", "broken"):
        write(folder / name / "model.ckpt", {"w": np.float32([3])})
    (folder / "notes" / "a.txt").write_text("a text")
    (folder / "unnamed" / "checkpoint").unlink()
    (folder / "gone" / "model.ckpt.index").unlink()
    with open(folder / "broken" / "model.ckpt.index", "rb+") as opened:
        opened.truncate(40)
    with tf.Graph().as_default(), v1.Session() as session:
        w, x = v1.get_variable("w", initializer=[3.0]), v1.placeholder(tf.float32, ())
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "saved_model"), {"x": x}, {"y": w * x})
    zipfile.ZipFile(folder / "model.keras", "w").close()
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

    def test_an_object_based_checkpoint_is_refused(self, tmp_path):
        prefix = tf.train.Checkpoint(w=tf.Variable([1.0])).save(str(tmp_path / "objects"))
        with pytest.raises(CheckpointError, match=r"is an object-based checkpoint.*Restore it into the layer"):
            load_tf1_checkpoint([tf.Variable([0.0], name="w")], prefix)

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (Net, r"target=<Net .*> has no variables.*Call it once, then load"),
            (lambda: "/some/path", r"target must hold variables, but the path '/some/path'"),
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
    """An assignment fails when others have been made."""

    def fails(self, monkeypatch, variable, error):
        """Make an assignment raise when it is half done."""
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
        with pytest.raises(CheckpointError, match=r"'c' cannot be read .*never been initialized\).*No variable was ch"):
            load_tf1_checkpoint(target, path)
        assert not np.any(target[0].numpy())

    @pytest.mark.slow
    def test_values_are_put_back_on_several_devices(self, path):
        """Each device's value is put back, also where they differ, as those do that are only read together."""
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


class TestNameMap:
    @pytest.mark.parametrize("kind", ["dict", "callable", "json"])
    def test_a_name_map_is_a_dict_a_function_or_a_file(self, kind, path, tmp_path):
        write(path, NET, optimizer=OPTIMIZERS["adam"])
        names = {"net/w": "port/kernel", "net/table": "port/table"}
        target = variables({names[name]: value for name, value in NET.items()})
        (tmp_path / "names.json").write_text(json.dumps(names))
        given = {"dict": names, "callable": lambda name: names.get(name, name), "json": tmp_path / "names.json"}[kind]
        result = load_tf1_checkpoint(target, path, given)
        assert sorted(result.loaded) == sorted(names)
        for variable, value in zip(target, NET.values(), strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)

    @pytest.mark.parametrize("kind", ["dict", "callable", "json"])
    def test_none_leaves_a_variable_out(self, kind, path, tmp_path):
        write(path, {**NET, "epoch": np.array(3)})
        target = variables(NET)
        with pytest.raises(
            CheckpointError, match=r"only in the checkpoint(.|\n)*leave out .*name_map=\{'epoch': None\}"
        ):
            load_tf1_checkpoint(target, path)
        (tmp_path / "names.json").write_text('{"epoch": null}')
        given = {
            "dict": {"epoch": None},
            "callable": lambda name: name if name in NET else None,
            "json": tmp_path / "names.json",
        }[kind]
        result = load_tf1_checkpoint(target, path, given)
        assert (result.loaded, result.left_over) == (("net/table", "net/w"), ("epoch",))

    def test_none_for_a_variable_that_the_target_needs_is_refused(self, path):
        write(path, NET)
        with pytest.raises(CheckpointError, match=r"1 only in the target\. No variable(.|\n)*net/w: float32"):
            load_tf1_checkpoint(variables(NET), path, {"net/w": None})

    @pytest.mark.parametrize(
        ("name_map", "message"),
        [
            ({"net/v": "x"}, r"entry for 'net/v', but TF1 has no variable of that name. Did you mean 'net/w'"),
            ({"net/w": 3}, r"name_map maps 'net/w' to 3 of type int"),
            ({"net/w": "net/table"}, r"'net/table' and 'net/w' would both be 'net/table'"),
            (
                {}.__getitem__,
                r"name_map raised KeyError\('net/table'\) for 'net/table'\. It is called with each TF1 name",
            ),
            (3, r"name_map must be a dict .*but 3 of type int"),
            ("/no/map.json", r"name_map='/no/map.json' cannot be read as a JSON file"),
            ({"net/w": "nowhere"}, r"net/w \(name_map: nowhere\)"),
        ],
        ids=["unknown-name", "no-name", "twice", "raises", "int", "no-file", "not-in-target"],
    )
    def test_a_wrong_name_map_raises_and_loads_nothing(self, name_map, message, path):
        write(path, NET)
        target = variables(NET)
        with pytest.raises(ArgumentError, match=message):
            load_tf1_checkpoint(target, path, name_map)
        assert not any(np.any(variable.numpy()) for variable in target)

    @pytest.mark.parametrize(
        ("text", "message"), [("{", "cannot be read as a JSON file"), ("[1]", "holds a list. It must hold one dict")]
    )
    def test_a_file_without_a_name_map_is_refused(self, text, message, path, tmp_path):
        write(path, NET)
        (tmp_path / "names.json").write_text(text)
        with pytest.raises(ArgumentError, match=message):
            load_tf1_checkpoint(variables(NET), path, str(tmp_path / "names.json"))


class TestSaving:
    @pytest.mark.parametrize("parts_in_session", [None, 2])
    @pytest.mark.parametrize("parts", [None, 3])
    def test_a_saver_restores_a_saved_checkpoint(self, parts, parts_in_session, path):
        layer = built(Net(parts))
        assert save_tf1_checkpoint(layer, path) == path
        with tf.Graph().as_default(), v1.Session() as session:
            partitioner = v1.fixed_size_partitioner(parts_in_session) if parts_in_session else None
            w = v1.get_variable("net/w", (3, 2))
            table = v1.get_variable("net/table", (7, 3), tf.float64, partitioner=partitioner)
            v1.train.Saver().restore(session, path)
            found = session.run([w, tf.convert_to_tensor(table)])
        np.testing.assert_array_equal(found[0], layer.weights[0].numpy())
        np.testing.assert_array_equal(found[1], table_of(layer))

    def test_a_saved_checkpoint_holds_what_a_saver_writes(self, path, tmp_path):
        write(tmp_path / "saver", VALUES)
        save_tf1_checkpoint([tf.Variable(value, name=name) for name, value in VALUES.items()], path)
        saver, saved = (tf.train.load_checkpoint(str(p)) for p in (tmp_path / "saver", path))
        assert saved.get_variable_to_dtype_map() == saver.get_variable_to_dtype_map()
        for name in VALUES:
            np.testing.assert_array_equal(saved.get_tensor(name), saver.get_tensor(name))

    def test_is_the_latest_of_its_directory_and_leaves_no_other_file(self, path, tmp_path):
        for value in (1.0, 2.0):
            save_tf1_checkpoint([tf.Variable(value, name="w")], path)
        assert tf.train.latest_checkpoint(str(tmp_path)) == path
        names = {"checkpoint", "model.ckpt.index", "model.ckpt.data-00000-of-00001"}
        assert {file.name for file in tmp_path.iterdir()} == names
        assert tf.train.load_variable(path, "w") == 2

    def test_a_relative_path_is_relative_to_the_working_directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        save_tf1_checkpoint([tf.Variable(1.0, name="w")], "model.ckpt")
        assert tf.train.load_variable("model.ckpt", "w") == 1
        assert tf.train.latest_checkpoint(".") == "./model.ckpt"

    @pytest.mark.parametrize(
        ("source", "place", "message"),
        [
            (list, "m", r"nothing to save: source=\[\] has no variables"),
            (variables, "", r"is a directory\. Pass a prefix in it"),
            (variables, "no/m", r"is in '.*no', which is not a directory\. Create it first"),
        ],
        ids=["empty", "directory", "no-directory"],
    )
    def test_wrong_arguments_are_named(self, source, place, message, tmp_path):
        with pytest.raises(ArgumentError, match=message):
            save_tf1_checkpoint(source(), f"{tmp_path}/{place}")


def specs(*names, shape=(3,), dtype="float32"):
    return {name: VariableSpec(shape, dtype, True) for name in names}


class TestSuggestion:
    def test_layers_of_equal_shape_by_their_numbers_and_roles(self):
        tf1 = specs(*(f"bert/layer_{i}/dense/{part}" for i in range(12) for part in ("bias", "beta")))
        port = specs(*(f"encoder/blocks/{i}/dense/{part}" for i in range(12) for part in ("beta", "bias")))
        proposal = suggest_name_map(tf1, port)
        expected = {n: n.replace("bert/layer_", "encoder/blocks/") for n in tf1}
        assert proposal.name_map == expected
        assert proposal.unsure == {}

    def test_synonyms_in_names_are_paired(self):
        tf1 = {**specs("conv1/biases", "conv1/BatchNorm/moving_mean"), **specs("conv1/weights", shape=(3, 3))}
        port = {**specs("conv1/mean", "conv1/bias"), **specs("conv1/kernel", shape=(3, 3))}
        proposal = suggest_name_map(tf1, port)
        assert proposal.name_map == {
            "conv1/biases": "conv1/bias",
            "conv1/BatchNorm/moving_mean": "conv1/mean",
            "conv1/weights": "conv1/kernel",
        }

    def test_equal_names_need_no_entry(self):
        assert suggest_name_map(specs("a/w", "b/w"), specs("b/w", "a/w")).name_map == {}

    def test_an_ambiguous_pair_is_unsure(self):
        proposal = suggest_name_map(specs("left/w", "right/w"), specs("x/kernel", "y/kernel"))
        assert sorted(proposal.name_map.values()) == ["x/kernel", "y/kernel"]
        assert re.search("'y/kernel' would fit as well", proposal.unsure["left/w"])

    def test_a_variable_without_counterpart_is_unsure(self):
        proposal = suggest_name_map(specs("w"), {**specs("w", dtype="float64"), **specs("v", shape=(4,))})
        assert proposal.name_map == {}
        assert proposal.unsure["w"] == "no variable left in the target has shape (3,) and dtype float32"
        assert proposal.unsure["v"] == "no variable left in the checkpoint has shape (4,) and dtype float32"

    def test_proposal_of_a_file_loads_by_itself(self, path, tmp_path):
        write(path, NET, optimizer=OPTIMIZERS["adam"])
        target = variables({f"port/{name}": value for name, value in NET.items()})
        proposal = suggest_name_map(path, target)
        assert "Adam" not in str(proposal)
        namespace = {}
        exec(str(proposal), namespace)
        assert namespace["name_map"] == proposal.name_map
        proposal.save(tmp_path / "names.json")
        load_tf1_checkpoint(target, path, tmp_path / "names.json")
        for variable, value in zip(target, NET.values(), strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)

    def test_an_empty_directory_is_not_a_checkpoint(self, tmp_path):
        with pytest.raises(
            CheckpointError, match=r"checkpoint='.*' cannot be read as a checkpoint: it is an empty directory"
        ):
            suggest_name_map(tmp_path, specs("w"))

    @pytest.mark.parametrize("side", ["checkpoint", "target"])
    def test_a_source_without_variables_is_refused(self, side):
        given = {"checkpoint": specs("w"), "target": specs("w"), side: {}}
        with pytest.raises(ArgumentError, match=rf"{side}={{}} has no variables.*Call it once"):
            suggest_name_map(**given)
