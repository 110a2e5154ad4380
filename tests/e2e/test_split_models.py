"""FSDP on the CPU, in one process and in two: the numbers, checkpoints and models of one plain process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trials import Servers

sys.path.insert(0, str(Path(__file__).parent))

from train_split import figures_of, make_rows, make_trainer, with_own_optimizer

SCRIPT = Path(__file__).with_name("train_split.py")
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "NoSuchLayer", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FSDP_OFFLOAD_PARAMS": "true", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
NUMBERS = pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.exhaustive)])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The trainings of one plain process."""
    folder = tmp_path_factory.mktemp("plain")
    trainer = make_trainer(folder / "still", backend="plain")
    trainer.train()
    trainer.save_model(folder / "final")
    found = {"still": figures_of(trainer)}
    trainer = with_own_optimizer(folder / "own")
    trainer.train()
    return folder, {**found, "own": figures_of(trainer)}


class SplitRuns(dict[int, Any]):
    """Folder, what each process has found, and what was said, by the number of processes; started when first asked for."""

    def __init__(self, plain: Path, folders: pytest.TempPathFactory, servers: Servers) -> None:
        super().__init__()
        self.plain, self.folders, self.servers = plain, folders, servers

    def __missing__(self, number: int) -> Any:
        folder = self.folders.mktemp(f"split-{number}")
        arguments = [folder, self.plain / "still/checkpoint-4"]
        ended = [trial.wait(300) for trial in self.servers.start_group(number, *arguments, script=SCRIPT, **FSDP)]
        assert not any(end.code for end in ended), "\n".join(end.err[-4000:] for end in ended)
        found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(number)]
        self[number] = folder, found, [line for end in ended for line in end.lines]
        return self[number]


@pytest.fixture(scope="module")
def split(plain: tuple[Path, Any], servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> SplitRuns:
    return SplitRuns(plain[0], tmp_path_factory, servers)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Losses, norms, evaluations and predictions to 1e-6: of 1, or of themselves where they are larger."""
    for name in ("steps", "evaluations", "many", "few"):
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(expected[name]), rtol=1e-6, atol=1e-6, msg=name)


def same_tensors(found: Path, expected: Path) -> None:
    one, two = load_file(found), load_file(expected)
    kinds = [{name: (value.shape, value.dtype) for name, value in values.items()} for values in (one, two)]
    assert kinds[0] == kinds[1]
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-6, atol=1e-7, msg=name)


@NUMBERS
def test_losses_norms_evaluations_and_predictions_are_those_of_one_process(split, plain, number: int) -> None:
    """Accumulated batches, clipping, a batch with fewer rows than processes, evaluations with fewer batches."""
    for found in split[number][1]:
        assert found["kind"] == ["FSDPBackend", "BertForSequenceClassification", "fp32"]
        assert len(found["still"]["steps"]) == 12
        assert [rows for _, rows in found["still"]["evaluations"]] == [13] * 4
        same(found["still"], plain[1]["still"])
    if number == 1:  # nothing is added up in another order
        assert split[1][1][0]["still"] == plain[1]["still"]


@NUMBERS
def test_the_model_is_split_while_it_trains_and_whole_afterwards(split, number: int) -> None:
    for found in split[number][1]:
        assert found["plain"] == ["Parameter"]
        assert found["share"] == pytest.approx(1 / number, abs=0.02)
        assert found["still"]["weights"] == split[number][1][0]["still"]["weights"]
        share, weights = found["again"]  # a second training of the same Trainer
        assert share == found["share"]
        assert weights == split[number][1][0]["again"][1] != found["still"]["weights"]


@NUMBERS
def test_the_saved_model_is_the_whole_best_one(split, plain, number: int) -> None:
    folder = split[number][0]
    same_tensors(folder / "final/model.safetensors", plain[0] / "final/model.safetensors")
    last = load_file(folder / "still/checkpoint-12/model.safetensors")
    best = load_file(folder / "final/model.safetensors")
    assert any(not torch.allclose(value, last[name], rtol=0, atol=1e-6) for name, value in best.items())
    model, tokenizer = (kind.from_pretrained(folder / "final") for kind in (AutoModelForSequenceClassification, AutoTokenizer))
    rows = [{name: row[name] for name in ("input_ids", "token_type_ids", "attention_mask")} for row in make_rows(3)]
    with torch.no_grad():
        logits = model.eval()(**tokenizer.pad(rows, return_tensors="pt")).logits
    torch.testing.assert_close(logits, torch.tensor(split[number][1][0]["still"]["few"]), rtol=1e-6, atol=1e-6)


@NUMBERS
@pytest.mark.parametrize("step", [4, 12])
def test_a_checkpoint_has_the_same_form_and_content(split, plain, number: int, step: int) -> None:
    names = {path.name for path in (plain[0] / f"still/checkpoint-{step}").glob("*.safetensors")}
    assert {"optimizer.safetensors", "best.safetensors"} <= names or step == 4
    for name in ("model.safetensors", *(names & {"optimizer.safetensors", "best.safetensors"})):
        one, two = (folder / f"still/checkpoint-{step}" / name for folder in (split[number][0], plain[0]))
        same_tensors(one, two)


@NUMBERS
def test_a_run_that_was_stopped_ends_as_if_it_never_had(split, number: int) -> None:
    """Equal to the last bit, dropout and all. A callback of the main process alone sees other weights after each step."""
    for found in split[number][1]:
        assert found["stopped"][0] == found["never stopped"]
    assert len({*split[number][1][0]["stopped"][1:]}) == 5


@NUMBERS
def test_a_plain_checkpoint_is_resumed_split_and_the_other_way_round(split, plain, number: int, tmp_path: Path) -> None:
    folder, found, _ = split[number]
    same(found[0]["from plain"], plain[1]["still"])
    same_tensors(folder / "from-plain/final/model.safetensors", plain[0] / "final/model.safetensors")
    trainer = make_trainer(tmp_path, backend="plain")
    trainer.train(resume_from_checkpoint=folder / "still/checkpoint-4")
    same(figures_of(trainer), plain[1]["still"])
    same_tensors(tmp_path / "checkpoint-12/optimizer.safetensors", plain[0] / "still/checkpoint-12/optimizer.safetensors")


@NUMBERS
def test_an_optimizer_of_ones_own_early_stopping_and_what_is_refused(split, plain, number: int) -> None:
    same(split[number][1][0]["own"], plain[1]["own"])  # some weights are frozen
    for found in split[number][1]:
        assert found["early"] == [6, "eval_score did not improve in 1 evaluations"]
        again, gradients = found["refused"]
        assert "the optimizer contains no parameter of the model" in again
        assert "on_gradients needs complete gradients" in gradients


@pytest.mark.exhaustive
def test_the_weights_of_the_main_process_are_trained(split, plain) -> None:
    """Each process has made a head of its own: the main one's counts, as in DDP."""
    for found in split[2][1]:
        same(found["heads"], plain[1]["still"])


@NUMBERS
def test_only_one_process_prints(split, number: int) -> None:
    lines = split[number][2]
    assert len([line for line in lines if line.startswith("glassloop: resuming after step 4")]) == 1
    assert [len([line for line in lines if line.startswith(f"step {step}/12")]) for step in (1, 12)] == [7, 7]  # trainings
    assert not [line for line in lines if "Warning" in line or "[rank" in line], lines
