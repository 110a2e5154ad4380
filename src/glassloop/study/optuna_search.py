"""Optuna as a search strategy: a batch of settings at a time, proposed from the scores of all earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassloop.errors import SettingsError
from glassloop.run_folder.study_json import RoundRecord
from glassloop.study.strategies import Next, Played
from glassloop.study_settings import StudySettings
from glassloop.study_space import Choices, Range, Value, Values

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

BATCH = 4  # settings of a round; not chosen by the machine, so that a study ends the same anywhere


def next_optuna_round(study: StudySettings, seed: int, tried: Sequence[Values], played: Sequence[Played]) -> Next | None:
    """Return the next settings that Optuna's TPE sampler proposes, or None if there are enough.

    Args:
        study: What the study tries.
        seed: Random seed of the sampler.
        tried: The settings of earlier rounds.
        played: Those rounds.

    Raises:
        SettingsError: If optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise SettingsError("strategy optuna needs the package optuna", "pip install 'glassloop[optuna]'") from error
    if len(tried) >= study.num_settings:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: distribution(part) for name, part in study.space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed + len(tried), n_startup_trials=2 * BATCH, constant_liar=True)
    search = optuna.create_study(direction="maximize", sampler=sampler)
    for one in played:
        for number in one.round.settings:
            params = {name: tried[number][name] for name in study.space}
            trial = optuna.trial.create_trial(params=params, distributions=distributions, value=one.scores[number][0])
            search.add_trial(trial)
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
