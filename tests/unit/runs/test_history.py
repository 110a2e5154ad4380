"""history.jsonl and sessions.jsonl: what is written is read again, also while a run is writing it."""

from __future__ import annotations

import json
import math
import os
import platform
from pathlib import Path

import pytest

from glassloop.runs import history
from glassloop.runs.history import (
    END,
    RESUME,
    START,
    STOP,
    HistoryTail,
    Moment,
    last_step,
    read_history,
    read_moments,
    trained_seconds,
    write_history,
)
from glassloop.runs.record import HISTORY_NAME, SESSIONS_NAME

ENTRIES = [{"step": 2, "loss": 0.5}, {"step": 4, "loss": 0.25}, {"step": 4, "eval_f1": 1.0}]


def test_what_is_written_is_read_again_and_its_end_for_the_last_step(tmp_path: Path) -> None:
    assert (read_history(tmp_path), last_step(tmp_path)) == ([], 0)
    write_history(tmp_path, [])
    assert (read_history(tmp_path), last_step(tmp_path)) == ([], 0)
    write_history(tmp_path, ENTRIES)
    with pytest.raises(ValueError, match="Out of range"):
        write_history(tmp_path, [{"loss": math.nan}])
    assert (read_history(tmp_path), last_step(tmp_path)) == (ENTRIES, 4)
    write_history(tmp_path, [{"step": step, "loss": 0.5} for step in range(1, 2001)])
    assert last_step(tmp_path) == 2000
    entries = [{"step": 1, "loss": 0.5}, {"step": 2, "eval_loss": 0.4}, {"step": 3, "loss": None}, {"loss": 1.0}]
    assert history.numbers_by_step(entries, "loss") == [(1, 0.5)]


def test_a_pipe_a_device_an_incomplete_line_or_damage_is_no_error(tmp_path: Path) -> None:
    for damage in ["not JSON", "[1]", "\0\0\0", '{"step": "four"}']:
        (tmp_path / HISTORY_NAME).write_text(f'{{"step": 2, "loss": 0.5}}\n{damage}\n')
        assert read_history(tmp_path)[:1] == ENTRIES[:1]
        assert last_step(tmp_path) == 0
    (tmp_path / HISTORY_NAME).write_text('{"step": 2, "loss": 0.5}\n{"step": 4, "lo')
    assert (read_history(tmp_path), last_step(tmp_path)) == (ENTRIES[:1], 2)
    (tmp_path / HISTORY_NAME).unlink()  # reading a pipe would wait forever, reading a device would never end
    os.mkfifo(tmp_path / HISTORY_NAME)
    assert read_history(tmp_path) == []
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / HISTORY_NAME).symlink_to("/dev/zero")
    assert read_history(tmp_path) == []


# --- Following a history: only new lines are read, curves stay small, and nothing in the file is an error.
def append(folder: Path, text: str) -> None:
    with (folder / HISTORY_NAME).open("a") as opened:
        opened.write(text)


def line(step: int, **values: object) -> str:
    return json.dumps({"step": step, "epoch": step / 10, **values}) + "\n"


@pytest.fixture
def tail(tmp_path: Path) -> HistoryTail:
    return HistoryTail(tmp_path)


def test_only_complete_new_lines_are_taken(tail: HistoryTail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (tail.now().step, tail.now().points) == (0, {})
    append(tmp_path, line(10, loss=0.5) + '{"step": 20, "lo')
    assert (tail.now().step, tail.now().latest) == (10, {"loss": 0.5})
    append(tmp_path, 'ss": 0.25}\n' + line(20, eval_f1=0.75))
    version, taken = tail.version, []
    monkeypatch.setattr(tail, "take", lambda entry, take=tail.take: (taken.append(entry), take(entry)))
    curves = tail.now()
    assert len(taken) == 2, "the first line is not read again"
    assert curves.version > version
    assert curves.points == {"loss": [(10, 0.5), (20, 0.25)], "eval_f1": [(20, 0.75)]}
    assert tail.now().version == curves.version, "nothing is new"


def test_a_resumed_run_or_another_content_under_the_same_inode_replaces_the_history(tail: HistoryTail, tmp_path: Path) -> None:
    append(tmp_path, line(10, loss=0.5) + line(20, loss=0.4))
    tail.now()
    write_history(tmp_path, [{"step": 10, "epoch": 1.0, "loss": 0.5}])
    assert tail.now().points["loss"] == [(10, 0.5)]
    append(tmp_path, line(20, loss=0.3))
    assert tail.now().points["loss"] == [(10, 0.5), (20, 0.3)]
    (tmp_path / HISTORY_NAME).write_text(line(10, loss=0.5))  # a network file system may reuse the number of a file at once
    tail.now()
    (tmp_path / HISTORY_NAME).write_text(line(10, loss=0.1) + line(20, loss=0.2))
    assert tail.now().points["loss"] == [(10, 0.1), (20, 0.2)]
    (tmp_path / HISTORY_NAME).unlink()
    assert (tail.now().step, tail.now().points) == (0, {}), "a removed one is forgotten"


def test_what_follows_a_damaged_line_is_ignored_and_nothing_is_an_error(tail: HistoryTail, tmp_path: Path) -> None:
    append(tmp_path, line(10, loss=0.5) + "\x00\x00\n" + line(20, loss=0.4))
    assert (tail.now().damaged, tail.now().step) == (True, 10)
    append(tmp_path, line(30, loss=0.3))
    assert tail.now().step == 10
    write_history(tmp_path, [{"step": 40, "loss": 0.2}])
    assert (tail.now().damaged, tail.now().step) == (False, 40)
    for content in [b"[" * 100_000 + b"\n", b"\xff\xfe\n", b"7\n", b'{"step": 1e999, "loss": NaN}\n', b"\n"]:
        (tmp_path / HISTORY_NAME).write_bytes(content)
        assert HistoryTail(tmp_path).now().points == {}


def test_strange_values_are_left_out_and_a_pipe_or_a_link_is_not_read(tail: HistoryTail, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / HISTORY_NAME)
    tail.now()
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / "elsewhere").write_text(line(1, loss=0.5))
    (tmp_path / HISTORY_NAME).symlink_to(tmp_path / "elsewhere")
    assert tail.now().points == {}
    (tmp_path / HISTORY_NAME).unlink()
    append(tmp_path, line(1, loss="low", flag=True, none=None, many=[1], **{"x" * 101: 1.0, "fine": 2}))
    append(tmp_path, '{"step": 2, "loss": NaN, "big": 1' + "0" * 400 + "}\n" + line(-3, loss=1.0) + '{"loss": 4.0}\n')
    append(tmp_path, line(4, **{f"name-{number}": number for number in range(2 * history.MOST_CURVES)}))
    points = tail.now().points
    assert "loss" not in points
    assert points["fine"] == [(1, 2.0)]
    assert len(points) == history.MOST_CURVES


def test_a_large_file_is_read_in_several_calls(tail: HistoryTail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", 1000)
    append(tmp_path, "".join(line(step, loss=0.5) for step in range(100)))
    assert not tail.now().complete
    assert 0 < tail.step < 99
    while not tail.complete:
        tail.now()
    assert (tail.step, tail.curves["loss"].count) == (99, 100)


def test_a_curve_keeps_its_extremes_and_its_ends() -> None:
    curve, values = history.Curve(), [(step * 7919) % 1009 / 1009 for step in range(100_000)]
    values[31_415], values[92_653] = -5.0, 9.0
    for step, value in enumerate(values):
        curve.add((step, value))
    points = curve.points()
    assert len(points) <= 4 * history.MOST_BINS + 2
    assert {(31_415, -5.0), (92_653, 9.0), (0, values[0]), (99_999, values[-1])} <= {*points}
    assert points == sorted(points)
    assert {*points} <= {*enumerate(values)}, "no value is made up"
    short = history.Curve()
    for step in range(2 * history.MOST_BINS):
        short.add((step, step % 3))
    assert short.points() == [(step, step % 3) for step in range(2 * history.MOST_BINS)], "a short curve is complete"


# --- sessions.jsonl: starts and resumes are read again, whatever else is in the file.
def test_what_is_noted_is_read_without_resumes_that_a_later_one_went_back_behind(tmp_path: Path) -> None:
    assert read_moments(tmp_path) == []
    history.note_moment(tmp_path, START, 0, 30)
    history.note_moment(tmp_path, history.STOP, 12, 30)
    first, second = read_moments(tmp_path)
    assert (first.event, first.step, first.max_steps) == ("start", 0, 30)
    assert (second.event, second.step) == ("stop", 12)
    assert (first.machine, first.process) == (platform.node(), os.getpid())
    assert first.time.endswith("+00:00")
    history.note_moment(tmp_path, START, 0, 50)
    assert [moment.max_steps for moment in read_moments(tmp_path)] == [50], "a start begins a new file"
    moments = [Moment(START, 0, 90), Moment(RESUME, 20, 90), Moment(RESUME, 40, 90), Moment(history.END, 90, 90)]
    assert history.resumed_steps(moments) == [20, 40]
    assert history.resumed_steps([*moments, Moment(RESUME, 30, 90)]) == [20, 30]
    assert history.resumed_steps([Moment(RESUME, 20, 90), Moment(RESUME, 20, 90)]) == [20]
    assert history.resumed_steps([]) == []


def test_what_cannot_be_written_or_read_is_no_error(tmp_path: Path) -> None:
    history.note_moment(tmp_path, START, 0, 30)
    with (tmp_path / SESSIONS_NAME).open("a") as opened:
        opened.write('{"event": "resume", "step": "two"}\n{"event": "end", "step": 30, "max_steps": 30}\n')
    assert [moment.event for moment in read_moments(tmp_path)] == [START], "a damaged line ends the file"
    (tmp_path / SESSIONS_NAME).unlink()
    (tmp_path / SESSIONS_NAME).mkdir()
    history.note_moment(tmp_path, START, 0, 30)
    assert read_moments(tmp_path) == []
    (tmp_path / SESSIONS_NAME).rmdir()
    os.mkfifo(tmp_path / SESSIONS_NAME)
    assert read_moments(tmp_path) == []


def test_the_seconds_of_all_sessions_are_known_unless_one_was_killed() -> None:
    def moment(event: str, second: int) -> Moment:
        return Moment(event, 1, 9, f"2026-11-17T09:00:{second:02}+00:00")

    first, stopped, resumed, ended = moment(START, 1), moment(STOP, 4), moment(RESUME, 10), moment(END, 15)
    assert trained_seconds([], 2.5) == trained_seconds([first, ended], 2.5) == 2.5, "the only session, to the millisecond"
    assert trained_seconds([first, stopped, resumed, ended], 4.9) == 8.0
    assert trained_seconds([first, resumed, ended], 4.9) is None, "the first session was killed"
    assert trained_seconds([stopped, resumed, ended], 4.9) is None, "the file lost its start"
    assert trained_seconds([Moment(START, 0, 9), Moment(STOP, 1, 9), resumed, ended], 4.9) is None, "without times"
