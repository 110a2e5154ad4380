"""Tell from the files of a run folder whether its training is running, and how long it will take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glassloop.lock import Holder, holder
from glassloop.run_folder.layout import is_run
from glassloop.run_folder.record import FINISHED, RUNNING, RunRecord
from glassloop.run_folder.seeds_json import FAILED, STOPPED
from glassloop.run_folder.sessions import END, RESUME, START, Moment, read_moments

KILLED, DAMAGED = "killed", "damaged"
ENDED = (FINISHED, STOPPED, FAILED, KILLED, DAMAGED)


def status_of(held: Holder, finished: bool, has_record: bool, moments: Sequence[Moment]) -> str:
    """Return "running", "finished", "stopped" (by a signal), "failed" (by an error) or "killed".

    Args:
        held: Who holds the lock. Ask before reading anything else: a run writes its result before it releases the lock.
        finished: Whether run.json says that the run is finished.
        has_record: Whether there is a run.json; a Trainer writes none.
        moments: The content of sessions.jsonl.
    """
    if finished:
        return FINISHED
    if held in (Holder.ALIVE, Holder.ELSEWHERE):
        return RUNNING
    if held is Holder.DEAD:
        return KILLED
    last = moments[-1].event if moments else None
    if last == END and not has_record:
        return FINISHED
    return FAILED if last in (START, RESUME) else STOPPED


def run_status(folder: Path, record: RunRecord) -> str:
    """Return the status of a run whose record was read before."""
    held = Holder.NOBODY if record.finished else holder(folder)
    return status_of(held, record.finished, is_run(folder), read_moments(folder))


def seconds_per_step(moments: Sequence[Moment], step: int, began: float, changed: float) -> float | None:
    """Return how long a step has taken since the training was started or resumed; None before the first entry.

    Args:
        moments: The content of sessions.jsonl.
        step: The last step in the history.
        began: When sessions.jsonl was written.
        changed: When history.jsonl was written. Both times are those of the disk, so no two clocks are compared.
    """
    if not moments or moments[-1].event not in (START, RESUME):
        return None
    steps = step - moments[-1].step
    return (changed - began) / steps if steps > 0 and changed > began else None
