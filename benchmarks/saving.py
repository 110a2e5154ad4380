"""What a checkpoint costs: how long training stands still for one, written in place or behind the next steps; and its bytes.

python benchmarks/saving.py [--model quickstart] [--saves 7]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from glassloop import Trainer, TrainingArguments, encode, load_examples, load_model, load_tokenizer
from glassloop.runs.record import checkpoints_in
from glassloop.training.session import Session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--saves", type=int, default=7)
    given = parser.parse_args()
    examples = load_examples("quickstart")
    tokenizer = load_tokenizer(given.model)
    rows = encode(examples, tokenizer, 128)["train"].rows
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(given.model, labels=examples.labels, seed=1)
        args = TrainingArguments(folder, max_steps=3, precision="fp32", save_strategy="no", save_total_limit=2)
        trainer = Trainer(model, args, train_dataset=rows, processing_class=tokenizer, quiet=True)
        trainer.train()
        training = Session(trainer.training_parts())
        for parameter in model.parameters():  # a step's worth of optimizer state
            parameter.grad = parameter.detach().clone() * 1e-3
        training.optimizer.step()
        stalls: dict[str, list[float]] = {"in place": [], "behind the next steps": []}
        for number in range(given.saves):
            for name, seconds in stalls.items():
                trainer.state.step += 1
                began = time.perf_counter()
                script = replace(training.parts.script, saves_in_background=name != "in place")
                training.parts = replace(training.parts, script=script)
                training.save()
                seconds.append((time.perf_counter() - began) * 1000)
                training.checkpoint_folder.wait()
            del number
        newest = checkpoints_in(Path(folder))[0]
        num_bytes = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    print(f"{platform.platform()}, {given.model}: {num_bytes:,} bytes a checkpoint")
    for name, values in stalls.items():
        print(f"  {name:<24} median {statistics.median(values):7.0f} ms   ({', '.join(f'{value:.0f}' for value in values)})")


if __name__ == "__main__":
    main()
