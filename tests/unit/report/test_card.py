"""The text of a card: valid for huggingface_hub, whatever names users choose, and recognised once it is edited."""

from __future__ import annotations

import ast
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from rich.console import Console
from run_folders import HOSTILE, RECORD, drawn_rows, write_fake_run

from glassloop.markup.templates import markdown, markdown_table
from glassloop.report.card import (
    Card,
    DataName,
    Score,
    base_model,
    card_text,
    data_name,
    gain_cells,
    gain_title,
    is_untouched,
    limits,
    run_card,
    show_fitted,
    update_card,
    usage,
    write_card,
)
from glassloop.runs.record import FINISHED, Calibration, Columns, Gain, RunRecord, Target, read_run, write_run
from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.calibration import fitted_calibration
from glassloop.settings.file import RunSettings
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

HOSTILE_CARD = (
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
    scores = [Score("f1", f"f1 ({HOSTILE_CARD})", 0.5)]
    text = card_text(
        Card(HOSTILE_CARD, DataName(HOSTILE_CARD, "name"), scores, {}, [("Data", markdown_table(["label"], [[HOSTILE_CARD]]))])
    )
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
    assert markdown(given) == wanted


def test_an_edited_card_is_recognised() -> None:
    text = card_text(Card("mine", None))
    assert is_untouched(text)
    assert not is_untouched(text.replace("# mine", "# Mine"))
    assert not is_untouched(text + "more\n")
    assert not is_untouched("# A card of somebody else\n")


# --- The file of a card: written again while it is Glassloop's, kept once a person has edited it.


def test_an_edited_card_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    (tmp_path / ".README.md.0123abcd").write_text("half a card")  # of a process that was killed
    assert write_card(tmp_path, Card("first", None))
    assert [entry.name for entry in tmp_path.iterdir()] == ["README.md"]
    assert write_card(tmp_path, Card("second", None))
    assert "# second" in path.read_text(encoding="utf-8")
    assert capsys.readouterr().err == ""
    path.write_text(path.read_text(encoding="utf-8").replace("---\n\n", "license: mit\n---\n\n", 1), encoding="utf-8")
    edited = path.read_bytes()
    assert not write_card(tmp_path, Card("third", None))
    assert path.read_bytes() == edited
    assert capsys.readouterr().err == f"glassloop: {path} was kept: it was edited, or written by another program\n"
    path.write_bytes(b"\xff\xfe")
    assert not write_card(tmp_path, Card("third", None))
    assert path.read_bytes() == b"\xff\xfe"


def test_a_card_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    update_card(tmp_path)
    assert capsys.readouterr().err.startswith("glassloop: the model card could not be written: ModelError: model: ")


# --- The card of a run: its numbers are those of the run, and nothing tells where it was trained.


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_the_card_of_every_task_has_the_results_of_the_run(task: str, tmp_path: Path) -> None:
    record = write_fake_run(tmp_path / "run", task)
    text = card_text(run_card(tmp_path / "run"))
    found = ModelCard(text).data
    assert {one.metric_type: one.metric_value for one in found.eval_results} == {
        key.removeprefix("eval_"): round(value, 6)
        for key, value in (record.evaluation or {}).items()
        if key not in ("eval_loss", "eval_runtime")
    }
    assert found.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert found.datasets is None, "a file is not on the hub"
    assert "95 % interval" in text
    assert " to " in text
    assert "The random seed was 42." in text
    for heading in ("Results", "How to use it", "Data", "Training", "Limits"):
        assert f"\n## {heading}\n" in text
    assert "## Calibration" not in text


def test_hostile_labels_and_file_names_stay_text(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "run", label=HOSTILE, text=HOSTILE)
    text = card_text(run_card(tmp_path / "run"))
    assert "<script>" not in text.partition("\n---\n")[2]
    assert ModelCard(text).data.model_name == "run"


def test_no_folder_of_the_machine_is_told(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "run")
    record = read_run(tmp_path / "run")
    data = replace(record.data, source=str(tmp_path / "secret" / "rows.csv"))
    settings = replace(record.settings, output_dir=str(tmp_path / "run"))
    write_run(
        tmp_path / "run",
        replace(record, data=data, settings=settings, model=replace(record.model, name=str(tmp_path / "base"))),
    )
    text = card_text(run_card(tmp_path / "run"))
    assert str(tmp_path) not in text
    assert "secret" not in text
    assert "fine-tuned from base on rows.csv" in text


def test_names_of_the_hub() -> None:
    found = data_name(replace(RECORD, data=replace(RECORD.data, source="glue/mrpc")))
    assert (found.identifier, found.config, found.on_hub) == ("nyu-mll/glue", "mrpc", True)
    found = data_name(replace(RECORD, data=replace(RECORD.data, source="owner/name")))
    assert (found.identifier, found.on_hub) == ("owner/name", True)
    found = data_name(replace(RECORD, data=replace(RECORD.data, source="/data/My rows.csv")))
    assert (found.name, found.identifier, found.on_hub) == ("My rows.csv", "my-rows-csv", False)
    assert base_model("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"
    assert base_model("/models/mine") is None


def test_limits_name_truncation_balance_and_the_missing_license() -> None:
    lines = [line.removeprefix("- ") for line in limits(RECORD).splitlines()]
    assert lines[1] == "Texts are truncated to 64 tokens."
    assert lines[2] == "Labels are not equally frequent: a has 20 training rows, b has 7."
    assert lines[-1].startswith("No license is stated")
    chosen = replace(RECORD, settings=replace(RECORD.settings, load_best_model_at_end=True, eval_strategy="epoch"))
    assert "chosen on the validation rows" in limits(chosen)
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


def test_pairs_are_named(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "run")
    assert read_run(tmp_path / "run").data.columns == Columns("first", "second", ("label",))
    assert "for pairs of texts: one class per row" in card_text(run_card(tmp_path / "run"))


# --- The lines of a card are Python, and answer as the predictor does: with a temperature and thresholds, for every task.


FOUND = Calibration(2.0, {"b, c": 0.25}, Target("f1"), "b, c", "validation", 100, "", "", 10, ())


def record_of(task: str, pair: str | None = None) -> RunRecord:
    return replace(RECORD, data=replace(RECORD.data, task=task, columns=Columns("text", pair, ("label",))))


@pytest.mark.parametrize("task", [RECORD.data.task, SEVERAL, SCORE])
@pytest.mark.parametrize("found", [None, FOUND, replace(FOUND, temperature=1.0), replace(FOUND, thresholds={})])
def test_the_blocks_are_python(task: str, found: Calibration | None) -> None:
    for pair in (None, "second"):
        blocks = re.findall(r"```python\n(.*?)\n```", usage(record_of(task, pair), found), re.DOTALL)
        assert len(blocks) == 2
        for block in blocks:
            ast.parse(block)
        assert all(("A second text." in block) == (pair is not None) for block in blocks)


@pytest.mark.parametrize(("logits", "wanted"), [([2.0, 0.0], "b, c"), ([2.4, 0.0], "a"), ([0.0, 3.0], "b, c")])
def test_the_threshold_of_a_class_is_applied(logits: list[float], wanted: str) -> None:
    assert printed(answer_lines(RECORD, FOUND), logits).startswith(f"{wanted} ")


def test_labels_without_a_threshold_use_a_half() -> None:
    lines = answer_lines(record_of(SEVERAL), FOUND)
    assert printed(lines, [-0.1, -2.0]).startswith("['b, c']")  # 0.4875 and 0.2689
    assert printed(lines, [0.1, -2.5]).startswith("['a']")  # 0.5125 and 0.2227


def answer_lines(record: RunRecord, calibration: Calibration) -> list[str]:
    """Return the lines that turn logits into an answer."""
    return usage(record, calibration).partition("logits[0]\n")[2].removesuffix("\n```").splitlines()


def printed(lines: list[str], logits: list[float]) -> str:
    """Run the lines of an answer and return what they print."""
    import contextlib
    import io
    from types import SimpleNamespace

    import torch

    model = SimpleNamespace(config=SimpleNamespace(id2label={0: "a", 1: "b, c"}))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec("\n".join(lines), {"torch": torch, "model": model, "logits": torch.tensor(logits)})
    return output.getvalue()


# --- The table of a calibration: scores before and after, with the interval of the change.


def test_the_table() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100)
    show_fitted(
        console, fitted_calibration(drawn_rows(80), Target("f1"), "equivalent"), "validation [b](80 rows)", "equivalent"
    )
    lines = output.getvalue().splitlines()
    assert lines[0].split() == ["validation", "[b](80", "rows)", "before", "after", "change", "95", "%", "interval"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["loss", "calibration error", "F1 (equivalent)"]
    assert lines[-1] == "thresholds for the highest F1"


def test_names_and_numbers() -> None:
    assert gain_title(Gain("f1", 0, 0), None) == "F1 (mean over labels)"
    assert gain_title(Gain("cost", 0, 0), "yes") == "cost per row"
    assert gain_cells(Gain("f1", 0.5, 0.75, -0.1, 0.6)) == ("0.5000", "0.7500", "+0.2500", "-0.1000 to +0.6000")
    assert gain_cells(Gain("calibration error", 0.5, 0.25))[2:] == ("-0.2500", "")
