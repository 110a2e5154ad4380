"""A training that is set up: backend, optimizer and schedule are ready for the first or next step."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import torch

from glassloop.data.batches import Batches
from glassloop.data.collator import is_standard
from glassloop.data.row_reader import repeats_of
from glassloop.data.stability import Repeats, collator_repeats, content_of
from glassloop.engine.callbacks import Callback
from glassloop.engine.checkpoint_folder import CheckpointFolder
from glassloop.engine.history import History
from glassloop.engine.identity import Identity, digest, rows_fingerprint
from glassloop.engine.losses import check_loss, refuse_other_loss
from glassloop.engine.optimizer import make_optimizers
from glassloop.engine.saver import BestWeights, SaveBest, Saver
from glassloop.engine.sessions import Sessions
from glassloop.engine.trackers import Trackers
from glassloop.errors import SettingsError
from glassloop.files import user_path
from glassloop.seeding import random_states_kept
from glassloop.show.progress import progress_for
from glassloop.training.parts import TrainingParts
from glassloop.training.resuming import identity_of
from glassloop.transformers_types import Model


class StartedTraining:
    """The parts of a training with everything that is made from them once, before the first step.

    Attributes:
        parts: What the Trainer handed down.
        batches: The training batches in the form the backend trains on.
        model, optimizer, scheduler: As the backend prepared them.
        bare: The user's model behind a prepared one.
        best: The weights of the best evaluation.
        checkpoint_folder, saver: The checkpoints of the folder, and what writes them.
    """

    def __init__(self, parts: TrainingParts) -> None:
        self.parts, backend, plan = parts, parts.backend, parts.plan
        if parts.custom_loss is None and parts.batch_loss is None and not parts.loss_compared:
            refuse_other_loss(parts.model, next(parts.batches.epoch()), parts.task, backend, parts.say_once)
        self.fixed: Identity = json.loads(json.dumps(identity_of(parts)))
        self.report_random_rows()
        if parts.args.gradient_checkpointing:
            checkpoint_gradients(parts.model)
        make_optimizer = backend.start_training(parts.model, parts.use)
        self.batches = backend.adapt_batches(parts.batches, parts.train_rows)
        if parts.custom_loss is not None and parts.batch_loss is None:
            check_loss(parts.loss_sum, parts.model, next(self.batches.epoch()), backend)
        optimizer, scheduler = make_optimizers(parts.args, parts.model, plan, parts.optimizers, make_optimizer)
        self.model, self.optimizer, self.scheduler = backend.prepare(parts.model, optimizer, scheduler)
        self.bare = backend.unwrap(self.model)
        self.best = BestWeights(self.bare)
        self.checkpoint_folder = CheckpointFolder(parts.folder, parts.say)
        self.saver = Saver(self.checkpoint_folder, parts.args.save_total_limit, parts.write_model)
        self.hashes: torch.Tensor | None = None

    def report_random_rows(self) -> None:
        """Report which rows differ each time they are read, and what that means for a resumed run."""
        parts, batches, say = self.parts, self.parts.batches, self.parts.say_once
        if not isinstance(batches, Batches):
            say("the batches are those of a DataLoader: a resumed run skips those it has seen, but may draw different ones")
            return
        if batches.repeats is not Repeats.SAME:
            say(f"the training rows differ between reads: {batches.repeats.value}")
        if not is_standard(batches.collate):
            rows = batches.read(np.arange(min(len(batches.rows), batches.batch_size)))
            if (found := collator_repeats(batches.collate, rows)) is not Repeats.SAME:
                say(f"the collator returns different batches each time: {found.value}")
            elif batches.repeats is Repeats.SAME:
                self.fixed["collator"] = digest(content_of(batches.collate(deepcopy(rows))))
        has_number = hasattr(parts.eval_rows, "__len__")  # a stream is read by a DataLoader
        if parts.eval_rows is not None and has_number and repeats_of(parts.eval_rows) is not Repeats.SAME:
            say("the evaluation rows differ between reads, and so do their scores")
            if "validation" in self.fixed:
                self.fixed["validation"] = rows_fingerprint(np.zeros(len(parts.eval_rows), dtype=np.int64))
        if batches.repeats is Repeats.OWN and parts.args.group_by_length:
            if parts.backend.processes.num_processes > 1:
                problem = "group_by_length orders rows by lengths that differ in each process"
                raise SettingsError(problem, "set group_by_length to false, or draw from the global generators")
            say("group_by_length: the order of these rows may also change when the run is resumed")

    def identity(self) -> Identity:
        """Return what must be the same for the numbers to be the same, as it was before the first step."""
        if "validation" in self.fixed and self.fixed["validation"] is None:  # only now: a training may never need it
            with random_states_kept():
                self.fixed["validation"] = rows_fingerprint(self.parts.eval_batches().row_hashes())
        return self.fixed

    def row_hashes(self) -> torch.Tensor:
        """Return eight bytes for each training row as the model gets it."""
        if self.hashes is None:
            self.hashes = torch.from_numpy(self.batches.row_hashes())
        return self.hashes

    def known_row_hashes(self) -> torch.Tensor:
        """Return `row_hashes` for a checkpoint: zero for rows that are slow to read and were not read yet."""
        batches = self.parts.batches
        known = batches.known_row_hashes() if self.hashes is None and isinstance(batches, Batches) else None
        return self.row_hashes() if known is None else torch.from_numpy(known)

    def evaluate(self) -> dict[str, float] | None:
        """Return the metrics between two steps; None if a signal interrupts the evaluation."""
        self.parts.backend.sync_to_model()
        with random_states_kept():  # evaluation rows may draw random numbers as well
            return self.parts.evaluate()  # with the bare model: a wrapped one waits for processes with no batch left

    def callbacks(self, history: History) -> list[Callback]:
        """Return the callbacks of Glassloop followed by those of the user."""
        parts, args = self.parts, self.parts.args
        found: list[Callback] = [history, *([self.best] if args.load_best_model_at_end else [])]
        found += [SaveBest()] if args.save_strategy == "best" else []
        if parts.backend.processes.is_main:
            found.append(Sessions(parts.folder, parts.plan.max_steps))
        if parts.backend.processes.is_main and args.trackers:
            name = args.run_name or parts.folder.name
            folder = parts.folder if args.logging_dir is None else user_path(args.logging_dir)
            found.append(Trackers(args.trackers, folder, name, args.to_dict()))
        if parts.backend.processes.is_main and not parts.quiet:
            found.append(progress_for(parts.plan, args.disable_tqdm, history, parts.metric_title))
        return [*found, *parts.callbacks]

    @property
    def num_bytes(self) -> int:
        """The size of the model's weights."""
        return sum(weight.nbytes for weight in self.bare.parameters())


def checkpoint_gradients(model: Model) -> None:
    """Let a model compute activations again in the backward pass. Raises `SettingsError` if it cannot."""
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    except (AttributeError, ValueError) as error:
        problem = f"{type(model).__name__} does not support gradient_checkpointing"
        raise SettingsError(problem, "omit it, and lower per_device_train_batch_size instead") from error
