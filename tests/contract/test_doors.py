"""One loop, three doors: the Trainer, the bare loop and Accelerate end in the same weights, bit for bit (CPU, fp32)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from families import tiny_model, weights_hash
from transformers import DataCollatorWithPadding

import glassloop
from glassloop import Batches, PaddingCollator, Trainer, TrainingArguments

STEPS = 20


def by_trainer(model, rows, tokenizer, folder: Path, accumulate: int, **options):
    args = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=accumulate, learning_rate=1e-3,
        precision="fp32", device="cpu", **options,
    )  # fmt: skip
    Trainer(model, args, train_dataset=rows, processing_class=tokenizer).train()
    return model


def by_bare_loop(model, rows, tokenizer, accumulate: int):
    """`fit` and `train_step` put together by hand."""
    batches = Batches(rows, PaddingCollator(tokenizer), 4, seed=42)
    optimizer = glassloop.make_optimizer(model, 1e-3)
    parts = {"optimizer": optimizer, "scheduler": glassloop.make_scheduler("linear", optimizer, 0, STEPS)}
    loss_sum, backend = glassloop.make_loss("single_label_classification"), glassloop.PlainBackend()
    step = partial(glassloop.train_step, model, loss_sum=loss_sum, backend=backend, max_norm=1.0, **parts)
    steps = -(-len(batches) // accumulate)
    plan = glassloop.Plan(STEPS, steps, len(batches), accumulate, 0, log_every=7, eval_every=0, save_every=0)
    model.train()
    glassloop.seed_all(42)
    glassloop.fit(step, batches, plan, glassloop.State())
    return model


def by_hand(model, rows, tokenizer, accumulate: int):
    """Nothing of ours but the order of the rows: the notes' loop, with the model's own loss where a step is one batch."""
    collate = DataCollatorWithPadding(tokenizer)
    order = Batches(rows, PaddingCollator(tokenizer), 4, seed=42).order
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (STEPS - step) / STEPS))
    model.train()
    torch.manual_seed(42)
    step, epoch, losses = 0, 0, []
    while step < STEPS:
        numbers = order(epoch)
        for start in range(0, len(numbers), accumulate):
            group = numbers[start : start + accumulate]
            total = sum(len(part) for part in group)
            step_loss = 0.0
            for part in group:
                batch = collate([rows[int(number)] for number in part])
                outputs = model(**batch)
                loss = outputs.loss if accumulate == 1 else outputs.loss * len(part) / total
                if accumulate > 1:
                    loss = torch.nn.functional.cross_entropy(outputs.logits, batch["labels"], reduction="sum") / total
                loss.backward()
                step_loss += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(step_loss)
            step += 1
            if step == STEPS:
                break
        epoch += 1
    return model, losses


@pytest.mark.parametrize("accumulate", [1, 3])
def test_all_doors_end_in_the_same_weights(encoded, tiny_tokenizer, tmp_path: Path, accumulate: int) -> None:
    rows = encoded["train"].rows
    model, losses = by_hand(tiny_model(), rows, tiny_tokenizer, accumulate)
    expected = weights_hash(model)
    assert len(losses) == STEPS
    assert weights_hash(tiny_model()) != expected
    assert weights_hash(by_bare_loop(tiny_model(), rows, tiny_tokenizer, accumulate)) == expected
    for backend in ("plain", "accelerate"):
        model = by_trainer(tiny_model(), rows, tiny_tokenizer, tmp_path / backend, accumulate, backend=backend)
        assert weights_hash(model) == expected
