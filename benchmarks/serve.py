"""`glassloop serve` against a starlette application that calls transformers' pipeline: same model, texts and clients.

    python benchmarks/serve.py RUN [--rounds 3] [--seconds 20] [--clients 16] [--inputs 1] [--device cpu] [--precision fp32]

The two servers take turns, each alone on the machine. First the largest load: each client sends its next request when the last
one is answered. Then half of the largest load of the pipeline, and half of our own, at random moments: the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from http_load import closed_loop, open_loop, request_bytes

from glassloop.runs.record import predicted_splits, read_predictions, read_run

HERE = Path(__file__).parent


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@contextmanager
def server(name: str, run: Path, device: str, options: Sequence[str] = ()) -> Iterator[int]:
    """Start one of the two servers, and yield its port when it is ready."""
    port = free_port()
    ours = [sys.executable, "-m", "glassloop", "serve", str(run), "--port", str(port), "--device", device, *options]
    theirs = [sys.executable, str(HERE / "pipeline_server.py"), str(run / "model"), str(port), device]
    process = subprocess.Popen(ours if name == "glassloop" else theirs, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1_200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1)
                break
            except OSError:
                if process.poll() is not None:
                    sys.exit(f"{name} ended with {process.returncode}")
                time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def requests_of(run: Path, inputs: int = 1) -> list[bytes]:
    """Return requests of one pair, or of several, from the stored validation rows of a run on pairs."""
    columns, split = read_run(run).data.columns, predicted_splits(run)[0]
    rows = read_predictions(run, split)
    pairs = [[row[name] for name in columns.texts] for row in rows]
    if inputs == 1:
        return [request_bytes("/predict", {"inputs": pair}) for pair in pairs]
    return [request_bytes("/predict", {"inputs": pairs[at : at + inputs]}) for at in range(0, len(pairs) - inputs + 1, inputs)]


def main() -> None:
    """Measure both servers in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--inputs", type=int, default=1, help="pairs in a request")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", help="of glassloop serve")
    args = parser.parse_args()
    requests, options = requests_of(args.run, args.inputs), ["--precision", args.precision] if args.precision else []
    largest: dict[str, list[float]] = {"pipeline": [], "glassloop": []}
    slowest: dict[str, list[float]] = {"pipeline": [], "glassloop": [], "glassloop, half of its own": []}
    for _ in range(args.rounds):
        rate = 0.0
        for name in ("pipeline", "glassloop"):
            with server(name, args.run, args.device, options) as port:
                asyncio.run(closed_loop(port, requests, args.clients, min(3.0, args.seconds)))
                load = asyncio.run(closed_loop(port, requests, args.clients, args.seconds))
                largest[name].append(load.per_second)
                rate = load.per_second / 2 if name == "pipeline" else rate
                half = asyncio.run(open_loop(port, requests, args.clients, args.seconds, rate))
                slowest[name].append(half.percentile(99))
                if name == "glassloop":
                    own = asyncio.run(open_loop(port, requests, args.clients, args.seconds, load.per_second / 2))
                    slowest["glassloop, half of its own"].append(own.percentile(99))
                if load.errors or half.errors:
                    sys.exit(f"{name}: {load.errors + half.errors} requests failed")
                print(
                    f"{name:10} {load.per_second:7.1f} requests/s, p99 {half.percentile(99):7.1f} ms at {rate:.1f}/s",
                    flush=True,
                )
    found = {name: statistics.median(values) for name, values in largest.items()}
    late = {name: statistics.median(values) for name, values in slowest.items()}
    print(f"examples a second: { {name: round(value * args.inputs, 1) for name, value in found.items()} }")
    print(f"requests a second: {found['glassloop'] / found['pipeline']:.2f}x")
    print(f"99th percentile at the same load: 1/{late['pipeline'] / late['glassloop']:.2f}")
    print(json.dumps({"requests_per_second": found, "p99_ms": late}))


if __name__ == "__main__":
    main()
