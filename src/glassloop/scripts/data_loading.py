"""`load_dataset` as scripts call it: GLUE from local files, arguments that were removed, and slices of splits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from glassloop.data.glue import GLUE_TASKS, find_glue_files
from glassloop.data.objects import offline
from glassloop.data.sources import load_dataset as own_dataset
from glassloop.hub import hub_unreachable, is_hub_name
from glassloop.scripts.ledger import LEDGER

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

GLUE_NAMES = ("glue", "nyu-mll/glue")
REMOVED = {
    **dict.fromkeys(("trust_remote_code", "script_version", "task"), None),
    "use_auth_token": "token",
    "ignore_verifications": None,
}
FORMATS = ("csv", "json", "text", "parquet", "arrow", "pandas", "xml", "imagefolder", "audiofolder", "webdataset")


def load_dataset(path: str, name: str | None = None, *more: object, **named: object) -> object:
    """Return a data set as `datasets.load_dataset` does. GLUE is read from local files if they are there.

    Args:
        path: The name of the data set, or a format.
        name: The configuration, such as a GLUE task.
        *more: Further arguments of `datasets.load_dataset`.
        **named: Further arguments of `datasets.load_dataset`; those that were removed are dropped.
    """
    from datasets import load

    for argument, today in REMOVED.items():
        if argument in named:
            value = named.pop(argument)
            LEDGER.note(f"load_dataset({argument}=)", f"{today}=" if today else "nothing", "removed in datasets 4")
            named |= {today: value} if today and value is not None else {}
    if path in GLUE_NAMES and name in GLUE_TASKS and not more and find_glue_files(name, None):
        return glue(name, named.get("split"))
    is_hub = is_hub_name(path) and path not in FORMATS
    reason = why_offline() if is_hub else None
    try:
        with offline(reason is not None):
            return load.load_dataset(path, name, *more, **named)
    except Exception as error:
        if reason:
            error.add_note(advice(path, name, reason))
        raise


@cache
def why_offline() -> str | None:
    """Return why the hub cannot be reached, asked once per process; None if it can."""
    return hub_unreachable()


def advice(path: str, name: str | None, reason: str) -> str:
    """Return what to do about a data set that is not on this machine."""
    local = f"; set GLASSLOOP_DATA to the folder that contains glue/{GLUE_TASKS[name].folder}/" if name in GLUE_TASKS else ""
    return f"glassloop: the hub cannot be reached ({reason}), and this machine has no copy of the data set {path}{local}"


def glue(task: str, split: object) -> DatasetDict | Dataset | list[Dataset]:
    """Return the splits of a GLUE task that a script asks for, from local files."""
    splits = own_dataset("glue", task)
    LEDGER.note(f'load_dataset("glue", "{task}")', "glassloop.load_dataset", "reads the files of GLASSLOOP_DATA")
    return splits if split is None else chosen(splits, split)


def chosen(splits: Mapping[str, Dataset], split: object) -> Dataset | list[Dataset]:
    """Return the rows that a split such as `train[:10%]+validation` means, or a list of them."""
    from datasets import ReadInstruction, concatenate_datasets

    if isinstance(split, list | tuple):
        return [chosen(splits, one) for one in split]
    wanted = split if isinstance(split, ReadInstruction) else ReadInstruction.from_spec(str(split))
    parts = []
    for one in wanted.to_absolute({name: len(rows) for name, rows in splits.items()}):
        rows = splits[one.splitname]
        start, end = one.from_ or 0, len(rows) if one.to is None else one.to
        parts.append(rows if (start, end) == (0, len(rows)) else rows.select(range(start, end)))
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts)


def set_caching_enabled(wanted: bool) -> None:
    """Turn the cache of `datasets` on or off.

    Args:
        wanted: Whether to use it.
    """
    import datasets

    (datasets.enable_caching if wanted else datasets.disable_caching)()


def set_progress_bar_enabled(wanted: bool) -> None:
    """Turn the progress bars of `datasets` on or off.

    Args:
        wanted: Whether to show them.
    """
    import datasets

    (datasets.enable_progress_bars if wanted else datasets.disable_progress_bars)()
