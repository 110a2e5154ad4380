"""Tasks and worker processes: what a run has reached, where workers run, what they answer, and one that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import RECORD

from glassloop.backends.machine import runs_on_gpus
from glassloop.base.errors import ResourceError, ResumeError
from glassloop.runs.record import write_run
from glassloop.runs.study import SeedRecord
from glassloop.settings.file import GivenSettings
from glassloop.study import tasks
from glassloop.study.tasks import (
    Check,
    Checked,
    LocalWorkers,
    Place,
    Task,
    places_for,
    reached,
    seed_places,
    stored_answer,
    visible_gpus,
)


# --- what a run has reached
def test_a_run_has_reached_what_its_folder_says(tmp_path: Path) -> None:
    assert stored_answer(tmp_path / "none", 0.25) is None
    (tmp_path / "run.json").write_text("{")
    assert stored_answer(tmp_path, 0.25) is None, "a damaged record"
    write_run(tmp_path, replace(RECORD, status="running"))
    assert stored_answer(tmp_path, 0.25) is None
    rungs = {"0.25": {"accuracy": 0.5}, "0.5": {"accuracy": 0.6}}
    (tmp_path / "rungs.json").write_text(json.dumps(rungs))
    assert stored_answer(tmp_path, 0.25) == SeedRecord(status="paused", rungs=rungs)
    assert stored_answer(tmp_path, 1.0) is None
    evaluation = {"eval_loss": 0.4, "eval_runtime": 3.0}
    write_run(tmp_path, replace(RECORD, status="finished", evaluation=evaluation, seconds=9.0))
    found = stored_answer(tmp_path, 0.25)
    assert found is not None
    assert (found.status, found.metrics, found.seconds) == ("finished", {"loss": 0.4}, 9.0), "without timings"
    assert found.baseline.keys() <= {*RECORD.metrics}
    assert found.rows == {name: facts.fingerprint for name, facts in RECORD.data.splits.items()}


def test_scores_go_to_their_splits() -> None:
    both = {"f1": 0.1, "validation_f1": 0.2}
    for fold, scores, wanted in (
        ("1/10", {"f1": 0.9, "validation_f1": 0.8}, ({"f1": 0.9}, {"f1": 0.8}, {"f1": 0.2})),
        (None, {"f1": 0.7}, ({}, {"f1": 0.7}, both)),
        ("1/10", {"f1": 0.7}, ({"f1": 0.7}, {}, both)),
    ):
        answer = SeedRecord(status="finished", validation=scores, baseline=both, seconds=3.0)
        run = reached(SeedRecord(4, 1, fold, seconds=1.0), answer, 1.0)
        assert (run.selection, run.validation, run.baseline) == wanted
        assert (run.setting, run.seed, run.fold, run.status, run.fraction, run.seconds) == (4, 1, fold, "finished", 1.0, 4.0)


# --- worker processes
CHILD = """
import json, os, signal, sys, time
for line in sys.stdin:
    task = json.loads(line)
    if "check" in task:
        print('"started"', flush=True)
        if task["check"]["seed"] == 137:
            os.kill(os.getpid(), signal.SIGKILL)
        error = {"kind": "ResumeError", "error": ["other rows", "restore them"], "trace": "line 7"}
        print(json.dumps(error if task["check"]["seed"] == 4 else {"num_steps": 7}), flush=True)
        continue
    if task["name"] == "die":
        print("a library crashed\\n\\n", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if task["name"] == "hang":
        signal.pause()
    if task["name"].startswith("fail"):
        print(json.dumps({"status": "failed", "exit_code": int(task["name"][-1])}), flush=True)
        continue
    if task["name"].startswith("run"):
        begin = time.monotonic()
        time.sleep(0.03)
        seen = {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid(), "begin": begin, "end": time.monotonic()}
        with open(os.path.join(os.path.dirname(__file__), "seen.jsonl"), "a") as file:
            print(json.dumps(seen), file=file)
    threads = float(os.environ.get("OMP_NUM_THREADS", 0))
    print(json.dumps({"status": "finished", "validation": {"threads": threads}}), flush=True)
"""

FAKE_TORCH = """
class cuda:
    device_count = staticmethod(lambda: 3)
    mem_get_info = staticmethod(lambda gpu: ([25, 15, 5][gpu], 80))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(tasks, "COMMAND", [sys.executable, "-S", str(tmp_path / "child.py")])
    return tmp_path


def task(folder: Path, name: str) -> Task:
    return Task(name, GivenSettings(training={"output_dir": str(folder / name)}))


def ended(local: LocalWorkers, number: int) -> list[tuple[str, SeedRecord]]:
    found, limit = [], time.monotonic() + 20
    while len(found) < number and time.monotonic() < limit:
        found += local.wait()
    return found


def test_threads_are_shared_a_single_run_keeps_the_default_and_gpus_are_those_that_are_visible() -> None:
    assert places_for({}, 1, 8) == [Place(None, None)]
    assert places_for({}, 2, 8) == [Place(None, 4)] * 2
    assert places_for({"0": 3}, 1, 2) == [Place(None, 1)] * 3
    assert places_for({"0": 2, "3": 1, "5": 0}, 1, 16) == [Place("0", 5), Place("3", 5), Place("0", 5)]
    assert [len(places_for({}, None, cores)) for cores in (1, 4, 16)] == [1, 1, 4]
    assert visible_gpus(2, {}) == ["0", "1"]
    assert visible_gpus(2, {"CUDA_VISIBLE_DEVICES": "GPU-a, 5"}) == ["GPU-a", "5"]


def test_workers_stay_alive_and_take_one_task_after_the_other(fake: Path) -> None:
    with LocalWorkers([Place(None, 3)] * 2) as local:
        done = []
        for name in "abcd":
            local.start(task(fake, name))
            if not local.idle:
                done += ended(local, 1)
        pids = {worker.process.pid for worker in local.workers.values()}
        done += ended(local, 4 - len(done))
    assert sorted(name for name, _ in done) == ["a", "b", "c", "d"]
    assert all(answer.metrics == {"threads": 3.0} for _, answer in done)
    assert len(pids) == 2
    assert not any(worker.alive for worker in local.workers.values())


def test_a_worker_that_dies_has_failed_its_run_and_is_replaced_as_one_that_may_be_damaged(fake: Path) -> None:
    (fake / "die.log").write_text("data: of an earlier start\n")
    with LocalWorkers([Place()]) as local:
        local.start(task(fake, "die"))
        failed = SeedRecord(status="failed", exit_code=137, error=("a library crashed",))
        assert ended(local, 1) == [("die", failed)], "with the lines of this process alone"
        local.start(task(fake, "next"))
        assert ended(local, 1)[0][1].status == "finished"
        for code, is_replaced in ((1, True), (6, True), (5, False)):  # a bug, no memory, diverged
            local.start(task(fake, f"fail-{code}"))
            ((_, answer),) = ended(local, 1)
            before = local.workers[0]
            assert (answer.status, answer.exit_code, before.alive) == ("failed", code, not is_replaced)
            local.start(task(fake, f"after-{code}"))
            assert ended(local, 1)[0][1].status == "finished"
            assert (local.workers[0] is not before) is is_replaced


def test_a_study_uses_each_gpu_for_as_many_runs_as_fit(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs by their names, with memory for two runs, one run and none; real processes note which GPU they see."""
    (fake / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(fake))  # of the process that asks for the free memory
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    gpus = visible_gpus(3, {"CUDA_VISIBLE_DEVICES": "GPU-a,2,MIG-c"})
    each = runs_on_gpus(3, 10.0, 12, 10**6)
    assert each == [2, 1, 0]
    names, alive = [f"run-{number}" for number in range(12)], 0
    with LocalWorkers(places_for(dict(zip(gpus, each, strict=True)), 1, 16)) as local:
        assert local.slots == 3
        waiting, done = [*names[:6], "die", *names[6:]], list[tuple[str, SeedRecord]]()
        while len(done) < 13:
            while waiting and local.idle:
                local.start(task(fake, waiting.pop(0)))
            alive = max(alive, sum(worker.alive for worker in local.workers.values()))
            done += local.wait()
    assert sorted(name for name, answer in done if answer.finished) == sorted(names)
    assert alive == 3
    seen = [json.loads(line) for line in (fake / "seen.jsonl").read_text().splitlines()]
    assert len({entry["pid"] for entry in seen}) == 4, "three workers, and one in place of the one that died"
    by_gpu = {gpu: [entry for entry in seen if entry["gpu"] == gpu] for gpu in ("GPU-a", "2")}
    assert sum(map(len, by_gpu.values())) == len(seen) == 12, "each run sees exactly one GPU"
    for gpu, most in (("GPU-a", 2), ("2", 1)):
        runs = by_gpu[gpu]
        assert len(runs) > most, "a GPU that became free was used again"
        shared = [sum(other["begin"] <= run["begin"] < other["end"] for other in runs) for run in runs]
        assert max(shared) <= most, f"{gpu} has memory for {most}"


def test_the_worker_that_checks_trains_and_is_replaced_only_where_it_does_not_fit(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,2")
    for places, number in (
        ([Place()], 0),
        ([Place("GPU-a"), Place("2")], 0),
        ([Place("2"), Place("GPU-a")], 1),  # it sees all GPUs and uses the first
        ([Place("2")], None),
        ([Place(None, 4)] * 2, None),
    ):
        with LocalWorkers() as local:
            assert local.check(Check(GivenSettings())).num_steps == 7
            first = local.workers[0].process
            local.spread(places)
            assert ((number is not None), first.poll() is None) == (bool(local.workers), number is not None)
            local.start(task(fake, "next"))
            assert ended(local, 1)[0][1].status == "finished"
            assert (local.workers[number or 0].process is first) == (number is not None)
    assert not any(worker.alive for worker in local.workers.values())


def test_the_error_of_a_check_is_raised_as_it_was_and_a_dead_process_is_one(fake: Path) -> None:
    with pytest.raises(ResumeError) as raised, LocalWorkers() as local:
        local.check(Check(GivenSettings(), 4))
    assert (raised.value.problem, raised.value.remedy, raised.value.__notes__) == ("other rows", "restore them", ["line 7"])
    assert not local.workers[0].alive
    with pytest.raises(ResourceError, match="ended with exit status 137"), LocalWorkers() as local:
        local.check(Check(GivenSettings(), 137))


def test_a_worker_that_was_started_early_is_the_first_one_and_ends_if_nobody_uses_it(fake: Path) -> None:
    tasks.start_early()
    (early,) = tasks.SPARE
    with LocalWorkers([Place(None, 3)]) as local:
        local.check(Check(GivenSettings()))
        assert local.workers[0].process is not early, "it has the threads of a run alone"
    with LocalWorkers() as local:
        assert local.check(Check(GivenSettings())).num_steps == 7
        assert local.workers[0].process is early
    tasks.start_early()
    (unused,) = tasks.SPARE
    tasks.end_spare()
    assert (tasks.SPARE, unused.poll()) == ([], -signal.SIGKILL)


def test_seeds_are_spread_over_the_gpus_and_each_has_the_threads_of_a_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr(tasks, "runs_on_gpus", lambda gpus, need, runs, steps: [1] * gpus)
    for num_gpus, at_once, wanted in (
        (0, None, [None]), (0, 2, [None] * 2), (1, None, [None]), (1, 3, [None] * 3), (2, None, ["0", "3"]),
        (2, 3, ["0", "3", "0"]),
    ):  # fmt: skip
        places = seed_places(Checked(device="cuda" if num_gpus else "cpu", num_gpus=num_gpus), 5, at_once)
        assert places == [Place(gpu) for gpu in wanted]


def test_stopped_workers_have_not_failed(fake: Path) -> None:
    with LocalWorkers([Place()]) as local:
        local.start(task(fake, "hang"))
        time.sleep(0.2)
        local.stop()
        local.stop()
        assert [(name, answer.status) for name, answer in ended(local, 1)] == [("hang", "stopped")]


def test_a_signal_while_it_waits_does_not_make_it_wait_forever() -> None:
    """In a process of its own, which a hang cannot keep: signals come about as often as its wait ends."""
    code = """
import signal
from glassloop.study import tasks
tasks.WAIT_SECONDS = 0.001
signal.signal(signal.SIGALRM, lambda number, frame: None)
signal.setitimer(signal.ITIMER_REAL, 0.0011, 0.0011)
idle = tasks.LocalWorkers([])
for _ in range(500):
    assert idle.wait() == []
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
