"""The pytest plugin: fixtures, a marker and an option; pytest loads it in every environment with detrand.

It imports no framework before a test uses a fixture.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from detrand import testing

if TYPE_CHECKING:
    from detrand.random_tool import DeterministicRandomTestTool
    from detrand.validation.migration import Migration
    from detrand.validation.results import Report

_NO_CREATIONS = "no_variable_creations"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--detrand-report``."""
    parser.getgroup("detrand").addoption(
        "--detrand-report",
        metavar="DIR",
        type=Path,
        help="write the report of each migration that fails to DIR, as a page for a browser",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker ``detrand``."""
    config.addinivalue_line(
        "markers", 'detrand(mode="constant", seed=42): the arguments of the tool in the fixture detrand_tool'
    )


@pytest.fixture
def detrand_tool(request: pytest.FixtureRequest) -> Iterator[DeterministicRandomTestTool]:
    """A new tool, in whose scope the test runs; ``@pytest.mark.detrand(mode=..., seed=...)`` sets its arguments."""
    from detrand.random_tool import DeterministicRandomTestTool

    marker = request.node.get_closest_marker("detrand")
    args, kwargs = (marker.args, marker.kwargs) if marker else ((), {})
    accepted = inspect.signature(DeterministicRandomTestTool).parameters
    if args or kwargs.keys() - accepted.keys():
        given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        raise pytest.UsageError(
            f"{request.node.nodeid}: @pytest.mark.detrand accepts mode= and seed= by name, but ({given}) was given"
        )
    with DeterministicRandomTestTool(**kwargs).scope() as tool:
        yield tool


@pytest.fixture
def no_variable_creations() -> None:
    """Fail the test if its body creates a variable; variables of its other fixtures do not count."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Run the body of a test with the fixture `no_variable_creations` in the scope of that name."""
    if _NO_CREATIONS not in pyfuncitem.fixturenames:
        return (yield)
    from detrand.variables.creation import assert_no_variable_creations

    with assert_no_variable_creations():
        return (yield)


@pytest.fixture
def assert_migration(request: pytest.FixtureRequest) -> Callable[[Migration], Report]:
    """A function that fails unless every check of a `Migration` passes, and returns the report."""

    def check(migration: Migration) -> Report:
        __tracebackhide__ = True
        return testing.assert_migration(
            migration, request.config.getoption("--detrand-report"), name=request.node.nodeid
        )

    return check
