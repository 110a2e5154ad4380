"""Memory of `glassloop predict --file` on a million generated rows: resident memory at 10 %, 50 % and 100 % of the rows.

    python benchmarks/million_predictions.py [--rows 1000000] [--form csv] [--out jsonl] [--processes 1]

The model has one layer, 16 wide, and the texts have a few words, so that reading, writing and what is kept in memory dominate.
The command runs in a process of its own; this one reads its memory from /proc, with that of its children.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = ("a", "the", "good", "bad", "long", "short", "film", "book", "day", "night", "was", "is", "not", "very", "and")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHOWN = (0.1, 0.25, 0.5, 0.75, 1.0)


def write_model(folder: Path) -> None:
    """Write a BERT classifier of one layer with a vocabulary of a few words."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join((*SPECIAL, *WORDS)) + "\n", encoding="utf-8")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(SPECIAL) + len(WORDS), max_position_embeddings=32, num_labels=2, **size)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)


def write_rows(path: Path, num_rows: int) -> None:
    """Write short texts with their numbers, in the format of the suffix."""
    drawn = random.Random(0)
    texts = (" ".join(drawn.choices(WORDS, k=drawn.randint(1, 6))) for _ in range(num_rows))
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"number": [*range(num_rows)], "text": [*texts]}), path, row_group_size=50_000)
        return
    with path.open("w", encoding="utf-8", newline="") as opened:
        if path.suffix == ".jsonl":
            opened.writelines(f'{{"number": {number}, "text": "{text}"}}\n' for number, text in enumerate(texts))
            return
        writer = csv.writer(opened, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(["number", "text"])
        writer.writerows(enumerate(texts))


def memory_of(process: int) -> tuple[float, float]:
    """Return the resident memory of a process and its children, and its own peak, in megabytes; 0 if it is gone."""
    total = peak = 0.0
    waiting = [process]
    while waiting:
        number = waiting.pop()
        try:
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines())
            total += int(lines["VmRSS"].split()[0]) / 1024
            peak = max(peak, int(lines["VmHWM"].split()[0]) / 1024)
            waiting += map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
        except (OSError, KeyError):
            continue
    return total, peak


def predict(command: list[str], target: Path, num_rows: int) -> None:
    """Run the command, and print memory whenever another share of the rows is predicted."""
    from glassloop.predict.files import PART_ROWS

    began, shown, highest = time.perf_counter(), [*SHOWN], 0.0
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            time.sleep(0.2)
            now, peak = memory_of(process.pid)
            highest = max(highest, now)
            parts = next(target.parent.glob(f".{target.name}.parts-*"), None)
            done = len([*parts.glob(f"*{target.suffix}")]) * PART_ROWS / num_rows if parts else 0.0
            while now and shown and done >= shown[0]:
                seconds = time.perf_counter() - began
                print(
                    f"  {shown.pop(0):>5.0%} of the rows: {now:>7,.0f} MB now, peak {peak:>7,.0f} MB, {seconds:>6.1f} s",
                    flush=True,
                )
        error = process.stderr.read() if process.stderr else ""
        assert process.returncode == 0, error
    seconds = time.perf_counter() - began
    print(f"    end: highest {highest:,.0f} MB, {seconds:.1f} s, {num_rows / seconds:,.0f} rows a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--form", default="csv", choices=("csv", "tsv", "jsonl", "parquet"))
    parser.add_argument("--out", default="csv", choices=("csv", "tsv", "jsonl", "parquet"))
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="million-") as scratch:
        folder = Path(scratch)
        source, target = folder / f"rows.{given.form}", folder / f"answers.{given.out}"
        write_model(folder / "model")
        write_rows(source, given.rows)
        print(f"{given.rows:,} rows of {source.suffix} to {target.suffix}, {source.stat().st_size / 1e6:,.0f} MB")
        command = [sys.executable, "-m", "glassloop", "predict", str(folder / "model"), "--file", str(source)]
        command += ["--text", "text", "--out", str(target), "--device", "cpu", "--processes", str(given.processes)]
        predict(command, target, given.rows)
        if given.out == "csv":
            with target.open(encoding="utf-8", newline="") as opened:
                numbers = [int(row["number"]) for row in csv.DictReader(opened)]
            assert numbers == [*range(given.rows)], "the order of the rows"
            print(f"  {len(numbers):,} rows in their order")


if __name__ == "__main__":
    main()
