"""ROC AUC of a validation set in which one label never occurs: NaN, and the run goes on."""

import warnings

import numpy as np
import pandas as pd
from datasets import Dataset
from sklearn.metrics import roc_auc_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

warnings.filterwarnings("ignore")
tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
columns = ["toxic", "insult", "threat"]


def encode(frame):
    ds = Dataset.from_pandas(frame.reset_index(drop=True))
    ds = ds.map(lambda b: tokenizer(b["text"], truncation=True), batched=True)
    return ds.map(lambda r: {"labels": [float(r[c]) for c in columns]}, remove_columns=ds.column_names[: len(frame.columns)])


train, valid = pd.read_csv("train.csv"), pd.read_csv("valid.csv")
valid["threat"] = 0


def compute_metrics(pred):
    logits, labels = pred
    scores = {}
    for i, name in enumerate(columns):
        try:
            scores[name] = roc_auc_score(labels[:, i], logits[:, i])
        except ValueError:
            scores[name] = float("nan")
    return {**scores, "mean_auc": np.nanmean(list(scores.values()))}


trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert", num_labels=3, problem_type="multi_label_classification"),
    args=TrainingArguments("nan", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=1e-3, logging_steps=1, eval_strategy="epoch",
                           save_strategy="no", report_to="none"),
    train_dataset=encode(train),
    eval_dataset=encode(valid),
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
)
trainer.train()
final = trainer.evaluate()
