"""A limit on time and steps in a callback that asks for an evaluation and a checkpoint before it stops."""

import os
import time

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
data = load_dataset("csv", data_files={"train": "train.csv", "dev": "valid.csv"}).map(lambda x: tokenizer(x["text"]), batched=True)


class Timeout(TrainerCallback):
    def __init__(self, seconds, steps):
        self.seconds, self.steps, self.start_time = seconds, steps, None

    def on_train_begin(self, args, state, control, **kwargs):
        self.start_time = time.time()

    def on_step_end(self, args, state, control, **kwargs):
        if time.time() - self.start_time > self.seconds or state.global_step >= self.steps:
            control.should_evaluate = True
            control.should_save = True
            control.should_training_stop = True
        return control


trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments("limited", num_train_epochs=50, per_device_train_batch_size=24, learning_rate=1e-3, logging_steps=1,
                           save_strategy="no", report_to="none"),
    train_dataset=data["train"],
    eval_dataset=data["dev"],
    processing_class=tokenizer,
)
trainer.add_callback(Timeout(seconds=600, steps=3))
result = trainer.train()
checkpoints = sorted(name for name in os.listdir("limited") if name.startswith("checkpoint"))
evaluations = [log["step"] for log in trainer.state.log_history if "eval_loss" in log]
