"""Which names move, and which have no replacement."""

from __future__ import annotations

import pytest

import glassloop
from glassloop.compat.names import MOVED, MOVED_BY_CALL, is_portable, why_untranslated


def test_every_replacement_is_public() -> None:
    ours = [place for place in (*MOVED.values(), *MOVED_BY_CALL.values()) if place.startswith("glassloop.")]
    assert {place.removeprefix("glassloop.") for place in ours} <= {*glassloop.PUBLIC}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("AutoModelForSequenceClassification", None),
        ("EarlyStoppingCallback", None),
        ("Forward", None),
        ("Seq2SeqTrainer", "Glassloop trains models for sequence classification only"),
        ("BertForTokenClassification", "Glassloop trains models for sequence classification only"),
        ("DataCollatorForLanguageModeling", "Glassloop trains models for sequence classification only"),
        ("TFAutoModelForSequenceClassification", "Glassloop trains PyTorch models only"),
    ],
)
def test_names_without_a_replacement(name: str, why: str | None) -> None:
    assert why_untranslated(name) == why


@pytest.mark.parametrize(
    ("name", "given", "named", "portable"),
    [
        ("load_metric", ["glue", "mrpc"], {}, True),
        ("load_metric", ["accuracy"], {}, True),
        ("load_metric", ["f1"], {"config_name": "multilabel"}, True),
        ("load_metric", ["bleu"], {}, False),
        ("load_metric", ["glue"], {}, False),
        ("load_metric", ["accuracy"], {"cache_dir": "x"}, True),
        ("load_metric", ["glue", ...], {}, True),
        ("load_metric", [...], {}, False),
        ("load_dataset", ["glue", "mrpc"], {}, True),
        ("load_dataset", [], {"path": "glue", "name": "sst2", "split": "train"}, True),
        ("load_dataset", ["glue", "mrpc"], {"split": "train[:10%]"}, False),
        ("load_dataset", ["imdb"], {}, False),
        ("load_dataset", ["glue", "mrpc"], {"streaming": True}, False),
        ("load_dataset", [], {}, False),
    ],
)
def test_calls_that_glassloop_can_do(name: str, given: list[object], named: dict[str, object], portable: bool) -> None:
    assert is_portable(f"glassloop.{name}", given, named) is portable
