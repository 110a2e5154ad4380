"""Models with a LoRA adapter: trained on all columns, resumed bit-identical, and saved so that they load like any model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model, weights_hash
from safetensors.torch import load_file

from glassloop import Callback, Predictor, Trainer, TrainingArguments, load_model
from glassloop.base.errors import ModelError
from glassloop.models.interface import ADAPTER_DIR, base_of, merged

peft = pytest.importorskip("peft")
TARGETS = {
    "bert": ["query", "value", "intermediate.dense"],
    "distilbert": ["q_lin", "v_lin", "lin1"],
    "deberta-v2": ["query_proj", "value_proj"],
    "modernbert": ["Wqkv", "Wi"],
}


def adapted(family: str = "bert", seed: int = 5, **options: Any) -> Any:
    """A tiny model around which a LoRA adapter is wrapped; its head is trained too."""
    model = tiny_model(family, initializer_range=0.3)
    torch.manual_seed(seed)
    settings = {"r": 4, "lora_dropout": 0.1, "target_modules": TARGETS[family], **options}
    return peft.get_peft_model(model, peft.LoraConfig(task_type=peft.TaskType.SEQ_CLS, **settings))


@pytest.fixture
def trainer_of(few, tiny_tokenizer, tmp_path: Path):
    def make(model: Any, folder: str = "run", **settings: Any) -> Trainer:
        defaults = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "device": "cpu"}
        defaults |= {"precision": "fp32", "save_strategy": "steps", "save_steps": 2, "disable_tqdm": True}
        args = TrainingArguments(tmp_path / folder, **defaults | settings)
        return Trainer(model, args, train_dataset=few["train"], eval_dataset=few["validation"], processing_class=tiny_tokenizer)

    return make


def optimizer_of_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint-6" / "optimizer.safetensors")


def logits_of(trainer: Trainer) -> np.ndarray:
    return trainer.predict(trainer.eval_dataset).predictions


def test_pairs_keep_their_token_types(trainer_of, capsys: pytest.CaptureFixture[str]) -> None:
    """`PeftModel.forward` takes anything: what the model takes is said by the model inside."""
    trainer = trainer_of(adapted())
    batch = next(trainer._batches(trainer.train_dataset, training=True).epoch())
    assert "token_type_ids" in batch.inputs
    assert "token_type_ids" not in capsys.readouterr().err
    assert base_of(trainer.model) is trainer.model.base_model.model
    assert base_of(plain := tiny_model()) is plain


@pytest.mark.parametrize("best", [False, True], ids=["last", "best"])
def test_a_resumed_training_is_bit_identical(best: bool, trainer_of, tmp_path: Path) -> None:
    settings = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2} if best else {}

    class Stop(Callback):
        def on_step(self, state: Any, batches: list[Any]) -> None:
            if state.step == 3:
                raise KeyboardInterrupt

    whole = trainer_of(adapted(), "whole", **settings)
    whole.train()
    stopped = trainer_of(adapted(), "stopped", **settings)
    stopped.callbacks = [Stop()]
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    resumed = trainer_of(adapted(seed=99), "stopped", **settings)  # other fresh weights: the checkpoint's must be used
    resumed.train(resume_from_checkpoint=True)
    assert weights_hash(resumed.model) == weights_hash(whole.model)
    then, now = optimizer_of_checkpoint(tmp_path / "whole"), optimizer_of_checkpoint(tmp_path / "stopped")
    assert then.keys() == now.keys()
    assert all(then[name].equal(now[name]) for name in then)
    assert resumed.state.history[-1].get("loss") == whole.state.history[-1].get("loss")
    assert all("lora_" in name or "modules_to_save" in name for name in then), "frozen weights have no state"


def test_a_saved_model_and_a_checkpoint_load_like_any_model_and_the_adapter_alone(trainer_of, tiny_tokenizer, tmp_path) -> None:
    trainer = trainer_of(adapted())
    before = weights_hash(tiny_model(initializer_range=0.3))
    trainer.train()
    wanted, trained = logits_of(trainer), weights_hash(trainer.model)
    trainer.save_model(tmp_path / "saved")
    assert weights_hash(trainer.model) == trained, "saving changed the model"
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        *(ADAPTER_DIR, "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    loaded = load_model(tmp_path / "saved")
    assert type(loaded).__name__ == "BertForSequenceClassification"
    assert loaded.state_dict().keys() == tiny_model().state_dict().keys()
    np.testing.assert_allclose(logits_of(trainer_of(loaded)), wanted, atol=1e-5)
    found = Predictor(tmp_path / "saved", device="cpu").predict("the film", "a story")[0]
    inputs = tiny_tokenizer("the film", "a story", return_tensors="pt")
    np.testing.assert_allclose(found.logits, trainer.model.eval()(**inputs).logits[0].tolist(), atol=1e-5)
    base = tiny_model(initializer_range=0.3)
    assert weights_hash(base) == before
    again = peft.PeftModel.from_pretrained(base, tmp_path / "saved" / ADAPTER_DIR)
    assert np.array_equal(logits_of(trainer_of(again)), wanted), "the adapter beside the model is exact"
    assert json.loads((tmp_path / "saved" / ADAPTER_DIR / "adapter_config.json").read_text())["peft_type"] == "LORA"
    folder = tmp_path / "run" / "checkpoint-6"
    np.testing.assert_allclose(logits_of(trainer_of(load_model(folder))), wanted, atol=1e-5)
    assert load_file(folder / "weights.safetensors").keys() == trainer.model.state_dict().keys()
    trainer_of(tiny_model(), "plain").train()
    assert not [*(tmp_path / "plain").rglob("weights.safetensors")], "without an adapter, weights are stored once"


@pytest.mark.parametrize("family", TARGETS)
def test_merged_weights_give_the_answers_of_the_adapter(family: str) -> None:
    model = adapted(family, init_lora_weights=False).eval()
    before = weights_hash(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    whole = merged(model, weights).eval()
    assert whole.state_dict().keys() == tiny_model(family).state_dict().keys()
    ids = torch.tensor([[2, 9, 14, 11, 3], [2, 7, 8, 12, 3]])
    wanted, found = (answering(input_ids=ids).logits for answering in (model, whole))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    with model.disable_adapter():
        assert not torch.allclose(model(input_ids=ids).logits, wanted, atol=1e-3), "the adapter does nothing here"
    assert weights_hash(model) == before
    assert all(value.equal(model.state_dict()[name]) for name, value in weights.items()), "the snapshot was changed"


def test_an_adapter_that_could_not_be_saved_whole_is_refused_before_training(says, trainer_of) -> None:
    config = peft.PromptTuningConfig(task_type=peft.TaskType.SEQ_CLS, num_virtual_tokens=4)
    trainer = trainer_of(peft.get_peft_model(tiny_model(), config))
    problem = "the adapter (PROMPT_TUNING) cannot be merged into its model, so the trained model could not be saved"
    with says(problem, "use an adapter that can be merged, such as LoRA", ModelError):
        trainer.train()
    assert trainer.state.step == 0
    model = tiny_model()
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["query"]))  # its `save_pretrained` writes the adapter alone
    remedy = "wrap the model instead: model = peft.get_peft_model(model, config)"
    with says("the model contains an adapter that was added with add_adapter", remedy, ModelError):
        trainer_of(model).train()
