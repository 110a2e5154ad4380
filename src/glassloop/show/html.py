"""What a notebook shows for a run and for a Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassloop.data.facts import SHOWN_LABELS
from glassloop.errors import listed
from glassloop.files import near_name
from glassloop.markup import chart, facts, figure, table, view
from glassloop.measures import Measures, short_metrics
from glassloop.run_folder.history import Entry
from glassloop.run_folder.record import ClassRecord, RunRecord
from glassloop.settings import SCORE


def run_view(title: str, status: str, record: RunRecord, history: Sequence[Entry]) -> str:
    """Return the settings, results, class scores and learning curve of a run."""
    data, model, plan = record.data, record.model, record.plan
    rows = ", ".join(f"{split.num_rows:,} {name}" for name, split in data.splits.items())
    shown = {
        "status": status + (f", {record.stop_reason}" if record.stop_reason else ""),
        "data": f"{near_name(data.source)}: {rows}",
        "task": data.task.replace("_", " ") + (f": {listed(data.labels, 8)}" if data.labels else ""),
        "model": f"{near_name(model.name)} ({model.type}, {model.parameters / 1e6:.1f} M parameters)",
        "steps": f"{plan.max_steps:,}, learning rate {record.settings.learning_rate:g}, seed {record.settings.seed}",
        "device": f"{record.device}, {record.precision}, backend {record.backend}",
    }
    return view(title, facts(shown), results_table(record), class_table(record.classes or {}), learning_curve(history))


def results_table(record: RunRecord) -> str:
    """Return the metrics of the final evaluation and the baseline; empty before there is one."""
    measures, baseline = Measures(record.metrics, record.positive_label), record.baseline or {}
    name = "mean baseline" if record.data.task == SCORE else "majority baseline"
    scores = short_metrics(record.evaluation or {})
    rows = [(measures.title(key), figure(value), figure(baseline.get(key))) for key, value in scores.items()]
    return table(("metric", "this run", name), rows)


def class_table(classes: Mapping[str, ClassRecord]) -> str:
    """Return the scores of each class. Of many classes, only those with the most rows are included."""
    shown = [*classes.items()]
    if hidden := max(0, len(shown) - SHOWN_LABELS):
        shown = sorted(shown, key=lambda entry: -entry[1].support)[:SHOWN_LABELS]
    rows = [(name, *map(figure, (scores.precision, scores.recall, scores.f1)), f"{scores.support:,}") for name, scores in shown]
    rows += [(f"and {hidden:,} more", "", "", "", "")] if hidden else []
    return table(("class", "precision", "recall", "f1", "rows"), rows)


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
