"""From raw tables to checked examples: every text and label looked at once, every fault named with its row."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from glassloop.data.cells import label_cells, parts_of
from glassloop.data.columns import Known, find_columns, notes_on_columns, written_columns
from glassloop.data.facts import facts_of, notes_on
from glassloop.data.labels import (
    LabelSet,
    label_column,
    no_labels,
    refuse_other_kind,
    refuse_unknown,
    settle_labels,
)
from glassloop.data.survey import Part, RawSplit, whole_part
from glassloop.errors import DataError, listed
from glassloop.measures import Measures, default_measures
from glassloop.run_folder.record import Columns, SplitFacts
from glassloop.settings import CLASSES, SCORE, SEVERAL, DataSettings

if TYPE_CHECKING:
    from datasets import DatasetDict

DESCRIPTION_NAME = "examples.json"


@dataclass(frozen=True)
class Examples:
    """The checked splits of a data set: memory-mapped rows, the columns that matter, the task, and what was noticed."""

    splits: DatasetDict
    columns: Columns
    task: str
    labels: LabelSet | None
    facts: dict[str, SplitFacts]
    notes: list[str]
    measures: Measures

    @property
    def num_labels(self) -> int:
        return len(self.labels.names) if self.labels else 1


def prepare(
    raw: dict[str, RawSplit], settings: DataSettings, known: Known, folder: Path, outputs: LabelSet | None = None
) -> None:
    """Check all rows, give labels their numbers, hold out a validation split where there is none; fill `folder`.

    Two passes over the rows: one looks, one writes. `outputs` are the labels of a trained model.
    Raises `DataError` for the first row that cannot be meant.
    """
    heads = {name: next(split.tables(), None) for name, split in raw.items()}
    for name, head in heads.items():
        if head is None or head.num_rows == 0:
            raise DataError(f"{raw[name].source}: there are no rows", "add at least one row")
    fitted = "train" if "train" in raw else next(iter(raw))
    columns = find_columns(heads[fitted], raw[fitted].source, settings, known)
    if columns.label != (known.label,):
        known = Known()  # what the source knows is about another column
    parts = {name: whole_part(name, split, heads[name], columns, settings) for name, split in raw.items()}
    if known.task and settings.task == "auto" and not settings.label_names and not outputs:
        task, labels = known.task, LabelSet(known.label_names, known.label_names) if known.label_names else None
    else:
        found, where = parts[fitted].survey.found, parts[fitted].where
        task, labels = settle_labels(found, settings, known.label_names, where, outputs)
    skipped = dict.fromkeys(parts, 0)
    if labels:
        holder = "the model" if outputs else raw[fitted].source
        for name, part in parts.items():
            parts[name] = with_known_labels(part, labels, holder, skip=settings.unknown_labels == "skip" and name != fitted)
            skipped[name] = len(part.rows) - int(parts[name].rows.sum())
    notes = [note for split in raw.values() for note in split.notes]
    notes += notes_on_columns(heads[fitted], columns)
    if settings.validation_share and "train" in parts and not any(name.startswith("validation") for name in parts):
        parts = cut_validation(parts, task, settings, notes)
    facts = {}
    for name, part in parts.items():
        fingerprint = write_part(folder / f"{name}.arrow", part, columns, task, labels, settings)
        train_keys = parts["train"].keys if name != "train" and "train" in parts else None
        counted = facts_of(part.keys, part.survey.found, part.rows, labels, train_keys)
        facts[name] = replace(counted, fingerprint=fingerprint, num_empty=part.num_empty, num_skipped=skipped.get(name, 0))
    described = {
        "columns": asdict(columns),
        "task": task,
        "labels": asdict(labels) if labels else None,
        "measures": asdict(measured_by(known, task, labels, parts[fitted].survey.found.values())),
        "facts": {name: asdict(fact) for name, fact in facts.items()},
        "notes": notes + notes_on(facts, labels),
    }
    (folder / DESCRIPTION_NAME).write_text(json.dumps(described, ensure_ascii=False, indent=1), encoding="utf-8")


def load_prepared(folder: Path) -> Examples:
    """The examples that `prepare` wrote, memory-mapped."""
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
    return Examples(DatasetDict(splits), columns, described["task"], labels, facts, described["notes"], measures)


def measured_by(known: Known, task: str, labels: LabelSet | None, values: list[str]) -> Measures:
    """The metrics of the data: those of a public task, F1 of class 1 where the cells are 0 and 1, or what fits the names."""
    names, order = (labels.names, labels.order) if labels else ((), None)
    if known.metrics and task == known.task and (order or task == SCORE):
        return Measures(known.metrics, order[1] if order and "f1" in known.metrics else None)
    if task == CLASSES and order and len(names) == 2 and {*values} <= {"0", "1"} and not {*values} & {*names}:
        return Measures(("accuracy", "f1"), order[1])
    return default_measures(task, names)


def with_known_labels(part: Part, labels: LabelSet, holder: str, *, skip: bool) -> Part:
    """The part without rows whose label is missing or unknown; unless they may be skipped, they are an error."""
    found = part.survey.found
    if not found.labelled:
        return part
    if found.overflowed:
        raise DataError(
            f"{part.raw.source}: the label column holds more than {len(found.cells):,} different values",
            "name the right column with --label, or use --task regression for scores",
        )
    if not skip:
        if None in found.cells:
            raise DataError(f"{part.where(None)}: the label is missing", "give a label in every row, or remove the row")
        refuse_unknown(found.values(), labels, part.where, holder)
    refuse_other_kind(found.values(), labels, part.where, holder)
    numbers = labels.numbers_of(found.values())
    known = [cell is not None and all(value in numbers for value in parts_of(cell)) for cell in found.cells]
    rows = np.array(known)[found.codes]
    if not rows.any():
        raise DataError(
            f"{part.raw.source}: no row has one of the labels {listed(labels.names)}", "fix the labels, or leave the split away"
        )
    return replace(part, rows=rows)


def cut_validation(parts: dict[str, Part], task: str, settings: DataSettings, notes: list[str]) -> dict[str, Part]:
    """Cut a share of the training rows off as validation: stratified by class, equal texts always on one side."""
    train = parts["train"]
    keys, codes = train.survey.keys, train.survey.found.codes
    _, firsts, groups = np.unique(keys, return_index=True, return_inverse=True)
    strata = codes[firsts] if task == CLASSES else np.zeros(len(firsts), dtype=np.int32)
    random, chosen = np.random.default_rng(settings.split_seed), np.zeros(len(firsts), dtype=bool)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        members = members[np.argsort(firsts[members])]  # in the order of the rows
        size = max(round(len(members) * settings.validation_share), 1) if len(members) > 1 else 0
        chosen[random.permutation(members)[:size]] = True
    cut = chosen[groups]
    if not cut.any() or cut.all():
        raise DataError(
            f"{train.raw.source}: too few different texts to hold out a validation split (equal texts stay on one side)",
            "add rows, give a validation split, or use --validation_share 0 for none",
        )
    how = "stratified, " if task == CLASSES else ""
    notes.append(
        f"no validation split: held out {cut.sum():,} of {len(cut):,} training rows ({how}split_seed {settings.split_seed})"
    )
    rest = {name: part for name, part in parts.items() if name != "train"}
    return {"train": replace(train, rows=~cut), "validation": replace(train, rows=cut), **rest}


def write_part(path: Path, part: Part, columns: Columns, task: str, labels: LabelSet | None, settings: DataSettings) -> str:
    """The second pass: write the part's rows with their label numbers; return the fingerprint of what was written."""
    hasher, index, writer = blake2b(part.keys.tobytes(), digest_size=16), 0, None
    numbers = labels.numbers_of(part.survey.found.values()) if labels else {}
    for table in part.raw.tables():
        rows = slice(index, index + table.num_rows)
        if part.survey.found.labelled:
            cells = label_cells(table, columns.label, settings.label_separator)
            label = label_column(part.survey.found, rows, cells, task, numbers)
        else:
            label = no_labels(table.num_rows, task)
        chosen = pa.array(part.rows[rows])
        if (label := label.filter(chosen)).null_count:
            row = index + int(np.flatnonzero(part.rows[rows])[np.argmax(label.is_null().to_numpy(zero_copy_only=False))])
            raise DataError(f"{part.raw.row_name(row)}: the label is not a finite number", "fix or remove the row")
        table = written_columns(table.filter(chosen), columns, label)
        hasher.update(repr(label.to_pylist()).encode())
        if writer is None:
            writer = pa.ipc.new_stream(str(path), table.schema)
        writer.write_table(table)
        index = rows.stop
    if writer is not None:
        writer.close()
    return hasher.hexdigest()
