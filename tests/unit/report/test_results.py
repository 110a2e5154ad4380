"""Results with intervals, their verdict in every place, tables for papers, and the section about confidence."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn import Reader
from rich.console import Console
from run_folders import FOUND, HOSTILE, RECORD, with_baselines, write_fake_run, write_run_with_model

from glassloop import load_examples
from glassloop.markup.templates import escaped
from glassloop.markup.templates import markdown as markdown_text
from glassloop.report.build import report_of
from glassloop.report.card import card_text, run_card
from glassloop.report.charts import LineChart
from glassloop.report.page import Drawn
from glassloop.report.results import confidence, gained_note, headline, histogram, latex, markdown, results_of, results_section
from glassloop.report.source import read_source
from glassloop.runs.record import FINISHED, RUNNING, Columns, read_run, weights_of, write_calibration, write_run
from glassloop.scores.metrics import short_metrics
from glassloop.scores.result import VERDICT_WORDS, Score
from glassloop.settings.training import CLASSES, SCORE, SEVERAL
from glassloop.training import evaluate
from glassloop.training.evaluate import Evaluation, result_of, results_content, run_content, scored, show_result

SHARE = Score("validation", "accuracy", "accuracy", 0.8, 0.7, 0.9, 0.6)
ERROR = Score("validation", "mse", "mse", 2.0, 1.5, 2.5, 3.0)
RESULT = Score("validation", "f1", "f1 (50% | a_b)", 0.5, 0.4, 0.6, None)


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_values_are_those_of_the_record_and_lie_in_their_intervals(tmp_path: Path, task: str) -> None:
    record = write_fake_run(tmp_path, task, num_labels=3)
    results = results_of(read_source(tmp_path))
    stored = short_metrics(record.evaluation)
    assert {result.key: result.value for result in results} == {key: stored[key] for key in record.metrics}
    for result in results:
        assert result.low < result.value < result.high, result.key
    (tmp_path / "validation-predictions.jsonl").unlink()
    without = results_of(read_source(tmp_path))
    assert [(one.key, one.value, one.interval) for one in without] == [(one.key, one.value, "") for one in results]


def test_a_mean_over_classes_with_few_rows_has_no_interval_and_tables_escape_names(tmp_path: Path) -> None:
    """No interval around a value that so few rows shift covers as it claims, so tables have none either."""
    write_fake_run(tmp_path, num_rows=100, num_labels=20)
    accuracy, macro = results_of(read_source(tmp_path))
    assert accuracy.interval != ""
    assert (macro.key, macro.interval, macro.note) == ("f1_macro", "", "too few rows")
    assert markdown([macro]).splitlines()[2].endswith("| too few rows |")
    assert "& too few rows" in latex([macro])
    assert markdown([RESULT]).splitlines() == [
        "| split | metric | value | 95% interval |",
        "| --- | --- | ---: | ---: |",
        r"| validation | f1 (50% \| a_b) | 0.5000 | 0.4000 to 0.6000 |",
    ]
    text = latex([RESULT, replace(RESULT, title="~^\\{}", points=(0.4, 0.6))])
    assert r"validation & f1 (50\% | a\_b) & 0.5000 & 0.4000 to 0.6000 &  \\" in text
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}\{\}" in text
    assert text.startswith(r"\begin{tabular}{llrrr}")


def test_the_first_section_has_values_intervals_and_baseline_or_the_progress(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    source = read_source(tmp_path)
    results = results_of(source)
    html = results_section(source, results, Drawn())
    assert html.count('class="card"') == 2
    assert f"{results[0].value:.4f}" in html
    assert results[0].interval in html
    drawn = Drawn()
    html = headline([SHARE, ERROR], CLASSES, drawn, "")
    assert "95% interval 0.7000 to 0.9000; baseline 0.6000" in html
    assert [*drawn.charts] == ["metrics", "metrics-2"], "errors have an axis of their own"
    write_fake_run(tmp_path / "running", status=RUNNING)
    html = results_section(read_source(tmp_path / "running"), [], Drawn())
    assert "60 of 8" in html
    assert "0.7000" in html


@pytest.mark.parametrize(
    ("kind", "answers", "labels"),
    [
        ("Better than", [0] * 30 + [1] * 30, ["a"] * 30 + ["b"] * 30),
        ("Worse than", [1] * 30 + [0] * 30, ["a"] * 40 + ["b"] * 20),
        ("Undecided against", [0] * 56 + [1] * 4, ["a"] * 55 + ["b"] * 5),
    ],
)
def test_terminal_json_record_report_and_card_give_one_verdict(
    tmp_path: Path, kind: str, answers: list[int], labels: list[str]
) -> None:
    """A run whose answers are better, worse or not clearly different: every place shows the same sentence."""
    splits = {"train": ["a"] * 5 + ["b"] * 4, "validation": labels}
    columns = {
        name: [{"text": f"{name} {row}", "label": one} for row, one in enumerate(several)] for name, several in splits.items()
    }
    examples = load_examples(columns)
    references = np.array([label == "b" for label in labels], dtype=np.int64)
    logits = np.eye(2, dtype=np.float32)[answers]
    scores = examples.measures.scores(logits, references, CLASSES, ("a", "b"))
    timed = {f"eval_{key}": value for key, value in scores.items()}
    result = result_of(examples, "validation", Evaluation(logits, references, 0.5, 1.0, timed), examples.measures)
    data = replace(RECORD.data, task=CLASSES, labels=("a", "b"), columns=Columns("text"), splits=examples.facts)
    record = scored(replace(RECORD, status=FINISHED, metrics=examples.measures.keys, data=data), [result])
    write_run(tmp_path, record)
    evaluate.write_predictions(tmp_path / "validation-predictions.jsonl", examples, result)

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


# --- confidence
def test_each_task_has_its_own_charts_and_every_answer_is_counted_once(tmp_path: Path) -> None:
    for task, labels, charts in [
        (CLASSES, 2, ["reliability", "confidence", "thresholds", "coverage"]),
        (CLASSES, 5, ["reliability", "confidence", "coverage"]),
        (SEVERAL, 3, ["reliability", "confidence", "coverage"]),
        (SCORE, 1, ["scores", "residuals", "residual-counts"]),
    ]:
        folder, drawn = tmp_path / f"{task}-{labels}", Drawn()
        write_fake_run(folder, task, num_labels=labels)
        html = confidence(read_source(folder), drawn)
        assert [*drawn.charts] == charts
        assert ("mean absolute error" if task == SCORE else "Expected calibration error (ECE)") in html
        if "thresholds" in charts:
            assert "threshold for “label 1”" in html, "the class F1 refers to"
        (folder / "validation-predictions.jsonl").unlink()
        assert confidence(read_source(folder), Drawn()) == ""
    random = np.random.default_rng(0)
    sure, right = random.uniform(0.5, 1, 500), random.uniform(size=500) < 0.7
    rows = histogram(sure, right).table().rows
    assert sum(row[2] for row in rows) == right.sum()
    assert sum(row[3] for row in rows) == (~right).sum()


def test_a_calibrated_run_shows_both_reliabilities_and_the_threshold(tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run")
    before = report_of(run)
    assert "reliability-calibrated" not in before.charts
    write_calibration(run / "model", replace(FOUND, weights=weights_of(run / "model")))
    after = report_of(run)
    assert isinstance(chart := after.charts["thresholds"], LineChart)
    assert [(event.x, event.name) for event in chart.events] == [(0.25, "calibrated")]
    assert after.charts["reliability-calibrated"].title.startswith("Calibrated reliability (ECE ")
    assert after.charts["reliability"].title == before.charts["reliability"].title
    assert "temperature 2, and use thresholds for the highest F1" in after.html
    assert "-0.2000 to -0.0500" in after.html
    (run / "model" / "calibration.json").write_text("{")
    assert "the calibration cannot be read" in report_of(run).html


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_labels_of_users_stay_text(task: str, tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run", task, label=HOSTILE)
    thresholds = {f"{HOSTILE} {number}": 0.3 for number in range(200)}
    write_calibration(run / "model", replace(FOUND, thresholds=thresholds, weights=weights_of(run / "model")))
    html = report_of(run).html
    assert "<img src=x" not in html
    assert "and 97 more" in html


# --- beside the baselines
def gained_text(folder: Path) -> str:
    html = report_of(folder).html
    assert html.count('id="gained"') == 1
    return " ".join("".join(Reader(html.partition('id="gained"')[2].partition("</section>")[0]).texts).split())


def test_what_was_gained_is_shown_with_the_intervals_of_each_method(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    assert "What fine-tuning gained" not in report_of(tmp_path).html, "without baselines"
    with_baselines(tmp_path)
    report, text = report_of(tmp_path), gained_text(tmp_path)
    assert "What fine-tuning gained" in report.html
    names, values, lows, highs = zip(*(row[:4] for row in report.charts["gained-accuracy"].table().rows), strict=True)
    assert [*names] == ["this run", "class frequencies", "frozen encoder"]
    assert [*values[1:]] == [0.5125, 0.7325]
    assert [*lows[1:], *highs[1:]] == pytest.approx([0.4125, 0.6325, 0.6125, 0.8325])
    assert [row[1] for row in report.charts["gained-log_loss"].table().rows] == [0.4375, 0.6935, 0.5615]
    for words in ("12.2", "0.4", "All methods were evaluated on the same rows.", "a temperature that was fitted to other rows"):
        assert words in text
    assert "probabilities are worse" not in text


def test_the_rows_of_a_sample_the_warning_and_the_title_of_another_method(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    record = with_baselines(tmp_path, worse=True, note="evaluated on 40 of 60 rows")
    text = gained_text(tmp_path)
    assert "All methods were evaluated on the same rows" not in text
    assert "evaluated on 40 of 60 rows" in text
    assert "this run on all 60; the verdict compares them on the same rows" in text
    assert "The predicted probabilities are worse" in text
    write_run(tmp_path, replace(record, settings=replace(record.settings, method="frozen"), training_seconds=None))
    assert "What the frozen encoder gained" in report_of(tmp_path).html
    assert "before the training" not in gained_text(tmp_path)
    source = read_source(tmp_path)
    assert gained_note(replace(source, results=()), "this run", False) == "The baselines were fitted to the training rows."
    assert gained_note(replace(source, by_trainer=True), "this run", True).endswith("were scored at the temperature 1.")
