"""Checkpoints that a TF1 session writes are loaded, and saved ones are restored by a Saver."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import (
    ArgumentError,
    CheckpointError,
    Rearranged,
    load_tf1_checkpoint,
    save_tf1_checkpoint,
    variables_of,
)
from detrand.variables.sources import tf1_style_variables
from tests.support.checkpoint_files import NET, OPTIMIZERS, VALUES, Net, variables, write

v1 = tf.compat.v1


def built(layer):
    layer(tf.ones((1, 3)))
    return layer


def table_of(layer):
    parts = [v for name, v in tf1_style_variables(layer).variables.items() if name.startswith("net/table")]
    return np.concatenate([part.numpy() for part in parts])


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
        ):  # the axis is unknown
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

    @pytest.mark.parametrize("in_file", [False, True])
    def test_a_name_map_gives_back_the_names_of_tf1(self, in_file, path, tmp_path):
        given = name_map = {"net/weights": "dense/kernel"}
        if in_file:
            given = tmp_path / "names.json"
            given.write_text(json.dumps(name_map))
        kernel, bias = tf.Variable([1.0, 2.0], name="dense/kernel"), tf.Variable([3.0], name="bias")
        save_tf1_checkpoint([kernel, bias], path, given)
        with tf.Graph().as_default(), v1.Session() as session:
            restored = [v1.get_variable("net/weights", (2,)), v1.get_variable("bias", (1,))]
            v1.train.Saver().restore(session, path)
            np.testing.assert_array_equal(np.concatenate(session.run(restored)), [1.0, 2.0, 3.0])
        kernel.assign([0.0, 0.0])
        load_tf1_checkpoint([kernel, bias], path, given)
        np.testing.assert_array_equal(kernel, [1.0, 2.0])

    @pytest.mark.parametrize(
        ("name_map", "message"),
        [
            ({"net/w": "dense/kernal"}, "which the source does not have. Did you mean 'dense/kernel'"),
            ({"bias": "dense/kernel"}, "gives two variables one name"),
            ({"a": "bias", "b": "bias"}, "gives two variables one name"),
            ({"w": Rearranged("dense/kernel", np.transpose)}, "only renames variables"),
            (lambda name: name, "must be a dict of TF1 name"),
        ],
    )
    def test_a_name_map_that_cannot_be_read_backwards_is_an_error(self, name_map, message, path):
        source = [tf.Variable([1.0, 2.0], name="dense/kernel"), tf.Variable([3.0], name="bias")]
        with pytest.raises(ArgumentError, match=message):
            save_tf1_checkpoint(source, path, name_map)
        assert not v1.train.checkpoint_exists(path)

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

    def test_a_checkpoint_that_cannot_be_written_leaves_no_directory(self, path, tmp_path):
        (tmp_path / "model.ckpt.index" / "in_use").mkdir(parents=True)
        reason = re.escape(f"the checkpoint {path!r} cannot be written: {path}.index; Is a directory")
        with pytest.raises(CheckpointError, match=f"^{reason}$"):
            save_tf1_checkpoint(variables(), path)
        assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["model.ckpt.index"]
        too_long = str(tmp_path / ("x" * 250))
        with pytest.raises(CheckpointError, match=r"cannot be written: \S+; File name too long$"):
            save_tf1_checkpoint(variables(), too_long)

    def test_an_interrupt_leaves_the_checkpoint_before(self, path, tmp_path, monkeypatch):
        save_tf1_checkpoint([tf.Variable(1.0, name="w")], path)
        before = {file.name for file in tmp_path.iterdir()}

        merge = tf.raw_ops.MergeV2Checkpoints

        def interrupted(*_, **arguments):
            merge(**arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(tf.raw_ops, "MergeV2Checkpoints", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_tf1_checkpoint([tf.Variable(2.0, name="w")], path)
        assert {file.name for file in tmp_path.iterdir()} == before
        assert tf.train.load_variable(path, "w") == 1

    @pytest.mark.parametrize(
        ("source", "place", "message"),
        [
            (list, "m", r"source=\[\] has no variables"),
            (variables, "", r"is a directory\. Pass a prefix in it"),
            (variables, "no/m", r"is in '.*no', which is not a directory\. Create it first"),
        ],
        ids=["empty", "directory", "no-directory"],
    )
    def test_wrong_arguments_are_named(self, source, place, message, tmp_path):
        with pytest.raises(ArgumentError, match=message):
            save_tf1_checkpoint(source(), f"{tmp_path}/{place}")
