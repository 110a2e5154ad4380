"""Use a trained model: predict texts or the rows of a file, and evaluate the model on labelled rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import RLock, local
from typing import overload

import numpy as np

from glassloop.backends.packed import NO_STATE, PackedBackend, state_of, verified_backend
from glassloop.base.files import user_path
from glassloop.base.output import EVALUATING, PREDICTING, say, stage
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.encoding import EncodedText, EncodedTexts, LengthLimit, TypedTokens, encode_texts, encoded_ahead
from glassloop.data.interfaces import Row, Rows, Texts
from glassloop.data.labels import LabelSet
from glassloop.data.readers import BadRows
from glassloop.data.writers import Row as FileRow
from glassloop.models.interface import carried_labels, label_names, longest_input, task_of
from glassloop.predict.answers import Given, Prediction, answering_of, columns_of, finite, paired
from glassloop.predict.files import Counts, FileJob, model_key, predict_rows
from glassloop.predict.models import is_int8, open_model, quantize
from glassloop.scores.metrics import Measures
from glassloop.settings.training import SCORE, data_settings
from glassloop.training.evaluate import Evaluation, named_metrics, run_over
from glassloop.training.interfaces import Backend, LossSum
from glassloop.training.losses import make_loss

NOTHING_COUNTED = Counts()
STREAMED_ROWS = 512  # rows of a generator that are predicted together


class LastCall(local):
    """What the latest call of each thread counted in its texts: threads share a predictor, but not what is said to them."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.pairs = False
        self.skipped = BadRows()


class Predictor:
    """Loads the model of a run folder, or of any model folder, and predicts with it. Several threads may share a predictor.

    Args:
        folder: A run folder, a folder with a model and its tokenizer, or an exported folder.
        device: "auto", "cpu", "cuda" or "mps".
        batch_size: The number of rows in a forward pass.
        light: Load a known model without transformers: it starts faster, but predicts many rows more slowly.
        temperature: What logits are divided by before probabilities are computed. Default: that of `glassloop calibrate`, or 1.
        thresholds: The probability from which a label is chosen, by its name. Default: those of `glassloop calibrate`, unless
            a temperature is given; else 0.5 for each of several labels, and the most likely class.
        precision: "auto", "fp32", "bf16" or "fp16"; or "int8" on a CPU, which is faster and is compared with the run's stored
            predictions first. Default: on a GPU that of the run, else fp32.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        model_dir: The folder the model was loaded from.
        run: The record of the run that the model comes from, if it is known.
        task: The task of the model.
        names: The names of the model's outputs.
        max_length: The number of tokens that longer texts are truncated to.
        backend: How forward passes are run.
        answering: How logits become labels and probabilities.
        calibration: What `glassloop calibrate` stored, if it is used.
        limit: The length that texts are cut to, and on which side.
        agreement: How predictions in int8 agree with the stored ones; None in fp32.

    Raises:
        ModelError: If there is no model, its files or its calibration are damaged, or its predictions in int8 are worse.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        batch_size: int = 64,
        light: bool = False,
        temperature: float | None = None,
        thresholds: Mapping[str, float] | None = None,
        precision: str = "auto",
    ) -> None:
        opened = open_model(user_path(folder), device, precision, light=light)
        self.model_dir, self.run, self.backend = opened.folder, opened.run, opened.backend
        self.tokenizer, self.model, config = opened.tokenizer, opened.model, opened.model.config
        most = longest_input(self.tokenizer, config)
        self.max_length = (self.run and self.run.settings.max_length) or most
        self.limit = LengthLimit(self.max_length, most, self.tokenizer.truncation_side, trained=True)
        self.task, self.names = task_of(config), [*label_names(config)]
        self._collate, self.batch_size = PaddingCollator(self.tokenizer), batch_size
        given = temperature, thresholds
        self.answering, self.calibration = answering_of(self.model_dir, self.run, self.task, self.names, *given)
        self._lock, self._tokenizer_lock = RLock(), RLock()  # a model and a tokenizer keep the state of a call
        self._savings, self._opened = ExitStack(), NO_STATE
        self._last = LastCall()
        self.agreement = quantize(self, user_path(folder)) if is_int8(precision) else None

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
        """What a person should know about the texts of this thread's last prediction."""
        counts = self._last.counts
        limit = replace(self.limit, pairs=self._last.pairs)
        return [note for note in (limit.note(counts.cut, counts.rows), counts.typed.note) if note]

    @property
    def typed(self) -> TypedTokens:
        """The special tokens in the texts of this thread's last prediction."""
        return self._last.counts.typed

    @property
    def skipped(self) -> BadRows:
        """The rows of this thread's last file that could not be read."""
        return self._last.skipped

    @overload
    def predict(self, texts: Iterator[Given], pairs: None = None) -> Iterator[Prediction]: ...

    @overload
    def predict(self, texts: Given | Sequence[Given], pairs: str | Sequence[str] | None = None) -> list[Prediction]: ...

    def predict(
        self, texts: Given | Sequence[Given] | Iterator[Given], pairs: str | Sequence[str] | None = None
    ) -> list[Prediction] | Iterator[Prediction]:
        """Return a prediction for every text or pair of texts, in their order.

        Args:
            texts: A text, a dict, or a sequence of texts, pairs `(first, second)` or dicts. A dict has the text columns of the
                run, or "text" and "text_pair". A generator is read a few rows ahead, and its predictions are yielded.
            pairs: The second text of each pair, if `texts` are the first texts.

        Returns:
            One prediction per text or pair: a list, or an iterator if `texts` is one.

        Raises:
            SettingsError: If the numbers of first and second texts differ.
            DataError: If a text is not a string.
            ModelError: If a prediction is not finite.
        """
        if isinstance(texts, Iterator):
            return self._streamed(texts)
        items = paired([texts] if isinstance(texts, str | Mapping) else [*texts], pairs)
        self._last.counts = Counts()
        return self._answers(items) if items else []

    def _streamed(self, given: Iterator[Given]) -> Iterator[Prediction]:
        """Yield the predictions for an endless number of texts or pairs, some rows at a time."""
        before = Counts()
        while items := [*islice(given, STREAMED_ROWS)]:
            answers = self._answers(items, before)
            before = self._last.counts
            yield from answers

    def _answers(self, items: Sequence[Given], before: Counts = NOTHING_COUNTED) -> list[Prediction]:
        """Return the predictions for texts, pairs or dicts, and note their counts with those `before` them."""
        columns = columns_of(items, self.run.data.columns if self.run else None, before.rows)
        logits, counts = self._counted_logits(columns)
        self._last.counts = before + counts
        return self.answering.describe(logits)

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
        columns = columns_of(texts if pairs is None else [*zip(texts, pairs, strict=True)], None)
        logits, self._last.counts = self._counted_logits(columns)
        return logits

    def _counted_logits(self, columns: Texts) -> tuple[np.ndarray, Counts]:
        """Return the logits of texts, or of pairs in two columns, and what was counted in them."""
        self._last.pairs = len(columns) > 1
        counts = Counts(len(columns[0]))
        found: list[np.ndarray] = []
        for encoded in encoded_ahead(self.encoded, columns):
            counts += Counts(0, encoded.cut, encoded.typed)
            found.append(self._forward([row.inputs for row in encoded.rows]).logits)
        return finite(np.concatenate(found)), counts

    def encoded(self, columns: Texts) -> EncodedTexts:
        """Return texts, or pairs in two columns, as token ids, each with what truncation has cut.

        Args:
            columns: The texts, or the first and the second texts of pairs.
        """
        with self._tokenizer_lock:
            return encode_texts(self.tokenizer, columns, self.max_length)

    def forward(self, rows: Sequence[EncodedText]) -> np.ndarray:
        """Return the logits of `rows` that `encoded` returned, in their order.

        Made for servers: after its first call it does not check again whether somebody changed the model. `predict` does.
        """
        inputs = [row.inputs for row in rows]
        return finite(self._forward(inputs).logits if (found := self._in_one_pass(inputs)) is None else found)

    def _in_one_pass(self, rows: Sequence[Row]) -> np.ndarray | None:
        """Return the logits of a few rows by one forward pass; None if that is not possible, or if no batch was run before."""
        with self._lock:
            packed = self.backend if isinstance(self.backend, PackedBackend) and self._opened != NO_STATE else None
            return packed.logits_of(rows) if packed is not None else None

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
        finite(found.logits)
        return named_metrics(found, measures.scores(found.logits, found.labels, self.task, self.names), prefix)

    def _forward(self, rows: Rows, loss_sum: LossSum | None = None) -> Evaluation:
        """Return logits, and labels and loss if `loss_sum` is given, of one pass over encoded rows."""
        with self._lock, stage(PREDICTING if loss_sum is None else EVALUATING, len(rows)):
            batches = Batches(rows, self._collate, self.batch_size, group_by_length=True)
            self._open(batches)
            found = run_over(self.model, self.backend.adapt_batches(batches, rows), self.backend, loss_sum)
        return found

    def use(self, backend: Backend) -> None:
        """Run forward passes on a backend from now on.

        Args:
            backend: A backend for the device of the model. Its savings are put in place anew.
        """
        self._savings.close()
        self.backend, self._opened = backend, NO_STATE

    def _open(self, batches: Batches) -> None:
        """Put the savings of forward passes in place, and leave them there as long as nobody changes the model."""
        if self._opened == state_of(self.model):
            return
        self._savings.close()
        self.backend = verified_backend(self.backend, self.model, lambda: batches, say)
        self._savings.enter_context(self.backend.evaluation_context(self.model))
        self._opened = state_of(self.model)

    def predict_file(
        self,
        source: Path,
        target: Path,
        text: str | None = None,
        pair: str | None = None,
        *,
        overwrite: bool = True,
        **reading: object,
    ) -> int:
        """Predict every row of a file, and write the rows with their predictions in the same order.

        The whole file is checked before the first row is predicted. Memory does not grow with the number of rows.
        Finished parts are kept beside `target` until it is written, so that the same call continues after a kill.

        Args:
            source: The file to read.
            target: The file to write; its suffix chooses the format.
            text: The column with the texts, or several separated by commas, which are joined. Default: as in training.
            pair: The column with the second texts.
            overwrite: Whether to replace `target` if it exists.
            **reading: The `DataSettings` of one file, such as `delimiter`. Skipped rows are in the attribute `skipped`.

        Returns:
            The number of rows.

        Raises:
            DataError: If the file or one of its rows cannot be predicted.
            SettingsError: If it is not clear which column holds the texts.
        """
        if text is None and self.run is not None:
            text, pair = self.run.data.columns.text, pair or self.run.data.columns.text_pair
        texts = tuple(name for name in (text, pair) if name) if text else ()
        key = model_key(self.model_dirs, self.backend.device.type, self.answering, int8=self.agreement is not None)
        job = FileJob(source, target, texts, data_settings(reading), self.task, tuple(self.names), key, overwrite)
        self._last.pairs = len(texts) > 1
        self._last.counts, self._last.skipped = predict_rows(job, self._added_cells)
        return self._last.counts.rows

    @property
    def model_dirs(self) -> list[Path]:
        """The folders of all models that predict together."""
        return [self.model_dir]

    def _added_cells(self, texts: Texts) -> tuple[list[FileRow], Counts]:
        """Return the columns of the predictions for some rows of a file, and what was counted in their texts."""
        logits, counts = self._counted_logits(texts)
        return [answer.cells for answer in self.answering.describe(logits)], counts
