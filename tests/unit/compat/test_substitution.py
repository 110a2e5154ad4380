"""Old names are served to the user's code and to nobody else, and every use is recorded once."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import glassloop
from glassloop.compat import substitution
from glassloop.compat.names import OLD_MODULES, OLD_NAMES, instead_of, module_today, why_their_trainer, why_untranslated
from glassloop.compat.port import MOVED, MOVED_BY_CALL, is_portable
from glassloop.compat.substitution import LEDGER, REPLACES_ITSELF, Changed, Finder, chosen_names, serve

PACKAGES = "/venv/lib/python3.12/site-packages"
pytestmark = pytest.mark.usefixtures("ledger")


def used_by(filename: str, code: str, module: ModuleType) -> dict[str, object]:
    """Return the names after code of a file has run with a module."""
    space: dict[str, object] = {"library": module}
    exec(compile(code, filename, "exec"), space)
    return space


@pytest.fixture
def library() -> ModuleType:
    """A module like numpy that has `bool`, lacks `int`, and is served."""
    module = ModuleType("library")
    module.present = 1  # type: ignore[attr-defined]
    serve(module, "library", {**OLD_NAMES["numpy"], "load_dataset": OLD_NAMES["datasets"]["load_dataset"]})
    return module


def test_a_missing_name_is_served_to_a_script_and_recorded_with_its_first_place(library: ModuleType) -> None:
    space = used_by("/home/me/train.py", "\nx = library.int('3')\ny = library.int\n", library)
    assert space["x"] == 3
    assert [*LEDGER.substitutions] == ["library.int"]
    assert LEDGER.substitutions["library.int"].place == "/home/me/train.py:2"
    assert "NumPy 1.24" in str(LEDGER.substitutions["library.int"])


def test_a_library_gets_no_old_name_and_other_names_stay(library: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'library' has no attribute 'int'"):
        used_by(f"{PACKAGES}/other/code.py", "library.int", library)
    assert used_by("/home/me/train.py", "x = library.present", library)["x"] == 1
    with pytest.raises(AttributeError):
        used_by("/home/me/train.py", "library.unknown", library)
    assert not LEDGER.substitutions
    kind = type(library)
    serve(library, "library", OLD_NAMES["numpy"])
    assert type(library) is kind, "a module is changed once"


def test_which_files_are_the_users_and_which_names_their_code_has() -> None:
    own = Path(sys.modules["glassloop"].__file__ or "").with_name("trainer.py")
    others = ("<string>", "<frozen importlib._bootstrap>", importlib.__file__, str(own), f"{PACKAGES}/torch/nn/module.py")
    scripts = ("/home/me/train.py", "note.ipynb, cell 3")
    assert [name for name in (*scripts, *others) if substitution.is_script(name)] == [*scripts]
    assert substitution.place_of(None) == "unknown place"
    code = compile("def f():\n    return [AdamW(x) for x in range(3)]\nTrainer\n", "x", "exec")
    assert {"AdamW", "Trainer", "range"} <= substitution.names_of(code), "also in functions"


def test_what_is_known_of_old_modules_and_names() -> None:
    for old, today in (
        ("nlp", "datasets"),
        ("transformers.modeling_bert", "transformers.models.bert.modeling_bert"),
        ("transformers.tokenization_roberta_fast", "transformers.models.roberta.tokenization_roberta"),
        ("transformers.configuration_xlm_roberta", "transformers.models.xlm_roberta.configuration_xlm_roberta"),
        ("transformers.models.bert.tokenization_bert_fast", "transformers.models.bert.tokenization_bert"),
        ("transformers.modeling_utils", None),
        ("transformers.tokenization_utils_base", None),
        ("torch", None),
    ):
        assert module_today(old) == today
    assert "load_dataset" in str(instead_of("GlueDataset"))
    assert "PyTorch" in str(instead_of("TFBertForSequenceClassification"))
    assert instead_of("Unheard") is None
    for name in ("AutoModelForSequenceClassification", "EarlyStoppingCallback", "Forward"):
        assert why_untranslated(name) is None
    for name in ("Seq2SeqTrainer", "BertForTokenClassification", "DataCollatorForLanguageModeling"):
        assert why_untranslated(name) == "Glassloop trains models for sequence classification only"
    assert why_untranslated("TFAutoModelForSequenceClassification") == "Glassloop trains PyTorch models only"
    for names, theirs in (
        ({"Trainer", "AutoModelForSequenceClassification"}, False),
        ({"Trainer", "AutoModelForTokenClassification", "DataCollatorForTokenClassification"}, True),
        ({"Trainer", "AutoModelForTokenClassification", "BertForSequenceClassification"}, False),
        ({"Trainer", "BertModel", "DataCollatorForTokenClassification"}, False),
        ({"Seq2SeqTrainer"}, True),
        (set(), False),
    ):
        assert (why_their_trainer(names) is not None) is theirs, "the Trainer of other models stays that of transformers"


def test_what_stands_for_an_old_name_exists() -> None:
    """Each target can be imported, as far as its package is installed."""
    for names in [*OLD_NAMES.values(), *chosen_names(["Trainer"]).values()]:
        for one in names.values():
            module, _, name = one.now.partition(":")
            assert hasattr(importlib.import_module(module), name), one
    for today in {*OLD_MODULES.values()}:
        assert find_spec(today) is not None, today


def test_a_kept_name_is_that_of_its_library() -> None:
    assert "AdamW" not in chosen_names(["AdamW"])["transformers"]
    theirs = chosen_names(["Trainer"])["transformers"]
    for name in ("Trainer", "TrainingArguments"):
        assert theirs[name].now == f"glassloop.compat.former_functions:{name}"
    assert "glassloop.Trainer" in str(chosen_names()["transformers"]["Trainer"])


def test_modules_that_moved_are_found_for_scripts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Finder({}, {})
    monkeypatch.setattr(sys, "meta_path", [])
    assert finder.find_spec("nlp") is not None  # this test counts as a script
    code = compile("found = finder.find_spec('nlp')", f"{PACKAGES}/other/code.py", "exec")
    space: dict[str, object] = {"finder": finder}
    exec(code, space)
    assert space["found"] is None


def test_transformers_is_served_again_when_it_has_replaced_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers.processing_utils puts a new module transformers into sys.modules while it is imported."""
    finder = Finder(chosen_names(), {})
    spec = finder.find_spec("transformers.processing_utils", importlib.import_module("transformers").__path__)
    assert spec is not None
    assert isinstance(spec.loader, Changed)
    fresh = ModuleType("transformers")
    monkeypatch.setitem(sys.modules, "transformers", fresh)
    finder.change(ModuleType(REPLACES_ITSELF), REPLACES_ITSELF)
    assert used_by("/home/me/train.py", "x = library.AdamW", fresh)["x"].__module__ == "glassloop.compat.former_functions"


# --- what a port replaces
def test_every_replacement_is_public() -> None:
    ours = [place for place in (*MOVED.values(), *MOVED_BY_CALL.values()) if place.startswith("glassloop.")]
    assert {place.removeprefix("glassloop.") for place in ours} <= {*glassloop.PUBLIC}


def test_calls_that_glassloop_can_do() -> None:
    for name, given, named, portable in (
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
    ):
        assert is_portable(f"glassloop.{name}", given, named) is portable, (name, given, named)
