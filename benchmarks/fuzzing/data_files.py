"""Cases of data files: refused with two lines, or read, counted and scored as an independent reader finds them."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.bench import Bench
from fuzzing.cases import Case, Finding, Ran
from fuzzing.mutations import HOSTILE_TEXTS, damage_folder, damage_place, mutated_bytes, mutated_text
from fuzzing.plain_readers import NotReadableError, plain, plain_rows

WORDS = "the a is was good bad film story very not and of to in on it this that first second one two".split()
Rows = list[dict[str, Any]]
NAMES = (
    ("text", "label"), ("sentence", "label"), ("text", "target"), ("sentence1", "sentence2", "label"),
    ("premise", "hypothesis", "label"),
    ("text", "label", "id"), ("Text", "Label"), ("text", "score"), ("review", "class"),
)  # fmt: skip
STRANGE_CELLS = (
    *HOSTILE_TEXTS, '"', 'a "quoted" word', "a,b", "a\tb", "a\r\nb", "a;b", "'", "NA", "null", "None", "NaN", "inf", "-100",
    "1e999", "007", "1_000", "2024-01-01", "１", "gооd", "good\u200b", "Good", " good", "good ", "\N{COMBINING ACUTE ACCENT}",
    "😀", "שלום", "[SEP]", "word " * 3000, "x" * 200_000,
)  # fmt: skip
STRANGE_LABELS: tuple[Any, ...] = (
    None, True, 1.5, -1, 10**20, 1e300, float("nan"), float("inf"), ["good"], ["good", "bad"], [], [["good"]], {"a": 1},
    "2024-01-01", "gооd", "GOOD", "good\u00a0", "0", "1", "01", "1.0", "good|bad", "\u200bgood", "", " ",
)  # fmt: skip
HEADERS = (
    "",
    " ",
    "text",
    "label",
    "labels",
    "\ufefftext",
    "a\nb",
    "x" * 500,
    "\0",
    "idx",
    "Text ",
    "input_ids",
    "prediction",
    "label ",
    "__index_level_0__",
)


def rows_for(chance: random.Random) -> Rows:
    """Valid rows: texts, pairs, classes, numbers or scores."""
    names = chance.choice(NAMES)
    labels: Callable[[int], Any] = chance.choice(
        [
            lambda row: ("bad", "good")[row % 2],
            lambda row: ("bad", "good")[row % 2],
            lambda row: row % 3,
            lambda row: ("0", "1")[row % 2],
            lambda row: round(row * 0.37, 2),
            lambda row: ("world", "sport", "business", "é")[row % 4],
            lambda row: row % 2 == 0,
        ]
    )
    texts = [name for name in names if name not in ("label", "target", "score", "class", "Label", "id")]
    found = []
    for row in range(chance.choice([3, 9, 20, 30])):
        cells: dict[str, Any] = {name: " ".join(chance.choices(WORDS, k=chance.randint(1, 9))) + f" {row}" for name in texts}
        for name in names:
            if name not in texts:
                cells[name] = row if name == "id" else labels(row)
        found.append(cells)
    return found


def strange_rows(rows: Rows, case: Case) -> Rows:
    """Rows with strange cells, labels, headers or shapes."""
    chance = case.chance
    kind = chance.choice(
        ["cell", "cell", "cell", "label", "label", "label", "header", "column", "twice", "wide", "lost", "copies", "none"]
    )
    case.note(kind)
    names = [*rows[0]]
    label = next(name for name in reversed(names) if name != "id")
    if kind in ("cell", "label"):
        values = STRANGE_LABELS if kind == "label" else STRANGE_CELLS
        name = label if kind == "label" else chance.choice(names)
        for row in chance.sample(rows, chance.choice([1, 1, 2, len(rows)])):
            row[name] = chance.choice(values)
        return rows
    if kind == "header":
        old, new = chance.choice(names), chance.choice(HEADERS)
        return [{(new if name == old else name): cell for name, cell in row.items()} for row in rows]
    if kind == "column":
        return [{**row, chance.choice(HEADERS[:6]): chance.choice(STRANGE_CELLS)} for row in rows]
    if kind == "wide":
        width = chance.choice([200, 1500, 5000])
        return [{**row, **{f"c{place}": "1" for place in range(width)}} for row in rows]
    if kind == "lost":
        return [row if number else dict(list(row.items())[:-1]) for number, row in enumerate(rows)]
    if kind == "copies":
        return rows * 3
    if kind == "none":
        return [dict.fromkeys(row) for row in rows] if chance.random() < 0.5 else []
    return rows


def write_rows(path: Path, rows: Rows, chance: random.Random, twice: bool) -> None:
    """Write rows by the ending of the path."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    suffix = path.suffix
    if suffix == ".parquet":
        write_parquet(path, rows, names)
        return
    if suffix in (".csv", ".tsv"):
        sign = "\t" if suffix == ".tsv" else ","
        end = chance.choice(["\n", "\n", "\r\n", "\r"])
        shown = [*names, *(names[-1:] if twice else [])]
        quote = quoted if suffix == ".csv" else str
        lines = [
            sign.join(quote(name) for name in shown),
            *(sign.join(quote(cell_of(row.get(name))) for name in shown) for row in rows),
        ]
        text = end.join(lines) + end * chance.choice([1, 1, 1, 0, 2])
    elif suffix == ".json" and chance.random() < 0.7:
        text = json.dumps(
            rows if chance.random() < 0.7 else {name: [row.get(name) for row in rows] for name in names},
            indent=chance.choice([None, 1]),
        )
    else:
        text = "\n".join(json.dumps(row, ensure_ascii=chance.random() < 0.5) for row in rows) + "\n"
    path.write_bytes(encoded(text, chance))


def encoded(text: str, chance: random.Random) -> bytes:
    """Nearly always UTF-8, with or without a mark."""
    kind = chance.random()
    if kind < 0.02:
        return text.encode("utf-16", "surrogatepass")
    if kind < 0.1:
        return b"\xef\xbb\xbf" + text.encode("utf-8", "surrogatepass")
    if kind < 0.12:
        return text.encode("latin-1", "replace")
    return text.encode("utf-8", "surrogatepass")


def cell_of(cell: Any) -> str:
    return (
        ""
        if cell is None
        else str(cell).lower()
        if isinstance(cell, bool)
        else cell
        if isinstance(cell, str)
        else json.dumps(cell)
    )


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if re.search('[",\n\r]', cell) or not cell else cell


def write_parquet(path: Path, rows: Rows, names: list[str]) -> None:
    """Columns with types of their own where Arrow finds one, else as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = []
    for name in names:
        cells = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(cells))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            arrays.append(pa.array([cell_of(cell).encode("utf-8", "replace").decode() for cell in cells]))
    pq.write_table(pa.table(arrays, names=[name.encode("utf-8", "replace").decode() for name in names]), path)


def fuzz_data(case: Case, bench: Bench) -> None:
    """A data file, a folder of them, a GLUE folder or a saved data set; then a command that reads it."""
    os.environ["GLASSLOOP_CACHE"] = str(case.folder / "cache")
    chance = case.chance
    kind = chance.choices(["file", "folder", "glue", "saved"], [16, 3, 2, 2])[0]
    case.note(kind)
    if kind == "glue":
        fuzz_glue(case, bench)
    elif kind == "saved":
        fuzz_saved(case, bench)
    elif kind == "folder":
        fuzz_folder(case, bench)
    else:
        path = case.folder / f"data{chance.choice(['.csv', '.csv', '.tsv', '.json', '.jsonl', '.parquet'])}"
        rows = write_file(path, case)
        read_back(case, bench, path, [path] if path.is_file() else [], sound=case.done == ["file"] and must_be_read(rows))


def must_be_read(rows: Rows) -> bool:
    """Whether valid rows are enough to train on: two labels or more, each often enough to hold some out."""
    labels = Counter(str(next(cell for name, cell in reversed(row.items()) if name != "id")) for row in rows)
    return len(labels) in (2, 3, 4) and min(labels.values()) >= 5


def write_file(path: Path, case: Case) -> Rows:
    """A file that is strange in its rows, in its bytes, or in what it is. Returns the rows."""
    chance = case.chance
    rows = rows_for(chance)
    twice = False
    if chance.random() < 0.6:
        rows = strange_rows(rows, case)
        twice = case.done[-1] == "twice"
    write_rows(path, rows, chance, twice)
    if chance.random() < 0.4 and path.stat().st_size < 1_000_000:
        mutated = mutated_bytes if path.suffix == ".parquet" or chance.random() < 0.4 else mutated_text
        content, what = mutated(path.read_bytes(), chance)
        path.write_bytes(content)
        case.note(f"{path.name}: {what}")
    if chance.random() < 0.04:
        case.note(damage_place(path, chance))
    return rows


def fuzz_folder(case: Case, bench: Bench) -> None:
    chance, folder = case.chance, case.folder / "folder"
    folder.mkdir()
    names = chance.choice(
        [
            ["train"],
            ["train", "validation"],
            ["train", "dev", "test"],
            ["train-00000-of-00002", "train-00001-of-00002"],
            ["test"],
        ]
    )
    suffix = chance.choice([".csv", ".jsonl", ".parquet"])
    rows = rows_for(chance)
    files = [folder / f"{name}{suffix}" for name in names]
    for file in files:
        write_rows(file, rows, chance, False)
    if chance.random() < 0.8:
        case.note(damage_folder(folder, chance))
    known = {*files} == {path for path in folder.iterdir() if path.suffix == suffix} and all(map(Path.is_file, files))
    read_back(case, bench, folder, files if known else [])


def fuzz_glue(case: Case, bench: Bench) -> None:
    chance, folder = case.chance, case.folder / "glue" / "RTE"
    folder.mkdir(parents=True)
    task, header, label = "rte", "index\tsentence1\tsentence2\tlabel", ["entailment", "not_entailment"]
    if chance.random() < 0.5:
        folder = folder.with_name("CoLA")
        folder.mkdir()
        task, header, label = "cola", "", ["0", "1"]
    for split in ("train", "dev", "test"):
        lines = []
        for row in range(chance.choice([2, 6])):
            first, second = (" ".join(chance.choices(WORDS, k=5)) for _ in range(2))
            if task == "cola":
                lines.append(f"{row}\t{first}" if split == "test" else f"gj04\t{label[row % 2]}\t*\t{first}")
            else:
                lines.append(f"{row}\t{first}\t{second}" + (f"\t{label[row % 2]}" if split != "test" else ""))
        start = (
            "index\tsentence"
            if task == "cola" and split == "test"
            else header.removesuffix("\tlabel")
            if split == "test"
            else header
        )
        (folder / f"{split}.tsv").write_text("\n".join([*filter(None, [start]), *lines]) + "\n")
    case.note(damage_folder(folder, chance))
    ran = case.run("data", f"glue/{task}", "--data_dir", case.folder / "glue", "--model", bench.model)
    if ran.code == 0:
        compare_glue(case, task, folder)


def compare_glue(case: Case, task: str, folder: Path) -> None:
    """Every text of the original files is read, and no other."""
    from glassloop import load_examples

    examples = load_examples(f"glue/{task}", data_dir=str(case.folder / "glue"))
    for split, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        text = (folder / f"{name}.tsv").read_bytes().decode("utf-8").removeprefix("\ufeff")
        lines = [line.split("\t") for line in re.split("\r\n|\n|\r", text) if line]
        headed = task == "rte" or name == "test"
        places = [1, 2] if task == "rte" else [1] if name == "test" else [3]
        wanted = [tuple(line[place] for place in places) for line in lines[headed:]]
        found = [tuple(row[column] for column in examples.columns.texts) for row in examples.splits[split]]
        case.equal(f"the texts of {split}", found, wanted)


def fuzz_saved(case: Case, bench: Bench) -> None:
    from datasets import Dataset, DatasetDict

    folder, rows = case.folder / "saved", rows_for(case.chance)
    part = Dataset.from_list(rows)
    splits = DatasetDict({"train": part, "validation": part}) if case.chance.random() < 0.5 else part
    splits.save_to_disk(str(folder))
    rows_in = {path: path.read_bytes() for path in folder.rglob("*.arrow")}
    written = {**rows_in, **{path: path.read_bytes() for path in folder.glob("dataset_dict.json")}}  # which lists the splits
    case.note(damage_folder(folder, case.chance))
    known = all(path.is_file() and path.read_bytes() == content for path, content in written.items())
    expected = [{name: plain(cell) for name, cell in row.items()} for row in rows]
    read_back(case, bench, folder, [], expected * len(rows_in) if known else None, evaluated=expected if known else None)


def read_back(
    case: Case,
    bench: Bench,
    path: Path,
    files: list[Path],
    expected: Rows | None = None,
    *,
    sound: bool = False,
    evaluated: Rows | None = None,
) -> None:
    """Run a command on the data; what it accepts must be the rows that an independent reader finds; sound data it accepts."""
    chance = case.chance
    if chance.random() < 0.02:
        case.lock_away(path)
        files, expected, sound, evaluated = [], None, False, None
    verb = chance.choices(["data", "train", "evaluate", "predict"], [12, 3, 4, 3])[0]
    case.note(verb)
    if verb == "evaluate":  # of several splits, the validation rows alone
        files, expected = [file for file in files if file.stem in ("validation", "dev")] or files, evaluated or expected
    try:
        expected = [row for file in files for row in plain_rows(file)] if files else expected
    except NotReadableError as error:
        case.note(f"no independent reading: {error}")
    if verb == "data":
        ran = case.run("data", path, "--model", bench.model)
        if ran.code == 0:
            compare_examples(case, path, expected)
        elif sound and expected is not None:
            raise Finding(f"silent: sound data were refused\n{ran.err[-1000:]}")
    elif verb == "train":
        run = case.folder / "run"
        ran = case.run(
            "train", path, "--model", bench.model, "--output_dir", run, "--max_steps", 1, "--device", "cpu", "--disable_tqdm"
        )
        if ran.code == 0 and expected is not None:
            compare_counts(case, json.loads((run / "run.json").read_text())["data"], expected)
    elif verb == "evaluate":
        ran = case.run("evaluate", bench.finished, path, "--device", "cpu")
        if ran.code == 0 and expected is not None:
            case.equal(
                "the rows that were evaluated",
                int(re.search(r"\(([\d,]+) rows?\)", ran.out)[1].replace(",", "")),
                len(expected),
            )  # type: ignore[index]
            compare_score(case, bench, ran, expected)
    else:
        compare_predictions(case, path, bench, expected)


def compare_counts(case: Case, data: dict[str, Any], expected: Rows) -> None:
    """The rows of a run, and how many of them have which label."""
    splits = data["splits"].values()
    case.equal("the number of rows", sum(split["num_rows"] for split in splits), len(expected))
    column = data["columns"]["label"][0]
    if data["labels"] and not any(isinstance(row.get(column), list) for row in expected):
        counts = sum((Counter(split["label_counts"]) for split in splits if not split["unlabelled"]), Counter())
        case.equal("the number of rows by label", counts, Counter(row[column] for row in expected))


def compare_score(case: Case, bench: Bench, ran: Ran, expected: Rows) -> None:
    """The accuracy that a person finds who counts: predictions for the texts alone, beside the labels."""
    from glassloop import Predictor

    predicted = Predictor(bench.finished, device="cpu").predict([row["text"] for row in expected])
    labels = [row["label"] for row in expected]
    if {*labels} <= {"bad", "good"}:  # numbers would mean labels by their order
        right = sum(found.label == label for found, label in zip(predicted, labels, strict=True))
        shown = float(re.search(r"^accuracy +([\d.]+)", ran.out, re.MULTILINE)[1])  # type: ignore[index]
        case.equal("the accuracy", f"{shown:.4f}", f"{right / len(labels):.4f}")


def compare_examples(case: Case, path: Path, expected: Rows | None) -> None:
    """Texts and labels as they were loaded, beside the independent reading."""
    from glassloop import load_examples

    if expected is None:
        if any(what.startswith("no independent reading") for what in case.done):
            raise Finding("silent: a file was accepted that the independent reader refuses")
        return
    examples = load_examples(str(path))
    columns, found = examples.columns, Counter[tuple[str, ...]]()
    for split in examples.splits.values():
        for row in split:
            label = row[columns.label_name]
            if examples.labels:
                named = [examples.labels.names[number] for number in (label if isinstance(label, list) else [label])]
            else:
                named = [f"{label:.5g}"]
            found[(*(row[name] for name in columns.texts), *named)] += 1
    wanted = Counter[tuple[str, ...]]()
    for cells in expected:
        label = cells[columns.label[0]]
        parts = sorted({*label}, key=examples.labels.names.index) if isinstance(label, list) and examples.labels else [label]
        wanted[(*(cells[name] for name in columns.texts), *(parts if examples.labels else [f"{float(label):.5g}"]))] += 1
    only_found, only_wanted = found - wanted, wanted - found
    case.equal("what was read and is not there", sorted(only_found.elements())[:3], sorted(only_wanted.elements(), key=str)[:3])


def compare_predictions(case: Case, path: Path, bench: Bench, expected: Rows | None) -> None:
    """Every row of the file comes back with its texts, in order."""
    from glassloop.base.files import restored

    out = case.folder / f"out{case.chance.choice(['.csv', '.jsonl', '.tsv'])}"
    ran: Ran = case.run("predict", bench.finished, "--file", path, "--out", out, "--device", "cpu")
    if ran.code or expected is None:
        if out.exists() and ran.code:
            raise Finding("silent: a refused file left predictions behind")
        return
    written = plain_rows(out)
    case.equal("the number of predictions", len(written), len(expected))
    for before, after in zip(expected, written, strict=True):
        text = after["text"] if out.suffix == ".jsonl" else restored(after["text"])
        case.equal("a text beside its prediction", text, before["text"])
