"""The page of a comparison: all parts, and every text escaped."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_runs import drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.report.comparison import compare_runs
from glassloop.report.comparison_page import MOST_TEXT, comparison_page, cut
from glassloop.settings.fields import SCORE, SEVERAL


def test_the_page_has_all_parts_and_escapes_texts(tmp_path: Path) -> None:
    texts = [f"<script>alert({row})</script>" for row in range(60)]
    labels = ("<i>no</i>", "yes</script>")
    folders = [
        write_drawn_run(tmp_path / name, drawn_rows(60, skill, 1, labels=labels), texts=texts, learning_rate=skill / 1e5)
        for name, skill in (("<b>a</b>".replace("/", ""), 0.8), ("b", 3.0))
    ]
    found = comparison_page(compare_runs([str(folder) for folder in folders]))
    assert "&lt;script&gt;alert(" in found
    for hostile in ("<script>alert(", "<i>no", "yes</script>", "<b>a"):
        assert hostile not in found
    for part in ("exact McNemar test", "learning_rate", "Training loss", "Rows that differ", "One seed each", "p (Holm)"):
        assert part in found


@pytest.mark.parametrize("task", [SCORE, SEVERAL])
def test_other_tasks_have_a_page(tmp_path: Path, task: str) -> None:
    folders = [write_drawn_run(tmp_path / name, drawn_rows(40, skill, 1, task)) for name, skill in (("a", 0.5), ("b", 3.0))]
    found = comparison_page(compare_runs([str(folder) for folder in folders]))
    assert ("off by" in found) == (task == SCORE)
    assert "All recorded settings are the same." in found


def test_seeds_show_all_points_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    folders = [
        write_drawn_seeds(tmp_path / name, {seed: drawn_rows(80, skill, seed) for seed in (1, 2, 3)})
        for name, skill in (("a", 0.5), ("b", 3.0))
    ]
    compared = compare_runs([str(folder) for folder in folders], most_rows=2)
    found = comparison_page(compared)
    hidden = (
        compared.rows[0].num_better + compared.rows[0].num_worse - len(compared.rows[0].better) - len(compared.rows[0].worse)
    )
    assert f"{hidden} more are omitted" in found
    assert found.count('class="point"') == 12, "three seeds, two sides, two metrics"


def test_long_texts_are_cut() -> None:
    assert len(cut("x" * 10_000)) == MOST_TEXT + 1
