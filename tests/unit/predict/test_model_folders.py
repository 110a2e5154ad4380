"""Opening folders: runs, models and exports; what is none of them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.base.errors import ModelError
from glassloop.predictor import open_model

pytestmark = pytest.mark.slow  # trains


def test_a_run_and_its_model(text_run: Path) -> None:
    folder, run, _, _, backend = open_model(text_run, "cpu")
    assert (folder, backend.name) == (text_run / "model", "packed")
    assert run is not None
    assert open_model(text_run / "model", "cpu")[1] is None
    assert type(open_model(text_run, "cpu", light=True)[3]).__name__ == "LightClassifier"


def test_a_damaged_export(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text("{")
    with pytest.raises(ModelError) as caught:
        open_model(tmp_path, "cpu")
    assert "export.json: the record of the export cannot be read: not JSON" in caught.value.problem
