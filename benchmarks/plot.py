"""Bar charts and Markdown tables of what the benchmarks have written.

    python benchmarks/plot.py charts [NAME.json ...]      # writes docs/images/speed-NAME.svg: ms per step
    python benchmarks/plot.py tables [NAME.json ...]      # prints the tables of docs/reference/speed.md

Without names: the charts that docs has already, the tables of all files of benchmarks/results. Files of one name but for a
number at the end (job-1, job-2) are taken together.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from reports import middle, stage_rows, summary

from glassloop.report.charts import Axis, BarChart, Bars, standalone

HERE = Path(__file__).parent
WIDTH = 640.0
COLORS, THEIRS = {"fast": 0, "plain": 5}, 7  # numbers of colors of the charts


def read(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """What was written, by name; the runs of numbered files together."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(paths):
        name, written = re.sub(r"-\d+$", "", path.stem), json.loads(path.read_text(encoding="utf-8"))
        if "runs" not in written:  # rounding.py's
            continue
        if name in found:
            found[name]["runs"] += written["runs"]
        else:
            found[name] = written
    return found


def bars_of(runs: list[dict[str, Any]]) -> list[tuple[str, str, float]]:
    """Label, kind and median milliseconds per step: the fastest first, or a series as it was run."""
    good = [run for run in runs if run.get("step_ms")]
    series = len({run["point"] for run in good}) > 1
    bars = []
    for point, contender in dict.fromkeys((run["point"], run["contender"]) for run in good):
        mine = [run for run in good if (run["point"], run["contender"]) == (point, contender)]
        label = f"{point}: {mine[0]['title']}" if series else f"{mine[0]['title']}, {mine[0]['precision']}"
        bars.append((label, contender.split("-")[0], middle(mine, "step_ms") or 0.0))
    return bars if series else sorted(bars, key=lambda bar: bar[2])


def chart(title: str, bars: list[tuple[str, str, float]]) -> BarChart:
    """A bar for each contender; bars start at zero, so that twice as long is twice the time."""
    labels, values = [label for label, *_ in bars], [significant(value) for *_, value in bars]
    fastest = min(bars, key=lambda bar: bar[2])
    told = f"{fastest[0]} needs the least time per step, {significant(fastest[2]):g} ms."
    colors = [COLORS.get(kind, THEIRS) for _, kind, _ in bars]
    return BarChart(title, told, labels, [Bars("ms per step", values)], Axis("milliseconds per step"), colors, width=WIDTH)


def significant(value: float) -> float:
    """A time with three digits."""
    return float(f"{value:.3g}")


def machine_of(written: dict[str, Any]) -> str:
    """The machine and the versions in one line."""
    machine, versions = written["machine"], written["versions"]
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    return f"{where}; " + ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)


def markdown(rows: list[dict[str, str]]) -> str:
    """A Markdown table of rows that all have the same columns."""
    if not rows:
        return ""
    sides = ["---" if column in ("point", "contender", "precision", "kind") else "---:" for column in rows[0]]
    lines = [[*rows[0]], sides, *([row.get(column, "") for column in rows[0]] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def kernel_rows(run: dict[str, Any]) -> list[dict[str, str]]:
    """The kinds of kernels of a breakdown, the longest first."""
    kinds = sorted(run["kinds"].items(), key=lambda entry: -entry[1]["us"])
    rows = [{"kind": kind, "µs": f"{found['us']:,.0f}", "launches": f"{found['launches']:.0f}"} for kind, found in kinds]
    rows.append({"kind": "all kernels", "µs": f"{run['kernel_us']:,.0f}", "launches": f"{run['launches']:.0f}"})
    return [*rows, {"kind": "a whole step", "µs": f"{run['step_ms'] * 1000:,.0f}", "launches": ""}]


def print_tables(found: dict[str, dict[str, Any]]) -> None:
    """The tables of all files, each with its machine and command."""
    for name, written in found.items():
        runs = written["runs"]
        print(f"### {written['title']}\n\n`{written['command']}` ({machine_of(written)}, {written['date']}; {name})\n")
        if "note" in written:
            print(f"Note: {written['note']}.\n")
        if runs and "kinds" in runs[0]:
            print(markdown(kernel_rows(runs[0])))
            floor = runs[0]["floor"]
            print(f"Floor: {floor['bytes'] / 1e9:.2f} GB and {floor['flop'] / 1e9:,.0f} GFLOP per step.\n")
            continue
        print(markdown(summary(runs)))
        if "-start" in name or "-scaling" in name:
            print(markdown(stage_rows(runs)))
        for run in runs:
            if "error" in run:
                print(f"{run['contender']} failed: {run['error']}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("charts", "tables"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs" / "images", help="folder for the charts")
    given = parser.parse_args()
    found = read(given.files or [*(HERE / "results").glob("*.json")])
    if given.what == "tables":
        print_tables(found)
        return
    for name, written in found.items():
        bars, path = bars_of(written["runs"]), given.docs / f"speed-{name}.svg"
        if len(bars) < 2 or not (given.files or path.exists()):
            continue
        drawn = standalone(chart(written["title"], bars), below=machine_of(written))
        path.write_text(drawn, encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()
