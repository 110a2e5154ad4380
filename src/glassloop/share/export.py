"""Export a run into a new folder: convert, compare with the run, describe."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError, SettingsError, counted, shortened
from glassloop.base.files import replacing_dir, write_text
from glassloop.base.output import stage
from glassloop.base.records import Json
from glassloop.data.batches import PaddingCollator
from glassloop.data.encoding import EncodedText
from glassloop.markup.templates import rendered
from glassloop.markup.terminal import bare_table, text
from glassloop.models.loading import CONFIG_NAME
from glassloop.models.pooled import MODULES_NAME
from glassloop.predict.answers import Answering
from glassloop.predictor import Predictor
from glassloop.report.comparison import answer_text, measures_of
from glassloop.runs import export as exports
from glassloop.runs import record as records
from glassloop.scores.statistics import compare, row_metrics_of, scored_rows
from glassloop.serve.hosted import CHECKED_ROWS, check_predictions
from glassloop.settings.training import SCORE
from glassloop.share.conversion import ONNX_PACKAGES, PACKAGES, refuse_missing_packages, refuse_unknown_family, write_model

SPEED_ROWS, ROUNDS, MOST_SECONDS = 128, 3, 60.0


@dataclass(frozen=True)
class StoredRows:
    """The rows of a split with labels, as the run stored them with its predictions."""

    split: str
    entries: Sequence[dict[str, Json]]
    texts: tuple[str, ...]
    path: Path

    @property
    def columns(self) -> list[list[str]]:
        """The texts, or the first and the second texts of pairs."""
        return [[str(entry[name]) for entry in self.entries] for name in self.texts]

    def spread(self, most: int) -> list[int]:
        """Return at most this many places, evenly spread over the rows."""
        return [int(place) for place in np.unique(np.linspace(0, len(self.entries) - 1, most).astype(int))]


def validation_rows(folder: Path, run: records.RunRecord) -> StoredRows:
    """Return the stored validation rows of a run. Raises `SettingsError` or `ModelError` if they are missing."""
    split = next((name for name in records.predicted_splits(folder) if name.startswith("validation")), None)
    if split is None:
        problem = f"{folder}: the run has no stored predictions for validation rows, which an export is compared with"
        raise SettingsError(problem, "train it again with validation rows, for example with --validation_share 0.1")
    entries, texts = records.read_predictions(folder, split), run.data.columns.texts
    path = folder / records.predictions_name(split)
    lines = (number for number, entry in enumerate(entries, 1) if any(name not in entry for name in (*texts, "label")))
    if (line := next(lines, None)) is not None:
        raise ModelError(f"{path}, line {line:,}: there is no text or no label", "restore the file, or train the run again")
    return StoredRows(split, entries, texts, path)


@dataclass(frozen=True)
class Changes:
    """How an exported model differs from the model of its run on the same rows, which are counted from 0."""

    largest: float  # difference of two logits
    largest_row: int
    flipped: tuple[int, ...]  # the rows whose answer changed; scores have none
    metrics: dict[str, exports.MetricChange]


def changes(rows: StoredRows, run: records.RunRecord, answering: Answering, before: np.ndarray, after: np.ndarray) -> Changes:
    """Return how the logits of an exported model, `after`, differ from those of the run's model, `before`."""
    apart = np.abs(after.astype(np.float64) - before).max(axis=1)
    answers = [np.asarray(answering.choices(logits)) for logits in (before, after)]
    differs = (answers[0] != answers[1]).reshape(len(apart), -1).any(axis=1)
    flipped = () if run.data.task == SCORE else tuple(int(row) for row in np.flatnonzero(differs))
    stored = scored_rows(rows.entries, run.data.task, run.data.labels, rows.path)
    pairs = zip(answers, (before, after), strict=True)
    sides = [{0: replace(stored, predictions=choices, logits=logits)} for choices, logits in pairs]
    measures, metrics = measures_of(run), dict[str, exports.MetricChange]()
    for key in measures.keys:
        change = compare(sides[0], sides[1], key, measures.positive)
        old, new = (one.value for one in row_metrics_of([side[0] for side in sides], key, measures.positive))
        interval = change.interval
        metrics[key] = exports.MetricChange(old, new, change.value, interval.low, interval.high, change.p_value, change.method)
    return Changes(float(apart.max()), int(apart.argmax()), flipped, metrics)


def speeds(
    predictors: Mapping[str, Predictor], rows: Sequence[EncodedText], rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:  # fmt: skip
    """Return the rows per second of each predictor on the same encoded rows, the best of several rounds in turn."""
    # One more round warms up. A slow model gets at least one round.
    best, began = dict.fromkeys(predictors, float("inf")), clock()
    with stage("measuring the speed", (rounds + 1) * len(predictors) * len(rows)):
        for turn in range(rounds + 1):
            for name, predictor in predictors.items():
                start = clock()
                predictor.forward(rows)
                if turn:
                    best[name] = min(best[name], clock() - start)
            if turn and clock() - began > MOST_SECONDS:
                break
    return {name: len(rows) / max(seconds, 1e-9) for name, seconds in best.items()}


def readme_text(
    record: exports.ExportRecord, check: exports.ExportCheck, *, calibrated: bool, has_reference: bool, towers: bool = False
) -> str:
    """Return the README of an exported folder. It contains no texts of the data."""
    title = measures_of(record.run).title
    return rendered(
        "share/readme.md.j2",
        record=record,
        check=check,
        metrics={title(key): change for key, change in check.metrics.items()},
        pair=record.run.data.columns.text_pair is not None,
        towers=towers,
        calibrated=calibrated,
        has_reference=has_reference,
        model_file=exports.MODEL_FILES[record.kind],
    )


# What an exported folder does not take from the model's: weights, the card, and the modules of sentence-transformers.
WEIGHTS = (".safetensors", ".safetensors.index.json", ".md", MODULES_NAME)


@dataclass(frozen=True)
class FlippedRow:
    """A row whose answer changed: its label, both answers, and its texts."""

    row: int
    label: object
    before: object
    after: object
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Exported:
    """A finished export: its folder, its record, and the rows whose answer changed."""

    folder: Path
    record: exports.ExportRecord
    check: exports.ExportCheck
    flipped: tuple[FlippedRow, ...]


def export_run(folder: Path, kind: str, target: Path, *, stores_texts: bool = True) -> Exported:
    """Export the model of a run to a new folder, in the format `kind`, and compare it on the stored validation rows."""
    # With `stores_texts`, some of these rows are stored, too: a server checks the model with them at its start.
    refuse_missing_packages(kind)
    refuse_other_folders(folder)
    plain = Predictor(folder, device="cpu")
    if plain.run is None:
        raise ModelError(f"{folder}: the record of the run is missing", "name the folder of a run")
    rows = validation_rows(folder, plain.run)
    plain.use(PlainBackend("cpu"))
    first = plain.encoded([column[:1] for column in rows.columns]).rows
    inputs = tuple(PaddingCollator(plain.tokenizer)([row.inputs for row in first]))
    if plain.towers:  # the exported model takes the texts of a pair apart, without types that say where one ends
        inputs = tuple(name for name in inputs if name != "token_type_ids")
    refuse_unknown_family(plain.model.config, inputs)
    ours = Predictor(folder, device="cpu")
    check_predictions(folder, ours)
    labels = None if plain.task == SCORE else tuple(plain.names)
    record = exports.ExportRecord(
        kind, plain.task, labels, plain.max_length, inputs, folder.resolve().name, plain.run, versions=versions_of(kind)
    )
    with replacing_dir(target) as writing:
        with stage(f"exporting to {kind}"):
            for path in sorted(plain.model_dir.iterdir()):
                if path.is_file() and not path.name.endswith(WEIGHTS):
                    shutil.copyfile(path, writing / path.name)
            write_model(plain.model, inputs, kind, writing)
        exports.write_export(writing, replace(record, files=exports.checksums(writing)))
        found = compared(record, rows, writing, {"glassloop": ours, "transformers": plain}, stores_texts=stores_texts)
        calibrated = (writing / records.CALIBRATION_NAME).exists()
        text = readme_text(record, found.check, calibrated=calibrated, has_reference=stores_texts, towers=plain.towers)
        write_text(writing / exports.README_NAME, text)
        record = replace(record, check=found.check, files=exports.checksums(writing))
        exports.write_export(writing, record)
    return replace(found, folder=target, record=record)


def compared(
    record: exports.ExportRecord, rows: StoredRows, folder: Path, others: Mapping[str, Predictor], *, stores_texts: bool
) -> Exported:
    """Return how the model in `folder` compares with the predictors of its run, and store some rows with its logits."""
    # Conversion can succeed and be wrong: another mask, another position, a fused kernel. So the export is compared
    # with the run, on its own validation rows.
    exported, ours = Predictor(folder, device="cpu"), others["glassloop"]
    before, after = ours.logits(*rows.columns), exported.logits(*rows.columns)
    found = changes(rows, record.run, ours.answering, before, after)
    timed = ours.encoded([[column[place] for place in rows.spread(SPEED_ROWS)] for column in rows.columns]).rows
    per_second = speeds({"exported": exported, **others}, timed)
    sizes = {
        "exported": sum(path.stat().st_size for path in folder.glob(f"{exports.MODEL_FILES[record.kind]}*")),
        "run": sum(path.stat().st_size for path in ours.model_dir.glob("*.safetensors")),
    }
    differences = (found.largest, found.largest_row, found.flipped, found.metrics)
    check = exports.ExportCheck(rows.split, len(rows.entries), *differences, sizes, per_second, torch.get_num_threads())
    if stores_texts:
        # With texts: the server's check at its start needs them. Token ids would protect nothing, the tokenizer turns them
        # back.
        entries = [rows.entries[place] for place in rows.spread(CHECKED_ROWS)]
        logits = exported.logits(*([str(entry[name]) for entry in entries] for name in rows.texts)).tolist()
        stored = [
            {"row": entry.get("row"), "logits": numbers, **{name: entry[name] for name in rows.texts}}
            for entry, numbers in zip(entries, logits, strict=True)
        ]
        write_text(folder / exports.REFERENCE_NAME, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in stored))
    flipped = []
    for row in found.flipped:
        entry, answers = rows.entries[row], ours.answering.describe(np.stack([before[row], after[row]]))
        texts = tuple(str(entry[name]) for name in rows.texts)
        flipped.append(FlippedRow(row, entry["label"], answers[0].label, answers[1].label, texts))
    return Exported(folder, record, check, tuple(flipped))


def refuse_other_folders(folder: Path) -> None:
    """Raise if there is nothing to export: no folder, an export, or no run."""
    if folder.is_dir() and exports.is_export(folder):
        raise SettingsError(f"{folder} is an export already", "name the folder of the run it was made from")
    if (folder / CONFIG_NAME).exists() and not records.is_run(folder):
        problem = f"{folder} is a model without a run: an export is compared with the run on its validation rows"
        raise SettingsError(problem, "name the folder of a run, which glassloop train writes")
    if folder.is_dir():
        records.read_run(folder)


def versions_of(kind: str) -> dict[str, str]:
    return {name: version(name) for name in (*PACKAGES, *(ONNX_PACKAGES if kind != exports.TORCH else ()))}


MOST_ROWS = 10
EXPORT_TITLES = {"glassloop": "Glassloop", "transformers": "transformers"}


def show_export(console: Console, found: Exported) -> None:
    check, measures = found.check, measures_of(found.record.run)
    title = f"{check.split}, {counted(check.rows, 'row', 'rows')}"
    table = bare_table(title, "run", "exported", "difference", "95% interval", right=1, overflow="fold")
    for key, one in check.metrics.items():
        cells = f"{one.run:.4f}", f"{one.exported:.4f}", f"{one.difference:+.4f}", f"{one.low:+.4f}..{one.high:+.4f}"
        table.add_row(text(shortened(measures.title(key), 30)), *cells)
    console.print(table)
    console.print()
    console.print(text(f"largest difference of logits: {check.largest_difference:.2g} (row {check.largest_row})"))
    if found.record.task != SCORE:
        console.print(text(f"answers that changed: {len(found.flipped):,} of {check.rows:,}"))
        for row in found.flipped[:MOST_ROWS]:
            label, old, new = (shortened(answer_text(value), 14) for value in (row.label, row.before, row.after))
            console.print(text(shortened(f"  row {row.row} [{label}] {old} → {new}: {' | '.join(row.texts)}", 78)))
        if (more := len(found.flipped) - MOST_ROWS) > 0:
            console.print(text(f"  and {more:,} more; --json lists all"))
    size, before = check.num_bytes["exported"], check.num_bytes["run"]
    console.print(text(f"size: {size / 1e6:,.1f} MB ({size / max(before, 1):.0%} of the run's {before / 1e6:,.1f} MB)"))
    own, others = check.rows_per_second["exported"], [name for name in check.rows_per_second if name != "exported"]
    threads = counted(check.threads, "thread", "threads")
    compared = [f"{own / (speed := check.rows_per_second[name]):.2f}x {EXPORT_TITLES[name]} ({speed:,.0f})" for name in others]
    console.print(text(f"rows per second with {threads}: {own:,.0f}"))
    console.print(text(f"  {', '.join(compared)}"))
    console.print(text(f"{found.record.kind} → {found.folder}"))
