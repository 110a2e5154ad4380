"""The package: its public names are frozen here, and importing it costs nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

import glassloop

PUBLIC = """
    AccelerateBackend AdamW Batch Batches Callback DataSettings Encoding EvalPrediction Evaluation Examples
    GlassloopError LabelSet PaddingCollator PlainBackend Plan Predictor Run RunSettings SeedRecord SeedsRecord State
    Study StudyRecord Trainer TrainingArguments __version__ decide encode epoch_order fit load_dataset load_examples
    load_metric load_model load_tokenizer make_loss make_optimizer make_scheduler metrics_for padding_waste
    quickstart_model resume_seeds run_over seed_all train train_seeds train_step
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


# Reads files of each format, trains, evaluates, predicts and writes the report. The last line names the packages it loaded.
USES = r"""
import importlib.abc, json, sys
class Guard(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe() if name == "pandas" else None
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith("sklearn."):
                raise ModuleNotFoundError(name)  # scikit-learn asks for it, and needs it only for frames
            frame = frame.f_back
sys.meta_path.insert(0, Guard())
import pyarrow as pa, pyarrow.parquet as pq
from glassloop import load_examples
from glassloop.cli.main import main
from glassloop.data.rows import arrow_array
model, folder = sys.argv[1:]
rows = [(f"{'very ' * (row % 6)}{'good' if row % 3 else 'bad'} film {row}", "yes" if row % 3 else "no") for row in range(40)]
for name, sign in (("rows.csv", ","), ("rows.tsv", "\t")):
    with open(f"{folder}/{name}", "w") as opened:
        opened.writelines(f"{sign.join(cells)}\n" for cells in [("text", "label"), *rows])
with open(f"{folder}/several.jsonl", "w") as opened:
    opened.writelines(json.dumps({"text": text, "label": [label, "film"]}) + "\n" for text, label in rows)
with open(f"{folder}/scores.jsonl", "w") as opened:
    opened.writelines(json.dumps({"text": text, "label": row / 7}) + "\n" for row, (text, _) in enumerate(rows))
table = pa.table([arrow_array(cells, pa.string()) for cells in zip(*rows)], names=["text", "label"])
pq.write_table(table, f"{folder}/rows.parquet")
for name in ("rows.tsv", "several.jsonl", "scores.jsonl", "rows.parquet"):
    assert len([*load_examples(f"{folder}/{name}").rows["train"]]) == 36, name
run = f"{folder}/run"
for words in (
    ["train", f"{folder}/rows.csv", "--model", model, "--max_steps", "2", "--device", "cpu", "--output_dir", run],
    ["evaluate", run], ["predict", run, "--file", f"{folder}/rows.csv", "--out", f"{folder}/out.csv"], ["report", run],
):
    sys.argv = ["glassloop", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
print(json.dumps([name for name in ("torch", "pyarrow", "datasets", "pandas") if name in sys.modules]))
"""


def test_files_are_read_and_trained_on_without_datasets_and_pandas(lively_dir: Path, tmp_path: Path) -> None:
    """They take 0.4 seconds to import, and seconds on a slow disk."""
    command = [sys.executable, "-c", USES, str(lively_dir), str(tmp_path)]
    more = {"GLASSLOOP_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment(**more), capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["torch", "pyarrow"]
