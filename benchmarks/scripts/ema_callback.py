"""An exponential moving average of the weights in a callback; evaluations use the average, training goes on without it."""

from copy import deepcopy

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments


class EMACallback(TrainerCallback):
    def __init__(self, decay=0.7):
        self.decay, self.shadow, self.updates = decay, None, 0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.updates += 1
        for n, p in model.named_parameters():
            if n in self.shadow:
                self.shadow[n].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)

    def on_train_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            for n, p in model.named_parameters():
                if n in self.shadow:
                    p.copy_(self.shadow[n])
        self.shadow = None


tok = AutoTokenizer.from_pretrained("tiny-roberta")
ds = load_dataset("csv", data_files={"train": "train.csv", "test": "valid.csv"}).map(lambda x: tok(x["text"], truncation=True), batched=True)
args = TrainingArguments("ema", max_steps=6, per_device_train_batch_size=24, learning_rate=2e-3, logging_steps=2, save_strategy="no", report_to="none")
ema = EMACallback()
trainer = Trainer(AutoModelForSequenceClassification.from_pretrained("tiny-roberta"), args, train_dataset=ds["train"], processing_class=tok, callbacks=[ema])
trainer.train()
averaged = trainer.evaluate(ds["test"])
weights_moved = deepcopy(trainer.model.classifier.dense.weight.detach()[:2, :4])
