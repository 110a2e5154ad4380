"""Which configurations a study trains next, and how far: grid, random search, successive halving and Optuna, in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING

from glassloop.base.errors import SettingsError
from glassloop.runs.study import RoundRecord
from glassloop.settings.study import GRID, HALVING, Choices, Range, Space, StudySettings, Value, Values

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler


FIRST_RUNG = 0.25  # the weaker half stops after a quarter of the training
KEPT = 2  # one of so many settings continues
MOST_DRAWS = 1000  # attempts to draw a setting that was not drawn before


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
    strategy = study.chosen_strategy
    if not played:
        added = first_settings(study, seed)
        return Next(RoundRecord(tuple(range(len(added))), FIRST_RUNG if strategy == HALVING else 1.0), tuple(added))
    last = played[-1]
    if last.round.fraction >= 1:
        return None
    # Of equal settings, the first stays first.
    best_first = sorted(last.round.settings, key=lambda number: last.scores[number], reverse=True)
    better = best_first[: math.ceil(len(last.round.settings) / KEPT)]
    return Next(RoundRecord(tuple(sorted(better)), min(1.0, KEPT * last.round.fraction)))


def first_settings(study: StudySettings, seed: int) -> list[Values]:
    """Return all settings that grid, random search and halving try."""
    every = study.grid_size
    if study.chosen_strategy in (GRID, HALVING) and every == study.num_settings:
        return study.grid()
    random, found = Random(seed), list[Values]()
    for _ in range(MOST_DRAWS * study.num_settings):
        if len(found) == study.num_settings:
            break
        if (values := drawn(study.space, random)) not in found:
            found.append(values)
    return found


def drawn(space: Space, random: Random) -> Values:
    """Return a random value of each varied setting."""
    return {name: part.at(random.random()) for name, part in space.items()}


BATCH = 4  # settings of a round; not chosen by the machine, so that a study ends the same anywhere


@dataclass(frozen=True)
class KnownTrial:
    """A trial of an earlier round or of an earlier process.

    Attributes:
        params: The proposed values.
        distributions: What they were drawn from.
        values: The objectives; None for a trial that failed or was pruned.
        pruned: Whether it was pruned.
        reports: The objective at each step that was reported.
    """

    params: Mapping[str, Value]
    distributions: Mapping[str, BaseDistribution]
    values: tuple[float, ...] | None
    pruned: bool = False
    reports: Mapping[int, float] = field(default_factory=dict)


def sampler_for(seed: int, number: int) -> BaseSampler:
    """Return the sampler of the trial with a number: what it proposes depends on the seed and on earlier trials only."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=seed + number, n_startup_trials=2 * BATCH, constant_liar=True)


def refuse_without_optuna(wanted_by: str) -> None:
    """Raise `SettingsError` if optuna is not installed."""
    try:
        import_module("optuna")
    except ImportError as error:
        raise SettingsError(f"{wanted_by} needs the package optuna", "pip install 'glassloop[optuna]'") from error


def started_search(
    seed: int,
    known: Iterable[KnownTrial] = (),
    directions: Sequence[str] = ("maximize",),
    options: Mapping[str, object] | None = None,
) -> Study:
    """Return a search of Optuna that knows earlier trials.

    Args:
        seed: Random seed of the sampler.
        known: Earlier trials.
        directions: "minimize" or "maximize" for each objective.
        options: Arguments of `optuna.create_study`, such as another sampler.
    """
    import optuna

    earlier = [*known]
    given = {"sampler": sampler_for(seed, len(earlier)), **(options or {})}
    search = optuna.create_study(directions=[*directions], **given)
    states = optuna.trial.TrialState
    for one in earlier:
        state = states.PRUNED if one.pruned else states.FAIL if one.values is None else states.COMPLETE
        search.add_trial(
            optuna.trial.create_trial(
                state=state,
                values=one.values,
                params=dict(one.params),
                distributions=dict(one.distributions),
                intermediate_values=dict(one.reports),
            )
        )
    return search


def next_optuna_round(study: StudySettings, seed: int, tried: Sequence[Values], played: Sequence[Played]) -> Next | None:
    """Return the next settings that Optuna's TPE sampler proposes, or None if there are enough.

    Raises:
        SettingsError: If optuna is not installed.
    """
    # Several at a time, so that the proposals do not depend on the timing of the runs.
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
        params = search.ask(distributions).params
        added.append({name: as_value(part, params[name]) for name, part in study.space.items()})
    return Next(RoundRecord(tuple(range(len(tried), len(tried) + len(added))), 1.0), tuple(added))


def distribution(part: Choices | Range) -> BaseDistribution:
    """Return choices or a range as Optuna describes them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(part, Choices):
        return CategoricalDistribution(part.values)
    if part.whole:
        return IntDistribution(int(part.low), int(part.high), log=part.log)
    return FloatDistribution(part.low, part.high, log=part.log)


def as_value(part: Choices | Range, value: Value) -> Value:
    """Return a proposed value; a drawn number with three digits, as it is written in commands and tables."""
    if isinstance(part, Range) and isinstance(value, float):
        return min(max(float(f"{value:.3g}"), part.low), part.high)
    return value
