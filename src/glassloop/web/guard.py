"""Who may read the live page: only this machine, only with the token, only to read. And what every answer carries."""

from __future__ import annotations

import re
import secrets
from urllib.parse import unquote_to_bytes

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from glassloop.base.errors import say, shortened
from glassloop.base.hosts import AllowedHosts

HOSTS = AllowedHosts(frozenset({"127.0.0.1", "localhost"}))
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
WRONG_ADDRESS = "Open the complete address that glassloop ui printed. It contains a token, which changes with every start."


# The token is part of the path, not a cookie: cookies of 127.0.0.1 are shared by all ports. The Host header is checked
# against DNS rebinding; any port is accepted, for ssh -L.
class Guard:
    """Refuses every request that does not come from the user, and answers an unexpected error without details.

    Args:
        app: The application behind it.
        token: The first part of every path.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        try:
            await (self.refusal(scope) or self.app)(scope, receive, send)
        except Exception as error:
            say(f"a page could not be shown: {shortened(f'{type(error).__name__}: {error}')}")
            await plain_answer("This page could not be shown. See the terminal of glassloop ui.", 500)(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
        """Return why a request is refused, or None."""
        if HOSTS.refuses(scope["headers"]):
            return plain_answer("This page answers only to 127.0.0.1 and localhost.", 400)
        if not secrets.compare_digest(path_parts(scope)[0], self.token):
            return plain_answer(WRONG_ADDRESS, 403)
        return None if scope["method"] in ("GET", "HEAD") else plain_answer("This page can only be read.", 405)


def path_parts(scope: Scope) -> list[bytes]:
    """Return the parts of the path of a request, decoded to bytes: a file name may contain any."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return [unquote_to_bytes(part) for part in raw.partition(b"?")[0].split(b"/")[1:]] or [b""]


def plain_answer(text: str, status: int) -> Response:
    """Return a short answer in plain text."""
    return secured(Response(f"{text}\n", status, media_type="text/plain"))


def page_answer(html: str, status: int = 200) -> Response:
    """Return a page."""
    return secured(Response(html.encode("utf-8", "replace"), status, media_type="text/html"))


def secured(response: Response) -> Response:
    """Return a response with the headers of all responses. The content policy of a page is sent as a header, too."""
    # If escaping failed once, the browser would still not run what a text or a label contains.
    found = POLICY.search(bytes(response.body)[:2000].decode("utf-8", "replace"))
    policy = found[1] if found else "default-src 'none'"
    response.headers.update({**HEADERS, "content-security-policy": f"{policy}; frame-ancestors 'none'"})
    return response
