"""Exported models: the right device and threads, and errors for what is not there or damaged."""

from __future__ import annotations

import builtins
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_folders import RECORD

from glassloop.base.errors import ModelError, SettingsError
from glassloop.models.exported import ExportedModel, device_of, onnx_runner
from glassloop.runs.export import ExportRecord


def record_of(kind: str) -> ExportRecord:
    return ExportRecord(kind, "regression", None, 64, ("input_ids",), "mrpc", RECORD)


@pytest.mark.parametrize(
    ("kind", "given", "device"),
    [("onnx", "auto", "cpu"), ("onnx-int8", "auto", "cpu"), ("torch", "auto", "auto"), ("onnx", "cuda", "cuda")],
)
def test_onnx_runs_on_the_cpu_unless_a_device_is_named(kind: str, given: str, device: str) -> None:
    assert device_of(record_of(kind), given) == device


def test_a_model_gets_its_inputs_in_their_order() -> None:
    seen: list[str] = []

    def run(inputs):
        seen.extend(inputs)
        return torch.zeros(2, 3)

    config = SimpleNamespace(num_labels=3)
    model = ExportedModel(config, run, ("attention_mask", "input_ids"), "onnxruntime", Path("model.onnx"))
    found = model(input_ids=torch.ones(2, 4), attention_mask=torch.ones(2, 4), token_type_ids=torch.ones(2, 4))
    assert found.logits.shape == (2, 3)
    assert seen == ["attention_mask", "input_ids"]
    assert not model.training


@pytest.mark.parametrize(
    ("inputs", "run", "problem"),
    [
        (
            ("nothing",),
            torch.zeros(2, 3),
            'export.json: the model needs the input "nothing", but the tokenizer produces input_ids',
        ),
        ((), torch.zeros(2, 3), None),
        (("input_ids",), torch.zeros(2, 4), "model.pt2: the exported model does not return 3 logits per row"),
        (("input_ids",), torch.zeros(3), "model.pt2: the exported model does not return 3 logits per row"),
        (("input_ids",), torch.zeros(2, 3).long(), "model.pt2: the exported model does not return 3 logits per row"),
        (("input_ids",), RuntimeError("two\nlines"), "model.pt2: the exported model cannot be run: two lines"),
    ],
)
def test_a_model_that_does_not_fit_its_record(inputs: tuple[str, ...], run: object, problem: str | None) -> None:
    def answer(_: object) -> torch.Tensor:
        if isinstance(run, Exception):
            raise run
        return run  # type: ignore[return-value]

    model = ExportedModel(SimpleNamespace(num_labels=3), answer, inputs, "torch.export", Path("model.pt2"))
    if problem is None:
        assert model(input_ids=torch.ones(2, 4)).logits.shape == (2, 3)
        return
    with pytest.raises(ModelError) as caught:
        model(input_ids=torch.ones(2, 4))
    assert caught.value.problem == problem
    assert caught.value.remedy == "restore the folder from a copy, or export the run again"


def test_onnx_on_a_gpu(says, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with says(f"{path}: an ONNX export runs on the CPU here, not on cuda", "use --device cpu"):
        onnx_runner(path, torch.device("cuda"))


def test_a_missing_runtime(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name == "onnxruntime":
            raise ModuleNotFoundError("No module named 'onnxruntime'", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    path = tmp_path / "model.onnx"
    with says(f"{path}: an ONNX export needs the package onnxruntime", 'pip install "glassloop[onnx]"', SettingsError):
        onnx_runner(path, torch.device("cpu"))


def test_a_damaged_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError) as caught:
        onnx_runner(path, torch.device("cpu"))
    assert caught.value.problem.startswith(f"{path}: the exported model cannot be loaded: ")
