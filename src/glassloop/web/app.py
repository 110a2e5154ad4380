"""The live page: who may read it, its routes and what they answer."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from glassloop.base.errors import shortened
from glassloop.base.network import AllowedHosts
from glassloop.base.output import say
from glassloop.markup.templates import piece
from glassloop.report.page import PARTS, Section, page
from glassloop.runs.record import FINISHED
from glassloop.runs.status import RunSummary
from glassloop.web.views import View, compare_view, group_links, list_view, run_view, way_back
from glassloop.web.watch import GroupSummary, Latest, Report, Watcher, made

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
TWO_RUNS = "Choose two runs to compare: compare?run=FIRST&run=SECOND"
NO_RUN = "There is no such run. It may have been removed."
MOST_COMPARED = 8  # there are eight colors
MOST_VIEWS, MOST_REPORTS = 32, 8  # that are kept; a report has up to two megabytes
HEADER = '<header class="top">'


# The token is part of the path, not a cookie: cookies of 127.0.0.1 are shared by all ports. The Host header is checked
# against DNS rebinding; any port is accepted, for ssh -L.
class Guard:
    """Refuses every request that does not come from the user, and answers an unexpected error without details."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await (self.refusal(scope) or self.app)(scope, receive, send)
        except Exception as error:
            say(f"a page could not be shown: {shortened(f'{type(error).__name__}: {error}')}")
            await plain_answer("This page could not be shown. See the terminal of glassloop ui.", 500)(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
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
    return secured(Response(f"{text}\n", status, media_type="text/plain"))


def page_answer(html: str) -> Response:
    return secured(Response(html.encode("utf-8", "replace"), media_type="text/html"))


def secured(response: Response) -> Response:
    """Return a response with the headers of all responses. The content policy of a page is sent as a header, too."""
    # If escaping failed once, the browser would still not run what a text or a label contains.
    found = POLICY.search(bytes(response.body)[:2000].decode("utf-8", "replace"))
    policy = found[1] if found else "default-src 'none'"
    response.headers.update({**HEADERS, "content-security-policy": f"{policy}; frame-ancestors 'none'"})
    return response


class LivePage:
    def __init__(self, root: Path, token: str) -> None:
        self.root, self.base, self.watcher = root, f"/{token}/", Watcher(root)
        self.views, self.reports = Latest[View](MOST_VIEWS), Latest[Report](MOST_REPORTS)

    def home(self, request: Request) -> Response:
        runs = self.watcher.runs()
        found, groups = self.watcher.found, self.watcher.groups(runs)
        versions = (tuple((run.version, run.silent) for run in runs), tuple((one.version, one.status) for one in groups))
        version = (*versions, found.links, found.complete)
        return answered(request, self.views.of("", version, lambda: list_view(self.root, runs, found, self.base, groups)))

    def run(self, request: Request) -> Response:
        name, update = os.fsdecode(b"/".join(path_parts(request.scope)[2:])), "update" in request.query_params
        run = self.watcher.run(name)
        if run is None:
            group = next((group for group in self.watcher.groups(self.watcher.runs()) if group.name == name), None)
            if group:
                return self.report_page(group.name, "There is no report", group, links=group_links(group, self.base))
            # To a page that shows it a removed run is no error, which its browser would report.
            removed = Response('{"gone": true}', media_type="application/json")
            return secured(removed) if update else plain_answer(NO_RUN, 404)
        report = self.report(run) if run.status == FINISHED else Report()
        if report.html:
            reload = View(run.name, "", [], 0.0, reload=True)
            return answered(request, reload) if update else self.report_page(run.name, "", run)
        curves = self.watcher.curves(run)
        version = (run.version, run.silent, curves.version, curves.complete)
        return answered(request, self.views.of(run.name, version, lambda: run_view(run, curves, self.base, report.problem)))

    def compare(self, request: Request) -> Response:
        """Return several runs side by side or, of finished ones, the comparison with its tests."""
        names = dict.fromkeys(os.fsdecode(unquote_to_bytes(name)) for name in request.query_params.getlist("run"))
        runs = [run for name in names if (run := self.watcher.run(name))][:MOST_COMPARED]
        if len(runs) < 2:
            return plain_answer(TWO_RUNS, 404)
        if request.url.path.endswith("/comparison"):
            return self.report_page("Comparison", "These runs cannot be compared", *runs)
        every = [self.watcher.curves(run) for run in runs]
        version = tuple((run.version, run.silent, curves.version) for run, curves in zip(runs, every, strict=True))
        chosen = tuple(run.name for run in runs)
        return answered(request, self.views.of(chosen, version, lambda: compare_view(runs, every, self.base)))

    def report(self, *runs: RunSummary | GroupSummary) -> Report:
        """Return the report of a run, of seeds or of a study, or the comparison of runs, made once for each version of them."""
        folders = tuple(run.folder for run in runs)
        return self.reports.of(folders, tuple(run.version for run in runs), lambda: made(*folders))

    def report_page(self, title: str, problem: str, *runs: RunSummary | GroupSummary, links: str = "") -> Response:
        """Return a report, or why there is none, with a link to the list of runs."""
        report = self.report(*runs)
        html = report.html or page(title, [Section("problem", problem, piece(PARTS, "paragraph", report.problem))])
        return page_answer(html.replace(HEADER, f"{HEADER}{way_back(self.base)}{links}", 1))


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
    live = LivePage(root, token)
    routes = [
        Route(f"/{token}", lambda request: secured(RedirectResponse(f"/{token}/"))),
        Route(f"/{token}/", live.home),
        Route(f"/{token}/run/{{name:path}}", live.run),
        Route(f"/{token}/compare", live.compare),
        Route(f"/{token}/comparison", live.compare),
        Route("/{rest:path}", lambda request: plain_answer("There is no such page.", 404)),
    ]
    return Guard(Starlette(routes=routes), token)
