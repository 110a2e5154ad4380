"""The rows that a user gives to a Trainer: checked, without columns the model does not accept, and in batches."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass

from glassloop.arguments import TrainingArguments
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.formats import is_table, known_columns, refuse_unreadable
from glassloop.data.interfaces import Collator, Rows
from glassloop.data.row_labels import LABEL_KEYS, infer_task, refuse_labels, without_missing_labels
from glassloop.data.row_reader import RowReader
from glassloop.engine.interfaces import Backend, Say
from glassloop.errors import DataError, listed
from glassloop.models.adapters import base_of
from glassloop.models.inputs import accepted_inputs
from glassloop.models.outputs import config_of, task_of
from glassloop.transformers_types import Model

IGNORED = -100  # the label of a row that the loss of a model of transformers leaves out


@dataclass(frozen=True)
class RowUse:
    """What is done with rows.

    Attributes:
        training: Whether to train on them, or to evaluate.
        taken: The columns of a batch; None takes all.
        shuffled: Whether a training draws their order.
        sorted: Whether an evaluation may put rows of similar length into a batch.
        any_labels: Whether labels may be of any kind, because the loss is not Glassloop's.
        ignored: A label that is no class and allowed.
    """

    training: bool
    taken: set[str] | None
    shuffled: bool = True
    sorted: bool = True
    any_labels: bool = False
    ignored: int | None = None


def make_batches(
    rows: Rows | None, collate: Collator, args: TrainingArguments, backend: Backend, model: Model, say: Say, use: RowUse
) -> Batches:
    """Return the batches of a data set: shuffled by seed and epoch for training, else sorted by length.

    Sets the task in the model's config if only the labels show it. Raises `SettingsError` or `DataError` if the rows cannot
    be read, or if their labels do not fit the model.
    """
    rows = refuse_unreadable(rows, f"{'train' if use.training else 'eval'}_dataset")
    rows = rows if use.training else without_missing_labels(rows)
    is_padding = isinstance(collate, PaddingCollator)  # another collator may make labels from anything
    seed = args.data_seed if args.data_seed is not None else args.seed
    size = args.per_device_eval_batch_size
    if use.training:
        size = args.per_device_train_batch_size * backend.processes.num_processes
    batches = Batches(
        accepted_columns(rows, use.taken, say),
        collate,
        size,
        seed=seed if use.training and use.shuffled else None,
        group_by_length=args.group_by_length if use.training else is_padding and use.sorted,
        drop_last=args.dataloader_drop_last and use.training,
        rank=backend.processes.rank,
        num_processes=backend.processes.num_processes,
    )
    with suppress(DataError) if use.any_labels else nullcontext():  # a model with its own loss may take any labels
        config = config_of(model)
        infer_task(config, batches.first_labels, say)
        needed = use.training and is_padding and not use.any_labels
        refuse_labels(rows, task_of(config), int(config.num_labels), needed=needed, ignored=use.ignored)
    return batches


def columns_taken_by(model: Model) -> set[str]:
    """Return the columns that a model takes, and the usual names of labels."""
    return {*accepted_inputs(type(base_of(model))), *LABEL_KEYS}


def accepted_columns(rows: Rows, taken: set[str] | None, say: Say) -> Rows:
    """Return the rows without columns that are not `taken` (None: all are), and report these columns."""

    def report(unused: list[str]) -> None:
        say(f"columns the model does not accept are dropped: {listed(unused)}")

    if isinstance(rows, RowReader):
        return rows
    if not is_table(rows):
        return RowReader(rows, taken, report)
    known, unused = (rows, []) if taken is None else known_columns(rows, taken)
    if unused:
        report(unused)
    return known
