"""A study of 24 settings x 5 seeds of MiniLM on MRPC, by halving and by grid: time, choice, and whether they agree.

    python benchmarks/study.py --data GLUE [--minilm FOLDER] [--out results] [--strategies halving,grid]

GLUE is the folder that holds MRPC. Runs `glassloop study` as a user would, each strategy in a new folder, and writes one JSON
file with the seconds of each, the chosen setting, the selection and validation scores of all, and the test score.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VARIED = {"learning_rate": "2e-5,5e-5,1e-4,2e-4", "per_device_train_batch_size": "8,16,32", "warmup_steps": "0,0.1"}
MOST_SECONDS = 360  # what the halving study may take on an H200


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", help="a GLUE folder that holds MRPC; by default the quickstart pairs")
    found.add_argument("--minilm", default="quickstart", help="the folder of MiniLM; by default the packaged one")
    found.add_argument("--out", type=Path, default=HERE / "results", help="folder of the result")
    found.add_argument("--work", type=Path, help="folder for the studies; by default a temporary one")
    found.add_argument("--strategies", default="halving,grid")
    found.add_argument("--seeds", type=int, default=5)
    found.add_argument("--epochs", type=float, default=3)
    found.add_argument("--at_once", type=int, help="runs at a time; by default as many as fit and have enough to train")
    found.add_argument("--vary", action="append", help="name=values instead of the 24 settings")
    return found


def command_of(given: argparse.Namespace, strategy: str, folder: Path) -> list[str]:
    source = ["glue/mrpc", "--data_dir", given.data] if given.data else ["quickstart"]
    varied = given.vary or [f"{name}={values}" for name, values in VARIED.items()]
    words = [sys.executable, "-m", "glassloop", "study", *source, "--model", given.minilm, "--strategy", strategy]
    words += [word for text in varied for word in ("--vary", text)]
    words += ["--seeds", str(given.seeds), "--num_train_epochs", str(given.epochs), "--output_dir", str(folder), "--json"]
    return words + (["--at_once", str(given.at_once)] if given.at_once else [])


def measured(given: argparse.Namespace, strategy: str, folder: Path) -> dict[str, Any]:
    """Run one study; its content, and the seconds of the whole command."""
    began = time.perf_counter()
    ended = subprocess.run(command_of(given, strategy, folder), stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    if ended.returncode not in (0, 1) or not ended.stdout.strip():
        sys.exit(f"{strategy}: exit status {ended.returncode} after {seconds:.0f} s")
    found = json.loads(ended.stdout)
    runs = json.loads((folder / "study.json").read_text(encoding="utf-8"))["runs"].values()
    found["workers"] = {  # what all workers spent together, and how much of it before training started
        "parts": sum(max(1, len(run["rungs"]) + (run["status"] == "finished")) for run in runs),
        "seconds": sum(run["seconds"] for run in runs),
        "preparing": sum(run["preparing"] for run in runs),
    }
    if not given.work:
        shutil.rmtree(folder)  # 120 checkpoints and models of MiniLM are 30 GB
    return {"strategy": strategy, "command_seconds": seconds, "exit_status": ended.returncode, **found}


def agreement(found: list[dict[str, Any]]) -> str:
    """Whether all strategies chose the same setting, and if not, how far the choices are apart by the grid's figures."""
    chosen = {one["strategy"]: one.get("chosen") for one in found}
    if len({*chosen.values()}) == 1:
        return f"all strategies chose {next(iter(chosen.values()))}"
    grid = next((one for one in found if one["strategy"] == "grid"), found[0])
    rows = {row["name"]: row for row in grid["settings"]}
    parts = []
    for strategy, name in chosen.items():
        row = rows.get(name) or {}
        verdict = (row.get("comparison") or {}).get("verdict", "chosen by grid")
        parts.append(f"{strategy} chose {name} (selection {row.get('selection')}, against grid's choice: {verdict})")
    return "; ".join(parts)


def machine() -> dict[str, Any]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version(), "gpu": gpu}


def versions() -> dict[str, str]:
    found = {}
    for name in ("glassloop", "torch", "transformers", "datasets", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    given = parser().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        found = [measured(given, name, work / f"study-{name}") for name in given.strategies.split(",")]
    report = {
        "title": f"study: MiniLM, {given.seeds} seeds", "machine": machine(), "versions": versions(),
        "date": time.strftime("%Y-%m-%d"), "command": f"python benchmarks/study.py {' '.join(sys.argv[1:])}",
        "agreement": agreement(found), "studies": found,
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"study-{'gpu' if report['machine']['gpu'] else 'cpu'}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for one in found:
        limit = f" (limit {MOST_SECONDS} s)" if one["strategy"] == "halving" else ""
        print(f"{one['strategy']}: {one['command_seconds']:.0f} s{limit}, chose {one.get('chosen')}")
        workers = one["workers"]
        parts, seconds, preparing = workers["parts"], workers["seconds"], workers["preparing"]
        print(f"  {parts} parts of runs, {seconds / parts:.2f} s each, {preparing / parts:.2f} s of which before training")
    print(report["agreement"])
    print(path)


if __name__ == "__main__":
    main()
