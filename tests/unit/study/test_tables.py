"""A study in the terminal and in tables: the chosen setting first, every number, and what was used to choose."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import drawn_study
from rich.console import Console

from glassloop.runs.study import StudyRecord
from glassloop.study.conclusions import conclude
from glassloop.study.tables import (
    latex,
    latex_table,
    lines_of,
    markdown_table,
    ranked,
    show_study,
    study_content,
    without_result,
)


@pytest.fixture
def record(tmp_path: Path) -> StudyRecord:
    return conclude(tmp_path, drawn_study(tmp_path), print)


def test_the_chosen_setting_comes_first_and_stopped_ones_last(record: StudyRecord) -> None:
    assert [row["number"] for row in ranked(record)] == [1, 0, 2]


def test_tables_for_a_paper(record: StudyRecord) -> None:
    lines = markdown_table(record).splitlines()
    columns = ["learning_rate", "trained", "accuracy (selection)", "accuracy (validation)", "95 % interval"]
    assert lines[0] == f"| {' | '.join([*columns, 'failed', 'difference', 'its 95 % interval', 'verdict'])} |"
    assert lines[2].startswith("| 0.0001 | 100% | 0.3333 | ")
    assert lines[2].endswith("| 0 of 2 | – | – | chosen |")
    assert lines[4] == "| 0.001 | 25% | 0.1000 | – | – | 1 of 2 | – | – | stopped early |"
    nothing = {"trained": 0.0, "failed": 0, "runs": 2, "selection": None}
    assert [without_result(row) for row in (nothing, {**nothing, "trained": 0.25, "failed": 2})] == ["not trained", "failed"]
    tex = latex_table(record)
    assert tex.startswith("\\begin{tabular}{lllllllll}\n\\toprule\nlearning\\_rate & trained & ")
    assert "100\\%" in tex
    assert "$\\pm$" in tex
    assert latex("a_b\\~") == r"a\_b\textbackslash{}\textasciitilde "


def test_several_comparisons_state_their_correction(record: StudyRecord) -> None:
    first, *others = record.results["settings"]  # type: ignore[misc]
    compared = {"difference": 0.01, "low": -0.02, "high": 0.04, "p_value": 0.3, "corrected": 0.6, "verdict": "undecided"}
    settings = [first, *({**other, "comparison": compared} for other in others), {**first, "comparison": compared}]
    several = replace(record, results={**record.results, "settings": settings})
    table = markdown_table(several)
    assert "| difference | interval corrected for 4 comparisons | verdict |" in table
    assert "| +0.0100 | -0.0200 to +0.0400 |" in table
    assert "interval corrected for 4 comparisons" in latex_table(several)
    sentence = next(line for line in lines_of(several) if "corrected" in line)
    assert sentence == (
        "intervals of differences and verdicts are corrected for 4 comparisons: all hold together with 95 %; "
        "the intervals of single settings hold with 95 % each"
    )


def test_sentences_say_what_was_used_to_choose(record: StudyRecord) -> None:
    lines = lines_of(record)
    assert lines[0].endswith("(chosen by the mean on the selection split; validation was not used to choose)")
    assert lines[1].startswith("validation (trained on all training rows): 0.")
    assert "all seeds as one model" in lines[1]
    assert "1 run failed and counts like the baseline: study.json has the errors" in lines


def test_no_number_is_cut_in_a_narrow_terminal(record: StudyRecord) -> None:
    output = io.StringIO()
    show_study(Path("s"), record, Console(file=output, width=40))
    shown = output.getvalue()
    assert "…" not in shown
    assert "0.3333" in shown
    assert shown.rstrip().endswith("→ s/study.html")


def test_the_content_for_scripts(record: StudyRecord) -> None:
    content = study_content(Path("s"), record)
    assert content["chosen_by"] == {"split": "selection", "folds": ("1/10",), "metric": "accuracy"}
    assert content["chosen"] == "learning_rate 0.0001"
    assert content["failed"] == {"seed-2-2": {"exit_status": 5, "error": "the loss | is nan lower it"}}
