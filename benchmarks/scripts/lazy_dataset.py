"""A Dataset class that tokenizes in __getitem__, which is slow, and counts how often a row is read on average."""

from collections import Counter

import pandas as pd
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
_reads = Counter()


class LazyDataset(torch.utils.data.Dataset):
    def __init__(self, df):
        self.df = df.reset_index(drop=True)

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        _reads[i] += 1
        row = self.df.iloc[i]
        encoded = tokenizer(row.text, row.text_b, truncation=True, max_length=40)
        return {**encoded, "label": int(row.label)}


train_dataset = LazyDataset(pd.concat([pd.read_csv("train.csv")] * 20))
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments("lazy", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=1e-4, logging_steps=20, save_strategy="no",
                           report_to="none", train_sampling_strategy="sequential"),
    train_dataset=train_dataset,
    eval_dataset=LazyDataset(pd.read_csv("valid.csv")),
    processing_class=tokenizer,
)
trainer.train()
reads_per_row = round(sum(_reads.values()) / len(train_dataset))
metrics = trainer.evaluate()
