"""A Dataset class that tokenizes in __getitem__ and counts how often each row is read."""

from collections import Counter

import pandas as pd
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")


class LazyDataset(torch.utils.data.Dataset):
    def __init__(self, df):
        self.df = df.reset_index(drop=True)
        self.reads = Counter()

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        self.reads[i] += 1
        row = self.df.iloc[i]
        encoded = tokenizer(row.text, row.text_b, truncation=True, max_length=40)
        return {**encoded, "label": int(row.label)}


train_dataset = LazyDataset(pd.read_csv("train.csv"))
valid_dataset = LazyDataset(pd.read_csv("valid.csv"))
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments("lazy", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=1e-3, logging_steps=1, save_strategy="no",
                           report_to="none", dataloader_num_workers=0),
    train_dataset=train_dataset,
    eval_dataset=valid_dataset,
    processing_class=tokenizer,
)
trainer.train()
metrics = trainer.evaluate()
most_reads = max(train_dataset.reads.values())
