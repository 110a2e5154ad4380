"""The templates of pages, cards and READMEs: Jinja2 with autoescape, so that no text of a user becomes markup."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from glassloop.base.errors import printable
from glassloop.base.files import home_name, near_name

MARKDOWN_SIGNS = re.compile(r"([\\`*_{}\[\]|~$#!])")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "\n": " "},
}
MOST_CHARACTERS = 80  # of a short text; longer text is cut
LINEAR, PERCENT = "linear", "percent"


def readable(value: object) -> str:
    """Return a value as text whose control characters are visible; line breaks remain. HTML passes unchanged."""
    if isinstance(value, Markup):
        return value
    lines = str(value).replace("\t", " ").replace("\r\n", "\n").split("\n")
    return "\n".join(map(printable, lines))


def short(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def number_text(value: float) -> str:
    """Return a number with about four significant digits: 12,345, 0.1234, 2.5e-5, 3.2M."""
    size = abs(value)
    if size >= 1e9:
        return f"{value / 1e9:.4g}G"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 1e-4 else f"{value:.2e}".replace("e-0", "e-").replace(".00e", "e")


def value_text(value: float | None, kind: str = LINEAR) -> str:
    """Return a value as pages show it: a share of the kind "percent" as percent, a dash for what is not a number."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value * 100:.1f}%" if kind == PERCENT else number_text(value)


def markdown(value: object) -> Markup:
    """Return a value as text of Markdown: on one line, without markup, links and mentions. `Markup` passes unchanged."""
    if isinstance(value, Markup):
        return value
    text = MARKDOWN_SIGNS.sub(r"\\\1", printable(str(value)))
    for sign, entity in ENTITIES.items():
        text = text.replace(sign, entity)
    return Markup(text)


def bars_escaped(cell: object) -> str:
    """Return a cell of Markdown, for a table that a user pastes into a text, on one line that cannot end early."""
    return str(cell).replace("|", "\\|").replace("\n", " ")


def markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], right: int | None = None, escape: Callable[[object], str] = markdown
) -> Markup:
    """Return a table in Markdown, empty without rows. Columns from `right` on are aligned to the right."""
    rule = ["---:" if right is not None and place >= right else "---" for place in range(len(head))]
    lines = [[escape(cell) for cell in head], rule, *([escape(cell) for cell in row] for row in rows)]
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "")


def latex_table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> str:
    """Return a table in LaTeX for the package booktabs. No character of a cell is a command. `columns` is such as "llr"."""
    cells = [["".join(LATEX.get(sign, sign) for sign in cell) for cell in row] for row in (head, *rows)]
    first, *lines = [" & ".join(row) + r" \\" for row in cells]
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", first, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(parts) + "\n"


# Every value of a template passes through `readable` and is then escaped. Templates name their files from src/glassloop on.
ENVIRONMENT = Environment(
    loader=PackageLoader("glassloop", ""),
    autoescape=True,
    finalize=readable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.filters |= {"short": short, "number": value_text, "commas": "{:,}".format, "home": home_name, "near": near_name}
MARKDOWN = ENVIRONMENT.overlay(finalize=markdown)
MARKDOWN.globals = {**ENVIRONMENT.globals, "table": markdown_table}
PYTHON = ENVIRONMENT.overlay(finalize=lambda value: value if isinstance(value, Markup) else Markup(repr(value)))


def template_of(name: str) -> Template:
    """Return a template by its file. Values in Markdown are escaped as such; in Python they are literals, never code."""
    return {".md.j2": MARKDOWN, ".py.j2": PYTHON}.get(name[-6:], ENVIRONMENT).get_template(name)


def rendered(template: str, **values: object) -> str:
    return template_of(template).render(**values)


def piece(template: str, macro: str, *values: object, **named: object) -> Markup:
    """Return what one macro of a template writes, without the space around it."""
    return Markup(getattr(template_of(template).module, macro)(*values, **named).strip())


def escaped(value: object) -> str:
    """Return a value as text of a page, complete. It is also safe inside a quoted attribute."""
    return str(escape(readable(value)))


def package_text(folder: str, name: str) -> str:
    return files("glassloop").joinpath(folder, name).read_text(encoding="utf-8")


def policy(style: str, script: str, connect: bool) -> str:
    """Return the Content-Security-Policy of a page with this style and script, which may `connect` to their own server."""
    sums = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = f"default-src 'none'; style-src 'sha256-{sums[0]}'; script-src 'sha256-{sums[1]}'; img-src data:"
    return f"{allowed}; base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if connect else "")
