"""Runs jobs in turn, each in a fresh process; writes every figure to one JSON file and shows the medians."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs import EXTRAS, SEED, TITLES, Job

HERE = Path(__file__).parent
STARTED, RESULT = "BENCHMARK_STARTED", "RESULT "
VERSIONS = ("torch", "transformers", "accelerate", "datasets", "lightning", "triton")
LEEWAY = 120  # seconds that the last job may take beyond the budget
Run = dict[str, Any]


def known(text: str) -> str:
    """Names of contenders, as they were given; an error where there is no such kind."""
    for name in text.split(","):
        if name.split("-")[0] not in TITLES:
            raise argparse.ArgumentTypeError(f"{name}: the kinds are {', '.join(TITLES)}")
    return text


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """The flags that all benchmarks take."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a GLUE folder that holds MRPC; by default the quickstart pairs")
    parser.add_argument("--synthetic", type=int, default=0, metavar="ROWS", help="rows of random tokens instead")
    parser.add_argument("--length", type=int, default=128, help="tokens of a random row")
    parser.add_argument("--model", help="minilm, base, large, or a folder")
    parser.add_argument("--minilm", default="quickstart", help="the folder of MiniLM; by default the packaged one")
    parser.add_argument("--tokenizer", help="the folder of the tokenizer for base and large; by default that of --minilm")
    parser.add_argument("--contenders", type=known, help="separated by commas: kind[-precision][-" + "|-".join(EXTRAS) + "]")
    parser.add_argument("--repeats", type=int, default=3, help="times that all contenders are run, in turn")
    parser.add_argument("--steps", type=int, help="steps of each run")
    parser.add_argument("--weights", type=int, default=SEED, metavar="SEED", help="of random weights")
    parser.add_argument("--ramp", type=int, default=0, metavar="STEPS", help="over which the rate rises first")
    parser.add_argument("--no_dropout", action="store_true", help="so that losses can be compared")
    parser.add_argument("--name", help="of the file; by default from mode, device and model")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the file")
    parser.add_argument("--budget", type=float, default=3600, help="seconds after which no further job is started")
    return parser


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """The settings of a job that the flags give."""
    names = {"data": given.data, "synthetic": given.synthetic, "length": given.length, "minilm": given.minilm}
    names |= {"tokenizer": given.tokenizer or given.minilm, "no_dropout": given.no_dropout}
    return names | {"weights": given.weights, "ramp": given.ramp}


def run_child(job: Job, limit: float) -> Run:
    """One job in a process of its own, for `limit` seconds at most. Where it fails, what it said last."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if job.cold:
            environment["GLASSLOOP_CACHE"] = cache
        words = json.dumps(job.to_dict())
        began = time.time()
        command = [sys.executable, str(HERE / "contenders.py"), words]
        try:
            done = subprocess.run(
                command, env={**environment, STARTED: str(began)}, capture_output=True, text=True, timeout=limit
            )
            written, said = done.stdout.splitlines(), done.stderr.splitlines() or [f"exit {done.returncode}"]
        except subprocess.TimeoutExpired:
            written, said = [], [f"took longer than {limit:.0f} s"]
    line = next((line for line in written if line.startswith(RESULT)), None)
    facts: Run = {
        "contender": job.contender,
        "title": job.title,
        "precision": job.precision,
        "point": job.point,
        "job": settings(job),
    }
    if line is None:
        print("\n".join(said[-20:]), file=sys.stderr, flush=True)
        return {**facts, "error": without_paths(" | ".join([line for line in said if line.strip()][-2:]))}
    found: Run = json.loads(line.removeprefix(RESULT))
    blocks = found["blocks_ms"]
    found["step_ms"] = statistics.median(blocks) if blocks else None
    if found["step_ms"] and job.steps:  # slow contenders run fewer steps; the rest is computed
        found["job_seconds"] = found["seconds"] + (job.total - job.steps) * found["step_ms"] / 1000
    return {**facts, **found}


def settings(job: Job) -> dict[str, Any]:
    """A job as it is written down: without folders of this machine."""
    return {name: last_name(value) if isinstance(value, str) else value for name, value in job.to_dict().items()}


def last_name(word: str) -> str:
    """A path's last name, also after a flag and =."""
    return re.sub(r"[^=]*/", "", word.rstrip("/"))


def without_paths(text: str) -> str:
    return re.sub(r"(?<![\w:])/(?:[^\s/\"':]+/)*", "", text)


def can_run(job: Job) -> bool:
    return job.kind != "lightning" or importlib.util.find_spec("lightning") is not None


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {"cpu": name, "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    import glassloop

    found = {"glassloop": glassloop.__version__}  # also where it is not installed
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Report:
    """Runs jobs and keeps their figures; the file is written after each, so that nothing is lost."""

    def __init__(self, given: argparse.Namespace, name: str, title: str) -> None:
        self.path = given.out / f"{given.name or name}.json"
        self.ends = time.time() + given.budget
        words = [last_name(word) for word in sys.argv]
        self.facts: dict[str, Any] = {"title": title, "machine": machine(), "versions": versions(), "date": time.strftime("%F")}
        self.facts["command"] = " ".join(["python", f"benchmarks/{words[0]}", *words[1:]])
        self.runs: list[Run] = []

    def run(self, jobs: Iterable[Job], repeats: int = 1) -> None:
        """All jobs in turn, so many times."""
        able = []
        for job in jobs:
            if can_run(job):
                able.append(job)
            else:
                print(f"{job.contender}: left out, {job.kind} is not installed", flush=True)
        for repeat in range(repeats):
            for job in able:
                if time.time() > self.ends:
                    print("out of time: the rest is left out", flush=True)
                    return
                began = time.time()
                self.add({"repeat": repeat, **run_child(job, self.ends - began + LEEWAY)}, time.time() - began)

    def add(self, found: Run, seconds: float) -> None:
        self.runs.append(found)
        self.write()
        speed = f"{found['step_ms']:.2f} ms a step" if found.get("step_ms") else ""
        words = [found["point"], found["contender"], speed, f"{seconds:.0f} s", found.get("error", "")]
        print("  ".join(word for word in words if word), flush=True)

    def write(self, **more: Any) -> None:
        gpus = {str(run["gpu"]) for run in self.runs if run.get("gpu")}
        self.facts["machine"]["gpu"] = ", ".join(sorted(gpus))
        self.facts |= more
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps(self.facts, indent=1, ensure_ascii=False).removesuffix("\n}")
        lines = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in self.runs)
        self.path.write_text(f'{head},\n "runs": [\n  {lines}\n ]\n}}\n', encoding="utf-8")

    def show(self) -> None:
        """The medians as a table on the terminal."""
        print_table(summary(self.runs), self.facts["title"])
        print(f"{self.path.name}: every figure of {len(self.runs)} runs")


def middle(runs: list[Run], name: str) -> float | None:
    values = [run[name] for run in runs if run.get(name) is not None]
    return statistics.median(values) if values else None


def spread(runs: list[Run], name: str, digits: int) -> str:
    """The median, and the lowest and highest of several."""
    values = [run[name] for run in runs if run.get(name) is not None]
    if not values:
        return "–"
    text = f"{statistics.median(values):,.{digits}f}"
    return f"{text} ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if len(values) > 1 else text


def best_prediction(runs: list[Run]) -> str:
    """The most examples a second, and the batch size that gave them."""
    sizes = {size for run in runs for size in run.get("examples_per_second", {})}
    rates = {size: statistics.median(run["examples_per_second"][size] for run in runs) for size in sizes}
    return f"{max(rates.values()):,.0f} ({max(rates, key=lambda size: rates[size])})" if rates else "–"


def parity(runs: list[Run], reference: list[float]) -> str:
    """The largest difference of losses from those of the reference over the first steps."""
    losses = runs[0].get("losses", [])
    shared = min(len(losses), len(reference))
    if not shared:
        return "–"
    return f"{max(abs(mine - theirs) for mine, theirs in zip(losses[:shared], reference[:shared], strict=True)):.1e}"


def summary(runs: list[Run]) -> list[dict[str, str]]:
    """A row of words for each contender of each point; columns without a figure are left out."""
    good = [run for run in runs if "error" not in run]
    keys = list(dict.fromkeys((run["point"], run["contender"]) for run in good))
    rows = []
    for point, contender in keys:
        mine = [run for run in good if (run["point"], run["contender"]) == (point, contender)]
        beside = [run for run in good if run["point"] == point and run.get("losses")]
        unmodified = [
            run for run in beside if run["title"] == TITLES["notes"] and run["precision"] == mine[0]["precision"]
        ] or beside
        digits = 1 if (middle(mine, "step_ms") or 0) > 20 else 2
        row = {"point": point, "contender": mine[0]["title"], "precision": mine[0]["precision"]}
        row["ms a step"] = spread(mine, "step_ms", digits)
        computed = mine[0]["job"]["steps"] < mine[0]["job"]["schedule"]
        row["whole job, s"] = ("≈ " if computed else "") + spread(mine, "job_seconds", 1)
        row["process, MB"] = spread(mine, "process_mb", 0).split(" ")[0]
        row["GPU, MB (reserved)"] = "–"
        if middle(mine, "allocated_mb"):
            row["GPU, MB (reserved)"] = f"{middle(mine, 'allocated_mb'):,.0f} ({middle(mine, 'reserved_mb'):,.0f})"
        row["examples/s (batch)"] = best_prediction(mine)
        dropout = not mine[0]["job"]["no_dropout"]
        row["losses differ by"] = "–" if dropout or not unmodified else parity(mine, unmodified[0]["losses"])
        exact = [run for run in beside if run["precision"] == "fp64"]
        row["from fp64's by"] = "–" if dropout or not exact else parity(mine, exact[0]["losses"])
        rows.append(row)
    empty = [column for column in (rows[0] if rows else ()) if all(row[column].strip("≈ –") == "" for row in rows)]
    return [{column: value for column, value in row.items() if column not in empty} for row in rows]


def stage_rows(runs: list[Run]) -> list[dict[str, str]]:
    """Median seconds of each stage, a row for each contender of each point."""
    good = [run for run in runs if "error" not in run]
    rows = []
    for point, contender in dict.fromkeys((run["point"], run["contender"]) for run in good):
        mine = [run for run in good if (run["point"], run["contender"]) == (point, contender)]
        row = {"point": point, "contender": mine[0]["title"], "precision": mine[0]["precision"]}
        for stage in mine[0]["stages"]:
            row[stage] = f"{statistics.median(run['stages'][stage] for run in mine):.2f}"
        rows.append(row | {"all": f"{statistics.median(run['seconds'] for run in mine):.1f}"})
    return rows


def show_stages(runs: list[Run]) -> None:
    """Seconds by stage as a table on the terminal."""
    print_table(stage_rows(runs), "seconds by stage")


def print_table(rows: list[dict[str, str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if column in ("contender", "point", "precision") else "right")
    for row in rows:
        table.add_row(*row.values())
    Console(width=None if sys.stdout.isatty() else 160).print(table)
