"""What fine-tuned models expect of rows that they did not see: one training for each fold."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory

import numpy as np

from glassloop.base.errors import SettingsError
from glassloop.base.output import say, stage
from glassloop.data.encoding import encode_texts
from glassloop.data.interfaces import Row
from glassloop.diagnosis.labels import HeldOut, expected_of
from glassloop.diagnosis.rows import Sample
from glassloop.models.linear import assigned_folds
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, TrainingArguments

LEAST_FOLDS = 2
EPOCHS = 3


def held_out_by_training(folds: int, device: str = "auto", epochs: float = EPOCHS) -> Callable[[Sample, Array], HeldOut]:
    """Return a function that trains a model for each fold, without its rows, and lets it predict them.

    Args:
        folds: The number of folds. Rows with the same texts are in the same one.
        device: The device to train on.
        epochs: The number of epochs of each training.

    Raises:
        SettingsError: There are fewer than two folds.
    """
    if folds < LEAST_FOLDS:
        raise SettingsError(f"--folds is {folds}", f"use {LEAST_FOLDS} or more")

    def make(sample: Sample, rows: Array) -> HeldOut:
        from glassloop.trainer import Trainer

        examples, targets = sample.survey.examples, sample.targets[rows]
        tokenizer = load_tokenizer(sample.model)
        columns = [[column[row] for row in rows.tolist()] for column in sample.texts]
        encoded = encode_texts(tokenizer, columns, sample.max_length).rows
        kind = np.int64 if sample.task == CLASSES else np.float32
        labels = targets.astype(kind).tolist()
        inputs: list[Row] = [{**row.inputs, "labels": label} for row, label in zip(encoded, labels, strict=True)]
        of_fold = assigned_folds(targets, sample.task, sample.groups[rows], folds)
        outputs = np.zeros((len(rows), 1 if sample.task == SCORE else examples.num_labels))
        for fold in np.unique(of_fold).tolist():
            held, rest = (np.flatnonzero(chosen).tolist() for chosen in (of_fold == fold, of_fold != fold))
            if not rest:  # all rows have the same texts
                break
            say(f"training fold {fold + 1} of {folds} on {len(rest):,} rows")
            with TemporaryDirectory() as folder, stage(f"training fold {fold + 1}"):
                args = TrainingArguments(
                    output_dir=folder, num_train_epochs=epochs, save_strategy="no", disable_tqdm=True, seed=fold, device=device
                )
                network = load_model(sample.model, labels=examples.labels, task=sample.task, new_head=True, seed=fold)
                trainer = Trainer(
                    network, args, train_dataset=[inputs[row] for row in rest], processing_class=tokenizer, quiet=True
                )
                trainer.train()
                outputs[held] = trainer.predict([inputs[row] for row in held]).predictions
        return HeldOut(rows, expected_of(outputs, sample.task), targets, sample.task, "fine_tune")

    return make
