"""Read everything a report shows from a run folder, and the sections about its curves, its data and the run itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from markupsafe import Markup

from glassloop.base.errors import GlassloopError
from glassloop.base.files import holder, home_name
from glassloop.base.records import Json
from glassloop.markup.templates import LINEAR, PERCENT, piece
from glassloop.report.charts import COUNT, LOG, Axis, BarChart, Bars, Event, Histogram, LineChart, Series, even_edges, smoothed
from glassloop.report.page import Cell, Drawn
from glassloop.runs import record as records
from glassloop.runs.history import Entry, numbers_by_step, read_history, read_moments, resumed_steps
from glassloop.runs.record import DataRecord, RunRecord
from glassloop.runs.status import status_of
from glassloop.scores.metrics import LOWER_IS_BETTER, Measures
from glassloop.scores.result import Result, split_scores
from glassloop.scores.statistics import ScoredRows, scored_rows
from glassloop.settings.training import DataSettings, TrainingArguments

TEMPLATE = "report/sections.html.j2"
UNKNOWN = "unknown"
LOGITS = b'"logits": ['  # quotation marks within a text are escaped, so that this is always the key
MANY_BYTES = 500  # of the logits of a row, beyond which Arrow reads them: JSON needs several times as long
MANY_STEPS = 40  # logged values, beyond which a curve is smoothed
SMOOTHED_SHARE = 0.06
WIDEST_RANGE = 30.0  # a gradient norm that varies more is drawn on a logarithmic axis
SHOWN_LABELS, MOST_FILES = 20, 60
STEPS = Axis("step", COUNT, low=0)
TRAIN, HELD_OUT = "train", "validation"


def read_answers(folder: Path, split: str, data: DataRecord) -> tuple[ScoredRows | None, Sequence[Mapping[str, Json]]]:
    """Return the predictions of a split as arrays, None without labels, and its lines with the texts."""
    path = folder / records.predictions_name(split)
    entries = wide_entries(path) or records.read_predictions(folder, split)
    labelled = bool(entries) and "label" in entries[0]
    return scored_rows(entries, data.task, data.labels, path) if labelled else None, entries


def wide_entries(path: Path) -> list[dict[str, Json]] | None:
    """Return the lines of a file in which rows have very many logits; None if they have few, or if a line is unusual."""
    import pyarrow as pa
    from pyarrow import csv

    try:
        with path.open("rb") as opened:
            first = opened.readline()
            if len(first.partition(LOGITS)[2].partition(b"]")[0]) < MANY_BYTES:
                return None
            lines = (first + opened.read()).removesuffix(b"\n").split(b"\n")
    except OSError:
        return None
    parts = [line.partition(LOGITS) for line in lines]
    numbers, rest = zip(*((behind.partition(b"]")[0], behind.partition(b"]")[2]) for _, _, behind in parts), strict=True)
    width = numbers[0].count(b",") + 1
    reading = csv.ReadOptions(column_names=["x"], block_size=1 << 24)
    converting = csv.ConvertOptions(column_types={"x": pa.float64()}, null_values=[])
    try:
        column = csv.read_csv(pa.BufferReader(b"\n".join(numbers).replace(b",", b"\n")), reading, convert_options=converting)
    except pa.ArrowInvalid:
        return None
    logits = np.asarray(column["x"].to_numpy())
    if len(logits) != width * len(lines) or any(number.count(b",") + 1 != width for number in numbers):
        return None
    entries = records.objects_in(
        [before + b'"logits": 0' + behind for (before, _, _), behind in zip(parts, rest, strict=True)], path
    )
    for entry, row in zip(entries, logits.reshape(len(lines), width), strict=True):
        entry["logits"] = row  # type: ignore[assignment]  # an array instead of a list
    return entries


@dataclass(frozen=True)
class RunSource:
    """A run folder as it was read, also of runs that are unfinished, damaged or old."""

    folder: Path
    record: RunRecord | None  # None for the output folder of a Trainer that wrote neither run.json nor trainer.json
    status: str  # "finished", "running", "stopped", "failed", "killed", or "unknown"
    history: Sequence[Entry]
    resumes: Sequence[int]  # the steps after which the run was resumed
    results: Sequence[Result] = ()  # of each split, the one that was evaluated during training first
    problems: Sequence[str] = ()  # what could not be read, one sentence each
    by_trainer: bool = False  # a Trainer trained it in Python, not the command

    @property
    def measures(self) -> Measures:
        return Measures(self.record.metrics, self.record.positive_label) if self.record else Measures(())

    @property
    def text_columns(self) -> tuple[str, ...]:
        return self.record.data.columns.texts if self.record else ()


def read_source(folder: Path) -> RunSource:
    """Return what a run folder contains. Raises `ModelError` if it is not a run folder, or if its record is damaged."""
    by_trainer = records.is_trainer_folder(folder)
    if not records.is_run(folder) and not by_trainer and (folder / records.HISTORY_NAME).is_file():
        return RunSource(folder, None, UNKNOWN, read_history(folder), resumed_steps(read_moments(folder)), by_trainer=True)
    held = holder(folder)  # before the record is read: a run writes its result before it releases the lock
    record = records.record_of(folder)
    measures = Measures(record.metrics, record.positive_label)
    results, problems = [], []
    for split in sorted(records.predicted_splits(folder), key=lambda name: (not name.startswith(HELD_OUT), len(name), name)):
        try:
            rows, entries = read_answers(folder, split, record.data)
            if rows is not None:
                results.append(Result(split, rows, measures, *split_scores(record, split), entries=entries))
        except GlassloopError as error:
            problems.append(f"{error.problem}; {error.remedy}.")
    moments = read_moments(folder)
    status = status_of(held, record.finished, not by_trainer, moments)
    return RunSource(folder, record, status, read_history(folder), resumed_steps(moments), results, problems, by_trainer)


def metric_names(source: RunSource) -> Mapping[str, str]:
    if source.measures.keys:
        return {key: source.measures.title(key) for key in source.measures.keys}
    names = dict.fromkeys(name for entry in source.history for name in entry if name.startswith("eval_"))
    keys = [name.removeprefix("eval_") for name in names if not records.is_timing(name)]
    return {key: key for key in keys if key != "loss"}


def curves(source: RunSource, drawn: Drawn) -> Markup:
    record, figures = source.record, []
    numbers = {name: numbers_by_step(source.history, name) for name in ("loss", "eval_loss", "learning_rate", "grad_norm")}
    losses, evaluated, rates, norms = numbers.values()
    events = [Event(step, "resumed") for step in dict.fromkeys(source.resumes)]
    events += [Event(record.best_step, "best")] if record and record.best_step is not None else []
    if losses or evaluated:
        many = len(losses) > MANY_STEPS
        lines = [Series("training", smoothed(losses, SMOOTHED_SHARE), raw=losses if many else ())] if losses else []
        lines += [Series("evaluation", evaluated, dots=True)] if evaluated else []
        told = f"The training loss goes from {losses[0][1]:.3g} to {losses[-1][1]:.3g}." if losses else "The evaluation loss."
        note = "Thin line: logged values. Thick line: their moving average." if many else ""
        figures.append(drawn.figure("loss", LineChart("Loss", told, STEPS, Axis("loss"), lines, events), note))
    names = metric_names(source)
    # An error has another range than scores, and the loss of the evaluations shows it.
    scores = {title: f"eval_{key}" for key, title in names.items() if key not in LOWER_IS_BETTER}
    values = {title: numbers_by_step(source.history, name) for title, name in scores.items()}
    if lines := [Series(title, points, dots=True) for title, points in values.items() if points]:
        first, baseline = next(iter(names)), (record.baseline if record else None) or {}
        references = [(f"baseline: {first}", baseline[first])] if first in baseline else []
        told = f"The last evaluation: {', '.join(f'{line.name} {line.points[-1][1]:.4f}' for line in lines)}."
        chart = LineChart("Evaluations", told, STEPS, Axis("score"), lines[:8], events, references)
        figures.append(drawn.figure("evaluations", chart))
    if len(rates) > 1:
        told, lines = f"The learning rate reaches {max(rate for _, rate in rates):g}.", [Series("learning rate", rates)]
        chart = LineChart("Learning rate", told, STEPS, Axis("learning rate", low=0), lines)
        figures.append(drawn.figure("learning-rate", chart))
    if len(norms) > 1:
        positive = [value for _, value in norms if value > 0]
        wide = bool(positive) and max(positive) / min(positive) > WIDEST_RANGE
        limit = record.settings.max_grad_norm if record else 0
        told = f"The gradient norm is between {min(positive, default=0):.3g} and {max(positive, default=0):.3g}."
        line = Series("gradient norm", smoothed(norms, SMOOTHED_SHARE), raw=norms if len(norms) > MANY_STEPS else ())
        axis = Axis("norm before clipping", LOG if wide else LINEAR, low=None if wide else 0)
        references = [("clipped above", limit)] if limit else []
        figures.append(drawn.figure("gradient-norm", LineChart("Gradient norm", told, STEPS, axis, [line], (), references)))
    return piece(TEMPLATE, "curves", figures)


def data_section(source: RunSource, drawn: Drawn) -> str:
    if (record := source.record) is None:
        return ""
    splits: list[list[Cell]] = []
    for name, facts in record.data.splits.items():
        counts = (facts.num_duplicates, facts.num_conflicts, facts.num_in_train, facts.num_empty, facts.num_skipped)
        read = counts if facts.fingerprint else [None] * len(counts)  # without a fingerprint, the rows were not read
        lengths = record.lengths.get(name)
        tokens = (lengths.mean, lengths.num_truncated) if lengths else (None, None)
        splits.append([name, facts.num_rows, *read, *tokens, facts.fingerprint[:12]])
    figures = balance_figures(record.data, drawn)
    lengths = record.lengths.get(TRAIN)
    if lengths and lengths.counts:
        told = f"Half of the rows have at most {lengths.median:g} tokens; the longest has {lengths.longest:,}."
        if lengths.num_truncated:
            told += f" {lengths.num_truncated:,} rows were cut; the longest had {lengths.longest_before:,}."
        edges, bars = even_edges(0, lengths.longest, len(lengths.counts)), [Bars("rows", lengths.counts)]
        chart = Histogram("Length of the training rows", told, edges, bars, Axis("tokens"))
        figures.append(drawn.figure("lengths", chart, told))
    return piece(TEMPLATE, "data", source, splits, figures)


def balance_figures(data: DataRecord, drawn: Drawn) -> list[Markup]:
    """Return the share of each label in the splits with labels; of many labels, of the most frequent ones."""
    labelled = {name: facts for name, facts in data.splits.items() if facts.label_counts and not facts.unlabelled}
    splits = {name: labelled[name] for name in (TRAIN, HELD_OUT) if name in labelled}
    if not splits or not data.labels:
        return []
    counts = next(iter(splits.values())).label_counts
    ordered = sorted(data.labels, key=lambda label: -counts.get(label, 0))
    names = ordered[:SHOWN_LABELS]
    bars = [
        Bars(name, [round(facts.label_counts.get(label, 0) / max(facts.num_rows, 1), 5) for label in names])
        for name, facts in splits.items()
    ]
    rest = len(ordered) - len(names)
    note = f"{rest:,} less frequent labels are not shown." if rest > 0 else ""
    most, least = counts.get(ordered[0], 0), counts.get(ordered[-1], 0)
    told = f"The most frequent label, {ordered[0]}, has {most:,} rows; the least frequent, {ordered[-1]}, {least:,}."
    chart = BarChart("Share of each label", told, names, bars, Axis("share of rows", PERCENT))
    return [drawn.figure("labels-of-the-data", chart, note)]


def about(source: RunSource, drawn: Drawn) -> Markup:
    folder, record = source.folder, source.record
    files: list[list[Cell]] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        name = path.relative_to(folder)
        saved = records.is_checkpoint_name(name.parts[0]) or name.parts[0].startswith(f"{records.KEPT_CHECKPOINTS_NAME}.")
        if not saved and path.suffix != ".html" and len(files) < MOST_FILES:
            checksum = record.files.get(name.relative_to("model").as_posix(), "") if record and name.parts[0] == "model" else ""
            with suppress(OSError):  # it may be gone by now
                files.append([name.as_posix(), path.stat().st_size, checksum[:16]])
    checkpoints = ", ".join(path.name for path in reversed(records.checkpoints_in(folder))) or "none"
    place = {"folder": home_name(str(folder.absolute())), "checkpoints": checkpoints}
    if record is None:
        return piece(TEMPLATE, "files_part", place, files)
    usual, plan = TrainingArguments().to_dict(), record.plan
    other: list[list[Cell]] = [
        [name, option(value), option(usual.get(name)), "default rule" if name in record.chosen else ""]
        for name, value in changed(record.settings).items()
    ]
    other += [[name, option(value), "", ""] for name, value in changed(record.data.settings).items()]
    every = [[name, option(value)] for name, value in record.settings.to_dict().items()]
    numbers = [[entry.name, option(getattr(plan, entry.name))] for entry in fields(plan)]
    parts = (command(record), other, every, numbers, stages_figure(source, drawn), speeds(record), place, files)
    return piece(TEMPLATE, "about", source, *parts)


def command(record: RunRecord) -> str:
    """Return the command that trains the same model: data, model and every setting that is not the default."""
    words = ["glassloop", "train", home_name(record.data.source), "--model", home_name(record.model.name)]
    for name, value in {**changed(record.data.settings), **changed(record.settings)}.items():
        words += [f"--{name}"] if value is True else [f"--{name}", option(value)]
    return " ".join(map(shlex.quote, words + (["--new_head"] if record.model.new_head else [])))


def option(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple):
        return ",".join(home_name(str(part)) for part in value)
    return json.dumps(value) if isinstance(value, dict) else home_name(str(value))


def changed(settings: TrainingArguments | DataSettings) -> dict[str, object]:
    """Return the settings that differ from the defaults, without the folder of the run."""
    usual = asdict(type(settings)())
    return {name: value for name, value in asdict(settings).items() if value != usual[name] and name != "output_dir"}


def stages_figure(source: RunSource, drawn: Drawn) -> Markup | None:
    """Return how long each stage of the run took; None for a record without stages, as of earlier versions."""
    if (record := source.record) is None or not (seconds := record.stages):
        return None
    longest = max(seconds, key=lambda title: seconds[title])
    told = f"Of {sum(seconds.values()):.1f} seconds, {longest} took {seconds[longest]:.1f}."
    note = f"{told} Writing this report is not included."
    if record.resumed:
        note += " The run was resumed: these are the seconds of its last process."
    bars = [Bars("seconds", [round(value, 2) for value in seconds.values()])]
    return drawn.figure("stages", BarChart("Where the time went", told, [*seconds], bars, Axis("seconds")), note)


def speeds(record: RunRecord) -> list[list[Cell]]:
    result, evaluation = record.result or {}, record.evaluation or {}
    rows: list[list[Cell]] = []
    if (train := result.get("train_runtime")) is not None:
        rows.append(["training", train, result.get("train_samples_per_second"), result.get("train_steps_per_second")])
    for name in (name for name in evaluation if name.endswith("runtime")):
        what = "evaluation" if name == "eval_runtime" else name.removesuffix("_runtime").replace("eval_", "evaluation of ")
        rows.append([what, evaluation[name], evaluation.get(name.replace("runtime", "samples_per_second")), None])
    if record.seconds is not None:
        rows.append(["in all", record.seconds, None, None])
    return rows
