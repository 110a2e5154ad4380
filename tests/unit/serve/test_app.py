"""The OpenAPI document names every route."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode

from glassloop.serve.app import PAGE, POLICY, openapi_document
from glassloop.serve.limits import Limits


def test_every_route_is_described() -> None:
    found = json.loads(json.dumps(openapi_document(Limits(max_inputs=7), ["a", "b"])))
    assert {"/predict", "/rerank", "/v1/predict", "/models/{model}/predict", "/info", "/health", "/ready", "/metrics"} <= {
        *found["paths"]
    }
    refused = {*found["paths"]["/predict"]["post"]["responses"]}
    assert refused == {"200", "400", "401", "403", "408", "413", "422", "424", "429", "503"}
    texts = found["paths"]["/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["texts"]
    assert texts["maxItems"] == 7
    assert found["paths"]["/models/{model}/predict"]["parameters"][0]["schema"]["enum"] == ["a", "b"]


# --- The page allows its own script only. tests/web uses it in a browser.


def test_the_policy_allows_the_script_and_the_style_of_the_page_only() -> None:
    for tag in ("script", "style"):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in POLICY
    assert "unsafe" not in POLICY
    assert "http" not in PAGE
    assert "innerHTML" not in PAGE
