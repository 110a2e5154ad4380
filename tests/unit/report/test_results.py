"""Test the first section of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import write_fake_run

from glassloop.report.about import Drawn
from glassloop.report.results import (
    Result,
    by_interval,
    constant_answer,
    headline,
    interpretation,
    latex,
    markdown,
    progress,
    reach,
    results_charts,
    results_of,
    small_print,
)
from glassloop.report.source import read_source
from glassloop.runs.record import RUNNING
from glassloop.scores.measures import short_metrics
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

SHARE = Result("validation", "accuracy", "accuracy", 0.8, 0.7, 0.9, 0.6)


ERROR = Result("validation", "mse", "mse", 2.0, 1.5, 2.5, 3.0)


def test_the_headline_has_values_intervals_and_baseline(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    source = read_source(tmp_path)
    results = results_of(source)
    html = headline(source, results, Drawn())
    assert html.count('class="card"') == 2
    assert f"{results[0].value:.4f}" in html
    assert results[0].interval in html
    assert small_print(SHARE) == "95 % interval 0.7000 to 0.9000; baseline 0.6000"


def test_errors_have_an_axis_of_their_own() -> None:
    drawn = Drawn()
    assert len(results_charts([SHARE, ERROR], drawn, "mean")) == 2
    assert (reach(SHARE), reach(ERROR)) == (0.9, 3.0)


def test_an_unfinished_run_shows_its_progress(tmp_path: Path) -> None:
    write_fake_run(tmp_path, status=RUNNING)
    html = progress(read_source(tmp_path))
    assert "60 of 8" in html
    assert "0.7000" in html


# --- Test results with intervals, their interpretation, and tables for papers.


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_values_are_those_of_the_record_and_lie_in_their_intervals(tmp_path: Path, task: str) -> None:
    record = write_fake_run(tmp_path, task, num_labels=3)
    results = results_of(read_source(tmp_path))
    stored = short_metrics(record.evaluation)
    assert {result.key: result.value for result in results} == {key: stored[key] for key in record.metrics}
    for result in results:
        assert result.low < result.value < result.high, result.key


def test_a_mean_over_classes_with_few_rows_has_no_interval(tmp_path: Path) -> None:
    """No interval around a value that so few rows shift covers as it claims, so tables have none either."""
    write_fake_run(tmp_path, num_rows=100, num_labels=20)
    accuracy, macro = results_of(read_source(tmp_path))
    assert accuracy.interval != ""
    assert (macro.key, macro.interval, macro.note) == ("f1_macro", "", "too few rows")
    assert markdown([macro]).splitlines()[2].endswith("| too few rows |")
    assert "& too few rows" in latex([macro])


def test_without_predictions_there_are_no_intervals(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    (tmp_path / "validation-predictions.jsonl").unlink()
    results = results_of(read_source(tmp_path))
    assert results
    assert all(result.interval == "" for result in results)


@pytest.mark.parametrize(
    ("signal", "rows", "begins"),
    [(3.0, 200, "Better than always answering “label 0”"), (0.05, 30, "Undecided"), (-3.0, 200, "Worse than always answering")],
)
def test_the_interpretation_may_be_undecided(tmp_path: Path, signal: float, rows: int, begins: str) -> None:
    write_fake_run(tmp_path, signal=signal, num_rows=rows)
    source = read_source(tmp_path)
    sentence = interpretation(source, results_of(source))
    assert sentence.startswith(begins)
    assert "exact McNemar test" in sentence


def test_scores_are_judged_by_their_interval() -> None:
    result = Result("validation", "mse", "mse", 0.5, 0.4, 0.6, 1.0)
    assert by_interval(result).startswith("Better than the baseline. mse 0.5000 (95 % interval 0.4000 to 0.6000)")
    assert by_interval(replace(result, baseline=0.2)).startswith("Worse")
    assert by_interval(replace(result, baseline=0.5)).startswith("Undecided")


def test_the_constant_answer_is_the_most_frequent_training_label(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path, num_labels=3)
    rows = read_source(tmp_path).results[0].rows
    assert {*constant_answer(rows, record).predictions.tolist()} == {0}


RESULT = Result("validation", "f1", "f1 (50% | a_b)", 0.5, 0.4, 0.6, None)


def test_markdown_has_one_line_per_metric() -> None:
    assert markdown([RESULT]).splitlines() == [
        "| split | metric | value | 95 % interval |",
        "| --- | --- | ---: | ---: |",
        r"| validation | f1 (50% \| a_b) | 0.5000 | 0.4000 to 0.6000 |",
    ]


def test_latex_escapes_names() -> None:
    text = latex([RESULT, replace(RESULT, title="~^\\{}", points=(0.4, 0.6))])
    assert r"validation & f1 (50\% | a\_b) & 0.5000 & 0.4000 to 0.6000 &  \\" in text
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}\{\}" in text
    assert text.startswith(r"\begin{tabular}{llrrr}")
