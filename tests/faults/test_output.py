"""Standard output and standard error that are closed, full or broken: the work is done, and there is never a traceback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trials
from trials import BROKEN, CLOSED

FULL = "/dev/full"
SHORT = {"max_steps": 3, "save_steps": 3, "eval_steps": 3, "logging_steps": 1}
SCRIPT = """
import sys
from glassloop import Trainer, TrainingArguments
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()  # of transformers, before there is a Trainer
model, folder = sys.argv[1:]
rows = [{"text": text, "label": label} for text, label in [("a good film", 1), ("a bad film", 0)] * 4]
arguments = TrainingArguments(output_dir=folder, max_steps=2, logging_steps=1, report_to="none", device="cpu")
tokenizer = AutoTokenizer.from_pretrained(model)
encoded = [{**tokenizer(row["text"]), "labels": row["label"]} for row in rows]
trainer = Trainer(AutoModelForSequenceClassification.from_pretrained(model), arguments, train_dataset=encoded,
                  eval_dataset=encoded, processing_class=tokenizer)
trainer.train()
trainer.evaluate()
trainer.predict(encoded)
trainer.save_model(folder + "/final")
"""

needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="this system has no /dev/full")  # noqa: PTH110
lost_output = pytest.mark.parametrize("lost", [CLOSED, pytest.param(FULL, marks=needs_full), BROKEN])


@lost_output
def test_a_run_ends_with_its_model_whatever_becomes_of_its_messages(runs: Any, lost: str) -> None:
    for streams in ({"err": lost}, {"out": lost}, {"out": lost, "err": lost}):
        run = runs.new()
        ended = runs.servers.run(*runs.arguments(run, **SHORT), **streams)
        assert ended.code == 0, ended.err
        assert "Traceback" not in ended.err
        trials.same_end(runs.reference(**SHORT), run)


@lost_output
def test_a_trainer_in_a_script_ends_with_its_model(runs: Any, tiny_model_dir: Path, tmp_path: Path, lost: str) -> None:
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    ended = runs.servers.run(str(tiny_model_dir), str(run), script=script, err=lost, out=lost)
    assert ended.code == 0, ended.err
    assert (run / "final/model.safetensors").exists()
