"""The templates of pages, cards and READMEs: Jinja2 with autoescape, so that no text of a user becomes markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from glassloop.base.errors import printable

MARKDOWN_SIGNS = re.compile(r"([\\`*_{}\[\]|~$#!])")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
MOST_CHARACTERS = 80  # of a short text; longer text is cut


def readable(value: object) -> str:
    """Return a value as text whose control characters are visible; line breaks remain. HTML passes unchanged."""
    if isinstance(value, Markup):
        return value
    lines = str(value).replace("\t", " ").replace("\r\n", "\n").split("\n")
    return "\n".join(map(printable, lines))


def short(value: object) -> str:
    """Return a value as text on one line that is not too long."""
    text = printable(str(value))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


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
ENVIRONMENT.filters["short"] = short


def markdown(value: object) -> Markup:
    """Return a value as text of Markdown: on one line, without markup, links and mentions. `Markup` passes unchanged."""
    if isinstance(value, Markup):
        return value
    text = MARKDOWN_SIGNS.sub(r"\\\1", printable(str(value)))
    for sign, entity in ENTITIES.items():
        text = text.replace(sign, entity)
    return Markup(text)


def markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], right: int | None = None, escape: Callable[[object], str] = markdown
) -> Markup:
    """Return a table in Markdown; all cells are escaped. Empty without rows.

    Args:
        head: The names of the columns.
        rows: The cells.
        right: The first column that is aligned to the right; None for no column.
        escape: What escapes a cell. A table that a user pastes into a text escapes only bars: `bars_escaped`.
    """
    rule = ["---:" if right is not None and place >= right else "---" for place in range(len(head))]
    lines = [[escape(cell) for cell in head], rule, *([escape(cell) for cell in row] for row in rows)]
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else "")


def bars_escaped(cell: object) -> str:
    """Return a cell on one line that cannot end early."""
    return str(cell).replace("|", "\\|").replace("\n", " ")


LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "\n": " ",
}


def latex_table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> str:
    """Return a table in LaTeX for the package booktabs. No character of a cell is a command. `columns` is such as "llr"."""
    cells = [["".join(LATEX.get(sign, sign) for sign in cell) for cell in row] for row in (head, *rows)]
    first, *lines = [" & ".join(row) + r" \\" for row in cells]
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", first, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(parts) + "\n"


MARKDOWN = ENVIRONMENT.overlay(finalize=markdown)
MARKDOWN.globals = {**ENVIRONMENT.globals, "table": markdown_table}


def template_of(name: str) -> Template:
    """Return a template by its file, such as "report/page.html.j2". Values of a `.md.j2` are escaped as Markdown."""
    return (MARKDOWN if name.endswith(".md.j2") else ENVIRONMENT).get_template(name)


def rendered(template: str, **values: object) -> str:
    """Return a whole page or text from its template."""
    return template_of(template).render(**values)


def piece(template: str, macro: str, *values: object) -> str:
    """Return what one macro of a template writes."""
    return str(getattr(template_of(template).module, macro)(*values))


def html(template: str, *values: object) -> str:
    """Return a small element such as `<b>{}</b>` with its values. They are escaped, unless they are `Markup`."""
    return str(Markup(template).format(*map(readable, values)))


def escaped(value: object) -> str:
    """Return a value as text of a page, complete. It is also safe inside a quoted attribute."""
    return str(escape(readable(value)))


def package_text(folder: str, name: str) -> str:
    """Return the text of a file of the package, such as a style sheet."""
    return files("glassloop").joinpath(folder, name).read_text(encoding="utf-8")
