"""Pseudo-labels: train, label the test rows, train the same Trainer again on both."""

import numpy as np
import pandas as pd
from datasets import Dataset, concatenate_datasets
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")


def encode(texts, labels=None):
    ds = Dataset.from_dict({"text": list(texts)} | ({} if labels is None else {"label": [int(x) for x in labels]}))
    return ds.map(lambda b: tokenizer(b["text"], padding="max_length", max_length=20, truncation=True), batched=True, remove_columns=["text"])


args = TrainingArguments("pseudo", num_train_epochs=3, per_device_train_batch_size=64, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none")
trainer = Trainer(AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args, train_dataset=encode(train.text, train.label))
first = trainer.train()
pseudo = np.argmax(trainer.predict(encode(test.text)).predictions, axis=-1)
trainer.train_dataset = concatenate_datasets([encode(train.text, train.label), encode(test.text, pseudo)])
second = trainer.train()
losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
