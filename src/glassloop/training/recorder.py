"""The record of a training: how every run starts it, and what a Trainer adds at the end. Nothing here fails a training."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from glassloop.base.errors import counted
from glassloop.base.records import versions, write_sealed
from glassloop.data.batches import Batch, Batches, padding_waste
from glassloop.data.examples import length_facts, notes_on, text_keys
from glassloop.data.interfaces import Row, Rows, Tokenizer
from glassloop.data.rows import LABEL_KEYS, RowReader, is_dataset, label_cells
from glassloop.models.interface import config_of, label_names
from glassloop.runs.record import (
    FINISHED,
    RUNNING,
    TRAINER_NAME,
    Columns,
    DataRecord,
    ModelRecord,
    RunRecord,
    SplitFacts,
    predictions_name,
)
from glassloop.scores.intervals import ScoredRows
from glassloop.scores.metrics import COMPUTED, LOSS, Measures, short_metrics
from glassloop.scores.result import baseline_scores, rows_of, usual_answer, verdict_on
from glassloop.settings.training import CLASSES, SCORE, SEVERAL, TrainingArguments
from glassloop.training.callbacks import Callback, State
from glassloop.training.evaluate import Evaluation, write_answers
from glassloop.training.session import TrainingParts

MOST_READ = 200_000  # rows; of more, only the number is known


MOST_TEXTS = 2  # columns


SAMPLE = 50  # rows that show which columns hold texts


IDS, MASK = "input_ids", "attention_mask"


@dataclass(frozen=True)
class GivenRows:
    """The columns of a data set that a report needs.

    Attributes:
        number: Number of rows.
        texts: The columns with texts.
        ids: The tokens of each row; empty if they are not known.
        lengths: Number of tokens of each row; None if it is not known.
        labels: The labels as the user gave them; None if there are none.
    """

    number: int
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ids: Sequence[Sequence[int]] = ()
    lengths: np.ndarray | None = None
    labels: np.ndarray | None = None

    def keys(self) -> np.ndarray | None:
        """Return eight bytes per row, equal for equal texts or tokens; None if neither is known."""
        if self.texts:
            return text_keys([[*cells] for cells in self.texts.values()])
        if not len(self.ids):
            return None
        digests = (blake2b(np.asarray(row, dtype=np.int32).tobytes(), digest_size=8).digest() for row in self.ids)
        return np.frombuffer(b"".join(digests), dtype=np.uint64)


def read_given(rows: Rows | None) -> GivenRows | None:
    """Return what rows say, without their transforms; of very many rows, or rows that were not all read, only the number.

    Rows that code of the user returns may be slow to read. Only what was noted when they were read is used.
    """
    if rows is None or not hasattr(rows, "__len__"):
        return None
    number = len(rows)
    reader, rows = (rows, rows.rows) if isinstance(rows, RowReader) else (None, rows)
    if is_dataset(rows):
        return of_table(rows.with_format("arrow")[:]) if 0 < number <= MOST_READ else GivenRows(number)
    found: Sequence[Row] = rows if isinstance(rows, list | tuple) else []
    if reader is not None and len(reader.noted) == number:
        found = [reader.noted[place] for place in range(number)]
    if not 0 < len(found) <= MOST_READ:
        return GivenRows(number)
    if not all(isinstance(row, Mapping) for row in found):
        return GivenRows(number)
    names = [name for name in found[0] if all(name in row for row in found)]
    return of_columns({name: [plain(row[name]) for row in found] for name in names if is_wanted(found[0][name], name)}, number)


def is_wanted(value: object, name: str) -> bool:
    """Return whether a column may hold texts, tokens or labels."""
    return isinstance(value, str) or name in (IDS, MASK, *LABEL_KEYS)


def plain(value: object) -> object:
    """Return a tensor or an array as numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def of_table(table: pa.Table) -> GivenRows:
    """Return what the columns of an Arrow table say."""
    kinds = {name: table.schema.field(name).type for name in table.column_names}
    texts = {name: table[name] for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)}
    labels = next(
        (label_cells(table[name].combine_chunks()) for name in LABEL_KEYS if name in kinds and name not in texts), None
    )
    chosen = text_columns({name: cells[:SAMPLE].to_pylist() for name, cells in texts.items()})
    ids: Sequence[Sequence[int]] = ()
    lengths = None
    if IDS in kinds and hasattr(table[IDS].combine_chunks(), "offsets"):
        lengths = pc.list_value_length(table[IDS]).to_numpy().astype(np.int64)
        if MASK in kinds and len({*lengths.tolist()}) == 1:  # padded to one length
            lengths = np.array([sum(row) for row in table[MASK].to_pylist()])
        ids = () if chosen else table[IDS].to_pylist()
    words = {name: [cell or "" for cell in texts[name].to_pylist()] for name in chosen}
    return GivenRows(table.num_rows, words, ids, lengths, None if labels is None else np.asarray(labels))


def of_columns(columns: Mapping[str, Sequence[object]], number: int) -> GivenRows:
    """Return what rows that were read one by one say."""
    texts = {name: cells for name, cells in columns.items() if name not in LABEL_KEYS and isinstance(cells[0], str)}
    chosen = text_columns({name: cells[:SAMPLE] for name, cells in texts.items()})
    labels = next((columns[name] for name in LABEL_KEYS if name in columns), None)
    ids: Sequence[Sequence[int]] = columns.get(IDS, ())  # type: ignore[assignment]
    masks: Sequence[Sequence[int]] = columns.get(MASK, ())  # type: ignore[assignment]
    lengths = np.array([len(row) for row in ids]) if len(ids) else None
    if lengths is not None and len(masks) and len({*lengths.tolist()}) == 1:
        lengths = np.array([sum(row) for row in masks])
    words = {name: [str(cell) for cell in texts[name]] for name in chosen}
    return GivenRows(number, words, ids, lengths, None if labels is None else np.asarray(labels))


def text_columns(samples: Mapping[str, Sequence[object]]) -> list[str]:
    """Return the columns with texts: those in which most cells have several words, else the one with the longest cells."""
    found = {name: [cell for cell in cells if isinstance(cell, str)] for name, cells in samples.items()}
    worded = [name for name, cells in found.items() if cells and 2 * sum(len(cell.split()) > 1 for cell in cells) > len(cells)]
    longest = sorted(found, key=lambda name: -sum(map(len, found[name])))[:1]
    return (worded or longest)[:MOST_TEXTS]


def decoded_texts(ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Return the texts of rows of tokens; the two texts of a pair where a separator divides them."""
    special = {*tokenizer.all_special_ids}
    end = getattr(tokenizer, "sep_token_id", None)
    rows = [segments(row, special, end) for row in ids]
    pairs = max(map(len, rows), default=0) == MOST_TEXTS
    parts = [row if pairs else [[token for part in row for token in part]] for row in rows]
    words = iter(tokenizer.batch_decode([part for row in parts for part in row]))
    names = ("text", "text_pair")
    return [{name: next(words) for name, _ in zip(names, row, strict=False)} for row in parts]


def segments(row: Sequence[int], special: set[int], end: int | None) -> list[list[int]]:
    """Return the tokens of a row without special ones, divided at the separators."""
    found: list[list[int]] = [[]]
    for token in row:
        if token == end:
            found.append([])
        elif token not in special:
            found[-1].append(token)
    return [part for part in found if part] or [[]]


def facts_of(rows: GivenRows, names: tuple[str, ...], task: str, train_keys: np.ndarray | None) -> SplitFacts:
    """Return the counts of a split. Without texts and tokens there is no fingerprint, and nothing is known of duplicates.

    Args:
        rows: The rows.
        names: The label names.
        task: The task.
        train_keys: The keys of the training rows, to count those of another split that are among them.
    """
    keys, labels = rows.keys(), rows.labels
    counts: dict[str, int] = {}
    if labels is not None and task in (CLASSES, SEVERAL) and labels.dtype.kind in "iubf":
        known = labels.ndim == 2 and labels.shape[1] == len(names)
        flat = labels.astype(np.int64).ravel()
        sums = labels.sum(axis=0) if known else np.bincount(flat[flat >= 0], minlength=len(names))  # -100: ignored
        counts = {name: int(number) for name, number in zip(names, sums, strict=False)}
    if keys is None:
        return SplitFacts(rows.number, counts)
    num_conflicts = 0
    if labels is not None and labels.ndim == 1 and task == CLASSES:
        both = np.unique(np.stack([keys, labels.astype(np.uint64)]), axis=1)
        num_conflicts = int((np.unique(both[0], return_counts=True)[1] > 1).sum())
    return SplitFacts(
        rows.number,
        counts,
        unlabelled=labels is None,
        num_duplicates=len(keys) - len(np.unique(keys)),
        num_conflicts=num_conflicts,
        num_in_train=0 if train_keys is None else int(np.isin(keys, train_keys).sum()),
        fingerprint=blake2b(keys.tobytes(), digest_size=16).hexdigest(),
    )


VALIDATION = "validation"  # what the report calls the evaluation rows of a Trainer


MOST_LOGITS = 2_000_000  # that are stored; of more, only the metrics are


MOST_STORED_TEXTS = 10_000  # rows; of more, only those that a report lists have their texts


GIVEN = "given in Python"  # instead of the name of the data


@dataclass(frozen=True)
class KeptEvaluation:
    """An evaluation, what the names of its metrics begin with, and its step."""

    found: Evaluation
    prefix: str
    step: int

    @property
    def scores(self) -> dict[str, float]:
        """The finite metrics without prefix and timings."""
        found = short_metrics(self.found.metrics, self.prefix)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def can_be_stored(self, names: Sequence[str]) -> bool:
        """Return whether there is a label and one number per output for each row, and not too many of them."""
        logits, labels = self.found.logits, self.found.labels
        shaped = logits.ndim == 2 and logits.shape[1] == max(len(names), 1) and 0 < logits.size <= MOST_LOGITS
        return shaped and labels is not None and labels.shape in ((len(logits),), logits.shape) and bool((labels >= 0).all())


def started_record(parts: TrainingParts, data: DataRecord, model: ModelRecord) -> RunRecord:
    """Return the record of a training that starts, of the command or of a Trainer, without what must be read from the rows."""
    backend = parts.backend
    measures = parts.measures()
    return RunRecord(
        status=RUNNING,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=data,
        model=model,
        settings=plain_settings(parts.args),
        max_length=0,
        plan=parts.plan,
        device=str(backend.device),
        machine=machine_name(str(backend.device)),
        precision=backend.precision,
        backend=backend.name,
        savings=tuple(backend.describe_savings(parts.model, parts.use)),
        difference=parts.difference,
        processes=backend.processes.num_processes,
        versions=versions(),
        metrics=measures.keys if measures else (),
        positive_label=measures.positive if measures else None,
    )


def machine_name(device: str) -> str:
    """Return the GPU of a device, or the processor and its number of cores."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(torch.device(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{named or platform.processor() or platform.machine()}, {counted(os.cpu_count() or 1, 'core', 'cores')}"


def plain_settings(args: TrainingArguments) -> TrainingArguments:
    """Return Glassloop's own settings of a Trainer, without those that only transformers has."""
    given = {entry.name: getattr(args, entry.name) for entry in fields(TrainingArguments)}
    return TrainingArguments(**given | {"device": vars(args)["device"]})


def last_record(record: RunRecord, parts: TrainingParts, kept: KeptEvaluation | None, held_out: GivenRows | None) -> RunRecord:
    """Return the record of a finished training, with what its rows say and the scores of an evaluation.

    Args:
        record: The record of the start.
        parts: The parts of the training.
        kept: The evaluation of the trained model.
        held_out: The evaluation rows.
    """
    train = read_given(parts.train_rows)
    if held_out and held_out.labels is None and kept:
        held_out = replace(held_out, labels=kept.found.labels)
    names = record.data.labels or ()
    splits, lengths = dict(record.data.splits), {}
    for name, rows in (("train", train), (VALIDATION, held_out)):
        if rows is not None:
            splits[name] = facts_of(rows, names, parts.task, train.keys() if train and name != "train" else None)
            if rows.lengths is not None and (facts := length_facts(rows.lengths)):
                lengths[name] = facts
    data = replace(record.data, splits=splits, notes=tuple(notes_on(splits, None)))
    record = replace(record, data=data, lengths=lengths, max_length=max((one.longest for one in lengths.values()), default=0))
    if train and train.lengths is not None and isinstance(parts.batches, Batches):
        multiple = parts.args.pad_to_multiple_of or 1
        record = replace(record, padding=padding_waste(train.lengths, parts.batches.order(0), multiple))
    return with_scores(record, kept, parts.measures(), train) if kept else record


def with_scores(record: RunRecord, kept: KeptEvaluation, measures: Measures | None, train: GivenRows | None) -> RunRecord:
    """Return the record with the metrics of an evaluation, and those of always giving the usual answer of the training rows."""
    task, names, labels = record.data.task, record.data.labels or (), kept.found.labels
    used = measures or Measures(tuple(name for name in kept.scores if name != LOSS))
    baseline: dict[str, float] = {}
    verdict = None
    known = Measures(tuple(key for key in used.keys if key in COMPUTED[task]), used.positive)
    if train and train.labels is not None and labels is not None and kept.can_be_stored(names):
        rows = scored(kept, record)
        answer = usual_answer(train.labels.astype(labels.dtype), task)
        verdict = verdict_on(rows, answer).sentence
        found = baseline_scores(rows, answer, known) if known.keys else {}
        baseline = {key: value for key, value in found.items() if same_metric(key, known, kept, record)}
    evaluation = {
        f"eval_{name.removeprefix(f'{kept.prefix}_')}": value
        for name, value in kept.found.metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    record = replace(record, metrics=used.keys, positive_label=used.positive)
    return replace(record, evaluation=evaluation, baseline=baseline, verdict=verdict)


def same_metric(key: str, measures: Measures, kept: KeptEvaluation, record: RunRecord) -> bool:
    """Return whether a metric that the user computes equals Glassloop's metric of that name."""
    task, names = record.data.task, record.data.labels or ("score",)
    value = Measures((key,), measures.positive).scores(kept.found.logits, kept.found.labels, task, names)[key]
    return abs(value - kept.scores[key]) < 1e-6


def scored(kept: KeptEvaluation, record: RunRecord) -> ScoredRows:
    """Return an evaluation as the arrays that statistics are computed from."""
    return rows_of(kept.found.logits, np.asarray(kept.found.labels), record.data.task, record.data.labels or ())


@dataclass(eq=False)
class Recorder(Callback):
    """Keeps the evaluations of a training and writes trainer.json, the predictions and the report, in the main process.

    The record is written after the first step: a training that fails before it leaves no record, as a run of the command.

    Args:
        parts: The parts of the training.
        tokenizer: Decodes rows that have no text columns.
        listed_rows: Returns the rows whose texts a report lists.
        write_report: Writes the report of a folder; None for no report.

    Attributes:
        record: The record of the start; None before the first step, or if it could not be written.
        latest, best: The evaluations that a report may show: the latest, and that of the best step, whose weights a training
            may return.
    """

    parts: TrainingParts
    tokenizer: Tokenizer | None
    listed_rows: Callable[[ScoredRows], np.ndarray]
    write_report: Callable[[Path], object] | None
    record: RunRecord | None = None
    has_started: bool = False
    latest: KeptEvaluation | None = None
    best: KeptEvaluation | None = None
    shown: KeptEvaluation | None = None  # in the report
    result: dict[str, float] | None = None
    reads_weights = False

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Write the record after the first step."""
        if not self.has_started and self.parts.backend.processes.is_main:
            self.has_started = True
            self.safely(self.start)

    def evaluated(self, found: Evaluation, prefix: str) -> None:
        """Keep an evaluation. After the training, write the report again if it does not show this result yet."""
        state = self.parts.state
        if self.latest is not None and self.latest.step == state.best_step:
            self.best = self.latest
        self.latest = KeptEvaluation(found, prefix, state.step)
        if self.result is not None and self.latest.scores != (self.shown.scores if self.shown else None):
            self.write(self.latest)

    def end(self, result: dict[str, float]) -> None:
        """Write the record, the predictions and the report of a finished training."""
        self.result = result
        state = self.parts.state
        self.on_step(state, [])  # a resumed training may have had no step left
        wanted = state.best_step if self.parts.args.load_best_model_at_end else None
        known = [one for one in (self.latest, self.best) if one and wanted in (None, one.step)]
        self.write(known[0] if known else None)

    def write(self, kept: KeptEvaluation | None) -> None:
        """Write everything, with the results of an evaluation."""
        self.shown = kept
        if self.record is not None and self.safely(self.finish) and self.write_report is not None:
            self.write_report(self.parts.folder)

    def safely(self, act: Callable[[], None]) -> bool:
        """Return whether something was done. An exception becomes one line."""
        try:
            act()
        except Exception as error:
            self.parts.say(f"the training could not be recorded for its report: {type(error).__name__}: {error}")
            return False
        return True

    def start(self) -> None:
        """Write trainer.json, and remove the predictions of an earlier training."""
        parts, config = self.parts, config_of(self.parts.model)
        splits = {"train": parts.train_rows, VALIDATION: parts.eval_rows}
        data = DataRecord(
            source=GIVEN,
            task=parts.task,
            columns=Columns("text"),
            labels=None if parts.task == SCORE else label_names(config),
            splits={
                name: SplitFacts(len(rows)) for name, rows in splits.items() if rows is not None and hasattr(rows, "__len__")
            },
        )
        name = getattr(config, "_name_or_path", "") or type(parts.model).__name__
        model = ModelRecord(name, config.model_type, sum(weight.numel() for weight in parts.model.parameters()))
        record = started_record(parts, data, model)
        write_sealed(parts.folder / TRAINER_NAME, record)
        (parts.folder / predictions_name(VALIDATION)).unlink(missing_ok=True)
        self.record = record

    def finish(self) -> None:
        """Write trainer.json and, if they are not too many, the predictions of the evaluation."""
        parts, kept, result = self.parts, self.shown, self.result
        if self.record is None or result is None:
            return
        held_out = read_given(parts.eval_rows)
        record = last_record(self.record, parts, kept, held_out)
        reason, best_step = parts.state.stop_reason, parts.state.best_step
        record = replace(record, status=FINISHED, result=result, stop_reason=reason, best_step=best_step)
        if kept and kept.can_be_stored(record.data.labels or ()):
            tokens = held_out.lengths if held_out is not None and held_out.number == len(kept.found.logits) else None
            more = None if tokens is None else {row: {"tokens": int(number)} for row, number in enumerate(tokens)}
            texts = self.texts(held_out, kept, record)
            columns = [*dict.fromkeys(name for words in texts for name in words)] or ["text"]
            pair = columns[1] if len(columns) > 1 else None
            record = replace(record, data=replace(record.data, columns=Columns(columns[0], pair, ("labels",))))
            path = parts.folder / predictions_name(VALIDATION)
            write_answers(path, scored(kept, record), texts, more)
        write_sealed(parts.folder / TRAINER_NAME, replace(record, seconds=result.get("train_runtime")))

    def texts(self, held_out: GivenRows | None, kept: KeptEvaluation, record: RunRecord) -> list[Mapping[str, str]]:
        """Return the texts of each evaluated row: from text columns, else decoded. Of many rows, only those a report lists."""
        number = len(kept.found.logits)
        found: list[Mapping[str, str]] = [{} for _ in range(number)]
        if held_out is None or held_out.number != number:
            return found
        wanted: Sequence[int] = range(number)
        if number > MOST_STORED_TEXTS:
            wanted = self.listed_rows(scored(kept, record)).tolist()
        if held_out.texts:
            for row in wanted:
                found[row] = {name: cells[row] for name, cells in held_out.texts.items()}
        elif len(held_out.ids) and self.tokenizer is not None and hasattr(self.tokenizer, "batch_decode"):
            for row, words in zip(wanted, decoded_texts([held_out.ids[row] for row in wanted], self.tokenizer), strict=True):
                found[row] = words
        return found
