"""Read the JSON of a request: the shapes of text-embeddings-inference and of Glassloop, checked, without repeating a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glassloop.data.interfaces import Texts
from glassloop.errors import alternatives, visible
from glassloop.records import Json
from glassloop.serving.limits import EMPTY, Limits, Refused, empty, invalid, too_large

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
