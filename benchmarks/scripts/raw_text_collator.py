"""Raw rows in, tensors out: a collator that tokenizes texts, with remove_unused_columns=False."""

import pandas as pd
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
records = pd.read_csv("train.csv")[["text", "text_b", "label"]].to_dict("records")
valid = pd.read_csv("valid.csv")[["text", "text_b", "label"]].to_dict("records")


def collate(batch):
    enc = tokenizer([x["text"] for x in batch], [x["text_b"] for x in batch], padding=True, truncation=True, max_length=32, return_tensors="pt")
    enc["labels"] = torch.tensor([x["label"] for x in batch])
    return enc


args = TrainingArguments(
    output_dir="raw",
    remove_unused_columns=False,
    per_device_train_batch_size=24,
    num_train_epochs=3,
    learning_rate=1e-3,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args=args, data_collator=collate, train_dataset=records, eval_dataset=valid)
trainer.train()
out = trainer.predict(valid)
accuracy = (out.predictions.argmax(-1) == out.label_ids).mean()
