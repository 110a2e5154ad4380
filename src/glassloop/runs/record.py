"""The run folder: the names of everything in it, and its typed records: run, calibration and predictions."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from glassloop.base.errors import ModelError, SettingsError, listed, visible
from glassloop.base.files import sha256_of
from glassloop.base.records import Json, collection_paused, described, entry, package_version, read_sealed, write_sealed
from glassloop.settings.training import TASKS, DataSettings, TrainingArguments, repeated

RUN_NAME, HISTORY_NAME, SESSIONS_NAME = "run.json", "history.jsonl", "sessions.jsonl"
TRAINER_NAME = "trainer.json"  # the record of a training by a Trainer, which has no run.json
REPORT_NAME = "report.html"
TRAINED_NAME = "trained.json"  # exists from the last step until the run is finished; describes the final model
TRAINED_WEIGHTS_NAME = "trained.safetensors"  # beside it, if the final model is not saved as it was trained
START_HEAD_NAME = "head.safetensors"  # the head that a training started from, if it was fitted to the training rows
BASELINES_NAME = "baselines.safetensors"  # predictions of the baselines for the rows of the first held-out split
MODEL_NAME = "model"
CARD_NAME, CALIBRATION_NAME = "README.md", "calibration.json"  # in the folder of the model, written after it
KEPT_CHECKPOINTS_NAME = "checkpoints"  # checkpoints that were moved aside: checkpoints.kept-1
RESERVE_NAME = f".{MODEL_NAME}.reserved"  # disk space for the final model, held during training
PREDICTIONS_SUFFIX = "-predictions.jsonl"
SEEDS_NAME = "seeds.json"
STUDY_NAME, RUNGS_NAME = "study.json", "rungs.json"  # of a study, and of each of its runs that was paused
CHECKPOINT = r"checkpoint-(?:0|[1-9]\d*)"
EARLIER_CHECKPOINTS = "checkpoints/step-*"  # where earlier versions wrote them
NAMES = (
    *(RUN_NAME, TRAINER_NAME, HISTORY_NAME, REPORT_NAME, TRAINED_NAME, TRAINED_WEIGHTS_NAME, MODEL_NAME),
    *(CARD_NAME, CALIBRATION_NAME, START_HEAD_NAME, BASELINES_NAME),
)
WRITTEN = "|".join([*map(re.escape, NAMES), f".+{re.escape(PREDICTIONS_SUFFIX)}"])
LEFTOVER = re.compile(rf"\.({CHECKPOINT}|{WRITTEN})\.([a-z0-9_]{{8}}|old|[a-z0-9_]{{8}}\.old)")

FORMAT = 1

# Every status that a run, a seed or a study can have. Records never say killed or damaged: locks and broken files do.
WAITING = "waiting"  # not started yet
RUNNING = "running"
FINISHED = "finished"
STOPPED = "stopped"  # by a signal
FAILED = "failed"  # by an error
PAUSED = "paused"  # stopped at a step of a study, with a checkpoint: a weak setting, or one that will be continued
KILLED = "killed"
DAMAGED = "damaged"
TIMINGS = ("runtime", "samples_per_second")  # how long an evaluation took: among its metrics, but not scores
SELECTION = "selection"  # the split that settings are chosen on, held out from the training rows
RESTORE = "restore the file, or train again"
F1, PRECISION, RECALL, COST = "f1", "precision", "recall", "cost"


def predictions_name(split: str) -> str:
    return f"{split}{PREDICTIONS_SUFFIX}"


def checkpoint_name(step: int) -> str:
    return f"checkpoint-{step}"


def is_checkpoint_name(name: str) -> bool:
    return re.fullmatch(CHECKPOINT, name) is not None


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def seed_name(seed: int) -> str:
    return f"seed-{seed}"


def has_name(path: Path) -> bool:
    """Return whether a path exists, or may exist in a folder that cannot be read."""
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        return isinstance(error, PermissionError)  # reading it reports the missing permission
    return True


def is_run(folder: Path) -> bool:
    """Return whether a folder has a run.json, whatever its content and whoever may read it."""
    return has_name(folder / RUN_NAME)


def is_trainer_folder(folder: Path) -> bool:
    """Return whether a Trainer, not the command, has recorded its training in a folder."""
    return not is_run(folder) and has_name(folder / TRAINER_NAME)


def is_seeds_folder(folder: Path) -> bool:
    return has_name(folder / SEEDS_NAME)


def is_study(folder: Path) -> bool:
    return has_name(folder / STUDY_NAME)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the completely written checkpoints in a run folder, newest first, damaged or not."""
    checkpoints = [path for path in folder.glob("checkpoint-*") if is_checkpoint_name(path.name)] if folder.is_dir() else []
    return sorted(checkpoints, key=step_of, reverse=True)


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run has a checkpoint or a final model to resume from, damaged or not."""
    return (folder / TRAINED_NAME).exists() or bool(checkpoints_in(folder))


def leftovers(folder: Path) -> list[Path]:
    """Return the incomplete files that a crash left in a folder, or that a running process is writing there."""
    return sorted(path for path in folder.glob(".*") if LEFTOVER.fullmatch(path.name)) if folder.is_dir() else []


def remove_leftovers(folder: Path) -> list[str]:
    """Remove the incomplete files that a crash left in a folder, and return their names."""
    paths = leftovers(folder)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    return [path.name for path in paths]


def file_checksums(folder: Path, without: Collection[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, except for those at the top that may change later.

    Those that are `known` are not computed again.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name: (known or {}).get(name) or sha256_of(folder / name) for name in names if name not in without}


def check_files(folder: Path, expected: Mapping[str, str], since: str, remedy: str) -> None:
    """Raise `ModelError` if a file is missing in a folder, or does not have the expected checksum."""
    for name, checksum in expected.items():
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name}: missing", remedy)
        if sha256_of(folder / name) != checksum:
            raise ModelError(f"{folder / name}: changed since {since} (its checksum differs)", remedy)


def is_timing(metric: str) -> bool:
    """Return whether a metric, with or without a prefix such as `eval_`, measures time."""
    return metric.endswith(("runtime", "_per_second"))


@dataclass(frozen=True)
class SplitFacts:
    """What was counted in one split of the data."""

    num_rows: int
    label_counts: dict[str, int] = field(default_factory=dict)
    unlabelled: bool = False
    num_duplicates: int = 0
    num_conflicts: int = 0
    num_in_train: int = 0
    num_empty: int = 0
    num_skipped: int = 0
    fingerprint: str = ""


def held_out_splits(splits: Mapping[str, SplitFacts]) -> list[str]:
    """Return the splits with labels that a run is evaluated on: the selection split, then those for validation."""
    names = [name for name in splits if name == SELECTION or name.startswith("validation")]
    return sorted((name for name in names if not splits[name].unlabelled), key=lambda name: name != SELECTION)


def split_changes(stored: Mapping[str, SplitFacts], now: Mapping[str, SplitFacts], names: Iterable[str]) -> list[str]:
    """Return a phrase with the old and the new state for each of the named splits that has changed."""

    def state(split: SplitFacts | None) -> str:
        return f"{split.num_rows:,} rows ({split.fingerprint[:8]})" if split else "none"

    known = [name for name in names if name in stored]
    changed = [name for name in known if name not in now or stored[name].fingerprint != now[name].fingerprint]
    return [f"{name}: {state(stored[name])} then, {state(now.get(name))} now" for name in changed]


@dataclass(frozen=True)
class LengthFacts:
    """How long the rows of a split are, in tokens after truncation."""

    mean: float
    median: float
    longest: int
    num_truncated: int = 0  # rows that lost tokens
    longest_before: int = 0  # tokens that the longest of these rows had before; 0 if none was cut
    counts: tuple[int, ...] = ()  # rows in bins of equal width from 0 to `longest`


@dataclass(frozen=True)
class Columns:
    """The columns of the data that hold texts and labels. Each of several label columns holds 0 or 1."""

    text: str
    text_pair: str | None = None
    label: tuple[str, ...] = ()

    @property
    def label_name(self) -> str:
        """The column that holds the label once the examples are prepared."""
        return self.label[0] if len(self.label) == 1 else "labels"

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns with the texts: one, or two for pairs."""
        return (self.text, self.text_pair) if self.text_pair else (self.text,)


@dataclass(frozen=True)
class DataRecord:
    """The data of a run: its source, how it was read, and what was found in it."""

    source: str
    task: str
    columns: Columns
    splits: dict[str, SplitFacts]
    settings: DataSettings = field(default_factory=DataSettings)
    labels: tuple[str, ...] | None = None
    label_order: tuple[str, ...] | None = None  # the labels that 0, 1, 2 in the data mean, if the user gave them
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.task not in TASKS[1:]:
            raise ValueError(f"the task is {visible(self.task)}")
        if not self.labels and self.task != "regression":
            raise ValueError("there are no labels")
        if twice := repeated(self.labels or ()):
            raise ValueError(f"the label {visible(twice[0])} appears twice")

    def given(self) -> dict[str, object]:
        """Return the settings that have a value, as `load_examples` takes them."""
        return {name: value for name, value in vars(self.settings).items() if value is not None}


@dataclass(frozen=True)
class ModelRecord:
    """The model a run started from."""

    name: str
    type: str
    parameters: int
    new_head: bool = False
    pooling: dict[str, object] | None = None  # of a head on pooled tokens; None for the head of the model's family

    @property
    def towers(self) -> bool:
        """Whether the two texts of a pair go through the encoder apart."""
        return bool(self.pooling and self.pooling.get("towers"))


@described
@dataclass(frozen=True)
class Plan:
    """The settings of a run as plain numbers. Every "auto", ratio and number of epochs is resolved before the first step."""

    max_steps: int = field(metadata={"help": "Number of steps of the whole training."})
    steps_per_epoch: int = field(metadata={"help": "Number of steps of an epoch."})
    batches_per_epoch: int = field(metadata={"help": "Number of batches of an epoch."})
    accumulate: int = field(metadata={"help": "Number of batches of a step."})
    warmup_steps: int = field(metadata={"help": "Number of steps until the learning rate reaches its maximum."})
    log_every: int = field(metadata={"help": "Number of steps between two lines of the log."})
    eval_every: int = field(metadata={"help": "Number of steps between two evaluations; 0 for none."})
    save_every: int = field(metadata={"help": "Number of steps between two checkpoints; 0 for none."})
    eval_on_start: bool = entry(False, "Whether to evaluate before the first step.")
    eval_from: int = entry(0, "The first step that may be followed by an evaluation.")
    log_first: bool = entry(False, "Whether to log the first step.")
    best_metric: str = entry("eval_loss", "Name of the metric that decides which evaluation is the best.")
    needs_best: bool = entry(True, "Whether anything depends on the best evaluation.")
    greater_is_better: bool = entry(False, "Whether a higher value of that metric is better.")
    patience: int | None = entry(None, "Number of evaluations without improvement that end the training; None for no limit.")
    least_gain: float = entry(0.0, "Smallest improvement that counts.")


@dataclass(frozen=True)
class Difference:
    """The largest relative difference between a fast backend and the plain model in fp32, without dropout."""

    rows: int
    logits: float
    gradients: float | None  # None: only logits were compared
    allowed_logits: float
    allowed_gradients: float | None
    earlier: bool = False  # found by an earlier run with the same model, code and machine, on other rows
    times_rounding: float | None = (
        None  # in low precision, if it is above the usual limit: over that of plain in this precision
    )

    @property
    def holds(self) -> bool:
        """Whether the difference is small enough to be rounding."""
        close = self.logits <= self.allowed_logits
        return close and (self.gradients is None or self.gradients <= (self.allowed_gradients or 0.0))

    def __str__(self) -> str:
        return ", ".join(self.in_words)

    @property
    def in_words(self) -> tuple[str, ...]:
        """The difference of logits and that of gradients, each with what it is a fraction of, and how much is allowed."""
        if self.times_rounding is not None and self.holds:  # large fractions that plain itself shows would frighten
            times = f"{self.times_rounding:.1f} times its rounding"
            return (f"results are as close to fp32 as those of plain in this precision ({times})",)
        logits = f"{self.logits:.1e} of the largest logit (allowed: {self.allowed_logits:.1e})"
        if self.gradients is None or self.allowed_gradients is None:
            return (f"logits differ from the plain model by {logits}",)
        gradients = f"{self.gradients:.1e} of a weight's gradient norm (allowed: {self.allowed_gradients:.1e})"
        return f"logits differ from the plain model by {logits}", f"gradients by {gradients}"


@dataclass(frozen=True)
class ClassRecord:
    """The scores of one class; None if there is nothing to count. `support` is its number of rows."""

    precision: float | None
    recall: float | None
    f1: float | None
    support: int


@dataclass(frozen=True)
class MetricRecord:
    """A metric with its 95% interval; None if there is none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BaselineRecord:
    """A simple method that a run is compared with: fitted to the same training rows, evaluated on the same split."""

    name: str  # "class frequencies" or "training mean", "words", "frozen encoder", or that with the default pooling
    scores: dict[str, MetricRecord]  # by the name of the metric; with labels also log_loss, brier and calibration_error
    rows: int  # training rows that it was fitted to
    seconds: float
    note: str = ""


EQUAL_LOSS = 1.01  # times the log loss of the class frequencies: a model that answers with these is no worse than they are


@dataclass(frozen=True)
class ProbabilityRecord:
    """How good the probabilities of a run are on its first validation split: log loss, Brier score, calibration error."""

    rows: int
    temperature: float  # that predictions use, fitted to all of these rows
    before: dict[str, float]  # at the temperature 1
    after: dict[str, MetricRecord]  # each row at a temperature that was fitted without it
    frequencies: float  # the log loss of the class frequencies of the training rows

    @property
    def warning(self) -> str | None:
        """That the probabilities are worse than the class frequencies; None if they are not."""
        loss = self.after["log_loss"].value
        if loss <= self.frequencies * EQUAL_LOSS:
            return None
        figures = f"log loss {loss:.4f} against {self.frequencies:.4f} on {self.rows:,} rows"
        return f"the predicted probabilities are worse than the class frequencies ({figures}): do not rely on them"


@dataclass(frozen=True)
class SplitRecord:
    """What a result means on one split."""

    verdict: str | None = None  # how it compares with the best baseline
    advice: tuple[str, ...] = ()  # what to try if it is no better
    baselines: tuple[BaselineRecord, ...] = ()  # what simple methods reach
    probabilities: ProbabilityRecord | None = None  # None for scores


@dataclass(frozen=True)
class RunRecord:
    """Everything run.json says about a run. Results are None until the run is finished."""

    status: str
    data: DataRecord
    model: ModelRecord
    settings: TrainingArguments
    plan: Plan
    max_length: int
    format: int = FORMAT
    started: str = ""
    chosen: tuple[str, ...] = ()  # the settings that the default rule chose
    class_weights: tuple[float, ...] | None = None
    padding: float = 0.0
    lengths: dict[str, LengthFacts] = field(default_factory=dict)
    device: str = "cpu"
    machine: str = ""
    precision: str = "fp32"
    backend: str = "plain"
    savings: tuple[str, ...] = ()
    difference: Difference | None = None
    processes: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    positive_label: str | None = None  # the class that the metric f1 is the score of
    identity: dict[str, object] = field(default_factory=dict)  # what must be the same when the run is resumed
    result: dict[str, float] | None = None
    stop_reason: str | None = None
    evaluation: dict[str, float] | None = None
    baseline: dict[str, float] | None = None
    classes: dict[str, ClassRecord] | None = None
    balanced_accuracy: float | None = None
    baselines: tuple[BaselineRecord, ...] = ()  # what simple methods reach on the first validation split
    usual_temperature: float = 1.0  # near which the temperature stays if there are few validation rows
    probabilities: ProbabilityRecord | None = None  # None for scores, and without validation rows
    verdict: str | None = None  # how the result compares with the best baseline
    advice: tuple[str, ...] = ()  # what to try if it is no better
    further: dict[str, SplitRecord] = field(default_factory=dict)  # the same of further validation splits
    best_step: int | None = None
    # Of all sessions of the training, with the fit of its head; None if one of them was killed, so that nobody knows.
    training_seconds: float | None = None
    # From the start of the process, or of the run in a process that trains several.
    seconds: float | None = None
    resumed: bool = False  # whether these are the seconds of the last process of a resumed run
    stages: dict[str, float] = field(default_factory=dict)  # where these seconds went, up to this record: they add up to them
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of the files of the trained model

    @property
    def finished(self) -> bool:
        return self.status == FINISHED

    @property
    def judged(self) -> dict[str, SplitRecord]:
        """What the result means on each split that the run was evaluated on."""
        first = SplitRecord(self.verdict, self.advice, self.baselines, self.probabilities)
        names = held_out_splits(self.data.splits) if self.verdict else ()
        return {name: first if place == 0 else self.further.get(name, SplitRecord()) for place, name in enumerate(names)}


def read_record(path: Path) -> RunRecord:
    """Return the record in a run.json or trainer.json. Raises `ModelError` if it is damaged, edited, or of a newer version."""
    # Decoded by the types of the dataclasses, so a wrong value is an error where it is read. Unknown entries are
    # ignored, missing optional ones get defaults, and a newer format is refused.
    remedy = "restore the file from a copy, or start a new run"
    return read_sealed(RunRecord, path, FORMAT, "the record of the run", remedy)


def refuse_seeds(folder: Path) -> None:
    """Raise `ModelError` for a folder that contains the runs of several seeds instead of one run."""
    if not is_run(folder) and is_seeds_folder(folder):
        runs = sorted(path.name for path in folder.glob("seed-*") if is_run(path))
        remedy = f"name one of these runs, or resume all: glassloop train --seeds {max(len(runs), 1)} --resume {folder}"
        raise ModelError(f"{folder} contains one run per seed: {listed(runs) or 'none yet'}", remedy)


def read_run(folder: Path) -> RunRecord:
    """Return the record of a run. Raises `ModelError` if run.json is missing, damaged, edited, or of a newer version."""
    refuse_seeds(folder)
    if not is_run(folder):
        raise ModelError(f"{folder} is not a run folder: {RUN_NAME} is missing", "name the folder of a run")
    return read_record(folder / RUN_NAME)


def record_of(folder: Path) -> RunRecord:
    """Return the record of a run of the command or of a Trainer. Raises `ModelError` as `read_run` does."""
    return read_record(folder / TRAINER_NAME) if is_trainer_folder(folder) else read_run(folder)


def write_run(folder: Path, record: RunRecord) -> None:
    """Replace run.json, completely or not at all. The record of a finished run gets the checksums of its model's files."""
    # With a SHA-256 of itself and of the model's files: without them, 3 of 120 random damages changed predictions
    # without a message. A flipped bit of a weight is a valid weight.
    if record.finished:
        known = sums_of_trained(folder)
        record = replace(record, files=file_checksums(folder / MODEL_NAME, (CARD_NAME, CALIBRATION_NAME), known))
    write_sealed(folder / RUN_NAME, record)


def sums_of_trained(folder: Path) -> dict[str, str]:
    """Return the checksums of the files of a trained model as they were written, by name; none without their manifest."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        files = json.loads((folder / TRAINED_NAME).read_text(encoding="utf-8"))["files"]
        start = f"{MODEL_NAME}/"
        return {name.removeprefix(start): str(entry["sha256"]) for name, entry in files.items() if name.startswith(start)}
    return {}


def model_of_run(folder: Path, *, finished: bool = False) -> tuple[Path, RunRecord]:
    """Return the folder of a run's model, and its record. Raises `ModelError` if it has none yet or if its files changed."""
    run = read_run(folder)
    model = folder / MODEL_NAME
    if not model.is_dir() or (finished and not run.finished):
        problem = "the run is not finished" if model.is_dir() else f"the run is {run.status} and has no model yet"
        raise ModelError(f"{folder}: {problem}", f"train it to the end: glassloop train --resume {folder}")
    check_files(model, run.files, "the run wrote it", f"restore the file, or use the model as it is now: name {model} instead")
    return model, run


@dataclass(frozen=True)
class Target:
    """What thresholds are chosen for: F1, precision, recall or cost. With several labels, each label has its own threshold."""

    name: str
    least: float | None = None  # the recall that is kept while precision is maximized, or the other way round
    false_positive: float = 1.0  # cost of a label that is given but not true
    false_negative: float = 1.0  # cost of a label that is true but not given

    @property
    def kept(self) -> str | None:
        """The metric that `least` limits; None without one."""
        return {PRECISION: RECALL, RECALL: PRECISION}.get(self.name)

    def __str__(self) -> str:
        if self.name == COST:
            return f"least cost (false positive {self.false_positive:g}, false negative {self.false_negative:g})"
        title = "F1" if self.name == F1 else self.name
        return f"highest {title} at a {self.kept} of {self.least:g} or more" if self.kept else f"highest {title}"


@dataclass(frozen=True)
class Gain:
    """A score of rows that the calibration was not fitted on, before and after, and the interval of the change."""

    name: str
    before: float
    after: float
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def standard_error(self) -> float:
        """The standard error of the change, from its 95% interval; 0 without one."""
        return 0.0 if self.low is None or self.high is None else (self.high - self.low) / (2 * 1.96)


@dataclass(frozen=True)
class Calibration:
    """How the logits of a model become probabilities and answers: calibration.json."""

    temperature: float  # what logits are divided by
    thresholds: dict[str, float]  # the probability from which a label is chosen, by its name
    target: Target | None  # what the thresholds are for
    positive_label: str | None  # the class of two that scores refer to
    split: str  # whose stored predictions it was fitted on
    num_rows: int
    fingerprint: str  # of these rows, as in run.json
    predictions: str  # SHA-256 of the file with their predictions
    folds: int  # that the gains are computed with
    gains: tuple[Gain, ...]
    weights: dict[str, str] = field(default_factory=dict)  # SHA-256 of the files with the weights of the model
    written: str = ""
    glassloop: str = ""  # the version that wrote it
    format: int = FORMAT
    temperature_rows: str = ""  # the fingerprint of the rows that the temperature was fitted on, if they are others
    warning: str = ""  # that its probabilities are worse than the class frequencies; a model folder alone has it, too

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"the temperature is {self.temperature}, not a positive number")
        if wrong := [value for value in self.thresholds.values() if not 0 <= value <= 1]:
            raise ValueError(f"a threshold is {wrong[0]}, not a probability")


def write_calibration(model: Path, calibration: Calibration) -> Path:
    """Replace the calibration of a model folder, completely or not at all, and return its path."""
    remove_leftovers(model)
    write_sealed(path := model / CALIBRATION_NAME, calibration)
    return path


def store_calibration(
    folder: Path, record: RunRecord, split: str, temperature: float, gains: Sequence[Gain], *, num_rows: int, folds: int,
    thresholds: Mapping[str, float] | None = None, target: Target | None = None, positive_label: str | None = None,
    temperature_rows: str = "", warning: str = "",
) -> Path:  # fmt: skip
    """Store how the logits of a run become probabilities, fitted on its stored predictions of a split, and return the file."""
    facts = record.data.splits.get(split)
    stored = Calibration(
        temperature=temperature,
        thresholds=dict(thresholds or {}),
        target=target,
        positive_label=positive_label,
        split=split,
        num_rows=num_rows,
        fingerprint=facts.fingerprint if facts else "",
        predictions=sha256_of(folder / predictions_name(split)),
        folds=folds,
        gains=tuple(gains),
        temperature_rows=temperature_rows,
        warning=warning,
        weights=weights_of(folder / MODEL_NAME, record.files),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        glassloop=package_version("glassloop") or "",
    )
    return write_calibration(folder / MODEL_NAME, stored)


def read_calibration(model: Path, known: Mapping[str, str] | None = None) -> Calibration | None:
    """Return the calibration of a model folder; None if it has none. `known` are checksums that were just computed."""
    path = model / CALIBRATION_NAME
    if not path.is_file():
        return None
    again = "fit it again: glassloop calibrate RUN, or remove it: glassloop calibrate RUN --remove"
    calibration = read_sealed(Calibration, path, FORMAT, "the calibration", again)
    if weights_of(model, known) not in ({}, calibration.weights):  # an export has no safetensors to compare with
        raise ModelError(f"{path}: was fitted for other weights than those in {model}", again)
    return calibration


def weights_of(model: Path, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file with weights in a model folder; `known` ones are not computed again."""
    names = sorted(path.name for path in model.glob("*.safetensors"))
    return {name: (known or {}).get(name) or sha256_of(model / name) for name in names}


def predicted_splits(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(PREDICTIONS_SUFFIX) for path in folder.glob(f"*{PREDICTIONS_SUFFIX}"))


def read_predictions(folder: Path, split: str) -> list[dict[str, Json]]:
    """Return one object per row. Raise `SettingsError` if there is no such split, `ModelError` if its file is damaged."""
    if split not in (known := predicted_splits(folder)):
        remedy = f"use one of {listed(known)}" if known else f"train it to its end: glassloop train --resume {folder}"
        raise SettingsError(f"{folder} has no predictions for the split {visible(split)}", remedy)
    path = folder / predictions_name(split)
    try:
        content = path.read_bytes().removesuffix(b"\n")
    except OSError as error:
        raise ModelError(f"{path}: {error}", RESTORE) from error
    return objects_in(content.split(b"\n"), path)


def objects_in(lines: Sequence[bytes], path: Path) -> list[dict[str, Json]]:
    """Return the JSON object of each line. Raise `ModelError` with the first line of the file that is none."""
    try:
        with collection_paused():  # it would walk over all rows many times
            rows = json.loads(b"[" + b",".join(lines) + b"]")  # at once, in half the time
        if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
            return list(rows)
    except (ValueError, RecursionError):
        pass
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(row := json.loads(line))
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}, line {number:,}: {error}", RESTORE) from error
    return rows
