"""The values of the settings that a study varies: choices and ranges, parsed and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from glassloop.arguments import CHOICES, TYPES, training_arguments
from glassloop.errors import SettingsError, did_you_mean, visible
from glassloop.settings import Problem, refuse

LOG, LINEAR = "log", "linear"
RANGE = re.compile(r"(log|linear):(.+?)\.\.(.+)")
MODEL = "model"
# Settings that change where and how a run is written or executed, or what it is compared with.
NOT_VARIED = (
    *(
        "output_dir",
        "overwrite_output_dir",
        "seed",
        "device",
        "backend",
        "report_to",
        "run_name",
        "logging_dir",
        "disable_tqdm",
    ),
    *("save_strategy", "save_steps", "save_total_limit", "logging_strategy", "logging_steps", "logging_first_step"),
    *("metric_for_best_model", "greater_is_better", "positive_label"),
)
VARIED = (MODEL, *(name for name in TYPES if name not in NOT_VARIED))
Value = bool | int | float | str | None
Values = dict[str, Value]  # the value of each varied setting


@dataclass(frozen=True)
class Choices:
    """The values to try for a setting."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return ",".join(map(shown, self.values))


@dataclass(frozen=True)
class Range:
    """The interval from which to draw a setting, evenly or on a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> Value:
        """Return the value at a share of the range, from 0 to 1, with three digits."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if self.whole else min(max(float(f"{value:.3g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{LOG if self.log else LINEAR}:{self.low:g}..{self.high:g}"


Space = dict[str, Choices | Range]


def shown(value: Value) -> str:
    """Return a value as `--vary` takes it."""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else "none"
        if value is None
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def vary_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--vary name=values` options. Raise one `SettingsError` for all that are not of this form."""
    found: dict[str, str] = {}
    problems = []
    for text in texts:
        name, sign, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not values.strip():
            remedy = "write --vary learning_rate=2e-5,5e-5 or --vary learning_rate=log:1e-5..1e-3"
            problems.append(Problem(f"--vary {visible(text)} is not name=values", remedy))
        elif name in found:
            problems.append(Problem(f"--vary names {name} twice", "list all its values in one --vary"))
        else:
            found[name] = values.strip()
    refuse(problems)
    return found


def vary_text(value: object) -> str:
    """Return what a settings file or Python gives for a varied setting as `--vary` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(part if isinstance(part, str) else shown(part) for part in value)
    return value if isinstance(value, str) else shown(value)  # type: ignore[arg-type]  # checked as text


def vary_problems(name: str, text: str) -> list[Problem]:
    """Return what is wrong with the values of one varied setting."""
    if name in NOT_VARIED:
        remedy = "use seeds" if name == "seed" else "set it for all runs"
        return [Problem(f"{name} cannot be varied", f"{name}: {remedy}")]
    if name not in VARIED:
        return [
            Problem(
                f"unknown setting {visible(name)} to vary{did_you_mean(name, VARIED)}",
                "glassloop train --help lists all settings",
            )
        ]
    try:
        found = parsed(name, text)
    except SettingsError as error:
        return [Problem(error.problem, error.remedy)]
    if isinstance(found, Choices) and len({*found.values}) < len(found.values):
        return [Problem(f"{name} has a value twice: {found}", "list each value once")]
    problems: dict[str, Problem] = {}
    for value in (found.values if isinstance(found, Choices) else (found.low, found.high)) if name != MODEL else ():
        try:
            training_arguments({name: int(value) if isinstance(found, Range) and found.whole and value is not None else value})
        except SettingsError as error:
            problems[error.problem] = Problem(error.problem, error.remedy)
    return [*problems.values()]


def parsed(name: str, text: str) -> Choices | Range:
    """Return the values of a varied setting. Raise `SettingsError` if they are not in the form of `--vary`."""
    kinds = "str" if name == MODEL else TYPES[name]
    match = RANGE.fullmatch(text.strip())
    if match is None:
        return Choices(tuple(value_of(part.strip(), kinds) for part in text.split(",")))
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError:
        low, high = math.nan, math.nan
    log, whole = match[1] == LOG, "int" in kinds
    problem = None
    if not ("int" in kinds or "float" in kinds) or name in CHOICES:
        problem = f"{name} is not a number, so it cannot be drawn from a range"
    elif not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
        problem = f"{name}={visible(text)} is not a range from a smaller to a larger number" + (" above 0" if log else "")
    elif whole and not (low == int(low) and high == int(high)):
        problem = f"{name}={visible(text)} needs whole numbers"
    if problem:
        raise SettingsError(problem, f"write --vary {name}=log:1e-5..1e-3, linear:0..0.1, or values with commas")
    return Range(low, high, log, whole)


def value_of(text: str, kinds: str) -> Value:
    """Return text as the type of a setting. What does not fit stays text, which the settings refuse."""
    if text.lower() == "none" and "None" in kinds:
        return None
    if "bool" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind, number in (("int", int), ("float", float)):
        if kind in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    return text
