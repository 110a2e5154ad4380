"""What a study varies, how it searches and how much it may cost: parsed and checked before any work."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product

from glassloop.base.errors import SettingsError, counted, listed, visible
from glassloop.base.records import entry
from glassloop.settings import training
from glassloop.settings.training import Rules, problems_of, refuse

LOG, LINEAR = "log", "linear"
RANGE = re.compile(r"(log|linear):(.+?)\.\.(.+)")
MODEL = "model"
# Settings that change where and how a run is written or executed, or what it is compared with.
NOT_VARIED = (
    *("output_dir", "overwrite_output_dir", "seed", "device", "backend", "report_to", "run_name", "logging_dir"),
    *("disable_tqdm", "save_strategy", "save_steps", "save_total_limit", "logging_strategy", "logging_steps"),
    *("logging_first_step", "metric_for_best_model", "greater_is_better", "positive_label"),
)
VARIED = (MODEL, *(name for name in training.TYPES if name not in NOT_VARIED))
GRID, RANDOM, HALVING, OPTUNA = "grid", "random", "halving", "optuna"
STRATEGIES = ("auto", GRID, RANDOM, HALVING, OPTUNA)
SCRIPT = "script"  # of a `Trainer.hyperparameter_search`: a function of the script suggests values, and Optuna chooses them
SEEDS = "seeds"  # of `glassloop train --seeds`: one configuration
HANDFUL = 6  # settings that are trained to the end; of more, halving stops the weaker ones
DEFAULT_SAMPLES = 16
HELD_OUT_FOLDS = 10  # without --fold, one of ten parts of the training rows is held out to choose on
BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)|(\d+)[ _]?runs?", re.IGNORECASE)
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
VARY_HELP = (
    "Setting to vary: learning_rate=2e-5,5e-5, learning_rate=log:1e-5..1e-3 or weight_decay=linear:0..0.1. Can be repeated."
)

Value = bool | int | float | str | None
Values = dict[str, Value]  # the value of each varied setting


@dataclass(frozen=True)
class Choices:
    """The values to try for a setting."""

    values: tuple[Value, ...]

    def at(self, share: float) -> Value:
        """Return the value at a share of the choices, from 0 to 1."""
        return self.values[int(share * len(self.values))]

    def __str__(self) -> str:
        return ",".join(map(value_text, self.values))


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


def value_text(value: Value) -> str:
    """Return a value as `--vary` takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_name(values: Mapping[str, Value]) -> str:
    """Return a setting in words: `learning_rate 2e-05, weight_decay 0.1`."""
    return listed((f"{name} {value_text(value)}" for name, value in values.items()), 20)


def vary_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--vary name=values` options. Raise one `SettingsError` for all that are not of this form."""
    settings: dict[str, str] = {}
    problems = []
    for text in texts:
        name, sign, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not values.strip():
            remedy = "write --vary learning_rate=2e-5,5e-5 or --vary learning_rate=log:1e-5..1e-3"
            problems.append(SettingsError(f"--vary {visible(text)} is not name=values", remedy))
        elif name in settings:
            problems.append(SettingsError(f"--vary names {name} twice", "list all its values in one --vary"))
        else:
            settings[name] = values.strip()
    refuse(problems)
    return settings


def vary_text(value: object) -> str:
    """Return what a settings file or Python gives for a varied setting as `--vary` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(vary_text, value))
    return value if isinstance(value, str) else value_text(value)  # type: ignore[arg-type]  # checked as text


def vary_problems(name: str, text: str) -> list[SettingsError]:
    """Return what is wrong with the values of one varied setting."""
    if name in NOT_VARIED:
        remedy = "use seeds" if name == "seed" else "set it for all runs"
        return [SettingsError(f"{name} cannot be varied", f"{name}: {remedy}")]
    if name not in VARIED:
        return training.unknown_names([name], VARIED, "glassloop train --help lists all settings", where=" to vary")
    try:
        values = parsed(name, text)
    except SettingsError as error:
        return [error]
    if isinstance(values, Choices) and len({*values.values}) < len(values.values):
        return [SettingsError(f"{name} has a value twice: {values}", "list each value once")]
    tried = values.values if isinstance(values, Choices) else (values.at(0), values.at(1))
    check = training.training_arguments
    return [*dict.fromkeys(problem for value in tried if name != MODEL for problem in problems_of(check, {name: value}))]


def parsed(name: str, text: str) -> Choices | Range:
    """Return the values of a varied setting. Raise `SettingsError` if they are not in the form of `--vary`."""
    kinds = "str" if name == MODEL else training.TYPES[name]
    match = RANGE.fullmatch(text.strip())
    if match is None:
        return Choices(tuple(value_of(part.strip(), kinds) for part in text.split(",")))
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError:
        low = high = math.nan
    log = match[1] == LOG
    whole = "int" in kinds
    problem = None
    if not (whole or "float" in kinds) or name in training.CHOICES:
        problem = f"{name} is not a number, so it cannot be drawn from a range"
    elif not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
        problem = f"{name}={visible(text)} is not a range from a smaller to a larger number" + (" above 0" if log else "")
    elif whole and not (low.is_integer() and high.is_integer()):
        problem = f"{name}={visible(text)} needs whole numbers"
    if problem:
        raise SettingsError(problem, f"write --vary {name}=log:1e-5..1e-3, linear:0..0.1, or values with commas")
    return Range(low, high, log, whole)


def value_of(text: str, kinds: str) -> Value:
    """Return text as the type of a setting. What does not fit stays text, which the settings refuse."""
    word = text.lower()
    if word == "none" and "None" in kinds:
        return None
    if word in ("true", "false") and "bool" in kinds:
        return word == "true"
    for kind in (int, float):
        if kind.__name__ in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


@dataclass(frozen=True)
class Budget:
    """The most that the search of a study may cost: seconds or runs."""

    seconds: float | None = None
    runs: int | None = None


@dataclass(frozen=True)
class StudySettings:
    """What a study tries. The command's help is generated from the same sentences."""

    vary: dict[str, str] = entry({}, VARY_HELP)  # choices or a range of each setting, as text; of a script, Optuna's JSON
    seeds: int = entry(3, "Number of random seeds for each configuration, starting at --seed.")
    strategy: str = entry(
        "auto", f"How to search: {', '.join(STRATEGIES)}. auto is grid for up to 6 configurations, else halving."
    )
    budget: str | None = entry(None, "The most that the search may cost: a time (30m, 2h) or runs (200_runs).")
    fold: int | None = entry(
        None, "Choose a configuration by cross-validation with this many folds. Default: on a tenth of the training rows."
    )
    samples: int | None = entry(None, "Number of configurations to draw for ranges, random and optuna. [default: 16]")

    def __post_init__(self) -> None:
        if self.strategy not in (SCRIPT, SEEDS):  # what a script suggests has no form of its own, and seeds vary nothing
            problems = training.value_problems(self, training.types_of(StudySettings), {"strategy": STRATEGIES}, RULES)
            if not self.vary:
                remedy = "name at least one setting, for example --vary learning_rate=2e-5,5e-5"
                problems.append(SettingsError("the study varies no setting", remedy))
            refuse(problems + [problem for name, text in self.vary.items() for problem in vary_problems(name, text)])
            refuse(cost_problems(self))

    @property
    def space(self) -> Space:
        return {name: parsed(name, text) for name, text in self.vary.items()}

    @property
    def limit(self) -> Budget:
        """The budget as a number."""
        match = BUDGET.fullmatch((self.budget or "").strip())
        if match is None:
            return Budget()
        return Budget(runs=int(match[3])) if match[3] else Budget(float(match[1]) * SECONDS[match[2].lower()])

    @property
    def folds(self) -> tuple[str, ...]:
        """The parts of the training rows that are held out, one per run: 1/5 to 5/5, or 1/10 alone."""
        return tuple(f"{number}/{self.fold}" for number in range(1, self.fold + 1)) if self.fold else (f"1/{HELD_OUT_FOLDS}",)

    @property
    def runs_per_setting(self) -> int:
        return self.seeds * len(self.folds)

    @property
    def grid_size(self) -> int | None:
        """Number of combinations; None if a setting is drawn from a range."""
        lists = [part.values for part in self.space.values() if isinstance(part, Choices)]
        return math.prod(map(len, lists)) if len(lists) == len(self.vary) else None

    @property
    def chosen_strategy(self) -> str:
        """The strategy, resolved: grid for a handful of settings, else halving."""
        if self.strategy != "auto":
            return self.strategy
        return GRID if self.grid_size is not None and self.grid_size <= HANDFUL else HALVING

    @property
    def num_settings(self) -> int:
        """Number of settings that the strategy tries."""
        affordable = self.limit.runs // self.runs_per_setting if self.limit.runs else None
        every = self.grid_size
        if every is not None and self.samples is None and self.chosen_strategy in (GRID, HALVING):
            return every if affordable is None else min(every, affordable)
        wanted = self.samples or affordable or DEFAULT_SAMPLES
        wanted = wanted if affordable is None else min(wanted, affordable)
        return wanted if every is None or self.chosen_strategy == OPTUNA else min(wanted, every)

    def grid(self) -> list[Values]:
        """Return all combinations, the last setting varying fastest."""
        values = [part.values for part in self.space.values() if isinstance(part, Choices)]
        return [dict(zip(self.vary, combination, strict=True)) for combination in product(*values)]


def study_settings(given: Mapping[str, object]) -> StudySettings:
    """Return the settings for names and values. Raise `SettingsError` with everything that is wrong."""
    known = [entry.name for entry in fields(StudySettings)]
    problems = training.unknown_names(given, known, f"use {listed(known)}", where=" in [study]")
    vary = given.get("vary", {})
    if not isinstance(vary, Mapping):
        problems.append(SettingsError("vary in [study] is not a table", "write [study.vary]"))
    refuse(problems)
    values = {**given, "vary": {str(name): vary_text(value) for name, value in dict(vary).items()}}  # type: ignore[call-overload]
    return StudySettings(**values)  # type: ignore[arg-type]  # each value is checked when the settings are made


RULES: Rules = (
    (["seeds", "samples"], "a whole number of 1 or more", lambda value: type(value) is int and value >= 1),
    (["fold"], "a whole number of 2 or more", lambda value: type(value) is int and value >= 2),
    (
        ["budget"],
        "a time such as 30m or 2h, or a number such as 200_runs",
        lambda value: isinstance(value, str) and BUDGET.fullmatch(value.strip()),
    ),
)


def cost_problems(settings: StudySettings) -> list[SettingsError]:
    """Return what is wrong with the number of runs, once every value is right."""
    each, every, limit = settings.runs_per_setting, settings.grid_size, settings.limit.runs
    problems = []
    if settings.strategy == GRID and every is None:
        drawn = [name for name, part in settings.space.items() if isinstance(part, Range)]
        problems.append(SettingsError(f"a grid cannot contain ranges: {listed(drawn)}", "list values, or use strategy random"))
    if limit is not None and limit < each:
        text = f"a budget of {counted(limit, 'run', 'runs')} is less than the {each} runs of one configuration"
        problems.append(SettingsError(text, "raise the budget, or use fewer seeds or folds"))
    elif settings.strategy == GRID and every and limit and every * each > limit:
        text = f"the grid needs {every * each:,} runs, but the budget is {limit:,}"
        problems.append(SettingsError(text, "raise the budget, or use strategy random"))
    return problems
