"""A long run of `glassloop serve`: mixed sizes, broken requests, clients that leave, two restarts. Every answer is compared.

    python benchmarks/soak.py RUN [--requests 200000] [--clients 16] [--device cpu]

Ends with status 1 if an answer was wrong, if a request got neither an answer nor an error, or if the memory of a server grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from http_load import Connection, request_bytes
from serve import free_port

from glassloop import Predictor
from glassloop.runs.record import predicted_splits, read_predictions

ALLOWED = 2e-4  # difference of probabilities between batches of different composition
BROKEN: list[tuple[bytes, int]] = [
    (request_bytes("/predict", b"{"), 400),
    (request_bytes("/predict", b""), 400),
    (request_bytes("/predict", {"inputs": 3}), 422),
    (request_bytes("/predict", {"inputs": []}), 400),
    (request_bytes("/predict", {"inputs": [["a", "b"]] * 33}), 413),
    (request_bytes("/rerank", {"query": "a"}), 422),
    (request_bytes("/nothing", {}), 404),
]


@dataclass
class Question:
    """A request and the answer that is expected: a status, and probabilities for each input."""

    request: bytes
    status: int
    shares: np.ndarray | None = None


@dataclass
class Tally:
    """What happened to all requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def questions_of(run: Path, number: int, device: str) -> list[Question]:
    """Return requests with 1 to 32 inputs of different lengths, and broken ones."""
    predictor, source = Predictor(run, device=device), random.Random(0)
    columns = predictor.run.data.columns.texts  # type: ignore[union-attr]
    rows = [tuple(str(row[name]) for name in columns) for row in read_predictions(run, predicted_splits(run)[0])]
    pool = [tuple(part[: source.randrange(1, len(part) + 1)] for part in source.choice(rows)) for _ in range(400)]
    pool += [tuple(part * 20 for part in row) for row in rows[:10]]
    shares = [[*answer.scores.values()] for answer in predictor.predict(pool)]
    found = [Question(request, status) for request, status in BROKEN]
    for _ in range(number):
        chosen = [source.randrange(len(pool)) for _ in range(source.choice([1, 1, 1, 1, 1, 2, 3, 8, 32]))]
        body = {"inputs": [[*pool[place]] for place in chosen]}
        found.append(Question(request_bytes("/v1/predict", body), 200, np.array([shares[place] for place in chosen])))
    return found


class Server:
    """The server, on a port that stays the same over restarts."""

    def __init__(self, run: Path, device: str) -> None:
        self.run, self.device, self.port, self.memory = run, device, free_port(), [[0]]
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it is ready."""
        command = [sys.executable, "-m", "glassloop", "serve", str(self.run), "--port", str(self.port)]
        command += ["--device", self.device]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=1)
                return process
            except OSError:
                if process.poll() is not None:
                    sys.exit(f"the server ended with {process.returncode}")
                time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server; it must exit with 0."""
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(120):
            sys.exit(f"the server ended with {self.process.returncode}")

    def restart(self) -> None:
        """Stop the server and start another one."""
        self.stop()
        self.process = self.start()
        self.memory.append([])

    def measure(self) -> None:
        """Note the memory of the process in MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        self.memory[-1].append(pages * os.sysconf("SC_PAGE_SIZE") // 2**20)


async def client(server: Server, questions: list[Question], numbers: asyncio.Queue[int], tally: Tally) -> None:
    """Send requests until there are none left, leave in the middle of some, and compare the answers of the others."""
    connection, source = Connection(server.port), random.Random(numbers.qsize())
    while True:
        try:
            number = numbers.get_nowait()
        except asyncio.QueueEmpty:
            connection.close()
            return
        question = questions[number % len(questions)]
        try:
            if source.random() < 0.02:  # leave: after half of the request, or before the answer
                _, writer = await connection.open()
                writer.write(question.request[: source.choice([len(question.request) // 2, len(question.request)])])
                await writer.drain()
                connection.close()
                tally.outcomes["left"] += 1
                continue
            status, body = await asyncio.wait_for(connection.ask(question.request), 120)
        except (OSError, EOFError):
            tally.outcomes["connection error"] += 1  # the client knows that it got no answer
            await asyncio.sleep(0.5)  # a server that restarts is not asked thousands of times
            continue
        except TimeoutError:
            tally.outcomes["lost"] += 1
            continue
        tally.outcomes[str(status)] += 1
        if status in (429, 503):
            continue
        if status != question.status:
            tally.wrong.append(f"request {number}: status {status} instead of {question.status}: {body[:200]!r}")
        elif question.shares is not None:
            shares = np.array([[*row["probabilities"].values()] for row in json.loads(body)["predictions"]])
            if shares.shape != question.shares.shape or np.abs(shares - question.shares).max() > ALLOWED:
                tally.wrong.append(f"request {number}: other probabilities")


async def soak(server: Server, questions: list[Question], number: int, clients: int) -> Tally:
    """Send all requests in three parts, with a restart in the middle of the second and of the third."""
    tally, numbers = Tally(), asyncio.Queue[int]()
    for place in range(number):
        numbers.put_nowait(place)
    working = [asyncio.ensure_future(client(server, questions, numbers, tally)) for _ in range(clients)]
    restarts, began = [number * 2 // 3, number // 3], time.monotonic()
    while not all(one.done() for one in working):
        await asyncio.sleep(0.5)
        done = number - numbers.qsize()
        if restarts and numbers.qsize() < restarts[0]:
            restarts.pop(0)
            await asyncio.to_thread(server.restart)
        server.measure()
        print(f"\r{done:,} of {number:,}, {done / (time.monotonic() - began):.0f}/s, {server.memory[-1][-1]} MB", end="")
    await asyncio.gather(*working)
    return tally


def main() -> None:
    """Run the soak and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    questions, server = questions_of(args.run, 2_000, args.device), Server(args.run, args.device)
    server.memory = [[]]
    tally = asyncio.run(soak(server, questions, args.requests, args.clients))
    server.stop()
    grew = []
    for life in server.memory:
        settled = life[len(life) // 3 :]  # allocators fill up first
        if len(settled) > 10 and max(settled[-len(settled) // 4 :]) > 1.1 * max(settled[: len(settled) // 4]):
            grew.append(life)
    print(f"\n{sum(tally.outcomes.values()):,} requests: {dict(tally.outcomes)}")
    print(
        "memory in MB of each server, start, a third, end:",
        [(life[0], life[len(life) // 3], life[-1]) for life in server.memory],
    )
    for line in tally.wrong[:20]:
        print(line)
    lost = args.requests - sum(tally.outcomes.values()) + tally.outcomes["lost"]
    print(f"wrong: {len(tally.wrong)}, lost: {lost}, servers whose memory grew: {len(grew)}")
    sys.exit(bool(tally.wrong or lost or grew))


if __name__ == "__main__":
    main()
