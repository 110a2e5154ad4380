"""sessions.jsonl: starts and resumes are read again, whatever else is in the file."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import RECORD, log_steps, write_watched

from glassloop.base.files import Holder
from glassloop.base.records import write_sealed
from glassloop.runs.history import END, RESUME, START, STOP, Moment, note_moment, read_moments, resumed_steps, resumes_in
from glassloop.runs.record import FINISHED, SESSIONS_NAME, TRAINER_NAME
from glassloop.runs.status import changed, file_states, seconds_per_step, state_of, status_of, summary_of


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    assert read_moments(tmp_path) == []
    note_moment(tmp_path, START, 0, 30)
    note_moment(tmp_path, STOP, 12, 30)
    first, second = read_moments(tmp_path)
    assert (first.event, first.step, first.max_steps) == ("start", 0, 30)
    assert (second.event, second.step) == ("stop", 12)
    assert (first.machine, first.process) == (platform.node(), os.getpid())
    assert first.time.endswith("+00:00")
    note_moment(tmp_path, RESUME, 12, 30)
    assert resumed_steps(tmp_path) == [12]
    note_moment(tmp_path, START, 0, 50)
    assert [moment.max_steps for moment in read_moments(tmp_path)] == [50], "a start begins a new file"


def test_a_folder_that_cannot_be_written_does_not_end_a_training(tmp_path: Path) -> None:
    (tmp_path / SESSIONS_NAME).mkdir()
    note_moment(tmp_path, START, 0, 30)
    assert read_moments(tmp_path) == []


def test_damaged_lines_end_the_file(tmp_path: Path) -> None:
    note_moment(tmp_path, START, 0, 30)
    with (tmp_path / SESSIONS_NAME).open("a") as opened:
        opened.write('{"event": "resume", "step": "two"}\n{"event": "end", "step": 30, "max_steps": 30}\n')
    assert [moment.event for moment in read_moments(tmp_path)] == [START]


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SESSIONS_NAME)
    assert read_moments(tmp_path) == []


def test_resumes_that_a_later_one_went_back_behind_are_gone() -> None:
    moments = [Moment(START, 0, 90), Moment(RESUME, 20, 90), Moment(RESUME, 40, 90), Moment(END, 90, 90)]
    assert resumes_in(moments) == [20, 40]
    assert resumes_in([*moments, Moment(RESUME, 30, 90)]) == [20, 30]
    assert resumes_in([Moment(RESUME, 20, 90), Moment(RESUME, 20, 90)]) == [20]
    assert resumes_in([]) == []


# --- The status of a run, from its files.


@pytest.mark.parametrize(
    ("held", "finished", "has_record", "events", "expected"),
    [
        (Holder.ALIVE, False, True, [START], "running"),
        (Holder.ELSEWHERE, False, True, [START], "running"),
        (Holder.ALIVE, False, True, [START, END], "running"),  # it evaluates and saves the model
        (Holder.DEAD, False, True, [START], "killed"),
        (Holder.DEAD, False, False, [START], "killed"),
        (Holder.NOBODY, False, True, [START, STOP], "stopped"),
        (Holder.NOBODY, False, True, [START, END], "stopped"),  # during the final evaluation
        (Holder.NOBODY, False, True, [], "stopped"),  # of an older version
        (Holder.NOBODY, False, True, [START, STOP, RESUME], "failed"),
        (Holder.NOBODY, False, False, [START, END], "finished"),  # by a Trainer
        (Holder.NOBODY, True, True, [START, END], "finished"),
        (Holder.DEAD, True, True, [], "finished"),
    ],
)
def test_the_status(held: Holder, finished: bool, has_record: bool, events: list[str], expected: str) -> None:
    assert status_of(held, finished, has_record, [Moment(event, 0, 8) for event in events]) == expected


def test_the_time_of_a_step_is_counted_from_the_last_resume() -> None:
    started, resumed = Moment(START, 0, 100), Moment(RESUME, 40, 100)
    assert seconds_per_step([started], 20, 1000.0, 1010.0) == 0.5
    assert seconds_per_step([started, resumed], 50, 1000.0, 1010.0) == 1.0
    assert seconds_per_step([started, resumed], 40, 1000.0, 1010.0) is None, "no new step yet"
    assert seconds_per_step([started], 20, 1010.0, 1000.0) is None, "the disk was copied"
    assert seconds_per_step([started, Moment(STOP, 20, 100)], 20, 1000.0, 1010.0) is None
    assert seconds_per_step([], 20, 1000.0, 1010.0) is None


# --- What the files of a run say: of the command, of a Trainer, of another machine, damaged.


def test_a_run_of_the_command(tmp_path: Path) -> None:
    found = summary_of("a", write_watched(tmp_path / "a"))
    assert (found.name, found.status, found.step, found.max_steps, found.by_trainer) == ("a", "failed", 4, 8, False)
    assert found.record is not None
    assert (found.seconds_left, found.running) == (None, False)


def test_a_run_of_a_trainer_has_a_record_of_its_own(tmp_path: Path) -> None:
    note_moment(tmp_path, START, 0, 8)
    log_steps(tmp_path, 4)
    write_sealed(tmp_path / TRAINER_NAME, replace(RECORD, seconds=3.0))
    found = summary_of("t", tmp_path)
    assert (found.status, found.by_trainer, found.record and found.record.seconds) == ("failed", True, 3.0)
    note_moment(tmp_path, END, 8, 8)
    assert summary_of("t", tmp_path).status == "finished", "even if the record could not be written at the end"
    write_sealed(tmp_path / TRAINER_NAME, replace(RECORD, status=FINISHED))
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
