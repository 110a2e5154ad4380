"""The first script of many tutorials: a pair task, a tokenized DatasetDict, dynamic padding, accuracy every epoch."""

import numpy as np
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

checkpoint = "tiny-bert"
raw = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
tokenizer = AutoTokenizer.from_pretrained(checkpoint)


def tokenize(batch):
    return tokenizer(batch["text"], batch["text_b"], truncation=True)


tokenized = raw.map(tokenize, batched=True)
collator = DataCollatorWithPadding(tokenizer=tokenizer)


def compute_metrics(eval_preds):
    logits, labels = eval_preds
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": accuracy_score(labels, predictions), "f1": f1_score(labels, predictions)}


args = TrainingArguments(
    "test-trainer",
    eval_strategy="epoch",
    logging_strategy="epoch",
    per_device_train_batch_size=24,
    learning_rate=1e-3,
    report_to="none",
)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
trainer = Trainer(
    model,
    args,
    train_dataset=tokenized["train"],
    eval_dataset=tokenized["validation"],
    data_collator=collator,
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
)
trainer.train()
predictions = trainer.predict(tokenized["validation"])
print(predictions.predictions.shape, predictions.label_ids.shape)
preds = np.argmax(predictions.predictions, axis=-1)
