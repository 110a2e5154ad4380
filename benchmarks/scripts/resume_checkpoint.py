"""A run that is stopped after some steps and resumed by a new Trainer from its last checkpoint."""

import os

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
train = load_dataset("csv", data_files="train.csv", split="train").map(lambda x: tokenizer(x["text"]), batched=True)


class StopAt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            control.should_training_stop = True


def make(callbacks=None):
    args = TrainingArguments("resumable", num_train_epochs=6, per_device_train_batch_size=24, learning_rate=1e-3, save_strategy="steps", save_steps=1,
                             save_total_limit=2, logging_steps=1, report_to="none")
    return Trainer(AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args, train_dataset=train, processing_class=tokenizer, callbacks=callbacks)


make([StopAt()]).train()
last = get_last_checkpoint("resumable")
name = os.path.basename(last)
trainer = make()
result = trainer.train(resume_from_checkpoint=last)
steps = [log["step"] for log in trainer.state.log_history if "loss" in log]
left = sorted(entry for entry in os.listdir("resumable") if entry.startswith("checkpoint-"))
