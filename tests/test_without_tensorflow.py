"""An installation without TensorFlow: what works in it, and what the errors of the rest say."""

import importlib
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import detrand
from detrand import DeterministicRandomTestTool, StepRecorder
from detrand.__main__ import main
from detrand.packages import is_installed as is_package_installed
from detrand.packages import needed_by
from detrand.validation.golden import record_golden
from detrand.validation.migration_files import load_migrations
from tests.support.keras3_process import is_installed
from tests.support.without_tensorflow import FRAMEWORKS, INPUTS, KERNEL, RATE, STEPS, run_without

v1 = tf.compat.v1
NUMPY_ONLY = (*FRAMEWORKS, "ml_dtypes", "rich")  # are hidden

# What raises an error where it is read. Other names that need TensorFlow raise one where they are used.
NEED_TENSORFLOW = {
    *("LoadedCheckpoint", "load_tf1_checkpoint", "save_tf1_checkpoint", "suggest_name_map", "enable_v1_layers"),
    *(name for name in detrand.__all__ if detrand._MODULE_OF[name].startswith("detrand.shim")),
}


def session_steps(mode, draws_noise):
    """Record the steps of the TF1 program in a session."""
    recorder = StepRecorder()
    with DeterministicRandomTestTool(mode=mode).scope(), tf.Graph().as_default(), v1.Session() as session:
        kernel = v1.get_variable("kernel", initializer=KERNEL)
        outputs = tf.nn.dropout(tf.nn.dropout(INPUTS @ kernel, 0.4), 0.5)
        loss = tf.reduce_sum(outputs**2)
        (gradient,) = tf.gradients(loss, [kernel])
        values = {"outputs": outputs, "loss": loss, "gradients": {"kernel": gradient}}
        if draws_noise:
            values["noise"] = [tf.random.normal((3,)), tf.random.uniform((3,), -1.0, 2.0)]
        with tf.control_dependencies([outputs, loss, gradient]):
            update = kernel.assign_sub(RATE * gradient)
        session.run(v1.global_variables_initializer())
        for step in range(STEPS):
            fetched, _ = session.run((values, update))
            recorder.record(step, **fetched)
    return recorder


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("constant", marks=pytest.mark.slow), "num_random_ops"])
@pytest.mark.parametrize(
    ("port", "used"),
    [
        ("torch_steps", ("torch",)),
        ("flax_steps", ("jax", "flax", "optax", "rich")),
        ("keras_steps", ("keras", "torch", "rich")),
    ],
    ids=["torch", "flax", "keras-on-torch"],
)
def test_a_port_draws_and_trains_as_the_session_that_was_recorded_elsewhere(port, used, mode, tmp_path):
    if not all(map(is_installed, used)):
        pytest.skip(f"{' or '.join(used)} is not installed")
    path = tmp_path / "tf1.npz"
    session_steps(mode, draws_noise=port != "torch_steps").save(path)
    code = f"""
import sys
from detrand import StepRecorder, compare_steps
from tests.support.without_tensorflow import {port}
comparison = compare_steps({port}({mode!r}), StepRecorder.load({str(path)!r}))
assert len(comparison.steps) == {STEPS} and comparison.ok, comparison
assert not {{"tensorflow", "tf_keras"}} & set(sys.modules)
"""
    hidden = [package for package in (*FRAMEWORKS, "rich") if package not in used]
    run_without(hidden, code, **{**os.environ, "KERAS_BACKEND": "torch"})


def test_comparison_and_philox_work_with_numpy_only(tmp_path):
    code = f"""
import numpy as np
from detrand import assert_not_allclose, compare, philox
from detrand.comparison.structures import in_numpy, load_structure, save_structure
numbers = {{"loss": 0.5, "logits": [philox.normal((3,), seed=42, op_seed=0), b"text", None]}}
save_structure({str(tmp_path / "numbers.npz")!r}, "numbers", in_numpy(numbers, "numbers"))
loaded = load_structure({str(tmp_path / "numbers.npz")!r}, "numbers")
assert_not_allclose(loaded["logits"][0], np.zeros(3, np.float32))
print(compare(loaded, numbers).ok)
"""
    assert run_without(NUMPY_ONLY, code).stdout.strip() == "True"


def test_draws_that_no_scope_controls_are_recorded_with_numpy_only():
    code = """
import random
import numpy as np
from detrand import DeterministicRandomTestTool, diff_random_ops
tools = [DeterministicRandomTestTool() for _ in range(2)]
with tools[0].scope():
    np.random.rand(2), random.random(), np.random.default_rng(0)
print(*(op.op_type for op in tools[0].random_ops))
print(diff_random_ops(*tools))
"""
    first, *others = run_without(NUMPY_ONLY, code).stdout.splitlines()
    assert first == "np.random.rand random.random np.random.default_rng"
    assert "random.random" in "".join(others)


@pytest.mark.slow
def test_public_names_of_tf1_code_and_checkpoints_raise_an_error_that_names_tensorflow():
    code = """
import detrand
for name in detrand.__all__:
    try:
        value = getattr(detrand, name)
        if name == "enable_v1_layers":
            value()
        print(name, "works")
    except detrand.errors.MissingPackageError as error:
        print(name, error, sep=": ")
"""
    lines = run_without(NUMPY_ONLY, code).stdout.splitlines()
    needed = "needs the package tensorflow, which is not installed. Install detrand with its dependencies: pip install"
    assert lines == [
        f"{name}: detrand.{name} {needed} . in a checkout of detrand" if name in NEED_TENSORFLOW else f"{name} works"
        for name in detrand.__all__
    ]


def test_the_commands_for_recordings_work_with_numpy_only(tmp_path):
    paths = [str(tmp_path / f"{name}.npz") for name in ("port", "tf1")]
    for path in paths:
        recorder = StepRecorder()
        recorder.record(0, loss=np.float32(path.endswith("tf1.npz")))
        recorder.save(path)
    code = f"""
from detrand.__main__ import main
print(main(["diff", {paths[0]!r}, {paths[1]!r}]), main(["explain", "ScopeError"]), main(["explain"]))
for option in ("--version", "--help"):
    try:
        main([option])
    except SystemExit as end:
        print(end.code)
"""
    printed = run_without(NUMPY_ONLY, code).stdout
    assert "1 of 1 step differs; first: step 0, loss" in printed
    assert "\n1 0 0\n" in printed
    assert f"\ndetrand {detrand.__version__}\n0\n" in printed
    assert printed.endswith("\n0\n")


@pytest.mark.parametrize("hidden", [("tensorflow",), NUMPY_ONLY], ids=["tensorflow", "all"])
@pytest.mark.parametrize("command", ["validate m.py", "record m.py -o golden.npz", "init new.py"])
def test_the_other_commands_name_tensorflow_in_one_line(command, hidden, tmp_path):
    code = f"import os; os.chdir({str(tmp_path)!r}); from detrand.__main__ import main; print(main({command.split()}))"
    finished = run_without(hidden, code)
    assert finished.stdout.splitlines()[-1:] == ["2"]
    assert finished.stderr.count("\n") == 1
    assert f"{command}` needs the package tensorflow, which is not installed." in finished.stderr
    assert finished.stderr.endswith("(detrand explain MissingPackageError)\n")


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["detrand_tool", "no_variable_creations"])
def test_the_fixtures_of_the_pytest_plugin_work(fixture, tmp_path):
    (tmp_path / "test_port.py").write_text(f"def test_draws({fixture}):\n    assert 1")
    code = f"""
import pytest
pytest.main(["-q", "-p", "detrand.pytest_plugin", "-p", "no:cacheprovider", "-c", "/dev/null", {str(tmp_path)!r}])
"""
    assert "1 passed" in run_without(["tensorflow"], code).stdout


def test_numbers_of_a_dtype_of_ml_dtypes_need_that_package(tmp_path):
    recorder = StepRecorder()
    recorder.record(0, loss=ml_dtypes.bfloat16(0.5))
    recorder.save(tmp_path / "steps.npz")
    code = f"import detrand; detrand.StepRecorder.load({str(tmp_path / 'steps.npz')!r})"
    assert_raises_there(code, "A recording with bfloat16 needs the package ml_dtypes, which is not installed")


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
def test_a_tensor_of_bfloat16_needs_ml_dtypes():
    code = "import detrand, torch; detrand.compare(torch.ones(2, dtype=torch.bfloat16), 1.0)"
    hidden = [package for package in NUMPY_ONLY if package != "torch"]
    assert_raises_there(code, "A tensor of bfloat16 needs the package ml_dtypes, which is not installed", hidden)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
def test_a_draw_that_tensorflows_kernel_computes_names_tensorflow():
    code = """
import detrand, keras
with detrand.DeterministicRandomTestTool().scope():
    keras.random.binomial((3,), 5, 0.5)
"""
    expected = "A binomial draw in the scope of a DeterministicRandomTestTool needs the package tensorflow"
    assert_raises_there(code, expected, ["tensorflow", "tf_keras"], KERAS_BACKEND="torch")


@pytest.mark.slow
def test_a_validation_without_a_golden_file_names_tensorflow():
    code = "import detrand; detrand.validate(detrand.Migration(tf1=lambda x, training: x, port=list, inputs=[[1.0]]))"
    assert_raises_there(code, "detrand.validate without golden needs the package tensorflow, which is not installed")


GOLDEN = Path(__file__).parent / "support"


def recorded(framework, folder):
    """Return the file of migrations to a framework, and their golden file, which a TF1 session records."""
    file, golden = GOLDEN / f"golden_{framework}.py", folder / "golden.npz"
    record_golden(load_migrations(str(file)), golden)
    return str(file), str(golden)


def report_in(file):
    """Return a report without what is not the same in each run."""
    report = json.loads(file.read_text())
    return _without({"seconds", "started", "versions"}, report)


def _without(keys, value):
    if isinstance(value, dict):
        return {key: _without(keys, each) for key, each in value.items() if key not in keys}
    return [_without(keys, each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "used"),
    [("torch", ("torch",)), pytest.param("flax", ("jax", "flax", "optax"), marks=pytest.mark.slow)],
    ids=["torch", "flax"],
)
def test_a_golden_file_is_checked_there_as_where_tensorflow_is(framework, used, tmp_path):
    if not all(map(is_installed, used)):
        pytest.skip(f"{' or '.join(used)} is not installed")
    file, golden = recorded(framework, tmp_path)
    command = ["validate", file, "--golden", golden, "-q", "--json"]
    assert main([*command, str(tmp_path / "with.json")]) == 1
    hidden = [package for package in FRAMEWORKS if package not in used]
    code = f"""
import sys
from detrand.__main__ import main
assert main({[*command, str(tmp_path / "without.json")]!r}) == 1
assert not {{"tensorflow", "tf_keras", "keras"}} & set(sys.modules)
"""
    run_without(hidden, code)
    report = report_in(tmp_path / "without.json")
    assert report == report_in(tmp_path / "with.json")
    sound, activation, optimizer = report["migrations"]
    assert sound["verdict"] == "passed"
    (of_activation,), (of_optimizer,) = activation["findings"], optimizer["findings"]
    assert of_activation["title"] == "activation differs: Relu (TF1), Elu (port)"
    assert of_activation["confirmed"] and of_activation["tf1"]["line"] and of_activation["port"]["line"]
    assert "momentum" in of_optimizer["title"]


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
def test_what_keras_chooses_is_decided_by_the_scope():
    code = """
import keras, numpy as np
from detrand import DeterministicRandomTestTool
images, chosen = np.random.default_rng(0).uniform(0, 255, (1, 8, 8, 3)).astype(np.float32), []
for _ in range(2):
    with DeterministicRandomTestTool().scope() as tool, tool.step():
        chosen.append(keras.layers.AugMix()(images, training=True).numpy())
assert (chosen[0] == chosen[1]).all()
assert (chosen[0] != images).any()
assert ("RandomUniformInt", ()) in {(op.op_type, op.shape) for op in tool.random_ops}
"""
    run_without(["tensorflow", "tf_keras"], code, **{**os.environ, "KERAS_BACKEND": "torch"})


def assert_raises_there(code, expected, hidden=NUMPY_ONLY, **environment):
    code = f"""
from detrand.errors import MissingPackageError
try:
    exec({code!r})
except MissingPackageError as error:
    print(error)
"""
    assert expected in run_without(hidden, code, **{**os.environ, **environment}).stdout


def test_a_missing_module_of_an_installed_package_is_no_missing_package():
    with pytest.raises(ModuleNotFoundError, match=r"tensorflow\.no_such_module"), needed_by("this"):
        import tensorflow.no_such_module  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), needed_by("this"):
        import no_such_package  # noqa: F401


def test_a_folder_of_the_name_is_no_installed_package(tmp_path, monkeypatch):
    (tmp_path / "folder_of_programs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_package_installed("folder_of_programs")
    importlib.import_module("folder_of_programs")
    assert not is_package_installed("folder_of_programs")


def test_a_package_that_is_installed_later_is_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_package_installed("folder_with_package")
    (tmp_path / "folder_with_package").mkdir()
    (tmp_path / "folder_with_package" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert is_package_installed("folder_with_package")
