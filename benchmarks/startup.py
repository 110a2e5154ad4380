"""How long a person waits: `--help`, the first line, the answer of `predict`, and the first training step, as multiples of
`import torch` on the same machine.

    python benchmarks/startup.py [--source src ...] [--repeats 5]

The cases take turns, so that a busy moment of the machine hits all of them, and the table shows medians. With several --source
folders (checkouts of this package) it compares them. The first round trains a short run to predict with, and fills the caches;
it is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "src"
TORCH = "import torch"


def started(arguments: list[str], source: Path, folder: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": str(source), "GLASSLOOP_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, *arguments], env=variables, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def seconds_until(text: str | None, arguments: list[str], source: Path, folder: Path) -> float:
    """Seconds until a line that begins with `text` is printed ("" is any line), or until the process ends (None)."""
    began = time.perf_counter()
    with started(arguments, source, folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if text is not None and line.startswith(text):
                seconds = time.perf_counter() - began
                process.kill()
                return seconds
        process.wait()
        seconds = time.perf_counter() - began
        assert text is None, f"{arguments} never printed {text}"
        assert process.returncode == 0, f"{arguments} ended with status {process.returncode}"
        return seconds


def train_arguments(run: str) -> list[str]:
    return ["-m", "glassloop", "train", "quickstart", "--output_dir", run, "--logging_steps", "1"]


def cases(run: Path) -> dict[str, tuple[str | None, list[str]]]:
    """What is measured: the line it ends with, and the command."""
    command = ["-m", "glassloop"]
    fresh = f"run-{time.time_ns()}"
    return {
        "--help": (None, [*command, "--help"]),
        "first line of train": ("", train_arguments(f"{fresh}-a")),
        "answer of predict": (None, [*command, "predict", str(run), "a text", "another text"]),
        "first training step": ("step 1/", train_arguments(f"{fresh}-b")),
    }


def prepared(source: Path, folder: Path) -> Path:
    """A run to predict with, trained for one step."""
    run = folder / "run"
    seconds_until(None, [*train_arguments(str(run)), "--max_steps", "1"], source, folder)
    return run


def measure(sources: list[Path], repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="startup-") as scratch:
        folders = {source: Path(scratch) / str(number) for number, source in enumerate(sources)}
        for folder in folders.values():
            folder.mkdir()
        runs = {source: prepared(source, folder) for source, folder in folders.items()}
        found: dict[tuple[str, Path | None], list[float]] = {}
        for _ in range(repeats):
            torch = seconds_until(None, ["-c", TORCH], HERE, Path(scratch))
            found.setdefault((TORCH, None), []).append(torch)
            for source, folder in folders.items():
                for name, (text, arguments) in cases(runs[source]).items():
                    found.setdefault((name, source), []).append(seconds_until(text, arguments, source, folder))
    unit = statistics.median(found[TORCH, None])
    print(f"\n{'':<22}{'source':<40}{'seconds':>9}{'x torch':>9}")
    for (name, source), times in found.items():
        middle = statistics.median(times)
        print(f"{name:<22}{source or ''!s:<40}{middle:>9.2f}{middle / unit:>9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", nargs="+", type=lambda text: Path(text).resolve(), default=[HERE])
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    measure(chosen.source, chosen.repeats)


if __name__ == "__main__":
    main()
