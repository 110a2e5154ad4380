"""A model that returns its hidden states, so predictions is a tuple and predictions[0] are the logits."""

import numpy as np
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda e: tokenizer(e["text"], max_length=16, truncation=True, padding="max_length"), batched=True)
model = AutoModelForSequenceClassification.from_pretrained("tiny-bert", output_hidden_states=True)


def compute_metrics(p: EvalPrediction):
    preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    preds = np.argmax(preds, axis=1)
    return {"accuracy": (preds == p.label_ids).astype(np.float32).mean().item(), "outputs": len(p.predictions)}


trainer = Trainer(
    model=model,
    args=TrainingArguments("tuple", num_train_epochs=4, per_device_train_batch_size=24, learning_rate=1e-3, eval_strategy="epoch",
                           save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy", logging_steps=1, report_to="none"),
    train_dataset=ds["train"],
    eval_dataset=ds["validation"],
    compute_metrics=compute_metrics,
)
trainer.train()
output = trainer.predict(ds["validation"])
logits, hidden = output.predictions
shapes = [list(h.shape) for h in hidden]
best_metric = trainer.state.best_metric
