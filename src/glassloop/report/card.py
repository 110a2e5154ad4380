"""The model card of a run in the format of the Hugging Face hub; an edited card is never overwritten."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import GlassloopError, printable
from glassloop.base.files import write_text
from glassloop.base.network import is_hub_name
from glassloop.base.output import say
from glassloop.markup.templates import markdown_table, piece, rendered
from glassloop.report.results import results_of
from glassloop.report.source import RunSource, read_source
from glassloop.runs.record import (
    CARD_NAME,
    MODEL_NAME,
    Calibration,
    Gain,
    RunRecord,
    is_seeds_folder,
    read_calibration,
    remove_leftovers,
)
from glassloop.runs.study import read_seeds
from glassloop.scores.calibration import Fitted
from glassloop.settings.training import CLASSES

SEAL = re.compile(r"<!-- written by Glassloop, sha256 ([0-9a-f]{64}): a card that was edited is not overwritten -->\n\Z")
TEMPLATE = "report/run_card.md.j2"
TASK = "text-classification"
LIBRARY = "transformers"


@dataclass(frozen=True)
class Score:
    """A metric of the card, for readers and for the hub."""

    key: str  # the metric as the hub names it
    title: str  # its name for a person
    value: float  # the value
    split: str = "validation"  # the split it was computed on
    interval: str = ""  # its 95 % interval in words; empty if there is none
    baseline: float | None = None  # the value of always giving the same answer


@dataclass(frozen=True)
class DataName:
    """The data of a model as the hub names it."""

    name: str  # its name for a person
    identifier: str  # its identifier on the hub, or a short name
    config: str | None = None  # its configuration on the hub
    on_hub: bool = False  # whether it is on the hub


@dataclass(frozen=True)
class Card:
    """A model card."""

    title: str  # the name of the model
    data: DataName | None  # the data that the scores refer to; None if that is not known
    scores: Sequence[Score] = ()  # the scores
    # further entries of the front matter, such as `base_model`
    head: Mapping[str, str | list[str]] = field(default_factory=dict)
    sections: Sequence[tuple[str, str]] = ()  # headings with their Markdown


def scores_table(scores: Sequence[Score]) -> str:
    """Return the scores as a table."""
    rows = [
        [
            score.title,
            score.split,
            f"{score.value:.4f}",
            score.interval or "–",
            "–" if score.baseline is None else f"{score.baseline:.4f}",
        ]
        for score in scores
    ]
    return markdown_table(["metric", "split", "value", "95 % interval", "baseline"], rows)


def card_text(card: Card) -> str:
    """Return the whole card: front matter, title, sections, and a line by which an edited card is recognized."""
    text = rendered("report/card.md.j2", card=card, front_matter=Markup(front_matter(card)))
    return f"{text}{seal(text)}"


def front_matter(card: Card) -> str:
    """Return the YAML of a card, written and checked by huggingface_hub."""
    from huggingface_hub import EvalResult, ModelCardData

    data, name = card.data, printable(card.title)
    found = [
        EvalResult(
            task_type=TASK,
            dataset_type=data.identifier,
            dataset_name=printable(data.name),
            dataset_config=data.config,
            dataset_split=score.split,
            metric_type=score.key,
            metric_name=printable(score.title),
            metric_value=round(score.value, 6),
        )
        for score in card.scores
        if data is not None and math.isfinite(score.value)
    ]
    datasets = [data.identifier] if data is not None and data.on_hub else None
    head: dict[str, object] = {"library_name": LIBRARY, "pipeline_tag": TASK, "datasets": datasets, **card.head}
    return ModelCardData(model_name=name if found else None, eval_results=found or None, **head).to_yaml()  # type: ignore[arg-type]


def seal(text: str) -> str:
    """Return the last line of a card: the checksum of the text above it."""
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f"<!-- written by Glassloop, sha256 {checksum}: a card that was edited is not overwritten -->\n"


def is_untouched(text: str) -> bool:
    """Return whether a card is as Glassloop wrote it."""
    found = SEAL.search(text)
    return found is not None and seal(text[: found.start()]) == found[0]


TITLES = {"f1": "F1", "cost": "cost per row"}


def gain_title(gain: Gain, positive: str | None) -> str:
    """Return the name of a score for a person: with the class it refers to, or that it is a mean over labels."""
    title = TITLES.get(gain.name, gain.name)
    if gain.name not in ("f1", "precision", "recall"):
        return title
    return f"{title} ({positive})" if positive else f"{title} (mean over labels)"


def gain_cells(gain: Gain) -> tuple[str, str, str, str]:
    """Return a score before and after, its change, and the interval of the change."""
    span = "" if gain.low is None or gain.high is None else f"{gain.low:+.4f} to {gain.high:+.4f}"
    return f"{gain.before:.4f}", f"{gain.after:.4f}", f"{gain.change:+.4f}", span


def show_fitted(console: Console, fitted: Fitted, title: str, positive: str | None) -> None:
    """Print what a temperature and thresholds change on rows that they were not fitted on."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate((title, "before", "after", "change", "95 % interval")):
        table.add_column(Text(printable(name)), justify="right" if place else "left")
    for gain in (*fitted.temperature_gains, *fitted.target_gains):
        table.add_row(Text(printable(gain_title(gain, positive))), *gain_cells(gain))
    console.print(table)
    if fitted.target is not None:
        console.print(Text(f"thresholds for the {fitted.target}", style="dim"))


QUICKSTART = "sentence-transformers/all-MiniLM-L6-v2"  # the packaged model
MOST_LABELS = 30
SETTINGS = (
    *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "optim", "max_grad_norm", "label_smoothing_factor", "seed"),
)


def run_card(folder: Path) -> Card:
    """Return the card of a finished run. Raises `ModelError` if the folder is not a run, or is damaged."""
    source = read_source(folder)
    record = source.record
    if record is None:
        return Card(folder.name, None)
    calibration = read_calibration(folder / MODEL_NAME, record.files)
    scores = [
        Score(result.key, result.title, result.value, result.split, result.interval, result.baseline)
        for result in results_of(source)
    ]
    base = base_model(record.model.name)
    head: dict[str, str | list[str]] = {"tags": ["glassloop"], **({"base_model": base} if base else {})}
    if metrics := sorted({score.key for score in scores}):
        head["metrics"] = metrics
    sections = [
        ("What it is", introduction(record)),
        ("Results", results_part(source, scores)),
        ("How to use it", usage(record, calibration)),
        ("Calibration", calibration_part(calibration)),
        ("Data", data_part(record)),
        ("Training", training_part(record)),
        ("Limits", limits(record)),
    ]
    return Card(folder.resolve().name, data_name(record), scores, head, sections)


def base_model(name: str) -> str | None:
    """Return the model that a run started from as the hub names it; None for a folder."""
    if name == "quickstart":
        return QUICKSTART
    return name if is_hub_name(name) and not Path(name).exists() else None


def data_name(record: RunRecord) -> DataName:
    """Return the data of a run by its name on the hub, or by the name of its file, without its folder."""
    source, config = record.data.source, record.data.settings.name
    if source.startswith("glue/"):
        task = source.partition("/")[2]
        return DataName(f"GLUE {task.upper()}", "nyu-mll/glue", task, on_hub=True)
    if "/" in source and is_hub_name(source):
        return DataName(source, source, config, on_hub=True)
    name = Path(source).name or "data"
    return DataName(name, "".join(sign if sign.isalnum() else "-" for sign in name.lower()).strip("-") or "data")


def introduction(record: RunRecord) -> str:
    """Return what was trained from what, in a sentence or two."""
    base = base_model(record.model.name) or Path(record.model.name).name
    return piece(TEMPLATE, "introduction", record, base, data_name(record), MOST_LABELS)


def results_part(source: RunSource, scores: Sequence[Score]) -> str:
    """Return the scores with their intervals, and those of all seeds if the run is one of several."""
    return piece(TEMPLATE, "results", scores_table(scores), source.record, *seeds_of(source.folder.resolve().parent))


def seeds_of(parent: Path) -> tuple[int, list[list[str]]]:
    """Return how many seeds of a folder are finished, and a row for each metric if there are several."""
    try:
        record = read_seeds(parent) if is_seeds_folder(parent) else None
    except GlassloopError:
        record = None
    deviation = record.standard_deviation if record else None
    if record is None or deviation is None:
        return 0, []
    rows = [
        [name, f"{mean:.4f}", f"{deviation[name]:.4f}", f"{min(values):.4f}", f"{max(values):.4f}"]
        for (name, values), mean in zip(record.values().items(), record.mean.values(), strict=True)
    ]
    return len(record.finished), rows


def usage(record: RunRecord, calibration: Calibration | None) -> str:
    """Return how to use the model with Glassloop and with transformers: two blocks of Python."""
    labels = record.data.labels or ()
    thresholds = calibration.thresholds if calibration else {}
    limits = {place: thresholds[name] for place, name in enumerate(labels) if name in thresholds}
    if record.data.task == CLASSES:  # one of two classes has a threshold, or none has
        limits = dict([*limits.items()][:1]) if len(labels) == 2 else {}
    pair = record.data.columns.text_pair is not None
    temperature = calibration.temperature if calibration else 1.0
    return piece(TEMPLATE, "usage", record.data.task, pair, record.max_length, temperature, limits)


def calibration_part(found: Calibration | None) -> str:
    """Return the temperature and the thresholds of a model, and what they gain; empty without a calibration."""
    if found is None:
        return ""
    rows = [[gain_title(gain, found.positive_label), *gain_cells(gain)] for gain in found.gains]
    return piece(TEMPLATE, "calibration", found, rows, MOST_LABELS)


def data_part(record: RunRecord) -> str:
    """Return the splits with their fingerprints, and the class balance of the training rows."""
    splits = [[name, f"{facts.num_rows:,}", facts.fingerprint[:16] or "–"] for name, facts in record.data.splits.items()]
    counts = record.data.splits["train"].label_counts if "train" in record.data.splits else {}
    total = sum(counts.values()) if record.data.task == CLASSES else record.data.splits["train"].num_rows if counts else 0
    largest = sorted(counts.items(), key=lambda entry: -entry[1])[:MOST_LABELS] if total else []
    rows = [[name, f"{number:,}", f"{number / total:.1%}"] for name, number in largest]
    return piece(TEMPLATE, "data", splits, rows, len(counts) - MOST_LABELS)


def training_part(record: RunRecord) -> str:
    """Return the settings, the machine and the versions of libraries."""
    settings = record.settings.to_dict()
    rows: list[list[object]] = [[name, settings[name]] for name in SETTINGS if settings.get(name) is not None]
    rows += [["steps", f"{record.plan.max_steps:,}"], ["max_length", record.max_length], ["precision", record.precision]]
    rows += [["backend", record.backend], ["machine", record.machine or record.device]]
    rows += [[name, version] for name, version in record.versions.items()]
    return markdown_table(["setting", "value"], rows)


def limits(record: RunRecord) -> str:
    """Return what the model was not tested for, and what a user should know about the data."""
    splits = [name for name in record.data.splits if name.startswith("validation")]
    cut = record.lengths.get("train")
    counts = record.data.splits["train"].label_counts if "train" in record.data.splits else {}
    rare = min(counts, key=lambda name: counts[name], default="")
    often = max(counts, key=lambda name: counts[name], default="")
    lost = cut.num_truncated if cut else 0
    return piece(TEMPLATE, "limits", record, data_name(record), splits, lost, rare, often, counts)


def write_card(folder: Path, card: Card) -> bool:
    """Write a card into a folder, unless an edited or foreign one is there. Return whether it was written.

    Args:
        folder: The folder of the model.
        card: The card.
    """
    path = folder / CARD_NAME
    remove_leftovers(folder)
    try:
        known = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError):
        known = ""
    if known is not None and not is_untouched(known):
        say(f"{path} was kept: it was edited, or written by another program")
        return False
    text = card_text(card)
    if text != known:
        write_text(path, text)
    return True


def update_card(run: Path) -> None:
    """Write the card of a finished run into the folder of its model.

    Never raises: a card must not fail a run. An exception becomes one line on standard error.
    """
    # The card ends with a checksum of its own text: whatever differs was edited by a person, and no second file is
    # needed.
    try:
        write_card(run / MODEL_NAME, run_card(run))
    except Exception as error:
        say(f"the model card could not be written: {type(error).__name__}: {error}")
