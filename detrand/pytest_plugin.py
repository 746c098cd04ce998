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
    from detrand.validation.report import Report
    from detrand.validation.results import CheckResult

_NO_CREATIONS, _ASSERT_CHECK, _MIGRATION = "no_variable_creations", "assert_check", "detrand_migration"
_ALLOW = "allow_inconclusive"
_ARGUMENTS = {"golden", "tolerances", "checks", _ALLOW}  # of the marker, by name
_REPORTS = pytest.StashKey[
    dict[int, tuple["Report", Path | None]]
]()  # by the id of the marker, which the tests of its checks share


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
    config.addinivalue_line(
        "markers",
        "detrand_migration(migration, golden=None, tolerances=None, checks=None, allow_inconclusive=False): run the "
        "test once for each check of a migration, with the fixture assert_check",
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
    from detrand import assert_no_variable_creations

    with assert_no_variable_creations():
        return (yield)


@pytest.fixture
def assert_migration(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """A function that fails unless every check of a `Migration` passes, and returns the report."""

    def check(migration: Migration, **arguments: Any) -> Report:
        __tracebackhide__ = True
        return testing.assert_migration(
            migration, request.config.getoption("--detrand-report"), name=request.node.nodeid, **arguments
        )

    return check


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each check for a function with the fixture `assert_check`."""
    if _ASSERT_CHECK not in metafunc.fixturenames:
        return
    metafunc.parametrize(_ASSERT_CHECK, _checks(*_marked(metafunc.definition)), indirect=True)


def _marked(node: pytest.Item) -> tuple[Migration, dict[str, Any]]:
    """Return the arguments of a test's marker ``detrand_migration``."""
    mark = node.get_closest_marker(_MIGRATION)
    if mark is None or len(mark.args) != 1 or not mark.kwargs.keys() <= _ARGUMENTS:
        raise pytest.UsageError(
            f"{node.nodeid}: the fixture assert_check needs @pytest.mark.detrand_migration(MIGRATION), which accepts "
            "golden=, tolerances=, checks= and allow_inconclusive= by name"
        )
    return mark.args[0], dict(mark.kwargs)


def _checks(migration: Migration, arguments: dict[str, Any]) -> list[str]:
    from detrand.validation.validate import selected_checks

    return selected_checks(migration, arguments.get("checks"))


@pytest.fixture
def assert_check(request: pytest.FixtureRequest) -> Callable[[], CheckResult]:
    """A function that fails unless a check of the migration in ``@pytest.mark.detrand_migration`` passes.

    The migration is validated once for all its tests, with the checks of the tests that are selected.
    """

    def check() -> CheckResult:
        __tracebackhide__ = True
        report, page = _report(request)
        found = next(found for found in report.checks if found.name == request.param)
        if not found.compared and _marked(request.node)[1].get(_ALLOW):
            pytest.skip(found.summary)
        testing.assert_check(found, report.sources, page)
        return found

    return check


def _report(request: pytest.FixtureRequest) -> tuple[Report, Path | None]:
    """Return the report of a test's migration, made by the first of its tests, and the page if one was written."""
    from detrand.validation.validate import validate

    node = request.node
    mark, reports = node.get_closest_marker(_MIGRATION), request.session.stash.setdefault(_REPORTS, {})
    if id(mark) not in reports:
        migration, arguments = _marked(node)
        others = [item for item in request.session.items if item.get_closest_marker(_MIGRATION) is mark]
        names = {item.callspec.params.get(_ASSERT_CHECK) for item in others if isinstance(item, pytest.Function)}
        checks = [name for name in _checks(migration, arguments) if name in names]
        of_both = {name: value for name, value in arguments.items() if name != _ALLOW}
        report = validate(migration, **{**of_both, "checks": checks})
        folder, page = request.config.getoption("--detrand-report"), None
        if folder is not None and report.verdict == "failed":
            page = testing.write_page(report, folder, node.nodeid.partition("[")[0], report.summary)
        reports[id(mark)] = report, page
    return reports[id(mark)]
