"""The page of the server in a real browser: a person types a pair, and sees the answer, the scores, the tokens, the cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn
from served import make_service

from glassloop import Predictor
from glassloop.serve.app import make_app
from glassloop.settings.file import GivenSettings
from glassloop.study.run import train_run


@pytest.fixture(scope="module")
def run(lively_dir, session_cache, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLASSLOOP_CACHE", str(session_cache))
        settings = {"output_dir": str(tmp_path_factory.mktemp("page") / "pairs"), "max_steps": 3, "learning_rate": 5e-3}
        settings |= {"device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
        return train_run(GivenSettings("quickstart", str(lively_dir), settings, {"rows": 29, "split_seed": 3}))


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    """A server in a thread."""
    with ExitStack() as stack:
        service = make_service(stack, [run])
        server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_a_person_asks_about_a_pair_and_reads_what_was_truncated(address: str, run: Path, open_page) -> None:
    page = open_page(f"{address}/")
    page.fill("#text", "a good film")
    page.fill("#pair", "<b>bad</b> film")
    page.click("button")
    page.wait_for_selector("#tokens span")
    wanted = Predictor(run, device="cpu").predict([("a good film", "<b>bad</b> film")])[0]
    assert page.inner_text("#answer") == wanted.label
    rows = page.locator("#scores tr")
    shown = {rows.nth(row).locator("td").nth(0).inner_text(): rows.nth(row).locator("td").nth(1).inner_text() for row in (0, 1)}
    assert shown == {name: f"{score:.4f}" for name, score in wanted.scores.items()}
    assert page.locator("#tokens span").first.inner_text() == "[CLS]"
    assert page.inner_text("#note") == ""
    page.fill("#text", "good " * 200)
    page.click("button")
    page.wait_for_selector("#note:not(:empty)")
    assert page.inner_text("#note").endswith("tokens of the first text were truncated.")
