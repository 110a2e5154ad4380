"""Flat storage: weights become views, neighbours form one matrix, and gradients keep their memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import FAST, tiny_model, weights_hash
from packs import inputs_of, storage_of, token_rows, weighed

from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.storage import ALIGNED, FlatStorage, ReducedVocabulary, choose_vocabulary, used_ids
from glassloop.backends.fast.training_model import ReplacedLayers
from glassloop.base.errors import SettingsError
from glassloop.training.optimizer import decay_groups


def spared_by(model: Any) -> set[int]:
    return {id(weight) for weight in decay_groups(model, 0.01)[1]["params"]}


def stored(model: Any, **options: Any) -> FlatStorage:
    return storage_of(model, spared_by(model), **options)


@pytest.mark.parametrize("family", FAST)
def test_every_weight_is_a_view_has_its_value_and_overlaps_no_other_and_decay_has_its_own_regions(family: str) -> None:
    model = tiny_model(family)
    before, spared = weights_hash(model), spared_by(model)
    storage = stored(model)
    assert weights_hash(model) == before
    assert {id(weight) for weight in storage.parameters} == {id(weight) for weight in model.parameters()}
    block = storage.weights.untyped_storage().data_ptr()
    assert {weight.untyped_storage().data_ptr() for weight in model.parameters()} == {block}
    storage.weights.add_(1.0)
    assert weights_hash(model) != before
    spans = sorted((start, start + shape.numel()) for start, shape in storage.locations.values())
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert spans[-1][1] <= len(storage.weights)
    for weight in model.parameters():
        start = storage.locations[id(weight)][0]
        (region,) = [region for region in storage.regions if region.start <= start < region.stop]
        assert region.decays == (id(weight) not in spared)
        assert region.start % ALIGNED == 0


def test_neighbours_are_one_matrix() -> None:
    model = tiny_model()
    storage, layer = stored(model), layers_of(model)[1]
    parts = [layer.query.weight, layer.key.weight, layer.value.weight]
    assert torch.equal(storage.matmul_weight(*parts), torch.cat([part.detach() for part in parts]))
    assert torch.equal(storage.matmul_weight(*parts[1:]), torch.cat([part.detach() for part in parts[1:]]))
    assert storage.matmul_weight(*parts).data_ptr() == parts[0].data_ptr()
    biases = [layer.query.bias, layer.key.bias, layer.value.bias]
    assert torch.equal(storage.matmul_bias(*biases), torch.cat([part.detach() for part in biases]))
    with pytest.raises(ValueError, match="not adjacent"):
        storage.matmul_weight(layer.query.weight, layer.value.weight)


def test_gradients_are_added_forgotten_and_adopted_where_they_were_replaced() -> None:
    model = tiny_model()
    storage, layer = stored(model), layers_of(model)[0]
    bias, matrix = layer.out.bias, layer.out.weight
    left, right = torch.randn(5, 32), torch.randn(5, 32)
    for number in (1, 2):
        storage.add(bias, torch.ones(32))
        storage.add_matmul_gradient([matrix], left, right)
        assert torch.equal(bias.grad, torch.full((32,), float(number)))
        torch.testing.assert_close(matrix.grad, number * left.t() @ right)
    storage.clear_gradients()
    assert all(weight.grad is None for weight in model.parameters())
    storage.add(bias, torch.full((32,), 7.0))
    assert torch.equal(bias.grad, torch.full((32,), 7.0)), "what was there before the step is written over"
    bias.grad = torch.full((32,), 3.0)
    storage.adopt_gradients()
    assert torch.equal(storage.gradient(bias), torch.full((32,), 3.0))
    bias.grad = None
    with pytest.raises(SettingsError, match="on_gradients set a gradient to None"):
        storage.adopt_gradients()


def test_memory_stays_where_it_is_between_steps() -> None:
    model = tiny_model()
    storage = stored(model)
    bias, head = layers_of(model)[0].out.bias, model.classifier.weight
    head.register_post_accumulate_grad_hook(storage.adopt_gradient)
    seen = []
    for _ in range(3):
        storage.add(bias, torch.ones(32))
        head.sum().backward()
        assert torch.equal(head.grad, torch.ones_like(head))
        head.sum().backward()
        assert torch.equal(head.grad, torch.full_like(head, 2.0)), "a second batch of the same step is added"
        seen.append((bias.grad.data_ptr(), head.grad.data_ptr(), bias.data_ptr(), head.data_ptr()))
        storage.clear_gradients()
    assert len({*seen}) == 1


def test_only_used_rows_of_a_table_are_stored() -> None:
    model = tiny_model()
    words = model.get_input_embeddings().weight
    used = np.array([0, 3, 7])
    before, place = words.detach().clone(), words.data_ptr()
    storage = stored(model, tables={id(words): ReducedVocabulary(used, len(words), torch.device("cpu"))})
    assert torch.equal(storage.view(storage.weights, id(words)), before[used])
    assert words.data_ptr() == place, "the module keeps its full table"
    assert storage.gradient(words).shape == (3, 32)
    storage.add(words, torch.ones(3, 32))
    assert words.grad is None, "a gradient of another shape is not shown"


def test_low_precision_has_copies_of_matrices_and_biases_and_gradients_only_where_asked_for() -> None:
    model = tiny_model()
    storage, layer = stored(model, matmul_dtype=torch.bfloat16), layers_of(model)[0]
    assert storage.matmul_weight(layer.up.weight).dtype == torch.bfloat16
    with torch.no_grad():
        layer.up.weight.fill_(3.0)
        layer.query.bias.fill_(5.0)
    assert storage.matmul_weight(layer.up.weight).max() < 1
    storage.refresh_low_copies()
    assert torch.equal(storage.matmul_weight(layer.up.weight), torch.full((64, 32), 3.0, dtype=torch.bfloat16))
    assert torch.equal(storage.matmul_bias(layer.query.bias), torch.full((32,), 5.0, dtype=torch.bfloat16))
    assert layer.up.weight.dtype == torch.float32
    for asked, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        model = tiny_model()
        storage = stored(model, matmul_dtype=torch.bfloat16, low_precision_gradients=asked)
        weight, ones = layers_of(model)[0].out.weight, torch.ones(5, 32, dtype=torch.bfloat16)
        for _ in range(2):
            storage.add_matmul_gradient([weight], ones, ones)
        assert storage.matrix_gradients.dtype == dtype
        assert torch.equal(storage.gradient(weight).float(), torch.full((32, 32), 10.0))


def test_gradients_of_the_user_are_kept_if_nothing_was_trained() -> None:
    model = tiny_model()
    model.classifier.weight.grad = torch.ones_like(model.classifier.weight)
    FlatStorage(model, layers_of(model), set(), embedding_vectors=embeddings_of(model).vectors).release()
    assert torch.equal(model.classifier.weight.grad, torch.ones(2, 32))


# --- A smaller table of word vectors: which rows are used, and that unused rows stay bit-identical.
CPU = torch.device("cpu")
USED = np.array([0, 2, 5])


def test_select_and_expand_are_inverse() -> None:
    vocabulary = ReducedVocabulary(USED, 7, CPU)
    table = torch.randn(7, 3)
    small = vocabulary.select(table)
    assert torch.equal(small, table[[0, 2, 5]])
    assert vocabulary.new_ids.tolist() == [0, -1, 1, -1, -1, 2, -1]
    full = vocabulary.expand(small)
    assert torch.equal(full[[0, 2, 5]], small)
    assert full[[1, 3, 4, 6]].abs().sum() == 0


def test_used_ids_of_all_data_sets_and_the_padding_token_and_one_without_a_vector_is_refused() -> None:
    first = Dataset.from_dict({"input_ids": [[5, 3], [5]]})
    second = [{"input_ids": [9]}, {"input_ids": [3, 8]}]
    assert used_ids([first, second], 12, padding=1).tolist() == [1, 3, 5, 8, 9]
    assert used_ids([first.select([1])], 12, padding=0).tolist() == [0, 5], "of a selection only what it holds"
    assert used_ids([first.select([1, 0]).select([1])], 12, padding=0).tolist() == [0, 3, 5]
    rows = Dataset.from_dict({"input_ids": [[1]] * 10_000 + [[4]]})
    assert used_ids([rows], 6, padding=0).tolist() == [0, 1, 4], "rows beyond the first ten thousand count"
    for token in (12, -1):
        rows = Dataset.from_dict({"input_ids": [[3, 5], [token, 4]]})
        for source in (rows, rows.to_list()):
            with pytest.raises(SettingsError, match=f"a row has the token id {token}, but .* the model has only 12 tokens"):
                used_ids([source], 12, padding=0)


def test_a_smaller_table_only_where_it_is_exact_and_worth_it() -> None:
    """Weight decay changes every row, with or without a gradient."""
    model = tiny_model()
    size = model.get_input_embeddings().num_embeddings
    for share, decay, smaller in ((0.3, 0.0, True), (0.9, 0.0, True), (0.95, 0.0, False), (0.3, 0.01, False)):
        rows = [{"input_ids": [*range(int(size * share))]}]
        assert (choose_vocabulary(model, [rows], decay) is not None) == smaller, (share, decay)


def test_training_leaves_unused_rows_as_they_are_bit_for_bit() -> None:
    model, rows = tiny_model(), token_rows()
    table = model.get_input_embeddings().weight
    before = table.detach().clone()
    used = np.unique(np.concatenate([*rows, [0]]))
    vocabulary = ReducedVocabulary(used, len(table), CPU)
    savings = ReplacedLayers(model, vocabulary=vocabulary)
    savings.open_for_training()
    optimizer = FlatAdamW(decay_groups(model, 0.0), savings.storage, lr=0.01)
    for _ in range(3):
        weighed(model(**inputs_of(model, rows, vocabulary=vocabulary.new_ids.numpy())).logits).backward()
        optimizer.step()
        optimizer.zero_grad()
    savings.remove()
    changed = (table != before).any(1).nonzero().flatten().tolist()
    assert changed == used[1:].tolist(), "all used rows but padding, and no other"
