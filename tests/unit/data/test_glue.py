"""The original GLUE files, every task in miniature, against what the hub gives for the same rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Features, Value

from glassloop.base.errors import DataError, SettingsError
from glassloop.data import readers as delimited
from glassloop.data import sources as objects
from glassloop.data.glue import GLUE_TASKS, find_glue_files, glue_task
from glassloop.data.sources import load_examples
from glassloop.settings.training import CLASSES, SCORE

Rows = list[tuple[Any, ...]]
INFERENCE, TWO = ["entailment", "neutral", "contradiction"], ["entailment", "not_entailment"]
MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI_DEV = "label1 label2 label3 label4 label5"
KEEP = "fill or remove the rows, or keep them with --empty keep"
STS_TRAIN = [("a", "b", 5.0, 0), ("c", 'd "', pytest.approx(0.2), 1)]
STS = "index genre filename year old_index source1 source2"
MSR = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]


def tsv(header: list[str] | str | None, rows: Rows, end: str = "\n") -> str:
    """The text of a file. The columns of the header that a row does not give hold their own name."""
    names = header.split() if isinstance(header, str) else header
    filled = [[*(names[: len(names) - len(row)] if names else []), *row] for row in rows]
    return "".join("\t".join(map(str, line)) + end for line in ([names] if names else []) + filled)


# What is in the files, and what each row must become: texts, label, idx.
FILES: dict[str, dict[str, str]] = {
    "cola": {
        "CoLA/train.tsv": tsv(None, [("gj04", 1, "", "They sing ."), ("gj04", 0, "*", 'Sing " they .'), ("x", 1, "", "Go .")]),
        "CoLA/dev.tsv": tsv(None, [("gj04", 0, "*", "Them sing .")]),
        "CoLA/test.tsv": tsv("index sentence", [(0, "She sings .")]),
    },
    "sst2": {
        "SST-2/train.tsv": tsv("sentence label", [("a fine film ", 1), ("dull", 0), ("a fine , fine film", 1)]),
        "SST-2/dev.tsv": tsv("sentence label", [("dull again", 0)]),
        "SST-2/test.tsv": tsv("index sentence", [(0, "so so"), (1, "the end")]),
    },
    "mrpc": {
        "MRPC/train.tsv": "\ufeff"
        + tsv(MSR, [(1, 5, 6, 'He said " yes .', "Yes , he said ."), (0, 7, 8, '"', 'a "b" c'), (1, 9, 10, "x", "y")], "\r\n"),
        "MRPC/dev.tsv": tsv(MSR, [(0, 11, 12, "dev one", "dev two")], "\r\n"),
        "MRPC/test.tsv": "\ufeff" + tsv(["index", *MSR[1:]], [(0, 13, 14, "test one", "test two")]),
    },
    "stsb": {
        "STS-B/train.tsv": tsv(f"{STS} sentence1 sentence2 score", [("a", "b", "5.000"), ("c", 'd "', "0.2")]),
        "STS-B/dev.tsv": tsv(f"{STS} sentence1 sentence2 score", [("e", "f", "2.75")]),
        "STS-B/test.tsv": tsv(f"{STS} sentence1 sentence2", [("g", "h")]),
    },
    "qqp": {
        "QQP/train.tsv": tsv(
            "id qid1 qid2 question1 question2 is_duplicate",
            [("who ?", "what ?", 0), ("why ?", "how ?", 1), ("when ?", "where ?", 1)],
        ).replace("id\tqid1\tqid2\twhy", "broken\nid\tqid1\tqid2\twhy"),
        "QQP/dev.tsv": tsv("id qid1 qid2 question1 question2 is_duplicate", [("really ?", "truly ?", 1)]),
        "QQP/test.tsv": tsv("id question1 question2", [(0, "so ?", "then ?")]),
    },
    "mnli": {
        "MNLI/train.tsv": tsv(
            f"{MNLI} sentence1 sentence2 label1 gold_label",
            [("a", "b", "neutral", "neutral"), ("c", "d", "-", "entailment"), ("e", "f", "-", "contradiction")],
        ),
        "MNLI/dev_matched.tsv": tsv(f"{MNLI} sentence1 sentence2 {MNLI_DEV} gold_label", [("m", "n", *"12345", "entailment")]),
        "MNLI/dev_mismatched.tsv": tsv(f"{MNLI} sentence1 sentence2 {MNLI_DEV} gold_label", [("o", "p", *"12345", "neutral")]),
        "MNLI/test_matched.tsv": tsv(f"{MNLI} sentence1 sentence2", [("q", "r")]),
        "MNLI/test_mismatched.tsv": tsv(f"{MNLI} sentence1 sentence2", [("s", "t")]),
    },
    "qnli": {
        "QNLI/train.tsv": tsv(
            "index question sentence label", [("who ?", "He .", "entailment"), ("why ?", 'No " .', "not_entailment")]
        ),
        "QNLI/dev.tsv": tsv("index question sentence label", [("what ?", "It .", "not_entailment")]),
        "QNLI/test.tsv": tsv("index question sentence", [("when ?", "Now .")]),
    },
    "rte": {
        "RTE/train.tsv": tsv("index sentence1 sentence2 label", [("a", "b", "not_entailment"), ("c", "d", "entailment")]),
        "RTE/dev.tsv": tsv("index sentence1 sentence2 label", [("e", "f", "entailment")]),
        "RTE/test.tsv": tsv("index sentence1 sentence2", [("g", "h")]),
    },
    "wnli": {
        "WNLI/train.tsv": tsv("index sentence1 sentence2 label", [("a", "b", 1), ("c", "d", 0)]),
        "WNLI/dev.tsv": tsv("index sentence1 sentence2 label", [("e", "f", 1)]),
        "WNLI/test.tsv": tsv("index sentence1 sentence2", [("g", "h")]),
    },
    "ax": {"AX/AX.tsv": tsv("index sentence1 sentence2", [("a", "b"), ("c", 'd "')])},
}
FILES["mnli_matched"] = FILES["mnli_mismatched"] = FILES["mnli"]
SPLITS: dict[str, dict[str, Rows]] = {
    "cola": {
        "train": [("They sing .", 1, 0), ('Sing " they .', 0, 1), ("Go .", 1, 2)],
        "validation": [("Them sing .", 0, 0)],
        "test": [("She sings .", -1, 0)],
    },
    "sst2": {
        "train": [("a fine film ", 1, 0), ("dull", 0, 1), ("a fine , fine film", 1, 2)],
        "validation": [("dull again", 0, 0)],
        "test": [("so so", -1, 0), ("the end", -1, 1)],
    },
    "mrpc": {
        "train": [('He said " yes .', "Yes , he said .", 1, 0), ('"', 'a "b" c', 0, 1), ("x", "y", 1, 2)],
        "validation": [("dev one", "dev two", 0, 0)],
        "test": [("test one", "test two", -1, 0)],
    },
    "stsb": {"train": STS_TRAIN, "validation": [("e", "f", 2.75, 0)], "test": [("g", "h", -1.0, 0)]},
    "qqp": {
        "train": [("who ?", "what ?", 0, 0), ("why ?", "how ?", 1, 2), ("when ?", "where ?", 1, 3)],
        "validation": [("really ?", "truly ?", 1, 0)],
        "test": [("so ?", "then ?", -1, 0)],
    },
    "mnli": {
        "train": [("a", "b", 1, 0), ("c", "d", 0, 1), ("e", "f", 2, 2)],
        "validation_matched": [("m", "n", 0, 0)],
        "validation_mismatched": [("o", "p", 1, 0)],
        "test_matched": [("q", "r", -1, 0)],
        "test_mismatched": [("s", "t", -1, 0)],
    },
    "mnli_matched": {"validation": [("m", "n", 0, 0)], "test": [("q", "r", -1, 0)]},
    "mnli_mismatched": {"validation": [("o", "p", 1, 0)], "test": [("s", "t", -1, 0)]},
    "qnli": {
        "train": [("who ?", "He .", 0, 0), ("why ?", 'No " .', 1, 1)],
        "validation": [("what ?", "It .", 1, 0)],
        "test": [("when ?", "Now .", -1, 0)],
    },
    "rte": {"train": [("a", "b", 1, 0), ("c", "d", 0, 1)], "validation": [("e", "f", 0, 0)], "test": [("g", "h", -1, 0)]},
    "wnli": {"train": [("a", "b", 1, 0), ("c", "d", 0, 1)], "validation": [("e", "f", 1, 0)], "test": [("g", "h", -1, 0)]},
    "ax": {"test": [("a", "b", -1, 0), ("c", 'd "', -1, 1)]},
}
COLUMNS: dict[str, tuple[list[str], list[str] | None]] = {
    "cola": (["sentence"], ["unacceptable", "acceptable"]),
    "sst2": (["sentence"], ["negative", "positive"]),
    "mrpc": (["sentence1", "sentence2"], ["not_equivalent", "equivalent"]),
    "stsb": (["sentence1", "sentence2"], None),
    "qqp": (["question1", "question2"], ["not_duplicate", "duplicate"]),
    "mnli": (["premise", "hypothesis"], INFERENCE),
    "mnli_matched": (["premise", "hypothesis"], INFERENCE),
    "mnli_mismatched": (["premise", "hypothesis"], INFERENCE),
    "qnli": (["question", "sentence"], TWO),
    "rte": (["sentence1", "sentence2"], TWO),
    "wnli": (["sentence1", "sentence2"], TWO[::-1]),
    "ax": (["premise", "hypothesis"], INFERENCE),
}
MSR_TRAIN = [(1, 5, 6, 'one "', "b"), (0, 7, 8, "two", "d"), (1, 9, 10, "three", "f"), (0, 11, 12, "four", "h")]
MSR_FILES = {
    "MRPC/msr_paraphrase_train.txt": "\ufeff" + tsv(MSR, MSR_TRAIN, "\r\n"),
    "MRPC/msr_paraphrase_test.txt": "\ufeff" + tsv(MSR, [(0, 13, 14, "five", "j")], "\r\n"),
    "MRPC/dev_ids.tsv": "7\t8\n11\t12\n",
}
MSR_SPLITS = {
    "train": [('one "', "b", 1, 0), ("three", "f", 1, 2)],
    "validation": [("two", "d", 0, 1), ("four", "h", 0, 3)],
    "test": [("five", "j", 0, 0)],
}


@pytest.fixture
def original(tmp_path: Path, write):
    """The folder that holds the miniature files of a task."""

    def write_files(files: dict[str, str]) -> Path:
        for name, content in files.items():
            write(f"glue/{name}", content)
        return tmp_path / "glue"

    return write_files


def check(task: str, found, splits: dict[str, Rows]) -> None:
    texts, names = COLUMNS[task]
    label = ClassLabel(names=names) if names else Value("float32")
    features = Features({**dict.fromkeys(texts, Value("string")), "label": label, "idx": Value("int32")})
    assert list(found.splits) == list(splits)
    for split, rows in splits.items():
        assert found.splits[split].column_names == [*texts, "label", "idx"]
        assert found.splits[split].features == features
        assert [tuple(row.values()) for row in found.splits[split].to_list()] == rows
        assert found.facts[split].unlabelled == (rows[0][-2] == -1)
    assert found.columns.texts == tuple(texts)
    assert found.task == (CLASSES if names else SCORE)


@pytest.mark.parametrize("task", GLUE_TASKS)
@pytest.mark.parametrize("place", ["parent", "own folder", "GLASSLOOP_DATA", "by name"])
def test_every_task_from_its_original_files(task, place, original, monkeypatch):
    folder = original(FILES[task])
    settings = {"data_dir": str(folder)}
    if place == "own folder":
        settings = {"data_dir": str(folder / glue_task(task).folder)}
    elif place == "GLASSLOOP_DATA":
        monkeypatch.setenv("GLASSLOOP_DATA", str(folder.parent))
        settings = {}
    found = load_examples("glue", name=task, **settings) if place == "by name" else load_examples(f"glue/{task}", **settings)
    check(task, found, SPLITS[task])


@pytest.mark.parametrize("own", [False, True])
def test_mrpc_as_microsoft_published_it(own, original):
    folder = original(MSR_FILES)
    check("mrpc", load_examples("glue/mrpc", data_dir=str(folder / "MRPC" if own else folder)), MSR_SPLITS)
    folder = original(FILES["mrpc"])  # in both forms: that of Microsoft comes first
    check("mrpc", load_examples("glue/mrpc", data_dir=str(folder)), MSR_SPLITS)


@pytest.mark.parametrize("place", ["AX/AX.tsv", "diagnostic/diagnostic.tsv", "AX/test.tsv"])
def test_the_three_places_of_the_diagnostic_data(place, original):
    folder = original({place: FILES["ax"]["AX/AX.tsv"]})
    assert find_glue_files("ax", str(folder)) == {"test": folder / place}
    check("ax", load_examples("glue/ax", data_dir=str(folder)), SPLITS["ax"])


def test_other_rows_for_validation_are_other_data(original, refused):
    folder = original(MSR_FILES)
    first = load_examples("glue/mrpc", data_dir=str(folder))
    (folder / "MRPC" / "dev_ids.tsv").write_text("7\t8\n")
    assert load_examples("glue/mrpc", data_dir=str(folder)).facts["validation"].num_rows == 1
    assert first.facts["validation"].num_rows == 2
    files = {**FILES["cola"], "CoLA/train.tsv": FILES["cola"]["CoLA/train.tsv"].replace("Go .", "")}
    with refused('train.tsv, row 3: "sentence" is empty', KEEP):
        load_examples("glue/cola", data_dir=str(original(files)))
    folder = original({**FILES["sst2"], **FILES["rte"]})
    problem = "train.tsv: there is no column sentence1, sentence2; found sentence, label"
    with refused(problem, "this is not the original train file of GLUE rte"):
        load_examples("glue/rte", data_dir=str(folder / "SST-2"))
    problem = "train.tsv, row 1: the row has 2 fields, but the header has 4 (source, is_acceptable, mark, sentence)"
    with pytest.raises(DataError, match=re.escape(problem)):
        load_examples("glue/cola", data_dir=str(folder / "SST-2"))


def test_damaged_files_and_files_without_a_label_are_refused(original, refused):
    folder = original(MSR_FILES)
    (folder / "MRPC/dev_ids.tsv").write_bytes(b"7\t8\n\xff")
    with pytest.raises(DataError, match=r"dev_ids\.tsv, line 2: byte 0xff at position 4 is not UTF-8"):
        load_examples("glue/mrpc", data_dir=str(folder))
    no_ids = tsv(["Quality", *MSR[3:]], [(1, "a", "b"), (0, "c", "d")], "\r\n")
    folder = original({**MSR_FILES, "MRPC/msr_paraphrase_train.txt": no_ids})
    problem = "msr_paraphrase_train.txt: there is no column #1 ID, #2 ID; found Quality, #1 String, #2 String"
    with pytest.raises(DataError, match=re.escape(problem)):
        load_examples("glue/mrpc", data_dir=str(folder))
    for split in ["train", "dev"]:
        files = {**FILES["rte"], f"RTE/{split}.tsv": FILES["rte"][f"RTE/{split}.tsv"].replace("label", "lable")}
        problem = f"{split}.tsv: there is no column label; found index, sentence1, sentence2, lable"
        named = {"train": "train", "dev": "validation"}[split]
        with refused(problem, f"this is not the original {named} file of GLUE rte"):
            load_examples("glue/rte", data_dir=str(original(files)))


@pytest.mark.parametrize("chunk_rows", [1, 2, 10_000])
def test_broken_rows_of_qqp_are_left_out_and_reported(chunk_rows, original, monkeypatch, refused):
    monkeypatch.setattr(delimited, "CHUNK_ROWS", chunk_rows)
    folder = original(FILES["qqp"])
    found = load_examples("glue/qqp", data_dir=str(folder), split_seed=chunk_rows)
    check("qqp", found, SPLITS["qqp"])
    assert "train.tsv: skipped 1 broken row of the original file" in found.notes
    train = folder / "QQP" / "train.tsv"
    train.write_text(train.read_text().replace("where ?", " "))
    with refused('train.tsv, row 5: "question2" is empty', KEEP):  # counted as a person does, broken ones too
        load_examples("glue/qqp", data_dir=str(folder))


def test_unknown_tasks_and_files_that_are_not_there_are_named(tmp_path, refused):
    for task, wanted in [
        ("rte", "train.tsv, dev.tsv, test.tsv"),
        ("mrpc", "train.tsv, dev.tsv, test.tsv (or msr_paraphrase_train.txt, msr_paraphrase_test.txt, dev_ids.tsv)"),
        ("mnli", "train.tsv, dev_matched.tsv, dev_mismatched.tsv, test_matched.tsv, test_mismatched.tsv"),
        ("mnli_mismatched", "dev_mismatched.tsv, test_mismatched.tsv"),
        ("ax", "AX.tsv"),
    ]:
        folder, own = tmp_path, glue_task(task).folder
        problem = f"{folder}: there are no files of GLUE {task}: looked for {wanted} in {folder / own}, {folder}"
        with refused(problem, f"set --data_dir to the folder that contains {own}/, or to that folder itself"):
            load_examples(f"glue/{task}", data_dir=str(folder))
    known = "use one of cola, sst2, mrpc, stsb, qqp, mnli, mnli_matched, mnli_mismatched, qnli, rte, wnli, ax"
    for name, near in [("mprc", '; did you mean "mrpc"?'), ("SST2", ""), ("sst-2", '; did you mean "sst2"?'), ("xyz", "")]:
        with refused(f'GLUE has no task "{name}"{near}', known):
            load_examples(f"glue/{name}")


@pytest.mark.parametrize(
    ("task", "gone", "found"),
    [
        ("rte", "test.tsv", "train.tsv, dev.tsv"),
        ("rte", "dev.tsv", "train.tsv, test.tsv"),
        ("mrpc", "train.tsv", "dev.tsv, test.tsv"),
        ("msr", "msr_paraphrase_test.txt", "msr_paraphrase_train.txt, dev_ids.tsv"),
        ("msr", "dev_ids.tsv", "msr_paraphrase_train.txt, msr_paraphrase_test.txt"),
        ("mnli", "dev_mismatched.tsv", "train.tsv, dev_matched.tsv, test_matched.tsv, test_mismatched.tsv"),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_folder_with_a_part_missing_names_that_part(task, gone, found, by_variable, original, monkeypatch, refused):
    every, task = (MSR_FILES, "mrpc") if task == "msr" else (FILES[task], task)
    files = {name: content for name, content in every.items() if not name.endswith(f"/{gone}")}
    assert len(files) == len(every) - 1
    folder, own = original(files), glue_task(task).folder
    if by_variable:
        monkeypatch.setenv("GLASSLOOP_DATA", str(folder.parent))
    problem = f"{folder / own}: the folder of GLUE {task} has no {gone}; found {found}"
    with refused(problem, "add the missing part from the original download"):
        load_examples(f"glue/{task}", **({} if by_variable else {"data_dir": str(folder)}))


def test_without_files_the_hub_is_asked(original, tmp_path, monkeypatch, refused):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(objects, "hub_unreachable", lambda: "no route")
    problem = "nyu-mll/glue: the hub cannot be reached (no route), and its cache has no copy"
    remedy = "work offline with a local file or folder or the original files with --data_dir (or GLASSLOOP_DATA), "
    remedy += "or with quickstart"
    for place in (None, str(tmp_path)):
        if place:
            monkeypatch.setenv("GLASSLOOP_DATA", place)
        assert find_glue_files("rte", None) is None
        with refused(problem, remedy):
            load_examples("glue/rte")
    monkeypatch.setenv("GLASSLOOP_DATA", "~nobody-is-called-this/data")
    problem = '"~nobody-is-called-this/data": no such user, or the user has no home folder'
    with refused(problem, "use another path", SettingsError):
        load_examples("glue/mrpc")


def test_the_labels_of_the_real_mrpc(glue_dir):
    facts = load_examples("glue/mrpc", data_dir=str(glue_dir)).facts
    wanted = {"train": (1194, 2474), "validation": (129, 279), "test": (578, 1147)}
    assert {split: (*fact.label_counts.values(),) for split, fact in facts.items()} == wanted
