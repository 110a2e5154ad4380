"""A packed batch: the place of every number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from packs import packed_rows, packing_of

from glassloop.backends.fast.packing import round_up

ROWS = [np.array([7, 8, 9]), np.array([5]), np.array([6, 4])]
TYPES = [np.array([0, 1, 1]), np.array([0]), np.array([0, 1])]


def test_tokens_follow_one_another_without_padding() -> None:
    found = packing_of(ROWS, types=TYPES)
    assert (found.tokens, found.rows, found.longest, found.has_filler, found.sequences) == (6, 3, 8, False, 3)
    assert found.ids.tolist() == [7, 8, 9, 5, 6, 4]
    assert found.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert found.types.tolist() == [0, 1, 1, 0, 0, 1]
    assert found.slot_of_token.tolist() == [0, 1, 2, 8, 16, 17]
    assert found.bounds.tolist() == [0, 3, 4, 6]
    assert found.first_tokens.tolist() == [0, 3, 4]
    assert found.first_token_bounds.tolist() == [0, 1, 2, 3]


def test_all_numbers_are_one_tensor_of_small_integers() -> None:
    inputs = packed_rows(ROWS, None, None)
    assert inputs["packed"].dtype == np.int32
    assert len(inputs["packed"]) == 6 * 6 + 4 + 3 + 4


def test_positions_start_after_the_padding_token() -> None:
    assert packing_of(ROWS, padding=1).positions.tolist() == [2, 3, 4, 2, 2, 3]


def test_a_padding_token_in_a_row_has_its_own_position_and_is_not_counted() -> None:
    rows = [np.array([7, 1, 9]), np.array([1]), np.array([1, 4])]
    wanted = [2, 1, 3, 1, 1, 2]  # as in RoBERTa
    assert packing_of(rows, padding=1).positions.tolist() == wanted
    assert packing_of(rows).positions.tolist() == [0, 1, 2, 0, 0, 1]


def test_padding_typed_into_a_text_has_the_position_of_padding_and_does_not_count() -> None:
    """As RoBERTa counts, whose padding token has the id before the first position."""
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

    rows = [np.array(row) for row in ([5, 1, 6, 1, 1, 7], [1, 1], [5], [1, 5, 6])]
    wanted = [RobertaEmbeddings.create_position_ids_from_input_ids(torch.from_numpy(row)[None], 1)[0].tolist() for row in rows]
    assert wanted[0] == [2, 1, 3, 1, 1, 4]
    joined = [position for row in wanted for position in row]
    assert packing_of(rows, padding=1).positions.tolist() == joined
    assert packing_of(rows, padding=1, multiple=8).positions[:12].tolist() == joined
    assert packing_of(rows).positions.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0, 0, 1, 2], "other families count all tokens"


def test_without_types_all_are_of_the_first_type() -> None:
    assert packing_of(ROWS).types.tolist() == [0] * 6


def test_ids_get_their_new_numbers() -> None:
    vocabulary = np.full(10, -1, dtype=np.int32)
    vocabulary[[4, 5, 6, 7, 8, 9]] = range(6)
    assert packing_of(ROWS, vocabulary=vocabulary).ids.tolist() == [3, 4, 5, 1, 2, 0]


def test_shapes_are_rounded_up_and_the_surplus_is_a_filler_sequence() -> None:
    found = packing_of(ROWS, padding=1, multiple=4, types=TYPES)
    assert (found.tokens, found.rows, found.longest, found.has_filler, found.sequences) == (8, 3, 8, True, 4)
    assert found.ids.tolist() == [7, 8, 9, 5, 6, 4, 0, 0]
    assert found.positions.tolist() == [2, 3, 4, 2, 2, 3, 2, 3]
    assert found.types.tolist() == [0, 1, 1, 0, 0, 1, 0, 0]
    assert found.slot_of_token.tolist() == [0, 1, 2, 8, 16, 17, 24, 25]
    assert found.bounds.tolist() == [0, 3, 4, 6, 8]
    assert found.first_tokens.tolist() == [0, 3, 4]
    assert found.first_token_bounds.tolist() == [0, 1, 2, 3, 3], "of first tokens alone, the last sequence has none"


def test_sorted_tokens_have_equal_ids_and_positions_as_neighbours() -> None:
    found = packing_of([np.array([7, 5, 7]), np.array([5, 7])], multiple=4)
    assert found.sorted_by_id.tolist() == [5, 6, 7, 1, 3, 0, 2, 4]
    assert found.sorted_by_position.tolist() == [0, 3, 5, 1, 4, 6, 2, 7]


def test_without_surplus_the_filler_sequence_is_empty() -> None:
    found = packing_of([np.arange(1, 5), np.arange(1, 5)], multiple=4)
    assert found.bounds.tolist() == [0, 4, 8, 8]
    assert found.first_tokens.tolist() == [0, 4]


def test_batches_of_like_shape_have_the_same_measures() -> None:
    """Graphs need equal shapes for different lengths."""
    first, second = (
        packed_rows([np.ones(length, int) for length in lengths], None, None, 8) for lengths in ((3, 9, 5), (10, 1, 11))
    )
    assert {name: value for name, value in first.items() if name != "packed"} == {
        name: value for name, value in second.items() if name != "packed"
    }
    assert first["packed"].shape == second["packed"].shape


def test_the_additive_mask_hides_slots_without_a_token_but_never_all() -> None:
    seen = packing_of(ROWS, multiple=4).additive_mask == 0
    assert seen.sum(1).tolist() == [3, 1, 2, 2]
    assert seen[0].tolist() == [True] * 3 + [False] * 5
    empty = packing_of([np.arange(1, 5)], multiple=4).additive_mask
    assert (empty == 0).sum(1).tolist() == [4, 1], "a softmax over nothing would be no number"
    assert torch.isfinite(empty).all()


@pytest.mark.parametrize(("number", "multiple", "expected"), [(1, 1, 1), (7, 1, 7), (1, 32, 32), (32, 32, 32), (33, 32, 64)])
def test_rounding_goes_up(number: int, multiple: int, expected: int) -> None:
    assert round_up(number, multiple) == expected
