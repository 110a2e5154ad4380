"""Use a trained model: predict texts or the rows of a file, and evaluate the model on labelled rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import supported_backend, verified_backend
from glassloop.backends.choose import choose_backend
from glassloop.collection import collection_paused
from glassloop.data.bad_rows import BadRows
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.file_rows import FileRows, checked_rows
from glassloop.data.interfaces import Rows
from glassloop.data.labels import LabelSet
from glassloop.data.soundness import refuse_half_character
from glassloop.data.special_tokens import NONE_TYPED, typed_tokens
from glassloop.data.tokenizing import tokenized_groups
from glassloop.data.truncation import NOTHING_CUT, LengthLimit, cut_by_truncation
from glassloop.data.writers import Row, refuse_for_tsv, refuse_target, row_writer
from glassloop.engine.evaluate import Evaluation, named_metrics, run_over
from glassloop.engine.interfaces import LossSum
from glassloop.engine.losses import make_loss
from glassloop.errors import DataError, ModelError, SettingsError, say, visible
from glassloop.files import replacing, user_path
from glassloop.measures import Measures
from glassloop.metrics import decide, probabilities
from glassloop.models.inputs import longest_input, refuse_unknown_tokens
from glassloop.models.light import load_light
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.models.outputs import carried_labels, label_names, task_of
from glassloop.outcomes import label_of
from glassloop.run_folder.layout import is_run
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import model_of_run
from glassloop.settings import SCORE, DataSettings, data_settings
from glassloop.stages import EVALUATING, LOADING, PREDICTING, advance, stage


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text or pair.

    Attributes:
        label: The name of a class, the names of several labels, or a score.
        scores: The probability of each label by its name; empty if the model predicts a score.
        logits: The outputs of the model.
    """

    label: str | list[str] | float
    scores: dict[str, float]
    logits: list[float]


class Predictor:
    """Loads the model of a run folder, or of any model folder, and predicts with it.

    Args:
        folder: A run folder, or a folder with a model and its tokenizer.
        device: "auto", "cpu", "cuda" or "mps".
        batch_size: The number of rows in a forward pass.
        light: Load a known model without transformers: it starts faster, but predicts many rows more slowly.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        model_dir: The folder the model was loaded from.
        run: The record of the run, if `folder` is a run folder.
        task: The task of the model.
        names: The names of the model's outputs.
        max_length: The number of tokens that longer texts are truncated to.
        backend: How forward passes are run.
        limit: The length that texts are cut to, and on which side.
        typed: The special tokens that occurred in the texts of the last prediction.
        skipped: The rows of the last file that could not be read.

    Raises:
        ModelError: If there is no model, or if its files are damaged.
    """

    def __init__(self, folder: str | Path, *, device: str = "auto", batch_size: int = 64, light: bool = False) -> None:
        self.model_dir, self.run = model_in(user_path(folder))
        self.backend = choose_backend(TrainingArguments(device=device, precision="fp32"))
        with stage(LOADING), collection_paused():
            found = load_light(self.model_dir, self.run, self.backend.device) if light and self.run else None
            self.tokenizer = found[0] if found else load_tokenizer(self.model_dir)
            self.model = found[1] if found else load_model(self.model_dir).to(self.backend.device).eval()
            refuse_unknown_tokens(self.tokenizer, self.model)
        self.backend = supported_backend(self.backend, self.model)
        config = self.model.config
        most = longest_input(self.tokenizer, config)
        self.max_length = (self.run and self.run.settings.max_length) or most
        self.limit = LengthLimit(self.max_length, most, self.tokenizer.truncation_side, trained=True)
        self.task, self.names = task_of(config), [*label_names(config)]
        self._collate, self.batch_size = PaddingCollator(self.tokenizer), batch_size
        self._num_texts, self._cut, self.typed = 0, NOTHING_CUT, NONE_TYPED
        self.skipped = BadRows()  # rows of the last file that cannot be read

    @property
    def outputs(self) -> LabelSet | None:
        """The labels of the model's outputs, with the order that numbers in data refer to; None if it predicts a score."""
        if self.task == SCORE:
            return None
        names = tuple(self.names)
        numbered = carried_labels(self.model.config) is None  # LABEL_0, LABEL_1: the numbers are the names
        return LabelSet(names, names if numbered else self.run.data.label_order if self.run else None)

    @property
    def notes(self) -> list[str]:
        """What a person should know about the texts of the last prediction."""
        return [note for note in (self.limit.note(self._cut, self._num_texts), self.typed.note) if note]

    def predict(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> list[Prediction]:
        """Return a prediction for every text or pair of texts, in their order.

        Args:
            texts: A text, or a sequence of texts.
            pairs: The second text of each pair, if the model was trained on pairs.

        Returns:
            One prediction per text.

        Raises:
            SettingsError: If the numbers of first and second texts differ.
            DataError: If a text is not a string.
            ModelError: If a prediction is not finite.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        pairs = [pairs] if isinstance(pairs, str) else pairs
        if pairs is not None and len(pairs) != len(texts):
            raise SettingsError(
                f"there are {len(texts):,} texts, but {len(pairs):,} second texts", "pass one second text for each text"
            )
        self._num_texts, self._cut, self.typed = 0, NOTHING_CUT, NONE_TYPED
        if not texts:
            return []
        return self._described(self.logits(texts, pairs))

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> np.ndarray:
        """Return the model's logits, one row per text.

        Args:
            texts: The texts.
            pairs: The second text of each pair, if the model was trained on pairs.

        Returns:
            An array of the shape (texts, labels).

        Raises:
            DataError: If a text is not a string.
            ModelError: If a logit is not finite.
        """
        for row, text in enumerate(texts if pairs is None else [*texts, *pairs]):
            if not isinstance(text, str):
                raise DataError(f"text {row % len(texts) + 1:,} is {visible(text)}, not text", "give strings")
            refuse_half_character(text, f"text {row % len(texts) + 1:,}")
        columns = [list(texts)] if pairs is None else [list(texts), list(pairs)]
        self._num_texts, self.limit = self._num_texts + len(texts), replace(self.limit, pairs=pairs is not None)
        rows = []
        for encoded, read in tokenized_groups(self.tokenizer, columns, self.max_length):
            rows += [{key: encoded[key][row] for key in encoded} for row in range(len(read[0]))]
            self.typed += typed_tokens(read, self.tokenizer)
            self._cut += cut_by_truncation(encoded, read, self.tokenizer, self.max_length)
        return self._forward(rows).logits

    def evaluate(self, rows: Rows, measures: Measures, prefix: str = "eval") -> Evaluation:
        """Return logits, labels and metrics of the model on labelled rows.

        Args:
            rows: Encoded rows with labels.
            measures: Which metrics to compute.
            prefix: What the name of each metric begins with.

        Returns:
            The evaluation, with metrics such as `eval_loss`.

        Raises:
            ModelError: If a logit is not finite.
        """
        found = self._forward(rows, make_loss(self.task))
        return named_metrics(found, measures.scores(found.logits, found.labels, self.task, self.names), prefix)

    def _forward(self, rows: Rows, loss_sum: LossSum | None = None) -> Evaluation:
        """Return logits, and labels and loss if `loss_sum` is given, of one pass over encoded rows."""
        batches = Batches(rows, self._collate, self.batch_size, group_by_length=True)
        self.backend = verified_backend(self.backend, self.model, lambda: batches, say)
        with stage(PREDICTING if loss_sum is None else EVALUATING, len(rows)), self.backend.evaluation_context(self.model):
            found = run_over(self.model, self.backend.adapt_batches(batches, rows), self.backend, loss_sum)
        if not (finite := np.isfinite(found.logits).all(axis=1)).all():
            problem = f"row {int(np.argmin(finite)) + 1:,}: the prediction of the model is not finite"
            raise ModelError(problem, "download the model again: its weights are damaged")
        return found

    def _described(self, logits: np.ndarray) -> list[Prediction]:
        """Return rows of logits as labels and probabilities."""
        names = None if self.task == SCORE else tuple(self.names)
        labels = [label_of(choice, names) for choice in decide(logits, self.task).tolist()]
        return [
            Prediction(label, self._probabilities(row), row.tolist())
            for label, row in zip(labels, logits.astype(np.float64), strict=True)
        ]

    def _probabilities(self, logits: np.ndarray) -> dict[str, float]:
        """Return the probability of each label for one row of logits; empty if the model predicts a score."""
        if self.task == SCORE:
            return {}
        return dict(zip(self.names, probabilities(logits, self.task).tolist(), strict=True))

    def predict_file(
        self, source: Path, target: Path, text: str | None = None, pair: str | None = None, **reading: object
    ) -> int:
        """Predict every row of a file, and write the rows with their predictions in the same order.

        The whole file is checked before the first row is predicted. Memory does not grow with the number of rows.

        Args:
            source: The file to read.
            target: The file to write; its suffix chooses the format.
            text: The column with the texts, or several separated by commas, which are joined. Default: as in training.
            pair: The column with the second texts.
            **reading: Settings of `DataSettings` that say how to read a file: `delimiter`, `header`, `columns`, `encoding`,
                `sheet`, `bad_rows`. Skipped rows are in the attribute `skipped`.

        Returns:
            The number of rows.

        Raises:
            DataError: If the file or one of its rows cannot be predicted.
            SettingsError: If it is not clear which column holds the texts.
        """
        refuse_target(target)
        settings = data_settings(reading)
        suffix, num_rows, number = target.suffix.lower(), 0, 0
        with replacing(target) as writing, writing.open("w", encoding="utf-8", newline="") as opened:
            columns: list[str] = []
            self._num_texts, self._cut, self.typed = 0, NOTHING_CUT, NONE_TYPED
            with stage(f"reading {source.name}"):
                for rows in self._checked(source, settings, text, pair):
                    columns, num_rows = [*rows.table.column_names, *self._added_columns], num_rows + rows.table.num_rows
                    advance(rows.table.num_rows)
                    if suffix == ".tsv":
                        refuse_for_tsv(rows.table, rows.first, source.name, self._added_columns)
            if not columns:
                raise DataError(f"{source.name}: the file has no rows", "use a file with at least one row")
            write = row_writer(opened, suffix, columns)
            with stage(PREDICTING, num_rows):
                for row in self._predicted_rows(self._checked(source, settings, text, pair)):
                    write(row)
                    number += 1
        return number

    @property
    def _added_columns(self) -> list[str]:
        """The columns with predictions in a written file."""
        return ["prediction", *(f"score_{name}" for name in self.names if self.task != SCORE)]

    def _predicted_rows(self, checked: Iterator[FileRows]) -> Iterator[Row]:
        """Yield the rows of a file with their predictions."""
        for rows in checked:
            logits = self.logits(*rows.texts)
            for row, answer in zip(rows.table.to_pylist(), self._described(logits), strict=True):
                scores = {f"score_{name}": round(value, 6) for name, value in answer.scores.items()}
                yield {**row, "prediction": answer.label, **scores}

    def _checked(self, source: Path, settings: DataSettings, text: str | None, pair: str | None) -> Iterator[FileRows]:
        """Yield the checked rows of a file. The texts are in the columns given, or in those the model was trained on."""
        if self.run is not None and text is None:
            text, pair = self.run.data.columns.text, pair or self.run.data.columns.text_pair
        self.skipped = BadRows(skip=settings.bad_rows == "skip", offer=True)
        texts = [name for name in (text, pair) if name] if text else []
        return checked_rows(source, settings, texts, self._added_columns, self.skipped)


def model_in(folder: Path) -> tuple[Path, RunRecord | None]:
    """Return the folder of a model and the record of its run; None without a run. Raises `ModelError` if there is no model."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such folder", "name the folder of a finished run, or of a model")
    return model_of_run(folder) if is_run(folder) else (folder, None)
