"""The environment of the tests, the cases that are slow, and a check after each test."""

import collections
import fnmatch
import gc
import logging
import os
import sys
import traceback

import hypothesis
import pytest

from detrand import errors

# TensorFlow reads it once, when it is imported: errors only, not the notices about CPU features and missing GPUs.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

# Importing these files gives the process two devices, which must happen before TensorFlow has run anything.
collect_ignore = ["support/replica_programs.py", "support/replicated_migrations.py"]


def pytest_xdist_auto_num_workers(config):
    """Run all tests on all cores, but named files in one process, which imports TensorFlow once."""
    return None if config.args_source == pytest.Config.ArgsSource.TESTPATHS else 0


THIRDS = ("first", "second", "last")


def pytest_addoption(parser):
    """Add ``--third``."""
    words = "run a third of the slow cases of each test"
    parser.addoption("--third", choices=THIRDS, help=words)


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config, items):
    """Mark the cases of a test as slow that ``@pytest.mark.slow_except("case", "tf_keras-*")`` does not name.

    Deselect the other slow cases if a third of them is asked for.
    """
    unused = set()
    for item in items:
        for mark in item.iter_markers("slow_except"):
            unused |= {(item.originalname, pattern) for pattern in mark.args}
    for item in items:
        for mark in item.iter_markers("slow_except"):
            matching = [pattern for pattern in mark.args if fnmatch.fnmatchcase(item.callspec.id, pattern)]
            unused -= {(item.originalname, pattern) for pattern in matching}
            if not matching:
                item.add_marker("slow")
    if unused and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"slow_except names cases that do not exist: {sorted(unused)}")

    if third := config.getoption("third"):
        left_out = items_of_other_thirds(items, THIRDS.index(third))
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def items_of_other_thirds(items, number):
    """Return those of the slow cases that are not in a third.

    Each third has a slow case of each test with any, and, of the tests without cases, a slow one of each module.
    """
    slow = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            slow[item.nodeid.partition("[" if hasattr(item, "callspec") else "::")[0]].append(item)
    return {item for cases in slow.values() for item in {*cases}.difference(cases[number % len(cases) :: 3])}


def pytest_collection_finish():
    """Leave what is imported out of the garbage collections: a tenth of the tests' time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def no_mistake_passed_over(caplog):
    """Fail a test in which a report does without something because of an error that detrand's own code raised."""
    with caplog.at_level(logging.DEBUG, "detrand"):
        yield
    passed_over = [each.exc_info[1] for each in caplog.get_records("call") if each.name == "detrand" and each.exc_info]
    assert not [error for error in passed_over if is_mistake(error)]


def is_mistake(error):
    """Return whether detrand's own code has raised an error that it does not raise on purpose."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    is_of_detrand = raised_in.startswith(os.path.dirname(errors.__file__))
    kinds = AssertionError, AttributeError, LookupError, NameError, TypeError
    return is_of_detrand and isinstance(error, kinds) and not isinstance(error, errors.DetrandError)


@pytest.fixture(autouse=True)
def no_global_seed_left_behind():
    """Fail a test that sets TensorFlow's global seed for the tests after it."""
    before = global_seed()
    yield
    assert global_seed() == before


def global_seed():
    """Return TensorFlow's global seed, None as long as TensorFlow is not imported."""
    module = sys.modules.get("tensorflow.python.framework.random_seed")
    return module.context.global_seed() if module else None
