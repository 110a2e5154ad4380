"""After run_glue.py: dataclasses read by HfArgumentParser, do_train, do_eval and do_predict, metrics and state saved to files."""

import json
import logging
import os
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, HfArgumentParser, Trainer, TrainingArguments, default_data_collator, set_seed

logger = logging.getLogger(__name__)


@dataclass
class DataArguments:
    max_len: int = field(default=24, metadata={"help": "Longest text in tokens."})
    pad_to_max_length: bool = field(default=True)
    max_train_samples: Optional[int] = field(default=None)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="tiny-bert")


options = "--output_dir glue --do_train --do_eval --do_predict --max_len 20 --num_train_epochs 3 --learning_rate 1e-3 --per_device_train_batch_size 24 --logging_steps 1 --report_to none --seed 13 --max_train_samples 20"
model_args, data_args, training_args = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments)).parse_args_into_dataclasses(args=options.split())
set_seed(training_args.seed)
config = AutoConfig.from_pretrained(model_args.model_name_or_path, num_labels=2, finetuning_task="mrpc")
tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, use_fast=True)
model = AutoModelForSequenceClassification.from_pretrained(model_args.model_name_or_path, config=config)
padding = "max_length" if data_args.pad_to_max_length else False
raw = load_dataset("csv", data_files={"train": "train.csv", "validation": "valid.csv", "test": "test.csv"})
raw = raw.map(lambda e: tokenizer(e["text"], e["text_b"], padding=padding, max_length=data_args.max_len, truncation=True), batched=True)
train_dataset = raw["train"].select(range(min(len(raw["train"]), data_args.max_train_samples or len(raw["train"]))))


def compute_metrics(p: EvalPrediction):
    preds = p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions
    return {"accuracy": (np.argmax(preds, axis=1) == p.label_ids).astype(np.float32).mean().item()}


trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset if training_args.do_train else None,
                  eval_dataset=raw["validation"] if training_args.do_eval else None, compute_metrics=compute_metrics,
                  processing_class=tokenizer, data_collator=default_data_collator)
train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
metrics = train_result.metrics
metrics["train_samples"] = len(train_dataset)
trainer.save_model()
trainer.log_metrics("train", metrics)
trainer.save_metrics("train", metrics)
trainer.save_state()
eval_metrics = trainer.evaluate(eval_dataset=raw["validation"])
trainer.save_metrics("eval", eval_metrics)
predictions = np.argmax(trainer.predict(raw["test"], metric_key_prefix="predict").predictions, axis=1)
saved = {name: name in os.listdir(training_args.output_dir) for name in ("all_results.json", "train_results.json", "eval_results.json", "trainer_state.json", "config.json", "model.safetensors")}
all_results = json.load(open(os.path.join(training_args.output_dir, "all_results.json")))
