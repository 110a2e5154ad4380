"""A Trainer that overrides `compute_loss` only for a usual loss gets a suggestion whose code computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import glassloop
from glassloop.compat.port import rewritten
from glassloop.compat.uses import SUGGESTED
from glassloop.training.losses import make_loss

START = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Trainer, TrainingArguments
"""
METHOD = """
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        LOSS
        return (loss, outputs) if return_outputs else loss
"""
PLAIN = "class Mine(Trainer):" + METHOD
WITH_WEIGHTS = """
class Mine(Trainer):
    def __init__(self, *args, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = torch.tensor(class_weights, dtype=torch.float).to(self.args.device)
METHOD
trainer = Mine(model=model, class_weights=[1.0, 3.0])
""".replace("METHOD", METHOD)
FOCAL_CLASS = """
class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, reduction="mean"):
        super().__init__()
        self.gamma, self.reduction = gamma, reduction

    def forward(self, logits, labels):
        losses = F.cross_entropy(logits, labels, reduction="none")
        losses = (1 - torch.exp(-losses)) ** self.gamma * losses
        return losses.mean() if self.reduction == "mean" else losses
"""
# The class, the statements of its loss, and a line of the suggestion.
SUGGESTIONS = {
    "weights of a list": (
        PLAIN,
        ["f = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0], device=model.device))", "loss = f(outputs.logits, labels)"],
        "class_weights=[1.0, 3.0]",
    ),
    "weights of a variable": (
        "weights = torch.tensor(balanced())\n" + PLAIN,
        [
            "logits = outputs.get('logits').view(-1, self.model.config.num_labels)",
            "loss = F.cross_entropy(logits, labels.view(-1), weight=weights)",
        ],
        "class_weights=[*map(float, weights)]",
    ),
    "weights of an argument": (
        WITH_WEIGHTS,
        ["loss = nn.CrossEntropyLoss(weight=self.class_weights)(outputs.logits, labels)"],
        "class_weights=[1.0, 3.0]",
    ),
    "weights that may be missing": (
        WITH_WEIGHTS,
        [
            "if self.class_weights is not None:",
            "    loss = F.cross_entropy(outputs.logits, labels, weight=self.class_weights)",
            "else:",
            "    loss = F.cross_entropy(outputs.logits, labels)",
        ],
        "class_weights=[1.0, 3.0]",
    ),
    "smoothing": (
        PLAIN,
        ["loss = nn.CrossEntropyLoss(label_smoothing=0.1)(outputs.logits, labels)"],
        "label_smoothing_factor=0.1",
    ),
    "the usual loss": (PLAIN, ["loss = F.cross_entropy(outputs.logits, labels)"], "use Trainer itself"),
    "several labels": (PLAIN, ["loss = nn.BCEWithLogitsLoss()(outputs.logits, labels.float())"], "multi_label_classification"),
}
# The same, and the loss as a function of logits and labels.
FUNCTIONS = {
    "focal": (
        PLAIN,
        ["ce = F.cross_entropy(outputs.logits, labels, reduction='none')", "loss = ((1 - torch.exp(-ce)) ** 1.5 * ce).mean()"],
    ),
    "focal loss of the script": (FOCAL_CLASS + PLAIN, ["loss = FocalLoss(gamma=1.5)(outputs.logits, labels)"]),
}
UNKNOWN = {
    "a second model": ["loss = F.cross_entropy(outputs.logits, labels) + distance(teacher(**inputs), outputs)"],
    "a sum": ["loss = F.cross_entropy(outputs.logits, labels) + 0.1 * F.cross_entropy(outputs.logits, labels, weight=w)"],
    "a column": ["loss = (F.cross_entropy(outputs.logits, labels, reduction='none') * inputs['weight']).mean()"],
    "a scaled focal loss": [
        "ce = F.cross_entropy(outputs.logits, labels, reduction='none')",
        "loss = (alpha * (1 - torch.exp(-ce)) ** 2 * ce).mean()",
    ],
    "a part of the logits": ["loss = F.cross_entropy(outputs.logits[:, :2], labels)"],
    "a step of its own": ["loss = F.cross_entropy(outputs.logits, labels)", "self.log({'loss': loss.item()})"],
    "ignored labels": ["loss = F.cross_entropy(outputs.logits, labels, ignore_index=0)"],
}


def suggestions(code: str, loss: list[str]) -> list[str]:
    script = START + code.replace("LOSS", "\n        ".join(loss))
    compile(script, "script.py", "exec")
    return [one.remedy for one in rewritten(script)[1] if one.kind == SUGGESTED]


@pytest.mark.parametrize("name", SUGGESTIONS)
def test_settings_are_suggested(name: str) -> None:
    code, loss, wanted = SUGGESTIONS[name]
    (found,) = suggestions(code, loss)
    assert wanted in found


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_suggested_for_what_is_not_recognized(name: str) -> None:
    assert suggestions(PLAIN, UNKNOWN[name]) == []
    assert suggestions(PLAIN + "\n    def log(self, logs):\n        pass", SUGGESTIONS["smoothing"][1]) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_suggested_function_returns_one_loss_per_row_with_the_same_mean(name: str) -> None:
    code, loss = FUNCTIONS[name]
    (found,) = suggestions(code, loss)
    lines = found.splitlines()[1:]
    known: dict[str, Any] = {}
    exec(START + (FOCAL_CLASS if "FocalLoss" in code else ""), known)
    passed: dict[str, Any] = {}
    exec("\n".join(lines).replace("trainer = Trainer(…, ", "made = dict("), known, passed)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    wanted = (1 - torch.exp(-losses)) ** 1.5 * losses
    torch.testing.assert_close(passed["made"]["loss"](logits, labels), wanted)


def test_settings_compute_the_loss_of_the_script_up_to_the_divisor_of_weights() -> None:
    logits, labels = torch.randn(5, 2), torch.tensor([0, 1, 1, 1, 0])
    weights = torch.tensor([1.0, 3.0])
    theirs = torch.nn.CrossEntropyLoss(weight=weights, label_smoothing=0.0)(logits, labels)
    ours = make_loss("single_label_classification", class_weights=weights)(logits, labels)
    torch.testing.assert_close(ours / weights[labels].sum(), theirs)
    assert glassloop.TrainingArguments("out", class_weights=[1.0, 3.0]).class_weights == "1.0,3.0"
    theirs = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels)
    torch.testing.assert_close(make_loss("single_label_classification", label_smoothing=0.1)(logits, labels) / 5, theirs)
