"""Stratified folds: a new model and Trainer each, out-of-fold predictions, the mean of the test predictions, a submission."""

import gc

import numpy as np
import pandas as pd
from datasets import Dataset
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

N_FOLDS, SEED, MODEL = 3, 2022, "tiny-deberta"
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
train["fold"] = -1
for fold, (_, val_idx) in enumerate(StratifiedKFold(n_splits=N_FOLDS, shuffle=True, random_state=SEED).split(train, train.label)):
    train.loc[val_idx, "fold"] = fold
tokenizer = AutoTokenizer.from_pretrained(MODEL)


def to_dataset(df, with_labels=True):
    columns = ["text", "label"] if with_labels else ["text"]
    ds = Dataset.from_pandas(df[columns].reset_index(drop=True))
    return ds.map(lambda b: tokenizer(b["text"], truncation=True, max_length=64), batched=True, remove_columns=["text"])


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


oof, test_preds, scores = np.zeros((len(train), 2)), [], []
for fold in range(N_FOLDS):
    set_seed(SEED + fold)
    trn, val = train[train.fold != fold], train[train.fold == fold]
    args = TrainingArguments(output_dir=f"fold{fold}", num_train_epochs=3, per_device_train_batch_size=32, learning_rate=1e-3, seed=SEED,
                             eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, save_total_limit=1, logging_steps=1, report_to="none")
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2)
    trainer = Trainer(model=model, args=args, train_dataset=to_dataset(trn), eval_dataset=to_dataset(val), data_collator=DataCollatorWithPadding(tokenizer))
    trainer.train()
    oof[val.index] = softmax(trainer.predict(to_dataset(val)).predictions)
    test_preds.append(softmax(trainer.predict(to_dataset(test, with_labels=False)).predictions))
    scores.append(log_loss(val.label, oof[val.index]))
    del model, trainer
    gc.collect()
cv = log_loss(train.label, oof)
submission = pd.DataFrame({"id": test.id, "prediction": np.mean(test_preds, axis=0)[:, 1]})
submission.to_csv("submission.csv", index=False)
