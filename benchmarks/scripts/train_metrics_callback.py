"""The callback of a well-known forum answer: evaluate the training set at the end of each epoch."""

from copy import deepcopy

import pandas as pd
from datasets import Dataset
from sklearn.metrics import accuracy_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")


def encode(path):
    df = pd.read_csv(path)[["text", "label"]]
    return Dataset.from_pandas(df).map(lambda x: tokenizer(x["text"], padding="max_length", truncation=True, max_length=20), batched=True)


class TrainMetricsCallback(TrainerCallback):
    def __init__(self, trainer):
        super().__init__()
        self._trainer = trainer

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate:
            control_copy = deepcopy(control)
            self._trainer.evaluate(eval_dataset=self._trainer.train_dataset, metric_key_prefix="train")
            return control_copy


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": accuracy_score(labels, logits.argmax(-1))}


trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments("curves", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=2e-3, eval_strategy="epoch",
                           logging_strategy="epoch", save_strategy="no", report_to="none"),
    train_dataset=encode("train.csv"),
    eval_dataset=encode("valid.csv"),
    compute_metrics=compute_metrics,
)
trainer.add_callback(TrainMetricsCallback(trainer))
trainer.train()
train_curve = [log["train_accuracy"] for log in trainer.state.log_history if "train_accuracy" in log]
eval_curve = [log["eval_accuracy"] for log in trainer.state.log_history if "eval_accuracy" in log]
