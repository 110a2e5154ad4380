"""Cross entropy plus a supervised contrastive term on the [CLS] state of the last hidden layer."""

import numpy as np
import torch
import torch.nn.functional as F
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tok = AutoTokenizer.from_pretrained("tiny-bert")
raw = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
enc = raw.map(lambda b: tok(b["text"], padding="max_length", truncation=True, max_length=20), batched=True)
enc.set_format("torch", columns=["input_ids", "attention_mask", "token_type_ids", "label"])


def supcon(features, labels, temperature=0.3):
    features = F.normalize(features, dim=1)
    sims = features @ features.T / temperature
    eye = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels[None, :]) & ~eye
    log_prob = sims - torch.logsumexp(sims.masked_fill(eye, float("-inf")), dim=1, keepdim=True)
    return -(log_prob * positives).sum(1).div(positives.sum(1).clamp(min=1)).mean()


class SupConTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs, output_hidden_states=True)
        cls = outputs.hidden_states[-1][:, 0]
        loss = 0.7 * outputs.loss + 0.3 * supcon(cls, inputs["labels"])
        return (loss, {"loss": loss, "logits": outputs.logits}) if return_outputs else loss


def compute_metrics(pred):
    return {"acc": float((np.argmax(pred.predictions, 1) == pred.label_ids).mean())}


trainer = SupConTrainer(
    AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    TrainingArguments("scl", num_train_epochs=4, per_device_train_batch_size=24, per_device_eval_batch_size=12, learning_rate=5e-4,
                      logging_steps=1, eval_strategy="epoch", save_strategy="no", report_to="none"),
    train_dataset=enc["train"],
    eval_dataset=enc["validation"],
    compute_metrics=compute_metrics,
)
out = trainer.train()
