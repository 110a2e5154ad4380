"""The OpenAPI document of the server."""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.records import Json
from glassloop.serving.limits import Limits
from glassloop.serving.questions import FUNCTIONS

TEXT: dict[str, Json] = {"type": "string"}
FLAG: dict[str, Json] = {"type": "boolean"}
NUMBER: dict[str, Json] = {"type": "number"}
FUNCTION: dict[str, Json] = {"type": "string", "enum": [*FUNCTIONS]}
COUNT: dict[str, Json] = {"type": "integer", "minimum": 1}
ERRORS = {
    "400": "The body is empty or not JSON, or the Host is not allowed.",
    "401": "The API key is missing or wrong.",
    "403": "The request comes from a page of another site.",
    "408": "The body was not sent in time.",
    "413": "A limit of the server is exceeded.",
    "422": "The content of the body is not valid.",
    "424": "The model failed.",
    "429": "The server is busy. Retry-After says when to try again.",
    "503": "The server is shutting down.",
}


def listed_as(items: Json, most: int | None = None) -> dict[str, Json]:
    """Return the schema of a list."""
    return {"type": "array", "items": items, **({"maxItems": most} if most else {})}


def record(required: Sequence[str], **properties: Json) -> dict[str, Json]:
    """Return the schema of an object."""
    return {"type": "object", "required": [*required], "properties": {**properties}}


def operation(summary: str, body: Json, answer: Json) -> Json:
    """Return the description of a POST route."""
    error = record(["error", "error_type"], error=TEXT, error_type=TEXT)
    refused: dict[str, Json] = {
        status: {"description": text, "content": {"application/json": {"schema": error}}} for status, text in ERRORS.items()
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": {"description": "The predictions.", "content": {"application/json": {"schema": answer}}},
                **refused,
            },
        }
    }


def shown(summary: str, kind: str = "application/json") -> Json:
    """Return the description of a GET route."""
    return {"get": {"summary": summary, "responses": {"200": {"description": summary, "content": {kind: {}}}}}}


def openapi_document(limits: Limits, models: Sequence[str]) -> Json:
    """Return the document. Routes of a model are listed once, and below /models/{model} if there are several."""
    pair: dict[str, Json] = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
    inputs: Json = {"oneOf": [TEXT, pair, listed_as(pair, limits.max_inputs)]}
    given: Json = {"oneOf": [TEXT, pair, record(["text"], text=TEXT, text_pair=TEXT)]}
    scores = listed_as(record(["score", "label"], score=NUMBER, label=TEXT))
    answer = record(
        ["label", "probabilities", "logits", "num_tokens", "truncated"],
        label={"oneOf": [TEXT, listed_as(TEXT), NUMBER]},
        probabilities={"type": ["object", "null"], "additionalProperties": NUMBER},
        logits=listed_as(NUMBER),
        num_tokens={"type": "integer"},
        truncated={"type": ["object", "null"]},
        tokens=listed_as(TEXT),
    )
    asked: dict[str, Json] = {
        "/predict": operation(
            "Predict texts or pairs of texts (text-embeddings-inference)",
            record(["inputs"], inputs=inputs, raw_scores=FLAG, truncate=FLAG, function_to_apply=FUNCTION, top_k=COUNT),
            {"oneOf": [scores, listed_as(scores)]},
        ),
        "/rerank": operation(
            "Sort texts by how well they fit a query (text-embeddings-inference)",
            record(
                ["query", "texts"],
                query=TEXT,
                texts=listed_as(TEXT, limits.max_inputs),
                raw_scores=FLAG,
                return_text=FLAG,
                truncate=FLAG,
            ),
            listed_as(record(["index", "score"], index={"type": "integer"}, score=NUMBER, text=TEXT)),
        ),
        "/v1/predict": operation(
            "Predict with probabilities, logits, tokens and what was truncated",
            record(["inputs"], inputs={"oneOf": [given, listed_as(given, limits.max_inputs)]}, truncate=FLAG, tokens=FLAG),
            record(
                ["model", "predictions", "temperature", "thresholds"],
                model=TEXT,
                predictions=listed_as(answer),
                temperature=NUMBER,
                thresholds={"type": "object", "additionalProperties": NUMBER},
            ),
        ),
    }
    name: Json = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": [*models]}}]
    of_models: dict[str, Json] = {}
    for path, described in asked.items():
        if isinstance(described, dict):
            of_models[f"/models/{{model}}{path}"] = {**described, "parameters": name}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Glassloop", "version": "1"},
        "paths": {
            **asked,
            **of_models,
            "/info": shown("The model and the limits of the server"),
            "/health": shown("200 while the server works"),
            "/ready": shown("200 while the server accepts requests"),
            "/metrics": shown("Counters and histograms in the text format of Prometheus", "text/plain"),
        },
    }
