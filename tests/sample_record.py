"""The record of a run that never took place, for tests of what reads and writes run.json."""

from __future__ import annotations

from glassloop.runs.record import RUNNING, Columns, DataRecord, ModelRecord, Plan, RunRecord, SplitFacts
from glassloop.settings.fields import DataSettings
from glassloop.settings.training import TrainingArguments

RECORD = RunRecord(
    status=RUNNING,
    data=DataRecord(
        source="rows.csv",
        task="single_label_classification",
        columns=Columns("text", None, ("label",)),
        splits={"train": SplitFacts(27, {"a": 20, "b": 7}, fingerprint="abc")},
        settings=DataSettings(labels=("a", "b, c")),
        labels=("a", "b, c"),
        notes=("a note",),
    ),
    model=ModelRecord("quickstart", "bert", 1000),
    settings=TrainingArguments("out", learning_rate=1e-4, num_train_epochs=2),
    plan=Plan(8, 4, 4, 1, 0, 10, 4, 4),
    max_length=64,
    class_weights=(0.5, 1.5),
    savings=("packed batches",),
    versions={"torch": "2"},
)
