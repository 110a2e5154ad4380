"""What a study varies, how it searches and how much it may cost: parsed and checked before any work."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from glassloop.errors import counted, did_you_mean, listed, visible
from glassloop.settings import Problem, refuse, wrong, wrong_choice
from glassloop.study_space import Choices, Range, Space, Values, parsed, vary_problems, vary_text

GRID, RANDOM, HALVING, OPTUNA = "grid", "random", "halving", "optuna"
STRATEGIES = ("auto", GRID, RANDOM, HALVING, OPTUNA)
SCRIPT = "script"  # of a `Trainer.hyperparameter_search`: a function of the script suggests values, and Optuna chooses them
HANDFUL = 6  # settings that are trained to the end; of more, halving stops the weaker ones
DEFAULT_SAMPLES = 16
HELD_OUT_FOLDS = 10  # without --fold, one of ten parts of the training rows is held out to choose on
BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)|(\d+)[ _]?runs?", re.IGNORECASE)
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Budget:
    """The most that the search of a study may cost: seconds or runs."""

    seconds: float | None = None
    runs: int | None = None


@dataclass(frozen=True)
class StudySettings:
    """What a study tries.

    Attributes:
        vary: The values of each setting: choices or a range, as text in the form of `--vary`. Of a script, Optuna's JSON.
        seeds: Number of random seeds of each setting.
        strategy: auto, grid, random, halving or optuna.
        budget: The most that the search may cost, such as 2h or 200_runs.
        fold: Number of cross-validation folds to choose on. None: hold out a tenth of the training rows.
        samples: Number of settings that random, optuna and ranges try. None: what the budget allows, else 16.
    """

    vary: dict[str, str] = field(default_factory=dict)
    seeds: int = 3
    strategy: str = "auto"
    budget: str | None = None
    fold: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        refuse(study_problems(self))

    @property
    def space(self) -> Space:
        """The values of each varied setting."""
        return {name: parsed(name, text) for name, text in self.vary.items()}

    @property
    def limit(self) -> Budget:
        """The budget as a number."""
        return parsed_budget(self.budget) if self.budget else Budget()

    @property
    def folds(self) -> tuple[str, ...]:
        """The parts of the training rows that are held out, one per run: 1/5 to 5/5, or 1/10 alone."""
        return tuple(f"{number}/{self.fold}" for number in range(1, self.fold + 1)) if self.fold else (f"1/{HELD_OUT_FOLDS}",)

    @property
    def runs_per_setting(self) -> int:
        """Number of runs that try one setting."""
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
    known = [*StudySettings.__dataclass_fields__]
    problems = [
        Problem(f"unknown setting {visible(name)} in [study]{did_you_mean(name, known)}", f"use {listed(known)}")
        for name in given
        if name not in known
    ]
    vary = given.get("vary", {})
    if not isinstance(vary, Mapping):
        problems.append(Problem("vary in [study] is not a table", "write [study.vary]"))
    refuse(problems)
    values = {**given, "vary": {str(name): vary_text(value) for name, value in dict(vary).items()}}  # type: ignore[call-overload]
    return StudySettings(**values)  # type: ignore[arg-type]  # each value is checked when the settings are made


def study_problems(settings: StudySettings) -> list[Problem]:
    """Return everything that is wrong with the settings of a study."""
    problems = []
    if settings.strategy == SCRIPT:
        return []  # what a script suggests has no form of its own
    for name, least in (("seeds", 1), ("samples", 1), ("fold", 2)):
        value = getattr(settings, name)
        if (value is not None or name == "seeds") and (type(value) is not int or value < least):
            problems.append(wrong(name, repr(value), f"a whole number of {least} or more"))
    if settings.strategy not in STRATEGIES:
        problems.append(wrong_choice("strategy", settings.strategy, STRATEGIES))
    if settings.budget is not None and (not isinstance(settings.budget, str) or not BUDGET.fullmatch(settings.budget.strip())):
        problems.append(wrong("budget", visible(settings.budget), "a time such as 30m or 2h, or a number such as 200_runs"))
    if not settings.vary:
        remedy = "name at least one setting, for example --vary learning_rate=2e-5,5e-5"
        problems.append(Problem("the study varies no setting", remedy))
    for name, text in settings.vary.items():
        problems += vary_problems(name, text)
    return problems or cost_problems(settings)


def cost_problems(settings: StudySettings) -> list[Problem]:
    """Return what is wrong with the number of runs, once every value is right."""
    problems, strategy, each = [], settings.strategy, settings.runs_per_setting
    if strategy == GRID and settings.grid_size is None:
        drawn = [name for name, part in settings.space.items() if isinstance(part, Range)]
        problems.append(Problem(f"a grid cannot contain ranges: {listed(drawn)}", "list values, or use strategy random"))
    if settings.limit.runs is not None and settings.limit.runs < each:
        text = f"a budget of {counted(settings.limit.runs, 'run', 'runs')} is less than the {each} runs of one setting"
        problems.append(Problem(text, "raise the budget, or use fewer seeds or folds"))
    elif strategy == GRID and settings.grid_size and settings.limit.runs and settings.grid_size * each > settings.limit.runs:
        text = f"the grid needs {settings.grid_size * each:,} runs, but the budget is {settings.limit.runs:,}"
        problems.append(Problem(text, "raise the budget, or use strategy random"))
    return problems


def parsed_budget(text: str) -> Budget:
    """Return 2h as seconds and 200_runs as a number of runs."""
    match = BUDGET.fullmatch(text.strip())
    if match is None:
        return Budget()
    return Budget(runs=int(match[3])) if match[3] else Budget(float(match[1]) * SECONDS[match[2].lower()])
