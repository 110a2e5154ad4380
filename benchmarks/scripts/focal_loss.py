"""Focal loss as its own nn.Module, and macro F1 chooses the best epoch."""

import numpy as np
import torch
import torch.nn.functional as F
from datasets import load_dataset
from sklearn.metrics import f1_score
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

set_seed(42)
MODEL = "tiny-roberta"
tok = AutoTokenizer.from_pretrained(MODEL)
ds = load_dataset("csv", data_files={"train": "train.csv", "test": "valid.csv"})
ds = ds.map(lambda e: tok(e["text"], truncation=True, max_length=32), batched=True)
ds = ds.remove_columns(["label"]).rename_column("star", "labels")


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, alpha=None):
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits, target):
        ce = F.cross_entropy(logits, target, weight=self.alpha, reduction="none")
        pt = torch.exp(-ce)
        return ((1 - pt) ** self.gamma * ce).mean()


class FocalTrainer(Trainer):
    def __init__(self, *args, gamma=2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_fn = FocalLoss(gamma)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.loss_fn(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


def compute_metrics(p):
    return {"macro_f1": f1_score(p.label_ids, np.argmax(p.predictions, axis=1), average="macro")}


trainer = FocalTrainer(
    model=AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=3),
    args=TrainingArguments("focal", per_device_train_batch_size=32, num_train_epochs=5, learning_rate=1e-3, eval_strategy="epoch",
                           save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="macro_f1", logging_steps=1, report_to=[]),
    train_dataset=ds["train"],
    eval_dataset=ds["test"],
    data_collator=DataCollatorWithPadding(tok),
    compute_metrics=compute_metrics,
    gamma=1.5,
)
trainer.train()
best = trainer.state.best_metric
final = trainer.evaluate(ds["test"])
