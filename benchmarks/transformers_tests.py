"""Run transformers' own Trainer tests against Glassloop, and write the table of what passes, is refused or differs.

    python benchmarks/transformers_tests.py CHECKOUT --out docs/reference/transformers-tests.md

CHECKOUT is a folder with a checkout of transformers, or at least its conftest.py and tests/trainer. Nothing of it is copied.
Every test runs twice, in two processes of pytest: with transformers itself, to see which can run on this machine, and with
the names of Glassloop. The exit status is 1 if a test ends differently without an explanation.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def run_tests(checkout: Path, record: Path, mode: str, chosen: list[str]) -> None:
    """Run the tests in a process of their own, with the bridge `on` or `off`; each result is a line of `record`."""
    paths = os.pathsep.join([str(HERE.parent.resolve() / "src"), str(HERE.resolve())])
    names = {"PYTHONPATH": paths, "GLASSLOOP_BRIDGE": mode, "GLASSLOOP_BRIDGE_RECORD": str(record)}
    flags = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "transformers_bridge.plugin",
        "--tb=no",
        "--ignore=tests/trainer/distributed",
    ]
    command = [sys.executable, "-m", "pytest", *flags, *(chosen or ["tests/trainer"])]
    subprocess.run(command, cwd=checkout, env={**os.environ, **OFFLINE, **names}, check=False)


def main() -> None:
    """Run the tests and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="Folder with a checkout of transformers.")
    parser.add_argument("--out", type=Path, help="Document to write. Default: print it.")
    parser.add_argument("--state", default="", help="What the checkout is, such as a commit, for the document.")
    parser.add_argument(
        "--records", type=Path, help="Folder that keeps the results of each test; those already there are reused."
    )
    parser.add_argument("tests", nargs="*", help="Tests to run. Default: all of tests/trainer but tests/trainer/distributed.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = (Path(given.records or folder, f"{mode}.jsonl").resolve() for mode in ("off", "on"))
        for record in (theirs, ours):
            if not record.exists():
                run_tests(given.checkout, record, record.stem, given.tests)
        from transformers_bridge.table import UNEXPLAINED, page, table_of

        rows = table_of(ours, theirs)
    import transformers
    from transformers_bridge.names import BRIDGED

    state = f"of {given.state}, " if given.state else ""
    facts = [f"Run on {datetime.date.today()} with the tests {state}transformers {transformers.__version__}"]
    facts[0] += f" and Python {platform.python_version()} on a CPU without network."
    text = page(rows, facts, BRIDGED)
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    unexplained = [row.test for row in rows if row.outcome == UNEXPLAINED]
    sys.exit(f"not explained: {', '.join(unexplained)}" if unexplained else 0)


if __name__ == "__main__":
    main()
