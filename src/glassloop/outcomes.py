"""The outcome of an evaluation: metrics, the majority baseline, the scores of each class, and the predictions file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glassloop.data.examples import Examples
from glassloop.data.truncation import kept_parts
from glassloop.engine.evaluate import Evaluation
from glassloop.errors import listed, visible
from glassloop.files import write_text
from glassloop.measures import Measures, short_metrics
from glassloop.metric_values import AVERAGED, CORRELATIONS
from glassloop.metrics import decide
from glassloop.run_folder.record import ClassRecord, RunRecord, held_out_splits
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.transformers_types import Tokenizer
from glassloop.verdict import Comparison, TrainingFacts, Verdict, verdict_of

MOST_EXAMINED = 5_000  # rows of full length whose cut texts are found, which costs another tokenization


@dataclass(frozen=True)
class Outcome:
    """The evaluation of one split, the majority baseline (None without training rows), and the scores of each class."""

    split: str
    prefix: str  # of its metrics in the record of a run
    found: Evaluation
    baseline: dict[str, float] | None
    classes: dict[str, ClassRecord]
    measures: Measures
    balanced: tuple[float, float] | None = None  # balanced accuracy of the model, and of always giving the same answer
    verdict: Verdict | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics without prefix and without timings."""
        return short_metrics(self.found.metrics, self.prefix)


def outcome_of(
    examples: Examples,
    split: str,
    found: Evaluation,
    measures: Measures,
    prefix: str = "eval",
    trained_on: Mapping[str, int] | None = None,
    facts: TrainingFacts | None = None,
) -> Outcome:
    """Return an evaluation with the majority baseline and the scores of each class.

    Args:
        examples: The data.
        split: The split that was evaluated.
        found: The evaluation.
        measures: The metrics that were computed.
        prefix: What the names of the metrics begin with.
        trained_on: How many training rows each class had, if the training rows are not among the examples.
        facts: What is known about the training, for advice on a result that is no better than the baseline.
    """
    compared = trained_on is not None or ("train" in examples.splits and split != "train")
    baseline = majority_baseline(examples, split, measures, trained_on) if compared else None
    classes = {}
    if found.labels is not None and examples.labels:
        classes = class_scores(decide(found.logits, examples.task), found.labels, examples.labels.names)
    balanced = balanced_accuracy(classes) if examples.task == CLASSES else None
    outcome = Outcome(split, prefix, found, baseline, classes, measures, balanced)
    scores = comparison(outcome, examples, trained_on) if baseline is not None and found.labels is not None else None
    return replace(outcome, verdict=verdict_of(scores, classes, facts)) if scores else outcome


def comparison(outcome: Outcome, examples: Examples, trained_on: Mapping[str, int] | None) -> Comparison | None:
    """Return accuracy, mean squared error or the first F1 of an outcome, next to that of always giving the same answer."""
    guess, found, baseline = majority_answer(examples, trained_on), outcome.found, outcome.baseline or {}
    decided, references = decide(found.logits, examples.task), np.asarray(found.labels)
    always = np.broadcast_to(guess, references.shape)
    if examples.task == SCORE:
        error, baseline_error = (float(np.square(answers - references).mean()) for answers in (decided, always))
        return Comparison("mse", error, baseline_error, f"the mean {float(guess):.4g}", lower_is_better=True)
    names = examples.labels.names if examples.labels else ()
    only = answer_name(decided[0].tolist(), names) if bool(np.all(decided == decided[:1])) else None
    answer = answer_name(np.asarray(guess).tolist(), names)
    if examples.task == CLASSES:
        accuracy, usual = (float(np.mean(answers == references)) for answers in (decided, always))
        return Comparison("accuracy", accuracy, usual, answer, balanced=outcome.balanced, only=only)
    key = next((key for key in outcome.measures.keys if key in baseline and key in outcome.metrics), None)
    return Comparison(outcome.measures.title(key), outcome.metrics[key], baseline[key], answer, only=only) if key else None


def balanced_accuracy(classes: Mapping[str, ClassRecord]) -> tuple[float, float] | None:
    """Return the mean recall of all classes that have rows, for the model and for always giving the same answer."""
    recalls = [scores.recall for scores in classes.values() if scores.recall is not None]
    return (sum(recalls) / len(recalls), 1 / len(recalls)) if recalls else None


def answer_name(choice: float | list[float], names: tuple[str, ...]) -> str:
    """Return a class in quotes, several labels, or `no label`."""
    label = label_of(choice, names)
    return (listed(map(visible, label)) or "no label") if isinstance(label, list) else visible(label)


def validation_names(examples: Examples) -> list[str]:
    """Return the splits for selection and validation that have labels. The first one is evaluated during training."""
    return held_out_splits(examples.facts)


def prefixes(splits: list[str]) -> list[str]:
    """Return the prefix of each split's metrics: `eval` for the first, then `eval_mismatched` for validation_mismatched."""
    return ["eval", *(f"eval_{split.removeprefix('validation_')}" for split in splits[1:])][: len(splits)]


def scored(record: RunRecord, outcomes: list[Outcome]) -> RunRecord:
    """Return the record of a run with the results of its evaluations."""
    evaluation = {name: value for outcome in outcomes for name, value in outcome.found.metrics.items()}
    baseline = {f"{outcome.prefix}_{key}": value for outcome in outcomes for key, value in (outcome.baseline or {}).items()}
    first = outcomes[0]
    return replace(
        record,
        evaluation=evaluation,
        baseline=short_metrics(baseline),
        classes=first.classes or None,
        balanced_accuracy=first.balanced[0] if first.balanced else None,
        verdict=first.verdict.sentence if first.verdict else None,
        advice=first.verdict.advice if first.verdict else (),
    )


def majority_baseline(
    examples: Examples, split: str, measures: Measures, trained_on: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Return the metrics of always predicting the most frequent training label, or the mean score."""
    names = examples.labels.names if examples.labels else ()
    return constant_scores(majority_answer(examples, trained_on), labels_of(examples, split), examples.task, names, measures)


def constant_scores(
    answer: float | np.ndarray, references: np.ndarray, task: str, names: tuple[str, ...], measures: Measures
) -> dict[str, float]:
    """Return the metrics of always giving one answer.

    Omits correlations, and the F1 of a class that is never predicted: they are not defined.
    """
    undefined = ["matthews_correlation", *CORRELATIONS]
    if task == CLASSES and names[int(answer)] != measures.positive:
        undefined += AVERAGED
    predictions = np.broadcast_to(answer, np.shape(references))
    values = measures.metric(task, names or ["score"]).compute(predictions=predictions, references=references)
    return {key: value for key, value in values.items() if key not in undefined}


def majority_answer(examples: Examples, trained_on: Mapping[str, int] | None = None) -> float | np.ndarray:
    """Return the most frequent class of the training rows, the labels that half of them have, or their mean score."""
    if examples.task == CLASSES and trained_on is not None:
        return int(np.argmax([trained_on.get(name, 0) for name in (examples.labels.names if examples.labels else ())]))
    return usual_answer(labels_of(examples, "train"), examples.task)


def usual_answer(labels: np.ndarray, task: str) -> float | np.ndarray:
    """Return the most frequent class among labels, the labels that half of the rows have, or the mean score."""
    if task == SCORE:
        return float(labels.mean())
    return (labels.mean(axis=0) >= 0.5).astype(int) if task == SEVERAL else int(np.argmax(np.bincount(labels)))


def labels_of(examples: Examples, split: str) -> np.ndarray:
    """Return the labels of a split as numbers, scores, or rows of 0 and 1."""
    cells = examples.splits[split].with_format("arrow")[:][examples.columns.label_name]
    if examples.task != SEVERAL:
        return np.asarray(cells.to_numpy())
    rows = np.zeros((len(cells), examples.num_labels), dtype=np.int64)
    for row, numbers in enumerate(cells.to_pylist()):
        rows[row, numbers] = 1
    return rows


def class_scores(predictions: np.ndarray, references: np.ndarray, names: tuple[str, ...]) -> dict[str, ClassRecord]:
    """Return precision, recall and F1 of each class; None if there is nothing to count."""
    if predictions.ndim == 1:  # a number per row; a row of 0 and 1 for each of thousands of classes would need much memory
        given, wanted = predictions.astype(np.int64), references.astype(np.int64)
        chosen_rows = (given[given == wanted], given, wanted)
        right, predicted, support = (np.bincount(rows, minlength=len(names)).tolist() for rows in chosen_rows)
    else:
        given, wanted = predictions.astype(bool), references.astype(bool)
        right, predicted, support = (rows.sum(axis=0).tolist() for rows in (given & wanted, given, wanted))
    found = {}
    for number, name in enumerate(names):
        hits, chosen, true = right[number], predicted[number], support[number]
        precision, recall = hits / chosen if chosen else None, hits / true if true else None
        found[name] = ClassRecord(precision, recall, 2 * hits / (chosen + true) if chosen + true else None, true)
    return found


def write_predictions(
    path: Path, examples: Examples, split: str, found: Evaluation, more: Mapping[int, Mapping[str, object]] | None = None
) -> None:
    """Write one line per row: texts, label, prediction and logits, from which every metric can be computed again.

    Args:
        path: The file to write.
        examples: The data.
        split: The split that was evaluated.
        found: The evaluation.
        more: Further facts about a row by its number, such as its number of tokens.
    """
    texts = examples.splits[split].select_columns([*dict.fromkeys(examples.columns.texts)])[:]
    rows = ({name: cells[row] for name, cells in texts.items()} for row in range(len(found.logits)))
    write_answers(path, found, examples.task, examples.labels.names if examples.labels else None, rows, more)


def write_answers(
    path: Path,
    found: Evaluation,
    task: str,
    names: tuple[str, ...] | None,
    texts: Iterable[Mapping[str, str]],
    more: Mapping[int, Mapping[str, object]] | None = None,
) -> None:
    """Write one line per row, as `write_predictions` does, for rows whose `texts` are given by column."""
    decided = decide(found.logits, task)
    labels = found.labels.tolist() if found.labels is not None else None
    lines = []
    for row, (logits, choice, words) in enumerate(zip(found.logits.tolist(), decided.tolist(), texts, strict=True)):
        entry: dict[str, object] = {"row": row, "prediction": label_of(choice, names)}
        if labels is not None:
            entry["label"] = label_of(labels[row], names)
        entry |= {"logits": logits, **((more or {}).get(row) or {})}
        lines.append(json.dumps({**entry, **words}, ensure_ascii=False, allow_nan=False))
    write_text(path, "\n".join(lines) + "\n")


def length_entries(
    examples: Examples, split: str, lengths: np.ndarray, tokenizer: Tokenizer | None, max_length: int
) -> dict[int, dict[str, object]]:
    """Return the number of tokens of each row and, if it was cut, the characters of each text that the model reads.

    Args:
        examples: The data.
        split: The split.
        lengths: Number of tokens of each row.
        tokenizer: The tokenizer; without one, cut rows are not examined.
        max_length: Number of tokens after which a row is cut.
    """
    found: dict[int, dict[str, object]] = {row: {"tokens": int(length)} for row, length in enumerate(lengths)}
    full = [row for row, length in enumerate(lengths) if length >= max_length][:MOST_EXAMINED]
    names, rows = examples.columns.texts, examples.splits[split]
    texts = [[str(rows[row][name] or "") for row in full] for name in names]
    for place, spans in enumerate(kept_parts(tokenizer, texts, max_length) if tokenizer else []):
        cut = {name: [*span] for name, span, text in zip(names, spans, texts, strict=True) if kept_less(span, text[place])}
        if cut:
            found[full[place]]["kept"] = cut
    return found


def kept_less(span: tuple[int, int], text: str) -> bool:
    """Return whether a model reads less than the words of a text."""
    return bool(text[: span[0]].strip() or text[span[1] :].strip())


def label_of(choice: float | list[float], names: tuple[str, ...] | None) -> str | float | list[str]:
    """Return the name of a class number, the names of a row of 0 and 1, or, without names, the score itself."""
    if isinstance(choice, list):
        return [name for name, chosen in zip(names or (), choice, strict=True) if chosen]
    return choice if names is None else names[int(choice)]
