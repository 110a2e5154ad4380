"""Which settings a study trains next, and how far: grid, random search and successive halving, in rounds.

A strategy is a pure function of what is tried and of the scores of earlier rounds, so that a study that was killed replays its
rounds, finds the runs that are done, and continues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from glassloop.run_folder.study_json import RoundRecord
from glassloop.study_settings import GRID, HALVING, StudySettings
from glassloop.study_space import Choices, Range, Space, Value, Values

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
    """Return the next round of a search, or None if it is over.

    Args:
        study: What the study tries.
        seed: Random seed of drawn settings.
        tried: The settings of earlier rounds.
        played: Those rounds.
    """
    strategy = study.chosen_strategy
    if not played:
        added = first_settings(study, seed)
        return Next(RoundRecord(tuple(range(len(added))), FIRST_RUNG if strategy == HALVING else 1.0), tuple(added))
    last = played[-1]
    if last.round.fraction >= 1:
        return None
    kept = best_settings(last)[: math.ceil(len(last.round.settings) / KEPT)]
    return Next(RoundRecord(tuple(sorted(kept)), min(1.0, KEPT * last.round.fraction)))


def best_settings(played: Played) -> list[int]:
    """Return the settings of a round, the best one first. Of equal ones, the first stays first."""
    return sorted(played.round.settings, key=lambda number: played.scores[number], reverse=True)


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
    return {name: drawn_value(part, random.random()) for name, part in space.items()}


def drawn_value(part: Choices | Range, share: float) -> Value:
    """Return the value of a setting at a share from 0 to 1 of its choices or its range."""
    return part.at(share) if isinstance(part, Range) else part.values[int(share * len(part.values))]
