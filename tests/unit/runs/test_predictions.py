"""The predictions of a run: every row is read back as it was written, and damage is reported with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassloop.base.errors import ModelError, SettingsError
from glassloop.runs.record import predicted_splits, read_predictions

ROWS = [{"row": 0, "prediction": "a\u2028b", "logits": [1.0], "text": "x\x85y"}, {"row": 1, "prediction": "c", "logits": [2.0]}]


def write(folder: Path, split: str, text: str) -> None:
    (folder / f"{split}-predictions.jsonl").write_text(text, encoding="utf-8")


def test_rows_with_any_line_separator_are_read(tmp_path: Path) -> None:
    write(tmp_path, "validation", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS))
    assert predicted_splits(tmp_path) == ["validation"]
    assert read_predictions(tmp_path, "validation") == ROWS


def test_a_split_without_predictions_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='no predictions for the split "test"\ntry:  train it to its end'):
        read_predictions(tmp_path, "test")
    write(tmp_path, "validation", "{}\n")
    with pytest.raises(SettingsError, match=r'no predictions for the split "\.\./x"\ntry:  use one of validation'):
        read_predictions(tmp_path, "../x")


@pytest.mark.parametrize("damaged", ["{\n", "[]\n", '{"a": 1}\nx', "\n"])
def test_damage_is_reported_with_its_line(tmp_path: Path, damaged: str) -> None:
    write(tmp_path, "validation", '{"row": 0}\n' + damaged)
    with pytest.raises(ModelError, match=r"validation-predictions\.jsonl, line [23]: "):
        read_predictions(tmp_path, "validation")
