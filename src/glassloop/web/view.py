"""A page that is updated while it is open: its first form, and what has changed since."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from importlib.resources import files

from glassloop.markup import escaped
from glassloop.pages.page import Section, page

STYLE = files("glassloop.web").joinpath("live.css").read_text(encoding="utf-8")
SCRIPT = files("glassloop.web").joinpath("live.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class View:
    """What a page shows now.

    Attributes:
        title: The heading.
        head: HTML below the heading.
        sections: The parts of the page. All views of a page have the same ones.
        seconds: How long to wait before the next update.
        tools: HTML at the beginning of the first section that updates leave alone.
        tab: What the tab of the browser says; by default the heading.
        reload: Whether the page is another one now: the report of a run that has ended.
    """

    title: str
    head: str
    sections: Sequence[Section]
    seconds: float
    tools: str = ""
    tab: str = ""
    reload: bool = False

    def page(self) -> str:
        """Return the page as it is opened."""
        parts = [replace(section, body=part(section.name, section.body)) for section in self.sections]
        parts[0] = replace(parts[0], body=self.tools + parts[0].body)
        note = '<p class="note" id="connection" role="status"></p>'
        return page(self.title, parts, subtitle=part("head", self.head) + note, connect=True, style=STYLE, script=SCRIPT)

    def update(self) -> str:
        """Return the parts of the page as JSON, for the script."""
        parts = {"head": self.head, **{section.name: section.body for section in self.sections}}
        content = {"tab": self.tab or self.title, "seconds": self.seconds, "reload": self.reload, "parts": parts}
        return json.dumps(content)

    @cached_property
    def answer(self) -> tuple[bytes, str]:
        """The update and its tag, made once for all readers."""
        body = self.update().encode()
        return body, f'"{blake2b(body, digest_size=12).hexdigest()}"'


def part(name: str, body: str) -> str:
    """Return a part of a page that can be replaced."""
    return f'<div data-part="{escaped(name)}">{body}</div>'
