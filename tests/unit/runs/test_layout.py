"""The names in a run folder, and what is found by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.runs.record import (
    RUN_NAME,
    TRAINED_NAME,
    checkpoint_name,
    checkpoints_in,
    has_checkpoint,
    is_run,
    predictions_name,
    remove_leftovers,
    seed_name,
)


def test_names() -> None:
    assert checkpoint_name(500) == "checkpoint-500"
    assert seed_name(42) == "seed-42"
    assert predictions_name("validation_matched") == "validation_matched-predictions.jsonl"


def test_a_run_has_a_record_of_whatever_kind(tmp_path: Path) -> None:
    assert not is_run(tmp_path)
    (tmp_path / RUN_NAME).symlink_to("nowhere")
    assert is_run(tmp_path)


def test_leftovers_are_removed_and_named(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-10.abcd_123").mkdir()
    (tmp_path / "checkpoint-10.kept-1").mkdir()
    assert remove_leftovers(tmp_path) == [".checkpoint-10.abcd_123"]
    assert remove_leftovers(tmp_path) == []
    assert (tmp_path / "checkpoint-10.kept-1").is_dir()


@pytest.mark.parametrize("name", [".run.json.abcd_123", ".model.old", ".model.abcd_123.old", ".x-predictions.jsonl.abcd_123"])
def test_leftovers_of_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == [name]


@pytest.mark.parametrize("name", [".notes.abcd_123", ".lock", "run.json", ".run.json.swp", ".gitignore"])
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == []
    assert (tmp_path / name).exists()


def test_checkpoints_are_found_newest_first(tmp_path: Path) -> None:
    assert checkpoints_in(tmp_path / "missing") == []
    for name in (
        "checkpoint-3",
        "checkpoint-12",
        "checkpoint-10.kept-1",
        ".checkpoint-20.abcd_123",
        "checkpoint-07",
        "checkpoint-x",
        "other",
    ):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-12", "checkpoint-3"]


def test_a_checkpoint_or_a_final_model_can_be_resumed_from(tmp_path: Path) -> None:
    assert not has_checkpoint(tmp_path)
    (tmp_path / "checkpoint-10.kept-1").mkdir(parents=True)
    assert not has_checkpoint(tmp_path), "one that was moved aside is not used"
    (tmp_path / checkpoint_name(2)).mkdir()
    assert has_checkpoint(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / TRAINED_NAME).touch()
    assert has_checkpoint(tmp_path / "other")
