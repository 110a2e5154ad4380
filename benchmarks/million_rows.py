"""A million generated pairs as one CSV file: read, checked, tokenized, batched; seconds and peak memory of each stage."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_csv(path: Path, num_rows: int) -> None:
    from glassloop.data.quickstart import LABEL_NAMES, generate_pairs

    with path.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["sentence1", "sentence2", "label"])
        writer.writerows((first, second, LABEL_NAMES[label]) for first, second, label in generate_pairs(num_rows, seed=0))


def run_stages(path: Path) -> None:
    """One process from the file to the last batch, as a run would go; prints one JSON line."""
    from glassloop import Batches, PaddingCollator, encode, load_examples, load_tokenizer

    figures: dict[str, object] = {}
    began = time.perf_counter()

    def stage(name: str) -> None:
        nonlocal began
        figures[name] = [round(time.perf_counter() - began, 1), round(peak_megabytes())]
        began = time.perf_counter()

    tokenizer = load_tokenizer("quickstart")
    stage("start")
    examples = load_examples(str(path))
    stage("read and check")
    encoding = encode(examples, tokenizer, 128)["train"]
    stage("tokenize")
    batches = Batches(encoding.rows, PaddingCollator(tokenizer), 32, seed=0, group_by_length=True)
    num_rows = sum(batch.size for batch in batches.epoch())
    stage("batch (one epoch of 32, grouped by length)")
    figures["rows"] = {name: fact.num_rows for name, fact in examples.facts.items()}
    figures["batched"] = num_rows
    figures["notes"] = examples.notes
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--stages", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stages:
        run_stages(arguments.stages)
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "pairs.csv"
        began = time.perf_counter()
        write_csv(path, arguments.rows)
        seconds = time.perf_counter() - began
        print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
        print(f"{arguments.rows:,} pairs generated and written in {seconds:.0f} s: {path.stat().st_size / 1e6:,.0f} MB")
        for turn in ("first run", "second run (cached)"):
            environment = {**os.environ, "GLASSLOOP_CACHE": f"{scratch}/cache"}
            command = [sys.executable, __file__, "--stages", str(path)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            figures = json.loads(done.stdout.splitlines()[-1])
            print(f"\n{turn}: rows {figures.pop('rows')}, batched {figures.pop('batched'):,}, notes {figures.pop('notes')}")
            for name, (seconds, peak) in figures.items():
                print(f"  {name:<45} {seconds:>7.1f} s   peak so far {peak:>6,} MB")


if __name__ == "__main__":
    main()
