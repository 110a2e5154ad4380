"""Worker processes: where they run, what they answer, and what becomes of one that dies."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from glassloop.study import workers
from glassloop.study.trials import Done, Task
from glassloop.study.workers import LocalWorkers, Place, cpu_runs_at_once, places_for, visible_gpus

CHILD = """
import json, os, signal, sys
for line in sys.stdin:
    task = json.loads(line)
    if task["name"] == "die":
        print("a library crashed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if task["name"] == "hang":
        signal.pause()
    done = {"name": task["name"], "status": "finished", "evaluation": {"threads": float(os.environ.get("OMP_NUM_THREADS", 0))}}
    print(json.dumps(done), flush=True)
"""


def task(name: str) -> Task:
    return Task(name, f"runs/{name}", None, None, {}, {}, False, 1.0)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, "-S", str(tmp_path / "child.py")])
    return tmp_path


def ended(local: LocalWorkers, number: int) -> list[Done]:
    found, limit = [], time.monotonic() + 20
    while len(found) < number and time.monotonic() < limit:
        found += local.wait()
    return found


def test_threads_are_shared_and_a_single_run_keeps_the_default() -> None:
    assert places_for("cpu", [], 1, 8) == [Place(None, None)]
    assert places_for("cpu", [], 2, 8) == [Place(None, 4)] * 2
    assert places_for("cuda", ["0"], 3, 2) == [Place(None, 1)] * 3
    assert places_for("cuda", ["0", "3"], 2, 16) == [Place("0", 4), Place("3", 4), Place("0", 4), Place("3", 4)]
    assert [cpu_runs_at_once(cores) for cores in (1, 4, 16)] == [1, 1, 4]


def test_gpus_are_those_that_this_process_sees() -> None:
    assert visible_gpus(2, {}) == ["0", "1"]
    assert visible_gpus(2, {"CUDA_VISIBLE_DEVICES": "GPU-a, 5"}) == ["GPU-a", "5"]


def test_workers_stay_alive_and_take_one_task_after_the_other(fake: Path) -> None:
    with LocalWorkers([Place(None, 3)] * 2, fake) as local:
        names = []
        for name in "abcd":
            local.start(task(name))
            if not local.idle:
                done = ended(local, 1)
                names += [one.name for one in done]
                assert done[0].evaluation == {"threads": 3.0}
        pids = {worker.process.pid for worker in local.workers.values()}
        names += [one.name for one in ended(local, 4 - len(names))]
    assert sorted(names) == ["a", "b", "c", "d"]
    assert len(pids) == 2
    assert not any(worker.alive for worker in local.workers.values())


def test_a_worker_that_dies_has_failed_its_run_and_is_replaced(fake: Path) -> None:
    with LocalWorkers([Place()], fake) as local:
        local.start(task("die"))
        (done,) = ended(local, 1)
        assert (done.name, done.status, done.exit_code, done.error) == ("die", "failed", 137, ("a library crashed",))
        local.start(task("next"))
        assert ended(local, 1)[0].status == "finished"


def test_stopped_workers_have_not_failed(fake: Path) -> None:
    with LocalWorkers([Place()], fake) as local:
        local.start(task("hang"))
        time.sleep(0.2)
        local.stop()
        local.stop()
        assert [(done.name, done.status) for done in ended(local, 1)] == [("hang", "stopped")]
