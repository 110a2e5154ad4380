"""Embed rows, or a sample of bounded size, with the pretrained encoder, and find the nearest rows of each."""

from __future__ import annotations

import numpy as np
import torch

from glassloop.backends.choose import choose_backend
from glassloop.base.errors import DataError, ModelError
from glassloop.base.output import LOADING, advance, stage
from glassloop.base.records import collection_paused
from glassloop.data.batches import PaddingCollator
from glassloop.data.encoding import encode, encode_texts
from glassloop.data.interfaces import Tokenizer
from glassloop.diagnosis.rows import Neighbors, Sample, Survey
from glassloop.models.interface import length_limit
from glassloop.models.linear import refuse_infinite
from glassloop.models.loading import declared_by, load_config, load_model, load_tokenizer
from glassloop.models.pooled import frozen_copy, reads_tokens
from glassloop.predict.baselines import FrozenEncoder, baseline_pooling, drawn_rows, embedding_backend
from glassloop.scores.metrics import Array
from glassloop.settings.training import TrainingArguments

# Rows and tokens of the sample: about three minutes of two CPU cores, and less of a GPU.
MOST_ROWS = {"cpu": 20_000, "cuda": 100_000}
MOST_TOKENS = {"cpu": 1_200_000, "cuda": 12_000_000}
NEAREST = 11


def sampled(survey: Survey, model: str, max_length: int | None, device: str, most_rows: int | None) -> Sample:
    """Embed all rows, or as many at random as a machine embeds in minutes.

    Raises:
        DataError: An embedding is not finite.
        ModelError: The encoder does not give a vector for each token.
    """
    examples, backend = survey.examples, choose_backend(TrainingArguments(device=device))
    with stage(LOADING), collection_paused():
        tokenizer, config = load_tokenizer(model), load_config(model)
        network = load_model(model, labels=examples.labels, task=examples.task, new_head=True, seed=0).to(backend.device)
    if not reads_tokens(network.base_model):
        problem = f"{model}: a {config.model_type} encoder does not give one vector for each token"
        raise ModelError(problem, "use another model")
    pooling = baseline_pooling(declared_by(model)[0], pairs=survey.is_pairs)
    limit = length_limit(examples, tokenizer, config, max_length)
    encoder = FrozenEncoder(frozen_copy(network, pooling), PaddingCollator(tokenizer), embedding_backend(backend))
    encoded = encode(examples, tokenizer, limit.max_length, towers=pooling.towers)
    lengths = np.concatenate([encoded[name].lengths for name in survey.names])
    kind = "cuda" if backend.device.type == "cuda" else "cpu"
    rows = drawn_rows(lengths, most_rows or MOST_ROWS[kind], 2**62 if most_rows else MOST_TOKENS[kind])
    vectors: list[Array] = []
    for place, name in enumerate(survey.names):
        places = survey.places[rows[survey.splits[rows] == place]]
        if len(places):
            # Without labels, so that the vectors are in the cache after a label has changed.
            tokens = [column for column in encoded[name].rows.column_names if column != "labels"]
            vectors.append(encoder.vectors(encoded[name].rows.select_columns(tokens), places)[0])
            refuse_infinite(vectors[-1], survey.numbers[rows[survey.splits[rows] == place]] - 1, name)
    if not vectors:
        raise DataError("there are no rows to embed", "add rows")
    joined = np.concatenate(vectors).reshape(len(rows), survey.keys.shape[1], -1)
    joined = joined / np.maximum(np.linalg.norm(joined, axis=2, keepdims=True), 1e-12)
    texts = survey.texts(rows)
    cut = cut_tokens(texts, lengths[rows], tokenizer, limit.max_length, towers=pooling.towers)
    return Sample(survey, rows, texts, lengths[rows], cut, limit.max_length, joined.astype(np.float32), pooling, model)


def cut_tokens(texts: list[list[str]], lengths: Array, tokenizer: Tokenizer, max_length: int, *, towers: bool) -> Array:
    """Return how many tokens of each row are cut. Only rows of full length are tokenized again."""
    cut = np.zeros(len(lengths), dtype=np.int64)
    full = np.flatnonzero(lengths >= max_length)
    if len(full):
        columns = [[column[row] for row in full.tolist()] for column in texts]
        encoded = encode_texts(tokenizer, columns, max_length, towers=towers)
        cut[full] = [row.cut.num_tokens for row in encoded.rows]
    return cut


def neighbors_of(vectors: Array, device: str = "cpu", nearest: int = NEAREST) -> Neighbors:
    """Return the rows with the most similar vectors: of pairs, by the mean of both similarities, in the better order."""
    number, texts, width = vectors.shape
    flat = torch.from_numpy(vectors.reshape(number, texts * width) / texts**0.5).to(device)
    turned = torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1]).reshape(number, texts * width) / texts**0.5).to(device)
    most = min(nearest, number - 1)
    found, cosines, swapped = [], [], []
    for start in range(0, number, 1000):
        similar = flat[start : start + 1000] @ flat.T
        if texts == 2:
            other = flat[start : start + 1000] @ turned.T
            is_swapped = other > similar + 1e-6
            similar = torch.maximum(similar, other)
        places = torch.arange(start, start + len(similar), device=similar.device)
        similar[torch.arange(len(similar)), places] = -2
        best = similar.topk(most, dim=1)
        found.append(best.indices.cpu().numpy())
        cosines.append(best.values.cpu().numpy())
        swapped.append(
            is_swapped.gather(1, best.indices).cpu().numpy() if texts == 2 else np.zeros(found[-1].shape, dtype=bool)
        )
        advance(len(similar))
    return Neighbors(*(np.concatenate(part) for part in (found, cosines, swapped)))
