"""The shapes of requests, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glassloop.serve.app import own_question, parsed, predict_question, rerank_question
from glassloop.serve.limits import Limits, Refused

LIMITS = Limits(max_inputs=4, max_characters=50)


@pytest.mark.parametrize(
    ("inputs", "columns", "single"),
    [
        ("a", [["a"]], True),
        (["a"], [["a"]], True),
        (["a", "b"], [["a"], ["b"]], True),
        ([["a"], ["b"]], [["a", "b"]], False),
        ([["a", "b"], ["c", "d"]], [["a", "c"], ["b", "d"]], False),
        ([["a", "b"]], [["a"], ["b"]], False),
    ],
)
def test_the_shapes_of_predict(inputs: Any, columns: list[list[str]], single: bool) -> None:
    found = predict_question({"inputs": inputs}, LIMITS)
    assert (found.columns, found.single, found.apply, found.truncate) == (columns, single, None, True)


def test_parameters_of_the_hub() -> None:
    found = predict_question({"inputs": "a", "parameters": {"function_to_apply": "none", "top_k": 1}}, LIMITS)
    assert (found.apply, found.top) == ("none", 1)
    found = predict_question({"inputs": "a", "function_to_apply": "sigmoid", "top_k": 2}, LIMITS)
    assert (found.apply, found.top) == ("sigmoid", 2)
    assert predict_question({"inputs": "a", "raw_scores": True}, LIMITS).apply == "none"


def test_rerank() -> None:
    found = rerank_question({"query": "q", "texts": ["a", "b"], "return_text": True, "raw_scores": True}, LIMITS)
    assert (found.columns, found.texts, found.apply) == ([["q", "q"], ["a", "b"]], True, "none")


@pytest.mark.parametrize(
    ("inputs", "columns"),
    [
        ("a", [["a"]]),
        ({"text": "a", "text_pair": "b"}, [["a"], ["b"]]),
        (["a", "b"], [["a", "b"]]),
        ([{"text": "a"}, "b", ["c"]], [["a", "b", "c"]]),
        ([["a", "b"], {"text": "c", "text_pair": "d"}], [["a", "c"], ["b", "d"]]),
    ],
)
def test_the_shapes_of_our_own_route(inputs: Any, columns: list[list[str]]) -> None:
    assert own_question({"inputs": inputs, "tokens": True}, LIMITS).columns == columns


def test_as_much_as_the_limits_allow() -> None:
    assert predict_question({"inputs": [["a"]] * 4}, LIMITS).columns == [["a"] * 4]
    assert predict_question({"inputs": "x" * 50}, LIMITS).columns == [["x" * 50]]


@pytest.mark.parametrize(
    ("read", "given", "status"),
    [
        (predict_question, {}, 422),
        (predict_question, {"inputs": []}, 400),
        (predict_question, {"inputs": ""}, 400),
        (predict_question, {"inputs": 3}, 422),
        (predict_question, {"inputs": None}, 422),
        (predict_question, {"inputs": ["a", "b", "c"]}, 422),
        (predict_question, {"inputs": [["a"], ["a", "b"]]}, 422),
        (predict_question, {"inputs": [["a"], [3]]}, 422),
        (predict_question, {"inputs": [["a"]] * 5}, 413),
        (predict_question, {"inputs": "x" * 51}, 413),
        (predict_question, {"inputs": "\ud800"}, 422),
        (predict_question, {"inputs": "a", "truncate": "yes"}, 422),
        (predict_question, {"inputs": "a", "parameters": []}, 200),
        (predict_question, {"inputs": "a", "parameters": [1]}, 422),
        (predict_question, {"inputs": "a", "parameters": {"top_k": True}}, 422),
        (predict_question, {"inputs": "a", "top_k": 0}, 422),
        (predict_question, {"inputs": "a", "parameters": {"function_to_apply": "x"}}, 422),
        (predict_question, {"inputs": "a", "function_to_apply": ["softmax"]}, 422),
        (predict_question, {"inputs": "a", "function_to_apply": "softmax", "raw_scores": True}, 422),
        (rerank_question, {"query": "q", "texts": ["a"], "function_to_apply": "softmax"}, 422),
        (rerank_question, {"query": "q", "texts": ["a"], "parameters": {"function_to_apply": "none"}}, 422),
        (rerank_question, {"texts": ["a"]}, 422),
        (rerank_question, {"query": "q"}, 422),
        (rerank_question, {"query": "q", "texts": []}, 400),
        (rerank_question, {"query": "q", "texts": [1]}, 422),
        (own_question, {"inputs": "a", "input": "b"}, 422),
        (own_question, {"inputs": {"text_pair": "b"}}, 422),
        (own_question, {"inputs": {"text": 3}}, 422),
        (own_question, {"inputs": [[[]]]}, 422),
    ],
)
def test_what_is_refused(read: Any, given: dict[str, Any], status: int) -> None:
    if status == 200:
        assert read(given, LIMITS).columns == [["a"]]
        return
    with pytest.raises(Refused) as caught:
        read(given, LIMITS)
    assert caught.value.status == status


@pytest.mark.parametrize(("body", "status"), [(b"", 400), (b" ", 400), (b"{", 400), (b"\xff", 400), (b"[]", 422), (b"3", 422)])
def test_what_is_no_object(body: bytes, status: int) -> None:
    with pytest.raises(Refused) as caught:
        parsed(body)
    assert caught.value.status == status


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(Refused) as caught:
        parsed(b"[" * 200_000)
    assert caught.value.status == 400


def test_a_refusal_never_repeats_a_text() -> None:
    for inputs in (["secret", 3], [["secret"], ["secret", "b"]], "secret" * 20):
        with pytest.raises(Refused) as caught:
            predict_question(json.loads(json.dumps({"inputs": inputs})), LIMITS)
        assert "secret" not in caught.value.message
