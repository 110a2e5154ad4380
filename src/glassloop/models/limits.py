"""Limits on the sizes in a model's config.json, checked before anything is built from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from glassloop.errors import ModelError, ResourceError

MOST_LAYERS, MOST_LABELS = 1_000, 1_000_000
LAYER_WORDS = ("layers", "n_layer", "hidden_groups", "inner_group_num")
LABEL_NAMES = ("num_labels", "_num_labels", "n_labels")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
INNER_WIDTHS = ("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "n_inner")
DEPTHS = ("num_hidden_groups", "num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def refuse_oversized(path: Path, settings: Mapping[str, object]) -> None:
    """Raise if the config at `path` asks for more layers or labels than any model has, or for more memory than there is.

    transformers builds a module for each layer and a name for each label when it reads a config: a wrong number makes it hang.
    """
    for part in parts_of(settings):
        for name, value in part.items():
            limit = MOST_LABELS if name in LABEL_NAMES else MOST_LAYERS if any(word in name for word in LAYER_WORDS) else None
            if limit is not None and (size := number(value)) > limit:
                raise ModelError(
                    f"{path}: {name} is {size:,}; at most {limit:,} are supported",
                    "correct the config, or download the model again",
                )
        needed, there = 4 * least_weights(part), memory_bytes()
        if needed > there:
            problem = f"{path}: the weights of this model take at least {needed / 1e9:,.1f} GB"
            raise ResourceError(
                f"{problem}, and this machine has {there / 1e9:,.1f} GB", "use a smaller model, or a machine with more memory"
            )


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
