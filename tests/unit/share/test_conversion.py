"""Conversion: a model is traced for any size, unknown families are tried first, and failures are one clear error."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from families import tiny_model

from glassloop.base.errors import ModelError, ResourceError
from glassloop.models.families import FAMILIES
from glassloop.share import conversion
from glassloop.share.conversion import converting, example_inputs, program_of, refuse_unknown_family

INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def test_the_example_is_padded_and_within_the_vocabulary() -> None:
    config = tiny_model().config
    ids, types, mask = example_inputs(config, INPUTS)
    assert ids.shape == types.shape == mask.shape == (3, 11)
    assert int(ids.max()) < config.vocab_size
    assert ((ids == config.pad_token_id) == (mask == 0)).all()
    config.vocab_size, config.pad_token_id = 3, 2
    assert sorted({*example_inputs(config, INPUTS)[0].flatten().tolist()}) == [0, 1, 2]


@pytest.mark.slow
def test_rows_and_tokens_are_free_and_no_path_is_kept() -> None:
    model = tiny_model().eval()
    program = program_of(model, INPUTS)
    run = program.module()
    for rows, tokens in ((1, 2), (7, 64), (2, 1)):
        given = [torch.ones(rows, tokens, dtype=torch.int64)] * 3
        torch.testing.assert_close(run(*given), model(*given[:1], attention_mask=given[2], token_type_ids=given[1]).logits)
    assert not [node for node in program.graph.nodes if "stack_trace" in node.meta]


def test_only_unknown_families_are_rehearsed_with_two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "program_of", lambda *_: pytest.fail("was exported"))
    for name in FAMILIES:
        config = tiny_model("bert").config
        config.model_type = name
        refuse_unknown_family(config, INPUTS)
    layers = []
    monkeypatch.setattr(conversion, "program_of", lambda model, _: layers.append(model.config.num_hidden_layers))
    config = tiny_model("rembert", num_hidden_layers=5).config
    refuse_unknown_family(config, INPUTS)
    assert (layers, config.num_hidden_layers) == ([2], 5)


def test_what_cannot_be_traced_is_refused_and_a_full_disk_is_no_fault_of_the_model() -> None:
    with pytest.raises(ModelError) as caught, converting(tiny_model().config):
        raise RuntimeError("Could not guard on data-dependent expression\nmany more lines")
    problem = "this model (BERT) cannot be exported: Could not guard on data-dependent expression"
    assert (caught.value.problem, caught.value.remedy) == (problem, conversion.ANOTHER)
    with pytest.raises(ResourceError), converting(tiny_model().config):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
