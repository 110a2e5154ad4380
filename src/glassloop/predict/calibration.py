"""Fit a temperature and thresholds on the stored validation rows of a run, and store what they gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glassloop.base.errors import DataError, ModelError, SettingsError, alternatives, counted, did_you_mean, listed, visible
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult, say, show
from glassloop.report.build import write_report
from glassloop.report.card import update_card
from glassloop.runs import record as records
from glassloop.scores.calibration import LOG_LOSS, Fitted, margins_of
from glassloop.scores.statistics import ScoredRows, scored_rows
from glassloop.settings.training import CLASSES, SCORE

NONE = "none"
TARGETS = (records.F1, records.PRECISION, records.RECALL, records.COST, NONE)
SIDES = ("false_positive", "false_negative")
COSTS = "--cost false_positive=1,false_negative=5"


def named_target(
    target: str | None = None, recall: float | None = None, precision: float | None = None, cost: str | None = None
) -> str | None:
    """Return the target that the options name; None for the default. Raise `SettingsError` if they do not fit together."""
    given = {records.PRECISION: recall, records.RECALL: precision, records.COST: cost}
    options = {records.PRECISION: "--min_recall 0.9", records.RECALL: "--min_precision 0.9", records.COST: COSTS}
    implied = [name for name, value in given.items() if value is not None]
    name = target or (implied[0] if implied else None)
    if name is not None and name not in TARGETS:
        raise SettingsError(f"--target is {visible(name)}{did_you_mean(name, TARGETS)}", f"use {alternatives(TARGETS)}")
    if name in given and given[name] is None:
        raise SettingsError(f"--target {name} needs {options[name].split()[0]}", f"for example {options[name]}")
    if other := [option for option in implied if option != name]:
        flag = options[other[0]].split()[0]
        raise SettingsError(f"{flag} does not fit --target {name}", f"use it with --target {other[0]}, or omit it")
    for value in (recall, precision):
        if value is not None and not 0 < value <= 1:
            raise SettingsError(f"{value:g} is not a share above 0 and up to 1", "use a number such as 0.9")
    return name


def target_for(
    rows: ScoredRows, name: str | None, recall: float | None = None, precision: float | None = None, cost: str | None = None
) -> records.Target | None:
    """Return what thresholds are chosen for; None to fit a temperature only."""
    several = rows.task == CLASSES and len(rows.labels) > 2
    if several and name not in (None, NONE):
        problem = f"the run has {len(rows.labels):,} classes: only the most likely one is chosen, without a threshold"
        raise SettingsError(problem, "omit --target to fit a temperature only")
    if several or name == NONE:
        return None
    if name == records.COST:
        return records.Target(records.COST, None, *costs_of(cost or ""))
    return records.Target(name or records.F1, recall if name == records.PRECISION else precision)


def costs_of(text: str) -> tuple[float, float]:
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name.strip() not in SIDES or not sign or not (math.isfinite(value) and value >= 0) or name.strip() in found:
            raise SettingsError(f"--cost has {visible(part)}", f"use {COSTS}")
        found[name.strip()] = value
    if {*found} != {*SIDES} or not any(found.values()):
        raise SettingsError(f"--cost is {visible(text)}", f"give both costs: {COSTS}")
    return found[SIDES[0]], found[SIDES[1]]


LEAST_ROWS, DEFAULT_FOLDS = 20, 10


@dataclass(frozen=True)
class Kept:
    """The parts of a calibration that are stored: a temperature, which may be the one that is already used, and thresholds."""

    temperature: float
    thresholds: Mapping[str, float]
    in_use: float = 1.0  # the temperature that is already stored, or 1

    @classmethod
    def of(cls, fitted: Fitted, force: bool, in_use: float = 1.0) -> Kept:
        """Return the parts that help on rows that were not used for fitting, or all of them if forced."""
        temperature = fitted.temperature if force or fitted.temperature_helps else in_use
        return cls(temperature, fitted.thresholds(temperature) if force or fitted.thresholds_help else {}, in_use)

    @property
    def anything(self) -> bool:
        return self.temperature != self.in_use or bool(self.thresholds)

    def gains(self, fitted: Fitted) -> tuple[records.Gain, ...]:
        of_temperature = fitted.temperature_gains if self.temperature != self.in_use else ()
        return (*of_temperature, *(fitted.target_gains if self.thresholds else ()))

    def lines(self, fitted: Fitted) -> list[str]:
        """Return what is stored and what is not, and why."""

        def small(gain: records.Gain) -> str:
            return f"{gain.change:+.4f} ± {gain.standard_error:.4f} on rows that were not used for fitting: no clear gain"

        found = [f"temperature {self.temperature:.4g}"]
        if self.temperature == self.in_use:
            unclear = f"the loss changes by {small(fitted.temperature_gains[0])}"
            why = "these rows do not determine one" if fitted.temperature == 1.0 else unclear
            found = [f"{'no temperature' if self.in_use == 1.0 else f'the temperature stays {self.in_use:.4g}'}: {why}"]
        first, *others = fitted.target_gains or (None,)
        if self.thresholds and first is not None:
            found += [f"threshold {value:.4f} for {visible(name)}" for name, value in self.thresholds.items()][:20]
            if (more := len(self.thresholds) - 20) > 0:
                found.append(f"and {more:,} more thresholds")
            if missing := [name for name, limit in zip(fitted.names, fitted.limits, strict=True) if limit is None]:
                found.append(f"the default 0.5 for labels that all rows or no rows have: {listed(missing)}")
            least = fitted.target.least if fitted.target else None
            if others and least is not None and others[0].after < least:
                lower = f"the {others[0].name} is {others[0].after:.4f}, below {least:g}"
                found.append(f"on rows it was not fitted on, {lower}: ask for more to be safe")
            if first.low is not None and first.high is not None and first.low <= 0 <= first.high:
                found.append(f"the interval of the {first.name} includes 0: on other rows, the thresholds may gain nothing")
        elif fitted.target is not None and first is not None:
            found.append(f"no thresholds: the {first.name} changes by {small(first)}")
        if not self.anything:
            found.append("nothing was stored; --force stores it anyway")
        return found


def chosen_split(folder: Path, split: str | None) -> str:
    """Return the split to fit on: the given one, else the first that is for validation."""
    known = records.predicted_splits(folder)
    found = split or next((name for name in known if name.startswith("validation")), known[0] if known else "validation")
    if found not in known:
        remedy = f"use one of {listed(known)}" if known else "train again with rows for validation"
        raise SettingsError(f"{folder} has no stored predictions for the split {visible(found)}", remedy)
    return found


def usable_rows(folder: Path, record: records.RunRecord, split: str) -> ScoredRows:
    """Return the stored predictions of a split. Raise if there is nothing to calibrate."""
    if record.data.task == SCORE:
        raise SettingsError("the run predicts a score: it has no probabilities to calibrate", "calibrate a run with labels")
    entries = records.read_predictions(folder, split)
    if not all("label" in entry for entry in entries):
        raise DataError(f"the split {split} has no labels to compare with", "use another split: --split")
    rows = scored_rows(entries, record.data.task, record.data.labels, folder / records.predictions_name(split))
    if len(rows) < LEAST_ROWS:
        raise DataError(f"{split} has {counted(len(rows), 'row', 'rows')}, at least {LEAST_ROWS} are needed", "use more rows")
    if (rows.references == rows.references[0]).all():
        only = entries[0]["label"]
        raise DataError(f"all rows of {split} have the label {visible(only)}: nothing can be fitted", "use rows of all labels")
    return rows


def positive_class(record: records.RunRecord, given: str | None) -> str | None:
    """Return the class of two that has the threshold; None for other tasks."""
    labels = record.data.labels or ()
    if given is not None and given not in labels:
        raise SettingsError(f"{visible(given)} is not a label{did_you_mean(given, labels)}", f"labels: {listed(labels)}")
    if record.data.task != CLASSES or len(labels) != 2:
        return None
    return given or (record.positive_label if record.positive_label in labels else labels[1])


def chosen_folds(wanted: int | None, rows: ScoredRows, positive: str | None) -> int:
    """Return the number of folds: the given one, else 10, or as many as the rarer class of two has rows if these are fewer."""
    margins = margins_of(rows, positive) if rows.task == CLASSES else None
    most, limit = len(rows), "the number of rows"
    if margins is not None:
        most, limit = int(min(np.sum(margins.wanted), np.sum(~margins.wanted))), "the number of rows of the rarer class"
    if most < 2:
        raise DataError("only one row has the rarer class: a gain cannot be measured", "use more rows of this class")
    if wanted is None and most < DEFAULT_FOLDS:
        say(f"{most} folds instead of {DEFAULT_FOLDS}: {limit} is {most}")
    folds = min(DEFAULT_FOLDS, most) if wanted is None else wanted
    if not 2 <= folds <= most:
        raise SettingsError(f"--folds is {folds}", f"use 2 to {most:,}, {limit}" if most > 2 else "use 2, " + limit)
    return folds


def stored_calibration(model: Path, record: records.RunRecord) -> records.Calibration | None:
    """Return the calibration that is in use; None if there is none, or if it is damaged, which a new one repairs."""
    with suppress(ModelError):
        return records.read_calibration(model, record.files)
    return None


def warning_after(record: records.RunRecord, stored: records.Calibration | None, kept: Kept, fitted: Fitted, split: str) -> str:
    """Return the warning that probabilities are worse than the class frequencies with a new calibration, or an empty text."""
    known = record.probabilities
    first = next(iter(records.held_out_splits(record.data.splits)), None)
    if known is None or kept.temperature == kept.in_use or split != first:  # nothing new is known
        return (stored.warning if stored else known and known.warning) or ""
    loss = records.MetricRecord(fitted.temperature_gains[0].after)
    return replace(known, after={**known.after, LOG_LOSS: loss}).warning or ""


def refuse_unreachable(fitted: Fitted) -> None:
    for name, limit in zip(fitted.names, fitted.limits, strict=True):
        if limit is not None and not limit.reached and fitted.target is not None:
            problem = f"no threshold of {visible(name)} reaches a {fitted.target.kept} of {fitted.target.least:g}"
            raise SettingsError(f"{problem}: the highest is {limit.score:.4f}", "ask for less")


def refresh(folder: Path) -> None:
    """Write the report and the model card of a run again, if they are there; a card that was edited is kept."""
    if (folder / records.REPORT_NAME).is_file():
        write_report(folder)
    update_card(folder)


def remove_calibration(run: str) -> CommandResult:
    folder = user_path(run)
    records.refuse_seeds(folder)
    path = (folder / records.MODEL_NAME if records.is_run(folder) else folder) / records.CALIBRATION_NAME
    if not path.is_file():
        raise ModelError(f"{folder}: there is no {records.CALIBRATION_NAME} to remove", "name a run that was calibrated")
    path.unlink()
    show(f"removed {path}")
    if records.is_run(folder):
        refresh(folder)
    return CommandResult({"run": run, "removed": path})
