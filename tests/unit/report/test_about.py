"""Test the section about the run itself."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from reported_runs import write_fake_run
from sample_record import RECORD

from glassloop.report.about import about, changed_settings, command, option, speed_part
from glassloop.report.source import read_source


def test_the_command_has_every_setting_that_is_not_the_default() -> None:
    words = shlex.split(command(RECORD))
    assert words[:5] == ["glassloop", "train", "rows.csv", "--model", "quickstart"]
    assert words[5:] == ["--labels", "a,b, c", "--num_train_epochs", "2", "--learning_rate", "0.0001"]
    assert {*changed_settings(RECORD)} == {"num_train_epochs", "learning_rate"}
    assert command(replace(RECORD, model=replace(RECORD.model, new_head=True))).endswith(" --new_head")


def test_values_are_written_as_the_command_takes_them() -> None:
    assert [option(value) for value in (1e-4, 2.0, 0.1 + 0.2, ("a", "b"), {"a": 1})] == [
        *("0.0001", "2", "0.30000000000000004", "a,b"),
        '{"a": 1}',
    ]


def test_stages_add_up(tmp_path: Path) -> None:
    record = replace(
        RECORD, result={"train_runtime": 5.0, "train_samples_per_second": 9.0}, evaluation={"eval_runtime": 1.5}, seconds=8.0
    )
    html = speed_part(record)
    for text in ("training", "loading, saving and the rest", ">1.5<", ">8<"):
        assert text in html


def test_files_are_listed_without_checkpoints(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    saved = tmp_path / "checkpoints" / "step-00000010"
    saved.mkdir(parents=True)
    (saved / "part.safetensors").touch()
    html = about(read_source(tmp_path))
    assert "step-00000010" in html
    assert "part.safetensors" not in html
    assert "history.jsonl" in html
