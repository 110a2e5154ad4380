"""The outcome of an evaluation and what it means: metrics, baseline, class table, verdict, files and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import counted, listed, printable, visible
from glassloop.base.files import write_text
from glassloop.data.encoding import Encoding, LengthLimit, kept_parts, notes_on
from glassloop.data.examples import SHOWN_LABELS, Examples
from glassloop.data.interfaces import Tokenizer
from glassloop.runs.history import last_step
from glassloop.runs.layout import seed_name
from glassloop.runs.record import ClassRecord, RunRecord, SplitFacts, held_out_splits
from glassloop.runs.study import SeedsRecord
from glassloop.scores.measures import COMPUTED, Measures, no_better, short_metrics
from glassloop.scores.metrics import AVERAGED, CORRELATIONS, decide
from glassloop.settings.defaults import learning_rate, num_epochs
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL
from glassloop.training.evaluate import Evaluation

FELL, FELL_FAR = 0.95, 0.5  # the last losses as a share of the first ones


RARE = 1 / 3  # of the rows that a class would have if all had the same number


@dataclass(frozen=True)
class Comparison:
    """A score of a model, next to that of always giving the same answer.

    Attributes:
        name: The score: accuracy, mse, or another metric.
        value: The score of the model.
        baseline: The score of the answer.
        answer: The answer: a label, several, or the mean of the training rows.
        lower_is_better: Whether the score is an error.
        balanced: Balanced accuracy of the model and of the answer; None if there are no classes.
        only: The one answer that the model gives for all rows, if it does.
    """

    name: str
    value: float
    baseline: float
    answer: str
    lower_is_better: bool = False
    balanced: tuple[float, float] | None = None
    only: str | None = None

    @property
    def gain(self) -> float:
        """How much better the model is; 0 or less if it is not."""
        return (self.baseline - self.value) if self.lower_is_better else (self.value - self.baseline)

    @property
    def sentence(self) -> str:
        """How far the model is above always giving the same answer, or that it is not."""
        always = f"always answering {self.answer} ({self.baseline:.4f})"
        if self.gain > 0:
            place = "below" if self.lower_is_better else "above"
            return f"{self.name} {self.value:.4f}: {self.gain:.4f} {place} {always}"
        text = f"{self.name} {self.value:.4f}: no better than {always}"
        if self.only is not None:
            return f"{text}; the model answers {self.only} for every row"
        if self.balanced and self.balanced[0] > self.balanced[1]:
            text += f", but balanced accuracy is {self.balanced[0]:.4f} (against {self.balanced[1]:.4f})"
        return text


@dataclass(frozen=True)
class TrainingFacts:
    """What is known about a training that may explain its result.

    Attributes:
        steps: Number of steps.
        steps_per_epoch: Number of steps of an epoch.
        rate: The learning rate.
        usual_rate: The learning rate that the default rule chooses for the model and as many steps as it would choose.
        losses: The training losses that were logged.
        counts: How many training rows each label has.
        rows: Number of training rows.
        weighted: Whether classes have weights in the loss.
        counts_steps: Whether the user set the number of steps, not of epochs.
    """

    steps: int
    steps_per_epoch: int
    rate: float
    usual_rate: float
    losses: Sequence[float] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    weighted: bool = False
    counts_steps: bool = False

    @property
    def wanted_epochs(self) -> int:
        """How many epochs the default rule chooses."""
        return num_epochs(self.steps_per_epoch, max(1, len(self.counts)))

    @property
    def fall(self) -> tuple[float, float] | None:
        """The mean of the first and of the last losses; None if there are too few."""
        few = len(self.losses) // 5 or 1
        if len(self.losses) < 2:
            return None
        return sum(self.losses[:few]) / few, sum(self.losses[-few:]) / few


def facts_of(record: RunRecord, history: Iterable[Mapping[str, object]], weights: int | None) -> TrainingFacts:
    """Return the facts of a run from its record and its history. `weights` is the size of the model's encoder."""
    plan, train = record.plan, record.data.splits.get("train")
    losses = [float(loss) for entry in history if isinstance(loss := entry.get("loss"), int | float)]
    counts = train.label_counts if train else {}
    usual = num_epochs(plan.steps_per_epoch, max(1, len(counts))) * plan.steps_per_epoch
    return TrainingFacts(
        steps=plan.max_steps,
        steps_per_epoch=plan.steps_per_epoch,
        rate=record.settings.learning_rate,
        usual_rate=learning_rate(weights, max(plan.max_steps, usual)),
        losses=losses,
        counts=counts,
        rows=train.num_rows if train else 0,
        weighted=record.class_weights is not None,
        counts_steps=record.settings.max_steps > 0,
    )


@dataclass(frozen=True)
class Verdict:
    """What a result means, whether it is better than always giving the same answer, and what to try."""

    sentence: str
    better: bool
    advice: tuple[str, ...] = ()


def verdict_of(found: Comparison, classes: Mapping[str, ClassRecord], facts: TrainingFacts | None) -> Verdict:
    """Return what a result means. Advice needs the facts of the training, and a reason to give it."""
    if found.gain <= 0:
        return Verdict(found.sentence, False, tuple(advice_on(facts)) if facts else ())
    missed = [name for name, scores in classes.items() if scores.support and scores.precision is None]
    if not missed:
        return Verdict(found.sentence, True)
    never = f"{len(missed):,} of {counted(len(classes), 'class is', 'classes are')} never predicted: {listed(missed, 5)}"
    tips = [tip for tip in (weights_tip(facts, missed), steps_tip(facts)) if tip] if facts else []
    return Verdict(f"{found.sentence}; {never}", True, tuple(tips))


def advice_on(facts: TrainingFacts) -> Iterator[str]:
    """Yield what may help a model that learned nothing, each with the fact that suggests it."""
    tips = [weights_tip(facts, facts.counts), steps_tip(facts)]
    first, last = facts.fall or (0.0, 0.0)
    fell = f"the training loss went from {first:.4f} to {last:.4f}"
    if facts.rate < facts.usual_rate / 2:
        tips.append(f"--learning_rate {facts.usual_rate:g}: {facts.rate:g} is low for this model")
    elif facts.fall and last > FELL * first and facts.rate > 2 * facts.usual_rate:
        tips.append(f"--learning_rate {facts.usual_rate:g}: {facts.rate:g} is high for this model, and {fell}")
    elif facts.fall and last < FELL_FAR * first:
        tips.append(f"more training rows, or fewer epochs: {fell}, so the model only learned its training rows")
    given = [tip for tip in tips if tip]
    yield from given
    if not given and facts.fall and last > FELL * first:
        yield f"check texts and labels with glassloop data: {fell}"
    elif not given:
        yield "more training rows, or another model"


def weights_tip(facts: TrainingFacts, names: Iterable[str]) -> str | None:
    """Return the advice to weight the classes, if one of `names` is rare among the training rows."""
    if facts.weighted or not facts.counts or 0 in facts.counts.values():  # a class without rows has no balanced weight
        return None
    even = facts.rows / len(facts.counts)
    rare = sorted((facts.counts.get(name, 0), name) for name in names)
    rare = [(count, name) for count, name in rare if 0 < count < RARE * even]
    if not rare:
        return None
    count, name = rare[0]
    return f"--class_weights balanced: {visible(name)} has only {count:,} of {facts.rows:,} training rows"


def steps_tip(facts: TrainingFacts) -> str | None:
    """Return the advice to train longer, if the default rule would."""
    wanted = facts.wanted_epochs
    if wanted * facts.steps_per_epoch < 1.5 * facts.steps:
        return None
    setting = f"--max_steps {wanted * facts.steps_per_epoch}" if facts.counts_steps else f"--num_train_epochs {wanted}"
    return f"{setting}: {counted(facts.steps, 'step is', 'steps are')} few"


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


NOTHING = "-"  # a score that does not exist


LARGEST = 8  # of many classes, so many of those with the most rows are shown; the rest of SHOWN_LABELS have the lowest F1


LONGEST_NAME = 40  # characters of a class, so that its scores fit into 80 columns


Classes = list[tuple[str, ClassRecord]]


def show_outcome(console: Console, outcome: Outcome, title: str) -> None:
    """Print the scores of an evaluation and of each class, and what they mean next to the baseline."""
    console.print(results_table(outcome, title))
    if outcome.classes:
        console.print()
        console.print(class_table(outcome.classes))
    if outcome.verdict:
        console.print()
        for line in verdict_lines(outcome.verdict):
            console.print(Text(printable(line)))
    told = outcome.verdict and not outcome.verdict.better
    if outcome.baseline is not None and not told and (keys := no_better(outcome.metrics, outcome.baseline, outcome.measures)):
        titles = ", ".join(map(outcome.measures.title, keys))
        console.print(Text(printable(f"• no better than the {baseline_name(outcome.measures)}: {titles}")))


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the sentence about a result, and a line for each thing to try."""
    return [f"• {verdict.sentence}", *(f"  try {tip}" for tip in verdict.advice)]


def baseline_name(measures: Measures) -> str:
    """Return what the baseline always predicts: the mean score of the training rows, or their most frequent label."""
    return "mean baseline" if {*measures.keys} & {*COMPUTED[SCORE]} else "majority baseline"


def results_table(outcome: Outcome, title: str) -> Table:
    """Return a table with the metrics of a split and their baseline."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in (title, "this run", baseline_name(outcome.measures)):
        table.add_column(Text(printable(name)), justify="left" if name == title else "right")
    baseline = outcome.baseline or {}
    rows = {outcome.measures.title(key): (value, baseline.get(key)) for key, value in outcome.metrics.items()}
    if outcome.balanced:
        rows["balanced accuracy"] = (outcome.balanced[0], outcome.balanced[1] if outcome.baseline is not None else None)
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


def add_classes(table: Table, classes: Classes) -> None:
    """Add a row for each class."""
    for name, scores in classes:
        table.add_row(Text(printable(name)), *figures((scores.precision, scores.recall, scores.f1)), f"{scores.support:,}")


def figures(values: list[float | None] | tuple[float | None, ...]) -> Iterator[str]:
    """Yield each score with four decimals, or a dash for one that does not exist."""
    return (NOTHING if value is None else f"{value:.4f}" for value in values)


Content = dict[str, object]


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


def outcomes_content(outcomes: Iterable[Outcome]) -> Content:
    """Return the evaluation of each split."""
    return {
        outcome.split: {
            "rows": len(outcome.found.logits),
            "metrics": outcome.metrics,
            "baseline": outcome.baseline,
            "positive_label": outcome.measures.positive,
            "classes": outcome.classes or None,
            "balanced_accuracy": outcome.balanced[0] if outcome.balanced else None,
            "verdict": outcome.verdict.sentence if outcome.verdict else None,
            "advice": outcome.verdict.advice if outcome.verdict else (),
        }
        for outcome in outcomes
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
    """Return the evaluation of each validation split, from the record of the run."""
    measures = Measures(record.metrics, record.positive_label)
    names = held_out_splits(record.data.splits)
    found: dict[str, Content] = {}
    for name in names if record.evaluation else ():
        part = "" if name == names[0] else name.removeprefix("validation_")
        metrics, baseline = (
            {measures.parted(key)[1]: value for key, value in scores.items() if measures.parted(key)[0] == part}
            for scores in (short_metrics(record.evaluation or {}), record.baseline or {})
        )
        found[name] = {
            "rows": record.data.splits[name].num_rows,
            "metrics": metrics,
            "baseline": baseline,
            "positive_label": record.positive_label,
            "classes": record.classes if not part else None,
            "balanced_accuracy": record.balanced_accuracy if not part else None,
            "verdict": record.verdict if not part else None,
            "advice": record.advice if not part else (),
        }
    return dict(found)


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
