"""The lines of a card are Python, and answer as the predictor does: with a temperature and thresholds, for every task."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest
from sample_record import RECORD

from glassloop.report.card import answer_lines, usage
from glassloop.runs.calibration import Calibration, Target
from glassloop.runs.record import Columns, RunRecord
from glassloop.settings.fields import SCORE, SEVERAL

FOUND = Calibration(2.0, {"b, c": 0.25}, Target("f1"), "b, c", "validation", 100, "", "", 10, ())


def record_of(task: str, pair: str | None = None) -> RunRecord:
    return replace(RECORD, data=replace(RECORD.data, task=task, columns=Columns("text", pair, ("label",))))


@pytest.mark.parametrize("task", [RECORD.data.task, SEVERAL, SCORE])
@pytest.mark.parametrize("found", [None, FOUND, replace(FOUND, temperature=1.0), replace(FOUND, thresholds={})])
def test_the_blocks_are_python(task: str, found: Calibration | None) -> None:
    for pair in (None, "second"):
        blocks = re.findall(r"```python\n(.*?)\n```", usage(record_of(task, pair), found), re.DOTALL)
        assert len(blocks) == 2
        for block in blocks:
            ast.parse(block)
        assert all(("A second text." in block) == (pair is not None) for block in blocks)


@pytest.mark.parametrize(("logits", "wanted"), [([2.0, 0.0], "b, c"), ([2.4, 0.0], "a"), ([0.0, 3.0], "b, c")])
def test_the_threshold_of_a_class_is_applied(logits: list[float], wanted: str) -> None:
    assert printed(answer_lines(RECORD, FOUND), logits).startswith(f"{wanted} ")


def test_labels_without_a_threshold_use_a_half() -> None:
    lines = answer_lines(record_of(SEVERAL), FOUND)
    assert printed(lines, [-0.1, -2.0]).startswith("['b, c']")  # 0.4875 and 0.2689
    assert printed(lines, [0.1, -2.5]).startswith("['a']")  # 0.5125 and 0.2227


def printed(lines: list[str], logits: list[float]) -> str:
    """Run the lines of an answer and return what they print."""
    import contextlib
    import io
    from types import SimpleNamespace

    import torch

    model = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 1: "b, c"}))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec("\n".join(lines), {"torch": torch, "model": model, "logits": torch.tensor(logits)})
    return output.getvalue()
