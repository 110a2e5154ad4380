"""The shapes of requests and what is refused; the documents of the server, its limits, and its port."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import fields

import pytest

from glassloop.base.errors import ResourceError
from glassloop.serve.app import PAGE, POLICY, openapi_document, own_question, parsed, predict_question, rerank_question
from glassloop.serve.limits import Limits, Refused, draining, empty, invalid, overloaded, too_large
from glassloop.serve.server import bound_socket

LIMITS = Limits(max_inputs=4, max_characters=50)


def test_the_shapes_of_predict_rerank_and_our_own_route_and_parameters_of_the_hub() -> None:
    for inputs, columns, single in [
        ("a", [["a"]], True),
        (["a"], [["a"]], True),
        (["a", "b"], [["a"], ["b"]], True),
        ([["a"], ["b"]], [["a", "b"]], False),
        ([["a", "b"], ["c", "d"]], [["a", "c"], ["b", "d"]], False),
        ([["a", "b"]], [["a"], ["b"]], False),
        ([["a"]] * 4, [["a"] * 4], False),  # as much as the limits allow
        ("x" * 50, [["x" * 50]], True),
    ]:
        asked = predict_question({"inputs": inputs, "parameters": []}, LIMITS)
        assert (asked.columns, asked.single, asked.apply, asked.truncate) == (columns, single, None, True)
    for more, apply, top in [
        ({"parameters": {"function_to_apply": "none", "top_k": 1}}, "none", 1),
        ({"function_to_apply": "sigmoid", "top_k": 2}, "sigmoid", 2),
        ({"raw_scores": True}, "none", None),
    ]:
        asked = predict_question({"inputs": "a", **more}, LIMITS)
        assert (asked.apply, asked.top) == (apply, top)
    asked = rerank_question({"query": "q", "texts": ["a", "b"], "return_text": True, "raw_scores": True}, LIMITS)
    assert (asked.columns, asked.texts, asked.apply) == ([["q", "q"], ["a", "b"]], True, "none")
    for inputs, columns in [
        ("a", [["a"]]),
        ({"text": "a", "text_pair": "b"}, [["a"], ["b"]]),
        (["a", "b"], [["a", "b"]]),
        ([{"text": "a"}, "b", ["c"]], [["a", "b", "c"]]),
        ([["a", "b"], {"text": "c", "text_pair": "d"}], [["a", "c"], ["b", "d"]]),
    ]:
        assert own_question({"inputs": inputs, "tokens": True}, LIMITS).columns == columns


def test_what_is_refused_without_repeating_a_text() -> None:
    for read, body, status in [
        (predict_question, {}, 422),
        (predict_question, {"inputs": []}, 400),
        (predict_question, {"inputs": ""}, 400),
        (predict_question, {"inputs": 3}, 422),
        (predict_question, {"inputs": None}, 422),
        (predict_question, {"inputs": ["secret", 3]}, 422),
        (predict_question, {"inputs": ["secret", "b", "c"]}, 422),
        (predict_question, {"inputs": [["secret"], ["secret", "b"]]}, 422),
        (predict_question, {"inputs": [["secret"], [3]]}, 422),
        (predict_question, {"inputs": [["secret"]] * 5}, 413),
        (predict_question, {"inputs": "secret" * 9}, 413),
        (predict_question, {"inputs": "secret\ud800"}, 422),
        (predict_question, {"inputs": "secret", "truncate": "yes"}, 422),
        (predict_question, {"inputs": "secret", "parameters": [1]}, 422),
        (predict_question, {"inputs": "secret", "parameters": {"top_k": True}}, 422),
        (predict_question, {"inputs": "secret", "top_k": 0}, 422),
        (predict_question, {"inputs": "secret", "parameters": {"function_to_apply": "x"}}, 422),
        (predict_question, {"inputs": "secret", "function_to_apply": ["softmax"]}, 422),
        (predict_question, {"inputs": "secret", "function_to_apply": "softmax", "raw_scores": True}, 422),
        (rerank_question, {"query": "q", "texts": ["a"], "function_to_apply": "softmax"}, 422),
        (rerank_question, {"query": "q", "texts": ["a"], "parameters": {"function_to_apply": "none"}}, 422),
        (rerank_question, {"texts": ["secret"]}, 422),
        (rerank_question, {"query": "secret"}, 422),
        (rerank_question, {"query": "secret", "texts": []}, 400),
        (rerank_question, {"query": "secret", "texts": [1]}, 422),
        (own_question, {"inputs": "secret", "input": "b"}, 422),
        (own_question, {"inputs": {"text_pair": "secret"}}, 422),
        (own_question, {"inputs": {"text": 3}}, 422),
        (own_question, {"inputs": [[[]]]}, 422),
        *((None, body, 400) for body in (b"", b" ", b"{", b"\xff", b"[" * 200_000)),
        *((None, body, 422) for body in (b"[]", b"3")),
    ]:
        with pytest.raises(Refused) as caught:
            parsed(body) if read is None else read(body, LIMITS)
        assert caught.value.status == status
        assert "secret" not in caught.value.message


def test_every_route_is_described_and_the_policy_allows_the_script_and_the_style_of_the_page_only() -> None:
    document = json.loads(json.dumps(openapi_document(Limits(max_inputs=7), ["a", "b"])))
    paths = document["paths"]
    routes = {"/predict", "/rerank", "/v1/predict", "/models/{model}/predict", "/info", "/health", "/ready", "/metrics"}
    assert routes <= {*paths}
    statuses = {"200", "400", "401", "403", "408", "413", "422", "424", "429", "503"}
    assert {*paths["/predict"]["post"]["responses"]} == statuses
    schema = paths["/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["texts"]["maxItems"] == 7
    assert paths["/models/{model}/predict"]["parameters"][0]["schema"]["enum"] == ["a", "b"]
    # tests/web uses the page in a browser.
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in POLICY
    assert "unsafe" not in POLICY
    assert not {word for word in ("http", "innerHTML") if word in PAGE}


def test_every_refusal_has_the_status_and_type_of_text_embeddings_inference() -> None:
    refusals = [empty("a"), too_large("b"), invalid("c"), overloaded("d", 3.6), overloaded("d", 0.0), draining()]
    assert [(one.status, one.kind, one.retry_after) for one in refusals] == [
        (400, "Empty", None),
        (413, "Validation", None),
        (422, "Validation", None),
        (429, "Overloaded", 4),
        (429, "Overloaded", 1),
        (503, "Unhealthy", 1),
    ]


def test_a_limit_is_positive_and_addresses_that_cannot_be_are_named(says) -> None:
    for value in [0, -1, float("nan"), float("inf")]:
        for name in [entry.name for entry in fields(Limits)]:
            with says(f"{name} is {value}, not a positive number", f"set {name} to a positive number, or omit it"):
                Limits(**{name: value})
    with says("port is 70000, not a number from 0 to 65535"):
        bound_socket("127.0.0.1", 70_000)
    with says("there is no host no.such.host.invalid"):
        bound_socket("no.such.host.invalid", 0)
    with bound_socket("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with says(f"port {port} of 127.0.0.1 is in use", "choose another one with --port", ResourceError):
            bound_socket("127.0.0.1", port)
