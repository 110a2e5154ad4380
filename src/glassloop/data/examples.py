"""From raw tables to checked examples: splits, counts and faults, each reported with its row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.base.errors import DataError, counted, listed, visible
from glassloop.base.output import advance
from glassloop.base.records import Json, decoded, described
from glassloop.data import columns as schema
from glassloop.data.columns import Known, LabelCells, LabelSet
from glassloop.data.readers import BadRows
from glassloop.data.rows import ArrowRows, arrow_array, numbers_of
from glassloop.runs.record import SELECTION, Columns, LengthFacts, SplitFacts
from glassloop.scores.metrics import Measures, default_measures
from glassloop.settings.training import CLASSES, SCORE, SEVERAL, DataSettings, fold_of

if TYPE_CHECKING:
    from datasets import DatasetDict


LOOK_ALIKE_GROUPS = 6  # in notes; beyond, the rest is a number
IMBALANCED = 0.9  # the share of rows of one label
SHOWN_LABELS = 15  # in tables; beyond, the rest is a number
LEAST_MEMBERS = 5  # texts of a class, from which one is always held out
LENGTH_BINS = 24  # of the histogram in the record of a run
DESCRIPTION_NAME = "examples.json"
BAD_ROWS_NAME = "skipped-rows.csv"
NUMBERS_SUFFIX = ".numbers.npy"


@described
@dataclass(frozen=True)
class Examples:
    """The checked splits of a data set and what is known about them."""

    rows: dict[str, ArrowRows] = field(metadata={"help": "Memory-mapped rows, by split."})
    columns: Columns = field(metadata={"help": "The columns that hold texts and label."})
    task: str = field(metadata={"help": "single_label_classification, multi_label_classification or regression."})
    labels: LabelSet | None = field(metadata={"help": "The label names and their numbers; None for regression."})
    facts: dict[str, SplitFacts] = field(metadata={"help": "What was counted in each split."})
    notes: list[str] = field(metadata={"help": "What a person should know before training."})
    measures: Measures = field(metadata={"help": "The metrics that fit the data."})
    numbers: dict[str, np.ndarray] = field(
        default_factory=dict, metadata={"help": "The number of each row in the file of its split: 1 is the first row of data."}
    )

    @cached_property
    def splits(self) -> DatasetDict:
        """The rows as data sets of the library `datasets`, by split. The feature of the label column has the label names."""
        from datasets import ClassLabel, DatasetDict, List, Value

        kind = ClassLabel(names=list(self.labels.names)) if self.labels else Value("float32")
        kinds = {self.columns.label_name: List(kind) if self.task == SEVERAL else kind}
        return DatasetDict({name: rows.to_dataset(name, kinds) for name, rows in self.rows.items()})

    @property
    def num_labels(self) -> int:
        """Number of outputs that a model needs."""
        return len(self.labels.names) if self.labels else 1


class RawSplit(Protocol):
    """One split before its rows are checked."""

    @property
    def source(self) -> str: ...  # what a person calls the split, such as the name of its file
    @property
    def notes(self) -> tuple[str, ...]: ...  # what a person should know about the split
    @property
    def bad(self) -> BadRows | None: ...  # rows that were skipped because they cannot be read; None if there cannot be any
    def tables(self) -> Iterator[pa.Table]: ...  # of a bounded size; may be called several times
    def row_name(self, row: int) -> str: ...  # what a person calls a row, such as its file and its number there
    def row_numbers(self) -> np.ndarray: ...  # the number of each row, from 1, which also counts rows that were skipped


@dataclass(frozen=True)
class Source:
    """A data set before its rows are read."""

    known: Known  # what it says about its columns, labels and task
    key: Callable[[], list[Json]]  # returns values that change whenever the content changes
    splits: Callable[[Path], Mapping[str, RawSplit]]  # takes a folder for files, which is removed later


@dataclass(frozen=True)
class Part:
    """The rows of a raw split that become a split of their own, and 13 bytes that the first pass noted for each raw row."""

    raw: RawSplit
    columns: Columns
    found: LabelCells
    all_keys: np.ndarray  # a hash of the texts of each row of the raw split
    empties: np.ndarray  # how many texts of each row of the raw split are empty
    rows: np.ndarray  # which rows are in this part: one bool per row of the raw split

    @property
    def keys(self) -> np.ndarray:
        return np.asarray(self.all_keys[self.rows])

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the raw split, with joined texts as columns."""
        for table in self.raw.tables():
            yield schema.with_joined(table, self.columns.texts, self.raw.source)

    def where(self, value: str | None) -> str:
        """Return what a person calls the first row with this label cell (None: a missing one)."""
        row = self.found.first_row(value)
        return self.raw.source if row is None else self.raw.row_name(row)


def prepare(raw: Mapping[str, RawSplit], settings: DataSettings, known: Known, folder: Path, outputs: LabelSet | None) -> None:
    """Check all rows, number the labels, hold out a validation split if there is none; in a second pass write the splits."""
    heads = {name: next(split.tables(), None) for name, split in raw.items()}
    for name, head in heads.items():
        if head is None or head.num_rows == 0:
            raise DataError(f"{raw[name].source}: there are no rows", "add at least one row")
    fitted = "train" if "train" in raw else next(iter(raw))
    columns = schema.find_columns(heads[fitted], raw[fitted].source, settings, known)
    if columns.label != (known.label,):
        known = schema.NOTHING_KNOWN  # what the source knows is about another column
    parts = {name: survey_split(name, split, heads[name], columns, settings) for name, split in raw.items()}
    found = parts[fitted].found
    if known.task and settings.task == "auto" and not settings.label_names and not outputs:
        task, labels = known.task, LabelSet(known.label_names, known.label_names) if known.label_names else None
    else:
        task, labels = schema.settle_labels(found, settings, known.label_names, parts[fitted].where, outputs)
    skipped = dict.fromkeys(parts, 0)
    if labels:
        holder = schema.MODEL if outputs else raw[fitted].source
        for name, part in parts.items():
            skip = settings.unknown_labels == "skip" and name != fitted
            parts[name] = rows_with_known_labels(part, labels, holder, skip=skip)
            skipped[name] = len(part.rows) - int(parts[name].rows.sum())
    notes = [note for split in raw.values() for note in split.notes] + schema.notes_on_columns(heads[fitted], columns)
    if settings.validation_share and "train" in parts and not any(name.startswith("validation") for name in parts):
        parts = hold_out_validation(parts, task, settings, notes)
    if settings.selection_fold and "train" in parts:
        parts = hold_out_fold(parts, task, settings, notes)
    parts = {name: limited(part, name, settings, notes) for name, part in parts.items()}
    facts = {}
    for name, part in parts.items():
        train_keys = parts["train"].keys if name != "train" and "train" in parts else None
        written = write_split(folder / f"{name}.arrow", part, task, labels, settings)
        np.save(folder / f"{name}{NUMBERS_SUFFIX}", part.raw.row_numbers()[part.rows])
        facts[name] = replace(facts_of(part, labels, train_keys), fingerprint=written, num_skipped=skipped.get(name, 0))
    bad = BadRows(skip=True)
    for split in raw.values():
        bad.rows |= split.bad.rows if split.bad else {}
    if bad.num_rows:
        bad.write(folder / BAD_ROWS_NAME)
    described = {
        "columns": asdict(columns),
        "task": task,
        "labels": asdict(labels) if labels else None,
        "measures": asdict(measured_by(known, task, labels, found.values())),
        "facts": {name: asdict(fact) for name, fact in facts.items()},
        "notes": notes + notes_on(facts, labels),
        "num_bad_rows": bad.num_rows,
    }
    (folder / DESCRIPTION_NAME).write_text(json.dumps(described, ensure_ascii=False, indent=1), encoding="utf-8")


def load_prepared(folder: Path) -> Examples:
    """Return the examples that `prepare` wrote, memory-mapped."""
    described = json.loads((folder / DESCRIPTION_NAME).read_text(encoding="utf-8"))
    columns, measures = decoded(Columns, described["columns"]), decoded(Measures, described["measures"])
    labels = decoded(LabelSet, described["labels"]) if described["labels"] else None
    facts = {name: decoded(SplitFacts, fact) for name, fact in described["facts"].items()}
    rows = {name: ArrowRows(folder / f"{name}.arrow") for name in facts}
    notes = described["notes"]
    if num_bad := described["num_bad_rows"]:
        skipped = counted(num_bad, "row", "rows")
        notes = [f"skipped {skipped} that cannot be read; {folder / BAD_ROWS_NAME} lists them", *notes]
    numbers = {name: np.load(folder / f"{name}{NUMBERS_SUFFIX}", "r", allow_pickle=False) for name in facts}
    return Examples(rows, columns, described["task"], labels, facts, notes, measures, numbers)


def measured_by(known: Known, task: str, labels: LabelSet | None, values: list[str]) -> Measures:
    """Return the metrics of the data: those of a public task, F1 of class 1 if cells are 0 and 1, or what fits the names."""
    names, order = (labels.names, labels.order) if labels else ((), None)
    if known.metrics and task == known.task and (order or task == SCORE):
        return Measures(known.metrics, order[1] if order and "f1" in known.metrics else None)
    cells = {*map(schema.whole, values)}
    if task == CLASSES and order and len(names) == 2 and cells <= {"0", "1"} and not cells & {*names}:
        return Measures(("accuracy", "f1"), order[1])
    return default_measures(task, names)


# --- the first pass: check all rows --------------------------------------------------------------------------------
def survey_split(name: str, split: RawSplit, head: pa.Table, columns: Columns, settings: DataSettings) -> Part:
    """Check all texts of a split and collect its label cells. `head` holds its first rows."""
    names = dict.fromkeys(head.column_names)
    absent = [part for text in columns.texts for part in schema.columns_of_text(text, names) if part not in names]
    labelled = all(column in names for column in columns.label)
    if not labelled and not name.startswith("test"):
        absent += [column for column in columns.label if column not in names]
    if absent:
        problem = f"{split.source}: there is no column {listed(absent)}; found {listed(names)}"
        raise DataError(problem, "give every split the columns of the training rows (only test may have no labels)")
    for column in columns.label if labelled else ():
        kind = head[column].type
        if pa.types.is_nested(kind.value_type if schema.is_list(kind) else kind):
            problem = f"{split.source}: column {visible(column)} has the type {kind}, which cannot be a label"
            raise DataError(problem, "name the label column with --label")
    found, keys, empties, index = LabelCells(), [], [], 0
    for table in split.tables():
        table = schema.with_joined(table, columns.texts, split.source)
        texts = {column: table[column].combine_chunks() for column in columns.texts}
        empty = [check_text(text, column, split, index, settings.empty == "keep") for column, text in texts.items()]
        empties.append(np.sum(empty, axis=0, dtype=np.uint8))
        keys.append(text_keys([text.to_pylist() for text in texts.values()]))
        if labelled:
            found.add(schema.label_cells(table, columns.label, settings.label_separator))
        index += table.num_rows
        advance(table.num_rows)
    return Part(split, columns, found, np.concatenate(keys), np.concatenate(empties), np.ones(index, dtype=bool))


def check_text(text: pa.Array, column: str, split: RawSplit, first: int, keep_empty: bool) -> np.ndarray:
    """Return which cells are empty. Raise `DataError` if there are any and they may not be kept, or if a cell is not text."""
    if not schema.is_string(text.type):
        problem = f"{split.source}: column {visible(column)} has the type {text.type}, which is not text"
        raise DataError(problem, "name the text column with --text")
    with_nul = pc.match_substring(text, "\0")
    if pc.any(with_nul).as_py():
        problem = f"{split.row_name(first + with_nul.to_pylist().index(True))}: {visible(column)} contains a NUL byte"
        raise DataError(problem, "remove the byte: the file may be damaged, or not a text file")
    empty = ~(numbers_of(pc.utf8_length(pc.utf8_trim_whitespace(text))) > 0)  # the length of a missing cell is NaN
    if empty.any() and not keep_empty:
        rows = np.flatnonzero(empty)
        name, *others = (split.row_name(first + int(row)) for row in rows[:6])  # naming a row may mean reading up to it
        more = f" and {len(rows) - 6:,} more" if len(rows) > 6 else ""
        also = f"; so are {', '.join(other.rpartition(', ')[2] for other in others)}{more}" if others else ""
        problem = f"{name}: {visible(column)} is empty{also}"
        raise DataError(problem, "fill or remove the rows, or keep them with --empty keep")
    return np.asarray(empty)


def text_keys(columns: list[list[str | None]]) -> np.ndarray:
    """Return eight bytes per row, equal for equal texts: they find duplicates without keeping the texts."""
    rows = zip(*columns, strict=True)
    digests = (blake2b("\x1f".join(cell or "" for cell in row).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def rows_with_known_labels(part: Part, labels: LabelSet, holder: str, *, skip: bool) -> Part:
    """Return the part without rows whose label is missing or unknown. Raise `DataError` for them unless `skip` is set."""
    found, source = part.found, part.raw.source
    if not found.labelled:
        return part
    if found.overflowed:
        problem = f"{source}: the label column has more than {len(found.cells):,} different values"
        raise DataError(problem, "name the right column with --label, or use --task regression for scores")
    if not skip:
        if None in found.cells:
            raise DataError(f"{part.where(None)}: the label is missing", "add the label, or remove the row")
        schema.refuse_unknown(found.values(), labels, part.where, holder)
    schema.refuse_other_kind(found.values(), labels, part.where, holder)
    numbers = labels.numbers_of(found.values())
    known = [cell is not None and all(value in numbers for value in schema.parts_of(cell)) for cell in found.cells]
    rows = np.array(known)[found.codes]
    if not rows.any():
        raise DataError(f"{source}: no row has one of the labels {listed(labels.names)}", "fix the labels, or omit the split")
    return replace(part, rows=rows)


# --- which rows form which split -----------------------------------------------------------------------------------
def limited(part: Part, name: str, settings: DataSettings, notes: list[str]) -> Part:
    """Return a part with at most `limit` of its rows: a random sample in the order of the file."""
    # After labels and splits are decided, so that a smaller run has the same classes. The first rows of a sorted file
    # would contain one class.
    rows = np.flatnonzero(part.rows)
    if settings.limit is None or len(rows) <= settings.limit:
        return part
    chosen = np.zeros(len(part.rows), dtype=bool)
    chosen[np.random.default_rng(settings.split_seed).choice(rows, settings.limit, replace=False)] = True
    notes.append(f"{name}: {settings.limit:,} of {len(rows):,} rows, drawn at random (limit, split_seed {settings.split_seed})")
    return replace(part, rows=chosen)


def hold_out_validation(parts: dict[str, Part], task: str, settings: DataSettings, notes: list[str]) -> dict[str, Part]:
    """Hold out a share of the training rows for validation: stratified by class, equal texts always on the same side."""
    # Equal texts stay on one side, so that the split cannot leak. split_seed is not seed: otherwise the spread over
    # seeds would mix training and the choice of rows.
    train = parts["train"]
    firsts, groups, classes = grouped(train, slice(None), task)
    random, chosen = np.random.default_rng(settings.split_seed), np.zeros(len(firsts), dtype=bool)
    for members, size in zip(classes, stratum_sizes([*map(len, classes)], settings.validation_share, random), strict=True):
        chosen[random.permutation(members)[:size]] = True
    cut = chosen[groups]
    if not cut.any() or cut.all():
        problem = "too few different texts to hold out a validation split (equal texts stay on the same side)"
        remedy = "add rows, add a validation split, or use --validation_share 0 for none"
        raise DataError(f"{train.raw.source}: {problem}", remedy)
    how = f"{'stratified, ' if task == CLASSES else ''}split_seed {settings.split_seed}"
    notes.append(f"no validation split: held out {cut.sum():,} of {len(cut):,} training rows ({how})")
    rest = {"train": replace(train, rows=~cut)}
    return rest | {"validation": replace(train, rows=cut)} | parts | rest


def stratum_sizes(sizes: list[int], share: float, random: np.random.Generator) -> list[int]:
    """Return how many members of each class are held out: the share of each, or one if that is less."""
    # Only some of the classes below LEAST_MEMBERS give one, so that the sum stays near the share: with one of each class, 200
    # rows of 77 classes lost a quarter of their rows.
    wanted = share * np.array(sizes)
    taken = np.where(np.array(sizes) >= LEAST_MEMBERS, np.maximum(wanted.round(), 1), 0).astype(np.int64)
    order = np.lexsort([random.random(len(sizes)), -np.array(sizes)])
    small = [place for place in order if 1 < sizes[place] < LEAST_MEMBERS]
    taken[small[: max(0, max(round(float(wanted.sum())), 1) - int(taken.sum()))]] = 1
    return [int(size) for size in taken]


def hold_out_fold(parts: dict[str, Part], task: str, settings: DataSettings, notes: list[str]) -> dict[str, Part]:
    """Hold out one fold of the training rows as the selection split: stratified by class, equal texts in the same fold."""
    train, (number, folds) = parts["train"], fold_of(settings.selection_fold) or (1, 1)
    rows = np.flatnonzero(train.rows)
    firsts, groups, classes = grouped(train, rows, task)
    random, fold, before = np.random.default_rng(settings.split_seed), np.zeros(len(firsts), dtype=np.int64), 0
    for members in classes:
        fold[random.permutation(members)] = (before + np.arange(len(members))) % folds
        before += len(members)
    held_out = np.zeros(len(train.rows), dtype=bool)
    held_out[rows[fold[groups] == number - 1]] = True
    if len(firsts) < folds or held_out.sum() == len(rows):
        problem = f"{train.raw.source}: {len(firsts):,} different training texts are too few for {folds:,} folds"
        raise DataError(problem, "add rows, or use fewer folds")
    size = f"{held_out.sum():,} of {len(rows):,} training rows"
    notes.append(f"selection: fold {number} of {folds}, {size} (split_seed {settings.split_seed})")
    rest = {"train": replace(train, rows=train.rows & ~held_out)}
    return rest | {SELECTION: replace(train, rows=held_out)} | parts | rest


def grouped(part: Part, rows: np.ndarray | slice, task: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Group rows by their texts: return the first row of each group, the group of each row, and the groups of each class."""
    _, firsts, groups = np.unique(part.all_keys[rows], return_index=True, return_inverse=True)
    strata = part.found.codes[rows][firsts] if task == CLASSES else np.zeros(len(firsts), dtype=np.int32)
    classes = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    return firsts, groups, [members[np.argsort(firsts[members])] for members in classes]


# --- the second pass: write the rows -------------------------------------------------------------------------------
def write_split(path: Path, part: Part, task: str, labels: LabelSet | None, settings: DataSettings) -> str:
    """Write the rows of a part with their label numbers. Return the fingerprint of what was written."""
    hasher, index, writer = blake2b(part.keys.tobytes(), digest_size=16), 0, None
    found, columns = part.found, part.columns
    lookup = schema.label_lookup(found, task, labels.numbers_of(found.values())) if labels else None
    for table in part.tables():
        rows = slice(index, index + table.num_rows)
        if not found.labelled:
            kind = pa.list_(pa.int64()) if task == SEVERAL else pa.float32() if task == SCORE else pa.int64()
            label = arrow_array([[] if task == SEVERAL else schema.UNLABELLED] * table.num_rows, kind)
        elif lookup is None:
            label = schema.scores_of(schema.label_cells(table, columns.label, settings.label_separator))
        else:
            label = lookup.take(arrow_array(found.codes[rows], pa.int32()))
        chosen = arrow_array(part.rows[rows], pa.bool_())
        if (label := label.filter(chosen)).null_count:
            row = index + int(np.flatnonzero(part.rows[rows])[np.argmax(label.is_null().to_numpy(zero_copy_only=False))])
            raise DataError(f"{part.raw.row_name(row)}: the label is not a finite number", "fix or remove the row")
        table = schema.stored_columns(table.filter(chosen), columns, label)
        hasher.update(repr(label.to_pylist()).encode())
        writer = writer or pa.ipc.new_stream(str(path), table.schema)
        writer.write_table(table)
        index = rows.stop
    if writer is not None:
        writer.close()
    return hasher.hexdigest()


# --- what a person should know -------------------------------------------------------------------------------------
def facts_of(part: Part, labels: LabelSet | None, train_keys: np.ndarray | None) -> SplitFacts:
    """Return the counts of a part. `train_keys` are the keys of the training rows."""
    found, label_counts = part.found, dict[str, int]()
    if found.labelled and labels:
        numbers = labels.numbers_of(found.values())
        label_counts = dict.fromkeys(labels.names, 0)
        for value, count in found.counts(part.rows).items():
            label_counts[labels.names[numbers[value]]] += count
    facts = key_facts(part.keys, found.codes[part.rows] if found.labelled else None, train_keys)
    num_empty = int(part.empties[part.rows].sum())
    return replace(facts, label_counts=label_counts, unlabelled=not found.labelled, num_empty=num_empty)


def key_facts(keys: np.ndarray, labels: np.ndarray | None, train_keys: np.ndarray | None) -> SplitFacts:
    """Return what the keys of texts say: how many repeat others, have several of the labels, and are training rows, too."""
    num_conflicts = 0
    if labels is not None:
        texts_and_labels = np.unique(np.stack([keys, labels.astype(np.uint64)]), axis=1)
        num_conflicts = int((np.unique(texts_and_labels[0], return_counts=True)[1] > 1).sum())
    return SplitFacts(
        len(keys),
        num_duplicates=len(keys) - len(np.unique(keys)),
        num_conflicts=num_conflicts,
        num_in_train=0 if train_keys is None else int(np.isin(keys, train_keys).sum()),
    )


def length_facts(lengths: np.ndarray, num_cut: int = 0, longest_whole: int = 0) -> LengthFacts | None:
    if not len(lengths):
        return None
    longest = int(lengths.max())
    counts = np.histogram(lengths, bins=min(LENGTH_BINS, max(longest, 1)), range=(0, max(longest, 1)))[0]
    mean, median = round(float(lengths.mean()), 2), float(np.median(lengths))
    return LengthFacts(mean, median, longest, num_cut, longest_whole, tuple(map(int, counts)))


def notes_on(facts: dict[str, SplitFacts], labels: LabelSet | None) -> list[str]:
    """Return one sentence for each thing a person should know before training."""
    notes = []
    for name, fact in facts.items():
        sentences = {
            counted(fact.num_duplicates, "row repeats", "rows repeat") + " the text of another row": fact.num_duplicates,
            counted(fact.num_conflicts, "text has", "texts have") + " more than one label": fact.num_conflicts,
            f"{fact.num_in_train:,} of {fact.num_rows:,} rows are also in train": fact.num_in_train,
            counted(fact.num_empty, "empty text is", "empty texts are") + " kept": fact.num_empty,
            "skipped: " + counted(fact.num_skipped, "row", "rows") + " with a missing or unknown label": fact.num_skipped,
            "there are no labels": fact.unlabelled,
        }
        for number, rows in enumerate(() if fact.unlabelled else ("no rows", "1 row")):
            rare = [label for label, count in fact.label_counts.items() if count == number]
            many = f"{len(rare):,} labels have {rows}: {listed(rare, 6)}"
            sentences[many if len(rare) != 1 else f"label {visible(rare[0])} has {rows}"] = bool(rare)
        label, count = max(fact.label_counts.items(), key=lambda entry: entry[1], default=("", 0))
        rows = f"label {visible(label)} has {count:,} of {fact.num_rows:,} rows, so accuracy says little"
        is_imbalanced = name == "train" and IMBALANCED <= count / max(sum(fact.label_counts.values()), 1) < 1
        sentences[f"{rows}; --class_weights balanced makes all labels count the same"] = is_imbalanced
        notes += [f"{name}: {sentence}" for sentence, applies in sentences.items() if applies]
    groups = schema.look_alikes(labels.names) if labels else []
    for group in groups[:LOOK_ALIKE_GROUPS]:
        numbers = [sum(fact.label_counts.get(name, 0) for fact in facts.values()) for name in group]
        spelled = zip(schema.spelled(group), numbers, strict=True)
        names = " and ".join(f"{name} ({counted(number, 'row', 'rows')})" for name, number in spelled)
        notes.append(f"these labels look alike but are different classes: {names}")
    if (rest := len(groups) - LOOK_ALIKE_GROUPS) > 0:
        notes.append(f"{counted(rest, 'more group', 'more groups')} of labels look alike")
    return notes
