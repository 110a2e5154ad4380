"""Losses: sums over rows that equal torch's and the model's own, and a check that catches a loss that is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import FAMILIES, tiny_model, weights_hash
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError, SettingsError
from glassloop.training.losses import LOSS_REMEDY, check_loss, class_weights_of, make_loss, other_loss

CLASSES, SEVERAL = "single_label_classification", "multi_label_classification"
TASKS = {
    CLASSES: torch.tensor([0, 2, 1, 2, 2]),
    SEVERAL: torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]),
    "regression": torch.tensor([0.5, 2.0, -1.0, 3.25, 0.0]),
}
generator = torch.Generator().manual_seed(5)
LOGITS = {name: torch.randn(5, 1 if name == "regression" else 3, generator=generator) for name in TASKS}


@pytest.mark.parametrize("task", TASKS)
def test_a_loss_is_the_sum_of_its_rows_and_its_mean_what_the_model_would_say(task: str) -> None:
    loss, logits, labels = make_loss(task), LOGITS[task], TASKS[task]
    rows = sum(loss(logits[row : row + 1], labels[row : row + 1]) for row in range(5))
    torch.testing.assert_close(loss(logits, labels), torch.as_tensor(rows))
    assert loss(logits, labels).dim() == 0
    halves = loss(logits[:2], labels[:2]) + loss(logits[2:], labels[2:])
    torch.testing.assert_close(loss(logits, labels), halves)
    model = tiny_model(num_labels=logits.shape[1], dropout=0.0, problem_type=task)
    said = model(**batch_of(labels).inputs, labels=labels)
    torch.testing.assert_close(loss(said.logits, labels) / 5, said.loss)


def test_label_smoothing_is_torchs_and_class_weights_weigh_each_row_or_column() -> None:
    for smoothing in [0.0, 0.1, 0.5]:
        ours = make_loss(CLASSES, label_smoothing=smoothing)(LOGITS[CLASSES], TASKS[CLASSES])
        torchs = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum")(LOGITS[CLASSES], TASKS[CLASSES])
        assert torch.equal(ours, torchs)
    ours = make_loss(SEVERAL, label_smoothing=0.2)(LOGITS[SEVERAL], TASKS[SEVERAL])
    wanted = torch.where(TASKS[SEVERAL] == 1, 0.9, 0.1)
    by_hand = functional.binary_cross_entropy(LOGITS[SEVERAL].sigmoid(), wanted, reduction="none").mean(dim=1).sum()
    torch.testing.assert_close(ours, by_hand)
    # The sum of weighted losses over the true number of rows: not divided by the sum of weights, as torch's mean is.
    labels, weights = TASKS[CLASSES], torch.tensor([0.5, 2.0, 1.25])
    ours = make_loss(CLASSES, class_weights=weights)(LOGITS[CLASSES], labels)
    by_hand = -(weights[labels] * LOGITS[CLASSES].log_softmax(dim=1)[range(5), labels]).sum()
    torch.testing.assert_close(ours, by_hand)
    ours = make_loss(SEVERAL, class_weights=weights)(LOGITS[SEVERAL], TASKS[SEVERAL])
    cells = functional.binary_cross_entropy_with_logits(LOGITS[SEVERAL], TASKS[SEVERAL], reduction="none")
    torch.testing.assert_close(ours, (cells * weights).sum() / 3)


class Echo(torch.nn.Module):
    """A model whose logits are its input."""

    def forward(self, rows: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=rows)


def check(custom, labels: torch.Tensor = TASKS[CLASSES], training: bool = True) -> Echo:
    model = Echo().train(training)
    batch = SimpleNamespace(inputs={"rows": LOGITS[CLASSES]}, labels=labels)
    check_loss(make_loss(CLASSES, custom=custom), model, batch, PlainBackend())
    return model


def test_one_loss_a_row_or_their_sum_is_taken_but_a_mean_and_invalid_ones_are_refused(says) -> None:
    for reduction in ["none", "sum"]:
        assert check(partial(functional.cross_entropy, reduction=reduction)).training
    assert not check(partial(functional.cross_entropy, reduction="sum"), training=False).training, "the mode is as before"
    logits, labels = LOGITS[CLASSES], TASKS[CLASSES]
    mean, total = (functional.cross_entropy(logits, labels, reduction=kind).item() for kind in ("mean", "sum"))
    with says(f"the loss of a batch ({mean:.6g}) is not the sum of its rows' losses ({total:.6g})", LOSS_REMEDY):
        check(functional.cross_entropy)
    assert LOSS_REMEDY == "return one loss per row, or their sum: reduction='none' or reduction='sum', never a mean"
    for custom, problem, remedy in WRONG.values():
        with pytest.raises(SettingsError, match=f"settings: {problem}") as caught:
            check(custom)
        assert caught.value.remedy == remedy


FAILS, CHECK = "the loss fails on the first batch: ", "check the labels and the loss function"
WRONG = {
    "an error": (lambda logits, labels: logits[:, 7].sum(), f"{FAILS}IndexError: index 7 is out of bounds", LOSS_REMEDY),
    "a plain number": (lambda logits, labels: 1.0, f"{FAILS}AttributeError: 'float' object has no", LOSS_REMEDY),
    "no gradient": (lambda logits, labels: logits.argmax(dim=1).float(), "the loss must be a single number", LOSS_REMEDY),
    "not finite": (lambda logits, labels: logits.sum() / 0, "the loss of the first batch is ", CHECK),
}


def batch_of(labels: torch.Tensor) -> SimpleNamespace:
    ids = torch.randint(5, 90, (len(labels), 9), generator=torch.Generator().manual_seed(1))
    return SimpleNamespace(inputs={"input_ids": ids}, labels=labels, size=len(labels))


def with_loss(change: Callable[[Any, Any, torch.Tensor], torch.Tensor], **options: Any) -> Any:
    """A tiny model whose forward changes the usual loss."""
    model = tiny_model(**options)

    class Other(type(model)):
        def forward(self, *given: Any, labels: Any = None, **named: Any) -> Any:
            found = super().forward(*given, labels=labels, **named)
            if labels is not None:
                found.loss = change(self, found, labels)
            return found

    model.__class__ = Other
    return model


def focal(model: Any, found: Any, labels: torch.Tensor) -> torch.Tensor:
    shares = found.logits.softmax(-1).gather(1, labels[:, None])
    return ((1 - shares) ** 2 * functional.cross_entropy(found.logits, labels)).mean()


LARGE = torch.tensor([1.0, 5.0])
OTHER_LOSSES = {
    "class weights": lambda model, found, labels: functional.cross_entropy(found.logits, labels, weight=LARGE),
    "focal": focal,
    "an auxiliary term": lambda model, found, labels: found.loss + 1e-3 * found.logits.square().mean() + 1e-4,
    "only in training": lambda model, found, labels: found.loss + 0.1 if model.training else found.loss,
    "one for each row": lambda model, found, labels: 2 * functional.cross_entropy(found.logits, labels, reduction="none"),
    "smoothed": lambda model, found, labels: functional.cross_entropy(found.logits, labels, label_smoothing=0.1),
}


def compared(model: Any, labels: torch.Tensor, task: str = CLASSES, say: Any = pytest.fail) -> str | None:
    return other_loss(model, batch_of(labels), task, PlainBackend(), say)


FIVE = torch.tensor([0, 1, 1, 0, 1])


def test_a_loss_in_the_forward_that_differs_is_found_with_both_values_or_by_its_gradient() -> None:
    for name in OTHER_LOSSES:
        model = with_loss(OTHER_LOSSES[name], initializer_range=0.3).eval()
        before, state = weights_hash(model), torch.get_rng_state()
        theirs, ours = map(float, re.findall(r"\d\.\d+", compared(model, FIVE) or ""))
        assert theirs != ours
        assert weights_hash(model) == before
        assert torch.equal(torch.get_rng_state(), state)
        assert not model.training
    # A head that starts at zero: every loss is log 2, whatever its weights or its smoothing.
    for name in ["class weights", "smoothed"]:
        model = with_loss(OTHER_LOSSES[name])
        for weight in model.classifier.parameters():
            torch.nn.init.zeros_(weight)
        found = r".* 0\.693147 for the first batch, .* 0\.693147, and their gradients differ"
        assert re.fullmatch(found, compared(model, FIVE) or "")
        assert torch.is_grad_enabled()
        assert not model.base_model._forward_hooks


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("task", "problem_type"), [*((task, "given") for task in TASKS), (CLASSES, "inferred"), ("regression", "inferred")]
)
def test_the_loss_equals_that_of_every_head_of_transformers(task: str, problem_type: str, family: str) -> None:
    model = tiny_model(family, num_labels=LOGITS[task].shape[1], problem_type=task if problem_type == "given" else None)
    for labels in (TASKS[task], TASKS[task].long()):
        assert compared(model, labels, task) is None
    assert model.config.problem_type == (task if problem_type == "given" else None), "the config is left as it was"


class Pairs(torch.nn.Module):
    config = SimpleNamespace(num_labels=2, problem_type=None)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return labels.float().mean(), torch.zeros(len(labels), 2)


class NoLabels(Pairs):
    def forward(self, input_ids: torch.Tensor) -> None:  # type: ignore[override]
        pytest.fail("nothing to compare")


def test_models_without_a_loss_pass_a_tuple_is_refused_and_a_fault_is_reported() -> None:
    two = torch.tensor([0, 1])
    assert compared(tiny_model(num_labels=1), torch.tensor([0.5]), "regression") is None
    assert compared(with_loss(lambda model, found, labels: None), two) is None
    assert compared(NoLabels(), two) is None
    with pytest.raises(ModelError, match="Pairs returns a tuple without logits"):
        compared(Pairs(), two)

    def fail(model: Any, found: Any, labels: torch.Tensor) -> torch.Tensor:
        model.seen.add_(1)
        raise KeyError("weights")

    model, said = with_loss(fail), []
    model.register_buffer("seen", torch.zeros(()))
    assert compared(model, FIVE, say=said.append) is None
    assert said == ["the model's own loss could not be compared with Glassloop's (KeyError: 'weights')"]
    assert model.seen.item() == 0


def test_class_weights() -> None:
    """Balanced: all classes weigh the same, and a row weighs 1 on average, as in scikit-learn."""
    labels = np.repeat([0, 1, 2], [6, 3, 1])
    rows = Dataset.from_dict({"labels": labels})
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert class_weights_of("balanced", 3, rows) == pytest.approx(expected)
    assert class_weights_of(None, 3, rows) is None
    assert class_weights_of("1,2.5,0", 3, rows) == [1.0, 2.5, 0.0]
    problems = {"1": "1 numbers for 3 labels", "a,b": '"a,b"', "1,-1,1": "3 numbers", "1,inf,1": "3 numbers"}
    for text, problem in problems.items():
        with pytest.raises(SettingsError, match=problem):
            class_weights_of(text, 3, rows)
    with pytest.raises(SettingsError, match="no training row has the label 3"):
        class_weights_of("balanced", 4, rows)
    with pytest.raises(SettingsError, match="the labels are scores"):
        class_weights_of("balanced", 1, [{"labels": 0.5}, {"labels": 2.0}])
