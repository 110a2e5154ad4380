"""Test the first section of a report."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from run_folders import RECORD, write_fake_run

from glassloop import load_examples
from glassloop.markup.templates import escaped
from glassloop.markup.templates import markdown as markdown_text
from glassloop.report.build import report_of
from glassloop.report.card import card_text, run_card
from glassloop.report.results import (
    headline,
    latex,
    markdown,
    progress,
    reach,
    results_charts,
    results_of,
    small_print,
)
from glassloop.report.source import Drawn, read_source
from glassloop.runs.record import FINISHED, RUNNING, Columns, read_run, write_run
from glassloop.scores.metrics import short_metrics
from glassloop.scores.result import VERDICT_WORDS, Score
from glassloop.settings.training import CLASSES, SCORE, SEVERAL
from glassloop.training.evaluate import (
    Evaluation,
    result_of,
    results_content,
    run_content,
    scored,
    show_result,
    write_predictions,
)

SHARE = Score("validation", "accuracy", "accuracy", 0.8, 0.7, 0.9, 0.6)


ERROR = Score("validation", "mse", "mse", 2.0, 1.5, 2.5, 3.0)


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
    ("answers", "kind"),
    [([0] * 30 + [1] * 30, "Better than"), ([1] * 30 + [0] * 30, "Worse than"), ([0] * 56 + [1] * 4, "Undecided against")],
    ids=["above", "below", "undecided"],
)
def test_terminal_json_record_report_and_card_give_one_verdict(tmp_path: Path, answers: list[int], kind: str) -> None:
    """A run whose answers are better, worse or not clearly different: every place shows the same sentence."""
    labels = ["a"] * 30 + ["b"] * 30 if kind != "Worse than" else ["a"] * 40 + ["b"] * 20
    labels = ["a"] * 55 + ["b"] * 5 if kind.startswith("Undecided") else labels
    splits = {"train": ["a"] * 5 + ["b"] * 4, "validation": labels}
    examples = load_examples(
        {
            name: [{"text": f"{name} {row}", "label": label} for row, label in enumerate(column)]
            for name, column in splits.items()
        }
    )
    references = np.array([label == "b" for label in labels], dtype=np.int64)
    logits = np.eye(2, dtype=np.float32)[answers]
    scores = examples.measures.scores(logits, references, CLASSES, ("a", "b"))
    timed = {f"eval_{key}": value for key, value in scores.items()}
    result = result_of(examples, "validation", Evaluation(logits, references, 0.5, 1.0, timed), examples.measures)
    record = scored(
        replace(
            RECORD,
            status=FINISHED,
            metrics=examples.measures.keys,
            data=replace(RECORD.data, task=CLASSES, labels=("a", "b"), columns=Columns("text"), splits=examples.facts),
        ),
        [result],
    )
    write_run(tmp_path, record)
    write_predictions(tmp_path / "validation-predictions.jsonl", examples, result)

    sentence = str(record.verdict)
    assert sentence.startswith(f'{kind} always answering "a": accuracy')
    screen = io.StringIO()
    show_result(Console(file=screen, width=400), result, "validation")
    assert f"• {sentence}\n" in screen.getvalue()
    evaluated = results_content([result])["validation"]
    trained = run_content(tmp_path, read_run(tmp_path))["splits"]
    assert evaluated["verdict"] == trained["validation"]["verdict"] == sentence
    html = report_of(tmp_path).html
    assert f'<p class="lead">{escaped(sentence)}.</p>' in html
    assert sum(html.count(word) for word in VERDICT_WORDS.values()) == 1, "no second verdict"
    assert markdown_text(sentence) in card_text(run_card(tmp_path))


RESULT = Score("validation", "f1", "f1 (50% | a_b)", 0.5, 0.4, 0.6, None)


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
