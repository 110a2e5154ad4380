"""A packed batch: the place of every number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from packs import packed_rows, packing_of

from glassloop.backends.fast import packing
from glassloop.backends.fast.packing import PackedBatches, why_not_columns, why_not_masks
from glassloop.base.errors import DataError
from glassloop.data.batches import Batches, PaddingCollator, stacked

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
    vocabulary = np.full(10, -1, dtype=np.int32)
    vocabulary[[4, 5, 6, 7, 8, 9]] = range(6)
    assert packing_of(ROWS, vocabulary=vocabulary).ids.tolist() == [3, 4, 5, 1, 2, 0], "in a smaller vocabulary"


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


def test_batches_of_like_shape_have_the_same_measures() -> None:
    """Graphs need equal shapes for different lengths."""
    shapes = ((3, 9, 5), (10, 1, 11))
    found = [packed_rows([np.ones(length, int) for length in lengths], None, None, 8) for lengths in shapes]
    first, second = (batch | {"packed": batch["packed"].shape} for batch in found)
    assert first == second


def test_the_additive_mask_hides_slots_without_a_token_but_never_all() -> None:
    seen = packing_of(ROWS, multiple=4).additive_mask == 0
    assert seen.sum(1).tolist() == [3, 1, 2, 2]
    assert seen[0].tolist() == [True] * 3 + [False] * 5
    empty = packing_of([np.arange(1, 5)], multiple=4).additive_mask
    assert (empty == 0).sum(1).tolist() == [4, 1], "a softmax over nothing would be no number"
    assert torch.isfinite(empty).all()


# --- Which rows can be packed: their columns, and masks that hide tokens only at the end.
def test_tokens_may_be_hidden_at_the_end_only() -> None:
    at_the_end = ([[1, 1, 0], [1, 0, 0]], [[1, 1], [1, 1, 1]], [[1, 0], [1, 1]], [[True, False]])
    inside = ([[0, 1, 1]], [[1, 1], [1, 0, 1]], [[1, 1], [0, 0]], [[1, 2]], [[1.0, 0.5]], [[1], []])
    for rows in (*at_the_end, *inside):
        assert packing.hides_inside(packing.join_rows([np.asarray(row) for row in rows])) is (rows in inside), rows


def row(**others: Any) -> dict[str, Any]:
    return {"input_ids": [2, 7, 3], "labels": 1, **others}


NO_IDS = "a row has no list of input_ids"
OTHERS = "the batches are those of a DataLoader or of a custom collator"


def test_rows_need_token_ids_no_other_inputs_and_the_usual_batches(tiny_tokenizer) -> None:
    for first, why in (
        (row(), None),
        (row(attention_mask=[1, 1, 0], text="a", note=None), None),
        (row(position_ids=[0, 1, 2]), "the rows have position_ids"),
        (row(input_ids=[[2, 3], [2, 3]]), NO_IDS),
        ({"inputs_embeds": [0.5], "labels": 1}, NO_IDS),
        (SimpleNamespace(**row()), NO_IDS),
    ):
        assert why_not_columns(Batches([first], stacked, 1)) == why
    assert why_not_columns(Batches([row()], lambda rows: {}, 1)) == OTHERS
    assert why_not_columns(iter([])) == OTHERS  # type: ignore[arg-type]
    assert why_not_columns(Batches([row()], PaddingCollator(tiny_tokenizer), 1)) is None


class Drawn:
    """Rows that differ between reads."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> dict[str, Any]:
        return row(attention_mask=[0, 1, 1], token_type_ids=np.random.randint(0, 2, 3))


@pytest.mark.parametrize("kind", [list, Dataset.from_list])
def test_every_mask_counts(kind: Any) -> None:
    good, bad = row(attention_mask=[1, 1, 0]), row(attention_mask=[0, 1, 1])
    for rows in ([row()] * 3, [good] * 3):
        assert why_not_masks(Batches(kind(rows), stacked, 1)) is None
    assert why_not_masks(Batches(kind([good, good, bad]), stacked, 1)) == packing.HIDDEN
    assert why_not_masks(Batches(kind([good, bad, good]).select([0, 2]) if kind is not list else [good], stacked, 1)) is None
    assert why_not_masks(Batches(Drawn(), stacked, 1)) is None, "one reading says nothing about the next"


# --- Packed batches of a data set: the same rows and labels as padded batches, for every kind of data set.
CPU = torch.device("cpu")


def test_on_a_cpu_arrays_are_not_copied_and_rows_of_an_evaluation_are_grouped_by_tokens() -> None:
    array = np.arange(4)
    assert packing.to_device([array], CPU)[0].data_ptr() == array.ctypes.data
    plan, lengths = [np.array([4, 0]), np.array([1]), np.array([2, 3, 5])], np.array([3, 4, 9, 1, 2, 2])
    assert [part.tolist() for part in packing.regroup(plan, lengths, 12)] == [[4, 0, 1], [2, 3, 5]]
    assert [part.tolist() for part in packing.regroup(plan, lengths, 5)] == [[4, 0], [1], [2], [3, 5]], "a row is never cut"
    assert packing.regroup([], lengths, 5) == []


def test_an_evaluation_has_the_same_rows_in_their_order_and_a_smaller_batch_saves_memory(tiny_tokenizer, monkeypatch) -> None:
    batches = Batches(data_set(), PaddingCollator(tiny_tokenizer), 4, group_by_length=True)
    expected = [row for batch in batches.whole() for row in unpadded(batch)]
    for most, number in ((1, 23), (16, None), (10_000, 1)):
        monkeypatch.setitem(packing.EVALUATION_TOKENS, "cpu", most)
        found = [*PackedBatches(batches, CPU).whole()]
        assert np.concatenate([batch.numbers for batch in found]).tolist() == np.concatenate(batches.order()).tolist()
        assert [row for batch in found for row in unpacked(batch)] == expected
        assert number in (None, len(found))
    monkeypatch.setattr(packing, "TOKENS_PER_ROW", 8)
    for size in (1, 3):
        batches = Batches(data_set(), PaddingCollator(tiny_tokenizer), size, group_by_length=True)
        assert max(batch.inputs["tokens"] for batch in PackedBatches(batches, CPU).whole()) <= 8 * size


def content(number: int) -> dict[str, Any]:
    length = 2 + number * 5 % 7
    return {
        "input_ids": [5 + (number * 3 + place) % 40 for place in range(length)],
        "token_type_ids": [int(place > 2) for place in range(length)],
        "labels": number % 3,
    }


def data_set(number: int = 23) -> Dataset:
    return Dataset.from_list([content(row) for row in range(number)])


SOURCES = {
    "arrow": data_set,
    "a selection": lambda: data_set(40).select(range(3, 38, 2)),
    "a selection without its order": lambda: data_set(40).select([31, 2, 2, 17, 5, 39, 0]),
    "shuffled": lambda: data_set().shuffle(seed=2),
    "a part": lambda: data_set(40).select(range(9, 33)),
    "a list": lambda: [content(row) for row in range(23)],
}


def unpacked(batch: Any) -> list[tuple[list[int], list[int], list[int]]]:
    """Ids, types and positions of each row of a packed batch."""
    inputs = batch.inputs
    found = packing.Packing(inputs["packed"], *(inputs[name] for name in ("tokens", "rows", "longest", "has_filler")))
    parts = [slice(*found.bounds[row : row + 2].tolist()) for row in range(found.rows)]
    return [(found.ids[part].tolist(), found.types[part].tolist(), found.positions[part].tolist()) for part in parts]


def unpadded(batch: Any) -> list[tuple[list[int], list[int], list[int]]]:
    found = []
    for row, mask in enumerate(batch.inputs["attention_mask"]):
        length = int(mask.sum())
        types = batch.inputs.get("token_type_ids", torch.zeros_like(batch.inputs["input_ids"]))
        found.append((batch.inputs["input_ids"][row, :length].tolist(), types[row, :length].tolist(), list(range(length))))
    return found


def same_batches(found: Any, expected: Any) -> int:
    number = 0
    for mine, other in zip(found, expected, strict=True):
        number += 1
        assert unpacked(mine) == unpadded(other)
        assert mine.numbers.tolist() == other.numbers.tolist()
        assert mine.size == other.size
        assert (mine.labels is None) == (other.labels is None)
        if mine.labels is not None:
            assert mine.labels.dtype == other.labels.dtype
            assert torch.equal(mine.labels, other.labels)
    return number


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("grouped", [False, True])
def test_the_same_rows_and_labels_as_padded_batches(source: str, grouped: bool, tiny_tokenizer) -> None:
    rows = SOURCES[source]()
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 4, seed=7, group_by_length=grouped)
    packed = PackedBatches(batches, CPU)
    assert (packed.stored is not None) == (source != "a list")
    assert len(packed) == len(batches)
    for epoch in (0, 1):
        assert same_batches(packed.epoch(epoch), batches.epoch(epoch)) == -(-len(rows) // 4)


def test_resuming_is_skipping_part_of_a_list(tiny_tokenizer) -> None:
    batches = Batches(data_set(), PaddingCollator(tiny_tokenizer), 4, seed=7)
    packed = PackedBatches(batches, CPU)
    assert same_batches(packed.epoch(1, skip=2), batches.epoch(1, skip=2)) == 4
    assert same_batches(packed.whole(1, 3), batches.whole(1, 3)) == 2
    assert packed.row_hashes().tolist() == batches.row_hashes().tolist()


@pytest.mark.parametrize("source", ["arrow", "a selection", "shuffled"])
@pytest.mark.parametrize("read", [1, 3, 5, 23])
def test_rows_are_read_in_parts(source: str, read: int, tiny_tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand at a time; here so few that a batch spans several reads."""
    monkeypatch.setattr(packing, "READ_ROWS", read)
    batches = Batches(SOURCES[source](), PaddingCollator(tiny_tokenizer), 4, seed=7)
    same_batches(PackedBatches(batches, CPU).epoch(), batches.epoch())


@pytest.mark.parametrize(
    "labels",
    [[0.5, 1.25, 3.0, 2.0, 0.1], [[1, 0], [0, 0], [1, 1], [0, 1], [1, 0]], [[0.0, 1.0]] * 5, None],
    ids=["scores", "several labels", "several as floats", "none"],
)
@pytest.mark.parametrize("as_list", [False, True])
def test_labels_of_every_kind(labels: Any, as_list: bool, tiny_tokenizer) -> None:
    rows = [content(row) for row in range(5)]
    for number, row in enumerate(rows):
        row.pop("labels")
        row.update({} if labels is None else {"labels": labels[number]})
    batches = Batches(rows if as_list else Dataset.from_list(rows), PaddingCollator(tiny_tokenizer), 2)
    assert same_batches(PackedBatches(batches, CPU).epoch(), batches.epoch()) == 3


def masked(as_list: bool, hide: Any) -> Any:
    rows = [content(row) for row in range(6)]
    for row in rows:
        row["attention_mask"] = [int(hide(place, len(row["input_ids"]))) for place in range(len(row["input_ids"]))]
    return rows if as_list else Dataset.from_list(rows)


@pytest.mark.parametrize("as_list", [False, True])
def test_tokens_hidden_at_the_end_of_a_row_are_dropped_and_a_mask_with_holes_is_refused(as_list, tiny_tokenizer, says) -> None:
    rows = masked(as_list, lambda place, length: place < max(1, length - 2))
    batches = Batches(rows, PaddingCollator(tiny_tokenizer), 4)
    found = [row for batch in PackedBatches(batches, CPU).epoch() for row in unpacked(batch)]
    assert found == [row for batch in batches.epoch() for row in unpadded(batch)]
    assert [len(ids) for ids, _, _ in found] == [max(1, len(content(row)["input_ids"]) - 2) for row in range(6)]
    rows = masked(as_list, lambda place, length: place != 1)
    packed = PackedBatches(Batches(rows, PaddingCollator(tiny_tokenizer), 4), CPU)
    with says("an attention mask hides tokens inside a row, not only at its end", "use backend plain"):
        next(packed.epoch())


def test_rows_beyond_the_models_tables_and_tokens_that_were_not_counted_are_refused(tiny_tokenizer, says) -> None:
    """A kernel would read memory beyond the table."""
    batches = Batches(data_set(5), PaddingCollator(tiny_tokenizer), 5)
    next(PackedBatches(batches, CPU, limits=(8, 25)).epoch())
    with says("a row has 8 tokens, but the model accepts at most 7", "encode with a smaller max_length"):
        next(PackedBatches(batches, CPU, limits=(7, 25)).epoch())
    with says("a row has the token id 24, but the vocabulary of the model has only 24 tokens", "use the model's own tokenizer"):
        next(PackedBatches(batches, CPU, limits=(8, 24)).epoch())
    rows = [{"input_ids": [2, 7, 3], "labels": 0}]  # the new id of 7 is -1, so it would get the vector of the last row
    vocabulary = torch.full((20,), -1, dtype=torch.int32)
    vocabulary[[2, 3]] = torch.tensor([0, 1], dtype=torch.int32)
    packed = PackedBatches(Batches(rows, PaddingCollator(tiny_tokenizer), 1), CPU, 0, vocabulary)
    with pytest.raises(DataError, match="rows change between reads: token id 7 did not occur when they were read before"):
        next(packed.epoch())


@pytest.mark.parametrize("as_list", [False, True])
def test_what_a_batch_cannot_hold_is_refused(as_list: bool, tiny_tokenizer, says) -> None:
    """As in padded batches: the user's own position_ids, for example, would otherwise be ignored."""
    rows = [content(row) | {"position_ids": [0]} for row in range(3)]
    batches = Batches(rows if as_list else Dataset.from_list(rows), PaddingCollator(tiny_tokenizer), 4)
    with says("a batch cannot contain position_ids"):
        next(PackedBatches(batches, CPU).epoch())
