"""The options of `glassloop calibrate`: which target they name, and what does not fit together."""

from __future__ import annotations

import pytest
from drawn_runs import drawn_rows

from glassloop.base.errors import SettingsError
from glassloop.predict.calibration import Request, costs_of, named_target, target_for
from glassloop.runs.calibration import Target

COST = "false_positive=1, false_negative=5"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Request(), Target("f1")),
        (Request("none"), None),
        (Request("precision", recall=0.9), Target("precision", 0.9)),
        (Request(recall=0.9), Target("precision", 0.9)),
        (Request(precision=0.8), Target("recall", 0.8)),
        (Request(cost=COST), Target("cost", None, 1.0, 5.0)),
    ],
)
def test_the_target(given: Request, wanted: Target | None) -> None:
    assert target_for(drawn_rows(30), named_target(given), given) == wanted


@pytest.mark.parametrize(
    ("given", "problem", "remedy"),
    [
        (Request("precison"), '--target is "precison"; did you mean "precision"?', "use f1, precision, recall, cost or none"),
        (Request("precision"), "--target precision needs --recall", "for example --recall 0.9"),
        (Request("cost"), "--target cost needs --cost", "for example --cost false_positive=1,false_negative=5"),
        (Request("f1", recall=0.9), "--recall does not fit --target f1", "use it with --target precision, or omit it"),
        (Request(recall=0.9, precision=0.9), "--precision does not fit --target precision", None),
        (Request(recall=1.5), "1.5 is not a share above 0 and up to 1", "use a number such as 0.9"),
        (Request(precision=0.0), "0 is not a share above 0 and up to 1", None),
        (Request(recall=float("nan")), "nan is not a share above 0 and up to 1", None),
    ],
)
def test_options_that_do_not_fit(says, given: Request, problem: str, remedy: str | None) -> None:
    with says(problem, remedy):
        named_target(given)


def test_many_classes_have_a_temperature_only(says) -> None:
    rows = drawn_rows(30, labels=("a", "b", "c"))
    assert target_for(rows, None, Request()) is None
    with says("the run has 3 classes: only the most likely one is chosen, without a threshold"):
        target_for(rows, "f1", Request("f1"))


@pytest.mark.parametrize(
    "text", ["", "1,5", "false_positive=1", "false_positive=x,false_negative=1", "false_positive=-1,false_negative=1"]
)
def test_costs_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SettingsError, match="--cost"):
        costs_of(text)
    for odd in ("false_positive=0,false_negative=0", "false_positive=1,false_positive=2,false_negative=1", "a=1,b=2"):
        with pytest.raises(SettingsError, match="--cost"):
            costs_of(odd)
