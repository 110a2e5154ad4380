"""Model cards: valid for huggingface_hub, whatever names users choose, and never overwritten once a person has edited them."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard
from rich.console import Console
from run_folders import FOUND as STORED
from run_folders import HOSTILE, RECORD, drawn_rows, with_baselines, write_fake_run, write_run_with_model

from glassloop.markup.templates import markdown, markdown_table
from glassloop.report import card as cards
from glassloop.report.card import Card, DataName, base_model, card_text, run_card, write_card
from glassloop.report.results import gain_row
from glassloop.runs.record import (
    FINISHED,
    Calibration,
    Columns,
    Gain,
    RunRecord,
    Target,
    read_run,
    weights_of,
    write_calibration,
    write_run,
)
from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.calibration import fitted_calibration
from glassloop.scores.result import Score
from glassloop.settings.file import RunSettings
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

HOSTILE_CARD = (
    "---\nlicense: mit\n| <script>alert(1)</script> ![x](http://a.b) `code` [l](x) @you www.a.b # *b* \u202e {{x}} ```\n\ud800"
)
FOUND = Calibration(2.0, {"b, c": 0.25}, Target("f1"), "b, c", "validation", 100, "", "", 10, ())


def score(key: str, value: float, title: str = "") -> Score:
    return Score("validation", key, title or key, value, 0.89, 0.93, 0.8)


# --- the text of a card
def test_a_card_is_read_by_the_hubs_own_reader() -> None:
    scores = [score("f1", 0.91234567), score("accuracy", 0.9), score("mse", float("nan"))]
    card = Card("mine", DataName("GLUE MRPC", "nyu-mll/glue", "mrpc", on_hub=True), scores, {"tags": ["glassloop"]})
    data = ModelCard(card_text(card)).data
    assert (data.library_name, data.pipeline_tag, data.datasets) == ("transformers", "text-classification", ["nyu-mll/glue"])
    assert data.license is None
    assert data.language is None
    assert [(one.metric_type, one.metric_value, one.dataset_split) for one in data.eval_results] == [
        ("f1", 0.912346, "validation"),
        ("accuracy", 0.9, "validation"),
    ], "scores that are not finite are not in the index"


def test_hostile_names_stay_text() -> None:
    sections = [("Data", markdown_table(["label"], [[HOSTILE_CARD]]))]
    text = card_text(Card(HOSTILE_CARD, DataName(HOSTILE_CARD, "name"), [score("f1", 0.5, HOSTILE_CARD)], {}, sections))
    head, _, body = text.removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(head)["model-index"][0]["results"][0]["dataset"]["name"].startswith("---\\nlicense: mit")
    assert "license" not in yaml.safe_load(head)
    assert ModelCard(text).data.license is None
    assert "<script>" not in body
    assert not re.search(r"(?<!\\)[`\[\]*{}]|://|www\.|@", body.partition("<!--")[0])
    assert len([line for line in body.splitlines() if line.startswith("|")]) == 3, "a cell is one line"
    assert cards.is_untouched(text)
    texts = {"a|b": r"a\|b", "a\nb": r"a\\nb", "<b>&": "&lt;b&gt;&amp;", "not_it": r"not\_it", 3: "3"}
    assert {given: markdown(given) for given in texts} == texts


def test_an_edited_card_is_kept_and_one_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "README.md"
    (tmp_path / ".README.md.0123abcd").write_text("half a card")  # of a process that was killed
    assert write_card(tmp_path, Card("first", None))
    assert [entry.name for entry in tmp_path.iterdir()] == ["README.md"]
    assert write_card(tmp_path, Card("second", None))
    text = path.read_text(encoding="utf-8")
    assert "# second" in text
    assert capsys.readouterr().err == ""
    licensed = text.replace("---\n\n", "license: mit\n---\n\n", 1)
    edits = [licensed, text.replace("# second", "# Second"), f"{text}more\n", "# A card of somebody else\n"]
    for edited in (*(edit.encode() for edit in edits), b"\xff\xfe"):
        path.write_bytes(edited)
        assert not write_card(tmp_path, Card("third", None))
        assert path.read_bytes() == edited
        assert capsys.readouterr().err == f"glassloop: {path} was kept: it was edited, or written by another program\n"
    cards.update_card(tmp_path / "nothing")
    assert capsys.readouterr().err.startswith("glassloop: the model card could not be written: ModelError: model: ")


# --- the card of a run: its numbers are those of the run, and nothing tells where it was trained
@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_the_card_of_every_task_has_the_results_of_the_run(task: str, tmp_path: Path) -> None:
    record = write_fake_run(tmp_path / "run", task)
    text = card_text(run_card(tmp_path / "run"))
    data = ModelCard(text).data
    stored = {key.removeprefix("eval_"): round(value, 6) for key, value in (record.evaluation or {}).items()}
    assert {one.metric_type: one.metric_value for one in data.eval_results} == {
        key: value for key, value in stored.items() if key not in ("loss", "runtime")
    }
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert data.datasets is None, "a file is not on the hub"
    for words in ("95% interval", " to ", "The random seed was 42.", "for pairs of texts: "):
        assert words in text
    for heading in ("Results", "How to use it", "Data", "Training", "Limits"):
        assert f"\n## {heading}\n" in text
    assert "## Calibration" not in text


def test_hostile_labels_stay_text_and_no_folder_of_the_machine_is_told(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "hostile", label=HOSTILE, text=HOSTILE)
    text = card_text(run_card(tmp_path / "hostile"))
    assert "<script>" not in text.partition("\n---\n")[2]
    assert ModelCard(text).data.model_name == "hostile"
    write_fake_run(tmp_path / "run")
    record = read_run(tmp_path / "run")
    data = replace(record.data, source=str(tmp_path / "secret" / "rows.csv"))
    settings = replace(record.settings, output_dir=str(tmp_path / "run"))
    model = replace(record.model, name=str(tmp_path / "base"))
    write_run(tmp_path / "run", replace(record, data=data, settings=settings, model=model))
    text = card_text(run_card(tmp_path / "run"))
    assert str(tmp_path) not in text
    assert "secret" not in text
    assert "fine-tuned from base on rows.csv" in text


def test_names_of_the_hub_and_limits_of_a_model() -> None:
    def named(source: str) -> DataName:
        return cards.data_name(replace(RECORD, data=replace(RECORD.data, source=source)))

    assert named("glue/mrpc") == DataName("GLUE MRPC", "nyu-mll/glue", "mrpc", on_hub=True)
    assert named("owner/name") == DataName("owner/name", "owner/name", on_hub=True)
    assert named("/data/My rows.csv") == DataName("My rows.csv", "my-rows-csv")
    assert base_model("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"
    assert base_model("/models/mine") is None
    lines = [line.removeprefix("- ") for line in cards.data_parts(RECORD)[1].splitlines()]
    assert lines[1] == "Texts are truncated to 64 tokens."
    assert lines[2] == "Labels are not equally frequent: a has 20 training rows, b has 7."
    assert lines[-1].startswith("No license is stated")
    chosen = replace(RECORD, settings=replace(RECORD.settings, load_best_model_at_end=True, eval_strategy="epoch"))
    assert "chosen on the validation rows" in cards.data_parts(chosen)[1]
    assert "pairs of texts" not in lines[0]


def test_the_seeds_of_a_folder_are_told(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "seed-1")
    seeds = {seed: SeedRecord(status=FINISHED, validation={"accuracy": 0.7 + seed / 10}) for seed in (1, 2)}
    write_seeds(SeedsRecord(RunSettings("rows.csv", "quickstart"), seeds, tmp_path))
    text = card_text(run_card(tmp_path / "seed-1"))
    assert "The same training with 2 random seeds:" in text
    assert "| accuracy | 0.8500 | 0.0707 | 0.8000 | 0.9000 |" in text
    (tmp_path / "seeds.json").write_text("{", encoding="utf-8")
    assert "random seeds" not in card_text(run_card(tmp_path / "seed-1"))


def record_of(task: str, pair: str | None = None) -> RunRecord:
    return replace(RECORD, data=replace(RECORD.data, task=task, columns=Columns("text", pair, ("label",))))


def test_the_blocks_are_python_and_thresholds_are_applied() -> None:
    import torch

    for task in [CLASSES, SEVERAL, SCORE]:
        for found in [None, FOUND, replace(FOUND, temperature=1.0), replace(FOUND, thresholds={})]:
            for pair in (None, "second"):
                blocks = re.findall(r"```python\n(.*?)\n```", cards.usage(record_of(task, pair), found), re.DOTALL)
                assert len(blocks) == 2
                for block in blocks:
                    ast.parse(block)
                assert all(("A second text." in block) == (pair is not None) for block in blocks)
    for task, logits, wanted in [
        (CLASSES, [2.0, 0.0], "b, c "),
        (CLASSES, [2.4, 0.0], "a "),
        (CLASSES, [0.0, 3.0], "b, c "),
        (SEVERAL, [-0.1, -2.0], "['b, c']"),  # 0.4875 and 0.2689; a label without a threshold uses a half
        (SEVERAL, [0.1, -2.5], "['a']"),  # 0.5125 and 0.2227
    ]:
        lines = cards.usage(record_of(task), FOUND).partition("logits[0]\n")[2].removesuffix("\n```")
        model = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 1: "b, c"}))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(lines, {"torch": torch, "model": model, "logits": torch.tensor(logits)})
        assert output.getvalue().startswith(wanted)


def test_the_table_of_a_calibration() -> None:
    output = io.StringIO()
    fitted = fitted_calibration(drawn_rows(80), Target("f1"), "equivalent")
    cards.show_fitted(Console(file=output, width=100), fitted, "validation [b](80 rows)", "equivalent")
    lines = output.getvalue().splitlines()
    assert lines[0].split() == ["validation", "[b](80", "rows)", "before", "after", "change", "95%", "interval"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["loss", "calibration error", "F1 (equivalent)"]
    assert lines[-1] == "thresholds for the highest F1"
    assert gain_row(Gain("f1", 0, 0), None)[0] == "F1 (mean over labels)"
    assert gain_row(Gain("cost", 0, 0), "yes")[0] == "cost per row"
    cells = [*map(str, gain_row(Gain("f1", 0.5, 0.75, -0.1, 0.6), "yes"))]
    assert cells == ["F1 (yes)", "0.5000", "0.7500", "+0.2500", "-0.1000 to +0.6000"]
    assert [*map(str, gain_row(Gain("calibration error", 0.5, 0.25), None))][3:] == ["-0.2500", ""]


def test_a_card_has_the_baselines_with_their_intervals_and_a_warning(tmp_path: Path) -> None:
    run = write_run_with_model(tmp_path / "run")
    assert "simple methods" not in card_text(run_card(run))
    with_baselines(run)
    text = card_text(run_card(run))
    assert "| method | accuracy | log loss |" in text
    assert "| frozen encoder | 0.7325 (0.6325 to 0.8325) | 0.5615 (0.5115 to 0.6115) |" in text
    own = run_card(run).scores[0]
    assert f"| this model | {own.value:.4f} ({own.interval}) | 0.4375 (0.3000 to 0.9000) |" in text
    assert "not use the probabilities" not in text
    with_baselines(run, worse=True, note="a sample")
    text = card_text(run_card(run))
    assert "**The predicted probabilities are worse than the class frequencies" in text
    assert "| a sample |" in text
    stored = replace(STORED, weights=weights_of(run / "model"))
    write_calibration(run / "model", stored)
    assert "not use the probabilities" not in card_text(run_card(run)), "calibrated, they are better"
    write_calibration(run / "model", replace(stored, warning="do not use them"))
    assert "**Do not use them.**" in card_text(run_card(run))
