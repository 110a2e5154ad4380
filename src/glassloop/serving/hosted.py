"""The models of a server: their predictors by name, checked against their own stored predictions, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.ensemble import SeedsPredictor, has_seeds
from glassloop.errors import ModelError, SettingsError, listed, visible
from glassloop.files import user_path
from glassloop.hub import is_hub_name
from glassloop.metrics import probabilities
from glassloop.predictor import Predictor
from glassloop.records import Json
from glassloop.run_folder.export_json import REFERENCE_NAME, is_export, read_record, read_reference
from glassloop.run_folder.layout import is_run, predictions_name
from glassloop.run_folder.predictions import predicted_splits, read_predictions
from glassloop.serving.batching import Answered
from glassloop.serving.limits import Refused, invalid
from glassloop.serving.questions import Question
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.statistics.scored import stored_logits

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
