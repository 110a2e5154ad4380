"""Runs of the command with LoRA: the model of the run folder, its adapter, a resume, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from glassloop import Predictor, load_model
from glassloop.base.errors import SettingsError
from glassloop.data.columns import LabelSet
from glassloop.models.pooled import PooledClassifier, Pooling
from glassloop.runs.record import read_run
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run
from glassloop.training import session

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.slow  # trains: make test runs it, make test-fast does not

ROWS = "text,label\n" + "".join(f"{'good' if n % 3 else 'bad'} film {n},{'pos' if n % 3 else 'neg'}\n" for n in range(30))
COMMON = {
    "adapter": "lora",
    "lora_r": 4,
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "device": "cpu",
}
COMMON |= {"precision": "fp32", "disable_tqdm": True, "baselines": False, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture
def trained(tmp_path: Path, lively_dir: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(session_cache))
    (tmp_path / "rows.csv").write_text(ROWS)

    def made(name: str, *, resume: bool = False, **settings: object) -> Path:
        if resume:
            return train_run(GivenSettings(None, None), resume=str(tmp_path / name))
        given = {**COMMON, "output_dir": str(tmp_path / name), **settings}
        train_run(GivenSettings(str(tmp_path / "rows.csv"), str(lively_dir), given, {}))
        return tmp_path / name

    return made


@pytest.mark.parametrize("pooling", ["mean", "head"])
def test_the_model_of_a_run_needs_no_peft_and_its_adapter_has_the_same_answers(trained, lively_dir: Path, pooling: str) -> None:
    run = trained("run", pooling=pooling)
    record = read_run(run)
    assert (record.backend, record.settings.adapter, record.finished) == ("packed", "lora", True)
    rows = [json.loads(line) for line in (run / "validation-predictions.jsonl").read_text().splitlines()]
    wanted = np.array([row["logits"] for row in rows])
    found = Predictor(run, device="cpu").predict([row["text"] for row in rows])
    np.testing.assert_allclose([one.logits for one in found], wanted, atol=1e-4)
    base = load_model(
        lively_dir, labels=LabelSet(("neg", "pos")), seed=3, pooling=Pooling("mean") if pooling == "mean" else None
    )
    assert isinstance(base, PooledClassifier) == (pooling == "mean")
    adapted = peft.PeftModel.from_pretrained(base, run / "model" / "adapter").eval()
    inputs = Predictor(run, device="cpu").tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(adapted(**inputs).logits.numpy(), wanted, atol=1e-4)
    trained_weights = [
        name for name in load_file(run / "model" / "adapter" / "adapter_model.safetensors") if "lora_" not in name
    ]
    assert trained_weights, "the head is saved with the adapter"


def test_a_stopped_run_resumes_bit_identical(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained("whole")
    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "save_final_model", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trained("stopped")
    shutil.rmtree(whole.parent / "stopped" / "checkpoint-4")
    stopped = trained("stopped", resume=True)
    assert read_run(stopped).backend == "packed"
    one, other = (load_file(run / "model" / "model.safetensors") for run in (whole, stopped))
    assert {name: float((one[name] - other[name]).abs().max()) for name in one if not torch.equal(one[name], other[name])} == {}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"method": "frozen"}, "method frozen takes no steps, so an adapter has no effect"),
        ({"adapter": "none"}, "lora_r without an adapter has no effect"),
        (
            {"lora_target_modules": "query,nothing"},
            "lora_target_modules names nothing, which is no linear layer of the encoder",
        ),
        ({"lora_r": 0}, "lora_r is 0, not 1 or more"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0"),
    ],
)
def test_what_is_refused(trained, settings: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        trained("run", **settings)
