"""The table of model families: every entry is true of transformers' models, tested, and documented."""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path

import pytest
import torch
import transformers
from families import TINY, families_packed_by, tiny_model
from generate_reference import families
from transformers.activations import ACT2FN

from glassloop.models.families import FAMILIES, GELU_APPROXIMATIONS

ROOT = Path(__file__).parents[3]
# These take token types for the sake of others, but were pretrained with a single one.
SINGLE_TYPE = ("roberta", "xlm-roberta", "camembert", "data2vec-text")
ALL = pytest.mark.parametrize("name", FAMILIES)


@pytest.mark.parametrize("activation", GELU_APPROXIMATIONS)
def test_an_activation_is_the_approximation_of_gelu_in_the_table(activation: str) -> None:
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    found, gelu = ACT2FN[activation](x), torch.nn.functional.gelu
    apart = {form: (found - gelu(x, approximate=form)).abs().max() for form in ("none", "tanh")}
    assert apart.pop(GELU_APPROXIMATIONS[activation]) < 1e-8
    assert min(apart.values()) > 1e-4, "the other approximation is a different function"


@ALL
def test_the_classifier_is_what_transformers_makes_of_the_type_and_takes_its_token_types(name: str) -> None:
    model = tiny_model(name)
    assert model.config.model_type == name
    assert type(model) is getattr(transformers, FAMILIES[name].classifier)
    takes = "token_type_ids" in inspect.signature(type(model).forward).parameters
    assert takes == (FAMILIES[name].token_types or name in SINGLE_TYPE)


@ALL
def test_positions_start_where_the_table_says(name: str) -> None:
    """The ids of positions are made by the embeddings: the first token's is the padding id + 1, or 0."""
    model = tiny_model(name, pad_token_id=1).eval()
    table = getattr(model.base_model.embeddings, "position_embeddings", None)
    if table is None:  # ModernBERT rotates; a DeBERTa without absolute positions has no table
        assert not FAMILIES[name].positions_after_padding
        return
    seen: list[torch.Tensor] = []
    table.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    with torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]))
    first = 2 if FAMILIES[name].positions_after_padding else 0
    assert seen[0].flatten().tolist() == [first, first + 1, first + 2]


@pytest.mark.parametrize("name", families_packed_by("layers"))
def test_every_path_of_a_layout_leads_to_a_part(name: str) -> None:
    family, encoder = FAMILIES[name], tiny_model(name).base_model
    layout = family.layout
    assert layout is not None
    entries = [encoder]
    for path in layout.layers:
        entries = [entry for part in entries for entry in attrgetter(path)(part)]
    assert len(entries) == (1 if name == "albert" else 2)
    for layer in entries:
        for path in (layout.query, layout.key, layout.value, layout.attention_output, layout.up, layout.down):
            assert attrgetter(path)(layer).weight.ndim == 2
        for path in (layout.attention_norm, layout.feed_forward_norm):
            assert attrgetter(path)(layer).weight.ndim == 1
        assert attrgetter(layout.num_heads)(layer) == 2
        for path in filter(None, layout.dropouts):
            assert attrgetter(path)(layer).p == 0.1
    embeddings = attrgetter(layout.embeddings)(encoder)
    assert all(attrgetter(path)(embeddings).weight.ndim == 2 for path in (layout.words, layout.positions))
    assert hasattr(embeddings, layout.token_types) or not family.token_types
    assert attrgetter(layout.embeddings_norm)(embeddings).weight.ndim == 1
    assert attrgetter(layout.embeddings_dropout)(embeddings).p == 0.1


def test_a_family_has_a_tiny_config_or_is_like_one_that_is_tested_itself() -> None:
    assert [*TINY] == [*FAMILIES], "write the config of the family in tests/families.py"
    for family in FAMILIES.values():
        if family.like:
            other = FAMILIES[family.like]
            assert other.like is None
            assert (other.layout, other.packing) == (family.layout, family.packing)


def test_the_documentation_lists_this_table() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    assert sum("<!-- generated: families -->" in page for page in pages) == 1, "one page shows the table"
    rows = [row for row in families().splitlines() if row.startswith("| ")][2:]
    assert len(rows) == len(FAMILIES)
    for row, (name, family) in zip(rows, FAMILIES.items(), strict=True):
        assert row.startswith(f"| {family.title} | `{name}` | ")
        assert ("padded" in row) is (family.packing == "none")
