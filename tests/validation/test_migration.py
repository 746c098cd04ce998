import os

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from detrand import ArgumentError, Migration, MigrationError, save_tf1_checkpoint
from detrand.validation.batches import as_labels
from detrand.validation.migration_files import load_migrations

INPUTS = np.ones((2, 3), np.float32)


def tf1(inputs, training):
    return inputs


def migration(**changes):
    return Migration(**{"tf1": tf1, "port": lambda: tf1, "inputs": INPUTS, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tf1": 3}, r"tf1 must be a function.*but 3 of type int was given"),
        ({"port": None}, r"port must be a function without arguments.*NoneType"),
        ({"port": tf1}, r"cannot be called without arguments.*missing a required argument.*Pass a factory"),
        ({"port": keras.layers.Dense(2)}, r"without arguments .*not the layer itself, but <Dense .* of type Dense was"),
        ({"port": tf_keras.Sequential()}, r"not the layer itself, but <.* of type Sequential was given"),
        ({"inputs": None}, r"inputs must be an array.*NoneType"),
        ({"inputs": "zeros"}, r"inputs must be an array.*str"),
        (
            {"inputs": {"x": {"y": {0: INPUTS}}}},
            r"input 0\['x'\]\['y'\] has the key 0 of type int, .* only text",
        ),
        ({"inputs": {"x": [None]}}, r"input 0\['x'\] is not an array of numbers"),
        ({"inputs": {}}, r"at least one array, but \{\} was given"),
        ({"inputs": ()}, r"at least one array"),
        ({"inputs": (INPUTS, np.array([None]))}, r"input 1 is not an array of numbers"),
        ({"inputs": [[[1.0, 2.0], [3.0]]]}, r"input 0 is not an array: .*inhomogeneous.*; pad its rows to one length"),
        ({"inputs": np.zeros(2, "datetime64[D]")}, r"not an array of numbers .* of dtype datetime64\[D\]"),
        ({"inputs": np.zeros(2, [("a", "f4")])}, r"not an array of numbers .* of dtype \[\('a', '<f4'\)\]"),
        (
            {"inputs": [INPUTS, INPUTS]},
            r"with the inputs float32 \(2, 3\), float32 \(2, 3\): multiple values for argument 'training'; each item",
        ),
        ({"tf1": lambda inputs: inputs}, r"got an unexpected keyword argument 'training'"),
        ({"name_map": 3}, r"name_map must be a dict.*int"),
        ({"checkpoint": 3}, r"checkpoint must be the path of a checkpoint, but 3 of type int was given"),
        ({"seed": -1}, r"seed must be an integer from 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ArgumentError, match=message):
        migration(**changes)


def test_arguments_must_be_given_by_name():
    with pytest.raises(TypeError):
        Migration(tf1, lambda: tf1, INPUTS)


def test_name_is_that_of_the_tf1_program():
    assert migration().name == "tf1"
    assert migration(name="my model").name == "my model"


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        (INPUTS, [(2, 3)]),
        ([INPUTS, INPUTS[0]], [(2, 3), (3,)]),
        (lambda: iter([(INPUTS,), (INPUTS[0],)]), [(2, 3)]),
        (lambda: [INPUTS[0]], [(3,)]),
    ],
    ids=["array", "list", "iterator of tuples", "list of arrays"],
)
def test_the_first_batch_is_read_as_arrays(inputs, shapes):
    assert [
        array.shape for array in migration(inputs=inputs, tf1=lambda *inputs, training: inputs).first_batch()
    ] == shapes


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: tf.data.Dataset.from_tensors(INPUTS), "Dataset was given; .*=lambda: dataset.as_numpy_iterator"),
        (lambda: tf.data.Dataset.from_tensors(INPUTS).as_numpy_iterator(), "Iterator was given; .*=lambda: make_b"),
        (
            lambda: (INPUTS for _ in range(2)),
            "generator was given; pass a function: .*=lambda: make_b",
        ),
    ],
    ids=["dataset", "its iterator", "generator"],
)
def test_inputs_may_come_batch_by_batch(make, expected):
    for name, take in (("inputs", lambda given: migration(inputs=given)), ("labels", as_labels)):
        with pytest.raises(ArgumentError, match=f"^{name} must be arrays, or a function .*{expected}"):
            take(make())


def test_inputs_may_be_a_function_that_returns_a_dataset():
    dataset = tf.data.Dataset.from_tensor_slices([[b"a", b"b"]])
    for inputs in (lambda: dataset.map(lambda text: {"text": text}), dataset.as_numpy_iterator):
        (given,) = migration(inputs=inputs).first_batch()
        assert (given["text"] if isinstance(given, dict) else given).tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    "text",
    [
        np.array(["a", "bcd"]),
        np.array([b"a", b"bcd"]),
        np.array(["ü", b"b\0"], object),
        ["a", "b\0"],
        [b"a", b"b\0"],
        tf.constant([b"a", b"b\0"]),
        np.array([], object),
    ],
    ids=["str", "bytes", "objects", "list of str", "list of bytes", "tensor", "empty"],
)
def test_text_keeps_every_byte(text):
    (of_call,) = migration(inputs=(text,)).first_batch()
    of_step = as_labels(np.array(text, object) if isinstance(text, list) else text)
    as_given = tf.constant(text, tf.string).numpy().tolist()
    assert of_call.tolist() == of_step.tolist() == tf.constant(of_call).numpy().tolist() == as_given
    with tf.Graph().as_default():
        assert tf.compat.v1.placeholder(of_call.dtype, of_call.shape).dtype == tf.string


def test_arrays_of_objects_are_refused():
    for given in (np.array(["a", None]), np.array(["a", 1], object), np.array([object()])):
        with pytest.raises(ArgumentError, match=r"input 0 is not an array of numbers or strings, but of dtype object"):
            migration(inputs=given)
        with pytest.raises(ArgumentError, match="labels must be an array"):
            as_labels(given)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (lambda: [], "the iterable was empty"),
        (lambda: 3, "it returned int, not an iterable"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: [[INPUTS, INPUTS]], "cannot be called with the inputs float32"),
    ],
    ids=["empty", "no iterable", "raises", "too many"],
)
def test_inputs_without_a_batch_are_refused(inputs, message):
    with pytest.raises(MigrationError, match=message):
        migration(inputs=inputs).first_batch()


FILE = """
import numpy as np
import detrand
import helper_beside_it
migration = detrand.Migration(tf1=lambda x, training: x, port=lambda: (lambda x, training: x), inputs=np.ones(2))
other = detrand.Migration(tf1=lambda x, training: x, port=lambda: (lambda x, training: x), inputs=np.ones(2), name="o")
number = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "helper_beside_it.py").write_text("")
    path = tmp_path / "my_migration.py"
    path.write_text(FILE)
    return path


def test_a_file_is_loaded_whole_or_by_name(file):
    assert [migration.name for migration in load_migrations(str(file))] == ["<lambda>"]
    assert [migration.name for migration in load_migrations(f"{file}:other")] == ["o"]


def test_load_every_migration_where_none_is_called_so(file):
    file.write_text(FILE.replace("migration = ", "first = "))
    assert [migration.name for migration in load_migrations(str(file))] == ["<lambda>", "o"]


def test_loading_distinguishes_migrations_of_one_function(file):
    """They have the same names when one of them is loaded alone: a golden file may hold them all."""
    file.write_text(
        FILE.replace("migration = ", "first = ")
        + "import dataclasses\n"
        + "second = dataclasses.replace(first, seed=1)\n"
        + "third = dataclasses.replace(other, seed=1)\n"
        + "fourth = dataclasses.replace(first, name='f')\n"
    )
    names = {"first": "first", "other": "o", "second": "second", "third": "o", "fourth": "f"}
    loaded = load_migrations(str(file))
    assert [migration.name for migration in loaded] == list(names.values())
    assert [migration.seed for migration in loaded] == [42, 42, 1, 1, 42]
    for variable, name in names.items():
        assert [migration.name for migration in load_migrations(f"{file}:{variable}")] == [name]


def test_load_leaves_the_name_where_one_is_called_migration(file):
    file.write_text(FILE + "import dataclasses\nsame = dataclasses.replace(migration)\n")
    assert [migration.name for migration in load_migrations(str(file))] == ["<lambda>"]


def test_loading_leaves_the_module_path_unchanged(file):
    import sys

    before = list(sys.path)
    load_migrations(str(file))
    assert sys.path == before


@pytest.fixture
def checkpoints(file, monkeypatch):
    """Save one in the file's folder and one in the working directory."""
    folders = {"beside": file.parent, "working": file.parent / "working"}
    (folders["working"]).mkdir()
    for name, folder in folders.items():
        for path in (folder / f"in_{name}", folder / "in_both", folder / "nested" / f"in_{name}"):
            path.parent.mkdir(exist_ok=True)
            save_tf1_checkpoint([tf.Variable(1.0, name="w")], path)
    monkeypatch.chdir(folders["working"])
    return {"beside": str(folders["beside"]), "working": "."}


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("in_beside", "beside"),
        ("in_working", "working"),
        ("in_both", "beside"),
        ("nested/in_working", "working"),
        ("nested", "beside"),
    ],
)
def test_a_relative_checkpoint_counts_from_the_file(given, where, file, checkpoints):
    file.write_text(FILE.replace("inputs=np.ones(2))", f"inputs=np.ones(2), checkpoint={given!r})"))
    (loaded,) = load_migrations(str(file))
    assert os.path.normpath(loaded.checkpoint) == os.path.normpath(f"{checkpoints[where]}/{given}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "no/model",
            r"migration <lambda> in .*py: checkpoint='no/model' cannot be read .*'no' does not exist \(looked up in",
        ),
        ("/no/model", r"cannot be read as a checkpoint: the directory '/no' does not exist$"),
        ("my_migration.py", r"my_migration.py' cannot be read as a checkpoint: it is not a file that a Saver writes"),
    ],
    ids=["relative", "absolute", "beside"],
)
def test_loading_refuses_a_missing_checkpoint(given, message, file):
    file.write_text(FILE.replace("inputs=np.ones(2))", f"inputs=np.ones(2), checkpoint={given!r})"))
    with pytest.raises(MigrationError, match=message):
        load_migrations(str(file))
    assert [migration.checkpoint for migration in load_migrations(f"{file}:other")] == [None]


@pytest.mark.parametrize(
    ("change", "location", "message"),
    [
        (None, "{folder}/absent.py", "absent.py does not exist"),
        (None, "{folder}", "is a folder"),
        (None, "{folder}/notes.txt", "is not a Python file"),
        (
            None,
            "{file}:absent",
            r"does not define absent; it defines migration, other: give .*migration.py:migration",
        ),
        (None, "{file}:number", "number in .* is of type int, not a Migration"),
        ("x = 1", "{file}", r"does not define migration; write migration = detrand.Migration"),
        (
            "import absent_module",
            "{file}",
            r"cannot be imported: ModuleNotFoundError: No module named 'absent_module' \(.*:1\)",
        ),
        ("def (", "{file}", r"cannot be imported: SyntaxError: .*\(.*:1\)"),
        ("raise SystemExit(3)", "{file}", "cannot be imported: SystemExit: 3"),
        (
            "import detrand\n\ndetrand.Migration(tf1=1, port=2, inputs=3)",
            "{file}",
            r"ArgumentError: tf1 must be.*py:3\)",
        ),
    ],
    ids=["absent", "folder", "text", "no such name", "no migration", "none", "import", "syntax", "exit", "argument"],
)
def test_loading_refuses_what_is_no_migration(file, change, location, message):
    (file.parent / "notes.txt").write_text("")
    if change is not None:
        file.write_text(change)
    with pytest.raises(MigrationError, match=message):
        load_migrations(location.format(file=file, folder=file.parent))
