"""What `glassloop calibrate` is asked for: its options, and the target that they name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassloop.errors import SettingsError, alternatives, did_you_mean, visible
from glassloop.run_folder.calibration_json import COST, F1, PRECISION, RECALL, Target
from glassloop.settings import CLASSES
from glassloop.statistics.scored import ScoredRows

NONE = "none"
TARGETS = (F1, PRECISION, RECALL, COST, NONE)
SIDES = ("false_positive", "false_negative")


@dataclass(frozen=True)
class Request:
    """The options of the command.

    Attributes:
        target: One of `TARGETS`; None for the default.
        recall: Lowest recall of the target precision.
        precision: Lowest precision of the target recall.
        cost: The costs as text.
        split: The split to fit on.
        positive: The class of two that has the threshold.
        folds: Number of folds; None for 10, or fewer if the rows do not allow as many.
        force: Whether to store what gains nothing.
    """

    target: str | None = None
    recall: float | None = None
    precision: float | None = None
    cost: str | None = None
    split: str | None = None
    positive: str | None = None
    folds: int | None = None
    force: bool = False


def named_target(wanted: Request) -> str | None:
    """Return the target that the options name; None for the default. Raise `SettingsError` if they do not fit together."""
    given = {PRECISION: wanted.recall, RECALL: wanted.precision, COST: wanted.cost}
    options = {PRECISION: "--recall 0.9", RECALL: "--precision 0.9", COST: "--cost false_positive=1,false_negative=5"}
    implied = [name for name, value in given.items() if value is not None]
    name = wanted.target or (implied[0] if implied else None)
    if name is not None and name not in TARGETS:
        raise SettingsError(f"--target is {visible(name)}{did_you_mean(name, TARGETS)}", f"use {alternatives(TARGETS)}")
    if name in given and given[name] is None:
        raise SettingsError(f"--target {name} needs {options[name].split()[0]}", f"for example {options[name]}")
    if other := [option for option in implied if option != name]:
        flag = options[other[0]].split()[0]
        raise SettingsError(f"{flag} does not fit --target {name}", f"use it with --target {other[0]}, or omit it")
    for value in (wanted.recall, wanted.precision):
        if value is not None and not 0 < value <= 1:
            raise SettingsError(f"{value:g} is not a share above 0 and up to 1", "use a number such as 0.9")
    return name


def target_for(rows: ScoredRows, name: str | None, wanted: Request) -> Target | None:
    """Return what thresholds are chosen for; None to fit a temperature only."""
    several = rows.task == CLASSES and len(rows.labels) > 2
    if several and name not in (None, NONE):
        raise SettingsError(
            f"the run has {len(rows.labels):,} classes: only the most likely one is chosen, without a threshold",
            "omit --target to fit a temperature only",
        )
    if several or name == NONE:
        return None
    if name == COST:
        return Target(COST, None, *costs_of(wanted.cost or ""))
    return Target(name or F1, wanted.recall if name == PRECISION else wanted.precision)


def costs_of(text: str) -> tuple[float, float]:
    """Return the costs of a false positive and of a false negative. Raise `SettingsError` for another text."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name.strip() not in SIDES or not sign or not (math.isfinite(value) and value >= 0) or name.strip() in found:
            raise SettingsError(f"--cost has {visible(part)}", "use --cost false_positive=1,false_negative=5")
        found[name.strip()] = value
    if {*found} != {*SIDES} or not any(found.values()):
        raise SettingsError(f"--cost is {visible(text)}", "give both costs: --cost false_positive=1,false_negative=5")
    return found[SIDES[0]], found[SIDES[1]]
