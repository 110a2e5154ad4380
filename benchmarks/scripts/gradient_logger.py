"""A callback that reads gradient norms before each optimizer step and the learning rate after it."""

import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files="train.csv", split="train").map(lambda x: tokenizer(x["text"]), batched=True)


class GradientLogger(TrainerCallback):
    def __init__(self):
        self.norms, self.rates = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad.detach().norm() for p in model.parameters() if p.grad is not None]
        self.norms.append(torch.stack(grads).norm().item() if grads else 0.0)

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        self.rates.append(lr_scheduler.get_last_lr()[0])


logger = GradientLogger()
trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments("grads", max_steps=4, per_device_train_batch_size=24, learning_rate=1e-3, max_grad_norm=0.5, logging_steps=1,
                           save_strategy="no", report_to="none"),
    train_dataset=ds,
    processing_class=tokenizer,
    callbacks=[logger],
)
trainer.train()
norms = logger.norms
logged_norms = [e["grad_norm"] for e in trainer.state.log_history if "grad_norm" in e]
