"""Kill runs in many ways and resume them: how many end bit-identical to the run that was never stopped.

    python benchmarks/kills.py --kills 200 --seed 1

A trial starts a run, kills it with SIGKILL, resumes it, and may kill it again, up to three times; then it runs to its end and
is compared: weights, history, predictions, metrics, optimizer and random states. A run is killed

- at random moments, with several settings; two processes are two forked children that find each other as those of a launcher;
- after one of its writes, syncs and renames, all of them in turn over the trials;
- in its final phase: after a write, sync or rename that follows the last step, or in the final evaluation;
- with stray files in every checkpoint;
- with two starts at once into one folder, each time: one trains, and the other exits with status 2 or 7, or finds it complete.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import trials
from families import tiny_model, tiny_tokenizer

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped by length": {"group_by_length": True},
    "groups of 3 batches": {"gradient_accumulation_steps": 3, "save_steps": 2, "eval_steps": 3},
    "best weights, always evaluating": {"load_best_model_at_end": True, "eval_steps": 1, "save_steps": 2},
    "two processes": {"per_device_train_batch_size": 4},
    "no checkpoints": {"save_strategy": "no"},
}
STRAY = (".DS_Store", "state.json~", ".config.json.swp")
REFUSED = (0, 2, 7, -signal.SIGKILL)  # what a start may exit with that is not alone


@dataclass(frozen=True)
class Found:
    """One trial: its kills that hit a living run, and what differs in the end."""

    kills: int
    different: list[str]


class Bench:
    """Runs on small data with a tiny model, and their references."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.servers = folder, seed, trials.Servers(folder)
        self.data, self.model = trials.write_data(folder / "data"), folder / "model"
        tiny_model(max_position_embeddings=64).base_model.save_pretrained(self.model)
        tiny_tokenizer().save_pretrained(self.model)
        self.counting = threading.Lock()
        self.references: dict[str, tuple[Path, float]] = {}

    def start(self, setting: str, run: Path, hooks: Any = (), **environment: str) -> list[trials.Trial]:
        """Start the run, or resume it, in as many processes as the setting has."""
        chosen = {**trials.SMALL, **SETTINGS[setting]}
        chosen = {name: value for name, value in chosen.items() if name != "save_steps" or chosen["save_strategy"] == "steps"}
        arguments = ["train", self.data, *trials.flags(model=self.model, resume=run, **chosen)]
        if setting != "two processes":
            return [self.servers.start(*arguments, hooks=hooks, **environment)]
        return self.servers.start_group(2, *arguments)

    def to_the_end(self, setting: str, run: Path, hooks: Any = (), **environment: str) -> float:
        began = time.monotonic()
        for trial in self.start(setting, run, hooks, **environment):
            ended = trial.wait()
            if ended.code:
                raise RuntimeError(f"exit status {ended.code}\n{ended.err}")
        return time.monotonic() - began

    def reference(self, setting: str) -> tuple[Path, float]:
        """The run that was never stopped, and how long another one takes."""
        if setting not in self.references:
            run = self.folder / f"reference {setting}"
            self.to_the_end(setting, run)
            self.references[setting] = run, self.to_the_end(setting, self.folder / f"again {setting}")
        return self.references[setting]

    def points(self, setting: str) -> list[str]:
        """Every write, sync and rename of a run, in order."""
        path = self.folder / f"points {setting}"
        with self.counting:
            if not path.exists():
                self.to_the_end(setting, self.folder / f"counted {setting}", GLASSLOOP_FAULT=f"count:{path}")
        return path.read_text().splitlines()

    def ended(self, trial: trials.Trial) -> int:
        """The exit status; one that still waits for a dead one to come is killed, as a launcher does."""
        try:
            return trial.wait(30).code
        except TimeoutError:
            return -signal.SIGKILL

    def compared(self, setting: str, run: Path, kills: int) -> Found:
        """Resume a run to its end, and compare it."""
        try:
            self.to_the_end(setting, run)
        except RuntimeError as error:
            return Found(kills, [str(error)])
        return Found(kills, trials.differences(self.reference(setting)[0], run))

    # The kinds of trials

    def at_random(self, setting: str, number: int, *, stray: bool = False) -> Found:
        chance, kills = random.Random(f"{self.seed}/{setting}/{number}"), 0
        run = self.folder / f"{setting}-{stray}-{number}"
        for _ in range(chance.randint(1, 3)):
            running = self.start(setting, run)
            time.sleep(chance.uniform(0.0, self.reference(setting)[1]))
            for victim in chance.sample(running, chance.randint(1, len(running))):
                victim.send(signal.SIGKILL)  # a child that has ended is not waited for yet, so its number is still its own
            kills += -signal.SIGKILL in [self.ended(trial) for trial in running]
            for path in run.glob("checkpoint-*") if stray else ():
                for name in STRAY:
                    (path / name).write_bytes(b"stray")
        return self.compared(setting, run, kills)

    def at_a_point(self, setting: str, number: int, first: int = 0) -> Found:
        """After the next of the points from `first` on; the trials go over all of them in steps that share no divisor."""
        points, run = self.points(setting), self.folder / f"{setting}-point-{first}-{number}"
        place = first + (number * 7 + self.seed) % (len(points) - first)
        (code,) = [self.ended(trial) for trial in self.start(setting, run, GLASSLOOP_FAULT=f"kill:{place + 1}")]
        found = self.compared(setting, run, kills=int(code == -signal.SIGKILL))
        return found if code == -signal.SIGKILL else Found(0, [f"point {place + 1} was not met: {code}", *found.different])

    def in_the_final_phase(self, setting: str, number: int) -> Found:
        """After the first sync of the final model; every third trial in the final evaluation, where no step may follow."""
        if number % 3:
            points = self.points(setting)
            return self.at_a_point(
                setting, number, max(place for place, point in enumerate(points) if point == "rename model") - 4
            )
        run = self.folder / f"{setting}-evaluation-{number}"
        last = 1 + trials.SMALL["num_train_epochs"] * 8 // trials.SMALL["eval_steps"]
        (code,) = [self.ended(trial) for trial in self.start(setting, run, [trials.Hook(trials.EVALUATION, last, trials.KILL)])]
        if code != -signal.SIGKILL:
            return Found(0, [f"the final evaluation was not met: {code}"])
        try:
            self.to_the_end(setting, run, [trials.Hook(trials.STEP, 1, "bug")])
        except RuntimeError as error:
            return Found(1, [f"trained again: {error}"])
        return Found(1, trials.differences(self.reference(setting)[0], run))

    def two_at_once(self, setting: str, number: int) -> Found:
        chance, kills, wrong = random.Random(f"{self.seed}/two/{number}"), 0, list[str]()
        run = self.folder / f"two-{number}"
        for _ in range(chance.randint(1, 2)):
            running = [*self.start(setting, run), *self.start(setting, run)]
            time.sleep(chance.uniform(0.0, self.reference(setting)[1]))
            for victim in chance.sample(running, chance.randint(1, 2)):
                victim.send(signal.SIGKILL)
            codes = [self.ended(trial) for trial in running]
            kills += codes.count(-signal.SIGKILL)
            wrong += [f"exit status {code}" for code in codes if code not in REFUSED]
        codes = sorted(self.ended(trial) for trial in [*self.start(setting, run), *self.start(setting, run)])
        wrong += [] if codes[0] == 0 and codes[1] in REFUSED[:3] else [f"two at once: exit status {codes}"]
        found = self.compared(setting, run, kills)
        return Found(kills, [*wrong, *found.different])


Trial = Callable[[int], Found]


def rows(bench: Bench) -> dict[str, tuple[str, Trial]]:
    """The kinds of trials by name: the setting of each, and the trial of a number."""
    found: dict[str, tuple[str, Trial]] = {}
    for setting in SETTINGS:
        found[f"random moments: {setting}"] = setting, lambda number, setting=setting: bench.at_random(setting, number)
    found["writes, syncs and renames"] = "plain", lambda number: bench.at_a_point("plain", number)
    found["final phase, no checkpoints"] = "no checkpoints", lambda number: bench.in_the_final_phase("no checkpoints", number)
    found["final phase, with checkpoints"] = "plain", lambda number: bench.in_the_final_phase("plain", number)
    found["stray files in checkpoints"] = "plain", lambda number: bench.at_random("plain", number, stray=True)
    found["two starts at once"] = "plain", lambda number: bench.two_at_once("plain", number)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills in all, over all kinds")
    parser.add_argument("--parallel", type=int, default=2, help="trials at a time")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the moments")
    parser.add_argument("--only", help="the kinds whose name contains this")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.parallel) as pool:
        bench = Bench(Path(folder), chosen.seed)
        kinds = {name: kind for name, kind in rows(bench).items() if (chosen.only or "") in name}
        print(f"seed {chosen.seed}\n{'kind':<50}{'trials':>8}{'kills':>8}{'identical':>11}", flush=True)
        total, wrong = 0, 0
        for name, (setting, trial) in kinds.items():
            bench.reference(setting)
            results: list[Found] = []
            while sum(found.kills for found in results) < chosen.kills / len(kinds) and len(results) < 2 * chosen.kills:
                results += pool.map(trial, range(len(results), len(results) + chosen.parallel))
            kills, same = sum(found.kills for found in results), sum(not found.different for found in results)
            total, wrong = total + kills, wrong + len(results) - same
            print(f"{name:<50}{len(results):>8}{kills:>8}{same:>11}", flush=True)
            for number, found in enumerate(results):
                if found.different:
                    print(f"    seed {chosen.seed}, trial {number}: {found.different}", flush=True)
        bench.servers.close()
        print(f"{total} kills, {wrong} runs that did not end identical")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
