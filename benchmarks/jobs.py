"""One measured job: its settings, and the data, the model and the clock that every contender gets."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

MODELS: dict[str, dict[str, int]] = {  # made with random weights: speed does not depend on them
    "tiny": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
}
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
LEARNING_RATE, MAX_NORM, SEED = 5e-5, 1.0, 42
KEPT_LOSSES = 100
EXTRAS = ("tuned", "compile", "weights", "lora", "reversed", "wider", "alone", "eager")
# weights: a subclass whose compute_loss weights the classes; lora: peft's adapter of all linear layers. The last four are the
# same but for rounding:
# reversed: each batch from its last row to its first, which only changes sums over rows; wider: padded to a multiple of 64;
# alone: one row after the other, unpadded, their gradients summed; eager: transformers' attention in plain products
TITLES = {
    "fast": "Glassloop",
    "plain": "Glassloop, backend plain",
    "trainer": "transformers Trainer",
    "accelerate": "accelerate loop",
    "lightning": "Lightning",
    "notes": "course notes' loop",
}


@dataclass(frozen=True)
class Job:
    """What one child process does. `contender` is a kind, then perhaps a precision and a word more: trainer-bf16-tuned."""

    contender: str
    device: str = "cpu"
    model: str = "minilm"
    minilm: str = "quickstart"
    tokenizer: str = "quickstart"
    data: str | None = None  # a GLUE folder that holds MRPC; None: the quickstart pairs
    synthetic: int = 0  # so many rows of random tokens instead
    length: int = 128  # of exactly so many tokens
    times: int = 1  # the training rows so many times over
    batch_size: int = 8
    steps: int = 100  # 0: evaluate only
    schedule: int = 0  # steps over which the rate falls; 0: as many as are run
    ramp: int = 0  # steps over which the rate rises before it falls
    warm_up: int = 20  # steps before the first block
    block: int = 20  # steps in a block
    no_dropout: bool = False
    weights: int = SEED  # the seed of random weights: all of base and large, the head of others
    eval_sizes: tuple[int, ...] = ()  # batch sizes to predict with
    eval_split: str = "validation"
    point: str = ""  # which point of a series this is
    cold: bool = False  # with nothing tokenized before

    @property
    def kind(self) -> str:
        return self.contender.split("-")[0]

    @property
    def precision(self) -> str:
        """fp32, tf32, bf16, or fp64 (the notes' loop only); on a CPU fp32 unless it is fp64."""
        asked = [word for word in self.contender.split("-")[1:] if word in ("fp64", "fp32", "tf32", "bf16")]
        return (asked or ["bf16"])[0] if self.device == "cuda" or asked == ["fp64"] else "fp32"

    @property
    def extra(self) -> str:
        return next((word for word in self.contender.split("-")[1:] if word in EXTRAS), "")

    @property
    def title(self) -> str:
        return TITLES[self.kind] + (f", {self.extra}" if self.extra else "")

    @property
    def total(self) -> int:
        return max(self.schedule, self.steps, 1)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Clock:
    """Seconds by stage since the process was started, and the time at the end of each block of steps."""

    def __init__(self, job: Job, started: float) -> None:
        self.job, self.last = job, started
        self.stages: dict[str, float] = {}
        self.marks: list[float] = []
        self.processor: list[float] = []
        self.losses: list[Any] = []

    def sync(self) -> None:
        if self.job.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def stage(self, name: str) -> None:
        self.sync()
        now = time.time()
        self.stages[name] = now - self.last
        self.last = now

    def cpu_ms(self) -> float | None:
        """Processor time of a step in milliseconds, between the first block and the last: a busy machine changes it less."""
        steps = (len(self.marks) - 1) * self.job.block
        return (self.processor[-1] - self.processor[0]) / steps * 1000 if steps > 0 else None

    def tick(self, step: int) -> None:
        """After a step. The device is waited for after the first one and at the ends of blocks, nowhere else."""
        if step == 1:
            self.stage("first step")
        if step >= self.job.warm_up and (step - self.job.warm_up) % self.job.block == 0:
            self.sync()
            self.marks.append(time.perf_counter())
            self.processor.append(time.process_time())

    def keep(self, loss: Any) -> None:
        """The loss of a step, still on its device."""
        if len(self.losses) < KEPT_LOSSES:
            self.losses.append(loss.detach())

    def blocks(self) -> list[float]:
        """Milliseconds a step in each block."""
        return [(later - sooner) / self.job.block * 1000 for sooner, later in zip(self.marks, self.marks[1:], strict=False)]


@dataclass
class Parts:
    """What a contender starts from."""

    rows: dict[str, Any]
    tokenizer: Any
    model: Any


def load_rows(job: Job) -> tuple[dict[str, Any], Any, Any]:
    """Encoded splits by name, their labels, and the tokenizer."""
    from glassloop import encode, load_examples, load_tokenizer

    tokenizer = load_tokenizer(job.tokenizer if job.model in MODELS else job.minilm if job.model == "minilm" else job.model)
    if job.synthetic:
        return {name: random_rows(job, tokenizer, place) for place, name in enumerate(("train", "validation"))}, None, tokenizer
    examples = load_examples("glue/mrpc", data_dir=job.data) if job.data else load_examples("quickstart")
    rows = {name: found.rows for name, found in encode(examples, tokenizer, 512).items()}
    if job.times > 1:
        from datasets import concatenate_datasets

        rows["train"] = concatenate_datasets([rows["train"]] * job.times)
    return rows, examples.labels, tokenizer


def random_rows(job: Job, tokenizer: Any, seed: int) -> Any:
    import numpy as np
    from datasets import Dataset

    draw = np.random.default_rng(seed)
    ids = draw.integers(1000, len(tokenizer), (job.synthetic, job.length), dtype=np.int32)
    ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    types = np.zeros((job.synthetic, job.length), dtype=np.int8)
    return Dataset.from_dict({"input_ids": ids, "token_type_ids": types, "labels": draw.integers(0, 2, job.synthetic)})


def make_model(job: Job, labels: Any, tokenizer: Any) -> Any:
    """The same weights for every contender, in fp32."""
    import torch

    if job.model in MODELS:
        from transformers import BertConfig, BertForSequenceClassification

        zeros = dict.fromkeys(DROPOUTS, 0.0) if job.no_dropout else {}
        config = BertConfig(vocab_size=max(30522, len(tokenizer)), num_labels=2, **MODELS[job.model], **zeros)
        torch.manual_seed(job.weights)
        return BertForSequenceClassification(config).float()
    from glassloop.models.loading import load_config, load_model

    name = job.minilm if job.model == "minilm" else job.model
    known = load_config(name)
    rates: dict[str, Any] = {option: 0.0 for option in DROPOUTS if job.no_dropout and hasattr(known, option)}
    return load_model(name, labels=labels, seed=job.weights, **rates)


def with_adapter(model: Any) -> Any:
    """A LoRA adapter of rank 8 around all linear layers of the encoder; the head is trained, too."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(SEED)
    settings = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear")
    return get_peft_model(model, settings)


def with_class_weights(kind: type[Any]) -> type[Any]:
    """A subclass of a Trainer as scripts write it for classes that are not balanced."""
    import torch

    class Weighted(kind):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            weight = torch.tensor([1.0, 3.0], device=outputs.logits.device)
            loss = torch.nn.CrossEntropyLoss(weight=weight)(outputs.logits.float(), labels)
            return (loss, outputs) if return_outputs else loss

    return Weighted


def batches_of(job: Job, num_rows: int) -> list[list[int]]:
    """The rows of each batch of the run, as Glassloop's own plan has them."""
    from glassloop.data.batches import epoch_order

    batches: list[list[int]] = []
    epoch = 0
    while len(batches) < job.total:
        batches += [numbers.tolist() for numbers in epoch_order(num_rows, job.batch_size, seed=SEED, epoch=epoch)]
        epoch += 1
    return [batch[::-1] if job.extra == "reversed" else batch for batch in batches[: job.total]]


def accuracy(logits: Any, labels: Any) -> float:
    return float((logits.argmax(axis=-1) == labels).mean())


def speed_of_prediction(job: Job, predict: Any, rows: Any) -> dict[str, float]:
    """Examples a second at each batch size; `predict` takes rows and a batch size."""
    found = {}
    passes = 3 if job.device == "cuda" else 1
    for size in job.eval_sizes:
        run = partial(predict, rows, size)
        if job.device == "cuda":
            run()  # warms up
        seconds = []
        for _ in range(passes):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        found[str(size)] = len(rows) / sorted(seconds)[passes // 2]
    return found


def memory(job: Job) -> dict[str, float]:
    """The most memory so far, in MB: of the process, and of the device."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    found = {"process_mb": most}
    if job.device == "cuda":
        import torch

        found["allocated_mb"] = torch.cuda.max_memory_allocated() / 1e6
        found["reserved_mb"] = torch.cuda.max_memory_reserved() / 1e6
    return found
