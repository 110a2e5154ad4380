"""Tables for the terminal: the stages of a run with their bars."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from glassloop.markup.terminal import stages_table

STAGES = {"starting": 1.5, "fitting a regression on words": 0.004, "other steps": 36.0, "everything else": 2.496}
SHOWN = """\
where the time went            seconds  share
starting                          1.50     4%  █
fitting a regression on words     0.00     0%
other steps                      36.00    90%  ████████████████████████
everything else                   2.50     6%  ██
in all                           40.00
"""


@pytest.mark.parametrize("stages", [STAGES, {"starting": 0.0}])
def test_stages_have_bars_and_fit_into_80_columns(stages: dict[str, float]) -> None:
    file = io.StringIO()
    Console(file=file, width=80).print(stages_table(stages, "where the time went"))
    shown = "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())
    if stages is STAGES:
        assert shown == SHOWN
    else:
        assert shown.splitlines()[-1].split() == ["in", "all", "0.00"]
