"""Saved structures: values, dtypes and structure come back unchanged, and other files are refused."""

import collections
import dataclasses
import io
import json
import os
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from detrand import ArgumentError, RecordingError
from detrand.comparison.structures import (
    VERSION,
    flatten,
    in_numpy,
    load_structure,
    map_structure,
    packed_as,
    save_structure,
)

State = collections.namedtuple("State", ["c", "h"])


@dataclasses.dataclass
class Output:
    logits: object
    mask: object = None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.npz"


def there_and_back(value, path):
    save_structure(path, "numbers", in_numpy(value, "value"))
    return load_structure(path, "numbers")


DTYPES = [
    *("bool", "int8", "uint8", "int16", "int32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
]


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_arrays_keep_their_dtype_and_every_bit(dtype, shape, path):
    array = (np.arange(np.prod(shape)).reshape(shape) % 7).astype(dtype)
    found = there_and_back(array, path)
    assert found.dtype == np.dtype(dtype)
    assert found.shape == shape
    assert found.tobytes() == array.tobytes()


def test_an_array_of_the_other_byte_order_keeps_its_values(path):
    found = there_and_back(np.arange(3, dtype=">f4"), path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [0, 1, 2])


@pytest.mark.parametrize(
    "value",
    [True, 3, 2**63, 0.1, float("inf"), 1 + 2j, "loss", "ä\ud800", b"\xff\x00", None],
    ids=repr,
)
def test_python_values_keep_their_types(value, path):
    found = there_and_back({"value": value}, path)["value"]
    assert type(found) is type(value)
    assert found == value


def test_a_saved_nan_comes_back(path):
    assert np.isnan(there_and_back(float("nan"), path))
    assert np.isnan(there_and_back(np.float32("nan"), path))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, (2, [3])], [1, (2, [3])]),
        ({"a": 1, 2: [], "": {}, None: 3, 0.5: 4}, {"a": 1, 2: [], "": {}, None: 3, 0.5: 4}),
        ({"outer": {"b": 1, "a": None}}, {"outer": {"b": 1, "a": None}}),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    ],
    ids=["sequences", "keys", "nested", "ordered"],
)
def test_a_nested_structure_is_saved(given, expected, path):
    found = there_and_back(given, path)
    assert found == expected
    assert repr(found) == repr(expected)  # the order of keys, and what is a tuple


@pytest.mark.parametrize("value", [State(1, 2.0), Output(1, 2.0)], ids=["namedtuple", "dataclass"])
def test_records_come_back_as_named_tuples(value, path):
    found = there_and_back(value, path)
    assert type(found).__name__ == type(value).__name__
    assert found._fields == tuple(name for name, _ in found._asdict().items())
    assert found == (1, 2.0)


def test_arrays_of_strings_are_saved(path):
    texts = np.array([["a", ""], ["b\n", "ü"]])
    np.testing.assert_array_equal(there_and_back(texts, path), texts)
    raw = tf.constant([b"\xff\x00", b""])
    np.testing.assert_array_equal(there_and_back(raw, path), raw.numpy())
    assert there_and_back(raw[0], path) == b"\xff\x00"


def test_composite_tensors_are_saved_by_component(path):
    found = there_and_back(tf.IndexedSlices(tf.ones((1, 2)), tf.constant([3]), tf.constant([5, 2])), path)
    assert (type(found).__name__, found._fields) == ("IndexedSlices", ("values", "indices", "dense_shape"))
    np.testing.assert_array_equal(found.indices, [3])


def test_conversion_to_numpy_copies_the_numbers():
    array, variable = np.zeros(2), tf.Variable([0.0])
    held = in_numpy([array, variable], "value")
    array[:] = 1
    variable.assign([1.0])
    np.testing.assert_array_equal(held[0], [0, 0])
    np.testing.assert_array_equal(held[1], [0])


def test_equal_structures_make_equal_files(path):
    value = {"loss": np.float32(0.5), "name": "x"}
    save_structure(path, "numbers", value)
    once = path.read_bytes()
    save_structure(path, "numbers", value)
    assert path.read_bytes() == once


def test_numpy_reads_the_arrays(path):
    save_structure(path, "numbers", {"loss": np.arange(3)})
    np.testing.assert_array_equal(np.load(path)["0"], [0, 1, 2])


def test_a_structure_that_cannot_be_saved_leaves_the_existing_file(path):
    save_structure(path, "numbers", 1)
    with pytest.raises(
        ArgumentError, match=r"a dict with the key \(1, 2\) of type tuple cannot be saved\. Use strings"
    ):
        save_structure(path, "numbers", {(1, 2): 3})
    assert load_structure(path, "numbers") == 1
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("name", "message"), [("absent/saved.npz", "No such file or directory"), ("", "Is a directory")]
)
def test_a_path_that_cannot_be_written_is_an_error(name, message, tmp_path):
    with pytest.raises(RecordingError, match=f"cannot be written: {message}; give a different file"):
        save_structure(tmp_path / name, "numbers", 1)
    assert os.listdir(tmp_path) == []


def with_index(index):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("structure.json", index if isinstance(index, str) else json.dumps(index))

    return write


GOOD = {"format": "detrand", "version": VERSION, "kind": "numbers"}
ARRAY = {**GOOD, "content": {"array": 0, "dtype": "float64"}}


def with_array(array, compression=zipfile.ZIP_STORED):
    def write(path):
        content = io.BytesIO()
        np.save(content, array, allow_pickle=True)
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("structure.json", json.dumps(ARRAY))
            archive.writestr("0.npy", content.getvalue())

    return write


def with_huge_array(path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("structure.json", json.dumps(ARRAY))
        archive.writestr("0.npy", content.getvalue())


def with_member(name):
    def write(path):
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
            warnings.simplefilter("ignore", UserWarning)  # of a name that is written twice
            archive.writestr("structure.json", json.dumps(ARRAY))
            archive.writestr(name, "")

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_text("loss"), "is not a recording of detrand, or is damaged: File is not a zip file"),
        (
            lambda path: np.savez(path, loss=1.0),
            "is not a recording of detrand: the archive has no structure.json",
        ),
        (with_index([1]), "is not a recording of detrand: its structure.json does not name the format"),
        (
            with_index({"version": VERSION}),
            "is not a recording of detrand: its structure.json does not name the format",
        ),
        (
            with_index({**GOOD, "version": 99}),
            r"has version 99 of the format, but this detrand reads version 1\. Record",
        ),
        (with_index({**GOOD, "kind": "letters"}), "holds letters, not numbers"),
        (with_index("{"), "is damaged: JSONDecodeError"),
        (with_index({**GOOD, "content": {"array": 0, "dtype": "float32"}}), r"is damaged: KeyError.*0\.npy"),
        (with_index({**GOOD, "content": {"what": 0}}), "is damaged: KeyError"),
        (with_index("[" * 100_000), "is damaged: RecursionError"),
        (with_array(np.array([object()])), "is damaged: ValueError: Object arrays cannot be loaded"),
        (with_array(np.zeros(10**6), zipfile.ZIP_DEFLATED), r"it unpacks to 8000\d\d\d bytes, more than its size"),
        (with_huge_array, "is damaged: (MemoryError|ValueError)"),
        (with_member("../../0.npy"), r"has an unexpected member '../../0.npy'"),
        (with_member("structure.json"), "has an unexpected member 'structure.json'"),
    ],
    ids=[
        "absent",
        "folder",
        "text",
        "other npz",
        "list",
        "no format",
        "version",
        "kind",
        "JSON",
        "no array",
        "node",
        "nested",
        "pickle",
        "compressed",
        "huge",
        "path",
        "twice",
    ],
)
def test_a_file_that_is_no_recording_is_an_error(write, message, path):
    write(path)
    with pytest.raises(RecordingError, match=message):
        load_structure(path, "numbers")


def test_a_damaged_array_is_an_error(path):
    save_structure(path, "numbers", np.arange(1000))
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"damaged: Bad CRC-32 for file '0.npy'"):
        load_structure(path, "numbers")
    path.write_bytes(content[:500])
    with pytest.raises(RecordingError, match="damaged: File is not a zip file"):
        load_structure(path, "numbers")


def test_a_field_that_no_named_tuple_can_have_is_an_error():
    @dataclasses.dataclass
    class Hidden:
        _logits: object

    with pytest.raises(
        ArgumentError, match=r"outputs cannot be converted to a named tuple .*'_logits'.*Rename the field"
    ):
        in_numpy(Hidden(1.0), "outputs")


def test_equal_arrays_are_stored_once(tmp_path):
    path, array = tmp_path / "saved.npz", np.arange(6.0)
    value = {"a": array, "b": array.copy(), "int": array.astype(np.int64), "flat": array, "square": array.reshape(2, 3)}
    save_structure(path, "numbers", value)
    with np.load(path) as members:
        assert sum(name.isdigit() for name in members.files) == 3
    loaded = load_structure(path, "numbers")
    for name, expected in value.items():
        np.testing.assert_array_equal(loaded[name], expected)
        assert loaded[name].dtype == expected.dtype


Pair = collections.namedtuple("Pair", ["second", "first"])
STRUCTURES = [1, None, [1, (2, [])], {"b": 1, "a": {"d": None, "c": [2, 3]}}, Pair(1, {"x": (2,)}), ([], {}), "text"]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_leaves_are_in_the_order_of_tensorflows_nest(structure):
    leaves = flatten(structure)
    assert leaves == tf.nest.flatten(structure)
    assert packed_as(structure, range(len(leaves))) == tf.nest.pack_sequence_as(structure, [*range(len(leaves))])

    def paired(leaf, other):
        return leaf, other

    mapped = map_structure(paired, structure, structure)
    assert mapped == tf.nest.map_structure(paired, structure, structure)
    assert type(mapped) is type(tf.nest.map_structure(paired, structure, structure))
