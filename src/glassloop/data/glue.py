"""The GLUE tasks as they were published: folders, files, columns and label names, read from the original files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from glassloop.base.errors import DataError, counted, did_you_mean, listed, visible
from glassloop.base.files import user_path
from glassloop.base.records import Json
from glassloop.data.columns import UNLABELLED, Known
from glassloop.data.readers import BadRows, SpooledSplit, checksums, opened_text, read_delimited
from glassloop.scores.metrics import GLUE
from glassloop.settings.training import CLASSES, SCORE, DataSettings

USUAL_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
BOTH_MNLI = {
    "train": "train.tsv",
    "validation_matched": "dev_matched.tsv",
    "validation_mismatched": "dev_mismatched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
MSR_FILES = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv")
MSR_IDS = ("#1 ID", "#2 ID")
INFERENCE = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class GlueTask:
    """One task: its files, their columns with texts and label, and the names of the labels."""

    folder: str
    texts: dict[str, str]  # our column -> the column of the files
    label: str
    label_names: tuple[str, ...] | None
    files: dict[str, str]


def sentence_pair(folder: str, label: str, names: tuple[str, ...] | None) -> GlueTask:
    return GlueTask(folder, {"sentence1": "sentence1", "sentence2": "sentence2"}, label, names, USUAL_FILES)


def mnli(files: dict[str, str]) -> GlueTask:
    return GlueTask("MNLI", {"premise": "sentence1", "hypothesis": "sentence2"}, "gold_label", INFERENCE, files)


GLUE_TASKS = {
    "cola": GlueTask("CoLA", {"sentence": "sentence"}, "is_acceptable", ("unacceptable", "acceptable"), USUAL_FILES),
    "sst2": GlueTask("SST-2", {"sentence": "sentence"}, "label", ("negative", "positive"), USUAL_FILES),
    "mrpc": GlueTask(
        "MRPC", {"sentence1": "#1 String", "sentence2": "#2 String"}, "Quality", ("not_equivalent", "equivalent"), USUAL_FILES
    ),
    "stsb": sentence_pair("STS-B", "score", None),
    "qqp": GlueTask(
        "QQP", {"question1": "question1", "question2": "question2"}, "is_duplicate", ("not_duplicate", "duplicate"), USUAL_FILES
    ),
    "mnli": mnli(BOTH_MNLI),
    "mnli_matched": mnli({"validation": "dev_matched.tsv", "test": "test_matched.tsv"}),
    "mnli_mismatched": mnli({"validation": "dev_mismatched.tsv", "test": "test_mismatched.tsv"}),
    "qnli": GlueTask(
        "QNLI", {"question": "question", "sentence": "sentence"}, "label", ("entailment", "not_entailment"), USUAL_FILES
    ),
    "rte": sentence_pair("RTE", "label", ("entailment", "not_entailment")),
    "wnli": sentence_pair("WNLI", "label", ("not_entailment", "entailment")),
    "ax": GlueTask("AX", {"premise": "sentence1", "hypothesis": "sentence2"}, "", INFERENCE, {"test": "AX.tsv"}),
}
OTHER_PLACES = {"ax": (("diagnostic", "diagnostic.tsv"), ("AX", "test.tsv"))}


def known_of(name: str) -> Known:
    """Return what is known about a task: its columns, label names, kind of task and metrics."""
    task = glue_task(name)
    text, pair = [*task.texts, None][:2]
    return Known(text, pair, "label", task.label_names, CLASSES if task.label_names else SCORE, GLUE[name])


def glue_task(name: str) -> GlueTask:
    """Return the task called `name`. Raise `DataError` with the nearest name if there is none."""
    if name not in GLUE_TASKS:
        raise DataError(
            f"GLUE has no task {visible(name)}{did_you_mean(name, GLUE_TASKS)}", f"use one of {listed(GLUE_TASKS, 20)}"
        )
    return GLUE_TASKS[name]


def find_glue_files(name: str, data_dir: str | None) -> dict[str, Path] | None:
    """Return the files of a task by split, from `data_dir` or `GLASSLOOP_DATA`; None if neither is set or has them.

    Raise `DataError` if `data_dir` does not contain the task.
    """
    # If a folder holds MRPC in both forms, the original Microsoft files are used: they contain the test labels.
    task = glue_task(name)
    if data_dir:
        base = user_path(data_dir)
        places = [base / task.folder, base]
    elif os.environ.get("GLASSLOOP_DATA"):
        base = user_path(os.environ["GLASSLOOP_DATA"]) / "glue"
        places = [base / task.folder]
    else:
        return None
    for place in places:
        if name == "mrpc" and all((place / file).is_file() for file in MSR_FILES):
            return {"train": place / MSR_FILES[0], "validation": place / MSR_FILES[0], "test": place / MSR_FILES[1]}
        if all((place / file).is_file() for file in task.files.values()):
            return {split: place / file for split, file in task.files.items()}
        refuse_partial(name, place, [*task.files.values()])
        if name == "mrpc":
            refuse_partial(name, place, [*MSR_FILES])
    for folder, file in OTHER_PLACES.get(name, ()):
        if (base / folder / file).is_file():
            return {"test": base / folder / file}
    if not data_dir:
        return None
    wanted = listed(task.files.values()) + (f" (or {listed(MSR_FILES)})" if name == "mrpc" else "")
    raise DataError(
        f"{base}: there are no files of GLUE {name}: looked for {wanted} in {listed(places)}",
        f"set --data_dir to the folder that contains {task.folder}/, or to that folder itself",
    )


def refuse_partial(name: str, place: Path, files: list[str]) -> None:
    """Raise `DataError` if some files of a task are there, but not all."""
    missing = [file for file in files if not (place / file).is_file()]
    if len(missing) < len(files):
        found = listed(file for file in files if file not in missing)
        raise DataError(
            f"{place}: the folder of GLUE {name} has no {listed(missing)}; found {found}",
            "add the missing part from the original download",
        )


@dataclass(frozen=True)
class GlueSource:
    """A GLUE task in its original files, by split."""

    task: str
    files: dict[str, Path]

    @property
    def known(self) -> Known:
        return known_of(self.task)

    def key(self) -> list[Json]:
        """Return the checksums of the files, and of the list that says which rows are the validation split of MRPC."""
        beside = [file for folder in {file.parent for file in self.files.values()} if (file := folder / MSR_FILES[2]).is_file()]
        return ["glue", self.task, [*self.files], [*checksums([*self.files.values(), *beside])]]

    def splits(self, scratch: Path) -> dict[str, GlueSplit]:
        return {split: GlueSplit(self.task, split, file, scratch / split) for split, file in self.files.items()}


class GlueSplit(SpooledSplit):
    """The rows of one split. A row is named by its file and its number there."""

    def __init__(self, task: str, split: str, file: Path, spool: Path) -> None:
        super().__init__(spool, file.name)
        self.header_rows = 0 if has_no_header(task, split) else 1
        broken = BadRows(skip=task == "qqp")
        for table in read_glue(task, split, file, broken):
            self.add(table)
        self.close()
        if broken.num_rows:
            rows = counted(broken.num_rows, "broken row", "broken rows")
            self.notes = (f"{file.name}: skipped {rows} of the original file",)

    def row_name(self, row: int) -> str:
        for table in self.tables():
            if row < table.num_rows:
                return f"{self.source}, row {table['idx'][row].as_py() + self.header_rows + 1:,}"
            row -= table.num_rows
        return self.source


def has_no_header(name: str, split: str) -> bool:
    """Return whether the file of a split has no row with column names."""
    return name == "cola" and split != "test"


def read_glue(name: str, split: str, path: Path, broken: BadRows) -> Iterator[pa.Table]:
    """Yield the rows of one split with the columns the task is known by: texts, label, idx (the row in the file).

    QQP was published with a few broken rows. They are skipped, as other tools do, and added to `broken`.
    """
    task = glue_task(name)
    names = ("source", "is_acceptable", "mark", "sentence") if has_no_header(name, split) else None
    settings = DataSettings(columns=names, header=names is None)
    needed = [*task.texts.values(), *([] if split.startswith("test") else [task.label])]
    needed += MSR_IDS if path.name == MSR_FILES[0] else ()
    number, left_out = 0, 0
    for table in read_delimited(path, "\t", quoted=False, settings=settings, bad=broken):
        absent = [column for column in needed if column not in table.column_names]
        if absent:
            raise DataError(
                f"{path.name}: there is no column {listed(absent)}; found {listed(table.column_names)}",
                f"this is not the original {split} file of GLUE {name}",
            )
        unknown = pa.array([str(UNLABELLED)] * table.num_rows, pa.string())
        label = table[task.label] if task.label in table.column_names else unknown
        skipped = [*broken.rows.get(path, ())]
        missing, left_out = {row - 2 for row in skipped[left_out:]}, len(skipped)
        end = number + table.num_rows + len(missing)
        index = pa.array([row for row in range(number, end) if row not in missing], pa.int32())
        texts = [table[column] for column in task.texts.values()]
        found = pa.table([*texts, label, index], names=[*task.texts, "label", "idx"])
        number = end
        if path.name == MSR_FILES[0]:
            found = found.filter(pa.array(msr_rows(path, table, split == "validation")))
        yield found


def msr_rows(path: Path, table: pa.Table, is_validation: bool) -> list[bool]:
    """Return which rows of the original MRPC file belong to the validation split (or to the rest). `dev_ids.tsv` lists them."""
    with opened_text(path.parent / MSR_FILES[2]) as lines:
        chosen = {tuple(line.rstrip("\r\n").split("\t")[:2]) for line in lines if line.strip()}
    ids = zip(*(table[name].to_pylist() for name in MSR_IDS), strict=True)
    return [(pair in chosen) == is_validation for pair in ids]
