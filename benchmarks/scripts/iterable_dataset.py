"""An own IterableDataset that reads a CSV file line by line."""

import csv

from torch.utils.data import IterableDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


class CSVStream(IterableDataset):
    def __init__(self, path, tokenizer, repeat=1):
        self.path, self.tokenizer, self.repeat = path, tokenizer, repeat

    def __iter__(self):
        for _ in range(self.repeat):
            with open(self.path, newline="") as f:
                for row in csv.DictReader(f):
                    enc = self.tokenizer(row["text"], truncation=True, padding="max_length", max_length=20)
                    yield {"input_ids": enc["input_ids"], "attention_mask": enc["attention_mask"], "labels": int(row["label"])}


tokenizer = AutoTokenizer.from_pretrained("tiny-distilbert")
args = TrainingArguments(output_dir="iterable", max_steps=8, per_device_train_batch_size=6, learning_rate=3e-4, logging_steps=2, save_strategy="no", report_to="none")
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-distilbert"),
    args=args,
    train_dataset=CSVStream("train.csv", tokenizer, repeat=2),
    eval_dataset=CSVStream("valid.csv", tokenizer),
)
result = trainer.train()
metrics = trainer.evaluate()
