"""Losses of scripts on packed batches: the numbers of plain, whatever the script does with the model, and what falls back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import tiny_model
from torch.nn import functional

from glassloop import Trainer

Loss = Callable[[Any, dict[str, Any]], Any]


def weighted(model: Any, inputs: dict[str, Any]) -> Any:
    labels = inputs.pop("labels")
    logits = model(**inputs).logits
    return functional.cross_entropy(logits, labels, weight=torch.tensor([0.5, 2.0]))


def by_place(model: Any, inputs: dict[str, Any]) -> Any:
    logits = model(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"], return_dict=False)[0]
    return functional.cross_entropy(logits, inputs["labels"], label_smoothing=0.1)


def of_the_model(model: Any, inputs: dict[str, Any]) -> Any:
    found = model(**inputs)  # with labels
    return found.loss + 0.1 * found["logits"].square().mean()


def twice(model: Any, inputs: dict[str, Any]) -> Any:  # as R-Drop
    labels = inputs.pop("labels")
    first, second = (model(**inputs).logits for _ in range(2))
    return functional.cross_entropy(first, labels) + (first - 2 * second).square().mean()


def with_hidden(model: Any, inputs: dict[str, Any]) -> Any:
    labels = inputs.pop("labels")
    found = model(**inputs, output_hidden_states=True)
    return functional.cross_entropy(found.logits, labels) + found.hidden_states[-1][:, 0].square().mean()


def with_vectors(model: Any, inputs: dict[str, Any]) -> Any:
    labels, ids = inputs.pop("labels"), inputs.pop("input_ids")
    return functional.cross_entropy(model(**inputs, inputs_embeds=model.get_input_embeddings()(ids)).logits, labels)


def of_the_encoder(model: Any, inputs: dict[str, Any]) -> Any:
    labels = inputs.pop("labels")
    return functional.cross_entropy(model.classifier(model.base_model(**inputs).pooler_output), labels)


def with_other_words(model: Any, inputs: dict[str, Any]) -> Any:
    labels = inputs.pop("labels")
    inputs["input_ids"][:, 1] = 7  # in place
    return functional.cross_entropy(model(**inputs).logits, labels)


def without_mask(model: Any, inputs: dict[str, Any]) -> Any:
    return functional.cross_entropy(model(input_ids=inputs["input_ids"]).logits, inputs["labels"])


def hooked(model: Any, inputs: dict[str, Any]) -> Any:
    seen: list[Any] = []
    hook = model.base_model.encoder.layer[0].register_forward_hook(lambda part, given, found: seen.append(found))
    loss = weighted(model, inputs)
    hook.remove()
    return loss + seen[0][0].mean()


PACKED = [weighted, by_place, of_the_model, twice]
PADDED = {
    with_hidden: "the model is called with output_hidden_states by the loss of the script",
    with_vectors: "the model is called with inputs_embeds by the loss of the script",
    of_the_encoder: "the model is not called with the inputs of a batch by the loss of the script",
    with_other_words: "the model is called with another input_ids by the loss of the script",
    without_mask: "the model is called without token_type_ids by the loss of the script",
    hooked: "a module of the model got a hook by the loss of the script",
}
GIVEN = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, "logging_steps": 1, "learning_rate": 1e-3}


def trainer_with(loss: Loss, model: Any = None) -> Any:
    """Return a function like `Trainer` with this loss in a subclass."""

    class WithLoss(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            if return_outputs:  # an evaluation
                outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
                return functional.cross_entropy(outputs.logits, inputs["labels"]), outputs
            return loss(model, inputs)

    return lambda **named: WithLoss(**named | {"model": tiny_model(dropout=0.0) if model is None else model()})


def figures(trainer: Any) -> list[float]:
    names = ("loss", "grad_norm", "eval_loss")
    return [entry[name] for entry in trainer.state.history for name in names if name in entry]


def trained(make: Any, kind: Any, backend: str = "auto", **given: Any) -> Any:
    trainer = make(kind, backend, backend=backend, **GIVEN | given)
    trainer.train()
    return trainer


@pytest.mark.parametrize("loss", PACKED)
def test_a_loss_of_a_script_runs_packed_with_the_numbers_of_plain(make, capsys, loss: Loss) -> None:
    fast, plain = (trained(make, trainer_with(loss), backend, gradient_accumulation_steps=2) for backend in ("auto", "plain"))
    assert (fast.backend.name, plain.backend.name) == ("packed", "plain")
    assert "instead of" not in capsys.readouterr().err
    assert figures(fast) == pytest.approx(figures(plain), rel=2e-4)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "albert", "modernbert"])
def test_a_loss_of_a_script_runs_packed_with_any_family(make, family: str) -> None:
    kind = trainer_with(weighted, lambda: tiny_model(family, dropout=0.0))
    fast, plain = (trained(make, kind, backend, weight_decay=0.1) for backend in ("auto", "plain"))
    assert fast.backend.name == "packed"
    assert figures(fast) == pytest.approx(figures(plain), rel=5e-4)


def test_a_function_for_the_loss_runs_packed(make) -> None:
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return functional.cross_entropy(outputs.logits, labels, reduction="sum", label_smoothing=0.2) / num_items_in_batch

    parts = {"compute_loss_func": loss, "model": tiny_model(dropout=0.0)}
    both = [
        make(Trainer, backend, {**parts, "model": tiny_model(dropout=0.0)}, backend=backend, **GIVEN)
        for backend in ("auto", "plain")
    ]
    for trainer in both:
        trainer.train()
    assert both[0].backend.name == "packed"
    assert figures(both[0]) == pytest.approx(figures(both[1]), rel=2e-4)


@pytest.mark.parametrize("loss", PADDED)
def test_a_loss_that_needs_padded_batches_trains_on_plain_and_says_why(make, capsys, loss: Loss) -> None:
    trainer = trained(make, trainer_with(loss), eval_strategy="no", max_steps=1)
    assert trainer.backend.name == "plain"
    assert f"backend plain instead of packed: {PADDED[loss]}" in capsys.readouterr().err


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("loss", [loss for loss in PADDED if loss is not with_other_words])
def test_calls_that_run_padded_in_a_later_step_have_the_gradients_of_plain(make, loss: Loss, order: int) -> None:
    """The check before the first step cannot see them; in one step, gradients of packed and of padded calls add up."""

    def changing(model: Any, inputs: dict[str, Any]) -> Any:
        losses = [weighted, loss][::order] if model.training else [weighted]  # the check turns dropout off
        return sum(one(model, {**inputs}) for one in losses)

    fast, plain = (trained(make, trainer_with(changing), backend) for backend in ("auto", "plain"))
    assert fast.backend.name == "packed"
    assert figures(fast) == pytest.approx(figures(plain), rel=5e-4)


def test_the_check_leaves_no_trace_in_the_trainer_of_a_script(make) -> None:
    logged: list[Any] = []

    class Counting(Trainer):
        calls = 0

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            self.calls += 1
            self.seen.append(self.calls)
            self.log({"calls": self.calls})
            return weighted(model, inputs)

        def log(self, logs: Any, start_time: Any = None) -> None:
            logged.append(logs)
            super().log(logs)

    trainer = make(Counting, max_steps=2)
    trainer.seen = []
    trainer.train()
    assert trainer.backend.name == "packed"
    assert (trainer.calls, trainer.seen) == (2, [1, 2])
    assert [entry["calls"] for entry in trainer.state.log_history if "calls" in entry] == [1, 2]


def test_a_loss_that_differs_on_packed_batches_trains_on_plain(make, capsys) -> None:
    number = 0

    def growing(model: Any, inputs: dict[str, Any]) -> Any:
        nonlocal number
        number += 1
        return weighted(model, inputs) * number

    assert trained(make, trainer_with(growing), eval_strategy="no", max_steps=1).backend.name == "plain"
    assert "instead of packed: the loss of the script is another one on packed batches" in capsys.readouterr().err


def test_what_the_check_appends_to_a_list_of_the_class_is_undone(make) -> None:
    class Noting(Trainer):
        seen: list[float] = []  # noqa: RUF012 - as scripts write it

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            loss = weighted(model, inputs)
            self.seen.append(float(loss.detach()))
            return loss

    model = tiny_model(dropout=0.0)
    fast = make(
        lambda **named: Noting(**named | {"model": model}),
        "auto",
        backend="auto",
        **{**GIVEN, "max_steps": 2, "eval_strategy": "no"},
    )
    fast.train()
    assert fast.backend.name == "packed", "the check has called the loss"
    assert len(Noting.seen) == 2, "a call for each step"
