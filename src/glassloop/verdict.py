"""What a result means: how far it is above the baseline and, if it is not, what to try, from the facts of the training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from glassloop.defaults import learning_rate, num_epochs
from glassloop.errors import counted, listed, visible
from glassloop.run_folder.record import ClassRecord, RunRecord

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
