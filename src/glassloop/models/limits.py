"""Limits on the sizes in a model's config.json, checked before anything is built from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from glassloop.errors import ModelError, ResourceError

MOST_LAYERS, MOST_LABELS = 1_000, 1_000_000
LAYER_WORDS = ("layers", "n_layer", "hidden_groups", "inner_group_num", "num_blocks", "per_block")
LABEL_NAMES = ("num_labels", "_num_labels", "n_labels")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
INNER_WIDTHS = ("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "n_inner")
DEPTHS = ("num_hidden_groups", "num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers")
LARGE = 10**9  # bytes; building a smaller model takes no time
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def refuse_oversized(path: Path, settings: Mapping[str, object]) -> None:
    """Raise if the config at `path` asks for more layers or labels than any model has, or for more memory than there is.

    transformers builds a module for each layer and a name for each label when it reads a config: a wrong number makes it hang.
    """
    for part in parts_of(settings):
        for name, value in part.items():
            limit = MOST_LABELS if name in LABEL_NAMES else MOST_LAYERS if is_layer_count(name) else None
            if limit is not None and number(value) > limit:
                shown = f"{value:,}" if number(value) < 1e15 else "a very large number"
                raise ModelError(
                    f"{path}: {name} is {shown}; at most {limit:,} are supported",
                    "correct the config, or download the model again",
                )
        encoder = least_weights({name: value for name, value in part.items() if name not in LABEL_NAMES})  # a head may be new
        saved = sum(file.stat().st_size for file in path.parent.glob("*.safetensors") if file.is_file())
        if saved and 4 * encoder > LARGE and encoder > 2 * saved:  # half a byte is the least that a weight takes in a file
            raise ModelError(
                f"{path}: this config needs at least {encoder:,.0f} weights, but its files have {saved:,} bytes",
                "the weights do not belong to this config.json: download the model again",
            )
        needed, there = 4 * least_weights(part), memory_bytes()
        if needed > there:
            problem = f"{path}: the weights of this model take at least {needed / 1e9:,.1f} GB"
            raise ResourceError(
                f"{problem}, and this machine has {there / 1e9:,.1f} GB", "use a smaller model, or a machine with more memory"
            )


def is_layer_count(name: str) -> bool:
    """Return whether an entry of a config is a number of layers."""
    return any(word in name for word in LAYER_WORDS)


def parts_of(settings: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield a config and the configs in it."""
    yield settings
    for value in settings.values():
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            yield from parts_of(value)


def least_weights(settings: Mapping[str, object]) -> float:
    """Return a lower bound of the number of weights: embedding tables, layers and head."""

    def first(*names: str) -> float:
        return next((number(settings[name]) for name in names if name in settings), 0)

    width, inner = first(*WIDTHS), first(*INNER_WIDTHS)
    table_width = first("embedding_size", *WIDTHS)
    rotated = any("rope" in name or "rotary" in name for name in settings)  # positions without a table
    rows = first("vocab_size") + first("type_vocab_size") + (0 if rotated else first("max_position_embeddings"))
    return table_width * rows + first(*DEPTHS) * width * (2 * width + inner) + width * first(*LABEL_NAMES)


def number(value: object) -> float:
    """Return a size in a config; 0 if it is not a number, which transformers refuses itself."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container around this process."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(there, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or no limit
        return there
