"""The skeleton of every page: one HTML file with its style and script, a strict policy, and a list of its sections."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from glassloop.charts.figure import CHART_CSS
from glassloop.markup import escaped

PAGE_CSS = files("glassloop.pages").joinpath("page.css").read_text(encoding="utf-8")
PAGE_JS = files("glassloop.pages").joinpath("page.js").read_text(encoding="utf-8")
THEME_BUTTON = '<button type="button" class="plain theme">Light / dark</button>'


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: Its anchor, such as "errors".
        title: Its heading.
        body: Its content, HTML.
        short: Its name in the list of sections; by default the heading.
    """

    name: str
    title: str
    body: str
    short: str = ""


def page(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    footer: str = "",
    connect: bool = False,
    style: str = "",
    script: str = "",
) -> str:
    """Return a complete HTML document. Only its own style and script can run.

    Args:
        title: The heading of the page, plain text.
        sections: The parts of the page; those without content are omitted.
        subtitle: HTML below the heading.
        footer: HTML at the end.
        connect: Whether the script may send requests to the server that the page came from.
        style: More CSS.
        script: More JavaScript, which runs after page.js.
    """
    shown = [section for section in sections if section.body]
    styles, scripts = CHART_CSS + PAGE_CSS + style, PAGE_JS + script
    links = "".join(f'<a href="#{escaped(part.name)}">{escaped(part.short or part.title)}</a>' for part in shown)
    body = "".join(section_html(part) for part in shown)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(styles, scripts, connect)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{styles}</style>
</head>
<body class="tex2jax_ignore mathjax_ignore">
<a class="skip" href="#content">Skip to the content</a>
<header class="top"><h1>{escaped(title)}</h1>{subtitle}</header>
<nav class="contents" aria-label="Sections"><div>{links}{THEME_BUTTON}</div></nav>
<main id="content">{body}</main>
<footer>{footer}</footer>
<script>{scripts}</script>
</body>
</html>
"""


def section_html(part: Section) -> str:
    """Return a section with its heading."""
    name = escaped(part.name)
    head = f'<h2 id="{name}-title">{escaped(part.title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{part.body}</section>'


def policy(styles: str, scripts: str, connect: bool) -> str:
    """Return the Content-Security-Policy of a page: nothing but the style and the script with these checksums."""
    parts = [
        "default-src 'none'",
        f"style-src '{checksum(styles)}'",
        f"script-src '{checksum(scripts)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*parts, *(["connect-src 'self'"] if connect else [])])


def checksum(text: str) -> str:
    """Return the checksum of a text as a Content-Security-Policy writes it."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
