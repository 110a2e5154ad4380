"""The data of the course notes, from the original files: the rows, ids, keys and shapes the notes print."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from glassloop import Batches, PaddingCollator, encode, load_dataset, load_examples, load_tokenizer
from glassloop.data.glue import MSR_FILES, USUAL_FILES

ROWS = {"train": 3668, "validation": 408, "test": 1725}


@pytest.fixture(params=["tsv", "msr"])
def one_form(request: pytest.FixtureRequest, glue_dir: Path, tmp_path: Path) -> Path:
    """A folder with MRPC in one of its two file forms only."""
    folder = tmp_path / request.param / "MRPC"
    folder.mkdir(parents=True)
    for name in USUAL_FILES.values() if request.param == "tsv" else MSR_FILES:
        shutil.copy(glue_dir / "MRPC" / name, folder)
    return folder.parent


def test_both_file_forms_give_the_rows_of_the_notes(one_form: Path, glue_dir: Path) -> None:
    splits = load_dataset("glue", "mrpc", data_dir=str(one_form))
    assert {name: split.num_rows for name, split in splits.items()} == ROWS
    assert splits["train"].column_names == ["sentence1", "sentence2", "label", "idx"]
    assert splits["train"].features["label"].names == ["not_equivalent", "equivalent"]
    reference = load_dataset("glue", "mrpc", data_dir=str(glue_dir))
    for name, split in splits.items():
        for column in ("sentence1", "sentence2"):
            assert split[column] == reference[name][column]
        if name != "test" or one_form.name == "msr":
            assert split["label"] == reference[name]["label"]
        else:
            assert set(split["label"]) == {-1}  # GLUE's own test.tsv has no labels


def test_rows_are_lines_less_one(glue_dir: Path) -> None:
    """Unbalanced quotes are characters like any other (scenario 33)."""
    splits = load_dataset("glue/mrpc", data_dir=str(glue_dir / "MRPC"))
    for split, name in USUAL_FILES.items():
        assert splits[split].num_rows == len((glue_dir / "MRPC" / name).read_text(encoding="utf-8").splitlines()) - 1
    assert sum(row.count('"') % 2 for row in splits["train"]["sentence1"]) > 0


def test_first_rows_are_those_of_the_notes_and_glassloop_data_names_the_folder(glue_dir: Path, monkeypatch) -> None:
    monkeypatch.setenv("GLASSLOOP_DATA", str(glue_dir.parent))
    splits = load_dataset("glue", "mrpc")
    assert splits["train"][0]["sentence1"].startswith("Amrozi accused his brother")
    assert splits["train"][0]["label"] == 1
    assert splits["train"][0]["idx"] == 0
    assert splits["validation"]["idx"][:3] == [9, 18, 25]  # rows of the original file, as on the hub


def test_a_batch_has_the_keys_and_shapes_of_the_notes(glue_dir: Path) -> None:
    tokenizer = load_tokenizer("quickstart")
    rows = encode(load_examples("glue/mrpc", data_dir=str(glue_dir)), tokenizer, 512)["train"].rows
    samples = rows[:8]
    lengths = [len(ids) for ids in samples["input_ids"]]
    assert lengths == [50, 59, 47, 67, 59, 50, 62, 32]
    batch = PaddingCollator(tokenizer)(samples)
    shapes = {key: tuple(value.shape) for key, value in batch.items()}
    assert shapes == dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (8, 67)) | {"labels": (8,)}
    assert batch["attention_mask"].sum(dim=1).tolist() == lengths
    assert all(value.dtype == torch.int64 for value in batch.values())
    assert len(Batches(rows, PaddingCollator(tokenizer), 8, seed=0)) * 3 == 1377
