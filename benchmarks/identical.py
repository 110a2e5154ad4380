"""Compare this checkout with another one: do the same commands end in the same losses and the same weights, bit for bit?

    python benchmarks/identical.py --other ../earlier-checkout
    python benchmarks/identical.py --other ../earlier-checkout --jobs graphs,graphs-fp32 --steps 100   (on a GPU)

Each job is one `glassloop train` command, run with the sources of either checkout. Losses, gradient norms, learning rates and
evaluations are compared line by line, weights tensor by tensor. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

HERE = Path(__file__).parent.parent
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
TIMES = ("second", "runtime", "time")  # figures whose names contain one of these are not compared

JOBS: dict[str, tuple[str, ...]] = {
    "plain": ("--backend", "plain"),
    "plain-accumulated": ("--backend", "plain", "--gradient_accumulation_steps", "3", "--group_by_length"),
    "packed": ("--backend", "packed"),
    "packed-accumulated": ("--backend", "packed", "--gradient_accumulation_steps", "3", "--group_by_length"),
    "accelerate": ("--backend", "accelerate"),
    "two-processes": ("--processes", "2"),
    "fsdp-two-processes": ("--processes", "2"),
    "graphs": ("--backend", "graphs", "--precision", "bf16"),
    "graphs-fp32": ("--backend", "graphs", "--precision", "fp32"),
}
ON_A_GPU = ("graphs", "graphs-fp32")


@dataclass(frozen=True)
class Ended:
    """What one run left behind."""

    figures: list[dict[str, float]]
    weights: dict[str, str]  # name -> digest
    steps_per_second: float


def trained(checkout: Path, name: str, steps: int, model: str, folder: Path) -> Ended:
    """Run a job with the sources of `checkout` and return what it left."""
    processes = 2 if "two-processes" in name else 1
    command = [
        *(sys.executable, "-m", "glassloop", "train", "quickstart", "--model", model, "--rows", "600"),
        *("--learning_rate", "5e-5", "--warmup_steps", "0", "--num_train_epochs", "3"),  # earlier checkouts choose no others
        *("--max_steps", str(steps), "--per_device_train_batch_size", str(16 // processes), "--logging_steps", "1"),
        *("--eval_strategy", "steps", "--eval_steps", str(max(2, steps // 2)), "--save_strategy", "no", "--disable_tqdm"),
        *("--output_dir", str(folder), *JOBS[name]),
    ]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": join_paths(checkout / "src"), "CUDA_VISIBLE_DEVICES": "0"}
    if name not in ON_A_GPU:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    environment |= FSDP if "fsdp" in name else {}
    ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    if ended.returncode:
        raise SystemExit(f"{name} with {checkout} exited with status {ended.returncode}:\n{ended.stderr[-2000:]}")
    history = next(iter(sorted(folder.glob("history*"))))
    lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return Ended([compared(line) for line in lines], digests(folder / "model"), record["result"]["train_steps_per_second"])


def join_paths(first: Path) -> str:
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part).name != "src"]
    return os.pathsep.join([str(first.resolve()), *rest])


def compared(line: dict[str, object]) -> dict[str, float]:
    """Return the figures of a line of the history that must not differ."""
    return {
        name: float(value)
        for name, value in line.items()
        if isinstance(value, int | float) and not any(word in name for word in TIMES)
    }


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of each tensor of a saved model."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                found[name] = hashlib.sha256(opened.get_tensor(name).contiguous().view(-1).numpy().tobytes()).hexdigest()
    return found


def differences(ours: Ended, other: Ended) -> list[str]:
    """Return what differs between two runs, in words."""
    found = []
    if len(ours.figures) != len(other.figures):
        found.append(f"{len(ours.figures)} lines of history instead of {len(other.figures)}")
    for number, (here, there) in enumerate(zip(ours.figures, other.figures, strict=False), 1):
        names = [name for name in {*here, *there} if here.get(name) != there.get(name)]
        found += [f"line {number}: {name} is {here.get(name)} instead of {there.get(name)}" for name in sorted(names)]
    names = [name for name in {*ours.weights, *other.weights} if ours.weights.get(name) != other.weights.get(name)]
    return found + ([f"{len(names)} of {len(ours.weights)} tensors differ, e.g. {sorted(names)[0]}"] if names else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--jobs", default=",".join(name for name in JOBS if name not in ON_A_GPU), help="comma-separated")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--repeats", type=int, default=1, help="alternating runs, for the step times")
    options = parser.parse_args()
    failed = False
    names = options.jobs.split(",")
    with tempfile.TemporaryDirectory(prefix="glassloop-") as scratch:
        for name in names:
            runs: dict[str, list[Ended]] = {"ours": [], "other": []}
            for repeat in range(options.repeats):
                for side, checkout in (("other", options.other), ("ours", HERE)):
                    folder = Path(scratch) / f"{name}-{side}-{repeat}"
                    runs[side].append(trained(checkout, name, options.steps, options.model, folder))
            found = [line for ours, other in zip(runs["ours"], runs["other"], strict=True) for line in differences(ours, other)]
            failed |= bool(found)
            speed = {side: statistics.median(run.steps_per_second for run in ended) for side, ended in runs.items()}
            last = runs["ours"][0]
            digest = hashlib.sha256("".join(last.weights.values()).encode()).hexdigest()[:12]
            print(
                f"{name}: {'identical' if not found else 'DIFFERENT'}, {len(last.figures)} lines of history, "
                f"{len(last.weights)} tensors ({digest}), {speed['ours'] / speed['other']:.2f}x the other's speed",
                *found[:10], sep="\n  ", flush=True,
            )  # fmt: skip
    sys.exit(failed)


if __name__ == "__main__":
    main()
