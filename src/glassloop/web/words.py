"""Short texts about a run: durations, times, progress, and what its status means."""

from __future__ import annotations

from datetime import UTC, datetime

from glassloop.errors import counted
from glassloop.measures import LOSS, Measures, short_metrics
from glassloop.quantities import duration
from glassloop.run_folder.record import FINISHED, RUNNING
from glassloop.run_folder.seeds_json import FAILED, STOPPED
from glassloop.run_folder.status import DAMAGED, KILLED
from glassloop.run_folder.summary import RunSummary

TAGS = {RUNNING: "live", FINISHED: "good", KILLED: "bad", FAILED: "bad", DAMAGED: "bad"}
SHOWN_METRICS = 1  # of the result in the list; two make the table wider than a page


def moment(text: str) -> float | None:
    """Return a time of a record in seconds, or None if it is not a time."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def local_time(seconds: float) -> str:
    """Return a time as this machine's clock shows it."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""


def percent(run: RunSummary) -> int:
    """Return how much of the training is done, in percent."""
    return min(100, int(100 * run.step / run.max_steps)) if run.max_steps > 0 else 0


def progress_words(run: RunSummary) -> str:
    """Return `step 120 of 400, epoch 1.20, 34 steps/s, about 2 min left`."""
    parts = [f"step {run.step:,}" + (f" of {run.max_steps:,}" if run.max_steps else "")]
    parts += [f"epoch {run.epoch:.2f}"] if run.epoch else []
    if run.running and run.step_seconds:
        fast = run.step_seconds <= 1
        parts.append(f"{1 / run.step_seconds:.3g} steps/s" if fast else f"{run.step_seconds:.3g} s per step")
        if run.seconds_left:
            parts.append(f"about {duration(run.seconds_left)} left")
    return ", ".join(parts)


def list_progress(run: RunSummary) -> str:
    """Return `30 %, 2 min left` for the list."""
    if not run.max_steps:
        return f"step {run.step:,}" if run.step else ""
    left = f", {duration(run.seconds_left)} left" if run.seconds_left else ""
    return f"{percent(run)} %{left}"


def status_words(run: RunSummary) -> str:
    """Return what the status of a run means, in a sentence or two."""
    after = f" after step {run.step:,}" if run.step else " before its first log entry"
    if run.status == DAMAGED:
        return f"The record of this run cannot be read. {run.problem}"
    if run.silent:
        return (
            f"It has written nothing for {duration(run.silent)}. Another machine trains it, so this page cannot tell "
            "whether it is still running."
        )
    if run.running and run.max_steps and run.step >= run.max_steps:
        return "All steps are done. The model is being evaluated and saved."
    if run.running:
        return "" if run.step else "It is starting: there is no log entry yet."
    return {
        KILLED: f"Its process was killed{after}.",
        STOPPED: f"It was stopped{after}.",
        FAILED: f"An error ended it{after}. The terminal that trained it shows the message.",
    }.get(run.status, "")


def result_of(run: RunSummary) -> tuple[float | None, str]:
    """Return the main result of a run, as a number to sort by and as text; while it trains, its latest values."""
    record = run.record
    if record and record.evaluation:
        measures = Measures(record.metrics, record.positive_label)
        scores = {name: value for name, value in short_metrics(record.evaluation).items() if name != LOSS}
        shown = [f"{measures.title(name)} {value:.4f}" for name, value in [*scores.items()][:SHOWN_METRICS]]
        return next(iter(scores.values()), None), ", ".join(shown)
    shown = [f"{name.removeprefix('eval_')} {value:.4f}" for name, value in run.latest.items() if is_shown(name)]
    return None, ", ".join(shown[:SHOWN_METRICS])


def is_shown(name: str) -> bool:
    """Return whether a value of the history says how well a training goes."""
    return name == LOSS or name.startswith("eval_")


def rows_words(run: RunSummary) -> str:
    """Return how many rows each split of the data has."""
    splits = run.record.data.splits if run.record else {}
    return ", ".join(f"{name}: {counted(split.num_rows, 'row', 'rows')}" for name, split in splits.items())
