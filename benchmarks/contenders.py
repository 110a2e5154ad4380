"""The contenders, each given the same rows in the same order, the same weights, rate, clip and evaluation.

python benchmarks/contenders.py '{"contender": "fast", "steps": 40}'      # one job in this process; gpu.py and cpu.py run many
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

from jobs import (
    LEARNING_RATE,
    MAX_NORM,
    Clock,
    Job,
    Parts,
    accuracy,
    load_rows,
    make_model,
    memory,
    speed_of_prediction,
    with_adapter,
    with_class_weights,
)
from loops import Accelerate, Contender, Lightning, Notes

STARTED, RESULT = "BENCHMARK_STARTED", "RESULT "
EVAL_SIZE, LOG_EVERY = 32, 100
WORKERS = 2  # of the tuned Trainer's loader


class Transformers(Contender):
    """transformers' Trainer. `tuned`: no test of every loss for NaN, workers that load ahead; `compile`: torch.compile."""

    def prepare(self) -> None:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        job, contender = self.job, self
        options: dict[str, Any] = {"bf16": job.precision == "bf16", "use_cpu": job.device == "cpu"}
        if job.precision == "tf32":
            options["tf32"] = True
        if job.extra == "tuned":
            workers = WORKERS if job.device == "cuda" and job.steps else 0
            options |= {"logging_nan_inf_filter": False, "dataloader_num_workers": workers}
            options |= {"dataloader_persistent_workers": workers > 0}
            if not job.steps:  # in a training this would leave the model itself in bf16
                options["bf16_full_eval"] = job.precision == "bf16"
        if job.extra == "compile":
            options["torch_compile"] = True

        class Measured(Trainer):
            def get_train_dataloader(self) -> Any:
                workers = self.args.dataloader_num_workers
                loaded = {"num_workers": workers, "persistent_workers": self.args.dataloader_persistent_workers}
                return self.accelerator.prepare(contender.loader(**loaded))

            def training_step(self, *given: Any, **named: Any) -> Any:
                loss = super().training_step(*given, **named)
                contender.clock.keep(loss)
                return loss

        class Ticking(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                contender.clock.tick(state.global_step)
                control.should_training_stop = control.should_training_stop or state.global_step >= job.steps

        args = TrainingArguments(
            self.folder,
            max_steps=job.total,
            per_device_train_batch_size=job.batch_size,
            per_device_eval_batch_size=EVAL_SIZE,
            learning_rate=LEARNING_RATE,
            warmup_steps=job.ramp,
            max_grad_norm=MAX_NORM,
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **options,
        )
        kind = with_class_weights(Measured) if job.extra == "weights" else Measured
        self.trainer = kind(
            model=self.model,
            args=args,
            train_dataset=self.parts.rows["train"],
            data_collator=self.collator(),
            processing_class=self.parts.tokenizer,
            callbacks=[Ticking()],
        )

    def train(self) -> None:
        self.trainer.train()

    def predict(self, rows: Any, size: int) -> Any:
        self.trainer.args.per_device_eval_batch_size = size
        return self.trainer.predict(rows).predictions

    def save(self) -> None:
        self.trainer.save_model(self.folder)


class Glassloop(Contender):
    """Glassloop's Trainer: backend plain, or the one it chooses itself."""

    def prepare(self) -> None:
        from glassloop import Callback, Trainer, TrainingArguments

        job, clock = self.job, self.clock

        class Ticking(Callback):
            reads_weights = False

            def on_step(self, state: Any, batches: Any) -> None:
                clock.tick(state.step)
                if state.step == job.steps:
                    state.stop_reason = "the benchmark has its steps"

            def on_log(self, state: Any, figures: list[list[float]]) -> None:
                clock.losses += [loss for loss, _ in figures]

        args = TrainingArguments(
            self.folder,
            max_steps=job.total,
            per_device_train_batch_size=job.batch_size,
            per_device_eval_batch_size=EVAL_SIZE,
            learning_rate=LEARNING_RATE,
            warmup_steps=job.ramp,
            max_grad_norm=MAX_NORM,
            logging_steps=LOG_EVERY,
            save_strategy="no",
            disable_tqdm=True,
            precision=job.precision,
            device=job.device,
            backend="plain" if job.kind == "plain" else "auto",
        )
        kind = with_class_weights(Trainer) if job.extra == "weights" else Trainer
        self.trainer = kind(
            self.model,
            args,
            train_dataset=self.parts.rows["train"],
            eval_dataset=self.parts.rows["validation"],
            processing_class=self.parts.tokenizer,
            compute_metrics=lambda found: {"accuracy": accuracy(*found)},
            callbacks=[Ticking()],
        )
        self.facts["backend"] = self.trainer.backend.name

    def train(self) -> None:
        self.trainer.train()
        self.facts["backend"] = self.trainer.backend.name

    def predict(self, rows: Any, size: int) -> Any:
        if size != self.trainer.args.per_device_eval_batch_size:
            self.trainer.args = replace(self.trainer.args, per_device_eval_batch_size=size)
        return self.trainer.predict(rows).predictions

    def save(self) -> None:
        self.trainer.save_model(self.folder)


KINDS: dict[str, type[Contender]] = {
    "fast": Glassloop,
    "plain": Glassloop,
    "trainer": Transformers,
    "accelerate": Accelerate,
    "lightning": Lightning,
    "notes": Notes,
}
PACKAGES = {"trainer": "transformers", "accelerate": "accelerate", "lightning": "lightning"}


def run(job: Job, started: float) -> dict[str, Any]:
    """The whole job, from the imports to the saved and evaluated model, then predictions at several batch sizes."""
    import importlib

    clock = Clock(job, started)
    for name in ("torch", "datasets", "transformers", "glassloop", PACKAGES.get(job.kind, "torch")):
        importlib.import_module(name)
    import numpy as np
    import torch

    clock.stage("imports")
    rows, labels, tokenizer = load_rows(job)
    clock.stage("data")
    model = make_model(job, labels, tokenizer)
    parts = Parts(rows, tokenizer, with_adapter(model) if job.extra == "lora" else model)
    with tempfile.TemporaryDirectory() as folder:
        contender = KINDS[job.kind](job, parts, clock, folder)
        contender.prepare()
        clock.stage("model")
        if job.steps:
            contender.train()
            clock.stage("training")
        logits = contender.predict(rows["validation"], EVAL_SIZE)
        clock.stage("evaluation")
        if job.steps:
            contender.save()
            clock.stage("saving")
        figures: dict[str, Any] = {"accuracy": accuracy(logits, np.asarray(rows["validation"]["labels"]))}
        figures |= {"seconds": sum(clock.stages.values()), "stages": clock.stages, **memory(job)}
        figures["examples_per_second"] = speed_of_prediction(job, contender.predict, rows[job.eval_split])
    figures["cpu_ms"] = clock.cpu_ms()
    figures["losses"] = [float(loss) for loss in clock.losses[:LOG_EVERY]]
    name = torch.cuda.get_device_name() if job.device == "cuda" else ""
    return {**contender.facts, "blocks_ms": clock.blocks(), "gpu": name, "threads": torch.get_num_threads(), **figures}


def main() -> None:
    started = float(os.environ.get(STARTED, 0)) or time.time()
    given = json.loads(sys.argv[1])
    job = Job(**given | {"eval_sizes": tuple(given.get("eval_sizes", ()))})
    found = run(job, started)
    print(f"\n{RESULT}{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
