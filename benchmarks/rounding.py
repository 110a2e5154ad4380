"""Which weights make fp32 trainings part: those of a parity benchmark beside the same training in fp64, on a CPU.

python benchmarks/rounding.py --data GLUE benchmarks/results/gpu-parity-base.json

AdamW's first update is nearly the sign of a gradient. Where rounding is as large as the gradient, it decides where the weight
goes. The weights that can move the second loss most in that way are found; their first update is fitted to a training's second
loss, and fp64 repeats the training with it: if these weights are all that is different, all losses follow.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from jobs import LEARNING_RATE, MAX_NORM, Job, batches_of, load_rows, make_model
from reports import HERE, last_name, machine, versions

EPSILON = 1e-8
LIMIT = 1e-5  # trainings within this of fp64 need no explanation
ERRORS = 3  # so many standard deviations of its rounding may a gradient be off
Place = tuple[str, int, int]  # a weight: its parameter's name, row and column


class Reference:
    """The unmodified model on padded batches."""

    def __init__(self, job: Job) -> None:
        from transformers import DataCollatorWithPadding

        rows, self.labels, self.tokenizer = load_rows(job)
        collate = DataCollatorWithPadding(self.tokenizer)
        self.job = job
        self.batches = [
            collate([rows["train"][row] for row in batch]) for batch in batches_of(job, len(rows["train"]))[: job.steps]
        ]

    def model(self, kind: torch.dtype) -> Any:
        return make_model(self.job, self.labels, self.tokenizer).to(kind).train()

    def gradients(self, model: Any) -> dict[str, torch.Tensor]:
        """Those of the first batch in fp64, clipped, each as a matrix."""
        model(**self.batches[0]).loss.backward()
        found = {name: weight.grad.double().view(-1, weight.shape[-1]) for name, weight in model.named_parameters()}
        norm = sum(gradient.pow(2).sum().item() for gradient in found.values()) ** 0.5
        return {name: gradient * min(MAX_NORM / (norm + 1e-6), 1.0) for name, gradient in found.items()}

    def losses(self, first: dict[Place, float] | None = None) -> list[float]:
        """A training in fp64; `first`: what some weights' first gradients are taken to be."""
        model = self.model(torch.float64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPSILON, weight_decay=0.0, fused=True)
        weights, found = dict(model.named_parameters()), []
        for step, batch in enumerate(self.batches):
            loss = model(**batch).loss
            found.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            for (name, row, column), value in (first or {}).items() if step == 0 else ():
                weights[name].grad.view(-1, weights[name].shape[-1])[row, column] = value
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1 - step / self.job.total)
            optimizer.step()
        return found


def share(gradient: torch.Tensor) -> torch.Tensor:
    """Of the rate, what AdamW's first update is."""
    return gradient / (gradient.abs() + EPSILON)


def deciding(reference: Reference, number: int) -> list[dict[str, Any]]:
    """The weights that can move the second loss most by the rounding of their first gradient."""
    model = reference.model(torch.float64)
    exact, rounded = reference.gradients(model), reference.gradients(reference.model(torch.float32))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.sub_(LEARNING_RATE * share(exact[name]).view(weight.shape))
    model.zero_grad()
    model(**reference.batches[1]).loss.backward()
    found = []
    for name, weight in model.named_parameters():
        gradient = exact[name]
        error = (rounded[name] - gradient).pow(2).mean(1, keepdim=True).sqrt()
        slope = -LEARNING_RATE * weight.grad.view_as(gradient)  # of the second loss, by the share of the rate
        reach = slope.abs() * (share(gradient) - share(gradient - ERRORS * error * gradient.sign())).abs()
        for place in reach.view(-1).topk(min(number, reach.numel())).indices.tolist():
            row, column = divmod(place, gradient.shape[1])
            facts = {"gradient": gradient, "slope": slope, "reach": reach}
            values = {key: value[row, column].item() for key, value in facts.items()}
            found.append({"weight": (name, row, column), "rounding": error[row, 0].item(), **values})
    return sorted(found, key=lambda entry: -entry["reach"])[:number]


def fitted(first: dict[str, Any], same: list[dict[str, Any]], off: float) -> dict[Place, float]:
    """The first gradient of weights that all have the same, so that the second loss is `off` from fp64."""
    gradient = torch.tensor(first["gradient"], dtype=torch.float64)
    wanted = share(gradient) + off / sum(entry["slope"] for entry in same)
    taken = wanted.clamp(-0.999, 0.999)
    return {entry["weight"]: (EPSILON * taken / (1 - taken.abs())).item() for entry in same}


def worst(losses: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(losses, others, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what gpu.py parity wrote")
    parser.add_argument("--data", help="the GLUE folder that it had")
    parser.add_argument("--minilm", default="quickstart", help="the folder of MiniLM that it had")
    parser.add_argument("--steps", type=int, help="of each training; by default all")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the file")
    given = parser.parse_args()
    runs = [run for run in json.loads(given.results.read_text())["runs"] if run["precision"] == "fp32" and "losses" in run]
    settings = runs[0]["job"] | {"device": "cpu", "data": given.data, "minilm": given.minilm, "tokenizer": given.minilm}
    steps = min(given.steps or len(runs[0]["losses"]), len(runs[0]["losses"]))
    reference = Reference(Job(**settings | {"steps": steps, "eval_sizes": ()}))
    places = deciding(reference, 8)
    print("weights that rounding can make move the second loss by most")
    for entry in places:
        print("  {weight}: by {reach:.1e} (gradient {gradient:+.1e}, of which {rounding:.0e} is rounding)".format(**entry))
    same = [entry for entry in places if abs(entry["gradient"] / places[0]["gradient"] - 1) < 1e-6]
    exact = reference.losses()
    command = " ".join(["python", "benchmarks/rounding.py", *map(last_name, sys.argv[1:])])
    found: dict[str, Any] = {"machine": machine(), "versions": versions(), "date": time.strftime("%F"), "command": command}
    found |= {"fp64": exact, "weights": places, "trainings": {}}
    for run in runs:
        losses = run["losses"][:steps]
        off, far = losses[1] - exact[1], worst(losses, exact)
        print(f"{run['contender']}: second loss off by {off:+.1e}, all within {far:.1e} of fp64", flush=True)
        if far > LIMIT:
            first = fitted(places[0], same, off)
            follows, value = reference.losses(first), next(iter(first.values()))
            found["trainings"][run["contender"]] = {"first gradient": value, "losses": follows}
            print(
                f"  within {worst(losses, follows):.1e} of fp64 with a gradient of {value:+.1e} in {len(same)} weights",
                flush=True,
            )
    name = given.results.stem.replace("gpu-parity", "rounding")
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    (given.out / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
