"""The import of `detrand`: it loads no framework, and every public name resolves."""

import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import detrand


def run(code, cwd=None):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=cwd).stdout


def test_import_loads_no_framework():
    code = """
import sys
import detrand
from detrand import philox, DeterministicRandomTestTool, DetrandError
philox.uniform((3,), seed=42, op_seed=0)
DeterministicRandomTestTool()
print(sorted({"tensorflow", "keras", "tf_keras", "jax", "torch"} & set(sys.modules)))
"""
    assert run(code).strip() == "[]"


@pytest.mark.parametrize("name", detrand.__all__)
def test_every_public_name_resolves(name):
    assert getattr(detrand, name) is not None
    assert name in dir(detrand)


def test_the_public_names_are_sorted_and_unique():
    assert detrand.__all__ == sorted(set(detrand.__all__))


def test_an_install_without_sources_has_the_same_names(tmp_path):
    package = Path(detrand.__file__).parent
    for name in ("__init__", "errors", "packages"):
        py_compile.compile(package / f"{name}.py", tmp_path / "detrand" / f"{name}.pyc", doraise=True)
    shutil.copy(package / "__init__.pyi", tmp_path / "detrand")
    code = "import detrand; print(detrand.__file__, detrand.DetrandError.__name__, *detrand.__all__)"
    file, error, *names = run(code, cwd=tmp_path).split()
    assert (file, error) == (str(tmp_path / "detrand" / "__init__.pyc"), "DetrandError")
    assert names == detrand.__all__


def test_an_unknown_name_raises_with_the_public_names():
    with pytest.raises(
        AttributeError, match=r"'detrand' has no attribute 'Tool'; its public names are .*Deterministic"
    ):
        detrand.Tool  # noqa: B018


def test_errors_are_detrand_errors_and_builtin_ones():
    for name in detrand.__all__:
        value = getattr(detrand, name)
        if isinstance(value, type) and issubclass(value, Exception) and value is not detrand.DetrandError:
            assert issubclass(value, detrand.DetrandError)
            assert issubclass(value, (ValueError, AssertionError, RuntimeError, ImportError)), name
