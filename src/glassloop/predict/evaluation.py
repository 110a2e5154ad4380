"""Evaluate the model of a run, or of several seeds as one model, on a split of its own or of other data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from glassloop.base.errors import DataError, ModelError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import find_path, replacing, user_path
from glassloop.base.output import say
from glassloop.data.encoding import encode
from glassloop.data.examples import Examples
from glassloop.data.interfaces import Row, Rows
from glassloop.data.sources import load_examples
from glassloop.data.writers import row_writer
from glassloop.models.interface import encoder_weights
from glassloop.predictor import Predictor
from glassloop.runs.history import read_history
from glassloop.runs.record import held_out_splits, is_run, is_seeds_folder, seed_name, split_changes
from glassloop.runs.study import read_seeds
from glassloop.scores.conclusions import averaged_logits
from glassloop.scores.metrics import Measures, chosen_measures, only_measures, probabilities, recorded_measures
from glassloop.scores.result import Result, facts_of, label_of
from glassloop.settings.training import CLASSES, split_names
from glassloop.training.evaluate import Evaluation
from glassloop.training.interfaces import LossSum
from glassloop.training.results import prefixes, result_of


class SeedsPredictor(Predictor):
    """Predicts with the models of all finished seeds in a folder. All of them are loaded at the same time.

    Args:
        folder: The folder of `glassloop train --seeds`.
        device: "auto", "cpu", "cuda" or "mps".
        batch_size: The number of rows in a forward pass.
        precision: "auto", "fp32", "bf16", "fp16" or "int8".

    Raises:
        ModelError: If no seed is finished, or if the files of a model are damaged.
    """

    def __init__(self, folder: Path, *, device: str = "auto", batch_size: int = 64, precision: str = "auto") -> None:
        first, *rest = finished_runs(folder).values()
        self.others: list[Predictor] = []  # each model in int8 is compared alone
        # Calibrations are those of single models, so none is used: a temperature is given.
        super().__init__(first, device=device, batch_size=batch_size, temperature=1.0, precision=precision)
        for run in rest:
            self.others.append(Predictor(run, device=device, batch_size=batch_size, temperature=1.0, precision=precision))

    @property
    def model_dirs(self) -> list[Path]:
        """The folders of all models that predict together."""
        return [self.model_dir, *(other.model_dir for other in self.others)]

    def _in_one_pass(self, rows: Sequence[Row]) -> np.ndarray | None:
        """Return the averaged logits of a few rows; None if a model needs more than one forward pass."""
        found = [super()._in_one_pass(rows), *(other._in_one_pass(rows) for other in self.others)]
        logits = [one for one in found if one is not None]
        return averaged_logits(logits, self.task) if len(logits) == len(found) else None

    def _forward(self, rows: Rows, loss_sum: LossSum | None = None) -> Evaluation:
        """Return the averaged logits of one pass over encoded rows with each model. There is no loss."""
        found = [super()._forward(rows, loss_sum), *(other._forward(rows, loss_sum) for other in self.others)]
        return replace(found[0], logits=averaged_logits([one.logits for one in found], self.task), loss=None)


def has_seeds(folder: Path) -> bool:
    """Return whether a folder holds the runs of several seeds instead of one run."""
    return is_seeds_folder(folder) and not is_run(folder)


def finished_runs(folder: Path) -> dict[int, Path]:
    """Return the run folder of each finished seed. Seeds that are not finished are reported and omitted.

    Raises `ModelError` if no seed is finished.
    """
    record = read_seeds(folder)
    if not record.finished:
        remedy = f"train them to the end: glassloop train --seeds {len(record.seeds)} --resume {folder}"
        raise ModelError(f"{folder}: no seed is finished yet", remedy)
    if record.unfinished:
        say(f"omitted, because they are not finished: {listed(map(seed_name, record.unfinished))}")
    return {seed: folder / seed_name(seed) for seed in record.finished}


@dataclass(frozen=True)
class Wanted:
    """What to evaluate, and how.

    Attributes:
        data: Data to evaluate on. Default: the data of the run.
        split: Split to evaluate. Default: every validation split.
        given: Data settings that override those of the run.
        metrics: Names of metrics; each text may contain several, separated by commas. Default: those of the run.
        positive: Class whose F1 is reported. Default: that of the run.
        device: Device to evaluate on.
        batch_size: Rows per batch.
    """

    data: str | None = None
    split: str | None = None
    given: Mapping[str, object] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    positive: str | None = None
    device: str = "auto"
    batch_size: int = 64


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of one model on one or more splits of the data."""

    source: str
    examples: Examples
    results: Sequence[Result]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of all splits, with their prefixes."""
        return {name: value for result in self.results for name, value in result.timed.items()}

    def title(self, result: Result) -> str:
        """Return the name of a split and its number of rows. A file has no splits, so its own name is shown."""
        alone = find_path(self.source) if len(self.examples.splits) == 1 else None
        name = alone.name if alone and alone.is_file() else result.split
        return f"{name} ({counted(len(result.rows), 'row', 'rows')})"

    def save(self, target: Path) -> None:
        """Write the predictions of all rows, and report where they are."""
        number = write_evaluated(target, self.examples, self.results)
        say(f"{counted(number, 'row', 'rows')} → {target}")


def evaluate_run(run: str, wanted: Wanted) -> Evaluated:
    """Return the evaluation of the model in a run folder or model folder."""
    predictor = Predictor(run, device=wanted.device, batch_size=wanted.batch_size)
    if predictor.calibration is not None:
        say("metrics are computed without the calibration of the run, which predict and serve use")
    described = predictor.run.data if predictor.run else None
    data = wanted.data
    source = data if data is not None else described.source if described else None
    if source is None:
        problem = f"{run} is a model without a run, so there is no data to evaluate on"
        raise SettingsError(problem, "name the data: glassloop evaluate MODEL DATA")
    settings = {**data_settings_of(predictor, wanted), "task": predictor.task}
    examples = load_examples(source, outputs=predictor.outputs, **settings)
    names = evaluated_splits(examples, wanted.split)
    compared = dict.fromkeys(("train", *names))
    if described and data is None and (changed := split_changes(described.splits, examples.facts, compared)):
        raise DataError(
            f"{source}: the data has changed since the run: {'; '.join(changed)}",
            "restore the data; to evaluate on other data, name it: glassloop evaluate RUN DATA",
        )
    measures = measures_of(predictor, examples, wanted)
    encoded = encode(examples, predictor.tokenizer, predictor.max_length)
    counted_rows = described.splits.get("train") if described and data is not None and predictor.task == CLASSES else None
    trained_on = counted_rows.label_counts if counted_rows else None
    limit = replace(predictor.limit, pairs=examples.columns.text_pair is not None)
    facts = None
    if (record := predictor.run) is not None:
        facts = facts_of(record, read_history(user_path(run)), encoder_weights(predictor.model.config))
    results = []
    for name, prefix in zip(names, prefixes(names), strict=True):
        for note in encoded[name].notes(limit):
            say(note)
        found = predictor.evaluate(encoded[name].rows, measures, prefix)
        results.append(result_of(examples, name, found, measures, prefix, trained_on, facts))
    return Evaluated(source, examples, results)


def data_settings_of(predictor: Predictor, wanted: Wanted) -> dict[str, object]:
    """Return how to read the data: as the run did, and other data under the column names of the run's own."""
    described, given = predictor.run.data if predictor.run else None, wanted.given
    stored = described.given() if described else {}
    if wanted.data is None:
        return {**stored, **given}
    public = wanted.data.startswith(("glue", "quickstart"))
    columns = asdict(described.columns) if described and not public else {}
    named = {name: value for name, value in columns.items() if value}
    separator = {"label_separator": stored["label_separator"]} if "label_separator" in stored else {}
    return {"validation_share": 0, **separator, **({} if "text" in given or "label" in given else named), **given}


def evaluated_splits(examples: Examples, split: str | None) -> list[str]:
    """Return the splits to evaluate. Raise `SettingsError` for a split that does not exist or has no labels."""
    names = [split] if split else held_out_splits(examples.facts) or [*examples.splits][:1]
    for name in names:
        if name not in examples.splits:
            near = did_you_mean(name, examples.splits)
            raise SettingsError(f"the data has no split {visible(name)}{near}", f"use one of {listed(examples.splits)}")
        if examples.facts[name].unlabelled:
            remedy = "choose another split with --split, or use glassloop predict"
            raise SettingsError(f"the split {name} has no labels to compare with", remedy)
    return names


def measures_of(predictor: Predictor, examples: Examples, wanted: Wanted) -> Measures:
    """Return the metrics to compute: those the user names, else those of the run, else those that fit the data."""
    known = examples.measures
    if (record := predictor.run) is not None:
        known = recorded_measures(record.metrics, record.positive_label, predictor.task, predictor.names)
    measures = chosen_measures(known, predictor.task, predictor.names, wanted.positive)
    return only_measures(measures, [name for text in wanted.metrics for name in split_names(text)], predictor.task)


def write_evaluated(path: Path, examples: Examples, results: Sequence[Result]) -> int:
    """Write one row per evaluated row: split, row, texts, label, prediction and probabilities. Return the number of rows.

    Raises `SettingsError` if a text column has the name of a column that is written.
    """
    names = examples.labels.names if examples.labels else None
    scores = [f"score_{name}" for name in names or ()]
    texts, own = [*examples.columns.texts], ["split", "row", "label", "prediction", *scores]
    if twice := [name for name in texts if name in own]:
        raise SettingsError(f"the text column {visible(twice[0])} would be written twice", "rename it, or omit --out")
    number = 0
    with replacing(path) as writing, writing.open("w", encoding="utf-8", newline="") as opened:
        write = row_writer(opened, path.suffix.lower(), [*own[:2], *texts, *own[2:]])
        for result in results:
            choices = result.rows.predictions.tolist()
            labels = result.rows.references.tolist()
            likely = probabilities(result.rows.logits, examples.task).tolist() if names else [[]] * len(choices)
            for row, (choice, label, shares) in enumerate(zip(choices, labels, likely, strict=True)):
                cells = {name: examples.splits[result.split][row][name] for name in texts}
                answer = {"label": label_of(label, names), "prediction": label_of(choice, names)}
                numbers = {name: round(share, 6) for name, share in zip(scores, shares, strict=True)}
                write({"split": result.split, "row": row, **cells, **answer, **numbers})
            number += len(choices)
    return number
