"""Name maps: given for loading, and suggested."""

import json

import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, CheckpointError, VariableSpec, load_tf1_checkpoint, suggest_name_map
from tests.support.checkpoint_files import NET, OPTIMIZERS, variables, write

v1 = tf.compat.v1


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

    def test_names_that_say_nothing_are_paired_in_order(self):
        proposal = suggest_name_map(specs("right/w", "left/w"), specs("x/kernel", "y/kernel"))
        assert proposal.name_map == {"right/w": "x/kernel", "left/w": "y/kernel"}
        assert (proposal.unsure, set(proposal.in_order)) == ({}, {"right/w", "left/w"})
        assert "'right/w': 'x/kernel',  # order only" in str(proposal)

    def test_words_count_more_than_the_order(self):
        proposal = suggest_name_map(specs("decode/w", "encode/w"), specs("encoder/kernel", "decoder/kernel"))
        assert proposal.name_map == {"decode/w": "decoder/kernel", "encode/w": "encoder/kernel"}
        assert (proposal.unsure, set(proposal.in_order)) == ({}, set())

    def test_one_of_several_rivals_is_a_guess(self):
        proposal = suggest_name_map(specs("a/w"), specs("x/kernel", "y/kernel"))
        assert proposal.unsure["a/w"] == "by its name, it could be 'y/kernel'"
        assert "# guess: by its name, it could be 'y/kernel'" in str(proposal)

    def test_automatic_names_are_paired_by_the_numbers_that_keras_counts(self):
        tf1 = specs(*(f"net/Conv_{letter}/weights" for letter in "acbed"))
        port = specs(*(f"conv2d{number}/kernel" for number in ("_4", "", "_2", "_1", "_3")))
        assert list(suggest_name_map(tf1, port).name_map.values()) == [
            "conv2d/kernel",
            "conv2d_1/kernel",
            "conv2d_2/kernel",
            "conv2d_3/kernel",
            "conv2d_4/kernel",
        ]

    def test_kernels_of_one_size_are_paired_whatever_their_rank(self):
        tf1 = {**specs("logits/weights", shape=(1, 1, 8, 5)), **specs("fc6/weights", shape=(7, 7, 2, 8))}
        port = {**specs("fc1/kernel", shape=(98, 8)), **specs("predictions/kernel", shape=(8, 5))}
        proposal = suggest_name_map(tf1, port)
        assert proposal.name_map == {"logits/weights": "predictions/kernel", "fc6/weights": "fc1/kernel"}

    def test_kernels_and_biases_with_an_axis_of_heads_are_paired(self):
        tf1 = {**specs("query/kernel", "value/kernel", shape=(6, 6)), **specs("query/bias", "value/bias", shape=(6,))}
        heads = specs("mha/value/kernel", "mha/query/kernel", shape=(6, 2, 3))
        proposal = suggest_name_map(tf1, {**heads, **specs("mha/value/bias", "mha/query/bias", shape=(2, 3))})
        assert proposal.name_map == {name: f"mha/{name}" for name in tf1}
        assert proposal.unsure == {}

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
