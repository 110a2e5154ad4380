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
from html import escape
from pathlib import Path
from typing import Any

from reports import middle, stage_rows, summary

HERE = Path(__file__).parent
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 760, 280, 70, 20, 8, 46
OURS, PLAIN, THEIRS = "#0b7285", "#66a9b5", "#adb5bd"


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


def chart(title: str, below: str, bars: list[tuple[str, str, float]]) -> str:
    """An SVG with a bar for each contender; bars start at zero, so that twice as long is twice the time."""
    most = max(value for *_, value in bars) * 1.1
    step = next(size for size in (10**power * part for power in range(-3, 6) for part in (1, 2, 5)) if most / size <= 6)
    height = TOP + len(bars) * (BAR + GAP) + 44

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    bottom = TOP + len(bars) * (BAR + GAP)
    for tick in (step * number for number in range(int(most / step) + 1)):
        place = across(tick)
        lines.append(f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{TOP - 4}" y2="{bottom}" stroke="#e9ecef"/>')
        lines.append(f'<text x="{place:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#495057">{tick:g}</text>')
    for number, (label, kind, value) in enumerate(bars):
        y, colour = TOP + number * (BAR + GAP), {"fast": OURS, "plain": PLAIN}.get(kind, THEIRS)
        text = f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
        lines.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{across(value) - LEFT:.1f}" height="{BAR}" fill="{colour}"/>')
        lines.append(f'<text x="{across(value) + 6:.1f}" y="{y + 15}">{text}</text>')
    lines.append(f'<text x="{LEFT}" y="{bottom + 34}" fill="#495057">{escape(below)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


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
        path.write_text(chart(f"Milliseconds per step: {written['title']}", machine_of(written), bars), encoding="utf-8")
        print(path.name)


if __name__ == "__main__":
    main()
