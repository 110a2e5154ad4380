"""Multi-sample dropout: five dropout layers, one head, the mean of their logits and losses."""

import numpy as np
import torch
import torch.nn as nn
from datasets import load_dataset
from transformers import AutoModel, AutoTokenizer, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

name = "tiny-bert"
tokenizer = AutoTokenizer.from_pretrained(name)


class MultiSampleModel(nn.Module):
    def __init__(self, num_labels):
        super().__init__()
        self.num_labels = num_labels
        self.backbone = AutoModel.from_pretrained(name)
        self.dropouts = nn.ModuleList([nn.Dropout(0.1 * (i + 1)) for i in range(5)])
        self.classifier = nn.Linear(self.backbone.config.hidden_size, num_labels)

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None):
        pooled = self.backbone(input_ids, attention_mask, token_type_ids).pooler_output
        logits = torch.stack([self.classifier(drop(pooled)) for drop in self.dropouts]).mean(dim=0)
        loss = None
        if labels is not None:
            losses = [nn.functional.cross_entropy(self.classifier(drop(pooled)), labels) for drop in self.dropouts]
            loss = torch.stack(losses).mean()
        return SequenceClassifierOutput(loss=loss, logits=logits)


ds = load_dataset("csv", data_files={"train": "train.csv", "val": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], truncation=True), batched=True).rename_column("star", "labels").remove_columns("label")
model = MultiSampleModel(3)
trainer = Trainer(
    model=model,
    args=TrainingArguments("msd", per_device_train_batch_size=24, num_train_epochs=3, learning_rate=1e-3, eval_strategy="epoch",
                           logging_strategy="epoch", save_strategy="epoch", save_total_limit=1, report_to="none"),
    train_dataset=ds["train"],
    eval_dataset=ds["val"],
    processing_class=tokenizer,
    compute_metrics=lambda p: {"accuracy": float(np.mean(p.predictions.argmax(-1) == p.label_ids))},
)
trainer.train()
torch.save(model.state_dict(), "pytorch_model.bin")
