"""Kill studies at random moments and continue them: how many end exactly as the study that was never disturbed.

    python benchmarks/study_kills.py --kills 10 --seed 1

A trial starts a study by halving (three settings, one of which diverges, two seeds, two workers) with a tiny model and kills
it with SIGKILL up to three times: the study with its workers, the study alone, or one worker. Then it runs to its end and is
compared with the undisturbed study: choice, results, test evaluations, tables, the scores of each run, its weights, history and
predictions, and the checkpoints of stopped runs, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from killed_studies import KINDS, StudyBench, study_differences

MOST_KILLS = 3  # of one study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="kills in all")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the moments")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench, kills, wrong, trials = StudyBench(Path(scratch), chosen.seed), Counter[str](), 0, 0
        bench.to_the_end("undisturbed")
        seconds = bench.to_the_end("again")
        print(f"seed {chosen.seed}; an undisturbed study takes {seconds:.0f} s", flush=True)
        while kills.total() < chosen.kills:
            name, done = f"killed-{trials}", list[str]()
            for _ in range(bench.chance.randint(1, MOST_KILLS)):
                kind = bench.chance.choice(KINDS)
                if kills.total() < chosen.kills and bench.kill(name, kind, seconds):
                    kills[kind] += 1
                    done.append(kind)
            bench.to_the_end(name)
            found = study_differences(bench.folder / "undisturbed", bench.folder / name)
            trials, wrong = trials + 1, wrong + bool(found)
            print(f"study {trials}: killed {', '.join(done) or 'not at all'}: {'; '.join(found) or 'identical'}", flush=True)
        counts = ", ".join(f"{number} x {kind}" for kind, number in kills.items())
        print(f"{kills.total()} kills ({counts}) of {trials} studies, {wrong} of which did not end identical")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
