"""What a study shows, in the terminal, in tables and as a page: of many configurations, and of several seeds of one."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import drawn_study
from rich.console import Console
from run_folders import with_baselines, write_fake_run

from glassloop.report import study
from glassloop.report.build import report_of
from glassloop.report.study import latex_table, lines_of, markdown_table, points, ranked, sentence, show_study, write_page
from glassloop.runs.record import FAILED, FINISHED, seed_name
from glassloop.runs.study import MeasuresRecord, SeedRecord, SeedsRecord, StudyRecord, read_seeds, write_seeds
from glassloop.scores.metrics import short_metrics
from glassloop.scores.result import Score
from glassloop.settings.file import GivenSettings
from glassloop.study.conclusions import conclude


@pytest.fixture
def record(tmp_path: Path) -> StudyRecord:
    return conclude(tmp_path, drawn_study(tmp_path), print)


def with_settings(record: StudyRecord, *settings: object) -> StudyRecord:
    return replace(record, results={**record.results, "settings": [*settings]})


def test_tables_for_a_paper_have_the_chosen_setting_first_and_state_corrections(record: StudyRecord) -> None:
    assert [row.number for row in ranked(record)] == [1, 0, 2]
    lines = markdown_table(record).splitlines()
    columns = ["learning_rate", "trained", "accuracy (selection)", "accuracy (validation)", "95% interval"]
    assert lines[0] == f"| {' | '.join([*columns, 'failed', 'difference', 'its 95% interval', 'verdict'])} |"
    assert lines[2].startswith("| 0.0001 | 100% | 0.3333 | ")
    assert lines[2].endswith("| 0 of 2 | – | – | chosen |")
    assert lines[4] == "| 0.001 | 25% | 0.1000 | – | – | 1 of 2 | – | – | stopped early |"
    tex = latex_table(record)
    assert tex.startswith("\\begin{tabular}{lllllllll}\n\\toprule\nlearning\\_rate & trained & ")
    assert "100\\%" in tex
    assert "$\\pm$" in tex
    last = record.results["settings"][-1]  # type: ignore[index]
    others = {**last, "trained": 0.0}, {**last, "failed": 2, "selection": None}
    assert [row[-1] for row in study.table_of(with_settings(record, *others))[1]] == ["failed", "not trained"]
    first, *others = record.results["settings"]  # type: ignore[misc]
    compared = {"difference": 0.01, "low": -0.02, "high": 0.04, "p_value": 0.3, "corrected": 0.6, "verdict": "undecided"}
    several = with_settings(record, first, *({**other, "comparison": compared} for other in (*others, first)))
    table = markdown_table(several)
    assert "| difference | interval corrected for 4 comparisons | verdict |" in table
    assert "| +0.0100 | -0.0200 to +0.0400 |" in table
    assert "interval corrected for 4 comparisons" in latex_table(several)
    assert (
        "intervals of differences and verdicts are corrected for 4 comparisons: all hold together with 95%; "
        "the intervals of single configurations hold with 95% each"
    ) in lines_of(several)


def test_the_terminal_scripts_and_the_page_have_every_part(record: StudyRecord) -> None:
    output = io.StringIO()
    show_study(Path("s"), record, Console(file=output, width=40))
    text = output.getvalue()
    assert "…" not in text
    assert "0.3333" in text
    assert "(chosen by the mean on the selection split; validation was not used to choose)\n" in text
    assert "• validation (trained on all training rows): 0." in text
    assert "all seeds as one model" in text
    assert "• 1 run failed and counts like the baseline: study.json has the errors\n" in text
    assert text.rstrip().endswith("→ s/study.html")
    content = study.study_content(Path("s"), record)
    assert content["chosen_by"] == {"split": "selection", "folds": ("1/10",), "metric": "accuracy"}
    assert content["chosen"] == "learning_rate 0.0001"
    assert content["failed"] == {"seed-2-2": {"exit_status": 5, "error": "the loss | is nan lower it"}}
    html = study.study_page("study <1>", record)
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
    assert "95% interval 0." in points(record)
    for setting in record.results["settings"]:  # type: ignore[attr-defined]
        if setting["validation"]:
            setting["validation"] |= {"low": None, "high": None}
    assert "95% interval 0." not in points(record)


def test_the_page_and_both_tables_are_written(tmp_path: Path) -> None:
    record = drawn_study(tmp_path)
    write_page(tmp_path, record)
    assert not (tmp_path / "study.html").exists(), "without results there is nothing to show"
    write_page(tmp_path, conclude(tmp_path, record, print))
    assert {path.name for path in tmp_path.glob("study.*")} == {"study.html", "study.md", "study.tex"}


def write_fake_seeds(folder: Path, seeds: int = 3, **data: int) -> SeedsRecord:
    """Write a folder with one run per seed, and one that failed."""
    entries = {seeds: SeedRecord(seed=seeds, status=FAILED, error=("killed",))}
    for seed in range(seeds):
        record = write_fake_run(folder / seed_name(seed), signal=0.4 + seed / 4, **data)
        scores = {key: short_metrics(record.evaluation)[key] for key in record.metrics}
        more = {"seconds": 3.0, "validation": scores, "baseline": {"accuracy": 0.5}, "measures": MeasuresRecord(record.metrics)}
        entries[seed] = SeedRecord(seed=seed, status=FINISHED, **more)  # type: ignore[arg-type]
    write_seeds(SeedsRecord(GivenSettings("rows.csv", "quickstart").checked(), entries, folder, FAILED))
    return read_seeds(folder)


def test_all_points_are_shown_and_seeds_that_failed_to_learn_are_counted(tmp_path: Path) -> None:
    record = write_fake_seeds(tmp_path)
    report = report_of(tmp_path)
    accuracy = report.results[0]
    assert [*accuracy.points] == record.values()["accuracy"]
    assert accuracy.value == record.mean["accuracy"]
    assert accuracy.low < accuracy.value < accuracy.high
    assert report.charts["metrics"].table().rows[0][5:8] == accuracy.points
    assert "4 random seeds, 3 finished." in report.html
    assert "rows are wrong with every seed" in report.html
    assert "eval-accuracy" in report.charts
    result = Score("validation", "accuracy", "accuracy", 0.6, 0.4, 0.8, 0.55, (0.5, 0.6, 0.7))
    assert sentence(record, {}, result).startswith("Undecided against the baseline: mean accuracy 0.6000 against 0.5500")
    assert sentence(record, {}, result).endswith("1 seed is no better than the baseline.")
    assert sentence(record, {}, replace(result, low=0.56)).startswith("Better than the baseline")


def test_a_mean_over_classes_with_few_rows_has_no_interval_and_seeds_without_a_result_a_report(tmp_path: Path) -> None:
    write_fake_seeds(tmp_path, num_rows=100, num_labels=20)
    report = report_of(tmp_path)
    accuracy, macro = report.results
    assert (accuracy.note, macro.key, macro.interval, macro.note) == ("", "f1_macro", "", "too few rows")
    assert accuracy.interval != ""
    assert "no interval: too few rows" in report.html
    write_seeds(SeedsRecord(GivenSettings("rows.csv", "quickstart").checked(), {1: SeedRecord()}, tmp_path / "none"))
    assert "No seed is finished yet." in report_of(tmp_path / "none").html


def test_the_report_of_several_seeds_says_what_their_training_gained(tmp_path: Path) -> None:
    write_fake_seeds(tmp_path)
    assert "fine-tuning gained" not in report_of(tmp_path).html
    for seed in range(3):
        with_baselines(tmp_path / seed_name(seed), worse=seed == 2)
    report = report_of(tmp_path)
    assert "What fine-tuning gained" in report.html
    rows = report.charts["gained-accuracy"].table().rows
    assert [row[0] for row in rows] == ["mean of 3 seeds", "class frequencies", "frozen encoder"]
    assert rows[0][1:4] == (report.results[0].value, report.results[0].low, report.results[0].high)
    assert report.charts["gained-log_loss"].table().rows[0][1] == pytest.approx((2 * 0.4375 + 0.8125) / 3)
    assert "The predicted probabilities are worse" in report.html, "of one seed"
