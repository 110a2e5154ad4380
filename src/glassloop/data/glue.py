"""The GLUE tasks as they were published: folders, files, columns and label names, read from the original files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from glassloop.base.errors import DataError, counted, did_you_mean, listed, visible
from glassloop.base.files import user_path
from glassloop.base.records import Json
from glassloop.data.columns import UNLABELLED, Known
from glassloop.data.examples import Source
from glassloop.data.readers import BadRows, SpooledSplit, checksums, opened_text, read_delimited
from glassloop.data.rows import arrow_array, numbers_of
from glassloop.scores.metrics import GLUE
from glassloop.settings.training import CLASSES, SCORE, DataSettings

USUAL_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
GENRES = ("matched", "mismatched")  # of MNLI: those of the training rows, and others
BOTH_MNLI = {
    "train": "train.tsv",
    **{f"validation_{genre}": f"dev_{genre}.tsv" for genre in GENRES},
    **{f"test_{genre}": f"test_{genre}.tsv" for genre in GENRES},
}
MSR_FILES = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv")
MSR_IDS = ("#1 ID", "#2 ID")
OTHER_PLACES = {"ax": (("diagnostic", "diagnostic.tsv"), ("AX", "test.tsv"))}


@dataclass(frozen=True)
class GlueTask:
    """One task: its files, their columns with texts and label, and the names of the labels."""

    folder: str
    texts: dict[str, str]  # our column -> the column of the files
    label: str
    label_names: tuple[str, ...] | None
    files: dict[str, str] = field(default_factory=lambda: USUAL_FILES)


SENTENCE = {"sentence": "sentence"}
SENTENCES = {"sentence1": "sentence1", "sentence2": "sentence2"}
QUESTIONS = {"question1": "question1", "question2": "question2"}
PREMISE = {"premise": "sentence1", "hypothesis": "sentence2"}
MNLI = ("MNLI", PREMISE, "gold_label", ("entailment", "neutral", "contradiction"))
GLUE_TASKS = {
    "cola": GlueTask("CoLA", SENTENCE, "is_acceptable", ("unacceptable", "acceptable")),
    "sst2": GlueTask("SST-2", SENTENCE, "label", ("negative", "positive")),
    "mrpc": GlueTask("MRPC", {"sentence1": "#1 String", "sentence2": "#2 String"}, "Quality", ("not_equivalent", "equivalent")),
    "stsb": GlueTask("STS-B", SENTENCES, "score", None),
    "qqp": GlueTask("QQP", QUESTIONS, "is_duplicate", ("not_duplicate", "duplicate")),
    "mnli": GlueTask(*MNLI, BOTH_MNLI),
    **{f"mnli_{genre}": GlueTask(*MNLI, {"validation": f"dev_{genre}.tsv", "test": f"test_{genre}.tsv"}) for genre in GENRES},
    "qnli": GlueTask("QNLI", {"question": "question", **SENTENCE}, "label", ("entailment", "not_entailment")),
    "rte": GlueTask("RTE", SENTENCES, "label", ("entailment", "not_entailment")),
    "wnli": GlueTask("WNLI", SENTENCES, "label", ("not_entailment", "entailment")),
    "ax": GlueTask("AX", PREMISE, "", MNLI[3], {"test": "AX.tsv"}),
}


def known_of(name: str) -> Known:
    """Return what is known about a task: its columns, label names, kind of task and metrics."""
    task = glue_task(name)
    text, pair = [*task.texts, None][:2]
    return Known(text, pair, "label", task.label_names, CLASSES if task.label_names else SCORE, GLUE[name])


def glue_task(name: str) -> GlueTask:
    if name not in GLUE_TASKS:
        near = did_you_mean(name, GLUE_TASKS)
        raise DataError(f"GLUE has no task {visible(name)}{near}", f"use one of {listed(GLUE_TASKS, 20)}")
    return GLUE_TASKS[name]


def find_glue_files(name: str, data_dir: str | None) -> dict[str, Path] | None:
    """Return the files of a task by split, from `data_dir`, which must have them, or `GLASSLOOP_DATA`; None without them."""
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
        # If a folder holds MRPC in both forms, the original Microsoft files are used: they contain the test labels.
        if name == "mrpc" and all((place / file).is_file() for file in MSR_FILES):
            return {"train": place / MSR_FILES[0], "validation": place / MSR_FILES[0], "test": place / MSR_FILES[1]}
        if all((place / file).is_file() for file in task.files.values()):
            return {split: place / file for split, file in task.files.items()}
        for files in (task.files.values(), MSR_FILES if name == "mrpc" else ()):
            if there := [file for file in files if (place / file).is_file()]:
                missing = listed(file for file in files if file not in there)
                problem = f"{place}: the folder of GLUE {name} has no {missing}; found {listed(there)}"
                raise DataError(problem, "add the missing part from the original download")
    for folder, file in OTHER_PLACES.get(name, ()):
        if (base / folder / file).is_file():
            return {"test": base / folder / file}
    if not data_dir:
        return None
    wanted = listed(task.files.values()) + (f" (or {listed(MSR_FILES)})" if name == "mrpc" else "")
    problem = f"{base}: there are no files of GLUE {name}: looked for {wanted} in {listed(places)}"
    raise DataError(problem, f"set --data_dir to the folder that contains {task.folder}/, or to that folder itself")


def glue_source(task: str, files: dict[str, Path]) -> Source:
    def key() -> list[Json]:  # with the list that says which rows are the validation split of MRPC
        beside = [file for folder in {file.parent for file in files.values()} if (file := folder / MSR_FILES[2]).is_file()]
        return ["glue", task, [*files], [*checksums([*files.values(), *beside])]]

    def splits(scratch: Path) -> dict[str, GlueSplit]:
        return {split: GlueSplit(task, split, file, scratch / split) for split, file in files.items()}

    return Source(known_of(task), key, splits)


class GlueSplit(SpooledSplit):
    """The rows of one split: texts, label, and idx, which is the row in the file. A row is named by its number there."""

    def __init__(self, task: str, split: str, file: Path, spool: Path) -> None:
        self.has_header = task != "cola" or split == "test"
        # QQP was published with a few broken rows. They are skipped, as other tools do.
        broken = BadRows(skip=task == "qqp")
        super().__init__(spool, file.name, self.read(task, split, file, broken))
        if broken.num_rows:
            self.notes = (f"{file.name}: skipped {counted(broken.num_rows, 'broken row', 'broken rows')} of the original file",)

    def read(self, name: str, split: str, path: Path, broken: BadRows) -> Iterator[pa.Table]:
        task, is_msr = glue_task(name), path.name == MSR_FILES[0]
        names = None if self.has_header else ("source", "is_acceptable", "mark", "sentence")
        settings = DataSettings(columns=names, header=self.has_header)
        needed = [*task.texts.values(), *([] if split.startswith("test") else [task.label]), *(MSR_IDS if is_msr else ())]
        number = num_skipped = 0
        for table in read_delimited(path, "\t", quoted=False, settings=settings, bad=broken):
            if absent := [column for column in needed if column not in table.column_names]:
                problem = f"{path.name}: there is no column {listed(absent)}; found {listed(table.column_names)}"
                raise DataError(problem, f"this is not the original {split} file of GLUE {name}")
            unknown = arrow_array([str(UNLABELLED)] * table.num_rows, pa.string())
            label = table[task.label] if task.label in table.column_names else unknown
            skipped = [*broken.rows.get(path, ())]
            missing = {row - 2 for row in skipped[num_skipped:]}
            end = number + table.num_rows + len(missing)
            index = arrow_array([row for row in range(number, end) if row not in missing], pa.int32())
            number, num_skipped = end, len(skipped)
            texts = [table[column] for column in task.texts.values()]
            found = pa.table([*texts, label, index], names=[*task.texts, "label", "idx"])
            if is_msr:  # dev_ids.tsv lists the rows of the validation split
                with opened_text(path.parent / MSR_FILES[2]) as lines:
                    chosen = {tuple(line.rstrip("\r\n").split("\t")[:2]) for line in lines if line.strip()}
                ids = zip(*(table[column].to_pylist() for column in MSR_IDS), strict=True)
                found = found.filter(pa.array([(pair in chosen) == (split == "validation") for pair in ids]))
            yield found

    def row_name(self, row: int) -> str:
        for table in self.tables():
            if row < table.num_rows:
                return f"{self.source}, row {table['idx'][row].as_py() + self.has_header + 1:,}"
            row -= table.num_rows
        return self.source

    def row_numbers(self) -> np.ndarray:
        return np.concatenate([numbers_of(table["idx"].combine_chunks()) for table in self.tables()]).astype(np.int64) + 1
