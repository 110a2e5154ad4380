"""A Sphinx extension: generated parts of pages, and source files as pages.

A line `<!-- generated: settings DataSettings -->` is replaced by what `generate_reference` writes. A link to a file outside
`docs/` leads to a page that shows the file. One to a document that is not on the site leads to the repository.
"""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from generate_reference import GENERATED
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DOCUMENTS = {"README.md": "index.md"}
# For people who change the project: these stay in the repository, and links to them lead there.
OFF_SITE = (
    *(
        "log.md",
        "decisions.md",
        "reference/transformers-tests.md",
        "reference/awkward-files.md",
        "reference/quickstart-corpus.md",
    ),
    *("how-to/add-a-metric.md", "how-to/add-a-file-format.md", "how-to/add-a-model-family.md"),
)
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
shown: set[str] = set()  # the source files that pages link to


def fill_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Insert generated parts, and rewrite links that lead out of `docs/`."""
    here = (DOCS / docname).parent

    def generated(found: re.Match[str]) -> str:
        name, *arguments = found[1].split()
        return GENERATED[name](*arguments)

    text = with_links(source[0], here, here).replace("repository:", f"{REPOSITORY}/blob/main/")
    source[0] = re.sub(r"^<!-- generated: (.+) -->$", generated, text, flags=re.MULTILINE)


def with_links(text: str, base: Path, page: Path) -> str:
    """Return Markdown with links that are relative to `base`, for a page in the folder `page`."""

    def rewrite(found: re.Match[str]) -> str:
        place, mark, anchor = found["target"].partition("#")
        if not place or re.match(r"[a-z]+:", place):
            return found[0]
        path = Path(posixpath.normpath((base / place).as_posix()))
        if path.parent == ROOT and path.name in DOCUMENTS:
            path = DOCS / DOCUMENTS[path.name]
        if is_off_site(path):
            return f"[{found['text']}]({REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()}{mark}{anchor})"
        if path.is_relative_to(DOCS) and path.suffix != ".py":
            return f"[{found['text']}]({posixpath.relpath(path, page)}{mark}{anchor})"
        if not path.is_file():
            return found[0]  # MyST reports it
        name = path.relative_to(ROOT).as_posix()
        shown.add(name)
        if not anchor and (line := line_of(path, found["text"].strip("`"))):
            mark, anchor = "#", f"L{line}"
        return f'<a href="{posixpath.relpath(DOCS / "source" / name, page)}.html{mark}{anchor}">{found["text"]}</a>'

    return LINK.sub(rewrite, text)


def is_off_site(path: Path) -> bool:
    """Return whether a document is in the repository only: those of `OFF_SITE`, and those at its top."""
    inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else ""
    return inside in OFF_SITE or (path.parent == ROOT and path.suffix == ".md" and path.name not in DOCUMENTS)


def line_of(path: Path, dotted: str) -> int | None:
    """Return the line where a source file defines the function, class or method at the end of a dotted name."""
    body, line = ast.parse(path.read_text(encoding="utf-8")).body if path.suffix == ".py" else [], None
    for part in dotted.split("."):
        node = next((node for node in body if isinstance(node, DEFINITIONS) and node.name == part), None)
        if node is not None:
            body, line = node.body, node.lineno
    return line


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield a highlighted page for each source file that a page links to."""
    for name in sorted(shown):
        text = (ROOT / name).read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(name)
        except ClassNotFound:
            lexer = get_lexer_for_filename("x.txt")
        code = highlight(text, lexer, HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True))
        code = re.sub(r'(id|name|href)="(#?)L-(\d+)"', r'\1="\2L\3"', code)
        yield f"source/{name}", {"title": name, "body": f"<h1>{escape(name)}</h1>{code}"}, "page.html"


def draw_dashes(app: Sphinx, tree: nodes.document) -> None:
    """Write a dash between a parameter and its description. Smart quotes would also change the names of options."""
    for text in [*tree.findall(nodes.Text)]:
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", fill_page)
    app.connect("doctree-read", draw_dashes)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
