"""Break the package in sixty small ways, one at a time, and see whether the tests notice.

    python benchmarks/breaks.py                     every break
    python benchmarks/breaks.py --room scores       those of one room
    python benchmarks/breaks.py --part 2/6          the second of six parts
    python benchmarks/breaks.py --check             only look whether every text to replace is still there

A break is what a mutation tool would make: an off-by-one, a swapped comparison, a dropped line, a wrong constant. It is made
in a temporary copy of the checkout, where the named tests run until the first failure. Before, they run once without a break:
they must pass, and the time they take sets the limit. A break that makes them run far longer counts as caught. The exit status
is 1 if fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent.parent
PACKAGE = Path("src", "glassloop")
COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks", "deploy", "pyproject.toml", "README.md", "CHANGELOG.md")
WANTED = 0.95  # share of breaks that must be caught
LEAST_SECONDS = 120


@dataclass(frozen=True)
class Break:
    """A text of a source file that is replaced, and the tests that should notice it."""

    room: str
    source: str
    old: str
    new: str
    tests: tuple[str, ...]

    def place(self, root: Path) -> Path | None:
        """Return the one file that has the text once: the source, or, if it was moved, another one; None if there is none."""
        source = root / PACKAGE / self.source
        files = [source] if source.is_file() else []
        if not any(file.read_text(encoding="utf-8").count(self.old) == 1 for file in files):
            files = [path for path in (root / PACKAGE).rglob("*.py") if self.old in path.read_text(encoding="utf-8")]
        return files[0] if len(files) == 1 and files[0].read_text(encoding="utf-8").count(self.old) == 1 else None


def breaks_of(room: str, source: str, tests: str, *changes: tuple[str, str]) -> list[Break]:
    """Return breaks of one file. `tests` are paths below tests/, separated by spaces."""
    paths = tuple(f"tests/{path}" for path in tests.split())
    return [Break(room, source, old, new, paths) for old, new in changes]


BREAKS = [
    *breaks_of(
        "loop", "training/loop.py", "unit/training/test_loop.py",
        ("loss = loss / num_examples", "loss = loss / len(group)"),
        ("state.batch += len(group)", "state.batch += 1"),
        ("step % every == 0", "step % every == 1"),
        ("state.evaluation_due = False", "state.evaluation_due = True"),
        ("    scheduler.step()\n", ""),
        ("state.step >= plan.eval_from", "state.step > plan.eval_from"),
        ("skip=state.batch", "skip=0"),
        ("logits.sum() * 0.0", "logits.sum()"),
        ("state.asked.clear()", "pass"),
    ),
    *breaks_of(
        "loop", "training/callbacks.py", "unit/training/test_callbacks.py",
        ("gain > plan.least_gain", "gain >= plan.least_gain"),
        (">= plan.patience", "> plan.patience"),
    ),
    *breaks_of(
        "loop", "data/batches.py", "unit/data/test_batches.py",
        ("np.random.default_rng((seed, epoch))", "np.random.default_rng(seed)"),
        ("if num_examples % batch_size else", "if not num_examples % batch_size else"),
    ),
    *breaks_of(
        "session", "training/session.py",
        "unit/training/test_session.py unit/test_trainer_training.py faults/test_full_disk.py",
        ('self.best.weights = checkpoint.tensors("best")', "pass"),
        ("if args.load_best_model_at_end and self.best", "if not args.load_best_model_at_end and self.best"),
        ("seed_all(args.seed + backend.processes.rank)", "seed_all(backend.processes.rank)"),
        ("and then == now", "and then != now"),
        ("free < needed", "free > needed"),
        ("divmod(step - 1 +", "divmod(step +"),
        ("            refuse_not_finite_weights(self.bare.state_dict(), state.step)\n", ""),
    ),
    *breaks_of(
        "checkpoints", "training/checkpoints.py", "unit/training/test_checkpoints.py",
        ("st_size != size or sha256_of(file) != digest", "st_size != size and sha256_of(file) != digest"),
        ("older[max(keep - 1, 0) :]", "older[max(keep, 0) :]"),
        ("if step_of(path) != best_step:", "if step_of(path) == best_step:"),
        ("self.verified[path] = False", "self.verified[path] = True"),
        ("    random.setstate((version, tuple(values), gauss))\n", ""),
        ("torch.where(stored_rows == 0,", "torch.where(stored_rows != 0,"),
        ("version > FORMAT", "version < FORMAT"),
    ),
    *breaks_of(
        "packed", "backends/packed.py",
        "unit/backends/test_packed.py unit/backends/test_admission.py contract/test_fast_numbers.py",
        ("found[order] = logits", "found[:] = logits"),
        ('self.precision == "fp16"', 'self.precision != "fp16"'),
        ("lcm(collate.multiple, LENGTH_MULTIPLE)", "max(collate.multiple, LENGTH_MULTIPLE)"),
        ("if self.use.reads_weights:", "if not self.use.reads_weights:"),
    ),
    *breaks_of(
        "packed", "backends/fast/packing.py", "unit/fast/test_packing.py unit/fast/test_training_model.py",
        ("[self.sequences + 1, rows, self.sequences + 1]", "[self.sequences, rows, self.sequences + 2]"),
        (">= lengths[:, None].clamp(min=1)", "> lengths[:, None].clamp(min=1)"),
        ("np.where(words != uncounted, counts", "np.where(words == uncounted, counts"),
    ),
    *breaks_of(
        "scores", "scores/statistics.py", "unit/scores/test_intervals.py",
        ("(number - 1) / number * (centered", "number / (number - 1) * (centered"),
        ("2 * (hits - 1), total - 2)", "2 * (hits - 1), total - 1)"),
        ("-(len(self.changes) - 1)", "(len(self.changes) - 1)"),
        ("(both == 1) @ wrong", "(both == 1) @ right"),
    ),
    *breaks_of(
        "scores", "scores/statistics.py", "unit/scores/test_comparisons.py",
        ("2 * float(bdtr(", "float(bdtr("),
        ("(only_first + 1) / (number + 2), (", "only_first / (number + 2), ("),
        ("rows + b * b", "rows - b * b"),
    ),
    *breaks_of(
        "scores", "scores/metrics.py", "unit/scores/test_metrics.py",
        (">= threshold", "> threshold"),
        ("wrong |= rows == -100", "wrong |= rows == -1"),
        ('average="macro", labels=[positive]', 'average="macro", labels=[0]'),
    ),
    *breaks_of(
        "readers", "data/readers.py", "unit/data/test_readers.py contract/test_awkward_files.py",
        ("if len(row) != len(columns)", "if len(row) < len(columns)"),
        ('suffix != ".tsv" and not', 'suffix == ".tsv" and not'),
        ("len(found) < len(pairs)", "len(found) > len(pairs)"),
        ("== 1 < sum(map(bool, rows[1][1]))", "== 2 < sum(map(bool, rows[1][1]))"),
        ("head[1:] if has_header else head", "head if has_header else head[1:]"),
        ("range(1, len(first) + 1)", "range(len(first))"),
    ),
    *breaks_of(
        "serving", "serve/batching.py", "unit/serve/test_batching.py",
        ("now > entry.job.deadline", "now < entry.job.deadline"),
        ("tokens + size > self.budget", "tokens + size >= self.budget"),
        ("job.arrived + tokens * self.seconds_per_token", "job.arrived - tokens * self.seconds_per_token"),
        ("self.waiting_tokens -= tokens", "self.waiting_tokens += tokens"),
    ),
    *breaks_of(
        "serving", "serve/app.py", "unit/serve",
        ("len(rows) > limits.max_inputs", "len(rows) >= limits.max_inputs"),
        ("top < 1", "top < 0"),
    ),
    *breaks_of(
        "compat", "compat/arguments.py", "unit/compat/test_arguments.py",
        ('stored["precision"] == "fp16"', 'stored["precision"] == "bf16"'),
        ('or stored["eval_strategy"] != "no"', 'or stored["eval_strategy"] == "no"'),
        ("cache > 0", "cache >= 0"),
    ),
    *breaks_of(
        "compat", "compat/trainer.py", "unit/compat/test_callbacks.py contract/test_scripts.py",
        ("loop.epoch + loop.batch / plan.batches_per_epoch", "loop.epoch + loop.step / plan.batches_per_epoch"),
        ("-(-plan.max_steps // plan.steps_per_epoch)", "plan.max_steps // plan.steps_per_epoch"),
    ),
    *breaks_of(
        "compat", "compat/trainer.py", "unit/compat/test_trainer.py contract/test_scripts.py",
        (" * chosen.gradient_accumulation_steps *", " *"),
        ("(logits_of(outputs).float(), labels) / len(labels)", "(logits_of(outputs).float(), labels)"),
    ),
]  # fmt: skip


def run_tests(root: Path, tests: tuple[str, ...], limit: float) -> int | None:
    """Return the exit status of pytest in a copy of the checkout; None if it ran longer than `limit` seconds."""
    options = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not exhaustive")
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        command = [sys.executable, "-m", "pytest", *options, *tests]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def outcome_of(one: Break, root: Path, limits: dict[tuple[str, ...], float]) -> str:
    """Make one break, run its tests, undo it, and return what happened. `limits` keeps the time of tests that passed before."""
    path = one.place(root)
    if path is None:
        return "does not apply"
    if one.tests not in limits:
        began = time.monotonic()
        if (status := run_tests(root, one.tests, 1800)) != 0:
            return f"tests fail without a break (status {status})"
        limits[one.tests] = LEAST_SECONDS + 4 * (time.monotonic() - began)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(one.old, one.new), encoding="utf-8")
    try:
        status = run_tests(root, one.tests, limits[one.tests])
    finally:
        path.write_text(text, encoding="utf-8")
    return {0: "NOT CAUGHT", 1: "caught", 2: "caught", None: "caught (endless)"}.get(
        status, f"pytest ended with status {status}"
    )


def main() -> int:
    """Make the chosen breaks, print a line for each, and return the exit status."""
    parser = argparse.ArgumentParser(description="Break the package in small ways, and see whether the tests notice.")
    parser.add_argument("--room", choices=sorted({one.room for one in BREAKS}))
    parser.add_argument("--part", default="1/1", help="NUMBER/PARTS, from 1/PARTS on")
    parser.add_argument("--check", action="store_true", help="only look whether the breaks apply")
    given = parser.parse_args()
    number, parts = map(int, given.part.split("/"))
    rest = [one for one in BREAKS if given.room in (None, one.room)]
    chosen = rest[len(rest) * (number - 1) // parts : len(rest) * number // parts]
    if given.check:
        lost = [one for one in chosen if one.place(HERE) is None or not all((HERE / path).exists() for path in one.tests)]
        print(*(f"{one.source}: {one.old!r}, or its tests, are gone" for one in lost), f"{len(chosen)} breaks", sep="\n")
        return 1 if lost else 0
    limits: dict[tuple[str, ...], float] = {}
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy2
            copy(HERE / name, root / name)
        for one in chosen:
            outcome = outcome_of(one, root, limits)
            caught += outcome.startswith("caught")
            print(f"{outcome:<18} {one.source}: {one.old.strip()!r} -> {one.new.strip()!r}", flush=True)
    print(f"{caught} of {len(chosen)} breaks were caught")
    return 0 if caught >= WANTED * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
