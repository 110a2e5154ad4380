"""From raw tables to checked examples: every fault is reported with its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.data.cells import label_cells
from glassloop.data.columns import NOTHING_KNOWN, Known, find_columns, notes_on_columns, stored_columns
from glassloop.data.facts import facts_of, notes_on
from glassloop.data.interfaces import RawSplit
from glassloop.data.joining import JoinedSplit
from glassloop.data.labels import MODEL, LabelSet, label_lookup, no_labels, scores_of, settle_labels, whole
from glassloop.data.splits import hold_out_fold, hold_out_validation, limited, rows_with_known_labels
from glassloop.data.survey import Part, survey_split
from glassloop.errors import DataError, counted
from glassloop.measures import Measures, default_measures
from glassloop.run_folder.record import Columns, SplitFacts
from glassloop.settings import CLASSES, SCORE, SEVERAL, DataSettings

if TYPE_CHECKING:
    from datasets import DatasetDict

DESCRIPTION_NAME = "examples.json"
BAD_ROWS_NAME = "skipped-rows.csv"


@dataclass(frozen=True)
class Examples:
    """The checked splits of a data set and what is known about them.

    Attributes:
        splits: Memory-mapped rows, by split.
        columns: The columns that hold texts and label.
        task: What there is to learn: single_label_classification, multi_label_classification or regression.
        labels: The label names and their numbers; None for regression.
        facts: What was counted in each split.
        notes: What a person should know before training.
        measures: The metrics that fit the data.
    """

    splits: DatasetDict
    columns: Columns
    task: str
    labels: LabelSet | None
    facts: dict[str, SplitFacts]
    notes: list[str]
    measures: Measures

    @property
    def num_labels(self) -> int:
        """Number of outputs that a model needs."""
        return len(self.labels.names) if self.labels else 1


def prepare(
    raw: Mapping[str, RawSplit], settings: DataSettings, known: Known, folder: Path, outputs: LabelSet | None = None
) -> None:
    """Check all rows, number the labels, hold out a validation split if there is none, and write the splits to `folder`.

    There are two passes over the rows: the first checks, the second writes. `outputs` are the labels of a trained model.
    Raise `DataError` for the first row with a fault.
    """
    heads = {name: next(split.tables(), None) for name, split in raw.items()}
    for name, head in heads.items():
        if head is None or head.num_rows == 0:
            raise DataError(f"{raw[name].source}: there are no rows", "add at least one row")
    fitted = "train" if "train" in raw else next(iter(raw))
    columns = find_columns(heads[fitted], raw[fitted].source, settings, known)
    raw = {name: JoinedSplit(split, columns.texts) for name, split in raw.items()}
    if columns.label != (known.label,):
        known = NOTHING_KNOWN  # what the source knows is about another column
    parts = {name: survey_split(name, split, heads[name], columns, settings) for name, split in raw.items()}
    if known.task and settings.task == "auto" and not settings.label_names and not outputs:
        task, labels = known.task, LabelSet(known.label_names, known.label_names) if known.label_names else None
    else:
        found, where = parts[fitted].survey.found, parts[fitted].where
        task, labels = settle_labels(found, settings, known.label_names, where, outputs)
    skipped = dict.fromkeys(parts, 0)
    if labels:
        holder = MODEL if outputs else raw[fitted].source
        for name, part in parts.items():
            parts[name] = rows_with_known_labels(
                part, labels, holder, skip=settings.unknown_labels == "skip" and name != fitted
            )
            skipped[name] = len(part.rows) - int(parts[name].rows.sum())
    notes = [note for split in raw.values() for note in split.notes]
    notes += notes_on_columns(heads[fitted], columns)
    if settings.validation_share and "train" in parts and not any(name.startswith("validation") for name in parts):
        parts = hold_out_validation(parts, task, settings, notes)
    if settings.selection_fold and "train" in parts:
        parts = hold_out_fold(parts, task, settings, notes)
    parts = {name: limited(part, name, settings, notes) for name, part in parts.items()}
    facts = {}
    for name, part in parts.items():
        fingerprint = write_split(folder / f"{name}.arrow", part, columns, task, labels, settings)
        train_keys = parts["train"].keys if name != "train" and "train" in parts else None
        found_facts = facts_of(part.keys, part.survey.found, part.rows, labels, train_keys)
        facts[name] = replace(found_facts, fingerprint=fingerprint, num_empty=part.num_empty, num_skipped=skipped.get(name, 0))
    described = {
        "columns": asdict(columns),
        "task": task,
        "labels": asdict(labels) if labels else None,
        "measures": asdict(measured_by(known, task, labels, parts[fitted].survey.found.values())),
        "facts": {name: asdict(fact) for name, fact in facts.items()},
        "notes": notes + notes_on(facts, labels),
        "num_bad_rows": write_bad_rows(folder / BAD_ROWS_NAME, raw),
    }
    (folder / DESCRIPTION_NAME).write_text(json.dumps(described, ensure_ascii=False, indent=1), encoding="utf-8")


def write_bad_rows(path: Path, raw: Mapping[str, RawSplit]) -> int:
    """List the rows that were skipped because they cannot be read. Return their number; without any, write no file."""
    found = BadRows(skip=True)
    for split in raw.values():
        found.rows |= split.bad.rows if split.bad else {}
    if found.num_rows:
        found.write(path)
    return found.num_rows


def load_prepared(folder: Path) -> Examples:
    """Return the examples that `prepare` wrote, memory-mapped."""
    from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, List, Value

    described = json.loads((folder / DESCRIPTION_NAME).read_text(encoding="utf-8"))
    columns = Columns(**{**described["columns"], "label": tuple(described["columns"]["label"])})
    names, order = ((described["labels"] or {}).get(name) for name in ("names", "order"))
    labels = LabelSet(tuple(names), tuple(order) if order else None) if names else None
    splits = {}
    for name in described["facts"]:
        path = folder / f"{name}.arrow"
        with pa.OSFile(str(path)) as opened:
            features = Features.from_arrow_schema(pa.ipc.open_stream(opened).schema)
        kind = ClassLabel(names=list(labels.names)) if labels else Value("float32")
        features[columns.label_name] = List(kind) if described["task"] == SEVERAL else kind
        splits[name] = Dataset.from_file(str(path), info=DatasetInfo(features=features), split=name)
    facts = {name: SplitFacts(**fact) for name, fact in described["facts"].items()}
    measures = Measures(tuple(described["measures"]["keys"]), described["measures"]["positive"])
    notes = described["notes"]
    if num_bad := described["num_bad_rows"]:
        rows = counted(num_bad, "row", "rows")
        notes = [f"skipped {rows} that cannot be read; {folder / BAD_ROWS_NAME} lists them", *notes]
    return Examples(DatasetDict(splits), columns, described["task"], labels, facts, notes, measures)


def measured_by(known: Known, task: str, labels: LabelSet | None, values: list[str]) -> Measures:
    """Return the metrics of the data: those of a public task, F1 of class 1 if cells are 0 and 1, or what fits the names."""
    names, order = (labels.names, labels.order) if labels else ((), None)
    if known.metrics and task == known.task and (order or task == SCORE):
        return Measures(known.metrics, order[1] if order and "f1" in known.metrics else None)
    cells = {*map(whole, values)}
    if task == CLASSES and order and len(names) == 2 and cells <= {"0", "1"} and not cells & {*names}:
        return Measures(("accuracy", "f1"), order[1])
    return default_measures(task, names)


def write_split(path: Path, part: Part, columns: Columns, task: str, labels: LabelSet | None, settings: DataSettings) -> str:
    """Write the rows of a part with their label numbers: the second pass. Return the fingerprint of what was written."""
    hasher, index, writer = blake2b(part.keys.tobytes(), digest_size=16), 0, None
    found = part.survey.found
    lookup = label_lookup(found, task, labels.numbers_of(found.values())) if labels else None
    for table in part.raw.tables():
        rows = slice(index, index + table.num_rows)
        if not found.labelled:
            label = no_labels(table.num_rows, task)
        elif lookup is None:
            label = scores_of(label_cells(table, columns.label, settings.label_separator))
        else:
            label = lookup.take(pa.array(found.codes[rows]))
        chosen = pa.array(part.rows[rows])
        if (label := label.filter(chosen)).null_count:
            row = index + int(np.flatnonzero(part.rows[rows])[np.argmax(label.is_null().to_numpy(zero_copy_only=False))])
            raise DataError(f"{part.raw.row_name(row)}: the label is not a finite number", "fix or remove the row")
        table = stored_columns(table.filter(chosen), columns, label)
        hasher.update(repr(label.to_pylist()).encode())
        if writer is None:
            writer = pa.ipc.new_stream(str(path), table.schema)
        writer.write_table(table)
        index = rows.stop
    if writer is not None:
        writer.close()
    return hasher.hexdigest()
