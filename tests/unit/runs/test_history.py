"""history.jsonl: what is written is read again, also while a run is writing it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from glassloop.runs import history as tail_module
from glassloop.runs.history import (
    MOST_BINS,
    MOST_CURVES,
    Curve,
    HistoryTail,
    last_step,
    numbers_by_step,
    read_history,
    write_history,
)
from glassloop.runs.record import HISTORY_NAME

ENTRIES = [{"step": 2, "loss": 0.5}, {"step": 4, "loss": 0.25}, {"step": 4, "eval_f1": 1.0}]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_history(tmp_path, ENTRIES)
    assert read_history(tmp_path) == ENTRIES
    assert last_step(tmp_path) == 4


def test_no_history(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    assert last_step(tmp_path) == 0
    write_history(tmp_path, [])
    assert read_history(tmp_path) == []
    assert last_step(tmp_path) == 0


def test_a_pipe_or_a_device_is_no_history(tmp_path: Path) -> None:
    """Reading a pipe would wait forever, reading a device would never end."""
    os.mkfifo(tmp_path / HISTORY_NAME)
    assert read_history(tmp_path) == []
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / HISTORY_NAME).symlink_to("/dev/zero")
    assert read_history(tmp_path) == []


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).write_text('{"step": 2, "loss": 0.5}\n{"step": 4, "lo')
    assert read_history(tmp_path) == ENTRIES[:1]
    assert last_step(tmp_path) == 2


@pytest.mark.parametrize("damage", ["not JSON", "[1]", "\0\0\0", '{"step": "four"}'])
def test_damage_is_no_error(tmp_path: Path, damage: str) -> None:
    (tmp_path / HISTORY_NAME).write_text(f'{{"step": 2, "loss": 0.5}}\n{damage}\n')
    assert read_history(tmp_path)[:1] == ENTRIES[:1]
    assert last_step(tmp_path) == 0


def test_only_the_end_of_a_long_history_is_read_for_the_last_step(tmp_path: Path) -> None:
    write_history(tmp_path, [{"step": step, "loss": 0.5} for step in range(1, 2001)])
    assert last_step(tmp_path) == 2000


def test_a_figure_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    write_history(tmp_path, ENTRIES)
    with pytest.raises(ValueError, match="Out of range"):
        write_history(tmp_path, [{"loss": math.nan}])
    assert read_history(tmp_path) == ENTRIES


def test_figures_are_found_by_step() -> None:
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "eval_loss": 0.4}, {"step": 3, "loss": None}, {"loss": 1.0}]
    assert numbers_by_step(history, "loss") == [(1, 0.5)]


# --- Following a history: only new lines are read, curves stay small, and nothing in the file is an error.


def append(folder: Path, text: str) -> None:
    with (folder / HISTORY_NAME).open("a") as opened:
        opened.write(text)


def line(step: int, **values: object) -> str:
    return json.dumps({"step": step, "epoch": step / 10, **values}) + "\n"


def test_only_complete_new_lines_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = HistoryTail(tmp_path)
    tail.refresh()
    assert (tail.step, tail.curves) == (0, {})
    append(tmp_path, line(10, loss=0.5) + '{"step": 20, "lo')
    tail.refresh()
    assert (tail.step, tail.latest) == (10, {"loss": 0.5})
    append(tmp_path, 'ss": 0.25}\n' + line(20, eval_f1=0.75))
    version, taken = tail.version, []
    monkeypatch.setattr(tail, "take", lambda entry, take=tail.take: (taken.append(entry), take(entry)))
    tail.refresh()
    assert len(taken) == 2, "the first line is not read again"
    assert tail.version > version
    assert tail.curves["loss"].points() == [(10, 0.5), (20, 0.25)]
    assert tail.curves["eval_f1"].points() == [(20, 0.75)]
    version = tail.version
    tail.refresh()
    assert tail.version == version, "nothing is new"


def test_a_resumed_run_replaces_its_history(tmp_path: Path) -> None:
    append(tmp_path, line(10, loss=0.5) + line(20, loss=0.4))
    tail = HistoryTail(tmp_path)
    tail.refresh()
    write_history(tmp_path, [{"step": 10, "epoch": 1.0, "loss": 0.5}])
    tail.refresh()
    assert tail.curves["loss"].points() == [(10, 0.5)]
    append(tmp_path, line(20, loss=0.3))
    tail.refresh()
    assert tail.curves["loss"].points() == [(10, 0.5), (20, 0.3)]


def test_another_content_under_the_same_inode_is_noticed(tmp_path: Path) -> None:
    """A network file system may reuse the number of a file at once."""
    path = tmp_path / HISTORY_NAME
    path.write_text(line(10, loss=0.5))
    tail = HistoryTail(tmp_path)
    tail.refresh()
    path.write_text(line(10, loss=0.1) + line(20, loss=0.2))
    tail.refresh()
    assert tail.curves["loss"].points() == [(10, 0.1), (20, 0.2)]


def test_a_removed_history_is_forgotten(tmp_path: Path) -> None:
    append(tmp_path, line(10, loss=0.5))
    tail = HistoryTail(tmp_path)
    tail.refresh()
    (tmp_path / HISTORY_NAME).unlink()
    tail.refresh()
    assert (tail.step, tail.curves) == (0, {})


def test_what_follows_a_damaged_line_is_ignored(tmp_path: Path) -> None:
    append(tmp_path, line(10, loss=0.5) + "\x00\x00\n" + line(20, loss=0.4))
    tail = HistoryTail(tmp_path)
    tail.refresh()
    assert (tail.damaged, tail.step) == (True, 10)
    append(tmp_path, line(30, loss=0.3))
    tail.refresh()
    assert tail.step == 10
    write_history(tmp_path, [{"step": 40, "loss": 0.2}])
    tail.refresh()
    assert (tail.damaged, tail.step) == (False, 40)


@pytest.mark.parametrize("content", [b"[" * 100_000 + b"\n", b"\xff\xfe\n", b"7\n", b'{"step": 1e999, "loss": NaN}\n', b"\n"])
def test_nothing_in_the_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).write_bytes(content)
    tail = HistoryTail(tmp_path)
    tail.refresh()
    assert tail.curves == {}


def test_strange_values_are_left_out(tmp_path: Path) -> None:
    append(tmp_path, line(1, loss="low", flag=True, none=None, many=[1], **{"x" * 101: 1.0, "fine": 2}))
    append(tmp_path, '{"step": 2, "loss": NaN, "big": 1' + "0" * 400 + "}\n" + line(-3, loss=1.0) + '{"loss": 4.0}\n')
    append(tmp_path, line(4, **{f"name-{number}": number for number in range(2 * MOST_CURVES)}))
    tail = HistoryTail(tmp_path)
    tail.refresh()
    assert "loss" not in tail.curves
    assert tail.curves["fine"].points() == [(1, 2.0)]
    assert len(tail.curves) == MOST_CURVES


def test_a_pipe_or_a_link_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / HISTORY_NAME)
    tail = HistoryTail(tmp_path)
    tail.refresh()
    (tmp_path / HISTORY_NAME).unlink()
    (tmp_path / "elsewhere").write_text(line(1, loss=0.5))
    (tmp_path / HISTORY_NAME).symlink_to(tmp_path / "elsewhere")
    tail.refresh()
    assert tail.curves == {}


def test_a_large_file_is_read_in_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "MOST_BYTES", 1000)
    append(tmp_path, "".join(line(step, loss=0.5) for step in range(100)))
    tail = HistoryTail(tmp_path)
    tail.refresh()
    assert not tail.complete
    assert 0 < tail.step < 99
    while not tail.complete:
        tail.refresh()
    assert tail.step == 99
    assert tail.curves["loss"].count == 100


def test_a_curve_keeps_its_extremes_and_its_ends() -> None:
    curve, values = Curve(), [(step * 7919) % 1009 / 1009 for step in range(100_000)]
    values[31_415], values[92_653] = -5.0, 9.0
    for step, value in enumerate(values):
        curve.add((step, value))
    points = curve.points()
    assert len(points) <= 4 * MOST_BINS + 2
    assert {(31_415, -5.0), (92_653, 9.0), (0, values[0]), (99_999, values[-1])} <= {*points}
    assert points == sorted(points)
    assert {*points} <= {*enumerate(values)}, "no value is made up"


def test_a_short_curve_is_complete() -> None:
    curve = Curve()
    for step in range(2 * MOST_BINS):
        curve.add((step, step % 3))
    assert curve.points() == [(step, step % 3) for step in range(2 * MOST_BINS)]
