"""`glassloop ui`: watch runs in the browser."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

PORT_HELP = "Port of the page; 0 for a free one. Default: 8000 or the next."


def ui(
    folder: Annotated[str | None, Argument(help="Folder with runs, or one run folder. Default: runs.")] = None,
    port: Annotated[int | None, Option(min=0, max=65535, metavar="<int>", help=PORT_HELP)] = None,
    open_browser: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Watch runs while they train, on a local page in the browser."""
    from glassloop.web.start import start_page

    start_page(folder, port, open_browser=open_browser)
