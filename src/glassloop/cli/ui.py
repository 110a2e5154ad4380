"""`glassloop ui`: watch runs in the browser."""

from __future__ import annotations

from typing import Annotated

import typer


def ui(
    folder: Annotated[str | None, typer.Argument(help="Folder with runs, or one run folder. Default: runs.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="<int>", help="Port of the page; 0 for a free one. Default: 8000 or the next."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Watch runs while they train, on a local page in the browser."""
    from glassloop.web.start import start_page

    start_page(folder, port, open_browser=open_browser)
