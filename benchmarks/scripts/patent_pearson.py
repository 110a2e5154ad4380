"""Phrase similarity as regression: text joined with separators, num_labels=1, Pearson correlation; 2022 argument names."""

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

model_nm = "tiny-deberta"
df = pd.read_csv("pairs.csv")
df["input"] = "one: " + df.text + "; two: " + df.text_b + "; kind: " + df.genre
tokz = AutoTokenizer.from_pretrained(model_nm)


def tok_func(x):
    return tokz(x["input"])


ds = Dataset.from_pandas(df[["input", "target"]])
tok_ds = ds.map(tok_func, batched=True).rename_columns({"target": "labels"})
dds = DatasetDict({"train": tok_ds.select(range(16)), "test": tok_ds.select(range(16, 24))})


def corr_d(eval_pred):
    predictions, labels = eval_pred
    return {"pearson": np.corrcoef(predictions.reshape(-1), labels)[0][1]}


bs, epochs, lr = 128, 4, 8e-4
args = TrainingArguments("outputs", learning_rate=lr, warmup_ratio=0.1, lr_scheduler_type="cosine", fp16=False, evaluation_strategy="epoch",
                         per_device_train_batch_size=bs, per_device_eval_batch_size=bs * 2, num_train_epochs=epochs, weight_decay=0.01,
                         logging_steps=1, report_to="none")
model = AutoModelForSequenceClassification.from_pretrained(model_nm, num_labels=1)
tokenizer = tokz
trainer = Trainer(model, args, train_dataset=dds["train"], eval_dataset=dds["test"], tokenizer=tokenizer, compute_metrics=corr_d)
trainer.train()
preds = trainer.predict(dds["test"]).predictions.astype(float)
preds = np.clip(preds, 0, 1)
