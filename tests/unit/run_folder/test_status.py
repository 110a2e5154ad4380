"""The status of a run, from its files."""

from __future__ import annotations

import pytest

from glassloop.base.lock import Holder
from glassloop.runs.status import END, RESUME, START, STOP, Moment, seconds_per_step, status_of


@pytest.mark.parametrize(
    ("held", "finished", "has_record", "events", "expected"),
    [
        (Holder.ALIVE, False, True, [START], "running"),
        (Holder.ELSEWHERE, False, True, [START], "running"),
        (Holder.ALIVE, False, True, [START, END], "running"),  # it evaluates and saves the model
        (Holder.DEAD, False, True, [START], "killed"),
        (Holder.DEAD, False, False, [START], "killed"),
        (Holder.NOBODY, False, True, [START, STOP], "stopped"),
        (Holder.NOBODY, False, True, [START, END], "stopped"),  # during the final evaluation
        (Holder.NOBODY, False, True, [], "stopped"),  # of an older version
        (Holder.NOBODY, False, True, [START, STOP, RESUME], "failed"),
        (Holder.NOBODY, False, False, [START, END], "finished"),  # by a Trainer
        (Holder.NOBODY, True, True, [START, END], "finished"),
        (Holder.DEAD, True, True, [], "finished"),
    ],
)
def test_the_status(held: Holder, finished: bool, has_record: bool, events: list[str], expected: str) -> None:
    assert status_of(held, finished, has_record, [Moment(event, 0, 8) for event in events]) == expected


def test_the_time_of_a_step_is_counted_from_the_last_resume() -> None:
    started, resumed = Moment(START, 0, 100), Moment(RESUME, 40, 100)
    assert seconds_per_step([started], 20, 1000.0, 1010.0) == 0.5
    assert seconds_per_step([started, resumed], 50, 1000.0, 1010.0) == 1.0
    assert seconds_per_step([started, resumed], 40, 1000.0, 1010.0) is None, "no new step yet"
    assert seconds_per_step([started], 20, 1010.0, 1000.0) is None, "the disk was copied"
    assert seconds_per_step([started, Moment(STOP, 20, 100)], 20, 1000.0, 1010.0) is None
    assert seconds_per_step([], 20, 1000.0, 1010.0) is None
