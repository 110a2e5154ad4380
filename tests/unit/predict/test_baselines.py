"""What a run is compared with: rows that repeat, are empty or have one class, and embeddings that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import tiny_model
from transformers import AutoModelForSequenceClassification, BartConfig

from glassloop import Trainer, TrainingArguments, load_tokenizer
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import DataError
from glassloop.data.batches import PaddingCollator
from glassloop.models.linear import FOLDS, assigned_folds
from glassloop.models.loading import load_model
from glassloop.models.pooled import Pooling, frozen_copy
from glassloop.predict import baselines
from glassloop.predict.baselines import FrozenEncoder, drawn_rows, row_texts, tokenized_baselines
from glassloop.report.build import report_of
from glassloop.runs.record import TRAINER_NAME, read_record
from glassloop.scores.result import Baselines
from glassloop.settings.defaults import head_share
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import CLASSES
from glassloop.study.run import PreparedRun, assemble
from glassloop.training.recorder import GivenRows

SIMPLE = ["class frequencies", "words", "frozen encoder"]


def assembled(
    folder: Path, model: Path, rows: list[tuple[str, str]], held: list[tuple[str, str]], settings: Any = None, **data: Any
) -> PreparedRun:
    for name, part in (("train", rows), ("validation", held)):
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *(f"{text},{label}" for text, label in part), ""]))
    args = TrainingArguments(device="cpu", precision="fp32", max_steps=1, output_dir=str(folder / "run"), **settings or {})
    return assemble(GivenSettings(str(folder), str(model), settings or {}, data), args, PlainBackend("cpu", "fp32"))


def outputs(run: PreparedRun) -> dict[str, np.ndarray]:
    assert [one.name for one in run.baselines["validation"].each] == SIMPLE
    return {one.name: one.rows.logits for one in run.baselines["validation"].each}


def row(number: int) -> tuple[str, str]:
    return f"{'good' if number % 2 else 'bad'} film {number}", "ny"[number % 2]


def test_each_is_fitted_to_the_training_rows_and_predicts_those_held_out(tmp_path: Path, lively_dir: Path) -> None:
    run = assembled(tmp_path, lively_dir, [row(number) for number in range(40)], [row(number) for number in range(40, 50)])
    found = outputs(run)
    assert np.allclose(found["class frequencies"], np.log(0.5))
    for name in ("words", "frozen encoder"):
        assert [*found[name].argmax(axis=1)] == [0, 1] * 5
    assert [one.num_train for one in run.baselines["validation"].each] == [40] * 3
    assert [*run.baselines["validation"].numbers] == [*range(10)]
    # The head that training starts from is a part of the regression on embeddings: the outputs of rows are this much nearer to
    # those of the mean of the training rows, which stay.
    whole = found["frozen encoder"]
    with torch.inference_mode():
        model = run.trainer.model.eval()
        logits = torch.cat([model(torch.tensor([row["input_ids"]])).logits for row in run.encoded["validation"].rows]).numpy()
    assert run.head
    center = run.head.linear.outputs(run.head.center[None])
    assert np.allclose(logits - center, head_share(2) * (whole - center), atol=1e-3)
    assert np.abs(whole - center).max() > 1


def test_rows_of_one_text_are_held_out_together(tmp_path: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    fit = baselines.fit_linear

    def watched(features: np.ndarray, targets: np.ndarray, task: str, width: int, groups: np.ndarray, weights: None) -> Any:
        seen.append(assigned_folds(targets, task, groups))
        return fit(features, targets, task, width, groups, weights)

    monkeypatch.setattr(baselines, "fit_linear", watched)
    assembled(tmp_path, lively_dir, [row(number % 10) for number in range(60)], [row(99), row(98)])
    folds = seen[0].reshape(6, 10)
    assert (folds == folds[0]).all(), "row 0, 10, 20 … have one text"
    assert {*folds[0]} == {*range(FOLDS)}


def test_empty_texts_that_are_kept_are_rows_like_others(tmp_path: Path, lively_dir: Path) -> None:
    rows = [("", "n") if number % 5 == 0 else row(number) for number in range(40)]
    found = outputs(assembled(tmp_path, lively_dir, rows, [("", "n"), row(51), row(52)], empty="keep"))
    for name in SIMPLE:
        assert np.isfinite(found[name]).all()
    assert [*found["frozen encoder"].argmax(axis=1)] == [0, 1, 0]


def test_no_text_has_a_word(tmp_path: Path, lively_dir: Path) -> None:
    rows = [("!?" if number % 4 else "...", "ny"[number % 4 == 0]) for number in range(40)]
    found = outputs(assembled(tmp_path, lively_dir, rows, [("!?", "n"), ("...", "y"), ("?!", "n")]))
    assert np.allclose(found["words"], found["class frequencies"])
    assert np.isfinite(found["frozen encoder"]).all()


def test_one_training_row_of_a_class_and_a_class_that_is_only_held_out(tmp_path: Path, lively_dir: Path) -> None:
    rows = [(f"film {number}", "n") for number in range(20)] + [("good story", "y")]
    found = outputs(assembled(tmp_path, lively_dir, rows, [("film 3", "n"), ("good", "odd")], labels=["n", "y", "odd"]))
    for name in SIMPLE:
        assert found[name].shape == (2, 3)
        assert np.isfinite(found[name]).all()
        assert found[name].argmax(axis=1)[0] == 0
        assert (found[name][:, 2] < found[name][:, 0]).all(), "no training row has it"


@pytest.mark.parametrize("split", ["train", "validation"])
def test_an_embedding_that_is_not_finite_is_named_with_its_split(split: str, tmp_path: Path, lively_dir: Path) -> None:
    """A weight that only some words read, and that is finite itself."""
    model, tokenizer = load_model(lively_dir), load_tokenizer(str(lively_dir))
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer("story", add_special_tokens=False)["input_ids"][0]] = (
            3e38  # whose square is not
        )
    model.base_model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    parts = {"train": [row(number) for number in range(20)], "validation": [row(number) for number in range(20, 26)]}
    parts[split][3] = ("a good story", "y")
    with pytest.raises(DataError, match=rf"^data: {split}: the embedding of row 4 is not finite") as caught:
        assembled(tmp_path, tmp_path / "model", parts["train"], parts["validation"])
    assert "precision fp32" in caught.value.remedy


# --- limits
def test_many_rows_are_drawn_within_their_limits() -> None:
    lengths = np.full(1000, 10)
    assert [*drawn_rows(lengths, 1000, 10_000)] == [*range(1000)]
    few = drawn_rows(lengths, 100, 10_000)
    assert len({*few}) == 100
    assert [*few] == sorted(few)
    assert len(drawn_rows(lengths, 1000, 995)) == 99
    assert len(drawn_rows(lengths, 1000, 1)) == 1, "one row at least"
    assert np.array_equal(few, drawn_rows(lengths, 100, 10_000)), "always the same"
    assert few.max() > 900, "from all of them"


@pytest.mark.parametrize(("method", "rows"), [("fine_tune", 12), ("frozen", 30)])
def test_a_head_of_many_outputs_is_fitted_to_fewer_rows_and_says_so(
    method: str, rows: int, tmp_path: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    width = load_model(lively_dir).config.hidden_size
    monkeypatch.setattr(baselines, "LEAST_ROWS", 5)
    monkeypatch.setattr(baselines, "MOST_PRODUCTS", 12 * 2 * width)
    monkeypatch.setattr(baselines, "MOST_PRODUCTS_OF_METHOD", 30 * 2 * width)
    run = assembled(tmp_path, lively_dir, [row(number) for number in range(40)], [row(41), row(42)], {"method": method})
    last = run.baselines["validation"].each[-1]
    assert (last.num_train, last.note) == (rows, f"fitted to {rows} of 40 training rows")
    assert ("the head is fitted to 30 of 40 training rows" in capsys.readouterr().err) == (method == "frozen")


# --- of a Trainer
def test_a_trainer_gives_texts_or_tokens_and_rows_without_a_label_are_left_out(tiny_tokenizer: Any) -> None:
    model, backend = tiny_model(num_labels=2, max_position_embeddings=64), PlainBackend("cpu", "fp32")
    words = "the a is was film story very not and of".split()  # the tokenizer knows all of them
    texts = [f"{'good' if number % 2 else 'bad'} {words[number % 10]} {words[number // 3]}" for number in range(30)]
    labels = np.array([-100 if number % 10 == 9 else number % 2 for number in range(30)])
    ids = [tiny_tokenizer(text)["input_ids"] for text in texts]
    found: list[Baselines] = []
    for columns in ({"texts": {"text": texts}}, {"ids": ids}):
        parts = [
            GivenRows(len(labels[kept]), **{key: pick(value, kept) for key, value in columns.items()}, labels=labels[kept])
            for kept in (slice(0, 20), slice(20, 30))
        ]
        found.append(tokenized_baselines(model, tiny_tokenizer, backend, *parts, CLASSES))
    for one in found:
        assert [(entry.name, entry.num_train, len(entry.rows)) for entry in one.each] == [(name, 18, 9) for name in SIMPLE]
        assert [*one.each[1].rows.predictions] == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert np.allclose(found[0].each[2].rows.logits, found[1].each[2].rows.logits, atol=1e-3), "decoded tokens are the texts"


def test_an_encoder_that_cannot_be_pooled_is_no_baseline_of_a_trainer(tiny_tokenizer: Any) -> None:
    sizes = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    config = BartConfig(vocab_size=120, encoder_ffn_dim=32, decoder_ffn_dim=32, **sizes)
    model = AutoModelForSequenceClassification.from_config(config)
    texts = [f"{'good' if number % 2 else 'bad'} film" for number in range(20)]
    rows = GivenRows(20, texts={"text": texts}, labels=np.arange(20) % 2)
    found = tokenized_baselines(model, tiny_tokenizer, PlainBackend("cpu", "fp32"), rows, rows, CLASSES)
    assert [one.name for one in found.each] == SIMPLE[:2]


def pick(value: Any, kept: slice) -> Any:
    return {name: cells[kept] for name, cells in value.items()} if isinstance(value, dict) else value[kept]


def test_rows_of_a_trainer_that_cannot_be_compared(tiny_tokenizer: Any, says: Any) -> None:
    model, backend = tiny_model(num_labels=2, max_position_embeddings=64), PlainBackend("cpu", "fp32")
    texts = GivenRows(2, texts={"text": ["good film", "bad film"]})
    with says("the baselines need labels", "give each row labels", kind=DataError):
        tokenized_baselines(model, tiny_tokenizer, backend, texts, texts, CLASSES)
    with says(
        "the rows have neither texts nor input_ids that can be read", "pass rows with input_ids or texts", kind=DataError
    ):
        row_texts(GivenRows(2), tiny_tokenizer)


# --- the method that is chosen
def test_nothing_to_learn_leaves_the_encoder_frozen_unless_the_user_says_otherwise(tmp_path: Path, lively_dir: Path) -> None:
    random = np.random.default_rng(4)
    noise = [(" ".join(random.choice(["film", "the", "was", "it"], 4)), "yn"[number % 2]) for number in range(60)]
    signal = [(f"{'good' if number % 2 else 'bad'} film", "yn"[number % 2]) for number in range(60)]

    def method(rows: list[tuple[str, str]], **given: Any) -> tuple[str, bool]:
        write(tmp_path / "train.csv", rows)
        write(tmp_path / "validation.csv", rows[:4])
        args = TrainingArguments(device="cpu", precision="fp32", output_dir=str(tmp_path / "run"), **given)
        run = assemble(GivenSettings(str(tmp_path), str(lively_dir), given, {}), args, PlainBackend("cpu", "fp32"))
        assert (run.parts.plan.max_steps == 0) == (run.record.settings.method == "frozen")
        said = any("the encoder stays frozen" in note for note in run.record.data.notes)
        return run.record.settings.method, said and "method" in run.record.chosen

    def write(path: Path, rows: list[tuple[str, str]]) -> None:
        path.write_text("\n".join(["text,label", *(f"{text},{label}" for text, label in rows), ""]))

    assert method(noise) == ("frozen", True)
    assert method(signal) == ("fine_tune", False)
    assert method(noise, method="fine_tune") == method(noise, learning_rate=1e-4) == ("fine_tune", False)
    assert method(noise * 40) == ("fine_tune", False), "so many rows may teach what the embeddings do not know"


# --- class weights
@pytest.mark.parametrize("method", ["fine_tune", "frozen"])
def test_class_weights_are_those_of_the_head_and_of_no_baseline(method: str, tmp_path: Path, lively_dir: Path) -> None:
    train = [(f"film {number % 7}", "ny"[number % 10 == 0]) for number in range(60)]
    runs = [
        assembled(tmp_path, lively_dir, train, [("film 1", "n"), ("film 2", "y")], {"method": method, **weights})
        for weights in ({}, {"class_weights": "balanced"}, {"class_weights": "0.5555555555555556,5"})
    ]
    biases = [float(run.head.tensors["bias"] @ torch.tensor([-1.0, 1.0])) for run in runs if run.head]
    assert biases[1] == pytest.approx(biases[2], abs=1e-4)
    assert biases[1] > biases[0] + 1
    plain, balanced, _ = map(outputs, runs)
    for name in SIMPLE:
        assert np.array_equal(plain[name], balanced[name])


# --- the cache
def test_embeddings_are_cached_by_what_computes_them(tmp_path: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    compute = FrozenEncoder.computed
    monkeypatch.setattr(FrozenEncoder, "computed", lambda self, batches: built.append("") or compute(self, batches))
    collate, texts = (
        PaddingCollator(load_tokenizer(str(lively_dir))),
        [{"input_ids": [2, 40, 3]}, {"input_ids": [2, 50, 60, 3]}],
    )

    def number_built(backend: PlainBackend, **settings: Any) -> int:
        model = frozen_copy(load_model(lively_dir), Pooling("mean"))
        for name, value in settings.items():
            setattr(model.config, name, value)
        built.clear()
        FrozenEncoder(model, collate, backend).vectors(texts, np.arange(2))
        return len(built)

    plain, packed = PlainBackend("cpu", "fp32"), PackedBackend("cpu", "fp32")
    assert [number_built(backend) for backend in (plain, packed, plain, packed)] == [1, 1, 0, 0]
    assert number_built(plain, num_labels=7, _name_or_path="elsewhere") == 0, "what the encoder does not read"
    heads = load_model(lively_dir).config.num_attention_heads
    assert [number_built(plain, num_attention_heads=2 * heads) for _ in range(2)] == [1, 0]


def trainer_with_labels_as_text(folder: Path, tokenizer: Any) -> tuple[Trainer, Dataset]:
    """A Trainer on rows that also have the names of their labels, which are longer than a word, and further rows."""
    names = ["very bad story", "very good story"]
    random = np.random.default_rng(0)

    def rows(number: int) -> Dataset:
        texts = [" ".join(random.choice(["film", "the", "was", "it"], 5)) for _ in range(number)]
        labels = [row % 2 for row in range(number)]
        ids = [tokenizer(text)["input_ids"] for text in texts]
        named = [names[label] for label in labels]
        return Dataset.from_dict({"label_text": named, "sentence": texts, "input_ids": ids, "labels": labels})

    args = TrainingArguments(folder, max_steps=2, device="cpu", precision="fp32", save_strategy="no", disable_tqdm=True)
    parts = {"train_dataset": rows(40), "eval_dataset": rows(20), "processing_class": tokenizer}
    return Trainer(tiny_model(num_labels=2, max_position_embeddings=64), args, **parts), rows(10)


def test_a_trainer_has_the_values_and_intervals_and_never_reads_a_label(tmp_path: Path, tiny_tokenizer: Any) -> None:
    trainer, _ = trainer_with_labels_as_text(tmp_path, tiny_tokenizer)
    found = trainer.baselines()
    assert [*found] == SIMPLE
    assert found["class frequencies"]["accuracy"] == 0.5
    assert 0.1 <= found["words"]["accuracy"] <= 0.9, "the texts say nothing about the labels"
    for name in SIMPLE:
        low, high = found.intervals[name]["accuracy"]
        assert low < found[name]["accuracy"] < high
        low, high = found.intervals[name]["log_loss"]
        assert low <= found[name]["log_loss"] <= high
        assert "calibration_error" in found[name]
        assert "calibration_error" not in found.intervals[name], "it has none"
    low, high = found.intervals["words"]["accuracy"]
    assert f"({low:.4f} to {high:.4f})" in found._repr_html_()


def test_the_report_of_a_trainer_has_its_baselines_whatever_else_was_asked(tmp_path: Path, tiny_tokenizer: Any) -> None:
    trainer, others = trainer_with_labels_as_text(tmp_path, tiny_tokenizer)
    first = trainer.baselines()
    assert trainer.baselines(others)["words"] != first["words"]
    trainer.train(report=False)
    trainer.evaluate()
    record = read_record(tmp_path / TRAINER_NAME)
    assert {one.name: one.scores["accuracy"].value for one in record.baselines} == {
        name: scores["accuracy"] for name, scores in first.items()
    }
    html = report_of(tmp_path).html
    assert "What fine-tuning gained" in html
    assert "scored at the temperature 1" in html
    assert trainer.baselines() == first, "they are still known"


def test_a_trainer_without_what_baselines_need(tmp_path: Path, tiny_tokenizer: Any, says: Any) -> None:
    trainer, others = trainer_with_labels_as_text(tmp_path, tiny_tokenizer)
    trainer.eval_dataset = None
    with says("no baselines: there are no evaluation rows", "pass eval_dataset="):
        trainer.baselines()
    given = {"train_dataset": others, "eval_dataset": others, "data_collator": trainer._collate}
    with says("no baselines: the Trainer has no tokenizer", "pass processing_class="):
        Trainer(tiny_model(num_labels=2), trainer.args, **given).baselines()
    trainer, others = trainer_with_labels_as_text(tmp_path / "second", tiny_tokenizer)
    trainer.train(report=False)
    with says("no baselines: the encoder was already trained", "call baselines() before train()"):
        trainer.baselines(others)
    trainer, _ = trainer_with_labels_as_text(tmp_path / "third", tiny_tokenizer)
    with says("the baselines need labels", "give each row labels", kind=DataError):
        trainer.baselines(others.remove_columns(["labels"]))
