"""The stages of a command: what it is doing, and how far it is. Nothing is shown unless a display is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

# Titles of stages that several rooms begin.
LOADING, EVALUATING, PREDICTING = "loading the model", "evaluating", "predicting"


@dataclass(frozen=True)
class Stage:
    """A part of the work that may take long.

    Attributes:
        title: What is done, such as "tokenizing train".
        total: How many rows there are; None if that is not known.
    """

    title: str
    total: int | None = None


class Display(Protocol):
    """What shows the stages to a person."""

    def begin(self, stage: Stage) -> None:
        """Show that a stage begins."""

    def advance(self, num_rows: int) -> None:
        """Show that some rows of the stage are done."""

    def end(self) -> None:
        """Show that the stage has ended."""

    def clear(self) -> None:
        """Make room for a line of text."""


@dataclass
class Chosen:
    """The display of this process, whether a stage is running, and how many rows the current part of it may still count."""

    display: Display | None = None
    running: bool = False
    room: int | None = None


CHOSEN = Chosen()


def show_on(display: Display | None) -> None:
    """Show the stages from now on; None shows nothing."""
    CHOSEN.display, CHOSEN.running, CHOSEN.room = display, False, None


@contextmanager
def stage(title: str, total: int | None = None) -> Iterator[None]:
    """Show the block as a stage. A stage inside another one is part of it."""
    # Shown by the command, never by the library: without a display a stage does nothing.
    display = CHOSEN.display
    if display is None or CHOSEN.running:
        yield
        return
    CHOSEN.running = True
    display.begin(Stage(title, total))
    try:
        yield
    finally:
        CHOSEN.running = False
        display.end()


@contextmanager
def part_of_stage(num_rows: int) -> Iterator[None]:
    """Count the block as exactly `num_rows` rows, although steps inside it, such as tokenizing, count the same rows again."""
    CHOSEN.room = num_rows
    try:
        yield
        advance(CHOSEN.room)
    finally:
        CHOSEN.room = None


def advance(num_rows: int) -> None:
    """Count rows of the running stage."""
    if CHOSEN.display is None or not CHOSEN.running:
        return
    if CHOSEN.room is not None:
        num_rows = min(num_rows, CHOSEN.room)
        CHOSEN.room -= num_rows
    if num_rows:
        CHOSEN.display.advance(num_rows)


def clear() -> None:
    """Make room on the terminal for a line of text."""
    if CHOSEN.display is not None and CHOSEN.running:
        CHOSEN.display.clear()
