"""The plain loops among the contenders: the course notes', Accelerate's and Lightning's; and what they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jobs import LEARNING_RATE, MAX_NORM, Clock, Job, Parts, batches_of


class FixedBatches:
    """Hands a DataLoader the batches of the plan."""

    def __init__(self, batches: list[list[int]], size: int) -> None:
        self.batches, self.batch_size, self.drop_last = batches, size, False
        self.sampler = range(len(batches))

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Contender:
    """Trains, evaluates and saves; the parts of a plain torch loop, which the others replace."""

    def __init__(self, job: Job, parts: Parts, clock: Clock, folder: str) -> None:
        self.job, self.parts, self.clock, self.folder = job, parts, clock, folder
        self.model = parts.model
        self.facts: dict[str, Any] = {}

    def collator(self) -> Any:
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(self.parts.tokenizer, pad_to_multiple_of=64 if self.job.extra == "wider" else None)

    def loader(self, **options: Any) -> Any:
        from torch.utils.data import DataLoader

        batches = FixedBatches(batches_of(self.job, len(self.parts.rows["train"])), self.job.batch_size)
        pinned = self.job.device == "cuda"
        options = {"collate_fn": self.collator(), "pin_memory": pinned, **options}
        return DataLoader(self.parts.rows["train"], batch_sampler=batches, **options)

    def optimizers(self) -> tuple[Any, Any]:
        import torch
        from transformers import get_scheduler

        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
        return optimizer, get_scheduler("linear", optimizer, num_warmup_steps=self.job.ramp, num_training_steps=self.job.total)

    def cast(self) -> AbstractContextManager[Any]:
        import torch

        return torch.autocast(self.job.device, torch.bfloat16) if self.job.precision == "bf16" else nullcontext()

    def prepare(self) -> None:
        self.model.to(self.job.device)

    def train(self) -> None:
        raise NotImplementedError

    def predict(self, rows: Any, size: int) -> Any:
        """Logits in the order of the rows."""
        import torch
        from torch.utils.data import DataLoader

        self.model.eval()
        found = []
        for batch in DataLoader(rows, batch_size=size, collate_fn=self.collator(), pin_memory=self.job.device == "cuda"):
            batch = {name: value.to(self.job.device, non_blocking=True) for name, value in batch.items()}
            with torch.inference_mode(), self.cast():
                found.append(self.model(**batch).logits)
        return torch.cat(found).float().cpu().numpy()

    def save(self) -> None:
        self.model.save_pretrained(self.folder)
        self.parts.tokenizer.save_pretrained(self.folder)


class Notes(Contender):
    """The plain loop of the course notes, with a fused AdamW."""

    def prepare(self) -> None:
        if self.job.precision == "fp64":
            self.model.double()
        if self.job.extra == "eager":
            self.model.set_attn_implementation("eager")
        super().prepare()

    def loss_of(self, batch: dict[str, Any]) -> Any:
        import torch

        if self.job.extra != "alone":
            return self.model(**batch).loss
        rows = []
        for place, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            row = {name: value[place : place + 1] for name, value in batch.items()}
            rows.append(
                self.model(**{name: value[:, :length] if value.dim() > 1 else value for name, value in row.items()}).loss
            )
        return torch.stack(rows).mean()

    def train(self) -> None:
        import torch

        optimizer, scheduler = self.optimizers()
        self.model.train()
        for step, batch in enumerate(self.loader(), 1):
            batch = {name: value.to(self.job.device, non_blocking=True) for name, value in batch.items()}
            with self.cast():
                loss = self.loss_of(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            self.clock.keep(loss)
            self.clock.tick(step)
            if step == self.job.steps:
                break


class Accelerate(Contender):
    """The same loop as Accelerate's guide writes it."""

    def prepare(self) -> None:
        from accelerate import Accelerator

        precision = {"bf16": "bf16"}.get(self.job.precision, "no")
        self.accelerator = Accelerator(mixed_precision=precision, cpu=self.job.device == "cpu")
        self.optimizer, self.scheduler = self.optimizers()
        found = self.accelerator.prepare(self.model, self.optimizer, self.loader(), self.scheduler)
        self.model, self.optimizer, self.batches, self.scheduler = found

    def train(self) -> None:
        self.model.train()
        for step, batch in enumerate(self.batches, 1):
            loss = self.model(**batch).loss
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.clock.keep(loss)
            self.clock.tick(step)
            if step == self.job.steps:
                break

    def save(self) -> None:
        self.model = self.accelerator.unwrap_model(self.model)
        super().save()


class Lightning(Contender):
    """A LightningModule. It clips itself: Lightning refuses to clip for a fused AdamW in bf16."""

    def train(self) -> None:
        import lightning
        import torch

        contender = self

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = contender.model

            def training_step(self, batch: Any, number: int) -> Any:
                loss = self.model(**batch).loss
                contender.clock.keep(loss)
                return loss

            def configure_optimizers(self) -> Any:
                optimizer, scheduler = contender.optimizers()
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

            def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
                torch.nn.utils.clip_grad_norm_(self.parameters(), MAX_NORM)

            def on_train_batch_end(self, *_: Any) -> None:
                contender.clock.tick(self.global_step)

        precision: Any = "bf16-mixed" if self.job.precision == "bf16" else "32-true"
        trainer = lightning.Trainer(
            accelerator="gpu" if self.job.device == "cuda" else "cpu",
            devices=1,
            precision=precision,
            max_steps=self.job.steps,
            default_root_dir=self.folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        self.model.train()
        trainer.fit(Module(), self.loader())
        self.model.to(self.job.device)
