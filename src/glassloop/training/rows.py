"""The rows that a user gives to a Trainer: checked, without columns the model does not accept, and in batches."""

from __future__ import annotations

from contextlib import nullcontext, suppress

from glassloop.arguments import TrainingArguments
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.formats import known_columns, refuse_unreadable
from glassloop.data.interfaces import Collator, Rows
from glassloop.data.row_labels import LABEL_KEYS, infer_task, refuse_labels, without_missing_labels
from glassloop.engine.interfaces import Backend, Say
from glassloop.errors import DataError, listed
from glassloop.models.adapters import base_of
from glassloop.models.inputs import accepted_inputs
from glassloop.models.outputs import task_of
from glassloop.transformers_types import Model


def make_batches(
    rows: Rows | None,
    collate: Collator,
    args: TrainingArguments,
    backend: Backend,
    model: Model,
    say: Say,
    *,
    training: bool,
    own_labels: bool = False,
) -> Batches:
    """Return the batches of a data set: shuffled by seed and epoch for training, else sorted by length.

    Sets the task in the model's config if only the labels show it. Raises `SettingsError` or `DataError` if the rows cannot
    be read, or if their labels do not fit the model.
    """
    rows = refuse_unreadable(rows, f"{'train' if training else 'eval'}_dataset")
    rows = rows if training else without_missing_labels(rows)
    is_padding = isinstance(collate, PaddingCollator)  # another collator may make labels from anything
    seed = args.data_seed if args.data_seed is not None else args.seed
    size = args.per_device_train_batch_size * backend.processes.num_processes if training else args.per_device_eval_batch_size
    batches = Batches(
        accepted_columns(rows, model, say),
        collate,
        size,
        seed=seed if training else None,
        group_by_length=args.group_by_length if training else is_padding,
        drop_last=args.dataloader_drop_last and training,
        rank=backend.processes.rank,
        num_processes=backend.processes.num_processes,
    )
    with suppress(DataError) if own_labels else nullcontext():  # a model with its own loss may take any labels
        infer_task(model.config, batches.first_labels, say)
        refuse_labels(rows, task_of(model.config), int(model.config.num_labels), needed=training and is_padding)
    return batches


def accepted_columns(rows: Rows, model: Model, say: Say) -> Rows:
    """Return the rows without columns the model does not accept, and report these columns."""
    known: Rows
    known, unused = known_columns(rows, {*accepted_inputs(type(base_of(model))), *LABEL_KEYS})
    if unused:
        say(f"columns the model does not accept are dropped: {listed(unused)}")
    return known
