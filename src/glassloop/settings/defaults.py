"""Choose method, pooling, batch size, epochs and learning rate from the data and the model (docs/explanation/defaults.md)."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from glassloop.base.errors import counted, listed
from glassloop.settings.training import (
    AUTO,
    FAMILY_HEAD,
    FINE_TUNE,
    FROZEN,
    LORA,
    ONE_SEQUENCE,
    TWO_TOWERS,
    TrainingArguments,
)

BATCH_SIZES = {1_000: 8, 10_000: 16}  # up to so many rows; beyond, LARGE_BATCH
LARGE_BATCH = 32
WANTED_STEPS, STEPS_PER_LABEL, MOST_STEPS = 1_000, 80, 20_000
LEAST_EPOCHS, MOST_EPOCHS = 3, 20
BASE_RATE, BASE_WEIGHTS = 3e-5, 12 * 12 * 768**2  # the learning rate of an encoder of 12 layers of width 768
MOST_RATE = 3e-4
MOST_FEW_STEPS = 2.0  # how much higher the learning rate is at most if there are fewer steps than wanted
LORA_RATE = 10.0  # times the learning rate of all weights: adapters start at zero, and are usually trained with about this
WARMUP, LEAST_STEPS_WITH_WARMUP = 0.1, 20  # a step of warm-up begins at a learning rate of zero
# A head that starts from a regression on the embeddings needs only a short training, at a lower learning rate (docs/log.md,
# "Learning rates of pooled heads").
STARTED_BATCH, STARTED_RATE, MOST_STARTED_RATE = 16, 1.8e-5, 1e-4
RATE_OF_SEVERAL = 2.0  # times the learning rate of one label
STARTED_STEPS, STARTED_ROWS, STARTED_POWER = (
    80,
    200,
    0.6,
)  # so many steps up to 200 rows; then they grow with a power of the rows
LEAST_STARTED_EPOCHS, MOST_STARTED_EPOCHS, MANY_STARTED_ROWS = 3, 30, 10_000  # with more rows, one epoch less is enough
# The whole regression explains the training rows so well that little of their loss is left to learn from. With a part of its
# weights the encoder learns more, and the probabilities stay less sure. Many labels need the whole: a head learns slowly.
STARTED_SHARE, LABELS_OF_SHARE = 0.4, 10
# Pairs of texts, each through the encoder alone: up to so many training rows, learning rate and epochs. What the embeddings say
# about two texts is lost at rates that single texts gain from. With more rows, both texts in one sequence are better.
TOWERS = {500: (1e-5, 5), 1_500: (2e-5, 5), 5_000: (5e-5, 4)}
TOWERS_UP_TO = max(TOWERS)
STEPS_OF_TOWERS = 60  # or more epochs, if they take fewer steps
FAMILY_HEAD_FROM = 10_000  # training rows: from so many on, a model that declares no pooling keeps the head of its family
CHOSEN_SETTINGS = {
    "method": "method",
    "pooling": "pooling",
    "pair_form": "form of pairs",
    "per_device_train_batch_size": "batch size",
    "num_train_epochs": "epochs",
    "learning_rate": "learning rate",
    "warmup_steps": "warm-up",
}


# Recorded as ordinary settings: resume, eject and seeds read these, and a later version with another rule cannot change a
# run.
@dataclass(frozen=True)
class Chosen:
    """Training settings, the names of those that the rule chose, and from what it chose them; empty if it chose none."""

    settings: TrainingArguments
    names: tuple[str, ...] = ()
    reason: str = ""


def has_own_settings(source: str | None) -> bool:
    """Return whether runs on a source keep the defaults of `TrainingArguments`: GLUE, as in the course."""
    return source is not None and (source == "glue" or source.startswith("glue/"))


@dataclass(frozen=True)
class Facts:
    """What the rule chooses settings from."""

    rows: int  # for training
    labels: int
    weights: int | None  # of the encoder
    pairs: bool = False
    declared: str | None = None  # the pooling that the model declares for sentence embeddings
    has_head: bool = True  # the model has a classification head that is kept
    kept: str | None = None  # the pooling of this head, if it is a pooled one
    kept_form: str = ONE_SEQUENCE  # how it reads a pair
    can_be_pooled: bool = True  # the encoder gives a vector for each token
    several: bool = False  # a row can have several labels
    processes: int = 1
    own_settings: bool = False  # runs on this source keep the defaults


def choose_method(args: TrainingArguments, facts: Facts) -> TrainingArguments:
    """Return settings in which method, pooling and pair form are no longer auto."""
    pooling, pair_form, method = args.pooling, args.pair_form, args.method
    keeps = method != FROZEN and pooling in (AUTO, facts.kept) and pair_form in (AUTO, facts.kept_form)
    if facts.kept is not None and keeps:
        pooling, pair_form = facts.kept, facts.kept_form  # rows must be read as its head was trained to
    elif pooling == AUTO and (method == FROZEN or facts.kept is not None):
        pooling = facts.declared or facts.kept or "mean"
    elif pooling == AUTO:
        keeps = facts.has_head or (facts.declared is None and facts.rows >= FAMILY_HEAD_FROM)
        pooling = FAMILY_HEAD if keeps or not facts.can_be_pooled else facts.declared or "mean"
    if pair_form == AUTO:
        # An encoder that is not trained cannot compare two texts in one sequence.
        towers = facts.pairs and pooling != FAMILY_HEAD and (method == FROZEN or facts.rows <= TOWERS_UP_TO)
        pair_form = TWO_TOWERS if towers else ONE_SEQUENCE
    return replace(args, method=FINE_TUNE if method == AUTO else method, pooling=pooling, pair_form=pair_form)


def choose_settings(args: TrainingArguments, given: Collection[str], facts: Facts) -> Chosen:
    """Return settings in which the rule has chosen everything but the settings that the user gave, whose names are `given`."""
    # A small function of rows, labels and encoder size, so that its choice can be predicted and written on one page. It
    # looks at no scores: a search would need the validation rows. (What a regression reaches on training rows can still
    # change the method: see `LEAST_SKILL`.)
    resolved = choose_method(args, facts)
    if facts.own_settings or not facts.rows:
        return Chosen(resolved)
    shares = args.gradient_accumulation_steps * facts.processes
    chosen: dict[str, int | float | str] = {
        name: getattr(resolved, name)
        for name in ("method", "pooling", *(["pair_form"] if facts.pairs else []))
        if getattr(args, name) == AUTO
    }
    rates: dict[str, int | float] = {}
    kept = facts.kept is not None and (resolved.pooling, resolved.pair_form) == (facts.kept, facts.kept_form)
    towers = resolved.pair_form == TWO_TOWERS
    start = start_of(resolved.pooling != FAMILY_HEAD, pairs=facts.pairs, towers=towers, several=facts.several, kept=kept)
    if "per_device_train_batch_size" not in given:  # few rows make small batches, so that an epoch has enough steps
        batch = next((size for most, size in BATCH_SIZES.items() if facts.rows <= most), LARGE_BATCH)
        rates["per_device_train_batch_size"] = max(1, (max(batch, STARTED_BATCH) if start.trained else batch) // shares)
    per_epoch = math.ceil(facts.rows / (rates.get("per_device_train_batch_size", args.per_device_train_batch_size) * shares))
    if "num_train_epochs" not in given and args.max_steps < 1:
        rates["num_train_epochs"] = start.epochs(facts.rows, per_epoch, facts.labels)
    epochs = rates.get("num_train_epochs", args.num_train_epochs)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * epochs)
    if "learning_rate" not in given:
        rates["learning_rate"] = start.rate(facts.rows, facts.weights, steps) * (LORA_RATE if args.adapter == LORA else 1.0)
    if "warmup_steps" not in given:
        rates["warmup_steps"] = WARMUP if steps >= LEAST_STEPS_WITH_WARMUP else 0.0
    chosen |= rates if resolved.method != FROZEN else {}  # which takes no steps
    if not chosen:
        return Chosen(resolved)
    sizes = [counted(facts.rows, "training row", "training rows"), counted(facts.labels, "output", "outputs")]
    sizes += [f"{facts.weights / 1e6:,.1f} M encoder weights"] if facts.weights else []
    if "pooling" in chosen:
        sizes += ["the head of the model"] if resolved.pooling == facts.kept else []
        sizes += ["the declared pooling"] if resolved.pooling == facts.declared != facts.kept else []
    reason = f"{listed(CHOSEN_SETTINGS[name] for name in chosen)}: from {', '.join(sizes)}"
    return Chosen(replace(resolved, **chosen), tuple(chosen), reason)  # type: ignore[arg-type]  # names and values of settings


@dataclass(frozen=True)
class Start:
    """What a training starts from, on which its usual epochs and learning rate depend."""

    trained: bool = False  # the head already answers well
    towers: bool = False  # the texts of a pair go through the encoder apart
    several: bool = False  # a row can have several labels

    def epochs(self, rows: int, per_epoch: int, labels: int) -> int:
        return started_epochs(rows, towers=self.towers) if self.trained else num_epochs(per_epoch, labels)

    def rate(self, rows: int, weights: int | None, steps: int) -> float:
        if not self.trained:
            return learning_rate(weights, steps)
        return started_rate(rows, weights, towers=self.towers, several=self.several)


def start_of(pooled: bool, *, pairs: bool, towers: bool, several: bool = False, kept: bool = False) -> Start:
    """Return what a training starts from: `pooled` is whether it has a pooled head, `kept` whether it is that of the model."""
    # A new pooled head is a regression, which answers well, but not on two texts in one sequence: until its training, an
    # encoder of single texts says little about them.
    return Start(kept or (pooled and (towers or not pairs)), towers, several)


def started_epochs(rows: int, *, towers: bool = False) -> int:
    """Return how many epochs a model is trained whose head starts from a regression."""
    steps = STARTED_STEPS * max(rows / STARTED_ROWS, 1.0) ** STARTED_POWER
    least = LEAST_STARTED_EPOCHS - (rows > MANY_STARTED_ROWS)
    if towers:
        steps = STEPS_OF_TOWERS
        least = next((epochs for most, (_, epochs) in TOWERS.items() if rows <= most), least)
    return int(min(max(round(steps * STARTED_BATCH / rows), least), MOST_STARTED_EPOCHS))


def started_rate(rows: int, weights: int | None, *, towers: bool = False, several: bool = False) -> float:
    """Return the peak learning rate of such a model, with two digits."""
    size = math.sqrt(BASE_WEIGHTS / weights) if weights else 1.0
    most = MOST_STARTED_RATE
    if towers:
        most = next((rate for most, (rate, _) in TOWERS.items() if rows <= most), TOWERS[TOWERS_UP_TO][0])
    return float(f"{min(STARTED_RATE * size * (RATE_OF_SEVERAL if several else 1.0), most):.1e}")


def head_share(labels: int, *, pairs: bool = False, several: bool = False) -> float:
    """Return with which part of the weights of a regression the head of a model starts; scores count as one label."""
    if pairs or several:  # measured: with less, models are worse
        return 1.0
    return min(STARTED_SHARE * math.sqrt(max(labels / LABELS_OF_SHARE, 1.0)), 1.0)


def num_epochs(per_epoch: int, labels: int) -> int:
    """Return how many epochs of `per_epoch` steps give enough steps, without too many passes over the same rows."""
    wanted = max(WANTED_STEPS, STEPS_PER_LABEL * labels)
    enough = min(max(math.ceil(wanted / per_epoch), LEAST_EPOCHS), MOST_EPOCHS)
    return max(min(enough, MOST_STEPS // per_epoch), 1)


def learning_rate(weights: int | None, steps: int) -> float:
    """Return the peak learning rate, with two digits: higher for a small encoder, and for few steps."""
    size = math.sqrt(BASE_WEIGHTS / weights) if weights else 1.0
    haste = min(max((WANTED_STEPS / steps) ** 0.25, 1.0), MOST_FEW_STEPS)
    return float(f"{min(BASE_RATE * size * haste, MOST_RATE):.1e}")
