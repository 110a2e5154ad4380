"""The record of a run: what is derived from it, and what has changed since it was written."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sample_record import RECORD

from glassloop.runs.record import TIMINGS, Columns, SplitFacts, is_timing, split_changes


def test_the_settings_are_given_back_as_load_examples_takes_them() -> None:
    given = RECORD.data.given()
    assert given["labels"] == ("a", "b, c")
    assert None not in given.values()


def test_columns_know_texts_and_label() -> None:
    assert Columns("a", None, ("label",)).texts == ("a",)
    assert Columns("a", "b", ("x", "y")).texts == ("a", "b")
    assert Columns("a", None, ("class",)).label_name == "class"
    assert Columns("a", None, ("x", "y")).label_name == "labels"


def test_changed_splits_are_described_with_both_states() -> None:
    then = {"train": SplitFacts(3, fingerprint="a" * 16), "validation": SplitFacts(2, fingerprint="b" * 16)}
    assert split_changes(then, then, then) == []
    now = {"train": SplitFacts(4, fingerprint="c" * 16)}
    assert split_changes(then, now, ["train", "validation", "unknown"]) == [
        "train: 3 rows (aaaaaaaa) then, 4 rows (cccccccc) now",
        "validation: 2 rows (bbbbbbbb) then, none now",
    ]


@pytest.mark.parametrize("name", [*TIMINGS, "eval_runtime", "eval_mismatched_samples_per_second", "train_steps_per_second"])
def test_timings_are_recognised(name: str) -> None:
    assert is_timing(name)


@pytest.mark.parametrize("name", ["loss", "eval_f1", "eval_seconds", "second"])
def test_scores_are_not_timings(name: str) -> None:
    assert not is_timing(name)


def test_runs_are_read_without_the_heavy_libraries() -> None:
    modules = [f"glassloop.runs.{name}" for name in ("layout", "record", "history")]
    heavy = ("torch", "transformers", "numpy", "rich", "pyarrow", "datasets")
    code = f"import sys, {', '.join(modules)}; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
