"""Two heads on one encoder, two label columns named in label_names, metrics from tuples of predictions and labels."""

import pandas as pd
import torch.nn as nn
from datasets import Dataset
from transformers import AutoModel, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")


class MultiTaskModel(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(name)
        self.config = self.encoder.config
        self.mood = nn.Linear(self.config.hidden_size, 2)
        self.star = nn.Linear(self.config.hidden_size, 3)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, star_labels=None):
        cls = self.encoder(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state[:, 0]
        mood, star = self.mood(cls), self.star(cls)
        loss = None
        if labels is not None:
            ce = nn.CrossEntropyLoss()
            loss = ce(mood, labels) + 0.5 * ce(star, star_labels)
        return {"loss": loss, "mood": mood, "star": star}


def load(path):
    df = pd.read_csv(path)[["text", "label", "star"]].rename(columns={"label": "labels", "star": "star_labels"})
    ds = Dataset.from_pandas(df).map(lambda b: tokenizer(b["text"], padding="max_length", max_length=20, truncation=True), batched=True)
    return ds.remove_columns(["text"])


def compute_metrics(p):
    (mood, star), (labels, star_labels) = p.predictions, p.label_ids
    return {"mood_acc": (mood.argmax(-1) == labels).mean(), "star_acc": (star.argmax(-1) == star_labels).mean()}


args = TrainingArguments("mtl", label_names=["labels", "star_labels"], per_device_train_batch_size=24, num_train_epochs=4, learning_rate=1e-3,
                         eval_strategy="epoch", logging_steps=1, save_strategy="no", report_to="none")
trainer = Trainer(MultiTaskModel("tiny-bert"), args, train_dataset=load("train.csv"), eval_dataset=load("valid.csv"), compute_metrics=compute_metrics)
trainer.train()
metrics = trainer.evaluate()
