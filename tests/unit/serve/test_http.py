"""The routes: answers in the shapes of text-embeddings-inference and our own, limits, errors."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from glassloop import Predictor
from glassloop.base.network import hosts_of
from glassloop.serve.app import Service, make_app
from glassloop.serve.limits import Limits

pytestmark = pytest.mark.slow  # trains

TEXTS = ["a good film", "bad", "the story is very very good"]


@pytest.fixture(scope="module")
def predictor(text_run: Path) -> Predictor:
    return Predictor(text_run, device="cpu")


def scores_in(answer: list[dict[str, Any]]) -> dict[str, float]:
    return {one["label"]: one["score"] for one in answer}


def test_labels_with_scores_the_most_likely_first_of_a_model_by_its_name(
    client: TestClient, predictor: Predictor, service: Service
) -> None:
    wanted = predictor.predict(TEXTS)
    answer = client.post("/predict", json={"inputs": TEXTS[0]})
    assert answer.status_code == 200
    assert [*scores_in(answer.json())] == sorted(wanted[0].scores, key=lambda name: -wanted[0].scores[name])
    assert scores_in(answer.json()) == pytest.approx(wanted[0].scores, abs=1e-5)
    raw = client.post("/predict", json={"inputs": [[text] for text in TEXTS], "raw_scores": True}).json()
    for row, one in zip(raw, wanted, strict=True):
        assert scores_in(row) == pytest.approx(dict(zip(predictor.names, one.logits, strict=True)), abs=1e-5)
    hub = client.post("/", json={"inputs": "good", "parameters": {"top_k": 1}}).json()
    assert [len(row) for row in hub] == [1], "a list of lists, as the hub answers"
    own, *named, gone = (
        client.post(path, json={"inputs": TEXTS[0]})
        for path in ("/predict", *(f"/models/{one.name}/predict" for one in service.hosted), "/models/nobody/predict")
    )
    assert own.json() == named[0].json() != named[1].json()
    assert (gone.status_code, gone.json()["error_type"]) == (404, "NotFound")


def test_rerank(pair_client: TestClient, pair_run: Path) -> None:
    texts = ["good", "the film is bad", "very good"]
    predictor = Predictor(pair_run, device="cpu")
    positive = predictor.run.positive_label
    wanted = [answer.scores[positive] for answer in predictor.predict([("good film", text) for text in texts])]
    found = pair_client.post("/rerank", json={"query": "good film", "texts": texts, "return_text": True}).json()
    assert [one["index"] for one in found] == np.argsort(-np.array(wanted)).tolist()
    assert [one["text"] for one in found] == [texts[one["index"]] for one in found]
    assert [one["score"] for one in found] == pytest.approx(sorted(wanted, reverse=True), abs=1e-5)
    assert "text" not in pair_client.post("/rerank", json={"query": "q", "texts": texts}).json()[0]


def test_our_own_route_says_more(client: TestClient, predictor: Predictor) -> None:
    found = client.post("/v1/predict", json={"inputs": ["good " * 60, "bad"], "tokens": True}).json()
    long, short = found["predictions"]
    assert long["truncated"] == {"tokens": 38, "first": True, "second": False}
    assert (long["num_tokens"], short["truncated"]) == (24, None)
    assert short["tokens"] == ["[CLS]", "bad", "[SEP]"]
    wanted = predictor.predict("bad")[0]
    assert short["label"] == wanted.label
    assert short["probabilities"] == pytest.approx(wanted.scores, abs=1e-5)
    assert short["logits"] == pytest.approx(wanted.logits, abs=1e-5)


def test_a_long_text_that_may_not_be_truncated_and_texts_for_a_model_of_pairs(
    client: TestClient, pair_client: TestClient
) -> None:
    answer = client.post("/predict", json={"inputs": "good " * 60, "truncate": False})
    assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")
    assert answer.json()["error"] == "a text has 62 tokens, but the model takes 24; set truncate"
    found = pair_client.post("/predict", json={"inputs": "good"})
    assert found.status_code == 422
    assert found.json()["error"] == 'the model was trained on pairs of texts: ["first", "second"]'
    assert client.post("/predict", json={"inputs": ["a", "b"]}).json()["error"] == "the model was trained on single texts"
    assert client.post("/rerank", json={"query": "a", "texts": ["b"]}).status_code == 422


def test_a_function_to_apply(client: TestClient, predictor: Predictor) -> None:
    logits = np.array(predictor.predict(TEXTS[0])[0].logits)
    cooler = np.exp(logits / predictor.answering.temperature)
    wanted = {"none": logits, "sigmoid": cooler / (1 + cooler), "softmax": cooler / cooler.sum()}
    for given in [{"parameters": {"function_to_apply": "NAME"}}, {"function_to_apply": "NAME"}]:
        for name, scores in wanted.items():
            body = json.loads(json.dumps({"inputs": TEXTS[0], **given}).replace("NAME", name))
            found = scores_in(client.post("/predict", json=body).json())
            assert [found[label] for label in predictor.names] == pytest.approx(scores.tolist(), abs=1e-5)


def test_pages_of_other_sites_are_refused_unless_their_host_is_allowed(client: TestClient, service: Service) -> None:
    """With DNS rebinding, a site's name leads to this machine; without it, the browser names the site as the origin."""
    for header in [{"host": "rebound.example"}, {"host": ""}, {"origin": "https://evil.example"}, {"origin": "null"}]:
        status = 400 if "host" in header else 403
        answers = [client.get(path, headers=header) for path in ("/", "/info", "/metrics", "/openapi.json")]
        asked = {"json": {"inputs": "good"}, "headers": header}
        answers += [client.post(path, **asked) for path in ("/", "/predict", "/v1/predict", "/rerank")]
        assert [answer.status_code for answer in answers] == [status] * 8
        assert all("--allowed_hosts" in answer.json()["error"] for answer in answers)
        assert [client.get(path, headers=header).status_code for path in ("/health", "/ready")] == [200, 200], "probes are open"
    hosts = hosts_of("127.0.0.1", "127.0.0.1", ["models.example.com"])
    named = Service(service.hosted, service.batcher, Limits(), hosts=hosts)
    client = TestClient(make_app(named), base_url="https://models.example.com")
    assert client.get("/info").status_code == 200
    assert client.get("/info", headers={"origin": "https://models.example.com"}).status_code == 200
    assert client.get("/info", headers={"host": "example.com"}).status_code == 400


def test_what_is_refused_and_a_bug_is_no_traceback(client: TestClient, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for method, path, body, status in [
        ("POST", "/predict", b"", 400),
        ("POST", "/predict", b"{", 400),
        ("POST", "/predict", b"[]", 422),
        ("GET", "/predict", b"", 405),
        ("GET", "/nothing", b"", 404),
        ("POST", "/predict", b'{"inputs": "' + b"a" * 2_000_001 + b'"}', 413),
        ("POST", "/predict", b'{"inputs": "' + b"a" * 1_000_001 + b'"}', 413),
    ]:
        found = client.request(method, path, content=body)
        assert found.status_code == status
        assert {*found.json()} == {"error", "error_type"}

    def fail(*_: Any) -> None:
        raise ValueError("secret text")

    monkeypatch.setattr("glassloop.predict.answers.Answering.shares", fail)
    found = client.post("/predict", json={"inputs": "secret text"})
    assert found.status_code == 424
    assert found.json() == {"error": "the request could not be answered", "error_type": "Backend"}
    assert capsys.readouterr().err == "glassloop: serve: /predict failed: ValueError\n"


def test_too_many_requests_and_while_it_shuts_down(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "active", service.limits.max_requests)
    found = client.post("/predict", json={"inputs": "good"})
    assert found.status_code == 429
    assert int(found.headers["retry-after"]) >= 1
    assert found.json()["error_type"] == "Overloaded"
    monkeypatch.undo()
    assert client.get("/ready").status_code == 200
    monkeypatch.setattr(service, "draining", True)
    for found in (client.post("/predict", json={"inputs": "good"}), client.get("/ready")):
        assert (found.status_code, found.json()["error_type"]) == (503, "Unhealthy")
    assert client.get("/health").status_code == 200


def test_an_api_key(service: Service) -> None:
    guarded = Service(service.hosted, service.batcher, Limits(), api_key="key-é")
    client = TestClient(make_app(guarded), base_url="http://localhost")
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic key"}):
        for found in (client.post("/predict", json={"inputs": "good"}, headers=given), client.get("/metrics", headers=given)):
            assert found.status_code == 401
            assert found.headers["www-authenticate"] == "Bearer"
    right = {"authorization": "Bearer key-é".encode()}
    assert client.post("/predict", json={"inputs": "good"}, headers=right).status_code == 200
    assert [client.get(path).status_code for path in ("/health", "/ready", "/")] == [200, 200, 200]


def test_slow_bodies_keep_nobody_else_from_an_answer(service: Service) -> None:
    """More bodies than allowed are begun and never end; a whole request is answered, and the oldest bodies are cut off."""
    limited = Service(service.hosted, service.batcher, Limits(max_requests=3))
    asked = with_slow_bodies(make_app(limited), 4, json.dumps({"inputs": "good"}).encode())
    with ThreadPoolExecutor(1) as pool:  # the browser of other tests leaves a running event loop in this thread
        answers = pool.submit(asyncio.run, asked).result()
    assert answers == [408, 200, 408, None, None], "the oldest, the whole one, the next oldest, and two that still wait"
    assert (limited.active, len(limited.reading)) == (0, 0)


async def with_slow_bodies(app: Any, number: int, body: bytes) -> list[int | None]:
    """Begin some requests without ending them, then ask a whole one. Return the status of the first, the whole, the rest."""
    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": headers, "query_string": b""}
    statuses: dict[int, int] = {}

    async def ask(place: int, parts: list[bytes]) -> None:
        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": place < number}
            return await asyncio.Event().wait()  # type: ignore[return-value]

        async def send(message: dict[str, Any]) -> None:
            statuses.setdefault(place, message.get("status", 0))

        await app(dict(scope), receive, send)

    slow = []
    for place in range(number):
        slow.append(asyncio.create_task(ask(place, [b"{"])))
        await asyncio.sleep(0)
    await ask(number, [body])
    await slow[0]
    waiting = [statuses.get(place) for place in range(1, number)]
    for task in slow[1:]:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    return [statuses.get(0), statuses.get(number), *waiting]


def test_info_and_metrics_name_no_path_of_this_machine(client: TestClient, service: Service, text_run: Path) -> None:
    info = client.get("/info").json()
    assert info["model_type"]["classifier"]["id2label"] == {"0": "pos, really", "1": "neg"}
    assert (info["max_input_length"], info["max_client_batch_size"], info["pairs"]) == (24, 32, False)
    assert info["models"] == [hosted.name for hosted in service.hosted]
    client.post("/predict", json={"inputs": "good"})
    text = client.get("/metrics").text
    assert 'glassloop_requests_total{route="/predict",status="200"}' in text
    assert "glassloop_queue_tokens 0" in text
    hosted = service.hosted[0]
    assert hosted.predictor.run is not None
    assert Path(hosted.predictor.run.model.name).is_absolute(), "the run was trained from a local folder"
    for path in ("/info", "/openapi.json", "/metrics", "/"):
        assert str(text_run.parent) not in client.get(path).text
        assert hosted.predictor.run.model.name not in client.get(path).text
    assert client.get("/info").json()["trained_from"] == Path(hosted.predictor.run.model.name).name
