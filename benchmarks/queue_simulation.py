"""The 99th percentile of a server's answer times, simulated: what a faster forward pass would gain.

    python benchmarks/queue_simulation.py RUN [--rate 27.5] [--overhead 3.3]

Requests of one row arrive at random moments. What arrives during a forward pass is in the next one, as in `glassloop serve`.
A pass takes a fixed time and a time for each token; the lengths of the rows are those of the stored predictions of the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from glassloop.runs.record import predicted_splits, read_predictions

REQUESTS = 200_000
MEAN_TOKENS = 54
# Milliseconds of a pass over a row of 54 tokens on two cores, and the part of them that does not depend on the tokens.
PASSES = {
    "fp32": (10.2, 2.7),
    "int8": (7.4, 3.9),
    "8.7 ms": (8.7, 2.0),
    "7.3 ms": (7.3, 1.2),
    "linear layers alone": (6.2, 0.0),
}


def answer_times(tokens: np.ndarray, rate: float, fixed: float, per_token: float) -> np.ndarray:
    """Return the milliseconds between arrival and end of the forward pass of each request."""
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1_000 / rate, REQUESTS))
    sizes = tokens[np.arange(REQUESTS) % len(tokens)]
    found, free, first = np.empty(REQUESTS), 0.0, 0
    while first < REQUESTS:
        start = max(free, arrivals[first])
        last = int(np.searchsorted(arrivals, start, side="right"))
        free = start + fixed + per_token * sizes[first:last].sum()
        found[first:last] = free - arrivals[first:last]
        first = last
    return found


def main() -> None:
    """Print the median and the 99th percentile for each kind of forward pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rate", type=float, default=27.5, help="requests per second")
    parser.add_argument("--overhead", type=float, default=3.3, help="milliseconds of a request outside the forward pass")
    args = parser.parse_args()
    rows = read_predictions(args.run, predicted_splits(args.run)[0])
    tokens = np.array([float(str(row["tokens"])) for row in rows])
    for name, (whole, fixed) in PASSES.items():
        times = args.overhead + answer_times(tokens, args.rate, fixed, (whole - fixed) / MEAN_TOKENS)
        print(f"{name:20} median {np.percentile(times, 50):5.1f} ms, 99th percentile {np.percentile(times, 99):5.1f} ms")


if __name__ == "__main__":
    main()
