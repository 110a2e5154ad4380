"""A page and its updates have the same parts."""

from __future__ import annotations

import json

from watched_runs import HOSTILE

from glassloop.report.page import Section
from glassloop.web.views import View

VIEW = View(HOSTILE, "<p>head</p>", [Section("a", "A", "<p>one</p>"), Section("b", "B", "<p>two</p>")], 2.0, "<form></form>")


def test_the_page_and_its_update() -> None:
    page, update = VIEW.page(), json.loads(VIEW.update())
    for name, body in update["parts"].items():
        assert f'<div data-part="{name}">{body}</div>' in page
    assert [*update["parts"]] == ["head", "a", "b"]
    assert '<form></form><div data-part="a">' in page, "updates leave it alone"
    assert (update["seconds"], update["tab"], update["reload"]) == (2.0, HOSTILE, False)
    assert HOSTILE not in page


def test_the_script_may_ask_the_server() -> None:
    assert "connect-src 'self'" in VIEW.page()
