"""SCENARIO 9 with real failing writes: a small disk that is really full, and a process that may write no large file.

The disk is a tmpfs in a mount namespace of its own, where the machine lets us make one. The fault hook, which goes over every
single point, is in test_interruption.py.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trials import STEP, Ended, Hook, Server, same_end, told

from glassloop.training.checkpoints import open_checkpoint

SHORT = {"max_steps": 6, "save_steps": 3, "eval_steps": 2}
NEVER = {"max_steps": 6, "save_strategy": "no", "save_steps": None, "eval_steps": 2}
SIZE = 16 << 20

LOADED = "glassloop.study.run:tensor_digests"  # its first call follows the loading of the model


@dataclass(frozen=True)
class Disk:
    """A small disk that only the trials of a server see; `inside` is the way to it from here."""

    place: Path
    server: Server

    @property
    def inside(self) -> Path:
        return Path(f"/proc/{self.server.process.pid}/root{self.place}")

    def run(self, arguments: list[str], *hooks: Hook) -> Ended:
        return self.server.start(arguments, hooks).wait()

    def make_room(self) -> None:
        (self.inside / "ballast").unlink()

    def fill(self, target: str, call: int, left: int = 0) -> Hook:
        return Hook(target, call, f"fill:{self.place}:{left}")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    folder = tmp_path_factory.mktemp("full")
    place = folder / "disk"
    place.mkdir()
    launcher = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size={SIZE} tmpfs '{place}'"
    try:
        subprocess.run([*launcher, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    server = Server(folder, *launcher, f'{mount} && exec "$@"', "sh")
    assert server.start(["--version"]).wait().code == 0
    yield Disk(place, server)
    server.close()


@pytest.fixture
def run(disk: Disk) -> Iterator[Path]:
    """The path of a run on the small disk, as its trials see it."""
    assert shutil.disk_usage(disk.inside).total == SIZE
    yield disk.place / "run"
    for left in disk.inside.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def checkpoint_bytes(runs: Any) -> int:
    return sum(path.stat().st_size for path in (runs.reference(**SHORT) / "checkpoint-6").rglob("*"))


def saved(run: Path) -> Hook:
    """Before the fourth step: wait until the checkpoint of the third, which is written behind the steps, is there."""
    return Hook(STEP, 4, f"await:{run / 'checkpoint-3'}")


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(8))
def test_09_a_disk_that_is_full_while_a_checkpoint_is_written(runs: Any, disk: Disk, run: Path, part: int) -> None:
    """With no room, or with room for one to seven eighths of the checkpoint."""
    left = checkpoint_bytes(runs) * part // 8
    ended = disk.run(runs.arguments(run, **SHORT), saved(run), disk.fill(STEP, 5, left))
    told(ended, 6, str(run), "No space left on device", "bytes needed")
    here = disk.inside / "run"
    assert open_checkpoint(here / "checkpoint-3").manifest["step"] == 3
    assert [path.name for path in here.glob("*checkpoint-*")] == ["checkpoint-3"]
    disk.make_room()
    again = disk.run(["train", "--resume", str(run)])
    told(again, 0, "resuming after step 3 ")
    same_end(runs.reference(**SHORT), here)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("target", "call"), [("glassloop.trainer:Trainer.write_model", 3), ("glassloop.study.run:write_predictions", 1)]
)
def test_09_a_disk_that_is_full_when_the_end_is_written(runs: Any, disk: Disk, run: Path, target: str, call: int) -> None:
    """The final model, after those of two checkpoints; the predictions."""
    ended = disk.run(runs.arguments(run, **SHORT), disk.fill(target, call))
    told(ended, 6, str(run), "No space left on device", "bytes free", f"glassloop train --resume {run}")
    disk.make_room()
    assert disk.run(["train", "--resume", str(run)], Hook(STEP, 1, "bug")).code == 0, "no step is taken again"
    same_end(runs.reference(**SHORT), disk.inside / "run")


def test_09_a_disk_that_fills_up_during_training_has_room_for_the_final_model(runs: Any, disk: Disk, run: Path) -> None:
    """Without checkpoints, all of the training was lost."""
    ended = disk.run(runs.arguments(run, **NEVER), disk.fill(STEP, 6))
    assert ended.code == 0, ended.err
    disk.make_room()
    same_end(runs.reference(**NEVER), disk.inside / "run")


def test_09_a_disk_without_room_for_the_final_model(runs: Any, disk: Disk, run: Path) -> None:
    ended = disk.run(runs.arguments(run, **NEVER), disk.fill(LOADED, 1, 40_000), Hook(STEP, 1, "bug"))
    told(ended, 6, str(run), "bytes are needed for the final model")


def test_09_a_disk_without_room_for_the_head_that_training_starts_from(runs: Any, disk: Disk, run: Path) -> None:
    filled = Hook("glassloop.runs.record:write_run", 1, f"fill:{disk.place}:0", after=True)
    ended = disk.run(runs.arguments(run, **NEVER), filled, Hook(STEP, 1, "bug"))
    told(ended, 6, str(run / "head.safetensors"), "No space left on device", f"glassloop train --resume {run}")
    disk.make_room()
    assert disk.run(["train", "--resume", str(run)]).code == 0
    same_end(runs.reference(**NEVER), disk.inside / "run")


def test_09_a_disk_without_room_for_two_checkpoints(runs: Any, disk: Disk, run: Path) -> None:
    ended = disk.run(runs.arguments(run, **SHORT), disk.fill(LOADED, 1, checkpoint_bytes(runs)))
    told(ended, 6, str(run), "bytes are needed for two checkpoints and the final model")
    assert not list((disk.inside / "run").glob("*checkpoint-*"))
    disk.make_room()
    assert disk.run(["train", "--resume", str(run)]).code == 0
    same_end(runs.reference(**SHORT), disk.inside / "run")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_09_a_process_that_may_write_no_large_file(runs: Any, name: str) -> None:
    """A write that really fails, where no disk can be mounted: the file is one byte too large."""
    pytest.importorskip("resource")
    place = runs.reference(**SHORT) / "checkpoint-6"
    largest = (place / name).stat().st_size - 1
    run = runs.new()
    ended = runs.train(run, [saved(run), Hook(STEP, 5, f"limit:{largest}")], **SHORT)
    told(ended, 6, str(run), "File too large")
    assert [open_checkpoint(path).manifest["step"] for path in run.glob("*checkpoint-*")] == [3]
    runs.resumes_the_same(run, **SHORT)
