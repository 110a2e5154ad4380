"""The models of a server: their predictors by name, checked against their own stored predictions, and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, alternatives, listed, visible
from glassloop.base.files import user_path
from glassloop.base.network import is_hub_name
from glassloop.base.records import Json
from glassloop.data.interfaces import Texts
from glassloop.predictor import Predictor, SeedsPredictor, has_seeds
from glassloop.runs.export import REFERENCE_NAME, is_export, read_record, read_reference
from glassloop.runs.record import is_run, predicted_splits, predictions_name, read_predictions
from glassloop.scores.intervals import stored_logits
from glassloop.scores.metrics import probabilities
from glassloop.serve.batching import Answered
from glassloop.serve.limits import EMPTY, Limits, Refused, empty, invalid, too_large
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

FUNCTIONS = ("softmax", "sigmoid", "none")
SHAPES = 'a text, a pair ["first", "second"], or a list of such lists'


@dataclass(frozen=True)
class Question:
    """What a client asks.

    Attributes:
        columns: The texts, or the first and the second texts of pairs.
        single: Whether the answer is for one text, not for a list.
        apply: What turns logits into scores: "softmax", "sigmoid", or "none" for logits. None: what the task needs.
        truncate: Whether long texts may be truncated. Otherwise they are refused.
        top: How many labels to return; None for all.
        texts: Whether the answer of /rerank contains the texts.
        tokens: Whether the answer of /v1/predict contains the tokens.
    """

    columns: Texts
    single: bool = False
    apply: str | None = None
    truncate: bool = True
    top: int | None = None
    texts: bool = False
    tokens: bool = False

    @property
    def num_inputs(self) -> int:
        """The number of texts or pairs."""
        return len(self.columns[0])


def parsed(body: bytes) -> dict[str, Json]:
    """Return a JSON object; raise `Refused` with 400 if the body is none."""
    if not body.strip():
        raise empty("the request has no body")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, EMPTY, "the body is not JSON") from error
    if not isinstance(found, dict):
        raise invalid("the body is not a JSON object")
    return found


def flag(given: Mapping[str, Json], name: str, default: bool) -> bool:
    """Return a true or false value of a request."""
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(f"{name} is not true or false")
    return value


def predict_question(given: Mapping[str, Json], limits: Limits) -> Question:
    """Return a request to /predict, or to / as clients of the Hugging Face hub send it: with parameters in an own object."""
    if "inputs" not in given:
        raise invalid("inputs is missing")
    inputs, parameters = given["inputs"], given.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid("parameters is not an object")
    apply, top = (parameters.get(name, given.get(name)) for name in ("function_to_apply", "top_k"))
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
        raise invalid("top_k is not a positive number")
    single = isinstance(inputs, str) or (
        isinstance(inputs, list) and bool(inputs) and all(isinstance(part, str) for part in inputs)
    )
    rows = [inputs] if single else inputs
    columns = checked_columns(rows, limits)
    return Question(columns, single, function(given, apply), flag(given, "truncate", True), top)


def function(given: Mapping[str, Json], apply: Json = None) -> str | None:
    """Return what turns logits into scores: `apply`, or "none" if the client wants raw scores; None if it does not say."""
    raw = flag(given, "raw_scores", False)
    if apply is None:
        return "none" if raw else None
    if not isinstance(apply, str) or apply not in FUNCTIONS:
        raise invalid(f"function_to_apply is not {alternatives(FUNCTIONS)}")
    if raw and apply != "none":
        raise invalid("raw_scores is true, but function_to_apply is not none")
    return apply


def rerank_question(given: Mapping[str, Json], limits: Limits) -> Question:
    """Return a request to /rerank: a query, and texts that are compared with it."""
    query, texts = given.get("query"), given.get("texts")
    if not isinstance(query, str):
        raise invalid("query is not a text")
    if not isinstance(texts, list):
        raise invalid("texts is not a list")
    if not texts:
        raise empty("texts is empty")
    if not all(isinstance(text, str) for text in texts):
        raise invalid("texts contains something that is not a text")
    columns = checked_columns([[query, text] for text in texts], limits)
    parameters = given.get("parameters")
    if "function_to_apply" in given or (isinstance(parameters, dict) and "function_to_apply" in parameters):
        raise invalid("/rerank takes no function_to_apply; use raw_scores")
    truncate, texts_too = flag(given, "truncate", True), flag(given, "return_text", False)
    return Question(columns, apply=function(given), truncate=truncate, texts=texts_too)


def own_question(given: Mapping[str, Json], limits: Limits) -> Question:
    """Return a request to /v1/predict: a text, or a list of texts, pairs and objects with text and text_pair."""
    if unknown := [name for name in given if name not in ("inputs", "truncate", "tokens")]:
        raise invalid(f"{visible(unknown[0], 40)} is not known; use inputs, truncate and tokens")
    if "inputs" not in given:
        raise invalid("inputs is missing")
    inputs = given["inputs"]
    items = inputs if isinstance(inputs, list) else [inputs]
    rows: list[Json] = []
    for item in items:
        if isinstance(item, dict):
            if {*item} - {"text", "text_pair"} or "text" not in item:
                raise invalid("an input has keys other than text and text_pair, or no text")
            pair = item.get("text_pair")
            rows.append([item["text"]] if pair is None else [item["text"], pair])
        else:
            rows.append(item)
    columns = checked_columns(rows, limits)
    truncate, tokens = flag(given, "truncate", True), flag(given, "tokens", False)
    return Question(columns, not isinstance(inputs, list), truncate=truncate, tokens=tokens)


def checked_columns(rows: Json, limits: Limits) -> Texts:
    """Return rows of one or two texts as columns. Raise `Refused` for other shapes and for what exceeds the limits."""
    if not isinstance(rows, list):
        raise invalid(f"inputs is not {SHAPES}")
    if not rows:
        raise empty("inputs is empty")
    if len(rows) > limits.max_inputs:
        raise too_large(f"the request has {len(rows):,} inputs, but at most {limits.max_inputs:,} are allowed")
    found: list[Json] = [[row] if isinstance(row, str) else row for row in rows]
    width, characters = 0, 0
    for row in found:
        if not isinstance(row, list) or not row or len(row) > 2 or not all(isinstance(text, str) for text in row):
            raise invalid(f"inputs is not {SHAPES}")
        if width not in (0, len(row)):
            raise invalid("inputs mixes texts and pairs")
        width = len(row)
        if not any(row):
            raise empty("a text is empty")
        if any(is_half(text) for text in row if isinstance(text, str)):
            raise invalid("a text contains half of a surrogate pair")
        characters += sum(len(text) for text in row if isinstance(text, str))
    if characters > limits.max_characters:
        raise too_large(f"the texts have {characters:,} characters, but at most {limits.max_characters:,} are allowed")
    return [[str(text) for text in column] for column in zip(*texts_in(found), strict=True)]


def texts_in(rows: Sequence[Json]) -> list[list[Json]]:
    """Return rows as lists."""
    return [row for row in rows if isinstance(row, list)]


def is_half(text: str) -> bool:
    """Return whether a text has half of a surrogate pair: tokenizers refuse it."""
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False


CHECKED_ROWS = 16
ALLOWED = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2, "int8": 5e-2}  # difference of logits, relative to the largest


@dataclass(frozen=True)
class Hosted:
    """One model of a server.

    Attributes:
        name: The name that requests use: that of its folder.
        predictor: Its predictor.
        checked: How many stored predictions it repeated at the start.
    """

    name: str
    predictor: Predictor
    checked: int

    @property
    def wants_pairs(self) -> bool | None:
        """Whether the model was trained on pairs; None if that is not known."""
        run = self.predictor.run
        return None if run is None else run.data.columns.text_pair is not None

    def refuse(self, question: Question) -> None:
        """Raise `Refused` if texts are asked of a model for pairs, or pairs of a model for texts."""
        if self.wants_pairs is not None and self.wants_pairs != (len(question.columns) == 2):
            wanted = 'pairs of texts: ["first", "second"]' if self.wants_pairs else "single texts"
            raise invalid(f"the model was trained on {wanted}")

    def info(self) -> dict[str, Json]:
        """Return what a client may want to know about the model."""
        predictor, run = self.predictor, self.predictor.run
        return {
            "model_id": self.name,
            "model_sha": None,
            "model_dtype": "float32",
            "model_type": {
                "classifier": {
                    "id2label": {str(number): name for number, name in enumerate(predictor.names)},
                    "label2id": {name: number for number, name in enumerate(predictor.names)},
                }
            },
            "max_input_length": predictor.max_length,
            "task": predictor.task,
            "pairs": self.wants_pairs,
            "trained_from": public_name(run.model.name) if run else None,
            "device": str(predictor.backend.device),
            "backend": predictor.backend.name,
            "temperature": predictor.answering.temperature,
            "thresholds": {**predictor.answering.thresholds},
            "calibration": self.calibration,
            "checked_rows": self.checked,
        }

    @property
    def calibration(self) -> dict[str, Json] | None:
        """What the stored calibration was fitted for and on; None if none is used."""
        found = self.predictor.calibration
        if found is None:
            return None
        target = str(found.target) if found.target else None
        return {"target": target, "split": found.split, "rows": found.num_rows, "written": found.written}

    def scored(self, question: Question, answered: Answered) -> Json:
        """Return the answer of /predict: labels with scores, the most likely first."""
        names, values = self.predictor.names, self.scores(answered.logits, question.apply)
        found: list[Json] = []
        for row in np.asarray(values, dtype=np.float64).tolist():
            order = sorted(range(len(row)), key=lambda place: -row[place])[: question.top]
            labels: list[Json] = [{"score": row[place], "label": names[place]} for place in order]
            found.append(labels)
        return found[0] if question.single else found

    def scores(self, logits: np.ndarray, function: str | None) -> np.ndarray:
        """Return logits, or what softmax or sigmoid makes of them after the temperature. None: what the task needs."""
        answering = self.predictor.answering
        if function == "none" or (function is None and answering.task == SCORE):
            return logits
        if function is None:
            return answering.shares(logits)
        heated = np.asarray(logits, dtype=np.float64) / answering.temperature
        return np.asarray(probabilities(heated, SEVERAL if function == "sigmoid" else CLASSES))

    def reranked(self, question: Question, answered: Answered) -> Json:
        """Return the answer of /rerank: the texts by the probability of the positive class, or by the score."""
        answering, place = self.predictor.answering, self.positive
        logits = np.asarray(answered.logits, dtype=np.float64)
        if question.apply == "none":
            scores = logits[:, place]
        else:
            scores = probabilities(logits, SEVERAL)[:, 0] if answering.task == SCORE else answering.shares(logits)[:, place]
        order = sorted(range(len(scores)), key=lambda row: -float(scores[row]))
        texts = question.columns[1]
        return [
            {"index": row, "score": float(scores[row]), **({"text": texts[row]} if question.texts else {})} for row in order
        ]

    @property
    def positive(self) -> int:
        """The output that /rerank sorts by: the positive class of the run, else the last of two classes, or the only output."""
        run, names = self.predictor.run, self.predictor.names
        if run is not None and run.positive_label in names:
            return names.index(str(run.positive_label))
        if len(names) > 2 and self.predictor.task == CLASSES:
            raise Refused(424, "Backend", "the model has more than two classes and no positive one: it cannot rank texts")
        return len(names) - 1

    def described(self, question: Question, answered: Answered) -> Json:
        """Return the answer of /v1/predict: label, probabilities, logits, tokens and truncation."""
        found: list[Json] = []
        for answer, row in zip(self.predictor.answering.describe(answered.logits), answered.texts.rows, strict=True):
            label: Json = [*answer.label] if isinstance(answer.label, list) else answer.label
            truncated: Json = {
                "tokens": row.cut.num_tokens,
                "first": bool(row.cut.num_first),
                "second": bool(row.cut.num_second),
            }
            entry: dict[str, Json] = {"label": label, "probabilities": {**answer.scores} or None, "logits": [*answer.logits]}
            entry |= {"num_tokens": row.num_tokens, "truncated": truncated if row.cut.num_rows else None}
            if question.tokens:
                entry["tokens"] = [*self.tokens(row.inputs["input_ids"])]
            found.append(entry)
        answering = self.predictor.answering
        used: dict[str, Json] = {"temperature": answering.temperature, "thresholds": {**answering.thresholds}}
        return {"model": self.name, "predictions": found, **used}

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens of some ids."""
        names: list[str] = getattr(self.predictor.tokenizer, "convert_ids_to_tokens")([*ids])  # noqa: B009 - no light one
        return names


def public_name(name: str) -> str:
    """Return the name of a model for clients: of a local folder, only its last part."""
    return Path(name).name if Path(name).is_absolute() or not is_hub_name(name) else name


def load_hosted(folders: Sequence[str], device: str, precision: str = "auto") -> list[Hosted]:
    """Return the models of some folders. Raise if two have the same name, or if one does not repeat its stored predictions."""
    names = [user_path(folder).resolve().name for folder in folders]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"two runs have the name {visible(twice[0])}", "rename one of the folders")
    found = []
    for name, folder in zip(names, map(user_path, folders), strict=True):
        predictor = load_predictor(folder, device, precision)
        found.append(Hosted(name, predictor, check_predictions(folder, predictor)))
    return found


def load_predictor(folder: Path, device: str, precision: str) -> Predictor:
    """Return the predictor of a run, of an exported folder, or of several seeds."""
    kind = SeedsPredictor if has_seeds(folder) else Predictor
    return kind(folder, device=device, precision=precision)


def check_predictions(folder: Path, predictor: Predictor) -> int:
    """Predict some stored validation rows and return their number; 0 if there are none. In int8 they were compared already.

    Raises `ModelError` if a logit differs from the stored one by more than rounding.
    """
    # A damaged file, another version of a library or a wrong tokenizer would otherwise be found by users.
    if predictor.agreement is not None:
        return predictor.agreement.rows
    if predictor.run is None:
        return 0
    split, stored, path = stored_predictions(folder)
    if not stored:
        return 0
    precision = read_record(folder).precision if is_export(folder) else predictor.run.precision
    places = np.unique(np.linspace(0, len(stored) - 1, CHECKED_ROWS).astype(int))
    rows = [stored[int(place)] for place in places]
    columns = [[str(row.get(name, "")) for row in rows] for name in predictor.run.data.columns.texts]
    wanted = stored_logits(stored, len(predictor.names), path)[places]
    found = predictor.logits(*columns)
    differences = np.abs(found - wanted).max(1) / max(float(np.abs(wanted).max()), 1e-6)
    allowed = ALLOWED.get(precision, ALLOWED["bf16"])
    if not (differences <= allowed).all():
        wrong = listed([row.get("row", "?") for row, apart in zip(rows, differences, strict=True) if not apart <= allowed], 5)
        problem = f"{folder}: the model does not repeat its own predictions for {split} (rows {wrong})"
        raise ModelError(
            f"{problem}: logits differ by {differences.max():.1e}",
            "do not serve it: evaluate it again with glassloop evaluate, or train it again",
        )
    return len(rows)


def stored_predictions(folder: Path) -> tuple[str, list[dict[str, Json]], Path]:
    """Return the name, the rows and the file of a split that is stored with logits; no rows if there is none."""
    if is_export(folder):
        return "reference rows", read_reference(folder), folder / REFERENCE_NAME
    splits = predicted_splits(folder) if is_run(folder) else []
    split = next((name for name in splits if name.startswith("validation")), splits[0] if splits else None)
    return (split, read_predictions(folder, split), folder / predictions_name(split)) if split is not None else ("", [], folder)
