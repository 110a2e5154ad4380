"""Evaluate before and after the first step: a callback that asks for it, and logging_first_step."""

import transformers
from datasets import load_dataset

tokenizer = transformers.AutoTokenizer.from_pretrained("tiny-bert")
ds = load_dataset("csv", data_files={"train": "train.csv", "eval": "valid.csv"}).map(lambda x: tokenizer(x["text"]), batched=True)


class EvaluateFirstStepCallback(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            control.should_evaluate = True


def accuracy(p):
    return {"accuracy": (p.predictions.argmax(-1) == p.label_ids).mean()}


args = transformers.TrainingArguments(
    output_dir="first",
    max_steps=6,
    eval_strategy="steps",
    eval_steps=3,
    logging_first_step=True,
    logging_steps=3,
    eval_on_start=True,
    per_device_train_batch_size=24,
    learning_rate=2e-3,
    save_strategy="no",
    report_to="none",
)
trainer = transformers.Trainer(
    model=transformers.AutoModelForSequenceClassification.from_pretrained("tiny-bert"),
    args=args,
    train_dataset=ds["train"],
    eval_dataset=ds["eval"],
    processing_class=tokenizer,
    compute_metrics=accuracy,
    callbacks=[EvaluateFirstStepCallback],
)
trainer.train()
steps = [(log["step"], log["eval_accuracy"]) for log in trainer.state.log_history if "eval_accuracy" in log]
