"""study.html: all points, the settings, the curve, the verdict, failed runs, and tables; texts are escaped."""

from __future__ import annotations

from pathlib import Path

from fake_study import drawn_study

from glassloop.study.conclusions import conclude
from glassloop.study.page import optional_number, points, study_page, write_page


def test_the_page_has_every_part(tmp_path: Path) -> None:
    record = conclude(tmp_path, drawn_study(tmp_path), print)
    html = study_page("study <1>", record)
    for text in (
        "Study study &lt;1&gt;", "Chosen: learning_rate 0.0001", "on validation (not used to choose)",
        "on the selection split (used to choose)", "Settings and their scores",
        "Expected validation performance against budget",
        "the loss | is nan lower it", "mean accuracy on the selection split (folds 1/10 of the training rows)",
        "halving" if record.study.chosen_strategy == "halving" else "grid", r"\toprule", "| --- |", "not used",
    ):  # fmt: skip
        assert text in html, text
    assert html.count("<figure") == 4
    assert "http" not in html.replace("http-equiv", ""), "nothing is loaded from elsewhere"


def test_a_result_without_an_interval_is_drawn_without_one(tmp_path: Path) -> None:
    record = conclude(tmp_path, drawn_study(tmp_path), print)
    settings = record.results["settings"]
    assert "95 % interval 0." in points(record)
    for setting in settings:  # type: ignore[attr-defined]
        if setting["validation"]:
            setting["validation"] |= {"low": None, "high": None}
    assert "95 % interval 0." not in points(record)
    assert (optional_number(None), optional_number(0.5)) == (None, 0.5)


def test_the_page_and_both_tables_are_written(tmp_path: Path) -> None:
    record = drawn_study(tmp_path)
    write_page(tmp_path, record)
    assert not (tmp_path / "study.html").exists(), "without results there is nothing to show"
    write_page(tmp_path, conclude(tmp_path, record, print))
    assert {path.name for path in tmp_path.glob("study.*")} == {"study.html", "study.md", "study.tex"}
