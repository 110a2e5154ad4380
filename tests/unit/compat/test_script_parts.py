"""A script's loss, prediction step and loader as parts of the loop: sums of rows, shares of processes, skipped batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import SettingsError
from glassloop.compat.trainer import (
    LoaderBatches,
    adds_up_batches,
    fits_classes,
    in_batches,
    is_bare,
    is_own,
    logits_of,
    named_count,
    overrides,
    with_config,
)
from glassloop.models.interface import config_of
from glassloop.trainer import EvalPrediction


def batch(rows: int = 4, labels: bool = True) -> Any:
    known = torch.arange(rows).float() if labels else None
    return SimpleNamespace(inputs={"x": torch.ones(rows, 1)}, labels=known, numbers=range(rows))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=x * 3)


def mean(model: Any, inputs: Any, return_outputs: bool = False) -> Any:
    labels = inputs.pop("labels")
    found = model(**inputs)
    loss = (found.logits[:, 0] - labels).mean()
    return (loss, found) if return_outputs else loss


def by_count(model: Any, inputs: Any, return_outputs: bool = False, *, num_items_in_batch: int) -> Any:
    labels = inputs.pop("labels")
    return (model(**inputs).logits[:, 0] - labels).sum() / num_items_in_batch


@pytest.fixture
def make(tmp_path) -> Any:
    """A Trainer of a plain module with methods of a script."""

    def made(callbacks: Any = (), **methods: Any) -> Any:
        trainer = Trainer(Model(), TrainingArguments(tmp_path, device="cpu"), callbacks=[*callbacks])
        for name, method in methods.items():
            setattr(trainer, name, method)
        return trainer

    return made


@pytest.mark.parametrize("compute_loss", [mean, by_count])
def test_a_mean_becomes_a_sum(make, compute_loss: Any) -> None:
    assert make(compute_loss=compute_loss)._batch_loss(Model(), batch()).item() == 12 - 6


def test_only_functions_that_name_the_count_get_it() -> None:
    assert named_count(mean, None, 3) == {}
    assert named_count(by_count, None, 0) == {"num_items_in_batch": 1}
    assert named_count(by_count, torch.tensor([1, -100, 0]), 3)["num_items_in_batch"].item() == 2


def test_a_loss_that_is_no_tensor_is_refused(make) -> None:
    with pytest.raises(SettingsError, match="compute_loss returned a float"):
        make(compute_loss=lambda model, inputs: 1.0)._batch_loss(Model(), batch())


def test_a_prediction_has_the_sum_the_logits_and_the_labels(make) -> None:
    predict = make(compute_loss=mean)._predict_batch()
    loss, logits, labels = predict(Model(), batch())
    assert (loss.item(), logits.shape, labels.tolist()) == (6, (4, 1), [0, 1, 2, 3])
    assert predict(Model(), batch(labels=False))[0] is None
    with pytest.raises(SettingsError, match="ignores return_outputs"):
        make(compute_loss=by_count)._predict_batch()(Model(), batch())


def test_a_prediction_step_and_a_change_of_its_logits(make) -> None:
    def step(model: Any, inputs: Any, loss_only: bool, ignore_keys: Any) -> Any:
        return torch.tensor(2.0), (inputs["x"],), inputs["labels"]

    def added(logits: Any, labels: Any) -> Any:
        return logits[0][:, 0] + labels

    trainer = make(prediction_step=step)
    assert trainer._predict_batch()(Model(), batch())[0].item() == 8
    trainer.preprocess_logits_for_metrics = added
    assert trainer._predict_batch()(Model(), batch())[1].tolist() == [1, 2, 3, 4]
    with pytest.raises(SettingsError, match="returned no logits"):
        make(prediction_step=lambda *given: (None, None, None))._predict_batch()(Model(), batch())


def test_callbacks_are_told_after_each_batch(make) -> None:
    events: list[str] = []

    class Watching(TrainerCallback):
        def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            events.append("told")

    def step(*given: Any) -> Any:
        events.append("predicted")
        return None, torch.ones(4, 1), None

    make([Watching], prediction_step=step)._predict_batch()(Model(), batch())
    assert events == ["predicted", "told"]


def test_logits_are_found_in_any_outputs() -> None:
    logits = torch.ones(2, 3)
    for outputs in (
        logits,
        {"loss": 1, "scores": logits},
        {"logits": logits},
        SimpleNamespace(logits=logits),
        (torch.tensor(1.0), logits),
    ):
        assert logits_of(outputs) is logits
    with pytest.raises(SettingsError, match="no logits"):
        logits_of({})


def test_overriding_is_noticed_in_a_class_and_on_an_object() -> None:
    base = type("Base", (), {"a": lambda self: 1})
    found = base()
    assert not overrides(found, base, "a")
    found.a = lambda: 2
    assert overrides(found, base, "a")
    assert overrides(type("Sub", (base,), {"a": lambda self: 3})(), base, "a")


def loader(rows: int = 10) -> DataLoader[Any]:
    return DataLoader([{"x": torch.tensor([float(row)]), "labels": row} for row in range(rows)], batch_size=4)


def test_a_loader_gives_each_process_its_share_of_each_batch() -> None:
    whole = [*LoaderBatches(loader()).epoch()]
    shares = [[*LoaderBatches(loader(), rank, 2).epoch()] for rank in (0, 1)]
    for place, one in enumerate(whole):
        rows = torch.cat([share[place].inputs["x"][: len(share[place].numbers)] for share in shares]).flatten().tolist()
        assert sorted(rows) == one.inputs["x"].flatten().tolist()
        assert {share[place].size for share in shares} == {one.size}


def test_a_resumed_epoch_skips_batches_and_an_evaluation_takes_whole_ones() -> None:
    batches = LoaderBatches(loader())
    assert [found.numbers.tolist() for found in batches.epoch(skip=2)] == [[8, 9]]
    assert [found.numbers.tolist() for found in batches.whole(1, 2)] == [[4, 5, 6, 7]]
    assert len(batches) == len(batches.order()) == 3
    assert batches.first_labels().tolist() == [0, 1, 2, 3]
    assert len(batches.row_hashes()) == 0
    with pytest.raises(SettingsError, match="has no length"):
        len(LoaderBatches(iter([])))
    assert len(LoaderBatches(iter([]), num_batches=7)) == 7


def test_metrics_are_computed_batch_by_batch() -> None:
    seen: list[tuple[int, bool]] = []

    def compute(found: EvalPrediction, compute_result: bool) -> dict[str, float]:
        assert isinstance(found.predictions, torch.Tensor)
        seen.append((len(found.predictions), compute_result))
        return {"batches": float(len(seen))}

    assert in_batches(compute, EvalPrediction(np.zeros((5, 2)), np.zeros(5)), 2) == {"batches": 3.0}
    assert seen == [(2, False), (2, False), (1, True)]


def test_models_whose_losses_transformers_adds_up_are_known() -> None:
    """Its Trainer reports so: a step of two batches of BERT logs twice the loss."""

    class Divides(Model):
        accepts_loss_kwargs = False

        def forward(self, x: torch.Tensor, **others: Any) -> SimpleNamespace:
            return SimpleNamespace(logits=x)

    assert not adds_up_batches(Model())
    assert not adds_up_batches(Divides())
    assert adds_up_batches(tiny_model())


@pytest.mark.parametrize(("batches", "lines"), [(1, 0), (2, 1)])
def test_a_step_of_several_batches_says_what_its_loss_is(batches: int, lines: int, tmp_path, capsys) -> None:
    rows = [{"input_ids": [2, 7 + number, 3], "labels": number % 2} for number in range(8)]
    args = TrainingArguments(
        tmp_path, max_steps=1, gradient_accumulation_steps=batches, save_strategy="no", device="cpu", disable_tqdm=True
    )
    Trainer(model=tiny_model(), args=args, train_dataset=rows).train(report=False)
    assert capsys.readouterr().err.count("transformers' Trainer logs their sum") == lines


@pytest.mark.parametrize(("size", "lines"), [(16, 0), (32, 1)])
def test_the_batches_of_an_evaluation_are_named_if_a_loss_may_depend_on_them(size: int, lines: int, tmp_path, capsys) -> None:
    rows = [{"input_ids": [2, 7 + number, 3], "labels": number % 2} for number in range(9)]
    args = TrainingArguments(tmp_path, per_device_eval_batch_size=size, device="cpu", disable_tqdm=True)

    class Mine(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            found = model(**inputs)
            return (found.loss, found) if return_outputs else found.loss

    Mine(model=tiny_model(), args=args, eval_dataset=rows).evaluate()
    assert capsys.readouterr().err.count("the default of transformers is 8") == lines


# --- Plain torch modules get a config, which is no part of them, and are saved as weights.


def test_a_plain_module_gets_a_config_with_its_number_of_labels() -> None:
    module = with_config(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)))
    assert is_bare(module)
    assert (module.config.num_labels, module.config.id2label[2]) == (3, "LABEL_2")
    assert module.config.to_dict() == {"num_labels": 3}


def test_a_config_of_a_plain_module_may_be_of_any_kind() -> None:
    for config in ({"width": 8}, tiny_model().config, "small"):
        module = torch.nn.Linear(4, 3)
        module.config = config
        assert is_bare(with_config(module))
        assert module.config is config
        assert config_of(module).num_labels == 3


def test_a_model_of_transformers_keeps_its_config() -> None:
    model = tiny_model()
    assert with_config(model) is model
    assert not is_bare(model)


def test_its_weights_are_saved(tmp_path: Path) -> None:
    trainer = Trainer(torch.nn.Linear(2, 2), TrainingArguments(tmp_path, device="cpu"))
    trainer.save_model(tmp_path / "new")
    assert torch.equal(load_file(tmp_path / "new" / "model.safetensors")["weight"], trainer.model.weight)
    trainer.write_model(tmp_path, {"weight": torch.zeros(2)})
    assert load_file(tmp_path / "model.safetensors")["weight"].tolist() == [0, 0]


def test_a_class_of_a_script_has_its_own_loss_and_labels() -> None:
    assert is_own(with_config(torch.nn.Linear(2, 2)))
    assert not is_own(tiny_model())
    assert not is_own(type("Mine", (type(tiny_model()),), {})(tiny_model().config))


def test_which_labels_are_those_of_a_classifier() -> None:
    assert fits_classes(torch.tensor([0, 1]))
    assert fits_classes(torch.ones(2, 3))
    assert not fits_classes(torch.tensor([0.5, 1.0]))
    assert not fits_classes(None)
    assert not fits_classes(torch.tensor([0, 1]), np.zeros(2))
