"""Python objects and the hub as tables: label numbers always become names, and the network is asked once and briefly."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter

from glassloop.data import sources as objects
from glassloop.data.columns import Known
from glassloop.data.sources import ObjectSplit, hub_splits

ROWS = [{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}, {"text": "e f", "label": "x"}]
SET = Dataset.from_list(ROWS)


def rows_of(data: Any, label: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    split = ObjectSplit("train", data, label)
    first, second = ([row for table in split.tables() for row in table.to_pylist()] for _ in range(2))
    assert first == second  # as often as asked for
    return first


def class_labels(names: list[str], numbers: list, kind=None, **others: list[str]) -> Dataset:
    """A data set whose column `label` holds numbers of names; other columns of names may come with it."""
    features = {"text": Value("string"), "label": kind or ClassLabel(names=names)}
    columns = {"text": [f"text {place}" for place in range(len(numbers))], "label": numbers}
    for other, other_names in others.items():
        features[other] = ClassLabel(names=other_names)
        columns[other] = [0] * len(numbers)
    return Dataset.from_dict(columns, features=Features(features))


def test_every_kind_of_object_gives_the_same_rows(refused):
    for data in [
        *[ROWS, pd.DataFrame(ROWS), pd.DataFrame(ROWS, index=[9, 9, 4]), pd.DataFrame(ROWS).astype({"label": "category"})],
        *[pd.DataFrame(ROWS).astype(object), SET, Dataset.from_list(ROWS[::-1]).select([2, 1, 0]), SET.with_format("torch")],
        SET.cast_column("label", ClassLabel(names=["y", "x"])),
    ]:
        assert rows_of(data) == ROWS
    with refused('train, row 2: key "lable" is not in the first row (text, label)', "give every row the same keys"):
        rows_of([ROWS[0], {"text": "a", "lable": "x"}])
    with refused('train, row 2: not an object: "a b"', 'write {"text": …, "label": …}'):
        rows_of([ROWS[0], "a b"])
    frame = pd.DataFrame({"text": ["a", None, "nan"], "label": [1, 2, float("nan")]})
    assert rows_of(frame) == [{"text": "a", "label": 1}, {"text": None, "label": 2}, {"text": "nan", "label": None}]


def test_frames_that_are_no_table_and_other_objects_are_refused(refused):
    for frame, problem in [
        (pd.DataFrame({"text": ["a", "b"], "label": [1, "x"]}), "train: Conversion failed for column label with type object: "),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "train: Duplicate column names found: ['text', 'text']"),
    ]:
        with pytest.raises(objects.DataError) as caught:
            ObjectSplit("train", frame)
        assert caught.value.problem.startswith(problem)
        assert caught.value.remedy == "use one type of value and a different name for each column"
    remedy = "pass a datasets.Dataset or DatasetDict, a frame, a list of dicts, or a dict of those by split"
    for data in [5, {"a"}, None, Dataset.from_list(ROWS).to_iterable_dataset()]:
        with refused(f"data of the type {type(data).__name__} cannot be read", remedy):
            ObjectSplit("train", data)


@pytest.mark.parametrize("chunk_rows", [2, 10_000])
@pytest.mark.parametrize(
    ("numbers", "kind", "wanted"),
    [
        ([0, 1, 2, 1, 0], None, ["z", "1", "a", "1", "z"]),
        ([0, -1, None, 2, 1], None, ["z", "-1", None, "a", "1"]),
        ([[0, 2], [], None, [1], [2]], List(ClassLabel(names=["z", "1", "a"])), [["z", "a"], [], None, ["1"], ["a"]]),
        ([[0, 2], [1, 1]] * 2, List(ClassLabel(names=["z", "1", "a"]), length=2), [["z", "a"], ["1", "1"]] * 2),
    ],
)
def test_numbers_become_names(numbers, kind, wanted, chunk_rows, monkeypatch):
    monkeypatch.setattr(objects.readers, "CHUNK_ROWS", chunk_rows)
    data = class_labels(["z", "1", "a"], numbers, kind)
    assert [row["label"] for row in rows_of(data)] == wanted
    assert [row["label"] for row in rows_of(data.select(range(1, 4)))] == wanted[1:4]
    assert ObjectSplit("train", data).known == Known(label="label", label_names=("z", "1", "a"))


def test_names_are_known_by_the_usual_name_and_columns_are_those_that_a_format_chooses():
    for others, wanted, known in [
        ({}, (), Known(label="label", label_names=("b", "a"))),
        ({"lang": ["de", "en"]}, (), Known(label="label", label_names=("b", "a"))),  # the usual name decides
        ({"lang": ["de", "en"]}, ("label",), Known(label="label", label_names=("b", "a"))),
        ({"lang": ["de", "en"]}, ("lang",), Known(label="lang", label_names=("de", "en"))),
        ({"target": ["x", "y"]}, (), Known()),  # two usual names: a doubt
        ({}, ("text",), Known()),
        ({"lang": ["de", "en"]}, ("label", "lang"), Known()),
    ]:
        assert ObjectSplit("train", class_labels(["b", "a"], [0, 1], **others), wanted).known == known
    data = Dataset.from_list([{"text": "one", "label": "a", "secret": "x"}, {"text": "two", "label": "b", "secret": "y"}])
    chosen = rows_of(data.with_format("numpy", columns=["text", "label"]))
    assert chosen == [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    loud = data.with_transform(lambda batch: {"text": [text.upper() for text in batch["text"]], "label": batch["label"]})
    assert rows_of(loud) == [{"text": "ONE", "label": "a"}, {"text": "TWO", "label": "b"}]
    data = class_labels(["b", "a"], [0, 1])
    assert ObjectSplit("train", data.with_format(columns=["text"])).known == Known()
    data = class_labels(["b", "a"], [0, 1]).rename_column("label", "tone")
    assert ObjectSplit("train", data).known == Known(label="tone", label_names=("b", "a"))
    assert ObjectSplit("train", data.add_column("label", [1, 2])).known == Known()
    assert ObjectSplit("train", ROWS).known == Known()


# --- the hub -----------------------------------------------------------------------------------------------------
@pytest.fixture
def empty_hub_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_an_unreachable_hub_or_what_it_refuses_is_reported_at_once(empty_hub_cache, monkeypatch, refused):
    monkeypatch.setattr(objects, "hub_unreachable", lambda: "no route to host")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: pytest.fail("the hub was asked"))
    files = " or the original files with --data_dir (or GLASSLOOP_DATA)"
    for name, local in {"owner/name": "", "name": "", "nyu-mll/glue": files}.items():
        problem = f"{name}: the hub cannot be reached (no route to host), and its cache has no copy"
        with refused(problem, f"work offline with a local file or folder{local}, or with quickstart"):
            hub_splits(name, None)
    monkeypatch.setattr(objects, "hub_unreachable", lambda: None)
    for error in [datasets.exceptions.DatasetNotFoundError("it is not there\nand more"), ValueError("it is not there\n")]:
        monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=error))
        with refused("owner/name: it is not there", "check the name on the hub; --name chooses a configuration"):
            hub_splits("owner/name", None)


def test_a_closed_network_is_noticed_before_the_library_asks(empty_hub_cache, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://192.0.2.1")  # an address for documentation: no one is there
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: pytest.fail("the hub was asked"))
    with pytest.raises(objects.DataError, match="owner/name: the hub cannot be reached"):
        hub_splits("owner/name", None)


@pytest.mark.parametrize(("name", "folder"), [("owner/my_set", "owner___my_set"), ("Owner/MySet", "Owner___my_set")])
def test_a_copy_in_the_cache_of_the_hub_is_used_offline(name, folder, empty_hub_cache, monkeypatch):
    monkeypatch.setattr(objects, "hub_unreachable", lambda: "no route to host")
    place = empty_hub_cache / folder / "default" / "0.0.0" / "abc"
    place.mkdir(parents=True)
    features = class_labels(["y", "x"], [0]).features
    with ArrowWriter(features=features, path=str(place / "my_set-train.arrow")) as writer:
        writer.write_batch({"text": [row["text"] for row in ROWS], "label": ["yx".index(row["label"]) for row in ROWS]})
        writer.finalize()
    splits = {"train": {"name": "train", "num_bytes": 1, "num_examples": 3, "dataset_name": "my_set"}}
    info = datasets.DatasetInfo(features=features, config_name="default", version="0.0.0", splits=splits)
    info.builder_name, info.dataset_name = "parquet", "my_set"
    info.write_to_directory(str(place))
    before = datasets.config.HF_HUB_OFFLINE
    assert rows_of(hub_splits(name, None)["train"]) == ROWS
    assert before == datasets.config.HF_HUB_OFFLINE
