"""Use a trained model: open its folder, predict texts or the rows of a file, and evaluate it; one seed or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import RLock, local
from typing import TypeVar, overload

import numpy as np

from glassloop.backends.choose import choose_backend, choose_device, choose_precision
from glassloop.backends.packed import NO_STATE, PackedBackend, state_of, supported_backend, verified_backend, why_not_int8
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import DataError, GlassloopError, ModelError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import find_path, replacing, user_path
from glassloop.base.output import EVALUATING, LOADING, PREDICTING, say, stage
from glassloop.base.records import collection_paused
from glassloop.data import encoding
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.columns import LabelSet
from glassloop.data.encoding import Counts, EncodedText, EncodedTexts, LengthLimit, TypedTokens
from glassloop.data.examples import Examples
from glassloop.data.interfaces import Model, Row, Rows, Texts, Tokenizer
from glassloop.data.readers import BadRows
from glassloop.data.sources import load_examples
from glassloop.data.writers import row_writer
from glassloop.models import interface
from glassloop.models.exported import device_of, load_exported
from glassloop.models.interface import encoder_weights, label_names, longest_input, task_of
from glassloop.models.light import load_light
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.models.pooled import pooling_of
from glassloop.predict.answers import Given, Prediction, answering_of, columns_of, finite
from glassloop.predict.files import FileJob, model_key, predict_rows
from glassloop.runs import record as records
from glassloop.runs.export import is_export, read_export
from glassloop.runs.history import read_history
from glassloop.runs.study import read_seeds
from glassloop.scores import metrics as scoring
from glassloop.scores.conclusions import averaged_logits
from glassloop.scores.metrics import Measures, probabilities, recorded_measures
from glassloop.scores.result import Baselines, Result, facts_of, label_of, method_of
from glassloop.scores.statistics import scored_rows
from glassloop.settings.training import CLASSES, SCORE, TrainingArguments, data_settings, split_names
from glassloop.training.evaluate import Evaluation, labels_of, named_metrics, prefixes, result_of, run_over
from glassloop.training.interfaces import Backend, LossSum
from glassloop.training.losses import make_loss

Item = TypeVar("Item")
NOTHING_COUNTED = Counts()
STREAMED_ROWS = 512  # rows of a generator that are predicted together
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
MEASURED_ROWS = 64  # whose values set the ranges of the quantized layers
COMPARED_ROWS = 1_000
ALLOWED_DROP = 0.01  # of a metric
USE_FP32 = "use precision fp32"
PAIRS = "give pairs (first, second); in a file, name the column of the second texts"


class LastCall(local):
    """What the latest call of each thread counted in its texts: threads share a predictor, but not what is said to them."""

    counts = NOTHING_COUNTED
    pairs = False
    skipped = BadRows()


class Predictor:
    """Loads the model of a run folder, or of any model folder, and predicts with it. Several threads may share a predictor.

    Args:
        folder: A run folder, a folder with a model and its tokenizer, or an exported folder.
        device: "auto", "cpu", "cuda" or "mps".
        batch_size: The number of rows in a forward pass.
        light: Load a known model without transformers: it starts faster, but predicts many rows more slowly.
        temperature: What logits are divided by before probabilities are computed. Default: that of the run, or 1.
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
        towers: Whether the model reads the two texts of a pair apart; each of them is cut on its own.
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
        self.model_dir, self.run, self.tokenizer, self.model, self.backend = opened
        config, most = self.model.config, longest_input(self.tokenizer, self.model.config)
        self.max_length = (self.run and self.run.settings.max_length) or most
        self.limit = LengthLimit(self.max_length, most, self.tokenizer.truncation_side, trained=True)
        self.task, self.names = task_of(config), [*label_names(config)]
        pooling = pooling_of(config)
        self.towers = pooling is not None and pooling.towers
        self._collate, self.batch_size = PaddingCollator(self.tokenizer), batch_size
        answers = answering_of(self.model_dir, self.run, self.task, self.names, temperature, thresholds)
        self.answering, self.calibration = answers
        self._lock, self._tokenizer_lock = RLock(), RLock()  # a model and a tokenizer keep the state of a call
        self._savings, self._opened = ExitStack(), NO_STATE
        self._last = LastCall()
        self.agreement = quantize(self, user_path(folder)) if precision == "int8" else None

    @property
    def outputs(self) -> LabelSet | None:
        """The labels of the model's outputs, with the order that numbers in data refer to; None if it predicts a score."""
        if self.task == SCORE:
            return None
        names = tuple(self.names)
        numbered = interface.carried_labels(self.model.config) is None  # LABEL_0, LABEL_1: the numbers are the names
        return LabelSet(names, names if numbered else self.run.data.label_order if self.run else None)

    @property
    def notes(self) -> list[str]:
        """What a person should know about the texts of this thread's last prediction."""
        return replace(self.limit, pairs=self._last.pairs).notes(self._last.counts)

    @property
    def warnings(self) -> list[str]:
        """What speaks against the answers of the model, such as probabilities worse than the class frequencies."""
        found = self.run.probabilities if self.run else None
        # A calibration has the warning that holds with it, also in a folder that is not a run.
        warning = self.calibration.warning if self.calibration else found and found.warning
        return [warning] if warning else []

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
        items: list[Given] = [texts] if isinstance(texts, str | Mapping) else [*texts]
        if pairs is not None:
            seconds = [pairs] if isinstance(pairs, str) else [*pairs]
            if len(seconds) != len(items):
                problem = f"there are {len(items):,} texts, but {len(seconds):,} second texts"
                raise SettingsError(problem, "pass one second text for each text")
            items = [*zip(items, seconds, strict=True)]  # type: ignore[list-item]
        self._last.counts = Counts()
        return self._answers(items) if items else []

    def _streamed(self, given: Iterator[Given]) -> Iterator[Prediction]:
        """Yield the predictions for an endless number of texts or pairs, some rows at a time."""
        before = NOTHING_COUNTED
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
        for encoded in encoding.encoded_ahead(self.encoded, columns):
            counts += Counts(0, encoded.cut, encoded.typed)
            found.append(self._forward([row.inputs for row in encoded.rows]).logits)
        return finite(np.concatenate(found)), counts

    def encoded(self, columns: Texts) -> EncodedTexts:
        """Return texts, or pairs in two `columns`, as token ids, each with what truncation has cut."""
        if self.towers and len(columns) != 2:
            raise DataError("the model compares two texts, but the rows have one", PAIRS)
        with self._tokenizer_lock:
            return encoding.encode_texts(self.tokenizer, columns, self.max_length, towers=self.towers)

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
            if self._opened != state_of(self.model):  # savings stay in place as long as nobody changes the model
                self._savings.close()
                self.backend = verified_backend(self.backend, self.model, lambda: batches, say)
                self._savings.enter_context(self.backend.evaluation_context(self.model))
                self._opened = state_of(self.model)
            return run_over(self.model, self.backend.adapt_batches(batches, rows), self.backend, loss_sum)

    def use(self, backend: Backend) -> None:
        """Run forward passes on a `backend` for the device of the model from now on. Its savings are put in place anew."""
        self._savings.close()
        self.backend, self._opened = backend, NO_STATE

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
        texts = (text, pair) if text and pair else (text,) if text else ()
        key = model_key(self.model_dirs, self.backend.device.type, self.answering, int8=self.agreement is not None)
        job = FileJob(source, target, texts, data_settings(reading), self.task, tuple(self.names), key, overwrite)

        def added_cells(columns: Texts) -> tuple[list[dict[str, object]], Counts]:
            logits, counts = self._counted_logits(columns)
            return [answer.cells for answer in self.answering.describe(logits)], counts

        self._last.pairs = len(texts) > 1
        self._last.counts, self._last.skipped = predict_rows(job, added_cells)
        return self._last.counts.rows

    @property
    def model_dirs(self) -> list[Path]:
        """The folders of all models that predict together."""
        return [self.model_dir]


# --- opening a folder ----------------------------------------------------------------------------------------------
def open_model(
    folder: Path, device: str, precision: str = "auto", *, light: bool = False
) -> tuple[Path, records.RunRecord | None, Tokenizer, Model, Backend]:
    """Return the folder with the files of a model, its run (None without one), its tokenizer, the model and its backend."""
    scoring.one_of(precision, PRECISIONS, "precision of predictions")
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such folder", "name the folder of a finished run, or of a model")
    if is_export(folder):  # run by its own runtime on sorted and padded batches
        if precision != "auto":
            raise SettingsError(f"{folder}: an exported model has its own precision, not {precision}", "omit the precision")
        record = read_export(folder)
        plain = PlainBackend(choose_backend(TrainingArguments(device=device_of(record, device), precision="fp32")).device)
        with stage(LOADING), collection_paused():
            exported = load_exported(folder, record, plain.device)
            plain.name = exported.runtime
            return folder, record.run, load_tokenizer(folder), exported, plain
    model_dir, run = records.model_of_run(folder) if records.is_run(folder) else (folder, None)
    loaded = "fp32" if precision in ("auto", "int8") else precision  # before it is quantized
    if precision == "auto" and run is not None and choose_device(device) == "cuda":
        loaded = run.precision if run.precision in ("fp16", choose_precision("auto", "cuda")) else "fp32"
    backend = choose_backend(TrainingArguments(device=device, precision=loaded))
    with stage(LOADING), collection_paused():
        found = load_light(model_dir, run, backend.device) if light and run and precision != "int8" else None
        tokenizer = found[0] if found else load_tokenizer(model_dir)
        model = found[1] if found else load_model(model_dir).to(backend.device).eval()
        interface.refuse_unknown_tokens(tokenizer, model)
    return model_dir, run, tokenizer, model, supported_backend(backend, model)


# --- int8 ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Agreement:
    """How the predictions of a quantized model agree with those that its run stored for a split."""

    split: str
    rows: int  # that were compared
    changed: int | None  # rows with another answer; None if the model predicts a score
    difference: float  # the largest of a logit
    metrics: dict[str, tuple[float, float]]  # each metric of these rows: as stored, and in int8

    def __str__(self) -> str:
        scores = ", ".join(f"{name} {before:.4f} → {after:.4f}" for name, (before, after) in self.metrics.items())
        rows = f"{counted(self.rows, 'stored prediction', 'stored predictions')} for {self.split}"
        changed = f"{self.changed:,} of {rows} changed" if self.changed is not None else rows
        return f"int8: {changed}, logits by up to {self.difference:.2g}; {scores}"

    @property
    def dropped(self) -> list[str]:
        """The metrics that are worse than allowed. Errors have no fixed scale; the correlations beside them have."""
        scaled = {name: pair for name, pair in self.metrics.items() if name not in scoring.LOWER_IS_BETTER}
        return [name for name, (before, after) in scaled.items() if not after >= before - ALLOWED_DROP]


def quantize(predictor: Predictor, folder: Path) -> Agreement:
    """Let a predictor run in int8 from now on, and return how its predictions agree with those of its run."""
    # Answers are what counts, so a metric has a limit and logits have none. There is no option to skip the comparison:
    # a model whose answers nobody compared is not worth its speed.
    if (device := predictor.backend.device.type) != "cpu":
        raise SettingsError(f"precision int8 needs a CPU, but the device is {device}", f"use device cpu, or {USE_FP32}")
    if (reason := why_not_int8(predictor.model)) is not None:
        raise ModelError(f"precision int8: {reason}", USE_FP32)
    record, splits = predictor.run, records.predicted_splits(folder) if records.is_run(folder) else []
    if record is None or not splits:
        problem = f"precision int8: {folder} has no stored predictions to compare with"
        raise SettingsError(problem, f"name the folder of a finished run, or {USE_FP32}")
    split = next((name for name in splits if name.startswith("validation")), splits[0])
    entries = spread(records.read_predictions(folder, split), COMPARED_ROWS)
    labels = None if predictor.task == SCORE else predictor.names
    stored = scored_rows(entries, predictor.task, labels, folder / records.predictions_name(split))
    rows = predictor.encoded([[str(entry.get(name, "")) for entry in entries] for name in record.data.columns.texts]).rows
    backend = PackedBackend(int8=True)
    predictor.use(backend)
    predictor.forward(spread(rows, MEASURED_ROWS))
    if predictor.backend is not backend:
        raise ModelError("precision int8: the packed layers of this model differ from the plain ones", USE_FP32)
    backend.quantize()
    predictor.use(backend)
    logits = predictor.forward(rows)
    before, after = (np.asarray(predictor.answering.choices(values)) for values in (stored.logits, logits))
    changed = None if predictor.task == SCORE else int((before != after).reshape(len(rows), -1).any(1).sum())
    measures = recorded_measures(record.metrics, record.positive_label, predictor.task, predictor.names)
    metric = measures.metric(predictor.task, predictor.names)
    old, new = (metric.compute(predictions=answers, references=stored.references) for answers in (before, after))
    metrics = {measures.title(name): (old[name], new[name]) for name in measures.keys}
    found = Agreement(split, len(rows), changed, float(np.abs(logits - stored.logits).max()), metrics)
    if found.dropped:
        raise ModelError(f"{found}: {listed(found.dropped)} dropped by more than a point", USE_FP32)
    say(str(found))
    return found


def spread(items: Sequence[Item], most: int) -> list[Item]:
    return [items[int(place)] for place in np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).astype(int))]


# --- several seeds as one model ------------------------------------------------------------------------------------
class SeedsPredictor(Predictor):
    """Predicts with the models of all finished seeds in a folder of `glassloop train --seeds`, loaded at the same time."""

    def __init__(self, folder: Path, *, device: str = "auto", batch_size: int = 64, precision: str = "auto") -> None:
        first, *rest = finished_runs(folder).values()
        self.others: list[Predictor] = []  # each model in int8 is compared alone
        self.temperatures = [1.0]
        # Each model is divided by its own temperature before probabilities are averaged. Thresholds are those of single models,
        # so none is used: a temperature is given.
        super().__init__(first, device=device, batch_size=batch_size, temperature=1.0, precision=precision)
        for run in rest:
            self.others.append(Predictor(run, device=device, batch_size=batch_size, temperature=1.0, precision=precision))
        stored = [records.read_calibration(one.model_dir, one.run.files if one.run else None) for one in (self, *self.others)]
        self.temperatures = [found.temperature if found else 1.0 for found in stored]

    @property
    def model_dirs(self) -> list[Path]:
        """The folders of all models that predict together."""
        return [self.model_dir, *(other.model_dir for other in self.others)]

    def _in_one_pass(self, rows: Sequence[Row]) -> np.ndarray | None:
        found = [super()._in_one_pass(rows), *(other._in_one_pass(rows) for other in self.others)]
        logits = [one for one in found if one is not None]
        return self._averaged(logits) if len(logits) == len(found) else None

    def _forward(self, rows: Rows, loss_sum: LossSum | None = None) -> Evaluation:
        # Averaged logits have no loss.
        found = [super()._forward(rows, loss_sum), *(other._forward(rows, loss_sum) for other in self.others)]
        return replace(found[0], logits=self._averaged([one.logits for one in found]), loss=None)

    def _averaged(self, logits: Sequence[np.ndarray]) -> np.ndarray:
        parts = [one / temperature for one, temperature in zip(logits, self.temperatures, strict=True)]
        return averaged_logits(logits if self.task == SCORE else parts, self.task)


def has_seeds(folder: Path) -> bool:
    return records.is_seeds_folder(folder) and not records.is_run(folder)


def finished_runs(folder: Path) -> dict[int, Path]:
    """Return the run folder of each finished seed. Seeds that are not finished are reported and omitted."""
    record = read_seeds(folder)
    if not record.finished:
        remedy = f"train them to the end: glassloop train --seeds {len(record.seeds)} --resume {folder}"
        raise ModelError(f"{folder}: no seed is finished yet", remedy)
    if record.unfinished:
        say(f"omitted, because they are not finished: {listed(map(records.seed_name, record.unfinished))}")
    return {seed: folder / records.seed_name(seed) for seed in record.finished}


# --- evaluation ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Wanted:
    """What to evaluate, and how."""

    data: str | None = None  # default: the data of the run
    split: str | None = None  # default: every validation split
    given: Mapping[str, object] = field(default_factory=dict)  # data settings that override those of the run
    metrics: tuple[str, ...] = ()  # each text may contain several, separated by commas; default: those of the run
    positive: str | None = None  # the class whose F1 is reported; default: that of the run
    device: str = "auto"
    batch_size: int = 64
    baselines: bool = True  # whether to compare with the baselines of the run, which are fitted again for other rows


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of one model on one or more splits of the data."""

    source: str
    examples: Examples
    results: Sequence[Result]
    temperature: float = 1.0  # of the probabilities

    @property
    def metrics(self) -> dict[str, float]:
        return {name: value for result in self.results for name, value in result.timed.items()}

    def title(self, result: Result) -> str:
        """Return the name of a split and its number of rows. A file has no splits, so its own name is shown."""
        alone = find_path(self.source) if len(self.examples.rows) == 1 else None
        name = alone.name if alone and alone.is_file() else result.split
        return f"{name} ({counted(len(result.rows), 'row', 'rows')})"

    def save(self, target: Path) -> None:
        """Write one row per evaluated row: split, row, texts, label, prediction and probabilities. Report where they are."""
        examples, names = self.examples, self.examples.labels.names if self.examples.labels else None
        scores = [f"score_{name}" for name in names or ()]
        texts, added = [*examples.columns.texts], ["split", "row", "label", "prediction", *scores]
        if twice := [name for name in texts if name in added]:
            raise SettingsError(f"the text column {visible(twice[0])} would be written twice", "rename it, or omit --out")
        number = 0
        with replacing(target) as writing, writing.open("w", encoding="utf-8", newline="") as opened:
            write = row_writer(opened, target.suffix.lower(), [*added[:2], *texts, *added[2:]])
            for result in self.results:
                choices, labels = result.rows.predictions.tolist(), result.rows.references.tolist()
                logits = result.rows.logits / self.temperature
                likely = probabilities(logits, examples.task).tolist() if names else [[]] * len(choices)
                for row, (choice, label, shares) in enumerate(zip(choices, labels, likely, strict=True)):
                    cells = {name: examples.rows[result.split][row][name] for name in texts}
                    answer = {"label": label_of(label, names), "prediction": label_of(choice, names)}
                    numbers = {name: round(share, 6) for name, share in zip(scores, shares, strict=True)}
                    write({"split": result.split, "row": row, **cells, **answer, **numbers})
                number += len(choices)
        say(f"{counted(number, 'row', 'rows')} → {target}")


def examples_to_evaluate(source: str, predictor: Predictor, wanted: Wanted) -> tuple[Examples, list[str]]:
    """Return the data to evaluate on, read as the run read its own, and which of its splits."""
    described, data = predictor.run.data if predictor.run else None, wanted.data
    settings = described.given() if described else {}  # as the run read its data
    if data is not None:  # other data under the column names of the run's own
        is_named = "text" in wanted.given or "label" in wanted.given or data.startswith(("glue", "quickstart"))
        columns = {name: value for name, value in asdict(described.columns).items() if value} if described else {}
        separator = {"label_separator": settings["label_separator"]} if "label_separator" in settings else {}
        settings = {"validation_share": 0, **separator, **({} if is_named else columns)}
    examples = load_examples(source, outputs=predictor.outputs, **{**settings, **wanted.given, "task": predictor.task})
    splits = [wanted.split] if wanted.split else records.held_out_splits(examples.facts) or [*examples.rows][:1]
    for name in splits:
        if name not in examples.rows:
            near = did_you_mean(name, examples.rows)
            raise SettingsError(f"the data has no split {visible(name)}{near}", f"use one of {listed(examples.rows)}")
        if examples.facts[name].unlabelled:
            remedy = "choose another split with --split, or use glassloop predict"
            raise SettingsError(f"the split {name} has no labels to compare with", remedy)
    compared = dict.fromkeys(("train", *splits))
    if described and data is None and (changed := records.split_changes(described.splits, examples.facts, compared)):
        problem = f"{source}: the data has changed since the run: {'; '.join(changed)}"
        raise DataError(problem, "restore the data; to evaluate on other data, name it: glassloop evaluate RUN DATA")
    if predictor.towers and examples.columns.text_pair is None:
        raise DataError(f"{source}: the model compares two texts, but the rows have one", PAIRS)
    return examples, splits


def evaluate_run(run: str, wanted: Wanted, fitted: dict[tuple[str, ...], Baselines] | None = None) -> Evaluated:
    """Return the evaluation of the model in a run folder or model folder.

    `fitted` keeps baselines for the next call, which may be for another seed of the same run.
    """
    predictor = Predictor(run, device=wanted.device, batch_size=wanted.batch_size)
    if predictor.answering.thresholds:
        say("metrics are computed without the thresholds of the run, which predict and serve use")
    record, task, names = predictor.run, predictor.task, predictor.names
    described, data = record.data if record else None, wanted.data
    source = data if data is not None else described.source if described else None
    if source is None:
        problem = f"{run} is a model without a run, so there is no data to evaluate on"
        raise SettingsError(problem, "name the data: glassloop evaluate MODEL DATA")
    examples, splits = examples_to_evaluate(source, predictor, wanted)
    # The metrics that the user names, else those of the run, else those that fit the data.
    known = recorded_measures(record.metrics, record.positive_label, task, names) if record else examples.measures
    measures = scoring.chosen_measures(known, task, names, wanted.positive)
    measures = scoring.only_measures(measures, [name for text in wanted.metrics for name in split_names(text)], task)
    encoded = encoding.encode(examples, predictor.tokenizer, predictor.max_length, towers=predictor.towers)
    counted_rows = described.splits.get("train") if described and data is not None and task == CLASSES else None
    trained_on: Mapping[str, int] | np.ndarray | None = counted_rows.label_counts if counted_rows else None
    limit = replace(predictor.limit, pairs=examples.columns.text_pair is not None)
    facts = facts_of(record, read_history(user_path(run)), encoder_weights(predictor.model.config)) if record else None
    # What the run already says about the same rows.
    judged = {}
    if record and described:
        judged = {described.splits[name].fingerprint: one for name, one in record.judged.items() if one.verdict}
    others = [name for name in splits if examples.facts[name].fingerprint not in judged]
    if data is None:  # the baselines were fitted to its training rows
        others = [name for name in others if name != "train"]
    train, baselines = examples if described and data is None else None, {}
    if record and wanted.baselines and record.settings.baselines and others:
        try:
            train = train or training_data(record, predictor.outputs)
            baselines = baselines_of(record, train, examples, others, predictor.backend, fitted)
        except (GlassloopError, OSError) as error:
            reason = error.problem if isinstance(error, GlassloopError) else str(error)
            say(f"compared with the majority only: the baselines cannot be fitted again: {reason}")
    if data is not None and train is not None and "train" in train.rows:
        trained_on = labels_of(train, "train")
    results = []
    for name, prefix in zip(splits, prefixes(splits), strict=True):
        for note in encoded[name].notes(limit):
            say(note)
        found = predictor.evaluate(encoded[name].rows, measures, prefix)
        temperature, fitted_on = predictor.answering.temperature, predictor.calibration
        same = examples.facts[name].fingerprint
        # Rows that the temperature was fitted on would look too good: each is judged at one that was fitted without it.
        crossed = fitted_on is not None and same == (fitted_on.temperature_rows or fitted_on.fingerprint)
        result = result_of(
            examples,
            name,
            found,
            measures,
            prefix,
            trained_on,
            facts,
            baselines.get(name),
            temperature=None if crossed else temperature,
            method=method_of(record) if record else None,
        )
        if result.probabilities:  # its temperature is the one in use
            result = replace(result, probabilities=replace(result.probabilities, temperature=temperature))
        told = judged.get(same)
        if wanted.baselines and told and told.verdict and result.verdict:
            verdict = replace(result.verdict, sentence=told.verdict, advice=told.advice)
            result = replace(result, baselines=told.baselines, verdict=verdict)
        results.append(result)
    return Evaluated(source, examples, results, predictor.answering.temperature)


def training_data(record: records.RunRecord, outputs: LabelSet | None) -> Examples:
    """Return the data of a run. Raise `GlassloopError` if they cannot be read, or if the training rows have changed."""
    data = record.data
    found = load_examples(data.source, outputs=outputs, **{**data.given(), "task": data.task})
    if changed := records.split_changes(data.splits, found.facts, ["train"]):
        raise DataError(f"{data.source}: the data has changed since the run: {'; '.join(changed)}", "restore the data")
    return found


def baselines_of(
    record: records.RunRecord, train: Examples, examples: Examples, splits: Sequence[str], backend: Backend,
    fitted: dict[tuple[str, ...], Baselines] | None,
) -> dict[str, Baselines]:  # fmt: skip
    """Return what the baselines of a run, fitted again to its training rows, predict for other splits."""
    from glassloop.predict.baselines import refitted_baselines  # loaded by those who fit any

    if "train" not in train.rows:
        raise DataError("the data has no train split", "restore the data")
    known = {} if fitted is None else fitted
    shared = (record.model.name, str(record.max_length), record.settings.method, train.facts["train"].fingerprint)
    keys = {split: (*shared, split, examples.facts[split].fingerprint) for split in splits}
    if missing := {split: (examples, split) for split, key in keys.items() if key not in known}:
        found = refitted_baselines(record, train, missing, backend)
        known |= {keys[split]: one for split, one in found.items()}
    return {split: known[key] for split, key in keys.items()}
