"""Whatever a client sends, the server answers with JSON and never with 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from families import tiny_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import make_service
from starlette.testclient import TestClient

from glassloop.serve.app import make_app
from glassloop.serve.limits import Limits

KNOWN = {200, 400, 404, 405, 413, 422}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["inputs", "query", "texts", "truncate", "raw_scores", "return_text", "parameters", "tokens", "top_k"])
texts = st.text(max_size=60) | st.sampled_from(["", "good", "[SEP]", "\x00", "é" * 50, "good " * 300, "😀"])
inputs = (
    texts | st.lists(texts | st.lists(texts, max_size=3), max_size=6) | st.fixed_dictionaries({"text": texts}) | json_values
)
bodies = st.dictionaries(names, inputs, max_size=4) | st.fixed_dictionaries({"inputs": inputs}) | json_values
paths = st.sampled_from(
    ["/predict", "/rerank", "/v1/predict", "/", "/models/model/predict", "/models/x/predict", "/info", "/x"]
)


@pytest.fixture(scope="module")
def client(tiny_tokenizer, tmp_path_factory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("fuzz") / "model"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    with ExitStack() as stack:
        service = make_service(stack, [folder], Limits(max_inputs=4, max_characters=1_000, max_payload=20_000))
        yield TestClient(make_app(service), base_url="http://127.0.0.1", raise_server_exceptions=True)


@given(path=paths, body=bodies, method=st.sampled_from(["POST"] * 6 + ["GET", "PUT", "DELETE"]))
@settings(max_examples=250, deadline=None, suppress_health_check=[*HealthCheck])
def test_any_json(client: TestClient, path: str, body: Any, method: str) -> None:
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    answer = client.request(method, path, content=content)
    assert answer.status_code in KNOWN
    assert method == "GET" or isinstance(answer.json(), dict | list)


@given(
    path=paths, content=st.binary(max_size=200), header=st.text(st.characters(max_codepoint=255, min_codepoint=32), max_size=30)
)
@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
def test_any_bytes(client: TestClient, path: str, content: bytes, header: str) -> None:
    headers = {"content-type": header.encode("latin-1"), "authorization": header.encode("latin-1")}
    assert client.post(path, content=content, headers=headers).status_code in KNOWN
