"""Find the runs below a folder, without following links."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from glassloop.run_folder.layout import CHECKPOINTS_NAME, HISTORY_NAME, MODEL_NAME, RUN_NAME

DEEPEST = 4  # levels of folders below the first
MOST_RUNS, MOST_FOLDERS = 5_000, 20_000


@dataclass(frozen=True)
class Found:
    """The runs of a folder.

    Attributes:
        runs: The run folders by name: their path below the folder.
        links: How many links were not followed because they lead outside.
        complete: Whether all folders were visited.
    """

    runs: dict[str, Path]
    links: int = 0
    complete: bool = True


def find_runs(root: Path) -> Found:
    """Return every run below `root`, and `root` itself if it is one. Folders that cannot be read are skipped.

    A run has a run.json or, if a Trainer writes it, a history.jsonl.
    """
    runs: dict[str, Path] = {}
    links, visited, waiting = 0, 0, [(root, 0)]
    inside = os.path.realpath(root)
    while waiting:
        folder, level = waiting.pop()
        visited += 1
        if visited > MOST_FOLDERS or len(runs) >= MOST_RUNS:
            return Found(runs, links, complete=False)
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry for entry in entries}
        except (OSError, ValueError):
            continue
        if RUN_NAME in names or HISTORY_NAME in names:
            runs[str(folder.relative_to(root)) if folder != root else root.absolute().name or "run"] = folder
            continue
        for name, entry in names.items() if level < DEEPEST else ():
            if name.startswith(".") or name in (CHECKPOINTS_NAME, MODEL_NAME):
                continue
            try:
                if entry.is_symlink():  # one that stays inside leads to a folder that is found anyway
                    links += entry.is_dir() and not within(entry.path, inside)
                elif entry.is_dir():
                    waiting.append((Path(entry.path), level + 1))
            except OSError:
                continue
    return Found(runs, links)


def within(path: str, inside: str) -> bool:
    """Return whether a link leads to a folder inside another."""
    found = os.path.realpath(path)
    return os.path.commonpath([found, inside]) == inside
