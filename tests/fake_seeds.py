"""Seeds whose workers only pretend to train: each is a few lines long and does what a test asks."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from run_folders import RECORD

from glassloop.study import seeds, tasks

CHILD = """
import json, os, pathlib, signal, sys, time
from glassloop.base.records import sealed
for line in sys.stdin:
    task = json.loads(line)
    if "check" in task:
        print('"started"', flush=True)
        print(json.dumps({"given": task["check"]["given"], "num_steps": 10}), flush=True)
        continue
    training, record = task["given"]["training"], json.loads(os.environ["RECORD"])
    run, seed = pathlib.Path(training["output_dir"]), training["seed"]
    assert run.name == task["name"] == f"seed-{seed}" and task["alone"]
    does = json.loads(os.environ["CHILD"]).get(str(seed), "finish")
    resumed = (run / "run.json").exists()
    with (run.parent / "calls").open("a") as calls:
        calls.write(json.dumps([task["name"], "resumed" if resumed else "new"]) + "\\n")
    log = run.with_name(f"{run.name}.log").open("a")
    log.write("output of the child\\n")
    log.flush()
    def answer(status, **what):
        print(json.dumps({"status": status, **what}), flush=True)
    def write(status):
        run.mkdir(exist_ok=True)
        evaluation = {"eval_loss": seed / 100, "eval_f1": 0.5, "eval_runtime": 1.0, "eval_samples_per_second": 2.0}
        ending = {"status": status, "evaluation": evaluation, "baseline": {"f1": 0.4}, "seconds": 2.0}
        (run / "run.json").write_text(json.dumps(sealed({**record, **ending})))
    if does == "fail":
        answer("failed", exit_code=3, error=["row 3 is empty", "fill it"])
    elif does == "die":
        log.write("a library crashed\\n")
        log.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif does == "leave":
        write("running")
        answer("failed", exit_code=1, error=["RuntimeError: it ended"])
    elif does == "wait" and not resumed:
        def leave(number, frame):
            write("running")
            answer("stopped", exit_code=128 + number)
            sys.exit(128 + number)
        signal.signal(signal.SIGTERM, leave)
        (run.parent / f"ready-{seed}").touch()
        time.sleep(30)
    else:
        write("finished")
        scores = {"loss": seed / 100, "f1": 0.5}
        measures = {"keys": record["metrics"], "positive": record["positive_label"]}
        rows = {name: split["fingerprint"] for name, split in record["data"]["splits"].items()}
        answer("finished", validation=scores, baseline={"f1": 0.4}, seconds=2.0, measures=measures, rows=rows)
"""


class FakeSeeds:
    """Makes the workers of seeds pretend, and reads what they and the seeds wrote to `out`."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self.patch, self.capsys = folder / "out", patch, capsys
        (folder / "child.py").write_text(CHILD)
        patch.setattr(tasks, "COMMAND", [sys.executable, "-S", str(folder / "child.py")])
        patch.setenv("PYTHONPATH", str(Path(seeds.__file__).parents[2]))  # -S skips what an editable install sets up
        patch.setattr(tasks, "WAIT_SECONDS", 0.01)
        patch.setenv("COLUMNS", "40")  # narrower than the table: no number may be cut
        patch.setenv("RECORD", json.dumps(asdict(RECORD)))
        self.does({})

    def does(self, what: dict[int, str]) -> None:
        """Set what the child of each seed does; the others finish."""
        self.patch.setenv("CHILD", json.dumps(what))

    def lines(self) -> list[str]:
        """The lines on standard error since the last call."""
        captured = self.capsys.readouterr()
        assert captured.out == ""
        return [line.rstrip() for line in captured.err.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        """The content of seeds.json."""
        return json.loads((self.out / "seeds.json").read_text(encoding="utf-8"))

    @property
    def calls(self) -> list[list[str]]:
        """The seeds that workers were asked to train, and whether they were new or resumed."""
        return [json.loads(line) for line in (self.out / "calls").read_text().splitlines()]

    def signalled(self, number: int, count: int, start: Callable[[], Any], at_once: int = 1) -> Any:
        """Start `count` seeds from 42 on that wait; the signal comes when all that can run at once do."""
        self.does({42 + place: "wait" for place in range(count)})
        wanted = [self.out / f"ready-{42 + place}" for place in range(at_once)]

        def send() -> None:
            limit = time.monotonic() + 20
            while not all(path.exists() for path in wanted) and time.monotonic() < limit:
                if over.wait(0.01):
                    return  # the children failed: the signal would end the tests instead
            os.kill(os.getpid(), number)

        before, over = signal.getsignal(number), threading.Event()
        sender = threading.Thread(target=send)
        sender.start()
        try:
            return start()
        finally:
            over.set()
            sender.join()
            assert signal.getsignal(number) is before
            self.does({})
