"""Planted faults in public data sets: how many `glassloop inspect --deep` finds, beside cleanlab's Datalab.

    python benchmarks/data_faults.py --sets SETS [--cleanlab FOLDER] [--out RESULTS.jsonl] [NAME ...]

SETS has a folder for each data set with pool.csv and test.csv (columns text, text_pair if there are pairs, label), as
benchmarks/quality_sets.py writes them. FOLDER holds cleanlab[datalab], installed with `pip install --target`. Both read the
same embeddings in one process. Datalab gets them as features, and as probabilities those of scikit-learn's logistic regression
with five folds, as its tutorials do.

- flips: labels of 2, 5 and 10% of all rows become another one at random.
- copies: test rows are added to the training rows; a quarter each is exact, in capitals, with a word more, with a word less.
- swapped: training pairs are added with their texts in the other order.
- contrary: training rows are added with another label.
- word: a word that no row has is put into 30% of the rows of one class.

Of copies, swapped and contrary rows, only the added rows count: one that is found for another reason is a false alarm. Rows
that are also found without the planted faults do not count. `clean` is the share of rows that are found there.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from glassloop.data.sources import load_examples
from glassloop.diagnosis.embeddings import sampled
from glassloop.diagnosis.findings import Diagnosis, diagnose
from glassloop.diagnosis.rows import Sample, surveyed

NAMES = "sentiment questions subjectivity emotion paraphrases sick duplicates entailment news banking".split()
MOST_TRAIN, MOST_TEST = 1_500, 500
RATES = (0.02, 0.05, 0.10)
PLANTED = 40  # rows of each kind of copy
WORD, SHARE_WITH_WORD = "zeta", 0.3
Row = list[str]
Place = tuple[str, int]  # the split and the number of a row


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as opened:
        return [*csv.reader(opened)][1:]


def drawn(rows: list[Row], number: int, seed: int) -> list[Row]:
    return random.Random(seed).sample(rows, min(number, len(rows)))


def write(folder: Path, train: list[Row], test: list[Row]) -> tuple[str, str]:
    head = ["text", *(["text_pair"] if len(train[0]) == 3 else []), "label"]
    for name, rows in (("train", train), ("test", test)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([head, *rows])
    return str(folder / "train.csv"), str(folder / "test.csv")


class Trial:
    """One version of a data set, and what both find in it."""

    def __init__(self, train: list[Row], test: list[Row], model: str, *, datalab: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path, held_out = write(Path(folder), train, test)
            pairs = {"text_pair": "text_pair"} if len(train[0]) == 3 else {}
            examples = load_examples(path, test=held_out, validation_share=0, text="text", label="label", **pairs)
            began = time.perf_counter()
            self.found: Diagnosis = diagnose(examples, model, device="cpu")
            self.seconds = time.perf_counter() - began
            self.sample: Sample = sampled(surveyed(examples), model, None, "cpu", None)
        survey = self.sample.survey
        self.places = [(survey.names[split], int(number)) for split, number in zip(survey.splits, survey.numbers, strict=True)]
        self.datalab = issues_of(self.sample) if datalab else None

    def ours(self, *codes: str) -> list[Place]:
        if codes == ("GL301",):
            return [(row.split, row.row) for row in self.found.suspects]
        return [(one.split, row) for one in self.found.findings if one.code in codes for row in one.rows]

    def labels(self) -> list[Place]:
        """The label issues of Datalab, the lowest score first."""
        found, scores = self.datalab["is_label_issue"].to_numpy(), self.datalab["label_score"].to_numpy()
        return [self.places[row] for row in np.argsort(scores, kind="stable") if found[row]]

    def near(self, groups: Sequence[set[int]], *, across: bool) -> list[Place]:
        """The near duplicates of Datalab: only those of rows in other splits, or all."""
        splits = self.sample.splits
        return [self.places[row] for row, others in enumerate(groups)
                if any(not across or splits[other] != splits[row] for other in others)]  # fmt: skip


def issues_of(sample: Sample) -> object:
    from cleanlab import Datalab
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    features, labels = sample.features, sample.targets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        likely = cross_val_predict(LogisticRegression(max_iter=1000), features, labels, cv=5, method="predict_proba")
        lab = Datalab(data={"label": labels}, label_name="label", verbosity=0)
        lab.find_issues(features=features, pred_probs=likely, issue_types={"label": {}, "near_duplicate": {}, "outlier": {}})
    return lab.get_issues().assign(near_duplicate_sets=lab.get_issues("near_duplicate")["near_duplicate_sets"])


def groups_of(issues: object) -> list[set[int]]:
    flagged = issues["is_near_duplicate_issue"].to_numpy()
    return [
        {*map(int, others)} if is_one else set() for is_one, others in zip(flagged, issues["near_duplicate_sets"], strict=True)
    ]


def score(found: Iterable[Place], planted: set[Place], before: Iterable[Place] = ()) -> dict[str, float]:
    """Precision, recall and F1, without rows that were found before the faults were planted."""
    counted = {*found} - ({*before} - planted)
    hits = len(counted & planted)
    precision, recall = hits / max(len(counted), 1), hits / max(len(planted), 1)
    return {"precision": precision, "recall": recall, "f1": 2 * hits / max(len(counted) + len(planted), 1)}


def at_equal_number(ranked: Sequence[Place], planted: set[Place]) -> float:
    """The share of planted rows among as many of the first ones: precision and recall at once."""
    return len({*ranked[: len(planted)]} & planted) / max(len(planted), 1)


def edited(row: Row, kind: int, words: random.Random) -> Row:
    """A copy of a row that is exact, in other case, with a word more, or with a word less."""
    parts = row[0].split()
    if kind == 1:
        return [row[0].upper(), *row[1:]]
    if kind == 2:
        parts.insert(words.randrange(len(parts) + 1), "indeed")
    if kind == 3 and len(parts) > 3:
        parts.pop(words.randrange(len(parts)))
    return [" ".join(parts), *row[1:]]


def trials_of(name: str, folder: Path, model: str, *, datalab: bool) -> Iterable[dict[str, object]]:
    train, test = drawn(read(folder / "pool.csv"), MOST_TRAIN, 0), drawn(read(folder / "test.csv"), MOST_TEST, 1)
    labels, pairs = sorted({row[-1] for row in train}), len(train[0]) == 3
    test = [row for row in test if row[-1] in labels]
    others = {label: [other for other in labels if other != label] for label in labels}
    clean = Trial(train, test, model, datalab=datalab)
    groups = groups_of(clean.datalab) if datalab else []
    every = len(clean.places)
    facts = {"set": name, "rows": every, "accuracy": clean.found.score, "seconds": clean.seconds}
    shares = {code: len({*clean.ours(code)}) / every for code in sorted({one.code for one in clean.found.findings})}
    theirs = {"label": len(clean.labels()) / every, "near_duplicate": sum(map(bool, groups)) / every} if datalab else {}
    yield {**facts, "fault": "clean", "ours": shares, "datalab": theirs}

    for rate in RATES:
        words = random.Random(round(rate * 100))
        noisy, planted = [[[*row] for row in part] for part in (train, test)], set[Place]()
        for split, part in zip(("train", "test"), noisy, strict=True):
            for number, row in enumerate(part, 1):
                if words.random() < rate:
                    row[-1] = words.choice(others[row[-1]])
                    planted.add((split, number))
        trial = Trial(*noisy, model, datalab=datalab)
        each = {"ours": trial.ours("GL301"), **({"datalab": trial.labels()} if datalab else {})}
        results = {
            who: {**score(found, planted), "at_equal_number": at_equal_number(found, planted)} for who, found in each.items()
        }
        yield {"set": name, "fault": f"flips {rate:.0%}", "planted": len(planted), **results}

    words = random.Random(5)
    chosen = words.sample(range(len(test)), min(PLANTED, len(test) // 4))
    copies = [edited(test[row], place % 4, words) for place, row in enumerate(chosen)]
    swapped = [[row[1], row[0], row[2]] for row in words.sample(train, PLANTED)] if pairs else []
    contrary = [[*row[:-1], words.choice(others[row[-1]])] for row in words.sample(train, PLANTED)]
    faulty = [*train, *copies, *swapped, *contrary]
    trial = Trial(faulty, test, model, datalab=datalab)
    start = len(train) + 1
    added = {}
    for kind, part in (("copies", copies), ("swapped", swapped), ("contrary", contrary)):
        added[kind] = {("train", start + place) for place in range(len(part))}
        start += len(part)
    every_added = set().union(*added.values())
    groups = groups_of(trial.datalab) if datalab else []
    for kind, codes in (("copies", ("GL101", "GL102")), ("swapped", ("GL203", "GL205")), ("contrary", ("GL204",))):
        planted = added[kind]
        if not planted:
            continue
        ours = [place for place in trial.ours(*codes) if place[0] == "train" and place[1] > len(train)]
        results = {"ours": score(ours, planted)}
        if datalab:
            near = [place for place in trial.near(groups, across=kind == "copies") if place in every_added]
            results["datalab"] = score(near, planted)
        yield {"set": name, "fault": kind, "planted": len(planted), **results}

    label = max(labels, key=lambda one: sum(row[-1] == one for row in train))
    marked = [with_word(row, words) if row[-1] == label and words.random() < SHARE_WITH_WORD else row for row in train]
    told = [one.told for one in Trial(marked, test, model, datalab=False).found.findings if one.code == "GL503"]
    yield {"set": name, "fault": "word", "ours": {"recall": float(any(f'"{WORD}"' in sentence for sentence in told))}}


def with_word(row: Row, words: random.Random) -> Row:
    parts = row[0].split()
    parts.insert(words.randrange(len(parts) + 1), WORD)
    return [" ".join(parts), *row[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--cleanlab", help="folder with cleanlab[datalab]")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.cleanlab:
        sys.path.append(options.cleanlab)
    for name in options.names:
        for result in trials_of(name, options.sets / name, options.model, datalab=bool(options.cleanlab)):
            shown = {key: {part: round(value, 3) for part, value in one.items()} if isinstance(one, dict) else one
                     for key, one in result.items()}  # fmt: skip
            print(json.dumps(shown), flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as opened:
                    opened.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
