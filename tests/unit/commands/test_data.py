"""`glassloop data`: the settings reach the data, and the model's own maximum length is the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.cli.data import describe_data

ROWS = "body,label\n" + "".join(f"good film {number},{'ab'[number % 2]}\n" for number in range(20))


def test_the_overview(write, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("rows.csv", ROWS)
    describe_data(str(path), str(tiny_model_dir), None, 4, {"text": "body", "validation_share": 0})
    out = capsys.readouterr().out
    assert "Padding of train in batches of 4" in out
    assert "validation" not in out
    describe_data(str(path), str(tiny_model_dir), 8, 4, {"text": "body"})
    assert "at most 8 tokens" in capsys.readouterr().out


def test_a_length_of_0_is_not_the_default(says, write, tiny_model_dir: Path) -> None:
    with says("max_length is 0", "use a whole number of 8 or more"):
        describe_data(str(write("rows.csv", ROWS)), str(tiny_model_dir), 0, 4, {"text": "body"})
