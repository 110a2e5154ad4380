#!/usr/bin/env python3
"""The first fifteen minutes of three new users, as transcripts with times: pictures of a terminal 80 and 120 columns wide.

python tools/first_minutes.py build/first-minutes

A practitioner has a file, a student follows the course, a researcher wants to know how sure a result is. Each types the
commands below in an empty folder, mistakes included. A few generated rows and few steps keep it short.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from draw_terminal import picture, printed_by

WIDTHS = (80, 120)
USERS: dict[str, list[str]] = {
    "practitioner": [
        "glassloop data reviews.csv",
        "glassloop data reviews.csv --text review --label sentiment",
        "glassloop train reviews.csv --text review --label sentiment --learning-rat 1e-4",
        "glassloop train reviews.csv --text review --label sentiment --epochs 3 -o runs/reviews",
        "glassloop evaluate runs/reviews reviews.csv --metric accuracy",
        "glassloop predict runs/reviews",
        "glassloop predict runs/reviews --file new.csv --out answers.csv",
    ],
    "student": [
        "glassloop doctor",
        "glassloop train quickstart --rows 240 --epochs 1 --eval_strategy epoch -o runs/first",
        "python student.py",
        "glassloop export runs/first --to script",
    ],
    "researcher": [
        "glassloop train quickstart --rows 240 --epochs 1 --seeds 2 -o runs/seeds",
        "glassloop evaluate runs/seeds --split test",
        "glassloop evaluate runs/seeds/seed-42 --split test --json",
    ],
}
STUDENT = """from glassloop import Trainer, TrainingArguments, encode, load_examples, load_model, load_tokenizer

tokenizer = load_tokenizer("quickstart")
examples = load_examples("quickstart", rows=120)
rows = encode(examples, tokenizer, 64)
model = load_model("quickstart", labels=examples.labels)
args = TrainingArguments("out", max_steps=10, logging_steps=5, save_strategy="no")
train, validation = rows["train"].rows, rows["validation"].rows
trainer = Trainer(model, args, train_dataset=train, eval_dataset=validation, processing_class=tokenizer)
trainer.train()
print({name: round(value, 3) for name, value in trainer.evaluate().items() if not name.endswith("second")})
"""


def write_files(folder: Path) -> None:
    """Write the practitioner's data and the student's script."""
    chance = random.Random(1)
    words = {"good": ("wonderful", "moving", "clever"), "bad": ("boring", "clumsy", "empty")}
    lines = [f"{number},a {chance.choice(words[label])} film,{label}" for number in range(60) for label in words]
    (folder / "reviews.csv").write_text("\n".join(["id,review,sentiment", *lines]) + "\n", encoding="utf-8")
    (folder / "new.csv").write_text("review\na clever story\nan empty room\n", encoding="utf-8")
    (folder / "student.py").write_text(STUDENT, encoding="utf-8")


def transcript(commands: list[str], columns: int) -> list[tuple[list[str], str]]:
    """Run the commands of a user in a new folder; return each with its output, time and exit status."""
    shown = []
    with tempfile.TemporaryDirectory(prefix="glassloop-") as place:
        folder = Path(place)
        write_files(folder)
        for line in commands:
            command, began = line.split(), time.perf_counter()
            program = str(Path(sys.executable).with_name(command[0]))
            text, status = printed_by([program, *command[1:]], columns, folder)
            ended = f"\x1b[2m({time.perf_counter() - began:.1f} s{f', exit status {status}' if status else ''})\x1b[0m"
            shown.append((command, f"{text}\n{ended}\n"))
            print(f"{columns} columns: {line}: {time.perf_counter() - began:.1f} s, exit status {status}", flush=True)
    return shown


def main() -> None:
    """Write one picture for each user and width into the folder named on the command line."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, commands in USERS.items():
        for columns in WIDTHS:
            svg = picture(transcript(commands, columns), columns)
            (target / f"{name}-{columns}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
