"""Damage data files, settings, run folders, checkpoints and caches at random: no traceback, no hang, no silent change.

    python benchmarks/fuzz.py --cases 5000 --seed 1
    python benchmarks/fuzz.py --seed 1 --case 123

Each case damages a copy of something valid, runs commands on it in a forked child with limits on time and memory, and looks at
how they ended. A command may refuse with its exit code and two lines, or accept; what it accepts must give the answer of the
undamaged files, or for data the rows, labels and scores that an independent reader finds, or for settings what they say. Sound
data and a run with stray files must be accepted. Forged runs, whose checksums were made good again, have no such answer; only
an ejected script is checked to contain no code of theirs. Everything else is a failure. A case depends on the seed and its
number only, so that `--case` repeats it alone.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import fuzzing.environment  # noqa: F401 - first of all
from fuzzing.bench import Bench
from fuzzing.caches import fuzz_cache
from fuzzing.cases import ACCEPTED, EQUAL, FAILED, REFUSED, REPORTED, Case, Verdict, in_child
from fuzzing.data_files import fuzz_data
from fuzzing.run_folders import fuzz_checkpoint, fuzz_forged, fuzz_run
from fuzzing.settings import fuzz_settings

KINDS = {
    "data": fuzz_data,
    "settings": fuzz_settings,
    "run": fuzz_run,
    "forged": fuzz_forged,
    "checkpoint": fuzz_checkpoint,
    "cache": fuzz_cache,
}
SHARES = [*["data"] * 11, "settings", *["run"] * 3, *["forged"] * 3, "checkpoint", "cache"]  # of twenty; a resume takes longest
OUTCOMES = {
    REFUSED: "refused",
    EQUAL: "accepted and equal",
    REPORTED: "accepted and reported",
    ACCEPTED: "accepted, not compared",
    FAILED: "failures",
}


def kind_of(number: int) -> str:
    return SHARES[number % len(SHARES)]


def run_case(number: int, seed: int, kind: str, bench: Bench) -> Verdict:
    case = Case(f"{kind} {number}", bench.folder / f"case-{number}", random.Random(f"{seed}/{kind}/{number}"))
    return in_child(case, lambda case: KINDS[kind](case, bench))


def show(number: int, seed: int, kind: str, verdict: Verdict) -> None:
    print(f"\ncase {number} ({kind}): {'; '.join(verdict.done)[:500]!a}\n  {verdict.detail.strip()}", flush=True)
    print(f"  again: python benchmarks/fuzz.py --seed {seed} --kind {kind} --case {number}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--kind", choices=KINDS, help="cases of one kind only")
    parser.add_argument("--case", type=int, help="repeat this case alone")
    parser.add_argument("--shown", type=int, default=3, help="failures with one cause to show in full")
    parser.add_argument("--verbose", action="store_true", help="a line for every case")
    chosen = parser.parse_args()
    numbers = [chosen.case] if chosen.case is not None else range(chosen.first, chosen.first + chosen.cases)
    began, counts, causes = time.monotonic(), {kind: Counter[str]() for kind in KINDS}, Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="glassloop-fuzz-"))
    try:
        bench = Bench(folder)
        gc.freeze()  # children do not touch, and so not copy, what was there before them
        print(f"seed {chosen.seed}, {len(numbers):,} cases; ready after {time.monotonic() - began:.0f} s", flush=True)
        for place, number in enumerate(numbers, 1):
            kind = chosen.kind or kind_of(number)
            verdict = run_case(number, chosen.seed, kind, bench)
            counts[kind][verdict.outcome] += 1
            if chosen.case is not None or chosen.verbose:
                print(
                    f"case {number} ({kind}): {verdict.outcome}: {'; '.join(verdict.done)[:300]!a}: {verdict.detail[:300]!a}",
                    flush=True,
                )
            if verdict.outcome == FAILED:
                causes[verdict.signature] += 1
                if causes[verdict.signature] <= chosen.shown:
                    show(number, chosen.seed, kind, verdict)
                else:
                    print(f"case {number} ({kind}): {verdict.signature!a}", flush=True)
            if place % 250 == 0:
                print(f"{place:,} cases, {time.monotonic() - began:.0f} s, {causes.total()} failures", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(counts, causes, chosen.seed, time.monotonic() - began)
    sys.exit(bool(causes))


def report(counts: dict[str, Counter[str]], causes: Counter[str], seed: int, seconds: float) -> None:
    """The table: how many cases of each kind ended how."""
    print(f"\nseed {seed}, {seconds:.0f} s")
    print(f"{'kind':<12}{'cases':>8}" + "".join(f"{title:>{len(title) + 3}}" for title in OUTCOMES.values()))
    for kind, found in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        figures = "".join(f"{found[outcome]:>{len(title) + 3},}" for outcome, title in OUTCOMES.items())
        print(f"{kind:<12}{found.total():>8,}{figures}")
    for cause, number in causes.most_common():
        print(f"{number:>6} × {cause!a}")


if __name__ == "__main__":
    main()
