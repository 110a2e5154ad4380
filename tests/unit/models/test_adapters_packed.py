"""LoRA and frozen weights on the packed backend: the numbers of plain, nothing for frozen weights, and what falls back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model, weights_hash

from glassloop import Trainer, TrainingArguments
from glassloop.backends.fast.encoder_parts import layers_of, why_not_packed
from glassloop.backends.fast.storage import FlatStorage
from glassloop.models.interface import base_of

peft = pytest.importorskip("peft")


@pytest.fixture
def train(few, tiny_tokenizer, tmp_path: Path) -> Callable[..., Trainer]:
    def made(model: Any, backend: str = "auto", **settings: Any) -> Trainer:
        usual = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1, "device": "cpu"}
        usual |= {
            "precision": "fp32",
            "save_strategy": "no",
            "disable_tqdm": True,
            "backend": backend,
            "eval_strategy": "steps",
        }
        args = TrainingArguments(tmp_path / backend, eval_steps=3, **usual | settings)
        data = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tiny_tokenizer}
        trainer = Trainer(model, args, **data)
        trainer.train()
        return trainer

    return made


def adapted(family: str = "bert", dropout: float = 0.0, **options: Any) -> Any:
    """A model with a LoRA adapter that is not zero at first, and no other dropout."""
    model = tiny_model(family, dropout=0.0, initializer_range=0.3)
    torch.manual_seed(5)
    settings = {"r": 4, "lora_alpha": 6, "lora_dropout": dropout, "target_modules": "all-linear", "init_lora_weights": False}
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **settings | options))


def frozen(*parts: str, family: str = "bert") -> Any:
    """A model in which all weights are frozen whose names contain one of these words."""
    model = tiny_model(family, dropout=0.0, initializer_range=0.3)
    for name, weight in model.named_parameters():
        weight.requires_grad = not any(part in name for part in parts)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "all linear": adapted,
    "query and value": lambda: adapted(target_modules=["query", "value"]),
    "key alone": lambda: adapted(target_modules=["key"]),
    "one layer": lambda: adapted(target_modules=["query", "intermediate.dense"], layers_to_transform=[1]),
    "rsLoRA": lambda: adapted(use_rslora=True),
    "ranks": lambda: adapted(rank_pattern={"query": 2}, alpha_pattern={"value": 32}),
    "roberta": lambda: adapted("roberta"),
    "distilbert": lambda: adapted("distilbert", target_modules=["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"]),
    "albert": lambda: adapted("albert"),
    "electra": lambda: adapted("electra"),
    "modernbert": lambda: adapted("modernbert"),
    "embeddings": lambda: frozen("embeddings"),
    "lower layers": lambda: frozen("embeddings", "layer.0"),
    "a layer in between": lambda: frozen("layer.0"),
    "the encoder": lambda: frozen("bert"),
    "only biases of layers": lambda: frozen("embeddings", "dense.weight", "query.weight", "key.weight", "value.weight"),
    "modernbert layers": lambda: frozen("layers.0", "embeddings", family="modernbert"),
}


def figures(trainer: Any) -> list[float]:
    names = ("loss", "grad_norm", "eval_loss")
    return [entry[name] for entry in trainer.state.history for name in names if name in entry]


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_of_plain(name: str, train, capsys: pytest.CaptureFixture[str]) -> None:
    fast, plain = (
        train(MODELS[name](), backend, gradient_accumulation_steps=2, weight_decay=0.1) for backend in ("auto", "plain")
    )
    assert (fast.backend.name, plain.backend.name) == ("packed", "plain"), capsys.readouterr().err
    assert figures(fast) == pytest.approx(figures(plain), rel=5e-4)
    both = (trainer.predict(trainer.eval_dataset).predictions for trainer in (fast, plain))
    np.testing.assert_allclose(*both, atol=5e-4)


def test_frozen_weights_stay_and_have_neither_gradient_nor_moments(train) -> None:
    model = adapted()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    sizes: list[int] = []
    opened = FlatStorage.open_for_training
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlatStorage, "open_for_training", lambda self: (sizes.append(self.weights.numel()), opened(self))[1])
        train(model)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert trained <= max(sizes) < 2 * trained < sum(weight.numel() for weight in before.values())
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters() if name in before)


def test_an_adapter_drops_the_share_of_its_inputs_that_peft_drops_each_with_its_own_mask(train, monkeypatch) -> None:
    """Counted in the masks of one training, and in the mean and the spread of the losses with plain."""
    from glassloop.backends.fast.operations import DropoutMasks

    drawn: list[torch.Tensor] = []
    drop = DropoutMasks.drop

    def counted(self: Any, x: torch.Tensor, rate: float) -> Any:
        found = drop(self, x, rate)
        drawn.append(found[1])
        return found

    monkeypatch.setattr(DropoutMasks, "drop", counted)
    train(adapted(dropout=0.25), max_steps=20, eval_strategy="no")
    masks = [mask for mask in drawn if mask is not None]
    assert len(masks) == 20 * 2 * 6  # steps, layers, linear layers of each
    kept = torch.cat([(mask > 0).float().flatten() for mask in masks])
    assert float(kept.mean()) == pytest.approx(0.75, abs=0.005)
    assert all(mask.max() == pytest.approx(1 / 0.75, abs=1e-4) for mask in masks)
    assert not torch.equal(masks[0], masks[1]), "query and key share no mask"


def test_a_training_with_dropout_resumes_bit_identical(train) -> None:
    whole = train(adapted(dropout=0.25), max_steps=6, eval_strategy="no", save_strategy="steps", save_steps=3)
    assert whole.backend.name == "packed"
    again = Trainer(
        adapted(dropout=0.25), whole.args, train_dataset=whole.train_dataset, processing_class=whole.processing_class
    )
    again.train(resume_from_checkpoint=Path(whole.args.output_dir) / "checkpoint-3")
    assert weights_hash(again.model) == weights_hash(whole.model)


def two_adapters() -> Any:
    model = adapted()
    model.add_adapter("second", peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"]))
    for part in model.modules():
        if type(part).__name__ == "Linear" and hasattr(part, "lora_A") and "second" in part.lora_A:
            part.set_adapter(["default", "second"])
    return model


def hooked() -> Any:
    model = adapted()
    layers_of(base_of(model))[0].module.attention.self.query.register_forward_hook(lambda *given: None)
    return model


def lora_with(**options: Any) -> Callable[[], Any]:
    return lambda: adapted(**options)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lora_with(use_dora=True), "the adapter is not plain LoRA"),
        (lora_with(bias="all"), "some weights of a layer are frozen and others are not"),
        (two_adapters, "not exactly one adapter is active"),
        (hooked, "has hooks"),
        (lambda: frozen("query.weight"), "some weights of a layer are frozen and others are not"),
        (lambda: frozen("word_embeddings"), "some weights of a layer are frozen and others are not"),
    ],
)
def test_what_has_no_fast_form_is_named(make: Callable[[], Any], why: str) -> None:
    assert why in str(why_not_packed(make()))


def test_weights_that_are_unfrozen_during_training_are_refused(train) -> None:
    from glassloop.base.errors import SettingsError
    from glassloop.training.callbacks import Callback

    class Unfreeze(Callback):
        def on_step(self, state: Any, batches: Any) -> None:
            next(iter(layers_of(model)[0].matrices))[0].requires_grad = True

    model = frozen("layer.0")
    trainer = train(model, max_steps=1)
    trainer.callbacks = [Unfreeze()]
    trainer.args.max_steps = 3
    model.requires_grad_(True)
    for weight in model.base_model.encoder.layer[0].parameters():
        weight.requires_grad = False
    with pytest.raises(SettingsError, match="weights were unfrozen during training"):
        trainer.train(restart=True)
