"""A smaller table of word vectors: which rows are used, and that unused rows stay bit-identical."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import tiny_model
from packs import inputs_of, token_rows, weighed

from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.storage import ReducedVocabulary, choose_vocabulary, used_ids
from glassloop.backends.fast.training_model import ReplacedLayers
from glassloop.base.errors import SettingsError
from glassloop.training.optimizer import decay_groups

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


def test_writing_back_touches_used_rows_only() -> None:
    vocabulary, table = ReducedVocabulary(USED, 7, CPU), torch.randn(7, 3)
    before = table.clone()
    vocabulary.write_back(torch.ones(3, 3), table)
    assert torch.equal(table[[0, 2, 5]], torch.ones(3, 3))
    assert torch.equal(table[[1, 3, 4, 6]], before[[1, 3, 4, 6]])


def test_used_ids_of_all_data_sets_and_the_padding_token() -> None:
    first = Dataset.from_dict({"input_ids": [[5, 3], [5]]})
    second = [{"input_ids": [9]}, {"input_ids": [3, 8]}]
    assert used_ids([first, second], 12, padding=1).tolist() == [1, 3, 5, 8, 9]
    assert used_ids([first.select([1])], 12, padding=0).tolist() == [0, 5], "of a selection only what it holds"
    assert used_ids([first.select([1, 0]).select([1])], 12, padding=0).tolist() == [0, 3, 5]


def test_rows_beyond_the_first_ten_thousand_count() -> None:
    rows = Dataset.from_dict({"input_ids": [[1]] * 10_000 + [[4]]})
    assert used_ids([rows], 6, padding=0).tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("share", "decay", "smaller"), [(0.3, 0.0, True), (0.9, 0.0, True), (0.95, 0.0, False), (0.3, 0.01, False)]
)
def test_a_smaller_table_only_where_it_is_exact_and_worth_it(share: float, decay: float, smaller: bool) -> None:
    """Weight decay changes every row, with or without a gradient."""
    model = tiny_model()
    size = model.get_input_embeddings().num_embeddings
    assert (choose_vocabulary(model, np.arange(int(size * share)), decay) is not None) == smaller


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


@pytest.mark.parametrize("token", [12, -1])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_token_without_a_vector_is_refused_by_name(token: int, as_list: bool) -> None:
    rows = Dataset.from_dict({"input_ids": [[3, 5], [token, 4]]})
    with pytest.raises(
        SettingsError, match=f"a row has the token id {token}, but the vocabulary of the model has only 12 tokens"
    ):
        used_ids([rows.to_list() if as_list else rows], 12, padding=0)
