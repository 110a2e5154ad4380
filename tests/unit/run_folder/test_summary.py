"""What the files of a run say: of the command, of a Trainer, of another machine, damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sample_record import RECORD
from watched_runs import log_steps, write_watched

from glassloop.base.lock import Holder
from glassloop.runs.layout import TRAINER_NAME
from glassloop.runs.record import FINISHED, write_record
from glassloop.runs.status import END, START, changed, file_states, note_moment, state_of, summary_of


def test_a_run_of_the_command(tmp_path: Path) -> None:
    found = summary_of("a", write_watched(tmp_path / "a"))
    assert (found.name, found.status, found.step, found.max_steps, found.by_trainer) == ("a", "failed", 4, 8, False)
    assert found.record is not None
    assert (found.seconds_left, found.running) == (None, False)


def test_a_run_of_a_trainer_has_a_record_of_its_own(tmp_path: Path) -> None:
    note_moment(tmp_path, START, 0, 8)
    log_steps(tmp_path, 4)
    write_record(tmp_path / TRAINER_NAME, replace(RECORD, seconds=3.0))
    found = summary_of("t", tmp_path)
    assert (found.status, found.by_trainer, found.record and found.record.seconds) == ("failed", True, 3.0)
    note_moment(tmp_path, END, 8, 8)
    assert summary_of("t", tmp_path).status == "finished", "even if the record could not be written at the end"
    write_record(tmp_path / TRAINER_NAME, replace(RECORD, status=FINISHED))
    assert summary_of("t", tmp_path).status == "finished"
    (tmp_path / TRAINER_NAME).write_text("{")
    found = summary_of("t", tmp_path)
    assert (found.status, found.record) == ("damaged", None)
    assert TRAINER_NAME in found.problem


def test_a_run_of_another_machine(tmp_path: Path) -> None:
    found = summary_of("a", write_watched(tmp_path / "a"), Holder.ELSEWHERE)
    assert (found.elsewhere, found.running, found.seconds_left) == (True, True, 8.0)


def test_the_state_of_a_file_changes_when_it_is_written(tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a")
    before = file_states(run)
    log_steps(run, 6)
    after = file_states(run)
    assert [name for name in before if before[name] != after[name]] == ["history.jsonl"]
    assert state_of(tmp_path) is None
    assert changed(None, (1, 2, 3_000_000_000)) == 3.0
    assert changed(None) == 0.0
