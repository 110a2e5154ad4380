"""Test the report of several seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from run_folders import write_fake_run

from glassloop.report.build import report_of
from glassloop.report.seeds import sentence
from glassloop.runs.layout import seed_name
from glassloop.runs.record import FAILED, FINISHED
from glassloop.runs.study import MeasuresRecord, SeedRecord, SeedsRecord, read_seeds, write_seeds
from glassloop.scores.measures import short_metrics
from glassloop.scores.result import Score
from glassloop.settings.file import GivenSettings


def write_fake_seeds(folder: Path, seeds: int = 3, **data: int) -> SeedsRecord:
    """Write a folder with one run per seed, and one that failed."""
    entries = {}
    for seed in range(seeds):
        record = write_fake_run(folder / seed_name(seed), signal=0.4 + seed / 4, **data)
        scores = {key: short_metrics(record.evaluation)[key] for key in record.metrics}
        measures = MeasuresRecord(record.metrics)
        entries[seed] = SeedRecord(
            seed=seed,
            status=FINISHED,
            seconds=3.0,
            validation=scores,
            baseline={"accuracy": 0.5},
            measures=measures,
        )
    entries[seeds] = SeedRecord(seed=seeds, status=FAILED, error=("killed",))
    write_seeds(SeedsRecord(GivenSettings("rows.csv", "quickstart").checked(), entries, folder, FAILED))
    return read_seeds(folder)


def test_all_points_are_shown(tmp_path: Path) -> None:
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


def test_a_mean_over_classes_with_few_rows_has_no_interval(tmp_path: Path) -> None:
    write_fake_seeds(tmp_path, num_rows=100, num_labels=20)
    accuracy, macro = report_of(tmp_path).results
    assert (accuracy.note, macro.key, macro.interval, macro.note) == ("", "f1_macro", "", "too few rows")
    assert accuracy.interval != ""
    assert "no interval: too few rows" in report_of(tmp_path).html


def test_the_sentence_counts_seeds_that_failed_to_learn(tmp_path: Path) -> None:
    record = write_fake_seeds(tmp_path)
    result = Score("validation", "accuracy", "accuracy", 0.6, 0.4, 0.8, 0.55, (0.5, 0.6, 0.7))
    assert sentence(record, result).startswith("Undecided against the baseline: mean accuracy 0.6000 against 0.5500")
    assert sentence(record, result).endswith("1 seed is no better than the baseline.")
    assert sentence(record, replace(result, low=0.56)).startswith("Better than the baseline")


def test_seeds_without_a_result_have_a_report(tmp_path: Path) -> None:
    write_seeds(SeedsRecord(GivenSettings("rows.csv", "quickstart").checked(), {1: SeedRecord()}, tmp_path))
    assert "No seed is finished yet." in report_of(tmp_path).html
