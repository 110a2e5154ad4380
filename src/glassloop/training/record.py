"""The record of a training by a Trainer and the predictions of its evaluation, from which its report is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

import numpy as np

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import known_difference
from glassloop.data.batches import Batches
from glassloop.data.encoding import length_facts
from glassloop.data.facts import notes_on
from glassloop.data.order import padding_waste
from glassloop.engine.evaluate import Evaluation
from glassloop.engine.state import State
from glassloop.engine.versions import versions
from glassloop.machine import machine_name
from glassloop.measures import COMPUTED, LOSS, Measures, short_metrics
from glassloop.metrics import decide
from glassloop.models.outputs import config_of, label_names
from glassloop.outcomes import constant_scores, usual_answer, write_answers
from glassloop.report.rows import listed_rows
from glassloop.run_folder.layout import TRAINER_NAME, predictions_name
from glassloop.run_folder.record import FINISHED, RUNNING, Columns, DataRecord, ModelRecord, RunRecord, SplitFacts
from glassloop.run_folder.run_json import write_record
from glassloop.settings import SCORE
from glassloop.statistics.scored import ScoredRows
from glassloop.training.given_rows import GivenRows, decoded_texts, facts_of, read_given
from glassloop.training.parts import TrainingParts
from glassloop.transformers_types import Tokenizer

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


class Evaluations:
    """The evaluations that a report may show: the latest, and that of the best step, whose weights a training may return."""

    def __init__(self) -> None:
        self.latest: KeptEvaluation | None = None
        self.best: KeptEvaluation | None = None

    def add(self, found: Evaluation, prefix: str, state: State) -> None:
        """Keep an evaluation; the one before it, too, if it is the best so far."""
        if self.latest is not None and self.latest.step == state.best_step:
            self.best = self.latest
        self.latest = KeptEvaluation(found, prefix, state.step)

    def of_the_model(self, state: State, *, best: bool) -> KeptEvaluation | None:
        """Return the evaluation of the weights that a training ended with: the latest or, if asked for, the best."""
        wanted = state.best_step if best and state.best_step is not None else None
        found = [one for one in (self.latest, self.best) if one and wanted in (None, one.step)]
        return found[0] if found else None


def first_record(parts: TrainingParts, measures: Measures | None) -> RunRecord:
    """Return the record of a training before its first step, without what must be read from the rows."""
    model, backend, task = parts.model, parts.backend, parts.task
    splits = {"train": parts.train_rows, VALIDATION: parts.eval_rows}
    numbers = {name: len(rows) for name, rows in splits.items() if rows is not None and hasattr(rows, "__len__")}
    return RunRecord(
        status=RUNNING,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        data=DataRecord(
            source=GIVEN,
            task=task,
            columns=Columns("text"),
            labels=None if task == SCORE else label_names(config_of(model)),
            splits={name: SplitFacts(number) for name, number in numbers.items()},
        ),
        model=ModelRecord(
            getattr(config_of(model), "_name_or_path", "") or type(model).__name__,
            config_of(model).model_type,
            sum(weight.numel() for weight in model.parameters()),
        ),
        settings=plain_settings(parts.args),
        max_length=0,
        plan=parts.plan,
        device=str(backend.device),
        machine=machine_name(str(backend.device)),
        precision=backend.precision,
        backend=backend.name,
        savings=tuple(backend.describe_savings(model, parts.use)),
        difference=known_difference(backend, model),
        processes=backend.processes.num_processes,
        versions=versions(),
        metrics=measures.keys if measures else (),
        positive_label=measures.positive if measures else None,
    )


def plain_settings(args: TrainingArguments) -> TrainingArguments:
    """Return Glassloop's own settings of a Trainer, without those that only transformers has."""
    given = {entry.name: getattr(args, entry.name) for entry in fields(TrainingArguments)}
    return TrainingArguments(**given | {"device": vars(args)["device"]})


def last_record(
    record: RunRecord, parts: TrainingParts, kept: KeptEvaluation | None, measures: Measures | None, held_out: GivenRows | None
) -> RunRecord:
    """Return the record of a finished training, with what its rows say and the scores of an evaluation.

    Args:
        record: The record before the first step.
        parts: The parts of the training.
        kept: The evaluation of the trained model.
        measures: Glassloop's metrics; None if the user computes others.
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
    return with_scores(record, kept, measures, train) if kept else record


def with_scores(record: RunRecord, kept: KeptEvaluation, measures: Measures | None, train: GivenRows | None) -> RunRecord:
    """Return the record with the metrics of an evaluation, and those of always giving the usual answer of the training rows."""
    task, names, labels = record.data.task, record.data.labels or (), kept.found.labels
    used = measures or Measures(tuple(name for name in kept.scores if name != LOSS))
    baseline: dict[str, float] = {}
    known = Measures(tuple(key for key in used.keys if key in COMPUTED[task]), used.positive)
    if train and train.labels is not None and labels is not None and known.keys and kept.can_be_stored(names):
        answer = usual_answer(train.labels.astype(labels.dtype), task)
        found = constant_scores(answer, labels, task, names, known)
        baseline = {key: value for key, value in found.items() if same_metric(key, known, kept, record)}
    evaluation = {
        f"eval_{name.removeprefix(f'{kept.prefix}_')}": value
        for name, value in kept.found.metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return replace(record, metrics=used.keys, positive_label=used.positive, evaluation=evaluation, baseline=baseline)


def same_metric(key: str, measures: Measures, kept: KeptEvaluation, record: RunRecord) -> bool:
    """Return whether a metric that the user computes equals Glassloop's metric of that name."""
    task, names = record.data.task, record.data.labels or ("score",)
    value = Measures((key,), measures.positive).scores(kept.found.logits, kept.found.labels, task, names)[key]
    return abs(value - kept.scores[key]) < 1e-6


def texts_of(
    held_out: GivenRows | None, kept: KeptEvaluation, record: RunRecord, tokenizer: Tokenizer | None
) -> list[Mapping[str, str]]:
    """Return the texts of each evaluated row: from text columns, else decoded. Of many rows, only those a report lists."""
    number = len(kept.found.logits)
    found: list[Mapping[str, str]] = [{} for _ in range(number)]
    if held_out is None or held_out.number != number:
        return found
    wanted = range(number) if number <= MOST_STORED_TEXTS else listed_rows(scored(kept, record)).tolist()
    if held_out.texts:
        for row in wanted:
            found[row] = {name: cells[row] for name, cells in held_out.texts.items()}
    elif len(held_out.ids) and tokenizer is not None and hasattr(tokenizer, "batch_decode"):
        decoded = decoded_texts([held_out.ids[row] for row in wanted], tokenizer)
        for row, words in zip(wanted, decoded, strict=True):
            found[row] = words
    return found


def scored(kept: KeptEvaluation, record: RunRecord) -> ScoredRows:
    """Return an evaluation as the arrays that statistics are computed from."""
    logits, task = kept.found.logits.astype(np.float64), record.data.task
    return ScoredRows(task, record.data.labels or (), decide(logits, task), np.asarray(kept.found.labels), logits)


def write_start(parts: TrainingParts, measures: Measures | None) -> RunRecord:
    """Write trainer.json before the first step, remove the predictions of an earlier training, and return the record."""
    record = first_record(parts, measures)
    write_record(parts.folder / TRAINER_NAME, record)
    (parts.folder / predictions_name(VALIDATION)).unlink(missing_ok=True)
    return record


def write_end(
    record: RunRecord,
    parts: TrainingParts,
    kept: KeptEvaluation | None,
    measures: Measures | None,
    tokenizer: Tokenizer | None,
    result: dict[str, float],
) -> None:
    """Write trainer.json and, if they are not too many, the predictions of the evaluation."""
    folder, state = parts.folder, parts.state
    held_out = read_given(parts.eval_rows)
    record = last_record(record, parts, kept, measures, held_out)
    record = replace(record, status=FINISHED, result=result, stop_reason=state.stop_reason, best_step=state.best_step)
    if kept and kept.can_be_stored(record.data.labels or ()):
        tokens = held_out.lengths if held_out is not None and held_out.number == len(kept.found.logits) else None
        more = None if tokens is None else {row: {"tokens": int(number)} for row, number in enumerate(tokens)}
        texts = texts_of(held_out, kept, record, tokenizer)
        columns = [*dict.fromkeys(name for words in texts for name in words)] or ["text"]
        pair = columns[1] if len(columns) > 1 else None
        record = replace(record, data=replace(record.data, columns=Columns(columns[0], pair, ("labels",))))
        write_answers(folder / predictions_name(VALIDATION), kept.found, record.data.task, record.data.labels, texts, more)
    write_record(folder / TRAINER_NAME, replace(record, seconds=result.get("train_runtime")))
