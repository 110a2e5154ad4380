"""The HTTP interface of the server: routes, limits, answers and errors."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from glassloop.base.network import LOCAL, AllowedHosts
from glassloop.base.output import say
from glassloop.base.records import Json
from glassloop.markup.templates import package_text, rendered
from glassloop.report.page import policy
from glassloop.serve.batching import Answered, Batcher, Meters
from glassloop.serve.hosted import Hosted, Question, own_question, parsed, predict_question, rerank_question
from glassloop.serve.limits import Limits, Refused, draining, overloaded, too_large

STYLE = package_text("serve", "page.css")
SCRIPT = package_text("serve", "page.js")
PAGE = rendered("serve/page.html.j2", style=Markup(STYLE), script=Markup(SCRIPT))
POLICY = f"{policy(STYLE, SCRIPT, connect=True)}; frame-ancestors 'none'"  # requests only to the server it came from


def openapi_document(limits: Limits, models: Sequence[str]) -> dict[str, object]:
    """Return openapi.json with the limits and the models of a server: what a model answers is also below its name."""
    document = json.loads(package_text("serve", "openapi.json").replace('"MAX_INPUTS"', str(limits.max_inputs)))
    paths: dict[str, dict[str, Json]] = document["paths"]
    parameter: Json = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": [*models]}}
    named = {
        f"/models/{{model}}{path}": {**route, "parameters": [parameter]} for path, route in paths.items() if "post" in route
    }
    return {**document, "paths": paths | named}


Read: TypeAlias = Callable[[Mapping[str, Json], Limits], Question]
Write: TypeAlias = Callable[[Hosted, Question, Answered], Json]
CLOSED = 499  # the status under which requests are counted whose client closed the connection
PROBES = ("/health", "/ready")  # they need no API key and answer to every Host: a probe uses the address of a container
OPEN = (*PROBES, "/")  # the page needs no API key, either: it asks for one


class Service:
    """Answers requests with the models of a server.

    Args:
        hosted: The models. The first one answers requests that name none.
        batcher: The queue of the models.
        limits: What is accepted.
        meters: Counts what happens.
        api_key: The key that clients must send; None for none.
        hosts: The hosts whose names the server answers to.

    Attributes:
        active: The number of requests that are being answered.
        reading: The time limits of the bodies that are being received, the oldest first.
        draining: Whether the server is shutting down.
    """

    def __init__(
        self,
        hosted: Sequence[Hosted],
        batcher: Batcher,
        limits: Limits,
        meters: Meters,
        api_key: str | None = None,
        hosts: AllowedHosts = LOCAL,
    ) -> None:
        self.hosted, self.batcher, self.limits, self.meters, self.api_key = hosted, batcher, limits, meters, api_key
        self.hosts, self.reading = hosts, dict[asyncio.Timeout, None]()
        self.places = {model.name: place for place, model in enumerate(hosted)}
        self.active, self.draining = 0, False

    def routes(self) -> list[Route]:
        """Return all routes; those of a model also below /models/{its name}."""
        asked: dict[str, tuple[Read, Write]] = {
            "/predict": (predict_question, Hosted.scored),
            "/rerank": (rerank_question, Hosted.reranked),
            "/v1/predict": (own_question, Hosted.described),
            "/": (predict_question, as_hub),
        }
        found = [
            Route(f"{prefix}{path}", self.endpoint(path, read, write), methods=["POST"])
            for path, (read, write) in asked.items()
            for prefix in ("", "/models/{model}")
            if path != "/" or not prefix
        ]
        found.append(Route("/models/{model}", self.endpoint("/", predict_question, as_hub), methods=["POST"]))
        shown: dict[str, Callable[[Request], Response]] = {
            "/": self.show_page,
            "/info": self.show_info,
            "/health": self.show_health,
            "/ready": self.show_ready,
            "/metrics": self.show_metrics,
            "/openapi.json": self.show_openapi,
            "/models/{model}/info": self.show_info,
        }
        return [*found, *(Route(path, self.shown(path, show), methods=["GET"]) for path, show in shown.items())]

    # --- predictions ---------------------------------------------------------------------------------------------

    def endpoint(self, path: str, read: Read, write: Write) -> Callable[[Request], object]:
        """Return the function that answers a request for predictions."""

        async def answer(request: Request) -> Response:
            began = time.perf_counter()
            try:
                response = await self.predicted(request, read, write)
            except Refused as error:
                response = refusal(error)
            except ClientDisconnect:
                self.meters.gone.inc()
                response = Response(status_code=CLOSED)
            except Exception as error:
                say(f"serve: {path} failed: {type(error).__name__}")  # the message may contain a text
                response = refusal(Refused(424, "Backend", "the request could not be answered"))
            self.meters.requests.labels(path, response.status_code).inc()
            self.meters.request.observe(time.perf_counter() - began)
            return response

        return answer

    async def predicted(self, request: Request, read: Read, write: Write) -> Response:
        """Return the answer to a request for predictions; raise `Refused`."""
        self.admit(request)
        place = self.model_of(request)
        body = await self.body(request)
        self.refuse_busy()
        self.active += 1
        try:
            question = read(parsed(body), self.limits)
            hosted = self.hosted[place]
            hosted.refuse(question)
            answered = await self.ask(request, place, question)
            rows = answered.texts.rows
            self.meters.inputs.labels(hosted.name).inc(len(rows))
            self.meters.tokens.labels(hosted.name).inc(sum(row.num_tokens for row in rows))
            self.meters.truncated.labels(hosted.name).inc(sum(row.cut.num_rows for row in rows))
            return JSONResponse(write(hosted, question, answered))
        finally:
            self.active -= 1

    def admit(self, request: Request) -> None:
        """Raise `Refused` if the server is shutting down or busy, or if the request comes from elsewhere or without the key."""
        self.check_hosts(request)
        self.check_key(request)
        if self.draining:
            raise draining()
        self.refuse_busy()

    def refuse_busy(self) -> None:
        """Raise `Refused` if as many requests as allowed are being answered."""
        if self.active >= self.limits.max_requests:
            raise overloaded(f"{self.active:,} requests are waiting", self.batcher.waiting_seconds)

    def check_hosts(self, request: Request) -> None:
        """Raise `Refused` if a request names another host than this one, or comes from a page of another site."""
        header = self.hosts.refuses(request.scope["headers"])
        if header == "Host":
            raise Refused(400, "Validation", "the server does not answer to this Host; see --allowed_hosts")
        if header is not None:
            raise Refused(403, "Forbidden", "the request comes from a page of another site; see --allowed_hosts")

    def check_key(self, request: Request) -> None:
        """Raise `Refused` unless the request has the API key, if there is one. The comparison takes the same time for all."""
        if self.api_key is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {self.api_key}".encode()):
            raise Refused(401, "Unauthorized", "the API key is missing or wrong")

    def model_of(self, request: Request) -> int:
        """Return the number of the model that a request names in its path."""
        name = request.path_params.get("model")
        if name is None:
            return 0
        if name not in self.places:
            raise Refused(404, "NotFound", "there is no such model")
        return self.places[str(name)]

    async def body(self, request: Request) -> bytes:
        """Return the body of a request; raise `Refused` if it is too large or comes too slowly.

        Bodies that are being received do not count as requests, so that slow clients keep nobody else from being answered. If
        there are too many of them, the oldest one is cut off: a client that sends its body at once never waits.
        """
        most = self.limits.max_payload
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise too_large(f"the body has {int(length):,} bytes, but at most {most:,} are allowed")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.read_seconds) as limit:
                self.reading[limit] = None
                if len(self.reading) > self.limits.max_requests:
                    self.cut_off(next(iter(self.reading)))
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_large(f"the body has more than {most:,} bytes")
                    parts.append(part)
        except TimeoutError as error:
            raise Refused(408, "Timeout", "the body was not sent in time") from error
        finally:
            self.reading.pop(limit, None)
        return b"".join(parts)

    def cut_off(self, limit: asyncio.Timeout) -> None:
        """End the time limit of a body now, unless it has just ended."""
        del self.reading[limit]
        with suppress(RuntimeError):
            limit.reschedule(0)

    async def ask(self, request: Request, place: int, question: Question) -> Answered:
        """Return the logits for a question; raise `ClientDisconnect` if the client leaves first."""
        job = self.batcher.submit(place, question.columns, self.limits.queue_seconds, truncate=question.truncate)
        answer: asyncio.Future[Answered] = asyncio.wrap_future(job.future)
        gone: asyncio.Future[None] = asyncio.ensure_future(left(request))
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

    # --- what else there is to see -------------------------------------------------------------------------------

    def shown(self, path: str, show: Callable[[Request], Response]) -> Callable[[Request], object]:
        """Return the function that answers a request for a page or a document."""

        async def answer(request: Request) -> Response:
            try:
                if path not in PROBES:
                    self.check_hosts(request)
                if path not in OPEN:
                    self.check_key(request)
                response = show(request)
            except Refused as error:
                response = refusal(error)
            self.meters.requests.labels(path, response.status_code).inc()
            return response

        return answer

    def show_page(self, request: Request) -> Response:
        """Return the page for people."""
        return HTMLResponse(PAGE, headers={"content-security-policy": POLICY})

    def show_info(self, request: Request) -> Response:
        """Return what is known about a model and the limits of the server."""
        limits = self.limits
        served: dict[str, Json] = {
            "max_concurrent_requests": limits.max_requests,
            "max_batch_tokens": self.batcher.budget,
            "max_client_batch_size": limits.max_inputs,
            "max_characters": limits.max_characters,
            "max_payload": limits.max_payload,
            "models": [*self.places],
        }
        return JSONResponse({**self.hosted[self.model_of(request)].info(), **served})

    def show_health(self, request: Request) -> Response:
        """Return 200 while the threads of the queue run."""
        return (
            Response(status_code=200) if self.batcher.is_alive else refusal(Refused(503, "Unhealthy", "the queue has stopped"))
        )

    def show_ready(self, request: Request) -> Response:
        """Return 200 if requests are accepted, 503 while the server shuts down."""
        return refusal(draining()) if self.draining else self.show_health(request)

    def show_metrics(self, request: Request) -> Response:
        """Return counters and histograms in the text format of Prometheus."""
        self.meters.gauges = {
            "glassloop_active_requests": self.active,
            "glassloop_reading_requests": len(self.reading),
            "glassloop_queue_tokens": self.batcher.waiting_tokens,
        }
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")

    def show_openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(openapi_document(self.limits, [*self.places]))


def as_hub(hosted: Hosted, question: Question, answered: Answered) -> Json:
    """Return labels with scores as the hub's own inference answers: a list for each input, also for a single one."""
    # A list of lists, because the client of the hub takes the first element of the answer.
    found = hosted.scored(question, answered)
    return [found] if question.single else found


async def left(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refusal(error: Refused) -> Response:
    """Return a refusal in the shape of text-embeddings-inference."""
    headers = {"retry-after": str(error.retry_after)} if error.retry_after is not None else {}
    headers |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse({"error": error.message, "error_type": error.kind}, error.status, headers)


async def not_found(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown route or method."""
    status = int(getattr(error, "status_code", 404))
    kinds = {404: "NotFound", 405: "MethodNotAllowed"}
    return refusal(Refused(status, kinds.get(status, "Validation"), kinds.get(status, "the request is not valid")))


def make_app(service: Service) -> Starlette:
    """Return the ASGI application."""
    return Starlette(routes=service.routes(), exception_handlers={404: not_found, 405: not_found, 400: not_found})
