"""A file of predictions: killed at any moment and started again, or predicted by two processes, it is the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
import trials
from commands import run_command, run_forked
from families import tiny_model


@pytest.fixture(scope="module")
def model(tiny_tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("predicting") / "model"
    tiny_model(initializer_range=0.3).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text("text,n\n" + "".join(f"{'very ' * (row % 9)}good film,{row}\n" for row in range(4_500)))
    return path


def arguments(model: Path, rows: Path, target: Path, *more: str) -> list[str]:
    return ["predict", str(model), "--file", str(rows), "--text", "text", "--out", str(target), "--device", "cpu", *more]


@pytest.fixture(scope="module")
def whole(servers: trials.Servers, model: Path, rows: Path, tmp_path_factory) -> bytes:
    """The file of a command that was never stopped."""
    target = tmp_path_factory.mktemp("whole") / "out.csv"
    (ended,) = run_forked(servers, arguments(model, rows, target), folder=target.parent)
    assert ended.code == 0, ended.err
    return target.read_bytes()


@pytest.mark.parametrize("place", [1, 4, 8, 12, 18, 24])
@pytest.mark.sample(2)
def test_a_killed_command_continues(
    servers: trials.Servers, model: Path, rows: Path, whole: bytes, tmp_path: Path, place: int
) -> None:
    target = tmp_path / "out.csv"
    command = arguments(model, rows, target)
    killed = run_forked(servers, command, folder=tmp_path, GLASSLOOP_FAULT=f"kill:{place}")[0]
    assert killed.code == -9
    before = target.read_bytes() if target.exists() else None
    assert before in (None, whole), "there is no half a file"
    ended = run_forked(servers, command, folder=tmp_path)[0]
    assert ended.code == 0, ended.err
    assert target.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_two_processes(servers: trials.Servers, model: Path, rows: Path, whole: bytes, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    (ended,) = run_forked(servers, arguments(model, rows, target, "--processes", "2"), folder=tmp_path)
    assert (ended.code, ended.out) == (0, f"4,500 rows → {target}\n"), ended.err
    assert target.read_bytes() == whole


@pytest.mark.exhaustive  # tests/unit/training/test_processes.py checks errors of processes
def test_an_error_of_one_of_two_processes_is_one_message(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\ngood\n\nbad\n")
    ended = run_command(*arguments(model, tmp_path / "gone.csv", tmp_path / "out.csv", "--processes", "2"), folder=tmp_path)
    assert ended.code == 3
    assert ended.err.count("there is no such data file") == 1
