"""Walks through the code, traced in real runs: how many files a reader has to open, and the page "Follow one row".

A walk counts each file that runs a function on the way. Loading a module is not a stop of it.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pytest
from served import make_service
from starlette.testclient import TestClient
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import glassloop
from glassloop.cli import main as cli
from glassloop.serve.app import make_app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "follow-one-row.md"
SOURCE = Path(glassloop.__file__).parent
STOP = re.compile(r"^\d+\. \[`(?P<name>[\w.]+)`\]\((?P<link>[^)]+)\)", re.MULTILINE)
ROWS = "text,label\n" + "".join(f"the cat number {row} sat,{'yes' if row % 2 else 'no'}\n" for row in range(60))

PATHS = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]
# What a reader can follow. Merge what belongs together before you raise one of these.
MOST_FILES_TO_THE_REPORT = 46  # one for the process beside the run, which must not import torch
MOST_FILES_TO_THE_FIRST_STEP = 20
MOST_FILES_TO_AN_ANSWER = 12
MOST_STOPS = 30  # of the page, on the plain backend


def stops_on(backend: str) -> list[str]:
    """Return the stops of the sections about a backend, in order; sections that name none are about plain."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    named = ((next((name for name in ("packed", "graphs") if f"`{name}`" in title), "plain"), text) for title, text in sections)
    return [stop["name"] for name, text in named if name == backend for stop in STOP.finditer(text)]


@contextmanager
def traced(calls: list[str]) -> Iterator[None]:
    """Write down every call of a function of Glassloop, in all threads that start from now on, and the end of each call."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED  # the body of a module or of a class is not one
        if function and event in ("call", "return") and code.co_filename.startswith(str(SOURCE)):
            module = ".".join(Path(code.co_filename).relative_to(SOURCE).with_suffix("").parts)
            calls.append(f"{'end of ' if event == 'return' else ''}{module}.{code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def files_of(calls: Sequence[str]) -> set[str]:
    """Return the files of the called functions."""
    names = {call.removeprefix("end of ").replace(".", "/") for call in calls}
    return {path for path in PATHS if any(name.startswith(path.removesuffix(".py") + "/") for name in names)}


def command(*words: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["glassloop", *words])
    with traced(calls), pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def train(backend: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Train one step on a CSV file with the real command, and return the calls.

    Further steps would hide stops in the wrong order: each function of a step is called again in the next one.
    """
    monkeypatch.setenv("GLASSLOOP_CACHE", str(folder / "cache"))  # nothing is prepared yet
    monkeypatch.delenv("GLASSLOOP_NO_REPORT", raising=False)
    (folder / "rows.csv").write_text(ROWS, encoding="utf-8")
    calls: list[str] = []
    words = ("train", str(folder / "rows.csv"), "--model", str(model), "--output_dir", str(folder / "run"), "--max_steps", "1")
    command(*words, "--backend", backend, "--disable_tqdm", calls=calls, monkeypatch=monkeypatch)
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
def test_a_row_passes_the_stops_of_the_page_and_few_files(
    backend: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a line of the CSV file to the metric in report.html."""
    calls = train(backend, tiny_model_dir, tmp_path, monkeypatch)
    evaluation = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["evaluation"]
    assert f"{evaluation['eval_accuracy']:.4f}" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    if backend == "plain":
        walk = calls[calls.index("data.sources.load_examples") : calls.index("end of report.build.write_report")]
        assert len(files_of(walk)) <= MOST_FILES_TO_THE_REPORT, "\n".join(sorted(files_of(walk)))
        command("predict", str(tmp_path / "run"), "the cat sat", calls=calls, monkeypatch=monkeypatch)
    stops = stops_on(backend)
    assert first_missing(stops, calls) is None, "this stop is not reached after the stop before it"
    step = stops.index("training.loop.train_step")
    swapped = [*stops[:step], stops[step + 1], stops[step], *stops[step + 2 :]]
    assert first_missing(swapped, calls), "the order inside a step counts"


def test_a_trainer_passes_few_files_before_its_first_step(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model_dir, num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    rows = [{**tokenizer(f"the cat number {row}"), "labels": row % 2} for row in range(16)]
    arguments = glassloop.TrainingArguments(str(tmp_path), max_steps=1, backend="plain", disable_tqdm=True)
    kind = glassloop.Trainer  # it is loaded here
    calls: list[str] = []
    with traced(calls):
        kind(model, arguments, train_dataset=rows, processing_class=tokenizer).train()
    files = files_of(calls[: calls.index("end of training.loop.train_step")])
    assert len(files) <= MOST_FILES_TO_THE_FIRST_STEP, "\n".join(sorted(files))


def test_a_request_passes_few_files(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train("plain", tiny_model_dir, tmp_path, monkeypatch)
    calls: list[str] = []
    with ExitStack() as stack, traced(calls):
        client = TestClient(make_app(make_service(stack, [tmp_path / "run"])), base_url="http://localhost:8000")
        calls.clear()
        answer = client.post("/predict", json={"inputs": "the cat sat"})
        walk = [*calls]
    assert answer.status_code == 200
    assert {"serve/app.py", "predictor.py"} <= files_of(walk)
    assert len(files_of(walk)) <= MOST_FILES_TO_AN_ANSWER, "\n".join(sorted(files_of(walk)))


def test_the_page_is_short_and_its_links_lead_to_the_functions() -> None:
    assert 15 < len(stops_on("plain")) <= MOST_STOPS
    assert stops_on("packed")
    assert stops_on("graphs")
    for stop in STOP.finditer(PAGE.read_text(encoding="utf-8")):
        path = (PAGE.parent / stop["link"].partition("#")[0]).resolve()
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        rest = stop["name"].removeprefix(f"{module}.")
        assert rest != stop["name"], f"{stop['name']} is not in {stop['link']}"
        assert re.search(rf"^ *def {rest.rpartition('.')[2]}\(", path.read_text(encoding="utf-8"), re.MULTILINE), stop["name"]
