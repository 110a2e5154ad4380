"""The blog classic of 2020: encodings padded to max_length, a torch Dataset around them, warmup and weight decay."""

import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from transformers import DistilBertForSequenceClassification, DistilBertTokenizerFast, Trainer, TrainingArguments

df = pd.concat([pd.read_csv("train.csv"), pd.read_csv("valid.csv")])
train_texts, val_texts, train_labels, val_labels = train_test_split(df.text.tolist(), df.label.tolist(), test_size=0.25, random_state=0)
tokenizer = DistilBertTokenizerFast.from_pretrained("tiny-distilbert")
train_encodings = tokenizer(train_texts, truncation=True, padding="max_length", max_length=24)
val_encodings = tokenizer(val_texts, truncation=True, padding="max_length", max_length=24)


class ReviewDataset(torch.utils.data.Dataset):
    def __init__(self, encodings, labels):
        self.encodings = encodings
        self.labels = labels

    def __getitem__(self, idx):
        item = {key: torch.tensor(val[idx]) for key, val in self.encodings.items() if key != "token_type_ids"}
        item["labels"] = torch.tensor(self.labels[idx])
        return item

    def __len__(self):
        return len(self.labels)


training_args = TrainingArguments(
    output_dir="./results",
    num_train_epochs=3,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    warmup_steps=2,
    weight_decay=0.01,
    learning_rate=1e-3,
    logging_dir="./logs",
    logging_steps=1,
)
model = DistilBertForSequenceClassification.from_pretrained("tiny-distilbert")
trainer = Trainer(model=model, args=training_args, train_dataset=ReviewDataset(train_encodings, train_labels), eval_dataset=ReviewDataset(val_encodings, val_labels))
trainer.train()
evaluation = trainer.evaluate()
