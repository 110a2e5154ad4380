"""The loss of a step is the mean over its examples: over accumulated batches and over processes, for every model family."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from families import FAMILIES, rows_for, tiny_model
from trials import Servers

from glassloop import Trainer, TrainingArguments

SCRIPT = Path(__file__).with_name("train_families.py")
CLOSE = 1e-6


def figures_of(history: list[list[float]]) -> torch.Tensor:
    return torch.tensor(history, dtype=torch.float64)


def same_figures(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Losses and gradient norms agree to 1e-6: of 1, or of themselves where they are larger."""
    difference = (found - expected).abs() / expected.abs().clamp(min=1.0)
    assert found.shape == expected.shape
    assert difference.max() <= CLOSE, f"{difference.max():.1e} in step {int(difference.max(dim=1).values.argmax()) + 1}"


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_accumulation_changes_no_number(family: str, encoded, tiny_tokenizer, tmp_path: Path) -> None:
    """8x1, 4x2, 2x4 and 1x8: the same rows, so the same loss and gradient norm; the last group of an epoch is short."""
    histories = {}
    for accumulate in (1, 2, 4, 8):
        args = TrainingArguments(
            tmp_path / str(accumulate), num_train_epochs=1, per_device_train_batch_size=8 // accumulate, logging_steps=1,
            gradient_accumulation_steps=accumulate, learning_rate=1e-5, precision="fp32", device="cpu",
        )  # fmt: skip
        rows = rows_for(family, encoded["train"].rows)
        trainer = Trainer(tiny_model(family, dropout=0.0), args, train_dataset=rows, processing_class=tiny_tokenizer)
        trainer.train()
        histories[accumulate] = figures_of([[entry["loss"], entry["grad_norm"]] for entry in trainer.state.history])
    assert len(histories[1]) == 8  # 61 rows: seven steps of eight rows and one of five
    for accumulate in (2, 4, 8):
        same_figures(histories[accumulate], histories[1])


USUAL = ("bert", "modernbert")  # a model with and without absolute positions; the other families are exhaustive


@pytest.fixture(scope="module")
def process_figures(
    servers: Servers, tmp_path_factory: pytest.TempPathFactory, session_cache: Path
) -> Callable[[int, str], dict]:
    """The figures of a family with a number of processes. Families that run in the same tier share one training script."""

    @cache
    def figures(number: int, families: tuple[str, ...]) -> dict:
        folder = tmp_path_factory.mktemp(f"processes-{number}")
        how = {"script": SCRIPT, "GLASSLOOP_CACHE": str(session_cache)}
        ended = [trial.wait(300) for trial in servers.start_group(number, folder, *families, **how)]
        assert not any(end.code for end in ended), "\n".join(end.err[-3000:] for end in ended)
        return json.loads((folder / "figures.json").read_text())

    def figures_of_family(number: int, family: str) -> dict:
        return figures(number, USUAL if family in USUAL else tuple(name for name in FAMILIES if name not in USUAL))

    return figures_of_family


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in USUAL else pytest.mark.exhaustive) for name in FAMILIES]
)
@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_processes_change_no_number(family: str, number: int, process_figures: Callable[[int, str], dict]) -> None:
    """Even where the last batch of an epoch (one row) is smaller than the number of processes."""
    for rate in ("1e-05", "0.001"):
        one, many = (figures_of(process_figures(count, family)[f"{family} {rate}"]) for count in (1, number))
        assert len(one) == 22 + 1
        assert many[-1].tolist() == one[-1].tolist()  # metrics: every row counted once, equal to the last bit
        if rate == "1e-05":
            same_figures(many[:-1], one[:-1])
        else:  # weights move a hundred times as far: losses to 1e-6 still, norms as far as rounding lets them drift
            same_figures(many[:-1, :1], one[:-1, :1])
            torch.testing.assert_close(many[:-1, 1], one[:-1, 1], rtol=5e-5, atol=CLOSE)
