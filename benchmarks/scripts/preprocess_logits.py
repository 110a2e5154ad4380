"""preprocess_logits_for_metrics keeps only the predicted class, eval_accumulation_steps moves it to the CPU."""

from datasets import load_dataset
from sklearn.metrics import cohen_kappa_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-roberta")
ds = load_dataset("csv", data_files={"train": "train.csv", "valid": "valid.csv"}).rename_column("star", "labels").remove_columns("label")
ds = ds.map(lambda b: tokenizer(b["text"]), batched=True)


def preprocess_logits_for_metrics(logits, labels):
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(dim=-1)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    return {"qwk": cohen_kappa_score(labels, preds, weights="quadratic"), "shape": preds.ndim}


trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-roberta", num_labels=3),
    args=TrainingArguments("qwk", num_train_epochs=3, per_device_train_batch_size=24, per_device_eval_batch_size=5, eval_accumulation_steps=1,
                           learning_rate=1e-3, eval_strategy="epoch", logging_steps=1, save_strategy="no", report_to="none"),
    train_dataset=ds["train"],
    eval_dataset=ds["valid"],
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=preprocess_logits_for_metrics,
)
trainer.train()
classes = trainer.predict(ds["valid"]).predictions
