"""One pass over a split, and its result as tables in the terminal, predictions.jsonl, and documents of `--json`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table

from glassloop.base.errors import SettingsError
from glassloop.base.files import write_text
from glassloop.base.output import advance
from glassloop.base.records import described, entry
from glassloop.data.batches import Batch
from glassloop.data.encoding import Encoding, LengthLimit, kept_parts, notes_on
from glassloop.data.examples import SHOWN_LABELS, Examples
from glassloop.data.interfaces import Tokenizer
from glassloop.data.rows import numbers_of
from glassloop.markup.notebook import scores
from glassloop.markup.terminal import bare_table, text
from glassloop.runs import record as records
from glassloop.runs.history import last_step
from glassloop.runs.record import BaselineRecord, ClassRecord, RunRecord, SplitRecord
from glassloop.runs.study import SeedsRecord
from glassloop.scores import calibration
from glassloop.scores import result as scoring
from glassloop.scores.metrics import COMPUTED, Array, Measures, no_better, short_metrics
from glassloop.scores.statistics import BETTER, ScoredRows, metric_estimate, some_rows
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

# A process whose workers train shows tables and writes documents without torch.
if TYPE_CHECKING:
    import torch

    from glassloop.training.interfaces import EvaluationBackend, LossSum, RowBatches

# Logits, or logits and other outputs of a model: tensors in tuples, lists and dicts. In a result they are arrays.
Nested: TypeAlias = "torch.Tensor | np.ndarray | Sequence[Nested] | Mapping[str, Nested]"
# A model and a batch -> the sum of the rows' losses (None without labels), the logits or all outputs, and the labels
PredictBatch: TypeAlias = "Callable[[torch.nn.Module, Batch], tuple[torch.Tensor | None, Nested, Nested | None]]"
Content = dict[str, object]
RowFacts = Mapping[int, Mapping[str, object]]  # by row
READ_BATCHES = 16  # batches whose logits are copied from the device at once
PADDING = -100  # what fills up outputs of rows that are shorter than others, as in transformers
MOST_EXAMINED = 5_000  # rows of full length whose cut texts are found, which costs another tokenization
NOTHING = "-"  # a score that does not exist
# The gains of a temperature, and the scores that they are differences of.
GAINS = {calibration.LOSS: calibration.LOG_LOSS, calibration.CALIBRATION_ERROR: calibration.EXPECTED_ERROR}
SHORT_TITLES = {  # of columns
    scoring.FREQUENCIES: "frequencies",
    scoring.TRAINING_MEAN: "mean",
    scoring.FROZEN_ENCODER: "frozen",
    scoring.OTHER_FROZEN: "frozen, default pooling",
}
LARGEST = 8  # of many classes, so many of those with the most rows are shown; the rest of SHOWN_LABELS have the lowest F1
LONGEST_NAME = 40  # characters of a class, so that its scores fit into 80 columns
SPLIT_KEYS = (
    *("rows", "metrics", "baseline", "positive_label", "classes", "balanced_accuracy", "verdict", "advice"),
    *("baselines", "probabilities"),
)


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A signal ended a pass over a split before its last batch."""


@described
@dataclass(frozen=True)
class Evaluation:
    """The result of one pass over a split."""

    logits: np.ndarray = field(metadata={"help": "The logits of each row, in the order of the data."})
    labels: np.ndarray | None = field(metadata={"help": "The labels of each row; None if there are none."})
    loss: float | None = field(metadata={"help": "The mean loss of the rows; None without labels or without a loss function."})
    seconds: float = field(metadata={"help": "How long the pass took."})
    metrics: dict[str, float] = field(default_factory=dict, metadata={"help": "The metrics by name."})
    prefix: str = entry("eval", "What the name of each metric begins with.")
    outputs: Nested | None = field(default=None, metadata={"help": "The logits and other outputs; None without others."})
    several_labels: Nested | None = field(default=None, metadata={"help": "The labels under several names, or None."})

    @property
    def predictions(self) -> Nested:
        """The logits, or a tuple of them and the other outputs of the model."""
        return self.logits if self.outputs is None else self.outputs

    @property
    def label_ids(self) -> Nested | None:
        """The labels, or a tuple of them if there are several."""
        return self.labels if self.several_labels is None else self.several_labels

    def _repr_html_(self) -> str:
        return scores("Evaluation", self.metrics, {"rows": f"{len(self.logits):,}"})


def run_over(
    model: torch.nn.Module,
    batches: RowBatches,
    backend: EvaluationBackend,
    loss_sum: LossSum | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    predict: PredictBatch | None = None,
) -> Evaluation:
    """Run a model over all batches, without dropout and without gradients. Each process takes whole batches in turn.

    Only what `predict` returns is kept: usually logits, so memory grows by a few bytes per row and class.

    Args:
        model: The model. It returns an object with `logits`.
        batches: The batches of the split.
        backend: The device and precision to use, and the processes that share the batches.
        loss_sum: A function of logits and labels that returns the sum of the rows' losses.
        should_stop: Called after each batch; True ends the pass.
        predict: Replaces the forward pass and `loss_sum`: returns the sum of the losses of a batch's rows, logits and labels.

    Returns:
        Logits, labels and loss, without metrics.

    Raises:
        Interrupted: `should_stop` returned True.
    """
    import torch

    began = time.perf_counter()
    was_training, trains = model.training, any(part.training for part in model.modules())
    if trains:
        model.eval()

    def usual(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        logits = model(**backend.move(batch.inputs)).logits.float()
        if batch.labels is None or loss_sum is None:
            return None, logits, None
        return loss_sum(logits, backend.move(batch.labels)), logits, batch.labels

    predict = usual if predict is None else predict
    numbers: list[np.ndarray] = []
    labels: list[Nested] = []
    logits: list[Nested] = []
    waiting: list[Nested] = []  # logits on the device: copying them one by one would wait for each batch
    cost = torch.zeros((), device=backend.device)

    def read() -> None:
        if waiting:
            logits.append(each_array(in_memory, joined(waiting)))
            waiting.clear()

    try:
        with torch.inference_mode():
            for batch in batches.whole(backend.processes.rank, backend.processes.num_processes):
                with backend.forward(model):
                    loss, outputs, known = predict(model, batch)
                if loss is not None and known is not None:
                    cost = cost + loss
                    labels.append(known)
                numbers.append(batch.numbers)
                waiting.append(outputs)
                advance(len(batch.numbers) * backend.processes.num_processes)
                if len(waiting) == READ_BATCHES or not isinstance(outputs, torch.Tensor):
                    read()
                if should_stop():
                    raise Interrupted
            read()
    finally:
        if trains:
            model.train(was_training)
    known_labels = [each_array(in_memory, joined(labels))] if labels else []
    shares = backend.processes.gather_objects([(numbers, logits, known_labels, float(cost))])
    order = np.concatenate([part for share in shares for part in share[0]])
    places = np.argsort(order, kind="stable")

    def in_order(value: torch.Tensor) -> np.ndarray:
        array = in_memory(value)
        return array[places] if len(array) == len(places) else array  # else it does not have one entry for each row

    every = each_array(in_order, joined([part for share in shares for part in share[1]]))
    label_parts = [part for share in shares for part in share[2]]
    every_label = each_array(in_order, joined(label_parts)) if label_parts else None
    return Evaluation(
        first_array(every),
        None if every_label is None else first_array(every_label),
        sum(share[3] for share in shares) / len(order) if label_parts else None,
        time.perf_counter() - began,
        outputs=None if isinstance(every, np.ndarray) else every,
        several_labels=None if isinstance(every_label, np.ndarray) else every_label,
    )


def each_array(change: Callable[..., Nested], found: Nested) -> Nested:
    """Return outputs of a model with every tensor or array changed. Raises `SettingsError` for anything else."""
    import torch

    if isinstance(found, Mapping):
        return {name: each_array(change, value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        made = [each_array(change, value) for value in found]
        return made if isinstance(found, list) else tuple(made)
    if isinstance(found, torch.Tensor | np.ndarray):
        return change(found)
    problem = f"the model returned a {type(found).__name__} among its outputs, which cannot be a prediction"
    raise SettingsError(problem, "name its key in ignore_keys=, or in config.keys_to_ignore_at_inference")


def first_array(found: Nested) -> np.ndarray:
    while not isinstance(found, np.ndarray):
        found = next(iter(found.values())) if isinstance(found, Mapping) else found[0]
    return found


def in_memory(value: torch.Tensor) -> np.ndarray:
    array: np.ndarray = value.cpu().numpy()
    return array


def joined(parts: Sequence[Nested]) -> Nested:
    """Join the outputs of several batches to tensors. As in transformers, a second dimension that differs is padded."""
    import torch
    from torch.nn.functional import pad

    first = parts[0]
    if isinstance(first, Mapping):
        return {name: joined([part[name] for part in parts if isinstance(part, Mapping)]) for name in first}
    if isinstance(first, list | tuple):
        columns = [joined([part[place] for part in parts if isinstance(part, list | tuple)]) for place in range(len(first))]
        return columns if isinstance(first, list) else tuple(columns)
    each_array(torch.as_tensor, first)  # raises if it is neither
    tensors = [torch.as_tensor(part) for part in parts]
    tensors = [tensor.reshape(1) if tensor.ndim == 0 else tensor for tensor in tensors]
    if len({tensor.shape[2:] for tensor in tensors}) > 1:
        problem = "an output of the model has another shape in each batch, so its batches cannot be joined"
        raise SettingsError(problem, "name its key in ignore_keys=, or pad all rows to the same length")
    if tensors[0].ndim > 1:
        width, rest = max(tensor.shape[1] for tensor in tensors), [0, 0] * (tensors[0].ndim - 2)
        tensors = [pad(tensor, [*rest, 0, width - tensor.shape[1]], value=PADDING) for tensor in tensors]
    return torch.cat(tensors)


def named_metrics(found: Evaluation, values: Mapping[str, float], prefix: str) -> Evaluation:
    """Return an evaluation with its loss, other values and timings as metrics whose names begin with `prefix`."""
    runtime, per_second = records.TIMINGS
    metrics = {} if found.loss is None else {"loss": found.loss, **values}
    metrics |= {runtime: found.seconds, per_second: len(found.logits) / max(found.seconds, 1e-9)}
    named = {name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value for name, value in metrics.items()}
    return replace(found, metrics=named, prefix=prefix)


# --- results of the splits of a run ------------------------------------------------------------------------------------
def result_of(
    examples: Examples,
    split: str,
    found: Evaluation,
    measures: Measures,
    prefix: str = "eval",
    trained_on: Mapping[str, int] | Array | None = None,
    facts: scoring.TrainingFacts | None = None,
    baselines: scoring.Baselines | None = None,
    temperature: float | None = None,
    method: scoring.Method | None = None,
) -> scoring.Result:
    """Return the result of an evaluation: with baselines and a verdict, if the training rows are known.

    `trained_on` has the labels of the training rows, or counts those of each class, if these are not among the examples. The
    advice depends on `facts`.
    Without `baselines` of this split, a constant answer is the only one. Probabilities are judged at a `temperature`; without
    one, at one that is fitted to other rows of the split, near the usual one of the `method` that made the model.
    """
    names = examples.labels.names if examples.labels else ()
    labels = found.labels if found.labels is not None else labels_of(examples, split)
    rows = scoring.rows_of(found.logits, labels, examples.task, names)
    result = scoring.Result(split, rows, measures, short_metrics(found.metrics, prefix), timed=found.metrics)
    targets: Array
    if isinstance(trained_on, np.ndarray):
        targets = trained_on
    elif trained_on is not None and examples.task == CLASSES:
        targets = np.repeat(np.arange(len(names)), [trained_on.get(name, 0) for name in names])
    elif "train" in examples.rows and split != "train":
        targets = labels_of(examples, "train")
    else:
        targets = np.zeros(0)
    if not len(targets):
        return result
    answer = scoring.usual_answer(targets, examples.task)
    compared, rivals = rows, [scoring.constant_baseline(rows, answer)]
    if baselines is not None:
        compared, rivals = some_rows(rows, baselines.numbers), [*baselines.each]
    method, probabilities = method or scoring.Method(), None
    if examples.task != SCORE and len(rows):
        prior = calibration.prior_outputs(targets, examples.task, len(names))
        probabilities = calibration.probability_record(rows, prior, method.usual_temperature, temperature)
    return replace(
        result,
        baseline=scoring.baseline_scores(rows, answer, measures),
        verdict=scoring.verdict_on(compared, rivals, facts, method),
        baselines=[baseline_record(one, measures) for one in baselines.each] if baselines else (),
        probabilities=probabilities,
    )


def baseline_record(baseline: scoring.Baseline, measures: Measures) -> BaselineRecord:
    """Return the metrics of a baseline with their intervals, and how good its probabilities are."""
    rows = baseline.rows
    scores, keys = {}, [key for key in measures.keys if key in COMPUTED[rows.task]]
    if baseline.is_constant:
        known = Measures(tuple(keys), measures.positive)
        keys = [*scoring.baseline_scores(rows, rows.predictions[0], known)] if keys else []
    for key in keys:
        estimate = metric_estimate(rows, key, measures.positive)
        span = estimate.interval
        scores[key] = records.MetricRecord(estimate.value, span.low if span else None, span.high if span else None)
    if rows.task != SCORE:
        scores |= calibration.probability_scores(rows)
    return BaselineRecord(baseline.name, scores, baseline.num_train, baseline.seconds, baseline.note)


def prefixes(splits: list[str]) -> list[str]:
    """Return the prefix of each split's metrics: `eval` for the first, then `eval_mismatched` for validation_mismatched."""
    return ["eval", *(f"eval_{split.removeprefix('validation_')}" for split in splits[1:])][: len(splits)]


def by_split(results: Sequence[scoring.Result]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics and the baselines of all splits. Keys of further splits begin with the split: mismatched_accuracy."""
    metrics: dict[str, float] = {}
    baseline: dict[str, float] = {}
    for result, prefix in zip(results, prefixes([result.split for result in results]), strict=True):
        for every, values in ((metrics, result.metrics), (baseline, result.baseline or {})):
            every |= {f"{prefix}_{key}".removeprefix("eval_"): value for key, value in values.items()}
    return metrics, baseline


def scored(record: RunRecord, results: Sequence[scoring.Result]) -> RunRecord:
    """Return the record of a run with the results of its evaluations, the first of which has the verdict."""
    first = results[0]
    return replace(
        record,
        evaluation={name: value for result in results for name, value in result.timed.items()},
        baseline=by_split(results)[1],
        classes=first.classes or None,
        balanced_accuracy=first.balanced[0] if first.balanced else None,
        baselines=tuple(first.baselines),
        probabilities=first.probabilities,
        verdict=first.verdict.sentence if first.verdict else None,
        advice=first.verdict.advice if first.verdict else (),
        further={result.split: split_record(result) for result in results[1:]},
    )


def split_record(result: scoring.Result) -> SplitRecord:
    told = SplitRecord(baselines=tuple(result.baselines), probabilities=result.probabilities)
    return replace(told, verdict=result.verdict.sentence, advice=result.verdict.advice) if result.verdict else told


def labels_of(examples: Examples, split: str) -> np.ndarray:
    cells = examples.rows[split].with_format("arrow")[examples.columns.label_name].combine_chunks()
    if examples.task != SEVERAL:
        return numbers_of(cells)
    rows = np.zeros((len(cells), examples.num_labels), dtype=np.int64)
    for row, numbers in enumerate(cells.to_pylist()):
        rows[row, numbers] = 1
    return rows


def write_predictions(path: Path, examples: Examples, result: scoring.Result, more: RowFacts | None = None) -> None:
    """Write one line per row: texts, label, prediction and logits, from which every metric can be computed again."""
    texts = examples.rows[result.split].select_columns([*dict.fromkeys(examples.columns.texts)])[:]
    cells = ({name: column[row] for name, column in texts.items()} for row in range(len(result.rows)))
    write_answers(path, result.rows, cells, more)


def store_temperature(folder: Path, record: RunRecord, split: str, found: records.ProbabilityRecord) -> None:
    """Store the temperature of a run that has just been evaluated, for all predictions with its model."""
    gains = [records.Gain(name, found.before[key], found.after[key].value) for name, key in GAINS.items()]
    folds = min(calibration.FITTED_FOLDS, found.rows)
    told = found.warning or ""
    records.store_calibration(folder, record, split, found.temperature, gains, num_rows=found.rows, folds=folds, warning=told)


def write_answers(path: Path, rows: ScoredRows, texts: Iterable[Mapping[str, str]], more: RowFacts | None = None) -> None:
    """Write one line per row, with its texts by column and further facts such as its number of tokens."""
    lines = []
    answers = zip(rows.logits.tolist(), rows.predictions.tolist(), rows.references.tolist(), texts, strict=True)
    for row, (logits, choice, label, words) in enumerate(answers):
        answer = {"prediction": scoring.label_of(choice, rows.labels), "label": scoring.label_of(label, rows.labels)}
        entry = {"row": row, **answer, "logits": logits, **((more or {}).get(row) or {}), **words}
        lines.append(json.dumps(entry, ensure_ascii=False, allow_nan=False))
    write_text(path, "\n".join(lines) + "\n")


def length_entries(
    examples: Examples, split: str, lengths: np.ndarray, tokenizer: Tokenizer | None, max_length: int, *, towers: bool = False
) -> dict[int, dict[str, object]]:
    """Return the number of tokens of each row and, if it was cut, the characters of each text that the model reads."""
    entries: dict[int, dict[str, object]] = {row: {"tokens": int(length)} for row, length in enumerate(lengths)}
    full = [row for row, length in enumerate(lengths) if length >= max_length][:MOST_EXAMINED]
    names, rows = examples.columns.texts, examples.rows[split]
    texts = [[str(rows[row][name] or "") for row in full] for name in names]
    for place, spans in enumerate(kept_parts(tokenizer, texts, max_length, towers=towers) if tokenizer else []):
        words = zip(names, spans, (text[place] for text in texts), strict=True)
        cut = {name: [*span] for name, span, text in words if text[: span[0]].strip() or text[span[1] :].strip()}
        if cut:
            entries[full[place]]["kept"] = cut
    return entries


# --- tables in the terminal --------------------------------------------------------------------------------------------
def show_result(console: Console, result: scoring.Result, title: str) -> None:
    console.print(results_table(result, title))
    if result.classes:
        console.print()
        console.print(class_table(result.classes))
    lines: list[str] = []
    if result.verdict:
        console.print()
        lines = [f"• {result.verdict.sentence}", *(f"  try {tip}" for tip in result.verdict.advice)]
    told = result.verdict is not None and result.verdict.kind != BETTER
    if result.baseline is not None and not told and (keys := no_better(result.metrics, result.baseline, result.measures)):
        lines.append(f"• no better than the {baseline_name(result.measures)}: {', '.join(map(result.measures.title, keys))}")
    if result.probabilities is not None and (warning := result.probabilities.warning):
        lines.append(f"• {warning}")
    for line in lines:
        console.print(text(line))


def baseline_name(measures: Measures) -> str:
    """Return what the baseline always predicts: the mean score of the training rows, or their most frequent label."""
    return "mean baseline" if {*measures.keys} & {*COMPUTED[SCORE]} else "majority baseline"


def results_table(result: scoring.Result, title: str) -> Table:
    """Return a table of the metrics: of this run, and of the baselines, or of a constant answer if there are no others."""
    columns: list[tuple[str, Mapping[str, float | None]]] = [
        (SHORT_TITLES.get(one.name, one.name), values_of(one.scores)) for one in result.baselines
    ]
    columns = columns or [(baseline_name(result.measures), result.baseline or {})]
    table = bare_table(title, "this run", *(name for name, _ in columns), right=1)
    for key, value in result.metrics.items():
        table.add_row(text(result.measures.title(key)), *figures((value, *(values.get(key) for _, values in columns))))
    if result.balanced:
        level = result.balanced[1] if result.baseline is not None else None
        table.add_row(text("balanced accuracy"), *figures((result.balanced[0], level, *[None] * (len(columns) - 1))))
    likely = values_of(result.probabilities.after) if result.probabilities else {}
    for key, value in likely.items():
        table.add_row(text(calibration.PROBABILITY_TITLES[key]), *figures((value, *(values.get(key) for _, values in columns))))
    return table


def values_of(scores: Mapping[str, records.MetricRecord]) -> dict[str, float]:
    return {key: score.value for key, score in scores.items()}


def baselines_table(baselines: Sequence[BaselineRecord], measures: Measures, title: str) -> Table:
    """Return a table of what simple methods reach, each with the 95% confidence interval of its first metric."""
    first = next((key for key in measures.keys if any(key in one.scores for one in baselines)), None)
    has_labels = any("log_loss" in one.scores for one in baselines)
    heads = [measures.title(first), "95% confidence interval"] if first else []
    heads += [*(["log loss"] if has_labels else []), "seconds"]
    table = bare_table(title, *heads, right=1)
    for one in baselines:
        score = one.scores.get(first or "")
        span = NOTHING if score is None or score.low is None else f"{score.low:.4f} to {score.high:.4f}"
        cells = [*figures([score.value if score else None]), span] if first else []
        cells += [*figures([one.scores["log_loss"].value])] if has_labels else []
        table.add_row(text(f"{one.name} ({one.note})" if one.note else one.name), *cells, f"{one.seconds:.1f}")
    return table


def class_table(classes: dict[str, ClassRecord]) -> RenderableType:
    """Return a table with the scores of each class. Of many, the largest and those with the lowest F1 are included."""
    table = bare_table("class", "precision", "recall", "f1", "rows", right=1, no_wrap=True)
    table.columns[0].max_width = LONGEST_NAME

    def add(entries: Iterable[tuple[str, ClassRecord]]) -> None:
        for name, score in entries:
            table.add_row(text(name), *figures((score.precision, score.recall, score.f1)), f"{score.support:,}")

    if len(classes) <= SHOWN_LABELS:
        add(classes.items())
        return table
    by_size = sorted(classes.items(), key=lambda entry: -entry[1].support)
    rest = sorted((entry for entry in by_size[LARGEST:] if entry[1].support), key=lambda entry: entry[1].f1 or 0.0)
    worst, hidden = rest[: SHOWN_LABELS - LARGEST], rest[SHOWN_LABELS - LARGEST :]
    add(by_size[:LARGEST])
    table.add_row(text("lowest f1 of the others", "dim"))
    add(worst)
    zero, empty = sum(not score.f1 for _, score in hidden), len(by_size) - LARGEST - len(rest)
    facts = [f"{zero:,} with f1 0"] * bool(zero) + [f"{empty:,} without rows"] * bool(empty)
    return Group(table, text(f"and {len(hidden) + empty:,} more" + (f" ({', '.join(facts)})" if facts else "")))


def figures(values: Iterable[float | None]) -> Iterator[str]:
    return (NOTHING if value is None else f"{value:.4f}" for value in values)


# --- documents of --json -----------------------------------------------------------------------------------------------
def data_content(examples: Examples, encoded: Mapping[str, Encoding], data: str, model: str, limit: LengthLimit) -> Content:
    return {
        "data": data,
        "model": model,
        "max_length": limit.max_length,
        "task": examples.task,
        "columns": examples.columns,
        "labels": examples.labels.names if examples.labels else None,
        "splits": {
            name: {
                "rows": fact.num_rows,
                "labels": None if fact.unlabelled else fact.label_counts,
                "duplicates": fact.num_duplicates,
                "also_in_train": fact.num_in_train,
                "conflicts": fact.num_conflicts,
                "truncated": encoded[name].truncation.num_rows,
                "mean_tokens": float(encoded[name].lengths.mean()),
                "longest_tokens": int(encoded[name].lengths.max()),
            }
            for name, fact in examples.facts.items()
        },
        "notes": [*examples.notes, *notes_on(dict(encoded), limit)],
    }


def results_content(results: Iterable[scoring.Result]) -> Content:
    content: Content = {}
    for result in results:
        balanced, told = result.balanced[0] if result.balanced else None, split_record(result)
        meaning = (told.verdict, told.advice, told.baselines, told.probabilities)
        values = (result.metrics, result.baseline, result.measures.positive, result.classes or None, balanced, *meaning)
        content[result.split] = dict(zip(SPLIT_KEYS, (len(result.rows), *values), strict=True))
    return content


def run_content(folder: Path, record: RunRecord) -> Content:
    """Return the result of `glassloop train`, from the record of the run."""
    splits: Content = {}
    for name in records.held_out_splits(record.data.splits) if record.evaluation else ():
        classes = (None, None) if splits else (record.classes, record.balanced_accuracy)  # run.json has those of the first
        told = record.judged.get(name, SplitRecord())
        meaning = (told.verdict, told.advice, told.baselines, told.probabilities)
        values = (*scoring.split_scores(record, name), record.positive_label, *classes, *meaning)
        splits[name] = dict(zip(SPLIT_KEYS, (record.data.splits[name].num_rows, *values), strict=True))
    return {
        "run": folder,
        "status": record.status,
        "data": record.data.source,
        "model": record.model.name,
        "seed": record.settings.seed,
        "steps": last_step(folder),
        "seconds": record.seconds,
        "resumed": record.resumed,
        "stages": record.stages,
        "stop_reason": record.stop_reason,
        "best_step": record.best_step,
        "training": record.result,
        "splits": splits,
    }


def seeds_content(record: SeedsRecord, baselines: Sequence[BaselineRecord] = ()) -> Content:
    return {
        "run": record.folder,
        "status": record.status,
        "data": record.settings.source or "quickstart",
        "model": record.settings.model or "quickstart",
        "seeds": {
            seed: {
                "run": record.folder / records.seed_name(seed),
                "status": entry.status,
                "seconds": entry.seconds or None,
                "metrics": entry.metrics,
                "exit_status": entry.exit_code,
                "error": " ".join(entry.error) or None,
            }
            for seed, entry in record.seeds.items()
        },
        "mean": record.mean,
        "standard_deviation": record.standard_deviation,
        "baseline": record.baseline,
        "baselines": baselines,
    }
