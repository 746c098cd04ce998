"""The path of a checkpoint to write."""

import pytest


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.ckpt")
