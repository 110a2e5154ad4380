"""Check a built site: every internal link and anchor leads somewhere, and no page loads anything from another host.

python docs/check_site.py FOLDER
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed"}


class Page(HTMLParser):
    """The anchors, links and loaded files of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record what the tag names, links to and loads."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])
        if tag in LOADED and "src" in found:
            self.loaded.append(found["src"])


def problems_of(folder: Path) -> list[str]:
    """Return one sentence for each broken link or anchor and each file loaded from another host."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        problems += [f"{name} loads {url} from another host" for url in page.loaded if urlsplit(url).netloc]
        for url in [*page.links, *page.loaded]:
            parts = urlsplit(url)
            if parts.scheme in ("http", "https"):
                if not parts.hostname or "." not in parts.hostname:
                    problems.append(f"{name}: {url} is not a valid address")
                continue
            if parts.scheme or url.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                problems.append(f"{name} links to {url}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                problems.append(f"{name} links to {url}, but that page has no such anchor")
    return problems


def main() -> None:
    """Check the folder given on the command line and exit with status 1 if there are problems."""
    folder = Path(sys.argv[1]).resolve()
    problems = problems_of(folder)
    print("\n".join(problems) or f"{len([*folder.rglob('*.html')])} pages, all internal links and anchors hold")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
