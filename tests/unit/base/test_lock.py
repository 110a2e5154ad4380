"""One run per folder: an error names a living holder, the lock of a dead one is taken over and reported."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassloop.base.errors import LockedError, ResourceError
from glassloop.base.files import LOCK_NAME, Holder, holder, locked, refuse_held

HOLDER = """
import sys, time
from pathlib import Path
from glassloop.base.files import locked
with locked(Path(sys.argv[1]), lambda line: None):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_lock_is_there_inside_and_gone_after_or_cannot_be_made(tmp_path: Path) -> None:
    said: list[str] = []
    with locked(tmp_path / "run", said.append):
        assert str(os.getpid()) in (tmp_path / "run" / LOCK_NAME).read_text()
    assert not (tmp_path / "run" / LOCK_NAME).exists()
    with pytest.raises(ValueError, match="inside"), locked(tmp_path / "run", said.append):
        raise ValueError("inside")
    with locked(tmp_path / "run", said.append):
        pass
    assert said == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="output_dir"), locked(tmp_path / "file" / "run", print):
        pass


def test_a_living_holder_is_named_and_a_dead_one_is_followed(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(LockedError) as caught, locked(tmp_path, print):
        pass
    assert caught.value.exit_code == 7
    assert f"is in use by process {other.pid} on " in caught.value.problem
    (tmp_path / LOCK_NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LockedError, match="is in use by another process"), locked(tmp_path, print):
        pass
    (tmp_path / LOCK_NAME).write_text(f'{{"process": {other.pid}, "machine": "{os.uname().nodename}"}}')
    other.kill()
    other.wait()
    said: list[str] = []
    with locked(tmp_path, said.append):
        pass
    assert len(said) == 1
    assert "a run that was killed" in said[0]
    assert str(other.pid) in said[0]


def test_the_lock_cannot_be_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second opens the file, the first ends and removes it, a third makes a new one: only one of the two may hold it."""
    real, waiting = fcntl.flock, [True]
    first, third = locked(tmp_path, print), locked(tmp_path, print)
    first.__enter__()

    def flock(handle: object, kind: int) -> None:
        if waiting.pop() if waiting else False:
            first.__exit__(None, None, None)
            third.__enter__()
        real(handle, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(LockedError), locked(tmp_path, print):
        pass
    with pytest.raises(LockedError):
        refuse_held(tmp_path)
    third.__exit__(None, None, None)
    refuse_held(tmp_path)


def test_a_lock_that_vanishes_while_it_is_taken_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, first = fcntl.flock, [True]

    def flock(handle: object, kind: int) -> None:
        if first.pop() if first else False:
            (tmp_path / LOCK_NAME).unlink()
        real(handle, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path, print):
        assert str(os.getpid()) in (tmp_path / LOCK_NAME).read_text()


def test_a_link_or_a_pipe_is_refused_and_left_alone(tmp_path: Path) -> None:
    target, lock = tmp_path / "thesis.tex", tmp_path / LOCK_NAME
    target.write_text("years of work")
    lock.symlink_to(target)
    with pytest.raises(ResourceError, match="symbolic link"), locked(tmp_path, print):
        pass
    with pytest.raises(ResourceError, match="symbolic link"):
        refuse_held(tmp_path)
    assert holder(tmp_path) is Holder.ELSEWHERE
    assert target.read_text() == "years of work"
    assert lock.is_symlink()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(ResourceError, match="not a regular file"), locked(tmp_path, print):
        pass
    lock.unlink()
    lock.mkdir()
    with pytest.raises(ResourceError), locked(tmp_path, print):
        pass


def test_any_bytes_in_the_lock_file_are_survived_and_say_who_holds_it(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_bytes(b"\xff\xfe\x00\x1b[2J" * 10_000)
    said: list[str] = []
    refuse_held(tmp_path)
    with locked(tmp_path, said.append):
        pass
    assert len(said) == 1
    assert len(said[0]) < 2000
    assert "\x1b" not in said[0], "no escape codes in the terminal"
    for text, expected in [
        ('{"process": 1, "machine": "far away"}', Holder.ELSEWHERE),
        *((text, Holder.DEAD) for text in ("", "{", "[" * 400)),  # killed before it was written
    ]:
        (tmp_path / LOCK_NAME).write_text(text)
        assert holder(tmp_path) is expected


def test_the_holder_is_named_without_taking_the_lock(
    tmp_path: Path, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", None)  # taking it would fail
    assert holder(tmp_path / "elsewhere") is Holder.NOBODY
    for alive in (True, False):
        with monkeypatch.context() as patch:
            assert holder(tmp_path) is (Holder.ALIVE if alive else Holder.DEAD)
            patch.setattr("glassloop.base.files.HELD_LOCKS", tmp_path / "missing")  # another system than Linux
            assert holder(tmp_path) is (Holder.ALIVE if alive else Holder.DEAD)
        other.kill()
        other.wait()
