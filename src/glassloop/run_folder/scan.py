"""Find the runs below a folder, without following links."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from glassloop.run_folder.layout import (
    HISTORY_NAME,
    MODEL_NAME,
    RUN_NAME,
    SEEDS_NAME,
    STUDY_NAME,
    TRAINER_NAME,
    is_checkpoint_name,
)

DEEPEST = 4  # levels of folders below the first
MOST_RUNS, MOST_FOLDERS = 5_000, 20_000


@dataclass(frozen=True)
class Found:
    """The runs of a folder.

    Attributes:
        runs: The run folders by name: their path below the folder.
        groups: The folders with a seeds.json or study.json, by name.
        links: How many links were not followed because they lead outside.
        complete: Whether all folders were visited.
    """

    runs: dict[str, Path]
    links: int = 0
    complete: bool = True
    groups: dict[str, Path] = field(default_factory=dict)


def find_runs(root: Path) -> Found:
    """Return every run below `root`, and `root` itself if it is one. Folders that cannot be read are skipped.

    A run has a run.json or, if a Trainer writes it, a trainer.json or a history.jsonl.
    """
    runs: dict[str, Path] = {}
    groups: dict[str, Path] = {}
    links, visited, waiting = 0, 0, [(root, 0)]
    inside = os.path.realpath(root)
    while waiting:
        folder, level = waiting.pop()
        visited += 1
        if visited > MOST_FOLDERS or len(runs) >= MOST_RUNS:
            return Found(runs, links, complete=False, groups=groups)
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry for entry in entries}
        except (OSError, ValueError):
            continue
        own = str(folder.relative_to(root)) if folder != root else root.absolute().name or "run"
        if not names.keys().isdisjoint((RUN_NAME, TRAINER_NAME, HISTORY_NAME)):
            runs[own] = folder
            continue
        if not names.keys().isdisjoint((SEEDS_NAME, STUDY_NAME)):
            groups[own] = folder
        for name, entry in names.items() if level < DEEPEST else ():
            if name.startswith(".") or name == MODEL_NAME or is_checkpoint_name(name):
                continue
            try:
                if entry.is_symlink():  # one that stays inside leads to a folder that is found anyway
                    links += entry.is_dir() and not within(entry.path, inside)
                elif entry.is_dir():
                    waiting.append((Path(entry.path), level + 1))
            except OSError:
                continue
    return Found(runs, links, groups=groups)


def within(path: str, inside: str) -> bool:
    """Return whether a link leads to a folder inside another."""
    found = os.path.realpath(path)
    return os.path.commonpath([found, inside]) == inside
