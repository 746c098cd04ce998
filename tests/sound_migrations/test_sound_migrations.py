"""Every check passes on every sound port, with the default tolerance."""

import pytest

from detrand import enable_v1_layers, validate
from tests.sound_migrations import MIGRATIONS
from tests.support.tf1_referee import TF1_WARNINGS

pytestmark = TF1_WARNINGS


@pytest.mark.slow_except("softmax_regression")
@pytest.mark.parametrize("name", MIGRATIONS)
def test_every_check_passes_on_a_sound_migration(name):
    migration = MIGRATIONS[name]
    with enable_v1_layers():
        report = validate(migration)
    assert report.ok, str(report)
    assert report.sources == ""
    assert len(report.checks) == 8 + (migration.train is not None)
