"""Layer-wise learning rate decay in create_optimizer, without weight decay for biases and norms."""

from datasets import load_dataset
from torch.optim import AdamW
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("tiny-bert")
data = load_dataset("csv", data_files={"train": "train.csv", "dev": "valid.csv"}).map(lambda x: tokenizer(x["text"]), batched=True)


def grouped_parameters(model, lr, weight_decay, decay):
    no_decay = ["bias", "LayerNorm.weight"]
    layers = [model.bert.embeddings, *model.bert.encoder.layer]
    layers.reverse()
    groups = [{"params": [p for n, p in model.named_parameters() if "classifier" in n or "pooler" in n], "weight_decay": 0.0, "lr": lr * 2}]
    for layer in layers:
        named = list(layer.named_parameters())
        groups += [
            {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": weight_decay, "lr": lr},
            {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0, "lr": lr},
        ]
        lr *= decay
    return groups


class LLRDTrainer(Trainer):
    def create_optimizer(self):
        if self.optimizer is None:
            groups = grouped_parameters(self.model, self.args.learning_rate, self.args.weight_decay, 0.8)
            self.optimizer = AdamW(groups, lr=self.args.learning_rate, eps=self.args.adam_epsilon)
        return self.optimizer


args = TrainingArguments("llrd", learning_rate=1e-3, weight_decay=0.01, num_train_epochs=4, per_device_train_batch_size=24, warmup_steps=1,
                         lr_scheduler_type="cosine", logging_steps=1, eval_strategy="epoch", save_strategy="no", report_to="none")
trainer = LLRDTrainer(AutoModelForSequenceClassification.from_pretrained("tiny-bert"), args, train_dataset=data["train"], eval_dataset=data["dev"], processing_class=tokenizer)
trainer.train()
rates = sorted({round(group["lr"], 9) for group in trainer.optimizer.param_groups})
