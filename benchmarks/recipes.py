"""Recipes for small data, each compared with the usual training that starts from a regression on the embeddings.

    python benchmarks/recipes.py run --sets SETS --model MODEL --out RESULTS.jsonl [--rows 200] [--workers 2]
    python benchmarks/recipes.py table RESULTS.jsonl

SETS is a folder of `quality_sets.py`. All recipes share data, first head, batch size, learning rate and number of steps,
unless that is what they change; they train in a plain loop, so that differences are those of the recipe alone. Log losses are
measured at a temperature that is fitted to the other half of the test rows: recipes must not win by being less sure alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from quality import Part, interval, label_names, mean, read_part, read_results
from quality_sets import CHOSEN_ON, CLASSES, SETS

BATCH, RATE, WARMUP, MAX_TOKENS = 16, 2e-5, 0.1, 64
MOST_TEST, UNLABELLED = 500, 500
EMA_DECAY, CONTRAST, CONTRAST_TEMPERATURE, NOISE, LAYER_DECAY, RDROP = 0.98, 0.2, 0.1, 0.15, 0.85, 1.0
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Recipe:
    """How a training differs from the usual one."""

    rate: float = RATE
    times: float = 1.0  # the number of steps
    rdrop: float = 0.0
    reinitialized: int = 0  # layers at the top
    noise: float = 0.0  # added to each weight, in units of its standard deviation
    layer_decay: float = 1.0
    contrast: float = 0.0
    weight_decay: float = 0.0
    dropout: str = "features"  # in front of the head: of features, of all but the cosine ("vectors"), or "none"
    soft: Array | None = field(default=None, compare=False)  # probabilities to learn in place of half of each label
    more: tuple[list[list[int]], Array] | None = field(default=None, compare=False)  # further rows, and their probabilities


RECIPES = {
    "rdrop": Recipe(rdrop=RDROP),
    "layer_rates": Recipe(layer_decay=LAYER_DECAY, rate=RATE * 1.5),
    "reinitialized": Recipe(reinitialized=1),
    "noise": Recipe(noise=NOISE),
    "contrast": Recipe(contrast=CONTRAST),
    "weight_decay": Recipe(weight_decay=0.1),
    "no head dropout": Recipe(dropout="none"),
    "no cosine dropout": Recipe(dropout="vectors"),
    "no head dropout at 5e-5": Recipe(dropout="none", rate=5e-5),
    "no head dropout at 3e-5": Recipe(dropout="none", rate=3e-5),
    "higher_rate": Recipe(rate=5e-5),
    "twice_as_long": Recipe(times=2.0),
}


class Task:
    """A data set with a number of training rows, as token ids, and the head of the frozen encoder."""

    def __init__(self, name: str, sets: Path, model: Path, rows: int, draw: int) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        from glassloop.models.linear import fit_linear
        from glassloop.models.loading import declared_by
        from glassloop.models.pooled import Pooling

        pool, test = (read_part(sets / name / f"{part}.csv") for part in ("pool", "test"))
        order = np.random.default_rng(draw).permutation(len(pool.labels))
        self.train, self.others = pool.take(order[:rows]), pool.take(order[rows : rows + UNLABELLED])
        self.test = test.take(np.random.default_rng(0).permutation(len(test.labels))[:MOST_TEST])
        self.names = label_names(CLASSES, self.train)
        self.targets = self.train.targets(CLASSES, self.names)
        self.wanted = self.test.targets(CLASSES, self.names)
        self.pairs = len(self.train.texts[0]) == 2
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.encoder = AutoModel.from_pretrained(model).float()
        declared = declared_by(str(model))[0]
        assert declared is not None
        self.pooling = Pooling(declared.mode, declared.normalize, towers=self.pairs)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.encoder.to(self.device)
        with torch.no_grad():
            features = self.pooling.features(self.pooled(self.encoder.eval(), self.ids(self.train))).float().cpu().numpy()
        linear = fit_linear(features, self.targets, "single_label_classification", len(self.names))
        self.head = linear.weights.T.astype(np.float32), linear.bias.astype(np.float32)

    def ids(self, part: Part) -> list[list[int]]:
        """Return the token ids of all texts; those of pairs one after the other."""
        texts = [text for row in part.texts for text in row]
        return list(self.tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"])

    def pooled(self, encoder: Any, ids: Sequence[list[int]], size: int = 64) -> Any:
        """Return the pooled vectors of texts."""
        import torch

        from glassloop.models.pooled import pooled

        found = []
        for start in range(0, len(ids), size):
            some = ids[start : start + size]
            longest = max(map(len, some))
            grid = torch.tensor([[*row, *[0] * (longest - len(row))] for row in some], device=self.device)
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in some], device=self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                hidden = encoder(input_ids=grid, attention_mask=mask).last_hidden_state
            found.append(pooled(hidden.float(), mask, self.pooling.mode))
        return torch.cat(found)


def train(task: Task, recipe: Recipe, seed: int) -> tuple[Callable[[Sequence[list[int]]], Array], Callable[..., Array]]:
    """Train, and return functions that compute logits with the last weights and with averaged ones."""
    from copy import deepcopy

    import torch
    from torch.nn import functional

    from glassloop.settings.defaults import started_epochs

    torch.manual_seed(seed)
    encoder, per_row = deepcopy(task.encoder), 1 + task.pairs
    weight, bias = (torch.nn.Parameter(torch.from_numpy(part).to(task.device)) for part in task.head)
    layers = [*encoder.encoder.layer]
    for layer in layers[len(layers) - recipe.reinitialized :]:
        layer.apply(encoder._init_weights)
    if recipe.noise:
        with torch.no_grad():
            for value in encoder.parameters():
                value.add_((torch.rand_like(value) - 0.5) * recipe.noise * (value.std() if value.numel() > 1 else 0.0))
    groups = [{"params": [weight, bias], "lr": recipe.rate}]
    depth = {id(value): place for place, layer in enumerate(layers) for value in layer.parameters()}
    by_depth: dict[int, list[Any]] = defaultdict(list)
    for name, value in encoder.named_parameters():
        if "pooler" not in name:
            by_depth[depth.get(id(value), -1)].append(value)
    for place, values in by_depth.items():
        factor = recipe.layer_decay ** (len(layers) - 1 - place)
        groups.append({"params": values, "lr": recipe.rate * factor})
    every = [value for group in groups for value in group["params"]]
    optimizer = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay)
    ids, targets = task.ids(task.train), torch.from_numpy(task.targets).to(task.device)
    number = len(task.targets)
    per_epoch = -(-number // BATCH)
    steps = max(1, round(started_epochs(number) * per_epoch * recipe.times))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(WARMUP * steps, 1), (steps - step) / ((1 - WARMUP) * steps))
    )
    averaged = [value.detach().clone() for value in every]
    soft = None if recipe.soft is None else torch.from_numpy(recipe.soft).float().to(task.device)
    random = np.random.default_rng(seed)

    def order() -> Iterator[Array]:
        while True:
            rows = random.permutation(number)
            yield from (rows[start : start + BATCH] for start in range(0, number, BATCH))

    def logits_of(vectors: Any, *, dropout: bool = True) -> Any:
        features = task.pooling.features(vectors)
        dropped = functional.dropout(features, 0.1, training=dropout and recipe.dropout != "none")
        if recipe.dropout == "vectors" and task.pairs:
            dropped = torch.cat([dropped[:, :-1], features[:, -1:]], dim=1)
        return functional.linear(dropped, weight, bias)

    batches = order()
    encoder.train()
    for _ in range(steps):
        rows = next(batches)
        some = [ids[row * per_row + text] for row in rows for text in range(per_row)]
        wanted = targets[rows]
        aims = functional.one_hot(wanted, len(task.names)).float()
        if soft is not None:
            aims = (aims + soft[rows]) / 2
        if recipe.more is not None:
            more, likely = recipe.more
            chosen = random.choice(len(likely), BATCH, replace=False)
            some += [more[row * per_row + text] for row in chosen for text in range(per_row)]
            aims = torch.cat([aims, torch.from_numpy(likely[chosen]).float().to(task.device)])
        vectors = task.pooled(encoder, some * 2 if recipe.rdrop else some, size=10_000)
        found = logits_of(vectors)
        if recipe.rdrop:
            first, second = functional.log_softmax(found, 1).chunk(2)
            apart = functional.kl_div(first, second, log_target=True, reduction="batchmean")
            apart = apart + functional.kl_div(second, first, log_target=True, reduction="batchmean")
            loss = (functional.cross_entropy(found, torch.cat([aims, aims]))) + recipe.rdrop * apart / 4
        else:
            loss = functional.cross_entropy(found, aims)
        if recipe.contrast and not task.pairs:
            unit = functional.normalize(vectors, dim=1)
            same = (wanted[:, None] == wanted[None]).float().fill_diagonal_(0)
            likeness = (unit @ unit.T / CONTRAST_TEMPERATURE).fill_diagonal_(-1e4)
            positive = (functional.log_softmax(likeness, 1) * same).sum(1) / same.sum(1).clamp(min=1)
            loss = loss - recipe.contrast * positive[same.sum(1) > 0].sum() / len(wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        torch._foreach_lerp_(averaged, [value.detach() for value in every], 1 - EMA_DECAY)
    last = [value.detach().clone() for value in every]

    def predictor(values: list[Any]) -> Callable[[Sequence[list[int]]], Array]:
        @torch.no_grad()
        def predict(rows: Sequence[list[int]]) -> Array:
            torch._foreach_copy_([value.data for value in every], values)
            encoder.eval()
            return np.asarray(logits_of(task.pooled(encoder, rows), dropout=False).float().cpu().numpy().astype(np.float64))

        return predict

    return predictor(last), predictor(averaged)


def probabilities(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def judged(logits: Array, wanted: Array) -> dict[str, float]:
    """Return accuracy, and the log loss at a temperature that is fitted to the other half of the rows."""
    known = wanted >= 0
    losses = np.zeros(len(wanted))
    halves = np.arange(len(wanted)) % 2

    def of(rows: Array, temperature: float) -> Array:
        likely = probabilities(logits[rows] / temperature)
        return np.asarray(-np.log(np.clip(likely[np.arange(len(likely)), wanted[rows]], 1e-6, 1)))

    for half in (0, 1):
        others, own = np.flatnonzero((halves != half) & known), np.flatnonzero((halves == half) & known)
        best = min(np.exp(np.linspace(-1.5, 2, 60)), key=lambda one: float(of(others, one).mean()))
        losses[own] = of(own, best)
    raw = of(np.flatnonzero(known), 1.0)
    return {
        "accuracy": float((logits.argmax(1) == wanted).mean()),
        "log_loss": float(losses[known].mean()),
        "raw_log_loss": float(raw.mean()),
    }


def run_one(
    job: tuple[str, int, int], sets: Path, model: Path, wanted: Sequence[str], teachers: int, threads: int
) -> list[dict[str, Any]]:
    """Return the lines of all recipes on one draw of training rows."""
    import torch

    torch.set_num_threads(threads)
    name, rows, draw = job
    task, lines = Task(name, sets, model, rows, draw), []
    test, train_ids, other_ids = task.ids(task.test), task.ids(task.train), task.ids(task.others)

    def add(recipe: str, logits: Array, seconds: float) -> None:
        figures = judged(logits, task.wanted)
        lines.append({"set": name, "rows": rows, "draw": draw, "recipe": recipe, "seconds": round(seconds, 1), **figures})

    with torch.no_grad():
        features = task.pooling.features(task.pooled(task.encoder.eval(), test)).float().cpu().numpy()
    add("frozen", features @ task.head[0].T + task.head[1], 0.0)
    logits, of_train, of_others = [], [], []
    for seed in range(1, teachers + 1):
        began = time.perf_counter()
        usual, averaged = train(task, Recipe(), seed)
        seconds = time.perf_counter() - began
        logits.append(usual(test))
        of_train.append(probabilities(usual(train_ids)))
        of_others.append(probabilities(usual(other_ids)))
        add("usual", logits[-1], seconds)
        add("averaged weights", averaged(test), seconds)
    add(f"ensemble of {teachers}", np.log(np.mean([probabilities(one) for one in logits], axis=0)), 0.0)
    add("with frozen", np.log((probabilities(logits[0]) + probabilities(features @ task.head[0].T + task.head[1])) / 2), 0.0)
    taught = {
        "distilled": Recipe(soft=np.mean(of_train, axis=0)),
        "distilled with more rows": Recipe(soft=np.mean(of_train, axis=0), more=(other_ids, np.mean(of_others, axis=0))),
        "self-training": Recipe(more=(other_ids, of_others[0])),
    }
    for recipe, settings in {**RECIPES, **taught}.items():
        if wanted and recipe not in wanted:
            continue
        began = time.perf_counter()
        usual, _ = train(task, replace(settings), 4)
        add(recipe, usual(test), time.perf_counter() - began)
    return lines


def run(given: argparse.Namespace) -> None:
    names = given.only.split(",") if given.only else [
        name for name, found in SETS.items() if found.task == CLASSES and found.role == CHOSEN_ON
    ]  # fmt: skip
    done = {(line["set"], line["rows"], line["draw"]) for line in read_results(given.out)}
    jobs = [(name, given.rows, draw) for draw in range(1, given.draws + 1) for name in names]
    jobs = [job for job in jobs if job not in done]
    threads = max(1, (os.cpu_count() or 1) // given.workers)
    wanted = given.recipes.split(",") if given.recipes else []
    with get_context("spawn").Pool(given.workers) as pool, given.out.open("a", encoding="utf-8") as opened:
        pending = [pool.apply_async(run_one, (job, given.sets, given.model, wanted, given.teachers, threads)) for job in jobs]
        for place, one in enumerate(pending):
            for line in one.get():
                opened.write(json.dumps(line) + "\n")
            opened.flush()
            print(f"{place + 1}/{len(pending)} {jobs[place]}", flush=True)


def table(given: argparse.Namespace) -> None:
    """Print the difference of each recipe from the usual training: the mean over data sets, and its interval."""
    lines = [line for path in given.results for line in read_results(path)]
    for rows in sorted({line["rows"] for line in lines}):
        cells: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for line in lines:
            if line["rows"] == rows:
                cells[line["set"], line["draw"]][line["recipe"]].append(line)
        print(f"\n### {rows:,} rows, {len(cells)} draws of {len({name for name, _ in cells})} sets\n")
        print("| recipe | points of accuracy | log loss | log loss, no temperature | s |\n|---|---|---|---|---:|")
        for recipe in dict.fromkeys(line["recipe"] for line in lines):
            apart: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            seconds = []
            for (name, _), found in cells.items():
                for key in ("accuracy", "log_loss", "raw_log_loss"):
                    if recipe in found:
                        own, usual = (mean(line[key] for line in found[one]) for one in (recipe, "usual"))
                        apart[key][name].append((own - usual) * (100 if key == "accuracy" else 1))
                seconds += [line["seconds"] for line in found.get(recipe, ())]
            shown = [interval([mean(values) for values in apart[key].values()], 1 if key == "accuracy" else 3) for key in apart]
            print(f"| {recipe} | {' | '.join(shown)} | {mean(seconds):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("--sets", type=Path, required=True)
    running.add_argument("--model", type=Path, required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--rows", type=int, default=200)
    running.add_argument("--draws", type=int, default=2)
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--only", default="")
    running.add_argument("--recipes", default="")
    running.add_argument("--teachers", type=int, default=3, help="seeds of the usual training, whose mean is the ensemble")
    running.set_defaults(call=run)
    showing = commands.add_parser("table")
    showing.add_argument("results", type=Path, nargs="+")
    showing.set_defaults(call=table)
    given = parser.parse_args()
    given.call(given)


if __name__ == "__main__":
    main()
