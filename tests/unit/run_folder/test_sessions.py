"""sessions.jsonl: starts and resumes are read again, whatever else is in the file."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from glassloop.runs.layout import SESSIONS_NAME
from glassloop.runs.status import END, RESUME, START, STOP, Moment, note_moment, read_moments, resumed_steps, resumes_in


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
