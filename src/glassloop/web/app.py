"""The live page: who may read it, its routes and what they answer."""

from __future__ import annotations

import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from glassloop.base.errors import shortened
from glassloop.base.network import AllowedHosts
from glassloop.base.output import say
from glassloop.report.page import Section, page, paragraph
from glassloop.runs.record import FINISHED
from glassloop.runs.status import RunSummary
from glassloop.web.views import View, compare_view, group_links, list_view, run_view, way_back
from glassloop.web.watch import GroupSummary, Reports, Watcher

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


MOST_COMPARED = 8  # there are eight colors
MOST_REMEMBERED = 32  # answers
HEADER = '<header class="top">'
TWO_RUNS = "Choose two runs to compare: compare?run=FIRST&run=SECOND"
NO_RUN = "There is no such run. It may have been removed."


class Answers:
    """The latest answers, so that many readers of one page cost no more than one."""

    def __init__(self) -> None:
        self.lock, self.known = Lock(), OrderedDict[object, tuple[object, View]]()

    def view(self, page: object, version: object, make: Callable[[], View]) -> View:
        """Return the view of a page, made again if its version has changed."""
        with self.lock:
            found = self.known.get(page)
            if found is None or found[0] != version:
                found = self.known[page] = (version, make())
            self.known.move_to_end(page)
            while len(self.known) > MOST_REMEMBERED:
                self.known.popitem(last=False)
        return found[1]


class LivePage:
    """Answers the requests of the live page.

    Args:
        root: The folder with the runs.
        token: The first part of every address.
    """

    def __init__(self, root: Path, token: str) -> None:
        self.root, self.base = root, f"/{token}/"
        self.watcher, self.answers, self.reports = Watcher(root), Answers(), Reports()

    def home(self, request: Request) -> Response:
        """Return the list of runs."""
        runs = self.watcher.runs()
        found, groups = self.watcher.found, self.watcher.groups(runs)
        versions = (tuple((run.version, run.silent) for run in runs), tuple((one.version, one.status) for one in groups))
        version = (*versions, found.links, found.complete)
        return answered(request, self.answers.view("", version, lambda: list_view(self.root, runs, found, self.base, groups)))

    def run(self, request: Request) -> Response:
        """Return a run while it trains, its report when it is finished."""
        name = os.fsdecode(b"/".join(path_parts(request.scope)[2:]))
        run = self.watcher.run(name)
        if run is None:
            group = self.watcher.group(name)
            return page_answer(self.group_page(group)) if group else gone(request)
        report = self.reports.of(run) if run.status == FINISHED else None
        if report and report.html:
            update = "update" in request.query_params
            report_page = page_answer(self.with_way_back(report.html))
            return answered(request, View(run.name, "", [], 0.0, reload=True)) if update else report_page
        curves = self.watcher.curves(run)
        problem = report.problem if report else ""
        version = (run.version, run.silent, curves.version, curves.complete)
        return answered(request, self.answers.view(run.name, version, lambda: run_view(run, curves, self.base, problem)))

    def group_page(self, group: GroupSummary) -> str:
        """Return the report of several seeds, or the page of a study, with links to its runs."""
        report = self.reports.of(group)
        problem = Section("problem", "There is no report", paragraph(report.problem))
        html = report.html or page(group.name, [problem])
        return html.replace(HEADER, HEADER + way_back(self.base) + group_links(group, self.base), 1)

    def compare(self, request: Request) -> Response:
        """Return several runs side by side."""
        runs = self.chosen(request)
        if len(runs) < 2:
            return plain_answer(TWO_RUNS, 404)
        every = [self.watcher.curves(run) for run in runs]
        version = tuple((run.version, run.silent, curves.version) for run, curves in zip(runs, every, strict=True))
        names = tuple(run.name for run in runs)
        return answered(request, self.answers.view(names, version, lambda: compare_view(runs, every, self.base)))

    def comparison(self, request: Request) -> Response:
        """Return the comparison of finished runs with its tests."""
        runs = self.chosen(request)
        if len(runs) < 2:
            return plain_answer(TWO_RUNS, 404)
        report = self.reports.of(*runs)
        problem = Section("problem", "These runs cannot be compared", paragraph(report.problem))
        return page_answer(self.with_way_back(report.html or page("Comparison", [problem])))

    def chosen(self, request: Request) -> list[RunSummary]:
        """Return the runs that an address names."""
        names = [os.fsdecode(unquote_to_bytes(name)) for name in request.query_params.getlist("run")]
        return [run for name in dict.fromkeys(names) if (run := self.watcher.run(name))][:MOST_COMPARED]

    def with_way_back(self, html: str) -> str:
        """Return a page with a link to the list of runs."""
        return html.replace(HEADER, HEADER + way_back(self.base), 1)


def gone(request: Request) -> Response:
    """Return that a run does not exist. To a page that shows it this is no error, which its browser would report."""
    removed = Response('{"gone": true}', media_type="application/json")
    return secured(removed) if "update" in request.query_params else plain_answer(NO_RUN, 404)


def answered(request: Request, view: View) -> Response:
    """Return a page or, if its script asks for an update, what it shows now: 304 if that has not changed."""
    if "update" not in request.query_params:
        return page_answer(view.page())
    body, tag = view.answer
    same = request.headers.get("if-none-match") == tag
    response = secured(Response(b"" if same else body, 304 if same else 200, media_type="application/json"))
    response.headers["etag"] = tag
    return response


def application(root: Path, token: str) -> Guard:
    """Return the application for a server. Its pages need the token."""
    live = LivePage(root, token)
    routes = [
        Route(f"/{token}", lambda request: secured(RedirectResponse(f"/{token}/"))),
        Route(f"/{token}/", live.home),
        Route(f"/{token}/run/{{name:path}}", live.run),
        Route(f"/{token}/compare", live.compare),
        Route(f"/{token}/comparison", live.comparison),
        Route("/{rest:path}", lambda request: plain_answer("There is no such page.", 404)),
    ]
    return Guard(Starlette(routes=routes), token)
