"""Every kind of source leads to the same checked examples; the cache is used exactly when nothing has changed."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

import glassloop
from glassloop.base.errors import DataError, SettingsError
from glassloop.data import sources
from glassloop.data.columns import LabelSet
from glassloop.data.sources import load_dataset, load_examples
from glassloop.runs.record import Columns
from glassloop.settings.training import CLASSES, SCORE, DataSettings

pytestmark = pytest.mark.usefixtures("fresh_cache")
SIZES = {"train": 12, "validation": 4, "test": 4}
SPLITS = {
    split: [{"text": f"{split} text {place}, and more", "label": "ba"[place % 2]} for place in range(size)]
    for split, size in SIZES.items()
}
WANTED = {split: [{**row, "label": "ab".index(row["label"])} for row in rows] for split, rows in SPLITS.items()}
NAME_SPLITS = "name the splits train, validation and test"
OTHERWISE = "use a file, a folder, glue/mrpc, quickstart, or a hub data set (owner/name)"


def as_csv(rows: list[dict], delimiter: str = ",") -> bytes:
    opened = io.StringIO(newline="")
    writer = csv.DictWriter(opened, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return opened.getvalue().encode()


def as_parquet(rows: list[dict]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


FORMATS: dict[str, Callable[[list[dict]], bytes]] = {
    ".csv": as_csv,
    ".tsv": lambda rows: as_csv(rows, "\t"),
    ".jsonl": as_lines,
    ".ndjson": as_lines,
    ".json": lambda rows: json.dumps(rows).encode(),
    ".parquet": as_parquet,
}


def folder_of(folder: Path, names: dict[str, str], suffix: str = ".csv") -> Path:
    folder.mkdir()
    for split, name in names.items():
        (folder / f"{name}{suffix}").write_bytes(FORMATS[suffix.lower()](SPLITS[split]))
    return folder


def dataset_of(rows: list[dict], names: list[str] | None = None) -> Dataset:
    if names is None:
        return Dataset.from_list(rows)
    numbered = [{**row, "label": names.index(row["label"])} for row in rows]
    return Dataset.from_list(numbered, features=Features({"text": Value("string"), "label": ClassLabel(names=names)}))


def check(found: glassloop.Examples) -> None:
    assert {split: rows.to_list() for split, rows in found.splits.items()} == WANTED
    assert list(found.splits) == list(SIZES)
    assert (found.columns, found.task) == (Columns("text", None, ("label",)), CLASSES)
    assert found.labels == LabelSet(("a", "b"))
    assert all(split.features["label"] == ClassLabel(names=["a", "b"]) for split in found.splits.values())
    assert all(split.cache_files for split in found.splits.values())
    assert found.notes == []


# --- every kind of source ----------------------------------------------------------------------------------------
def test_folders_of_every_format_and_every_name_of_a_split(tmp_path):
    for suffix in FORMATS:
        check(load_examples(folder_of(tmp_path / suffix, {split: split for split in SPLITS}, suffix)))
    train = ["train", "training", "Train", "TRAINING", "train", "train"]
    for names in zip(train, ["dev", "val", "valid", "validation", "eval", "Dev"], ["test"] * 6, strict=True):
        folder = folder_of(tmp_path / names[1], dict(zip(SPLITS, names, strict=True)), ".CSV")
        (folder / "notes.txt").write_text("ignored")
        (folder / "extra.csv").write_text("ignored")
        check(load_examples(str(folder)))


@pytest.mark.parametrize("pattern", ["train-0000{}-of-00003", "train_{}", "train.{}"])
def test_shards_are_read_one_after_the_other(pattern, tmp_path):
    for suffix in (".parquet", ".csv", ".jsonl"):
        folder = folder_of(tmp_path / suffix, {"validation": "validation", "test": "test-00000-of-00001"}, suffix)
        for place, rows in enumerate((SPLITS["train"][:5], SPLITS["train"][5:6], SPLITS["train"][6:])):
            (folder / (pattern.format(place) + suffix)).write_bytes(FORMATS[suffix](rows))
        check(load_examples(folder))


def test_shards_may_order_their_columns_but_not_change_them(tmp_path, refused, write):
    folder = folder_of(tmp_path / "d", {"validation": "validation", "test": "test"})
    (folder / "train-0.csv").write_bytes(as_csv(SPLITS["train"][:5]))
    (folder / "train-1.csv").write_bytes(as_csv([{"label": row["label"], "text": row["text"]} for row in SPLITS["train"][5:]]))
    check(load_examples(folder))
    (folder / "train-1.csv").write_bytes(as_csv([{"text": "a", "tone": "b"}]))
    found = "text (string), label (string) and text (string), tone (string)"
    remedy = "give all rows the same columns and types of values"
    with refused(f"train: the columns are not the same in all rows: {found}", remedy):
        load_examples(folder)
    path = write("a.csv", rows_text(20) + "one field\n" + rows_text(20, 20).partition("\n")[2])
    found = load_examples(path, bad_rows="skip")
    assert sum(fact.num_rows for fact in found.facts.values()) == 40
    note = found.notes[0]
    assert note.startswith("skipped 1 row that cannot be read; ")
    listing = Path(note.removeprefix("skipped 1 row that cannot be read; ").removesuffix(" lists them"))
    assert listing.read_text() == ('file,row,problem\na.csv,22,"the row has 1 fields, but the header has 2 (text, label)"\n')
    path = write("a.csv", "text,label\na,x\nonly\nb,y\nonly\n,x\nc,y\n")
    with refused('a.csv, row 6: "text" is empty', "fill or remove the rows, or keep them with --empty keep"):
        load_examples(path, bad_rows="skip")


OBJECTS: dict[str, Callable[[list[dict]], Any]] = {
    "lists": lambda rows: rows,
    "frames": pd.DataFrame,
    "datasets": dataset_of,
    "class labels": lambda rows: dataset_of(rows, ["a", "b"]),
}


def test_objects_by_split_and_one_file_whose_validation_rows_are_cut_off(write):
    for make in OBJECTS.values():
        for validation in ["validation", "dev"]:
            names = {"train": "train", validation: "validation", "test": "test"}
            check(load_examples({name: make(SPLITS[split]) for name, split in names.items()}))
    for suffix in FORMATS:
        found = load_examples(write(f"reviews{suffix}", FORMATS[suffix](SPLITS["train"])))
        assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 10, "validation": 2}
        assert found.notes[0] == "no validation split: held out 2 of 12 training rows (stratified, split_seed 42)"


def test_the_quickstart_and_data_sets_in_memory_and_on_disk(tmp_path):
    whole = DatasetDict({split: dataset_of(rows) for split, rows in SPLITS.items()})
    check(load_examples(whole))
    whole.save_to_disk(tmp_path / "whole")
    check(load_examples(tmp_path / "whole"))
    found = load_examples("quickstart", rows=60)
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 60, "validation": 10, "test": 10}
    assert (found.columns.texts, found.labels) == (("sentence1", "sentence2"), LabelSet(("different", "same")))
    assert load_examples(rows=60).facts == found.facts != load_examples(rows=60, split_seed=1).facts


@pytest.mark.parametrize("kind", OBJECTS)
def test_one_object_is_training(kind, tmp_path, write):
    found = load_examples(OBJECTS[kind](SPLITS["train"]))
    from_file = load_examples(write("d.csv", as_csv(SPLITS["train"])))
    assert [*found.splits] == [*from_file.splits]
    assert all(rows.to_list() == from_file.splits[name].to_list() for name, rows in found.splits.items())
    assert found.facts == from_file.facts
    if kind == "datasets":
        dataset_of(SPLITS["train"]).save_to_disk(tmp_path / "one")
        assert load_examples(tmp_path / "one").facts == found.facts


# --- labels of features ------------------------------------------------------------------------------------------
def test_class_labels_keep_their_numbers_and_meet_by_name(tmp_path, refused):
    for names in [["b", "a"], ["z", "a", "b"], ["1", "2", "3"], ["2", "1", "0"], ["yes", "1"]]:
        for saved in [False, True]:
            rows = [{"text": f"text {place}", "label": names[place % len(names)]} for place in range(12)]
            data: Any = DatasetDict(train=dataset_of(rows, names), validation=dataset_of(rows[:1], names))
            if saved:
                data.save_to_disk(tmp_path / names[0])
                data = tmp_path / names[0]
            found = load_examples(data)
            assert found.labels == LabelSet(tuple(names))
            assert found.splits["train"]["label"][:] == [place % len(names) for place in range(12)]
            assert found.splits["validation"]["label"][:] == [0]
    train = dataset_of(SPLITS["train"], ["b", "a"])
    found = load_examples({"train": train, "validation": dataset_of(SPLITS["validation"], ["a", "x", "b"])})
    assert found.labels == LabelSet(("b", "a"))
    assert found.splits["validation"]["label"][:] == [0, 1, 0, 1]
    with refused('validation, row 1: label "x" is not one of b, a', "fix the row, or add the label to --labels"):
        load_examples({"train": train, "validation": dataset_of([{"text": "t", "label": "x"}], ["x"])})


# --- split= and the public name ----------------------------------------------------------------------------------
def test_load_dataset_gives_all_splits_or_one(refused):
    assert glassloop.load_dataset is load_dataset
    whole = load_dataset(SPLITS)
    assert isinstance(whole, DatasetDict)
    assert load_dataset(SPLITS, split="test").to_list() == whole["test"].to_list() == WANTED["test"]
    assert load_dataset(SPLITS, None, split="train", text="text", label="label").to_list() == WANTED["train"]
    problem = 'there is no split "validaton"; did you mean "validation"?'
    with refused(problem, "use one of train, validation, test", SettingsError):
        load_dataset(SPLITS, split="validaton")


# --- the cache ---------------------------------------------------------------------------------------------------
def never(*_: Any) -> None:
    raise AssertionError("the rows were read again")


@pytest.mark.parametrize("kind", ["file", "folder", "object"])
def test_the_second_load_comes_from_the_cache(kind, tmp_path, write, monkeypatch):
    source: Any = SPLITS
    if kind == "file":
        source = write("d.csv", as_csv(SPLITS["train"]))
    elif kind == "folder":
        source = folder_of(tmp_path / "d", {split: split for split in SPLITS})
    first = load_examples(source)
    monkeypatch.setattr(sources, "prepare", never)
    second = load_examples(str(source) if isinstance(source, Path) else source)
    assert all(getattr(second, name) == getattr(first, name) for name in ("columns", "task", "labels", "facts", "notes"))
    assert all(second.splits[name].to_list() == rows.to_list() for name, rows in first.splits.items())
    for settings in ({"split_seed": 3}, {"labels": "b,a"}, {"validation_share": 0.5}, {"label_separator": "|"}):
        with pytest.raises(AssertionError, match="read again"):
            load_examples(source, **settings)
    monkeypatch.setattr(sources, "code_key", lambda: "changed")
    with pytest.raises(AssertionError, match="read again"):
        load_examples(source)


def test_the_content_decides_not_the_name(write, monkeypatch):
    load_examples(write("d.csv", as_csv(SPLITS["train"])))
    monkeypatch.setattr(sources, "prepare", never)
    load_examples(write("elsewhere/other.csv", as_csv(SPLITS["train"])))
    with pytest.raises(AssertionError, match="read again"):
        load_examples(write("d.csv", as_csv([*SPLITS["train"][:-1], {"text": "new", "label": "a"}])))
    with pytest.raises(AssertionError, match="read again"):
        load_examples({"train": SPLITS["train"]})


def test_glue_files_may_be_moved(tmp_path, monkeypatch):
    header = "index\tsentence1\tsentence2\tlabel\n"
    for place in ("one", "two"):
        for name in ("train", "dev", "test"):
            path = tmp_path / place / "RTE" / f"{name}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{header}0\ta\tb\tentailment\n1\tc\td\tnot_entailment\n")
    load_examples("glue/rte", data_dir=str(tmp_path / "one"))
    monkeypatch.setattr(sources, "prepare", never)
    load_examples("glue/rte", data_dir=str(tmp_path / "two"))


def test_objects_that_differ_only_in_names_or_features_are_other_entries(write):
    rows = SPLITS["train"]
    assert load_examples(rows).columns.text == "text"
    assert load_examples([{"sentence": row["text"], "label": row["label"]} for row in rows]).columns.text == "sentence"
    assert load_examples(dataset_of(rows, ["a", "b"])).labels == LabelSet(("a", "b"))
    assert load_examples(dataset_of(rows, ["b", "a"])).labels == LabelSet(("b", "a"))
    assert load_examples(dataset_of(rows, ["b", "a", "c"])).labels == LabelSet(("b", "a", "c"))
    numbers = [{"text": row["text"], "label": place % 2} for place, row in enumerate(rows)]
    assert load_examples(numbers).labels == LabelSet(("0", "1"))
    assert load_examples(numbers, task=SCORE).task == SCORE
    content = 'text,label\n"a",x\n"b",y\n"c",x\n"d",y\n'
    for name, first in {"d.csv": "a", "d.tsv": '"a"'}.items():
        found = load_examples(write(name, content), delimiter=",", validation_share=0.5)
        assert first in [*found.splits["train"]["text"], *found.splits["validation"]["text"]]
    for split in ("validation", "test"):
        assert split in load_examples({"train": SPLITS["train"], split: SPLITS["test"]}).splits


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_file_that_changes_while_it_is_read_is_refused(suffix, write, fresh_cache, monkeypatch, refused):
    path = write(f"d{suffix}", FORMATS[suffix](SPLITS["train"]))
    read = sources.read_file

    def read_and_change(*given: Any) -> Any:
        path.write_bytes(FORMATS[suffix](SPLITS["train"][:-1]))
        return read(*given)

    with monkeypatch.context() as patched:
        patched.setattr(sources, "read_file", read_and_change)
        with refused(f'"{path}": changed while it was read', "try again when no other program writes to it"):
            load_examples(path)
    assert list((fresh_cache / "data").iterdir()) == []
    assert sum(fact.num_rows for fact in load_examples(path).facts.values()) == SIZES["train"] - 1


def test_a_fault_leaves_nothing_in_the_cache(fresh_cache, monkeypatch, refused):
    with pytest.raises(DataError):
        load_examples([{"text": "", "label": "a"}])
    assert [path for path in fresh_cache.rglob("*") if path.is_file()] == []
    assert list((fresh_cache / "data").iterdir()) == []
    rows = [dict(row) for row in SPLITS["train"]]
    prepare = sources.prepare

    def change_and_prepare(*given: Any) -> None:
        rows[0]["text"] = "another"
        prepare(*given)

    monkeypatch.setattr(sources, "prepare", change_and_prepare)
    with refused("the data set returned different rows when it was read again", "use data that does not change"):
        load_examples(rows)


# --- what is refused ---------------------------------------------------------------------------------------------
def test_names_that_are_neither_settings_files_tasks_nor_hub_names(refused):
    remedy = f"use one of {', '.join(field.name for field in fields(DataSettings))}"
    with refused('unknown setting "lable"; did you mean "label"?; unknown setting "x"', remedy, SettingsError):
        load_examples(SPLITS, lable="x", x=1)
    for name in ("no/such/folder", "reviews.csv", ".hidden", "a..b"):
        with refused(f'"{name}": there is no such file or folder', OTHERWISE):
            load_examples(name)
    with refused(f'"{"x" * 199}…": there is no such file or folder', OTHERWISE):
        load_examples("x" * 5000)
    remedy = (
        "name one: glue/mrpc, or any of cola, sst2, mrpc, stsb, qqp, mnli, mnli_matched, mnli_mismatched, qnli, rte, wnli, ax"
    )
    for path in ("glue", "glue/"):
        with refused("glue is a collection of tasks", remedy):
            load_examples(path)


def test_files_that_are_not_there_links_to_nothing_and_files_of_other_kinds(tmp_path, write, refused):
    write("train.csv", as_csv(SPLITS["train"]))
    offers = {"trian.csv": '; did you mean "train.csv"?', "other.parquet": "", "./nowhere/at/all": "", "a b": ""}
    for name, near in offers.items():
        with refused(f'"{tmp_path / name}": there is no such file or folder{near}', OTHERWISE):
            load_examples(tmp_path / name)
    for name, target in {"broken.csv": "nowhere.csv", "loop.csv": "loop.csv"}.items():
        (tmp_path / name).symlink_to(tmp_path / target)
        with refused(f'"{tmp_path / name}": is a broken link', OTHERWISE):
            load_examples(tmp_path / name)
    remedy = "use one of .csv, .tsv, .txt, .json, .jsonl, .ndjson, .parquet, .xlsx, .xls, .ods, or one of these with "
    remedy += ".gz, .bz2, .xz, .zst, .zip"
    for name in ["d.doc", "d.gz", "d.pdf.gz", "d"]:
        with refused(f"{name}: this file format is not supported", remedy):
            load_examples(write(name, "text,label\n"))


def test_folders_and_splits_in_doubt(tmp_path, refused):
    folder = tmp_path / "d"
    folder.mkdir()
    remedy = "name the files by split: train.csv, validation.csv, test.csv; or use one file instead of the folder"
    with refused(f"{folder}: there is no file named train (found no data file)", remedy):
        load_examples(folder)
    for name in ("a.csv", "test.csv"):
        (folder / name).touch()
    with refused(f"{folder}: there is no file named train (found a.csv, test.csv)", remedy):
        load_examples(folder)
    (folder / "train.csv").touch()
    for other in ("train.tsv", "train-1.csv", "training.csv"):
        (folder / other).touch()
        found = ", ".join(sorted(("train.csv", other)))
        with refused(f"{folder}: several files could be the train split: {found}", "keep one"):
            load_examples(folder)
        (folder / other).unlink()
    (folder / "dev.csv").touch()
    (folder / "validation.csv").touch()
    with refused(f"{folder}: several files could be the validation split: dev.csv, validation.csv", "keep one"):
        load_examples(folder)
    for splits, problem, remedy in [
        ("", "the data set has no splits", "add at least one split"),
        ("train dev validation", "several splits could be the validation split; found train, dev, validation", NAME_SPLITS),
        ("train ../up", '"../up" cannot be the name of a split; found train, ../up', NAME_SPLITS),
    ]:
        with refused(problem, remedy):
            load_examples(dict.fromkeys(splits.split(), SPLITS["train"]))


# --- the hub -----------------------------------------------------------------------------------------------------
@pytest.fixture
def hub(monkeypatch):
    """A hub that is there and gives what was put into `hub.gives`; it remembers what it was asked for."""

    there = SimpleNamespace(gives=None, asked=[])
    monkeypatch.setattr(sources, "hub_unreachable", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *given: there.asked.append(given) or there.gives)
    return there


def test_a_data_set_of_the_hub_is_checked_like_any_other(hub, refused):
    hub.gives = DatasetDict({split: dataset_of(rows, ["a", "b"]) for split, rows in SPLITS.items()})
    check(load_examples("owner/name", name="en"))
    check(load_examples("name"))
    assert hub.asked == [("owner/name", "en"), ("name", None)]
    hub.gives = DatasetDict(train=dataset_of([{"text": "", "label": "a"}]))
    with refused('train, row 1: "text" is empty', "fill or remove the rows, or keep them with --empty keep"):
        load_examples("owner/name")


@pytest.mark.parametrize(("path", "name"), [("glue", "rte"), ("glue/rte", None)])
def test_glue_from_the_hub(path, name, hub, refused):
    names = ["entailment", "not_entailment"]
    text = Value("string")
    features = Features({"sentence1": text, "sentence2": text, "label": ClassLabel(names=names), "idx": Value("int32")})
    rows = [{"sentence1": f"a {place}", "sentence2": "b", "label": place % 2, "idx": place} for place in range(4)]
    secret = [{**row, "sentence1": "new", "label": -1} for row in rows]
    given = {"train": rows, "validation": rows[::-1], "test": secret}
    hub.gives = DatasetDict({split: Dataset.from_list(part, features=features) for split, part in given.items()})
    found = load_examples(path, name=name)
    assert hub.asked == [("nyu-mll/glue", "rte")]
    assert {split: part.to_list() for split, part in found.splits.items()} == given
    assert found.splits["train"].features == features
    assert (found.labels, found.task, found.facts["test"].unlabelled) == (LabelSet(tuple(names)), CLASSES, True)


def test_a_saved_folder_with_a_pipe_is_not_waited_for(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(datasets, "load_from_disk", lambda folder: pytest.fail("it would wait forever"))
    dataset_of(SPLITS["train"]).save_to_disk(tmp_path / "d")
    rows = next((tmp_path / "d").glob("*.arrow"))
    rows.unlink()
    os.mkfifo(rows)
    with refused(f"{rows} is a pipe, not a file", "write the rows to a file, for example data.csv, and use that file"):
        load_examples(tmp_path / "d")


# --- files of other splits, and a limit --------------------------------------------------------------------------
def rows_text(number: int, start: int = 0) -> str:
    return "text,label\n" + "".join(f"text {row},{'ab'[row % 2]}\n" for row in range(start, start + number))


def test_files_of_other_splits_are_named_and_columns_joined(write):
    train, validation, test = (write(f"{start}.csv", rows_text(10, start)) for start in (0, 10, 20))
    found = load_examples(train, validation=str(validation), test=str(test))
    assert {name: fact.num_rows for name, fact in found.facts.items()} == {"train": 10, "validation": 10, "test": 10}
    assert found.splits["validation"]["text"][0] == "text 10"
    assert not found.notes
    only = load_examples(train, test=str(test))
    assert [*only.facts] == ["train", "validation", "test"]  # one is held out
    path = write("a.csv", "title,body,label\n" + "".join(f"t{row},{'' if row == 3 else 'b'},{row % 2}\n" for row in range(12)))
    found = load_examples(path, text="title,body", validation_share=0)
    assert found.columns.text == "title,body"
    assert found.splits["train"]["title,body"][2:4] == ["t2\nb", "t3"]
    again = load_examples(path, text=("title", "body"), validation_share=0)
    assert again.facts["train"].fingerprint == found.facts["train"].fingerprint


def test_files_of_other_splits_and_their_shards_are_refused_where_they_are_in_doubt(write, tmp_path, refused):
    file = write("folder/train.csv", rows_text(10))
    write("folder/dev.csv", rows_text(10))
    remedy = "omit --validation, or name the file of the training rows instead of the folder"
    with refused(f"{file.parent}: there is a validation split in the folder (dev.csv)", remedy, SettingsError):
        load_examples(file.parent, validation=str(file))
    with refused(f'--test "{tmp_path}/gone.csv": there is no such file', "check the path"):
        load_examples(file, test=str(tmp_path / "gone.csv"))
    problem = 'columns, validation applies only to files, and "quickstart" is not a file'
    with refused(problem, "omit columns, validation", SettingsError):
        load_examples("quickstart", validation=str(file), columns="a,b")
    with refused("bad_rows applies only to files, and this data is not a file", "omit bad_rows", SettingsError):
        load_examples(SPLITS, bad_rows="skip")
    with refused("rows applies only to the quickstart data, which is generated", "omit rows", SettingsError):
        load_examples(file, rows=100)
    folder = folder_of(tmp_path / "d", {"validation": "validation"})
    for place, rows in enumerate((SPLITS["train"][:5], [{"text": "a", "label": "b"}, {"text": "", "label": "a"}])):
        (folder / f"train-0000{place}-of-00002.csv").write_bytes(as_csv(rows))
    with refused('train-00001-of-00002.csv, row 3: "text" is empty', "fill or remove the rows, or keep them with --empty keep"):
        load_examples(folder)


def test_a_limit_draws_rows_of_every_split_after_the_split_was_decided(write):
    path = write("a.csv", rows_text(400))
    whole, small, again = load_examples(path), load_examples(path, limit=30), load_examples(path, limit=30)
    assert {name: fact.num_rows for name, fact in small.facts.items()} == {"train": 30, "validation": 30}
    assert [fact.fingerprint for fact in small.facts.values()] == [fact.fingerprint for fact in again.facts.values()]
    for name in ("train", "validation"):
        assert {*small.splits[name]["text"]} < {*whole.splits[name]["text"]}
        numbers = [int(text.split()[1]) for text in small.splits[name]["text"]]
        assert numbers == sorted(numbers)
    assert load_examples(path, limit=30, split_seed=7).splits["train"]["text"] != small.splits["train"]["text"]
    assert "train: 30 of 360 rows, drawn at random (limit, split_seed 42)" in small.notes
    assert load_examples(path, limit=1000).facts == whole.facts
