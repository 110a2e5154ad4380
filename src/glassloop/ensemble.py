"""The runs of several random seeds as one model: their probabilities are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from glassloop.data.interfaces import Row, Rows
from glassloop.engine.evaluate import Evaluation
from glassloop.engine.interfaces import LossSum
from glassloop.errors import ModelError, listed, say
from glassloop.predictor import Predictor
from glassloop.run_folder.layout import is_run, is_seeds_folder, seed_name
from glassloop.run_folder.seeds_json import read_seeds
from glassloop.statistics.ensembles import averaged_logits


class SeedsPredictor(Predictor):
    """Predicts with the models of all finished seeds in a folder. All of them are loaded at the same time.

    Args:
        folder: The folder of `glassloop train --seeds`.
        device: "auto", "cpu", "cuda" or "mps".
        batch_size: The number of rows in a forward pass.
        precision: "auto", "fp32", "bf16", "fp16" or "int8".

    Raises:
        ModelError: If no seed is finished, or if the files of a model are damaged.
    """

    def __init__(self, folder: Path, *, device: str = "auto", batch_size: int = 64, precision: str = "auto") -> None:
        first, *rest = finished_runs(folder).values()
        self.others: list[Predictor] = []  # each model in int8 is compared alone
        # Calibrations are those of single models, so none is used: a temperature is given.
        super().__init__(first, device=device, batch_size=batch_size, temperature=1.0, precision=precision)
        for run in rest:
            self.others.append(Predictor(run, device=device, batch_size=batch_size, temperature=1.0, precision=precision))

    @property
    def model_dirs(self) -> list[Path]:
        """The folders of all models that predict together."""
        return [self.model_dir, *(other.model_dir for other in self.others)]

    def _in_one_pass(self, rows: Sequence[Row]) -> np.ndarray | None:
        """Return the averaged logits of a few rows; None if a model needs more than one forward pass."""
        found = [super()._in_one_pass(rows), *(other._in_one_pass(rows) for other in self.others)]
        logits = [one for one in found if one is not None]
        return averaged_logits(logits, self.task) if len(logits) == len(found) else None

    def _forward(self, rows: Rows, loss_sum: LossSum | None = None) -> Evaluation:
        """Return the averaged logits of one pass over encoded rows with each model. There is no loss."""
        found = [super()._forward(rows, loss_sum), *(other._forward(rows, loss_sum) for other in self.others)]
        return replace(found[0], logits=averaged_logits([one.logits for one in found], self.task), loss=None)


def has_seeds(folder: Path) -> bool:
    """Return whether a folder holds the runs of several seeds instead of one run."""
    return is_seeds_folder(folder) and not is_run(folder)


def finished_runs(folder: Path) -> dict[int, Path]:
    """Return the run folder of each finished seed. Seeds that are not finished are reported and omitted.

    Raises `ModelError` if no seed is finished.
    """
    record = read_seeds(folder)
    if not record.finished:
        remedy = f"train them to the end: glassloop train --seeds {len(record.seeds)} --resume {folder}"
        raise ModelError(f"{folder}: no seed is finished yet", remedy)
    if record.unfinished:
        say(f"omitted, because they are not finished: {listed(map(seed_name, record.unfinished))}")
    return {seed: folder / seed_name(seed) for seed in record.finished}
