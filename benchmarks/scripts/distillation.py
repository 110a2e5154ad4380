"""Distillation after the NLP book: own TrainingArguments with alpha and temperature, a teacher in the Trainer."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


class DistillationTrainingArguments(TrainingArguments):
    def __init__(self, *args, alpha=0.5, temperature=2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.alpha = alpha
        self.temperature = temperature


class DistillationTrainer(Trainer):
    def __init__(self, *args, teacher_model=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher_model = teacher_model
        self.teacher_model.eval()

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        student = model(**inputs)
        with torch.no_grad():
            teacher = self.teacher_model(**{k: v for k, v in inputs.items() if k != "labels"})
        T = self.args.temperature
        kd = T**2 * nn.KLDivLoss(reduction="batchmean")(F.log_softmax(student.logits / T, dim=-1), F.softmax(teacher.logits / T, dim=-1))
        loss = self.args.alpha * student.loss + (1.0 - self.args.alpha) * kd
        return (loss, student) if return_outputs else loss


tokenizer = AutoTokenizer.from_pretrained("tiny-distilbert")
ds = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv"})
ds = ds.map(lambda b: tokenizer(b["text"], truncation=True, return_token_type_ids=False), batched=True, remove_columns=["text", "text_b", "genre", "id"])
teacher = AutoModelForSequenceClassification.from_pretrained("tiny-bert", num_labels=2)
student = AutoModelForSequenceClassification.from_pretrained("tiny-distilbert", num_labels=2)
args = DistillationTrainingArguments(
    output_dir="distilbert-student", eval_strategy="epoch", num_train_epochs=3, learning_rate=1e-3, per_device_train_batch_size=48,
    per_device_eval_batch_size=48, alpha=0.3, temperature=4.0, weight_decay=0.01, logging_steps=1, save_strategy="no", report_to="none",
)
trainer = DistillationTrainer(model=student, teacher_model=teacher, args=args, train_dataset=ds["train"], eval_dataset=ds["validation"], processing_class=tokenizer)
trainer.train()
final_loss = trainer.evaluate()["eval_loss"]
