"""The results of a run for people and programs: tables in the terminal, predictions.jsonl, and the documents of `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import printable
from glassloop.base.files import write_text
from glassloop.data.encoding import Encoding, LengthLimit, kept_parts, notes_on
from glassloop.data.examples import SHOWN_LABELS, Examples
from glassloop.data.interfaces import Tokenizer
from glassloop.runs.history import last_step
from glassloop.runs.record import ClassRecord, RunRecord, SplitFacts, held_out_splits, seed_name
from glassloop.runs.study import SeedsRecord
from glassloop.scores.comparisons import BETTER
from glassloop.scores.intervals import ScoredRows
from glassloop.scores.metrics import COMPUTED, Array, Measures, no_better, short_metrics
from glassloop.scores.result import (
    Result,
    TrainingFacts,
    baseline_scores,
    label_of,
    rows_of,
    split_scores,
    usual_answer,
    verdict_on,
)
from glassloop.settings.training import CLASSES, SCORE, SEVERAL
from glassloop.training.evaluate import Evaluation

MOST_EXAMINED = 5_000  # rows of full length whose cut texts are found, which costs another tokenization
NOTHING = "-"  # a score that does not exist
LARGEST = 8  # of many classes, so many of those with the most rows are shown; the rest of SHOWN_LABELS have the lowest F1
LONGEST_NAME = 40  # characters of a class, so that its scores fit into 80 columns
Content = dict[str, object]


def result_of(
    examples: Examples,
    split: str,
    found: Evaluation,
    measures: Measures,
    prefix: str = "eval",
    trained_on: Mapping[str, int] | None = None,
    facts: TrainingFacts | None = None,
) -> Result:
    """Return the result of an evaluation: with the baseline and a verdict, if the training rows are known.

    Args:
        prefix: What the names of the metrics begin with.
        trained_on: How many training rows each class had, if the training rows are not among the examples.
        facts: What is known about the training, for advice on a result that is no better than the baseline.
    """
    names = examples.labels.names if examples.labels else ()
    labels = found.labels if found.labels is not None else labels_of(examples, split)
    rows = rows_of(found.logits, labels, examples.task, names)
    result = Result(split, rows, measures, short_metrics(found.metrics, prefix), timed=found.metrics)
    if trained_on is not None and examples.task == CLASSES:
        answer: float | Array = int(np.argmax([trained_on.get(name, 0) for name in names]))
    elif "train" in examples.splits and split != "train":
        answer = usual_answer(labels_of(examples, "train"), examples.task)
    else:
        return result
    return replace(result, baseline=baseline_scores(rows, answer, measures), verdict=verdict_on(rows, answer, facts))


def prefixes(splits: list[str]) -> list[str]:
    """Return the prefix of each split's metrics: `eval` for the first, then `eval_mismatched` for validation_mismatched."""
    return ["eval", *(f"eval_{split.removeprefix('validation_')}" for split in splits[1:])][: len(splits)]


def by_split(results: Sequence[Result]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics and the baselines of all splits. Keys of further splits begin with the split: mismatched_accuracy."""
    metrics: dict[str, float] = {}
    baseline: dict[str, float] = {}
    for result, prefix in zip(results, prefixes([result.split for result in results]), strict=True):
        metrics |= {f"{prefix}_{key}".removeprefix("eval_"): value for key, value in result.metrics.items()}
        baseline |= {f"{prefix}_{key}".removeprefix("eval_"): value for key, value in (result.baseline or {}).items()}
    return metrics, baseline


def scored(record: RunRecord, results: Sequence[Result]) -> RunRecord:
    """Return the record of a run with the results of its evaluations, the first of which has the verdict."""
    first = results[0]
    return replace(
        record,
        evaluation={name: value for result in results for name, value in result.timed.items()},
        baseline=by_split(results)[1],
        classes=first.classes or None,
        balanced_accuracy=first.balanced[0] if first.balanced else None,
        verdict=first.verdict.sentence if first.verdict else None,
        advice=first.verdict.advice if first.verdict else (),
    )


def labels_of(examples: Examples, split: str) -> np.ndarray:
    """Return the labels of a split as numbers, scores, or rows of 0 and 1."""
    cells = examples.splits[split].with_format("arrow")[:][examples.columns.label_name]
    if examples.task != SEVERAL:
        return np.asarray(cells.to_numpy())
    rows = np.zeros((len(cells), examples.num_labels), dtype=np.int64)
    for row, numbers in enumerate(cells.to_pylist()):
        rows[row, numbers] = 1
    return rows


# --- predictions -------------------------------------------------------------------------------------------------------


def write_predictions(
    path: Path, examples: Examples, result: Result, more: Mapping[int, Mapping[str, object]] | None = None
) -> None:
    """Write one line per row: texts, label, prediction and logits, from which every metric can be computed again."""
    texts = examples.splits[result.split].select_columns([*dict.fromkeys(examples.columns.texts)])[:]
    cells = ({name: column[row] for name, column in texts.items()} for row in range(len(result.rows)))
    write_answers(path, result.rows, cells, more)


def write_answers(
    path: Path, rows: ScoredRows, texts: Iterable[Mapping[str, str]], more: Mapping[int, Mapping[str, object]] | None = None
) -> None:
    """Write one line per row, with its texts by column and further facts such as its number of tokens."""
    lines = []
    answers = zip(rows.logits.tolist(), rows.predictions.tolist(), rows.references.tolist(), texts, strict=True)
    for row, (logits, choice, label, words) in enumerate(answers):
        answer = {"prediction": label_of(choice, rows.labels), "label": label_of(label, rows.labels)}
        entry = {"row": row, **answer, "logits": logits, **((more or {}).get(row) or {}), **words}
        lines.append(json.dumps(entry, ensure_ascii=False, allow_nan=False))
    write_text(path, "\n".join(lines) + "\n")


def length_entries(
    examples: Examples, split: str, lengths: np.ndarray, tokenizer: Tokenizer | None, max_length: int
) -> dict[int, dict[str, object]]:
    """Return the number of tokens of each row and, if it was cut, the characters of each text that the model reads.

    A row is cut at `max_length` tokens. Without a tokenizer, cut rows are not examined.
    """
    found: dict[int, dict[str, object]] = {row: {"tokens": int(length)} for row, length in enumerate(lengths)}
    full = [row for row, length in enumerate(lengths) if length >= max_length][:MOST_EXAMINED]
    names, rows = examples.columns.texts, examples.splits[split]
    texts = [[str(rows[row][name] or "") for row in full] for name in names]
    for place, spans in enumerate(kept_parts(tokenizer, texts, max_length) if tokenizer else []):
        cut = {name: [*span] for name, span, text in zip(names, spans, texts, strict=True) if reads_less(span, text[place])}
        if cut:
            found[full[place]]["kept"] = cut
    return found


def reads_less(span: tuple[int, int], text: str) -> bool:
    """Return whether a model reads less than the words of a text."""
    return bool(text[: span[0]].strip() or text[span[1] :].strip())


# --- tables in the terminal --------------------------------------------------------------------------------------------


def show_result(console: Console, result: Result, title: str) -> None:
    """Print the scores of a split and of each class, and what they mean next to the baseline."""
    console.print(results_table(result, title))
    if result.classes:
        console.print()
        console.print(class_table(result.classes))
    if result.verdict:
        console.print()
        for line in (f"• {result.verdict.sentence}", *(f"  try {tip}" for tip in result.verdict.advice)):
            console.print(Text(printable(line)))
    told = result.verdict is not None and result.verdict.kind != BETTER
    if result.baseline is not None and not told and (keys := no_better(result.metrics, result.baseline, result.measures)):
        titles = ", ".join(map(result.measures.title, keys))
        console.print(Text(printable(f"• no better than the {baseline_name(result.measures)}: {titles}")))


def baseline_name(measures: Measures) -> str:
    """Return what the baseline always predicts: the mean score of the training rows, or their most frequent label."""
    return "mean baseline" if {*measures.keys} & {*COMPUTED[SCORE]} else "majority baseline"


def results_table(result: Result, title: str) -> Table:
    """Return a table with the metrics of a split and their baseline."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in (title, "this run", baseline_name(result.measures)):
        table.add_column(Text(printable(name)), justify="left" if name == title else "right")
    baseline = result.baseline or {}
    rows = {result.measures.title(key): (value, baseline.get(key)) for key, value in result.metrics.items()}
    if result.balanced:
        rows["balanced accuracy"] = (result.balanced[0], result.balanced[1] if result.baseline is not None else None)
    for name, values in rows.items():
        table.add_row(Text(printable(name)), *figures(values))
    return table


def class_table(classes: dict[str, ClassRecord]) -> RenderableType:
    """Return a table with the scores of each class. Of many, the largest and those with the lowest F1 are included."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("class", no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME)
    for name in ("precision", "recall", "f1", "rows"):
        table.add_column(name, justify="right", no_wrap=True)
    if len(classes) <= SHOWN_LABELS:
        add_classes(table, [*classes.items()])
        return table
    by_size = sorted(classes.items(), key=lambda entry: -entry[1].support)
    largest, rest = by_size[:LARGEST], [(name, scores) for name, scores in by_size[LARGEST:] if scores.support]
    worst = sorted(rest, key=lambda entry: entry[1].f1 or 0.0)[: SHOWN_LABELS - LARGEST]
    add_classes(table, largest)
    table.add_row(Text("lowest f1 of the others", style="dim"))
    add_classes(table, worst)
    hidden = len(classes) - len(largest) - len(worst)
    zero = sum(not scores.f1 for name, scores in rest if name not in dict(worst))
    empty = len(by_size) - LARGEST - len(rest)
    facts = [f"{zero:,} with f1 0"] * bool(zero) + [f"{empty:,} without rows"] * bool(empty)
    return Group(table, Text(f"and {hidden:,} more" + (f" ({', '.join(facts)})" if facts else "")))


def add_classes(table: Table, classes: Sequence[tuple[str, ClassRecord]]) -> None:
    """Add a row for each class."""
    for name, scores in classes:
        table.add_row(Text(printable(name)), *figures((scores.precision, scores.recall, scores.f1)), f"{scores.support:,}")


def figures(values: list[float | None] | tuple[float | None, ...]) -> Iterator[str]:
    """Yield each score with four decimals, or a dash for one that does not exist."""
    return (NOTHING if value is None else f"{value:.4f}" for value in values)


# --- documents of --json -----------------------------------------------------------------------------------------------


def data_content(examples: Examples, encoded: Mapping[str, Encoding], data: str, model: str, limit: LengthLimit) -> Content:
    """Return what `glassloop data` found."""
    return {
        "data": data,
        "model": model,
        "max_length": limit.max_length,
        "task": examples.task,
        "columns": examples.columns,
        "labels": examples.labels.names if examples.labels else None,
        "splits": {name: split_content(fact, encoded[name]) for name, fact in examples.facts.items()},
        "notes": [*examples.notes, *notes_on(dict(encoded), limit)],
    }


def split_content(fact: SplitFacts, encoding: Encoding) -> Content:
    """Return the counts of one split."""
    return {
        "rows": fact.num_rows,
        "labels": None if fact.unlabelled else fact.label_counts,
        "duplicates": fact.num_duplicates,
        "also_in_train": fact.num_in_train,
        "conflicts": fact.num_conflicts,
        "truncated": encoding.truncation.num_rows,
        "mean_tokens": float(encoding.lengths.mean()),
        "longest_tokens": int(encoding.lengths.max()),
    }


def results_content(results: Iterable[Result]) -> Content:
    """Return the result of each split."""
    return {
        result.split: {
            "rows": len(result.rows),
            "metrics": result.metrics,
            "baseline": result.baseline,
            "positive_label": result.measures.positive,
            "classes": result.classes or None,
            "balanced_accuracy": result.balanced[0] if result.balanced else None,
            "verdict": result.verdict.sentence if result.verdict else None,
            "advice": result.verdict.advice if result.verdict else (),
        }
        for result in results
    }


def run_content(folder: Path, record: RunRecord) -> Content:
    """Return the result of `glassloop train`, from the record of the run."""
    return {
        "run": folder,
        "status": record.status,
        "data": record.data.source,
        "model": record.model.name,
        "seed": record.settings.seed,
        "steps": last_step(folder),
        "seconds": record.seconds,
        "stop_reason": record.stop_reason,
        "best_step": record.best_step,
        "training": record.result,
        "splits": recorded_splits(record),
    }


def recorded_splits(record: RunRecord) -> Content:
    """Return the result of each validation split, from the record of the run."""
    found: dict[str, object] = {}
    for name in held_out_splits(record.data.splits) if record.evaluation else ():
        metrics, baseline = split_scores(record, name)
        first = not found
        found[name] = {
            "rows": record.data.splits[name].num_rows,
            "metrics": metrics,
            "baseline": baseline,
            "positive_label": record.positive_label,
            "classes": record.classes if first else None,
            "balanced_accuracy": record.balanced_accuracy if first else None,
            "verdict": record.verdict if first else None,
            "advice": record.advice if first else (),
        }
    return found


def seeds_content(record: SeedsRecord) -> Content:
    """Return the result of `glassloop train --seeds`."""
    return {
        "run": record.folder,
        "status": record.status,
        "data": record.settings.source or "quickstart",
        "model": record.settings.model or "quickstart",
        "seeds": {
            seed: {
                "run": record.folder / seed_name(seed),
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
    }
