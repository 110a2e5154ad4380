"""Only the user can read the page: token, host and method are checked before anything else, and errors have no details."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from glassloop.web import app as guard
from glassloop.web.app import Guard, page_answer, path_parts, plain_answer

HERE = "http://127.0.0.1:8000"


def client(app: Any = None, token: str = "token") -> TestClient:
    return TestClient(Guard(app or PlainTextResponse("inside"), token), base_url=HERE, raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["", "/", "/tokem", "/token2/", "/toke", "//token/", "/%00", "/" + "x" * 5000, "/tok%C3%A9n"])
def test_without_the_token_nothing_is_answered(path: str) -> None:
    answer = client().get(path or "/")
    assert (answer.status_code, "inside" in answer.text) == (403, False)
    assert "the complete address that glassloop ui printed" in answer.text


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(secrets, "compare_digest", lambda *pair: (asked.append(pair), False)[1])
    assert client().get("/guess/").status_code == 403
    assert asked == [(b"guess", b"token")]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:9000", "127.0.0.1"])
def test_the_names_of_this_machine_are_answered(host: str) -> None:
    assert client().get("/token/", headers={"host": host}).text == "inside"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:8000", "", "evil:127.0.0.1", "[::1]:8000"]
)
def test_another_name_that_leads_to_this_machine_is_refused(host: str) -> None:
    assert client().get("/token/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_can_only_be_read(method: str) -> None:
    assert client().request(method, "/token/").status_code == 405


def test_an_error_has_no_details(capsys: pytest.CaptureFixture[str]) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("secret \x1b[31m path")

    answer = client(broken).get("/token/")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert capsys.readouterr().err == "glassloop: a page could not be shown: ValueError: secret \\x1b[31m path\n"


def test_other_protocols_are_ignored() -> None:
    import asyncio

    async def unused() -> dict[str, str]:
        raise AssertionError

    assert asyncio.run(Guard(unused, "token")({"type": "websocket"}, unused, unused)) is None  # type: ignore[arg-type, func-returns-value]


def test_every_answer_is_secured() -> None:
    meta = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; connect-src 'self'">"""
    for answer, policy in ((plain_answer("no", 404), "default-src 'none'"), (page_answer(meta), "connect-src 'self'")):
        assert policy in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert {name: answer.headers[name] for name in guard.HEADERS} == guard.HEADERS
        assert "access-control-allow-origin" not in answer.headers


def test_the_parts_of_a_path_are_bytes() -> None:
    assert path_parts({"raw_path": b"/t/run/a%2Fb%FF/c?x=/y", "path": ""}) == [b"t", b"run", b"a/b\xff", b"c"]
    assert path_parts({"path": "/t/é"}) == [b"t", "é".encode()]
    assert path_parts({"path": ""}) == [b""]
