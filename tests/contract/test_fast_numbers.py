"""The packed backend gives the numbers of the plain one: losses, weights, predictions, checkpoints, through the Trainer.

Without dropout the two do the same maths in another order of summation, so losses differ by rounding only: far less than
the bound of 1e-5. Weights are held to a share of the way they could have gone (rate times steps): 1e-5 on average, 1e-2
for a single one. AdamW divides a gradient by its own size, so a weight whose gradient is itself rounding takes full steps
in a direction that rounding chose. The biases of keys are such weights: a bias adds the same to all scores of a query, and
a softmax does not see it, so its true gradient is zero. They change no answer and are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import BY_MODULES, FAST, rows_for, tiny_model, weights_hash
from small_training import StopAt
from torch.nn import functional

from glassloop import Callback, Trainer, TrainingArguments, encode, load_examples, load_model, load_tokenizer
from glassloop.backends.choose import choose_precision
from glassloop.backends.packed import PackedBackend
from glassloop.base.errors import SettingsError

CLOSE = 1e-5
RATE = 3e-4
STEPS = 20  # more than an epoch


@pytest.fixture
def trained(trainer_of):
    """Trains a tiny model with a backend."""

    def train(backend: Any, *, model: Any = None, family: str = "bert", resume: Any = None, **given: Any) -> Trainer:
        usual = {"max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": RATE}
        trainer = trainer_of(lively(family) if model is None else model, backend, family=family, **usual | given)
        trainer._quiet = True
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.backend.name == trainer.args.backend
        return trainer

    return train


@pytest.fixture
def both(trained):
    """Trains with both backends; `make` makes a model for each."""

    def train(make: Any = lambda: None, **given: Any) -> list[Trainer]:
        return [trained(backend, model=make(), **given) for backend in ("packed", "plain")]

    return train


def lively(family: str = "bert", dropout: float = 0.0, **options: Any) -> Any:
    """Weights large enough that losses move from row to row and from step to step."""
    return tiny_model(family, dropout=dropout, initializer_range=0.2, **options)


def figures(trainer: Trainer, name: str = "loss") -> torch.Tensor:
    return torch.tensor([entry[name] for entry in trainer.state.history if name in entry], dtype=torch.float64)


def apart(first: Trainer, second: Trainer) -> tuple[float, float]:
    """How far the weights of two runs lie apart: on average (root of the mean square), and at most."""
    others = dict(second.model.named_parameters())
    named = [(name, weight) for name, weight in first.model.named_parameters() if not name.endswith(("key.bias", "k_lin.bias"))]
    differences = torch.cat([(weight - others[name]).detach().double().flatten() for name, weight in named])
    return float(differences.square().mean().sqrt()), float(differences.abs().max())


def same_numbers(first: Trainer, second: Trainer, rate: float = RATE, steps: int = STEPS) -> None:
    losses, others = figures(first), figures(second)
    assert len(losses) == len(others)
    torch.testing.assert_close(losses, others, atol=CLOSE, rtol=0)
    assert losses.std() > 0.01, "losses that all look alike would prove nothing"
    torch.testing.assert_close(figures(first, "grad_norm"), figures(second, "grad_norm"), atol=1e-4, rtol=1e-4)
    mean, most = apart(first, second)
    assert mean <= 1e-5 * rate * steps, f"{mean / (rate * steps):.1e} of the way"
    assert most <= 1e-2 * rate * steps, f"{most / (rate * steps):.1e} of the way"


# --- the same losses and weights ---------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [20, pytest.param(100, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("family", [*FAST, *BY_MODULES])
def test_a_hundred_steps_of_every_family(family: str, steps: int, both) -> None:
    """61 rows in batches of four: the last batch of an epoch has one row, and the last group of three is short."""
    for accumulate in (1, 3) if steps == 100 else (1,):
        given = {"family": family, "gradient_accumulation_steps": accumulate, "max_steps": steps}
        same_numbers(*both(**given), steps=steps)


SETTINGS: dict[str, dict[str, Any]] = {
    "weight decay": {"weight_decay": 0.01},
    "strong weight decay": {"weight_decay": 0.5},
    "no clipping": {"max_grad_norm": 0.0},
    "much clipping": {"max_grad_norm": 0.05},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "class weights": {"class_weights": "balanced"},
    "grouped by length": {"group_by_length": True},
    "cosine with warmup": {"lr_scheduler_type": "cosine", "warmup_steps": 5},
    "other betas": {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6},
    "groups of three batches": {"gradient_accumulation_steps": 3},
    "batches of one": {"per_device_train_batch_size": 1},
    "the last batch left out": {"dataloader_drop_last": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_that_changes_numbers(name: str, both) -> None:
    same_numbers(*both(**SETTINGS[name]))


def focal(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    cost = functional.cross_entropy(logits, labels, reduction="none")
    return (1 - torch.exp(-cost)) ** 2 * cost


def change_gradients(model: Any) -> None:
    """Noise on every gradient, in place and replaced: nothing of it is left in the next step."""
    for number, weight in enumerate(model.parameters()):
        if number % 2:
            weight.grad.add_(1e-3)
        else:
            weight.grad = weight.grad * 0.5 + 1e-3


def test_other_tasks_losses_and_gradients(both, encoded) -> None:
    scores = [number % 7 / 2 for number in range(61)]
    several = [[number % 2, number % 3 // 2, 1] for number in range(61)]
    scored, labelled = (
        Dataset.from_dict({**encoded["train"].rows.to_dict(), "labels": labels}) for labels in (scores, several)
    )
    same_numbers(*both(lambda: lively(num_labels=1), train_dataset=scored))
    kind = {"num_labels": 3, "problem_type": "multi_label_classification"}
    same_numbers(*both(lambda: lively(**kind), train_dataset=labelled))
    same_numbers(*both(loss=focal))
    same_numbers(*both(on_gradients=change_gradients))


def test_lists_selections_and_masks_as_data(trained, encoded) -> None:
    rows = encoded["train"].rows.select([*range(60, 0, -2), 5, 5, 7])
    masks = [[1] * len(ids) + [0] * 3 for ids in rows["input_ids"]]
    columns = {name: [values + [0] * 3 for values in rows[name]] for name in ("input_ids", "token_type_ids")}
    padded = Dataset.from_dict({**columns, "attention_mask": masks, "labels": rows["labels"]})
    plain = trained("plain", train_dataset=rows)
    for data in (rows, [*rows], [*padded], padded):
        same_numbers(trained("packed", train_dataset=data), plain)


@pytest.fixture(scope="module")
def half_precision() -> PackedBackend:
    """The packed backend in bf16, where this CPU can do it."""
    try:
        choose_precision("bf16", "cpu")
    except SettingsError as error:
        pytest.skip(str(error))
    return PackedBackend("cpu", "bf16")


@pytest.mark.sample(3)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("family", FAST)
def test_losses_in_half_precision_are_close(family: str, accumulate: int, half_precision, trained) -> None:
    """bf16 keeps eight bits: a loss of about one is right to a hundredth or two."""
    given = {"family": family, "max_steps": 20, "learning_rate": 1e-4, "gradient_accumulation_steps": accumulate}
    low, plain = trained(half_precision, **given), trained("plain", **given)
    torch.testing.assert_close(figures(low), figures(plain), atol=5e-2, rtol=0)
    assert not torch.equal(figures(low), figures(plain))
    assert all(weight.dtype == torch.float32 for weight in low.model.parameters())


def test_minilm(packaged: Path, tmp_path: Path) -> None:
    """The quickstart's own model, without dropout."""
    tokenizer = load_tokenizer(packaged)
    rows = encode(load_examples("quickstart", rows=60, split_seed=3), tokenizer, 128)["train"].rows
    found = []
    for backend in ("packed", "plain"):
        model = load_model(packaged, num_labels=2, seed=1)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        args = TrainingArguments(
            tmp_path / backend, max_steps=6, per_device_train_batch_size=4, learning_rate=1e-4, logging_steps=1, device="cpu",
            precision="fp32", save_strategy="no", disable_tqdm=True, backend=backend,
        )  # fmt: skip
        trainer = Trainer(model, args, train_dataset=rows, processing_class=tokenizer)
        trainer._quiet = True
        trainer.train()
        assert trainer.backend.name == backend
        found.append(trainer)
    same_numbers(*found, rate=1e-4, steps=6)


# --- the same predictions ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", [*FAST, *BY_MODULES])
def test_predictions_in_the_order_of_the_rows(family: str, encoded, tiny_tokenizer, tmp_path: Path) -> None:
    rows, found = rows_for(family, encoded["train"].rows), []
    for backend in ("packed", "plain"):
        args = TrainingArguments(tmp_path, device="cpu", precision="fp32", backend=backend, per_device_eval_batch_size=8)
        trainer = Trainer(tiny_model(family, initializer_range=0.3), args, processing_class=tiny_tokenizer)
        before = weights_hash(trainer.model)
        found.append(trainer.predict(rows))
        assert weights_hash(trainer.model) == before
    np.testing.assert_allclose(found[0].predictions, found[1].predictions, atol=CLOSE, rtol=0)
    assert found[0].label_ids.tolist() == found[1].label_ids.tolist() == [row["labels"] for row in rows]
    assert found[0].metrics["test_loss"] == pytest.approx(found[1].metrics["test_loss"], abs=CLOSE)
    assert np.abs(found[0].predictions[:-1] - found[0].predictions[1:]).max() > 0.1, "a wrong order would show"


def test_evaluation_in_between_changes_no_weight_and_no_draw(trained) -> None:
    given = {"max_steps": 20, "eval_strategy": "steps"}
    watched = trained("packed", model=lively(dropout=0.1), eval_steps=3, **given)
    other = trained("packed", model=lively(dropout=0.1), max_steps=20)
    assert weights_hash(watched.model) == weights_hash(other.model)
    assert torch.equal(figures(watched), figures(other))
    assert len(figures(watched, "eval_loss")) == 7, "after every third step and the last one"


def test_evaluation_in_between_sees_trained_weights(both) -> None:
    packed, plain = both(max_steps=20, eval_strategy="steps", eval_steps=5, learning_rate=1e-3)
    losses, others = figures(packed, "eval_loss"), figures(plain, "eval_loss")
    torch.testing.assert_close(losses, others, atol=1e-4, rtol=0)
    assert losses.std() > 0.01
    assert packed.evaluate()["eval_loss"] == pytest.approx(float(losses[-1]), abs=1e-6)


# --- stop and resume ---------------------------------------------------------------------------------------------
EVALUATED = {"eval_strategy": "steps", "eval_steps": 4}
BEST = {"load_best_model_at_end": True, "learning_rate": 5e-3, "save_strategy": "steps", "save_steps": 4}
PAUSED: dict[str, dict[str, Any]] = {
    "alone": {},
    "accumulating": {"gradient_accumulation_steps": 3},
    "with weight decay": {"weight_decay": 0.01},
    "with evaluations": EVALUATED,
    "with the best at its end": EVALUATED | BEST,
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", PAUSED)
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_stopped_and_resumed_is_never_stopped_bit_for_bit(family: str, name: str, trained) -> None:
    given = {"max_steps": 12, "family": family, **PAUSED[name]}
    whole = trained("packed", model=lively(family, dropout=0.1), output_dir="whole", **given)
    with pytest.raises(SystemExit):
        trained("packed", model=lively(family, dropout=0.1), output_dir="parts", callbacks=[StopAt(7)], **given)
    parts = trained("packed", model=lively(family, dropout=0.1), output_dir="parts", resume=True, **given)
    assert weights_hash(parts.model) == weights_hash(whole.model)
    for figure in ("loss", "grad_norm", "eval_loss"):
        assert torch.equal(figures(parts, figure), figures(whole, figure)[-len(figures(parts, figure)) :])
    assert parts.state.best_step == whole.state.best_step


@pytest.mark.sample(2)
@pytest.mark.parametrize(("first", "second"), [("packed", "plain"), ("plain", "packed")])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_either_backend_resumes_a_run_of_the_other(first: str, second: str, decay: float, trained) -> None:
    given = {"max_steps": 40, "weight_decay": decay}
    whole = trained("plain", output_dir="whole", **given)
    with pytest.raises(SystemExit):
        trained(first, output_dir="parts", callbacks=[StopAt(17)], **given)
    parts = trained(second, output_dir="parts", resume=True, **given)
    later = figures(whole)[-len(figures(parts)) :]
    torch.testing.assert_close(figures(parts), later, atol=CLOSE, rtol=0)
    assert apart(parts, whole)[0] <= 1e-5 * RATE * 40


# --- what is not of the numbers ----------------------------------------------------------------------------------
def test_the_model_is_an_ordinary_one_after_its_training(trained) -> None:
    trainer, fresh = trained("packed", max_steps=3), tiny_model()
    assert [*trainer.model.state_dict()] == [*fresh.state_dict()]
    for part, other in zip(trainer.model.modules(), fresh.modules(), strict=True):
        assert {*vars(part)} == {*vars(other)}
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in trainer.model.parameters())


def test_weights_that_are_frozen_after_the_trainer_was_made_stay_as_they_are(trainer_of, capsys) -> None:
    model = tiny_model()
    trainer = trainer_of(model, "packed", max_steps=3)
    model.base_model.requires_grad_(False)
    before = weights_hash(model.base_model)
    trainer.train()
    assert weights_hash(model.base_model) == before
    assert trainer.backend.name == "packed"
    assert "instead of" not in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["packed", "plain"])
def test_gradients_left_from_before_have_no_part_in_a_training(backend: str, trained) -> None:
    model = lively()
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    found, expected = trained(backend, model=model, max_steps=3), trained(backend, model=lively(), max_steps=3)
    for name in ("loss", "grad_norm"):
        assert torch.equal(figures(found, name), figures(expected, name))


class Looks(Callback):
    """Notes the word vectors after each step."""

    def __init__(self, model: Any, reads_weights: bool) -> None:
        self.model, self.reads_weights, self.seen = model, reads_weights, []

    def on_step(self, state: Any, batches: list[Any]) -> None:
        self.seen.append(self.model.get_input_embeddings().weight.detach().flatten().clone())


def test_callbacks_see_the_word_vectors_of_their_step_if_they_read_weights_and_change_none(trained) -> None:
    seen = {}
    for backend, reads in (("packed", True), ("plain", True), ("packed", False)):
        model = lively()
        looks = Looks(model, reads)
        watched = trained(backend, model=model, callbacks=[looks], max_steps=10)
        assert weights_hash(watched.model) == weights_hash(trained(backend, max_steps=10).model)
        seen[backend, reads] = torch.stack(looks.seen)
    packed, plain, unread = seen.values()
    assert (packed - plain).square().mean().sqrt() < 1e-3 * RATE
    assert plain.diff(dim=0).square().mean(1).sqrt().min() > 1e-2 * RATE
    assert len(unread) == 10
    assert not unread.diff(dim=0).any(), "none are copied"


def test_with_dropout_the_two_learn_alike(trained) -> None:
    """Masks are drawn elsewhere, so single runs differ; over ten seeds the means lie within the spread of one of them."""
    ends = {}
    for backend in ("packed", "plain"):
        found = []
        for seed in range(10):
            given = {"seed": seed, "data_seed": 1, "max_steps": 30, "learning_rate": 1e-3}
            found.append(figures(trained(backend, model=lively(dropout=0.1), **given))[-10:].mean())
        ends[backend] = torch.stack(found)
    packed, plain = ends["packed"], ends["plain"]
    assert not torch.equal(packed, plain)
    error = ((packed.var() + plain.var()) / 10).sqrt()
    assert abs(packed.mean() - plain.mean()) <= 3 * error
    assert 0.3 < packed.std() / plain.std() < 3.0
