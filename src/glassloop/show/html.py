"""What a notebook shows for a run and for a Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassloop.data.facts import SHOWN_LABELS
from glassloop.markup import chart, facts, figure, table, view
from glassloop.run_folder.history import Entry


def learning_curve(history: Sequence[Entry]) -> str:
    """Return the loss of training and of evaluations by step, as a small chart."""
    names = {"training loss": "loss", "evaluation loss": "eval_loss"}
    return chart({title: numbers_by_step(history, name) for title, name in names.items()}, "step")


def numbers_by_step(history: Sequence[Entry], name: str) -> list[tuple[float, float]]:
    """Return a figure of the history with its step, where both are numbers."""
    found = [(entry.get("step"), entry.get(name)) for entry in history]
    return [(step, value) for step, value in found if isinstance(step, int | float) and isinstance(value, int | float)]


def trainer_view(named: Mapping[str, str], history: Sequence[Entry]) -> str:
    """Return what a Trainer has and how far it is: facts, every evaluation so far, and the learning curve."""
    evaluations = [entry for entry in history if any(name.startswith("eval_") for name in entry)][-SHOWN_LABELS:]
    names = [name for name in (evaluations[-1] if evaluations else ()) if name.startswith("eval_")]
    rows = [(f"{entry.get('step')}", *(shown_number(entry.get(name)) for name in names)) for entry in evaluations]
    return view("Trainer", facts(named), table(("step", *names), rows), learning_curve(history))


def shown_number(value: object) -> str:
    """Return a figure of the history; a dash if there is none."""
    return figure(value) if isinstance(value, int | float) else figure(None)
