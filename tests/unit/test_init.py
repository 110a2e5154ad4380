"""The package: its public names are frozen here, and importing it costs nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import glassloop

PUBLIC = """
    AccelerateBackend AdamW Batch Batches Callback DataSettings Encoding EvalPrediction Evaluation Examples
    GlassloopError LabelSet PaddingCollator PlainBackend Plan Predictor Run RunSettings SeedRecord SeedsRecord State
    Study StudyRecord Trainer TrainingArguments __version__ decide encode epoch_order fit load_dataset load_examples
    load_metric load_model load_tokenizer make_loss make_optimizer make_scheduler metrics_for padding_waste
    quickstart_model resume_seeds run_over seed_all train_seeds train_step
""".split()
HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "rich", "accelerate", "sklearn", "scipy", "pandas", "typer")


def test_the_public_names_are_these_their_imports_for_type_checkers_too_and_the_version_is_one() -> None:
    assert sorted(glassloop.__all__) == PUBLIC
    assert dir(glassloop) == PUBLIC
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", glassloop.__version__)
    text = Path(glassloop.__file__).read_text()
    seen = re.findall(r"from glassloop\.([\w.]+) import (\w+) as (\w+)", text)  # under TYPE_CHECKING
    assert {name: module for module, name, _ in seen} == glassloop.PUBLIC
    assert all(name == alias for _, name, alias in seen)
    names: dict[str, object] = {}
    exec("from glassloop import *", names)
    assert {*PUBLIC} <= {*names}


def test_every_public_name_is_there_and_has_something_to_say() -> None:
    for name in PUBLIC:
        thing = getattr(glassloop, name)
        if name != "__version__":
            assert thing.__name__ == name
            assert thing.__doc__, f"{name} has no docstring"
            assert thing.__module__ == f"glassloop.{glassloop.PUBLIC[name]}", "a name is looked up where it lives"


def test_an_unknown_name_is_an_attribute_error_and_cannot_be_imported() -> None:
    for name in ["Trainor", "torch", "import_module_", "_private", "load_dateset"]:
        with pytest.raises(AttributeError, match=f"^module 'glassloop' has no attribute '{name}'$"):
            getattr(glassloop, name)
        assert not hasattr(glassloop, name)
    with pytest.raises(ImportError, match="cannot import name 'Trainor' from 'glassloop'"):
        exec("from glassloop import Trainor")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import glassloop; dir(glassloop); hasattr(glassloop, 'nothing')", HEAVY),
        ("from glassloop import DataSettings, GlassloopError, TrainingArguments", HEAVY),
        ("from glassloop import Run, quickstart_model", ("torch", "transformers", "datasets")),
        ("from glassloop import Study, train_seeds", ("torch", "transformers", "datasets")),
    ],
)
def test_what_needs_nothing_heavy_loads_nothing_heavy(code: str, absent: tuple[str, ...]) -> None:
    asked = f"{code}\nimport sys; print('loaded', *sys.modules)"
    out = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    loaded = {*out.rpartition("loaded ")[2].split()}
    assert "glassloop" in loaded
    assert not loaded & {*absent}
