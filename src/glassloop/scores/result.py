"""One pass over a split: its arrays, metrics with intervals, the baseline, the class table, and the verdict with its advice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from glassloop.base.errors import ModelError, counted, listed, visible
from glassloop.base.files import replacing, share_files
from glassloop.base.records import Json
from glassloop.runs.record import (
    BASELINES_NAME,
    RESTORE,
    BaselineRecord,
    ClassRecord,
    ProbabilityRecord,
    RunRecord,
    held_out_splits,
)
from glassloop.scores import statistics
from glassloop.scores.metrics import (
    AVERAGED,
    COMPUTED,
    CORRELATIONS,
    LOWER_IS_BETTER,
    Array,
    Measures,
    class_counts,
    decide,
    short_metrics,
)
from glassloop.scores.statistics import BETTER, SAME, UNDECIDED, WORSE, ComparisonVerdict, ScoredRows
from glassloop.settings.defaults import Start, start_of
from glassloop.settings.training import CLASSES, FROZEN, SCORE, SEVERAL

# The verdict compares one metric, whatever the metrics of the run are. It exists for a constant answer in every task: F1 of a
# frequent class is high for one, and correlations with one do not exist.
VERDICT_KEYS = {CLASSES: "accuracy", SEVERAL: "exact_match", SCORE: "mse"}
VERDICT_WORDS = {BETTER: "Better than", WORSE: "Worse than", SAME: "No different from", UNDECIDED: "Undecided against"}
ROUNDING = 1e-6  # largest difference between a metric of the run and the same metric computed from its predictions
FELL, FELL_FAR = 0.95, 0.5  # the last losses as a share of the first ones
RARE = 1 / 3  # of the rows that a class would have if all had the same number


@dataclass(frozen=True)
class Score:
    """A metric of a split, or its mean over seeds, with its interval and its baseline."""

    split: str
    key: str
    title: str  # its name for a person
    value: float
    low: float | None = None  # of its 95% interval; None if there is none, such as for too few rows
    high: float | None = None
    baseline: float | None = None  # the value of always giving the same answer; None where it is not defined
    points: tuple[float, ...] = ()  # the values of the single seeds
    note: str = ""  # why there is no interval, if the predictions are known

    @property
    def interval(self) -> str:
        """The interval in words; empty if there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.4f} to {self.high:.4f}"


@dataclass(frozen=True)
class Verdict:
    """Whether a result is better than always giving the same answer, by a test, and what to try if it is not."""

    kind: str  # "better", "worse", "no difference" or "undecided"
    sentence: str  # in words; the terminal, run.json, the report and the card all show this text
    advice: tuple[str, ...] = ()  # what to try, each with the fact of the training that suggests it


@dataclass(frozen=True)
class Result:
    """One pass over a split."""

    split: str
    rows: ScoredRows
    measures: Measures
    metrics: Mapping[str, float]  # their values by key, and the loss
    baseline: Mapping[str, float] | None = None  # of always giving the same answer; None if the training rows are not known
    verdict: Verdict | None = None  # what the result means next to the baselines; None without one
    baselines: Sequence[BaselineRecord] = ()  # what simple methods reach on the same rows
    probabilities: ProbabilityRecord | None = None  # how good its probabilities are; None for scores
    timed: Mapping[str, float] = field(default_factory=dict)  # as the loop reports them: `eval_accuracy`, and with timings
    entries: Sequence[Mapping[str, Json]] = ()  # the lines of the predictions file, if the result was read from a run folder

    @cached_property
    def classes(self) -> dict[str, ClassRecord]:
        """Precision, recall, F1 and number of rows of each class; empty for scores."""
        return class_scores(self.rows)

    @property
    def balanced(self) -> tuple[float, float] | None:
        """Balanced accuracy of the model and of always giving the same answer; None unless a row has one class."""
        return balanced_accuracy(self.classes) if self.rows.task == CLASSES else None

    @cached_property
    def scores(self) -> list[Score]:
        """Every metric with its 95% interval and its baseline."""
        scores = []
        for key in self.measures.keys:
            computed = key in COMPUTED[self.rows.task]
            estimate = statistics.metric_estimate(self.rows, key, self.measures.positive) if computed else None
            value = self.metrics.get(key, estimate.value if estimate else None)
            if value is None:
                continue
            score = Score(self.split, key, self.measures.title(key), value, baseline=(self.baseline or {}).get(key))
            if estimate and abs(estimate.value - value) < ROUNDING:  # else a metric of the user, which only has the name
                span = estimate.interval
                score = replace(score, low=span.low, high=span.high) if span else replace(score, note=statistics.NO_INTERVAL)
            scores.append(score)
        return scores


def rows_of(logits: Array, labels: Array, task: str, names: Sequence[str]) -> ScoredRows:
    """Return the outputs of a model and the labels of its rows as the arrays that statistics are computed from."""
    wide = np.asarray(logits, dtype=np.float64)  # squares and sums of fp32 would differ from those of the stored numbers
    references = np.asarray(labels, dtype=np.float64 if task == SCORE else np.int64)
    return ScoredRows(task, tuple(names), decide(wide, task), references, wide)


def split_scores(record: RunRecord, split: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of a split and those of its baseline, from the record of a run."""
    parted = Measures(record.metrics, record.positive_label).parted
    part = "" if split == next(iter(held_out_splits(record.data.splits)), split) else split.removeprefix("validation_")
    metrics, baseline = (
        {parted(key)[1]: value for key, value in scores.items() if parted(key)[0] == part}
        for scores in (short_metrics(record.evaluation or {}), record.baseline or {})
    )
    return metrics, baseline


def class_scores(rows: ScoredRows) -> dict[str, ClassRecord]:
    """Return precision, recall and F1 of each class; None if there is nothing to count."""
    if rows.task == SCORE:
        return {}
    scores = {}
    counts = zip(*(part.tolist() for part in class_counts(rows.predictions, rows.references, len(rows.labels))), strict=True)
    for name, (hits, predicted, true) in zip(rows.labels, counts, strict=True):
        parts = ((hits, predicted), (hits, true), (2 * hits, predicted + true))
        precision, recall, f1 = (over / under if under else None for over, under in parts)
        scores[name] = ClassRecord(precision, recall, f1, int(true))
    return scores


def balanced_accuracy(classes: Mapping[str, ClassRecord]) -> tuple[float, float] | None:
    """Return the mean recall of all classes that have rows, for the model and for always giving the same answer."""
    recalls = [scores.recall for scores in classes.values() if scores.recall is not None]
    return (sum(recalls) / len(recalls), 1 / len(recalls)) if recalls else None


# --- the baseline ------------------------------------------------------------------------------------------------------
def usual_answer(labels: Array, task: str) -> float | Array:
    """Return the most frequent class among labels, the labels that half of the rows have, or the mean score."""
    if task == SCORE:
        return float(labels.mean())
    return (labels.mean(axis=0) >= 0.5).astype(int) if task == SEVERAL else int(np.argmax(np.bincount(labels)))


def constant_rows(rows: ScoredRows, answer: float | Array) -> ScoredRows:
    return replace(rows, predictions=np.broadcast_to(answer, rows.references.shape))


def baseline_scores(rows: ScoredRows, answer: float | Array, measures: Measures) -> dict[str, float]:
    """Return the metrics of always giving one answer, without those that are not defined for it."""
    undefined = ["matthews_correlation", *CORRELATIONS]
    if rows.task == CLASSES and rows.labels[int(answer)] != measures.positive:
        undefined += AVERAGED
    metric = measures.metric(rows.task, rows.labels or ["score"])
    values = metric.compute(predictions=constant_rows(rows, answer).predictions, references=rows.references)
    return {key: value for key, value in values.items() if key not in undefined}


def label_of(choice: float | list[float], names: Sequence[str] | None) -> str | float | list[str]:
    """Return the name of a class number, the names of a row of 0 and 1, or, without names, the score itself."""
    if isinstance(choice, list):
        return [name for name, chosen in zip(names or (), choice, strict=True) if chosen]
    return names[int(choice)] if names else choice


def answer_name(choice: float | Array, names: Sequence[str]) -> str:
    """Return a class in quotes, several labels, `no label`, or a mean score."""
    label = label_of(np.asarray(choice).tolist(), names)
    if isinstance(label, list):
        return listed(map(visible, label)) or "no label"
    return visible(label) if isinstance(label, str) else f"the mean {label:.4g}"


# --- the verdict -------------------------------------------------------------------------------------------------------
# The baselines, by their names. The first one is a constant answer, whose name depends on the task.
FREQUENCIES, TRAINING_MEAN, WORDS, FROZEN_ENCODER = "class frequencies", "training mean", "words", "frozen encoder"
CONSTANTS = (FREQUENCIES, TRAINING_MEAN)
OTHER_FROZEN = "frozen encoder, default pooling"  # beside a frozen encoder that is a run itself, with another pooling
FINE_TUNING, THE_FROZEN_ENCODER = "fine-tuning", "the frozen encoder"  # what a verdict calls the method of a run


@dataclass(frozen=True)
class Method:
    """How a model was made, as far as a verdict and its probabilities depend on it."""

    name: str = ""  # what a sentence calls it; empty if it is not known
    seconds: float = 0.0  # how long it took; 0 if it is not known
    usual_temperature: float = 1.0  # near which the temperature of its models stays


def method_of(record: RunRecord) -> Method:
    """Return how the model of a run was made."""
    name = THE_FROZEN_ENCODER if record.settings.method == FROZEN else FINE_TUNING
    return Method(name, record.training_seconds or 0.0, record.usual_temperature)


@dataclass(frozen=True)
class Baseline:
    """What a simple method predicts for the rows of a split."""

    name: str
    rows: ScoredRows
    num_train: int  # rows that it was fitted to
    seconds: float
    note: str = ""  # what is special about it, such as that it was fitted to a sample

    @property
    def is_constant(self) -> bool:
        return self.name in CONSTANTS

    @property
    def title(self) -> str:
        """What a sentence calls it; a constant answer is named by the answer."""
        if self.is_constant:
            return f"always answering {answer_name(self.rows.predictions[0], self.rows.labels)}"
        others = {WORDS: "a regression on words", OTHER_FROZEN: f"{THE_FROZEN_ENCODER} with its default pooling"}
        return others.get(self.name, THE_FROZEN_ENCODER)


@dataclass(frozen=True)
class Baselines:
    """What simple methods predict for a split, or for a sample of its rows."""

    split: str
    numbers: Array  # these rows of the split
    each: Sequence[Baseline]


def write_baselines(folder: Path, baselines: Baselines) -> None:
    """Write the answers of the baselines into a run folder, for a later test of several seeds against the best of them."""
    answers = {f"{place} {one.name}": np.asarray(one.rows.predictions) for place, one in enumerate(baselines.each)}
    found = {"rows": np.asarray(baselines.numbers), **answers}
    with replacing(folder / BASELINES_NAME) as writing:
        writing.write_bytes(save({name: np.ascontiguousarray(part) for name, part in found.items()}))
    share_files(folder, BASELINES_NAME)


def read_baselines(folder: Path, rows: ScoredRows, record: RunRecord) -> Baselines | None:
    """Return the baselines of a run, whose `rows` are those of its first held-out split; None if none are stored."""
    if not (folder / BASELINES_NAME).is_file():
        return None
    try:
        found = load((folder / BASELINES_NAME).read_bytes())
        numbers = found.pop("rows")
        judged = statistics.some_rows(rows, numbers)
        each = [
            Baseline(known.name, replace(judged, predictions=predictions), known.rows, known.seconds, known.note)
            for known, (_, predictions) in zip(record.baselines, sorted(found.items()), strict=True)
        ]
        if any(len(one.rows.predictions) != len(numbers) for one in each):
            raise ValueError("not every row has an answer")
    except (SafetensorError, KeyError, IndexError, ValueError) as error:
        raise ModelError(f"{folder / BASELINES_NAME} does not fit the run: {error}", RESTORE) from error
    return Baselines(next(iter(held_out_splits(record.data.splits)), ""), numbers, each)


def constant_name(task: str) -> str:
    return TRAINING_MEAN if task == SCORE else FREQUENCIES


def constant_baseline(rows: ScoredRows, answer: float | Array, num_train: int = 0) -> Baseline:
    """Return what always giving one answer predicts for the rows of a split."""
    return Baseline(constant_name(rows.task), constant_rows(rows, answer), num_train, 0.0)


def best_baseline(baselines: Sequence[Baseline]) -> Baseline:
    """Return the baseline with the best value of the metric of the verdict; of equal ones, the first."""
    key = VERDICT_KEYS[baselines[0].rows.task]
    values = [metric.value for metric in statistics.row_metrics_of([one.rows for one in baselines], key)]
    return baselines[int(np.argmin(values) if key in LOWER_IS_BETTER else np.argmax(values))]


def verdict_on(
    rows: ScoredRows, baselines: Sequence[Baseline], facts: TrainingFacts | None = None, method: Method | None = None
) -> Verdict:
    """Return whether a model is better than the best of some baselines on the same rows, by a paired test.

    Args:
        rows: The predictions of the model.
        baselines: What simple methods predict for the same rows.
        facts: What is known about the training, for advice.
        method: How the model was made.
    """
    verdict, text, gain = best_compared([rows], baselines, method or Method())
    classes = class_scores(rows)
    balanced = balanced_accuracy(classes) if rows.task == CLASSES else None
    missed = [name for name, scores in classes.items() if scores.support and scores.precision is None]
    if gain > 0 and missed:
        text += f"; {len(missed):,} of {counted(len(classes), 'class is', 'classes are')} never predicted: {listed(missed, 5)}"
    elif gain <= 0 and rows.task != SCORE and bool(np.all(rows.predictions == rows.predictions[:1])):
        text += f"; the model answers {answer_name(rows.predictions[0], rows.labels)} for every row"
    elif gain <= 0 and balanced and balanced[0] > balanced[1]:
        text += f"; balanced accuracy {balanced[0]:.4f} against {balanced[1]:.4f}"
    if facts is None or (verdict.kind == BETTER and not missed):
        return Verdict(verdict.kind, text)
    nothing_learned = gain <= 0 and best_baseline(baselines).is_constant
    return Verdict(verdict.kind, text, advice_on(facts) if nothing_learned else usual_tips(facts, missed))


def best_compared(
    seeds: Sequence[ScoredRows], baselines: Sequence[Baseline], method: Method
) -> tuple[ComparisonVerdict, str, float]:
    """Test one model, or the mean of several seeds, against the best baseline: the verdict, also in words, and the gain."""
    own = FROZEN_ENCODER if method.name == THE_FROZEN_ENCODER else None  # which is not compared with itself
    rival = best_baseline([one for one in baselines if one.name != own])
    task, number = seeds[0].task, len(seeds[0])
    key = VERDICT_KEYS[task]
    *values, level = (metric.value for metric in statistics.row_metrics_of([*seeds, rival.rows], key))
    value = sum(values) / len(values)
    difference = statistics.compare({-1: rival.rows}, dict(enumerate(seeds)), key)
    # A single row has no spread: the error of one score would count as certain.
    margin = 0.0 if rival.is_constant else statistics.margin_for(key, level)
    verdict = statistics.decided(difference, key, margin) if number > 1 else ComparisonVerdict(UNDECIDED, margin)
    likely = "p < 0.001" if difference.p_value < 0.001 else f"p = {difference.p_value:.3f}"
    low, high = difference.interval.low, difference.interval.high
    interval = f"95% confidence interval {low:+.4f} to {high:+.4f}"
    test = f"difference {difference.value:+.4f}, {interval}, {likely}, {difference.method}, "
    name = ("mean " if len(seeds) > 1 else "") + key.replace("_", " ")
    text = (
        f"{VERDICT_WORDS[verdict.kind]} {rival.title}: {name} {value:.4f} against {level:.4f} "
        f"({test if number > 1 else ''}{counted(number, 'row', 'rows')})"
    )
    if verdict.more_rows or verdict.more_seeds:
        kind, more = ("seed", verdict.more_seeds) if verdict.more_seeds else ("row", verdict.more_rows or 0)
        text += f"; about {counted(more, f'more {kind}', f'more {kind}s')} would decide"
    if method.name and not rival.is_constant and number > 1:
        text = f"{gain_of(difference, task, verdict.kind, method, rival)}. {text}"
    return verdict, text, level - value if task == SCORE else value - level


def gain_of(difference: statistics.Difference, task: str, kind: str, method: Method, rival: Baseline) -> str:
    """Return what a training gained over a baseline, and whether it was worth its time, in a sentence without an end."""
    unit, factor = ("of mean squared error", 1.0) if task == SCORE else ("points", 100.0)
    sign = -1.0 if task == SCORE else 1.0
    ends = sorted(sign * factor * end for end in (difference.interval.low, difference.interval.high))
    size = f"{abs(difference.value) * factor:.3g} {unit}" if task == SCORE else f"{abs(difference.value) * factor:.1f} {unit}"
    span = f"({ends[0]:.3g} to {ends[1]:.3g})" if task == SCORE else f"({ends[0]:.1f} to {ends[1]:.1f})"
    name = method.name.capitalize()
    if kind == BETTER:
        return f"{name} gains {size} over {rival.title} {span}"
    times = method.seconds / rival.seconds if rival.seconds > 0 else 0.0
    cheaper = f" and {times:,.0f} times cheaper" if times >= 1.5 else ""
    if kind == WORSE:
        return f"{name} loses {size} to {rival.title} {span}, which is better{cheaper}"
    if kind == SAME:
        return f"{name} gains nothing here: {rival.title} is as good{cheaper}"
    return f"{name} shows no clear gain over {rival.title} {span}" + (
        f", which is {times:,.0f} times cheaper" if cheaper else ""
    )


def mean_verdict(score: Score) -> str:
    """Return whether the mean over seeds is better than the baseline, by its interval; empty if one of them is not known."""
    if score.baseline is None or score.low is None or score.high is None:
        return ""
    kind = UNDECIDED
    if not score.low <= score.baseline <= score.high:
        kind = BETTER if (score.low > score.baseline) != (score.key in LOWER_IS_BETTER) else WORSE
    facts = f"mean {score.title} {score.value:.4f} against {score.baseline:.4f}"
    return f"{VERDICT_WORDS[kind]} the baseline: {facts} (95% confidence interval {score.interval})"


# --- advice ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TrainingFacts:
    """What is known about a training that may explain its result."""

    steps: int
    steps_per_epoch: int
    rate: float
    weights: int | None  # of the encoder
    losses: Sequence[float] = ()  # that were logged
    counts: Mapping[str, int] = field(default_factory=dict)  # of training rows by label
    rows: int = 0
    weighted: bool = False  # whether classes have weights in the loss
    counts_steps: bool = False  # whether the user set the number of steps, not of epochs
    start: Start = field(default_factory=Start)

    @property
    def usual_epochs(self) -> int:
        """How many epochs the default rule chooses."""
        return self.start.epochs(self.rows, self.steps_per_epoch, max(1, len(self.counts)))

    @property
    def usual_steps(self) -> int:
        return self.usual_epochs * self.steps_per_epoch

    @property
    def usual_rate(self) -> float:
        """What the default rule chooses for the model and at least as many steps as it would choose."""
        return self.start.rate(self.rows, self.weights, max(self.steps, self.usual_steps))

    @property
    def fall(self) -> tuple[float, float] | None:
        """The mean of the first and of the last losses; None if there are too few."""
        few = len(self.losses) // 5 or 1
        return (sum(self.losses[:few]) / few, sum(self.losses[-few:]) / few) if len(self.losses) > 1 else None


def facts_of(record: RunRecord, history: Iterable[Mapping[str, object]], weights: int | None) -> TrainingFacts:
    """Return the facts of a run from its record and its history. `weights` is the size of the model's encoder."""
    plan, train = record.plan, record.data.splits.get("train")
    losses = [float(loss) for entry in history if isinstance(loss := entry.get("loss"), int | float)]
    counts = train.label_counts if train else {}
    model, pairs = record.model, record.data.columns.text_pair is not None
    return TrainingFacts(
        steps=plan.max_steps,
        steps_per_epoch=plan.steps_per_epoch,
        rate=record.settings.learning_rate,
        weights=weights,
        losses=losses,
        counts=counts,
        rows=train.num_rows if train else 0,
        weighted=record.class_weights is not None,
        counts_steps=record.settings.max_steps > 0,
        start=start_of(model.pooling is not None, pairs=pairs, towers=model.towers, several=record.data.task == SEVERAL),
    )


def usual_tips(facts: TrainingFacts, names: Iterable[str]) -> tuple[str, ...]:
    """Return the advice to weight the classes if one of `names` is rare, and to train longer if the default rule would."""
    tips, counts = [], facts.counts
    if counts and not facts.weighted and 0 not in counts.values():  # a class without rows has no balanced weight
        most = RARE * (facts.rows / len(counts))
        if rare := sorted((counts[name], name) for name in names if counts.get(name, most) < most):
            count, name = rare[0]
            tips.append(f"--class_weights balanced: {visible(name)} has only {count:,} of {facts.rows:,} training rows")
    if facts.usual_steps >= 1.5 * facts.steps > 0:  # the frozen encoder needs none
        epochs = f"--num_train_epochs {facts.usual_epochs}"
        setting = f"--max_steps {facts.usual_steps}" if facts.counts_steps else epochs
        tips.append(f"{setting}: {counted(facts.steps, 'step is', 'steps are')} few")
    return tuple(tips)


def advice_on(facts: TrainingFacts) -> tuple[str, ...]:
    """Return what may help a model that learned nothing, each with the fact that suggests it."""
    tips = [*usual_tips(facts, facts.counts)]
    first, last = facts.fall or (0.0, 0.0)
    did_not_fall = facts.fall is not None and last > FELL * first
    fell = f"the training loss went from {first:.4f} to {last:.4f}"
    if facts.rate < facts.usual_rate / 2:
        tips.append(f"--learning_rate {facts.usual_rate:g}: {facts.rate:g} is low for this model")
    elif did_not_fall and facts.rate > 2 * facts.usual_rate:
        tips.append(f"--learning_rate {facts.usual_rate:g}: {facts.rate:g} is high for this model, and {fell}")
    elif facts.fall and last < FELL_FAR * first:
        tips.append(f"more training rows, or fewer epochs: {fell}, so the model only learned its training rows")
    other = f"check texts and labels with glassloop inspect: {fell}" if did_not_fall else "more training rows, or another model"
    return tuple(tips or [other])
