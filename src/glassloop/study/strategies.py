"""Which configurations a study trains next, and how far: grid, random search, successive halving and Optuna, in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any

from glassloop.base.errors import SettingsError
from glassloop.runs.study import RoundRecord
from glassloop.settings.study import GRID, HALVING, Choices, Range, StudySettings, Value, Values

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

FIRST_RUNG = 0.25  # the weaker half stops after a quarter of the training
KEPT = 2  # one of so many settings continues
MOST_DRAWS = 1000  # attempts to draw a setting that was not drawn before
BATCH = 4  # settings of a round of Optuna; not chosen by the machine, so that a study ends the same anywhere


@dataclass(frozen=True)
class Played:
    """A round that is over, with the mean score of each of its settings; higher is better."""

    round: RoundRecord
    scores: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Next:
    """The next round, and the settings that it adds to those tried before."""

    round: RoundRecord
    added: tuple[Values, ...] = ()


def next_round(study: StudySettings, seed: int, tried: Sequence[Values], played: Sequence[Played]) -> Next | None:
    """Return the next round of a search, or None if it is over."""
    # In rounds, as a pure function of earlier scores: a killed study replays its rounds and stores nothing else.
    # Asynchronous halving would use GPUs slightly better, but its choice would depend on timing.
    if not played:
        added = first_settings(study, seed)
        fraction = FIRST_RUNG if study.chosen_strategy == HALVING else 1.0
        return Next(RoundRecord(tuple(range(len(added))), fraction), tuple(added))
    last = played[-1]
    if last.round.fraction >= 1:
        return None
    # Of equal settings, the first stays first.
    best_first = sorted(last.round.settings, key=lambda number: last.scores[number], reverse=True)
    better = best_first[: math.ceil(len(best_first) / KEPT)]
    return Next(RoundRecord(tuple(sorted(better)), min(1.0, KEPT * last.round.fraction)))


def first_settings(study: StudySettings, seed: int) -> list[Values]:
    """Return all settings that grid, random search and halving try."""
    if study.chosen_strategy in (GRID, HALVING) and study.grid_size == study.num_settings:
        return study.grid()
    random = Random(seed)
    drawn: list[Values] = []
    for _ in range(MOST_DRAWS * study.num_settings):
        if len(drawn) == study.num_settings:
            break
        values = {name: part.at(random.random()) for name, part in study.space.items()}
        if values not in drawn:
            drawn.append(values)
    return drawn


# --- Optuna --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KnownTrial:
    """A trial of an earlier round or of an earlier process."""

    params: Mapping[str, Value]
    distributions: Mapping[str, BaseDistribution]
    values: tuple[float, ...] | None  # the objectives; None for a trial that failed or was pruned
    pruned: bool = False
    reports: Mapping[int, float] = field(default_factory=dict)  # the objective at each step that was reported


def sampler_for(seed: int, number: int) -> BaseSampler:
    """Return the sampler of the trial with a number: what it proposes depends on the seed and on earlier trials only."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed + number, n_startup_trials=2 * BATCH, constant_liar=True)


def refuse_without_optuna(wanted_by: str) -> None:
    try:
        import_module("optuna")
    except ImportError as error:
        raise SettingsError(f"{wanted_by} needs the package optuna", "pip install 'glassloop[optuna]'") from error


def started_search(
    seed: int, known: Iterable[KnownTrial] = (), directions: Sequence[str] = ("maximize",),
    options: Mapping[str, object] | None = None,
) -> Study:  # fmt: skip
    """Return a search of Optuna that knows earlier trials. `options` are arguments of `optuna.create_study`."""
    from optuna import create_study
    from optuna.trial import TrialState, create_trial

    earlier = [*known]
    search = create_study(directions=[*directions], **{"sampler": sampler_for(seed, len(earlier)), **(options or {})})
    for one in earlier:
        state = TrialState.PRUNED if one.pruned else TrialState.FAIL if one.values is None else TrialState.COMPLETE
        parts: dict[str, Any] = {"params": dict(one.params), "distributions": dict(one.distributions)}
        search.add_trial(create_trial(state=state, values=one.values, intermediate_values=dict(one.reports), **parts))
    return search


def next_optuna_round(study: StudySettings, seed: int, tried: Sequence[Values], played: Sequence[Played]) -> Next | None:
    """Return the next settings that Optuna's TPE sampler proposes, or None if there are enough."""
    if len(tried) >= study.num_settings:
        return None
    refuse_without_optuna("strategy optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: distribution(part) for name, part in study.space.items()}
    known = [
        KnownTrial({name: tried[number][name] for name in study.space}, distributions, (one.scores[number][0],))
        for one in played
        for number in one.round.settings
    ]
    search = started_search(seed, known)
    added = []
    for _ in range(min(BATCH, study.num_settings - len(tried))):
        params = dict(search.ask(distributions).params)
        for name, part in study.space.items():
            if isinstance(part, Range) and isinstance(params[name], float):  # three digits, as in commands and tables
                params[name] = min(max(float(f"{params[name]:.3g}"), part.low), part.high)
        added.append({name: params[name] for name in study.space})
    return Next(RoundRecord(tuple(range(len(tried), len(tried) + len(added))), 1.0), tuple(added))


def distribution(part: Choices | Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(part, Choices):
        return CategoricalDistribution(part.values)
    if part.whole:
        return IntDistribution(int(part.low), int(part.high), log=part.log)
    return FloatDistribution(part.low, part.high, log=part.log)
