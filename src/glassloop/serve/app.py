"""The HTTP interface of the server: routes, questions, answers, limits and errors."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from glassloop.base.errors import alternatives, visible
from glassloop.base.network import LOCAL, AllowedHosts
from glassloop.base.output import say
from glassloop.base.records import Json
from glassloop.data.interfaces import Texts
from glassloop.markup.templates import package_text, policy, rendered
from glassloop.scores.metrics import probabilities
from glassloop.serve.batching import Answered, Batcher
from glassloop.serve.hosted import Hosted
from glassloop.serve.limits import Limits, Refused, draining, empty, invalid, overloaded, too_large
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

STYLE = package_text("serve", "page.css")
SCRIPT = package_text("serve", "page.js")
PAGE = rendered("serve/page.html.j2", style=Markup(STYLE), script=Markup(SCRIPT))
POLICY = f"{policy(STYLE, SCRIPT, connect=True)}; frame-ancestors 'none'"  # requests only to the server it came from
FUNCTIONS = ("softmax", "sigmoid", "none")
SHAPES = 'a text, a pair ["first", "second"], or a list of such lists'
CLOSED = 499  # the status under which requests are counted whose client closed the connection
PROBES = ("/health", "/ready")  # they need no API key and answer to every Host: a probe uses the address of a container
OPEN = (*PROBES, "/")  # to show the page needs no API key, either: it asks for one


# --- what a client asks ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Question:
    columns: Texts  # the texts, or the first and the second texts of pairs
    single: bool = False  # the answer is for one text, not for a list
    apply: str | None = None  # one of `FUNCTIONS` turns logits into scores; None: what the task needs
    truncate: bool = True  # otherwise long texts are refused
    top: int | None = None  # how many labels to return; None for all
    texts: bool = False  # whether the answer of /rerank contains the texts
    tokens: bool = False  # whether the answer of /v1/predict contains the tokens


def parsed(body: bytes) -> dict[str, Json]:
    if not body.strip():
        raise empty("the request has no body")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise empty("the body is not JSON") from error
    if not isinstance(content, dict):
        raise invalid("the body is not a JSON object")
    return content


def predict_question(asked: Mapping[str, Json], limits: Limits) -> Question:
    """Return a request to /predict, or to / as clients of the Hugging Face hub send it: with parameters in an own object."""
    if "inputs" not in asked:
        raise invalid("inputs is missing")
    inputs, parameters = asked["inputs"], asked.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid("parameters is not an object")
    apply, top = (parameters.get(name, asked.get(name)) for name in ("function_to_apply", "top_k"))
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
        raise invalid("top_k is not a positive number")
    raw = flag(asked, "raw_scores", False)
    if apply is not None and apply not in FUNCTIONS:
        raise invalid(f"function_to_apply is not {alternatives(FUNCTIONS)}")
    if raw and apply not in (None, "none"):
        raise invalid("raw_scores is true, but function_to_apply is not none")
    single = isinstance(inputs, str) or (isinstance(inputs, list) and inputs != [] and all(isinstance(x, str) for x in inputs))
    columns = checked_columns([inputs] if single else inputs, limits)
    return Question(columns, single, "none" if raw else apply and str(apply), flag(asked, "truncate", True), top)


def rerank_question(asked: Mapping[str, Json], limits: Limits) -> Question:
    """Return a request to /rerank: a query, and texts that are compared with it."""
    query, texts, parameters = asked.get("query"), asked.get("texts"), asked.get("parameters")
    if not isinstance(query, str):
        raise invalid("query is not a text")
    if not isinstance(texts, list):
        raise invalid("texts is not a list")
    if not texts:
        raise empty("texts is empty")
    if not all(isinstance(text, str) for text in texts):
        raise invalid("texts contains something that is not a text")
    columns = checked_columns([[query, text] for text in texts], limits)
    if "function_to_apply" in asked or (isinstance(parameters, dict) and "function_to_apply" in parameters):
        raise invalid("/rerank takes no function_to_apply; use raw_scores")
    apply = "none" if flag(asked, "raw_scores", False) else None
    return Question(columns, apply=apply, truncate=flag(asked, "truncate", True), texts=flag(asked, "return_text", False))


def own_question(asked: Mapping[str, Json], limits: Limits) -> Question:
    """Return a request to /v1/predict: a text, or a list of texts, pairs and objects with text and text_pair."""
    if unknown := [name for name in asked if name not in ("inputs", "truncate", "tokens")]:
        raise invalid(f"{visible(unknown[0], 40)} is not known; use inputs, truncate and tokens")
    if "inputs" not in asked:
        raise invalid("inputs is missing")
    inputs = asked["inputs"]
    rows: list[Json] = []
    for item in inputs if isinstance(inputs, list) else [inputs]:
        if isinstance(item, dict):
            if {*item} - {"text", "text_pair"} or "text" not in item:
                raise invalid("an input has keys other than text and text_pair, or no text")
            pair = item.get("text_pair")
            rows.append([item["text"]] if pair is None else [item["text"], pair])
        else:
            rows.append(item)
    columns = checked_columns(rows, limits)
    single = not isinstance(inputs, list)
    return Question(columns, single, truncate=flag(asked, "truncate", True), tokens=flag(asked, "tokens", False))


def flag(asked: Mapping[str, Json], name: str, default: bool) -> bool:
    value = asked.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name} is not true or false")
    return default if value is None else value


def checked_columns(rows: Json, limits: Limits) -> Texts:
    """Return rows of one or two texts as columns. Raise `Refused` for other shapes and for what exceeds the limits."""
    if not isinstance(rows, list):
        raise invalid(f"inputs is not {SHAPES}")
    if not rows:
        raise empty("inputs is empty")
    if len(rows) > limits.max_inputs:
        raise too_large(f"the request has {len(rows):,} inputs, but at most {limits.max_inputs:,} are allowed")
    checked: list[list[str]] = []
    for row in rows:
        texts = [row] if isinstance(row, str) else row if isinstance(row, list) else []
        strings = [text for text in texts if isinstance(text, str)]
        if len(strings) != len(texts) or len(texts) not in (1, 2):
            raise invalid(f"inputs is not {SHAPES}")
        if checked and len(strings) != len(checked[0]):
            raise invalid("inputs mixes texts and pairs")
        if not any(strings):
            raise empty("a text is empty")
        if any("\ud800" <= character <= "\udfff" for text in strings if not text.isascii() for character in text):
            raise invalid("a text contains half of a surrogate pair")  # tokenizers refuse it
        checked.append(strings)
    characters = sum(len(text) for strings in checked for text in strings)
    if characters > limits.max_characters:
        raise too_large(f"the texts have {characters:,} characters, but at most {limits.max_characters:,} are allowed")
    return [[*column] for column in zip(*checked, strict=True)]


# --- what a client gets ----------------------------------------------------------------------------------------------
def scored(hosted: Hosted, question: Question, answered: Answered) -> Json:
    """Return the answer of /predict: labels with scores, the most likely first."""
    answering, apply = hosted.predictor.answering, question.apply
    scores = np.asarray(answered.logits, dtype=np.float64)
    if apply in ("softmax", "sigmoid"):
        scores = probabilities(scores / answering.temperature, SEVERAL if apply == "sigmoid" else CLASSES)
    elif apply is None and answering.task != SCORE:
        scores = answering.shares(scores)
    rows: list[Json] = []
    for row in scores.tolist():
        order = sorted(range(len(row)), key=lambda place: -row[place])[: question.top]
        rows.append([{"score": row[place], "label": answering.names[place]} for place in order])
    return rows[0] if question.single else rows


def reranked(hosted: Hosted, question: Question, answered: Answered) -> Json:
    """Return the answer of /rerank: the texts by the probability of the positive class, or by the score."""
    answering, run, names = hosted.predictor.answering, hosted.predictor.run, hosted.predictor.names
    place = len(names) - 1  # the last of two classes, or the only output
    if run is not None and run.positive_label in names:
        place = names.index(str(run.positive_label))
    elif len(names) > 2 and answering.task == CLASSES:
        raise Refused(424, "Backend", "the model has more than two classes and no positive one: it cannot rank texts")
    scores = np.asarray(answered.logits, dtype=np.float64)
    if question.apply != "none":
        scores = probabilities(scores, SEVERAL) if answering.task == SCORE else answering.shares(scores)
    values: list[float] = scores[:, place].tolist()
    texts = question.columns[1]
    return [
        {"index": row, "score": values[row], **({"text": texts[row]} if question.texts else {})}
        for row in sorted(range(len(values)), key=lambda row: -values[row])
    ]


def described(hosted: Hosted, question: Question, answered: Answered) -> Json:
    """Return the answer of /v1/predict: label, probabilities, logits, tokens and truncation."""
    answering = hosted.predictor.answering
    predictions: list[Json] = []
    for answer, row in zip(answering.describe(answered.logits), answered.texts.rows, strict=True):
        cut = row.cut
        truncated: Json = {"tokens": cut.num_tokens, "first": bool(cut.num_first), "second": bool(cut.num_second)}
        entry: dict[str, Json] = {
            "label": [*answer.label] if isinstance(answer.label, list) else answer.label,
            "probabilities": {**answer.scores} or None,
            "logits": [*answer.logits],
            "num_tokens": row.num_tokens,
            "truncated": truncated if cut.num_rows else None,
        }
        if question.tokens:
            tokens: list[Json] = hosted.predictor.tokenizer.convert_ids_to_tokens([*row.inputs["input_ids"]])
            entry["tokens"] = tokens
        predictions.append(entry)
    used: dict[str, Json] = {"temperature": answering.temperature, "thresholds": {**answering.thresholds}}
    return {"model": hosted.name, "predictions": predictions, **used}


# --- requests --------------------------------------------------------------------------------------------------------
Read: TypeAlias = Callable[[Mapping[str, Json], Limits], Question]
Write: TypeAlias = Callable[[Hosted, Question, Answered], Json]
Respond: TypeAlias = Callable[[Request], Awaitable[Response]]


class Service:
    """Answers requests with the models of a server. The first one answers requests that name none."""

    def __init__(
        self, hosted: list[Hosted], batcher: Batcher, limits: Limits, api_key: str | None = None, hosts: AllowedHosts = LOCAL
    ) -> None:
        self.hosted, self.batcher, self.meters, self.limits = hosted, batcher, batcher.meters, limits
        self.api_key, self.hosts = api_key, hosts
        self.places = {model.name: place for place, model in enumerate(hosted)}
        self.active = 0  # requests that are being answered
        self.reading: dict[asyncio.Timeout, None] = {}  # time limits of the bodies that are being received, the oldest first
        self.draining = False  # the server is shutting down

    def routes(self) -> list[Route]:
        """Return all routes; those of a model also below /models/{its name}."""
        questions: dict[str, tuple[Read, Write]] = {
            "/predict": (predict_question, scored),
            "/rerank": (rerank_question, reranked),
            "/v1/predict": (own_question, described),
            # Not single, also for one text: the client of the hub takes the first element of the answer.
            "/": (lambda asked, limits: replace(predict_question(asked, limits), single=False), scored),
        }
        documents: dict[str, Callable[[Request], Response]] = {
            "/": lambda request: HTMLResponse(PAGE, headers={"content-security-policy": POLICY}),
            "/info": self.show_info,
            "/models/{model}/info": self.show_info,
            "/health": self.show_health,
            "/ready": self.show_health,
            "/metrics": self.show_metrics,
            "/openapi.json": lambda request: JSONResponse(openapi_document(self.limits, [*self.places])),
        }
        routes = [Route(path, self.counted(path, show), methods=["GET"]) for path, show in documents.items()]
        for path, (read, write) in questions.items():
            answer = self.counted(path, partial(self.predict, read=read, write=write))
            below = f"/models/{{model}}{path}".removesuffix("/")
            routes += [Route(pattern, answer, methods=["POST"]) for pattern in (path, below)]
        return routes

    def counted(self, path: str, respond: Callable[[Request], Response | Awaitable[Response]]) -> Respond:
        """Return a function that answers a request, turns every error into a response, and counts it."""

        async def answer(request: Request) -> Response:
            began = time.perf_counter()
            try:
                self.admit(request, path)
                answered = respond(request)
                response = answered if isinstance(answered, Response) else await answered
            except Refused as error:
                response = refusal(error)
            except ClientDisconnect:
                self.meters.gone.inc()
                response = Response(status_code=CLOSED)
            except Exception as error:
                say(f"serve: {path} failed: {type(error).__name__}")  # the message may contain a text
                response = refusal(Refused(424, "Backend", "the request could not be answered"))
            self.meters.requests.labels(path, response.status_code).inc()
            if request.method == "POST":
                self.meters.request.observe(time.perf_counter() - began)
            return response

        return answer

    async def predict(self, request: Request, read: Read, write: Write) -> Response:
        if self.draining:
            raise draining()
        self.refuse_busy()
        place = self.place_of(request)
        hosted = self.hosted[place]
        body = await self.body(request)
        self.refuse_busy()
        self.active += 1
        try:
            question = read(parsed(body), self.limits)
            if hosted.pairs is not None and hosted.pairs != (len(question.columns) == 2):
                wanted = 'pairs of texts: ["first", "second"]' if hosted.pairs else "single texts"
                raise invalid(f"the model was trained on {wanted}")
            answered = await self.ask(request, place, question)
            rows = answered.texts.rows
            self.meters.inputs.labels(hosted.name).inc(len(rows))
            self.meters.tokens.labels(hosted.name).inc(sum(row.num_tokens for row in rows))
            self.meters.truncated.labels(hosted.name).inc(sum(row.cut.num_rows for row in rows))
            return JSONResponse(write(hosted, question, answered))
        finally:
            self.active -= 1

    def refuse_busy(self) -> None:
        if self.active >= self.limits.max_requests:
            raise overloaded(f"{self.active:,} requests are waiting", self.batcher.waiting_seconds)

    def admit(self, request: Request, path: str) -> None:
        """Raise `Refused` for another host than this one, for a page of another site, and without the API key."""
        header = None if path in PROBES else self.hosts.refuses(request.scope["headers"])
        if header == "Host":
            raise Refused(400, "Validation", "the server does not answer to this Host; see --allowed_hosts")
        if header is not None:
            raise Refused(403, "Forbidden", "the request comes from a page of another site; see --allowed_hosts")
        needs_key = self.api_key is not None and (request.method == "POST" or path not in OPEN)
        sent = request.headers.get("authorization", "").encode("latin-1", "replace")
        # The comparison takes the same time for all keys.
        if needs_key and not hmac.compare_digest(sent, f"Bearer {self.api_key}".encode()):
            raise Refused(401, "Unauthorized", "the API key is missing or wrong")

    def place_of(self, request: Request) -> int:
        name = request.path_params.get("model", self.hosted[0].name)
        if name not in self.places:
            raise Refused(404, "NotFound", "there is no such model")
        return self.places[name]

    async def body(self, request: Request) -> bytes:
        """Return the body of a request; raise `Refused` if it is too large or comes too slowly."""
        # Bodies that are being received do not count as requests, so that slow clients keep nobody else from being answered.
        # If there are too many of them, the oldest one is cut off: a client that sends its body at once never waits.
        most = self.limits.max_payload
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise too_large(f"the body has {int(length):,} bytes, but at most {most:,} are allowed")
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.read_seconds) as limit:
                self.reading[limit] = None
                if len(self.reading) > self.limits.max_requests:
                    oldest = next(iter(self.reading))
                    del self.reading[oldest]
                    with suppress(RuntimeError):  # it has just ended
                        oldest.reschedule(0)
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large(f"the body has more than {most:,} bytes")
        except TimeoutError as error:
            raise Refused(408, "Timeout", "the body was not sent in time") from error
        finally:
            self.reading.pop(limit, None)
        return bytes(body)

    async def ask(self, request: Request, place: int, question: Question) -> Answered:
        """Return the logits for a question; raise `ClientDisconnect` if the client leaves first."""

        async def left() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        job = self.batcher.submit(place, question.columns, self.limits.queue_seconds, truncate=question.truncate)
        answer: asyncio.Future[Answered] = asyncio.wrap_future(job.future)
        gone: asyncio.Future[None] = asyncio.ensure_future(left())
        try:
            waited: list[asyncio.Future[Answered] | asyncio.Future[None]] = [answer, gone]
            await asyncio.wait(waited, timeout=self.limits.queue_seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            job.left = True
            if gone.done():
                raise ClientDisconnect
            raise overloaded("the request waited too long in the queue", self.batcher.waiting_seconds)
        finally:
            gone.cancel()
            answer.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await gone

    def show_info(self, request: Request) -> Response:
        limits: dict[str, Json] = {
            "max_concurrent_requests": self.limits.max_requests,
            "max_batch_tokens": self.batcher.budget,
            "max_client_batch_size": self.limits.max_inputs,
            "max_characters": self.limits.max_characters,
            "max_payload": self.limits.max_payload,
            "models": [*self.places],
        }
        return JSONResponse({**self.hosted[self.place_of(request)].info(), **limits})

    def show_health(self, request: Request) -> Response:
        if self.draining and request.url.path == "/ready":  # it is healthy until it ends
            raise draining()
        if not self.batcher.is_alive:
            raise Refused(503, "Unhealthy", "the queue has stopped")
        return Response()

    def show_metrics(self, request: Request) -> Response:
        self.meters.gauges = {
            "glassloop_active_requests": self.active,
            "glassloop_reading_requests": len(self.reading),
            "glassloop_queue_tokens": self.batcher.waiting_tokens,
        }
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")


def openapi_document(limits: Limits, models: Sequence[str]) -> dict[str, object]:
    """Return openapi.json with the limits and the models of a server: what a model answers is also below its name."""
    document = json.loads(package_text("serve", "openapi.json").replace('"MAX_INPUTS"', str(limits.max_inputs)))
    paths: dict[str, dict[str, Json]] = document["paths"]
    parameter: Json = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": [*models]}}
    shared = {path: {**route, "parameters": [parameter]} for path, route in paths.items() if "post" in route}
    return {**document, "paths": paths | {f"/models/{{model}}{path}": route for path, route in shared.items()}}


def refusal(error: Refused) -> Response:
    headers = {"retry-after": str(error.retry_after)} if error.retry_after is not None else {}
    headers |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse({"error": error.message, "error_type": error.kind}, error.status, headers)


async def not_found(request: Request, error: Exception) -> Response:
    status = int(getattr(error, "status_code", 404))
    kinds = {404: "NotFound", 405: "MethodNotAllowed"}
    return refusal(Refused(status, kinds.get(status, "Validation"), kinds.get(status, "the request is not valid")))


def make_app(service: Service) -> Starlette:
    return Starlette(routes=service.routes(), exception_handlers={404: not_found, 405: not_found, 400: not_found})
