"""Kill runs at random moments and go on with them: how many end bit-identical to the run that was never stopped.

    python benchmarks/kills.py --kills 200

Each trial starts a run, sends SIGKILL after a random time, goes on with it, and may be killed again, up to three times; then
it runs to its end and is compared: weights, history, predictions, figures, optimizer and random states. Two processes are two
forked children that find each other as those of a launcher do; one of them, or both, are killed.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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
}


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.servers = folder, trials.Servers(folder)
        self.data, self.model = trials.write_data(folder / "data"), folder / "model"
        tiny_model(max_position_embeddings=64).base_model.save_pretrained(self.model)
        tiny_tokenizer().save_pretrained(self.model)

    def start(self, name: str, run: Path) -> list[trials.Trial]:
        """Start the run, or go on with it, in as many processes as the setting has."""
        arguments = ["train", self.data, *trials.flags(model=self.model, resume=run, **{**trials.SMALL, **SETTINGS[name]})]
        if name != "two processes":
            return [self.servers.start(*arguments)]
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            port = str(opened.getsockname()[1])
        return [
            self.servers.start(
                *arguments, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            )
            for rank in ("0", "1")
        ]

    def to_the_end(self, name: str, run: Path) -> float:
        began = time.monotonic()
        for trial in self.start(name, run):
            ended = trial.wait()
            if ended.code:
                raise RuntimeError(f"{name}: exit code {ended.code}\n{ended.err}")
        return time.monotonic() - began

    def ended(self, trial: trials.Trial) -> int:
        """The exit code; one that still waits for a dead one to come is killed, as a launcher does."""
        try:
            return trial.wait(10).code
        except TimeoutError:
            return -signal.SIGKILL

    def trial(self, name: str, number: int, reference: Path, seconds: float) -> tuple[int, list[str]]:
        """One trial: how many kills hit a living run, and what differs in the end."""
        chance, run, kills = random.Random(f"{name}/{number}"), self.folder / f"{name}-{number}", 0
        for _ in range(chance.randint(1, 3)):
            running = self.start(name, run)
            time.sleep(chance.uniform(0.0, seconds))
            for victim in chance.sample(running, chance.randint(1, len(running))):
                victim.send(signal.SIGKILL)  # a child that has ended is not waited for yet, so its number is still its own
            codes = [self.ended(trial) for trial in running]
            kills += -signal.SIGKILL in codes
        try:
            self.to_the_end(name, run)
        except RuntimeError as error:
            return kills, [str(error)]
        return kills, trials.differences(reference, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills in all, over all settings")
    parser.add_argument("--parallel", type=int, default=2, help="trials at a time")
    parser.add_argument("--only", choices=SETTINGS, help="one setting alone")
    chosen = parser.parse_args()
    settings = [chosen.only] if chosen.only else list(SETTINGS)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(chosen.parallel) as pool:
        bench = Bench(Path(folder))
        print(f"{'setting':<34}{'trials':>8}{'kills':>8}{'identical':>11}")
        wrong = 0
        for name in settings:
            reference = Path(folder) / f"reference {name}"
            bench.to_the_end(name, reference)
            seconds = bench.to_the_end(name, Path(folder) / f"again {name}")
            results: list[tuple[int, list[str]]] = []
            while sum(kills for kills, _ in results) < chosen.kills / len(settings):
                numbers = range(len(results), len(results) + chosen.parallel)
                results += pool.map(lambda number: bench.trial(name, number, reference, seconds), numbers)  # noqa: B023
            same = sum(not found for _, found in results)
            wrong += len(results) - same
            print(f"{name:<34}{len(results):>8}{sum(kills for kills, _ in results):>8}{same:>11}", flush=True)
            for _, found in results:
                if found:
                    print(f"    {found}")
        bench.servers.close()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
