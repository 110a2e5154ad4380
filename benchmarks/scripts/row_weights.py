"""A column of row weights that compute_loss takes out of the inputs, kept by remove_unused_columns=False."""

import pandas as pd
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-distilbert")
df = pd.read_csv("train.csv")
df["weight"] = 1.0 + df["group"] * 2.0


def tokenize(row):
    out = tokenizer(row["text"], truncation=True, padding="max_length", max_length=20)
    out["labels"] = row["label"]
    out["weight"] = row["weight"]
    return out


ds = Dataset.from_pandas(df)
ds = ds.map(tokenize, remove_columns=[c for c in ds.column_names if c != "weight"])
seen = set()


class RowWeightTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        seen.update(inputs.keys())
        weights = inputs.pop("weight", None)
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        per_row = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="none")
        loss = per_row.mean() if weights is None else (per_row * weights).mean()
        return (loss, outputs) if return_outputs else loss


args = TrainingArguments(
    output_dir="weighted",
    remove_unused_columns=False,
    per_device_train_batch_size=24,
    per_device_eval_batch_size=24,
    num_train_epochs=3,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = RowWeightTrainer(AutoModelForSequenceClassification.from_pretrained("tiny-distilbert"), args, train_dataset=ds, eval_dataset=ds)
train_output = trainer.train()
scores = trainer.evaluate()
