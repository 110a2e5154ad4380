"""The server people write themselves: a starlette application that calls transformers' pipeline in a thread.

python benchmarks/pipeline_server.py MODEL PORT [DEVICE]
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

DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
classify = pipeline("text-classification", model=sys.argv[1], device=DEVICE, top_k=None)


async def predict(request: Request) -> JSONResponse:
    """Answer as /predict of text-embeddings-inference does for one pair, or for a list of pairs."""
    given = (await request.json())["inputs"]
    pairs = [given] if isinstance(given[0], str) else given
    texts = [{"text": first, "text_pair": second} for first, second in pairs]
    found = await run_in_threadpool(classify, texts, batch_size=len(texts), truncation=True, max_length=128)
    return JSONResponse(found)


async def ready(request: Request) -> JSONResponse:
    """Answer that the model is loaded."""
    return JSONResponse({})


if __name__ == "__main__":
    routes = [Route("/predict", predict, methods=["POST"]), Route("/ready", ready)]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[2]), log_level="critical")
