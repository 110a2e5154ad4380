"""model_init and compute_loss_func, several seeds, mean and standard deviation of their scores."""

import numpy as np
import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-distilbert")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], truncation=True, return_token_type_ids=False), batched=True)


def model_init():
    return AutoModelForSequenceClassification.from_pretrained("tiny-distilbert", num_labels=2)


def loss_func(outputs, labels, num_items_in_batch=None):
    margin = torch.nn.functional.multi_margin_loss(outputs["logits"], labels, reduction="sum")
    return margin / (num_items_in_batch if num_items_in_batch is not None else len(labels))


scores = []
for seed in (1, 2):
    args = TrainingArguments(f"seed-{seed}", seed=seed, data_seed=seed, num_train_epochs=3, per_device_train_batch_size=24, learning_rate=1e-3,
                             logging_steps=1, save_strategy="no", report_to="none")
    trainer = Trainer(model_init=model_init, args=args, train_dataset=ds["train"], eval_dataset=ds["validation"], processing_class=tokenizer,
                      compute_loss_func=loss_func, compute_metrics=lambda p: {"accuracy": (p.predictions.argmax(1) == p.label_ids).mean()})
    trainer.train()
    scores.append(trainer.evaluate()["eval_loss"])
mean, std = np.mean(scores), np.std(scores)
