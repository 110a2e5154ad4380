"""The server people write themselves: a starlette application that calls transformers' pipeline in a thread.

python benchmarks/pipeline_server.py MODEL PORT
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from transformers import pipeline

classify = pipeline("text-classification", model=sys.argv[1], device="cpu", top_k=None)


async def predict(request: Request) -> JSONResponse:
    """Answer as /predict of text-embeddings-inference does for one pair."""
    first, second = (await request.json())["inputs"]
    found = await run_in_threadpool(classify, {"text": first, "text_pair": second}, truncation=True, max_length=128)
    return JSONResponse(found)


async def ready(request: Request) -> JSONResponse:
    """Answer that the model is loaded."""
    return JSONResponse({})


if __name__ == "__main__":
    routes = [Route("/predict", predict, methods=["POST"]), Route("/ready", ready)]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[2]), log_level="critical")
