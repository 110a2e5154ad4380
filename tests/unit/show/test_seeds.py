"""The table of several seeds: titles that name the class, a baseline that may not exist, and whether it is beaten."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.runs.seeds import FAILED, MeasuresRecord, SeedRecord, SeedsRecord
from glassloop.settings.file import RunSettings
from glassloop.study.seeds import scores_line, show_seeds


def record_of(*accuracies: float, measures: MeasuresRecord | None = None, **rows: str) -> SeedsRecord:
    seeds = {
        seed: SeedRecord(
            "finished",
            metrics={"loss": 0.5, "accuracy": accuracy, "f1": 0.25},
            baseline={"accuracy": 0.6},
            measures=measures or MeasuresRecord(("accuracy", "f1"), "spam"),
            rows={"validation": rows.get(f"seed{seed}", "same")},
        )
        for seed, accuracy in enumerate(accuracies)
    }
    return SeedsRecord(RunSettings(), {**seeds, 99: SeedRecord()}, Path("out"))


def lines_of(record: SeedsRecord, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_seeds(record)
    return [line.rstrip() for line in capsys.readouterr().err.splitlines()]


def test_the_table_names_the_class_and_what_has_no_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(record_of(0.5, 0.75), capsys) == [
        "                      loss  accuracy  f1 (spam)",
        "seed 0              0.5000    0.5000     0.2500",
        "seed 1              0.5000    0.7500     0.2500",
        "mean of 2           0.5000    0.6250     0.2500",
        "standard deviation  0.0000    0.1768     0.0000",
        "majority baseline        -    0.6000          -",
        "• no better than the majority baseline: accuracy (1 of 2 seeds)",
    ]


def test_nothing_is_reported_where_every_seed_beats_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(record_of(0.7, 0.75), capsys)[-1].startswith("majority baseline")


def test_seeds_on_different_rows_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    last = lines_of(record_of(0.7, 0.75, seed1="other"), capsys)[-1]
    assert last == "• the data changed between seeds, so their scores are for different rows"


def test_the_baseline_of_scores_is_their_mean(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(record_of(0.7, 0.75, measures=MeasuresRecord(("pearson", "mse"))), capsys)
    assert lines[-1].startswith("mean baseline ")


def test_no_finished_seed_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(SeedsRecord(RunSettings(), {1: SeedRecord(FAILED)}, Path("out")), capsys) == []


def test_the_scores_of_one_seed_on_a_line() -> None:
    assert scores_line(record_of(0.5).seeds[0]) == "loss 0.5000  accuracy 0.5000  f1 (spam) 0.2500"
