"""The HTML view of Trainers: evaluations are shown, and names stay text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from glassloop.training import progress as html

HISTORY = [
    {"step": 1, "loss": 0.9, "learning_rate": 1e-4},
    {"step": 2, "loss": 0.5, "learning_rate": 5e-5},
    {"step": 2, "epoch": 0.5, "eval_loss": 0.6, "eval_accuracy": 0.75},
    {"step": 4, "epoch": 1.0, "eval_loss": 0.4, "eval_accuracy": 0.8},
]


def rows_of(view: str) -> list[tuple[str, ...]]:
    return [tuple(cell.text or "" for cell in row) for row in ElementTree.fromstring(view).iter("tr")]


def test_a_trainer_is_shown_with_its_evaluations() -> None:
    view = html.trainer_view({"model": "bert"}, HISTORY)
    assert rows_of(view)[:4] == [
        ("model", "bert"),
        ("step", "eval_loss", "eval_accuracy"),
        ("2", "0.6000", "0.7500"),
        ("4", "0.4000", "0.8000"),
    ]
    assert view.count("<polyline") == 2
    assert rows_of(html.trainer_view({"model": "bert"}, [])) == [("model", "bert")]


def test_hostile_names_stay_text() -> None:
    script = "<script>alert(1)</script>"
    view = html.trainer_view({script: script}, [{"step": 1, f"eval_{script}": 0.5}])
    assert "<script" not in view
    assert (script, script) in rows_of(view)
