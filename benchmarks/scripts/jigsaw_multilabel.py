"""Several labels per comment: float labels, BCE through problem_type, ROC AUC per column, a sigmoid at the end."""

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

LABELS = ["toxic", "insult", "threat"]
tokenizer = AutoTokenizer.from_pretrained("tiny-bert")


class ToxicDataset(Dataset):
    def __init__(self, frame, max_len=24):
        self.texts = frame["text"].tolist()
        self.targets = frame[LABELS].values.astype(np.float32)
        self.max_len = max_len

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        enc = tokenizer(self.texts[i], truncation=True, padding="max_length", max_length=self.max_len, return_tensors="pt")
        item = {k: v.squeeze(0) for k, v in enc.items()}
        item["labels"] = torch.from_numpy(self.targets[i])
        return item


def compute_metrics(p):
    probs = 1 / (1 + np.exp(-p.predictions))
    aucs = {f"auc_{name}": roc_auc_score(p.label_ids[:, i], probs[:, i]) for i, name in enumerate(LABELS)}
    return {**aucs, "auc": np.mean(list(aucs.values())), "f1_micro": f1_score(p.label_ids, probs > 0.5, average="micro", zero_division=0)}


model = AutoModelForSequenceClassification.from_pretrained(
    "tiny-bert", num_labels=len(LABELS), problem_type="multi_label_classification",
    id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)},
)
args = TrainingArguments("toxic", num_train_epochs=4, per_device_train_batch_size=24, per_device_eval_batch_size=12, learning_rate=1e-3, logging_steps=1,
                         eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="auc", load_best_model_at_end=True, report_to="none")
trainer = Trainer(model, args, train_dataset=ToxicDataset(pd.read_csv("train.csv")), eval_dataset=ToxicDataset(pd.read_csv("valid.csv")), compute_metrics=compute_metrics)
trainer.train()
probabilities = torch.sigmoid(torch.tensor(trainer.predict(ToxicDataset(pd.read_csv("valid.csv"))).predictions))
