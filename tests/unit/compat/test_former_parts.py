"""The optimizer, metrics, functions and data that stand for those of earlier versions compute what they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny_model

from glassloop.base.errors import SettingsError
from glassloop.compat import former_functions, loading
from glassloop.compat.former_functions import AdamW, pad_sequences, warmup_linear_schedule
from glassloop.compat.library_changes import accelerator_arguments, arguments_today, is_unpacking, resolved
from glassloop.compat.substitution import LEDGER

pytestmark = pytest.mark.usefixtures("ledger")


# --- AdamW
@pytest.mark.parametrize("correct_bias", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_follows_the_former_formula(correct_bias: bool, decay: float) -> None:
    """Bias is corrected in the step size, so that eps is not; decay comes after the update, times the learning rate."""
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = AdamW([weight], lr=0.1, weight_decay=decay, correct_bias=correct_bias)
    expected, mean, square = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step in range(1, 4):
        gradient = np.array([0.5 * step, -0.25])
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        size = 0.1 * (np.sqrt(1 - 0.999**step) / (1 - 0.9**step) if correct_bias else 1)
        expected = expected - size * mean / (np.sqrt(square) + 1e-6)
        expected = expected - 0.1 * decay * expected
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)


def test_adamw_takes_groups_closures_and_parameters_without_gradients() -> None:
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = AdamW([{"params": [used], "weight_decay": 0.5}, {"params": [unused]}], 0.1, (0.8, 0.9), 1e-8)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (used * 3).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 6.0
    assert (used < 1).all()
    assert unused.tolist() == [1, 1]
    again = AdamW([{"params": [used]}, {"params": [unused]}])
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["betas"] == (0.8, 0.9)
    with pytest.raises(ValueError, match="lr"):
        AdamW([used], lr=-1)


def test_the_former_schedule_falls_to_zero() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = warmup_linear_schedule(optimizer, warmup_steps=1, t_total=3)
    rates = []
    for _ in range(3):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == [0.0, 1.0, 0.5]


# --- arguments
def test_arguments_of_tokenizers_and_of_an_accelerator() -> None:
    padded = {"pad_to_max_length": True}
    for given, expected in (
        ({**padded, "max_length": 8}, {"padding": "max_length", "max_length": 8, "truncation": True}),
        (padded, {"padding": "max_length"}),
        ({"pad_to_max_length": False}, {}),
        ({**padded, "padding": "longest"}, {"padding": "longest"}),
        ({**padded, "max_length": 8, "truncation": 0}, {"padding": "max_length", "max_length": 8, "truncation": 0}),
        ({"is_pretokenized": True}, {"is_split_into_words": True}),
        ({"truncation_strategy": "only_first"}, {"truncation": "only_first"}),
        ({"truncation": True}, {"truncation": True}),
    ):
        LEDGER.substitutions.clear()
        assert arguments_today(dict(given)) == expected
        assert bool(LEDGER.substitutions) is (given != {"truncation": True})
    found = accelerator_arguments({"fp16": True, "dispatch_batches": False, "logging_dir": "logs", "cpu": True})
    assert [found[name] for name in ("mixed_precision", "project_dir", "cpu")] == ["fp16", "logs", True]
    assert found["dataloader_config"].dispatch_batches is False
    assert accelerator_arguments({"fp16": False}) == {}


def test_only_an_unpacking_is_an_unpacking() -> None:
    import sys

    class Watched:
        def __iter__(self) -> Iterator[bool]:
            return iter([is_unpacking(sys._getframe(1))] * 2)

    first, _ = Watched()
    assert first
    assert not any(value for value in Watched())
    assert not [*Watched()][0]  # noqa: RUF015 - the list is what is tested


def test_a_model_is_replaced_only_if_the_map_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("glassloop.compat.library_changes.why_offline", lambda: None)
    load = resolved(lambda kind, name, **named: seen.append(name), {"bert-base-uncased": str(tmp_path)})
    load(object, "bert-base-uncased")
    load(object, "roberta-base")
    load(object, str(tmp_path))
    assert seen == [str(tmp_path), "roberta-base", str(tmp_path)]
    assert [*LEDGER.substitutions] == ['model "bert-base-uncased"']


def test_settings_of_transformers_under_former_names(tmp_path: Path) -> None:
    from glassloop.compat.former_functions import Trainer, TrainingArguments

    former = {"evaluation_strategy": "steps", "no_cuda": True, "group_by_length": True, "warmup_ratio": 0.1}
    args = TrainingArguments(str(tmp_path), overwrite_output_dir=True, **former)
    today = (args.eval_strategy, args.use_cpu, args.train_sampling_strategy, args.warmup_steps)
    assert today == ("steps", True, "group_by_length", 0.1)
    assert "TrainingArguments(evaluation_strategy=)" in LEDGER.substitutions
    trainer = Trainer(tiny_model(), args, eval_dataset=[], tokenizer=None, tb_writer=object())
    assert trainer.processing_class is None
    with pytest.raises(TypeError):
        TrainingArguments(str(tmp_path), unheard_of=1)


# --- metrics and data
def test_metrics_take_rows_by_place_and_by_name_and_one_that_nobody_has_is_an_error() -> None:
    metric = loading.load_metric("glue", "mrpc", cache_dir="x", experiment_id="y")
    metric.add_batch([1, 0], [1, 1])
    metric.add(prediction=1, reference=1)
    assert metric.compute() == {"accuracy": pytest.approx(2 / 3), "f1": pytest.approx(0.8)}
    assert metric.compute([1, 0], [1, 0]) == {"accuracy": 1.0, "f1": 1.0}
    combined = loading.combine(["accuracy", loading.load("f1")])
    combined.add_batch(references=[0, 1, 2], predictions=[0, 1, 1])
    combined.add(2, 2)
    assert combined.compute(average="macro").keys() == {"accuracy", "f1"}
    assert [*LEDGER.substitutions] == ['load_metric("glue", "mrpc")', 'evaluate.load("f1")', 'evaluate.load("accuracy")']
    with pytest.raises(SettingsError, match="seqeval"):
        loading.load_metric("seqeval")


def test_splits_may_be_slices_and_arguments_of_load_dataset_that_are_gone_are_dropped(tmp_path: Path) -> None:
    from datasets import Dataset

    splits = {"train": Dataset.from_dict({"x": [*range(10)]}), "test": Dataset.from_dict({"x": [10, 11]})}
    assert loading.chosen(splits, "train[:20%]")["x"][:] == [0, 1]
    assert loading.chosen(splits, "train[8:]+test")["x"][:] == [8, 9, 10, 11]
    assert [len(rows) for rows in loading.chosen(splits, ["train", "test"])] == [10, 2]
    assert loading.chosen(splits, "test") is splits["test"]
    (tmp_path / "rows.csv").write_text("text,label\na,1\n")
    found = loading.load_dataset("csv", data_files=str(tmp_path / "rows.csv"), split="train", trust_remote_code=False)
    assert found["text"][:] == ["a"]
    assert [*LEDGER.substitutions] == ["load_dataset(trust_remote_code=)"]


def test_rows_for_glue_are_encoded_with_labels() -> None:
    examples = [former_functions.InputExample("0", "a film", "a movie", "1"), former_functions.InputExample("1", "b")]
    encode = lambda text, pair, **named: {"input_ids": [1] * named["max_length"], "attention_mask": [1]}  # noqa: E731
    rows = former_functions.glue_convert_examples_to_features(examples, encode, 4, "mrpc", ["0", "1"])  # type: ignore[arg-type]
    assert dict(rows[0]) == {"input_ids": [1] * 4, "attention_mask": [1], "label": 1}
    assert (len(rows[0]), sorted(rows[0]), rows[1].label) == (3, ["attention_mask", "input_ids", "label"], None)
    with pytest.raises(SettingsError, match="label_list"):
        former_functions.glue_convert_examples_to_features(examples, encode)  # type: ignore[arg-type]
    assert former_functions.glue_tasks_num_labels["sts-b"] == 1
    assert former_functions.glue_output_modes["sts-b"] == "regression"
    assert former_functions.glue_compute_metrics("mrpc", [1, 0], [1, 1])["acc_and_f1"] == pytest.approx((0.5 + 2 / 3) / 2)


def test_functions_of_scikit_learn_and_keras() -> None:
    labels = [0, 0, 0, 1]
    assert former_functions.compute_class_weight("balanced", np.array([0, 1]), labels).tolist() == pytest.approx([2 / 3, 2])
    assert former_functions.compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)[1] == 2
    assert former_functions.mean_squared_error([1, 2], [1, 4], squared=False) == pytest.approx(2**0.5)
    assert former_functions.mean_squared_error([1, 2], [1, 4]) == 2
    rows = [[1, 2, 3], [4]]
    assert pad_sequences(rows, maxlen=2).tolist() == [[2, 3], [0, 4]]
    assert pad_sequences(rows, maxlen=2, padding="post", truncating="post", value=9).tolist() == [[1, 2], [4, 9]]
    assert pad_sequences(rows).shape == (2, 3)
