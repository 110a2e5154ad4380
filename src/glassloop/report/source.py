"""Read everything a report shows from a run folder, and the sections about its curves, its data and the run itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from glassloop.base.errors import GlassloopError
from glassloop.base.files import holder, home_name
from glassloop.base.records import Json
from glassloop.markup.templates import escaped
from glassloop.report.charts import (
    COUNT,
    LINEAR,
    LOG,
    PERCENT,
    Axis,
    BarChart,
    Bars,
    Chart,
    Event,
    Histogram,
    LineChart,
    Series,
    even_edges,
    figure,
    smoothed,
)
from glassloop.report.page import Cell, code_block, details, fact_list, grid, heading, paragraph, table
from glassloop.runs.history import Entry, numbers_by_step, read_history, read_moments, resumed_steps
from glassloop.runs.record import (
    HISTORY_NAME,
    KEPT_CHECKPOINTS_NAME,
    DataRecord,
    LengthFacts,
    RunRecord,
    SplitFacts,
    checkpoints_in,
    is_checkpoint_name,
    is_run,
    is_timing,
    is_trainer_folder,
    objects_in,
    predicted_splits,
    predictions_name,
    read_predictions,
    record_of,
)
from glassloop.runs.status import status_of
from glassloop.scores.intervals import ScoredRows, scored_rows
from glassloop.scores.metrics import LOWER_IS_BETTER, Measures
from glassloop.scores.result import Result, split_scores
from glassloop.settings.training import DataSettings, TrainingArguments

LOGITS = b'"logits": ['  # quotation marks within a text are escaped, so that this is always the key
MANY = 500  # bytes of the logits of a row, beyond which Arrow reads them: JSON needs several times as long


def read_answers(folder: Path, split: str, data: DataRecord) -> tuple[ScoredRows | None, Sequence[Mapping[str, Json]]]:
    """Return the predictions of a split as arrays, None without labels, and its lines with the texts.

    Raises:
        ModelError: If the file is damaged, or does not fit the labels of the run.
        SettingsError: If there are no predictions for the split.
    """
    path = folder / predictions_name(split)
    entries = wide_entries(path) or read_predictions(folder, split)
    labelled = bool(entries) and "label" in entries[0]
    return scored_rows(entries, data.task, data.labels, path) if labelled else None, entries


def wide_entries(path: Path) -> list[dict[str, Json]] | None:
    """Return the lines of a file in which rows have very many logits; None if they have few, or if a line is unusual."""
    try:
        with path.open("rb") as opened:
            first = opened.readline()
            if len(first.partition(LOGITS)[2].partition(b"]")[0]) < MANY:
                return None
            lines = (first + opened.read()).removesuffix(b"\n").split(b"\n")
    except OSError:
        return None
    parts = [line.partition(LOGITS) for line in lines]
    numbers, rest = zip(*((behind.partition(b"]")[0], behind.partition(b"]")[2]) for _, _, behind in parts), strict=True)
    logits = numbers_in(b",".join(numbers))
    width = numbers[0].count(b",") + 1
    if logits is None or len(logits) != width * len(lines) or any(number.count(b",") + 1 != width for number in numbers):
        return None
    entries = objects_in([before + b'"logits": 0' + behind for (before, _, _), behind in zip(parts, rest, strict=True)], path)
    for entry, row in zip(entries, logits.reshape(len(lines), width), strict=True):
        entry["logits"] = row  # type: ignore[assignment]  # an array instead of a list
    return entries


def numbers_in(text: bytes) -> np.ndarray | None:
    """Return the numbers between commas; None if one is not a number. Arrow reads them several times faster than Python."""
    import pyarrow as pa
    from pyarrow import csv

    column = pa.BufferReader(text.replace(b",", b"\n"))
    reading = csv.ReadOptions(column_names=["x"], block_size=1 << 24)
    try:
        found = csv.read_csv(
            column, reading, convert_options=csv.ConvertOptions(column_types={"x": pa.float64()}, null_values=[])
        )
    except pa.ArrowInvalid:
        return None
    return np.asarray(found["x"].to_numpy())


UNKNOWN = "unknown"


@dataclass(frozen=True)
class RunSource:
    """A run folder as it was read."""

    folder: Path  # the folder
    record: RunRecord | None  # what run.json or trainer.json says; None for the output folder of a Trainer that wrote neither
    status: str  # "finished", "running", "stopped", "failed", "killed", or "unknown"
    history: Sequence[Entry]  # the logged steps and evaluations
    resumes: Sequence[int]  # the steps after which the run was resumed
    results: Sequence[Result] = ()  # the result of each split, the one that was evaluated during training first
    problems: Sequence[str] = ()  # what could not be read, one sentence each
    by_trainer: bool = False  # whether a Trainer trained it in Python, not the command

    @property
    def measures(self) -> Measures:
        """The metrics of the run."""
        return Measures(self.record.metrics, self.record.positive_label) if self.record else Measures(())

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns with the texts."""
        return self.record.data.columns.texts if self.record else ()


def read_source(folder: Path) -> RunSource:
    """Return what a run folder contains. Raises `ModelError` if it is not a run folder, or if its record is damaged."""
    by_trainer = is_trainer_folder(folder)
    if not is_run(folder) and not by_trainer and (folder / HISTORY_NAME).is_file():
        return RunSource(folder, None, UNKNOWN, read_history(folder), resumed_steps(read_moments(folder)), by_trainer=True)
    held = holder(folder)  # before the record is read: a run writes its result before it releases the lock
    record = record_of(folder)
    found, problems = [], []
    for split in ordered_splits(folder):
        try:
            rows, entries = read_answers(folder, split, record.data)
            if rows is not None:
                measures = Measures(record.metrics, record.positive_label)
                found.append(Result(split, rows, measures, *split_scores(record, split), entries=entries))
        except GlassloopError as error:
            problems.append(f"{error.problem}; {error.remedy}.")
    moments = read_moments(folder)
    status = status_of(held, record.finished, not by_trainer, moments)
    return RunSource(folder, record, status, read_history(folder), resumed_steps(moments), found, problems, by_trainer)


def ordered_splits(folder: Path) -> list[str]:
    """Return the splits with predictions, the one that was evaluated during training first."""
    return sorted(predicted_splits(folder), key=lambda name: (not name.startswith("validation"), len(name), name))


class Drawn:
    """The charts of a report by name."""

    def __init__(self) -> None:
        self.charts: dict[str, Chart] = {}

    def figure(self, name: str, chart: Chart, note: str = "", *, wide: bool = False, most_rows: int = 60) -> str:
        """Return a chart as HTML and keep it. `name` is that of its file; a second one of this name gets a number."""
        free = name if name not in self.charts else f"{name}-{sum(known.startswith(name) for known in self.charts) + 1}"
        self.charts[free] = chart
        return figure(chart, note=note, wide=wide, most_rows=most_rows)


STEPS = Axis("step", COUNT, low=0)
MOST_RANGE = 30.0  # a gradient norm that varies more is drawn on a logarithmic axis


def curves(source: RunSource, drawn: Drawn) -> str:
    """Return the learning curves of a run; empty if nothing was logged."""
    history, events = source.history, events_of(source)
    losses, evaluated = numbers_by_step(history, "loss"), numbers_by_step(history, "eval_loss")
    lines = [Series("training", smoothed(losses, 0.06), raw=losses if len(losses) > 40 else ())] if losses else []
    lines += [Series("evaluation", evaluated, dots=True)] if evaluated else []
    parts = []
    if lines:
        name = "Loss"
        told = f"The training loss goes from {losses[0][1]:.3g} to {losses[-1][1]:.3g}." if losses else "The evaluation loss."
        note = "Thin line: logged values. Thick line: their moving average." if len(losses) > 40 else ""
        parts.append(drawn.figure("loss", LineChart(name, told, STEPS, Axis("loss"), lines, events), note))
    parts += [evaluation_chart(source, drawn, events)]
    rates, norms = numbers_by_step(history, "learning_rate"), numbers_by_step(history, "grad_norm")
    if len(rates) > 1:
        told = f"The learning rate reaches {max(rate for _, rate in rates):g}."
        chart = LineChart("Learning rate", told, STEPS, Axis("learning rate", low=0), [Series("learning rate", rates)])
        parts.append(drawn.figure("learning-rate", chart))
    if len(norms) > 1:
        parts.append(drawn.figure("gradient-norm", norm_chart(norms, source)))
    if not any(parts):
        return paragraph("Nothing was logged yet.", "soft")
    return grid(*parts)


def events_of(source: RunSource) -> list[Event]:
    """Return the vertical lines of a chart by step: resumes and the best evaluation."""
    best = source.record.best_step if source.record else None
    events = [Event(step, "resumed") for step in dict.fromkeys(source.resumes)]
    return events + ([Event(best, "best")] if best is not None else [])


def evaluation_chart(source: RunSource, drawn: Drawn, events: Sequence[Event]) -> str:
    """Return the metrics of all evaluations by step; empty if there was none."""
    lines = []
    for key, title in metric_names(source).items():
        if key in LOWER_IS_BETTER:
            continue  # an error has another range than scores, and the loss of the evaluations shows it
        points = numbers_by_step(source.history, f"eval_{key}")
        if points:
            lines.append(Series(title, points, dots=True))
    if not lines:
        return ""
    baseline = source.record.baseline or {} if source.record else {}
    first = next(iter(metric_names(source)))
    references = [(f"baseline: {first}", baseline[first])] if first in baseline else []
    last = ", ".join(f"{line.name} {line.points[-1][1]:.4f}" for line in lines)
    chart = LineChart("Evaluations", f"The last evaluation: {last}.", STEPS, Axis("score"), lines[:8], events, references)
    return drawn.figure("evaluations", chart)


def metric_names(source: RunSource) -> Mapping[str, str]:
    """Return the metrics of the evaluations during training and their names for a person."""
    measures = source.measures
    if measures.keys:
        return {key: measures.title(key) for key in measures.keys}
    names = dict.fromkeys(name for entry in source.history for name in entry if name.startswith("eval_"))
    keys = [name.removeprefix("eval_") for name in names if not is_timing(name)]
    return {key: key for key in keys if key != "loss"}


def norm_chart(norms: Sequence[tuple[float, float]], source: RunSource) -> LineChart:
    """Return the gradient norm by step, with the value that gradients are clipped to."""
    values = [value for _, value in norms if value > 0]
    wide = bool(values) and max(values) / min(values) > MOST_RANGE
    limit = source.record.settings.max_grad_norm if source.record else 0
    told = f"The gradient norm is between {min(values, default=0):.3g} and {max(values, default=0):.3g}."
    raw = norms if len(norms) > 40 else ()
    lines = [Series("gradient norm", smoothed(norms, 0.06), raw=raw)]
    axis = Axis("norm before clipping", LOG if wide else LINEAR, low=None if wide else 0)
    return LineChart("Gradient norm", told, STEPS, axis, lines, (), [("clipped above", limit)] if limit else ())


SHOWN_LABELS = 20
TRAIN, HELD_OUT = "train", "validation"


def data_section(source: RunSource, drawn: Drawn) -> str:
    """Return what is known about the data of a run; empty without a record."""
    record = source.record
    if record is None:
        return ""
    data = record.data
    facts: dict[str, Cell] = {
        "source": home_name(data.source),
        "task": data.task.replace("_", " "),
        "texts": ", ".join(data.columns.texts),
        "label": ", ".join(data.columns.label),
        "labels": f"{len(data.labels):,}" if data.labels else "a score",
        "padding": f"{record.padding:.1%} of the tokens of a padded batch" if record.padding else None,
        "maximum length": f"{record.max_length:,} tokens" if record.max_length and not source.by_trainer else None,
    }
    charts = [balance_chart(data, drawn), *length_charts(record, drawn)]
    notes = "".join(f"<li>{escaped(note)}</li>" for note in data.notes)
    found = heading("Found in the data") + f"<ul>{notes}</ul>" if notes else ""
    return fact_list(facts) + splits_table(record) + found + grid(*charts)


def splits_table(record: RunRecord) -> str:
    """Return the counts of each split."""
    head = [
        "split",
        "rows",
        "duplicates",
        "conflicts",
        "also in train",
        "empty",
        "skipped",
        "mean tokens",
        "truncated",
        "fingerprint",
    ]
    rows = [split_cells(name, facts, record.lengths.get(name)) for name, facts in record.data.splits.items()]
    return heading("Splits") + table(head, rows)


def split_cells(name: str, facts: SplitFacts, lengths: LengthFacts | None) -> list[Cell]:
    """Return the line of a split."""
    counts: tuple[int | None, ...] = (
        facts.num_rows,
        facts.num_duplicates,
        facts.num_conflicts,
        facts.num_in_train,
        facts.num_empty,
        facts.num_skipped,
    )
    if not facts.fingerprint:  # the rows were not read
        counts = (facts.num_rows, *[None] * 5)
    mean, cut = (lengths.mean, lengths.num_truncated) if lengths else (None, None)
    return [name, *counts, mean, cut, facts.fingerprint[:12]]


def balance_chart(data: DataRecord, drawn: Drawn) -> str:
    """Return the share of each label in the splits with labels; of many labels, of the most frequent ones."""
    splits = {name: facts for name, facts in data.splits.items() if facts.label_counts and not facts.unlabelled}
    shown = {name: splits[name] for name in (TRAIN, HELD_OUT) if name in splits}
    if not shown or not data.labels:
        return ""
    first = next(iter(shown.values())).label_counts
    ordered = sorted(data.labels, key=lambda label: -first.get(label, 0))
    names = ordered[:SHOWN_LABELS]
    bars = [
        Bars(name, [round(facts.label_counts.get(label, 0) / max(facts.num_rows, 1), 5) for label in names])
        for name, facts in shown.items()
    ]
    rest = len(ordered) - len(names)
    note = f"{rest:,} less frequent labels are not shown." if rest > 0 else ""
    most, least = first.get(ordered[0], 0), first.get(ordered[-1], 0)
    told = f"The most frequent label, {ordered[0]}, has {most:,} rows; the least frequent, {ordered[-1]}, {least:,}."
    return drawn.figure(
        "labels-of-the-data", BarChart("Share of each label", told, names, bars, Axis("share of rows", PERCENT)), note
    )


def length_charts(record: RunRecord, drawn: Drawn) -> list[str]:
    """Return how long the training rows are, in tokens; empty for runs that did not record it."""
    facts = record.lengths.get(TRAIN)
    if facts is None or not facts.counts:
        return []
    edges = even_edges(0, facts.longest, len(facts.counts))
    told = f"Half of the rows have at most {facts.median:g} tokens; the longest has {facts.longest:,}."
    told += f" {facts.num_truncated:,} rows were cut; the longest had {facts.longest_before:,}." if facts.num_truncated else ""
    series = [Bars("rows", facts.counts)]
    chart = Histogram("Length of the training rows", told, edges, series, Axis("tokens"), Axis("rows", COUNT))
    return [drawn.figure("lengths", chart, told)]


MOST_FILES = 60


def about(source: RunSource) -> str:
    """Return how the run was made and what it left behind."""
    record = source.record
    if record is None:
        return files_part(source)
    facts: dict[str, Cell] = {
        "status": source.status + (f", {record.stop_reason}" if record.stop_reason else ""),
        "started": record.started,
        "model": f"{home_name(record.model.name)} ({record.model.type}, {record.model.parameters / 1e6:.1f} M parameters)",
        "device": f"{record.device}, {record.precision}" + (f", {record.processes} processes" if record.processes > 1 else ""),
        "machine": record.machine,
        "backend": record.backend,
        "savings in use": ", ".join(record.savings),
        "checked": str(record.difference) if record.difference else None,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "resumed after step": ", ".join(f"{step:,}" for step in source.resumes),
    }
    again = [heading("Repeat it"), code_block(command(record))]
    if source.by_trainer:
        again = [paragraph("A Trainer trained this model in Python: to repeat it, run the script again with these settings.")]
    parts = [*again, fact_list(facts), settings_part(record), speed_part(record)]
    return "".join(parts) + files_part(source)


def command(record: RunRecord) -> str:
    """Return the command that trains the same model: data, model and every setting that is not the default."""
    words = ["glassloop", "train", home_name(record.data.source), "--model", home_name(record.model.name)]
    for name, value in {**changed_data(record), **changed_settings(record)}.items():
        words += [f"--{name}"] if value is True else [f"--{name}", option(value)]
    return " ".join(map(shlex.quote, words + (["--new_head"] if record.model.new_head else [])))


def option(value: object) -> str:
    """Return the value of a setting as the command takes it."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple):
        return ",".join(home_name(str(part)) for part in value)
    return json.dumps(value) if isinstance(value, dict) else home_name(str(value))


def changed_settings(record: RunRecord) -> dict[str, object]:
    """Return the training settings that differ from the defaults, without the folder of the run."""
    now, usual = record.settings.to_dict(), TrainingArguments().to_dict()
    return {name: value for name, value in now.items() if value != usual.get(name) and name != "output_dir"}


def changed_data(record: RunRecord) -> dict[str, object]:
    """Return the settings for reading the data that differ from the defaults."""
    now, usual = record.data.settings, DataSettings()
    names = [entry.name for entry in fields(DataSettings)]
    return {name: getattr(now, name) for name in names if getattr(now, name) != getattr(usual, name)}


def settings_part(record: RunRecord) -> str:
    """Return the settings that differ from the defaults, and the plan."""
    usual = TrainingArguments().to_dict()
    rows: list[list[Cell]] = [
        [name, option(value), option(usual.get(name)), "default rule" if name in record.chosen else ""]
        for name, value in changed_settings(record).items()
    ]
    rows += [[name, option(value), "", ""] for name, value in changed_data(record).items()]
    every: list[list[Cell]] = [[name, option(value)] for name, value in record.settings.to_dict().items()]
    plan: list[list[Cell]] = [[entry.name, option(getattr(record.plan, entry.name))] for entry in fields(record.plan)]
    listed = table(["setting", "value", "default", "chosen by"], rows) or paragraph("All settings are the defaults.")
    return (
        heading("Settings that differ from the defaults")
        + listed
        + details("All settings", table(["setting", "value"], every))
        + details("The plan in numbers", table(["plan", "value"], plan))
    )


def speed_part(record: RunRecord) -> str:
    """Return how long each stage took, and how fast it was."""
    result, evaluation, total = record.result or {}, record.evaluation or {}, record.seconds
    rows: list[list[Cell]] = []
    train, speed = result.get("train_runtime"), result.get("train_samples_per_second")
    if train is not None:
        rows.append(["training", train, speed, result.get("train_steps_per_second")])
    for name in (name for name in evaluation if name.endswith("runtime")):
        stage = "evaluation" if name == "eval_runtime" else name.removesuffix("_runtime").replace("eval_", "evaluation of ")
        rows.append([stage, evaluation[name], evaluation.get(name.replace("runtime", "samples_per_second")), None])
    if total is not None:
        known = sum(row[1] for row in rows if isinstance(row[1], float))
        rows.append(["loading, saving and the rest", max(total - known, 0.0), None, None])
        rows.append(["in all", total, None, None])
    return heading("Speed") + table(["stage", "seconds", "rows per second", "steps per second"], rows) if rows else ""


def files_part(source: RunSource) -> str:
    """Return the checkpoints and the files of the run with their sizes and checksums."""
    folder, sums = source.folder, source.record.files if source.record else {}
    saved = [path.name for path in checkpoints_in(folder)]
    facts: dict[str, Cell] = {"folder": home_name(str(folder.absolute())), "checkpoints": ", ".join(reversed(saved)) or "none"}
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    visible = [path for path in found if not in_checkpoint(path.relative_to(folder)) and path.suffix != ".html"]
    rows: list[list[Cell]] = [
        [name, size_of(path), sums.get(name.removeprefix("model/"), "")[:16] if name.startswith("model/") else ""]
        for path in visible[:MOST_FILES]
        if (name := path.relative_to(folder).as_posix())
    ]
    return heading("Files") + fact_list(facts) + table(["file", "bytes", "SHA-256"], rows)


def in_checkpoint(path: Path) -> bool:
    """Return whether a file of a run folder belongs to a checkpoint, or to checkpoints that were moved aside."""
    first = path.parts[0]
    return is_checkpoint_name(first) or first.startswith(f"{KEPT_CHECKPOINTS_NAME}.")


def size_of(path: Path) -> int | None:
    """Return the size of a file; None if it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return None
