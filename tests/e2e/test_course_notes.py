"""The code blocks of all five course notes run, changed only as docs/course.md and course_notes.md say.

A tiny model stands in for BERT, so that every training block runs in full: 1,377 steps on all of MRPC. What it learns is
asked of the packaged MiniLM, in one short training.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_command, write_notebook

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "course.md"
TABLES = Path(__file__).with_name("course_notes.md")
NOTES = ROOT.parent / "shared" / "course-notes"
HERE = pytest.mark.skipif(not NOTES.is_dir(), reason="the course notes are not here: they lie beside the project, not in it")
OUTPUT, UNCHANGED = "output, not code", "nothing"


# Blocks that cannot run unedited: the notes use names that they never define, or make batches of texts.
MISTAKES = {
    (1, 4): "name 'model' is not defined",
    (1, 5): "name 'optimizer' is not defined",
    (1, 6): "name 'torch' is not defined",
    (1, 7): "name 'model' is not defined",
    (5, 5): "Unable to create tensor",
    (5, 6): "Unable to create tensor",
}


def replacements() -> dict[int, tuple[str, str]]:
    """The numbered lines to replace, read from the page that users read."""
    found = re.findall(r"^\| (\d+) \| `(.+?)` \| `(.+?)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(number): (old, new) for number, old, new in found}


def sections() -> list[str]:
    """What the page says about each note."""
    return re.split(r"^### Note \d: .+$", TABLES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def needs(section: str) -> list[str]:
    """What each block of a note needs, according to its table; the blocks are numbered without a gap."""
    found = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    assert [int(number) for number, _ in found] == [*range(1, len(found) + 1)]
    return [need for _, need in found]


def added(section: str) -> dict[int, str]:
    """The code that a section adds, by the number of the block it stands before."""
    found = re.findall(r"before block (\d+):\n\n```python\n(.*?)```", section, re.DOTALL)
    return {int(block): code for block, code in found}


def code_blocks(path: Path) -> list[str]:
    """The fenced blocks of a note; what follows a line of dashes is what the code prints."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"```[ \w]*\n(.*?)```", text, flags=re.DOTALL)
    return [block.partition("\n---")[0] for block in blocks]


def translated(block: str) -> tuple[str, list[int]]:
    """Return a block with all lines replaced, and the numbers of the replacements that changed it."""
    used = []
    for number, (old, new) in replacements().items():
        if old in block:
            block = block.replace(old, new)
            used.append(number)
    return block, used


def test_the_page_changes_only_the_lines_it_names_and_has_a_table_for_each_note() -> None:
    assert translated("from transformers import AdamW\nx = 1") == ("from glassloop import AdamW\nx = 1", [2])
    assert [*replacements()] == [*range(1, 14)]
    assert [len(needs(section)) for section in sections()] == [7, 11, 32, 10, 6]
    assert [[*added(section)] for section in sections()] == [[4], [], [], [], []]
    known = {str(number) for number in replacements()}
    for need in {need for section in sections() for need in needs(section)} - {OUTPUT, UNCHANGED}:
        assert {*need.removesuffix(", and the lines below").split(", ")} <= known
    assert sum(need != OUTPUT for section in sections() for need in needs(section)) == 62, "blocks of code"
    assert 62 - len(MISTAKES) == 56


@HERE
@pytest.mark.parametrize("number", range(5))
def test_the_page_says_what_every_block_needs(number: int) -> None:
    """Every block of a note is in the table, with exactly the replacements that change it."""
    section, blocks = sections()[number], code_blocks(sorted(NOTES.glob("*.txt"))[number])
    assert len(needs(section)) == len(blocks)
    for place, (need, block) in enumerate(zip(needs(section), blocks, strict=True), 1):
        if need != OUTPUT:
            used = ", ".join(map(str, translated(block)[1])) or UNCHANGED
            assert need == used + (", and the lines below" if place in added(section) else ""), f"block {place}"


@pytest.mark.exhaustive
@HERE
@pytest.mark.parametrize("number", range(5))
def test_the_blocks_of_a_note_run(
    number: int, english_bert: Path, glue_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Every block that the page does not call output runs, with the changes of the page and nothing else."""
    monkeypatch.setenv("GLASSLOOP_DATA", str(glue_dir.parent))
    monkeypatch.chdir(tmp_path)
    section, path = sections()[number], sorted(NOTES.glob("*.txt"))[number]
    space: dict = {"LOCAL_MODEL": str(english_bert)}
    for place, (need, block) in enumerate(zip(needs(section), code_blocks(path), strict=True), 1):
        if need != OUTPUT:
            source = added(section).get(place, "") + translated(block)[0]
            exec(compile(source, f"{path.name}, block {place}", "exec"), space)
    check_note(number, space, capsys.readouterr().out)


def check_note(number: int, space: dict, out: str) -> None:
    raw = space["raw_datasets"]
    assert {name: split.num_rows for name, split in raw.items()} == {"train": 3668, "validation": 408, "test": 1725}
    if number in (0, 1, 2, 4):
        assert space["num_training_steps"] == space["lr_scheduler"].last_epoch == 1377
        assert space["lr_scheduler"].get_last_lr()[0] == 0.0
        batch = next(iter(space["train_dataloader"]))
        assert {*batch} == {"attention_mask", "input_ids", "labels", "token_type_ids"}
        assert batch["labels"].shape == (8,)
        assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["token_type_ids"].shape
    if number in (0, 2):
        assert "1377" in out
    if number in (2, 3):
        assert "(408, 2) (408,)" in out
        assert space["preds"].shape == (408,)
        labels = torch.tensor(raw["validation"]["label"][:]).numpy()
        metrics = space["compute_metrics"]((torch.nn.functional.one_hot(torch.tensor(labels)).numpy(), labels))
        assert metrics == {"accuracy": 1.0, "f1": 1.0}
    if number == 3:
        assert space["predictions"].predictions.shape == (408, 2)
        assert space["predictions"].label_ids.shape == (408,)
        assert space["trainer"].state.step == 1377
        evaluations = [entry for entry in space["trainer"].state.history if "eval_accuracy" in entry]
        assert [entry["step"] for entry in evaluations] == [459, 918, 1377]
        assert all("eval_f1" in entry for entry in evaluations)
    if number == 1:
        assert space["optimizer"].param_groups[0]["lr"] == 5e-5, "the schedule belongs to the optimizer before"
        assert space["batch"]["input_ids"].shape[0] == 8
    if number == 2:
        words = "101 2023 2003 1996 2034 6251 1012 102 2023 2003 1996 2117 2028 1012 102"
        assert space["inputs"]["input_ids"] == [*map(int, words.split())]
        shapes = {key: tuple(value.shape) for key, value in space["data_collator"](space["samples"]).items()}
        assert shapes == dict.fromkeys(("attention_mask", "input_ids", "token_type_ids"), (8, 67)) | {"labels": (8,)}
    if number == 4:
        assert set(space["final_score"]) == {"accuracy", "f1"}
        assert "Step 1300 | Loss:" in out


@pytest.mark.exhaustive
@HERE
@pytest.mark.parametrize("number", range(1, 6))
def test_the_blocks_of_a_note_run_unedited(number: int, english_bert: Path, glue_dir: Path, tmp_path: Path) -> None:
    """56 of the 62 blocks run with `glassloop run`. The other six are mistakes of the notes, which fail with any library."""
    blocks, wanted = code_blocks(sorted(NOTES.glob("*.txt"))[number - 1]), needs(sections()[number - 1])
    places = [place for place, need in enumerate(wanted, 1) if need != OUTPUT]
    write_notebook(tmp_path / "note.ipynb", [blocks[place - 1] for place in places])
    maps = [word for name in ("bert-base-uncased", "bert-base-cased") for word in ("--model_map", f"{name}={english_bert}")]
    command = ["run", "--allow_errors", "--json", *maps, "note.ipynb"]
    done = run_command(*command, folder=tmp_path, seconds=900, GLASSLOOP_DATA=str(glue_dir.parent), HF_HUB_OFFLINE="1")
    failed = [places[int(name.rpartition(" ")[2]) - 1] for name in json.loads(done.out)["failed"]]
    assert failed == [block for note, block in MISTAKES if note == number], done.err
    for (note, block), message in MISTAKES.items():
        if note == number:
            assert message in done.err.partition(f'note.ipynb, cell {places.index(block) + 1}"')[2]


SHORTEST = 1800  # training pairs: about half of MRPC, in two thirds of the time a pair
STEPS = 400  # of eight pairs, at the rate of the notes


@pytest.mark.exhaustive
def test_a_pretrained_model_learns_more_than_the_majority(glue_dir: Path, tmp_path: Path, monkeypatch) -> None:
    """The code of the notes' Trainer with the real MRPC and MiniLM: accuracy and F1 above always answering "equivalent"."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    from glassloop import Trainer, TrainingArguments, load_dataset, load_metric
    from glassloop.models.loading import quickstart_model

    monkeypatch.setenv("GLASSLOOP_DATA", str(glue_dir.parent))
    monkeypatch.chdir(tmp_path)
    raw_datasets = load_dataset("glue", "mrpc")
    checkpoint = quickstart_model()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def tokenize_function(example):
        return tokenizer(example["sentence1"], example["sentence2"], truncation=True)

    def compute_metrics(eval_preds):
        metric = load_metric("glue", "mrpc")
        logits, labels = eval_preds
        return metric.compute(predictions=np.argmax(logits, axis=-1), references=labels)

    tokenized_datasets = raw_datasets.map(tokenize_function, batched=True)
    lengths = [len(numbers) for numbers in tokenized_datasets["train"]["input_ids"]]
    shortest = np.sort(np.argsort(lengths, kind="stable")[:SHORTEST])
    torch.manual_seed(42)  # the new head
    trainer = Trainer(
        AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2),
        TrainingArguments("test-trainer", max_steps=STEPS, warmup_steps=0.1, group_by_length=True, save_strategy="no"),
        train_dataset=tokenized_datasets["train"].select(shortest),
        eval_dataset=tokenized_datasets["validation"],
        data_collator=DataCollatorWithPadding(tokenizer=tokenizer),
        tokenizer=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    predictions = trainer.predict(tokenized_datasets["validation"])
    found = compute_metrics((predictions.predictions, predictions.label_ids))
    majority = compute_metrics((np.tile([0, 1], (len(predictions.label_ids), 1)), predictions.label_ids))
    assert majority == pytest.approx({"accuracy": 0.6838, "f1": 0.8122}, abs=1e-4)
    assert found["accuracy"] > majority["accuracy"], found
    assert found["f1"] > majority["f1"], found
    assert predictions.metrics["test_accuracy"] == found["accuracy"]
    assert predictions.metrics["test_f1"] == found["f1"]
