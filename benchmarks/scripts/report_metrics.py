"""compute_metrics that returns a whole classification report, a confusion matrix and a string beside the numbers."""

import numpy as np
from datasets import load_dataset
from sklearn.metrics import classification_report, confusion_matrix
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-roberta")
names = ["news", "novel", "letter"]
ds = load_dataset("csv", data_files={"train": "train.csv", "valid": "valid.csv"})
ds = ds.map(lambda b: {**tokenizer(b["text"], truncation=True), "labels": [names.index(g) for g in b["genre"]]}, batched=True, remove_columns=["label"])


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = np.argmax(logits, axis=-1)
    report = classification_report(labels, preds, target_names=names, output_dict=True, zero_division=0)
    return {
        "accuracy": report["accuracy"],
        "macro_f1": report["macro avg"]["f1-score"],
        **{f"f1_{name}": report[name]["f1-score"] for name in names},
        "report": report,
        "confusion": confusion_matrix(labels, preds).tolist(),
        "most_common": names[int(np.bincount(preds, minlength=3).argmax())],
    }


trainer = Trainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-roberta", num_labels=3),
    args=TrainingArguments("report", num_train_epochs=3, per_device_train_batch_size=24, learning_rate=1e-3, eval_strategy="epoch",
                           logging_strategy="epoch", save_strategy="no", report_to="none"),
    train_dataset=ds["train"],
    eval_dataset=ds["valid"],
    processing_class=tokenizer,
    compute_metrics=compute_metrics,
)
trainer.train()
result = trainer.evaluate()
matrix = result["eval_confusion"]
