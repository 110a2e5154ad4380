"""The parts of one training: made once, saved to checkpoints, put back from them, and what to say when it fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.encoding import lengths_of
from glassloop.data.stability import Repeats, collator_repeats, rows_repeat
from glassloop.engine.callbacks import Callback
from glassloop.engine.checkpoint import (
    Checkpoint,
    Snapshot,
    Tensors,
    optimizer_of,
    optimizer_tensors,
    random_tensors,
    refuse_other_identity,
    refuse_other_tensors,
    restore_optimizer,
    restore_random,
)
from glassloop.engine.checkpoint_folder import Shelf
from glassloop.engine.evaluate import Interrupted
from glassloop.engine.history import History, Trackers, versions
from glassloop.engine.identity import Identity, rows_fingerprint
from glassloop.engine.losses import check_loss, refuse_other_loss
from glassloop.engine.optimizer import make_optimizers
from glassloop.engine.saver import BestWeights, Saver
from glassloop.engine.state import NotFiniteError
from glassloop.errors import DivergedError, ResourceError, SettingsError, TooLargeError, listed
from glassloop.run_folder.layout import CHECKPOINTS_NAME
from glassloop.seeding import random_states_kept, seed_all
from glassloop.show.progress import progress_for
from glassloop.training.resuming import identity_of

if TYPE_CHECKING:
    from glassloop.trainer import Trainer


class Training:
    """The parts of one training, made once, so that each can be saved and put back."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.args, self.backend = trainer, trainer.args, trainer.backend
        self.folder = trainer.folder
        plain_batches = trainer.batches(trainer.train_dataset, training=True)
        self.plan, self.loss_sum = trainer.make_plan(plain_batches), trainer.loss_sum()
        if trainer.loss is None:
            first = next(plain_batches.epoch())
            refuse_other_loss(trainer.model, first, trainer.task, self.backend, trainer.say_once)
        self.same: Identity = json.loads(json.dumps(identity_of(trainer, self.plan)))
        self.report_random(plain_batches)
        shown, adds = trainer.on_gradients is not None, self.plan.accumulate > 1
        make = self.backend.open(trainer.model, trainer.known_rows, self.args.weight_decay, shown=shown, adds=adds)
        self.batches = self.backend.batches(plain_batches, trainer.train_dataset)
        if trainer.loss is not None:
            check_loss(self.loss_sum, trainer.model, next(self.batches.epoch()), self.backend)
        optimizer, scheduler = make_optimizers(self.args, trainer.model, self.plan, trainer.optimizers, make)
        self.model, self.optimizer, self.scheduler = self.backend.prepare(trainer.model, optimizer, scheduler)
        self.bare = self.backend.unwrap(self.model)
        self.state, self.best = trainer.state, BestWeights(self.bare)
        self.shelf = Shelf(self.folder / CHECKPOINTS_NAME, trainer.say)
        self.saver = Saver(self.shelf, self.args.save_total_limit, trainer.write_model)
        self.rows: torch.Tensor | None = None

    def report_random(self, batches: Batches) -> None:
        """Say once what differs between reads, and what that means for a run that is resumed."""
        say, held_out = self.trainer.say_once, self.trainer.eval_dataset
        if batches.repeats is not Repeats.SAME:
            say(f"the training rows differ between reads: {batches.repeats.value}")
        if not isinstance(batches.collate, PaddingCollator):
            rows = batches.read(np.arange(min(len(batches.rows), batches.batch_size)))
            if (found := collator_repeats(batches.collate, rows)) is not Repeats.SAME:
                say(f"the batches of the collator differ each time: {found.value}")
        if held_out is not None and rows_repeat(held_out) is not Repeats.SAME:
            say("the evaluation rows differ between reads, and so do their scores")
            if "validation" in self.same:
                self.same["validation"] = rows_fingerprint(np.zeros(len(held_out), dtype=np.int64))
        if batches.repeats is Repeats.OWN and self.args.group_by_length:
            if self.backend.num_processes > 1:
                problem = "group_by_length orders rows by lengths that differ in each process"
                raise SettingsError(problem, "set group_by_length to false, or draw from the global generators")
            say("group_by_length: the order of these rows may change as well after a resume")

    def identity(self) -> Identity:
        """Return what must be the same for the numbers to be the same, as it was when the training was made."""
        if "validation" in self.same and self.same["validation"] is None:  # only now: a training may never need it
            with random_states_kept():
                rows = self.trainer.batches(self.trainer.eval_dataset, training=False).row_hashes()
            self.same["validation"] = rows_fingerprint(rows)
        return self.same

    def row_hashes(self) -> torch.Tensor:
        """Eight bytes for each training row as the model gets it."""
        if self.rows is None:
            self.rows = torch.from_numpy(self.batches.row_hashes())
        return self.rows

    def save(self, *, behind: bool = True) -> None:
        """Take a snapshot between two steps and write it; all processes take part, the main one writes."""
        randoms = self.backend.gather_objects([random_tensors(self.backend.device)])  # in the order of the processes
        self.backend.settle()
        kept = self.backend.optimizer_state(self.optimizer)
        if not self.backend.is_main:
            return
        weights = {name: value.detach().to("cpu", copy=True) for name, value in self.bare.state_dict().items()}
        self.refuse_not_finite(weights)
        optimizer, plain_optimizer = optimizer_tensors(self.bare, self.optimizer, kept)
        scheduler = {name: value for name, value in self.scheduler.state_dict().items() if name != "lr_lambdas"}
        plain = {
            "state": self.state.to_dict(),
            "optimizer": plain_optimizer,
            "scheduler": scheduler,
            "scaler": self.backend.scaler.state_dict() if hasattr(self.backend, "scaler") else {},
            "random": [plain_random for _, plain_random in randoms],
            "processes": self.backend.num_processes,
            "versions": versions(),
        }
        tensors = [found for found, _ in randoms]
        snapshot = Snapshot(weights, optimizer, self.best.weights, tensors, self.row_hashes(), plain, self.identity())
        self.saver.save(snapshot, behind=behind)

    def refuse_not_finite(self, weights: Tensors) -> None:
        for name, value in weights.items():
            if value.numel() and not torch.isfinite(torch.stack(torch.aminmax(value))).all():  # no copy as large as the value
                raise NotFiniteError(f"step {self.state.step:,}: the weight {name} is not finite", self.state.step)

    def find_checkpoint(self, resume: bool | str | Path, skipped: list[str]) -> Checkpoint | None:
        """Return the checkpoint to resume from, None to start. `skipped`: why something better cannot be used."""
        if resume is not True:
            return self.shelf.open(Path(str(resume))) if resume else None
        found = self.shelf.newest(skipped)
        if found is None:
            self.trainer.say(f"{self.folder}: there is no checkpoint, so the run starts again")
        return found

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put everything back as it was after the checkpoint's step."""
        stored_rows = checkpoint.tensors("rows").get("rows", torch.zeros(0, dtype=torch.int64))
        refuse_other_identity(checkpoint.manifest["identity"], self.identity(), stored_rows, self.row_hashes())
        weights, plain = checkpoint.weights(), checkpoint.plain
        refuse_other_tensors(self.bare.state_dict(), weights, f"{checkpoint.path.name}/model")
        self.bare.load_state_dict(weights)
        restore_optimizer(self.bare, self.optimizer, checkpoint.tensors("optimizer"), plain["optimizer"])
        self.backend.reload()
        self.scheduler.load_state_dict(plain["scheduler"] | {"lr_lambdas": self.scheduler.state_dict().get("lr_lambdas")})
        if plain["scaler"]:
            self.backend.scaler.load_state_dict(plain["scaler"])
        for name, value in plain["state"].items():
            setattr(self.state, name, value)
        self.best.weights = checkpoint.tensors("best")
        rank = self.backend.rank
        if rank < len(plain["random"]) and plain["processes"] == self.backend.num_processes:
            restore_random(checkpoint.tensors(f"random-{rank}"), plain["random"][rank], self.backend.device)
        else:
            seed_all(self.args.seed + rank + 1000 * self.state.step)
            then, now = plain["processes"], self.backend.num_processes
            self.trainer.say(f"{now} processes instead of {then}: the same rows in every step, other dropout masks")
        self.trainer.say(f"resuming after step {self.state.step:,} ({checkpoint.path})")

    def evaluate(self) -> dict[str, float] | None:
        """Metrics while training; None where a signal came in between."""
        self.backend.settle()
        try:
            with interruptible(self.trainer), random_states_kept():  # rows of an evaluation may draw random numbers as well
                return self.trainer.evaluate()  # of the bare model: a wrapped one waits for processes with no batch left
        except Interrupted:
            return None

    def watchers(self, history: History) -> list[Callback]:
        args = self.args
        watching: list[Callback] = [history, *([self.best] if args.load_best_model_at_end else [])]
        if self.backend.is_main and args.trackers:
            name = args.run_name or self.folder.name
            watching.append(Trackers(args.trackers, self.folder, name, args.to_dict(), history))
        if self.backend.is_main and not self.trainer.quiet:
            title = self.trainer.measures.title if self.trainer.compute_metrics is None else str
            watching.append(progress_for(self.plan, args.disable_tqdm, history, title))
        return [*watching, *self.trainer.callbacks]

    @property
    def num_bytes(self) -> int:
        """The size of the model's weights."""
        return sum(weight.nbytes for weight in self.bare.parameters())

    def check_disk(self) -> None:
        """Refuse to start without room for two checkpoints and, in a run folder, for the final model."""
        wanted = {}
        if self.plan.save_every:
            wanted["two checkpoints"] = 2 * (4 if self.args.load_best_model_at_end else 3) * self.num_bytes
        if self.trainer.in_run:
            wanted["the final model"] = with_slack(self.num_bytes)
        needed, free = sum(wanted.values()), shutil.disk_usage(self.folder).free
        if free < needed:
            raise ResourceError(
                f"{self.folder}: {needed:,} bytes are needed for {' and '.join(wanted)}, {free:,} are free",
                "make room or choose another output_dir" + ("; save_strategy no needs less" if self.plan.save_every else ""),
            )

    def diverged(self, error: NotFiniteError) -> DivergedError:
        """What is known about the step whose figure is not finite."""
        problem, step = error.args
        epoch, place = divmod(step - 1, self.plan.steps_per_epoch)
        group = self.batches.plan(epoch)[place * self.plan.accumulate : (place + 1) * self.plan.accumulate]
        rows = listed(np.concatenate(group).tolist(), 8)
        last = "none" if self.state.last_loss is None else f"{self.state.last_loss:.4g}"
        rate = f"learning rate {optimizer_of(self.optimizer).param_groups[0].get('initial_lr', self.args.learning_rate):g}"
        return DivergedError(
            f"{problem} (last finite loss {last}, {rate}, rows {rows} of the training data)",
            "lower learning_rate, add warmup_steps, use precision fp32, or look at these rows",
        )

    def out_of_memory(self, error: BaseException) -> TooLargeError:
        """What the memory was not enough for, and what to lower."""
        kind = "eval" if self.state.evaluation_due else "train"
        rows = self.trainer.eval_dataset if self.state.evaluation_due else self.trainer.train_dataset
        size = getattr(self.args, f"per_device_{kind}_batch_size")
        return TooLargeError(
            f"not enough memory for a batch of {size} rows of up to {max(lengths_of(rows)):,} tokens ({error})",
            f"lower per_device_{kind}_batch_size"
            + (" and raise gradient_accumulation_steps as much" if kind == "train" else "")
            + ", or lower max_length",
        )


@contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """Let a signal interrupt an evaluation, which raises `Interrupted`; with several processes it runs to its end."""
    trainer.should_stop = lambda: bool(trainer.state.asked_to_stop) and trainer.backend.num_processes == 1
    try:
        yield
    finally:
        trainer.should_stop = lambda: False


def with_slack(num_bytes: int) -> int:
    """The room that a model of so many bytes of weights may need with its config and tokenizer."""
    return num_bytes + num_bytes // 20 + (1 << 16)
