"""Heavy imbalance, twenty rows, one class, thousands of classes: each gets a plan that works, or a clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.base.errors import DataError
from glassloop.runs.record import RunRecord, read_run
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run

QUICK = {"device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}


def trained(folder: Path, model: Path, rows: list[tuple[str, str]], **settings: object) -> RunRecord:
    """The record of a run on a file with these rows."""
    lines = [f"{text},{label}" for text, label in rows]
    (folder / "rows.csv").write_text("\n".join(["text,label", *lines, ""]))
    given = {**QUICK, "output_dir": str(folder / "run"), **settings}
    return read_run(train_run(GivenSettings(str(folder / "rows.csv"), str(model), given)))


def test_twenty_rows_are_trained_for_many_epochs(tmp_path: Path, lively_dir: Path) -> None:
    words = ("good film", "bad story")
    run = trained(tmp_path, lively_dir, [(f"{words[row % 2]} {row}", "yn"[row % 2]) for row in range(20)])
    assert (run.data.splits["train"].num_rows, run.data.splits["validation"].num_rows) == (18, 2)
    assert (run.plan.max_steps, run.plan.warmup_steps, run.settings.per_device_train_batch_size) == (60, 6, 16)
    assert run.chosen == (
        "method",
        "pooling",
        "per_device_train_batch_size",
        "num_train_epochs",
        "learning_rate",
        "warmup_steps",
    )
    assert run.verdict is not None


def test_heavy_imbalance_is_reported_before_and_after(tmp_path: Path, lively_dir: Path, capsys) -> None:
    rows = [(f"film {row}", "spam" if row % 50 == 0 else "ok") for row in range(400)]
    run = trained(tmp_path, lively_dir, rows, max_steps=2, learning_rate=0.0, class_weights="1,1")
    assert any(note.startswith('train: label "ok" has 353 of 360 rows, so accuracy says little') for note in run.data.notes)
    assert run.baseline is not None
    assert run.classes is not None
    assert run.classes["spam"].support == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "balanced accuracy" in said
    assert str(run.verdict) in said


def test_one_class_is_refused_in_a_sentence(tmp_path: Path, lively_dir: Path) -> None:
    with pytest.raises(DataError) as caught:
        trained(tmp_path, lively_dir, [(f"film {row}", "ok") for row in range(20)])
    assert caught.value.problem.endswith('all rows have the label "ok"')
    assert caught.value.remedy == "training needs at least two labels"
    assert not (tmp_path / "run").exists()


def test_thousands_of_classes_get_a_plan_and_a_short_table(tmp_path: Path, lively_dir: Path, capsys) -> None:
    rows = [(f"film {row}", f"c{row % 2000}") for row in range(6000)]
    run = trained(tmp_path, lively_dir, rows, max_steps=1)
    assert (len(run.data.labels or ()), run.data.splits["validation"].num_rows) == (2000, 600)
    assert len(run.classes or {}) == 2000
    said = capsys.readouterr().err.splitlines()
    assert len(said) < 67  # of which seven are about baselines and probabilities
    assert any(line.startswith("and 1,985 more") for line in said)
    assert "never predicted" in str(run.verdict) or "Undecided against always answering" in str(run.verdict)
