#!/usr/bin/env python3
"""Make the pictures of the documents from real runs: the terminal, and pages in a browser. Run it on an idle machine.

python tools/take_pictures.py                  # all of them, into docs/images
python tools/take_pictures.py report serve     # only these
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from draw_terminal import picture, printed_by
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
GLASSLOOP = str(Path(sys.executable).with_name("glassloop"))
FIRST = ["glassloop", "train", "quickstart", "--output_dir", "runs/first"]
SMALL = ["--rows", "400", "--max_length", "64"]
OTHERS = (
    ["train", "quickstart", "--output_dir", "runs/frozen", "--method", "frozen"],
    ["compare", "runs/frozen", "runs/first", "--out", "compare.html"],
    ["study", "quickstart", *SMALL, "--vary", "learning_rate=2e-5,1e-4", "--seeds", "3", "--output_dir", "runs/study"],
)
PORT = 8321
WIDTH, HEIGHT = 1200, 800
PAIR = ("The storm struck the airport at 5:00.", "At five o'clock, the gale struck the airfield.")


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[str]:
    """Run a command that serves a page, and yield its address, as printed, when it answers."""
    address = f"http://127.0.0.1:{PORT}/"
    command = [GLASSLOOP, *arguments, "--port", str(PORT)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            if arguments[0] == "ui":  # its address contains a token
                address = process.stdout.readline().strip()  # type: ignore[union-attr]
            for _ in range(120):
                try:
                    urlopen(address, timeout=5).close()
                    break
                except (URLError, OSError):
                    time.sleep(1)
            yield address
        finally:
            process.terminate()


def shoot(page: Page, address: str, name: str, texts: Sequence[str] = ()) -> None:
    """Take a picture of the top of a page; of that of the server, with the answer for `texts`."""
    page.goto(address)
    for number, text in enumerate(texts):
        page.locator("textarea").nth(number).fill(text)
    if texts:
        page.get_by_role("button", name="Predict").click()
    page.wait_for_timeout(1500)
    top = 190 if name == "live" else 0  # above it is the path of the folder on this machine
    clip = {"x": 0, "y": top, "width": WIDTH, "height": HEIGHT - top}
    page.screenshot(path=str(IMAGES / f"{name}.png"), clip=clip)
    print(f"==> {IMAGES / name}.png", flush=True)


def main() -> None:
    """Train in an empty folder, and take the pictures that are named on the command line, or all."""
    wanted = sys.argv[1:] or ["terminal", "report", "compare", "study", "live", "serve"]
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(prefix="glassloop-pictures-") as place, sync_playwright() as play:
        folder = Path(place)
        os.environ["COLUMNS"] = "100"
        text, status = printed_by([GLASSLOOP, *FIRST[1:]], 100, folder)
        if status:
            sys.exit(text)
        if "terminal" in wanted:
            (IMAGES / "terminal.svg").write_text(picture([(FIRST, text)], 100), encoding="utf-8")
        for command in OTHERS:
            if {"train": {"compare", "live"}, "compare": {"compare"}, "study": {"study", "live"}}[command[0]] & {*wanted}:
                subprocess.run([GLASSLOOP, *command], cwd=folder, check=True)
        page = play.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page(
            viewport={"width": WIDTH, "height": HEIGHT}
        )
        for name, path in (
            ("report", "runs/first/report.html"),
            ("compare", "compare.html"),
            ("study", "runs/study/study.html"),
        ):
            if name in wanted:
                shoot(page, (folder / path).as_uri(), name)
        if "live" in wanted:
            with running("ui", "runs", folder=folder) as address:
                shoot(page, address, "live")
        if "serve" in wanted:
            with running("serve", "runs/first", folder=folder) as address:
                shoot(page, address, "serve", PAIR)


if __name__ == "__main__":
    main()
