"""One run a folder: a living holder is named, a dead one's lock is taken over with a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glassloop.errors import LockedError, ResourceError
from glassloop.lock import LOCK_NAME, locked

HOLDER = """
import sys, time
from pathlib import Path
from glassloop.lock import locked
with locked(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_is_there_inside_and_gone_after(tmp_path: Path) -> None:
    said: list[str] = []
    with locked(tmp_path / "run", said.append):
        assert str(os.getpid()) in (tmp_path / "run" / LOCK_NAME).read_text()
    assert not (tmp_path / "run" / LOCK_NAME).exists()
    assert said == []


def test_a_living_holder_is_named_and_a_dead_one_is_followed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockedError) as caught, locked(tmp_path, print):
        pass
    assert caught.value.exit_code == 7
    assert f'"process": {holder.pid}' in caught.value.problem
    holder.kill()
    holder.wait()
    said: list[str] = []
    with locked(tmp_path, said.append):
        pass
    assert len(said) == 1
    assert "a run that died" in said[0]
    assert str(holder.pid) in said[0]


def test_a_folder_that_cannot_be_made_is_a_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="output_dir"), locked(tmp_path / "file" / "run", print):
        pass


def test_the_lock_is_let_go_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), locked(tmp_path, print):
        raise ValueError("inside")
    with locked(tmp_path, print):
        pass
