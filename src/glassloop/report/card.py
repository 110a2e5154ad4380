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

from glassloop.base.errors import GlassloopError, printable
from glassloop.base.files import write_text
from glassloop.base.network import is_hub_name
from glassloop.base.output import say
from glassloop.markup.templates import markdown_table, piece, rendered
from glassloop.markup.terminal import bare_table, text
from glassloop.report.page import score
from glassloop.report.results import gain_row, results_of
from glassloop.report.source import read_source
from glassloop.runs import record as records
from glassloop.runs.record import MODEL_NAME, Calibration, MetricRecord, RunRecord
from glassloop.runs.study import read_seeds
from glassloop.scores.calibration import PROBABILITY_TITLES, Fitted
from glassloop.scores.metrics import Measures
from glassloop.scores.result import Score
from glassloop.settings.training import CLASSES

SEAL = "<!-- written by Glassloop, sha256 {}: a card that was edited is not overwritten -->\n"
SEALED = re.compile(SEAL.format("[0-9a-f]{64}") + r"\Z")
TEMPLATE = "report/run_card.md.j2"
TASK = "text-classification"
LIBRARY = "transformers"
QUICKSTART = "sentence-transformers/all-MiniLM-L6-v2"  # the packaged model
MOST_LABELS = 30
HEAD_SETTINGS = ("method", "pooling", "pair_form")
SETTINGS = (
    *HEAD_SETTINGS,
    *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "optim", "max_grad_norm", "label_smoothing_factor", "seed"),
)


@dataclass(frozen=True)
class DataName:
    """The data of a model: its name for a person, and its identifier and configuration on the hub, or a short name."""

    name: str
    identifier: str
    config: str | None = None
    on_hub: bool = False


@dataclass(frozen=True)
class Card:
    title: str
    data: DataName | None  # what the scores refer to
    scores: Sequence[Score] = ()
    head: Mapping[str, str | list[str]] = field(default_factory=dict)  # further entries of the front matter
    sections: Sequence[tuple[str, str]] = ()  # headings with their Markdown


def scores_table(scores: Sequence[Score]) -> str:
    rows = [[one.title, one.split, score(one.value), one.interval or "–", score(one.baseline)] for one in scores]
    return markdown_table(["metric", "split", "value", "95% interval", "baseline"], rows)


def card_text(card: Card) -> str:
    """Return the whole card: front matter, title, sections, and a line by which an edited card is recognized."""
    text = rendered("report/card.md.j2", card=card, front_matter=Markup(front_matter(card)))
    return f"{text}{SEAL.format(hashlib.sha256(text.encode()).hexdigest())}"


def front_matter(card: Card) -> str:
    """Return the YAML of a card, written and checked by huggingface_hub."""
    from huggingface_hub import EvalResult, ModelCardData

    data, name = card.data, printable(card.title)
    results = [
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
    return ModelCardData(model_name=name if results else None, eval_results=results or None, **head).to_yaml()  # type: ignore[arg-type]


def is_untouched(text: str) -> bool:
    """Return whether a card is as Glassloop wrote it: its last line has the checksum of the text above it."""
    seal = SEALED.search(text)
    return seal is not None and SEAL.format(hashlib.sha256(text[: seal.start()].encode()).hexdigest()) == seal[0]


def show_fitted(console: Console, fitted: Fitted, title: str, positive: str | None) -> None:
    table = bare_table(title, "before", "after", "change", "95% interval", right=1)
    for gain in (*fitted.temperature_gains, *fitted.target_gains):
        table.add_row(*map(text, map(str, gain_row(gain, positive))))
    console.print(table)
    if fitted.target is not None:
        console.print(text(f"thresholds for the {fitted.target}", "dim"))


def run_card(folder: Path) -> Card:
    source = read_source(folder)
    record = source.record
    if record is None:
        return Card(folder.name, None)
    stored = records.read_calibration(folder / MODEL_NAME, record.files)
    scores, base, data = results_of(source), base_model(record.model.name), data_name(record)
    head: dict[str, str | list[str]] = {"tags": ["glassloop"], **({"base_model": base} if base else {})}
    if pooling := record.model.pooling:  # no class of transformers
        head["library_name"] = "glassloop" if pooling["towers"] else "sentence-transformers"
    if metrics := sorted({score.key for score in scores}):
        head["metrics"] = metrics
    settings = record.settings.to_dict()
    shown = SETTINGS if record.plan.max_steps else (*HEAD_SETTINGS, "seed")
    training: list[list[object]] = [[name, settings[name]] for name in shown if settings.get(name) is not None]
    training += [["steps", f"{record.plan.max_steps:,}"], ["max_length", record.max_length], ["precision", record.precision]]
    training += [["backend", record.backend], ["machine", record.machine or record.device]]
    training += [[name, version] for name, version in record.versions.items()]
    gains = [gain_row(gain, stored.positive_label) for gain in stored.gains] if stored else []
    seeds = seed_rows(folder.resolve().parent)
    started = base or Path(record.model.name).name
    data_part, limits = data_parts(record)
    sections = [
        ("What it is", piece(TEMPLATE, "introduction", record, started, data, MOST_LABELS)),
        ("Results", piece(TEMPLATE, "results", scores_table(scores), record, *seeds, *baseline_rows(record, scores), stored)),
        ("How to use it", usage(record, stored)),
        ("Calibration", piece(TEMPLATE, "calibration", stored, gains, MOST_LABELS) if stored else ""),
        ("Data", data_part),
        ("Training", markdown_table(["setting", "value"], training)),
        ("Limits", limits),
    ]
    return Card(folder.resolve().name, data, scores, head, sections)


def baseline_rows(record: RunRecord, scores: Sequence[Score]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table of the model and its baselines; no row without baselines."""
    measures = Measures(record.metrics, record.positive_label)
    own = {one.key: MetricRecord(one.value, one.low, one.high) for one in scores if one.split == scores[0].split}
    own |= record.probabilities.after if record.probabilities else {}
    methods = [("this model", own, ""), *((one.name, one.scores, one.note) for one in record.baselines)]
    keys = [key for key in (*record.metrics, *PROBABILITY_TITLES) if any(key in one.scores for one in record.baselines)]

    def cell(found: MetricRecord | None) -> str:
        if found is None:
            return "–"
        return f"{found.value:.4f}" + ("" if found.low is None else f" ({found.low:.4f} to {found.high:.4f})")

    noted = any(note for _, _, note in methods)
    rows = [[name, *(cell(found.get(key)) for key in keys), *([note] if noted else [])] for name, found, note in methods]
    titles = (PROBABILITY_TITLES.get(key) or measures.title(key) for key in keys)
    return ["method", *titles, *(["note"] if noted else [])], rows if record.baselines else []


def base_model(name: str) -> str | None:
    if name == "quickstart":
        return QUICKSTART
    return name if not Path(name).exists() and is_hub_name(name) else None


def data_name(record: RunRecord) -> DataName:
    """Return the data of a run by its name on the hub, or by the name of its file, without its folder."""
    source, config = record.data.source, record.data.settings.name
    if source.startswith("glue/"):
        task = source.partition("/")[2]
        return DataName(f"GLUE {task.upper()}", "nyu-mll/glue", task, on_hub=True)
    if "/" in source and not source.startswith("/") and is_hub_name(source):
        return DataName(source, source, config, on_hub=True)
    name = Path(source).name or "data"
    return DataName(name, "".join(sign if sign.isalnum() else "-" for sign in name.lower()).strip("-") or "data")


def seed_rows(parent: Path) -> tuple[int, list[list[str]]]:
    """Return how many seeds of a folder are finished, and a row for each metric if there are several."""
    try:
        record = read_seeds(parent) if records.is_seeds_folder(parent) else None
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
    labels = record.data.labels or ()
    thresholds = calibration.thresholds if calibration else {}
    by_number = {place: thresholds[name] for place, name in enumerate(labels) if name in thresholds}
    if record.data.task == CLASSES:  # one of two classes has a threshold, or none has
        by_number = dict([*by_number.items()][:1]) if len(labels) == 2 else {}
    pair = record.data.columns.text_pair is not None
    temperature = calibration.temperature if calibration else 1.0
    return piece(TEMPLATE, "usage", record.data.task, pair, record.max_length, temperature, by_number, record.model.pooling)


def data_parts(record: RunRecord) -> tuple[Markup, Markup]:
    """Return the splits with the class balance of the training rows, and what the model was not tested for."""
    splits = [[name, f"{facts.num_rows:,}", facts.fingerprint[:16] or "–"] for name, facts in record.data.splits.items()]
    train, lengths = record.data.splits.get("train"), record.lengths.get("train")
    counts = dict(sorted(train.label_counts.items(), key=lambda entry: -entry[1])) if train else {}
    total = sum(counts.values()) if record.data.task == CLASSES or not train else train.num_rows
    largest = [*counts.items()][:MOST_LABELS] if total else []
    balance = [[name, f"{number:,}", f"{number / total:.1%}"] for name, number in largest]
    rare, often = (choose(counts, key=lambda name: counts[name], default="") for choose in (min, max))
    held_out = [name for name in record.data.splits if name.startswith("validation")]
    truncated = lengths.num_truncated if lengths else 0
    limits = piece(TEMPLATE, "limits", record, data_name(record), held_out, truncated, rare, often, counts)
    return piece(TEMPLATE, "data", splits, balance, len(counts) - MOST_LABELS), limits


def write_card(folder: Path, card: Card) -> bool:
    """Write a card into the folder of a model, unless an edited or foreign one is there. Return whether it was written."""
    path = folder / records.CARD_NAME
    records.remove_leftovers(folder)
    try:
        known = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError):
        known = ""
    # The card ends with a checksum of its own text: whatever differs was edited by a person, and no second file is needed.
    if known is not None and not is_untouched(known):
        say(f"{path} was kept: it was edited, or written by another program")
        return False
    text = card_text(card)
    if text != known:
        write_text(path, text)
    return True


def update_card(run: Path) -> None:
    """Write the card of a finished run into the folder of its model. An error is one line: a card must not fail a run."""
    try:
        write_card(run / MODEL_NAME, run_card(run))
    except Exception as error:
        say(f"the model card could not be written: {type(error).__name__}: {error}")
