"""The OpenAPI document names every route."""

from __future__ import annotations

import json

from glassloop.serve.app import openapi_document
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
