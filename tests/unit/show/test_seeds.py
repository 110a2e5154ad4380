"""The table of several seeds: titles that name the class, a baseline that may not exist, and whether it is beaten."""

from __future__ import annotations

from typing import Any

import pytest

from glassloop.show.seeds import show_seeds, summary


def record_of(*accuracies: float, **rows: Any) -> dict[str, Any]:
    seeds = {
        str(seed): {
            "status": "finished",
            "metrics": {"loss": 0.5, "accuracy": accuracy, "f1": 0.25},
            "baseline": {"accuracy": 0.6},
            "measures": {"keys": ["accuracy", "f1"], "positive": "spam"},
            "rows": {"validation": rows.get(f"seed{seed}", "same")},
        }
        for seed, accuracy in enumerate(accuracies)
    }
    record = {"seeds": {**seeds, "99": {"status": "waiting"}}}
    return record | summary(record)


def lines_of(record: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> list[str]:
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
        "• no better than the majority baseline: accuracy (seeds: 1 of 2)",
    ]


def test_nothing_is_said_where_every_seed_beats_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(record_of(0.7, 0.75), capsys)[-1].startswith("majority baseline")


def test_seeds_on_different_rows_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    last = lines_of(record_of(0.7, 0.75, seed1="other"), capsys)[-1]
    assert last == "• the data changed between seeds: their scores are not of the same rows"


def test_no_finished_seed_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"seeds": {"1": {"status": "failed"}}}
    assert lines_of(record | summary(record), capsys) == []
