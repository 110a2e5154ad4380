"""An export that is killed, or runs out of disk space, at any moment: there is no folder that looks finished."""

from __future__ import annotations

from pathlib import Path

import pytest
import trials
from commands import run_forked
from run_folders import make_run

from glassloop.runs.export import is_export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run", rows=4)


def exported(servers: trials.Servers, run: Path, folder: Path, fault: str) -> trials.Ended:
    command = ["export", str(run), "--to", "torch", "--out", str(folder / "out")]
    return run_forked(servers, command, folder=folder, GLASSLOOP_FAULT=fault)[0]


@pytest.mark.parametrize("place", [1, 6, 12, 18, 24])
@pytest.mark.sample(1)
def test_a_killed_export(servers: trials.Servers, run: Path, tmp_path: Path, place: int) -> None:
    assert exported(servers, run, tmp_path, f"kill:{place}").code == -9
    assert all(path.name.startswith(".out.") for path in tmp_path.iterdir()), "hidden, under another name"


@pytest.mark.parametrize("place", [2, 9, 20])
@pytest.mark.sample(1)
def test_a_full_disk(servers: trials.Servers, run: Path, tmp_path: Path, place: int) -> None:
    ended = exported(servers, run, tmp_path, f"full:{place}")
    assert (ended.code, [*tmp_path.iterdir()]) == (6, []), ended.err
    assert "No space left on device" in ended.err


def test_the_last_moment_is_the_rename(servers: trials.Servers, run: Path, tmp_path: Path) -> None:
    ended = exported(servers, run, tmp_path, f"count:{tmp_path / 'faults'}")
    assert ended.code == 0, ended.err
    assert is_export(tmp_path / "out")
    points = (tmp_path / "faults").read_text().splitlines()
    assert points.index("rename out") == len(points) - 2, "then only its parent folder is synced"
    assert len(points) > 24
