"""Test the section about the data."""

from __future__ import annotations

from pathlib import Path

from reported_runs import write_fake_run

from glassloop.report.about import Drawn, data_section
from glassloop.report.source import read_source


def test_counts_lengths_and_notes_are_shown(tmp_path: Path) -> None:
    write_fake_run(tmp_path, num_labels=3)
    drawn = Drawn()
    html = data_section(read_source(tmp_path), drawn)
    assert [*drawn.charts] == ["labels-of-the-data", "lengths"]
    assert drawn.charts["labels-of-the-data"].table().rows[1] == ("label 1", round(59 / 60, 5), round(59 / 60, 5))
    assert sum(row[2] for row in drawn.charts["lengths"].table().rows) == 18
    assert "2 rows were cut; the longest had 70." in html
    assert "a note on a text" in html
