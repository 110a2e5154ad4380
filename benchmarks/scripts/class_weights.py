"""Balanced class weights in compute_loss, with the signature of 2021."""

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

df = pd.read_csv("train.csv")
df_val = pd.read_csv("valid.csv")
tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert", num_labels=3)


def encode(frame):
    ds = Dataset.from_pandas(frame[["text", "star"]].rename(columns={"star": "labels"}))
    return ds.map(lambda x: tokenizer(x["text"], truncation=True, padding="max_length", max_length=24), batched=True)


weights = compute_class_weight("balanced", classes=np.unique(df["star"]), y=np.append(df["star"][4:], [0, 0, 0, 1]))
class_weights = torch.tensor(weights, dtype=torch.float)


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.get("labels")
        outputs = model(**inputs)
        logits = outputs.get("logits")
        loss_fct = nn.CrossEntropyLoss(weight=class_weights.to(logits.device))
        loss = loss_fct(logits.view(-1, self.model.config.num_labels), labels.view(-1))
        return (loss, outputs) if return_outputs else loss


args = TrainingArguments(
    output_dir="./results",
    num_train_epochs=4,
    per_device_train_batch_size=24,
    per_device_eval_batch_size=24,
    evaluation_strategy="epoch",
    logging_steps=1,
    learning_rate=2e-3,
    save_strategy="no",
)
trainer = WeightedTrainer(model=model, args=args, train_dataset=encode(df), eval_dataset=encode(df_val))
trainer.train()
metrics = trainer.evaluate()
print(metrics)
