"""R-Drop: two forward passes and a symmetric KL term, only while training."""

import torch
import torch.nn.functional as F
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
data = load_dataset("csv", data_files={"train": "train.csv", "dev": "valid.csv"})
data = data.map(lambda e: tokenizer(e["text"], truncation=True, max_length=64), batched=True)


class RDropTrainer(Trainer):
    def __init__(self, alpha=4.0, **kwargs):
        super().__init__(**kwargs)
        self.alpha = alpha

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs=return_outputs)
        first, second = model(**inputs), model(**inputs)
        p, q = F.log_softmax(first.logits, -1), F.log_softmax(second.logits, -1)
        kl = F.kl_div(p, q, log_target=True, reduction="batchmean") + F.kl_div(q, p, log_target=True, reduction="batchmean")
        loss = 0.5 * (first.loss + second.loss) + self.alpha * kl / 2
        return (loss, first) if return_outputs else loss


trainer = RDropTrainer(
    model=AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=TrainingArguments(output_dir="rdrop", max_steps=5, per_device_train_batch_size=24, learning_rate=1e-3, logging_steps=1,
                           eval_strategy="steps", eval_steps=2, save_strategy="no", report_to="none"),
    train_dataset=data["train"],
    eval_dataset=data["dev"],
    processing_class=tokenizer,
    alpha=2.0,
)
trainer.train()
history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
