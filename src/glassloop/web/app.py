"""The routes of the live page, and who may ask: only this machine, only with the token, only to read."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import blake2b
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, unquote_to_bytes

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from glassloop.errors import say, shortened
from glassloop.web.watch import RunSummary, Watcher
from glassloop.web.pages import compare_page, list_page, message_page, run_page
from glassloop.web.updates import Update, compare_update, list_update, run_update

Message: TypeAlias = MutableMapping[str, Any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost", "[::1]")  # names that no other site can point to this machine
MOST_COMPARED = 8
NO_CONTENT_POLICY = "default-src 'none'"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
WRONG_ADDRESS = "Open the complete address that glassloop ui printed: it contains a token."


class Guard:
    """Refuses every request that does not come from the user, and answers an unexpected error without details.

    Args:
        app: The application behind it.
        token: The first part of every path.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        refusal = self.refusal(scope)
        try:
            await (refusal or self.app)(scope, receive, send)
        except Exception as error:
            say(f"the page could not be shown: {shortened(f'{type(error).__name__}: {error}')}")
            await answer("This page could not be shown. The terminal says why.", 500)(scope, receive, send)

    def refusal(self, scope: Message) -> Response | None:
        """Return why a request is refused, or None."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        name = hosts[0].decode("latin-1").rpartition(":")[0] or hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if name.lower() not in HOSTS:  # another site whose name leads here
            return answer("This address is not one of this machine.", 400)
        first = path_parts(scope)[0]
        if not secrets.compare_digest(first, self.token):
            return answer(WRONG_ADDRESS, 403)
        return None if scope["method"] in ("GET", "HEAD") else answer("This page can only be read.", 405)


def path_parts(scope: Message) -> list[bytes]:
    """Return the parts of the path of a request, decoded. File names may contain any bytes."""
    raw = scope.get("raw_path") or scope["path"].encode()
    return [unquote_to_bytes(part) for part in raw.split(b"?")[0].split(b"/")[1:]] or [b""]


def answer(text: str, status: int) -> Response:
    """Return a short answer in plain text."""
    return secured(Response(text + "\n", status, media_type="text/plain; charset=utf-8"))


def secured(response: Response) -> Response:
    """Return a response with the headers that every one has. A page keeps its own, stricter content policy."""
    found = POLICY.search(bytes(response.body[:20_000]).decode("utf-8", "replace"))
    policy = found[1].replace("&#x27;", "'") if found else NO_CONTENT_POLICY
    response.headers.update({**HEADERS, "content-security-policy": f"{policy}; frame-ancestors 'none'"})
    return response


def page_answer(html: str, status: int = 200) -> Response:
    """Return a page."""
    return secured(Response(html.encode("utf-8", "replace"), status, media_type="text/html; charset=utf-8"))


def update_answer(request: Request, update: Update) -> Response:
    """Return what has changed on a page, or 304 if nothing has since the last request."""
    body = json.dumps(update.content()).encode()
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    same = request.headers.get("if-none-match") == tag
    response = secured(Response(b"" if same else body, 304 if same else 200, media_type="application/json"))
    response.headers["etag"] = tag
    return response
