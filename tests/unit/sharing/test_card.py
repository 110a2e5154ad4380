"""The text of a card: valid for huggingface_hub, whatever names users choose, and recognised once it is edited."""

from __future__ import annotations

import re

import pytest
import yaml
from huggingface_hub import ModelCard

from glassloop.report.card import Card, DataName, Score, card_text, is_untouched, markdown_table, plain

HOSTILE = (
    "---\nlicense: mit\n| <script>alert(1)</script> ![x](http://a.b) `code` [l](x) @you www.a.b # *b* \u202e {{x}} ```\n\ud800"
)


def test_a_card_is_read_by_the_hubs_own_reader() -> None:
    scores = [Score("f1", "f1 (yes)", 0.91234567, "validation", "0.89 to 0.93", 0.8), Score("accuracy", "accuracy", 0.9)]
    card = Card("mine", DataName("GLUE MRPC", "nyu-mll/glue", "mrpc", on_hub=True), scores, {"tags": ["glassloop"]})
    found = ModelCard(card_text(card)).data
    assert (found.library_name, found.pipeline_tag, found.datasets) == ("transformers", "text-classification", ["nyu-mll/glue"])
    assert found.license is None
    assert found.language is None
    assert [(one.metric_type, one.metric_value, one.dataset_split) for one in found.eval_results] == [
        ("f1", 0.912346, "validation"),
        ("accuracy", 0.9, "validation"),
    ]


def test_scores_that_are_not_finite_are_not_in_the_index() -> None:
    found = ModelCard(card_text(Card("mine", DataName("a", "a"), [Score("f1", "f1", float("nan"))]))).data
    assert found.eval_results is None


def test_hostile_names_stay_text() -> None:
    scores = [Score("f1", f"f1 ({HOSTILE})", 0.5)]
    text = card_text(Card(HOSTILE, DataName(HOSTILE, "name"), scores, {}, [("Data", markdown_table(["label"], [[HOSTILE]]))]))
    head, _, body = text.removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head)["model-index"][0]["results"][0]["dataset"]["name"].startswith("---\\nlicense: mit")
    assert "license" not in yaml.safe_load(head)
    assert ModelCard(text).data.license is None
    assert "<script>" not in body
    assert not re.search(r"(?<!\\)[`\[\]*{}]|://|www\.|@", body.partition("<!--")[0])
    assert len([line for line in body.splitlines() if line.startswith("|")]) == 3, "a cell is one line"
    assert is_untouched(text)


@pytest.mark.parametrize(
    ("given", "wanted"), [("a|b", r"a\|b"), ("a\nb", r"a\\nb"), ("<b>&", "&lt;b&gt;&amp;"), ("not_it", r"not\_it"), (3, "3")]
)
def test_text_without_markup(given: object, wanted: str) -> None:
    assert plain(given) == wanted


def test_an_edited_card_is_recognised() -> None:
    text = card_text(Card("mine", None))
    assert is_untouched(text)
    assert not is_untouched(text.replace("# mine", "# Mine"))
    assert not is_untouched(text + "more\n")
    assert not is_untouched("# A card of somebody else\n")
