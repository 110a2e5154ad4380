"""A trained model put to use: labels and scores for texts, for rows of a file, for a split of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import supported_backend, verified_backend
from glassloop.backends.choose import choose_backend
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.labels import LabelSet
from glassloop.data.readers import SUFFIXES, first_row_number, read_file, refuse_special
from glassloop.data.soundness import refuse_half_character
from glassloop.data.special_tokens import NONE_TYPED, typed_tokens
from glassloop.data.tokenizing import tokenized_groups
from glassloop.data.writers import Row, refuse_for_tsv, refuse_target, row_writer, written_table
from glassloop.engine.evaluate import run_over
from glassloop.errors import DataError, ModelError, SettingsError, did_you_mean, listed, say, visible
from glassloop.files import replacing, user_path
from glassloop.metrics import decide
from glassloop.models.inputs import longest_input, refuse_unknown_tokens
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.models.outputs import carried_labels, label_names, task_of
from glassloop.run_folder.layout import is_run
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import model_of_run


@dataclass(frozen=True)
class Prediction:
    """The answer for one text or pair: a label, several labels, or a score; and the probability of each label."""

    label: str | list[str] | float
    scores: dict[str, float]
    logits: list[float]


class Predictor:
    """Loads the model of a run folder (or any model folder) and predicts with it."""

    def __init__(self, folder: str | Path, *, device: str = "auto", batch_size: int = 64) -> None:
        self.model_dir, self.run = trained_model(user_path(folder))
        self.backend = choose_backend(TrainingArguments(device=device, precision="fp32"))
        self.tokenizer = load_tokenizer(self.model_dir)
        self.model = load_model(self.model_dir).to(self.backend.device).eval()
        refuse_unknown_tokens(self.tokenizer, self.model)
        self.backend = supported_backend(self.backend, self.model)
        config = self.model.config
        self.max_length = (self.run and self.run.settings.max_length) or longest_input(self.tokenizer, config)
        self.task, self.names = task_of(config), [*label_names(config)]
        self.collate, self.batch_size = PaddingCollator(self.tokenizer), batch_size
        self.typed = NONE_TYPED  # special tokens in the texts last predicted

    @property
    def outputs(self) -> LabelSet | None:
        """The labels of the model's outputs, with the order that numbers in data mean; None where it gives a score."""
        if self.task == "regression":
            return None
        names = tuple(self.names)
        numbered = carried_labels(self.model.config) is None  # LABEL_0, LABEL_1: the numbers are the names
        return LabelSet(names, names if numbered else self.run.data.label_order if self.run else None)

    def predict(self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None) -> list[Prediction]:
        """A prediction for every text (or pair of texts), in their order."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        pairs = [pairs] if isinstance(pairs, str) else pairs
        if pairs is not None and len(pairs) != len(texts):
            raise SettingsError(f"{len(texts):,} texts came with {len(pairs):,} second texts", "give one for each")
        self.typed = NONE_TYPED
        if not texts:
            return []
        return [self.described(row) for row in self.logits(texts, pairs)]

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> np.ndarray:
        """The model's logits, one row a text."""
        for row, text in enumerate(texts if pairs is None else [*texts, *pairs]):
            if not isinstance(text, str):
                raise DataError(f"text {row % len(texts) + 1:,} is {visible(text)}, not text", "give text")
            refuse_half_character(text, f"text {row % len(texts) + 1:,}")
        columns = [list(texts)] if pairs is None else [list(texts), list(pairs)]
        rows = []
        for encoded, read in tokenized_groups(self.tokenizer, columns, self.max_length):
            rows += [{key: encoded[key][row] for key in encoded} for row in range(len(read[0]))]
            self.typed += typed_tokens(read, self.tokenizer)
        batches = Batches(rows, self.collate, self.batch_size, group_by_length=True)
        self.backend = verified_backend(self.backend, self.model, lambda: batches, say)
        with self.backend.evaluation_context(self.model):
            logits = run_over(self.model, self.backend.adapt_batches(batches, rows), self.backend).logits
        if not (finite := np.isfinite(logits).all(axis=1)).all():
            problem = f"text {int(np.argmin(finite)) + 1:,}: the model's answer is not finite"
            raise ModelError(problem, "download the model again: its weights are damaged")
        return logits

    def described(self, logits: np.ndarray) -> Prediction:
        """Logits as a label and probabilities."""
        values = logits.astype(np.float64)
        if self.task == "regression":
            return Prediction(float(values[0]), {}, values.tolist())
        if self.task == "multi_label_classification":
            scores = 1 / (1 + np.exp(-values))
            chosen = decide(values[None], self.task)[0]
            label: Any = [name for name, there in zip(self.names, chosen, strict=True) if there]
        else:
            shifted = np.exp(values - values.max())
            scores = shifted / shifted.sum()
            label = self.names[int(values.argmax())]
        return Prediction(label, dict(zip(self.names, scores.tolist(), strict=True)), values.tolist())

    def predict_file(self, source: Path, target: Path, text: str | None, pair: str | None, delimiter: str | None = None) -> int:
        """Predict every row of a file and write the rows with their predictions, in order; return their number.

        The whole file is checked before the first row is predicted. Memory does not grow with the number of rows.
        """
        refuse_target(target)
        suffix, number = target.suffix.lower(), 0
        with replacing(target) as writing, writing.open("w", encoding="utf-8", newline="") as opened:
            columns: list[str] = []
            self.typed = NONE_TYPED
            for first, table in self.checked_tables(source, text, pair, delimiter):
                columns = [*table.column_names, *self.added_columns]
                if suffix == ".tsv":
                    refuse_for_tsv(table, first, source.name, self.added_columns)
            if not columns:
                raise DataError(f"{source.name}: there are no rows", "give a file with at least one row")
            write = row_writer(opened, suffix, columns)
            for row in self.predicted_rows(source, text, pair, delimiter):
                write(row)
                number += 1
        return number

    @property
    def added_columns(self) -> list[str]:
        """The columns that predictions are written to."""
        return ["prediction", *(f"score_{name}" for name in self.names if self.task != "regression")]

    def predicted_rows(self, source: Path, text: str | None, pair: str | None, delimiter: str | None) -> Iterator[Row]:
        """The rows of a file with their predictions."""
        text, pair = self.text_columns(text, pair)
        for _, table in self.checked_tables(source, text, pair, delimiter):
            rows = table.to_pylist()
            logits = self.logits([row[text] for row in rows], [row[pair] for row in rows] if pair else None)
            for row, values in zip(rows, logits, strict=True):
                answer = self.described(values)
                scores = {f"score_{name}": round(value, 6) for name, value in answer.scores.items()}
                yield {**row, "prediction": answer.label, **scores}

    def text_columns(self, text: str | None, pair: str | None) -> tuple[str | None, str | None]:
        """The columns of the texts: those given, else those the model was trained on."""
        if self.run is not None and text is None:
            return self.run.data.columns.text, pair or self.run.data.columns.text_pair
        return text, pair

    def checked_tables(
        self, source: Path, text: str | None, pair: str | None, delimiter: str | None
    ) -> Iterator[tuple[int, pa.Table]]:
        """The rows of a file as tables, each with the number of its first row; raises where a row cannot be predicted."""
        if source.exists():
            refuse_special(source)
        if source.suffix.lower() not in SUFFIXES or not source.is_file():
            raise DataError(f"{source}: there is no such data file", f"give one of {listed(SUFFIXES)}")
        text, pair = self.text_columns(text, pair)
        row_number = first_row_number(source)
        for table in read_file(source, delimiter):
            found = listed(table.column_names)
            if text is None:
                raise SettingsError(f"{source.name}: which column holds the text? found {found}", "name it with --text")
            for name in filter(None, (text, pair)):
                if name not in table.column_names:
                    there = f"found {found}{did_you_mean(name, table.column_names)}"
                    remedy = "name the columns with --text and --text_pair"
                    raise DataError(f"{source.name}: there is no column {visible(name)}; {there}", remedy)
            for name in self.added_columns:
                if name in table.column_names:
                    raise DataError(
                        f"{source.name}: there is a column {visible(name)} already",
                        "rename it: predictions are written to a column of that name",
                    )
            table = written_table(table, source.name)
            for name in filter(None, (text, pair)):
                for place, cell in enumerate(table[name].to_pylist()):
                    where = f"{source.name}, row {row_number + place:,}"
                    if cell is None or cell == "":
                        raise DataError(f"{where}: the text is empty", "fill or remove the row")
                    if not isinstance(cell, str):
                        raise DataError(
                            f"{where}: {visible(name)} is {visible(cell)}, not text", "name the text column with --text"
                        )
            yield row_number, table
            row_number += table.num_rows


def trained_model(folder: Path) -> tuple[Path, RunRecord | None]:
    """The model's folder and the run's record; a bare model folder has none."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such run", "name the folder of a finished run, or of a model")
    return model_of_run(folder) if is_run(folder) else (folder, None)
