"""Early stopping on F1, the best model at the end, and its checkpoint copied elsewhere; 2022 argument names."""

import os
import shutil

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EarlyStoppingCallback, Trainer, TrainingArguments


class TextDataset(torch.utils.data.Dataset):
    def __init__(self, encodings, labels):
        self.encodings, self.labels = encodings, labels

    def __getitem__(self, idx):
        item = {key: torch.tensor(val[idx]) for key, val in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[idx])
        return item

    def __len__(self):
        return len(self.labels)


tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
frames = {name: pd.read_csv(f"{name}.csv") for name in ("train", "valid")}
sets = {name: TextDataset(tokenizer(df.text.tolist(), truncation=True, padding=True, max_length=128), df.label.tolist()) for name, df in frames.items()}


def compute_metrics(pred):
    labels, preds = pred.label_ids, pred.predictions.argmax(-1)
    precision, recall, f1, _ = precision_recall_fscore_support(labels, preds, average="binary", zero_division=0)
    return {"accuracy": accuracy_score(labels, preds), "f1": f1, "precision": precision, "recall": recall}


training_args = TrainingArguments(
    output_dir="./results",
    num_train_epochs=12,
    per_device_train_batch_size=24,
    per_device_eval_batch_size=64,
    learning_rate=1e-3,
    logging_dir="./logs",
    logging_steps=1,
    evaluation_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="f1",
    save_total_limit=3,
)
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert")
trainer = Trainer(model=model, args=training_args, train_dataset=sets["train"], eval_dataset=sets["valid"], compute_metrics=compute_metrics,
                  callbacks=[EarlyStoppingCallback(early_stopping_patience=2)])
trainer.train()
best = os.path.basename(trainer.state.best_model_checkpoint)
shutil.copytree(trainer.state.best_model_checkpoint, "best")
reloaded = AutoModelForSequenceClassification.from_pretrained("best").eval()
with torch.no_grad():
    scores = reloaded(**tokenizer(["good story", "bad story"], padding=True, return_tensors="pt")).logits.numpy()
steps, final = trainer.state.global_step, trainer.evaluate()
assert np.isfinite(scores).all()
