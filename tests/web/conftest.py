"""A real browser for tests of pages: Debian's chromium through playwright, or a skip with the reason.

    def test_a_page(open_page: OpenPage) -> None:
        page = open_page(path_or_address)            # a playwright page, already loaded
        assert page.locator("figure").count() == 3

The test fails at its end if a page wrote to the console, raised an error, opened a dialog, or sent a request to anywhere but
itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage: TypeAlias = "Callable[..., Page]"

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-dev-shm-usage"
).split()
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str:
    """Return the path of an installed chromium, or skip the test."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium is installed (Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a session."""
    path = browser_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        running = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a file or an address in a context of its own: `open_page(path, width=390, dark=True)`."""
    contexts, faults = [], []

    def opened(where: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False, **more: object) -> Page:
        address = where.resolve().as_uri() if isinstance(where, Path) else where
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **more
        )
        contexts.append(context)
        page = context.new_page()
        home = address.split("?")[0] if address.startswith("file:") else "/".join(address.split("/")[:3])
        page.on("console", lambda message: faults.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: None if request.url.startswith((home, "data:")) else faults.append(f"request: {request.url[:200]}"),
        )
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults, "\n".join(faults)
