"""A model folder that the tests of models share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def model_dir(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
