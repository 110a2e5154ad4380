"""The public data sets of benchmarks/quality.py: where they come from, and how they become CSV files.

    python benchmarks/quality_sets.py --repositories FOLDER --out SETS

FOLDER holds one Git repository per line of `REPOSITORIES`, as `owner+name`, each a clone or a bare repository. SETS/NAME then
contains pool.csv with the training rows in a random order, and test.csv. Nothing of the data is part of this project.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

MOST_TEST_ROWS, MOST_POOL_ROWS = 2_000, 6_000
CLASSES, SEVERAL, SCORE = "classes", "several labels", "score"
SEPARATOR = "|"  # between several labels
Rows = list[tuple[str, ...]]  # text, second text of a pair, label


class Repositories:
    """Reads files of Git repositories without checking them out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _git(self, repository: str, *words: str) -> str:
        place = self.folder / repository.replace("/", "+")
        inner = next(
            path for path in (place / "repo" / ".git", place / "repo", place / ".git", place) if (path / "HEAD").exists()
        )
        command = ["git", f"--git-dir={inner}", *words]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")

    def text(self, repository: str, path: str) -> str:
        return self._git(repository, "show", f"HEAD:{path}").removeprefix("\ufeff")

    def lines(self, repository: str, path: str) -> list[str]:
        return [line for line in self.text(repository, path).split("\n") if line.strip()]

    def table(self, repository: str, path: str, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> list[dict[str, str]]:
        return [*csv.DictReader(io.StringIO(self.text(repository, path), newline=""), delimiter=delimiter, quoting=quoting)]

    def names(self, repository: str, folder: str) -> list[str]:
        return self._git(repository, "ls-tree", "--name-only", "HEAD", f"{folder}/").split("\n")[:-1]


def tweets(source: Repositories, task: str, part: str) -> Rows:
    name, folder = "cardiffnlp/tweeteval", f"datasets/{task}"
    names = dict(line.split("\t")[:2] for line in source.lines(name, f"{folder.partition('/stance')[0]}/mapping.txt"
                 if "stance" not in task else "datasets/stance/mapping.txt"))  # fmt: skip
    texts = source.text(name, f"{folder}/{part}_text.txt").split("\n")
    labels = source.text(name, f"{folder}/{part}_labels.txt").split()
    return [(text.strip(), names[label]) for text, label in zip(texts, labels, strict=False) if text.strip()]


def stance(source: Repositories, part: str) -> Rows:
    topics = ("abortion", "atheism", "climate", "feminist", "hillary")
    return [(topic, text, label) for topic in topics for text, label in tweets(source, f"stance/{topic}", part)]


def banking(source: Repositories, part: str) -> Rows:
    table = source.table("PolyAI-LDN/task-specific-datasets", f"banking_data/{part}.csv")
    return [(row["text"], row["category"]) for row in table]


def intents(source: Repositories, domain: str, folds: range) -> Rows:
    paths = [f"nlupp/data/{domain}/fold{fold}.json" for fold in folds]
    rows = [row for path in paths for row in json.loads(source.text("PolyAI-LDN/task-specific-datasets", path))]
    return [(row["text"], SEPARATOR.join(row.get("intents", ()))) for row in rows]


def sentences(source: Repositories, name: str) -> Rows:
    lines = source.lines("AcademiaSinicaNLPLab/sentiment_dataset", f"data/{name}")
    return [(text.strip(), f"class {label}") for label, _, text in (line.partition(" ") for line in lines) if text.strip()]


def offensive_speech(source: Repositories) -> Rows:
    names = {"0": "hate", "1": "offensive", "2": "neither"}
    table = source.table("t-davidson/hate-speech-and-offensive-language", "data/labeled_data.csv")
    return [(row["tweet"], names[row["class"]]) for row in table]


def emotions(source: Repositories, form: str, part: str) -> Rows:
    name = "monologg/GoEmotions-pytorch"
    labels = source.text(name, f"data/{form}/labels.txt").split()
    cells = [line.split("\t") for line in source.lines(name, f"data/{form}/{part}.tsv")]
    return [(text, SEPARATOR.join(labels[int(number)] for number in numbers.split(","))) for text, numbers, *_ in cells]


def valence(source: Repositories, part: str) -> Rows:
    table = source.table("JULIELab/EmoBank", "corpus/emobank.csv")
    return [(row["text"], row["V"]) for row in table if row["split"] == part and row["text"].strip()]


def sick(source: Repositories, column: str, part: str) -> Rows:
    table = source.table("brmson/dataset-sts", f"data/sts/sick2014/{part}.txt", "\t", csv.QUOTE_NONE)
    return [(row["sentence_A"], row["sentence_B"], row[column].strip().lower()) for row in table]


def paraphrases(source: Repositories, part: str) -> Rows:
    cells = [line.rstrip("\r").split("\t") for line in source.lines("brmson/dataset-sts", f"data/para/msr/msr-para-{part}.tsv")]
    return [(row[3], row[4], {"0": "different", "1": "same"}[row[0]]) for row in cells[1:] if len(row) == 5]


def answers(source: Repositories, part: str) -> Rows:
    table = source.table("brmson/dataset-sts", f"data/anssel/wang/{part}.csv")
    return [(row["qtext"], row["atext"], {"0": "no", "1": "yes"}[row["label"]]) for row in table]


def wikipedia_answers(source: Repositories, part: str) -> Rows:
    columns = [source.text("castorini/data", f"WikiQA/{part}/{name}").split("\n") for name in ("a.toks", "b.toks", "sim.txt")]
    rows = zip(*columns, strict=False)
    return [(first, second, {"0": "no", "1": "yes"}[label.strip()]) for first, second, label in rows if first and second]


def news(source: Repositories) -> Rows:
    rows = csv.reader(io.StringIO(source.text("mhjabreel/CharCnn_Keras", "data/ag_news_csv/test.csv")))
    return [(f"{title}. {text}", ("world", "sports", "business", "science")[int(label) - 1]) for label, title, text in rows]


def messages(source: Repositories) -> Rows:
    lines = (line.partition("\t") for line in source.lines("KarimLulu/sms-spam-detection", "data/SMSSpamCollection.txt"))
    return [(text, label) for label, _, text in lines if text.strip()]


def domains(source: Repositories, part: str) -> Rows:
    by_intent = {
        intent: domain
        for domain, names in json.loads(source.text("clinc/oos-eval", "data/domains.json")).items()
        for intent in names
    }
    rows = json.loads(source.text("clinc/oos-eval", "data/data_full.json"))[part]
    return [(text, by_intent[intent]) for text, intent in rows]


def home_intents(source: Repositories, part: str) -> Rows:
    name = "xliuhw/NLU-Evaluation-Data"
    folder = "CrossValidation/autoGeneFromRealAnno/autoGene_2018_03_22-13_01_25_169/CrossValidation/KFold_1"
    paths = [path for path in source.names(name, f"{folder}/{part}") if path.endswith(".csv")]
    tables = (source.table(name, path, ";") for path in paths)
    return [(row["answer_from_anno"], f"{row['scenario']} {row['intent']}") for table in tables for row in table]


def warrants(source: Repositories, part: str) -> Rows:
    path = f"experiments/src/main/python/data/{part}.tsv"
    table = source.table("UKPLab/argument-reasoning-comprehension-task", path, "\t", csv.QUOTE_NONE)
    return [
        (f"{row['reason']} {row['claim']}", row["warrant0"], {"0": "holds", "1": "fails"}[row["correctLabelW0orW1"]])
        for row in table
    ]


def reviews(source: Repositories, part: str) -> Rows:
    table = source.table("forest-snow/alps", f"data/SST-2/{part}.tsv", "\t", csv.QUOTE_NONE)
    return [(row["sentence"], {"0": "negative", "1": "positive"}[row["label"]]) for row in table]


def acceptability(source: Repositories, parts: str) -> Rows:
    name = "amrnag/Specialized-Transformers"
    cells = (line.split("\t") for part in parts.split() for line in source.lines(name, f"data/CoLA/{part}.tsv"))
    return [(text, {"0": "unacceptable", "1": "acceptable"}[label]) for _, label, _, text in cells]


def entailment(source: Repositories, part: str) -> Rows:
    table = source.table("marcwww/nlu_eval", f"data/RTE/{part}.tsv", "\t", csv.QUOTE_NONE)
    return [(row["sentence1"], row["sentence2"], row["label"]) for row in table]


def duplicate_questions(source: Repositories) -> Rows:
    """Return as many duplicates as other pairs."""
    table = source.table("DSApps-2023/Class_Slides", "data/quora_small.csv")
    rows = {label: [(row["question1"], row["question2"]) for row in table if row["is_duplicate"] == label] for label in "01"}
    number = min(map(len, rows.values()))
    return [(*row, name) for label, name in (("0", "different"), ("1", "duplicate")) for row in rows[label][:number]]


CHOSEN_ON, HELD_OUT, FINAL = "chosen on", "held out", "final"


@dataclass(frozen=True)
class DataSet:
    """A public data set: its task, whether rows are pairs, and how its training and test rows are read."""

    task: str
    train: Callable[[Repositories], Rows]
    test: Callable[[Repositories], Rows] | None  # None: a third of the rows, drawn at random
    # Defaults were chosen on some sets. Others played no part in that, and a few were not even looked at before the end.
    role: str = HELD_OUT


def halves(read: Callable[..., Rows], train: object, test: object, *first: object) -> tuple[Callable[..., Rows], ...]:
    return lambda source: read(source, *first, train), lambda source: read(source, *first, test)


SETS: dict[str, DataSet] = {
    "emotion": DataSet(CLASSES, *halves(tweets, "train", "test", "emotion"), CHOSEN_ON),
    "irony": DataSet(CLASSES, *halves(tweets, "train", "test", "irony"), CHOSEN_ON),
    "offensive": DataSet(CLASSES, *halves(tweets, "train", "test", "offensive"), CHOSEN_ON),
    "banking": DataSet(CLASSES, *halves(banking, "train", "test"), CHOSEN_ON),
    "subjectivity": DataSet(CLASSES, partial(sentences, name="subj.all"), None, CHOSEN_ON),
    "phrases": DataSet(CLASSES, partial(sentences, name="mpqa.all"), None, CHOSEN_ON),
    "questions": DataSet(CLASSES, *halves(sentences, "TREC.train.all", "TREC.test.all"), CHOSEN_ON),
    "speech": DataSet(CLASSES, offensive_speech, None, CHOSEN_ON),
    "ekman": DataSet(SEVERAL, *halves(emotions, "train", "test", "ekman"), CHOSEN_ON),
    "hotels": DataSet(SEVERAL, *halves(intents, range(14), range(14, 20), "hotels"), CHOSEN_ON),
    "valence": DataSet(SCORE, *halves(valence, "train", "test"), CHOSEN_ON),
    "sick": DataSet(CLASSES, *halves(sick, "SICK_train", "SICK_test_annotated", "entailment_judgment"), CHOSEN_ON),
    "relatedness": DataSet(SCORE, *halves(sick, "SICK_train", "SICK_test_annotated", "relatedness_score"), CHOSEN_ON),
    "paraphrases": DataSet(CLASSES, *halves(paraphrases, "train", "test"), CHOSEN_ON),
    "answers": DataSet(CLASSES, *halves(answers, "train", "test"), CHOSEN_ON),
    "domains": DataSet(CLASSES, *halves(domains, "train", "test")),
    "news": DataSet(CLASSES, news, None),
    "spam": DataSet(CLASSES, messages, None),
    "home": DataSet(CLASSES, partial(home_intents, part="trainset"), None),
    "hate": DataSet(CLASSES, *halves(tweets, "train", "val", "hate")),
    "goemotions": DataSet(SEVERAL, *halves(emotions, "train", "test", "original")),
    "bank": DataSet(SEVERAL, *halves(intents, range(14), range(14, 20), "banking")),
    "stance": DataSet(CLASSES, *halves(stance, "train", "test")),
    "wikipedia": DataSet(CLASSES, *halves(wikipedia_answers, "train", "test")),
    "warrants": DataSet(CLASSES, *halves(warrants, "train", "test")),
    "sentiment": DataSet(CLASSES, *halves(reviews, "train", "test"), FINAL),
    "acceptability": DataSet(CLASSES, *halves(acceptability, "train val", "dev"), FINAL),
    "duplicates": DataSet(CLASSES, duplicate_questions, None, FINAL),
    "entailment": DataSet(CLASSES, *halves(entailment, "train", "dev"), FINAL),
}
REPOSITORIES = (
    *("cardiffnlp/tweeteval", "PolyAI-LDN/task-specific-datasets", "AcademiaSinicaNLPLab/sentiment_dataset", "clinc/oos-eval"),
    *("t-davidson/hate-speech-and-offensive-language", "monologg/GoEmotions-pytorch", "JULIELab/EmoBank", "brmson/dataset-sts"),
    *("castorini/data", "mhjabreel/CharCnn_Keras", "KarimLulu/sms-spam-detection", "xliuhw/NLU-Evaluation-Data"),
    *("UKPLab/argument-reasoning-comprehension-task", "forest-snow/alps", "amrnag/Specialized-Transformers"),
    *("DSApps-2023/Class_Slides", "marcwww/nlu_eval"),
)


def distinct(rows: Rows) -> Iterator[tuple[str, ...]]:
    """Yield each text or pair once, without line breaks, and only with a text and a label."""
    seen = set()
    for *texts, label in rows:
        texts = [" ".join(text.split()) for text in texts]
        if all(texts) and label and tuple(texts) not in seen:
            seen.add(tuple(texts))
            yield (*texts, label)


def prepare(source: Repositories, name: str, folder: Path, most_test: int) -> None:
    found, draw = SETS[name], random.Random(0)
    pool = [*distinct(found.train(source))]
    draw.shuffle(pool)
    if found.test is None:
        cut = min(MOST_TEST_ROWS, len(pool) // 3)
        test, pool = pool[:cut], pool[cut:]
    else:
        texts = {row[:-1] for row in pool}
        test = [row for row in distinct(found.test(source)) if row[:-1] not in texts]
        draw.shuffle(test)
    if found.task == CLASSES:
        labels = {row[-1] for row in pool}
        test = [row for row in test if row[-1] in labels]
    head = ["text", "label"] if len(pool[0]) == 2 else ["text", "text_pair", "label"]
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("pool", pool[:MOST_POOL_ROWS]), ("test", test[:most_test])):
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(head)
            writer.writerows(rows)
    labels = sorted({label for row in pool for label in row[-1].split(SEPARATOR)}) if found.task != SCORE else []
    print(f"{name:14s} {found.task:15s} {len(pool):6,} {len(test):6,} rows, {len(labels) or '-'} labels, {pool[0]}"[:170])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--test_rows", type=int, default=MOST_TEST_ROWS, help=f"at most (default: {MOST_TEST_ROWS:,})")
    parser.add_argument("names", nargs="*", default=[*SETS])
    given = parser.parse_args()
    for name in given.names:
        prepare(Repositories(given.repositories), name, given.out / name, given.test_rows)


if __name__ == "__main__":
    main()
