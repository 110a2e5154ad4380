"""The record that a Trainer writes of its training, with what its rows and evaluations say. Nothing here fails a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.base.records import write_sealed
from glassloop.data.batches import Batch, Batches, padding_waste
from glassloop.data.examples import key_facts, length_facts, notes_on, text_keys
from glassloop.data.interfaces import Row, Rows, Tokenizer
from glassloop.data.rows import LABEL_KEYS, RowReader, is_dataset, label_cells
from glassloop.models.interface import config_of, label_names
from glassloop.runs import record as records
from glassloop.runs.history import read_moments, trained_seconds
from glassloop.runs.record import RunRecord
from glassloop.scores import result as scoring
from glassloop.scores.calibration import prior_outputs, probability_record
from glassloop.scores.metrics import COMPUTED, LOSS, Measures, short_metrics
from glassloop.scores.statistics import ScoredRows, some_rows
from glassloop.settings.training import CLASSES, SCORE, SEVERAL
from glassloop.training.callbacks import Callback, State
from glassloop.training.evaluate import Evaluation, baseline_record, write_answers
from glassloop.training.session import TrainingParts, started_record

MOST_READ = 200_000  # rows; of more, only the number is known
MOST_TEXTS = 2  # columns
SAMPLE = 50  # rows that show which columns hold texts
IDS, MASK = "input_ids", "attention_mask"
VALIDATION = "validation"  # what the report calls the evaluation rows of a Trainer
MOST_LOGITS = 2_000_000  # that are stored; of more, only the metrics are
MOST_STORED_TEXTS = 10_000  # rows; of more, only those that a report lists have their texts


# --- the rows that a Trainer was given ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class GivenRows:
    """The columns of a data set that a report needs."""

    number: int
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by column
    ids: Sequence[Sequence[int]] = ()  # the tokens of each row; empty if they are not known
    lengths: np.ndarray | None = None  # number of tokens of each row
    labels: np.ndarray | None = None  # as the user gave them

    def keys(self) -> np.ndarray | None:
        """Return eight bytes per row, equal for equal texts or tokens; None if neither is known."""
        if self.texts:
            return text_keys([[*cells] for cells in self.texts.values()])
        if not len(self.ids):
            return None
        digests = (blake2b(np.asarray(row, dtype=np.int32).tobytes(), digest_size=8).digest() for row in self.ids)
        return np.frombuffer(b"".join(digests), dtype=np.uint64)


def read_given(rows: Rows | None, *, tokens_first: bool = False) -> GivenRows | None:
    """Return what rows say, without their transforms; of very many rows, or rows that were not all read, only the number.

    Rows with texts have no ids, unless `tokens_first`: then rows with tokens have no texts.
    """
    if rows is None or not hasattr(rows, "__len__"):
        return None
    number = len(rows)
    reader, rows = (rows, rows.rows) if isinstance(rows, RowReader) else (None, rows)
    if is_dataset(rows):
        can_be_read = 0 < number <= MOST_READ
        return of_table(rows.with_format("arrow")[:], tokens_first=tokens_first) if can_be_read else GivenRows(number)
    # Rows that code of the user returns may be slow to read: only what was noted when they were read is used.
    known: Sequence[Row] = rows if isinstance(rows, list | tuple) else []
    if reader is not None and len(reader.noted) == number:
        known = [reader.noted[place] for place in range(number)]
    if not (0 < len(known) <= MOST_READ and all(isinstance(row, Mapping) for row in known)):
        return GivenRows(number)
    wanted = (name for name, value in known[0].items() if isinstance(value, str) or name in (IDS, MASK, *LABEL_KEYS))
    columns = {
        name: [row[name].tolist() if hasattr(row[name], "tolist") else row[name] for row in known]
        for name in wanted
        if all(name in row for row in known)
    }
    texts = {name: cells for name, cells in columns.items() if name not in LABEL_KEYS and isinstance(cells[0], str)}
    ids = columns.get(IDS, ())
    names = () if tokens_first and len(ids) else text_columns(texts)
    words = {name: [str(cell) for cell in texts[name]] for name in names}
    labels = next((np.asarray(columns[name]) for name in LABEL_KEYS if name in columns), None)
    lengths = np.array([len(row) for row in ids]) if len(ids) else None
    return GivenRows(number, words, ids, true_lengths(lengths, lambda: columns.get(MASK, ())), labels)


def of_table(table: pa.Table, *, tokens_first: bool = False) -> GivenRows:
    kinds = {name: table.schema.field(name).type for name in table.column_names}
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    has_ids = IDS in kinds and hasattr(table[IDS].combine_chunks(), "offsets")
    skips_texts = tokens_first and has_ids
    names = [] if skips_texts else text_columns({name: table[name][:SAMPLE].to_pylist() for name in texts})
    words = {name: [cell or "" for cell in table[name].to_pylist()] for name in names}
    labels = [label_cells(table[name].combine_chunks()) for name in LABEL_KEYS if name in kinds and name not in texts]
    ids: Sequence[Sequence[int]] = ()
    lengths = None
    if has_ids:
        lengths = pc.list_value_length(table[IDS]).to_numpy().astype(np.int64)
        lengths = true_lengths(lengths, lambda: table[MASK].to_pylist() if MASK in kinds else ())
        ids = () if names else table[IDS].to_pylist()
    return GivenRows(table.num_rows, words, ids, lengths, np.asarray(labels[0]) if labels and labels[0] is not None else None)


def true_lengths(lengths: np.ndarray | None, masks: Callable[[], Sequence[Sequence[int]]]) -> np.ndarray | None:
    """Return the lengths of rows; those of the masks if all rows are padded to one length."""
    if lengths is not None and len({*lengths.tolist()}) == 1 and len(known := masks()):
        return np.array([sum(row) for row in known])
    return lengths


def text_columns(samples: Mapping[str, Sequence[object]]) -> list[str]:
    """Return the columns with texts: those in which most cells have several words, else the one with the longest cells."""
    texts = {name: [cell for cell in cells[:SAMPLE] if isinstance(cell, str)] for name, cells in samples.items()}
    worded = [name for name, cells in texts.items() if cells and 2 * sum(len(cell.split()) > 1 for cell in cells) > len(cells)]
    longest = sorted(texts, key=lambda name: -sum(map(len, texts[name])))[:1]
    return (worded or longest)[:MOST_TEXTS]


def decoded_texts(ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Return the texts of rows of tokens; the two texts of a pair where a separator divides them."""
    special, end = {*tokenizer.all_special_ids}, getattr(tokenizer, "sep_token_id", None)

    def segments(row: Sequence[int]) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for token in row:
            if token == end:
                parts.append([])
            elif token not in special:
                parts[-1].append(token)
        return [part for part in parts if part] or [[]]

    rows = [segments(row) for row in ids]
    if max(map(len, rows), default=0) != MOST_TEXTS:  # no pairs
        rows = [[[token for part in row for token in part]] for row in rows]
    words = iter(tokenizer.batch_decode([part for row in rows for part in row]))
    return [{name: next(words) for name, _ in zip(("text", "text_pair"), row, strict=False)} for row in rows]


def facts_of(rows: GivenRows, names: tuple[str, ...], task: str, train_keys: np.ndarray | None) -> records.SplitFacts:
    """Return the counts of a split, with those of its rows that are among the training rows, if the keys of these are known."""
    keys, labels = rows.keys(), rows.labels
    counts: dict[str, int] = {}
    if labels is not None and task in (CLASSES, SEVERAL) and labels.dtype.kind in "iubf":
        flat = labels.astype(np.int64).ravel()
        one_hot = labels.ndim == 2 and labels.shape[1] == len(names)
        sums = labels.sum(axis=0) if one_hot else np.bincount(flat[flat >= 0], minlength=len(names))  # -100: ignored
        counts = {name: int(number) for name, number in zip(names, sums, strict=False)}
    if keys is None:  # without texts and tokens, nothing is known of duplicates
        return records.SplitFacts(rows.number, counts)
    one_each = labels is not None and labels.ndim == 1 and task == CLASSES
    fingerprint = blake2b(keys.tobytes(), digest_size=16).hexdigest()
    facts = key_facts(keys, labels if one_each else None, train_keys)
    return replace(facts, label_counts=counts, unlabelled=labels is None, fingerprint=fingerprint)


# --- the record --------------------------------------------------------------------------------------------------------
def last_record(
    record: RunRecord,
    parts: TrainingParts,
    found: Evaluation | None,
    held_out: GivenRows | None,
    baselines: scoring.Baselines | None,
) -> RunRecord:
    """Return the record of a finished training, with what its rows say and the scores of the trained model, if `found`."""
    train = read_given(parts.train_rows)
    if held_out and held_out.labels is None and found:
        held_out = replace(held_out, labels=found.labels)
    splits, lengths = dict(record.data.splits), {}
    for name, rows in (("train", train), (VALIDATION, held_out)):
        if rows is not None:
            train_keys = train.keys() if train and name != "train" else None
            splits[name] = facts_of(rows, record.data.labels or (), parts.task, train_keys)
            if rows.lengths is not None and (facts := length_facts(rows.lengths)):
                lengths[name] = facts
    data = replace(record.data, splits=splits, notes=tuple(notes_on(splits, None)))
    record = replace(record, data=data, lengths=lengths, max_length=max((one.longest for one in lengths.values()), default=0))
    if train and train.lengths is not None and isinstance(parts.batches, Batches):
        multiple = parts.args.pad_to_multiple_of or 1
        record = replace(record, padding=padding_waste(train.lengths, parts.batches.order(0), multiple))
    return with_scores(record, found, parts.measures(), train, baselines) if found else record


def with_scores(
    record: RunRecord,
    found: Evaluation,
    measures: Measures | None,
    train: GivenRows | None,
    baselines: scoring.Baselines | None = None,
) -> RunRecord:
    """Return the record with the metrics of an evaluation, and those of always giving the usual answer of the training rows."""
    task, names, scores = record.data.task, record.data.labels or (), finite_scores(found)
    used = measures or Measures(tuple(name for name in scores if name != LOSS))
    baseline, verdict = {}, None
    if train and train.labels is not None and found.labels is not None and can_be_stored(found, names):
        rows = scored(found, record)
        answer = scoring.usual_answer(train.labels.astype(found.labels.dtype), task)
        compared = rows if baselines is None else some_rows(rows, baselines.numbers)
        rivals = [scoring.constant_baseline(rows, answer)] if baselines is None else baselines.each
        method = scoring.Method(scoring.FINE_TUNING, record.training_seconds or 0.0)
        verdict = scoring.verdict_on(compared, rivals, method=method).sentence
        if baselines is not None and task != SCORE:
            prior = prior_outputs(train.labels, task, len(names))
            record = replace(record, probabilities=probability_record(rows, prior, temperature=1.0))
        known = Measures(tuple(key for key in used.keys if key in COMPUTED[task]), used.positive)
        baseline = scoring.baseline_scores(rows, answer, known) if known.keys else {}
        values = known.scores(found.logits, found.labels, task, names or ("score",)) if baseline else {}
        # A metric that the user computes may only have the name of Glassloop's.
        baseline = {key: value for key, value in baseline.items() if abs(values[key] - scores[key]) < 1e-6}
    evaluation = {
        f"eval_{name.removeprefix(f'{found.prefix}_')}": value
        for name, value in found.metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    record = replace(record, metrics=used.keys, positive_label=used.positive)
    return replace(record, evaluation=evaluation, baseline=baseline, verdict=verdict)


def finite_scores(found: Evaluation) -> dict[str, float]:
    return {name: value for name, value in short_metrics(found.metrics, found.prefix).items() if math.isfinite(value)}


def can_be_stored(found: Evaluation, names: Sequence[str]) -> bool:
    """Return whether there is a label and one number per output for each row, and not too many of them."""
    logits, labels = found.logits, found.labels
    shaped = logits.ndim == 2 and logits.shape[1] == max(len(names), 1) and 0 < logits.size <= MOST_LOGITS
    return shaped and labels is not None and labels.shape in ((len(logits),), logits.shape) and bool((labels >= 0).all())


def scored(found: Evaluation, record: RunRecord) -> ScoredRows:
    return scoring.rows_of(found.logits, np.asarray(found.labels), record.data.task, record.data.labels or ())


@dataclass(eq=False)
class Recorder(Callback):
    """Keeps the evaluations of a training and writes trainer.json, the predictions and the report, in the main process."""

    parts: TrainingParts
    tokenizer: Tokenizer | None  # decodes rows that have no text columns
    listed_rows: Callable[[ScoredRows], np.ndarray]  # the rows whose texts a report lists
    write_report: Callable[[Path], object] | None  # None for no report
    baselines: scoring.Baselines | None = None  # of the evaluation rows
    record: RunRecord | None = None  # of the start; None before the first step, or if it could not be written
    has_started: bool = False
    # What a report may show, with their steps: the latest evaluation, and that of the best step, whose weights may be returned.
    latest: tuple[int, Evaluation] | None = None
    best: tuple[int, Evaluation] | None = None
    shown: Evaluation | None = None  # in the report
    result: dict[str, float] | None = None
    reads_weights = False

    def on_step(self, state: State, batches: list[Batch]) -> None:
        # Not before: a training that fails before its first step leaves no record, as a run of the command.
        if not self.has_started and self.parts.backend.processes.is_main:
            self.has_started = True
            self.safely(self.start)

    def evaluated(self, found: Evaluation) -> None:
        """Keep an evaluation. After the training, write the report again if it does not show this result yet."""
        state = self.parts.state
        if self.latest is not None and self.latest[0] == state.best_step:
            self.best = self.latest
        self.latest = (state.step, found)
        if self.result is not None and not (self.shown and finite_scores(found) == finite_scores(self.shown)):
            self.write(found)

    def end(self, result: dict[str, float]) -> None:
        self.result = result
        state = self.parts.state
        self.on_step(state, [])  # a resumed training may have had no step left
        wanted = state.best_step if self.parts.args.load_best_model_at_end else None
        self.write(next((one[1] for one in (self.latest, self.best) if one and wanted in (None, one[0])), None))

    def write(self, found: Evaluation | None) -> None:
        self.shown = found
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
        data = records.DataRecord(
            source="given in Python",
            task=parts.task,
            columns=records.Columns("text"),
            labels=None if parts.task == SCORE else label_names(config),
            splits={name: records.SplitFacts(len(rows)) for name, rows in splits.items() if isinstance(rows, Sized)},
        )
        name = getattr(config, "_name_or_path", "") or type(parts.model).__name__
        model = records.ModelRecord(name, config.model_type, sum(weight.numel() for weight in parts.model.parameters()))
        record = started_record(parts, data, model)
        write_sealed(parts.folder / records.TRAINER_NAME, record)
        (parts.folder / records.predictions_name(VALIDATION)).unlink(missing_ok=True)
        self.record = record

    def finish(self) -> None:
        """Write trainer.json and, if they are not too many, the predictions of the evaluation."""
        parts, found, result = self.parts, self.shown, self.result
        if self.record is None or result is None:
            return
        held_out = read_given(parts.eval_rows)
        measures = parts.measures() or Measures(())
        known = tuple(baseline_record(one, measures) for one in self.baselines.each) if self.baselines else ()
        seconds = trained_seconds(read_moments(parts.folder), result.get("train_runtime", 0.0))
        record = replace(self.record, baselines=known, result=result, training_seconds=seconds)
        record = last_record(record, parts, found, held_out, self.baselines)
        if found and can_be_stored(found, record.data.labels or ()):
            tokens = held_out.lengths if held_out is not None and held_out.number == len(found.logits) else None
            more = None if tokens is None else {row: {"tokens": int(number)} for row, number in enumerate(tokens)}
            texts = self.texts(held_out, found, record)
            text, pair, *_ = [*dict.fromkeys(name for words in texts for name in words), None, None]
            record = replace(record, data=replace(record.data, columns=records.Columns(text or "text", pair, ("labels",))))
            write_answers(parts.folder / records.predictions_name(VALIDATION), scored(found, record), texts, more)
        reason, best_step, seconds = parts.state.stop_reason, parts.state.best_step, result.get("train_runtime")
        record = replace(record, status=records.FINISHED, stop_reason=reason, best_step=best_step, seconds=seconds)
        write_sealed(parts.folder / records.TRAINER_NAME, record)

    def texts(self, held_out: GivenRows | None, found: Evaluation, record: RunRecord) -> list[Mapping[str, str]]:
        """Return the texts of each evaluated row: from text columns, else decoded. Of many rows, only those a report lists."""
        number = len(found.logits)
        texts: list[Mapping[str, str]] = [{} for _ in range(number)]
        if held_out is None or held_out.number != number:
            return texts
        wanted = range(number) if number <= MOST_STORED_TEXTS else self.listed_rows(scored(found, record)).tolist()
        words: Sequence[Mapping[str, str]] = ()
        if held_out.texts:
            words = [{name: cells[row] for name, cells in held_out.texts.items()} for row in wanted]
        elif len(held_out.ids) and self.tokenizer is not None and hasattr(self.tokenizer, "batch_decode"):
            words = decoded_texts([held_out.ids[row] for row in wanted], self.tokenizer)
        for row, cells in zip(wanted, words, strict=False):
            texts[row] = cells
        return texts
