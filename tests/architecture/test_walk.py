"""The page "Follow one row": a real run passes through every function that it names, in that order."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import glassloop
from glassloop.cli import main as cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "follow-one-row.md"
SOURCE = Path(glassloop.__file__).parent
STOP = re.compile(r"^\d+\. \[`(?P<name>[\w.]+)`\]\((?P<link>[^)]+)\)", re.MULTILINE)
MOST_STOPS = 40  # on the plain backend
ROWS = "text,label\n" + "".join(f"the cat number {row} sat,{'yes' if row % 2 else 'no'}\n" for row in range(30))


def sections() -> dict[str, list[str]]:
    """Return the stops of each section of the page that has any, by its heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {title: [stop["name"] for stop in STOP.finditer(text)] for title, text in zip(parts[::2], parts[1::2], strict=True)}
    return {title: stops for title, stops in found.items() if stops}


def stops_on(backend: str) -> list[str]:
    """Return the stops of the sections about a backend, in order; sections that name none are about plain."""
    named = {title: next((name for name in ("packed", "graphs") if f"`{name}`" in title), "plain") for title in sections()}
    return [stop for title, stops in sections().items() if named[title] == backend for stop in stops]


@contextmanager
def traced(calls: list[str]) -> Iterator[None]:
    """Write down every call of a function of Glassloop, in all threads."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            module = ".".join(Path(code.co_filename).relative_to(SOURCE).with_suffix("").parts)
            calls.append(f"{module}.{code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def calls_of(backend: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train one step on a CSV file with the real command, then predict a text; return the calls of both.

    Further steps would hide stops in the wrong order: each function of a step is called again in the next one.
    """
    (folder / "rows.csv").write_text(ROWS, encoding="utf-8")
    train = ["train", str(folder / "rows.csv"), "--model", str(model), "--output_dir", str(folder / "run")]
    settings = ["--max_steps", "1", "--backend", backend, "--disable_tqdm"]
    calls: list[str] = []
    for words in ([*train, *settings], ["predict", str(folder / "run"), "the cat sat"]):
        monkeypatch.setattr(sys, "argv", ["glassloop", *words])
        with traced(calls), pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
    return calls


def first_missing(stops: list[str], calls: list[str]) -> str | None:
    """Return the first stop that is not called after the stop before it; None if all are."""
    place = 0
    for stop in stops:
        if stop not in calls[place:]:
            return stop
        place = calls.index(stop, place) + 1
    return None


@pytest.mark.parametrize("backend", ["plain", "packed"])
def test_a_run_passes_through_the_stops_in_their_order(
    backend: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))  # nothing is prepared yet
    calls = calls_of(backend, tiny_model_dir, tmp_path, monkeypatch)
    stops = stops_on(backend)
    assert first_missing(stops, calls) is None, "this stop is not reached after the stop before it"
    step = stops.index("training.loop.train_step")
    for place in (step, len(stops) - 2):  # the order inside a step counts, and the order of the last stops
        swapped = [*stops[:place], stops[place + 1], stops[place], *stops[place + 2 :]]
        assert first_missing(swapped, calls), f"{stops[place]} and {stops[place + 1]} could change places"


def test_the_walk_is_short_and_its_links_lead_to_the_functions() -> None:
    assert 20 < len(stops_on("plain")) <= MOST_STOPS
    assert stops_on("packed")
    assert stops_on("graphs")
    for stop in STOP.finditer(PAGE.read_text(encoding="utf-8")):
        path = (PAGE.parent / stop["link"].partition("#")[0]).resolve()
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        rest = stop["name"].removeprefix(f"{module}.")
        assert rest != stop["name"], f"{stop['name']} is not in {stop['link']}"
        assert re.search(rf"^ *def {rest.rpartition('.')[2]}\(", path.read_text(encoding="utf-8"), re.MULTILINE), stop["name"]
