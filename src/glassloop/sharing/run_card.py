"""The model card of a run: results with intervals and seeds, how to load it, data, settings, calibration and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from glassloop.errors import GlassloopError, counted
from glassloop.hub import is_hub_name
from glassloop.report.results import results_of
from glassloop.report.source import RunSource, read_source
from glassloop.run_folder.calibration_json import Calibration, read_calibration
from glassloop.run_folder.layout import MODEL_NAME, is_seeds_folder
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.seeds_json import read_seeds
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.sharing.card import Card, DataName, Score, markdown_table, plain, scores_table
from glassloop.sharing.usage import usage
from glassloop.show.calibration import gain_cells, gain_title

QUICKSTART = "sentence-transformers/all-MiniLM-L6-v2"  # the packaged model
MOST_LABELS = 30
SETTINGS = (
    *("learning_rate", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "lr_scheduler_type"),
    *("warmup_steps", "weight_decay", "optim", "max_grad_norm", "label_smoothing_factor", "seed"),
)
TASK_WORDS = {CLASSES: "one class per row", SEVERAL: "several labels per row", SCORE: "a score per row"}


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
        ("Limits", "\n".join(f"- {line}" for line in limits(record))),
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
    inputs = "pairs of texts" if record.data.columns.text_pair else "texts"
    labels = record.data.labels or ()
    words = f"A {plain(record.model.type)} model with {record.model.parameters / 1e6:.1f} million parameters for {inputs}"
    words += f": {TASK_WORDS[record.data.task]}. It was fine-tuned from {plain(base)} on {plain(data_name(record).name)}"
    shown = ", ".join(plain(name) for name in labels[:MOST_LABELS])
    more = f" and {len(labels) - MOST_LABELS:,} more" if len(labels) > MOST_LABELS else ""
    return f"{words} with Glassloop." + (f"\n\nLabels: {shown}{more}." if labels else "")


def results_part(source: RunSource, scores: Sequence[Score]) -> str:
    """Return the scores with their intervals, and those of all seeds if the run is one of several."""
    record = source.record
    if record is None or not scores:
        return "The run has no evaluation."
    words = "Intervals cover 95 % and describe the rows that were evaluated. The baseline always gives the same answer."
    parts = [scores_table(scores), words + f" The random seed was {record.settings.seed}."]
    return "\n\n".join([*parts, *seeds_part(source.folder.resolve().parent)])


def seeds_part(parent: Path) -> Iterator[str]:
    """Yield the mean and the standard deviation over the seeds of a folder, if it has several finished ones."""
    try:
        record = read_seeds(parent) if is_seeds_folder(parent) else None
    except GlassloopError:
        record = None
    deviation = record.standard_deviation if record else None
    if record is None or deviation is None:
        return
    rows = [
        [name, f"{mean:.4f}", f"{deviation[name]:.4f}", f"{min(values):.4f}", f"{max(values):.4f}"]
        for (name, values), mean in zip(record.values().items(), record.mean.values(), strict=True)
    ]
    yield f"The same training with {counted(len(record.finished), 'random seed', 'random seeds')}:"
    yield markdown_table(["metric", "mean", "standard deviation", "lowest", "highest"], rows)


def calibration_part(found: Calibration | None) -> str:
    """Return the temperature and the thresholds of a model, and what they gain; empty without a calibration."""
    if found is None:
        return ""
    words = f"Logits are divided by the temperature {found.temperature:.4g}."
    if found.thresholds and found.target:
        shown = ", ".join(f"{plain(name)} {value:.4f}" for name, value in [*found.thresholds.items()][:MOST_LABELS])
        words += f" Thresholds for the {found.target}: {shown}."
    words += (
        f" Fitted on {found.num_rows:,} rows of {plain(found.split)}. The table shows rows that were not used for fitting"
        f" ({found.folds} folds). The results above are those of the model without calibration."
    )
    rows = [[gain_title(gain, found.positive_label), *gain_cells(gain)] for gain in found.gains]
    return f"{words}\n\n{markdown_table(['score', 'before', 'after', 'change', '95 % interval'], rows)}"


def data_part(record: RunRecord) -> str:
    """Return the splits with their fingerprints, and the class balance of the training rows."""
    splits = [[name, f"{facts.num_rows:,}", facts.fingerprint[:16] or "–"] for name, facts in record.data.splits.items()]
    found = markdown_table(["split", "rows", "fingerprint"], splits)
    counts = record.data.splits["train"].label_counts if "train" in record.data.splits else {}
    total = sum(counts.values()) if record.data.task == CLASSES else record.data.splits["train"].num_rows if counts else 0
    if not counts or not total:
        return found
    largest = sorted(counts.items(), key=lambda entry: -entry[1])[:MOST_LABELS]
    rows = [[name, f"{number:,}", f"{number / total:.1%}"] for name, number in largest]
    more = f"\n\nand {len(counts) - MOST_LABELS:,} more labels" if len(counts) > MOST_LABELS else ""
    return f"{found}\n\n{markdown_table(['label', 'training rows', 'share'], rows)}{more}"


def training_part(record: RunRecord) -> str:
    """Return the settings, the machine and the versions of libraries."""
    settings = record.settings.to_dict()
    rows: list[list[object]] = [[name, settings[name]] for name in SETTINGS if settings.get(name) is not None]
    rows += [["steps", f"{record.plan.max_steps:,}"], ["max_length", record.max_length], ["precision", record.precision]]
    rows += [["backend", record.backend], ["machine", record.machine or record.device]]
    rows += [[name, version] for name, version in record.versions.items()]
    return markdown_table(["setting", "value"], rows)


def limits(record: RunRecord) -> Iterator[str]:
    """Yield what the model was not tested for, and what a user should know about the data."""
    names = [name for name in record.data.splits if name.startswith("validation")]
    where = ", ".join(plain(name) for name in names) or "no split"
    yield (
        f"It was evaluated on {where} of {plain(data_name(record).name)} only. It was not tested on other domains, languages, "
        "groups of people, or texts that are meant to deceive it."
    )
    cut = record.lengths.get("train")
    lost = f" {cut.num_truncated:,} training rows lost text." if cut and cut.num_truncated else ""
    yield f"Texts are truncated to {record.max_length:,} tokens.{lost}"
    counts = record.data.splits["train"].label_counts if "train" in record.data.splits else {}
    if len(counts) > 1:
        rare = min(counts, key=lambda name: counts[name])
        often = max(counts, key=lambda name: counts[name])
        yield (
            f"Labels are not equally frequent: {plain(often)} has {counts[often]:,} training rows, "
            f"{plain(rare)} has {counts[rare]:,}."
        )
    if record.settings.load_best_model_at_end:
        yield "The checkpoint was chosen on the validation rows, so their scores are slightly too high."
    yield "No license is stated: add `license` to the front matter before you publish it."
